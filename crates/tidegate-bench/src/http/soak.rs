//! Full load while the config changes every second, with every answer checked.
//!
//! Each connection uses separate keys and therefore knows every correct answer: a key is allowed
//! iff it was allowed fewer times than the limit in the answer, and `remaining` is the exact rest.
//! The limits alternate between two numbers over the same window. A reload that loses or doubles
//! a count is detected immediately, and so is an answer that mixes two configs.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::load::{
    Connection, Job, LoadArgs, LoadReport, Target, TurnCounter, TurnResult, TurnTimer,
};
use super::process::pinned_to;
use super::server::{Client, Program, Server};
use super::setup::{self, CpuPlacement, LoadSettings, temp_directory};
use super::wire::{Budget, LONGEST, LOOSE_LIMITS, Limits, Request, RequestKind, Verdict, config};
use crate::cli::HttpArgs;
use crate::rss::resident_bytes_of;
use crate::workloads::Random;

/// The two alternating configs.
const CONFIGS: [Limits; 2] = [Limits { loose: 1_000, tight: 5 }, Limits { loose: 2_000, tight: 7 }];

/// Default number of distinct keys under the loose limits.
const KEYS: u32 = 1_000_000;

/// Keys under the tight limits, which produce denials.
const TIGHT_KEYS: u32 = 1_000;
/// One request in this many uses a key with a tight limit.
const TIGHT_ONE_IN: u32 = 64;

/// One connection in this many uses forward-auth.
const AUTH_ONE_IN: u32 = 5;

/// The line that the load prints after every key was sent once.
const FILLED: &str = "filled";

const RELOAD_EVERY: Duration = Duration::from_secs(1);
/// Maximum time for a reload to take effect, shorter than the time between reloads.
const RELOAD_TIMEOUT: Duration = Duration::from_millis(900);
const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// Maximum growth of memory from the middle third of the run to the last.
const MAX_GROWTH: f64 = 1.05;

/// Results of a soak in which every answer was correct.
pub struct SoakResult {
    pub keys: u32,
    pub counted: TurnResult,
    pub reloads: u32,
    /// Longest time from the signal to the first answer under the new config.
    pub slowest_reload: Duration,
    /// Resident bytes when every key was held.
    pub filled_bytes: f64,
    /// Maximum resident bytes in the middle third of the run and in the last.
    pub middle_bytes: f64,
    pub last_bytes: f64,
}

impl SoakResult {
    pub fn growth(&self) -> f64 {
        self.last_bytes / self.middle_bytes
    }

    pub fn flat(&self) -> bool {
        self.growth() <= MAX_GROWTH
    }

    /// Returns an error if memory grew, or if nothing was reloaded or denied.
    pub fn verify(&self) -> io::Result<()> {
        if !self.flat() {
            let growth = self.growth();
            return Err(io::Error::other(format!(
                "memory grew by a factor of {growth:.3} in the last third"
            )));
        }
        if self.reloads == 0 || self.counted.allowed == self.counted.answers {
            return Err(io::Error::other("nothing was reloaded or nothing was denied"));
        }
        Ok(())
    }
}

/// Soaks tidegate for `seconds`.
pub fn run(args: &HttpArgs, seconds: u32) -> io::Result<SoakResult> {
    let directory = temp_directory()?;
    let program = setup::tidegate(args, &LOOSE_LIMITS[..1], directory.path())?;
    let Program::Tidegate { config: file, .. } = &program else {
        return Err(io::Error::other("only tidegate is soaked"));
    };
    write_config(file, CONFIGS[0])?;
    // Reloading and checking need a processor too, so nothing is pinned.
    let placement = CpuPlacement { server: None, load: None };
    let server = Server::start(&program, placement.server, directory.path())?;
    let settings = LoadSettings {
        connections: args.connections,
        keys: args.keys.unwrap_or(KEYS),
        time_ms: u64::from(seconds) * 1_000,
        rounds: 1,
        warm: Duration::ZERO,
        placement,
    };
    eprintln!("filling {} keys", settings.keys);
    let mut load = pinned_to(placement.load, || {
        settings.command(Job::Soak, &[(&server, RequestKind::Check)])?.spawn()
    })??;
    let monitored =
        SoakMonitor::start(&mut load, &server).and_then(|monitor| monitor.run(file, &mut load));
    // The load ends by itself. It is killed only if monitoring failed.
    if monitored.is_err() && load.try_wait()?.is_none() {
        load.kill()?;
    }
    let mut load_stderr = String::new();
    if let Some(stderr) = &mut load.stderr {
        stderr.read_to_string(&mut load_stderr)?;
    }
    let status = load.wait()?;
    match monitored {
        Ok(result) if status.success() => Ok(SoakResult { keys: settings.keys, ..result }),
        Ok(_) => Err(server.error_with_log(&format!("the load failed: {}", load_stderr.trim()))),
        Err(error) => Err(server.error_with_log(&format!("{error} {}", load_stderr.trim()))),
    }
}

/// The part of a soak that reloads the config and samples memory.
struct SoakMonitor<'a> {
    server: &'a Server,
    output: BufReader<ChildStdout>,
    samples: Vec<f64>,
    reloads: u32,
    slowest_reload: Duration,
}

