//! Queries to the gate, and the replies to them.
//!
//! A query borrows from the bytes of its command. With a store in memory, it is answered before the
//! next command is parsed. With a shared store, many queries run concurrently, and each is a copy
//! ([`OwnedQuery`]).

use std::ops::Deref;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tidegate::unstable::gate::{
    ActivePolicies, DenialReason, Gate, GateError, GateRequest, GateVerdict, LimitResult, Subject,
};
use tidegate::unstable::stats::Decided;
use tidegate::{Cost, Limit, RetryAfter};

use super::codec::Replies;
use super::gate_error;
use crate::error::RequestError;

/// A query: [`BorrowedQuery`] borrows its policy and key, [`OwnedQuery`] owns copies.
#[derive(Clone, Debug)]
pub struct Query<P, K> {
    pub kind: QueryKind,
    /// `None` for limits that the caller sent.
    pub policy: Option<P>,
    pub key: K,
    /// The limits that the caller sent.
    pub limits: Option<Arc<[Limit]>>,
    pub cost: Option<Cost>,
    pub force: bool,
    pub id: Option<K>,
}

/// A query that borrows from its command.
pub type BorrowedQuery<'a> = Query<&'a str, &'a [u8]>;

/// A query that owns its policy and key.
pub type OwnedQuery = Query<Box<str>, Box<[u8]>>;

impl<P: Deref<Target = str>, K: Deref<Target = [u8]>> Query<P, K> {
    /// Converts the query to a [`GateRequest`].
    #[inline]
    pub fn gate_request(&self) -> GateRequest<'_> {
        let subject = match self.policy.as_deref() {
            Some(policy) => Subject::Key { policy, key: &self.key, attributes: None },
            None => {
                let limits = self.limits.as_deref().unwrap_or_default();
                Subject::Limits { key: &self.key, limits }
            }
        };
        let id = self.id.as_deref();
        GateRequest { cost: self.cost, force: self.force, id, ..GateRequest::new(subject) }
    }
}

/// The kind of a query, which determines the form of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// A decision, in the form of tidegate.
    Check,
    /// A decision, in the form of redis-cell.
    RedisCell(Throttle),
    /// A decision, in the form of throttlecrab.
    Throttlecrab(Throttle),
    Peek,
    Reset,
}

impl QueryKind {
    /// Whether it is a decision.
    #[inline]
    pub fn is_check(self) -> bool {
        matches!(self, QueryKind::Check | QueryKind::RedisCell(_) | QueryKind::Throttlecrab(_))
    }

    /// Whether the two may run concurrently.
    pub fn can_run_with(self, other: QueryKind) -> bool {
        self.is_check() && other.is_check() || self == other
    }
}

/// The parameters of a reply in the form of redis-cell or throttlecrab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// The limit that is reported.
    pub limit: i64,
    /// Whether the cost is zero, which is a peek.
    pub is_peek: bool,
}

impl<'a> BorrowedQuery<'a> {
    pub fn new(kind: QueryKind, key: &'a [u8]) -> Self {
        BorrowedQuery { kind, policy: None, key, limits: None, cost: None, force: false, id: None }
    }

    /// Executes a query that is not a decision with a store in memory.
    pub fn execute_local(&self, gate: &Gate, active: &ActivePolicies, replies: &mut Replies<'_>) {
        // With a store in memory, the future is ready in its first poll.
        let query = OwnedQuery::from(self.clone());
        if let Some(answer) = query.execute(gate, active).now_or_never() {
            query.reply(answer, replies);
        }
    }
}

impl From<BorrowedQuery<'_>> for OwnedQuery {
    fn from(query: BorrowedQuery<'_>) -> Self {
        Query {
            kind: query.kind,
            policy: query.policy.map(Into::into),
            key: query.key.into(),
            limits: query.limits,
            cost: query.cost,
            force: query.force,
            id: query.id.map(Into::into),
        }
    }
}

/// The result of a query.
pub enum QueryAnswer<'a> {
    /// Boxed because it is large. The allocation costs little compared with a round trip.
    Answer(Box<Result<GateVerdict<'a>, GateError>>),
    Reset(Result<bool, GateError>),
}

impl OwnedQuery {
    /// Executes the query with any store.
    pub async fn execute<'a>(
        &'a self,
        gate: &'a Gate,
        active: &'a ActivePolicies,
    ) -> QueryAnswer<'a> {
        let policy = self.policy.as_deref().unwrap_or_default();
        match self.kind {
            QueryKind::Check | QueryKind::RedisCell(_) | QueryKind::Throttlecrab(_) => {
                QueryAnswer::Answer(Box::new(gate.check(active, &[self.gate_request()]).await))
            }
            QueryKind::Peek => {
                let peeked = async {
                    let keys = gate.keys(active, policy)?;
                    keys.peek(&keys.find(&self.key).await?.key, 0).await
                };
                QueryAnswer::Answer(Box::new(peeked.await))
            }
            QueryKind::Reset => {
                let reset = async {
                    let keys = gate.keys(active, policy)?;
                    keys.reset(&keys.find(&self.key).await?.key).await
                };
                QueryAnswer::Reset(reset.await)
            }
        }
    }

    pub fn reply(&self, answer: QueryAnswer<'_>, replies: &mut Replies<'_>) {
        match answer {
            QueryAnswer::Answer(verdict) => {
                reply(self.kind, verdict.as_ref().as_ref().map_err(GateError::clone), replies)
            }
            QueryAnswer::Reset(done) => reply_reset(done, replies),
        }
    }
}

