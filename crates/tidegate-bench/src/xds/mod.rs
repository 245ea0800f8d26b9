//! Large configs from an xDS control plane: the time until each is accepted, and the slowest check
//! meanwhile.
//!
//! - `messages.rs`: the proto;
//! - `control_plane.rs`: a tonic server that sends configs, in this process.
//!
//! tidegate runs as a separate process in the mode `--as-envoy-ratelimit` with its metrics, as
//! under Envoy Gateway. One connection sends a check after the other and times each. Intervals in
//! which a config is sent alternate with equally long ones without a config. The checks of the
//! latter show what the machine causes, and the difference is what configs add. The control plane
//! has a low priority, so that it does not take the processors from the server. The time that the
//! thread with the checks waits for a processor is subtracted, as in `measure.rs`: Envoy would run
//! on others. Waits of the server count.

mod control_plane;
pub mod messages;

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use serde_json::{Value, json};

use self::control_plane::{ControlPlane, KEY, config};
use crate::cli::XdsArgs;
use crate::grpc::{connect, is_ok, send_request};
use crate::histogram::Histogram;
use crate::http::{affects_measurement, build_tidegate, temp_directory};
use crate::inprocess::load_average;
use crate::measure::CpuWait;
use crate::report::{rounded, threshold_json, to_text, write_machine, write_thresholds};
use crate::thresholds::Threshold;

/// The shortest interval without a config. tidegate applies at most ten per second.
const PAUSE: Duration = Duration::from_millis(100);

/// The part of a config's interval after it was accepted. tidegate then frees the replaced one.
const SETTLE: Duration = Duration::from_millis(50);

/// The nice value of the control plane.
const CONTROL_PLANE_NICE: i32 = 10;

/// Results of a run.
struct Results {
    descriptors: u32,
    /// The time until each config was accepted, in order.
    pushes: Vec<Duration>,
    checks: CheckTimes,
    load_before: String,
    load_after: String,
}

/// Runs the benchmark and prints the report.
pub fn run(args: &XdsArgs) -> io::Result<()> {
    let program = args.tidegate.clone().map_or_else(build_tidegate, Ok)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(|| {
            // The measurement is valid without it, with more noise.
            let _ = setpriority_process(None, CONTROL_PLANE_NICE);
        })
        .build()?;
    let results = runtime.block_on(measure(args, &program))?;
    if args.json {
        println!("{}", json(&results));
    } else {
        print!("{}", to_text(|text| write_report(text, &results)));
    }
    Ok(())
}

async fn measure(args: &XdsArgs, program: &Path) -> io::Result<Results> {
    let directory = temp_directory()?;
    let load_before = load_average();
    let mut plane = ControlPlane::start()?;
    let server = Server::start(program, plane.address, directory.path())?;
    plane.subscribed().await?;
    plane.push(config(args.descriptors, 0), 0).await?;
    // Made in advance, because the server and the checks need the processors.
    let configs: Vec<_> =
        (1..=args.pushes).map(|number| config(args.descriptors, number)).collect();
    let checks = Checks::start(server.address);
    let mut pushes = Vec::new();
    let mut pause = PAUSE;
    for (index, config) in configs.into_iter().enumerate() {
        tokio::time::sleep(pause).await;
        let start = Instant::now();
        checks.next_interval();
        pushes.push(plane.push(config, index + 1).await?);
        tokio::time::sleep(SETTLE).await;
        checks.next_interval();
        pause = start.elapsed().max(PAUSE);
    }
    let checks = checks.stop()?;
    let descriptors = args.descriptors;
    Ok(Results { descriptors, pushes, checks, load_before, load_after: load_average() })
}

