//! Apache's common and combined log formats, and variants that nginx and Apache write:
//!
//! ```text
//! host ident user [01/Aug/1995:00:00:01 -0400] "GET / HTTP/1.0" 200 1839
//! host ident user [01/Aug/1995:00:00:01 -0400] "GET / HTTP/1.0" 200 1839 "referer" "agent"
//! vhost:443 host ident user [...] "GET / HTTP/1.0" 200 1839 "referer" "agent" "forwarded" 0.003
//! Mar  2 10:00:03 web1 nginx: host ident user [...] "GET / HTTP/1.0" 200 1839
//! ```
//!
//! Syslog and containers write fields before those of the server. A user name may contain spaces,
//! and clients choose it, so the host cannot be found in a line by itself: `a - b` as a user would
//! make `a` the host. It is found by its ident, which is a dash in practice: the first lines
//! determine how many fields precede the host in every line of the file.
//!
//! Old servers logged requests with unescaped quotes, so the request ends at the first quote that
//! is followed by a status and a size. A third quoted field, as in nginx's default `main` format,
//! is X-Forwarded-For. Further fields are ignored. Dates may have fractions, or be in ISO 8601.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::iter;

use memchr::{memchr, memchr_iter, memchr2, memmem};
use tidegate::unstable::policy::RequestField;

use super::field_map::client_address;
use super::line_attributes::{LineAttributes, text};
use super::roles::{ALL, KeySource};
use super::time::{Times, log_date_us};
use super::{BadLine, Event, ParseOptions};

/// The variant of the format: without or with the referer and the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Common,
    Combined,
}

/// A field of a log line that can be the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Host,
    User,
    Agent,
    Referer,
    Method,
    Path,
    Status,
    Vhost,
    Forwarded,
}

/// The number of fields.
const FIELDS: usize = 9;

/// The names of the fields, first those used here and then those of other tools.
const NAMES: [(&str, Field); 16] = [
    ("host", Field::Host),
    ("user", Field::User),
    ("agent", Field::Agent),
    ("referer", Field::Referer),
    ("method", Field::Method),
    ("path", Field::Path),
    ("status", Field::Status),
    ("vhost", Field::Vhost),
    ("forwarded", Field::Forwarded),
    ("client_ip", Field::Host),
    ("remote_addr", Field::Host),
    ("ip", Field::Host),
    ("remote_user", Field::User),
    ("user_agent", Field::Agent),
    ("uri", Field::Path),
    ("x-forwarded-for", Field::Forwarded),
];

/// The cost of every log line.
const COST: i64 = 1;

/// The number of fields of `host ident user`.
const USUAL_FIELDS: usize = 3;

/// The length of `01/Aug/1995:00:00:01 -0400`.
const DATE_BYTES: usize = 26;

/// Parses the lines of one file.
#[derive(Clone, Debug)]
pub struct ClfParser {
    variant: Variant,
    /// `None` until there is a line with a date.
    layout: Option<Layout>,
    field: Field,
    key: KeySource,
    pub times: Times,
    /// The last date that was parsed. Most lines have the same date as the line before.
    date: [u8; DATE_BYTES],
    date_us: u64,
}

