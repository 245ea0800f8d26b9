//! The limiter over a shared store that fails on demand.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidegate::{
    Check, CheckError, Cost, Decided, Decision, DenialReason, Failure, Limit, Limiter, ManualClock,
    OnStoreFailure, RetryAfter, Store, StoreError, Timestamp, Verdict,
};

use crate::common::{NOW, S, at, limit};
use crate::flaky_store::{Behavior, FlakyStore};
use crate::futures::{Polled, Started, block_on};
use crate::generators::cases;

const LONG: Duration = Duration::from_secs(3_600);

/// A store that several limiters use.
type Shared = Arc<FlakyStore>;

fn fixture() -> (Shared, ManualClock) {
    let clock = ManualClock::new(at(NOW));
    (Arc::new(FlakyStore::immediate(&clock)), clock)
}

fn limiter_over(
    store: &Shared,
    clock: &ManualClock,
    on_failure: Option<OnStoreFailure>,
) -> Limiter<Shared> {
    let mut builder = Limiter::builder().max_keys(1_000).clock(clock.clock()).nodes(3);
    if let Some(on_failure) = on_failure {
        builder = builder.on_store_failure(on_failure);
    }
    builder.build_with_store(Arc::clone(store)).expect("memory")
}

fn check(limiter: &Limiter<Shared>, limit: &Limit, cost: impl Into<Cost> + Send) -> Decision {
    block_on(limiter.check_async("a", limit, cost)).expect("a verdict")
}

#[test]
fn limiter_methods_decide_over_any_store() {
    let (store, clock) = fixture();
    let (limiter, other) = (limiter_over(&store, &clock, None), limiter_over(&store, &clock, None));
    let ten = limit("10 per 1m sliding-log");
    assert_eq!(check(&limiter, &ten, 3).remaining, 7);
    assert_eq!(block_on(other.charge_async("a", &ten, 2)), Ok(5), "the count is shared");
    assert_eq!(block_on(other.refund_async("a", &ten, 1)), Ok(6));
    assert_eq!(block_on(limiter.peek_async("a", &ten)).expect("a verdict").remaining, 6);
    let checks = [Check::new("a", &ten, 4), Check::new("b", &ten, 4), Check::new("a", &ten, 4)];
    let mut decisions = Vec::new();
    block_on(limiter.check_batch_async(&checks, &mut decisions)).expect("answers");
    let allowed: Vec<bool> = decisions.iter().map(|decision| decision.allowed).collect();
    assert_eq!(allowed, [true, true, false]);
    let verdict = block_on(limiter.check_all_async(&checks[..2])).expect("a verdict");
    assert_eq!(verdict.or_deny().expect_err("only two units are left").decision().remaining, 2);
    assert_eq!(block_on(limiter.reset_async("a", &ten)), Ok(true));
    assert_eq!(check(&other, &ten, 0).remaining, 10);

    let held = limit("1 concurrent");
    let mixed = [Check::new("a", &ten, 1), Check::new("a", &held, 1)];
    let refused = block_on(limiter.check_batch_async(&mixed, &mut decisions));
    assert_eq!(refused, Err(CheckError::NeedsPermit.into()));
    assert_eq!(check(&other, &ten, 0).remaining, 10, "nothing was decided");
}

#[test]
fn store_failure_is_an_error_without_on_store_failure() {
    let (store, clock) = fixture();
    let limit = limit("9 per 1h sliding-log");
    store.set_behavior(Behavior::Down);
    let failed = block_on(limiter_over(&store, &clock, None).check_async("a", &limit, 1));
    assert_eq!(failed, Err(Failure::Down.into()));

    let open = limiter_over(&store, &clock, Some(OnStoreFailure::Allow));
    let decision = check(&open, &limit, 1);
    assert_eq!((decision.allowed, decision.decided), (true, Decided::FailedOpen));

    let closed = limiter_over(&store, &clock, Some(OnStoreFailure::Deny));
    let checks = [Check::new("a", &limit, 1)];
    let verdict = block_on(closed.check_all_async(&checks)).expect("a verdict");
    assert_eq!((verdict.allowed, verdict.decided), (false, Decided::FailedClosed));
    let denied = verdict.or_deny().expect_err("denied");
    assert_eq!(denied.reason(), DenialReason::StoreFailed);
    assert_eq!(denied.to_string(), "the store failed: retry in 1s");
    let denied = check(&closed, &limit, 1).or_deny().expect_err("denied");
    assert_eq!(denied.reason(), DenialReason::StoreFailed);

    store.set_behavior(Behavior::Healthy);
    let decision = check(&closed, &limit, 1);
    assert_eq!((decision.decided, decision.remaining), (Decided::Exact, 8), "nothing was charged");
}

