//! The leases of one key: how many units this node takes, until when, and when it gives them back.
//!
//! ```text
//!   demand   ______/~~~~~~~~~~~~~~~~~~~~~~~~~~~~\_____
//!   lease 1        |====================|                 taken when the key is hot
//!   lease 2                  |====================|       taken when half of lease 1 is left;
//!                                                         lease 1 keeps a few units until it arrives
//!   idle                                        |> given back, and the key is dropped
//! ```
//!
//! All functions take the time, and none of them sends anything: `renewal.rs` sends the operations
//! that [`KeyLeases::operations`] returns, and reports the reply.

use smallvec::SmallVec;
use tidegate_core::{
    Attempt, Cost, GiveBack, Grant, GrantId, Lease, LeaseRequest, Limit, Timestamp, bounds,
};

use super::super::lease_call::{LeaseOperation, LeaseReply};
use super::super::machine::NodeTime;
use super::{GATHER_US, MIN_GATHERED};

/// The duration of a lease: this part of the window. A unit counts until the end of its lease, and
/// then for a window, so half a percent of a window is the most that a lease costs the limit.
const WINDOW_PART: u64 = 200;
/// The shortest duration, in microseconds: enough for some round trips.
const MIN_DURATION_US: u64 = 20_000;
/// The longest duration, in microseconds. A node that crashes takes its units along for this time
/// and a window.
const MAX_DURATION_US: u64 = 500_000;
/// The margin of [`Lease::new`], in microseconds: the clocks are read in whole microseconds.
const CLOCK_MARGIN_US: u64 = 1;
/// A lease is renewed when `1/RENEW_PART` of its time is left. On a busy machine the reply may take
/// many milliseconds.
const RENEW_PART: u64 = 2;
/// A lease is also renewed when it has the units of `1/LOW_PART` of its time left.
const LOW_PART: u64 = 4;
/// A lease that ends with more than `1/WASTE_PART` of its units unspent was wasted, and the next
/// one is requested after a pause.
const WASTE_PART: u64 = 16;
/// The time for which a lease that is renewed keeps units, in microseconds: long enough for the
/// next lease to arrive. Units that are left when a lease ends are lost, so it is at most half of
/// the time that the lease has left.
const KEEP_US: u64 = 10_000;
/// The fewest units that are worth a lease.
const MIN_UNITS: u64 = 8;
/// The share of the available units that a node takes at most, if no other node has a lease: one in
/// this number. Each other node that has one adds this number, so that units are left for
/// everybody.
const SHARE: u64 = 2;
/// The interval in which demand is measured, in microseconds, and the first, shorter one.
const MEASURE_US: u64 = 50_000;
const FIRST_MEASURE_US: u64 = 10_000;
/// The pause after a lease that was refused or too small, in microseconds. It doubles up to the
/// longest one.
const MIN_PAUSE_US: u64 = 5_000;
const MAX_PAUSE_US: u64 = 1_000_000;
/// The time without demand after which all units are given back, in microseconds.
const IDLE_US: u64 = 100_000;
/// The largest number of leases of a key. One is spent from, and the next one may be taken before
/// it ends; more are only held after bursts.
const MAX_HELD: usize = 4;

/// The duration of a lease under a limit.
pub(super) fn duration_us(limit: &Limit) -> u64 {
    (limit.window_us() / WINDOW_PART).clamp(MIN_DURATION_US, MAX_DURATION_US)
}

/// The leases of one key on this node.
#[derive(Debug)]
pub(super) struct KeyLeases {
    limit: Limit,
    /// The leases, oldest first.
    held: SmallVec<[HeldLease; 2]>,
    demand: Demand,
    /// The operations that have no reply yet.
    in_flight: Option<InFlight>,
    /// Give-backs that are sent with the next operations.
    give_backs: SmallVec<[GiveBack; 2]>,
    /// The number of other nodes that have leases of this key, as of the last reply.
    other_nodes: u64,
    /// No lease is requested before this time.
    not_before: Timestamp,
    pause_us: u64,
    /// Whether the latest lease was refused or too small.
    is_scarce: bool,
    /// The time at which the whole limit is available again, on the monotonic clock.
    reset_at: Timestamp,
    is_closed: bool,
    /// Whether the task was told to look at this key.
    is_queued: bool,
}

