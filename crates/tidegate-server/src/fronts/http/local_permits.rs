//! The permits that callers hold in the memory of this node.
//!
//! A permit is identified by 128 random bits. Everyone who knows the id can renew or release the
//! permit, so it must not be guessable. The store keeps the permits and ends their leases. This
//! table only finds them by id.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Permit;

/// The maximum number of permits in the table: about 40 MB of ids and permits.
const MAX_PERMITS: usize = 100_000;

/// The id of a permit: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalPermitId(u128);

impl LocalPermitId {
    /// Returns an id that cannot be guessed; `None` if random bytes are unavailable.
    fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(LocalPermitId(u128::from_ne_bytes(bytes)))
    }

    /// Parses the id in a path.
    pub fn parse(text: &str) -> Option<Self> {
        let digits =
            text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = digits.then(|| u128::from_str_radix(text, 16).ok());
        number.flatten().map(LocalPermitId)
    }
}

impl std::fmt::Display for LocalPermitId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Debug)]
struct LocalPermit {
    permit: Permit,
    lease: Duration,
    /// The longest possible lease.
    max_lease: Duration,
    ends: Instant,
}

/// Why a lease cannot be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewError {
    /// The permit is not held, or no longer.
    NotHeld,
    /// The lease is longer than possible. Holds the longest possible lease.
    TooLong(Duration),
}

/// All permits that callers hold.
#[derive(Debug, Default)]
pub struct LocalPermits {
    held: Mutex<HashMap<LocalPermitId, LocalPermit>>,
}

impl LocalPermits {
    /// Whether one more permit can be held.
    pub fn has_room(&self) -> bool {
        if self.held().len() < MAX_PERMITS {
            return true;
        }
        self.sweep();
        self.held().len() < MAX_PERMITS
    }

    /// Stores a permit and returns its id. Returns `None` and releases the permit if the table is
    /// full or random bytes are unavailable.
    pub fn keep(
        &self,
        permit: Permit,
        lease: Duration,
        max_lease: Duration,
    ) -> Option<LocalPermitId> {
        let id = LocalPermitId::random()?;
        let mut held = self.held();
        if held.len() >= MAX_PERMITS {
            return None;
        }
        held.insert(id, LocalPermit { permit, lease, max_lease, ends: Instant::now() + lease });
        Some(id)
    }

    /// Restarts the lease of a permit, with its previous duration or with `lease`. Returns the new
    /// duration.
    pub fn renew(
        &self,
        id: LocalPermitId,
        lease: Option<Duration>,
    ) -> Result<Duration, RenewError> {
        let mut held = self.held();
        let local = held.get_mut(&id).ok_or(RenewError::NotHeld)?;
        let renewed = match lease {
            Some(lease) if lease > local.max_lease => {
                return Err(RenewError::TooLong(local.max_lease));
            }
            Some(lease) => {
                let renewed = local.permit.renew_for(lease);
                renewed.map_err(|_| RenewError::TooLong(local.max_lease))?
            }
            None => local.permit.renew(),
        };
        if renewed {
            local.lease = lease.unwrap_or(local.lease);
            local.ends = Instant::now() + local.lease;
            return Ok(local.lease);
        }
        let ended = held.remove(&id);
        drop(held);
        drop(ended);
        Err(RenewError::NotHeld)
    }

    /// Releases a permit. Returns `false` if it is not held, or no longer.
    pub fn release(&self, id: LocalPermitId) -> bool {
        let removed = self.held().remove(&id);
        removed.is_some_and(|local| local.ends > Instant::now())
    }

    /// Removes permits whose lease has ended.
    pub fn sweep(&self) {
        let now = Instant::now();
        let ended: Vec<LocalPermit> =
            self.held().extract_if(|_, local| local.ends <= now).map(|(_, local)| local).collect();
        // Released without holding the lock.
        drop(ended);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<LocalPermitId, LocalPermit>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