impl ClfParser {
    /// Creates a parser from the first lines of a file. If lines have no field of the key's name,
    /// returns the names of the fields that they have.
    pub fn new<'l>(
        options: &ParseOptions,
        variant: Variant,
        lines: impl Iterator<Item = &'l [u8]>,
    ) -> Result<Self, Vec<String>> {
        let layout = Layout::of(lines);
        let field = match &options.key {
            KeySource::Field(name) => {
                NAMES.iter().find(|(known, _)| **known == **name).map(|(_, field)| *field)
            }
            _ => Some(Field::Host),
        };
        let is_present = |field: &Field| match field {
            Field::Agent | Field::Referer | Field::Forwarded => variant == Variant::Combined,
            Field::Vhost => layout.is_some_and(|layout| layout.vhost),
            _ => true,
        };
        let Some(field) = field.filter(is_present) else {
            let names = NAMES.iter().take(FIELDS).filter(|(_, field)| is_present(field));
            return Err(names.map(|(name, _)| (*name).to_string()).collect());
        };
        Ok(ClfParser {
            variant,
            layout,
            field,
            key: options.key.clone(),
            times: Times::new(options.unit, options.zone.clone()),
            date: [0; DATE_BYTES],
            date_us: 0,
        })
    }

    #[inline]
    pub fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Event<'a>, BadLine> {
        if self.layout.is_none() {
            self.layout = Layout::of(iter::once(line));
        }
        let parts = Parts::of(line, self.layout.unwrap_or_default())?;
        let time_us = self.time_us(parts.date)?;
        let (request, status, rest) = request(parts.rest)?;
        let quoted = match self.variant {
            Variant::Common => None,
            Variant::Combined => Some(referer_and_agent(rest)?),
        };
        let key = match (self.field, quoted) {
            _ if matches!(self.key, KeySource::All) => Cow::Borrowed(ALL),
            _ if self.key.needs_attributes() => {
                let attributes = attributes(&parts, request, status, rest);
                Cow::Owned(self.key.key_of(&attributes))
            }
            (Field::Host, _) => Cow::Borrowed(parts.host),
            (field, quoted) => other_key(field, &parts, (request, status), quoted)
                .filter(|key| !key.is_empty())
                .ok_or_else(|| self.no_key())?,
        };
        Ok(Event { time_us, key, cost: COST })
    }

    #[cold]
    fn no_key(&self) -> BadLine {
        let KeySource::Field(name) = &self.key else { return BadLine::NoKey };
        BadLine::EmptyField { role: "key", name: name.clone() }
    }

    /// Returns whether the first field is taken as the host, although it may not be it.
    pub fn is_host_guessed(&self) -> bool {
        self.layout.is_some_and(|layout| layout.is_guess)
    }

    #[inline]
    fn time_us(&mut self, date: &[u8]) -> Result<u64, BadLine> {
        if *date == self.date {
            return Ok(self.date_us);
        }
        let time_us = match date {
            [_, _, b'/', ..] => log_date_us(date)?,
            _ => self.times.read(date).map_err(|_| BadLine::BadDate)?,
        };
        if let Ok(date) = date.try_into() {
            self.date = date;
            self.date_us = time_us;
        }
        Ok(time_us)
    }
}

/// A line, split at its date.
struct Parts<'a> {
    vhost: Option<&'a [u8]>,
    host: &'a [u8],
    /// ` ident user`.
    names: &'a [u8],
    date: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    #[inline]
    fn of(line: &'a [u8], layout: Layout) -> Result<Self, BadLine> {
        let (mut before, date, rest) = split_at_date(line).ok_or(BadLine::NoDate)?;
        let mut last = None;
        for _ in 0..layout.before_host {
            let (field, names) = first_field(before).ok_or(BadLine::NoHost)?;
            (last, before) = (Some(field), names);
        }
        let (host, names) = first_field(before).ok_or(BadLine::NoHost)?;
        Ok(Parts { vhost: last.filter(|_| layout.vhost), host, names, date, rest })
    }

    /// Returns the user of ` ident user`, which may contain spaces.
    fn user(&self) -> Option<&'a [u8]> {
        let names = self.names.strip_prefix(b" ")?;
        memchr(b' ', names).map(|at| &names[at + 1..])
    }
}

/// Splits a line into what precedes ` [date]`, the date, and what follows.
#[inline]
fn split_at_date(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let before = memmem::find(line, b" [")?;
    let rest = &line[before + 2..];
    let end = memchr(b']', rest)?;
    Some((&line[..before], &rest[..end], &rest[end + 1..]))
}

/// Returns the first field of a text, and what follows. Fields before the host may be aligned with
/// several spaces, such as the day in `Mar  2`, or separated by tabs.
#[inline]
fn first_field(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text.iter().position(|byte| !is_blank(byte))?;
    let text = &text[start..];
    memchr2(b' ', b'\t', text).map(|end| text.split_at(end))
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Where the fields of lines are that precede the date.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// The number of fields before the host.
    before_host: usize,
    /// Whether the last of them is a virtual host.
    vhost: bool,
    /// Whether there are more fields than usual, and none is known to be the ident.
    is_guess: bool,
}

