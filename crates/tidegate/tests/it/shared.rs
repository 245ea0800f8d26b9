//! The gate over a store that nodes share and that fails when told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tidegate::attributes::Attributes;
use tidegate::config::Config;
use tidegate::gate::{
    Answer, Asked, Gate, GateError, HeldPermit, Question, SharedPermit, SharedStore, Subject,
};
use tidegate::stats::{Decided, Stats};
use tidegate::{
    CheckError, Cost, Failure, Limit, Limiter, ManualClock, MemoryOptions, MemoryStore, PermitId,
    Request, RetryAfter, Timestamp, Verdict,
};

use crate::futures::{Polled, Started, block_on};

const POLICIES: &str = r#"
policies:
  - name: here
    match: { path: /mixed }
    key: "{client_ip}"
    limits: ["9 per 1h sliding-log"]
  - name: open
    match: { path: /mixed }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    on_store_failure: allow
  - name: closed
    match: { path: /mixed, method: POST }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    on_store_failure: deny
  - name: watched
    match: { path: /mixed }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    on_store_failure: deny
    mode: observe
  - name: bucket
    key: "{client_ip}"
    limits: ["12 per 1h token-bucket burst 6"]
    mode: off
  - name: small
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log", "0 per 1m"]
    mode: off
  - name: jobs
    key: "{client_ip}"
    limits: ["6 concurrent lease 30s"]
    mode: off
  - name: open-jobs
    key: "{client_ip}"
    limits: ["6 concurrent lease 30s"]
    on_store_failure: allow
    mode: off
  - name: closed-jobs
    key: "{client_ip}"
    limits: ["6 concurrent lease 30s"]
    on_store_failure: deny
    mode: off
  - name: slow
    key: "{client_ip}"
    limits: ["1 per 10s sliding-log"]
    mode: off
"#;

/// Nodes that share it divide limits by three when it fails.
const NODES: u32 = 3;

/// A store in memory that fails when told to.
struct Moody {
    store: MemoryStore,
    mood: AtomicU8,
}

/// What the moods are called in errors.
const MOODS: [Option<Failure>; 4] =
    [None, Some(Failure::Down), Some(Failure::TimedOut), Some(Failure::Lost)];

impl Moody {
    fn or_fail<'a, T: Send + 'a>(&self, asked: Asked<'a, T>) -> Asked<'a, T> {
        match MOODS[usize::from(self.mood.load(Ordering::Relaxed))].clone() {
            None => asked,
            Some(failure) => Box::pin(async { Err(failure.into()) }),
        }
    }
}

impl SharedStore for Moody {
    fn decide<'a>(&'a self, request: &'a Request<'a>) -> Asked<'a, Verdict> {
        self.or_fail(SharedStore::decide(&self.store, request))
    }

    fn reset<'a>(&'a self, key: &'a [u8], limit: &'a Limit) -> Asked<'a, bool> {
        self.or_fail(SharedStore::reset(&self.store, key, limit))
    }

    fn new_permit(&self) -> PermitId {
        self.store.new_permit()
    }

    fn release<'a>(&'a self, key: &'a [u8], limit: &'a Limit, id: PermitId) -> Asked<'a, bool> {
        self.or_fail(self.store.release(key, limit, id))
    }

    fn renew<'a>(&'a self, key: &'a [u8], limit: &'a Limit, id: PermitId) -> Asked<'a, bool> {
        self.or_fail(self.store.renew(key, limit, id))
    }
}

/// Two nodes and their store.
struct World {
    nodes: [Gate; 2],
    store: Arc<Moody>,
    clock: ManualClock,
}

/// What is read off an answer: whether it was allowed, how it was decided, by whom,
/// and what is left.
type Read = (bool, Decided, Option<String>, Option<u64>);

