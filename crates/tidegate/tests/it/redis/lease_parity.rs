//! On random traces with units that are out on nodes, the decisions and the stored values are
//! exactly those of the core.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate::unstable::redis::{
    Entry, LeaseEntry, LeaseOperation, LeaseReply, ScriptMode, ScriptPlan, decode_lease_reply,
    lease_call,
};
use tidegate::{Check, Decision, Limit, Request};
use tidegate_core::{Attempt, GiveBack, Grant, GrantId, LeaseRequest, LeasedState, State};

use super::client::{Client, Kept};
use super::parity::{changing_limits, hold};
use super::state::assert_kept;
use crate::common::{NOW, at};
use crate::generators::{
    GeneratedCheck, States, Step, any_step, decide_all, distinct_checks, keys, window_limits,
};

/// The keys that steps use: few, so that they meet.
const KEYS: u8 = 3;
/// The hour that a given time adds to a TTL, in milliseconds, less a minute in which a test runs.
const ADDED_MS: i64 = 59 * 60 * 1_000;

/// The time of a step.
#[derive(Clone, Copy, Debug)]
enum When {
    /// After the gap of the step.
    Gap,
    /// The next deadline of the key, and this many microseconds.
    Deadline(i64),
}

/// The operation of a step.
#[derive(Clone, Debug)]
enum Operation {
    /// A request with several checks, this many times. With an id, if it is `Some`.
    Request(Vec<(Step, bool)>, usize, Option<u8>),
    /// A grant: the id, units in thousandths of the capacity, the duration, and the divisor.
    Grant(u64, u64, u64, u64),
    /// A give-back of a grant, by its place among those that were made, and the units to keep in
    /// thousandths.
    GiveBack(prop::sample::Index, u64),
    Reset,
}

/// States with grants, without a store.
#[derive(Default)]
struct LeasedModel {
    states: HashMap<(u8, u64), LeasedState>,
}

impl LeasedModel {
    fn state(&mut self, key: u8, limit: &Limit) -> &mut LeasedState {
        self.states.entry((key, limit.id())).or_insert_with(|| LeasedState::new(limit))
    }
}

impl States for LeasedModel {
    fn admits(&mut self, key: u8, limit: &Limit, attempt: &Attempt) -> bool {
        self.state(key, limit).advance_and_check(limit, attempt)
    }

    fn settle(&mut self, key: u8, limit: &Limit, attempt: &Attempt, admitted: bool) -> Decision {
        self.state(key, limit).finish(limit, attempt, admitted)
    }
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let check = (any_step(), prop::bool::weighted(0.2));
    let id = prop::option::weighted(0.2, 0_u8..3);
    let request = (prop::collection::vec(check, 1..4), 1_usize..4, id)
        .prop_map(|(checks, times, id)| Operation::Request(checks, times, id));
    let duration = prop_oneof![0_u64..20_000, 100_000_u64..20_000_000];
    let grant = (0_u64..6, 0_u64..=1_000, duration, 0_u64..4).prop_map(
        |(id, per_mille, duration_us, divisor)| {
            Operation::Grant(id, per_mille, duration_us, divisor)
        },
    );
    let give_back = (any::<prop::sample::Index>(), 0_u64..=1_000)
        .prop_map(|(index, per_mille)| Operation::GiveBack(index, per_mille));
    prop_oneof![5 => request, 4 => grant, 2 => give_back, 1 => Just(Operation::Reset)]
}

fn any_trace() -> impl Strategy<Value = Vec<(Step, When, Operation)>> {
    let when = prop_oneof![3 => Just(When::Gap), 2 => (-1_i64..=2).prop_map(When::Deadline)];
    prop::collection::vec((any_step(), when, any_operation()), 1..40)
}

