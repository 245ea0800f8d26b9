//! Jobs that wait for the next write to a server, and how they share it.
//!
//! ```text
//!   callers --> waiting jobs --> a write takes what fits --> in flight --> replies
//! ```
//!
//! One caller, or one hot key, must not starve all others. So each caller and each key has a
//! bounded share of the jobs in flight and of the queue. Jobs are taken in FIFO order. A job whose
//! caller or key has used up its share stays in the queue, together with all later jobs of the same
//! caller and key. The amount of work in flight is adapted to the speed of the server (see
//! [`InFlightWindow`]). A job that does not fit into the queue, or has waited for too long, is
//! shed: the caller gets an error immediately, and nothing was charged.
//!
//! Requests on the same states share an entry of a call, in which the server decides them in order.
//! A request joins an entry only if no later job of the write touches one of its keys, so the jobs
//! of one caller take effect in order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::Notify;
use tokio::task;
use tokio::time::Instant;

use super::server::{Job, KeyHashes, SendMode, Work};
use crate::Failure;

/// The capacity of the queue. A server makes a few hundred thousand decisions a second: more
/// would not be answered before the deadline.
const MAX_QUEUED: usize = 8192;
/// The maximum number of queued jobs of one caller: more than the largest batch of a front.
const MAX_QUEUED_BY_CALLER: usize = 2048;
/// The maximum number of queued jobs for one key, so that a single hot key does not fill the queue.
const MAX_QUEUED_FOR_KEY: usize = 4096;
/// The maximum number of jobs in one write.
const MAX_BATCH: usize = 1024;

/// The weight of a separate command. The weight of a request is the number of its states, each of
/// which takes a server 2 to 4 us, or longer if it is a long log.
const COMMAND_WEIGHT: usize = 4;
/// The maximum weight in flight. It is enough to keep a server busy that is 10 ms away.
const MAX_IN_FLIGHT: usize = 4096;
/// The weight that may be in flight even to the slowest server.
const MIN_IN_FLIGHT: usize = 512;
/// One caller or one key may use `1/SHARES` of the weight in flight: at most 512 states.
const SHARES: usize = 8;
/// The growth of the window after a write that did not queue at the server: four states in each
/// share.
const INCREASE: usize = SHARES * 4;
/// A write may spend `1/QUEUEING_PART` of the deadline in the server's queue.
const QUEUEING_PART: u32 = 5;

/// The task that submits a job. One task submits all checks of a batch or a pipeline.
pub(super) type Caller = Option<task::Id>;

/// The queue of jobs for one server.
#[derive(Debug, Default)]
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    by_caller: HashMap<Caller, usize, RandomState>,
    for_key: HashMap<u64, usize, RandomState>,
    closed: bool,
}

/// A job of the next write, and its part of the weight in flight.
#[derive(Debug)]
pub(super) struct SelectedJob {
    pub(super) job: Job,
    /// `None` for a request that joins an entry and so costs the server little.
    pub(super) claim: Option<Claim>,
    /// The index of the first job of its entry. Jobs with the same one share an entry.
    pub(super) first_job: usize,
}

/// The entries of one write that further jobs can join.
#[derive(Default)]
struct OpenEntries {
    /// The first job of the newest entry, by the hash of its requests.
    open: HashMap<u64, usize, RandomState>,
    /// The first job of the last entry that touches a key, by the key's hash.
    last: HashMap<u64, usize, RandomState>,
}

impl OpenEntries {
    fn of(selected: &[SelectedJob]) -> Self {
        let mut entries = OpenEntries::default();
        selected.iter().for_each(|selected| entries.add(&selected.job, selected.first_job));
        entries
    }

    /// The entry that a job can join: one on the same states behind which no job touches its keys.
    fn joined(&self, job: &Job) -> Option<usize> {
        let first = *self.open.get(&job.entry_hash?)?;
        let is_last = job.keys.iter().all(|key| self.last.get(key) == Some(&first));
        (is_last && job.send_mode == SendMode::Batched).then_some(first)
    }

    /// Adds a job to the entry whose first job is `first`.
    fn add(&mut self, job: &Job, first: usize) {
        self.last.extend(job.keys.iter().map(|key| (*key, first)));
        self.open.extend(job.entry_hash.map(|entry_hash| (entry_hash, first)));
    }
}

