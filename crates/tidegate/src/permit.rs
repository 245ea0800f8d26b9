//! Permits: places held while a request runs.

use std::fmt;
use std::time::Duration;

use tidegate_core::{Algorithm, Limit, LimitError, PermitId};

use crate::store::PermitAct;
use crate::{Check, Limiter, Verdict};

/// What came of asking for a permit.
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back"]
pub enum Acquired {
    /// It is held, until dropped.
    Permit(Permit, Verdict),
    /// It was denied, and nothing was charged.
    Denied(Verdict),
}

impl Acquired {
    /// The permit, if there is one.
    pub fn permit(self) -> Option<Permit> {
        match self {
            Acquired::Permit(permit, _) => Some(permit),
            Acquired::Denied(_) => None,
        }
    }

    /// The verdict either way.
    pub fn verdict(&self) -> &Verdict {
        match self {
            Acquired::Permit(_, verdict) | Acquired::Denied(verdict) => verdict,
        }
    }
}

/// A held place under one or several `concurrency` limits, given back on drop.
///
/// A holder that outlives the lease has lost its place unless it renews.
#[must_use = "a permit that is dropped is given back"]
pub struct Permit {
    limiter: Limiter,
    id: PermitId,
    held: Vec<(Box<[u8]>, Limit)>,
}

impl Permit {
    /// The permit of an admitted request. A watched limit that would have denied
    /// it is not held.
    pub(crate) fn new(
        limiter: Limiter,
        id: PermitId,
        checks: &[Check<'_>],
        verdict: &Verdict,
    ) -> Self {
        let both = checks.iter().zip(&verdict.decisions);
        let held = both
            .filter(|(check, decision)| {
                check.limit.algorithm() == Algorithm::Concurrency && decision.allowed
            })
            .map(|(check, _)| (check.key.into(), *check.limit))
            .collect();
        Permit { limiter, id, held }
    }

    /// Names the permit within its limiter.
    pub fn id(&self) -> PermitId {
        self.id
    }

    /// Starts the lease anew; `false` if it had already ended under some limit.
    pub fn renew(&self) -> bool {
        self.all(PermitAct::Renew(self.id))
    }

    /// Starts the lease anew, with this length from now on; `false` if it had already
    /// ended under some limit.
    ///
    /// # Errors
    /// When no lease can be so long or short; then nothing has changed.
    pub fn renew_for(&mut self, lease: Duration) -> Result<bool, LimitError> {
        let leased = self.held.iter().map(|(_, limit)| Limit::concurrent(limit.count(), lease));
        let leased: Vec<Limit> = leased.collect::<Result<_, _>>()?;
        for ((_, limit), leased) in self.held.iter_mut().zip(leased) {
            *limit = leased;
        }
        Ok(self.renew())
    }

    fn all(&self, act: PermitAct) -> bool {
        let store = self.limiter.store();
        // Every limit is acted on, also after one that was not held.
        self.held.iter().fold(true, |all, (key, limit)| store.with_permit(key, limit, act) && all)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.all(PermitAct::Release(self.id));
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("id", &self.id.0).finish()
    }
}