/// Compares the value of a key with a state that was advanced to `now`.
fn assert_leased_kept(
    client: &mut Client,
    model: &mut LeasedModel,
    key: u8,
    limit: &Limit,
    now: u64,
) {
    let state = model.state(key, limit);
    let name = client.names.state(&[key], limit);
    let kept = client.stored(&name);
    if state.grants().is_empty() {
        return assert_kept(&kept, limit, state.state(), at(now));
    }
    let raw = kept.value.expect("a value with grants");
    let (inner, grants) = parse_grants(&raw);
    assert_eq!(grants, state.grants(), "{limit} at {now}");
    let ttl_ms = i64::from(!inner.is_empty());
    let inner = Kept { value: (!inner.is_empty()).then(|| inner.to_vec()), ttl_ms };
    assert_kept(&inner, limit, state.state(), at(now));
    let last = state.grants().last().expect("some").deadline;
    // The script keeps nothing beyond 2^53 us, in the year 2255.
    let needed_us = state.expires_at(limit).max(last).as_micros().min(1 << 53) - now;
    let needed_ms = needed_us.div_ceil(1_000);
    let needed_ms = i64::try_from(needed_ms).unwrap_or(i64::MAX).min(i64::MAX / 2_000);
    assert!(kept.ttl_ms >= needed_ms + ADDED_MS, "{limit}: {} of {needed_ms}", kept.ttl_ms);
}

/// Parses a value with grants, independently of the code of the store.
fn parse_grants(raw: &[u8]) -> (&[u8], Vec<Grant>) {
    assert_eq!(raw[0], 0x8c);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
    let first = raw.len() - 1 - 24 * usize::from(raw[raw.len() - 1]);
    let grant = |bytes: &[u8]| Grant {
        id: GrantId(number(&bytes[..7])),
        units: number(&bytes[7..14]),
        deadline: at(number(&bytes[14..21])),
        duration_us: number(&bytes[21..24]),
    };
    (&raw[1..first], raw[first..raw.len() - 1].chunks(24).map(grant).collect())
}

fn apply(
    client: &mut Client,
    key: u8,
    limit: &Limit,
    operation: LeaseOperation,
    now: u64,
) -> LeaseReply {
    let key = client.names.state(&[key], limit);
    let entries = [LeaseEntry { key, limit: *limit, operations: vec![operation] }];
    let reply = client.run(&lease_call(&entries, Some(at(now)))).expect("a reply");
    let mut replies = decode_lease_reply(&entries, &reply).expect("a sound reply");
    replies.pop().expect("one").expect("a state")
}

/// Decides equal requests in one call, as one entry if they have no id.
fn compare_requests(
    client: &mut Client,
    model: &mut LeasedModel,
    checks: &[GeneratedCheck],
    times: usize,
    now: u64,
) {
    let keys = keys();
    let request: Vec<Check<'_>> = checks.iter().map(|check| check.check(&keys)).collect();
    let plan = || ScriptPlan::new(&Request::new(&request), &client.names).expect("sound");
    let mut entry = Entry::new(plan(), ScriptMode::Decide);
    for _ in 1..times {
        assert!(entry.join(plan(), ScriptMode::Decide).is_none());
    }
    let plan = plan();
    let replies = client.decide_entries(&[vec![entry]], Some(at(now)));
    let replies = replies.into_iter().flat_map(|replies| replies.expect("decided"));
    for reply in replies {
        let verdict = plan.verdict(&request, &reply);
        let expected = decide_all(model, checks, now);
        assert_eq!((verdict.allowed, verdict.decisions().to_vec()), expected, "{checks:?}");
    }
}