impl Queue {
    /// Adds a job, or sheds it.
    pub(super) fn push(&self, job: Job) -> Result<(), Failure> {
        let mut jobs = self.jobs();
        let is_full = jobs.waiting.len() >= MAX_QUEUED
            || jobs.by_caller.get(&job.caller).is_some_and(|count| *count >= MAX_QUEUED_BY_CALLER)
            || job
                .keys
                .iter()
                .any(|key| jobs.for_key.get(key).is_some_and(|count| *count >= MAX_QUEUED_FOR_KEY));
        if is_full {
            return Err(Failure::Overloaded);
        }
        jobs.count(&job);
        jobs.waiting.push_back(job);
        drop(jobs);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits until a job is added or the queue is closed. For one waiter.
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs().waiting.is_empty()
    }

    /// The number of jobs that wait.
    pub(super) fn len(&self) -> usize {
        self.jobs().waiting.len()
    }

    /// Marks the queue as closed, because no more jobs will be added.
    pub(super) fn close(&self) {
        self.jobs().closed = true;
        self.arrived.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.jobs().closed
    }

    /// Moves the jobs that fit to `selected`, in order. Jobs whose callers have given up are
    /// dropped.
    pub(super) fn take(&self, flow: &Arc<FlowControl>, selected: &mut Vec<SelectedJob>) {
        let mut jobs = self.jobs();
        if jobs.waiting.is_empty() {
            return;
        }
        let mut counts = flow.counts();
        let mut entries = OpenEntries::of(selected);
        let mut left = VecDeque::new();
        let mut held: HashSet<(Caller, u64), RandomState> = HashSet::default();
        while let Some(job) = jobs.waiting.pop_front() {
            if job.reply.is_closed() {
                jobs.uncount(&job);
                continue;
            }
            if selected.len() >= MAX_BATCH || counts.total >= counts.window.size {
                left.push_back(job);
                left.append(&mut jobs.waiting);
                break;
            }
            let joined = entries.joined(&job);
            let is_behind = job.keys.iter().any(|key| held.contains(&(job.caller, *key)));
            if is_behind || !counts.admit(&job, joined.is_some()) {
                held.extend(job.keys.iter().map(|key| (job.caller, *key)));
                left.push_back(job);
                continue;
            }
            let claim = joined.is_none().then(|| counts.claim(&job, flow));
            jobs.uncount(&job);
            let first_job = joined.unwrap_or(selected.len());
            entries.add(&job, first_job);
            selected.push(SelectedJob { job, claim, first_job });
        }
        jobs.waiting = left;
    }

    /// Sheds jobs that have waited for `max_queue_time`. Returns their number.
    pub(super) fn shed(&self, max_queue_time: Duration) -> usize {
        let now = Instant::now();
        let (mut jobs, mut shed) = (self.jobs(), 0);
        while jobs.waiting.front().is_some_and(|job| now >= job.queued + max_queue_time) {
            if let Some(job) = jobs.waiting.pop_front() {
                jobs.uncount(&job);
                job.fail(Failure::Overloaded);
                shed += 1;
            }
        }
        shed
    }

