//! `/metrics`: all metrics, under stable names.
//!
//! Labels are names from the config and fixed words. A key is never a label, because the number of
//! keys is unbounded.

use std::fs;
use std::time::Duration;

use tidegate::MemoryStats;
use tidegate::redis::RedisStats;
use tidegate::unstable::policy::{Mode, Policies, RequestField};
use tidegate::unstable::stats::{
    Decided, LATENCY_BOUNDS, LatencyCounts, Outcome, RequestCounts, SeriesCounts, Stats,
};

use super::AdminState;
use super::prometheus_text::{Kind, PrometheusText};
use super::server_state::{FrontName, Reload, ServerState};
use crate::logs;

/// Writes the page.
pub fn page(state: &AdminState) -> String {
    let mut page = PrometheusText::default();
    requests(&mut page, &state.stats().requests(), state.gate.active_policies().policies());
    decisions(&mut page, &state.stats().series());
    latency(&mut page, &state.stats().latency());
    memory(&mut page, &state.gate.limiter().stats(), &state.server_state);
    if let Some(store) = &state.store {
        shared(&mut page, &store.stats(), &state.stats().store_latency());
    }
    fronts(&mut page, &state.server_state);
    http2(&mut page, &state.server_state);
    reloads(&mut page, &state.server_state);
    server(&mut page, &state.server_state, state.stats());
    process(&mut page, &Process::read());
    page.finish()
}

fn requests(page: &mut PrometheusText, all: &[RequestCounts], policies: &Policies) {
    let help = "Requests, each counted once under the policy that its answer reports.";
    let mut family = page.family("tidegate_requests_total", Kind::Counter, help);
    for requests in all {
        let route = route(policies, &requests.policy);
        for outcome in Outcome::ALL {
            let count = requests.outcomes[outcome as usize];
            // Possible outcomes are always listed, so that a rate can start from zero.
            if count > 0 || requests.possible[outcome as usize] {
                let policy = ("policy", &*requests.policy);
                let outcome = ("outcome", outcome.name());
                match &route {
                    Some(route) => family.sample(&[policy, ("route", route), outcome], count),
                    None => family.sample(&[policy, outcome], count),
                }
            }
        }
    }
}

/// The maximum length of a route label. A policy can have 1,024 patterns.
const MAX_ROUTE_CHARS: usize = 128;

/// The path patterns that a policy matches, as the config has them; `None` if it matches any path.
/// There is one route per policy, so the label adds no series, and no path that a client sends
/// appears in it.
fn route(policies: &Policies, policy: &str) -> Option<String> {
    let mut conditions = policies.get(policy)?.matching().iter();
    let path = conditions.find(|condition| *condition.field() == RequestField::Path)?;
    let text = path.to_string();
    let patterns = text.strip_prefix("path: ").unwrap_or(&text);
    match patterns.char_indices().nth(MAX_ROUTE_CHARS) {
        Some((end, _)) => Some(format!("{}...", &patterns[..end])),
        None => Some(patterns.to_owned()),
    }
}

fn decisions(page: &mut PrometheusText, all: &[SeriesCounts]) {
    // Policies that are off never decide. A series at 0 would look like one that could.
    let all = || all.iter().filter(|series| series.mode != Mode::Off);
    let help = "Answers of single limits: one per limit a request was checked against.";
    let mut family = page.family("tidegate_decisions_total", Kind::Counter, help);
    for series in all() {
        let outcomes =
            [(Outcome::Allowed, &series.allowed), (series.denied_outcome(), &series.denied)];
        for (outcome, counts) in outcomes {
            for (decided, count) in Decided::ALL.into_iter().zip(counts) {
                // Exact decisions are always listed, so that a rate can start from zero.
                if *count == 0 && decided != Decided::Exact {
                    continue;
                }
                let [policy, limit, mode] = names(series);
                let how = [("outcome", outcome.name()), ("decided", decided.name())];
                family.sample(&[policy, limit, mode, how[0], how[1]], count);
            }
        }
    }
    let help = "Answers that allowed and left at most 5 % of the limit.";
    let mut family = page.family("tidegate_near_misses_total", Kind::Counter, help);
    for series in all() {
        family.sample(&names(series), series.near);
    }
}

