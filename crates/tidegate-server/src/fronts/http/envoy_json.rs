//! `POST /json`: Envoy's rate limit service over plain HTTP, compatible with envoyproxy/ratelimit.
//! The request is a `RateLimitRequest` and the response a `RateLimitResponse`, both in the JSON
//! mapping of Protocol Buffers. The status is 200, or 429 when denied. With `--as-envoy-ratelimit`,
//! any method and content type is accepted.
//!
//! The meaning of both is documented in `fronts/envoy/`; this file only decodes and encodes them.
//! As the mapping specifies, names may be written `hitsAddend` or `hits_addend`, numbers may be
//! quoted, `null` means absent, and values that are 0 or empty are omitted from the response.

use std::fmt;
use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::{Map, Value, json};
use tidegate::Limit;
use tidegate::unstable::config::envoy::Unit;

use super::json_body::{BoundedVec, Object, Text, decode};
use super::response::{HttpResponse, RequestId, json as json_answer};
use super::{HttpFront, read_json};
use crate::error::RequestError;
use crate::fronts::REQUEST_ID;
use crate::fronts::envoy::{
    self, EnvoyRequests, MAX_DESCRIPTORS, MAX_ENTRIES, Reply, ReplyForm, RequestForm, Status,
};
use crate::fronts::request_body::{self, MAX_ENVOY_BYTES};

/// The path of the endpoint.
pub const PATH: &str = "/json";

impl HttpFront {
    pub(super) async fn should_rate_limit(&self, request: Request<Incoming>) -> HttpResponse {
        let (head, body) = request.into_parts();
        let id = RequestId::of(&head.headers);
        let read = match self.envoy_ratelimit {
            // envoyproxy/ratelimit does not read the content type.
            Some(_) => request_body::collect(body, None, MAX_ENVOY_BYTES).await,
            None => read_json(&head, body, None, MAX_ENVOY_BYTES).await,
        };
        let answered = match read {
            Ok(body) => self.decide_envoy(&body, &id).await,
            Err(error) => Err(error),
        };
        if let (Some(metrics), Err(error)) = (&self.metrics, &answered) {
            metrics.count_error(error);
        }
        answered.unwrap_or_else(|error| error.respond(&id))
    }

    async fn decide_envoy(
        &self,
        body: &[u8],
        id: &RequestId<'_>,
    ) -> Result<HttpResponse, RequestError> {
        envoy::require_config(&self.server_state)?;
        let body: RequestBody<'_> = decode(body)?;
        let request = body.request();
        let active = Arc::clone(&self.gate.active_policies());
        let form = RequestForm {
            algorithm: self.algorithm,
            envoy_ratelimit: self.envoy_ratelimit.as_ref(),
            policies: active.policies(),
        };
        let envoy_requests = EnvoyRequests::new(&request, form)?;
        let gate_requests = envoy_requests.gate_requests(Some(id.as_str()));
        let verdict =
            self.gate.check(&active, &gate_requests).await.map_err(envoy::descriptor_error)?;
        if let Some(metrics) = &self.metrics {
            metrics.count(&verdict, &request, active.policies());
        }
        let form = ReplyForm {
            forms: **self.forms.load(),
            envoy_ratelimit: self.envoy_ratelimit.as_ref(),
            policies: active.policies(),
            now: self.gate.now(),
        };
        Ok(reply(&Reply::new(&verdict, &request, form)?, id))
    }
}

fn reply(reply: &Reply<'_>, id: &RequestId<'_>) -> HttpResponse {
    let status = if reply.allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let mut response = json_answer(status, shown(reply).to_string().into_bytes());
    if !reply.allowed {
        response.headers_mut().insert(REQUEST_ID, id.header());
    }
    response
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RequestBody<'a> {
    #[serde(borrow)]
    domain: Option<Text<'a>>,
    #[serde(borrow)]
    descriptors: Option<BoundedVec<Object<DescriptorBody<'a>>, { MAX_DESCRIPTORS + 1 }>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number<u32>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DescriptorBody<'a> {
    #[serde(borrow)]
    entries: Option<BoundedVec<Object<EntryBody<'a>>, { MAX_ENTRIES + 1 }>>,
    limit: Option<Object<LimitBody>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number<u64>>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EntryBody<'a> {
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(borrow)]
    value: Option<Text<'a>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitBody {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<Number<u32>>,
    unit: Option<UnitNumber>,
}

