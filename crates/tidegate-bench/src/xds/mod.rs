//! Large configs from an xDS control plane: the time until each is accepted, and the slowest check
//! meanwhile.
//!
//! - `messages.rs`: the proto;
//! - `control_plane.rs`: a tonic server that sends configs, in this process.
//!
//! tidegate runs as a separate process in the mode `--as-envoy-ratelimit` with its metrics, as
//! under Envoy Gateway. One connection sends a check after the other and times each. The same
//! checks are timed for as long without configs: their slowest is caused by the machine.

mod control_plane;
pub mod messages;

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::control_plane::{ControlPlane, KEY, config};
use crate::cli::XdsArgs;
use crate::grpc::{connect, is_ok, send_request};
use crate::histogram::Histogram;
use crate::http::{affects_measurement, build_tidegate, temp_directory};
use crate::inprocess::load_average;
use crate::report::{rounded, threshold_json, to_text, write_machine, write_thresholds};
use crate::thresholds::Threshold;

/// The pause between two configs. tidegate applies at most ten per second.
const PAUSE: Duration = Duration::from_millis(100);

/// Results of a run.
struct Results {
    descriptors: u32,
    /// The time until each config was accepted, in order.
    pushes: Vec<Duration>,
    /// The times of checks while configs were sent.
    during: Histogram,
    /// The times of checks while nothing was sent.
    quiet: Histogram,
    load_before: String,
    load_after: String,
}

/// Runs the benchmark and prints the report.
pub fn run(args: &XdsArgs) -> io::Result<()> {
    let program = args.tidegate.clone().map_or_else(build_tidegate, Ok)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
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
    let start = Instant::now();
    for (index, config) in configs.into_iter().enumerate() {
        tokio::time::sleep(PAUSE).await;
        pushes.push(plane.push(config, index + 1).await?);
    }
    let took = start.elapsed();
    let during = checks.stop()?;
    let checks = Checks::start(server.address);
    tokio::time::sleep(took).await;
    let quiet = checks.stop()?;
    let descriptors = args.descriptors;
    Ok(Results { descriptors, pushes, during, quiet, load_before, load_after: load_average() })
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

/// A thread that sends checks, one after the other.
struct Checks {
    thread: JoinHandle<io::Result<Histogram>>,
    ended: Arc<AtomicBool>,
}

impl Checks {
    fn start(address: SocketAddr) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let is_ended = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut client = connect(address).await?;
                let mut times = Histogram::new();
                while !is_ended.load(Ordering::Relaxed) {
                    let sent = Instant::now();
                    let response = send_request(&mut client, KEY, 1).await?;
                    times.record(sent.elapsed());
                    if !is_ok(&response) || response.statuses.is_empty() {
                        return Err(io::Error::other(format!("not checked: {response:?}")));
                    }
                    // The processors are left to the server most of the time.
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
                Ok(times)
            })
        });
        Checks { thread, ended }
    }

    fn stop(self) -> io::Result<Histogram> {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the checks panicked")))
    }
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    write_machine(text, [&results.load_before, &results.load_after])?;
    let Results { descriptors, pushes, during, quiet, .. } = results;
    writeln!(text, "{} configs of {descriptors} descriptors, ms until accepted:", pushes.len())?;
    for (name, pushes) in parts(pushes) {
        let [median, slowest] = median_and_max(pushes);
        writeln!(text, "  {name:<12}median {median:>7.1}  slowest {slowest:>7.1}")?;
    }
    writeln!(text, "checks, ms:")?;
    for (name, times) in [("meanwhile", during), ("without", quiet)] {
        let [p99, max] = [times.all_but_one_in(100), times.max_ns].map(|ns| ns as f64 / 1e6);
        let total = times.total;
        writeln!(text, "  {name:<12}p99    {p99:>7.2}  slowest {max:>7.2}  of {total}")?;
    }
    write_thresholds(text, &thresholds(results))
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
    let check = results.during.max_ns as f64 / 1e6;
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
    let times = |times: &Histogram| json!({ "checks": times.total, "p99_ns": times.all_but_one_in(100), "max_ns": times.max_ns });
    json!({
        "descriptors": results.descriptors,
        "accepted_ms": pushes,
        "checks_meanwhile": times(&results.during),
        "checks_without": times(&results.quiet),
        "bars": thresholds(results).iter().map(threshold_json).collect::<Vec<_>>(),
        "load": [results.load_before, results.load_after],
    })
}
