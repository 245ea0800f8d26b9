//! Converts a request to one [`GateRequest`] per descriptor.
//!
//! A [`GateRequest`] borrows from the Envoy request. [`EnvoyRequests`] owns the values that it
//! needs in addition, and therefore must outlive it.

use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::bounds;
use tidegate::unstable::config::envoy::Unit;
use tidegate::unstable::gate::{GateError, GateRequest, Subject};
use tidegate::unstable::identity::parse_address;
use tidegate::unstable::policy::{MAX_KEY_BYTES, Policies};
use tidegate::{Algorithm, CheckError, Cost, Limit, MAX_CHECKS, Overflow};

use super::messages::{Descriptor, Entries, RateLimitRequest, RequestLimit};
use crate::envoy_ratelimit::CheckSettings;
use crate::error::{ErrorKind, RequestError};

/// The maximum number of descriptors in a request: with one limit each, no more can be decided at
/// once.
pub const MAX_DESCRIPTORS: usize = MAX_CHECKS;

/// The maximum number of entries of a descriptor: as many as an HTTP request may have headers.
pub const MAX_ENTRIES: usize = 100;

/// The maximum number of hits. More hits count as this number, which no limit admits. An error
/// would be worse: Envoy can take hits from what a client sends, and may let requests pass when the
/// call fails.
const MAX_HITS: u64 = bounds::MAX_COUNT + 1;

/// Envoy's entry for the address of the client.
const REMOTE_ADDRESS: &str = "remote_address";

/// The validated descriptors of a request.
#[derive(Debug)]
pub struct EnvoyRequests<'a> {
    descriptors: SmallVec<[DescriptorRequest<'a>; 2]>,
    /// Whether every descriptor is a quota.
    are_quotas: bool,
}

/// How requests are converted.
#[derive(Clone, Copy, Debug)]
pub struct RequestForm<'a> {
    /// The algorithm of limits that are sent with requests.
    pub algorithm: Algorithm,
    /// The settings with `--as-envoy-ratelimit`.
    pub envoy_ratelimit: Option<&'a CheckSettings>,
    /// The policies that decide.
    pub policies: &'a Policies,
}

#[derive(Debug)]
struct DescriptorRequest<'a> {
    subject: DescriptorSubject<'a>,
    cost: Option<Cost>,
}

#[derive(Debug)]
enum DescriptorSubject<'a> {
    /// The policies that match.
    Policies(Attributes<'a>),
    /// A limit that is sent with the request.
    InlineLimit { key: Vec<u8>, limit: [Limit; 1] },
}

impl<'a> EnvoyRequests<'a> {
    /// Validates a request.
    ///
    /// # Errors
    /// When a field is invalid; the error names it.
    pub fn new(
        request: &'a RateLimitRequest<'_>,
        form: RequestForm<'_>,
    ) -> Result<Self, RequestError> {
        if request.domain.is_empty() {
            return Err(RequestError::field(
                "domain",
                "it is empty: send the `domain` of the filter's configuration",
            ));
        }
        match request.descriptors.len() {
            1..=MAX_DESCRIPTORS => {}
            0 => {
                return Err(RequestError::field("descriptors", "it is empty: send at least one"));
            }
            _ => {
                return Err(RequestError::field(
                    "descriptors",
                    format!("there are more than {MAX_DESCRIPTORS}: send fewer"),
                ));
            }
        }
        let each = request.descriptors.iter().enumerate();
        let each = each.map(|(index, descriptor)| {
            let converted = to_descriptor_request(request, descriptor, form);
            converted.map_err(|(field, detail)| {
                RequestError::field(format!("descriptors[{index}].{field}"), detail)
            })
        });
        Ok(EnvoyRequests {
            descriptors: each.collect::<Result<_, _>>()?,
            are_quotas: form.envoy_ratelimit.is_some_and(|settings| settings.quota_mode),
        })
    }