impl<'a> RequestBody<'a> {
    fn request(&'a self) -> envoy::RateLimitRequest<'a> {
        let descriptors = self.descriptors.iter().flat_map(|first| &first.0);
        let descriptors = descriptors.map(|Object(one)| {
            let entries = one.entries.iter().flat_map(|first| &first.0);
            let limit = one.limit.as_ref().map(|Object(limit)| envoy::RequestLimit {
                requests_per_unit: limit.requests_per_unit.map_or(0, |number| number.0),
                unit: limit.unit.map_or(0, |unit| unit.0),
            });
            envoy::Descriptor {
                entries: entries.map(|Object(e)| (text(&e.key), text(&e.value))).collect(),
                limit,
                hits_addend: one.hits_addend.map(|number| number.0),
                is_negative_hits: one.is_negative_hits.unwrap_or_default(),
            }
        });
        envoy::RateLimitRequest {
            domain: text(&self.domain),
            descriptors: descriptors.collect(),
            hits_addend: self.hits_addend.map_or(0, |number| number.0),
        }
    }
}

fn text<'a>(text: &'a Option<Text<'a>>) -> std::borrow::Cow<'a, str> {
    text.as_ref().map(|text| &*text.0).unwrap_or_default().into()
}

/// A whole number, which may be quoted.
#[derive(Clone, Copy, Debug)]
struct Number<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = deserializer.deserialize_any(NumberVisitor)?;
        let out_of_range = || de::Error::custom(format_args!("{number} is out of range"));
        T::try_from(number).map(Number).map_err(|_| out_of_range())
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<u64, E> {
        #[expect(clippy::cast_precision_loss, reason = "beyond it nothing is exact anyway")]
        let fits = number.trunc() == number && (0.0..u64::MAX as f64).contains(&number);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just checked")]
        let whole = number as u64;
        if fits { Ok(whole) } else { Err(E::invalid_value(de::Unexpected::Float(number), &self)) }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// A unit of time, by name or number.
#[derive(Clone, Copy, Debug)]
struct UnitNumber(u64);

impl<'de> Deserialize<'de> for UnitNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitVisitor)
    }
}

struct UnitVisitor;

impl Visitor<'_> for UnitVisitor {
    type Value = UnitNumber;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<UnitNumber, E> {
        Ok(UnitNumber(number))
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<UnitNumber, E> {
        let unknown = || E::invalid_value(de::Unexpected::Str(name), &self);
        Unit::from_message_name(name).map(|unit| UnitNumber(unit.number())).ok_or_else(unknown)
    }
}

fn shown(reply: &Reply<'_>) -> Value {
    let mut out = Map::new();
    out.insert("overallCode".into(), code(!reply.allowed));
    let statuses: Vec<Value> = reply.statuses.iter().map(status).collect();
    out.insert("statuses".into(), statuses.into());
    let headers = reply.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        json!({ "key": name.as_str(), "value": value })
    });
    let counts = reply.counts.iter();
    let counts = counts.map(|(name, count)| json!({ "key": name, "value": count.to_string() }));
    let headers: Vec<Value> = headers.chain(counts).collect();
    if !headers.is_empty() {
        out.insert("responseHeadersToAdd".into(), headers.into());
    }
    if !reply.metadata.is_empty() {
        out.insert("dynamicMetadata".into(), metadata(&reply.metadata));
    }
    out.into()
}

fn metadata(fields: &[(&str, envoy::Value<'_>)]) -> Value {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), metadatum(value)));
    fields.collect::<Map<_, _>>().into()
}

fn code(denied: bool) -> Value {
    if denied { "OVER_LIMIT".into() } else { "OK".into() }
}

fn status(status: &Status<'_>) -> Value {
    let mut out = Map::new();
    out.insert("code".into(), code(status.denied));
    if let Some((name, limit)) = status.limit {
        out.insert("currentLimit".into(), current_limit(name, limit));
        out.insert("durationUntilReset".into(), seconds(status.until_reset).into());
    }
    if status.remaining > 0 {
        out.insert("limitRemaining".into(), at_most_32_bits(status.remaining).into());
    }
    out.into()
}

fn current_limit(name: &str, limit: &Limit) -> Value {
    let mut out = Map::new();
    if !name.is_empty() {
        out.insert("name".into(), name.into());
    }
    if limit.count() > 0 {
        out.insert("requestsPerUnit".into(), at_most_32_bits(limit.count()).into());
    }
    if let Some(unit) = Unit::of_limit(limit) {
        out.insert("unit".into(), unit.message_name().into());
    }
    out.into()
}

/// Formats a duration as Protocol Buffers do in JSON: `1.500s`.
fn seconds(time: std::time::Duration) -> String {
    let (whole, micros) = (time.as_secs(), time.subsec_micros());
    match (micros, micros % 1000) {
        (0, _) => format!("{whole}s"),
        (_, 0) => format!("{whole}.{:03}s", micros / 1000),
        _ => format!("{whole}.{micros:06}s"),
    }
}

fn metadatum(value: &envoy::Value<'_>) -> Value {
    match value {
        envoy::Value::Null => Value::Null,
        envoy::Value::Number(number) => (*number).into(),
        envoy::Value::Text(text) => (*text).into(),
        envoy::Value::Double(number) => (*number).into(),
        envoy::Value::Bool(value) => (*value).into(),
        envoy::Value::OwnedText(text) => text.clone().into(),
        envoy::Value::List(values) => values.iter().map(metadatum).collect::<Vec<_>>().into(),
        envoy::Value::Map(fields) => metadata(fields),
        envoy::Value::Texts(texts) => texts.iter().copied().collect::<Vec<_>>().into(),
    }
}

/// Saturates a number at 32 bits, the size of Envoy's fields.
fn at_most_32_bits(number: u64) -> u64 {
    number.min(u32::MAX.into())
}