impl<'a> SoakMonitor<'a> {
    /// Waits until every key is held.
    fn start(load: &mut Child, server: &'a Server) -> io::Result<Self> {
        let stdout =
            load.stdout.take().ok_or_else(|| io::Error::other("the load has no stdout"))?;
        let mut output = BufReader::new(stdout);
        let mut line = String::new();
        output.read_line(&mut line)?;
        if line.trim() != FILLED {
            return Err(io::Error::other("the load ended before every key was sent"));
        }
        Ok(SoakMonitor {
            server,
            output,
            samples: Vec::new(),
            reloads: 0,
            slowest_reload: Duration::ZERO,
        })
    }

    fn run(mut self, file: &Path, load: &mut Child) -> io::Result<SoakResult> {
        let filled_bytes = self.sample()?;
        let mut next = Instant::now() + RELOAD_EVERY;
        while load.try_wait()?.is_none() {
            if Instant::now() >= next {
                next += RELOAD_EVERY;
                self.reload(file)?;
            }
            self.sample()?;
            std::thread::sleep(SAMPLE_EVERY);
        }
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let report: LoadReport = serde_json::from_str(&text)
            .map_err(|_| io::Error::other("the load ended too early:"))?;
        let counted = report.turns.into_iter().flatten().next().unwrap_or_default();
        let third = self.samples.len() / 3;
        Ok(SoakResult {
            keys: 0,
            counted,
            reloads: self.reloads,
            slowest_reload: self.slowest_reload,
            filled_bytes,
            middle_bytes: largest(&self.samples[third..2 * third]),
            last_bytes: largest(&self.samples[2 * third..]),
        })
    }

    fn sample(&mut self) -> io::Result<f64> {
        let bytes = resident_bytes_of(&self.server.process().to_string());
        let bytes = bytes.ok_or_else(|| io::Error::other("the server has ended"))?;
        self.samples.push(bytes);
        Ok(bytes)
    }