/// A tidegate process. Dropping it ends the process.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a server whose configs come from a control plane. Its stderr goes to a file in
    /// `directory`.
    fn start(program: &Path, plane: SocketAddr, directory: &Path) -> io::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(program);
        let names = std::env::vars_os().map(|(name, _)| name);
        for name in names.filter(|name| affects_measurement(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command.args(["serve", "--as-envoy-ratelimit", "--grpc", &address.to_string()]);
        command.args(["--http", "off", "--resp", "off", "--admin", "off"]);
        command.envs([
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &plane.to_string()),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
            ("USE_STATSD", "false"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(directory.join("tidegate.log"))?);
        Ok(Server { child: command.spawn()?, address })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already; errors do not matter here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The times of all checks.
struct CheckTimes {
    /// In intervals in which a config is sent.
    meanwhile: IntervalTimes,
    /// In the others.
    without: IntervalTimes,
}

/// The times of the checks in alternate intervals.
struct IntervalTimes {
    times: Histogram,
    /// The slowest check of each interval.
    slowest: Vec<Duration>,
}

impl CheckTimes {
    fn new() -> Self {
        let part = || IntervalTimes { times: Histogram::new(), slowest: Vec::new() };
        CheckTimes { meanwhile: part(), without: part() }
    }

    /// Records a check that ran from one interval into another, or within one. A check that
    /// overlaps with the interval of a config counts in it.
    fn record(&mut self, first: usize, last: usize, took: Duration) {
        let interval = if is_with_config(first) { first } else { last };
        let part = if is_with_config(interval) { &mut self.meanwhile } else { &mut self.without };
        part.times.record(took);
        let index = interval / 2;
        part.slowest.resize(part.slowest.len().max(index + 1), Duration::ZERO);
        part.slowest[index] = part.slowest[index].max(took);
    }
}

/// Whether a config is sent in this interval.
fn is_with_config(interval: usize) -> bool {
    interval % 2 == 1
}

/// The number of the interval after which checks stop.
const STOPPED: usize = usize::MAX;

/// A thread that sends checks, one after the other.
struct Checks {
    thread: JoinHandle<io::Result<CheckTimes>>,
    /// The number of the current interval, or [`STOPPED`].
    interval: Arc<AtomicUsize>,
}

impl Checks {
    fn start(address: SocketAddr) -> Self {
        let interval = Arc::new(AtomicUsize::new(0));
        let current = Arc::clone(&interval);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut client = connect(address).await?;
                let mut times = CheckTimes::new();
                let mut cpu_wait = CpuWait::new();
                loop {
                    let first = current.load(Ordering::Relaxed);
                    cpu_wait.reset();
                    let sent = Instant::now();
                    let response = send_request(&mut client, KEY, 1).await?;
                    let took = cpu_wait.exclude_wait(sent.elapsed());
                    let last = current.load(Ordering::Relaxed);
                    if first == STOPPED || last == STOPPED {
                        return Ok(times);
                    }
                    times.record(first, last, took);
                    if !is_ok(&response) || response.statuses.is_empty() {
                        return Err(io::Error::other(format!("not checked: {response:?}")));
                    }
                    // The processors are left to the server most of the time.
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
            })
        });
        Checks { thread, interval }
    }

    /// Begins the next interval: with a config after one without, and the reverse.
    fn next_interval(&self) {
        self.interval.fetch_add(1, Ordering::Relaxed);
    }

    fn stop(self) -> io::Result<CheckTimes> {
        self.interval.store(STOPPED, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the checks panicked")))
    }
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    write_machine(text, [&results.load_before, &results.load_after])?;
    let Results { descriptors, pushes, checks, .. } = results;
    writeln!(text, "{} configs of {descriptors} descriptors, ms until accepted:", pushes.len())?;
    for (name, pushes) in parts(pushes) {
        let [median, slowest] = median_and_max(pushes);
        writeln!(text, "  {name:<12}median {median:>7.1}  slowest {slowest:>7.1}")?;
    }
    writeln!(text, "checks, ms; intervals with a config alternate with equal ones without:")?;
    writeln!(
        text,
        "  {:<12}{:>9}{:>9}{:>9}{:>24}",
        "", "p99", "p99.9", "slowest", "slowest of interval *"
    )?;
    let [meanwhile, without] = [&checks.meanwhile, &checks.without].map(figures);
    let added = std::array::from_fn(|index| meanwhile[index] - without[index]);
    for (name, figures) in [("meanwhile", meanwhile), ("without", without), ("added", added)] {
        let [p99, p999, max, slowest] = figures;
        writeln!(text, "  {name:<12}{p99:>9.2}{p999:>9.2}{max:>9.2}{slowest:>24.2}")?;
    }
    let [meanwhile, without] = [&checks.meanwhile, &checks.without].map(|part| part.times.total);
    writeln!(text, "  {meanwhile} checks meanwhile, {without} without; * median of the intervals")?;
    write_thresholds(text, &thresholds(results))
}

/// The p99, the p99.9 and the slowest of all checks, and the median of the slowest of each
/// interval, in milliseconds.
fn figures(part: &IntervalTimes) -> [f64; 4] {
    let times = &part.times;
    let [p99, p999, max] = [times.all_but_one_in(100), times.all_but_one_in(1000), times.max_ns]
        .map(|ns| ns as f64 / 1e6);
    [p99, p999, max, median_and_max(&part.slowest)[0]]
}

/// The configs as a whole, the first tenth and the last.
fn parts(pushes: &[Duration]) -> [(&'static str, &[Duration]); 3] {
    let tenth = (pushes.len() / 10).max(1);
    let last = &pushes[pushes.len() - tenth..];
    [("all", pushes), ("first tenth", &pushes[..tenth]), ("last tenth", last)]
}

fn median_and_max(times: &[Duration]) -> [f64; 2] {
    let mut ms: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    ms.sort_by(f64::total_cmp);
    [ms[ms.len() / 2], ms[ms.len() - 1]]
}

fn thresholds(results: &Results) -> Vec<Threshold> {
    let [_, slowest] = median_and_max(&results.pushes);
    let check = results.checks.meanwhile.times.max_ns as f64 / 1e6;
    let [_, (_, first), (_, last)] = parts(&results.pushes);
    let growth = median_and_max(last)[0] / median_and_max(first)[0];
    vec![
        Threshold::at_most(
            "ms until a config is accepted, slowest",
            Some(slowest),
            Some(200.0),
            None,
        ),
        Threshold::at_most("ms of the slowest check meanwhile", Some(check), Some(5.0), None),
        Threshold::at_most(
            "median, last tenth of the configs / first",
            Some(growth),
            Some(1.5),
            None,
        ),
    ]
}

/// Renders JSON.
fn json(results: &Results) -> Value {
    let pushes: Vec<f64> =
        results.pushes.iter().map(|time| rounded(time.as_secs_f64() * 1e3, 100.0)).collect();
    let checks = |part: &IntervalTimes| {
        let [p99, p999, max, slowest] = figures(part);
        json!({
            "checks": part.times.total,
            "p99_ms": p99,
            "p999_ms": p999,
            "max_ms": max,
            "median_interval_max_ms": slowest,
        })
    };
    json!({
        "descriptors": results.descriptors,
        "accepted_ms": pushes,
        "checks_meanwhile": checks(&results.checks.meanwhile),
        "checks_without": checks(&results.checks.without),
        "bars": thresholds(results).iter().map(threshold_json).collect::<Vec<_>>(),
        "load": [results.load_before, results.load_after],
    })
}
