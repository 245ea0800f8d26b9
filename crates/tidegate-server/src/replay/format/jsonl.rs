//! One JSON object a line: `{"time_us":5,"key":"alice","cost":2}`. The cost may
//! be left out; other fields are ignored, because logs have them.

use std::borrow::Cow;

use serde::Deserialize;

use super::{BadLine, Event};

#[derive(Deserialize)]
struct Line<'a> {
    time_us: u64,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(default = "one")]
    cost: i64,
}

const fn one() -> i64 {
    1
}

pub fn parse(line: &[u8]) -> Result<Event<'_>, BadLine> {
    // serde would also take an array of the fields; only an object says which is which.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err(BadLine::NotAnObject);
    }
    let Line { time_us, key, cost } = serde_json::from_slice(line).map_err(BadLine::Json)?;
    let key = match key {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    };
    Ok(Event { time_us, key, cost })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_lines() {
        let event = parse(br#"{"time_us":5,"key":"a"}"#).expect("an event");
        assert_eq!(event, Event { time_us: 5, key: Cow::Borrowed(b"a"), cost: 1 });
        assert!(matches!(event.key, Cow::Borrowed(_)), "a plain key is not copied");
        let event = parse(br#" {"cost":-2,"key":"\u00e9\"","x":[1],"time_us":5} "#);
        let event = event.expect("an event");
        assert_eq!((event.key.as_ref(), event.cost), ("\u{e9}\"".as_bytes(), -2));
    }

    #[test]
    fn bad_lines() {
        for line in [
            "",
            "[5,\"a\",1]",
            "{\"time_us\":5,\"key\":\"a\"",
            "{\"time_us\":5}",
            "{\"key\":\"a\"}",
            "{\"time_us\":-5,\"key\":\"a\"}",
            "{\"time_us\":5.5,\"key\":\"a\"}",
            "{\"time_us\":\"5\",\"key\":\"a\"}",
            "{\"time_us\":5,\"key\":7}",
            "{\"time_us\":5,\"key\":\"a\",\"cost\":\"1\"}",
            "{\"time_us\":5,\"key\":\"a\"} {}",
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
        assert!(parse(b"{\"time_us\":5,\"key\":\"\xff\"}").is_err(), "JSON is UTF-8");
    }
}
