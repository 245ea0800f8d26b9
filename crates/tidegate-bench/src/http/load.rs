//! The load generator: a separate process that sends requests, checks every answer and counts.
//!
//! It has one thread and, for every server, a fixed number of keep-alive connections with one
//! request in flight each. The servers are loaded in turns of some hundredths of a second, because
//! the speed of a shared machine changes over seconds: neighbouring turns of two servers can be
//! compared, turns that are ten seconds apart cannot.
//!
//! A turn ends when its last answer has arrived. So the server sleeps when a turn starts and when
//! it ends. The kernel reports the exact processor time only for sleeping threads.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::alternating_load::TurnArgs;
use super::process::CpuTimes;
use super::wire::{Budget, HttpResponse, Request, RequestKind};
use super::{alternating_load, soak};
use crate::cli::name_of;
use crate::histogram::Histogram;

/// Buffer size for an answer; a longer answer is an error.
const MAX_ANSWER_BYTES: usize = 32 << 10;

/// A server that sends no answer for this long is considered hung.
const ANSWER_TIMEOUT_SECS: u64 = 10;

/// Arguments of the load process.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Kind of load.
    pub job: Job,
    /// Servers to load; only `turns` supports more than one.
    #[arg(required = true)]
    pub targets: Vec<Target>,
    #[arg(long)]
    pub connections: u32,
    /// Distinct keys.
    #[arg(long)]
    pub keys: u32,
    #[command(flatten)]
    pub turn_args: TurnArgs,
}

impl LoadArgs {
    /// Returns the only server of a job that supports one.
    pub fn target(&self) -> Target {
        self.targets[0]
    }
}

/// A server and the requests to send to it, written `address/kind/process`.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub address: SocketAddr,
    pub kind: RequestKind,
    /// The server's process id, for its processor time.
    pub process: u32,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.address, name_of(&self.kind), self.process)
    }
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or("a target is address/kind/process");
        Ok(Target {
            address: next()?.parse().map_err(|_| "invalid address")?,
            kind: RequestKind::from_str(next()?, false).map_err(|_| "unknown kind of request")?,
            process: next()?.parse().map_err(|_| "the process is not a number")?,
        })
    }
}

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Job {
    /// Sends every key once; each must be new to the server.
    Fill,
    /// Sends random keys to the servers in turns.
    Turns,
    /// Sends random keys for a given time and compares each answer with earlier ones for its key.
    Soak,
}

/// Measurements of one turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TurnResult {
    pub answers: u64,
    pub allowed: u64,
    pub elapsed_ns: u64,
    pub server_ran_ns: u64,
    pub server_queued_ns: u64,
    pub load_ran_ns: u64,
    pub load_queued_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
}

impl TurnResult {
    /// Returns the fraction of the time that server and load waited for a processor.
    pub fn queued(&self) -> f64 {
        (self.server_queued_ns + self.load_queued_ns) as f64 / self.elapsed_ns as f64
    }
}

/// The output of the load process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// The turns of every server, one per round.
    pub turns: Vec<Vec<TurnResult>>,
    /// Number of turns that were repeated.
    pub disturbed: usize,
}

/// Runs the job on this thread.
pub fn run(args: &LoadArgs) -> io::Result<LoadReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, with_answer_timeout(work(args)))
}

/// Runs `work` until it finishes, or fails when no answer has arrived for a while.
pub async fn with_answer_timeout<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::select! {
        done = work => done,
        () = no_answers() => {
            Err(io::Error::other(format!("no answer within {ANSWER_TIMEOUT_SECS} s")))
        }
    }
}

/// Records that an answer has arrived.
pub fn record_answer() {
    ANSWERS.set(ANSWERS.get() + 1);
}

async fn work(args: &LoadArgs) -> io::Result<LoadReport> {
    let counted = match args.job {
        Job::Fill => fill(args).await?,
        Job::Turns => return alternating_load::run(args).await,
        Job::Soak => soak::run_load(args).await?,
    };
    Ok(LoadReport { turns: vec![vec![counted]], disturbed: 0 })
}

thread_local! {
    /// Answers on all connections. One timer watches this counter; a timer per request would cost
    /// the load more than the request itself.
    static ANSWERS: Cell<u64> = const { Cell::new(0) };
}