    /// Returns the requests to the gate, in the order of the descriptors. Envoy reports the usage
    /// of a stream when it ends, so a cost above the limit consumes what is left, unless the policy
    /// overrides that.
    pub fn gate_requests<'q>(
        &'q self,
        request_id: Option<&'q str>,
    ) -> SmallVec<[GateRequest<'q>; 2]> {
        let gate_request = |one: &'q DescriptorRequest<'a>| {
            let subject = match &one.subject {
                DescriptorSubject::Policies(attributes) => Subject::Request(attributes),
                DescriptorSubject::InlineLimit { key, limit } => {
                    Subject::Limits { key, limits: limit }
                }
            };
            GateRequest {
                cost: one.cost,
                overflow: Overflow::Consume,
                is_quota: self.are_quotas,
                request_id,
                ..GateRequest::new(subject)
            }
        };
        self.descriptors.iter().map(gate_request).collect()
    }
}

/// Converts an error of the gate to one about the descriptors.
pub fn descriptor_error(error: GateError) -> RequestError {
    if let GateError::Check(CheckError::TooManyChecks(count)) = error {
        let detail = format!(
            "{count} limits apply to them, more than {MAX_CHECKS}: send fewer \
             descriptors, or narrow the `match` of some policies"
        );
        return RequestError::field("descriptors", detail).with_kind(ErrorKind::Conflict);
    }
    let error = RequestError::from(error);
    let is_about_them = !matches!(error.kind, ErrorKind::WrongOperation | ErrorKind::StoreFailed);
    RequestError { field: is_about_them.then(|| "descriptors".into()), ..error }
}

/// A field of a descriptor, and its error.
type FieldError = (String, String);

fn to_descriptor_request<'a>(
    request: &'a RateLimitRequest<'_>,
    descriptor: &'a Descriptor<'_>,
    form: RequestForm<'_>,
) -> Result<DescriptorRequest<'a>, FieldError> {
    let entries = &descriptor.entries;
    check_entries(entries)?;
    let cost = cost(request, descriptor);
    // envoyproxy/ratelimit has no limit for a domain that no config has.
    let is_known = |_: &&RequestLimit| {
        form.envoy_ratelimit.is_none() || form.policies.envoy_domains().contains(&*request.domain)
    };
    let subject = match descriptor.limit.as_ref().filter(is_known) {
        None => DescriptorSubject::Policies(Attributes {
            domain: Some(&request.domain),
            client_ip: client_ip(entries),
            descriptors: entries,
            ..Attributes::default()
        }),
        Some(limit) => DescriptorSubject::InlineLimit {
            key: request_limit_key(&request.domain, entries),
            limit: [request_limit(limit, form.algorithm)?],
        },
    };
    Ok(DescriptorRequest { subject, cost })
}

fn check_entries(entries: &Entries<'_>) -> Result<(), FieldError> {
    if entries.is_empty() {
        return Err(("entries".into(), "it is empty: send at least one".into()));
    }
    if entries.len() > MAX_ENTRIES {
        let detail = format!("there are more than {MAX_ENTRIES}: send fewer");
        return Err(("entries".into(), detail));
    }
    match entries.iter().position(|(key, _)| key.is_empty()) {
        None => Ok(()),
        Some(index) => {
            Err((format!("entries[{index}].key"), "it is empty: send the name of the entry".into()))
        }
    }
}

/// The cost of a descriptor; `None` if each policy defines it.
fn cost(request: &RateLimitRequest<'_>, descriptor: &Descriptor<'_>) -> Option<Cost> {
    let hits = match (descriptor.hits_addend, request.hits_addend) {
        (Some(hits), _) => hits.min(MAX_HITS),
        (None, 0) if descriptor.is_negative_hits => 1,
        (None, 0) => return None,
        (None, hits) => u64::from(hits),
    };
    let gives_back = descriptor.is_negative_hits && hits > 0;
    Some(if gives_back { Cost::Refund(hits) } else { Cost::Ask(hits) })
}