/// While the store fails, a node decides under its share, and counts what it has admitted before.
#[test]
fn local_fallback_divides_the_limit_by_the_nodes() {
    let (store, clock) = fixture();
    let limiter = limiter_over(&store, &clock, Some(OnStoreFailure::Local));
    let nine = limit("9 per 1h sliding-log");
    assert_eq!(check(&limiter, &nine, 1).decided, Decided::Exact);
    store.set_behavior(Behavior::TimedOut);
    for left in [1, 0] {
        let decision = check(&limiter, &nine, 1);
        assert_eq!((decision.decided, decision.remaining), (Decided::Local, left));
    }
    let denied = check(&limiter, &nine, 1).or_deny().expect_err("3 of 9 are used");
    assert_eq!(denied.reason(), DenialReason::LimitReached);
    // The whole limit would allow the cost, but this node's share does not.
    let denied = check(&limiter, &nine, 4).or_deny().expect_err("more than the share");
    assert_eq!(denied.reason(), DenialReason::StoreFailed);
    assert_eq!(check(&limiter, &nine, 10).retry_after, RetryAfter::Never);
    limiter.set_nodes(1);
    assert_eq!(check(&limiter, &nine, 0).remaining, 6);
}

#[test]
fn permits_are_held_released_and_mirrored() {
    let (store, clock) = fixture();
    let limiter = limiter_over(&store, &clock, Some(OnStoreFailure::Local));
    let three = limit("3 concurrent lease 30s");
    let checks = [Check::new("a", &three, 1)];
    let take = || block_on(limiter.acquire_async(&checks)).expect("a verdict").or_deny();
    let left = || {
        let peeks = [Check::new("a", &three, 0)];
        block_on(limiter.acquire_async(&peeks)).expect("a verdict").verdict().decisions()[0]
            .remaining
    };
    let (first, second) = (take().expect("one"), take().expect("two"));
    assert_eq!(left(), 1);
    assert_eq!(block_on(first.renew_async()), Ok(true));
    assert_eq!(block_on(first.release_async()), Ok(true));
    assert_eq!(left(), 2);
    drop(second);
    assert_eq!(left(), 3, "a drop releases");

    let before = take().expect("one");
    store.set_behavior(Behavior::Down);
    assert!(take().is_err(), "this node's share is taken by the permit from before");
    drop(before);
    let here = take().expect("its share");
    assert!(take().is_err());
    assert_eq!(block_on(here.renew_async()), Ok(true));
    assert_eq!(block_on(here.release_async()), Ok(true));
    assert!(take().is_ok());
}

#[test]
fn permit_of_a_failed_open_store_holds_nothing() {
    let (store, clock) = fixture();
    let open = limiter_over(&store, &clock, Some(OnStoreFailure::Allow));
    let one = limit("1 concurrent lease 30s");
    let checks = [Check::new("a", &one, 1)];
    store.set_behavior(Behavior::Down);
    let permit = block_on(open.acquire_async(&checks)).expect("a verdict").or_deny().expect("open");
    store.set_behavior(Behavior::Healthy);
    let held = block_on(open.acquire_async(&checks)).expect("a verdict").or_deny().expect("free");
    drop(permit);
    assert!(block_on(open.acquire_async(&checks)).expect("a verdict").permit().is_none());
    drop(held);
}

#[test]
fn reservations_are_settled_where_they_were_charged() {
    let (store, clock) = fixture();
    let limiter = limiter_over(&store, &clock, Some(OnStoreFailure::Local));
    let tokens = limit("90 per 1h sliding-log");
    let reserve = || block_on(limiter.reserve_async("a", &tokens, 10)).expect("a verdict");
    let left = || check(&limiter, &tokens, 0).remaining;
    block_on(reserve().commit_async(4)).expect("settled");
    drop(reserve());
    reserve().keep();
    assert_eq!(left(), 76);

    store.set_behavior(Behavior::Down);
    let here = left();
    let local = reserve();
    assert_eq!(local.verdict().decided, Decided::Local);
    assert_eq!(left(), here - 10);
    store.set_behavior(Behavior::Healthy);
    block_on(local.commit_async(1)).expect("settled");
    assert_eq!(left(), 76, "the store is not charged");
    store.set_behavior(Behavior::Down);
    assert_eq!(left(), here - 1);
}

