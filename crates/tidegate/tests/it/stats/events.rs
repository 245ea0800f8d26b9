//! The stream of denials: complete if it is read in time, and with a count of missed events
//! otherwise.

use std::sync::Arc;
use std::time::Duration;

use tidegate::RetryAfter;
use tidegate::unstable::policy::Mode;
use tidegate::unstable::stats::{
    Denial, EVENTS_HELD, EVENTS_PER_POLICY_PER_SECOND, LimitRecord, MAX_SUBSCRIBERS, Outcome,
    RequestRecord, Stats, StreamItem, Subscription, TooManySubscribers,
};

use super::{allowing, denying, record, start, stats};
use crate::common::limit;
use crate::futures::{Polled, Started};

fn subscribe(stats: &Stats) -> Subscription {
    stats.events().subscribe(None).expect("free capacity")
}

fn denial(reader: &mut Subscription) -> Denial {
    match reader.try_next() {
        Some(StreamItem::Denial(denial)) => denial,
        other => panic!("expected a denial, got {other:?}"),
    }
}

#[test]
fn denial_has_key_policy_and_time() {
    let (stats, _) = stats();
    let [second, minute] =
        ["10 per 1s", "100 per 1m"].map(|text| stats.limit("p", &limit(text), Mode::Enforce));
    let mut reader = subscribe(&stats);
    record(&stats, &[allowing(&second, b"fine")]);
    assert_eq!(reader.try_next(), None);

    // Two limits deny: the longer wait is reported.
    let longer = LimitRecord { retry_after: RetryAfter::Never, ..denying(&minute, b"a\nb") };
    let limit_records = [denying(&second, b"a\nb"), longer];
    let request_record = RequestRecord {
        limits: &limit_records,
        route: Some("/login"),
        request_id: Some("r-1"),
        ..RequestRecord::default()
    };
    stats.record(&request_record);
    let event = denial(&mut reader);
    assert_eq!((event.number, event.at, event.outcome), (1, start(), Outcome::Denied));
    assert_eq!((&*event.policy, &*event.limit), ("p", "100 per 1m sliding-window"));
    assert_eq!(event.key.to_string(), "a\\x0ab");
    assert_eq!(
        (event.route.to_string(), event.request_id.to_string()),
        ("/login".into(), "r-1".into())
    );
    assert_eq!((event.retry_after, event.suppressed), (RetryAfter::Never, 0));
    assert_eq!(reader.try_next(), None);

    // The next event in the reused slot contains nothing of the previous one.
    let observed = stats.limit("w", &limit("1 per 1s"), Mode::Observe);
    stats.record(&RequestRecord {
        limits: &[denying(&observed, b"c")],
        allowed: true,
        ..RequestRecord::default()
    });
    let event = denial(&mut reader);
    assert_eq!((event.outcome, event.key.to_string()), (Outcome::WouldDeny, "c".into()));
    assert_eq!(
        (event.route.to_string(), event.request_id.to_string()),
        (String::new(), String::new())
    );
}

#[test]
fn denial_events_are_rate_limited_and_count_suppressed_ones() {
    let (stats, clock) = stats();
    let [loud, quiet] =
        ["loud", "quiet"].map(|name| stats.limit(name, &limit("1 per 1s"), Mode::Enforce));
    let mut reader = subscribe(&stats);
    (0..1_000).for_each(|_| record(&stats, &[denying(&loud, b"a")]));
    record(&stats, &[denying(&quiet, b"b")]);
    clock.advance(Duration::from_secs(1));
    record(&stats, &[denying(&loud, b"a")]);

    for _ in 0..EVENTS_PER_POLICY_PER_SECOND {
        assert_eq!((&*denial(&mut reader).policy, 0), ("loud", 0));
    }
    // Events of another policy are still sent.
    assert_eq!(&*denial(&mut reader).policy, "quiet");
    let event = denial(&mut reader);
    let left_out = 1_000 - EVENTS_PER_POLICY_PER_SECOND;
    assert_eq!((&*event.policy, event.suppressed), ("loud", left_out));
    assert_eq!(reader.try_next(), None);
}