/// Returns when no answer has arrived for a while.
async fn no_answers() {
    loop {
        let before = ANSWERS.get();
        tokio::time::sleep(Duration::from_secs(ANSWER_TIMEOUT_SECS)).await;
        if ANSWERS.get() == before {
            return;
        }
    }
}

/// A keep-alive connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Box<[u8]>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: vec![0; MAX_ANSWER_BYTES].into() })
    }

    /// Sends a request and waits for the whole answer.
    pub async fn send_request(&mut self, request: &Request) -> io::Result<HttpResponse<'_>> {
        self.stream.write_all(request.bytes()).await?;
        let mut filled = 0;
        // The answer is parsed here and again below: returning it from the loop would keep the
        // buffer borrowed for the next iteration.
        while HttpResponse::parse(&self.buffer[..filled])?.is_none() {
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ));
            }
            filled += read;
        }
        record_answer();
        HttpResponse::parse(&self.buffer[..filled])?
            .ok_or_else(|| io::Error::other("the answer is incomplete"))
    }
}

async fn fill(args: &LoadArgs) -> io::Result<TurnResult> {
    let mut tasks = Vec::new();
    for first in 0..args.connections {
        let (keys, step) = (args.keys, args.connections as usize);
        let Target { address, kind, .. } = args.target();
        tasks.push(tokio::task::spawn_local(async move {
            let mut connection = Connection::open(address).await?;
            let mut request = Request::render(kind, Budget::Loose, address);
            let mut filled = 0;
            for key in (first..keys).step_by(step) {
                request.set_key(key);
                let verdict = connection.send_request(&request).await?.verdict(kind)?;
                if !verdict.allowed || verdict.remaining + 1 != verdict.limit {
                    return Err(io::Error::other(format!("key {key} was not new: {verdict:?}")));
                }
                filled += 1;
            }
            Ok(filled)
        }));
    }
    let mut filled = 0;
    for task in tasks {
        filled += task.await??;
    }
    Ok(TurnResult { answers: filled, allowed: filled, ..TurnResult::default() })
}

/// Counts the answers of one turn. All users run on one thread.
pub struct TurnCounter {
    answers: Cell<u64>,
    allowed: Cell<u64>,
    latencies: RefCell<Histogram>,
}

impl TurnCounter {
    pub fn new() -> Self {
        TurnCounter {
            answers: Cell::new(0),
            allowed: Cell::new(0),
            latencies: RefCell::new(Histogram::new()),
        }
    }

    /// Returns the latency that all but one in `share` answers stay below.
    pub fn all_but_one_in(&self, share: u64) -> Duration {
        Duration::from_nanos(self.latencies.borrow().all_but_one_in(share))
    }

    /// Returns the number of answers and how many of them allowed the request.
    pub fn answers(&self) -> (u64, u64) {
        (self.answers.get(), self.allowed.get())
    }

    pub fn count(&self, allowed: bool, took: Duration) {
        self.answers.set(self.answers.get() + 1);
        self.allowed.set(self.allowed.get() + u64::from(allowed));
        self.latencies.borrow_mut().record(took);
    }
}

/// Measures a turn from its start to its end.
pub struct TurnTimer {
    process: String,
    server: CpuTimes,
    load: CpuTimes,
    start: Instant,
}

impl TurnTimer {
    /// Starts measuring the server with this process id.
    pub fn start(process: u32) -> io::Result<Self> {
        let process = process.to_string();
        Ok(TurnTimer {
            server: CpuTimes::of(&process)?,
            load: CpuTimes::of("self")?,
            start: Instant::now(),
            process,
        })
    }

    /// Ends the turn and returns its measurements.
    pub fn finish(self, counter: &TurnCounter) -> io::Result<TurnResult> {
        let elapsed = self.start.elapsed();
        let server = CpuTimes::of(&self.process)?.since(self.server);
        let load = CpuTimes::of("self")?.since(self.load);
        let latencies = counter.latencies.borrow();
        Ok(TurnResult {
            answers: counter.answers.get(),
            allowed: counter.allowed.get(),
            elapsed_ns: nanos(elapsed),
            server_ran_ns: nanos(server.ran),
            server_queued_ns: nanos(server.queued),
            load_ran_ns: nanos(load.ran),
            load_queued_ns: nanos(load.queued),
            p50_ns: latencies.all_but_one_in(2),
            p99_ns: latencies.all_but_one_in(100),
        })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