impl World {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::new(MemoryOptions::default(), clock.clock()).expect("memory");
        let store = Arc::new(Moody { store, mood: AtomicU8::new(0) });
        // A policy that is off has no say among the others, but can be named.
        let text = POLICIES.replace("    mode: off\n", "    match: { path: /named }\n");
        let node = || {
            let limiter = Limiter::builder().clock(clock.clock()).build().expect("memory");
            let stats = Arc::new(Stats::new(clock.clock()));
            let policies = Config::parse(&text, "test.yaml").expect("a config").policies;
            let shared: Arc<dyn SharedStore> = Arc::<Moody>::clone(&store);
            Gate::new(limiter, policies, stats).over(shared, NODES)
        };
        World { nodes: [node(), node()], store, clock }
    }

    /// 0 is well; see `MOODS`.
    fn set_mood(&self, mood: u8) {
        self.store.mood.store(mood, Ordering::Relaxed);
    }

    fn ask<T>(
        &self,
        node: usize,
        question: &Question<'_>,
        read: impl Fn(&Answer<'_>) -> T,
    ) -> Result<T, GateError> {
        let gate = &self.nodes[node];
        let rules = gate.rules_owned();
        block_on(gate.check_async(&rules, question)).map(|answer| read(&answer))
    }

    fn read(&self, node: usize, question: &Question<'_>) -> Read {
        self.ask(node, question, read).expect("an answer")
    }

    /// Counts of a policy: allowed and refused, by how they were decided.
    fn counted(&self, node: usize, policy: &str) -> [[u64; 4]; 2] {
        let all = self.nodes[node].stats().series();
        let series = all.iter().find(|series| &*series.policy == policy).expect("a series");
        [series.allowed, series.refused]
    }
}

fn read(answer: &Answer<'_>) -> Read {
    let speaker = answer.speaker();
    let policy = speaker.and_then(|line| line.policy).map(str::to_owned);
    (answer.allowed, answer.decided, policy, speaker.and_then(|line| line.remaining()))
}

fn said(allowed: bool, decided: Decided, policy: &str, remaining: Option<u64>) -> Read {
    (allowed, decided, Some(policy.to_owned()), remaining)
}

fn under<'a>(policy: &'a str, key: &'a str) -> Question<'a> {
    Question::new(Subject::Key { policy, key: key.as_bytes(), attributes: None })
}

fn costing(question: Question<'_>, cost: Cost) -> Question<'_> {
    Question { cost: Some(cost), ..question }
}

#[test]
fn nodes_share_a_limit() {
    let world = World::new();
    for (node, left) in [(0, 1), (1, 0)] {
        let expected = said(true, Decided::Exact, "open", Some(left));
        assert_eq!(world.read(node, &under("open", "alice")), expected);
    }
    for node in [0, 1] {
        let expected = said(false, Decided::Exact, "open", Some(0));
        assert_eq!(world.read(node, &under("open", "alice")), expected);
    }
    assert_eq!(world.counted(0, "open"), [[1, 0, 0, 0], [1, 0, 0, 0]]);
    // Nothing asked, nothing to decide.
    let attributes = Attributes { path: Some("/other"), ..Attributes::default() };
    let nothing = Question::new(Subject::Request(&attributes));
    assert_eq!(world.read(0, &nothing), (true, Decided::Exact, None, None));
}

#[test]
fn a_failing_store_is_answered_for_as_the_policy_says() {
    for mood in [1, 2, 3] {
        let world = World::new();
        world.set_mood(mood);
        // Three of nine for each of three nodes.
        for left in [2, 1, 0] {
            let expected = said(true, Decided::Local, "here", Some(left));
            assert_eq!(world.read(0, &under("here", "alice")), expected);
        }
        let denied = said(false, Decided::Local, "here", Some(0));
        assert_eq!(world.read(0, &under("here", "alice")), denied);
        for _ in 0..5 {
            let expected = said(true, Decided::FailedOpen, "open", None);
            assert_eq!(world.read(0, &under("open", "alice")), expected);
            let expected = said(false, Decided::FailedClosed, "closed", None);
            assert_eq!(world.read(0, &under("closed", "alice")), expected);
        }
        assert_eq!(world.counted(0, "here"), [[0, 3, 0, 0], [0, 1, 0, 0]]);
        assert_eq!(world.counted(0, "open"), [[0, 0, 5, 0], [0; 4]]);
        assert_eq!(world.counted(0, "closed"), [[0; 4], [0, 0, 0, 5]]);
        assert_eq!(world.nodes[0].stats().store_latency().count(), 14);
    }
}

#[test]
fn a_share_is_rounded_down_but_not_to_nothing() {
    let world = World::new();
    world.set_mood(1);
    let allowed = |policy, line: usize| {
        world.ask(0, &costing(under(policy, "alice"), Cost::PEEK), |answer| {
            (answer.lines[line].decision.limit, answer.lines[line].decision.remaining)
        })
    };
    assert_eq!(allowed("bucket", 0), Ok((4, 2)), "12 and a burst of 6 among 3");
    assert_eq!(allowed("small", 0), Ok((1, 1)), "2 among 3");
    assert_eq!(allowed("small", 1), Ok((0, 0)), "nothing is nothing everywhere");
    world.nodes[0].set_nodes(2);
    assert_eq!(allowed("bucket", 0), Ok((6, 3)));
}

#[test]
fn any_denial_wins_and_nothing_is_charged() {
    let world = World::new();
    world.set_mood(1);
    let attributes = |method| Attributes {
        method: Some(method),
        path: Some("/mixed"),
        client_ip: Some([192, 0, 2, 1].into()),
        ..Attributes::default()
    };
    let (get, post) = (attributes("GET"), attributes("POST"));
    let lines = |question: &Question<'_>| {
        world.ask(0, question, |answer| {
            let line = |line: &tidegate::gate::Line<'_>| {
                (line.decision.allowed, line.decided, line.remaining())
            };
            answer.lines.iter().map(line).collect::<Vec<_>>()
        })
    };
    let post = Question::new(Subject::Request(&post));
    let denied = said(false, Decided::FailedClosed, "closed", None);
    for _ in 0..5 {
        assert_eq!(world.read(0, &post), denied);
    }
    // What would have been decided here is told, and was not charged.
    let expected = vec![
        (true, Decided::Local, Some(3)),
        (true, Decided::FailedOpen, None),
        (false, Decided::FailedClosed, None),
        (false, Decided::FailedClosed, None),
    ];
    assert_eq!(lines(&post), Ok(expected));
    let waits = world.ask(0, &post, |answer| answer.retry_after());
    assert_eq!(waits, Ok(RetryAfter::Micros(1_000_000)), "a hint, not a promise");

    // Without it the others have their say: a watched one that denies has none.
    let get = Question::new(Subject::Request(&get));
    for _ in 0..3 {
        assert_eq!(world.read(0, &get), said(true, Decided::FailedOpen, "open", None));
    }
    let denied = said(false, Decided::FailedOpen, "here", Some(0));
    assert_eq!(world.read(0, &get), denied);
    assert_eq!(world.counted(0, "watched"), [[0; 4], [0, 0, 0, 11]]);
}

