//! Configs of envoyproxy/ratelimit: their conversion, and the decisions of the converted policies.

mod conversion;
mod documented_examples;
mod errors;
mod fuzzed;
mod lookup;
mod messages;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::envoy::{Converted, EnvoyErrors, EnvoyFile, Options, convert};
use tidegate::unstable::gate::{Gate, GateRequest, GateVerdict, Subject};
use tidegate::unstable::stats::Stats;
use tidegate::{Algorithm, Limiter, ManualClock, Timestamp};

type Entries = Vec<(Cow<'static, str>, Cow<'static, str>)>;

pub fn converted(text: &str) -> Result<Converted, EnvoyErrors> {
    let options = Options { algorithm: Algorithm::FixedWindow, ..Options::default() };
    convert(&[EnvoyFile::new("limits.yaml", text)], &options)
}

/// Parses `a=x b=y` as the entries of a descriptor.
pub fn entries(words: &str) -> Entries {
    let pairs = words.split_whitespace().map(|word| word.split_once('=').expect("a pair"));
    pairs.map(|(name, value)| (name.to_owned().into(), value.to_owned().into())).collect()
}

/// A gate with the policies of a file, on a manual clock that starts at the beginning of a window.
pub struct Fixture {
    gate: Gate,
    clock: ManualClock,
    domain: String,
}

impl Fixture {
    pub fn new(text: &str) -> Self {
        let converted = converted(text).unwrap_or_else(|errors| panic!("{errors}"));
        let clock = ManualClock::new(Timestamp::from_micros(365 * 86_400 * 1_000_000 * 57));
        let limiter =
            Limiter::builder().max_keys(10_000).clock(clock.clock()).build().expect("memory");
        let policies = converted.config().policies.clone();
        let gate = Gate::new(limiter, policies, Arc::new(Stats::new(clock.clock())));
        let domain = text.lines().find_map(|line| line.trim().strip_prefix("domain: "));
        Fixture { gate, clock, domain: domain.expect("a domain").to_owned() }
    }

    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// Checks a request with these descriptors, which are separated by `;`. Returns whether it is
    /// allowed, and for each limit the policy, whether it admits, and the units left.
    pub fn check(&self, descriptors: &str) -> String {
        let all: Vec<Entries> = descriptors.split(';').map(entries).collect();
        let attributes: Vec<Attributes<'_>> = all
            .iter()
            .map(|entries| Attributes {
                domain: Some(&self.domain),
                descriptors: entries,
                ..Attributes::default()
            })
            .collect();
        let requests: Vec<GateRequest<'_>> =
            attributes.iter().map(|one| GateRequest::new(Subject::Request(one))).collect();
        let active = self.gate.active_policies();
        show(&self.gate.poll_now(self.gate.check(&active, &requests)).expect("a verdict"))
    }
}

fn show(verdict: &GateVerdict<'_>) -> String {
    let outcome = if verdict.allowed { "OK" } else { "OVER_LIMIT" };
    let results = verdict.results.iter().map(|result| {
        let (request, sign) =
            (result.request_index, if result.decision.allowed { '+' } else { '-' });
        format!(" {request}:{}{sign}{}", result.policy.expect("a name"), result.decision.remaining)
    });
    let unlimited = verdict.unlimited.iter().map(|request| format!(" {request}:unlimited"));
    results.chain(unlimited).fold(outcome.to_owned(), |out, result| out + &result)
}
