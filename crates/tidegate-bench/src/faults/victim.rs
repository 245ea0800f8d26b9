//! A node in a separate process that is killed while it has a lease.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use tidegate::unstable::stats::Decided;

use super::nodes::{self, CallRecord, Policy};
use super::redis_setup::signal;
use crate::BoxError;
use crate::cli::FaultVictimArgs;

/// Time for which the node is stopped, and runs again if it has no units out.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The process. Dropping it ends it.
pub struct Victim {
    process: Child,
    /// The admitted calls, with the units that the node had out after each.
    admitted: Receiver<(CallRecord, u64)>,
}

impl Victim {
    /// Starts a node. Times of its calls are since `start`.
    pub fn start(url: &str, start: Instant) -> Result<Self, BoxError> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH)? - start.elapsed();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["fault-victim", url, &started.as_micros().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let (sender, admitted) = channel();
        std::thread::spawn(move || {
            // The last line may be incomplete.
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for call in lines.filter_map(|line| parse(&line)) {
                if sender.send(call).is_err() {
                    break;
                }
            }
        });
        Ok(Victim { process, admitted })
    }

    /// Kills the node when it has units out. Returns its calls, and the number of these units.
    pub fn kill(mut self, within: Duration) -> Result<(Vec<CallRecord>, u64), BoxError> {
        let (mut calls, mut units_out) = (Vec::new(), 0);
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            // A stopped node prints nothing more, so the units of its last line are those that it
            // has.
            signal(self.process.id(), Signal::STOP)?;
            std::thread::sleep(POLL_INTERVAL);
            for (call, out) in self.admitted.try_iter() {
                calls.push(call);
                units_out = out;
            }
            if units_out > 0 {
                self.process.kill()?;
                return Ok((calls, units_out));
            }
            signal(self.process.id(), Signal::CONT)?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Err(format!("the third node had no lease within {within:?}").into())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The process may have ended already; errors do not matter here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Parses a line that [`nodes::run_victim`] prints.
fn parse(line: &str) -> Option<(CallRecord, u64)> {
    let mut numbers = line.split(' ').map_while(|number| number.parse().ok());
    let mut next_time = || numbers.next().map(Duration::from_micros);
    let (sent, received) = (next_time()?, next_time()?);
    let call = CallRecord {
        sent,
        received,
        policy: Policy::Leased,
        key: 0,
        allowed: true,
        decided: Decided::Exact,
        remaining: None,
    };
    Some((call, numbers.next()?))
}

/// Runs the node in this process.
pub fn run(args: &FaultVictimArgs) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let since = since.saturating_sub(Duration::from_micros(args.start_us));
    let start =
        Instant::now().checked_sub(since).ok_or_else(|| io::Error::other("no such time"))?;
    runtime.block_on(nodes::run_victim(&args.url, start)).map_err(io::Error::other)
}
