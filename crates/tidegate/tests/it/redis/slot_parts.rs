//! Requests over several slots: splitting them into parts, and undoing charges.

use tidegate::unstable::redis::{ScriptMode, ScriptPlan, SlotPart, Undo, release_call, slot_key};
use tidegate::{Check, Cost, Limit, PermitId, Request};

use super::client::Client;
use super::servers::on_each;
use crate::common::{NOW, at, limit};

/// The slot of a name, which is its first letter in these tests.
fn slot(name: &[u8]) -> u16 {
    u16::from(slot_key(name)[0])
}

/// Decides a part, and returns its reply.
macro_rules! decide {
    ($client:expr, $part:expr, $mode:expr) => {{
        let reply = $client.run(&$part.plan.call($mode, Some(at(NOW)))).expect("sound");
        $part.plan.decode_reply($mode, &reply).expect("a sound reply")
    }};
}

fn all(client: &mut Client) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut keys = client.keys();
    keys.sort();
    keys.into_iter().map(|key| (key.clone(), client.get(&key))).collect()
}

#[test]
fn parts_are_of_one_slot_and_in_the_order_of_the_checks() {
    let (minute, hour) = (limit("5 per 1m"), limit("5 per 1h"));
    let checks = [
        Check::new("zoe", &minute, 1),
        Check::new("api\0ann", &minute, 1),
        Check::new("zoe", &hour, 1),
        Check::new("zoe", &minute, 1),
        Check::new("ann", &hour, 1).observed(),
    ];
    on_each(|_, server| {
        let client = Client::new(server, "tg");
        for id in [None, Some("id")] {
            let mut request = Request::new(&checks);
            request.id = id.map(str::as_bytes);
            let plan = ScriptPlan::new(&request, &client.names).expect("sound");
            let split_by_slot = plan.split_by_slot(slot);
            let slots: Vec<Vec<u16>> = split_by_slot
                .iter()
                .map(|part| {
                    part.plan
                        .call(ScriptMode::Decide, None)
                        .keys
                        .iter()
                        .map(|key| slot(key))
                        .collect()
                })
                .collect();
            let (z, a) = (u16::from(b'z'), u16::from(b'a'));
            let ids = usize::from(id.is_some());
            assert_eq!(slots, [vec![z; 2 + ids], vec![a; 2 + ids]]);
        }
    });
}

#[test]
fn combined_parts_decide_as_the_whole_plan() {
    let limits =
        ["5 per 1m sliding-counter", "5 per 1m sliding-log", "9 per 1h fixed-window"].map(limit);
    on_each(|_, server| {
        let (mut client, mut split_client) =
            (Client::new(server, "whole"), Client::new(server, "parts"));
        for cost in [1, 2, 0, 1] {
            let checks = [
                Check::new("b", &limits[0], cost),
                Check::new("a", &limits[1], cost),
                Check::new("b", &limits[2], cost).observed(),
                Check::new("a", &limits[0], cost),
            ];
            let request = Request::new(&checks);
            let whole = client.decide(&request, Some(at(NOW))).expect("sound");
            let plan = ScriptPlan::new(&request, &split_client.names).expect("sound");
            let split_by_slot = plan.split_by_slot(slot);
            assert_eq!(split_by_slot.len(), 2);
            let replies: Vec<_> = split_by_slot
                .iter()
                .map(|part| decide!(split_client, part, ScriptMode::Decide))
                .collect();
            let gathered = plan.combine(split_by_slot.iter().zip(&replies));
            assert_eq!(plan.verdict(&checks, &gathered), whole);
        }
    });
}

#[test]
fn undo_reverts_the_charge_of_a_part() {
    let limits: Vec<Limit> = [
        "5 per 1m sliding-log",
        "5 per 1m sliding-window",
        "5 per 1m sliding-counter",
        "5 per 1m fixed-window",
        "5 per 1m token-bucket",
        "5 concurrent",
    ]
    .iter()
    .map(|text| limit(text))
    .collect();
    let small = limit("2 per 1m fixed-window");
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for id in [None, Some("id")] {
            for before in [0, 2] {
                redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server");
                // The second of the observed limits keeps the first one from being charged.
                let watched = [&limits[0], &small].map(|limit| Check::new("keys", limit, 3));
                let checks_of = |cost: Cost| -> Vec<Check<'_>> {
                    let enforced = limits.iter().map(|limit| Check::new("key", limit, cost));
                    let observed = watched.map(|check| Check { cost, ..check.observed() });
                    enforced.chain(observed).collect()
                };
                if before > 0 {
                    let checks = checks_of(Cost::Ask(before));
                    let request = Request::new(&checks).with_permit(PermitId(1));
                    let _ = client.decide(&request, Some(at(NOW - 1))).expect("sound");
                }
                let kept = all(&mut client);
                let checks = checks_of(Cost::Ask(3));
                let mut request = Request::new(&checks).with_permit(PermitId(2));
                request.id = id.map(str::as_bytes);
                let plan = ScriptPlan::new(&request, &client.names).expect("sound");
                let [part] = &plan.split_by_slot(slot)[..] else { panic!("one slot") };
                let replies = decide!(client, part, ScriptMode::Decide);
                assert!(replies.admitted);
                assert_ne!(all(&mut client), kept);
                let Undo { releases, plan: refunds } = part.plan.undo(&replies);
                for state in releases {
                    let call = release_call(vec![state], PermitId(2), Some(at(NOW)));
                    client.run(&call).expect("sound");
                }
                let refunds = refunds.expect("something was charged");
                client.run(&refunds.call(ScriptMode::Undo, Some(at(NOW)))).expect("sound");
                assert_eq!(undone(&all(&mut client)), undone(&kept), "{before} before, id {id:?}");
                let denied = decide!(client, part, ScriptMode::Dry);
                let nothing = part.plan.undo(&denied);
                assert!(nothing.releases.is_empty() && nothing.plan.is_none(), "{nothing:?}");
            }
        }
    });
}

/// The values without the parts that `undo` does not restore.
fn undone(all: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let plain = |(name, value): &(Vec<u8>, Option<Vec<u8>>)| match value.as_deref() {
        // The time of a bucket advances, and its debt with it. The number of permits that were ever
        // acquired stays higher.
        Some([0x85, ..]) => (name.clone(), None),
        Some([0x86, rest @ ..]) => (name.clone(), Some(rest[7..].to_vec())),
        _ => (name.clone(), value.clone()),
    };
    all.iter().map(plain).collect()
}

/// The parts together have the states of the whole plan.
#[test]
fn slot_parts_have_the_states_of_the_plan() {
    let limit = limit("5 per 1m");
    on_each(|_, server| {
        let client = Client::new(server, "tg");
        let checks = ["a", "b", "c"].map(|key| Check::new(key, &limit, 1));
        let plan = ScriptPlan::new(&Request::new(&checks), &client.names).expect("sound");
        let split_by_slot: Vec<SlotPart> = plan.split_by_slot(slot);
        let names =
            |plan: &ScriptPlan| plan.states().iter().map(|s| s.key.clone()).collect::<Vec<_>>();
        let part_names: Vec<_> = split_by_slot.iter().flat_map(|part| names(&part.plan)).collect();
        assert_eq!(part_names, names(&plan));
    });
}
