//! Recorded traffic, decided by servers, gives the published digests.

use redis::Value;
use tidegate::unstable::redis::{
    CounterEntry, CounterReply, FastCheck, ScriptCall, ScriptMode, ScriptPlan, counter_call,
    decode_counter_reply, is_fast,
};
use tidegate::{Check, Limit, Request};

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

/// Decides events with `counter.lua`. Events of one time are one call, and events of one key in it
/// are one entry.
fn decide_quickly(client: &mut Client, limit: &Limit, events: &[Event]) -> Vec<bool> {
    let mut calls = Vec::<(Vec<CounterEntry>, ScriptCall)>::new();
    let mut positions = Vec::<(usize, usize)>::new();
    for group in events.chunk_by(|a, b| a.at == b.at) {
        let mut entries = Vec::<CounterEntry>::new();
        for event in group {
            let checks = [Check::new(&event.key, limit, 1)];
            let quick =
                FastCheck::of(&Request::new(&checks), &client.names).expect("a quick limit");
            let known = entries.iter().position(|entry| entry.key == quick.key);
            let entry = known.unwrap_or_else(|| {
                entries.push(CounterEntry { key: quick.key, units: quick.units, times: 0 });
                entries.len() - 1
            });
            entries[entry].times += 1;
            positions.push((calls.len(), entry));
        }
        let call = counter_call(limit, &entries, Some(group[0].at));
        calls.push((entries, call));
    }
    let mut replies = Vec::<Vec<std::vec::IntoIter<bool>>>::new();
    for chunk in calls.chunks(PIPELINE) {
        let only: Vec<ScriptCall> = chunk.iter().map(|(_, call)| call.clone()).collect();
        for ((entries, _), reply) in chunk.iter().zip(run_all(client, &only)) {
            let decided = decode_counter_reply(limit, entries, &reply).expect("a sound reply");
            let allowed = |reply: CounterReply| match reply {
                CounterReply::Decided(decisions) => {
                    decisions.iter().map(|d| d.allowed).collect::<Vec<_>>().into_iter()
                }
                CounterReply::NotCompact => panic!("nobody else was here"),
            };
            replies.push(decided.into_iter().map(allowed).collect());
        }
    }
    positions
        .iter()
        .map(|&(call, entry)| replies[call][entry].next().expect("one a time"))
        .collect()
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
            allowed.push(plan.decode_reply(&reply).expect("a sound reply").admitted);
        }
    }
    allowed
}

#[test]
fn recorded_traffic_is_decided_as_published() {
    // The engines run in parallel, because a client waits for its server half of the time.
    std::thread::scope(|scope| {
        for engine in Engine::ALL {
            scope.spawn(move || compare_on(&Server::start(engine)));
        }
    });
}

fn compare_on(server: &Server) {
    let mut client = Client::new(server, "tg");
    // Of `sliding-window`, one limit is run for each form that is in the traces. These take half of
    // the time, and `parity.rs` compares random histories of all forms.
    let is_run = |text: &str| {
        let windows = ["10 per 10s sliding-window", "21 per 60s sliding-window"];
        !text.ends_with("sliding-window") || windows.contains(&text) || text.starts_with("3000")
    };
    compare(is_run, |limit, events| {
        redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server that listens");
        match is_fast(limit) {
            true => decide_quickly(&mut client, limit, events),
            false => decide(&mut client, limit, events),
        }
    });
}
