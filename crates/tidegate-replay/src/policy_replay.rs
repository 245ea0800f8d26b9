//! Replays whole policy files: the gate that serves them decides every event at its own time.
//!
//! The keys of a request are computed a second time, by the same selection, to report which keys
//! were denied and to count the ground truth.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{
    ActivePolicies, Gate, GateError, GateRequest, GateVerdict, LimitResult, Subject,
};
use tidegate::unstable::policy::{
    Mode, Override, Policies, Policy, PolicyError, SelectedPolicy, Template,
};
use tidegate::unstable::stats::Stats;
use tidegate::{Algorithm, Cost, Limit, Limiter, ManualClock, Timestamp};

use crate::block::{Block, Row};
use crate::engine::{EventOutcome, Memory};
use crate::error::ReplayError;
use crate::format::LineAttributes;
use crate::keys::KeyNumbers;
use crate::policy_limits::{LimitAnswer, PolicyLimit, PolicyLimits};
use crate::run::with_limit_algorithm;
use crate::tally::Tally;
use crate::timeline::Timeline;
use crate::unseen_fields::UnseenFields;

/// Separates the name of a policy from a key. Names of policies do not contain it.
const KEY_SEPARATOR: u8 = 0;

/// A gate with the policies, and the counts of its verdicts.
pub struct PolicyReplay {
    gate: Arc<Gate>,
    rules: Arc<ActivePolicies>,
    clock: ManualClock,
    limits: PolicyLimits,
    /// The keys of all policies, numbered together.
    keys: KeyNumbers,
    key_text: Vec<u8>,
    pub undecided: UndecidedCounts,
}

/// The numbers of requests that were not decided as usual.
#[derive(Clone, Debug, Default)]
pub struct UndecidedCounts {
    /// Requests that no policy applied to, and that passed.
    pub unmatched: u64,
    /// Requests that matched a policy that needs a permit, and are neither admitted nor denied.
    pub not_replayed: u64,
    /// Requests whose cost was not a number, or that the gate refused for another reason.
    pub refused: u64,
    /// By the name of a policy, the template of its key and the number of requests whose key lacks
    /// a part.
    pub incomplete: BTreeMap<String, (Template, u64)>,
    /// The fields that conditions of the policies name and no request had.
    pub unseen: UnseenFields,
    /// Requests for whose keys the store had no capacity.
    pub no_room: u64,
    /// The error of the first request that was not decided.
    pub first: Option<String>,
}

impl UndecidedCounts {
    fn count_incomplete(&mut self, policy: &Policy) {
        match self.incomplete.get_mut(policy.name()) {
            Some((_, requests)) => *requests += 1,
            None => {
                let first = (policy.key_template().clone(), 1);
                self.incomplete.insert(policy.name().into(), first);
            }
        }
    }
}

/// The outcome of one request.
#[derive(Default)]
struct RequestOutcome {
    answer: EventOutcome,
    fits: bool,
}

impl PolicyReplay {
    pub fn new(config: &Config, policies: Policies) -> Result<Self, ReplayError> {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let limiter = Limiter::builder()
            .max_keys(config.max_keys)
            .max_log_entries(config.max_log_entries)
            .when_full(config.when_full)
            .clock(clock.clock())
            .build()
            .map_err(ReplayError::Build)?;
        let stats = Arc::new(Stats::new(clock.clock()));
        let gate = Arc::new(Gate::new(limiter, policies, stats));
        let rules = Arc::clone(&gate.active_policies());
        let limits = PolicyLimits::new(rules.policies());
        let unseen = UnseenFields::new(rules.policies());
        Ok(PolicyReplay {
            gate,
            rules,
            clock,
            limits,
            keys: KeyNumbers::new(),
            key_text: Vec::new(),
            undecided: UndecidedCounts { unseen, ..UndecidedCounts::default() },
        })
    }

    pub fn limits(&self) -> &[PolicyLimit] {
        self.limits.as_slice()
    }

    /// Keeps the counts between requests from now on.
    pub fn keep_held(&mut self) {
        self.limits.keep_held();
    }

    /// Ends the counts of all keys.
    pub fn finish(&mut self, timeline: &mut Timeline) {
        self.limits.finish(timeline);
    }

    /// Returns how often each key was used. A key of two policies counts as two keys.
    pub fn events_of(&self) -> Vec<u32> {
        self.keys.events()
    }

