//! Delays before retries.

use std::time::Duration;

use tidegate_client::Backoff;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn adds_jitter_to_the_requested_wait() {
    let backoff = Backoff::default().base(ms(100)).cap(ms(1000)).longest_wait(ms(5000));
    // (retry, requested wait, chance, delay)
    let rows = [
        (0, None, 0.0, Some(0)),
        (0, None, 0.5, Some(50)),
        (0, None, 1.0, Some(100)),
        (1, None, 1.0, Some(200)),
        (3, None, 1.0, Some(800)),
        (4, None, 1.0, Some(1000)),
        (400, None, 0.25, Some(250)),
        (u32::MAX, None, 1.0, Some(1000)),
        (0, Some(2000), 0.0, Some(2000)),
        (2, Some(2000), 0.5, Some(2200)),
        (0, Some(5000), 1.0, Some(5100)),
        (0, Some(5001), 0.0, None),
        (0, Some(u64::MAX), 0.0, None),
        (0, None, f64::NAN, Some(0)),
        (0, None, -1.0, Some(0)),
        (0, None, f64::INFINITY, Some(100)),
    ];
    for (retry, requested, chance, delay) in rows {
        let actual = backoff.delay(retry, requested.map(ms), chance);
        assert_eq!(
            actual,
            delay.map(ms),
            "retry {retry}, requested {requested:?}, chance {chance}"
        );
    }
}

#[test]
fn saturates_with_an_absurd_base() {
    let backoff = Backoff::default().base(Duration::MAX).cap(ms(1000));
    assert_eq!(backoff.delay(7, None, 1.0), Some(ms(1000)));
}
