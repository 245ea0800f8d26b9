//! Times all subjects in several rounds, each on an empty server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, Pipeline, Value};
use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::{Check, Limit, Request, Store, StoreError};

use super::memory::{self, KeySizes};
use super::server::{Server, info_text, processor_seconds};
use super::subjects::{CommandBuilder, Subject};
use crate::BoxError;
use crate::cli::RedisArgs;
use crate::inprocess::{load_average, median, selected_or_all};
use crate::workloads::Random;

/// Distinct keys, few enough that most decisions find an existing key.
const KEYS: u32 = 10_000;
/// Concurrent clients. A server that waits for a single client is woken for most commands, which
/// costs more than the command itself.
const CONNECTIONS: usize = 16;
/// Independent callers of the store.
const CALLERS: u32 = 64;

/// Results of a run.
pub struct Results {
    pub server: String,
    pub pipeline: usize,
    pub decisions: u32,
    pub rounds: usize,
    pub rows: Vec<Row>,
    pub bytes: KeySizes,
    pub load_before: String,
    pub load_after: String,
}

/// Measurements of one subject.
pub struct Row {
    pub subject: Subject,
    /// Decisions per second of the server's processor time, one value per round.
    pub per_second: Vec<f64>,
    /// Decisions per entry of a script call, one value per round; empty without the store.
    pub per_entry: Vec<f64>,
}

impl Row {
    fn new(subject: Subject) -> Self {
        Row { subject, per_second: Vec::new(), per_entry: Vec::new() }
    }

    pub fn median(&self) -> f64 {
        median(&self.per_second)
    }

    /// Returns the median of the decisions per entry.
    pub fn per_entry(&self) -> Option<f64> {
        (!self.per_entry.is_empty()).then(|| median(&self.per_entry))
    }

    /// Returns (largest - smallest) / median over the rounds.
    pub fn spread(&self) -> f64 {
        let least = self.per_second.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.per_second.iter().copied().fold(0.0, f64::max);
        (most - least) / self.median()
    }
}

/// Starts a server, measures, and stops it.
pub fn run(args: &RedisArgs) -> Result<Results, BoxError> {
    let load_before = load_average();
    let (decisions, rounds) = if args.quick { (51_200, 7) } else { (204_800, 15) };
    let server = Server::start(&args.server)?;
    let mut connection = server.connect()?;
    let subjects = selected_or_all(&args.subject);
    let mut rows: Vec<Row> = subjects.iter().map(|&subject| Row::new(subject)).collect();
    let turns = TurnRunner { server: &server, decisions, pipeline: usize::from(args.pipeline) };
    for round in 0..rounds {
        for row in &mut rows {
            turns.run(row, &mut connection, round as u64)?;
        }
    }
    let bytes = memory::measure(&mut connection, &server, args.quick)?;
    let version = info_text(&mut connection, "redis_version")?;
    Ok(Results {
        server: format!("{} {version}", program_name(&args.server)),
        pipeline: turns.pipeline,
        decisions,
        rounds,
        rows,
        bytes,
        load_before,
        load_after: load_average(),
    })
}

fn program_name(program: &Path) -> String {
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

struct TurnRunner<'a> {
    server: &'a Server,
    decisions: u32,
    pipeline: usize,
}

