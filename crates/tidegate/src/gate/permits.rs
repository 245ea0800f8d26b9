//! What comes of asking for a permit.

use std::time::Duration;

use tidegate_core::{Limit, PermitId, bounds};

use super::plan::Plan;
use super::{Gate, GateError, GateVerdict};
use crate::futures::join_all;
use crate::policy::is_concurrency;
use crate::store::PermitAct;
use crate::{Check, MAX_CHECKS, Permit, Verdict};

/// What came of asking for a permit.
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back"]
pub struct PermitGrant<'a> {
    /// The permit, if it was granted.
    pub permit: Option<AnyPermit>,
    /// The answer either way.
    pub verdict: GateVerdict<'a>,
    /// How long it is held unless renewed.
    pub lease: Duration,
    /// The longest it can be held without being renewed: the shortest lease of its limits,
    /// or what a lease can be at all where it holds none.
    pub max_lease: Duration,
}

/// A permit, here or in the shared store.
#[derive(Debug)]
pub enum AnyPermit {
    /// In this node's memory, given back on drop.
    Local(Permit),
    /// In the store that all nodes share.
    Shared(SharedPermit),
}

impl AnyPermit {
    /// The permit, if it is in this node's memory.
    pub fn local(self) -> Option<Permit> {
        match self {
            AnyPermit::Local(permit) => Some(permit),
            AnyPermit::Shared(_) => None,
        }
    }

    /// The permit, if it is in the shared store.
    pub fn shared(self) -> Option<SharedPermit> {
        match self {
            AnyPermit::Local(_) => None,
            AnyPermit::Shared(permit) => Some(permit),
        }
    }
}

/// The longest permit that can be read back: as many keys of the longest kind as fit a
/// request's head with room to spare.
const MAX_PERMIT_BYTES: usize = 40 * 1024;

/// A place held in a shared store, as plain data: whoever has it can renew it or
/// give it back, on any node. Dropping it does nothing; its lease ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPermit {
    id: PermitId,
    lease_us: u64,
    max_lease_us: u64,
    /// The keys it is held under, as the store has them.
    keys: Vec<Box<[u8]>>,
}

impl SharedPermit {
    /// The permit of an admitted request. A watched limit that would have denied it is
    /// not held.
    pub(super) fn new(
        plan: &Plan<'_>,
        id: PermitId,
        verdict: &Verdict,
        wanted: Option<Duration>,
    ) -> Self {
        let checks = plan.checks();
        let both = checks.iter().zip(&verdict.decisions);
        let held = both.filter(|(check, decision)| is_concurrency(check.limit) && decision.allowed);
        let keys = held.map(|(check, _): (&Check<'_>, _)| check.key.into()).collect();
        let (lease, max_lease) = leases(plan, wanted);
        let us = |length: Duration| u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        SharedPermit { id, lease_us: us(lease), max_lease_us: us(max_lease), keys }
    }

    /// The keys it is held under.
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|key| &**key)
    }

    /// Gives it back; says whether it was held.
    ///
    /// # Errors
    /// [`GateError::Store`] if the store failed. The permit then ends with its lease, unless
    /// this is called again or the store repeats it, as `RedisStore` does.
    pub async fn release(&self, gate: &Gate) -> Result<bool, GateError> {
        self.act(gate, self.lease(), PermitAct::Release(self.id)).await
    }

    /// Starts its lease anew, as long as it was taken for or
    /// as `lease` says. Says how long that is; `None` if it is not held (any more).
    ///
    /// # Errors
    /// [`GateError::LeaseTooLong`], or [`GateError::Store`] if the store failed: then the
    /// lease may or may not have begun anew.
    pub async fn renew(
        &self,
        gate: &Gate,
        lease: Option<Duration>,
    ) -> Result<Option<Duration>, GateError> {
        let lease = lease.unwrap_or_else(|| self.lease());
        if lease > self.max_lease() {
            return Err(GateError::LeaseTooLong { max_lease: self.max_lease() });
        }
        let held = self.act(gate, lease, PermitAct::Renew(self.id)).await?;
        Ok(held.then_some(lease))
    }

    /// Acts on it under every key it is held under, also after one that failed.
    async fn act(&self, gate: &Gate, lease: Duration, act: PermitAct) -> Result<bool, GateError> {
        let (Some(limit), Some(shared)) = (Self::limit(lease), &gate.shared) else {
            return Ok(false);
        };
        let calls = self.keys().map(|key| {
            // This node's memory holds it too, if it was taken here.
            gate.limiter.store().with_permit(key, &limit, act);
            shared.store().with_permit(key, &limit, act)
        });
        let mut all_held = true;
        for held in join_all(calls.collect()).await {
            all_held &= held?;
        }
        Ok(all_held)
    }

    /// How long it is held unless renewed.
    pub fn lease(&self) -> Duration {
        Duration::from_micros(self.lease_us)
    }

    /// The longest it can be held without being renewed.
    pub fn max_lease(&self) -> Duration {
        Duration::from_micros(self.max_lease_us)
    }

    /// A limit that names its states, with this lease. `None` if no lease can be so
    /// long or short.
    fn limit(lease: Duration) -> Option<Limit> {
        // States of `concurrency` are named by their key alone.
        Limit::concurrent(1, lease).ok()
    }

    /// All of it as bytes, for [`SharedPermit::from_bytes`] on any node. They hold the
    /// keys as they are, and are no secret of the store's; but who knows them can
    /// give the permit back.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        for number in [self.id.0, self.lease_us, self.max_lease_us] {
            put_number(&mut out, number);
        }
        for key in self.keys() {
            put_number(&mut out, key.len() as u64);
            out.extend_from_slice(key);
        }
        out
    }

    /// A permit out of its bytes; `None` if they are no permit's. They come from a caller:
    /// no permit is held under more keys than a request has checks, and each is a call to
    /// the store.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_PERMIT_BYTES {
            return None;
        }
        let [id, lease_us, max_lease_us] =
            [take_number(&mut bytes)?, take_number(&mut bytes)?, take_number(&mut bytes)?];
        let mut keys = Vec::new();
        while !bytes.is_empty() {
            let length = usize::try_from(take_number(&mut bytes)?).ok()?;
            let (key, rest) = bytes.split_at_checked(length)?;
            if keys.len() == MAX_CHECKS {
                return None;
            }
            keys.push(key.into());
            bytes = rest;
        }
        let permit = SharedPermit { id: PermitId(id), lease_us, max_lease_us, keys };
        let is_lease = |length| Self::limit(length).is_some();
        let fits = permit.lease_us <= permit.max_lease_us && is_lease(permit.lease());
        (fits && is_lease(permit.max_lease())).then_some(permit)
    }
}

/// How long a permit is held, and the longest it can be. Where nothing is held no limit
/// says so, and it is as long as was `wanted`.
pub(super) fn leases(plan: &Plan<'_>, wanted: Option<Duration>) -> (Duration, Duration) {
    let free = wanted.unwrap_or(Duration::from_micros(bounds::DEFAULT_LEASE_US));
    let lease = plan.lease_us().map_or(free, Duration::from_micros);
    (lease, Duration::from_micros(plan.max_lease_us()))
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
