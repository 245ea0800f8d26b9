//! The limits of policies in a replay, and the true counts of their keys.
//!
//! As in the stores, the limits of a policy that have the same algorithm and window share the count
//! of a key: a limit and the one that an override puts in its place, for example. Each request is
//! then measured against its own limit.

use std::collections::HashMap;

use tidegate::unstable::gate::LimitResult;
use tidegate::unstable::policy::{Mode, Policies};
use tidegate::{Limit, Overflow};

use crate::block::Row;
use crate::ground_truth::{GroundTruth, MaxCount, TrueCount};
use crate::keys::KeyNumbers;
use crate::timeline::Timeline;

/// The limits of all policies, with their counts.
pub struct PolicyLimits {
    limits: Vec<PolicyLimit>,
    counts: Vec<TrueCounts>,
    /// The index in `limits` of each limit of the policies, which is identified by its address as
    /// long as the policies exist, and its mode.
    index: HashMap<(usize, Mode), usize>,
}

/// One limit of one policy.
pub struct PolicyLimit {
    pub policy: String,
    pub mode: Mode,
    pub limit: Limit,
    /// The index of the counts of its keys.
    counts: usize,
    /// The largest count of a key that was charged under this limit.
    pub largest: MaxCount,
    /// How often the limit was applied.
    pub asked: u64,
    /// How many requests the limit denied, or would have denied if it were enforced.
    pub denied: u64,
}

/// The true counts of the keys of one policy under one algorithm and window.
struct TrueCounts {
    keys: KeyNumbers,
    ground_truth: GroundTruth,
    /// For each key the index of the limit under which it was last charged.
    charged_under: Vec<usize>,
}

/// The result of one limit for one request.
pub struct LimitAnswer<'l, 'a> {
    pub result: &'l LimitResult<'a>,
    /// The key under the policy.
    pub key: &'l [u8],
    pub time_us: u64,
    /// The cost of the request.
    pub units: i64,
    /// What the policy does with a cost that is denied.
    pub overflow: Option<Overflow>,
    /// Whether the request was allowed.
    pub allowed: bool,
    /// Whether the request was charged to the policy.
    pub charged: bool,
}

impl PolicyLimits {
    /// Lists the limits of all policies. A limit that an override does not change is listed once.
    pub fn new(policies: &Policies) -> Self {
        let mut all =
            PolicyLimits { limits: Vec::new(), counts: Vec::new(), index: HashMap::new() };
        for policy in policies {
            let first = all.limits.len();
            for variant in policy.variants() {
                for limit in variant.limits() {
                    let at = all.find_or_add(first, policy.name(), variant.mode(), limit);
                    all.index.insert((address(limit), variant.mode()), at);
                }
            }
        }
        all
    }

    /// Returns the index of a limit of a policy whose limits begin at `first`.
    fn find_or_add(&mut self, first: usize, policy: &str, mode: Mode, limit: &Limit) -> usize {
        let of_policy = &self.limits[first..];
        let is_known = |known: &PolicyLimit| known.limit == *limit && known.mode == mode;
        if let Some(known) = of_policy.iter().position(is_known) {
            return first + known;
        }
        let sharing = of_policy.iter().find(|known| known.limit.id() == limit.id());
        let counts = sharing.map_or(self.counts.len(), |known| known.counts);
        if counts == self.counts.len() {
            self.counts.push(TrueCounts {
                keys: KeyNumbers::new(),
                ground_truth: GroundTruth::new(limit.window_us(), limit.count()),
                charged_under: Vec::new(),
            });
        }
        self.limits.push(PolicyLimit {
            policy: policy.into(),
            mode,
            limit: *limit,
            counts,
            largest: MaxCount::default(),
            asked: 0,
            denied: 0,
        });
        self.limits.len() - 1
    }

    pub fn as_slice(&self) -> &[PolicyLimit] {
        &self.limits
    }

    /// Keeps the counts between requests from now on.
    pub fn keep_held(&mut self) {
        self.counts.iter_mut().for_each(|counts| counts.ground_truth.keep_held());
    }

    /// Ends the counts of all keys.
    pub fn finish(&mut self, timeline: &mut Timeline) {
        for TrueCounts { ground_truth, charged_under, .. } in &mut self.counts {
            ground_truth.finish(timeline.end_us(), |key, held| {
                timeline.record_held(charged_under[key as usize], [held]);
            });
        }
    }

    /// Counts the result of one limit, in the bin with this index. Returns whether the ground truth
    /// had capacity for the cost.
    pub fn count(
        &mut self,
        answer: &LimitAnswer<'_, '_>,
        bin: usize,
        timeline: &mut Timeline,
    ) -> bool {
        let LimitResult { limit, mode, decision, .. } = *answer.result;
        let Some(&at) = self.index.get(&(address(limit), mode)) else { return true };
        let policy_limit = &mut self.limits[at];
        policy_limit.asked += 1;
        // A quota that is skipped denies, although the request is allowed.
        let is_skipped = answer.allowed && mode == Mode::Enforce;
        let denied = !decision.allowed && !is_skipped;
        policy_limit.denied += u64::from(denied);
        let counts = &mut self.counts[policy_limit.counts];
        let key = counts.keys.number_of(answer.key);
        if counts.charged_under.len() <= key as usize {
            counts.charged_under.resize(key as usize + 1, at);
        }
        let charged_under = &mut counts.charged_under[key as usize];
        counts.ground_truth.set_limit(limit.count());
        let mut record = |units, charged| {
            let row = Row::numbered(answer.time_us, units, key);
            let true_count = counts.ground_truth.record_one(&row, charged);
            timeline.record_held(*charged_under, counts.ground_truth.take_held());
            if charged && units > 0 {
                *charged_under = at;
                if true_count.count > policy_limit.largest.count {
                    let (count, time_us) = (true_count.count, answer.time_us);
                    policy_limit.largest = MaxCount { count, key, time_us };
                }
            }
            true_count
        };
        let first = record(answer.units, answer.charged);
        let consumed = if answer.allowed { None } else { answer.consumed(&first) };
        let last = consumed.map_or(first, |units| record(units, true));
        timeline.record_max(bin, *charged_under, last.count);
        first.fits
    }
}

impl LimitAnswer<'_, '_> {
    /// Returns the units that a denial consumes: the cost, but at most the units that are left.
    fn consumed(&self, true_count: &TrueCount) -> Option<i64> {
        let consumes = self.overflow == Some(Overflow::Consume) && self.result.is_enforced();
        let left = self.result.limit.count().saturating_sub(true_count.count);
        let units = self.units.min(i64::try_from(left).unwrap_or(i64::MAX));
        (consumes && self.units > 1 && units > 0).then_some(units)
    }
}

fn address(limit: &Limit) -> usize {
    std::ptr::from_ref(limit).addr()
}