#[test]
fn forced_charges_and_refunds_follow_the_same_rules() {
    let world = World::new();
    world.set_mood(1);
    let force = Question { force: true, ..under("closed", "alice") };
    assert_eq!(world.read(0, &force), said(false, Decided::FailedClosed, "closed", None));
    let here = under("here", "alice");
    for (cost, left) in [(Cost::Force(2), 1), (Cost::Refund(1), 2), (Cost::PEEK, 2)] {
        let expected = said(true, Decided::Local, "here", Some(left));
        assert_eq!(world.read(0, &costing(here, cost)), expected, "{cost:?}");
    }
}

#[test]
fn what_the_store_admits_is_remembered_here_too() {
    let world = World::new();
    let here = under("here", "alice");
    let exact = |node, cost| {
        let (allowed, decided, ..) = world.read(node, &costing(here, cost));
        assert_eq!((allowed, decided), (true, Decided::Exact));
    };
    exact(0, Cost::Ask(2));
    exact(0, Cost::Force(1));
    exact(0, Cost::Refund(1));
    exact(0, Cost::PEEK);
    exact(1, Cost::Ask(5));
    // More than there is, denied by the store: leaves nothing here either.
    let (allowed, ..) = world.read(0, &costing(here, Cost::Ask(9)));
    assert!(!allowed);
    world.set_mood(1);
    // The first has used two of its three, the other all of its own.
    assert_eq!(world.read(0, &here), said(true, Decided::Local, "here", Some(0)));
    assert_eq!(world.read(1, &here), said(false, Decided::Local, "here", Some(0)));
    world.set_mood(0);
    // The store knows nothing of what was decided without it.
    assert_eq!(world.read(0, &here), said(true, Decided::Exact, "here", Some(1)));
    // Policies that never decide here keep nothing here.
    let tracked = |node: usize| world.nodes[node].limiter().stats().tracked_keys;
    let before = tracked(0);
    world.read(0, &under("open", "bob"));
    assert_eq!(tracked(0), before);
    world.read(0, &under("here", "bob"));
    assert_eq!(tracked(0), before + 1);
}

