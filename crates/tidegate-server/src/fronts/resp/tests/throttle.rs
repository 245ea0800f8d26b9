//! `CL.THROTTLE` and `THROTTLE` against published vectors and a naive limiter.

use tidegate_testkit::Random;

use super::{TestFront, command};

/// Parses the reply to `CL.THROTTLE` or `THROTTLE`.
fn numbers(reply: &str) -> Vec<i64> {
    let mut lines = reply.lines();
    assert_eq!(lines.next(), Some("*5"), "{reply}");
    lines.map(|line| line.strip_prefix(':').expect(reply).parse().expect(reply)).collect()
}

#[test]
fn matches_redis_cell_examples() {
    let front = TestFront::without_secrets();
    let mut client = front.connect();
    let mut ask = |words: &[&str]| numbers(&client.exchange(&command(words)));
    // The README of redis-cell.
    assert_eq!(ask(&["CL.THROTTLE", "user123", "15", "30", "60"]), [0, 16, 15, -1, 2]);
    assert_eq!(ask(&["cl.throttle", "user123", "15", "30", "60", "1"]), [0, 16, 14, -1, 4]);
    // The end-to-end test of redis-cell.
    assert_eq!(ask(&["CL.THROTTLE", "e2e", "0", "1", "2", "1"]), [0, 1, 0, -1, 2]);
    assert_eq!(ask(&["CL.THROTTLE", "e2e", "0", "1", "2", "1"]), [1, 1, 0, 2, 2]);
    front.advance(2_000_000);
    assert_eq!(ask(&["CL.THROTTLE", "e2e", "0", "1", "2", "1"]), [0, 1, 0, -1, 2]);
}

/// The test table of redis-cell: a burst of five, one per second. Time in milliseconds, quantity,
/// and then remaining, reset, retry and whether it was limited.
#[rustfmt::skip]
const TABLE: [(u64, i64, i64, i64, i64, i64); 15] = [
    (0, 6, 5, 0, -1, 1),
    (0, 1, 4, 1, -1, 0), (0, 1, 3, 2, -1, 0), (0, 1, 2, 3, -1, 0), (0, 1, 1, 4, -1, 0),
    (0, 1, 0, 5, -1, 0), (0, 1, 0, 5, 1, 1),
    (3000, 1, 2, 3, -1, 0), (3100, 1, 1, 4, -1, 0), (4000, 1, 1, 4, -1, 0),
    (8000, 1, 4, 1, -1, 0), (9500, 1, 4, 1, -1, 0),
    (9500, 0, 4, 1, -1, 0), (9500, 2, 2, 3, -1, 0), (9500, 5, 2, 3, 3, 1),
];

#[test]
fn matches_redis_cell_table() {
    let front = TestFront::without_secrets();
    let mut client = front.connect();
    let mut now_ms = 0;
    for (at_ms, quantity, remaining, reset, retry, limited) in TABLE {
        front.advance((at_ms - now_ms) * 1_000);
        now_ms = at_ms;
        let words = ["CL.THROTTLE", "foo", "4", "1", "1", &quantity.to_string()];
        let got = numbers(&client.exchange(&command(&words)));
        assert_eq!(got, [limited, 5, remaining, retry, reset], "{quantity} at {at_ms} ms");
    }
}

