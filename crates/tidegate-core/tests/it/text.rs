//! Limits as text: parsing, printing, and the error of each mistake.

use std::time::Duration;

use tidegate_core::{Algorithm, Limit, LimitError, LimitErrorKind as Kind, ParsedLimit};

/// Texts, and the texts that the parsed limits print.
const VALID: &[(&str, &str)] = &[
    ("10 per 1s", "10 per 1s sliding-window"),
    ("0 per 1s", "0 per 1s sliding-window"),
    ("007 per 01s", "7 per 1s sliding-window"),
    ("10 per 1s sliding-counter", "10 per 1s sliding-counter"),
    ("10 per 1s sliding-log", "10 per 1s sliding-log"),
    ("10 per 1s fixed-window", "10 per 1s fixed-window"),
    ("10 per 1s sliding-window", "10 per 1s sliding-window"),
    ("10 per 1s token-bucket", "10 per 1s token-bucket"),
    ("10 per 1s token-bucket burst 10", "10 per 1s token-bucket"),
    ("10 per 1s burst 3 token-bucket", "10 per 1s token-bucket burst 3"),
    ("1 per 1ms token-bucket burst 1000000000000", "1 per 1ms token-bucket burst 1000000000000"),
    ("0 per 1s token-bucket burst 5", "0 per 1s token-bucket burst 5"),
    ("5 concurrent", "5 concurrent lease 1m"),
    ("5 concurrent lease 30s", "5 concurrent lease 30s"),
    ("0 concurrent lease 366d", "0 concurrent lease 366d"),
    ("1000000000000 per 366d", "1000000000000 per 366d sliding-window"),
    ("1 per 1ms", "1 per 1ms sliding-window"),
    ("1 per 1500ms", "1 per 1500ms sliding-window"),
    ("1 per 60s", "1 per 1m sliding-window"),
    ("1 per 90m", "1 per 90m sliding-window"),
    ("1 per 24h", "1 per 1d sliding-window"),
    ("1 per 14d", "1 per 2w sliding-window"),
    ("1 per 52w", "1 per 52w sliding-window"),
    (" \t 10   per\n1s\r", "10 per 1s sliding-window"),
    ("10/s", "10 per 1s sliding-window"),
    ("5/m", "5 per 1m sliding-window"),
    ("5/1s", "5 per 1s sliding-window"),
    ("5 / 30s sliding-log", "5 per 30s sliding-log"),
    ("10 per second", "10 per 1s sliding-window"),
    ("100 requests per hour", "100 per 1h sliding-window"),
    ("1 request/m sliding-log", "1 per 1m sliding-log"),
    ("5 requests concurrent", "5 concurrent lease 1m"),
    ("10 per 1 s", "10 per 1s sliding-window"),
    ("10 per 90 minutes fixed-window", "10 per 90m fixed-window"),
    ("1 per min", "1 per 1m sliding-window"),
    ("1 per 2 mins", "1 per 2m sliding-window"),
    ("1 per hr", "1 per 1h sliding-window"),
    ("1 per 2hrs", "1 per 2h sliding-window"),
    ("1 per 1wk", "1 per 1w sliding-window"),
    ("1 per 2 wks", "1 per 2w sliding-window"),
    ("1 per 250 milliseconds", "1 per 250ms sliding-window"),
    ("1/hour", "1 per 1h sliding-window"),
    ("1 per 2 days", "1 per 2d sliding-window"),
    ("1 per week", "1 per 1w sliding-window"),
    ("1k per 1s", "1000 per 1s sliding-window"),
    ("1K per 1s", "1000 per 1s sliding-window"),
    ("2M/d token-bucket burst 10k", "2000000 per 1d token-bucket burst 10000"),
    ("5 concurrent lease 30 sec", "5 concurrent lease 30s"),
    ("5 concurrent lease minute", "5 concurrent lease 1m"),
];

#[test]
fn valid_texts_round_trip() {
    for (text, written) in VALID {
        let limit: Limit = text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(limit.to_string(), *written, "{text:?}");
        assert_eq!(written.parse::<Limit>(), Ok(limit), "{text:?}");
    }
}

