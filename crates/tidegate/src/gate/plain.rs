//! Many questions, one after the other, as a pipeline of them arrives.
//!
//! Most name a policy or limits, and a key. The memory that their counts need is fetched for many of
//! them at once, before the first is decided: beyond a few thousand keys, most of the time is spent
//! waiting for memory. All others are planned one by one.

use std::ops::Range;
use std::slice;
use std::time::Instant;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit};

use super::decide::Asking;
use super::plan::{KeyStart, Plain, Plan};
use super::{Answer, Gate, GateError, Line, Named, Question, Rules, Subject, is_timed};
use crate::Check;
use crate::check::overflowing;
use crate::policy::{Charge, MAX_KEY_BYTES, Mode, holds};
use crate::stats::{self, Counting, Decided, Seen};
use crate::store::BATCH;

/// Room for the keys of so many questions without asking for memory.
type Keys = SmallVec<[u8; 32 * BATCH]>;

/// A question whose limits are known, and the place of its key: behind the name of its policy.
type Known<'a> = (Plain<'a>, Range<usize>);

impl Gate {
    /// Answers questions one by one, in order, as [`Gate::check`] would; `tell` gets each
    /// answer with the number of its question.
    pub fn check_each<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
        mut tell: impl FnMut(usize, Result<&Answer<'a>, GateError>),
    ) {
        // One for all questions whose limits are known: it is large.
        let mut plan = Plan::default();
        for (round, chunk) in questions.chunks(BATCH).enumerate() {
            let mut keys = Keys::new();
            let mut known = SmallVec::<[Option<Known<'a>>; BATCH]>::new();
            for question in chunk {
                known.push(self.known(rules, question, &mut keys));
            }
            if chunk.len() > 1 {
                self.fetch(&known, &keys);
            }
            for (index, (question, known)) in chunk.iter().zip(&known).enumerate() {
                let number = round * BATCH + index;
                if let Some((plain, key)) = known {
                    let key = &keys[key.clone()];
                    let checked = self.check_known(*plain, key, question, &mut plan);
                    tell(number, checked.map(|()| &plan.answer));
                } else {
                    let mut plan = Plan::default();
                    let question = slice::from_ref(question);
                    let checked = self.sync(self.check_in(&mut plan, rules, question));
                    tell(number, checked.map(|()| &plan.answer));
                }
            }
        }
    }

    /// Fetches the memory that the counts of these questions need.
    fn fetch(&self, known: &[Option<Known<'_>>], keys: &[u8]) {
        let states = known.iter().flatten().flat_map(|(plain, key)| {
            let key = &keys[key.clone()];
            plain.limits.iter().map(move |limit| (key, limit))
        });
        let states: SmallVec<[(&[u8], &Limit); 2 * BATCH]> = states.collect();
        for states in states.chunks(BATCH) {
            self.limiter.store().prefetch(states.iter().copied());
        }
    }

    /// The limits of a question that names them or their policy, and its key as the store sees it;
    /// `None` if the question has to be planned.
    #[inline(always)]
    fn known<'a>(
        &'a self,
        rules: &'a Rules,
        question: &Question<'a>,
        keys: &mut Keys,
    ) -> Option<Known<'a>> {
        if self.is_shared() || question.max_wait.is_some() {
            return None;
        }
        let (policy, key, limits, compiled, units, overflow) = match question.subject {
            Subject::Key { policy, key, attributes: None } => {
                let policy = rules.policies().get(policy)?;
                let variant = &policy.variants()[0];
                let Charge::Fixed(units) = *variant.cost() else { return None };
                if variant.mode() != Mode::Enforce || !is_as_it_comes(key) {
                    return None;
                }
                let compiled = rules.compiled_of(policy, 0);
                (Some(policy.name()), key, variant.limits(), compiled, units, variant.overflow())
            }
            Subject::Limits { key, limits } => (None, key, limits, rules.caller(), 1, None),
            _ => return None,
        };
        if limits.is_empty() || limits.iter().any(holds) {
            return None;
        }
        let start = keys.len();
        keys.extend_from_slice(policy.unwrap_or_default().as_bytes());
        keys.push(0);
        keys.extend_from_slice(key);
        let overflow = overflow.unwrap_or(question.overflow);
        let plain = Plain { policy, limits, cost: question.cost(units), overflow, compiled };
        Some((plain, start..keys.len()))
    }

    /// Decides a question whose limits are known, and counts what was decided. The plan keeps the
    /// answer.
    #[inline]
    fn check_known<'a>(
        &self,
        plain: Plain<'a>,
        key: &[u8],
        question: &Question<'_>,
        plan: &mut Plan<'a>,
    ) -> Result<(), GateError> {
        let prefix = plain.policy.unwrap_or_default().len() + 1;
        if let ([limit], None) = (plain.limits, question.id)
            && overflowing(plain.overflow, limit, plain.cost) == 0
        {
            return self.check_single(plain, (key, &key[prefix..]), question, &mut plan.answer);
        }
        plan.clear();
        plan.keys.extend_from_slice(key);
        plan.push_plain(plain, KeyStart { start: 0, bare: prefix }, 0);
        let route = || question.subject.route();
        let named = Named::of(slice::from_ref(question), &route);
        self.check_here(plan, &named, Asking { id: named.id, ..Asking::CHECK })?;
        Ok(())
    }

    /// Decides a question under a single limit. A plan would take a tenth more instructions.
    #[inline]
    fn check_single<'a>(
        &self,
        plain: Plain<'a>,
        (key, bare): (&[u8], &[u8]),
        question: &Question<'_>,
        answer: &mut Answer<'a>,
    ) -> Result<(), GateError> {
        let (limit, stats) = (&plain.limits[0], &plain.compiled.stats[0]);
        let begun = is_timed().then(Instant::now);
        let line = Line {
            policy: plain.policy,
            own: None,
            question: 0,
            limit,
            fields: plain.compiled.fields.as_ref(),
            mode: Mode::Enforce,
            decision: Decision::default(),
            decided: Decided::Exact,
            beyond_share: false,
        };
        answer.decide_one(line, &self.limiter, &Check::new(key, limit, plain.cost))?;
        if matches!(plain.cost, Cost::Ask(1..)) {
            let line = stats::Line::exact(stats, limit, bare, &answer.lines[0].decision);
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