#[derive(Clone, Copy, Debug)]
struct HeldLease {
    lease: Lease,
    /// The units that were granted.
    units: u64,
    /// The duration after which the lease ends on either clock, and the time on the wall clock at
    /// which its request was sent.
    lasts_us: u64,
    sent_wall: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    sent: NodeTime,
    request: Option<LeaseRequest>,
}

/// The result of a request that was answered from leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalAnswer {
    /// The units that this node can still spend. The limit has at least these left.
    pub(super) left: u64,
    pub(super) reset_after_us: u64,
}

/// The units of leases that ended in a way that callers count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EndedUnits {
    /// Units that were granted and can be spent.
    pub(super) granted: u64,
    /// Units that were given back.
    pub(super) given_back: u64,
    /// Units that were neither spent nor given back in time.
    pub(super) expired: u64,
}

impl HeldLease {
    fn left(&self, now: NodeTime) -> u64 {
        if self.is_live(now) { self.lease.left(now.monotonic) } else { 0 }
    }

    /// Whether the lease has not ended on either clock.
    fn is_live(&self, now: NodeTime) -> bool {
        let wall_us = now.wall.as_micros().saturating_sub(self.sent_wall.as_micros());
        wall_us < self.lasts_us && now.monotonic < self.lease.stop()
    }

    /// Gives back all but `needed` of the units that are left.
    fn give_back(
        &mut self,
        needed: u64,
        now: NodeTime,
        ended: &mut EndedUnits,
        give_backs: &mut SmallVec<[GiveBack; 2]>,
    ) {
        let left = self.left(now);
        if left > needed {
            give_backs.push(self.lease.give_back(needed));
            ended.given_back += left - needed;
        }
    }

    fn time_left_us(&self, now: NodeTime) -> u64 {
        self.lease.stop().as_micros().saturating_sub(now.monotonic.as_micros())
    }
}

impl KeyLeases {
    /// Creates the leases of a key with this demand, in units in a second. It has none yet.
    pub(super) fn new(limit: &Limit, rate: u64, now: NodeTime) -> Self {
        KeyLeases {
            limit: *limit,
            held: SmallVec::new(),
            demand: Demand::new(rate, now.monotonic),
            in_flight: None,
            give_backs: SmallVec::new(),
            other_nodes: 0,
            not_before: Timestamp::from_micros(0),
            pause_us: MIN_PAUSE_US,
            is_scarce: false,
            reset_at: now.monotonic,
            is_closed: false,
            is_queued: true,
        }
    }

    /// Charges an ask, or refunds units, from the leases. Returns the answer, or `None` if the
    /// store has to decide, and whether the task should look at this key.
    pub(super) fn apply(&mut self, cost: Cost, now: NodeTime) -> (Option<LocalAnswer>, bool) {
        let is_done = match cost {
            Cost::Ask(units) => {
                self.demand.note(units);
                self.spend(units, now)
            }
            Cost::Refund(units) => self.refund(units, now),
            Cost::Force(_) => false,
        };
        let left = self.left(now);
        let reset_after_us = self.reset_at.as_micros().saturating_sub(now.monotonic.as_micros());
        let is_due = !self.is_queued && self.wants_lease(now);
        self.is_queued |= is_due;
        (is_done.then_some(LocalAnswer { left, reset_after_us }), is_due)
    }

    /// Reverses [`KeyLeases::apply`].
    pub(super) fn undo(&mut self, cost: Cost, now: NodeTime) {
        match cost {
            Cost::Ask(units) => self.refund(units, now),
            Cost::Refund(units) | Cost::Force(units) => self.spend(units, now),
        };
    }