/// A limit alone does not tell a burst that equals the count from the default.
#[test]
fn parsed_limit_has_the_burst_of_its_text() {
    for (text, burst) in [
        ("5 per 1s", None),
        ("5 per 1s token-bucket", None),
        ("5 per 1s token-bucket burst 5", Some(5)),
        ("1k/s burst 2k token-bucket", Some(2_000)),
        ("5 concurrent", None),
    ] {
        let parsed: ParsedLimit = text.parse().expect(text);
        assert_eq!((Ok(parsed.limit), parsed.burst), (text.parse(), burst), "{text}");
    }
    assert_eq!(
        "5 per 1s burst 5".parse::<ParsedLimit>().err(),
        "5 per 1s burst 5".parse::<Limit>().err()
    );
}

#[test]
fn every_algorithm_round_trips() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
        for millis in [1, 7, 1_000, 60_000, 3_600_000, 86_400_000, 604_800_000, 31_622_400_000] {
            for count in [0, 1, 999, 1_000_000_000_000] {
                let window = Duration::from_millis(millis);
                let limit = Limit::new(count, window, algorithm).expect("within bounds");
                assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit));
            }
        }
    }
}

#[test]
fn constants_equal_their_parsed_texts() {
    const LIMITS: [(Limit, &str); 6] = [
        (Limit::per_second(0), "0 per 1s"),
        (Limit::per_second(u32::MAX), "4294967295 per 1s"),
        (Limit::per_minute(5), "5 per 1m"),
        (Limit::per_hour(3_000), "3000 per 1h"),
        (Limit::per_day(7), "7 per 1d"),
        (Limit::per_day(7).with_algorithm(Algorithm::TokenBucket), "7 per 1d token-bucket"),
    ];
    for (limit, text) in LIMITS {
        assert_eq!(text.parse(), Ok(limit));
    }
    assert_eq!(Limit::per_minute(5).window(), Duration::from_secs(60));
}

/// The message of each kind of error.
const MESSAGES: &[(Kind, &str)] = &[
    (Kind::NotALimit, "this is not a limit: write for example `10 per 1s`"),
    (Kind::ExpectedNumber, "expected a whole number: write digits only, for example `10`"),
    (Kind::CountOutOfRange, "the count is too large: use at most 1000000000000"),
    (
        Kind::ExpectedPer,
        "`per` or `concurrent` must follow the count: write for example `10 per 1s` or `10 concurrent`",
    ),
    (
        Kind::ExpectedWindow,
        "expected a length of time: write a number and ms, s, m, h, d or w, for example `10s`",
    ),
    (Kind::UnknownUnit, "unknown unit of time: use ms, s, m, h, d or w"),
    (
        Kind::MissingUnit,
        "a length of time needs a unit: write ms, s, m, h, d or w after the number, for example `60s`",
    ),
    (
        Kind::MonthOrYear,
        "months and years differ in length: write days, for example `30d` or `365d`",
    ),
    (
        Kind::FractionOfTime,
        "a length of time is a whole number of its unit: use a smaller unit, for example `1500ms` in place of `1.5s`",
    ),
    (Kind::WindowOutOfRange, "the window is out of range: use 1ms to 366d"),
    (
        Kind::UnknownWord,
        "unknown word: use sliding-log, sliding-window, sliding-counter, fixed-window or token-bucket, then `burst N`",
    ),
    (
        Kind::BucketsReplaced,
        "`sliding-buckets` was replaced by `sliding-window`: write `sliding-window`, which has no number of buckets",
    ),
    (
        Kind::TokenBucketName,
        "this algorithm is called `token-bucket` here: write `token-bucket`, then `burst N` for what it holds",
    ),
    (
        Kind::BurstOutOfRange,
        "the burst is missing or out of range: write `burst N`, with N from 1 to 1000000000000",
    ),
    (
        Kind::BurstWithoutTokens,
        "this algorithm has no burst: write `token-bucket burst N`, or leave `burst` out",
    ),
    (Kind::LeaseOutOfRange, "the lease is out of range: use 1ms to 366d"),
    (Kind::Duplicate, "this is given twice: write it once"),
    (
        Kind::ConcurrencyIsNotARate,
        "concurrency has no window: write `10 concurrent` or `10 concurrent lease 60s`",
    ),
];

