//! Permits on a server behave exactly as in the core.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tidegate::unstable::redis::{KeyNames, ScriptPlan};
use tidegate::{Check, CheckError, Cost, Limit, PermitId, PermitOperation, Request};
use tidegate_core::{Attempt, State};

use super::client::Client;
use super::servers::on_each;
use super::state::assert_kept;
use crate::common::{NOW, at, limit};
use crate::generators::{any_step, cases};

#[derive(Clone, Copy, Debug)]
enum Act {
    Check(Cost),
    Release,
    Renew,
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (0_u64..4).prop_map(|units| Act::Check(Cost::Ask(units))),
        1 => (0_u64..9).prop_map(|units| Act::Check(Cost::Force(units))),
        1 => (0_u64..5).prop_map(|units| Act::Check(Cost::Refund(units))),
        2 => Just(Act::Release),
        2 => Just(Act::Renew),
    ]
}

fn step(client: &mut Client, state: &mut State, limit: &Limit, act: Act, permit: u64, now: u64) {
    let (permit, time) = (PermitId(permit), Some(at(now)));
    match act {
        Act::Check(cost) => {
            let attempt = Attempt { permit, ..Attempt::new(cost, at(now)) };
            let expected = state.decide(limit, &attempt);
            let checks = [Check::new("key", limit, cost)];
            let request = Request::new(&checks).with_permit(permit);
            let verdict = client.decide(&request, time).expect("sound");
            assert_eq!(verdict.decisions()[0], expected, "{limit}, {cost:?} at {now}");
        }
        Act::Release => {
            state.advance_and_check(limit, &Attempt::new(Cost::PEEK, at(now)));
            let expected = state.release(permit);
            assert_eq!(
                client.permit("key", limit, PermitOperation::Release(permit), time),
                expected
            );
        }
        Act::Renew => {
            let expected = state.renew(limit, permit, at(now));
            assert_eq!(client.permit("key", limit, PermitOperation::Renew(permit), time), expected);
        }
    }
}

#[test]
fn permits_decide_as_the_core() {
    let acts = prop::collection::vec((any_act(), 1_u64..6, any_step(), any::<bool>()), 1..60);
    // Permits are found after the lease or the count of the limit has changed.
    let limits = [limit("5 concurrent lease 10s"), limit("3 concurrent lease 4s")];
    on_each(|engine, server| {
        let client = RefCell::new(Client::new(server, "tg"));
        let outcome = TestRunner::new(cases(150)).run(&acts, |acts| {
            let client = &mut *client.borrow_mut();
            redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server that listens");
            let (mut state, mut now) = (State::new(&limits[0]), NOW);
            for (act, permit, gap, other) in acts {
                let limit = &limits[usize::from(other)];
                now = gap.gap.after(now, limit.window_us() / 2);
                step(client, &mut state, limit, act, permit, now);
                let name = client.names.state(b"key", limit);
                assert_kept(&client.stored(&name), limit, &state, at(now));
            }
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{}: {error}", engine);
        }
    });
}

/// Regression: the memory store returned `ConcurrencyConflict`, and the Redis store `Conflict`.
#[test]
fn concurrency_checks_that_differ_are_the_same_error_as_in_memory() {
    let (few, many) = (limit("2 concurrent"), limit("3 concurrent"));
    let checks = [Check::new("key", &few, 1), Check::new("key", &many, 1)];
    let request = Request::new(&checks).with_permit(PermitId(7));
    let expected = Some(CheckError::ConcurrencyConflict);
    assert_eq!(ScriptPlan::new(&request, &KeyNames::new("tg")).err(), expected);
    let (memory, _) = crate::common::limiter();
    assert_eq!(memory.decide(&request).err(), expected);
    let rates = [limit("2 per 1m"), limit("3 per 1m")];
    let checks = rates.each_ref().map(|limit| Check::new("key", limit, 1));
    let request = Request::new(&checks);
    assert_eq!(ScriptPlan::new(&request, &KeyNames::new("tg")).err(), Some(CheckError::Conflict));
}

#[test]
fn permit_of_an_observed_limit_is_released() {
    let limit = limit("2 concurrent");
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let checks = [Check::new("key", &limit, 1), Check::new("key", &limit, 1).observed()];
        let request = Request::new(&checks).with_permit(PermitId(7));
        assert!(client.decide(&request, None).expect("sound").allowed);
        let mut names =
            vec![client.names.state(b"key", &limit), client.names.observed(b"key", &limit)];
        names.sort();
        let mut keys = client.keys();
        keys.sort();
        assert_eq!(keys, names);
        let mut act = |act| client.permit("key", &limit, act, None);
        assert!(act(PermitOperation::Renew(PermitId(7))));
        assert!(act(PermitOperation::Release(PermitId(7))), "the one in force");
        assert!(act(PermitOperation::Release(PermitId(7))), "and the one that is watched");
        assert!(!act(PermitOperation::Release(PermitId(7))));
        assert!(client.keys().is_empty());
    });
}