    /// Whether requests on the key are gathered: it is very hot, and the store had too few units
    /// left for the latest lease.
    pub(super) fn is_gathered(&self) -> bool {
        self.is_scarce && self.demand.units_in(GATHER_US) >= MIN_GATHERED
    }

    /// Stops leasing. Returns whether it was not stopped before.
    pub(super) fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.is_closed, true)
    }

    /// The number of leases with units left.
    pub(super) fn active(&self, now: NodeTime) -> u64 {
        self.held.iter().map(|held| u64::from(held.left(now) > 0)).sum()
    }

    /// Spends units, of the oldest lease first. A cost of 0 needs one unit.
    fn spend(&mut self, units: u64, now: NodeTime) -> bool {
        if self.is_closed || units.max(1) > self.left(now) {
            return false;
        }
        let mut rest = units;
        for held in &mut self.held {
            let part = rest.min(held.left(now));
            if part > 0 && held.lease.spend(part, now.monotonic).is_some() {
                rest -= part;
            }
        }
        rest == 0
    }

    /// Refunds units to the newest lease first, if all of them were spent from leases that have not
    /// ended.
    fn refund(&mut self, units: u64, now: NodeTime) -> bool {
        let before = self.held.clone();
        let mut rest = units;
        for held in self.held.iter_mut().rev() {
            rest -= held.lease.refund(rest, now.monotonic);
        }
        if rest > 0 {
            self.held = before;
        }
        rest == 0
    }

    fn left(&self, now: NodeTime) -> u64 {
        self.held.iter().map(|held| held.left(now)).sum()
    }

    /// The units that a lease should have.
    fn wanted_units(&self) -> u64 {
        self.demand.units_in(duration_us(&self.limit)).min(self.limit.capacity())
    }

    /// Whether a lease should be requested now.
    fn wants_lease(&self, now: NodeTime) -> bool {
        let is_possible = !self.is_closed
            && !self.demand.is_idle(now.monotonic)
            && self.in_flight.is_none()
            && self.held.len() < MAX_HELD
            && now.monotonic >= self.not_before
            && self.wanted_units() >= MIN_UNITS;
        let (ahead_us, low_us) =
            (duration_us(&self.limit) / RENEW_PART, duration_us(&self.limit) / LOW_PART);
        let lasts = |held: &HeldLease| held.left(now) > 0 && held.time_left_us(now) > ahead_us;
        is_possible
            && (!self.held.iter().any(lasts)
                || self.left(now) < self.demand.units_in(low_us).max(1))
    }

    /// Measures demand, and returns the operations to send now, if any. A request for a lease has
    /// the id that `new_id` returns.
    pub(super) fn operations(
        &mut self,
        now: NodeTime,
        new_id: impl FnOnce() -> GrantId,
        ended: &mut EndedUnits,
    ) -> SmallVec<[LeaseOperation; 2]> {
        self.is_queued = false;
        self.demand.measure(now.monotonic);
        self.drop_ended(now, ended);
        if self.in_flight.is_some() {
            return SmallVec::new();
        }
        if self.is_closed || self.demand.is_idle(now.monotonic) {
            self.give_back_all(now, ended);
        }
        let (wants_lease, duration_us) = (self.wants_lease(now), duration_us(&self.limit));
        if wants_lease {
            for held in &mut self.held {
                let time_left_us = held.time_left_us(now);
                let ends_soon = time_left_us <= duration_us / RENEW_PART;
                let kept_us = if ends_soon { KEEP_US.min(time_left_us / 2) } else { time_left_us };
                let needed = self.demand.units_in(kept_us);
                held.give_back(needed, now, ended, &mut self.give_backs);
            }
        }
        let mut operations: SmallVec<[LeaseOperation; 2]> =
            self.give_backs.drain(..).map(LeaseOperation::GiveBack).collect();
        let request = wants_lease.then(|| LeaseRequest {
            id: new_id(),
            units: self.wanted_units(),
            duration_us,
            divisor: SHARE.saturating_mul(self.other_nodes.saturating_add(1)),
        });
        operations.extend(request.map(LeaseOperation::Grant));
        if !operations.is_empty() {
            self.in_flight = Some(InFlight { sent: now, request });
        }
        operations
    }

    /// Whether the key can be dropped: it has no units, sends nothing, and is closed or not hot.
    pub(super) fn is_done(&self, now: NodeTime) -> bool {
        self.held.is_empty()
            && self.in_flight.is_none()
            && self.give_backs.is_empty()
            && (self.is_closed || self.is_cold(now))
    }

    fn is_cold(&self, now: NodeTime) -> bool {
        self.demand.is_idle(now.monotonic)
            || self.demand.is_measured && self.wanted_units() < MIN_UNITS
    }

    /// Takes the reply to the last operations.
    pub(super) fn received(&mut self, reply: &LeaseReply, now: NodeTime, ended: &mut EndedUnits) {
        let Some(InFlight { sent, request }) = self.in_flight.take() else { return };
        let own = |id: GrantId| {
            self.held.iter().any(|held| held.lease.id() == id)
                || request.is_some_and(|request| request.id == id)
        };
        let grants = reply.state.grants();
        let others = grants.iter().filter(|grant| !own(grant.id)).count();
        self.other_nodes = u64::try_from(others).unwrap_or(u64::MAX);
        // A lease that the store does not know was lost with its data. Its units are not counted.
        for held in &mut self.held {
            let is_known = grants.iter().any(|grant| grant.id == held.lease.id());
            if held.left(now) > 0 && !is_known {
                ended.expired += held.left(now);
                let _ = held.lease.give_back(0);
            }
        }
        self.note_reset(reply, now);
        let Some(request) = request else { return };
        let grant = reply.grant.filter(|grant| grant.id == request.id);
        if let Some(grant) = grant {
            ended.granted += grant.units;
            self.accept(&grant, sent, now, ended);
        }
        self.is_scarce = grant.is_none_or(|grant| grant.units < request.units / LOW_PART);
        if self.is_scarce {
            self.pause(now);
        }
    }

    /// Records that the last operations had no reply. The store may have granted the lease.
    pub(super) fn failed(&mut self, now: NodeTime) {
        let request = self.in_flight.take().and_then(|in_flight| in_flight.request);
        self.give_backs.extend(request.map(|request| GiveBack { id: request.id, keep: 0 }));
        self.is_scarce = false;
        self.pause(now);
    }

    /// Takes a lease for which the request was sent at `sent`.
    fn accept(&mut self, grant: &Grant, sent: NodeTime, now: NodeTime, ended: &mut EndedUnits) {
        let lease = Lease::new(grant, sent.monotonic, CLOCK_MARGIN_US);
        let lasts_us = lease.stop().as_micros().saturating_sub(sent.monotonic.as_micros());
        let held = HeldLease { lease, units: grant.units, lasts_us, sent_wall: sent.wall };
        if held.left(now) == 0 {
            // The reply came too late.
            self.give_backs.push(GiveBack { id: grant.id, keep: 0 });
            ended.given_back += grant.units;
            return self.pause(now);
        }
        self.held.push(held);
    }

    /// Requests no lease for a while, because few units are left or the store does not answer.
    fn pause(&mut self, now: NodeTime) {
        self.not_before = now.monotonic.plus_micros(self.pause_us);
        self.pause_us = (self.pause_us * 2).min(MAX_PAUSE_US);
    }

    fn note_reset(&mut self, reply: &LeaseReply, now: NodeTime) {
        let mut state = reply.state.clone();
        let decision = state.decide(&self.limit, &Attempt::new(Cost::PEEK, reply.now));
        self.reset_at = now.monotonic.plus_micros(decision.reset_after.as_micros());
    }

    /// Drops leases that have ended. If there are many, the oldest one without units is dropped
    /// too; refunds of its units are then made by the store.
    fn drop_ended(&mut self, now: NodeTime, ended: &mut EndedUnits) {
        let is_ended = |held: &HeldLease| !held.is_live(now);
        let is_wasted = |held: &HeldLease| held.lease.unspent() > held.units / WASTE_PART;
        let (mut has_ended, mut was_wasted) = (false, false);
        for held in self.held.iter().filter(|held| is_ended(held)) {
            ended.expired += held.lease.unspent();
            has_ended = true;
            was_wasted |= is_wasted(held);
        }
        self.held.retain(|held| !is_ended(held));
        if was_wasted {
            self.pause(now);
        } else if has_ended {
            self.pause_us = MIN_PAUSE_US;
        }
        if self.held.len() >= MAX_HELD
            && let Some(index) = self.held.iter().position(|held| held.lease.unspent() == 0)
        {
            self.held.remove(index);
        }
    }

    fn give_back_all(&mut self, now: NodeTime, ended: &mut EndedUnits) {
        for held in &mut self.held {
            held.give_back(0, now, ended, &mut self.give_backs);
        }
        self.held.clear();
    }
}

