//! Peek and reset: what a key has left, and forgetting it.
//!
//! Programs name a key by its bytes. Operators take it from a log, where it may be masked, or
//! know the value that a client sends: [`Gate::find_key`] finds the key that they mean.

use tidegate_core::{Cost, Decision, Limit};

use super::plan::{self, Plan, Taking};
use super::{Answer, Gate, GateError, Question, Rules, Subject};
use crate::policy::{Key, Mode, Policy, shown};
use crate::stats::looks_masked;
use crate::{Check, MAX_CHECKS, Request};

/// The end of a masked form without its hash.
const CUT: &str = "...";

/// The key that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The key.
    pub key: Key,
    /// Whether the text was its masked form, so that the key itself must not be shown.
    pub masked: bool,
    /// Other keys in use that the text may stand for: it was taken for the key itself.
    pub also_seen: Vec<Key>,
}

impl Found {
    fn new(key: Key) -> Self {
        Found { key, masked: false, also_seen: Vec::new() }
    }
}

impl Gate {
    /// The key of a policy that a text names:
    ///
    /// - a masked form, as logs and rankings show it, names its key;
    /// - the text itself, if it is a key in use;
    /// - the key in use that holds the text as its plain value: `k-live-2` names
    ///   `header:x-api-key=k-live-2`. Templates with several parts are excluded;
    /// - otherwise the key that a request with this value would be counted under, if there is
    ///   only one, and else the text itself.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`]; [`GateError::UnknownMask`] for a masked form whose key is not
    /// among the top keys and latest denials of this process; [`GateError::AmbiguousKey`] if
    /// several keys in use hold the value; [`GateError::Store`] if the store failed.
    pub async fn find_key(
        &self,
        rules: &Rules,
        policy: &str,
        text: &[u8],
    ) -> Result<Found, GateError> {
        self.find_key_of(rules, rules.policies().find(policy)?, text).await
    }

    /// The key of any policy that a text names, as [`Gate::find_key`].
    pub(crate) async fn find_key_of(
        &self,
        rules: &Rules,
        policy: &Policy,
        text: &[u8],
    ) -> Result<Found, GateError> {
        let template = policy.key_template();
        let form = String::from_utf8_lossy(text);
        // In a URL, the `#` of a masked form and what follows it are cut off unless encoded.
        let is_masked =
            template.has_credentials() && (looks_masked(text) || text.ends_with(CUT.as_bytes()));
        if is_masked && let Some(key) = self.stats().unmask(policy.name(), &form) {
            return Ok(Found { masked: true, ..Found::new(key) });
        }
        let given = Key::given(text);
        let mut readings = rules.policies().keys_for(template, text);
        readings.retain(|key| *key != given);
        if readings.is_empty() && !is_masked {
            return Ok(Found::new(given));
        }
        let only = if readings.len() == 1 { readings.first().cloned() } else { None };
        let mut in_use = Vec::new();
        for key in readings {
            if self.has_state(policy, &key).await? {
                in_use.push(key);
            }
        }
        if self.has_state(policy, &given).await? {
            return Ok(Found { also_seen: in_use, ..Found::new(given) });
        }
        match in_use.len() {
            0 if is_masked => Err(GateError::UnknownMask { form: shown(&form) }),
            0 => Ok(Found::new(only.filter(|_| !template.is_full_form(text)).unwrap_or(given))),
            1 => Ok(Found::new(in_use.remove(0))),
            _ => {
                let forms = in_use.iter().map(ToString::to_string).collect();
                Err(GateError::AmbiguousKey { forms })
            }
        }
    }

    /// Whether a key was ever seen, as far as this process and its store remember: something is
    /// counted under it, or it is among the top keys and latest denials.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`]; [`GateError::Store`] if the store failed.
    pub async fn is_seen(&self, rules: &Rules, policy: &str, key: &Key) -> Result<bool, GateError> {
        let policy = rules.policies().find(policy)?;
        Ok(self.has_state(policy, key).await? || self.stats().remembers(policy.name(), key))
    }

