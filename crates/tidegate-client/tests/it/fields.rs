//! Header fields: the rows that all clients share, and the usage that only this client reads.

use std::time::Duration;

use serde_json::Value;
use tidegate_client::{Fields, Usage};

const ROWS: &str = include_str!("../../../../clients/testdata/retry_fields.json");

fn read(row: &Value) -> Fields {
    let fields = row["fields"].as_array().expect("a list").iter().map(|field| {
        (field[0].as_str().expect("a name"), field[1].as_str().expect("a value").as_bytes())
    });
    let status = u16::try_from(row["status"].as_u64().expect("a status")).expect("a status");
    Fields::read(status, fields, row["now_ms"].as_u64().expect("a time"))
}

#[test]
fn reads_the_rows_that_all_clients_share() {
    let rows: Vec<Value> = serde_json::from_str(ROWS).expect("JSON");
    assert!(rows.len() > 100, "{} rows", rows.len());
    for row in &rows {
        let fields = read(row);
        let ms = |time: Option<Duration>| {
            time.map_or(Value::Null, |it| it.as_millis().to_string().parse().expect("a number"))
        };
        assert_eq!(ms(fields.wait), row["wait_ms"], "wait of {row}");
        assert_eq!(ms(fields.pause), row["pace_ms"], "pause of {row}");
    }
}

#[test]
fn reports_the_limit_with_the_smallest_remaining_fraction() {
    let of = |limit, remaining, window: u64, reset: u64| Usage {
        limit,
        remaining,
        window: (window > 0).then(|| Duration::from_secs(window)),
        reset: (reset > 0).then(|| Duration::from_secs(reset)),
    };
    let policy = |text| ("RateLimit-Policy", text);
    let rows: &[(&[(&str, &str)], Option<Usage>)] = &[
        (
            &[("RateLimit", r#""api";r=50;t=30"#), policy(r#""api";q=100;w=60"#)],
            Some(of(100, 50, 60, 30)),
        ),
        (&[("RateLimit", r#""api";r=50"#), policy(r#""api";q=100"#)], Some(of(100, 50, 0, 0))),
        // The smallest part left, not the smallest number.
        (
            &[
                ("RateLimit", r#""s";r=5;t=1, "d";r=90;t=9"#),
                policy(r#""s";q=10;w=1, "d";q=1000;w=86400"#),
            ],
            Some(of(1000, 90, 86_400, 9)),
        ),
        (&[("RateLimit", r#""api";r=50;t=30"#)], None),
        (&[("RateLimit", r#""api";r=0;t=30"#), policy(r#""api";q=0;w=60"#)], None),
        (
            &[("RateLimit", r#""api";r=900;t=30"#), policy(r#""api";q=100;w=0"#)],
            Some(of(100, 100, 0, 30)),
        ),
        (
            &[("RateLimit", "limit=100, remaining=50, reset=30"), policy("100;w=60")],
            Some(of(100, 50, 60, 30)),
        ),
        (
            &[("RateLimit", "limit=100, remaining=50, reset=30"), policy("50;w=1, 100;w=60")],
            Some(of(100, 50, 60, 30)),
        ),
        (
            &[
                ("RateLimit-Limit", "100"),
                ("RateLimit-Remaining", "50"),
                ("RateLimit-Reset", "30"),
                policy("100;w=60"),
            ],
            Some(of(100, 50, 60, 30)),
        ),
        // `RateLimit-Policy` does not belong to the form X-RateLimit.
        (
            &[
                ("X-RateLimit-Limit", "100"),
                ("X-RateLimit-Remaining", "50"),
                ("X-RateLimit-Reset", "30"),
                policy("100;w=60"),
            ],
            Some(of(100, 50, 0, 30)),
        ),
        (&[("X-RateLimit-Remaining", "50")], None),
    ];
    for (fields, expected) in rows {
        let bytes = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
        assert_eq!(Fields::read(200, bytes, 0).usage, *expected, "{fields:?}");
    }
}
