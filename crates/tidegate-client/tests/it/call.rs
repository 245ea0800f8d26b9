//! Calls: the outcomes of their requests, and the times at which requests are sent.

use std::time::Duration;

use tidegate_client::{Backoff, Budget, Call, End, Fields, Outcome, Peer, RetryRules, Usage};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn fields(wait: Option<u64>) -> Fields {
    Fields { wait: wait.map(ms), pause: None, usage: None }
}

fn rules() -> RetryRules {
    let backoff = Backoff::default().base(ms(100)).longest_wait(ms(5000));
    RetryRules::default().retries(3).deadline(ms(10_000)).backoff(backoff)
}

const DENIED: Outcome = Outcome::Denied(Fields { wait: None, pause: None, usage: None });

/// Returns the times at which requests are sent if each ends after 10 ms with the next outcome.
/// All chances are one half.
fn sent(rules: &RetryRules, outcomes: &[Outcome], can_repeat: bool) -> Vec<u128> {
    let mut peer = Peer::new(rules);
    let (mut call, mut at) =
        Call::begin(rules, &mut peer, Duration::ZERO, 0.5).expect("its turn is now");
    let mut sent = vec![at.as_millis()];
    for outcome in outcomes {
        let end = End { now: at + ms(10), outcome: *outcome, can_repeat };
        let Some(turn) = call.ended(rules, &mut peer, &end, 0.5) else { break };
        at = turn;
        sent.push(at.as_millis());
    }
    sent
}

#[test]
fn sends_retries_after_the_requested_wait_and_within_bounds() {
    let denied = |wait| Outcome::Denied(fields(Some(wait)));
    let rows: &[(&str, RetryRules, &[Outcome], &[u128])] = &[
        ("an answer is the end", rules(), &[Outcome::Answered(fields(None))], &[0]),
        ("three retries, doubled", rules(), &[DENIED; 9], &[0, 60, 170, 380]),
        ("none are wanted", rules().retries(0), &[DENIED; 9], &[0]),
        ("no connection", rules(), &[Outcome::Unreachable; 2], &[0, 60, 170]),
        ("a second is asked for", rules(), &[denied(1000); 1], &[0, 1060]),
        ("503 too", rules(), &[Outcome::Unavailable(fields(Some(1000)))], &[0, 1060]),
        ("longer than is waited for", rules(), &[denied(5001)], &[0]),
        ("behind the deadline", rules().deadline(ms(2000)), &[denied(1000); 9], &[0, 1060]),
        ("nothing to pay with", rules().budget(Budget::new(0.0, 1)), &[DENIED; 9], &[0, 60]),
        ("then an answer", rules(), &[DENIED, Outcome::Answered(fields(None)), DENIED], &[0, 60]),
    ];
    for (description, rules, outcomes, expected) in rows {
        assert_eq!(sent(rules, outcomes, true), *expected, "{description}");
    }
    assert_eq!(sent(&rules(), &[DENIED; 9], false), [0], "what cannot be repeated is not");
}

#[test]
fn applies_a_requested_wait_to_the_next_call() {
    let rules = rules();
    let mut peer = Peer::new(&rules);
    let (mut call, at) = Call::begin(&rules, &mut peer, Duration::ZERO, 0.5).expect("now");
    let usage = Usage { limit: 10, remaining: 0, window: Some(ms(4000)), reset: None };
    let fields = Fields { wait: Some(ms(4000)), pause: None, usage: Some(usage) };
    let end = End { now: at, outcome: Outcome::Denied(fields), can_repeat: false };
    assert_eq!(call.ended(&rules, &mut peer, &end, 0.5), None);
    let (_, at) = Call::begin(&rules, &mut peer, ms(1), 0.5).expect("before the deadline");
    assert_eq!(at, ms(6000), "what was asked for, and half a window");
    let (_, at) = Call::begin(&rules, &mut peer, ms(1), 0.5).expect("before the deadline");
    assert_eq!(at, ms(10_000), "a window later");
    let paused = Call::begin(&rules, &mut peer, ms(1), 0.5).expect_err("behind the deadline");
    assert_eq!(paused.wait, ms(13_999));
    assert_eq!(
        paused.to_string(),
        "request not sent: the server's limit is used up, and pacing would delay the request \
         by 13999 ms, past its deadline"
    );
    let unpaced = rules.unpaced();
    let mut peer = Peer::new(&unpaced);
    let (mut call, at) = Call::begin(&unpaced, &mut peer, Duration::ZERO, 0.5).expect("now");
    let end = End { now: at, ..end };
    assert_eq!(call.ended(&unpaced, &mut peer, &end, 0.5), None);
    let (_, at) = Call::begin(&unpaced, &mut peer, ms(1), 0.5).expect("not paced");
    assert_eq!(at, ms(1));
}