/// Replies with a decision or an error.
#[inline]
pub fn reply(
    kind: QueryKind,
    verdict: Result<&GateVerdict<'_>, GateError>,
    replies: &mut Replies<'_>,
) {
    match verdict {
        Ok(verdict) if verdict.denial_reason() != Some(DenialReason::StoreFailed) => match kind {
            QueryKind::RedisCell(form) => reply_cell(form, verdict, replies),
            QueryKind::Throttlecrab(form) => reply_crab(form, verdict, replies),
            QueryKind::Check | QueryKind::Peek | QueryKind::Reset => reply_check(verdict, replies),
        },
        Ok(verdict) => replies.error(&RequestError::store_failed(verdict)),
        Err(error) => replies.error(&gate_error(error)),
    }
}

fn reply_reset(done: Result<bool, GateError>, replies: &mut Replies<'_>) {
    match done {
        Ok(any) => replies.number(i64::from(any)),
        Err(error) => replies.error(&gate_error(error)),
    }
}

#[inline]
fn reply_check(verdict: &GateVerdict<'_>, replies: &mut Replies<'_>) {
    let reported = verdict.reported_limit();
    replies.put(if verdict.allowed { b"*7\r\n:1\r\n" } else { b"*7\r\n:0\r\n" });
    replies.count_or_nil(reported.map(|result| result.decision.limit));
    replies.count_or_nil(reported.and_then(LimitResult::remaining));
    replies.count_or_nil(verdict.retry_after().as_millis());
    replies
        .count_or_nil(reported.and_then(LimitResult::reset_after).map(|reset| reset.as_millis()));
    match reported.and_then(|result| result.policy) {
        Some(policy) => replies.bulk(policy),
        None => replies.nil(),
    }
    match verdict.decided {
        Decided::Exact => replies.put(b"$5\r\nexact\r\n"),
        decided => replies.bulk(decided.name()),
    }
}

/// The state of a bucket.
struct BucketState {
    limited: bool,
    remaining: u64,
    retry_after: RetryAfter,
    reset_us: u64,
}

impl BucketState {
    /// Creates the state from a verdict with one limit. The gate decides a peek as if it were for
    /// one unit. Here a peek is for zero units, which is denied only if the bucket owes more than
    /// its capacity: that happens after its limit was lowered.
    fn new(verdict: &GateVerdict<'_>, is_peek: bool) -> Self {
        let reported = verdict.reported_limit();
        let reset_us = reported.map_or(0, |result| result.decision.reset_after.as_micros());
        let remaining = reported.and_then(LimitResult::remaining).unwrap_or_default();
        let (mut limited, mut retry_after) = (!verdict.allowed, verdict.retry_after());
        if is_peek && let Some(result) = reported {
            let whole_us = u128::from(result.limit.burst()) * u128::from(result.limit.window_us());
            let whole_us = whole_us.div_ceil(u128::from(result.limit.count().max(1)));
            let over_us = u128::from(reset_us).saturating_sub(whole_us);
            limited = over_us > 0;
            retry_after = RetryAfter::from_micros(u64::try_from(over_us).unwrap_or(u64::MAX));
        }
        BucketState { limited, remaining, retry_after, reset_us }
    }
}

/// Replies with `[limited, limit, remaining, retry-after or -1, reset-after]`, in seconds.
#[inline]
fn reply_cell(form: Throttle, verdict: &GateVerdict<'_>, replies: &mut Replies<'_>) {
    let state = BucketState::new(verdict, form.is_peek);
    replies.put(if state.limited { b"*5\r\n:1\r\n" } else { b"*5\r\n:0\r\n" });
    replies.number(form.limit);
    replies.count(state.remaining);
    match state.retry_after {
        RetryAfter::Micros(us) if state.limited => replies.count(cell_seconds(us)),
        _ => replies.number(-1),
    }
    replies.count(cell_seconds(state.reset_us));
}

/// Rounds up as redis-cell does: a remainder counts if it is at least a millisecond.
fn cell_seconds(us: u64) -> u64 {
    (us / 1_000).div_ceil(1_000)
}

/// Replies with `[allowed, limit, remaining, reset-after, retry-after]`, in seconds. They are
/// rounded up; throttlecrab truncates them, so that clients retry too early.
#[inline]
fn reply_crab(form: Throttle, verdict: &GateVerdict<'_>, replies: &mut Replies<'_>) {
    let state = BucketState::new(verdict, form.is_peek);
    replies.put(if state.limited { b"*5\r\n:0\r\n" } else { b"*5\r\n:1\r\n" });
    replies.number(form.limit);
    replies.count(state.remaining);
    replies.count(state.reset_us.div_ceil(1_000_000));
    match state.retry_after.as_secs() {
        Some(seconds) if state.limited => replies.count(seconds),
        Some(_) => replies.number(0),
        None => replies.number(-1),
    }
}
