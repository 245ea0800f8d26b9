//! Recorded traffic, decided by servers, gives the published digests.

use redis::Value;
use tidegate::unstable::redis::{Entry, ScriptCall, ScriptMode, ScriptPlan};
use tidegate::{Algorithm, Check, Limit, Request};

use super::client::Client;
use super::servers::{Engine, Server};
use crate::traces::{Event, compare};

/// The number of calls in one write.
const PIPELINE: usize = 500;

fn run_all(client: &mut Client, calls: &[ScriptCall]) -> Vec<Value> {
    let mut pipeline = redis::Pipeline::with_capacity(calls.len());
    for call in calls {
        pipeline.add_command(call.cmd());
    }
    pipeline.query(&mut client.connection).expect("replies")
}

/// Decides events of one time in one call. Events of one key in it share an entry.
fn decide_in_entries(client: &mut Client, limit: &Limit, events: &[Event]) -> Vec<bool> {
    let mut allowed = Vec::new();
    for same_time in events.chunk_by(|a, b| a.at == b.at) {
        let (mut entries, mut positions) = (Vec::<Entry>::new(), Vec::new());
        for event in same_time {
            let checks = [Check::new(&event.key, limit, 1)];
            let plan = ScriptPlan::new(&Request::new(&checks), &client.names).expect("sound");
            let known = entries.iter().position(|entry| entry.states() == plan.states());
            let index = known.unwrap_or(entries.len());
            positions.push((index, entries.get(index).map_or(0, Entry::requests)));
            match entries.get_mut(index) {
                Some(entry) => assert!(entry.join(plan, ScriptMode::Decide).is_none()),
                None => entries.push(Entry::new(plan, ScriptMode::Decide)),
            }
        }
        let replies = client.decide_entries(&[entries], Some(same_time[0].at));
        let admitted = |(entry, request): (usize, usize)| {
            replies[entry].as_ref().expect("decided")[request].admitted
        };
        allowed.extend(positions.into_iter().map(admitted));
    }
    allowed
}

fn decide(client: &mut Client, limit: &Limit, events: &[Event]) -> Vec<bool> {
    let mut allowed = Vec::new();
    for chunk in events.chunks(PIPELINE) {
        let plans: Vec<ScriptPlan> = chunk
            .iter()
            .map(|event| {
                let checks = [Check::new(&event.key, limit, 1)];
                ScriptPlan::new(&Request::new(&checks), &client.names).expect("sound")
            })
            .collect();
        let calls: Vec<ScriptCall> = plans
            .iter()
            .zip(chunk)
            .map(|(plan, event)| plan.call(ScriptMode::Decide, Some(event.at)))
            .collect();
        for (plan, reply) in plans.iter().zip(run_all(client, &calls)) {
            allowed.push(
                plan.decode_reply(ScriptMode::Decide, &reply).expect("a sound reply").admitted,
            );
        }
    }
    allowed
}

#[test]
fn recorded_traffic_is_decided_as_published() {
    // The engines run in parallel, because a client waits for its server half of the time.
    std::thread::scope(|scope| {
        for (turn, engine) in Engine::ALL.into_iter().enumerate() {
            scope.spawn(move || compare_on(&Server::start(engine), turn));
        }
    });
}

/// Compares every second digest, from the number `turn` on. The engines take turns, because one
/// call per event takes long. Each of them runs every algorithm.
fn compare_on(server: &Server, turn: usize) {
    let mut client = Client::new(server, "tg");
    // Of `sliding-window`, one limit is run for each form that is in the traces. These take half of
    // the time, and `parity.rs` compares random histories of all forms on both engines.
    let is_run = |number: usize, text: &str| {
        let windows = ["10 per 10s sliding-window", "21 per 60s sliding-window"];
        let is_chosen = !text.ends_with("sliding-window")
            || windows.contains(&text)
            || text.starts_with("3000");
        is_chosen && number % Engine::ALL.len() == turn
    };
    compare(is_run, |limit, events| {
        redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server that listens");
        match limit.algorithm() {
            Algorithm::SlidingCounter => decide_in_entries(&mut client, limit, events),
            _ => decide(&mut client, limit, events),
        }
    });
}