/// Invalid texts, the kind of their error, and the line of carets under the text.
const MISTAKES: &[(&str, Kind, &str)] = &[
    ("", Kind::NotALimit, "^"),
    ("  \t ", Kind::NotALimit, "    ^"),
    ("ten per 1s", Kind::ExpectedNumber, "^^^"),
    ("-5 per 1s", Kind::ExpectedNumber, "^^"),
    ("+5 per 1s", Kind::ExpectedNumber, "^^"),
    ("1e3 per 1s", Kind::ExpectedNumber, "^^^"),
    ("1_000 per 1s", Kind::ExpectedNumber, "^^^^^"),
    ("1.5 per 1s", Kind::ExpectedNumber, "^^^"),
    ("\u{661} per 1s", Kind::ExpectedNumber, "^"),
    ("\0 per 1s", Kind::ExpectedNumber, "^"),
    ("\u{1f980} per 1s", Kind::ExpectedNumber, "^"),
    ("1000000000001 per 1s", Kind::CountOutOfRange, "^^^^^^^^^^^^^"),
    ("99999999999999999999999 per 1s", Kind::CountOutOfRange, "^^^^^^^^^^^^^^^^^^^^^^^"),
    ("5", Kind::ExpectedPer, " ^"),
    ("5 ", Kind::ExpectedPer, "  ^"),
    ("5 each 1s", Kind::ExpectedPer, "  ^^^^"),
    ("5 PER 1s", Kind::ExpectedPer, "  ^^^"),
    ("5/", Kind::ExpectedWindow, "  ^"),
    ("5//s", Kind::ExpectedWindow, "  ^"),
    ("/s", Kind::ExpectedNumber, "^"),
    ("k per 1s", Kind::ExpectedNumber, "^"),
    ("1kk per 1s", Kind::ExpectedNumber, "^^^"),
    ("1m per 1s", Kind::ExpectedNumber, "^^"),
    ("1000001M per 1s", Kind::CountOutOfRange, "^^^^^^^^"),
    ("18446744073709551615k per 1s", Kind::CountOutOfRange, "^^^^^^^^^^^^^^^^^^^^^"),
    ("5 per", Kind::ExpectedWindow, "     ^"),
    ("5 per sliding-log", Kind::ExpectedWindow, "      ^^^^^^^^^^^"),
    ("5 per month", Kind::MonthOrYear, "      ^^^^^"),
    ("5 per 3 months", Kind::MonthOrYear, "      ^^^^^^^^"),
    ("5 per 2years", Kind::MonthOrYear, "      ^^^^^^"),
    ("5 per fortnight", Kind::ExpectedWindow, "      ^^^^^^^^^"),
    ("5 per -1s", Kind::ExpectedWindow, "      ^^^"),
    ("5 concurrent lease", Kind::ExpectedWindow, "                  ^"),
    ("5 per 10", Kind::MissingUnit, "      ^^"),
    ("5 per 10 sliding-log", Kind::MissingUnit, "      ^^"),
    ("5 per 10y", Kind::UnknownUnit, "        ^"),
    ("5 per 1.5s", Kind::FractionOfTime, "      ^^^^"),
    ("5 concurrent lease 0.5m", Kind::FractionOfTime, "                   ^^^^"),
    ("5 per 1\u{1f980}", Kind::UnknownUnit, "       ^"),
    ("5 per 0s", Kind::WindowOutOfRange, "      ^^"),
    ("5 per 367d", Kind::WindowOutOfRange, "      ^^^^"),
    ("5 per 53w", Kind::WindowOutOfRange, "      ^^^"),
    ("5 per 99999999999999999999d", Kind::WindowOutOfRange, "      ^^^^^^^^^^^^^^^^^^^^^"),
    ("5 per 367 days", Kind::WindowOutOfRange, "      ^^^^^^^^"),
    ("5 per 18446744073709551615w", Kind::WindowOutOfRange, "      ^^^^^^^^^^^^^^^^^^^^^"),
    ("5 per 1s leaky-bucket", Kind::TokenBucketName, "         ^^^^^^^^^^^^"),
    ("5 per 1s Sliding-Log", Kind::UnknownWord, "         ^^^^^^^^^^^"),
    ("5 per 1s sliding-log 7", Kind::UnknownWord, "                     ^"),
    ("5 per 1s gcra", Kind::TokenBucketName, "         ^^^^"),
    ("5 per 1s sliding-buckets", Kind::BucketsReplaced, "         ^^^^^^^^^^^^^^^"),
    ("5 per 1s sliding-buckets buckets 10", Kind::BucketsReplaced, "         ^^^^^^^^^^^^^^^"),
    (
        "5 per 1s sliding-window buckets 10",
        Kind::BucketsReplaced,
        "                        ^^^^^^^",
    ),
    ("5 per 1s buckets 5", Kind::BucketsReplaced, "         ^^^^^^^"),
    ("5 per 1s burst 0 token-bucket", Kind::BurstOutOfRange, "         ^^^^^^^"),
    (
        "5 per 1s token-bucket burst 1000000000001",
        Kind::BurstOutOfRange,
        "                            ^^^^^^^^^^^^^",
    ),
    ("5 per 1s token-bucket burst", Kind::BurstOutOfRange, "                           ^"),
    ("5 per 1s sliding-log burst 5", Kind::BurstWithoutTokens, "                     ^^^^^^^"),
    ("5 concurrent lease 0ms", Kind::LeaseOutOfRange, "                   ^^^"),
    ("5 concurrent lease 367d", Kind::LeaseOutOfRange, "                   ^^^^"),
    (
        "5 concurrent lease 99999999999999999999d",
        Kind::LeaseOutOfRange,
        "                   ^^^^^^^^^^^^^^^^^^^^^",
    ),
    ("5 per 1s sliding-log sliding-log", Kind::Duplicate, "                     ^^^^^^^^^^^"),
    (
        "5 per 1s token-bucket burst 3 burst 3",
        Kind::Duplicate,
        "                              ^^^^^",
    ),
    ("5 concurrent lease 1s lease 1s", Kind::Duplicate, "                      ^^^^^"),
    ("5 per 1s concurrency", Kind::ConcurrencyIsNotARate, "         ^^^^^^^^^^^"),
    ("5 per 1s concurrent", Kind::ConcurrencyIsNotARate, "         ^^^^^^^^^^"),
    ("5 concurrent per 1s", Kind::ConcurrencyIsNotARate, "             ^^^"),
    (
        "5 concurrent lease 1s sliding-log",
        Kind::ConcurrencyIsNotARate,
        "                      ^^^^^^^^^^^",
    ),
];

