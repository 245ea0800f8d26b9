//! A small world of leases: a store, two nodes, and the messages between them.
//!
//! Every step is an [`Action`]. Messages may arrive at any time after they were sent, in any order,
//! or never; so a lost message, a crashed node and a partition are histories in which some actions
//! do not occur. The clock of the first node is slow by the whole drift allowance. After every step
//! the [`Judge`] looks at the units that were really admitted, and at those that the nodes could
//! spend at once.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_core::{
    Attempt, Cost, GiveBack, Grant, GrantId, Lease, LeaseRequest, LeasedState, Limit, RetryAfter,
    State, Timestamp,
};

use crate::lease_judge::Judge;

/// The time at which a world begins: a boundary of windows of up to a second, late enough for the
/// clock to step back.
pub const START: u64 = 1_000_000_000;
/// The most messages under way. Others are not sent.
const MAX_MESSAGES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes, in microseconds.
    Wait(u64),
    /// The clock of the store steps forward or back, in microseconds.
    Step(i64),
    /// A node sends a request for a lease.
    Ask(usize),
    /// A message arrives.
    Deliver(usize),
    /// A message arrives, and will arrive again.
    Duplicate(usize),
    /// A node spends units of its lease.
    Spend(usize, u64),
    /// A node takes back units that it spent, into its lease.
    TakeBack(usize, u64),
    /// A node gives back all but some of its unspent units.
    GiveBack(usize, u64),
    /// The store decides a request without a lease.
    Decide(u64),
    /// The store refunds units.
    Refund(u64),
    /// The store forgets the key.
    Reset,
    /// The limit is replaced by the other one.
    Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    /// The node, the time at which it sent the request, and the id of the grant.
    Ask(usize, u64, u64),
    Reply(usize, u64, Granted),
    GiveBack(GiveBack),
}

/// A grant as it was made, and whether a step of the store's clock lets its units be spent besides
/// what the store admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Granted {
    id: u64,
    units: u64,
    deadline: u64,
    duration_us: u64,
    excuse: Excuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Excuse {
    Never,
    /// If the store has reached the deadline.
    AfterDeadline,
    Always,
}

impl Granted {
    /// Whether units that are spent at a time of the store's clock are not judged.
    fn is_besides(&self, store_time: u64) -> bool {
        match self.excuse {
            Excuse::Never => false,
            Excuse::AfterDeadline => store_time > self.deadline,
            Excuse::Always => true,
        }
    }
}

/// A deliberate mistake in the rules, which a search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// The store charges a lease at the time of the grant, not at its deadline.
    ChargeAtGrant,
    /// The node does not subtract the drift allowance.
    NoDriftAllowance,
    /// The node measures the duration from the reply, not from the request.
    FromReply,
    /// A give-back takes units of the newest open grant.
    NewestGrantFirst,
    /// A give-back says how many units return, so a duplicate counts twice.
    CountGiveBacks,
    /// A refund takes units of open grants first.
    RefundTakesGrants,
    /// A reset forgets open grants.
    ResetForgetsGrants,
    /// The store takes back units after the deadline, as a refund.
    LateGiveBack,
    /// The store charges a lease at the time of the grant, and does not cut it at the end of the
    /// aligned window.
    NotCut,
}

/// The constants of a world.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The limit, and the one that may replace it.
    pub limits: [Limit; 2],
    /// The request of a node, but for its id.
    pub request: LeaseRequest,
    pub mistake: Mistake,
}

#[derive(Clone)]
pub struct World {
    now: u64,
    /// The time of the store's clock less the true time.
    offset: i64,
    /// The index of the limit.
    limit: usize,
    pub store: LeasedState,
    leases: [Option<(Lease, Granted)>; 2],
    /// The number of leases that each node has requested.
    asked: [u64; 2],
    /// The id of the last lease that each node took.
    accepted: [u64; 2],
    messages: Vec<Message>,
    judge: Judge,
    /// Whether the last action admitted units.
    has_admitted: bool,
    /// The fullest window seen.
    pub fullest: i128,
    pub trail: Vec<Action>,
}