impl Layout {
    /// Returns the layout of most of these lines, or `None` if none has a date.
    #[cold]
    fn of<'l>(lines: impl Iterator<Item = &'l [u8]>) -> Option<Self> {
        let lines: Vec<Vec<&[u8]>> = lines.filter_map(fields_before_date).collect();
        let shortest = lines.iter().map(Vec::len).min()?;
        let mut votes = BTreeMap::<usize, usize>::new();
        for fields in &lines {
            for at in (0..fields.len()).filter(|&at| is_host(fields, at)) {
                *votes.entry(at).or_default() += 1;
            }
        }
        // Of several with an ident in every line, the last is the host: syslog writes dashes too
        // (RFC 5424). Lines whose user looks like an ident and a user are in the minority.
        let most = votes.into_iter().max_by_key(|&(at, votes)| (votes, at));
        let Some((before_host, votes)) = most else {
            return Some(Layout {
                before_host: 0,
                vhost: false,
                is_guess: shortest > USUAL_FIELDS,
            });
        };
        let begins_with_vhost = |fields: &&Vec<&[u8]>| {
            is_host(fields, before_host) && before_host > 0 && is_authority(fields[before_host - 1])
        };
        let with_vhost = lines.iter().filter(begins_with_vhost).count();
        Some(Layout { before_host, vhost: with_vhost * 2 > votes, is_guess: false })
    }
}

fn fields_before_date(line: &[u8]) -> Option<Vec<&[u8]>> {
    let (before, _, rest) = split_at_date(line)?;
    let fields = before.split(is_blank).filter(|field| !field.is_empty());
    rest.starts_with(b" \"").then(|| fields.collect())
}

/// Returns whether the field can be the host: it is followed by a dash, the ident, and by the user.
fn is_host(fields: &[&[u8]], at: usize) -> bool {
    fields.len() >= at + USUAL_FIELDS && fields[at] != b"-" && fields[at + 1] == b"-"
}

/// Returns whether a field may be the name of a host, with or without a port, unlike most of what
/// syslog and containers write before a line: `nginx:`, `|`, a time.
fn is_authority(field: &[u8]) -> bool {
    let digits = field.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let name = match field[..field.len() - digits].strip_suffix(b":") {
        Some(name) if digits > 0 => name,
        _ => field,
    };
    let address = name.strip_prefix(b"[").and_then(|name| name.strip_suffix(b"]"));
    let (name, others) = match address {
        Some(address) => (address, &b":."[..]),
        None => (name, &b"-._"[..]),
    };
    name.iter().any(u8::is_ascii_alphanumeric)
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || others.contains(byte))
}

#[cold]
fn other_key<'a>(
    field: Field,
    parts: &Parts<'a>,
    (request, status): (&'a [u8], &'a [u8]),
    quoted: Option<Quoted<'a>>,
) -> Option<Cow<'a, [u8]>> {
    let found = match field {
        Field::Host => Some(parts.host),
        Field::User => parts.user(),
        Field::Vhost => parts.vhost,
        Field::Status => Some(status),
        Field::Referer => quoted.map(|quoted| quoted.referer),
        Field::Agent => quoted.map(|quoted| quoted.agent),
        Field::Forwarded => {
            let forwarded = quoted.and_then(|quoted| quoted.forwarded()).map(Cow::Borrowed);
            return forwarded.map(client_address);
        }
        Field::Method | Field::Path => {
            let mut attributes = LineAttributes::default();
            attributes.set_request(request);
            let part = if field == Field::Method { attributes.method } else { attributes.path };
            return Some(Cow::Owned(part?.into_owned().into_bytes()));
        }
    };
    found.map(Cow::Borrowed)
}

/// Returns whether [`attributes`] may have a value for the field.
pub fn may_contain(field: &RequestField) -> bool {
    match field {
        RequestField::Header(name) => {
            ["referer", "user-agent", "x-forwarded-for"].contains(&name.as_str())
        }
        RequestField::Descriptor { name, .. } => ["", "user", "status"].contains(&&**name),
        RequestField::Cookie(_) | RequestField::Domain => false,
        _ => true,
    }
}

