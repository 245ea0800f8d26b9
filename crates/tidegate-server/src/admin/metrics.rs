//! `/metrics`: all metrics, under stable names. The library writes those of decisions.

use std::fs;
use std::time::Duration;

use tidegate::Store as _;
use tidegate::redis::{DataLoss, RedisServer, RedisStats, RedisStore};
use tidegate::unstable::stats::{
    LatencyCounts, MetricKind as Kind, PrometheusText, Stats, write_memory_metrics,
};

use super::AdminState;
use super::fleet::differing;
use super::policies::shown_fingerprint;
use crate::logs;
use crate::server_state::{FrontName, Reload, ServerState};

/// Writes the page.
pub fn page(state: &AdminState) -> String {
    let mut page = PrometheusText::default();
    state.stats().write_metrics(&mut page, state.gate.active_policies().policies());
    write_memory_metrics(&mut page, &state.gate.limiter().stats());
    let (max_keys, help) = (state.server_state.max_keys(), "The most keys tracked at once.");
    page.single("tidegate_max_keys", Kind::Gauge, help, max_keys);
    if let Some(store) = &state.store {
        shared(&mut page, &store.stats(), &state.stats().store_latency());
        store_servers(&mut page, &store.servers());
        nodes(&mut page, store, &state.server_state);
    }
    fronts(&mut page, &state.server_state);
    http2(&mut page, &state.server_state);
    reloads(&mut page, &state.server_state);
    server(&mut page, &state.server_state, state.stats());
    process(&mut page, &Process::read());
    page.finish()
}

/// The counters of leases of hot keys.
fn leases(store: &RedisStats) -> [(&'static str, &'static str, u64); 6] {
    [
        (
            "tidegate_store_lease_hits_total",
            "Requests answered from leased units, without a call to the shared store.",
            store.lease_hits,
        ),
        (
            "tidegate_store_lease_granted_units_total",
            "Units of hot keys that the shared store granted to this server.",
            store.lease_units_granted,
        ),
        (
            "tidegate_store_lease_spent_units_total",
            "Leased units that requests spent.",
            store.lease_units_spent,
        ),
        (
            "tidegate_store_lease_given_back_units_total",
            "Leased units given back to the shared store.",
            store.lease_units_given_back,
        ),
        (
            "tidegate_store_lease_expired_units_total",
            "Leased units neither spent nor given back in time; they count as used.",
            store.lease_units_expired,
        ),
        (
            "tidegate_store_lease_clock_drifts_total",
            "Times that leases were suspended because the clocks drifted apart.",
            store.lease_clock_drifts,
        ),
    ]
}

fn shared(page: &mut PrometheusText, store: &RedisStats, latency: &LatencyCounts) {
    use Kind::{Counter, Gauge};
    let help = "1 while the shared store answers, 0 while on_store_failure applies.";
    page.single("tidegate_store_up", Gauge, help, u8::from(store.up));
    let help = "Requests that the shared store did not answer, by kind.";
    let mut family = page.family("tidegate_store_failures_total", Counter, help);
    for (kind, count) in store.failures() {
        family.sample(&[("kind", kind)], count);
    }
    let help = "Times that the shared store lost data, by reason; limits then start from zero.";
    let mut family = page.family("tidegate_store_data_losses_total", Counter, help);
    for (loss, count) in DataLoss::ALL.into_iter().zip(store.data_losses) {
        family.sample(&[("reason", loss.name())], count);
    }
    let rows = [
        (
            "tidegate_store_requests_total",
            "Requests for the shared store, including those answered from memory.",
            store.requests,
        ),
        (
            "tidegate_store_deny_cache_hits_total",
            "Denials answered from memory because the shared store's last one still holds.",
            store.deny_cache_hits,
        ),
        (
            "tidegate_store_calls_total",
            "Script calls sent to the shared store; several requests may share one.",
            store.calls,
        ),
        (
            "tidegate_store_batches_total",
            "Writes to connections of the shared store; several calls may share one.",
            store.batches,
        ),
        (
            "tidegate_store_sent_total",
            "Requests and other operations sent to the shared store, in calls.",
            store.sent,
        ),
        (
            "tidegate_store_queue_timeouts_total",
            "Requests not sent because they waited too long in this server's queue.",
            store.queue_timeouts,
        ),
        (
            "tidegate_store_coalesced_total",
            "Requests that shared an entry of a call with an earlier one on the same states.",
            store.coalesced,
        ),
        (
            "tidegate_store_resent_total",
            "Calls sent again after an answer that proves they were not carried out.",
            store.resent,
        ),
        (
            "tidegate_store_breaker_openings_total",
            "Times that the breaker opened: no request is sent until the store answers again.",
            store.breaker_openings,
        ),
        (
            "tidegate_store_connections_total",
            "Connections made to the shared store.",
            store.connections,
        ),
        (
            "tidegate_store_deferred_releases_total",
            "Permits released in the background: the acquire was abandoned, or a release failed.",
            store.deferred_releases,
        ),
        (
            "tidegate_store_deferred_releases_dropped_total",
            "Background releases given up because too many waited; the lease ends such a permit.",
            store.deferred_releases_dropped,
        ),
    ];
    for (name, help, value) in rows.into_iter().chain(leases(store)) {
        page.single(name, Counter, help, value);
    }
    let gauges = [
        (
            "tidegate_store_leases_active",
            "Leases of hot keys with units that can be spent.",
            store.leases_active,
        ),
        (
            "tidegate_store_queue_depth",
            "Requests and other operations that wait in this server to be sent.",
            store.queued,
        ),
        (
            "tidegate_store_calls_in_flight",
            "Calls that were sent to the shared store and are not answered yet.",
            store.calls_in_flight,
        ),
    ];
    for (name, help, value) in gauges {
        page.single(name, Gauge, help, value);
    }
    let help = "Time until the shared store answered requests that were sent, or the deadline.";
    page.latency("tidegate_store_duration_seconds", help, latency);
}

