//! Many questions, one after the other, as a pipeline of them arrives.
//!
//! Most are plain: a key, one limit that has a say, nothing remembered and nothing to combine.
//! Those need no plan, and what their counts need can be fetched for many at once, before the
//! first is decided: beyond a few thousand keys it is waiting for memory that takes the
//! time. Whatever is not plain is answered as ever, in its turn.

use std::ops::Range;
use std::time::Instant;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit};

use super::{Answer, Gate, GateError, Line, Plan, Question, Rules, Subject, is_timed};
use crate::Check;
use crate::check::overflowing;
use crate::headers::Prerendered;
use crate::policy::{Charge, MAX_KEY_BYTES, Mode, holds};
use crate::stats::{self, Counting, Decided, LimitStats, Seen};
use crate::store::BATCH;

/// Room for the keys of so many questions without asking for memory.
type Keys = SmallVec<[u8; 32 * BATCH]>;

/// A question that needs no plan.
struct Plain<'a> {
    policy: Option<&'a str>,
    limit: &'a Limit,
    cost: Cost,
    stats: &'a LimitStats,
    fields: Option<&'a Prerendered>,
    /// Where its key lies, and where in that the part behind the policy's name.
    key: Range<usize>,
    bare: usize,
}

impl<'a> Plain<'a> {
    /// Its line before it is decided.
    fn line(&self) -> Line<'a> {
        Line {
            policy: self.policy,
            own: None,
            question: 0,
            limit: self.limit,
            fields: self.fields,
            mode: Mode::Enforce,
            decision: Decision::default(),
            decided: Decided::Exact,
            beyond_share: false,
        }
    }
}

impl Gate {
    /// Answers questions one by one, in order, as [`Gate::check`] would; `tell` gets each
    /// answer with the number of its question.
    pub fn check_each<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
        mut tell: impl FnMut(usize, Result<&Answer<'a>, GateError>),
    ) {
        // An answer is large, so all plain questions are answered in one place.
        let mut answer = Answer::default();
        for (round, chunk) in questions.chunks(BATCH).enumerate() {
            let mut keys = Keys::new();
            let mut plain = SmallVec::<[Option<Plain<'a>>; BATCH]>::new();
            for question in chunk {
                plain.push(self.plain(rules, question, &mut keys));
            }
            if chunk.len() > 1 {
                let each = plain.iter().flatten();
                let each = each.map(|plain| (&keys[plain.key.clone()], plain.limit));
                self.limiter.store().touch(each);
            }
            for (index, (question, plain)) in chunk.iter().zip(&plain).enumerate() {
                let number = round * BATCH + index;
                match plain {
                    Some(plain) => {
                        let checked = self.check_plain(plain, &keys, question, &mut answer);
                        tell(number, checked.map(|()| &answer));
                    }
                    None => {
                        let mut plan = Plan::default();
                        let questions = std::slice::from_ref(question);
                        let checked = self.sync(self.check_in(&mut plan, rules, questions));
                        tell(number, checked.map(|()| &plan.answer));
                    }
                }
            }
        }
    }

    /// A question as a plain one; `None` if it is not.
    #[inline(always)]
    fn plain<'a>(
        &'a self,
        rules: &'a Rules,
        question: &Question<'a>,
        keys: &mut Keys,
    ) -> Option<Plain<'a>> {
        if self.is_shared() || question.id.is_some() {
            return None;
        }
        let mut overflow = question.overflow;
        let (policy, key, limits, compiled, own) = match question.subject {
            Subject::Key { policy, key, attributes: None } => {
                let policy = rules.policies().get(policy)?;
                let variant = &policy.variants()[0];
                let Charge::Fixed(own) = *variant.cost() else { return None };
                if variant.mode() != Mode::Enforce || !is_as_it_comes(key) {
                    return None;
                }
                overflow = variant.overflow().unwrap_or(overflow);
                let compiled = rules.compiled_of(policy, 0);
                (Some(policy.name()), key, variant.limits(), compiled, own)
            }
            Subject::Limits { key, limits } => (None, key, limits, rules.caller(), 1),
            _ => return None,
        };
        let ([limit], [stats, ..]) = (limits, &*compiled.stats) else { return None };
        let cost = question.cost(own);
        if holds(limit) || overflowing(overflow, limit, cost) > 0 {
            return None;
        }
        let start = keys.len();
        keys.extend_from_slice(policy.unwrap_or_default().as_bytes());
        keys.push(0);
        keys.extend_from_slice(key);
        let (end, bare) = (keys.len(), keys.len() - key.len());
        let fields = compiled.fields.as_ref();
        Some(Plain { policy, limit, cost, stats, fields, key: start..end, bare })
    }

    /// Decides, and counts what was decided.
    #[inline]
    fn check_plain<'a>(
        &self,
        plain: &Plain<'a>,
        keys: &[u8],
        question: &Question<'_>,
        answer: &mut Answer<'a>,
    ) -> Result<(), GateError> {
        let begun = is_timed().then(Instant::now);
        let check = Check::new(&keys[plain.key.clone()], plain.limit, plain.cost);
        answer.decide_one(plain.line(), &self.limiter, &check)?;
        if matches!(plain.cost, Cost::Ask(1..)) {
            let key = &keys[plain.bare..plain.key.end];
            let line = stats::Line::exact(plain.stats, plain.limit, key, &answer.lines[0].decision);
            let elapsed = begun.map(|begun| begun.elapsed());
            let mut counting = Counting::new(line.allowed);
            counting.add(line.stats, line.allowed, line.is_near(), line.decided);
            if self.stats.add(counting, elapsed) {
                let (route, request_id) = (question.subject.route(), question.request_id);
                let allowed = line.allowed;
                self.stats.note(&Seen { lines: &[line], allowed, route, request_id, elapsed });
            }
        }
        Ok(())
    }
}

/// Whether a key is taken as it comes: not cut, and nothing in it escaped.
fn is_as_it_comes(key: &[u8]) -> bool {
    key.len() <= MAX_KEY_BYTES && key.first() != Some(&0)
}