/// Starts to wait, and panics if the request is decided immediately.
fn join<'a, T>(
    future: impl Future<Output = Result<T, StoreError>> + 'a,
) -> Polled<'a, Result<T, StoreError>> {
    match Polled::start(future) {
        Started::Pending(waiting) => waiting,
        Started::Ready(_) => panic!("ready at once"),
    }
}

fn at_once(limiter: &Limiter<Shared>, checks: &[Check<'_>], max: Duration) -> Verdict {
    match Polled::start(limiter.wait(checks, max)) {
        Started::Pending(_) => panic!("the request waits"),
        Started::Ready(ready) => ready.expect("a verdict"),
    }
}

#[test]
fn waiters_pass_in_order_over_any_store() {
    let (store, clock) = fixture();
    let limiter = limiter_over(&store, &clock, None);
    let one = limit("1 per 10s sliding-log");
    let checks = [Check::new("a", &one, 1)];
    assert!(at_once(&limiter, &checks, Duration::ZERO).allowed);
    let mut first = join(limiter.wait(&checks, LONG));
    let mut second = join(limiter.wait(&checks, LONG));
    let refused = at_once(&limiter, &checks, Duration::from_secs(9));
    assert!(!refused.allowed && !refused.queue_full, "the wait is ten seconds");
    clock.set(at(NOW + 10 * S));
    assert!(second.poll().is_none(), "another waiter is first");
    assert!(first.poll().is_some_and(|result| result.is_ok_and(|verdict| verdict.allowed)));
    drop(first);
    assert!(second.poll().is_none());
    clock.set(at(NOW + 20 * S));
    assert!(second.poll().is_some_and(|result| result.is_ok_and(|verdict| verdict.allowed)));
    let mut third = join(limiter.wait(&checks, Duration::from_secs(10)));
    assert!(check(&limiter, &one, 1).retry_after.as_micros() == Some(10 * S));
    clock.set(at(NOW + 30 * S));
    assert!(check(&limiter, &one, 1).allowed, "a plain check took the units");
    let denied = third.poll().expect("max_wait has passed").expect("a verdict");
    assert!(!denied.allowed);
    let past = Instant::now();
    let refused = block_on(limiter.wait_until(&checks, past)).expect("a verdict");
    assert!(!refused.allowed);
}

#[test]
fn full_queue_is_reported_as_queue_full() {
    let (store, clock) = fixture();
    let one = limit("1 per 10s sliding-log");
    let checks = [Check::new("a", &one, 1)];
    let shared = Limiter::builder()
        .clock(clock.clock())
        .max_waiters(1)
        .build_with_store(store)
        .expect("memory");
    let memory = Limiter::builder().clock(clock.clock()).max_waiters(1).build().expect("memory");
    assert!(at_once(&shared, &checks, LONG).allowed);
    let _waiting = join(shared.wait(&checks, LONG));
    let full = at_once(&shared, &checks, LONG);
    assert!(!full.allowed && full.queue_full);
    let denied = full.or_deny().expect_err("full");
    assert_eq!(denied.reason(), DenialReason::QueueFull);
    assert_eq!(denied.to_string(), "too many callers wait: retry in 10s");

    assert!(block_on(memory.wait(&checks, LONG)).expect("a verdict").allowed);
    let _waiting = join(memory.wait(&checks, LONG));
    let full = block_on(memory.wait(&checks, LONG)).expect("a verdict");
    assert_eq!(full.denial_reason(), Some(DenialReason::QueueFull));
    let short = block_on(memory.wait(&checks, Duration::ZERO)).expect("a verdict");
    assert_eq!(
        short.denial_reason(),
        Some(DenialReason::LimitReached),
        "the request would not wait anyway"
    );
}

/// A waiter for a permit is woken by the release, in memory and over another store.
#[test]
fn acquire_waits_for_a_release() {
    let (store, clock) = fixture();
    acquire_waits(&limiter_over(&store, &clock, None), &clock);
    let memory = Limiter::builder().clock(clock.clock()).build().expect("memory");
    acquire_waits(&memory, &clock);
}

fn acquire_waits<S: Store>(limiter: &Limiter<S>, clock: &ManualClock) {
    let one = limit("1 concurrent lease 30s");
    let checks = [Check::new("a", &one, 1)];
    let take = |max| limiter.acquire_wait(&checks, max);
    let permit = block_on(take(Duration::ZERO)).expect("a verdict").or_deny().expect("free");
    let denied = block_on(take(Duration::ZERO))
        .expect("a verdict")
        .or_deny()
        .expect_err("all permits are held");
    assert_eq!(denied.reason(), DenialReason::LimitReached);
    let mut first = join(take(LONG));
    let mut second = join(take(LONG));
    let (woken, behind) = (first.wakes(), second.wakes());
    drop(permit);
    assert_eq!((first.wakes(), second.wakes()), (woken + 1, behind), "the first of the queue");
    let next = first.poll().expect("free").expect("a verdict").or_deny().expect("a permit");
    drop(first);
    assert!(second.poll().is_none());
    drop(next);
    let last = second.poll().expect("free").expect("a verdict").or_deny().expect("a permit");

    let mut third = join(take(Duration::from_secs(3)));
    let started = clock.now().as_micros();
    let mut result = None;
    for tenth in 1..=30 {
        assert!(result.is_none(), "the waiter passed too early");
        clock.set(Timestamp::from_micros(started + tenth * S / 10));
        result = third.poll();
    }
    let denied = result
        .expect("max_wait has passed")
        .expect("a verdict")
        .or_deny()
        .expect_err("all permits are held");
    assert_eq!(denied.decision().limit, 1);
    drop(last);
}

/// Nothing is charged to the rate limit while the request waits for the permit.
#[test]
fn acquire_waits_for_all_limits() {
    let clock = ManualClock::new(at(NOW));
    let limiter = Limiter::builder().clock(clock.clock()).build().expect("memory");
    let (rate, one) = (limit("2 per 10s sliding-log"), limit("1 concurrent lease 60s"));
    let checks = [Check::new("a", &rate, 1), Check::new("a", &one, 1)];
    let take = |max| limiter.acquire_wait(&checks, max);
    let permit = block_on(take(LONG)).expect("a verdict").or_deny().expect("free");
    let mut waiting = join(take(LONG));
    assert_eq!(limiter.peek("a", &rate).expect("valid").remaining, 1);
    assert!(limiter.check("a", &rate, 1).expect("valid").allowed);
    drop(permit);
    assert!(waiting.poll().is_none(), "the rate is used up");
    let hopeless = block_on(limiter.acquire_wait(&checks, Duration::from_secs(9)));
    assert!(hopeless.expect("a verdict").permit().is_none());
    clock.set(at(NOW + 10 * S));
    assert!(
        waiting.poll().expect("both limits have capacity").expect("a verdict").permit().is_some()
    );
}

/// A dropped waiter leaves the queue.
#[test]
fn a_dropped_waiter_for_a_permit_leaves_the_queue() {
    let clock = ManualClock::new(at(NOW));
    let limiter = Limiter::builder().clock(clock.clock()).build().expect("memory");
    let one = limit("1 concurrent lease 30s");
    let checks = [Check::new("a", &one, 1)];
    let permit = limiter.acquire(&checks).expect("valid").or_deny().expect("free");
    let gone = join(limiter.acquire_wait(&checks, LONG));
    let mut next = join(limiter.acquire_wait(&checks, LONG));
    drop(gone);
    assert!(next.wakes() > 0, "the waiter is now the first");
    assert!(next.poll().is_none());
    drop(permit);
    assert!(next.poll().expect("free").expect("a verdict").permit().is_some());
}

#[test]
fn wait_blocking_returns_when_the_request_passes() {
    let clock = ManualClock::new(at(NOW));
    let limiter = Limiter::builder().clock(clock.clock()).build().expect("memory");
    let one = limit("1 per 10s sliding-log");
    let checks = [Check::new("a", &one, 1)];
    assert!(limiter.wait_blocking(&checks, LONG).expect("valid").allowed);
    assert!(!limiter.wait_blocking(&checks, Duration::from_secs(9)).expect("valid").allowed);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| limiter.wait_blocking(&checks, LONG).expect("valid").allowed);
        // Time is advanced until the waiting thread has passed, whenever it begins to wait.
        while !waiting.is_finished() {
            clock.advance(Duration::from_secs(1));
            std::thread::yield_now();
        }
        assert!(waiting.join().expect("no panic"));
    });
}

