//! Full load on one processor while the server's log is not read.
//!
//! Standard error is a pipe without a reader. Once the pipe and the server's own buffer are full,
//! a server that waits for its log would stop answering. Every check here is denied, and there are
//! enough policies that the denials fill both within seconds. The end of the run proves that they
//! were full: the pipe is read then, and the server reports the number of dropped lines.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::task::LocalSet;

use super::load::{Connection, TurnCounter, with_answer_timeout};
use super::process::pinned_to;
use super::server::{Program, Server};
use super::setup::{self, CpuPlacement, temp_directory};
use super::wire::{LIMITS, LONGEST, LOOSE_LIMITS, Request, RequestKind, config};
use crate::cli::HttpArgs;

/// Number of policies. Each logs at most ten denials per second.
const POLICIES: u32 = 400;

/// Time for pipe and buffer to fill: 1.1 MB, at 4,000 lines per second of more than 200 bytes.
const FILL: Duration = Duration::from_secs(5);

/// The 99.9th percentile of the latency must be below this.
const MAX_P999: Duration = Duration::from_millis(50);

/// The log line that reports dropped lines, and the field with their number.
const REPORT: &str = "log lines were dropped";
const TOTAL: &str = "total=";

/// How long the server may take to end. It drains for at most 20 seconds.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Results of a run.
pub struct StalledLogResult {
    pub answers: u64,
    pub elapsed: Duration,
    pub p50: Duration,
    pub p99: Duration,
    pub p999: Duration,
    /// Number of dropped log lines.
    pub dropped: u64,
    /// Time from SIGTERM to the end of the process, with the log still unread.
    pub ended: Duration,
}

impl StalledLogResult {
    /// Returns an error if the threshold is not met.
    pub fn verify(&self) -> io::Result<()> {
        if self.p999 < MAX_P999 {
            return Ok(());
        }
        Err(io::Error::other(format!("p99.9 is {:?}; it must be below {MAX_P999:?}", self.p999)))
    }

    pub fn text(&self) -> String {
        let rate = self.answers as f64 / self.elapsed.as_secs_f64();
        let met = if self.p999 < MAX_P999 { "met" } else { "NOT MET" };
        format!(
            "log not read, one processor: {} checks, all denied, {rate:.0}/s\n\
             p50 {:?}, p99 {:?}, p99.9 {:?} (bar: below {MAX_P999:?}, {met})\n\
             {} log lines dropped; ended {:?} after SIGTERM\n",
            self.answers, self.p50, self.p99, self.p999, self.dropped, self.ended
        )
    }

    pub fn json(&self) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        json!({
            "checks": self.answers,
            "seconds": self.elapsed.as_secs_f64(),
            "p50_ms": ms(self.p50),
            "p99_ms": ms(self.p99),
            "p999_ms": ms(self.p999),
            "bar_ms": ms(MAX_P999),
            "met": self.p999 < MAX_P999,
            "dropped_lines": self.dropped,
            "ended_ms": ms(self.ended),
        })
        .to_string()
    }
}

