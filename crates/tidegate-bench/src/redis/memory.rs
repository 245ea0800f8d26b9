//! Bytes per key as counted by the server: name, value, expiry and overhead.

use redis::Connection;
use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::{Check, Limit, Request, Timestamp};

use super::rounds::key_name;
use super::server::{Server, info};
use super::subjects::{CommandBuilder, LIMIT, Subject, WINDOW_S};
use crate::BoxError;

/// Numbers of entries of the compared logs.
pub const LOGS: [u32; 2] = [100, 1_000];
/// Keys per pipeline while filling.
const PIPELINE: u32 = 100;

/// Bytes per key.
pub struct KeySizes {
    pub sliding_counter: f64,
    /// For each number of [`LOGS`]: the size of our log and of a sorted set.
    pub logs: Vec<(f64, f64)>,
}

pub fn measure(
    connection: &mut Connection,
    server: &Server,
    quick: bool,
) -> Result<KeySizes, BoxError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let keys = if quick { 20_000 } else { 200_000 };
    let mut builder = CommandBuilder::new(Subject::Tidegate, connection)?;
    let sliding_counter = per_key(connection, keys, |connection| {
        fill(connection, keys, |key| builder.command(&key_name(key)))
    })?;
    let mut logs = Vec::new();
    for entries in LOGS {
        let keys = if quick { 20_000 } else { 200_000 } / entries;
        let tidegate =
            per_key(connection, keys, |_| runtime.block_on(fill_logs(server, keys, entries)))?;
        let builder = CommandBuilder::new(Subject::SortedSet, connection)?;
        let peer = per_key(connection, keys, |connection| {
            (0..entries).try_for_each(|entry| {
                fill(connection, keys, |key| {
                    builder.sorted_set(&key_name(key), entry_ms(entry, entries))
                })
            })
        })?;
        logs.push((tidegate, peer));
    }
    Ok(KeySizes { sliding_counter, logs })
}

/// Returns the memory that `filling` adds to the server, per key.
fn per_key(
    connection: &mut Connection,
    keys: u32,
    filling: impl FnOnce(&mut Connection) -> Result<(), BoxError>,
) -> Result<f64, BoxError> {
    redis::cmd("FLUSHALL").arg("SYNC").query::<()>(connection)?;
    let before = info(connection, "used_memory")?;
    filling(connection)?;
    let after = info(connection, "used_memory")?;
    Ok((after - before) / f64::from(keys))
}

fn fill(
    connection: &mut Connection,
    keys: u32,
    mut command: impl FnMut(u32) -> redis::Cmd,
) -> Result<(), BoxError> {
    for start in (0..keys).step_by(PIPELINE as usize) {
        let mut pipeline = redis::Pipeline::new();
        for key in start..keys.min(start + PIPELINE) {
            pipeline.add_command(command(key)).ignore();
        }
        pipeline.query::<()>(connection)?;
    }
    Ok(())
}

/// Fills logs with entries that are spread evenly over the window, each at its own time.
async fn fill_logs(server: &Server, keys: u32, entries: u32) -> Result<(), BoxError> {
    let store = RedisStore::connect(RedisOptions::new(server.url())).await?;
    let limit: Limit = format!("{LIMIT} per {WINDOW_S}s sliding-log").parse()?;
    for entry in 0..entries {
        let now = Timestamp::from_micros(entry_ms(entry, entries) * 1_000);
        for key in 0..keys {
            let name = key_name(key);
            let checks = [Check::new(&name, &limit, 1)];
            let verdict = store.decide_at(now, &Request::new(&checks)).await?;
            assert!(verdict.allowed, "incorrect set-up: a log is full too early");
        }
    }
    Ok(())
}

/// Returns the time of an entry in milliseconds since 1970; the entries divide a window evenly.
fn entry_ms(entry: u32, entries: u32) -> u64 {
    const SOME_DAY_MS: u64 = 1_760_000_000_000;
    SOME_DAY_MS + u64::from(entry) * WINDOW_S * 1_000 / u64::from(entries)
}
