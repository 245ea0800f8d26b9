//! Peek and reset: what a key has left, and forgetting it.
//!
//! Programs name a key by its bytes. Operators take it from a log, where it may be masked:
//! [`Gate::find_key`] finds the key that they mean.

use tidegate_core::Cost;

use super::plan::{self, Plan, Taking};
use super::{Answer, Gate, GateError, Question, Rules, Subject};
use crate::policy::{Key, Mode};
use crate::stats::looks_masked;

/// The key that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The key.
    pub key: Key,
    /// Whether the text was its masked form, so that the key itself must not be shown.
    pub masked: bool,
}

impl Gate {
    /// The key of a policy that a text names: the key itself, or its masked form as it is shown
    /// in logs and rankings.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`]; [`GateError::UnknownMask`] for a masked form whose key is not
    /// among the top keys and latest denials of this process.
    pub fn find_key(&self, rules: &Rules, policy: &str, text: &[u8]) -> Result<Found, GateError> {
        let policy = rules.policies().find(policy)?;
        if !policy.key_template().has_credentials() || !looks_masked(text) {
            return Ok(Found { key: Key::given(text), masked: false });
        }
        let form = String::from_utf8_lossy(text);
        let key = self.stats().unmask(policy.name(), &form);
        let key =
            key.ok_or_else(|| GateError::UnknownMask { form: crate::policy::shown(&form) })?;
        Ok(Found { key, masked: true })
    }

    /// What a key has left of a policy's limits, without touching them.
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

    /// What a key has left of a policy's limits, over any store.
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

    /// What a key that was [found](Gate::find_key) has left of a policy's limits, over any store.
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
        self.reset_here(rules, policy, &Key::given(key))
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

    /// Forgets what a key that was [found](Gate::find_key) has used, over any store.
    ///
    /// # Errors
    /// As [`Gate::reset_async`].
    pub async fn reset_key(
        &self,
        rules: &Rules,
        policy: &str,
        key: &Key,
    ) -> Result<bool, GateError> {
        match &self.shared {
            Some(shared) => self.reset_shared(shared, rules, policy, key).await,
            None => self.reset_here(rules, policy, key),
        }
    }

    fn reset_here(&self, rules: &Rules, policy: &str, key: &Key) -> Result<bool, GateError> {
        let (name, limits) = plan::states(rules, policy, key)?;
        Ok(limits.into_iter().fold(false, |any, limit| self.limiter.reset(&name, limit) | any))
    }
}