fn compare(limits: &impl Strategy<Value = Vec<Limit>>) {
    hold(300, &(limits, any_trace()), |client, (limits, trace)| {
        let (mut model, mut now) = (LeasedModel::default(), NOW);
        let mut granted: Vec<GiveBack> = Vec::new();
        for (step, when, operation) in trace {
            let (key, limit) = (step.key % KEYS, limits[step.limit.index(limits.len())]);
            let deadline = model.state(key, &limit).grants().first().map(|grant| grant.deadline);
            now = match (when, deadline) {
                (When::Deadline(around), Some(deadline)) => {
                    deadline.as_micros().saturating_add_signed(around).max(NOW / 2)
                }
                _ => step.gap.after(now, limit.window_us()),
            };
            let operation = match operation {
                Operation::Request(mut steps, times, id) => {
                    steps.iter_mut().for_each(|(step, _)| step.key %= KEYS);
                    let checks = distinct_checks(&steps, &limits);
                    match id {
                        None => compare_requests(client, &mut model, &checks, times, now),
                        Some(id) => compare_with_id(client, &mut model, &checks, id, now),
                    }
                    for check in &checks {
                        assert_leased_kept(client, &mut model, check.key, &check.limit, now);
                    }
                    continue;
                }
                Operation::Grant(id, per_mille, duration_us, divisor) => {
                    let units = limit.capacity().div_ceil(1_000).saturating_mul(per_mille);
                    let id = GrantId(id + 6 * u64::try_from(granted.len()).expect("few") % 60);
                    granted.push(GiveBack { id, keep: units });
                    LeaseOperation::Grant(LeaseRequest { id, units, duration_us, divisor })
                }
                Operation::GiveBack(index, per_mille) if !granted.is_empty() => {
                    let GiveBack { id, keep } = granted[index.index(granted.len())];
                    LeaseOperation::GiveBack(GiveBack { id, keep: keep / 1_000 * per_mille })
                }
                Operation::GiveBack(..) | Operation::Reset => LeaseOperation::Reset,
            };
            let reply = apply(client, key, &limit, operation, now);
            let state = model.state(key, &limit);
            match operation {
                LeaseOperation::Grant(request) => {
                    assert_eq!(reply.grant, state.grant(&limit, &request, at(now)));
                }
                LeaseOperation::GiveBack(back) => {
                    state.give_back(&limit, &back, at(now));
                }
                LeaseOperation::Reset => state.reset(&limit, at(now)),
            }
            assert_eq!(reply.state.grants(), state.grants());
            assert_leased_kept(client, &mut model, key, &limit, now);
        }
    });
}

/// Decides a request with an id. Ids are used once per test, so that no answer is repeated.
fn compare_with_id(
    client: &mut Client,
    model: &mut LeasedModel,
    checks: &[GeneratedCheck],
    id: u8,
    now: u64,
) {
    let keys = keys();
    let request: Vec<Check<'_>> = checks.iter().map(|check| check.check(&keys)).collect();
    let id = [id, u8::try_from(client.keys().len() % 256).expect("a byte")];
    let unique = [&id[..], &now.to_le_bytes()].concat();
    let verdict = client.decide(&Request::new(&request).with_id(&unique), Some(at(now)));
    let verdict = match verdict {
        Ok(verdict) => verdict,
        Err(error) => panic!("{error}: {checks:?}"),
    };
    let expected = decide_all(model, checks, now);
    assert_eq!((verdict.allowed, verdict.decisions().to_vec()), expected, "{checks:?}");
}

#[test]
fn traces_with_grants_decide_as_the_core() {
    compare(&changing_limits());
}

/// Limits that alternate between the forms of `sliding-window` while units are out.
#[test]
fn sliding_windows_with_grants_change_their_form_as_in_the_core() {
    compare(&window_limits());
}

/// A dry call replies as a denial and changes nothing; an undone charge is refunded.
#[test]
fn dry_calls_and_undo_agree_while_units_are_out() {
    super::servers::on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for text in ["100 per 1m", "100 per 1m sliding-log", "100 per 1m token-bucket"] {
            let limit = super::limit(text);
            let request =
                LeaseRequest { id: GrantId(7), units: 60, duration_us: 500_000, divisor: 1 };
            let reply = apply(&mut client, 1, &limit, LeaseOperation::Grant(request), NOW);
            assert_eq!(reply.grant.expect("granted").units, 60);
            let checks = [Check::new(&[1], &limit, 30)];
            let request = Request::new(&checks);
            let name = client.names.state(&[1], &limit);
            let before = client.get(&name);
            let dry = client.decide_in_mode(&request, ScriptMode::Dry, Some(at(NOW)));
            assert_eq!(dry.expect("sound").decisions()[0].remaining, 40);
            assert_eq!(client.get(&name), before);
            let decided = client.decide(&request, Some(at(NOW))).expect("sound");
            assert_eq!((decided.allowed, decided.decisions()[0].remaining), (true, 10));
            assert!(!client.decide(&request, Some(at(NOW))).expect("sound").allowed);
            let refund = [Check::new(&[1], &limit, tidegate::Cost::Refund(30))];
            let undo =
                client.decide_in_mode(&Request::new(&refund), ScriptMode::Undo, Some(at(NOW)));
            assert_eq!(undo.expect("sound").decisions()[0].remaining, 40);
            let state = reply_state(&mut client, &limit);
            assert_eq!(state.held(), 60);
        }
    });
}