/// Invalid texts, and the limit, or two limits, that the error suggests to write.
const CORRECTIONS: &[(&str, &str)] = &[
    ("10r/s", "10/s"),
    ("300r/m burst 5 token-bucket", "300/m burst 5 token-bucket"),
    ("1,000 per 1h", "1000 per 1h"),
    ("1,000,000/d", "1000000/d"),
    ("1_000 per 1s", "1000 per 1s"),
    ("10/s burst 1,000 token-bucket", "10/s burst 1000 token-bucket"),
    ("10 per 1h30m", "10 per 90m"),
    ("5 concurrent lease 1m500ms", "5 concurrent lease 60500ms"),
    ("5 per 10", "5 per 10s or 5 per 10ms"),
    ("5\tper\r\n10", "5 per 10s or 5 per 10ms"),
    ("5 per 10 sliding-log", "5 per 10s sliding-log or 5 per 10ms sliding-log"),
    ("5 concurrent lease 30", "5 concurrent lease 30s or 5 concurrent lease 30ms"),
    ("100 per 60000", "100 per 60000s or 100 per 60000ms"),
    ("100 per 86400000", "100 per 86400000ms"),
    ("rate=10r/s", "10/s"),
    ("30r/m nodelay", "30/m"),
    ("rate=10r/s burst=20 nodelay", "10/s token-bucket burst 21"),
    ("10 r/s", "10/s"),
    ("100 req/min", "100/min"),
    ("100reqs per 1m", "100 per 1m"),
    ("100rpm", "100/m"),
    ("10 r / s", "10/s"),
    ("100 rps sliding-log", "100/s sliding-log"),
    ("1,000 rph", "1000/h"),
    // In nginx the burst does not include the request that the rate admits.
    ("10/s burst=20", "10/s token-bucket burst 21"),
    ("10r/s burst:20", "10/s token-bucket burst 20"),
    ("100 per 1m token-bucket burst=20", "100 per 1m token-bucket burst 20"),
    ("10 per 1s burst 20", "10 per 1s token-bucket burst 20"),
    ("5 per month", "5 per 30d"),
    ("100/year", "100/365d"),
    ("5 per 1s token bucket", "5 per 1s token-bucket"),
    ("5 per 1s  fixed window", "5 per 1s fixed-window"),
    ("1,000/month token bucket burst 50", "1000/30d token-bucket burst 50"),
];