#[test]
fn rejects_what_redis_cell_rejects() {
    const USAGE: &str = "-Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]\r\n";
    #[rustfmt::skip]
    let rows = [
        ("CL.THROTTLE\r\n", USAGE), ("CL.THROTTLE a 1 1\r\n", USAGE), ("CL.THROTTLE a 1 1 1 1 1\r\n", USAGE),
        ("CL.THROTTLE a x 1 1\r\n", "-Cell error: Couldn't parse as integer: x\r\n"),
        ("CL.THROTTLE a 1 1.5 1\r\n", "-Cell error: Couldn't parse as integer: 1.5\r\n"),
        ("CL.THROTTLE a 1 1 99999999999999999999\r\n", "-Cell error: Couldn't parse as integer: 99999999999999999999\r\n"),
        ("CL.THROTTLE a 1 1 1 \"\"\r\n", "-Cell error: Couldn't parse as integer: \r\n"),
        ("CL.THROTTLE a 1 1 1 \"a\\r\\nb\"\r\n", "-Cell error: Couldn't parse as integer: a  b\r\n"),
        ("CL.THROTTLE a 1 0 1\r\n", "-Cell error: Zero rates are not supported\r\n"),
        ("CL.THROTTLE a 1 1 0\r\n", "-Cell error: Zero rates are not supported\r\n"),
        // Parameters that redis-cell does not reject, and parameters that are not a valid limit
        // here.
        ("CL.THROTTLE a 1 -1 1\r\n", "-ERR count: it is negative: use a whole number from 1\r\n"),
        ("CL.THROTTLE a 1 1 -1\r\n", "-ERR period: it is negative: use a whole number from 1\r\n"),
        ("CL.THROTTLE a 1 1 31622401\r\n", "-ERR period: it is out of range: use a whole number up to 31622400\r\n"),
        ("CL.THROTTLE a 1 1000000000001 1\r\n", "-ERR count: it is out of range: use a whole number up to 1000000000000\r\n"),
        ("CL.THROTTLE a 1000000000000 1 1\r\n", "-ERR max_burst: it is out of range: use a whole number up to 999999999999\r\n"),
        ("CL.THROTTLE a 9223372036854775807 1 1\r\n", "-ERR max_burst: it is out of range: use a whole number up to 999999999999\r\n"),
        // As in redis-cell: an empty key is a key, `+` is a sign, and no capacity admits nothing.
        ("CL.THROTTLE '' +1 +1 +1\r\n", "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n"),
        ("CL.THROTTLE a -1 1 1\r\n", "*5\r\n:1\r\n:0\r\n:0\r\n:-1\r\n:0\r\n"),
        ("CL.THROTTLE k -9223372036854775808 30 60\r\n", "*5\r\n:1\r\n:-9223372036854775807\r\n:0\r\n:-1\r\n:0\r\n"),
        ("CL.THROTTLE a -5 1 1\r\n", "*5\r\n:1\r\n:-4\r\n:0\r\n:-1\r\n:0\r\n"),
        // A refund.
        ("CL.THROTTLE a 1 1 1\r\nCL.THROTTLE a 1 1 1 -1\r\n", "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n*5\r\n:0\r\n:2\r\n:2\r\n:-1\r\n:0\r\n"),
    ];
    for (sent, expected) in rows {
        assert_eq!(TestFront::without_secrets().connect().exchange(sent), expected, "{sent:?}");
    }
}

#[test]
fn throttlecrab_replies_have_their_own_order() {
    const INVALID: &str = "-ERR invalid rate limit parameters\r\n";
    const ARITY: &str = "-ERR wrong number of arguments for 'throttle' command\r\n";
    #[rustfmt::skip]
    let rows = [
        ("THROTTLE a 2 60 60\r\n", "*5\r\n:1\r\n:2\r\n:1\r\n:1\r\n:0\r\n"),
        ("throttle a 2 60 60 2\r\nTHROTTLE a 2 60 60\r\n", "*5\r\n:1\r\n:2\r\n:0\r\n:2\r\n:0\r\n*5\r\n:0\r\n:2\r\n:0\r\n:2\r\n:1\r\n"),
        ("THROTTLE a 2 60 60 3\r\n", "*5\r\n:0\r\n:2\r\n:2\r\n:0\r\n:-1\r\n"),
        ("THROTTLE a 1 60 60\r\nTHROTTLE a 1 60 60 0\r\n", "*5\r\n:1\r\n:1\r\n:0\r\n:1\r\n:0\r\n*5\r\n:1\r\n:1\r\n:0\r\n:1\r\n:0\r\n"),
        ("THROTTLE\r\n", ARITY), ("THROTTLE a 1 1\r\n", ARITY), ("THROTTLE a 1 1 1 1 1\r\n", ARITY),
        ("THROTTLE a x 1 1\r\n", "-ERR invalid max_burst\r\n"),
        ("THROTTLE a 1 x 1\r\n", "-ERR invalid count_per_period\r\n"),
        ("THROTTLE a 1 1 x\r\n", "-ERR invalid period\r\n"),
        ("THROTTLE a 1 1 1 x\r\n", "-ERR invalid quantity\r\n"),
        ("THROTTLE a 1 1 1 -1\r\n", "-ERR negative quantity: -1\r\n"),
        ("THROTTLE a 0 1 1\r\n", INVALID), ("THROTTLE a 1 0 1\r\n", INVALID), ("THROTTLE a 1 1 -1\r\n", INVALID),
    ];
    for (sent, expected) in rows {
        assert_eq!(TestFront::without_secrets().connect().exchange(sent), expected, "{sent:?}");
    }
}