    pub fn memory(&self) -> Memory {
        let stats = self.gate.limiter().stats();
        Memory { states: stats.tracked_keys, entries: stats.log_entries }
    }

    /// Decides a block and counts the outcomes.
    pub fn take(&mut self, block: &Block, tally: &mut Tally, answers: &mut Vec<EventOutcome>) {
        answers.clear();
        // Cloned, because `self` is borrowed mutably below.
        let (gate, rules) = (Arc::clone(&self.gate), Arc::clone(&self.rules));
        let identity = rules.policies().identity();
        for (row, packed) in block.events() {
            let line = LineAttributes::unpack(packed);
            // Costs in the trace take precedence over the costs of the policies.
            let cost = line.has_cost.then(|| Cost::from_signed(row.cost));
            let outcome = line.with_attributes(identity, |attributes| {
                self.decide((row, cost), (&gate, &rules, attributes), tally)
            });
            let Some(outcome) = outcome else {
                answers.push(EventOutcome::default());
                continue;
            };
            let place = tally.timeline.bin_index(row.time_us);
            tally.count(place, outcome.answer.allowed, outcome.fits);
            answers.push(outcome.answer);
        }
    }

    /// Decides one request. Returns `None` for a request that cannot be replayed.
    fn decide(
        &mut self,
        (row, cost): (&Row, Option<Cost>),
        (gate, rules, attributes): (&Gate, &ActivePolicies, &Attributes<'_>),
        tally: &mut Tally,
    ) -> Option<RequestOutcome> {
        self.clock.set(Timestamp::from_micros(row.time_us));
        self.undecided.unseen.observe(attributes);
        let question = GateRequest { cost, ..GateRequest::new(Subject::Request(attributes)) };
        let answer = gate.poll_now(gate.check(rules, &[question]));
        let (selected, answer) = match (rules.policies().select(attributes), answer) {
            (Ok(selected), Ok(answer)) => (selected, answer),
            (_, Err(error)) => return self.count_undecided(&error),
            (Err(error), _) => return self.count_undecided(&GateError::Select(error)),
        };
        self.undecided.unmatched += u64::from(selected.is_empty());
        self.undecided.no_room += u64::from(answer.no_room);
        let place = tally.timeline.bin_index(row.time_us);
        let mut room = Room::new();
        for of in &selected {
            let mut fits = true;
            let of_policy = |result: &&LimitResult<'_>| result.policy == Some(of.policy.name());
            let results = || answer.results.iter().filter(of_policy);
            let charged = answer.allowed && results().all(|result| result.decision.allowed);
            let units =
                cost.map_or_else(|| i64::try_from(of.cost).unwrap_or(i64::MAX), |_| row.cost);
            for result in results() {
                let answer = LimitAnswer {
                    result,
                    key: of.key.as_ref(),
                    time_us: row.time_us,
                    units,
                    overflow: of.overflow,
                    allowed: answer.allowed,
                    charged,
                };
                fits &= self.limits.count(&answer, place, &mut tally.timeline);
            }
            room.add_policy(of, fits, charged);
        }
        let fits = if row.cost <= 0 { answer.allowed } else { room.fits(answer.allowed) };
        Some(RequestOutcome { answer: self.count_keys(&answer, &selected, row, tally), fits })
    }

    /// Counts the keys of a request. A denial counts for the key of every policy that denied, and a
    /// near miss for the one that came nearest to a denial.
    fn count_keys(
        &mut self,
        verdict: &GateVerdict<'_>,
        selected: &[SelectedPolicy<'_>],
        row: &Row,
        tally: &mut Tally,
    ) -> EventOutcome {
        let is_near = |result: &&LimitResult<'_>| {
            result.is_enforced() && EventOutcome::new(result.limit, row.cost, &result.decision).near
        };
        let nearest = verdict.results.iter().find(is_near).filter(|_| verdict.allowed);
        tally.near += u64::from(nearest.is_some());
        for one in selected {
            let key = one.key.as_ref();
            if key.contains(&0) {
                self.undecided.count_incomplete(one.policy);
            }
            let name = one.policy.name();
            self.key_text.clear();
            self.key_text.extend_from_slice(name.as_bytes());
            self.key_text.push(KEY_SEPARATOR);
            self.key_text.extend_from_slice(key);
            let number = self.keys.number_of(&self.key_text);
            let denies = |result: &LimitResult<'_>| {
                result.policy == Some(name) && result.is_enforced() && !result.decision.allowed
            };
            if !verdict.allowed && verdict.results.iter().any(denies) {
                tally.keys.denied(number, &self.key_text);
            } else if nearest.is_some_and(|result| result.policy == Some(name)) {
                tally.keys.near(number, &self.key_text);
            }
        }
        EventOutcome { allowed: verdict.allowed, near: nearest.is_some() }
    }

