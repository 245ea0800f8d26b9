//! Whole policy files: every event through the gate that serves them, at its own time.
//!
//! The gate decides; what it was asked under which key is worked out beside it, by the
//! same selection, to say who was denied and to count the truth apart. A *lane* is one
//! limit of one policy: the keys it is counted under are its own.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{Gate, GateError, Line, Question, Rules, Subject};
use tidegate::unstable::policy::{Mode, Override, Policies, Policy, PolicyError, Selected};
use tidegate::unstable::stats::Stats;
use tidegate::{Algorithm, Cost, Limit, Limiter, ManualClock, Overflow, Timestamp};

use crate::block::{Block, Row};
use crate::engine::{Answer, Memory};
use crate::error::ReplayError;
use crate::format::Facts;
use crate::keys::Keys;
use crate::run::change;
use crate::tally::Tally;
use crate::truth::{Largest, Seen, Truth};

/// Stands between a policy's name and a key: no name has it.
const BETWEEN: u8 = 0;

/// Policies with what is counted about their answers.
pub struct Policed {
    gate: Arc<Gate>,
    rules: Arc<Rules>,
    clock: ManualClock,
    lanes: Vec<Lane>,
    /// Which lane a limit of the rules is counted in, by where it lies.
    lane_of: HashMap<usize, usize>,
    /// Every policy's keys, numbered together.
    keys: Keys,
    key_text: Vec<u8>,
    pub odd: Odd,
}

/// One limit of one policy.
pub struct Lane {
    pub policy: String,
    pub mode: Mode,
    pub limit: Limit,
    keys: Keys,
    truth: Truth,
    pub asked: u64,
    pub denied: u64,
}

impl Lane {
    pub fn largest(&self) -> Largest {
        self.truth.largest()
    }
}

/// Requests that are not decided as others are.
#[derive(Clone, Debug, Default)]
pub struct Odd {
    /// They met no policy, and passed.
    pub unmatched: u64,
    /// They met a policy that needs a permit.
    pub need_permit: u64,
    /// Their cost was no number, or the gate refused them for another reason.
    pub refused: u64,
    /// A part of their key was missing.
    pub incomplete: u64,
    /// There was no room for their key.
    pub no_room: u64,
    /// The first of those that were not decided.
    pub first: Option<String>,
}

/// What the lanes made of one request.
#[derive(Default)]
struct Told {
    answer: Answer,
    fits: bool,
    /// The number of the key that was denied, or came nearest.
    key: Option<u32>,
}

impl Policed {
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
        let rules = Arc::clone(&gate.rules());
        let (lanes, lane_of) = lanes(rules.policies());
        Ok(Policed {
            gate,
            rules,
            clock,
            lanes,
            lane_of,
            keys: Keys::new(),
            key_text: Vec::new(),
            odd: Odd::default(),
        })
    }

    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// How many keys there are, each under its policy, and how often each was asked for.
    pub fn events_of(&self) -> Vec<u32> {
        self.keys.events()
    }

    pub fn memory(&self) -> Memory {
        let stats = self.gate.limiter().stats();
        Memory { states: stats.tracked_keys, entries: stats.log_entries }
    }

    /// Decides a block and counts what came of it.
    pub fn take(&mut self, block: &Block, tally: &mut Tally, answers: &mut Vec<Answer>) {
        answers.clear();
        // Held apart from what is counted.
        let (gate, rules) = (Arc::clone(&self.gate), Arc::clone(&self.rules));
        let identity = rules.policies().identity();
        for (row, facts) in block.events() {
            let facts = Facts::unpack(facts);
            // A trace that has costs means them; others cost what the policies say.
            let cost = facts.has_cost.then(|| Cost::from_signed(row.cost));
            let told = facts.with_attributes(identity, |attributes| {
                self.ask((row, cost), (&gate, &rules, attributes), tally)
            });
            let place = tally.timeline.place(row.time_us);
            tally.count(place, told.answer.allowed, told.fits);
            match told.key {
                Some(key) if !told.answer.allowed => tally.keys.denied(key, &self.key_text),
                Some(key) if told.answer.near => {
                    tally.near += 1;
                    tally.keys.near(key, &self.key_text);
                }
                _ => {}
            }
            answers.push(told.answer);
        }
    }

    fn ask(
        &mut self,
        (row, cost): (&Row, Option<Cost>),
        (gate, rules, attributes): (&Gate, &Rules, &Attributes<'_>),
        tally: &mut Tally,
    ) -> Told {
        self.clock.set(Timestamp::from_micros(row.time_us));
        let question = Question { cost, ..Question::new(Subject::Request(attributes)) };
        let answer = gate.sync(gate.check(rules, &[question]));
        let (selected, answer) = match (rules.policies().select(attributes), answer) {
            (Ok(selected), Ok(answer)) => (selected, answer),
            (_, Err(error)) => return self.undecided(&error),
            (Err(error), _) => return self.undecided(&GateError::Select(error)),
        };
        self.odd.unmatched += u64::from(selected.is_empty());
        self.odd.no_room += u64::from(answer.no_room);
        let mut told = Told { fits: true, ..Told::default() };
        told.answer.allowed = answer.allowed;
        let place = tally.timeline.place(row.time_us);
        for line in &answer.lines {
            let Some(of) = selected.iter().find(|one| Some(one.policy.name()) == line.policy)
            else {
                continue;
            };
            let units =
                cost.map_or_else(|| i64::try_from(of.cost).unwrap_or(i64::MAX), |_| row.cost);
            let asked = Asked { line, of, row, units, allowed: answer.allowed };
            let seen = self.count(&asked, place, tally);
            // What only watches has no part in whether the answer was right.
            if line.is_enforced() {
                told.fits &= seen;
            }
        }
        if row.cost <= 0 {
            told.fits = answer.allowed;
        }
        self.name(&answer, &selected, row, &mut told);
        told
    }

    /// Counts one limit's answer; whether there was truly room.
    fn count(&mut self, asked: &Asked<'_, '_>, place: usize, tally: &mut Tally) -> bool {
        let Some(&at) = self.lane_of.get(&address(asked.line.limit)) else { return true };
        let lane = &mut self.lanes[at];
        lane.asked += 1;
        lane.denied += u64::from(!asked.line.decision.allowed);
        let key = lane.keys.number_of(asked.of.key.as_ref());
        // All are charged or none; who only watches is charged if it admits as well.
        let charged = asked.allowed && asked.line.decision.allowed;
        let row = Row::numbered(asked.row.time_us, asked.units, key);
        let seen = lane.truth.record_one(&row, charged);
        let consumed = if asked.allowed { None } else { asked.consumed(&seen) };
        let count = match consumed {
            Some(units) => {
                let row = Row::numbered(asked.row.time_us, units, key);
                lane.truth.record_one(&row, true).count
            }
            None => seen.count,
        };
        tally.timeline.note(place, at, count);
        seen.fits
    }

    /// Finds whose key is named: of a denial, of who speaks for it; else of who came nearest.
    fn name(
        &mut self,
        answer: &tidegate::unstable::gate::Answer<'_>,
        selected: &[Selected<'_>],
        row: &Row,
        told: &mut Told,
    ) {
        let near = |line: &&Line<'_>| {
            line.is_enforced() && Answer::new(line.limit, row.cost, &line.decision).near
        };
        let nearest = answer.lines.iter().find(near).filter(|_| answer.allowed);
        told.answer.near = nearest.is_some();
        let named = if answer.allowed { nearest } else { answer.speaker() };
        let named = named.and_then(|line| line.policy);
        let mut kept = Vec::new();
        for one in selected {
            let key = one.key.as_ref();
            self.odd.incomplete += u64::from(key.contains(&0));
            self.key_text.clear();
            self.key_text.extend_from_slice(one.policy.name().as_bytes());
            self.key_text.push(BETWEEN);
            self.key_text.extend_from_slice(key);
            let number = self.keys.number_of(&self.key_text);
            if named == Some(one.policy.name()) {
                told.key = Some(number);
                kept.clone_from(&self.key_text);
            }
        }
        self.key_text = kept;
    }

    #[cold]
    fn undecided(&mut self, error: &GateError) -> Told {
        match error {
            GateError::NeedsPermit { .. } => self.odd.need_permit += 1,
            _ => self.odd.refused += 1,
        }
        self.odd.first.get_or_insert_with(|| error.to_string());
        Told::default()
    }
}