fn attributes<'a>(
    parts: &Parts<'a>,
    request: &'a [u8],
    status: &'a [u8],
    rest: &'a [u8],
) -> LineAttributes<'a> {
    let mut attributes =
        LineAttributes { client: Some(text(parts.host)), ..LineAttributes::default() };
    attributes.host = parts.vhost.map(text);
    attributes.set_request(request);
    attributes.set_descriptor("status", text(status));
    if let Some(user) = parts.user() {
        attributes.set_descriptor("user", text(user));
    }
    if let Ok(quoted) = referer_and_agent(rest) {
        attributes.set_header("referer", text(quoted.referer));
        attributes.set_header("user-agent", text(quoted.agent));
        if let Some(forwarded) = quoted.forwarded() {
            attributes.set_header("x-forwarded-for", text(forwarded));
        }
    }
    attributes
}

/// Returns the request, the status, and the text after the size.
#[inline]
fn request(text: &[u8]) -> Result<(&[u8], &[u8], &[u8]), BadLine> {
    let text = text.strip_prefix(b" \"").ok_or(BadLine::NoRequest)?;
    let mut closed = false;
    for at in memchr_iter(b'"', text) {
        closed = true;
        if let Some((status, rest)) = status_and_size(&text[at + 1..]) {
            return Ok((&text[..at], status, rest));
        }
    }
    Err(if closed { BadLine::NoStatus } else { BadLine::NoRequest })
}

/// Returns the status of ` 200 1839`, and the text after the size. Either number may be `-`.
#[inline]
fn status_and_size(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.strip_prefix(b" ")?;
    let after = after_number(text)?;
    let status = &text[..text.len() - after.len()];
    let rest = after_number(after.strip_prefix(b" ")?)?;
    (rest.is_empty() || rest[0] == b' ').then_some((status, rest))
}

#[inline]
fn after_number(text: &[u8]) -> Option<&[u8]> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match digits {
        0 => text.strip_prefix(b"-"),
        _ => Some(&text[digits..]),
    }
}

/// The fields of ` "referer" "agent"`, and the text after them.
#[derive(Clone, Copy)]
struct Quoted<'a> {
    referer: &'a [u8],
    agent: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Quoted<'a> {
    /// Returns the next field, if it is quoted.
    fn forwarded(&self) -> Option<&'a [u8]> {
        quoted(self.rest).ok().map(|(forwarded, _)| forwarded)
    }
}

/// Parses the referer and the agent. Quotes within them are escaped.
#[inline]
fn referer_and_agent(text: &[u8]) -> Result<Quoted<'_>, BadLine> {
    let (referer, rest) = quoted(text)?;
    let (agent, rest) = quoted(rest)?;
    Ok(Quoted { referer, agent, rest })
}

