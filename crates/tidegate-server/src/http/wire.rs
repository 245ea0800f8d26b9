//! What callers send: JSON into questions.
//!
//! Decoding borrows from the body and stops at the first thing that does not fit. Only
//! then is the body read again, slowly, to say *where* that was: an error names
//! its field, as `checks[3].cost`, and honest callers do not pay for it.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Unexpected, Visitor};
use tidegate::attributes::{Attributes, Headers};
use tidegate::gate::{Question, Subject};
use tidegate::identity::parse_address;
use tidegate::policy::MAX_KEY_BYTES;
use tidegate::{Cost, Limit, bounds};

use super::refusal::Refusal;

/// The longest idempotency id: two UUIDs with room to spare.
const MAX_ID_BYTES: usize = 256;

/// The most limits a caller may give: as many as a policy may have.
const MAX_LIMITS: usize = tidegate::policy::MAX_LIMITS;

/// The most headers or descriptors in `attributes`: as many as a request may have.
const MAX_PAIRS: usize = 100;

/// The most of a bad body that an error repeats.
const MAX_TOLD_BYTES: usize = 256;

/// The longest a check may wait: beyond a minute callers and gateways have given up.
const MAX_WAIT_MS: u64 = 60_000;

/// The largest cost either way: no limit is larger.
#[expect(clippy::cast_possible_wrap, reason = "10^12 is far below 2^63")]
const MAX_COST: i64 = bounds::MAX_COUNT as i64;

/// Text of the body.
#[derive(Debug, serde::Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// A whole number. `2.0` is one too, as JSON has no other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole(i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(WholeVisitor)
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Whole, E> {
        Ok(Whole(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Whole, E> {
        // What is larger than this is out of every range.
        Ok(Whole(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Whole, E> {
        if number.trunc() != number {
            return Err(E::invalid_type(Unexpected::Float(number), &self));
        }
        #[expect(clippy::cast_possible_truncation, reason = "whole, and beyond i64 it saturates")]
        Ok(Whole(number as i64))
    }
}

/// An object, and nothing else: left to itself serde would take a list for the
/// fields in their order.
#[derive(Debug, Default)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// The body of a check. Attributes are boxed: they are large, and it is moved about.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckBody<'a> {
    #[serde(borrow)]
    pub policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub key: Option<Text<'a>>,
    pub cost: Option<Whole>,
    #[serde(borrow)]
    pub id: Option<Text<'a>>,
    #[serde(borrow)]
    pub attributes: Option<Box<Object<AttributesBody<'a>>>>,
    #[serde(borrow)]
    pub limits: Option<Vec<Text<'a>>>,
    pub max_wait_ms: Option<Whole>,
    pub force: Option<bool>,
}

/// The body of a batch.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchBody<'a> {
    #[serde(borrow)]
    pub checks: Vec<Object<CheckBody<'a>>>,
}

/// The body of a request for a permit.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PermitBody<'a> {
    #[serde(borrow)]
    pub policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub key: Option<Text<'a>>,
    pub cost: Option<Whole>,
    #[serde(borrow)]
    pub attributes: Option<Box<Object<AttributesBody<'a>>>>,
    #[serde(borrow)]
    pub limits: Option<Vec<Text<'a>>>,
    pub ttl_ms: Option<Whole>,
}

/// The body of a renewal.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RenewBody {
    ttl_ms: Option<Whole>,
}

impl RenewBody {
    /// How long it is to be held from now on.
    pub fn lease(&self) -> Result<Option<Duration>, Refusal> {
        checked_lease(self.ttl_ms)
    }
}

/// The facts of a request, as a caller tells them.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttributesBody<'a> {
    #[serde(borrow)]
    method: Option<Text<'a>>,
    #[serde(borrow)]
    path: Option<Text<'a>>,
    #[serde(borrow)]
    query: Option<Text<'a>>,
    #[serde(borrow)]
    host: Option<Text<'a>>,
    #[serde(borrow)]
    client_ip: Option<Text<'a>>,
    #[serde(borrow)]
    headers: Option<Pairs<'a>>,
    #[serde(borrow)]
    descriptors: Option<Pairs<'a>>,
}