/// Invalid texts for which no limit is suggested, because several could be meant.
const AMBIGUOUS: &[&str] =
    &["1,5 per 1s", "10,00 per 1s", ",000 per 1s", "5 per 3 months", "5 per 10 years", "10 bucket"];

/// Texts with a second `per`, and the limit, or two limits, without it.
const SUBJECTS: &[(&str, &str)] = &[
    ("100 requests per minute per user", "100 requests per minute"),
    ("100/min/ip", "100/min"),
    ("100 per 1m per user sliding-log", "100 per 1m sliding-log"),
    ("100 per 1m sliding-log per IP address", "100 per 1m sliding-log"),
    ("100 per 1m per api key token bucket", "100 per 1m token-bucket"),
    ("1,000 req/h per client", "1000/h"),
    ("100 per 60 per user", "100 per 60s or 100 per 60ms"),
];

#[test]
fn explains_that_limits_do_not_name_who_is_counted() {
    for (text, corrected) in SUBJECTS {
        let error = text.parse::<Limit>().expect_err(text);
        let help = correction_help(corrected);
        let help = format!("{help}; the key says who is counted, not the limit");
        assert_eq!(error.help(), help, "{text:?}");
    }
    for text in ["100 per 1m per 1s", "100/m/5m", "100 per second per minute", "100 per 1m per"] {
        let error = text.parse::<Limit>().expect_err(text);
        assert_eq!(error.help(), LimitError::from(error.kind()).help(), "{text:?}");
    }
}

fn correction_help(corrected: &str) -> String {
    format!("write `{}`", corrected.replace(" or ", "` or `"))
}

#[test]
fn suggests_corrected_limits() {
    for (text, corrected) in CORRECTIONS {
        let error = text.parse::<Limit>().expect_err(text);
        assert_eq!(error.help(), correction_help(corrected), "{text:?}");
        for limit in corrected.split(" or ") {
            limit.parse::<Limit>().expect(limit);
        }
    }
    for text in AMBIGUOUS {
        let error = text.parse::<Limit>().expect_err(text);
        assert_eq!(error.help(), LimitError::from(error.kind()).help(), "{text:?}");
    }
}