    fn reload(&mut self, file: &Path) -> io::Result<()> {
        self.reloads += 1;
        let limits = CONFIGS[self.reloads as usize % CONFIGS.len()];
        write_config(file, limits)?;
        let process = i32::try_from(self.server.process()).ok().and_then(Pid::from_raw);
        let process = process.ok_or_else(|| io::Error::other("the server has no process id"))?;
        let start = Instant::now();
        kill_process(process, Signal::HUP)?;
        while self.limit_in_use()? != limits.loose {
            if start.elapsed() > RELOAD_TIMEOUT {
                return Err(io::Error::other(format!(
                    "a changed config was not in effect after {RELOAD_TIMEOUT:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.slowest_reload = self.slowest_reload.max(start.elapsed());
        Ok(())
    }

    /// Returns the limit in use, by a request with a cost of 0, which charges nothing.
    fn limit_in_use(&self) -> io::Result<u64> {
        let body = "{\"policy\":\"check-loose\",\"key\":\"peek\",\"cost\":0}";
        let request = format!(
            "POST /v1/check HTTP/1.1\r\nhost: tidegate\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut client = Client::connect(self.server.address)?;
        client.send_request(request.as_bytes(), |response| {
            Ok(response.verdict(RequestKind::Check)?.limit)
        })
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MIN, f64::max)
}

/// Replaces the file atomically, as an editor or a config map does.
fn write_config(file: &Path, limits: Limits) -> io::Result<()> {
    let loose = format!("{} per {LONGEST} sliding-window", limits.loose);
    let next = file.with_extension("next");
    std::fs::write(&next, config(&[&loose], limits.tight))?;
    std::fs::rename(&next, file)
}

/// Runs the load of a soak; see the module documentation.
pub async fn run_load(args: &LoadArgs) -> io::Result<TurnResult> {
    let counter = Rc::new(TurnCounter::new());
    let over = Rc::new(Cell::new(false));
    let filling = Rc::new(Cell::new(args.connections));
    let mut tasks = Vec::new();
    for number in 0..args.connections {
        let mut worker = Worker::open(args, number).await?;
        let (counter, over) = (Rc::clone(&counter), Rc::clone(&over));
        let filling = Rc::clone(&filling);
        tasks.push(tokio::task::spawn_local(async move {
            for index in 0..worker.key_sets[0].allowed.len() {
                worker.check(Budget::Loose, index).await?;
            }
            filling.set(filling.get() - 1);
            while !over.get() {
                let (budget, index) = worker.choose();
                let sent = Instant::now();
                let allowed = worker.check(budget, index).await?;
                counter.count(allowed, sent.elapsed());
            }
            Ok::<_, io::Error>(())
        }));
    }
    while filling.get() > 0 && !tasks.iter().any(|task| task.is_finished()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if filling.get() == 0 {
        println!("{FILLED}");
        let timer = TurnTimer::start(args.target().process)?;
        tokio::time::sleep(Duration::from_millis(args.turn_args.time_ms)).await;
        over.set(true);
        join(tasks).await?;
        return timer.finish(&counter);
    }
    // While the others fill, a task ends only with an error.
    let failed = tasks.into_iter().filter(|task| task.is_finished()).collect();
    join(failed).await?;
    Err(io::Error::other("filling ended early"))
}

async fn join(tasks: Vec<tokio::task::JoinHandle<io::Result<()>>>) -> io::Result<()> {
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// A connection and the keys that only it uses.
struct Worker {
    connection: Connection,
    kind: RequestKind,
    random: Random,
    number: u32,
    connections: u32,
    /// The keys with loose limits and those with tight limits.
    key_sets: [KeySet; 2],
}

struct KeySet {
    request: Request,
    /// How many times each key was allowed.
    allowed: Vec<u64>,
}

impl Worker {
    async fn open(args: &LoadArgs, number: u32) -> io::Result<Self> {
        let Target { address, kind, .. } = args.target();
        let kind =
            if number % AUTH_ONE_IN == AUTH_ONE_IN - 1 { RequestKind::ForwardAuth } else { kind };
        let key_set = |budget, keys: u32| KeySet {
            request: Request::render(kind, budget, address),
            allowed: vec![0; (keys / args.connections).max(1) as usize],
        };
        Ok(Worker {
            connection: Connection::open(address).await?,
            kind,
            random: Random(u64::from(number)),
            number,
            connections: args.connections,
            key_sets: [key_set(Budget::Loose, args.keys), key_set(Budget::Tight, TIGHT_KEYS)],
        })
    }

    fn choose(&mut self) -> (Budget, usize) {
        let tight = self.random.below(TIGHT_ONE_IN) == 0;
        let (budget, key_set) = if tight {
            (Budget::Tight, &self.key_sets[1])
        } else {
            (Budget::Loose, &self.key_sets[0])
        };
        let keys = u32::try_from(key_set.allowed.len()).unwrap_or(u32::MAX);
        (budget, self.random.below(keys) as usize)
    }

    /// Sends a request, checks the answer and returns whether it allowed the request.
    async fn check(&mut self, budget: Budget, index: usize) -> io::Result<bool> {
        let key_set = &mut self.key_sets[usize::from(budget == Budget::Tight)];
        let key = u32::try_from(index).unwrap_or(u32::MAX) * self.connections + self.number;
        key_set.request.set_key(key);
        let verdict = self.connection.send_request(&key_set.request).await?.verdict(self.kind)?;
        let before = &mut key_set.allowed[index];
        if let Some(mismatch) = mismatch(budget, *before, &verdict) {
            return Err(io::Error::other(format!(
                "{:?} key {key}, allowed {before} times before: {mismatch}: {verdict:?}",
                self.kind
            )));
        }
        *before += u64::from(verdict.allowed);
        Ok(verdict.allowed)
    }
}

/// Describes what is wrong with an answer for a key that was allowed `before` times.
fn mismatch(budget: Budget, before: u64, verdict: &Verdict) -> Option<&'static str> {
    let after = before + u64::from(verdict.allowed);
    if CONFIGS.iter().all(|limits| limits.of(budget) != verdict.limit) {
        Some("its limit is in neither config")
    } else if verdict.allowed != (before < verdict.limit) {
        Some("allowed is wrong")
    } else if verdict.remaining != verdict.limit.saturating_sub(after) {
        Some("remaining is wrong")
    } else if verdict.allowed != (verdict.retry_after == 0) {
        Some("the time to retry is wrong")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_wrong_verdicts() {
        let verdict = |allowed, limit, remaining, retry_after| Verdict {
            allowed,
            limit,
            remaining,
            retry_after,
        };
        let rows = [
            (0, verdict(true, 5, 4, 0), None),
            (4, verdict(true, 5, 0, 0), None),
            (5, verdict(false, 5, 0, 9), None),
            (5, verdict(true, 7, 1, 0), None),
            (7, verdict(false, 5, 0, 9), None),
            (0, verdict(true, 6, 5, 0), Some("its limit is in neither config")),
            (4, verdict(false, 5, 1, 9), Some("allowed is wrong")),
            (5, verdict(true, 5, 0, 0), Some("allowed is wrong")),
            (3, verdict(true, 5, 4, 0), Some("remaining is wrong")),
            (0, verdict(true, 5, 4, 1), Some("the time to retry is wrong")),
            (5, verdict(false, 5, 0, 0), Some("the time to retry is wrong")),
        ];
        for (before, verdict, expected) in rows {
            assert_eq!(
                mismatch(Budget::Tight, before, &verdict),
                expected,
                "{before}: {verdict:?}"
            );
        }
    }

    #[test]
    fn compares_memory_of_last_and_middle_third() {
        let result = |middle_bytes, last_bytes| SoakResult {
            keys: 1,
            counted: TurnResult { answers: 2, allowed: 1, ..TurnResult::default() },
            reloads: 1,
            slowest_reload: Duration::ZERO,
            filled_bytes: 1.0,
            middle_bytes,
            last_bytes,
        };
        assert!(result(100.0, 105.0).verify().is_ok());
        assert!(result(100.0, 105.1).verify().is_err());
    }
}