    #[cold]
    fn count_undecided(&mut self, error: &GateError) -> Option<RequestOutcome> {
        self.undecided.first.get_or_insert_with(|| error.to_string());
        if let GateError::NeedsPermit { .. } = error {
            self.undecided.not_replayed += 1;
            return None;
        }
        self.undecided.refused += 1;
        Some(RequestOutcome::default())
    }
}

/// Where the ground truth had capacity for a request. Policies in observe mode do not affect
/// whether the verdict was correct.
struct Room {
    /// Whether all limits of every enforced policy that was charged had capacity. An admitted
    /// request charges the enforced policies, except quotas that are used up.
    charged: bool,
    /// Whether all limits of every enforced policy that is not a quota had capacity.
    required: bool,
    /// Whether all limits of at least one quota had capacity; `None` without quotas.
    any_quota: Option<bool>,
}

impl Room {
    fn new() -> Self {
        Room { charged: true, required: true, any_quota: None }
    }

    /// Adds a policy. `fits` is whether all of its limits had capacity.
    fn add_policy(&mut self, of: &SelectedPolicy<'_>, fits: bool, charged: bool) {
        if of.mode != Mode::Enforce {
            return;
        }
        self.charged &= fits || !charged;
        match of.policy.is_quota() {
            true => self.any_quota = Some(self.any_quota.unwrap_or(false) || fits),
            false => self.required &= fits,
        }
    }

    /// Returns whether the request fitted: under the limits that an admission charged, or under
    /// those that would have sufficed to admit a denied request.
    fn fits(&self, allowed: bool) -> bool {
        match allowed {
            true => self.charged,
            false => self.required && self.any_quota.unwrap_or(true),
        }
    }
}

/// Splits the text of a key into the name of a policy and the key.
pub fn split_key(name: &[u8]) -> (Option<&str>, &[u8]) {
    match memchr::memchr(KEY_SEPARATOR, name) {
        Some(at) => (std::str::from_utf8(&name[..at]).ok(), &name[at + 1..]),
        None => (None, name),
    }
}

/// Returns the policies with every rate limit under another algorithm.
pub fn with_algorithm(policies: &Policies, algorithm: Algorithm) -> Result<Policies, ReplayError> {
    let changed = policies.iter().map(|policy| {
        let unlike = |error| ReplayError::Policy { policy: policy.name().into(), algorithm, error };
        change_policy(policy, algorithm).map_err(unlike)
    });
    let changed = changed.collect::<Result<Vec<_>, _>>()?;
    // The policies were valid together before, and the number of limits has not changed.
    let changed = Policies::new(changed, policies.identity().clone());
    let changed = changed.map_err(ReplayError::Policies)?;
    Ok(changed.with_path_variants(policies.path_variants()))
}

fn change_policy(policy: &Policy, algorithm: Algorithm) -> Result<Policy, PolicyError> {
    let all = |limits: &[Limit]| {
        limits.iter().map(|limit| with_limit_algorithm(limit, algorithm)).collect()
    };
    let key = policy.key_template().clone();
    let base = if policy.is_unlimited() {
        Policy::unlimited(policy.name(), key)?
    } else {
        Policy::new(policy.name(), key, all(policy.limits()))?
    };
    let mut changed = base
        .with_match(policy.matching().clone())
        .with_exempt(policy.exempt().clone())
        .with_replaces(policy.replaces())
        .with_quota(policy.is_quota())
        .with_mode(policy.mode())
        .with_cost(policy.cost().clone());
    if let Some(overflow) = policy.overflow() {
        changed = changed.with_overflow(overflow);
    }
    for variant in policy.variants().iter().skip(1) {
        changed = changed.with_override(Override {
            when: variant.when().clone(),
            limits: Some(all(variant.limits())),
            mode: Some(variant.mode()),
            on_store_failure: None,
            cost: Some(variant.cost().clone()),
            overflow: variant.overflow(),
        })?;
    }
    Ok(changed)
}
