//! The properties that a server reports, and whether it can be used.

use super::error::ConnectError;
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

#[cfg(test)]
mod tests {
    use super::*;

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