/// The state of key 1, from an operation that changes nothing.
fn reply_state(client: &mut Client, limit: &Limit) -> LeasedState {
    let nothing = LeaseOperation::GiveBack(GiveBack { id: GrantId(0), keep: 0 });
    apply(client, 1, limit, nothing, NOW).state
}

/// A value whose grants are malformed is refused, and is not overwritten.
#[test]
fn malformed_grants_are_not_a_state() {
    super::servers::on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let limit = super::limit("100 per 1m fixed-window");
        let name = client.names.state(&[1], &limit);
        let id = [1, 0, 0, 0, 0, 0, 0];
        let grant = |units: u8, duration: u8| {
            let units = [units, 0, 0, 0, 0, 0, 0];
            let deadline = (NOW + 1).to_le_bytes();
            [&id[..], &units, &deadline[..7], &[0, duration, 0]].concat()
        };
        let malformed = [
            vec![0x8c],
            vec![0x8c, 0],
            vec![0x8c, 1],
            [&[0x8c][..], &grant(1, 0x40)[1..], &[1]].concat(),
            [&[0x8c][..], &grant(0, 0x40), &[1]].concat(),
            [&[0x8c][..], &grant(1, 0), &[1]].concat(),
            [&[0x8c][..], &grant(1, 0x40), &[2]].concat(),
            [&[0x8c, 0x84][..], &grant(1, 0x40), &[1]].concat(),
        ];
        for value in malformed {
            client.set(&name, &value);
            let checks = [Check::new(&[1], &limit, 1)];
            let error = client.decide(&Request::new(&checks), Some(at(NOW))).expect_err("refused");
            assert!(error.to_string().contains("is not a state"), "{value:?}: {error}");
            assert_eq!(client.get(&name), Some(value));
        }
        let sound = [&[0x8c][..], &grant(9, 0x40), &[1]].concat();
        client.set(&name, &sound);
        assert_eq!(client.check([1], &limit, 1, Some(at(NOW))).remaining, 90);
    });
}

/// The state of a limit that has used nothing is empty.
#[test]
fn reset_of_a_key_without_grants_deletes_it() {
    super::servers::on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let limit = super::limit("100 per 1m");
        client.check([1], &limit, 5, Some(at(NOW))).or_deny().expect("admitted");
        let reply = apply(&mut client, 1, &limit, LeaseOperation::Reset, NOW);
        assert!(reply.existed && matches!(reply.state.state(), State::SlidingWindow(_)));
        assert_eq!(client.get(&client.names.state(&[1], &limit)), None);
        assert!(!apply(&mut client, 1, &limit, LeaseOperation::Reset, NOW).existed);
    });
}

/// A reset deletes any value that has no grants, also one that is not a state.
#[test]
fn reset_deletes_values_that_are_not_states() {
    super::servers::on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let limit = super::limit("100 per 1m");
        let name = client.names.state(&[1], &limit);
        for value in [&b"text"[..], &[0x8c, 0], &[0x8c, 0x84, 1]] {
            client.set(&name, value);
            assert!(apply(&mut client, 1, &limit, LeaseOperation::Reset, NOW).existed);
            assert_eq!(client.get(&name), None);
        }
        let list = redis::cmd("LPUSH").arg(&name).arg("1").clone();
        list.exec(&mut client.connection).expect("a list");
        assert!(apply(&mut client, 1, &limit, LeaseOperation::Reset, NOW).existed);
        assert!(client.keys().is_empty());
    });
}