/// The address of the client, if a descriptor has it. A value that is not an address is ignored.
fn client_ip(entries: &Entries<'_>) -> Option<std::net::IpAddr> {
    let (_, value) = entries.iter().find(|(key, _)| key == REMOTE_ADDRESS)?;
    parse_address(value)
}

/// The key of a limit that is sent with a request: domain and entries, each with its length, so
/// that keys are injective. A key longer than [`MAX_KEY_BYTES`] is replaced by a digest. A
/// `/v1/check` with limits counts in the same namespace, so a caller can name these keys.
fn request_limit_key(domain: &str, entries: &Entries<'_>) -> Vec<u8> {
    let texts = || {
        let each = entries.iter().flat_map(|(key, value)| [&**key, &**value]);
        std::iter::once(domain).chain(each)
    };
    let mut out = Vec::with_capacity(texts().map(|text| text.len() + 4).sum());
    for text in texts() {
        out.extend_from_slice(itoa::Buffer::new().format(text.len()).as_bytes());
        out.push(b'#');
        out.extend_from_slice(text.as_bytes());
    }
    if out.len() > MAX_KEY_BYTES {
        let digest = Sha256::digest(&out);
        out.clear();
        out.push(b'#');
        out.extend_from_slice(&digest);
    }
    out
}

