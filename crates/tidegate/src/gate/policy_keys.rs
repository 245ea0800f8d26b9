//! The keys of a policy: find, peek at and reset them.
//!
//! Programs name a key by its bytes. Operators copy it from a log, where it may be masked, or know
//! the value that a client sends: [`PolicyKeys::find`] finds the key that is meant.

use tidegate_core::{Cost, Decision, Limit};

use super::plan::{ConcurrencyMode, KeyBytes, Plan, write_policy};
use super::{ActivePolicies, Gate, GateError, GateRequest, GateVerdict, Subject};
use crate::futures::join_all;
use crate::policy::{Key, Mode, Policy};
use crate::stats::{has_masked_parts, looks_masked};
use crate::text::{excerpt, unescape};
use crate::{Check, MAX_CHECKS};

/// The end of a masked key whose hash was cut off.
const TRUNCATED: &str = "...";

/// The key that a text refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundKey {
    /// The key.
    pub key: Key,
    /// Whether the text was the masked form of the key, so that the key itself must not be shown.
    pub masked: bool,
    /// Other keys in use that the text may refer to, if the text itself is a key in use.
    pub also_seen: Vec<Key>,
}

impl FoundKey {
    fn new(key: Key) -> Self {
        FoundKey { key, masked: false, also_seen: Vec::new() }
    }
}

/// The keys of one policy, returned by [`Gate::keys`].
#[derive(Clone, Copy, Debug)]
pub struct PolicyKeys<'a> {
    gate: &'a Gate,
    active: &'a ActivePolicies,
    policy: &'a Policy,
}

impl<'a> PolicyKeys<'a> {
    pub(super) fn new(gate: &'a Gate, active: &'a ActivePolicies, policy: &'a Policy) -> Self {
        PolicyKeys { gate, active, policy }
    }

    /// Returns the key that a text refers to. The first of these that applies is returned:
    ///
    /// - the key whose masked form, as in logs and rankings, is the text;
    /// - the text itself, if it is a key in use;
    /// - the key in use that has the text as its plain value: `k-live-2` refers to
    ///   `header:x-api-key=k-live-2`. Templates with several parts are excluded;
    /// - the key under which a request with this value would be counted, if there is only one;
    /// - the text itself.
    ///
    /// # Errors
    /// Returns [`GateError::UnknownMask`] for a masked form whose key is not among the top keys and
    /// latest denials of this process; [`GateError::AmbiguousKey`] if several keys in use have the
    /// value; [`GateError::Store`] if the store failed.
    pub async fn find(&self, text: &[u8]) -> Result<FoundKey, GateError> {
        self.gate.find_key(self.active, self.policy, text).await
    }

    /// Returns the key that an operator refers to by a text from a log, a ranking or a page. These
    /// show control characters as escapes, and a missing part as a NUL, so besides
    /// [`PolicyKeys::find`]:
    ///
    /// - a text that begins with a NUL is a whole key;
    /// - a text with escapes is the key that is shown in that way, unless the text itself refers to
    ///   a key in use.
    ///
    /// # Errors
    /// As [`PolicyKeys::find`].
    pub async fn find_shown(&self, text: &[u8]) -> Result<FoundKey, GateError> {
        if text.first() == Some(&0) {
            return Ok(FoundKey::new(Key::from_rendered(text)));
        }
        let found = self.find(text).await?;
        match unescape(text) {
            Some(key) if !found.masked && !self.gate.has_state(self.policy, &found.key).await? => {
                Ok(FoundKey::new(Key::from_rendered(&key)))
            }
            _ => Ok(found),
        }
    }

    /// Returns whether a key was seen: something is counted under it, or it is among the top keys
    /// and latest denials.
    ///
    /// # Errors
    /// Returns [`GateError::Store`] if the store failed.
    pub async fn is_seen(&self, key: &Key) -> Result<bool, GateError> {
        let is_used = self.gate.has_state(self.policy, key).await?;
        Ok(is_used || self.gate.stats.is_recent(self.policy.name(), key))
    }

    /// Returns the remaining units of a key under the policy's limits, without charging. `variant`
    /// is the index in [`Policy::variants`]: 0 for the limits that apply if no override does.
    ///
    /// # Errors
    /// Returns [`GateError::Store`] if the store failed.
    pub async fn peek(&self, key: &Key, variant: usize) -> Result<GateVerdict<'a>, GateError> {
        let mut plan = Plan::default();
        if let Some(selected) =
            self.active.policies().with_variant(self.policy.name(), key.clone(), variant)
            && selected.mode != Mode::Off
        {
            let subject = Subject::Key { policy: "", key: &[], attributes: None };
            let request = GateRequest { cost: Some(Cost::PEEK), ..GateRequest::new(subject) };
            plan.push(self.active, &selected, &request, 0);
        }
        plan.finalize(&[], ConcurrencyMode::Peek)?;
        let verdict = self.gate.peek_checks(&plan.checks()).await?;
        Ok(plan.verdict_of(&verdict))
    }

    /// Resets the counts of a key under the policy's limits, including those of its overrides.
    /// Returns whether there were any.
    ///
    /// # Errors
    /// Returns [`GateError::Store`] if the store failed. Some of the limits may have been reset.
    pub async fn reset(&self, key: &Key) -> Result<bool, GateError> {
        self.gate.reset_key(self.policy, key).await
    }
}

