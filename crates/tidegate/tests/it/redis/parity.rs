//! On random traces, the decisions and the stored states are exactly those of the core.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tidegate::unstable::redis::{Entry, ScriptMode, ScriptPlan};
use tidegate::{Check, Cost, Limit, Request};
use tidegate_core::Attempt;

use super::client::Client;
use super::servers::on_each;
use super::state::assert_kept;
use crate::common::{NOW, at};
use crate::generators::{
    Gap, GeneratedCheck, Model, any_limit, any_step, cases, decide_all, distinct_checks, keys,
    window_limits,
};

/// Runs a property on each server, which is empty at the start of a case.
pub fn hold<S: Strategy>(count: u32, strategy: &S, property: impl Fn(&mut Client, S::Value)) {
    on_each(|engine, server| {
        let client = RefCell::new(Client::new(server, "tg"));
        let mut runner = TestRunner::new(cases(count));
        let outcome = runner.run(strategy, |value| {
            let mut client = client.borrow_mut();
            redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server that listens");
            property(&mut client, value);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{}: {error}", engine);
        }
    });
}

/// Limits, each perhaps followed by itself with another count: a small one, or one so large that
/// its ticks are the coarsest.
pub fn changing_limits() -> impl Strategy<Value = Vec<Limit>> {
    let number = prop_oneof![0_u64..10, 1_000..10_000_u64, Just(1_000_000_000_000)];
    prop::collection::vec((any_limit(), prop::option::of(number)), 1..4).prop_map(|limits| {
        let both = |(limit, number): (Limit, Option<u64>)| {
            let other = number.map(|count| limit.with_count(count).expect("within bounds"));
            [Some(limit), other]
        };
        limits.into_iter().flat_map(both).flatten().collect()
    })
}

fn assert_all_kept(client: &mut Client, model: &mut Model, key: u8, limit: &Limit, now: u64) {
    let name = client.names.state(&[key], limit);
    assert_kept(&client.stored(&name), limit, model.state(key, limit), at(now));
}

#[test]
fn single_checks_decide_as_the_core() {
    compare_single_checks(&changing_limits());
}

/// Limits that alternate between the forms of `sliding-window` while units are held.
#[test]
fn sliding_windows_change_their_form_as_in_the_core() {
    compare_single_checks(&window_limits());
}

fn compare_single_checks(limits: &impl Strategy<Value = Vec<Limit>>) {
    let steps = prop::collection::vec(any_step(), 1..60);
    hold(150, &(limits, steps), |client, (limits, steps)| {
        let (mut model, mut now) = (Model::default(), NOW);
        for step in steps {
            let limit = limits[step.limit.index(limits.len())];
            now = step.gap.after(now, limit.window_us());
            let (cost, key) = (step.cost(&limit), [step.key]);
            let expected = model.decide(step.key, &limit, &Attempt::new(cost, at(now)));
            let checks = [Check::new(&key, &limit, cost)];
            let verdict = client.decide(&Request::new(&checks), Some(at(now)));
            let decision = verdict.expect("sound").decisions()[0];
            assert_eq!(decision, expected, "{limit}, {cost:?} at {now}");
            assert_all_kept(client, &mut model, step.key, &limit, now);
        }
    });
}

/// Requests of any costs on shared states, as entries of one call. Equal requests in a row are one
/// run, and requests that share only some of their states are separate entries.
#[test]
fn entries_of_a_call_decide_as_separate_requests() {
    let check = (any_step(), prop::bool::weighted(0.2));
    let request = (prop::collection::vec(check, 1..4), 1_usize..5);
    let calls = prop::collection::vec(prop::collection::vec(request, 1..8), 1..12);
    hold(150, &(changing_limits(), calls), |client, (limits, calls)| {
        let (mut model, mut now) = (Model::default(), NOW);
        for mut requests in calls {
            let first = requests[0].0[0].0;
            now = first.gap.after(now, limits[first.limit.index(limits.len())].window_us());
            // Half of the keys and few of the limits, so that requests share states.
            for (step, _) in requests.iter_mut().flat_map(|(checks, _)| checks) {
                step.key %= 3;
            }
            let requests: Vec<Vec<GeneratedCheck>> = requests
                .iter()
                .flat_map(|(steps, times)| vec![distinct_checks(steps, &limits); *times])
                .collect();
            compare_entries(client, &mut model, &requests, now);
        }
    });
}

fn compare_entries(
    client: &mut Client,
    model: &mut Model,
    requests: &[Vec<GeneratedCheck>],
    now: u64,
) {
    let keys = keys();
    let checks: Vec<Vec<Check<'_>>> = requests
        .iter()
        .map(|request| request.iter().map(|generated| generated.check(&keys)).collect())
        .collect();
    let mut groups = Vec::<Vec<Entry>>::new();
    for checks in &checks {
        let plan = ScriptPlan::new(&Request::new(checks), &client.names).expect("sound");
        let entry = groups.last_mut().and_then(|group| group.last_mut());
        let rest = match entry {
            Some(entry) => entry.join(plan, ScriptMode::Decide),
            None => Some(plan),
        };
        groups.extend(rest.map(|plan| vec![Entry::new(plan, ScriptMode::Decide)]));
    }
    let replies = client.decide_entries(&groups, Some(at(now)));
    let replies: Vec<_> =
        replies.into_iter().flat_map(|replies| replies.expect("decided")).collect();
    assert_eq!(replies.len(), requests.len());
    for ((generated, checks), reply) in requests.iter().zip(&checks).zip(replies) {
        let plan = ScriptPlan::new(&Request::new(checks), &client.names).expect("sound");
        let verdict = plan.verdict(checks, &reply);
        let expected = decide_all(model, generated, now);
        assert_eq!((verdict.allowed, verdict.decisions().to_vec()), expected, "{generated:?}");
    }
    for generated in requests.iter().flatten() {
        assert_all_kept(client, model, generated.key, &generated.limit, now);
    }
}

#[test]
fn requests_are_all_or_nothing_as_in_the_core() {
    let check = (any_step(), prop::bool::weighted(0.2));
    let requests = prop::collection::vec(prop::collection::vec(check, 1..7), 1..30);
    hold(150, &(changing_limits(), requests), |client, (limits, requests)| {
        let (mut model, mut now) = (Model::default(), NOW);
        for steps in requests {
            let first = &steps[0].0;
            let window_us = limits[first.limit.index(limits.len())].window_us();
            now = first.gap.after(now, window_us);
            let generated_checks = distinct_checks(&steps, &limits);
            let keys = keys();
            let checks: Vec<Check<'_>> =
                generated_checks.iter().map(|generated| generated.check(&keys)).collect();
            let before: Vec<_> = states(client, &generated_checks);
            let dry = client
                .decide_in_mode(&Request::new(&checks), ScriptMode::Dry, Some(at(now)))
                .expect("sound");
            assert_eq!(states(client, &generated_checks), before, "a dry call changes nothing");
            let verdict = client.decide(&Request::new(&checks), Some(at(now))).expect("sound");
            let (allowed, decisions) = decide_all(&mut model, &generated_checks, now);
            assert_eq!((verdict.allowed, verdict.decisions().to_vec()), (allowed, decisions));
            if !allowed && !verdict.consumed {
                assert_eq!(dry, verdict, "a dry call answers as a denied one");
            }
            for generated in &generated_checks {
                assert_all_kept(client, &mut model, generated.key, &generated.limit, now);
            }
        }
    });
}

fn states(client: &mut Client, generated_checks: &[GeneratedCheck]) -> Vec<Option<Vec<u8>>> {
    let names: Vec<_> =
        generated_checks.iter().map(|p| client.names.state(&[p.key], &p.limit)).collect();
    names.iter().map(|name| client.get(name)).collect()
}

/// Regression: the script counted a cell whose only units were charged at its beginning, and are
/// now exactly a window old. The node admitted a request that the script had not charged.
#[test]
fn cell_that_began_a_window_ago_has_expired() {
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let limit: Limit = "30 per 15ms".parse().expect("a limit");
        let (start, window_us) = (NOW - NOW % 1_000, limit.window_us());
        for (now, cost, remaining) in [(start, 29, 1), (start + window_us - 1, 1, 0)] {
            assert_eq!(client.check([0], &limit, cost, Some(at(now))).remaining, remaining);
        }
        let now = start + window_us;
        assert_eq!(client.check([0], &limit, 29, Some(at(now))).remaining, 0);
        let name = client.names.state(&[0], &limit);
        let mut model = Model::default();
        for (now, cost) in [(start, 29), (start + window_us - 1, 1), (now, 29)] {
            assert!(model.decide(0, &limit, &Attempt::new(cost, at(now))).allowed);
        }
        assert_kept(&client.stored(&name), &limit, model.state(0, &limit), at(now));
    });
}