#[test]
fn a_bucket_here_is_not_in_debt_for_what_others_left() {
    let world = World::new();
    let bucket = under("bucket", "alice");
    // All of the traffic comes here: three times this node's share, for hours.
    for _ in 0..36 {
        assert_eq!(world.read(0, &bucket).1, Decided::Exact);
        world.clock.advance(Duration::from_secs(300));
    }
    assert!(world.read(0, &costing(bucket, Cost::Ask(2))).0);
    world.set_mood(1);
    // It holds two here and regains one in a quarter of an hour.
    let denied = said(false, Decided::Local, "bucket", Some(0));
    assert!(!world.read(0, &costing(bucket, Cost::Ask(2))).0);
    while world.read(0, &bucket).0 {}
    assert_eq!(world.read(0, &bucket), denied);
    world.clock.advance(Duration::from_secs(900));
    assert_eq!(world.read(0, &bucket), said(true, Decided::Local, "bucket", Some(0)));
}

#[test]
fn what_makes_no_sense_is_no_failure() {
    let world = World::new();
    let named = |cost| Question { id: Some(b"order-1"), ..costing(under("open", "bob"), cost) };
    let left = |question: &Question<'_>| world.ask(0, question, |a| a.lines[0].remaining());
    assert_eq!(left(&named(Cost::Ask(1))), Ok(Some(1)));
    assert_eq!(left(&named(Cost::Ask(1))), Ok(Some(1)), "charged once");
    assert_eq!(left(&named(Cost::Ask(2))), Err(GateError::Check(CheckError::IdReused)));
    let needs = GateError::NeedsPermit { policy: Some("jobs".into()) };
    for mood in [0, 1] {
        world.set_mood(mood);
        assert_eq!(left(&under("jobs", "bob")), Err(needs.clone()));
        let unknown = GateError::UnknownPolicy { name: "nobody".into() };
        assert_eq!(left(&under("nobody", "bob")), Err(unknown));
    }
    // A store that must be waited for cannot be asked without waiting.
    let gate = &world.nodes[0];
    let rules = gate.rules_owned();
    let question = under("open", "bob");
    assert_eq!(gate.check(&rules, &question).map(drop), Err(GateError::Shared));
    assert_eq!(gate.acquire(&rules, &question, None).map(drop), Err(GateError::Shared));
    assert_eq!(gate.peek(&rules, "open", b"bob").map(drop), Err(GateError::Shared));
    assert_eq!(gate.reset(&rules, "open", b"bob"), Err(GateError::Shared));
}

#[test]
fn ids_are_remembered_here_when_the_store_fails() {
    let world = World::new();
    world.set_mood(1);
    let question = Question { id: Some(b"order-1"), ..under("here", "alice") };
    for _ in 0..5 {
        assert_eq!(world.read(0, &question), said(true, Decided::Local, "here", Some(2)));
    }
}

#[test]
fn a_look_and_a_reset_are_the_stores_alone() {
    let world = World::new();
    world.read(0, &under("here", "alice"));
    let [first, second] = &world.nodes;
    let rules = second.rules_owned();
    let left = || block_on(second.peek_async(&rules, "here", b"alice")).map(|a| read(&a));
    assert_eq!(left(), Ok(said(true, Decided::Exact, "here", Some(8))));
    let reset = || block_on(second.reset_async(&rules, "here", b"alice"));
    world.set_mood(2);
    assert_eq!(left(), Err(GateError::Store(Failure::TimedOut)));
    assert_eq!(reset(), Err(GateError::Store(Failure::TimedOut)));
    world.set_mood(0);
    assert_eq!((reset(), reset()), (Ok(true), Ok(false)));
    assert_eq!(left(), Ok(said(true, Decided::Exact, "here", Some(9))));
    let unknown = GateError::UnknownPolicy { name: "nobody".into() };
    assert_eq!(block_on(first.reset_async(&rules, "nobody", b"x")), Err(unknown));
}

/// Takes a permit: the permit, and how it was decided.
fn take(world: &World, node: usize, policy: &str) -> (Option<HeldPermit>, Decided) {
    let gate = &world.nodes[node];
    let rules = gate.rules_owned();
    let question = under(policy, "alice");
    let held = block_on(gate.acquire_async(&rules, &question, None)).expect("an answer");
    assert_eq!(held.permit.is_some(), held.answer.allowed);
    (held.permit, held.answer.decided)
}