impl TurnRunner<'_> {
    /// Runs one turn and adds its results to the row.
    fn run(&self, row: &mut Row, connection: &mut Connection, seed: u64) -> Result<(), BoxError> {
        redis::cmd("FLUSHALL").query::<()>(connection)?;
        let seconds = match row.subject.store_limits() {
            Some(limits) => {
                let keys = if row.subject.is_hot() { 1 } else { KEYS };
                let (seconds, per_entry) = self.through_store(connection, &limits, keys, seed)?;
                row.per_entry.push(per_entry);
                seconds
            }
            None => self.pipelined(row.subject, connection, seed)?,
        };
        row.per_second.push(f64::from(self.decisions) / seconds);
        Ok(())
    }

    fn pipelined(
        &self,
        subject: Subject,
        connection: &mut Connection,
        seed: u64,
    ) -> Result<f64, BoxError> {
        let mut builder = CommandBuilder::new(subject, connection)?;
        self.fill(&mut builder, connection)?;
        verify_key_count(subject, connection)?;
        let mut random = Random(seed);
        let mut pipelines_by_connection: Vec<Vec<Pipeline>> = Vec::new();
        for _ in 0..CONNECTIONS {
            let pipelines = self.decisions as usize / CONNECTIONS / self.pipeline;
            let some = (0..pipelines).map(|_| {
                self.pipeline_of(&mut builder, (0..self.pipeline).map(|_| random.below(KEYS)))
            });
            pipelines_by_connection.push(some.collect());
        }
        let connections: Result<Vec<Connection>, _> =
            (0..CONNECTIONS).map(|_| self.server.connect()).collect();
        let before = processor_seconds(connection)?;
        std::thread::scope(|scope| {
            let sending = pipelines_by_connection.iter().zip(connections?).map(
                |(pipelines, mut connection)| {
                    scope.spawn(move || {
                        pipelines
                            .iter()
                            .try_for_each(|p| p.query::<Vec<Value>>(&mut connection).map(drop))
                    })
                },
            );
            let sending: Vec<_> = sending.collect();
            sending.into_iter().try_for_each(|sent| sent.join().expect("no sender panics"))
        })?;
        Ok(processor_seconds(connection)? - before)
    }

    /// Decides on every key once and checks every answer.
    fn fill(
        &self,
        builder: &mut CommandBuilder,
        connection: &mut Connection,
    ) -> Result<(), BoxError> {
        let all: Vec<u32> = (0..KEYS).collect();
        for keys in all.chunks(self.pipeline) {
            let pipeline = self.pipeline_of(builder, keys.iter().copied());
            let replies = pipeline.query::<Vec<Value>>(connection)?;
            if let Some(wrong) = replies.iter().find(|reply| !builder.admitted(reply)) {
                return Err(format!("incorrect set-up: {wrong:?} is not an admission").into());
            }
        }
        Ok(())
    }

    fn pipeline_of(
        &self,
        builder: &mut CommandBuilder,
        keys: impl Iterator<Item = u32>,
    ) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(self.pipeline);
        for key in keys {
            pipeline.add_command(builder.command(&key_name(key)));
        }
        pipeline
    }

    /// Decides through the store's own client, with concurrent callers that use separate keys or
    /// one. Returns the processor time of the server, and the decisions per entry of a script call.
    fn through_store(
        &self,
        connection: &mut Connection,
        limits: &[Limit],
        keys: u32,
        seed: u64,
    ) -> Result<(f64, f64), BoxError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let options = RedisOptions {
                timeout: Duration::from_secs(5),
                ..RedisOptions::new(self.server.url())
            };
            let store = RedisStore::connect(options).await?;
            let callers = Callers { store: store.clone(), limits: limits.into(), keys };
            callers.run(KEYS / CALLERS, None).await?;
            let (before, stats) = (processor_seconds(connection)?, store.stats());
            callers.run(self.decisions / CALLERS, Some(seed)).await?;
            let seconds = processor_seconds(connection)? - before;
            let after = store.stats();
            let decisions = (after.requests - stats.requests) as f64;
            let shared = (after.coalesced - stats.coalesced) as f64;
            Ok((seconds, decisions / (decisions - shared)))
        })
    }
}

/// Concurrent callers of a store.
struct Callers {
    store: RedisStore,
    limits: Arc<[Limit]>,
    /// The number of keys: each caller has separate ones, or all use one.
    keys: u32,
}

impl Callers {
    /// Runs the callers with `times` decisions each. A caller uses its keys in order without a
    /// seed, and at random with one.
    async fn run(&self, times: u32, seed: Option<u64>) -> Result<(), BoxError> {
        let tasks: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (store, limits) = (self.store.clone(), Arc::clone(&self.limits));
                let (first, each) = match self.keys / CALLERS {
                    0 => (0, 1),
                    each => (caller * each, each),
                };
                tokio::spawn(async move {
                    let mut random = Random(seed.unwrap_or(0) << 8 | u64::from(caller));
                    for time in 0..times {
                        let own = if seed.is_some() { random.below(each) } else { time % each };
                        let key = key_name(first + own);
                        let checks: Vec<Check<'_>> =
                            limits.iter().map(|limit| Check::new(&key, limit, 1)).collect();
                        let verdict = store.decide(&Request::new(&checks)).await?;
                        assert!(verdict.allowed, "incorrect set-up: {key} was denied");
                    }
                    Ok::<(), StoreError>(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        Ok(())
    }
}

/// Returns a name of thirteen bytes, the typical size of a user id.
pub fn key_name(key: u32) -> String {
    format!("user:{key:08}")
}

/// Checks that the server holds every key after all were used once.
fn verify_key_count(subject: Subject, connection: &mut Connection) -> Result<(), BoxError> {
    let keys: u32 = redis::cmd("DBSIZE").query(connection)?;
    if keys != KEYS {
        return Err(
            format!("incorrect set-up of {subject:?}: {keys} keys instead of {KEYS}").into()
        );
    }
    Ok(())
}