/// One limit's answer to one request.
struct Asked<'l, 'a> {
    line: &'l Line<'a>,
    of: &'l Selected<'a>,
    row: &'l Row,
    units: i64,
    allowed: bool,
}

impl Asked<'_, '_> {
    /// Units that a denial consumes: the cost, as far as it is left.
    fn consumed(&self, seen: &Seen) -> Option<i64> {
        let consumes = self.of.overflow == Some(Overflow::Consume) && self.line.is_enforced();
        let left = self.line.limit.count().saturating_sub(seen.count);
        let units = self.units.min(i64::try_from(left).unwrap_or(i64::MAX));
        (consumes && self.units > 1 && units > 0).then_some(units)
    }
}

/// A policy and a key out of the name of a key.
pub fn parted(name: &[u8]) -> (Option<&str>, &[u8]) {
    match memchr::memchr(BETWEEN, name) {
        Some(at) => (std::str::from_utf8(&name[..at]).ok(), &name[at + 1..]),
        None => (None, name),
    }
}

/// Where a limit lies, which is as long the same as the rules are.
fn address(limit: &Limit) -> usize {
    std::ptr::from_ref(limit).addr()
}

/// A lane for each limit of each policy. What overrides leave as it is is one with it.
fn lanes(policies: &Policies) -> (Vec<Lane>, HashMap<usize, usize>) {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut lane_of = HashMap::new();
    for policy in policies {
        let first = lanes.len();
        for variant in policy.variants() {
            for limit in variant.limits() {
                let known = lanes[first..].iter().position(|lane| lane.limit == *limit);
                let at = known.map_or(lanes.len(), |at| first + at);
                if at == lanes.len() {
                    lanes.push(Lane {
                        policy: policy.name().into(),
                        mode: variant.mode(),
                        limit: *limit,
                        keys: Keys::new(),
                        truth: Truth::new(limit.window_us(), limit.count()),
                        asked: 0,
                        denied: 0,
                    });
                }
                lane_of.insert(address(limit), at);
            }
        }
    }
    (lanes, lane_of)
}

/// The policies with every rate limit under another algorithm.
pub fn under(policies: &Policies, algorithm: Algorithm) -> Result<Policies, ReplayError> {
    let changed = policies.iter().map(|policy| {
        let unlike = |error| ReplayError::Policy { policy: policy.name().into(), algorithm, error };
        change_policy(policy, algorithm).map_err(unlike)
    });
    let changed = changed.collect::<Result<Vec<_>, _>>()?;
    // They stood together before, and limits are as many as they were.
    let changed = Policies::new(changed, policies.identity().clone());
    let changed = changed.map_err(ReplayError::Policies)?;
    Ok(changed.with_path_variants(policies.path_variants()))
}

fn change_policy(policy: &Policy, algorithm: Algorithm) -> Result<Policy, PolicyError> {
    let all = |limits: &[Limit]| limits.iter().map(|limit| change(limit, algorithm)).collect();
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
        .with_quota(policy.quota())
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
