//! Leases: units of a hot key that a node spends without asking the shared store.
//!
//! A shared store decides every request of a key, so a key with many requests is bound by the round
//! trips to the store. The naive remedy is to count on every node and to exchange the counts now
//! and then. It admits too much: between two exchanges no node knows what the others admit.
//!
//! A lease reverses the order. The node takes `k` units from the store *before* it spends them, for
//! at most a duration `d`. The store counts them as used from then on. What the node does not spend
//! it gives back.
//!
//! ```text
//!   store   --- grant of k units ---------- deadline = t + d ----------> time
//!               t |<------- held ------->| then charged, as if spent at the deadline
//!   node    --+---------====================|--------------------------->
//!             sent      spends              stops at sent + d, less the drift allowance
//! ```
//!
//! # What the store keeps
//!
//! A [`LeasedState`] is the [`State`](crate::State) of the limit and a list of open grants. The
//! units of an open grant are *held*: they are not in the state yet, and they are not available.
//! The available units are those of the state, less all held units. After the deadline of a grant
//! its units are charged to the state at the time of the deadline, whether or not the node has
//! spent them.
//!
//! They are held and not charged at once, because only a charge at the deadline is late enough (see
//! below), and a state cannot be charged ahead of its time without special rules for refunds,
//! widening and state from the future. Held units need none of these rules.
//!
//! | event | effect on open grants |
//! | --- | --- |
//! | give-back | the grant shrinks to the units that the node keeps; a repeated or delayed message changes nothing |
//! | deadline | the units are charged at the deadline, and the grant is closed; later give-backs are ignored |
//! | refund | none: a refund takes units of the state, never units that are out |
//! | reset | none: the state is emptied, with units whose deadline has passed; units that are out stay held |
//! | other limit, widening, other pace | none: the units are charged under the limit that is in force after the deadline |
//! | clock steps back to before the grant | the grant counts as granted now, and is held for its whole duration again |
//! | clock steps forward past the deadline | the units are charged; see [the bound](#clock-steps) |
//!
//! # Why it holds
//!
//! Claim: **nothing is admitted beyond the bound of the algorithm.** Let a unit be spent at the
//! time `s`, under a grant with the deadline `D`.
//!
//! 1. *`s <= D`.* The store granted it at `t`, after the node sent the request at `r <= t`, and
//!    `D = t + d`. The node stops when its own clock shows `d - d/1000` since it sent the request.
//!    By then at most `d` has passed on the clock of the store, because the two differ in rate by
//!    at most one in a thousand. So `s <= r + d <= D`.
//! 2. *Every unit is counted, and not before its time.* While the grant is open the unit is held.
//!    Afterwards the state has it at `D >= s`. A state that counts a unit at a later time releases
//!    it later. So at any time, held units and units of the state together are at least those that
//!    an ordinary store would count, had it admitted every unit at the time at which it was spent.
//! 3. *Units that are out fit.* A grant takes available units only. So after every admission and
//!    every grant, all that is counted is within the limit, including units that are not yet spent.
//!    Spending one moves it from "may be spent" to "spent", and the sum stays.
//!
//! For `sliding-log` and `sliding-window`: take a window `(s - W, s]`, and the last admission or
//! grant `e <= s`. Every unit of the window was counted at `e`, because its counted time is above
//! `s - W >= e - W`. The sum at `e` was at most `L`. For `fixed-window` and `sliding-counter` the
//! deadline is cut at the end of the aligned window, so the units are counted in the window in
//! which they are spent. For `token-bucket`, let `Q` be the debt had every unit been charged when
//! it was spent, and `R` the debt of the state. Then `Q <= R + spent units of open grants`: time
//! lowers both sides by the same amount unless `Q` is 0, a spent unit raises both by the same, and
//! at a deadline the right side does not fall. So `Q` never exceeds the burst.
//!
//! Refunds remove the newest unit of the true history and the newest unit of the state. If the
//! first was spent under an open grant, the unit that replaces it in the count is held until the
//! deadline, which is later than the time of any unit in the history.
//!
//! A loss only under-admits: after a lost reply, a crash, or a lost give-back, the units
//! are counted until `D` and then for a window, although they were not spent.
//!
//! # Clock steps
//!
//! After a step of the store's clock forward, the store may reach a deadline before the node stops.
//! The units that are out at the step may then be spent besides what the store admits, and no
//! others. After a step back the same holds for a `sliding-counter`, because its estimate of older
//! units rises again. For the other algorithms a step back opens nothing.
//!
//! # Limits without leases
//!
//! `concurrency` has none, because its permits are held until they are released. Nor has a
//! `sliding-window` of up to 20 units: it is a log of single units, and a lease would take most of
//! it. [`Limit::longest_lease_us`] is 0 for them.

mod node;
mod store;

pub use node::{GiveBack, Lease};
pub use store::LeasedState;

use crate::{Algorithm, Limit, Timestamp, WindowForm};

/// The longest lease: 10 s. Units that a node took and cannot give back, for example because it
/// crashed, are missing for a window and this time.
pub const MAX_LEASE_US: u64 = 10 * 1_000_000;
/// The shortest lease: 1 ms, about the time that the reply takes.
pub const MIN_LEASE_US: u64 = 1_000;
/// The most open grants of a state. Each of them takes bytes in the state and time in every
/// decision.
pub const MAX_GRANTS: usize = 64;

/// Identifies a grant. The node chooses it with the request, below 2^53.
///
/// No other request of any node may have it, so nodes choose it at random. An id that the store
/// derived from its time or its state would not be unique: after a step of its clock, or after it
/// lost its data, a delayed give-back could name a grant of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(pub u64);

/// The units that a node asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The id of the grant.
    pub id: GrantId,
    /// The most units.
    pub units: u64,
    /// The longest duration in microseconds.
    pub duration_us: u64,
    /// The part of the available units that the node may take at most: 1 for all of them, 4 for a
    /// quarter, rounded up. It leaves units for other nodes when few are left.
    pub divisor: u64,
}

/// Units that were granted and may be out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The name of the grant in a [`GiveBack`].
    pub id: GrantId,
    /// The units that the node may spend in total.
    pub units: u64,
    /// The last time at which a unit may be spent, on the clock of the store.
    pub deadline: Timestamp,
    /// The time from the grant to the deadline in microseconds.
    pub duration_us: u64,
}

impl Grant {
    /// The time of the grant, on the clock of the store.
    fn granted_at(&self) -> u64 {
        self.deadline.as_micros().saturating_sub(self.duration_us)
    }
}

impl Limit {
    /// Returns the longest duration of a lease that is granted at `now`; 0 if no lease is possible.
    ///
    /// It is at most a window. Under a `fixed-window` or a `sliding-counter` it ends with the
    /// aligned window.
    pub fn longest_lease_us(&self, now: Timestamp) -> u64 {
        let longest_us = match self.algorithm() {
            Algorithm::Concurrency => 0,
            Algorithm::SlidingWindow if self.form() == WindowForm::Times => 0,
            Algorithm::FixedWindow | Algorithm::SlidingCounter => {
                // The deadline is the last microsecond of the window.
                self.window_us() - 1 - self.window_position(now).elapsed_us
            }
            _ => self.window_us(),
        };
        if longest_us < MIN_LEASE_US { 0 } else { longest_us.min(MAX_LEASE_US) }
    }
}