#[test]
fn reports_every_mistake_with_its_position() {
    for (text, kind, carets) in MISTAKES {
        let error = text.parse::<Limit>().expect_err(text);
        assert_eq!(error.kind(), *kind, "{text:?}");
        let (_, general) = MESSAGES.iter().find(|row| row.0 == *kind).expect("every kind is there");
        let correction = CORRECTIONS.iter().find(|row| row.0 == *text);
        let message = &*correction.map_or_else(
            || (*general).to_owned(),
            |(_, corrected)| format!("{}: {}", error.problem(), correction_help(corrected)),
        );
        assert!(general.starts_with(error.problem()), "{text:?}");
        let excerpt: String =
            text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        assert_eq!(error.to_string(), format!("{message}\n  {excerpt}\n  {carets}"), "{text:?}");
        assert_eq!(format!("{}: {}", error.problem(), error.help()), message, "{text:?}");
        let span = error.span().expect("a text has places");
        assert!(span.start <= text.len() && span.start <= span.end, "{text:?}: {span:?}");
    }
    for (kind, message) in MESSAGES {
        assert!(MISTAKES.iter().any(|row| row.1 == *kind), "{kind:?} has an example");
        assert_eq!(
            LimitError::from(*kind).to_string(),
            *message,
            "a limit without a text has no position"
        );
    }
}

/// The constructors return the same errors as the parser, without a position.
#[test]
fn constructors_reject_the_same_mistakes() {
    let ms = Duration::from_millis;
    let new = |count, window| Limit::new(count, window, Algorithm::SlidingLog);
    let log = new(5, ms(1)).expect("valid");
    let tokens = Limit::new(5, ms(1), Algorithm::TokenBucket).expect("valid");
    #[expect(deprecated, reason = "its error has to name the replacement")]
    let buckets = log.with_buckets(5);
    let year = Duration::from_secs(366 * 86_400);
    let rows = [
        (new(1_000_000_000_001, ms(1)), Kind::CountOutOfRange),
        (new(u64::MAX, ms(1)), Kind::CountOutOfRange),
        (new(5, Duration::ZERO), Kind::WindowOutOfRange),
        (new(5, Duration::from_micros(999)), Kind::WindowOutOfRange),
        (new(5, Duration::from_nanos(1_000_001)), Kind::WindowOutOfRange),
        (new(5, year + Duration::from_micros(1)), Kind::WindowOutOfRange),
        (new(5, Duration::MAX), Kind::WindowOutOfRange),
        (Limit::concurrent(5, ms(0)), Kind::LeaseOutOfRange),
        (buckets, Kind::BucketsReplaced),
        (log.with_burst(5), Kind::BurstWithoutTokens),
        (tokens.with_burst(0), Kind::BurstOutOfRange),
        (tokens.with_burst(u64::MAX), Kind::BurstOutOfRange),
        (tokens.with_count(u64::MAX), Kind::CountOutOfRange),
    ];
    for (index, (result, kind)) in rows.into_iter().enumerate() {
        let error = result.expect_err("refused");
        assert_eq!((error.kind(), error.span()), (kind, None), "row {index}");
    }
    assert!(new(5, year).is_ok());
    let fine = new(5, Duration::from_micros(1_001)).expect("a window of whole microseconds");
    assert_eq!(fine.to_string(), "5 per 1001us sliding-log");
}

/// The messages are short, whatever the length or the bytes of the text.
#[test]
fn rejects_absurd_texts_with_short_messages() {
    let texts = [
        "9".repeat(10_000),
        " ".repeat(10_000),
        "\u{1f980}".repeat(3_000),
        "5 per 1s ".repeat(1_200),
        format!("5 per 1s{}", " ".repeat(249)),
        format!("5 per {}s", "0".repeat(200)),
        format!("5 per 1s {}", "\u{1f980}".repeat(60)),
        format!("5 per 1s {} sliding-log x", " ".repeat(200)),
        "\u{0}".repeat(100),
        "5\u{0}per\u{0}1s".into(),
        "5\u{a0}per\u{a0}1s".into(),
        "\u{202e}5 per 1s".into(),
    ];
    for text in texts {
        let error = text.parse::<Limit>().expect_err("no limit");
        let message = error.to_string();
        assert!(message.chars().count() < 400, "{} characters", message.chars().count());
        assert_eq!(message.lines().count(), 3, "{message}");
        let controls = message.chars().filter(|c| c.is_control() && *c != '\n').count();
        assert_eq!(controls, 0, "{message}");
    }
    // The longest text that is parsed.
    let padded = format!("5 per 1s{}", " ".repeat(248));
    assert_eq!(padded.parse::<Limit>(), "5 per 1s".parse());
}