/// Loads tidegate for `seconds` after pipe and buffer are full.
pub fn run(args: &HttpArgs, seconds: u32) -> io::Result<StalledLogResult> {
    let directory = temp_directory()?;
    let program = setup::tidegate(args, &LOOSE_LIMITS[..1], directory.path())?;
    let Program::Tidegate { config: file, .. } = &program else {
        return Err(io::Error::other("only tidegate is measured here"));
    };
    let mut text = config(&LOOSE_LIMITS[..1], LIMITS.tight);
    for number in 0..POLICIES {
        let name = policy_name(number);
        text += &format!(
            "  - {{ name: {name}, match: {{ path: /{name} }}, key: \"{{client_ip}}\", \
             limits: [\"1 per {LONGEST}\"] }}\n"
        );
    }
    std::fs::write(file, text)?;
    let placement = CpuPlacement::choose(args.unbound);
    let start = || {
        let (reader, writer) = io::pipe()?;
        let server =
            Server::start_logging_to(writer.into(), &program, placement.server, directory.path())?;
        Ok::<_, io::Error>((server, reader))
    };
    let time = Duration::from_secs(seconds.into());
    let (server, reader) = start()?;
    let (counter, elapsed) = pinned_to(placement.load, || load(&server, args.connections, time))??;
    let (answers, allowed) = counter.answers();
    if answers == 0 || allowed > 0 {
        return Err(io::Error::other(format!("{allowed} of {answers} checks were not denied")));
    }
    let dropped = dropped(reader)?;
    drop(server);
    // A second server, because the log of the first was read.
    let (server, _reader) = start()?;
    pinned_to(placement.load, || load(&server, args.connections, Duration::ZERO))??;
    let ended = end(server)?;
    Ok(StalledLogResult {
        answers,
        elapsed,
        p50: counter.all_but_one_in(2),
        p99: counter.all_but_one_in(100),
        p999: counter.all_but_one_in(1_000),
        dropped,
        ended,
    })
}

fn policy_name(number: u32) -> String {
    format!("stalled-{number:04}-{}", "x".repeat(40))
}

/// Fills pipe and buffer, then measures for `time`.
fn load(server: &Server, connections: u32, time: Duration) -> io::Result<(TurnCounter, Duration)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, with_answer_timeout(run_load(server, connections, time)))
}

async fn run_load(
    server: &Server,
    connections: u32,
    time: Duration,
) -> io::Result<(TurnCounter, Duration)> {
    let measured = Rc::new(TurnCounter::new());
    let (measuring, over) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let requests: Vec<Request> =
        (0..POLICIES).map(|number| Request::check(&policy_name(number), server.address)).collect();
    let requests: Rc<[Request]> = requests.into();
    let mut tasks = Vec::new();
    for number in 0..connections {
        let mut connection = Connection::open(server.address).await?;
        let (counter, over) = (Rc::clone(&measured), Rc::clone(&over));
        let (measuring, requests) = (Rc::clone(&measuring), Rc::clone(&requests));
        tasks.push(tokio::task::spawn_local(async move {
            let mut next = number as usize;
            while !over.get() {
                let sent = Instant::now();
                let request = &requests[next % requests.len()];
                next += 1;
                let allowed =
                    connection.send_request(request).await?.verdict(RequestKind::Check)?.allowed;
                // The first check of each policy was allowed, while pipe and buffer were filling.
                if measuring.get() {
                    counter.count(allowed, sent.elapsed());
                }
            }
            Ok::<_, io::Error>(())
        }));
    }
    tokio::time::sleep(FILL).await;
    measuring.set(true);
    let start = Instant::now();
    tokio::time::sleep(time).await;
    let elapsed = start.elapsed();
    over.set(true);
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    let counter =
        Rc::into_inner(measured).ok_or_else(|| io::Error::other("a task is still running"))?;
    Ok((counter, elapsed))
}

/// Reads the log up to the line with the number of dropped lines.
fn dropped(reader: PipeReader) -> io::Result<u64> {
    for line in BufReader::new(reader).lines() {
        let line = line?;
        if line.contains(REPORT) {
            let total = line.split_whitespace().find_map(|word| word.strip_prefix(TOTAL));
            return total.and_then(|total| total.parse().ok()).ok_or_else(|| {
                io::Error::other(format!("no number of dropped lines in this line: {line}"))
            });
        }
    }
    Err(io::Error::other("the server dropped no lines: its log was not full"))
}

/// Ends the server and returns how long it took.
fn end(mut server: Server) -> io::Result<Duration> {
    let start = Instant::now();
    let process = i32::try_from(server.process()).ok().and_then(Pid::from_raw);
    kill_process(process.ok_or_else(|| io::Error::other("the process has no id"))?, Signal::TERM)?;
    while !server.has_ended()? {
        if start.elapsed() > END_TIMEOUT {
            return Err(io::Error::other("the server did not end in time"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(start.elapsed())
}