/// An object of texts, in its own order.
#[derive(Debug, Default)]
struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names and texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            pairs.push((name, value));
        }
        Ok(Pairs(pairs))
    }
}

/// Decodes a body.
pub fn decode<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Refusal> {
    // Once for all of it, not again for every text in it.
    let Ok(body) = std::str::from_utf8(body) else {
        return Err(Refusal::bad("the body is not UTF-8: send JSON as UTF-8"));
    };
    let decoded: Result<Object<T>, _> = serde_json::from_str(body);
    decoded.map(|Object(body)| body).map_err(|error| blame::<Object<T>>(body, &error))
}

/// Finds the field to blame.
#[cold]
fn blame<'de, T: Deserialize<'de>>(body: &'de str, error: &serde_json::Error) -> Refusal {
    if body.is_empty() {
        return Refusal::bad("the body is empty: send JSON");
    }
    let mut json = serde_json::Deserializer::from_str(body);
    let mut field = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        // A whole value, and something behind it.
        Ok(_) => String::new(),
        // Where the name itself is missing the path ends in a question mark.
        Err(error) => {
            error.path().to_string().trim_end_matches('?').trim_end_matches('.').to_owned()
        }
    };
    let detail = error.to_string();
    // These are about a field inside the object the path names.
    let inner = ["duplicate field `", "missing field `"]
        .iter()
        .find_map(|about| detail.strip_prefix(about)?.split('`').next());
    if let Some(inner) = inner {
        if !field.is_empty() {
            field.push('.');
        }
        field.push_str(inner);
    }
    let (field, detail) = (shorten(field), shorten(detail));
    if field.is_empty() { Refusal::bad(detail) } else { Refusal::field(field, detail) }
}

/// What of a body is told back: enough to know it again.
fn shorten(mut text: String) -> String {
    if text.len() > MAX_TOLD_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TOLD_BYTES));
        text.push_str("...");
    }
    text
}

/// The parts of a question that need a home of their own.
#[derive(Debug, Default)]
pub struct Parts<'a> {
    attributes: Option<Attributes<'a>>,
    limits: Vec<Limit>,
}

impl<'a> AttributesBody<'a> {
    fn read(&'a self) -> Result<Attributes<'a>, Refusal> {
        let text = |text: &'a Option<Text<'a>>| text.as_ref().map(|text| &*text.0);
        let client_ip = match text(&self.client_ip) {
            None => None,
            Some(text) => Some(address(text)?),
        };
        // Whoever pastes a whole target means its query too.
        let (path, behind) = match text(&self.path) {
            Some(path) => match path.split_once('?') {
                Some((path, query)) => (Some(path), Some(query)),
                None => (Some(path), None),
            },
            None => (None, None),
        };
        let pairs = |name: &str, pairs: &'a Option<Pairs<'a>>| match pairs {
            None => Ok(&[][..]),
            Some(Pairs(pairs)) if pairs.len() <= MAX_PAIRS => Ok(&pairs[..]),
            Some(_) => {
                let detail = format!("there are more than {MAX_PAIRS}: send those that matter");
                Err(Refusal::field(format!("attributes.{name}"), detail))
            }
        };
        Ok(Attributes {
            method: text(&self.method),
            path,
            query: text(&self.query).or(behind),
            host: text(&self.host),
            client_ip,
            headers: Headers::Pairs(pairs("headers", &self.headers)?),
            descriptors: pairs("descriptors", &self.descriptors)?,
        })
    }
}

fn address(text: &str) -> Result<IpAddr, Refusal> {
    parse_address(text).ok_or_else(|| {
        Refusal::field("attributes.client_ip", "this is no IP address: send one such as 192.0.2.1")
    })
}

/// What checks and permits have in common.
struct Common<'a> {
    policy: Option<&'a str>,
    key: Option<&'a str>,
    attributes: Option<&'a AttributesBody<'a>>,
    limits: Option<&'a [Text<'a>]>,
}