/// Callers await on multi-threaded runtimes.
#[test]
fn futures_are_send() {
    fn is_send<T: Send>(_: T) {}
    fn all_are_send<S: Store>(limiter: &Limiter<S>) {
        let limit = limit("1 per 1s");
        let checks = [Check::new("a", &limit, 1)];
        let mut decisions = Vec::new();
        is_send(limiter.check_async("a", &limit, 1));
        is_send(limiter.check_batch_async(&checks, &mut decisions));
        is_send(limiter.wait(&checks, LONG));
        is_send(limiter.wait_until(&checks, Instant::now()));
        is_send(limiter.acquire_wait(&checks, LONG));
        is_send(async {
            let permit = limiter.acquire_async(&checks).await?.permit().expect("a permit");
            permit.renew_async().await?;
            permit.release_async().await
        });
        is_send(async { limiter.reserve_async("a", &limit, 1).await?.commit_async(2).await });
    }
    let (store, clock) = fixture();
    all_are_send(&limiter_over(&store, &clock, None));
    all_are_send(&Limiter::new());
}

/// Several threads release permits and wait for them at the same time. No release is missed, and no
/// permit is held twice.
#[test]
fn concurrent_waiters_receive_every_release() {
    let two = limit("2 concurrent lease 1h");
    let limiter = Limiter::builder().max_keys(1_000).build().expect("memory");
    let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let checks = [Check::new("a", &two, 1)];
                    // The lease is an hour, so only a release lets a waiter pass in time.
                    let taken = block_on(limiter.acquire_wait(&checks, Duration::from_secs(60)));
                    let permit = taken.expect("a verdict").or_deny().expect("a permit in time");
                    most.fetch_max(held.fetch_add(1, SeqCst) + 1, SeqCst);
                    std::thread::yield_now();
                    held.fetch_sub(1, SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(most.into_inner() <= 2);
}

#[test]
fn empty_and_zero_cost_requests_are_decided() {
    let (store, clock) = fixture();
    let builder = Limiter::builder().clock(clock.clock()).max_waiters(0);
    let limiter = builder.build_with_store(Arc::clone(&store)).expect("memory");
    let one = limit("1 per 10s sliding-log");
    assert!(at_once(&limiter, &[], Duration::ZERO).allowed, "no limit denies");
    let checks = [Check::new("a", &one, 1)];
    assert!(at_once(&limiter, &checks, LONG).allowed, "a request that passes does not wait");
    assert!(at_once(&limiter, &checks, LONG).queue_full, "no waiters are allowed");
    let never = [Check::new("a", &one, 2)];
    assert_eq!(at_once(&limiter, &never, LONG).retry_after(), RetryAfter::Never);
    let held = limit("1 concurrent");
    let refused = block_on(limiter.wait(&[Check::new("a", &held, 1)], LONG));
    assert_eq!(refused, Err(CheckError::NeedsPermit.into()));
    let many = vec![Check::new("a", &one, 1); 257];
    assert_eq!(
        block_on(limiter.acquire_wait(&many, LONG)).map(|_| ()),
        Err(CheckError::TooManyChecks(257).into())
    );
    let other = limit("2 per 10s sliding-log");
    let conflict = [Check::new("a", &one, 1), Check::new("a", &other, 1)];
    let refused = block_on(limiter.reserve_all_async(&conflict)).map(|_| ());
    assert_eq!(refused, Err(CheckError::Conflict.into()));
}

/// Checks of every kind, on a few keys.
fn any_checks() -> impl Strategy<Value = Vec<(u8, Cost, u64)>> {
    let cost = prop_oneof![
        4 => (0_u64..4).prop_map(Cost::Ask),
        1 => (0_u64..4).prop_map(Cost::Force),
        1 => (0_u64..4).prop_map(Cost::Refund),
    ];
    prop::collection::vec((0_u8..3, cost, 0..2 * S), 1..60)
}

proptest! {
    #![proptest_config(cases(100))]

    /// Async calls decide as sync calls do, with and without `on_store_failure`.
    #[test]
    fn async_and_sync_calls_decide_alike(steps in any_checks(), count in 1_u64..9) {
        let (store, clock) = fixture();
        let builder = Limiter::builder().max_keys(1_000).clock(clock.clock());
        let memory = builder.build().expect("memory");
        let limiters = [
            limiter_over(&store, &clock, None),
            limiter_over(&store, &clock, Some(OnStoreFailure::Deny)),
            limiter_over(&store, &clock, Some(OnStoreFailure::Local)),
        ];
        let limit = limit(&format!("{count} per 3s sliding-log"));
        for (index, (key, cost, gap)) in steps.into_iter().enumerate() {
            clock.advance(Duration::from_micros(gap));
            let expected = memory.check([key], &limit, cost).expect("valid");
            let limiter = &limiters[index % limiters.len()];
            let decision = block_on(limiter.check_async([key], &limit, cost)).expect("a verdict");
            prop_assert_eq!(decision, expected);
        }
    }
}