    /// Fails all queued jobs.
    pub(super) fn fail_all(&self, failure: &Failure) {
        let mut jobs = self.jobs();
        jobs.by_caller.clear();
        jobs.for_key.clear();
        let waiting = std::mem::take(&mut jobs.waiting);
        drop(jobs);
        waiting.into_iter().for_each(|job| job.fail(failure.clone()));
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs {
    fn count(&mut self, job: &Job) {
        *self.by_caller.entry(job.caller).or_default() += 1;
        for key in &job.keys {
            *self.for_key.entry(*key).or_default() += 1;
        }
    }

    fn uncount(&mut self, job: &Job) {
        subtract(&mut self.by_caller, job.caller, 1);
        for key in &job.keys {
            subtract(&mut self.for_key, *key, 1);
        }
    }
}

/// The weight that may be in flight on one connection.
///
/// A state takes a server 2 to 30 us, depending on its limit, and longer on a busy machine. A fixed
/// number of states in flight would delay every job behind them by anything from a few milliseconds
/// to several deadlines. So the window is halved when a write takes longer than the
/// quickest one by more than a fifth of the deadline, and grows a little with every other write, as
/// the congestion window of TCP Vegas does.
#[derive(Debug)]
struct InFlightWindow {
    size: usize,
    /// The shortest round trip of a write.
    quickest: Duration,
    lowered: Option<Instant>,
}

impl Default for InFlightWindow {
    fn default() -> Self {
        InFlightWindow { size: MAX_IN_FLIGHT, quickest: Duration::MAX, lowered: None }
    }
}

impl InFlightWindow {
    /// Records a write whose last reply has arrived.
    fn answered(&mut self, sent: Instant, now: Instant, timeout: Duration) {
        let took = now.saturating_duration_since(sent);
        self.quickest = self.quickest.min(took);
        if took - self.quickest <= timeout / QUEUEING_PART {
            self.size = (self.size + INCREASE).min(MAX_IN_FLIGHT);
        } else if self.lowered.is_none_or(|lowered| sent >= lowered) {
            // Writes that were sent before the window was halved do not halve it again.
            self.size = (self.size / 2).max(MIN_IN_FLIGHT);
            self.lowered = Some(now);
        }
    }
}

/// Work in flight on one connection.
#[derive(Debug, Default)]
pub(super) struct FlowControl(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    window: InFlightWindow,
    total: usize,
    by_caller: HashMap<Caller, usize, RandomState>,
    for_key: HashMap<u64, usize, RandomState>,
}

impl FlowControl {
    /// Records a write whose last reply has arrived now.
    pub(super) fn answered(&self, sent: Instant, timeout: Duration) {
        self.counts().window.answered(sent, Instant::now(), timeout);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Whether a job may be sent now. A job that joins an entry weighs nothing.
    fn admit(&self, job: &Job, joins: bool) -> bool {
        let share = self.window.size / SHARES;
        let has_share = |weight: Option<&usize>| weight.is_none_or(|weight| *weight < share);
        joins
            || has_share(self.by_caller.get(&job.caller))
                && job.keys.iter().all(|key| has_share(self.for_key.get(key)))
    }

    /// Adds a job to the weight in flight.
    fn claim(&mut self, job: &Job, flow: &Arc<FlowControl>) -> Claim {
        let weight = match &job.work {
            Work::Decide(plan, ..) => plan.states().len(),
            Work::Send(..) => COMMAND_WEIGHT,
        };
        let (caller, keys) = (job.caller, job.keys.clone());
        self.total += weight;
        *self.by_caller.entry(caller).or_default() += weight;
        keys.iter().for_each(|key| *self.for_key.entry(*key).or_default() += weight);
        Claim { flow: Arc::clone(flow), caller, keys, weight }
    }
}

/// A job's part of the weight in flight, which is released when this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    flow: Arc<FlowControl>,
    caller: Caller,
    keys: KeyHashes,
    weight: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut counts = self.flow.counts();
        counts.total -= self.weight;
        subtract(&mut counts.by_caller, self.caller, self.weight);
        for key in &self.keys {
            subtract(&mut counts.for_key, *key, self.weight);
        }
    }
}

/// Subtracts from a count, and removes it if it is then 0.
fn subtract<K: std::hash::Hash + Eq>(
    counts: &mut HashMap<K, usize, RandomState>,
    key: K,
    weight: usize,
) {
    if let Some(count) = counts.get_mut(&key) {
        *count = count.saturating_sub(weight);
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(25);

    /// The size of the window after `writes` writes that took this long each, one after another.
    fn after(window: &mut InFlightWindow, writes: usize, took: Duration) -> usize {
        let mut now = Instant::now();
        for _ in 0..writes {
            let sent = now;
            now += took;
            window.answered(sent, now, TIMEOUT);
        }
        window.size
    }

    /// Regression: the number of calls in flight was fixed. On a slow server they took longer than
    /// the deadline of every call behind them.
    #[test]
    fn slow_server_lowers_the_flow_window() {
        let (fast, slow) = (Duration::from_millis(1), Duration::from_millis(7));
        let mut window = InFlightWindow::default();
        assert_eq!(after(&mut window, 10, fast), MAX_IN_FLIGHT);
        assert_eq!(after(&mut window, 1, slow), MAX_IN_FLIGHT / 2);
        assert_eq!(after(&mut window, 100, slow), MIN_IN_FLIGHT);
        assert_eq!(after(&mut window, 1, fast), MIN_IN_FLIGHT + INCREASE);
        assert_eq!(after(&mut window, 1000, fast), MAX_IN_FLIGHT);
    }

    #[test]
    fn distant_server_keeps_the_flow_window() {
        let mut window = InFlightWindow::default();
        let distant = Duration::from_millis(20);
        assert_eq!(after(&mut window, 100, distant), MAX_IN_FLIGHT);
        assert_eq!(after(&mut window, 100, distant + Duration::from_millis(4)), MAX_IN_FLIGHT);
    }

    #[test]
    fn concurrent_writes_halve_the_window_once() {
        let mut window = InFlightWindow::default();
        after(&mut window, 1, Duration::from_millis(1));
        let (sent, ms) = (Instant::now(), Duration::from_millis);
        for late in 0..10 {
            window.answered(sent + ms(late), sent + ms(10 + late), TIMEOUT);
        }
        assert_eq!(window.size, MAX_IN_FLIGHT / 2);
    }
}