fn store_servers(page: &mut PrometheusText, servers: &[RedisServer]) {
    let help = "1 while this server of the shared store answers, 0 while it does not.";
    let mut family = page.family("tidegate_store_server_up", Kind::Gauge, help);
    for server in servers {
        family.sample(&[("server", &server.address)], u8::from(server.up));
    }
}

fn nodes(page: &mut PrometheusText, store: &RedisStore, server_state: &ServerState) {
    let help = "Servers that share the store and are alive; 0 if it is not known yet.";
    page.single("tidegate_store_nodes", Kind::Gauge, help, store.nodes().unwrap_or(0));
    let differing = differing(&store.live_nodes(), server_state.fingerprint());
    let help = "Other servers that share the store and have other policies than this one.";
    page.single("tidegate_store_config_drift", Kind::Gauge, help, differing);
}

fn fronts(page: &mut PrometheusText, server_state: &ServerState) {
    let help = "Answers over HTTP, by front and status.";
    let mut family = page.family("tidegate_http_requests_total", Kind::Counter, help);
    for front in FrontName::ALL {
        for (status, count) in server_state.http_responses(front) {
            let labels = [("front", front.name()), ("status", &*status.to_string())];
            family.sample(&labels, count);
        }
    }
    let help = "Answers to calls over gRPC, by code.";
    let mut family = page.family("tidegate_grpc_requests_total", Kind::Counter, help);
    for (code, count) in server_state.grpc_responses() {
        family.sample(&[("code", code)], count);
    }
    let help = "Replies over RESP, by code.";
    let mut family = page.family("tidegate_resp_requests_total", Kind::Counter, help);
    for (code, count) in server_state.resp_replies() {
        family.sample(&[("code", code)], count);
    }
    let help = "Open connections by front.";
    let mut family = page.family("tidegate_connections", Kind::Gauge, help);
    for front in FrontName::ALL {
        family.sample(&[("front", front.name())], server_state.connections(front));
    }
    let help = "The most connections at once by front; more wait to be accepted.";
    let mut family = page.family("tidegate_max_connections", Kind::Gauge, help);
    for front in FrontName::ALL.into_iter().filter(|front| server_state.max_connections(*front) > 0)
    {
        family.sample(&[("front", front.name())], server_state.max_connections(front));
    }
}

fn http2(page: &mut PrometheusText, server_state: &ServerState) {
    let help = "HTTP/2 streams reset by clients (RST_STREAM).";
    let mut family = page.family("tidegate_http2_resets_total", Kind::Counter, help);
    for front in FrontName::OVER_HTTP {
        family.sample(&[("front", front.name())], server_state.resets(front));
    }
    let help = "Connections closed for an HTTP/2 error of the client (GOAWAY).";
    let mut family = page.family("tidegate_http2_goaways_total", Kind::Counter, help);
    for front in FrontName::OVER_HTTP {
        family.sample(&[("front", front.name())], server_state.goaways(front));
    }
}

