//! Converts bodies to a [`GateRequest`], or to an error that names the invalid field.
//!
//! A [`GateRequest`] borrows from its body. [`ParsedInputs`] owns what was parsed in addition,
//! attributes and limits, and therefore must outlive it.

use std::net::IpAddr;
use std::time::Duration;

use tidegate::unstable::attributes::{Attributes, Headers, RequestTarget};
use tidegate::unstable::gate::{GateRequest, Subject};
use tidegate::unstable::identity::parse_address;
use tidegate::unstable::policy::check_counts;
use tidegate::{Cost, Limit};

use super::json_body::{AttributesBody, CheckBody, JsonInt, Pairs, PermitBody, RenewBody, Text};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::{MAX_COST, checked_id, checked_key};

/// The maximum number of limits that a caller may send: as many as a policy may have.
const MAX_LIMITS: usize = tidegate::unstable::policy::MAX_LIMITS;

/// The maximum number of headers or descriptors in `attributes`: as many as a request may have.
const MAX_PAIRS: usize = 100;

/// The maximum wait of a check: after a minute, callers and gateways have given up.
const MAX_WAIT_MS: u64 = 60_000;

/// The parsed values that a [`GateRequest`] borrows.
#[derive(Debug, Default)]
pub struct ParsedInputs<'a> {
    attributes: Option<Attributes<'a>>,
    limits: Vec<Limit>,
}

impl<'a> AttributesBody<'a> {
    fn read(&'a self) -> Result<Attributes<'a>, RequestError> {
        let text = |text: &'a Option<Text<'a>>| text.as_ref().map(|text| &*text.0);
        let client_ip = match text(&self.client_ip) {
            None => None,
            Some(text) => Some(address(text)?),
        };
        // If the path is a whole URL, its host and query are used too.
        let target = text(&self.path).map(RequestTarget::new);
        let url_host = target.and_then(|target| target.host);
        let url_query = target.and_then(|target| target.query).filter(|query| !query.is_empty());
        let pairs = |name: &str, pairs: Option<&'a Pairs<'a>>| match pairs {
            None => Ok(&[][..]),
            Some(Pairs(pairs)) if pairs.len() <= MAX_PAIRS => Ok(&pairs[..]),
            Some(_) => {
                let detail = format!("there are more than {MAX_PAIRS}: send those that matter");
                Err(RequestError::field(format!("attributes.{name}"), detail))
            }
        };
        Ok(Attributes {
            method: text(&self.method),
            path: target.map(|target| target.path),
            query: text(&self.query).or(url_query),
            host: text(&self.host).or(url_host),
            client_ip,
            headers: Headers::Pairs(pairs("headers", self.headers.as_ref())?),
            domain: text(&self.domain),
            descriptors: pairs("descriptors", self.descriptors.as_ref().map(|listed| &listed.0))?,
        })
    }
}

fn address(text: &str) -> Result<IpAddr, RequestError> {
    parse_address(text).ok_or_else(|| {
        RequestError::field("attributes.client_ip", "not an IP address: send one such as 192.0.2.1")
    })
}

/// The fields that checks and permits have in common.
struct SharedFields<'a> {
    policy: Option<&'a str>,
    key: Option<&'a str>,
    attributes: Option<&'a AttributesBody<'a>>,
    limits: Option<&'a [Text<'a>]>,
}