/// The generic cell rate algorithm by its definition: a theoretical arrival time per key, in
/// nanoseconds. Intervals are whole microseconds, so that the rounding of redis-cell's interval has
/// no effect.
struct Naive {
    interval_ns: i128,
    limit: i128,
    arrival_ns: i128,
}

impl Naive {
    fn ask(&mut self, now_ns: i128, quantity: i128) -> [i128; 5] {
        let tolerance = self.interval_ns * self.limit;
        let arrival = self.arrival_ns.max(now_ns);
        let next = arrival + self.interval_ns * quantity;
        let early = next - tolerance - now_ns;
        let limited = early > 0;
        let after = if limited { arrival } else { next };
        if !limited {
            self.arrival_ns = next;
        }
        let seconds = |ns: i128| ns / 1_000_000_000 + i128::from(ns % 1_000_000_000 >= 1_000_000);
        let possible = self.interval_ns * quantity <= tolerance;
        let retry = if limited && possible { seconds(early) } else { -1 };
        let remaining = (tolerance - (after - now_ns)) / self.interval_ns;
        [i128::from(limited), self.limit, remaining, retry, seconds(after - now_ns)]
    }
}

#[test]
fn token_bucket_matches_gcra() {
    let mut random = Random(1);
    let mut denied = 0;
    for key in 0..400 {
        let front = TestFront::without_secrets();
        let mut client = front.connect();
        let period_s = 1 + random.below(120);
        let divisors: Vec<u64> =
            (1..=10_000).filter(|count| (period_s * 1_000_000).is_multiple_of(*count)).collect();
        let count =
            divisors[usize::try_from(random.below(divisors.len() as u64)).expect("an index")];
        let burst = random.below(20);
        let interval_us = period_s * 1_000_000 / count;
        let mut naive = Naive {
            interval_ns: i128::from(interval_us) * 1_000,
            limit: i128::from(burst) + 1,
            arrival_ns: 0,
        };
        let mut now_us = 0;
        for _ in 0..60 {
            let pause_us = match random.below(4) {
                0 => 0,
                1 => random.below(interval_us) + 1,
                2 => random.below(interval_us * (burst + 2)) + 1,
                _ => interval_us * random.below(3),
            };
            now_us += pause_us;
            front.advance(pause_us);
            let quantity = random.below(burst + 3);
            let words = [burst, count, period_s, quantity].map(|number| number.to_string());
            let [burst, count, period, amount] = words.each_ref().map(|word| &**word);
            let sent = command(&["CL.THROTTLE", &format!("k{key}"), burst, count, period, amount]);
            let got: Vec<i128> =
                numbers(&client.exchange(&sent)).into_iter().map(i128::from).collect();
            let expected = naive.ask(i128::from(now_us) * 1_000, i128::from(quantity));
            assert_eq!(got, expected, "{words:?} after {now_us} us");
            denied += expected[0];
        }
    }
    assert!((4_000..20_000).contains(&denied), "{denied} were denied: too few or too many to tell");
}