/// The demand for units of a key on this node.
#[derive(Debug)]
struct Demand {
    /// The units in a second.
    rate: u64,
    /// The units since the last measurement.
    units: u64,
    measured_at: Timestamp,
    active_at: Timestamp,
    is_measured: bool,
}

impl Demand {
    fn new(rate: u64, now: Timestamp) -> Self {
        Demand { rate, units: 0, measured_at: now, active_at: now, is_measured: false }
    }

    fn note(&mut self, units: u64) {
        self.units = self.units.saturating_add(units).min(bounds::MAX_COUNT);
    }

    /// Updates the rate, if the interval is over. It follows a rise faster than a fall.
    fn measure(&mut self, now: Timestamp) {
        let elapsed_us = now.as_micros().saturating_sub(self.measured_at.as_micros());
        if elapsed_us < if self.is_measured { MEASURE_US } else { FIRST_MEASURE_US } {
            return;
        }
        let measured = self.units.saturating_mul(1_000_000) / elapsed_us;
        self.rate = match measured > self.rate {
            true => (self.rate + measured.saturating_mul(3)) / 4,
            false => (self.rate.saturating_mul(3) + measured) / 4,
        };
        if self.units > 0 {
            self.active_at = now;
        }
        (self.units, self.measured_at, self.is_measured) = (0, now, true);
    }

