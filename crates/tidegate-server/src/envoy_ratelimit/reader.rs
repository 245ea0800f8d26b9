//! Reads typed values of variables. The types have the text forms of Go, in which
//! envoyproxy/ratelimit is written.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::variables::{Treatment, VARIABLES, variable};

/// The maximum length of a value in an error.
const MAX_SHOWN_CHARS: usize = 100;

/// Variables whose values may contain a password. Errors do not show them.
const SECRET: [&str; 5] = [
    "REDIS_URL",
    "REDIS_AUTH",
    "REDIS_SENTINEL_AUTH",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_NODE_METADATA",
];

/// A variable that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}{shown}: {reason}")]
pub struct VariableError {
    pub name: &'static str,
    /// `=` and the value; empty for a secret.
    shown: String,
    reason: String,
}

/// The variables that are set. Of others, the table has the defaults.
#[derive(Debug, Default)]
pub struct Reader {
    set: BTreeMap<&'static str, String>,
}

impl Reader {
    /// Keeps the variables of envoyproxy/ratelimit.
    pub fn new(all: impl IntoIterator<Item = (String, String)>) -> Self {
        let known = |(name, value): (String, String)| Some((variable(&name)?.name, value));
        Reader { set: all.into_iter().filter_map(known).collect() }
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.set.contains_key(name)
    }

    /// Returns the value, or the default.
    pub fn text(&self, name: &str) -> &str {
        let default = || variable(name).map_or("", |variable| variable.default);
        self.set.get(name).map_or_else(default, String::as_str)
    }

    /// Returns the value; `None` if it is empty.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    pub fn boolean(&self, name: &'static str) -> Result<bool, VariableError> {
        parse_bool(self.text(name)).ok_or_else(|| self.error(name, "write true or false"))
    }

    pub fn number<T: FromStr>(&self, name: &'static str) -> Result<T, VariableError> {
        let number = self.text(name).parse();
        number.map_err(|_| self.error(name, "this is not a whole number in the allowed range"))
    }

    pub fn duration(&self, name: &'static str) -> Result<Duration, VariableError> {
        let help = "write a duration such as 300ms, 10s or 1h30m";
        parse_duration(self.text(name)).ok_or_else(|| self.error(name, help))
    }

    /// Reads names and values, with `separator` between each name and its value.
    pub fn pairs(
        &self,
        name: &'static str,
        separator: char,
    ) -> Result<Vec<(String, String)>, VariableError> {
        let text = self.text(name).trim();
        let items = text.split(',').filter(|_| !text.is_empty());
        let pair = |item: &str| {
            let (name, value) = item.split_once(separator)?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        };
        let pairs: Option<Vec<_>> = items.map(pair).collect();
        let help = format!("write name{separator}value,name{separator}value");
        pairs.ok_or_else(|| self.error(name, help))
    }

    /// Creates an error about the value of a variable.
    pub fn error(&self, name: &'static str, reason: impl Into<String>) -> VariableError {
        let shown: String = self.text(name).chars().take(MAX_SHOWN_CHARS).collect();
        let shown = format!("={}", shown.escape_debug());
        let shown = if SECRET.contains(&name) { String::new() } else { shown };
        VariableError { name, shown, reason: reason.into() }
    }

    /// Returns an error if a variable is set whose effect is needed and missing.
    pub fn refuse(&self) -> Result<(), VariableError> {
        for variable in VARIABLES.iter().filter(|one| one.treatment == Treatment::Refused) {
            if self.is_active(variable.name) && self.text(variable.name) != variable.default {
                return Err(self.error(variable.name, format!("refused: {}", variable.text)));
            }
        }
        Ok(())
    }

    /// Returns a warning for each variable that is set and ignored.
    pub fn ignored(&self) -> Vec<String> {
        let ignored = VARIABLES.iter().filter(|one| one.treatment == Treatment::Ignored);
        let ignored = ignored.filter(|variable| self.is_active(variable.name));
        ignored.map(|one| format!("{} is ignored: {}", one.name, one.text)).collect()
    }

    /// Whether a variable is set to more than an empty or false value.
    fn is_active(&self, name: &str) -> bool {
        let value = self.set.get(name);
        value.is_some_and(|value| !value.is_empty() && parse_bool(value) != Some(false))
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a duration as Go's `time.ParseDuration` does, except negative ones.
fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut total = Duration::ZERO;
    while !rest.is_empty() || total.is_zero() && text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = after;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_as_go_does() {
        let rows = [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("10s", Some(10_000_000)),
            ("1h30m", Some(5_400_000_000)),
            ("1.5s", Some(1_500_000)),
            ("+250ms", Some(250_000)),
            ("150us", Some(150)),
            ("24h", Some(86_400_000_000)),
            ("", None),
            ("10", None),
            ("-1s", None),
            ("s", None),
            ("1d", None),
            ("1..5s", None),
            ("10s5", None),
            ("99999999999999999999999h", None),
        ];
        for (text, expected) in rows {
            let micros = parse_duration(text).map(|duration| duration.as_micros());
            assert_eq!(micros, expected, "{text}");
        }
    }

    #[test]
    fn reads_pairs() {
        let read = |text: &str| {
            let name = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
            let pairs = Reader::new([(name.into(), text.into())]).pairs(name, ':');
            pairs.map(|pairs| format!("{pairs:?}")).map_err(|error| error.to_string())
        };
        assert_eq!(read("").as_deref(), Ok("[]"));
        assert_eq!(read("a:b,c:d:e").as_deref(), Ok(r#"[("a", "b"), ("c", "d:e")]"#));
        let error = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: write name:value,name:value";
        assert_eq!(read("a").err().as_deref(), Some(error));
    }
}
