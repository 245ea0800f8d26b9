//! Requests with idempotency ids get the answers of the memory store.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tidegate::{Check, CheckError, Cost, Limiter, ManualClock, Request, StoreError, Verdict};

use super::client::Client;
use super::servers::on_each;
use crate::common::{NOW, at, limit};
use crate::generators::{Gap, Step, any_step, cases};

/// A request over two keys and two limits, under one of a few ids.
#[derive(Clone, Debug)]
struct GeneratedRequest {
    step: Step,
    checks: Vec<(usize, usize, u64)>,
    id: u8,
}

fn any_request() -> impl Strategy<Value = GeneratedRequest> {
    let check = (0_usize..2, 0_usize..2, 0_u64..5);
    (any_step(), prop::collection::vec(check, 1..4), 0_u8..3).prop_map(|(step, mut checks, id)| {
        // At most one check per state, in a fixed order.
        checks.sort_unstable();
        checks.dedup_by_key(|&mut (key, limit, _)| (key, limit));
        GeneratedRequest { step, checks, id }
    })
}

#[test]
fn ids_are_remembered_as_in_memory() {
    /// The shortest window of the limits.
    const SHORTEST_US: u64 = 3_000_000;
    let limits = [limit("6 per 10s sliding-log"), limit("4 per 3s")];
    let requests = prop::collection::vec(any_request(), 1..40);
    on_each(|engine, server| {
        let client = RefCell::new(Client::new(server, "tg"));
        let outcome = TestRunner::new(cases(150)).run(&requests, |requests| {
            let client = &mut *client.borrow_mut();
            redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server that listens");
            let clock = ManualClock::new(at(NOW));
            let limiter = Limiter::builder()
                .max_keys(10_000)
                .clock(clock.clock())
                .build()
                .expect("a small store");
            let (mut now, mut earliest) = (NOW, NOW);
            for GeneratedRequest { step, checks, id } in requests {
                // The clock steps back only while nothing has expired: memory may have forgotten
                // what has, and Redis not yet.
                let may_step_back = now < earliest + SHORTEST_US;
                if may_step_back || !matches!(step.gap, Gap::Back(_)) {
                    now = step.gap.after(now, SHORTEST_US);
                }
                earliest = earliest.min(now);
                clock.set(at(now));
                let checks: Vec<Check<'_>> = checks
                    .iter()
                    .map(|&(key, l, cost)| Check::new(["a", "b"][key], &limits[l], cost))
                    .map(|check| if step.consuming { check.consuming() } else { check })
                    .collect();
                let id = [id];
                let request = Request::new(&checks).with_id(&id);
                let expected = limiter.decide(&request).map_err(StoreError::from);
                assert_eq!(
                    client.decide(&request, Some(at(now))),
                    expected,
                    "{request:?} at {now}"
                );
            }
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{}: {error}", engine);
        }
    });
}

#[test]
fn id_rejects_another_cost_and_expires() {
    let limit = limit("9 per 1s sliding-log");
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let mut decide = |cost: u64, id: &str, now: u64| -> Result<Verdict, StoreError> {
            let checks = [Check::new("a", &limit, Cost::Ask(cost))];
            client.decide(&Request::new(&checks).with_id(id), Some(at(now)))
        };
        let first = decide(2, "id", NOW).expect("sound");
        assert_eq!(decide(2, "id", NOW + 999_999), Ok(first));
        assert_eq!(decide(3, "id", NOW + 999_999), Err(CheckError::IdReused.into()));
        assert_eq!(
            decide(3, "id", NOW + 1_000_000).expect("forgotten").decisions()[0].remaining,
            6
        );
        let keys = client.keys();
        assert_eq!(keys.len(), 2);
        assert!(keys.iter().all(|key| client.ttl(key) > 0));
    });
}