impl World {
    pub fn new(rules: &Rules) -> Self {
        World {
            now: START,
            offset: 0,
            limit: 0,
            store: LeasedState::new(&rules.limits[0]),
            leases: [None; 2],
            asked: [0; 2],
            accepted: [0; 2],
            messages: Vec::new(),
            judge: Judge::new(&rules.limits),
            has_admitted: false,
            fullest: 0,
            trail: Vec::new(),
        }
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// The units that a node can spend.
    pub fn left(&self, node: usize) -> u64 {
        self.leases[node].map_or(0, |(lease, _)| lease.left(self.node_time(node)))
    }

    pub fn has_lease(&self, node: usize) -> bool {
        self.leases[node].is_some()
    }

    pub fn is_asking(&self, node: usize) -> bool {
        let is_its = |message: &Message| matches!(message, Message::Ask(n, ..) | Message::Reply(n, ..) if *n == node);
        self.messages.iter().any(is_its)
    }

    /// Whether a message may arrive twice. A reply does not: it answers one request on a
    /// connection.
    pub fn is_repeatable(&self, message: usize) -> bool {
        !matches!(self.messages[message], Message::Reply(..))
    }

    pub fn store_time(&self) -> Timestamp {
        let now = self.now.checked_add_signed(self.offset).expect("a small step");
        Timestamp::from_micros(now)
    }

    /// The clocks of the nodes have other epochs than the store's. The first is slow.
    fn node_time(&self, node: usize) -> Timestamp {
        Timestamp::from_micros(match node {
            0 => 7_000 + self.now / 1_000 * 999 + self.now % 1_000 * 999 / 1_000,
            _ => 5_000 + self.now,
        })
    }

    /// Applies an action. Returns why it, or what the nodes could do next, exceeds the bound.
    pub fn apply(&mut self, rules: &Rules, action: Action) -> Result<(), String> {
        self.trail.push(action);
        self.has_admitted = false;
        let limit = rules.limits[self.limit];
        match action {
            Action::Wait(us) => self.now += us,
            Action::Step(us) => self.step(us),
            Action::Ask(node) => {
                let sent = self.node_time(node).as_micros();
                self.asked[node] += 1;
                self.send(Message::Ask(node, sent, 1_000 * node as u64 + self.asked[node]));
            }
            Action::Deliver(index) => {
                let message = self.messages.remove(index);
                self.deliver(rules, message);
            }
            Action::Duplicate(index) => self.deliver(rules, self.messages[index]),
            Action::Spend(node, units) => self.spend(node, units)?,
            Action::TakeBack(node, units) => {
                let now = self.node_time(node);
                if let Some((lease, _)) = &mut self.leases[node] {
                    self.judge.refund(lease.refund(units, now));
                }
            }
            Action::GiveBack(node, left) => {
                if let Some((lease, granted)) = &mut self.leases[node] {
                    let mut back = lease.give_back(left);
                    if rules.mistake == Mistake::CountGiveBacks {
                        back.keep = granted.units - back.keep;
                    }
                    self.send(Message::GiveBack(back));
                }
            }
            Action::Decide(units) => {
                let allowed = self.decide(&limit, Cost::Ask(units));
                if allowed {
                    self.judge.charged_under(&limit);
                    self.admit(units);
                }
            }
            Action::Refund(units) => self.refund(rules, units),
            Action::Reset => {
                self.judge.reset();
                self.store.reset(&limit, self.store_time());
                if rules.mistake == Mistake::ResetForgetsGrants {
                    self.store = LeasedState::new(&limit);
                }
            }
            Action::Change => self.limit = 1 - self.limit,
        }
        self.check()
    }

    fn send(&mut self, message: Message) {
        if self.messages.len() < MAX_MESSAGES && !self.messages.contains(&message) {
            self.messages.push(message);
            // The order does not matter, because any message may arrive next.
            self.messages.sort_unstable();
        }
    }

    fn deliver(&mut self, rules: &Rules, message: Message) {
        let limit = &rules.limits[self.limit];
        match message {
            Message::Ask(node, sent, id) => {
                if let Some(grant) = self.grant(rules, GrantId(id)) {
                    self.judge.charged_under(limit);
                    let granted = Granted {
                        id: grant.id.0,
                        units: grant.units,
                        deadline: grant.deadline.as_micros(),
                        duration_us: grant.duration_us,
                        excuse: Excuse::Never,
                    };
                    self.send(Message::Reply(node, sent, granted));
                }
            }
            // A node takes one reply to each request. A lease in hand is dropped without a
            // give-back, as by a crash.
            Message::Reply(node, sent, granted) if granted.id > self.accepted[node] => {
                self.accepted[node] = granted.id;
                let received = self.node_time(node).as_micros();
                let lease = Self::lease(rules.mistake, granted, sent, received);
                self.leases[node] = Some((lease, granted));
            }
            Message::Reply(..) => {}
            Message::GiveBack(back) => self.take_back(rules, back),
        }
    }

    fn lease(mistake: Mistake, granted: Granted, sent: u64, received: u64) -> Lease {
        let Granted { id, units, deadline, mut duration_us, .. } = granted;
        if mistake == Mistake::NoDriftAllowance {
            // The allowance of this duration leaves the true one.
            duration_us = (duration_us + 2) * 1_000 / 999;
        }
        let deadline = Timestamp::from_micros(deadline);
        let grant = Grant { id: GrantId(id), units, deadline, duration_us };
        let since = if mistake == Mistake::FromReply { received } else { sent };
        Lease::new(&grant, Timestamp::from_micros(since), 0)
    }

    fn grant(&mut self, rules: &Rules, id: GrantId) -> Option<Grant> {
        let (limit, now) = (&rules.limits[self.limit], self.store_time());
        self.judge.decided_at(now.as_micros());
        let mut grant = self.store.grant(limit, &LeaseRequest { id, ..rules.request }, now)?;
        if matches!(rules.mistake, Mistake::ChargeAtGrant | Mistake::NotCut) {
            self.store.give_back(limit, &GiveBack { id: grant.id, keep: 0 }, now);
            let _ = self.store.decide(limit, &Attempt::new(grant.units, now));
        }
        if rules.mistake == Mistake::NotCut {
            grant.duration_us = rules.request.duration_us;
        }
        Some(grant)
    }

    fn take_back(&mut self, rules: &Rules, back: GiveBack) {
        let (limit, now) = (&rules.limits[self.limit], self.store_time());
        self.judge.decided_at(now.as_micros());
        let open = |grant: &&Grant| grant.id == back.id;
        let units = self.store.grants().iter().find(open).map_or(0, |grant| grant.units);
        match rules.mistake {
            Mistake::NewestGrantFirst => {
                let newest = self.store.grants().iter().max_by_key(|grant| grant.deadline);
                if let Some(&Grant { id, units: others, .. }) = newest {
                    let returned = units.saturating_sub(back.keep);
                    let keep = others.saturating_sub(returned);
                    self.store.give_back(limit, &GiveBack { id, keep }, now);
                }
            }
            Mistake::CountGiveBacks => {
                let keep = units.saturating_sub(back.keep);
                self.store.give_back(limit, &GiveBack { keep, ..back }, now);
            }
            Mistake::LateGiveBack if self.is_closed(rules, back) => {
                let returned = rules.request.units.saturating_sub(back.keep);
                self.decide(limit, Cost::Refund(returned));
            }
            _ => {
                self.store.give_back(limit, &back, now);
            }
        }
    }

    fn is_closed(&mut self, rules: &Rules, back: GiveBack) -> bool {
        let (limit, now) = (&rules.limits[self.limit], self.store_time());
        let _ = self.store.decide(limit, &Attempt::new(0, now));
        !self.store.grants().iter().any(|grant| grant.id == back.id)
    }

    fn refund(&mut self, rules: &Rules, units: u64) {
        let (limit, now) = (&rules.limits[self.limit], self.store_time());
        let first = self.store.grants().first().copied();
        if rules.mistake == Mistake::RefundTakesGrants
            && let Some(grant) = first
        {
            let keep = grant.units.saturating_sub(units);
            self.store.give_back(limit, &GiveBack { id: grant.id, keep }, now);
        } else {
            self.decide(limit, Cost::Refund(units));
        }
        self.judge.refund(units);
    }

    fn decide(&mut self, limit: &Limit, cost: Cost) -> bool {
        let now = self.store_time();
        self.judge.decided_at(now.as_micros());
        self.store.decide(limit, &Attempt::new(cost, now)).allowed
    }

    fn spend(&mut self, node: usize, units: u64) -> Result<(), String> {
        let (now, store_time) = (self.node_time(node), self.store_time().as_micros());
        let Some((lease, granted)) = &mut self.leases[node] else { return Ok(()) };
        let before = lease.left(now);
        let left = lease.spend(units, now);
        let is_besides = granted.is_besides(store_time);
        if left != before.checked_sub(units) {
            return Err(format!("{left:?} left of {before} after {units}"));
        }
        if left.is_some() && !is_besides {
            self.admit(units);
        }
        Ok(())
    }

    fn admit(&mut self, units: u64) {
        self.judge.admit(units, self.store_time().as_micros());
        self.has_admitted = true;
    }

    fn step(&mut self, us: i64) {
        let before = self.store_time().as_micros();
        self.offset += us;
        self.judge.stepped();
        let is_counter = matches!(self.store.state(), State::SlidingCounter(_));
        let now = self.store_time().as_micros();
        let excuse = |granted: &mut Granted| match us {
            // The deadline may pass before the node stops.
            1.. => granted.excuse = granted.excuse.max(Excuse::AfterDeadline),
            // The estimate of a counter rises again, and units that are out do not fit it. Units
            // whose deadline has passed are not held again.
            _ if is_counter || granted.is_besides(before) => granted.excuse = Excuse::Always,
            // A store that decides now has the grant as of now.
            _ => granted.deadline = granted.deadline.min(now + granted.duration_us),
        };
        self.leases.iter_mut().flatten().for_each(|(_, granted)| excuse(granted));
        for message in &mut self.messages {
            if let Message::Reply(_, _, granted) = message {
                excuse(granted);
            }
        }
        if us < 0 {
            self.judge.stepped_back(us.unsigned_abs(), self.store_time().as_micros());
        }
    }

    /// Checks that what was admitted, with all that the nodes could spend now, is within the bound.
    /// So `remaining` of a lease is never more than the limit has left.
    fn check(&mut self) -> Result<(), String> {
        let now = self.store_time().as_micros();
        let spendable = |node: usize| match &self.leases[node] {
            Some((_, granted)) if granted.is_besides(now) => 0,
            _ => self.left(node),
        };
        let more = spendable(0) + spendable(1);
        if more == 0 && !self.has_admitted {
            return Ok(());
        }
        self.fullest = self.fullest.max(self.judge.newest_window(now.into()));
        match self.judge.violation(more, now) {
            Some(violation) => Err(format!("{violation}; {:?}", self.trail)),
            None => Ok(()),
        }
    }

    /// Checks that the store decides consistently: a cost passes if and only if it is within
    /// `remaining`, after its wait, and not a microsecond earlier; and all is available again after
    /// the reset and when the state expires.
    pub fn check_decisions(&self, rules: &Rules) {
        let (limit, now) = (&rules.limits[self.limit], self.store_time());
        let decide = |units: u64, at: Timestamp| {
            let mut store = self.store.clone();
            // The clock may have stepped back since the store last decided.
            let _ = store.decide(limit, &Attempt::new(0, now));
            store.decide(limit, &Attempt::new(units, at))
        };
        let peek = decide(0, now);
        for units in [1, peek.remaining, peek.remaining + 1, limit.capacity()] {
            let decision = decide(units.max(1), now);
            let context = || format!("{units} at {now:?}: {decision:?} in {:?}", self.store);
            assert_eq!(decision.allowed, units.max(1) <= peek.remaining, "{}", context());
            if let RetryAfter::Micros(wait) = decision.retry_after {
                assert!(decide(units, now.plus_micros(wait)).allowed, "honest: {}", context());
                assert!(!decide(units, now.plus_micros(wait - 1)).allowed, "late: {}", context());
            }
        }
        let reset = now.plus_micros(peek.reset_after.as_micros());
        assert_eq!(decide(0, reset).remaining, limit.capacity(), "{:?}", self.store);
        let expires = self.store.expires_at(limit).max(now);
        assert_eq!(decide(0, expires).remaining, limit.capacity(), "{:?}", self.store);
    }

    /// A hash of everything that affects the future.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let h = &mut hasher;
        (self.now, self.offset, self.limit, &self.judge).hash(h);
        (&self.leases, &self.asked, &self.accepted, &self.messages).hash(h);
        self.store.grants().hash(h);
        match self.store.state() {
            State::SlidingLog(log) => {
                log.entries().iter().for_each(|entry| (entry.at, entry.cost).hash(h));
            }
            State::SlidingWindow(window) => {
                (window.form() as u8, window.pace()).hash(h);
                window.times().for_each(|time| time.hash(h));
                for (index, cell) in window.cells() {
                    (index, cell.units, cell.lag, cell.steps).hash(h);
                }
            }
            State::SlidingCounter(counter) => {
                (counter.index, counter.previous, counter.current).hash(h);
            }
            State::FixedWindow(window) => (window.index, window.count).hash(h),
            State::TokenBucket(bucket) => (bucket.at, bucket.debt).hash(h),
            State::Concurrency(_) => {}
        }
        hasher.finish()
    }
}