impl Gate {
    /// Finds the key that a text refers to; see [`PolicyKeys::find`].
    pub(crate) async fn find_key(
        &self,
        active: &ActivePolicies,
        policy: &Policy,
        text: &[u8],
    ) -> Result<FoundKey, GateError> {
        let template = policy.key_template();
        let form = String::from_utf8_lossy(text);
        // In a URL, the `#` of a masked form and the hash after it are cut off unless encoded.
        let is_masked = has_masked_parts(template)
            && (looks_masked(text) || text.ends_with(TRUNCATED.as_bytes()));
        if is_masked && let Some(key) = self.stats.unmask(policy.name(), &form) {
            return Ok(FoundKey { masked: true, ..FoundKey::new(key) });
        }
        let literal = Key::literal(text);
        let mut keys = active.policies().keys_for(template, text);
        keys.retain(|key| *key != literal);
        if keys.is_empty() && !is_masked {
            return Ok(FoundKey::new(literal));
        }
        let only = if keys.len() == 1 { keys.first().cloned() } else { None };
        let mut in_use = Vec::new();
        for key in keys {
            if self.has_state(policy, &key).await? {
                in_use.push(key);
            }
        }
        if self.has_state(policy, &literal).await? {
            return Ok(FoundKey { also_seen: in_use, ..FoundKey::new(literal) });
        }
        match in_use.len() {
            0 if is_masked => Err(GateError::UnknownMask { form: excerpt(&form) }),
            0 => {
                Ok(FoundKey::new(only.filter(|_| !template.is_full_form(text)).unwrap_or(literal)))
            }
            1 => Ok(FoundKey::new(in_use.remove(0))),
            _ => {
                let forms = in_use.iter().map(ToString::to_string).collect();
                Err(GateError::AmbiguousKey { forms })
            }
        }
    }

    /// Whether anything is counted under a key, by a limit of the policy or of its overrides.
    async fn has_state(&self, policy: &Policy, key: &Key) -> Result<bool, GateError> {
        let (name, limits) = states(policy, key);
        for limits in limits.chunks(MAX_CHECKS) {
            let checks: Vec<Check<'_>> =
                limits.iter().map(|limit| Check::new(&name, limit, Cost::PEEK)).collect();
            let decisions = self.peek_checks(&checks).await?.decisions;
            let is_used = |(limit, decision): (&&Limit, &Decision)| {
                decision.remaining < limit.capacity() || decision.reset_after.as_micros() > 0
            };
            if limits.iter().zip(&decisions).any(is_used) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Resets the counts of a key under a policy's limits, in the shared store and then in local
    /// memory. If the store fails, local counts are kept, so that a failed reset changes nothing
    /// that this node decides by.
    pub(crate) async fn reset_key(&self, policy: &Policy, key: &Key) -> Result<bool, GateError> {
        let (name, limits) = states(policy, key);
        let mut in_store = None;
        if let Some(shared) = &self.shared {
            let calls = limits.iter().map(|limit| shared.store().reset(&name, limit));
            let mut any = false;
            for reset in join_all(calls.collect()).await {
                any |= reset?;
            }
            in_store = Some(any);
        }
        let mut in_memory = false;
        for limit in limits {
            in_memory |= self.limiter.reset(&name, limit);
        }
        Ok(in_store.unwrap_or(in_memory))
    }
}

/// The key of a policy as the store sees it, and one limit for each state that it may count in,
/// including those of the overrides.
fn states<'p>(policy: &'p Policy, key: &Key) -> (Vec<u8>, Vec<&'p Limit>) {
    let mut name = KeyBytes::new();
    write_policy(policy.count_name(), |bytes| name.extend_from_slice(bytes));
    name.extend_from_slice(key.as_ref());
    let mut limits: Vec<&Limit> =
        policy.variants().iter().flat_map(|variant| variant.limits()).collect();
    // Limits that differ only in their count share a state.
    limits.sort_by_key(|limit| limit.id());
    limits.dedup_by_key(|limit| limit.id());
    (name.to_vec(), limits)
}
