//! The properties that a server reports, whether it can be used, and whether it has lost data.

use std::time::Duration;

use super::error::ConnectError;
use super::stats::DataLoss;
use super::url::Deployment;

/// The oldest supported version, which is the first with ACLs and exact script replication.
pub(super) const OLDEST: (u32, u32) = (6, 0);

/// The properties of a server, from the reply to `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerInfo {
    version: Box<str>,
    mode: Box<str>,
    pub(super) is_replica: bool,
    /// Whether the server is loading its data and does not serve requests yet.
    pub(super) is_loading: bool,
    maxmemory_policy: Box<str>,
}

impl ServerInfo {
    pub(super) fn read(info: &str) -> Self {
        let mut server_info = ServerInfo::default();
        for line in info.lines() {
            let Some((name, value)) = line.trim_end().split_once(':') else { continue };
            match name {
                // Valkey reports the version of Redis with which it is compatible.
                "redis_version" => server_info.version = value.into(),
                // The names in Redis and in Valkey.
                "redis_mode" | "server_mode" => server_info.mode = value.into(),
                "role" => server_info.is_replica = value != "master",
                "loading" => server_info.is_loading = value == "1",
                "maxmemory_policy" => server_info.maxmemory_policy = value.into(),
                _ => {}
            }
        }
        server_info
    }

    /// Checks that the server can be used in a store of this deployment. A replica is accepted in a
    /// cluster, where it redirects calls. Behind Sentinels it is an error, which
    /// [`Sentinels::dial`](super::topology::Sentinels::dial) treats as temporary.
    pub(super) fn check(&self, deployment: Deployment) -> Result<(), ConnectError> {
        let mut numbers = self.version.split('.').map(|number| number.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) if (major, minor) >= OLDEST => {}
            (Some(_), _) => return Err(ConnectError::TooOld(self.version.clone())),
            _ => return Err(ConnectError::Unusable("it does not report its version".into())),
        }
        match (&*self.mode, deployment) {
            ("sentinel", _) => Err(ConnectError::IsSentinel),
            ("cluster", Deployment::Cluster) => Ok(()),
            ("cluster", _) => Err(ConnectError::IsCluster),
            (_, Deployment::Cluster) => Err(ConnectError::NotCluster),
            _ if self.is_replica => Err(ConnectError::IsReplica),
            _ => Ok(()),
        }
    }

    /// A warning for the operator if the server may evict keys.
    pub(super) fn warning(&self) -> Option<String> {
        let policy = &*self.maxmemory_policy;
        let which = match policy {
            "" | "noeviction" => return None,
            _ if policy.starts_with("volatile-") => "keys with a TTL, which all of ours have",
            _ => "keys",
        };
        Some(format!(
            "the store's maxmemory-policy is {policy}: when its memory is full, it evicts \
             {which}, and their limits start from zero; set it to noeviction"
        ))
    }
}

/// The report of a server about its data. Two reports show whether data was lost between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DataMarks {
    /// The id of the process, which is random.
    run_id: Box<str>,
    /// The number of keys in the database of the store.
    keys: u64,
    /// The number of `FLUSHALL` and `FLUSHDB` commands since the process started.
    flushes: u64,
    /// The number of keys that were evicted since the process started.
    evicted: u64,
}

impl DataMarks {
    /// The sections of `INFO` that have the marks. Servers before 7.0 take one per command.
    pub(super) const SECTIONS: [&str; 4] = ["server", "keyspace", "stats", "commandstats"];

    /// Reads the marks of database `db` from the text of the sections.
    pub(super) fn read(info: &str, db: u32) -> Self {
        let mut marks = DataMarks::default();
        let database = format!("db{db}");
        for line in info.lines() {
            let Some((name, value)) = line.trim_end().split_once(':') else { continue };
            // The value of a line with several values: `keys=2,expires=2` or `calls=1,usec=5`.
            let first = || value.split(['=', ',']).nth(1)?.parse().ok();
            match name {
                "run_id" => marks.run_id = value.into(),
                "evicted_keys" => marks.evicted = value.parse().unwrap_or(0),
                "cmdstat_flushall" | "cmdstat_flushdb" => marks.flushes += first().unwrap_or(0),
                name if name == database => marks.keys = first().unwrap_or(0),
                _ => {}
            }
        }
        marks
    }