fn request_limit(limit: &RequestLimit, algorithm: Algorithm) -> Result<Limit, FieldError> {
    let unit = match Unit::from_number(limit.unit) {
        None | Some(Unit::Unknown) => {
            let detail = format!(
                "{} is not a unit of time: send SECOND (1), MINUTE (2), HOUR (3), DAY (4), \
                 MONTH (5), YEAR (6) or WEEK (7)",
                limit.unit
            );
            return Err(("limit.unit".into(), detail));
        }
        Some(unit) => unit,
    };
    let made = Limit::new(limit.requests_per_unit.into(), unit.duration(), algorithm);
    made.map_err(|error| ("limit".into(), error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(entries: &[(&'static str, &'static str)]) -> Descriptor<'static> {
        let entries = entries.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        Descriptor { entries: entries.collect(), ..Descriptor::default() }
    }

    fn request(descriptors: &[Descriptor<'static>]) -> RateLimitRequest<'static> {
        RateLimitRequest { domain: "edge".into(), descriptors: descriptors.into(), hits_addend: 0 }
    }

    fn convert<'a>(request: &'a RateLimitRequest<'_>) -> Result<EnvoyRequests<'a>, RequestError> {
        let (algorithm, policies) = (Algorithm::default(), &Policies::default());
        EnvoyRequests::new(request, RequestForm { algorithm, envoy_ratelimit: None, policies })
    }

    fn rejection(request: &RateLimitRequest<'_>) -> String {
        let refused = convert(request).expect_err("an invalid request");
        assert_eq!(refused.kind, ErrorKind::Invalid);
        refused.to_string()
    }

    #[test]
    fn converts_hits_to_costs() {
        // `hits_addend` of the descriptor, `is_negative_hits`, `hits_addend` of the request, the
        // cost.
        #[rustfmt::skip]
        let rows = [
            (None, false, 0, None),
            (None, false, 3, Some(Cost::Ask(3))),
            (None, true, 0, Some(Cost::Refund(1))),
            (None, true, 3, Some(Cost::Refund(3))),
            (Some(0), false, 3, Some(Cost::Ask(0))),
            (Some(0), true, 3, Some(Cost::Ask(0))),
            (Some(2), false, 3, Some(Cost::Ask(2))),
            (Some(2), true, 3, Some(Cost::Refund(2))),
            (Some(MAX_HITS - 1), false, 0, Some(Cost::Ask(1_000_000_000_000))),
            (Some(u64::MAX), false, 0, Some(Cost::Ask(MAX_HITS))),
            (Some(u64::MAX), true, 0, Some(Cost::Refund(MAX_HITS))),
        ];
        for (hits_addend, is_negative_hits, of_request, expected) in rows {
            let one = Descriptor { hits_addend, is_negative_hits, ..descriptor(&[("a", "b")]) };
            let request = RateLimitRequest { hits_addend: of_request, ..request(&[one]) };
            let envoy_requests = convert(&request).expect("a valid request");
            let gate_requests = envoy_requests.gate_requests(Some("id"));
            let case = format!("{hits_addend:?} {is_negative_hits} {of_request}");
            assert_eq!(gate_requests[0].cost, expected, "{case}");
            assert_eq!(gate_requests[0].request_id, Some("id"));
        }
    }

    #[test]
    fn rejects_invalid_fields_by_name() {
        let good = descriptor(&[("a", "b")]);
        let limited = |requests_per_unit, unit| Descriptor {
            limit: Some(RequestLimit { requests_per_unit, unit }),
            ..good.clone()
        };
        let many = descriptor(&vec![("a", "b"); MAX_ENTRIES + 1]);
        #[rustfmt::skip]
        let rows = [
            (RateLimitRequest { domain: "".into(), ..request(std::slice::from_ref(&good)) },
             "domain: it is empty: send the `domain` of the filter's configuration"),
            (request(&[]), "descriptors: it is empty: send at least one"),
            (request(&vec![good.clone(); 257]), "descriptors: there are more than 256: send fewer"),
            (request(&[good.clone(), descriptor(&[])]), "descriptors[1].entries: it is empty: \
            send at least one"),
            (request(&[many]), "descriptors[0].entries: there are more than 100: send fewer"),
            (request(&[descriptor(&[("a", ""), ("", "b")])]),
             "descriptors[0].entries[1].key: it is empty: send the name of the entry"),
            (request(&[limited(1, 0)]),
             "descriptors[0].limit.unit: 0 is not a unit of time: send SECOND (1), MINUTE (2), \
              HOUR (3), DAY (4), \
              MONTH (5), YEAR (6) or WEEK (7)"),
        ];
        for (request, expected) in rows {
            assert_eq!(rejection(&request), expected);
        }
        assert!(convert(&request(&[limited(0, 6)])).is_ok());
    }

    #[test]
    fn request_limit_keys_are_injective() {
        let key = |domain: &str, entries: &[(&'static str, &'static str)]| {
            request_limit_key(domain, &descriptor(entries).entries)
        };
        let rows = [
            key("d", &[("a", "b")]),
            key("d", &[("a", "b"), ("c", "d")]),
            key("d", &[("ab", "")]),
            key("da", &[("b", "")]),
            key("d", &[("a", "1#b")]),
        ];
        for (index, one) in rows.iter().enumerate() {
            assert!(rows[..index].iter().all(|other| other != one), "{one:?}");
        }
        let long = |last: &str| {
            let value = "x".repeat(MAX_KEY_BYTES) + last;
            request_limit_key("d", &std::iter::once(("a".into(), value.into())).collect())
        };
        assert_eq!(long("1").len(), 33);
        assert_ne!(long("1"), long("2"));
    }

    #[test]
    fn takes_client_address_from_entry() {
        let rows = [
            (&[("remote_address", "192.0.2.1")][..], Some("192.0.2.1")),
            (&[("x", "y"), ("remote_address", "::ffff:192.0.2.1")], Some("192.0.2.1")),
            (&[("remote_address", "10.0.0.0/8")], None),
            (&[("x", "192.0.2.1")], None),
        ];
        for (entries, expected) in rows {
            let found = client_ip(&descriptor(entries).entries);
            assert_eq!(
                found,
                expected.map(|text| text.parse().expect("an address")),
                "{entries:?}"
            );
        }
    }
}