    /// Whether anything is counted under a key, by a limit of the policy or of its overrides.
    async fn has_state(&self, policy: &Policy, key: &Key) -> Result<bool, GateError> {
        let (name, limits) = plan::states(policy, key);
        for limits in limits.chunks(MAX_CHECKS) {
            let checks: Vec<Check<'_>> =
                limits.iter().map(|limit| Check::new(&name, limit, Cost::PEEK)).collect();
            // A permit of cost 0 holds nothing: this looks at concurrency limits too.
            let decisions = match &self.shared {
                None => self.limiter.acquire(&checks)?.verdict().decisions.clone(),
                Some(shared) => {
                    let permit = Some(shared.store().new_permit());
                    let request = Request { permit, deny_cache: false, ..Request::new(&checks) };
                    shared.decide(&self.stats, &request).await?.decisions
                }
            };
            let is_used = |(limit, decision): (&&Limit, &Decision)| {
                decision.remaining < limit.capacity() || decision.reset_after.as_micros() > 0
            };
            if limits.iter().zip(&decisions).any(is_used) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the remaining units of a key under a policy's limits, without charging.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`].
    pub fn peek<'a>(
        &'a self,
        rules: &'a Rules,
        policy: &'a str,
        key: &[u8],
    ) -> Result<Answer<'a>, GateError> {
        self.in_memory()?;
        self.peek_here(&self.looking(rules, policy, Key::given(key))?)
    }

    /// Returns the remaining units of a key under a policy's limits, over any store.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`]; [`GateError::Store`] if the store failed.
    pub async fn peek_async<'a>(
        &'a self,
        rules: &'a Rules,
        policy: &'a str,
        key: &[u8],
    ) -> Result<Answer<'a>, GateError> {
        self.peek_key(rules, policy, Key::given(key)).await
    }

    /// Peeks at a key that [`Gate::find_key`] returned, over any store.
    ///
    /// # Errors
    /// As [`Gate::peek_async`].
    pub async fn peek_key<'a>(
        &'a self,
        rules: &'a Rules,
        policy: &'a str,
        key: Key,
    ) -> Result<Answer<'a>, GateError> {
        let plan = self.looking(rules, policy, key)?;
        match &self.shared {
            Some(shared) => self.peek_shared(shared, &plan).await,
            None => self.peek_here(&plan),
        }
    }

    fn peek_here<'a>(&self, plan: &Plan<'a>) -> Result<Answer<'a>, GateError> {
        // A permit of cost 0 holds nothing: this looks at concurrency limits too.
        let acquired = self.limiter.acquire(&plan.checks())?;
        Ok(plan.answer(acquired.verdict()))
    }

    /// A plan that looks at what a key has left of a policy's limits.
    fn looking<'a>(
        &'a self,
        rules: &'a Rules,
        policy: &'a str,
        key: Key,
    ) -> Result<Plan<'a>, GateError> {
        let Some(selected) = rules.policies().under(policy, key, None) else {
            return Err(GateError::unknown_policy(policy));
        };
        let subject = Subject::Key { policy, key: &[], attributes: None };
        let question = Question { cost: Some(Cost::PEEK), ..Question::new(subject) };
        let mut plan = Plan::default();
        if selected.mode != Mode::Off {
            plan.push(rules, &selected, &question, 0);
        }
        plan.settle(&[question], Taking::Look)?;
        Ok(plan)
    }

    /// Forgets what a key has used of a policy's limits, those of its overrides
    /// too; says whether there was anything.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`].
    pub fn reset(&self, rules: &Rules, policy: &str, key: &[u8]) -> Result<bool, GateError> {
        self.in_memory()?;
        Ok(self.reset_here(rules.policies().find(policy)?, &Key::given(key)))
    }

    /// Forgets what a key has used of a policy's limits, over any store.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`]; [`GateError::Store`] if the store failed: then some of
    /// the limits may have been reset.
    pub async fn reset_async(
        &self,
        rules: &Rules,
        policy: &str,
        key: &[u8],
    ) -> Result<bool, GateError> {
        self.reset_key(rules, policy, &Key::given(key)).await
    }

    /// Resets a key that [`Gate::find_key`] returned, over any store.
    ///
    /// # Errors
    /// As [`Gate::reset_async`].
    pub async fn reset_key(
        &self,
        rules: &Rules,
        policy: &str,
        key: &Key,
    ) -> Result<bool, GateError> {
        let policy = rules.policies().find(policy)?;
        match &self.shared {
            Some(shared) => self.reset_shared(shared, policy, key).await,
            None => Ok(self.reset_here(policy, key)),
        }
    }

    fn reset_here(&self, policy: &Policy, key: &Key) -> bool {
        let (name, limits) = plan::states(policy, key);
        limits.into_iter().fold(false, |any, limit| self.limiter.reset(&name, limit) | any)
    }
}