/// Records denials in different seconds, so that none is suppressed.
fn record_denials(stats: &Stats, clock: &tidegate::ManualClock, times: usize) {
    let one = stats.limit("p", &limit("1 per 1s"), Mode::Enforce);
    for _ in 0..times {
        clock.advance(Duration::from_secs(1));
        record(stats, &[denying(&one, b"a")]);
    }
}

#[test]
fn slow_reader_gets_the_number_of_missed_events() {
    let (stats, clock) = stats();
    let mut reader = subscribe(&stats);
    record_denials(&stats, &clock, 2);
    assert_eq!(denial(&mut reader).number, 1);
    record_denials(&stats, &clock, EVENTS_HELD + 3);
    assert_eq!(reader.try_next(), Some(StreamItem::Missed(4)));
    let last = EVENTS_HELD as u64 + 5;
    for number in 6..=last {
        assert_eq!(denial(&mut reader).number, number);
    }
    assert_eq!(reader.try_next(), None);
    // Where reading starts: at the oldest event, after a number, or at the oldest for an unknown
    // number.
    for (after, first) in [(None, 6), (Some(100), 101), (Some(0), 6), (Some(9_999), 6)] {
        let mut reader = stats.events().subscribe(after).expect("a free subscription");
        let mut next = reader.try_next();
        if let Some(StreamItem::Missed(missed)) = next {
            assert_eq!((after, missed), (Some(0), 5));
            next = reader.try_next();
        }
        assert!(
            matches!(next, Some(StreamItem::Denial(denial)) if denial.number == first),
            "{after:?}"
        );
    }
}

#[test]
fn subscribers_are_bounded_and_freed_on_drop() {
    let (stats, _) = stats();
    let mut readers: Vec<_> = (0..MAX_SUBSCRIBERS).map(|_| subscribe(&stats)).collect();
    assert_eq!(stats.events().subscribe(None).map(drop), Err(TooManySubscribers));
    assert_eq!(stats.events().subscribers(), MAX_SUBSCRIBERS);
    readers.pop();
    subscribe(&stats);
    assert_eq!(stats.events().subscribers(), MAX_SUBSCRIBERS - 1);
}

#[test]
fn a_waiting_reader_is_woken() {
    let (stats, clock) = stats();
    let mut reader = subscribe(&stats);
    {
        let Started::Pending(mut next) = Polled::start(reader.next()) else {
            panic!("no event yet")
        };
        record_denials(&stats, &clock, 1);
        assert_eq!(next.wakes(), 1);
        assert!(matches!(next.poll(), Some(StreamItem::Denial(denial)) if denial.number == 1));
    }
    // A dropped waiter does not block others.
    let Started::Pending(waiting) = Polled::start(reader.next()) else { panic!("no new event") };
    drop(waiting);
    record_denials(&stats, &clock, 1);
    assert_eq!(denial(&mut reader).number, 2);
}

#[test]
fn many_writers_and_readers_lose_nothing_silently() {
    const WRITERS: usize = 4;
    let stats = Arc::new(Stats::default());
    let mut readers: Vec<_> = (0..4).map(|_| subscribe(&stats)).collect();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let stats = Arc::clone(&stats);
            scope.spawn(move || {
                for number in 0..200 {
                    let name = format!("{writer}-{number}");
                    let one = stats.limit(&name, &limit("1 per 1s"), Mode::Enforce);
                    record(&stats, &[denying(&one, b"a")]);
                }
            });
        }
    });
    for reader in &mut readers {
        let mut received = 0;
        while let Some(event) = reader.try_next() {
            received += match event {
                StreamItem::Denial(denial) => {
                    assert_eq!(denial.number, received + 1);
                    1
                }
                StreamItem::Missed(missed) => missed,
            };
        }
        assert!(received >= EVENTS_HELD as u64, "{received}");
    }
}