#[inline]
fn quoted(text: &[u8]) -> Result<(&[u8], &[u8]), BadLine> {
    let text = text.strip_prefix(b" \"").ok_or(BadLine::NoAgent)?;
    // A quote after an odd number of backslashes is part of the field.
    let is_end = |at: &usize| {
        let escapes = text[..*at].iter().rev().take_while(|&&byte| byte == b'\\').count();
        escapes % 2 == 0
    };
    let end = memchr_iter(b'"', text).find(is_end).ok_or(BadLine::NoAgent)?;
    Ok((&text[..end], &text[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &str = "[01/Jan/1970:00:00:02 +0000]";

    fn key(line: &str, variant: Variant, key: &str) -> Result<String, BadLine> {
        let line = line.replace("DATE", DATE);
        let key = KeySource::new(Some(&key.parse().expect(key)));
        let options = ParseOptions { key, ..ParseOptions::default() };
        let log = ClfParser::new(&options, variant, [line.as_bytes()].into_iter());
        let event = log.map_err(|_| BadLine::NoKey)?.parse(line.as_bytes()).map(|event| {
            assert_eq!((event.time_us, event.cost), (2_000_000, 1));
            String::from_utf8_lossy(&event.key).into_owned()
        })?;
        Ok(event)
    }

    #[test]
    fn any_field_of_a_log_line_can_be_the_key() {
        let plain = "h - u DATE \"GET /p?q=1 HTTP/1.0\" 200 5";
        let full = "h - u DATE \"GET /\" 200 5 \"r \\\" r\" \"an \\\" agent\" 0.1";
        let nginx = "h - - DATE \"GET /\" 200 5 \"-\" \"a\\\\\" \"10.0.0.1, 10.0.0.2\" rt=0.1";
        let vhost = "www.x.org:443 h - - DATE \"GET /\" 200 5 \"-\" \"a\"";
        for (line, variant, field, expected) in [
            (plain, Variant::Common, "host", "h"),
            (plain, Variant::Common, "method", "GET"),
            (plain, Variant::Common, "path", "/p"),
            (plain, Variant::Common, "status", "200"),
            ("h - a b DATE \"GET / HTTP/1.0\" 200 -", Variant::Common, "user", "a b"),
            ("h - - DATE \"say \"hi\" 1\" 200 5", Variant::Common, "host", "h"),
            ("h - - DATE \"-\" - - \"r\" \"a\"", Variant::Common, "host", "h"),
            (full, Variant::Combined, "agent", "an \\\" agent"),
            (full, Variant::Combined, "user", "u"),
            (full, Variant::Combined, "referer", "r \\\" r"),
            (nginx, Variant::Combined, "agent", "a\\\\"),
            (nginx, Variant::Combined, "forwarded", "10.0.0.2"),
            (nginx, Variant::Combined, "{header:x-forwarded-for}", "10.0.0.1, 10.0.0.2"),
            (vhost, Variant::Combined, "host", "h"),
            (vhost, Variant::Combined, "vhost", "www.x.org:443"),
            (vhost, Variant::Combined, "{host}{path}", "9#www.x.org1#/"),
            (plain, Variant::Common, "{method} {query:q} {descriptor:user}", "3#GET 1#1 1#u"),
        ] {
            assert_eq!(key(line, variant, field).expect(line), expected, "{line}, {field}");
        }
        for (variant, field) in [
            (Variant::Common, "agent"),
            (Variant::Combined, "vhost"),
            (Variant::Combined, "planet"),
        ] {
            assert!(key(full, variant, field).is_err(), "{field}");
        }
    }

    /// A prefix of several fields was the host, and a prefix that is not one was the virtual host.
    #[test]
    fn lines_may_begin_with_the_fields_of_syslog_or_containers() {
        let hosts = |lines: &[String], key: &str| {
            let lines: Vec<String> = lines.iter().map(|line| line.replace("DATE", DATE)).collect();
            let key = KeySource::new(Some(&key.parse().expect("a key")));
            let options = ParseOptions { key, ..ParseOptions::default() };
            let sample = lines.iter().map(String::as_bytes);
            let Ok(mut log) = ClfParser::new(&options, Variant::Common, sample) else {
                return (Vec::new(), false);
            };
            let keys = lines.iter().map(|line| match log.parse(line.as_bytes()) {
                Ok(event) => String::from_utf8_lossy(&event.key).into_owned(),
                Err(why) => why.to_string(),
            });
            (keys.collect::<Vec<_>>(), log.is_host_guessed())
        };
        for (prefix, vhost) in [
            ("", None),
            ("2026-03-02T10:00:03.5Z ", None),
            ("nginx-1  | ", None),
            ("Mar  2 10:00:03 web1 nginx: ", None),
            ("Mar 12 10:00:03 web1 nginx[12]: ", None),
            ("<190>Mar 12 10:00:03 web1 nginx: ", None),
            ("2026-03-02T10:00:03+00:00 web1 nginx: ", None),
            ("<190>1 2026-03-02T10:00:03Z web1 nginx 123 - - ", None),
            ("2026-03-02T10:00:03Z\tnginx.access\t", Some("nginx.access")),
            ("Mar 12 10:00:03 web1 nginx: x.org:443 ", Some("x.org:443")),
            ("[::1]:443 ", Some("[::1]:443")),
        ] {
            let line = |user: &str| format!("{prefix}h - {user} DATE \"GET / HTTP/1.0\" 200 5");
            // The user names of two lines look like a host, its ident and a user.
            let lines = ["-", "u", "a b", "x - y", "x - -"].map(line);
            assert_eq!(hosts(&lines, "host"), (vec!["h".to_string(); 5], false), "{prefix}");
            assert_eq!(hosts(&lines, "user").0, ["-", "u", "a b", "x - y", "x - -"], "{prefix}");
            assert_eq!(hosts(&lines[..1], "vhost").0, Vec::from_iter(vhost), "{prefix}");
        }
        let line = |before: &str| format!("{before} DATE \"GET / HTTP/1.0\" 200 5");
        for (befores, keys, is_guess) in [
            // A line without the prefix of the others is skipped.
            (&["p q h - -", "p q h - -", "h - -"][..], &["h", "h", "too few"][..], false),
            (&["h - a b", "h - c d"], &["h", "h"], false),
            (&["h - - -", "h - a -"], &["h", "h"], false),
            (&["p q h i u", "p q h i v"], &["p", "p"], true),
            (&["h i u v", "h i u"], &["h", "h"], false),
        ] {
            let lines: Vec<String> = befores.iter().copied().map(line).collect();
            let (found, was_guess) = hosts(&lines, "host");
            let fits = found.iter().zip(keys).all(|(found, key)| found.starts_with(key));
            assert!(fits && was_guess == is_guess, "{befores:?}: {found:?}");
        }
        // The first lines may have no date. Then the first line that has one is decisive.
        let mut log = ClfParser::new(&ParseOptions::default(), Variant::Common, iter::empty())
            .expect("a host");
        assert!(log.parse(b"nginx-1  | starting").is_err());
        let line = line("nginx-1  | h - -").replace("DATE", DATE);
        assert_eq!(*log.parse(line.as_bytes()).expect("an event").key, *b"h");
    }

    #[test]
    fn parses_fractional_and_iso_dates() {
        for (date, time_us) in [
            ("01/Jan/1970:00:00:02.5 +0000", 2_500_000),
            ("01/Jan/1970:00:00:02 +0000", 2_000_000),
            ("1970-01-01T00:00:02+00:00", 2_000_000),
        ] {
            let line = format!("h - - [{date}] \"GET /\" 200 5");
            let mut log =
                ClfParser::new(&ParseOptions::default(), Variant::Common, std::iter::empty())
                    .expect("a host");
            for _ in 0..2 {
                let event = log.parse(line.as_bytes()).unwrap_or_else(|e| panic!("{date}: {e}"));
                assert_eq!(event.time_us, time_us, "{date}");
            }
        }
    }

    #[test]
    fn rejects_truncated_lines() {
        let whole = format!("host - user {DATE} \"GET / HTTP/1.0\" 200 1839 \"-\" \"agent\"");
        assert!(key(&whole, Variant::Combined, "host").is_ok());
        for length in 0..whole.len() {
            assert!(key(&whole[..length], Variant::Combined, "host").is_err(), "{length}");
        }
        let size = whole.find("1839").expect("the size");
        for length in 0..size {
            assert!(key(&whole[..length], Variant::Common, "host").is_err(), "{length}");
        }
    }

    #[test]
    fn reports_why_a_line_is_malformed() {
        let why =
            |line: &str| key(line, Variant::Combined, "host").expect_err("a bad line").to_string();
        assert_eq!(why("h"), BadLine::NoDate.to_string());
        assert_eq!(why("h - - [x] \"GET /\" 200 5"), BadLine::BadDate.to_string());
        assert_eq!(why("h - - DATE GET / 200 5"), BadLine::NoRequest.to_string());
        assert_eq!(why("h - - DATE \"GET /\" 200"), BadLine::NoStatus.to_string());
        assert_eq!(why("h - - DATE \"GET /\" 200 5"), BadLine::NoAgent.to_string());
        assert_eq!(
            why("h - - [31/Dec/1969:23:59:59 +0000] \"GET /\" 200 5"),
            BadLine::TimeBefore1970.to_string()
        );
    }
}
