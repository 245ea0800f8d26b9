//! Denials as errors, and conversions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::{
    Check, Cost, DenialReason, Denied, Limit, Limiter, RetryAfter, Timestamp, WhenFull, jitter,
};

use crate::common::{limit, limiter};

type Failed = Box<dyn std::error::Error>;

static PER_SECOND: Limit = Limit::per_second(2);

/// The usual form in programs: one `?` for an invalid check, one for a denial.
fn send(limiter: &Limiter, key: &str) -> Result<u64, Failed> {
    let decision = limiter.check(key, &PER_SECOND, 1)?;
    decision.or_deny()?;
    Ok(decision.remaining)
}

#[test]
fn or_deny_returns_a_denial_as_an_error() {
    let (limiter, _) = limiter();
    assert_eq!(send(&limiter, "a").expect("the first"), 1);
    assert_eq!(send(&limiter, "a").expect("the second"), 0);
    let error = send(&limiter, "a").expect_err("the third");
    let denied: &Denied = error.downcast_ref().expect("a denial");
    assert_eq!(denied.reason(), DenialReason::LimitReached);
    assert_eq!(denied.decision().limit, 2);
    let wait = denied.retry_after().as_duration().expect("a finite wait");
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(2), "{wait:?}");
    assert!(error.to_string().starts_with("the limit of 2 is reached: retry in "), "{error}");
    send(&limiter, "b").expect("another key");
}

#[test]
fn or_deny_covers_several_limits() {
    let (limiter, _) = limiter();
    let (short, long) = (limit("5 per 1s sliding-log"), limit("1 per 1h sliding-log"));
    let checks = [Check::new("a", &short, 1), Check::new("a", &long, 1)];
    let check = || limiter.check_all(&checks).expect("valid").or_deny();
    check().expect("the first");
    let denied = check().expect_err("the second");
    assert_eq!(denied.decision().limit, 1, "the denying limit is reported");
    assert_eq!(denied.to_string(), "the limit of 1 is reached: retry in 3600s");
}

#[test]
fn denied_error_names_the_reason() {
    let (limiter, _) = limiter();
    let denied =
        limiter.check("a", &PER_SECOND, 3).expect("valid").or_deny().expect_err("a cost of three");
    assert_eq!(denied.retry_after(), RetryAfter::Never);
    assert_eq!(denied.to_string(), "the cost is more than the limit of 2 can ever admit");

    let full = Limiter::builder().max_keys(0).when_full(WhenFull::Deny).build().expect("memory");
    let decision = full.check("a", &PER_SECOND, 1).expect("valid");
    assert!(decision.no_room, "also reported without a verdict");
    let denied = decision.or_deny().expect_err("no capacity");
    assert_eq!(denied.reason(), DenialReason::StoreFull);
    assert!(denied.to_string().starts_with("the store has no room for a new key: retry in "));
    let verdict = full.check_all(&[Check::new("a", &PER_SECOND, 1)]).expect("valid");
    assert_eq!(verdict.or_deny().expect_err("no capacity").reason(), DenialReason::StoreFull);
}

#[test]
fn a_permit_is_taken_or_denied() {
    let (limiter, _) = limiter();
    let one = limit("1 concurrent lease 30s");
    let take = || limiter.acquire(&[Check::new("a", &one, 1)]).expect("valid").or_deny();
    let permit = take().expect("the first");
    assert_eq!(
        take().expect_err("the second").to_string(),
        "the limit of 1 is reached: retry in 30s"
    );
    assert!(permit.release());
    assert!(take().is_ok());
}

#[test]
fn cost_converts_from_integers() {
    let (limiter, _) = limiter();
    let limit = limit("10 per 1m sliding-log");
    let left = |cost: Cost| limiter.check("a", &limit, cost).expect("valid").remaining;
    assert_eq!(left(1_u32.into()), 9);
    assert_eq!(left(2_usize.into()), 7);
    assert_eq!(left(3_u64.into()), 4);
    assert_eq!(left(Cost::from(-2)), 6, "a negative number refunds");
    assert_eq!(Cost::from(i32::MIN), Cost::Refund(1 << 31));
    assert_eq!(Cost::from(usize::MAX), Cost::Ask(u64::MAX));
}

#[test]
fn timestamp_converts_from_system_time() {
    let at = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001);
    assert_eq!(Timestamp::from(at), Timestamp::from_micros(1_700_000_000_000_001));
    assert_eq!(Timestamp::from(UNIX_EPOCH - Duration::from_secs(1)), Timestamp::EPOCH);
    if let Some(late) = UNIX_EPOCH.checked_add(Duration::from_secs(u64::MAX / 4)) {
        assert_eq!(Timestamp::from(late), Timestamp::LAST);
    }
    let limiter = Limiter::default();
    let decision = limiter.check_at(SystemTime::now(), "a", &PER_SECOND, 1).expect("valid");
    assert!(decision.allowed);
}

#[test]
fn limit_displays_as_its_text() {
    assert_eq!(format!("{PER_SECOND:?}"), "Limit(2 per 1s sliding-window)");
    for (text, form) in [
        ("10/s", "10 per 1s sliding-window"),
        ("10 per second", "10 per 1s sliding-window"),
        ("10 per 1 s", "10 per 1s sliding-window"),
        ("5/m", "5 per 1m sliding-window"),
        ("1k per 1s", "1000 per 1s sliding-window"),
    ] {
        assert_eq!(limit(text).to_string(), form, "{text}");
    }
    let error = "10 per 1.5s".parse::<Limit>().expect_err("a fractional number").to_string();
    assert!(error.contains("`1500ms` in place of `1.5s`"), "{error}");
}

#[cfg(feature = "serde")]
#[test]
fn limit_serializes_as_its_text() {
    let limits: Vec<Limit> = serde_json::from_str(r#"["5/m", "2 concurrent"]"#).expect("limits");
    assert_eq!(limits, [limit("5 per 1m"), limit("2 concurrent lease 1m")]);
    let text = serde_json::to_string(&limits).expect("JSON");
    assert_eq!(text, r#"["5 per 1m sliding-window","2 concurrent lease 1m"]"#);
    // A string with escapes cannot be borrowed.
    let escaped: Limit = serde_json::from_str(r#""5\u0020per 1m""#).expect("a limit");
    assert_eq!(escaped, limit("5 per 1m"));
    let error = serde_json::from_str::<Limit>(r#""5 per 1y""#).expect_err("a unit").to_string();
    assert!(error.contains("unknown unit of time: use ms, s, m, h, d or w"), "{error}");
    assert!(serde_json::from_str::<Limit>("5").is_err());
}

#[test]
fn jitter_is_bounded_and_differs() {
    assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    let second = Duration::from_secs(1);
    let drawn: std::collections::HashSet<Duration> = (0..100).map(|_| jitter(second)).collect();
    assert!(drawn.iter().all(|wait| *wait <= second));
    assert!(drawn.len() > 50, "{} of 100 differ", drawn.len());
    assert!(jitter(Duration::MAX) <= Duration::MAX);
}