fn reloads(page: &mut PrometheusText, server_state: &ServerState) {
    let help = "Reloads of the config; after a refused one the old config stays.";
    let mut family = page.family("tidegate_reloads_total", Kind::Counter, help);
    for reload in Reload::ALL {
        family.sample(&[("result", reload.name())], server_state.reloads(reload));
    }
    page.single(
        "tidegate_config_last_reload_success_timestamp_seconds",
        Kind::Gauge,
        "When the active config was read.",
        server_state.reloaded_at(),
    );
}

fn server(page: &mut PrometheusText, server_state: &ServerState, stats: &Stats) {
    let help = "1, with the version as label.";
    page.family("tidegate_build_info", Kind::Gauge, help)
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let help = "1, with the fingerprint of the policies as label.";
    page.family("tidegate_config_info", Kind::Gauge, help)
        .sample(&[("fingerprint", &shown_fingerprint(server_state.fingerprint()))], 1);
    page.single(
        "tidegate_start_time_seconds",
        Kind::Gauge,
        "When the server started.",
        server_state.started().as_secs_f64(),
    );
    page.single(
        "tidegate_ready",
        Kind::Gauge,
        "1 while new requests are accepted, 0 while draining.",
        u8::from(server_state.is_ready()),
    );
    page.single(
        "tidegate_event_subscribers",
        Kind::Gauge,
        "Readers of the stream of denials; the log is one.",
        stats.events().subscribers(),
    );
    page.single(
        "tidegate_log_lines_dropped_total",
        Kind::Counter,
        "Log lines dropped because standard error was not read fast enough.",
        logs::dropped(),
    );
}

fn process(page: &mut PrometheusText, process: &Process) {
    use Kind::{Counter, Gauge};
    if let Some(cpu) = process.cpu {
        let help = "User and system time used by this process.";
        page.single("process_cpu_seconds_total", Counter, help, cpu.as_secs_f64());
    }
    let rows = [
        ("process_resident_memory_bytes", "Memory held in RAM.", process.resident_bytes),
        ("process_virtual_memory_bytes", "Address space reserved.", process.virtual_bytes),
        ("process_open_fds", "Open file descriptors.", process.open_fds),
        ("process_max_fds", "The most file descriptors that can be open.", process.max_fds),
    ];
    for (name, help, value) in rows {
        if let Some(value) = value {
            page.single(name, Gauge, help, value);
        }
    }
}

/// Clock ticks per second in `/proc`: the unit in which the kernel reports times to programs,
/// regardless of its internal one.
const TICKS_PER_SECOND: u64 = 100;

/// Values of `/proc` for this process; `None` where they are unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub cpu: Option<Duration>,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_fds: Option<u64>,
    pub max_fds: Option<u64>,
}

impl Process {
    /// Reads the current values.
    pub fn read() -> Self {
        let text =
            |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let status = text("status");
        Process {
            cpu: cpu(&text("stat")),
            resident_bytes: kilobytes(&status, "VmRSS:"),
            virtual_bytes: kilobytes(&status, "VmSize:"),
            // The directory is itself an open descriptor while it is read.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|all| (all.count() as u64).max(1) - 1),
            max_fds: max_fds(&text("limits")),
        }
    }
}

/// User and system time: fields 14 and 15, counted from the end of the program name, which may
/// contain any characters.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(Duration::from_millis(ticks * (1_000 / TICKS_PER_SECOND)))
}

fn kilobytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_give_values_or_none_if_malformed() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 31 0 0 20 0 4 0 100 1 2 3";
        assert_eq!(cpu(stat), Some(Duration::from_millis(2_810)));
        let status = "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t   12 kB\n";
        assert_eq!(kilobytes(status, "VmRSS:"), Some(12 * 1024));
        assert_eq!(kilobytes(status, "VmSwap:"), None);
        let limits =
            "Limit   Soft Limit   Hard Limit   Units\nMax open files   1024   4096   files\n";
        assert_eq!(max_fds(limits), Some(1024));
        for nothing in ["", "7 (x", "7 (x) S 1", "Max open files unlimited"] {
            assert_eq!((cpu(nothing), max_fds(nothing)), (None, None), "{nothing}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_metric_of_the_process_has_a_value() {
        let process = Process::read();
        assert!(process.resident_bytes > Some(100_000), "{process:?}");
        assert!(process.virtual_bytes >= process.resident_bytes, "{process:?}");
        assert!(process.cpu.is_some() && process.max_fds.is_some(), "{process:?}");
        assert!(process.open_fds >= Some(3), "{process:?}");
    }
}