/// The same fields of either body: `serde(flatten)` would join them too, but buffers
/// every field and no longer names unknown ones.
macro_rules! common {
    ($body:expr) => {
        Common {
            policy: $body.policy.as_ref().map(|text| &*text.0),
            key: $body.key.as_ref().map(|text| &*text.0),
            attributes: $body.attributes.as_ref().map(|object| &object.0),
            limits: $body.limits.as_deref(),
        }
    };
}

impl<'a> Common<'a> {
    fn parts(&self) -> Result<Parts<'a>, Refusal> {
        let attributes = self.attributes.map(AttributesBody::read).transpose()?;
        let texts = self.limits.unwrap_or_default();
        if texts.len() > MAX_LIMITS {
            let detail = format!("there are more than {MAX_LIMITS}: give fewer");
            return Err(Refusal::field("limits", detail));
        }
        let limits = texts.iter().enumerate().map(|(index, Text(text))| {
            text.parse().map_err(|error: tidegate::LimitError| {
                Refusal::field(format!("limits[{index}]"), error.to_string())
            })
        });
        Ok(Parts { attributes, limits: limits.collect::<Result<_, _>>()? })
    }

    fn subject<'q>(&self, parts: &'q Parts<'a>) -> Result<Subject<'q>, Refusal>
    where
        'a: 'q,
    {
        let attributes = parts.attributes.as_ref();
        match (self.policy, self.key, attributes, self.limits) {
            (Some(policy), Some(key), _, None) => {
                Ok(Subject::Key { policy, key: checked_key(key)?, attributes })
            }
            (Some(policy), None, Some(attributes), None) => {
                Ok(Subject::Policy { policy, attributes })
            }
            (None, None, Some(attributes), None) => Ok(Subject::Request(attributes)),
            (None, Some(key), None, Some(_)) if !parts.limits.is_empty() => {
                Ok(Subject::Limits { key: checked_key(key)?, limits: &parts.limits })
            }
            _ => Err(self.misfit()),
        }
    }

    /// What to add or leave out of a body that is none of the three kinds.
    #[cold]
    fn misfit(&self) -> Refusal {
        let present = (
            self.policy.is_some(),
            self.key.is_some(),
            self.attributes.is_some(),
            self.limits.is_some(),
        );
        let (field, detail) = match present {
            (true, _, _, true) => ("limits", "a policy has its own limits: leave out one of them"),
            (_, _, true, true) => {
                ("limits", "attributes select policies, which have their own limits: leave out one")
            }
            (_, false, _, true) => ("key", "it is missing: name who is counted under the limits"),
            (_, _, _, true) => ("limits", "it is empty: give at least one, such as \"5 per 1m\""),
            (false, true, true, _) => {
                ("policy", "it is missing: attributes make the key, unless a policy is named")
            }
            (true, false, false, _) => {
                ("key", "it is missing: name who is counted, or send attributes to make the key of")
            }
            (false, true, false, _) => ("policy", "it is missing: name a policy, or give limits"),
            _ => ("policy", "it is missing: send policy and key, or attributes, or key and limits"),
        };
        Refusal::field(field, detail)
    }
}

fn checked_key(key: &str) -> Result<&[u8], Refusal> {
    match key.len() {
        0 => Err(Refusal::field("key", "it is empty: name who is counted")),
        1..=MAX_KEY_BYTES => Ok(key.as_bytes()),
        _ => {
            let detail = format!("it is longer than {MAX_KEY_BYTES} bytes: send a hash of it");
            Err(Refusal::field("key", detail))
        }
    }
}

fn checked_cost(Whole(cost): Whole) -> Result<i64, Refusal> {
    if (-MAX_COST..=MAX_COST).contains(&cost) {
        return Ok(cost);
    }
    let detail = format!("it is out of range: use a whole number from -{MAX_COST} to {MAX_COST}");
    Err(Refusal::field("cost", detail))
}