/// Implements access to the fields that both bodies have. `serde(flatten)` would share them too,
/// but it buffers every field and no longer names unknown ones.
macro_rules! impl_shared_fields {
    ($body:ident) => {
        impl<'a> $body<'a> {
            fn shared_fields(&'a self) -> SharedFields<'a> {
                SharedFields {
                    policy: self.policy.as_ref().map(|text| &*text.0),
                    key: self.key.as_ref().map(|text| &*text.0),
                    attributes: self.attributes.as_ref().map(|object| &object.0),
                    limits: self.limits.as_deref(),
                }
            }

            /// Parses the values that the [`GateRequest`] borrows.
            pub fn inputs(&'a self) -> Result<ParsedInputs<'a>, RequestError> {
                self.shared_fields().inputs()
            }
        }
    };
}

impl_shared_fields!(CheckBody);
impl_shared_fields!(PermitBody);

impl<'a> SharedFields<'a> {
    fn inputs(&self) -> Result<ParsedInputs<'a>, RequestError> {
        let attributes = self.attributes.map(AttributesBody::read).transpose()?;
        let texts = self.limits.unwrap_or_default();
        if texts.len() > MAX_LIMITS {
            let detail = format!("there are more than {MAX_LIMITS}: give fewer");
            return Err(RequestError::field("limits", detail));
        }
        let limits = texts.iter().enumerate().map(|(index, Text(text))| {
            text.parse().map_err(|error: tidegate::LimitError| {
                RequestError::field(format!("limits[{index}]"), error.to_string())
            })
        });
        let limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
        check_counts(&limits).map_err(|error| {
            let error = RequestError::field("limits", error.to_string());
            error.with_kind(ErrorKind::Conflict)
        })?;
        Ok(ParsedInputs { attributes, limits })
    }

    fn subject<'q>(&self, inputs: &'q ParsedInputs<'a>) -> Result<Subject<'q>, RequestError>
    where
        'a: 'q,
    {
        let attributes = inputs.attributes.as_ref();
        match (self.policy, self.key, attributes, self.limits) {
            (Some(policy), Some(key), _, None) => {
                Ok(Subject::Key { policy, key: checked_key(key.as_bytes())?, attributes })
            }
            (Some(policy), None, Some(attributes), None) => {
                Ok(Subject::Policy { policy, attributes })
            }
            (None, None, Some(attributes), None) => Ok(Subject::Request(attributes)),
            (None, Some(key), None, Some(_)) if !inputs.limits.is_empty() => {
                Ok(Subject::Limits { key: checked_key(key.as_bytes())?, limits: &inputs.limits })
            }
            _ => Err(self.invalid_combination()),
        }
    }

    /// The error for a body that is none of the kinds above: which field to add or remove.
    #[cold]
    fn invalid_combination(&self) -> RequestError {
        let present = (
            self.policy.is_some(),
            self.key.is_some(),
            self.attributes.is_some(),
            self.limits.is_some(),
        );
        let (field, detail) = match present {
            (true, _, _, true) => (
                "limits",
                "cannot be combined with `policy`, which has its own limits: send one of them",
            ),
            (_, _, true, true) => (
                "limits",
                "cannot be combined with `attributes`, which select policies: send one of them",
            ),
            (_, false, _, true) => {
                ("key", "required with `limits`: send the name of who is counted")
            }
            (_, _, _, true) => ("limits", "it is empty: give at least one, such as \"5 per 1m\""),
            (false, true, true, _) => (
                "policy",
                "required with `key` and `attributes`: name a policy, or leave out `key`",
            ),
            (true, false, false, _) => ("key", "`key` or `attributes` is required"),
            (false, true, false, _) => ("policy", "`policy` or `limits` is required"),
            _ => (
                "policy",
                "required: send `policy` and `key`, or `attributes`, or `key` and `limits`",
            ),
        };
        RequestError::field(field, detail)
    }
}

fn checked_cost(JsonInt(cost): JsonInt) -> Result<i64, RequestError> {
    if (-MAX_COST..=MAX_COST).contains(&cost) {
        return Ok(cost);
    }
    let detail = format!("it is out of range: use a whole number from -{MAX_COST} to {MAX_COST}");
    Err(RequestError::field("cost", detail))
}

impl<'a> CheckBody<'a> {
    /// Converts the body to a [`GateRequest`].
    pub fn gate_request<'q>(
        &'a self,
        inputs: &'q ParsedInputs<'a>,
    ) -> Result<GateRequest<'q>, RequestError>
    where
        'a: 'q,
    {
        let subject = self.shared_fields().subject(inputs)?;
        let force = self.force.unwrap_or(false);
        let cost = match self.cost.map(checked_cost).transpose()? {
            Some(cost) if force && cost < 0 => {
                let detail = "cannot be combined with a negative `cost`, which is a refund";
                return Err(RequestError::field("force", detail));
            }
            Some(cost) if force => Some(Cost::Force(cost.unsigned_abs())),
            cost => cost.map(Cost::from_signed),
        };
        Ok(GateRequest { cost, force, id: self.id()?, ..GateRequest::new(subject) })
    }

    fn id(&self) -> Result<Option<&[u8]>, RequestError> {
        let id = self.id.as_ref().map(|Text(id)| checked_id("id", id.as_bytes()));
        id.transpose()
    }

    /// How long the check may wait instead of being denied.
    pub fn max_wait(&self) -> Result<Option<Duration>, RequestError> {
        let wait_ms = match self.max_wait_ms {
            None | Some(JsonInt(0)) => return Ok(None),
            Some(JsonInt(wait_ms)) => wait_ms,
        };
        let refuse = |detail: String| Err(RequestError::field("max_wait_ms", detail));
        let Some(wait_ms) = u64::try_from(wait_ms).ok().filter(|wait_ms| *wait_ms <= MAX_WAIT_MS)
        else {
            return refuse(format!(
                "it is out of range: use a whole number from 0 to {MAX_WAIT_MS}"
            ));
        };
        if self.id.is_some() {
            return refuse("cannot be combined with `id`: leave out one of them".into());
        }
        if self.force == Some(true) {
            return refuse(
                "cannot be combined with `force`, which never waits: leave out one of them".into(),
            );
        }
        // A peek or a refund never waits either.
        Ok(self.cost.is_none_or(|JsonInt(cost)| cost > 0).then(|| Duration::from_millis(wait_ms)))
    }
}

impl<'a> PermitBody<'a> {
    /// Converts the body to a [`GateRequest`].
    pub fn gate_request<'q>(
        &'a self,
        inputs: &'q ParsedInputs<'a>,
    ) -> Result<GateRequest<'q>, RequestError>
    where
        'a: 'q,
    {
        let subject = self.shared_fields().subject(inputs)?;
        let cost = self.cost.map(checked_cost).transpose()?;
        if cost.is_some_and(|cost| cost < 1) {
            return Err(RequestError::field("cost", "must be at least 1 for a permit"));
        }
        Ok(GateRequest { cost: cost.map(Cost::from_signed), ..GateRequest::new(subject) })
    }

    /// The requested lease.
    pub fn lease(&self) -> Result<Option<Duration>, RequestError> {
        checked_lease(self.ttl_ms)
    }
}

impl RenewBody {
    /// The requested lease, from now on.
    pub fn lease(&self) -> Result<Option<Duration>, RequestError> {
        checked_lease(self.ttl_ms)
    }
}

fn checked_lease(ttl_ms: Option<JsonInt>) -> Result<Option<Duration>, RequestError> {
    match ttl_ms.map(|JsonInt(ttl_ms)| u64::try_from(ttl_ms).unwrap_or(0)) {
        Some(0) => Err(RequestError::field("ttl_ms", "must be at least 1")),
        ttl_ms => Ok(ttl_ms.map(Duration::from_millis)),
    }
}
