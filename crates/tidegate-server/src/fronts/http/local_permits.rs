//! Who holds which permit.
//!
//! A permit is named by 128 random bits: whoever knows the name may renew it or
//! give it back, so it must not be guessed. The places themselves are kept by the
//! store and end there by themselves; what is kept here is only how to find them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Permit;

/// The most permits held at once. Some 40 MB of names and places.
const MAX_LEASES: usize = 100_000;

/// The name of a permit: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermitId(u128);

impl PermitId {
    /// One that nobody can guess; `None` if the system has no randomness.
    fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(PermitId(u128::from_ne_bytes(bytes)))
    }

    /// The name in a path.
    pub fn parse(text: &str) -> Option<Self> {
        let digits =
            text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = digits.then(|| u128::from_str_radix(text, 16).ok());
        number.flatten().map(PermitId)
    }
}

impl std::fmt::Display for PermitId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Debug)]
struct LocalPermit {
    permit: Permit,
    length: Duration,
    /// The longest it can be.
    most: Duration,
    ends: Instant,
}

/// Why a lease is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewError {
    /// It is not held (any more).
    NotHeld,
    /// It cannot be held for so long; the longest it can be.
    TooLong(Duration),
}

/// All permits that are held.
#[derive(Debug, Default)]
pub struct LocalPermits {
    held: Mutex<HashMap<PermitId, LocalPermit>>,
}

impl LocalPermits {
    /// Whether there is room for one more.
    pub fn has_room(&self) -> bool {
        if self.held().len() < MAX_LEASES {
            return true;
        }
        self.sweep();
        self.held().len() < MAX_LEASES
    }

    /// Keeps a permit and names it; `None` gives it back, for want of room or of
    /// randomness.
    pub fn keep(&self, permit: Permit, length: Duration, most: Duration) -> Option<PermitId> {
        let id = PermitId::random()?;
        let mut held = self.held();
        if held.len() >= MAX_LEASES {
            return None;
        }
        held.insert(id, LocalPermit { permit, length, most, ends: Instant::now() + length });
        Some(id)
    }

    /// Starts a lease anew, as long as it was or as `length` says, and says how long it is.
    pub fn renew(&self, id: PermitId, length: Option<Duration>) -> Result<Duration, RenewError> {
        let mut held = self.held();
        let lease = held.get_mut(&id).ok_or(RenewError::NotHeld)?;
        let renewed = match length {
            Some(length) if length > lease.most => return Err(RenewError::TooLong(lease.most)),
            Some(length) => {
                let renewed = lease.permit.renew_for(length);
                renewed.map_err(|_| RenewError::TooLong(lease.most))?
            }
            None => lease.permit.renew(),
        };
        if renewed {
            lease.length = length.unwrap_or(lease.length);
            lease.ends = Instant::now() + lease.length;
            return Ok(lease.length);
        }
        let ended = held.remove(&id);
        drop(held);
        drop(ended);
        Err(RenewError::NotHeld)
    }

    /// Gives a permit back; `false` if it is not held (any more).
    pub fn release(&self, id: PermitId) -> bool {
        let removed = self.held().remove(&id);
        removed.is_some_and(|lease| lease.ends > Instant::now())
    }

    /// Forgets what has ended.
    pub fn sweep(&self) {
        let now = Instant::now();
        let ended: Vec<LocalPermit> =
            self.held().extract_if(|_, lease| lease.ends <= now).map(|(_, lease)| lease).collect();
        // Given back without the lock.
        drop(ended);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<PermitId, LocalPermit>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