    /// The units that are needed in a time, rounded up.
    fn units_in(&self, duration_us: u64) -> u64 {
        self.rate.saturating_mul(duration_us).div_ceil(1_000_000)
    }

    fn is_idle(&self, now: Timestamp) -> bool {
        self.units == 0 && now.as_micros().saturating_sub(self.active_at.as_micros()) >= IDLE_US
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::LeasedState;

    use super::*;

    const MS: u64 = 1_000;

    fn at(micros: u64) -> NodeTime {
        // The wall clock is far ahead of the monotonic one, as it is outside of tests.
        let wall = Timestamp::from_micros(1_700_000_000_000_000 + micros);
        NodeTime { monotonic: Timestamp::from_micros(micros), wall }
    }

    /// A key, and a store that replies at once.
    struct World {
        limit: Limit,
        store: LeasedState,
        node: KeyLeases,
        ids: u64,
        ended: EndedUnits,
    }

    impl World {
        fn new(text: &str, rate: u64) -> Self {
            let limit: Limit = text.parse().expect("a limit");
            let node = KeyLeases::new(&limit, rate, at(0));
            let ended = EndedUnits::default();
            World { limit, store: LeasedState::new(&limit), node, ids: 0, ended }
        }

        /// Returns the operations that are due, and takes them to the store and back.
        fn exchange(&mut self, now: u64) -> Vec<LeaseOperation> {
            let id = GrantId(self.ids + 1);
            let operations = self.node.operations(at(now), || id, &mut self.ended);
            self.ids += 1;
            let mut grant = None;
            for operation in &operations {
                match operation {
                    LeaseOperation::Grant(request) => {
                        grant = self.store.grant(&self.limit, request, at(now).wall);
                    }
                    LeaseOperation::GiveBack(back) => {
                        self.store.give_back(&self.limit, back, at(now).wall);
                    }
                    LeaseOperation::Reset => unreachable!("not sent by nodes"),
                }
            }
            if !operations.is_empty() {
                let state = self.store.clone();
                let reply = LeaseReply { now: at(now).wall, existed: true, state, grant };
                self.node.received(&reply, at(now), &mut self.ended);
            }
            operations.into_vec()
        }

        /// Spends units. Returns whether the leases had them.
        fn spend(&mut self, units: u64, now: u64) -> bool {
            self.node.apply(Cost::Ask(units), at(now)).0.is_some()
        }

        fn available(&mut self, now: u64) -> u64 {
            let peek = Attempt::new(Cost::PEEK, at(now).wall);
            self.store.decide(&self.limit, &peek).remaining
        }
    }

    #[test]
    fn lease_has_the_units_of_its_duration_and_is_renewed_in_time() {
        let mut world = World::new("600000 per 1m", 1_000);
        assert!(!world.spend(1, 0));
        let operations = world.exchange(0);
        let [LeaseOperation::Grant(request)] = operations[..] else { panic!("{operations:?}") };
        assert_eq!((request.units, request.duration_us, request.divisor), (300, 300 * MS, 2));
        assert!(world.spend(1, 1));
        // Half of the time is left. The lease keeps what it needs until the next one arrives.
        for ms in 1..140 {
            assert!(world.spend(1, ms * MS), "{ms}");
            assert!(world.exchange(ms * MS).is_empty(), "{ms}");
        }
        let operations = world.exchange(152 * MS);
        let [LeaseOperation::GiveBack(back), LeaseOperation::Grant(_)] = operations[..] else {
            panic!("{operations:?}")
        };
        assert!((140 + 8..140 + 15).contains(&back.keep), "{back:?}");
        assert_eq!(world.node.active(at(152 * MS)), 2);
    }

    #[test]
    fn units_that_run_out_are_renewed_early() {
        let mut world = World::new("600000 per 1m", 1_000);
        world.exchange(0);
        let (spent, is_due) = world.node.apply(Cost::Ask(200), at(1));
        assert!(spent.is_some() && !is_due);
        let (spent, is_due) = world.node.apply(Cost::Ask(99), at(1));
        assert_eq!((spent.expect("spent").left, is_due), (1, true));
        assert!(!world.spend(2, 1));
        assert!(matches!(world.exchange(1)[..], [LeaseOperation::Grant(_)]));
        assert!(world.spend(200, 1));
    }

    #[test]
    fn idle_keys_give_back_everything() {
        let mut world = World::new("600000 per 1m", 1_000);
        world.exchange(0);
        assert!(world.spend(10, 1));
        assert_eq!(world.available(1), 600_000 - 300);
        world.exchange(60 * MS);
        let operations = world.exchange(170 * MS);
        assert!(matches!(operations[..], [LeaseOperation::GiveBack(_)]), "{operations:?}");
        assert_eq!(world.available(170 * MS), 600_000 - 10);
        assert!(world.node.is_done(at(170 * MS)));
        assert_eq!(world.ended, EndedUnits { granted: 300, given_back: 290, expired: 0 });
    }

    #[test]
    fn refused_leases_are_not_requested_again_at_once() {
        let mut world = World::new("100 per 1m", 1_000);
        let all = Attempt::new(Cost::Ask(100), at(0).wall);
        assert!(world.store.decide(&world.limit, &all).allowed);
        assert_eq!(world.exchange(0).len(), 1);
        assert!(world.exchange(MIN_PAUSE_US - 1).is_empty());
        assert_eq!(world.exchange(MIN_PAUSE_US).len(), 1);
        assert!(world.exchange(2 * MIN_PAUSE_US).is_empty());
    }

    #[test]
    fn requests_are_gathered_if_there_are_many_and_leases_are_refused() {
        for (rate, many) in [(1_000, false), (10_000, true)] {
            let mut world = World::new("100 per 1m", rate);
            let all = Attempt::new(Cost::Ask(100), at(0).wall);
            assert!(world.store.decide(&world.limit, &all).allowed);
            assert!(!world.node.is_gathered());
            world.exchange(0);
            assert_eq!(world.node.is_gathered(), many, "{rate}");
            // A store that does not answer may have units.
            world.node.failed(at(MS));
            assert!(!world.node.is_gathered());
        }
    }

    #[test]
    fn lease_without_a_reply_is_given_back() {
        let mut world = World::new("600000 per 1m", 1_000);
        let operations = world.node.operations(at(0), || GrantId(9), &mut world.ended);
        assert_eq!(operations.len(), 1);
        // Nothing more is sent until there is a reply, or none any more.
        assert!(world.exchange(MS).is_empty());
        world.node.failed(at(25 * MS));
        let operations = world.exchange(40 * MS);
        let back = LeaseOperation::GiveBack(GiveBack { id: GrantId(9), keep: 0 });
        assert_eq!(operations[0], back);
    }

    /// A suspended machine continues with a monotonic clock that has stood still.
    #[test]
    fn leases_end_by_the_clock_that_is_ahead() {
        let mut world = World::new("600000 per 1m", 1_000);
        world.exchange(0);
        let mut resumed = at(2);
        resumed.wall = resumed.wall.plus_micros(400 * MS);
        assert_eq!(world.node.apply(Cost::Ask(1), resumed).0, None);
        assert!(world.spend(1, 2));
        // A wall clock that is set back changes nothing.
        resumed.wall = Timestamp::from_micros(1);
        assert!(world.node.apply(Cost::Ask(1), resumed).0.is_some());
        resumed.monotonic = Timestamp::from_micros(300 * MS);
        assert_eq!(world.node.apply(Cost::Ask(1), resumed).0, None);
    }

    #[test]
    fn refunds_return_to_the_lease_they_were_spent_from() {
        let mut world = World::new("600000 per 1m", 1_000);
        world.exchange(0);
        assert!(world.spend(10, 1));
        let refund = |world: &mut World, units, now| {
            world.node.apply(Cost::Refund(units), at(now)).0.map(|answer| answer.left)
        };
        assert_eq!(refund(&mut world, 4, 2), Some(294));
        // All or nothing: the store refunds what was not spent here.
        assert_eq!(refund(&mut world, 7, 2), None);
        assert_eq!(refund(&mut world, 6, 2), Some(300));
        assert_eq!(refund(&mut world, 1, 2), None);
    }

    #[test]
    fn leases_that_the_store_has_lost_are_not_spent() {
        let mut world = World::new("600000 per 1m", 1_000);
        world.exchange(0);
        world.store = LeasedState::new(&world.limit);
        assert!(world.spend(240, 1));
        assert!(matches!(world.exchange(2)[..], [LeaseOperation::Grant(_)]));
        // Only the second lease is left.
        assert_eq!(world.node.left(at(3)), 300);
        assert_eq!(world.ended.expired, 60);
    }

    #[test]
    fn other_nodes_with_leases_lower_the_share() {
        let mut world = World::new("1000 per 1m", 10_000);
        let other = LeaseRequest { id: GrantId(77), units: 1, duration_us: 500 * MS, divisor: 1 };
        world.store.grant(&world.limit, &other, at(0).wall).expect("granted");
        world.exchange(0);
        // Half of the 999 units that are left, rounded up.
        assert_eq!(world.node.left(at(1)), 500);
        assert!(world.spend(500, 1));
        world.exchange(2);
        // Two nodes have leases: a quarter of the 499 units that are left.
        assert_eq!(world.node.left(at(3)), 125);
    }

    #[test]
    fn closed_keys_answer_nothing_and_give_back() {
        let mut world = World::new("600000 per 1m", 1_000);
        world.exchange(0);
        assert!(world.node.close() && !world.node.close());
        assert!(!world.spend(1, 1));
        assert!(matches!(world.exchange(1)[..], [LeaseOperation::GiveBack(_)]));
        assert_eq!(world.available(1), 600_000);
        assert!(world.node.is_done(at(1)));
    }
}