/// Regression: the first of some equal requests changed the pace of the state, so that held units
/// count for longer. The script charged all requests, and the node denied the others.
#[test]
fn run_that_changes_the_pace_charges_what_it_admits() {
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let [before, after] =
            ["60 per 15s", "61 per 15s"].map(|text| text.parse::<Limit>().expect("a limit"));
        let check = |limit: Limit, units: u64| {
            vec![GeneratedCheck {
                key: 0,
                limit,
                cost: Cost::Ask(units),
                observed: false,
                consuming: false,
            }]
        };
        let (mut model, start) = (Model::default(), NOW - NOW % 1_000_000);
        for (at_ms, units) in [(0, 1), (250, 1), (500, 1), (750, 1), (7_000, 56)] {
            let now = start + at_ms * 1_000;
            compare_entries(&mut client, &mut model, &[check(before, units)], now);
        }
        // Two units of the first second have expired at the pace of the first limit.
        let now = start + 15_500_000;
        compare_entries(&mut client, &mut model, &vec![check(after, 1); 3], now);
    });
}

/// Long logs lose many of their oldest or newest entries in one step.
#[test]
fn long_logs_decide_as_the_core() {
    let step = (any_step(), 1_u64..200);
    let strategy = (300_u64..3_000, prop::collection::vec(step, 1..20));
    hold(20, &strategy, |client, (count, steps)| {
        let limit: Limit = format!("{count} per 1s sliding-log").parse().expect("a limit");
        let (mut model, mut now) = (Model::default(), NOW);
        for (step, hits) in steps {
            for _ in 0..hits {
                now += 700;
                let expected = model.decide(0, &limit, &Attempt::new(1, at(now)));
                assert_eq!(client.check([0], &limit, 1, Some(at(now))), expected);
            }
            now = match step.gap {
                Gap::Window(_) => now,
                gap => gap.after(now, limit.window_us() / 3),
            };
            let cost = step.cost(&limit);
            let expected = model.decide(0, &limit, &Attempt::new(cost, at(now)));
            assert_eq!(client.check([0], &limit, cost, Some(at(now))), expected, "{cost:?}");
            assert_all_kept(client, &mut model, 0, &limit, now);
        }
    });
}