fn shared(world: &World, node: usize) -> SharedPermit {
    let (permit, decided) = take(world, node, "jobs");
    assert_eq!(decided, Decided::Exact);
    permit.expect("a permit").shared().expect("the store has it")
}

#[test]
fn a_permit_is_given_back_and_renewed_on_any_node() {
    let world = World::new();
    let permits: Vec<_> = (0..6).map(|number| shared(&world, number % 2)).collect();
    assert!(take(&world, 0, "jobs").0.is_none());
    let [first, second] = &world.nodes;
    // As another node reads it.
    let sent = SharedPermit::from_bytes(&permits[0].to_bytes()).expect("a permit");
    assert_eq!(sent, permits[0]);
    assert_eq!(block_on(second.release(&sent)), Ok(true));
    assert_eq!(block_on(first.release(&sent)), Ok(false));
    assert_eq!(block_on(first.renew(&sent, None)), Ok(None));
    let other = shared(&world, 1);

    let seconds = Duration::from_secs;
    assert_eq!((other.lease(), other.most()), (seconds(30), seconds(30)));
    world.clock.advance(seconds(29));
    assert_eq!(block_on(first.renew(&other, None)), Ok(Some(seconds(30))));
    assert_eq!(block_on(first.renew(&permits[1], Some(seconds(5)))), Ok(Some(seconds(5))));
    let too_long = Err(GateError::LeaseTooLong { most: seconds(30) });
    assert_eq!(block_on(first.renew(&other, Some(seconds(31)))), too_long);
    world.clock.advance(seconds(1));
    // The four that nobody renewed have ended.
    assert_eq!(block_on(first.renew(&permits[2], None)), Ok(None));
    assert!(block_on(first.release(&permits[1])) == Ok(true));
    world.set_mood(3);
    let failed = GateError::Store(Failure::Lost);
    assert_eq!(block_on(first.release(&other)), Err(failed.clone()));
    assert_eq!(block_on(first.renew(&other, None)), Err(failed));
}

#[test]
fn where_nothing_matches_there_is_nothing_to_hold() {
    let world = World::new();
    let attributes = Attributes { path: Some("/other"), ..Attributes::default() };
    let nothing = Question::new(Subject::Request(&attributes));
    for mood in [0, 1] {
        world.set_mood(mood);
        let rules = world.nodes[0].rules_owned();
        let held = block_on(world.nodes[0].acquire_async(&rules, &nothing, None)).expect("it");
        assert_eq!((held.answer.allowed, held.answer.decided), (true, Decided::Exact));
        assert!(held.permit.and_then(HeldPermit::here).is_some());
    }
}

#[test]
fn bytes_that_are_no_permits_are_refused() {
    let world = World::new();
    let bytes = shared(&world, 0).to_bytes();
    for length in 0..bytes.len() {
        let cut = SharedPermit::from_bytes(&bytes[..length]);
        // Cut before its only key it is a permit that holds nothing.
        assert!(cut.is_none_or(|cut| block_on(world.nodes[0].release(&cut)) == Ok(true)));
    }
    for bad in [&[0xff; 64][..], &[0; 4], &[1, 0, 0], &vec![1; 64 * 1024]] {
        assert_eq!(SharedPermit::from_bytes(bad), None);
    }
    assert!(take(&world, 0, "jobs").0.is_some());
}

#[test]
fn permits_without_the_store_are_held_here_or_not_at_all() {
    let world = World::new();
    // One of two places of this node is known to be taken.
    let kept = shared(&world, 0);
    world.set_mood(1);
    let (second, decided) = take(&world, 0, "jobs");
    assert_eq!(decided, Decided::Local);
    let second = second.expect("a place").here().expect("it is held here");
    assert!(matches!(take(&world, 0, "jobs"), (None, Decided::Local)));
    assert!(second.renew());
    drop(second);
    assert!(take(&world, 0, "jobs").0.is_some());

    for _ in 0..9 {
        let (permit, decided) = take(&world, 0, "open-jobs");
        let permit = permit.expect("allowed").here().expect("nothing is held anywhere");
        assert!(permit.renew() && decided == Decided::FailedOpen);
        assert!(matches!(take(&world, 0, "closed-jobs"), (None, Decided::FailedClosed)));
    }
    world.set_mood(0);
    assert_eq!(block_on(world.nodes[0].release(&kept)), Ok(true));
    world.set_mood(1);
    let places: Vec<_> = (0..3).map(|_| take(&world, 0, "jobs").0).collect();
    assert_eq!(places.iter().flatten().count(), 2, "what was given back is free here too");
}