impl<'a> CheckBody<'a> {
    fn common(&'a self) -> Common<'a> {
        common!(self)
    }

    /// What the question needs a home for.
    pub fn parts(&'a self) -> Result<Parts<'a>, Refusal> {
        self.common().parts()
    }

    /// The question it asks.
    pub fn question<'q>(&'a self, parts: &'q Parts<'a>) -> Result<Question<'q>, Refusal>
    where
        'a: 'q,
    {
        let subject = self.common().subject(parts)?;
        let force = self.force.unwrap_or(false);
        let cost = match self.cost.map(checked_cost).transpose()? {
            Some(cost) if force && cost < 0 => {
                let detail = "a negative cost gives back, force charges: leave out one of them";
                return Err(Refusal::field("force", detail));
            }
            Some(cost) if force => Some(Cost::Force(cost.unsigned_abs())),
            cost => cost.map(Cost::from_signed),
        };
        Ok(Question { cost, force, id: self.id()?, ..Question::new(subject) })
    }

    fn id(&self) -> Result<Option<&[u8]>, Refusal> {
        let Some(Text(id)) = &self.id else { return Ok(None) };
        match id.len() {
            0 => Err(Refusal::field("id", "it is empty: leave it out, or send one per request")),
            1..=MAX_ID_BYTES => Ok(Some(id.as_bytes())),
            _ => Err(Refusal::field(
                "id",
                format!("it is longer than {MAX_ID_BYTES} bytes: shorten it"),
            )),
        }
    }

    /// How long it would rather wait than be denied.
    pub fn max_wait(&self) -> Result<Option<Duration>, Refusal> {
        let wait_ms = match self.max_wait_ms {
            None | Some(Whole(0)) => return Ok(None),
            Some(Whole(wait_ms)) => wait_ms,
        };
        let refuse = |detail: String| Err(Refusal::field("max_wait_ms", detail));
        let Some(wait_ms) = u64::try_from(wait_ms).ok().filter(|wait_ms| *wait_ms <= MAX_WAIT_MS)
        else {
            return refuse(format!(
                "it is out of range: use a whole number from 0 to {MAX_WAIT_MS}"
            ));
        };
        if self.id.is_some() {
            return refuse("a check under an id does not wait: leave out one of them".into());
        }
        if self.force == Some(true) {
            return refuse("a forced charge has nothing to wait for: leave out one of them".into());
        }
        // A look or a refund has nothing to wait for either.
        Ok(self.cost.is_none_or(|Whole(cost)| cost > 0).then(|| Duration::from_millis(wait_ms)))
    }
}

impl<'a> PermitBody<'a> {
    fn common(&'a self) -> Common<'a> {
        common!(self)
    }

    /// What the question needs a home for.
    pub fn parts(&'a self) -> Result<Parts<'a>, Refusal> {
        self.common().parts()
    }

    /// The question it asks.
    pub fn question<'q>(&'a self, parts: &'q Parts<'a>) -> Result<Question<'q>, Refusal>
    where
        'a: 'q,
    {
        let subject = self.common().subject(parts)?;
        let cost = self.cost.map(checked_cost).transpose()?;
        if cost.is_some_and(|cost| cost < 1) {
            return Err(Refusal::field("cost", "a permit holds at least 1"));
        }
        Ok(Question { cost: cost.map(Cost::from_signed), ..Question::new(subject) })
    }

    /// How long it is to be held.
    pub fn lease(&self) -> Result<Option<Duration>, Refusal> {
        checked_lease(self.ttl_ms)
    }
}

fn checked_lease(ttl_ms: Option<Whole>) -> Result<Option<Duration>, Refusal> {
    match ttl_ms.map(|Whole(ttl_ms)| u64::try_from(ttl_ms).unwrap_or(0)) {
        Some(0) => Err(Refusal::field("ttl_ms", "hold a permit for at least 1 ms")),
        ttl_ms => Ok(ttl_ms.map(Duration::from_millis)),
    }
}