fn names(series: &SeriesCounts) -> [(&'static str, &str); 3] {
    [("policy", &series.policy), ("limit", &series.limit), ("mode", series.mode.name())]
}

fn latency(page: &mut PrometheusText, counts: &LatencyCounts) {
    let help = "Time to decide a request, without the protocol around it; a sample of all.";
    histogram(page, "tidegate_decision_duration_seconds", help, counts);
}

fn histogram(page: &mut PrometheusText, name: &str, help: &str, counts: &LatencyCounts) {
    let mut family = page.family(name, Kind::Histogram, help);
    let mut up_to = 0;
    for (bound, count) in LATENCY_BOUNDS.iter().zip(counts.buckets) {
        up_to += count;
        family.suffixed("_bucket", &[("le", &bound.as_secs_f64().to_string())], up_to);
    }
    family.suffixed("_bucket", &[("le", "+Inf")], counts.count());
    family.suffixed("_sum", &[], counts.sum.as_secs_f64());
    family.suffixed("_count", &[], counts.count());
}

fn memory(page: &mut PrometheusText, store: &MemoryStats, server_state: &ServerState) {
    use Kind::{Counter, Gauge};
    let rows = [
        (
            "tidegate_tracked_keys",
            Gauge,
            "Keys tracked, counted per key and limit.",
            store.tracked_keys,
        ),
        ("tidegate_max_keys", Gauge, "The most keys tracked at once.", server_state.max_keys()),
        ("tidegate_log_entries", Gauge, "Log entries and permits held.", store.log_entries),
        ("tidegate_remembered_ids", Gauge, "Idempotency ids remembered.", store.remembered_ids),
        (
            "tidegate_overflow_total",
            Counter,
            "Answers for keys there was no room for.",
            store.overflowed,
        ),
        (
            "tidegate_merged_entries_total",
            Counter,
            "Log entries merged for want of room.",
            store.merged_entries,
        ),
        (
            "tidegate_forgotten_ids_total",
            Counter,
            "Idempotency ids forgotten for want of room.",
            store.forgotten_ids,
        ),
    ];
    for (name, kind, help, value) in rows {
        page.single(name, kind, help, value);
    }
}

fn shared(page: &mut PrometheusText, store: &RedisStats, latency: &LatencyCounts) {
    use Kind::{Counter, Gauge};
    let help = "1 while the shared store answers, 0 while on_store_failure does.";
    page.single("tidegate_store_up", Gauge, help, u8::from(store.up));
    let help = "Requests the shared store did not answer, by kind.";
    let mut family = page.family("tidegate_store_failures_total", Counter, help);
    for (kind, count) in store.failures() {
        family.sample(&[("kind", kind)], count);
    }
    let rows = [
        (
            "tidegate_store_requests_total",
            "Requests for the shared store, those answered from memory included.",
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
            "tidegate_store_coalesced_total",
            "Requests that shared an entry of a call with an equal one.",
            store.coalesced,
        ),
        (
            "tidegate_store_resent_total",
            "Calls sent again after an answer that proves they were not carried out.",
            store.resent,
        ),
        (
            "tidegate_store_breaker_openings_total",
            "Times the shared store was given up until it answers again.",
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
    for (name, help, value) in rows {
        page.single(name, Counter, help, value);
    }
    let help = "Time until the shared store answered requests that were sent, or the deadline.";
    histogram(page, "tidegate_store_duration_seconds", help, latency);
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
        "When the config in force was read.",
        server_state.reloaded_at(),
    );
}

fn server(page: &mut PrometheusText, server_state: &ServerState, stats: &Stats) {
    let help = "1, with the version as label.";
    page.family("tidegate_build_info", Kind::Gauge, help)
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.single(
        "tidegate_start_time_seconds",
        Kind::Gauge,
        "When the server started.",
        server_state.started().as_secs_f64(),
    );
    page.single(
        "tidegate_ready",
        Kind::Gauge,
        "1 while new requests are welcome, 0 while draining.",
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
    fn parses_proc_files() {
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
    fn reads_own_process() {
        let process = Process::read();
        assert!(process.resident_bytes > Some(100_000), "{process:?}");
        assert!(process.virtual_bytes >= process.resident_bytes, "{process:?}");
        assert!(process.cpu.is_some() && process.max_fds.is_some(), "{process:?}");
        assert!(process.open_fds >= Some(3), "{process:?}");
    }
}