const LONG: Duration = Duration::from_secs(3_600);

/// Begins to wait for the one place of `slow`.
fn begin<'a>(
    world: &'a World,
    rules: &'a tidegate::gate::Rules,
    question: &'a Question<'a>,
    max_wait: Duration,
) -> Started<'a, Result<Read, GateError>> {
    let gate = &world.nodes[0];
    Polled::start(
        async move { gate.wait(rules, question, max_wait).await.map(|answer| read(&answer)) },
    )
}

fn join<'a>(
    world: &'a World,
    rules: &'a tidegate::gate::Rules,
    question: &'a Question<'a>,
    max_wait: Duration,
) -> Polled<'a, Result<Read, GateError>> {
    match begin(world, rules, question, max_wait) {
        Started::Pending(waiting) => waiting,
        Started::Ready(ready) => panic!("ready at once: {ready:?}"),
    }
}

#[test]
fn waiters_pass_in_order_or_are_told_at_once() {
    let world = World::new();
    let rules = world.nodes[0].rules_owned();
    let (question, seconds) = (under("slow", "alice"), Duration::from_secs);
    let denied = Ok(said(false, Decided::Exact, "slow", Some(0)));
    let passed = Some(Ok(said(true, Decided::Exact, "slow", Some(0))));
    assert!(
        matches!(begin(&world, &rules, &question, LONG), Started::Ready(Ok((true, ..)))),
        "a free place is taken at once"
    );
    let too_long = begin(&world, &rules, &question, seconds(9));
    assert!(matches!(too_long, Started::Ready(ready) if ready == denied));
    let mut first = join(&world, &rules, &question, LONG);
    let mut second = join(&world, &rules, &question, LONG);
    // Even alone it would wait for too long.
    let too_long = begin(&world, &rules, &question, seconds(9));
    assert!(matches!(too_long, Started::Ready(ready) if ready == denied));
    let mut impatient = join(&world, &rules, &question, seconds(15));

    world.clock.advance(seconds(10));
    assert_eq!((second.poll(), impatient.poll()), (None, None), "not before the first");
    assert_eq!(first.poll(), passed);
    assert_eq!(second.poll(), None, "it asks, and waits for its own");
    world.clock.advance(seconds(5));
    assert_eq!(impatient.poll(), Some(denied), "its patience has ended");
    world.clock.advance(seconds(5));
    assert_eq!(second.poll(), passed);
    // Nobody is left behind whom others would wait for.
    let last = join(&world, &rules, &question, LONG);
    drop(last);
    world.clock.advance(seconds(10));
    assert!(matches!(begin(&world, &rules, &question, LONG), Started::Ready(Ok((true, ..)))));
}

#[test]
fn who_is_behind_is_denied_also_where_there_is_room() {
    let world = World::new();
    let rules = world.nodes[0].rules_owned();
    let limits: [Limit; 1] = ["2 per 10s sliding-log".parse().expect("a limit")];
    let own = Question::new(Subject::Limits { key: b"alice", limits: &limits });
    world.read(0, &own);
    let two = costing(own, Cost::Ask(2));
    let _first = join(&world, &rules, &two, LONG);
    let mut behind = join(&world, &rules, &own, Duration::from_secs(1));
    world.clock.advance(Duration::from_secs(1));
    let (allowed, decided, _, left) = behind.poll().expect("an answer").expect("sound");
    assert_eq!((allowed, decided, left), (false, Decided::Exact, Some(1)));
}

#[test]
fn waiting_goes_on_without_the_store() {
    let world = World::new();
    let rules = world.nodes[0].rules_owned();
    let question = under("slow", "alice");
    world.read(0, &question);
    world.set_mood(1);
    // Its one place is taken here too.
    let mut waiting = join(&world, &rules, &question, LONG);
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(waiting.poll(), Some(Ok(said(true, Decided::Local, "slow", Some(0)))));
    let (closed, open) = (under("closed", "alice"), under("open", "alice"));
    for (question, decided) in [(&closed, Decided::FailedClosed), (&open, Decided::FailedOpen)] {
        let answer = begin(&world, &rules, question, LONG);
        assert!(matches!(answer, Started::Ready(Ok((_, how, ..))) if how == decided));
    }
}