    /// Returns the data that was lost since `before`, with a description. `age` is the age of
    /// `before`: keys that were written in that time are not in it.
    pub(super) fn lost_since(
        &self,
        before: &DataMarks,
        age: Duration,
    ) -> Option<(DataLoss, String)> {
        if before.run_id.is_empty() || self.run_id.is_empty() {
            return None;
        }
        if self.run_id != before.run_id {
            let (had, has, seconds) = (before.keys, self.keys, age.as_millis().div_ceil(1_000));
            let text = format!(
                "it restarted, or another server took its place; it had {had} keys when last seen, \
                 {seconds} s ago, and has {has}"
            );
            return Some((DataLoss::Restart, text));
        }
        // The counts fall after `CONFIG RESETSTAT`.
        if self.flushes > before.flushes {
            return Some((DataLoss::Flush, "FLUSHALL or FLUSHDB was run on it".into()));
        }
        let evicted = self.evicted.saturating_sub(before.evicted);
        (evicted > 0).then(|| {
            let text = format!("it evicted {evicted} keys for lack of memory: set noeviction");
            (DataLoss::Eviction, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_data_is_recognized() {
        let marks = |run_id: &str, keys: u64, flushes: u64, evicted: u64| {
            let info = format!(
                "# Server\r\nrun_id:{run_id}\r\n# Keyspace\r\ndb0:keys=9,expires=9\r\n\
                 db3:keys={keys},expires={keys},avg_ttl=5\r\n# Stats\r\nevicted_keys:{evicted}\r\n\
                 # Commandstats\r\ncmdstat_flushall:calls={flushes},usec=3\r\n\
                 cmdstat_flushdb:calls=1,usec=3\r\n"
            );
            DataMarks::read(&info, 3)
        };
        let before = marks("a", 7, 0, 5);
        assert_eq!(before, DataMarks { run_id: "a".into(), keys: 7, flushes: 1, evicted: 5 });
        let rows = [
            (marks("a", 0, 0, 5), None),
            (
                marks("b", 2, 0, 0),
                Some((DataLoss::Restart, "had 7 keys when last seen, 5 s ago, and has 2")),
            ),
            (marks("a", 0, 1, 5), Some((DataLoss::Flush, "FLUSHALL"))),
            (marks("a", 7, 0, 8), Some((DataLoss::Eviction, "evicted 3 keys"))),
            // After `CONFIG RESETSTAT`.
            (marks("a", 7, 0, 0), None),
            (DataMarks::default(), None),
        ];
        for (now, expected) in rows {
            let lost = now.lost_since(&before, Duration::from_millis(4_200));
            assert_eq!(lost.as_ref().map(|lost| lost.0), expected.map(|lost| lost.0), "{now:?}");
            if let (Some((_, text)), Some((_, excerpt))) = (lost, expected) {
                assert!(text.contains(excerpt), "{text}");
            }
        }
        assert_eq!(before.lost_since(&DataMarks::default(), Duration::ZERO), None);
    }

    fn server_info(version: &str, mode: &str, role: &str) -> ServerInfo {
        ServerInfo::read(&format!(
            "# Server\r\nredis_version:{version}\r\nredis_mode:{mode}\r\n\r\nrole:{role}\r\nloading:0\r\n"
        ))
    }

    #[test]
    fn unusable_servers_have_distinct_errors() {
        let old = |version: &str| Err(ConnectError::TooOld(version.into()));
        let rows = [
            ("7.0.15", "standalone", "master", Deployment::Single, Ok(())),
            ("6.0.0", "standalone", "master", Deployment::Sentinel, Ok(())),
            ("10.1", "cluster", "slave", Deployment::Cluster, Ok(())),
            ("5.0.14", "standalone", "master", Deployment::Single, old("5.0.14")),
            ("2.8", "cluster", "master", Deployment::Cluster, old("2.8")),
            ("6", "standalone", "master", Deployment::Single, old("6")),
            ("7.0.0", "cluster", "master", Deployment::Single, Err(ConnectError::IsCluster)),
            ("7.0.0", "standalone", "master", Deployment::Cluster, Err(ConnectError::NotCluster)),
            ("7.0.0", "sentinel", "master", Deployment::Single, Err(ConnectError::IsSentinel)),
            ("7.0.0", "standalone", "slave", Deployment::Single, Err(ConnectError::IsReplica)),
        ];
        for (version, mode, role, deployment, expect) in rows {
            assert_eq!(
                server_info(version, mode, role).check(deployment),
                expect,
                "{version} {mode} {role}"
            );
        }
        let valkey =
            ServerInfo::read("redis_version:7.2.4\r\nserver_mode:cluster\r\nrole:master\r\n");
        assert_eq!(valkey.check(Deployment::Single), Err(ConnectError::IsCluster));
        assert!(matches!(
            ServerInfo::read("x").check(Deployment::Single),
            Err(ConnectError::Unusable(_))
        ));
    }

    #[test]
    fn evicting_policies_are_warned_about() {
        let warning =
            |policy: &str| ServerInfo::read(&format!("maxmemory_policy:{policy}")).warning();
        assert_eq!(warning("noeviction"), None);
        assert_eq!(ServerInfo::default().warning(), None);
        assert!(warning("volatile-lru").expect("warned").contains("TTL"));
        assert!(warning("allkeys-lfu").expect("warned").contains("allkeys-lfu"));
    }
}
