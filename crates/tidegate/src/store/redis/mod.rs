//! The Redis store, which keeps states that several nodes share.
//!
//! ```text
//!   request -> leases -> deny cache -> plan -> queue -> batch -> script in Redis -> raw state -> decision
//! ```
//!
//! The decision is made twice, on the same numbers: by a script, which charges, and by the core,
//! which computes the answer from the state that the script read. Requests that wait together are
//! sent together, and those on the same states share an entry of a call. No decision waits longer
//! than the deadline, is queued while disconnected, or is repeated if its outcome is unknown.
//! Releases of permits are repeated.
//!
//! Requests that wait together are one *write* of commands. A *call* is a command that runs
//! `request.lua`. It has *groups* of entries under the same limits. An *entry* is a list of
//! requests on the same states, and a *run* is a number of equal requests in it.
//!
//! - `url.rs`: the address of a store; `error.rs`: why it cannot be used; `stats.rs`: its counters;
//!   `machine.rs`: clocks and random numbers, and what a simulation replaces;
//! - `connection.rs`: one connection, its TLS, and the thread that runs all tasks of a store;
//!   `server_info.rs`: the properties that a server reports;
//! - `server.rs`: sends to one server; `queue.rs`: jobs that wait; `batch_builder.rs`, `batch.rs`:
//!   the calls of one write; `breaker.rs`: when a server counts as down, and the backoff;
//! - `topology.rs`: one server, Sentinel or Cluster; `cluster.rs`: the map of slots, and requests
//!   whose keys are in several slots;
//! - `key_names.rs`, `plan.rs`, `entry.rs`, `lease_call.rs`, `stored_state.rs`, `script.rs`,
//!   `lua/`: script calls and their replies;
//! - `deny_cache.rs`: denials that are answered from memory;
//! - `leases/`: units of hot keys that are spent without a round trip;
//! - `heartbeat.rs`: the nodes that share the store;
//! - `deferred_release.rs`: releases the permits of acquires that nobody waits for any more.

mod batch;
mod batch_builder;
mod breaker;
mod cluster;
mod connection;
mod deferred_release;
mod deny_cache;
mod entry;
mod error;
mod heartbeat;
mod key_names;
mod lease_call;
mod leases;
mod machine;
mod plan;
mod queue;
mod script;
mod server;
mod server_info;
mod stats;
mod stored_state;
mod topology;
mod url;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redis::Value;
use smallvec::smallvec;
use tidegate_core::{Cost, Limit, PermitId, Timestamp};
use tokio::time::Instant;

use self::connection::Dialer;
use self::connection::IoThread;
use self::deferred_release::{PendingPermit, ReleaseQueue, RetryOnDrop};
use self::deny_cache::{DenyCache, GenerationIndexes, Lookup};
pub use self::error::{ConnectError, UrlError};
use self::heartbeat::Heartbeats;
pub use self::heartbeat::LiveNode;
use self::key_names::KeyNames;
use self::lease_call::{LeaseEntry, LeaseOperation, decode_lease_reply, lease_call};
use self::leases::{AskStore, Leases};
use self::machine::Machine;
use self::plan::{ScriptMode, ScriptPlan, ScriptReply};
use self::script::ScriptCall;
use self::server::{CallReply, Work};
use self::stats::StoreCounters;
pub use self::stats::{DataLoss, RedisServer, RedisStats};
use self::topology::Topology;
use self::url::RedisUrl;
use super::PermitOperation;
use crate::request::may_consume;
use crate::{Failure, Request, Store, StoreError, Verdict};

/// The calls to the server and the decoding of its replies, for tests and benchmarks that
/// communicate with it directly.
#[cfg(feature = "unstable")]
pub mod wire {
    pub use super::deny_cache::MAX_AGE as MAX_DENY_CACHE;
    pub use super::entry::{CallBuilder, Entry, EntryError};
    pub use super::key_names::{KeyNames, slot_key};
    pub use super::lease_call::{
        LeaseEntry, LeaseOperation, LeaseReply, decode_lease_reply, lease_call,
    };
    pub use super::machine::{Boxed, SimulatedMachine, SimulatedSocket};
    pub use super::plan::{PlannedState, ScriptMode, ScriptPlan, ScriptReply, SlotPart, Undo};
    pub use super::script::{ACL_RULES, Script, ScriptCall, permit_call, release_call, was_held};
}

/// Checks the syntax of a URL, without connecting.
///
/// # Errors
/// Names the part that is wrong, without repeating it.
#[cfg(feature = "config")]
pub(crate) fn check_url(url: &str) -> Result<(), UrlError> {
    RedisUrl::parse(url).map(drop)
}

/// The length of the longest prefix. It is bounded because it is part of every key.
const MAX_PREFIX_BYTES: usize = 64;

/// The options of a Redis store.
#[derive(Clone)]
pub struct RedisOptions {
    /// The URL: `redis://`, `rediss://`, `redis+unix://`, `redis-sentinel://` or `redis-cluster://`, with
    /// credentials if they are needed. `Debug` shows it without credentials.
    pub url: String,
    /// The time that a caller waits for an answer; default: 25 ms.
    pub timeout: Duration,
    /// The prefix of the names of all keys; default: `tg`.
    pub key_prefix: String,
    /// Whether repeated denials are answered from memory; default: `true`.
    pub deny_cache: bool,
    /// Whether units of hot keys are leased: taken from the store before they are spent, and spent
    /// without a round trip. Nothing is admitted beyond the limits. Default: `false`.
    pub leases: bool,
}

impl RedisOptions {
    /// Creates the options of the store at `url`, with the defaults.
    pub fn new(url: impl Into<String>) -> Self {
        RedisOptions {
            url: url.into(),
            timeout: Duration::from_millis(25),
            key_prefix: "tg".into(),
            deny_cache: true,
            leases: false,
        }
    }

    /// Checks the options. Returns the parsed URL.
    fn check(&self) -> Result<RedisUrl, ConnectError> {
        let url = RedisUrl::parse(&self.url)?;
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let prefix = self.key_prefix.as_bytes();
        if prefix.is_empty()
            || prefix.len() > MAX_PREFIX_BYTES
            || !prefix.iter().all(|b| is_allowed(*b))
        {
            return Err(ConnectError::Prefix);
        }
        if self.timeout.is_zero() {
            return Err(ConnectError::NoTime);
        }
        Ok(url)
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = RedisUrl::parse(&self.url).map(|url| url.to_string());
        f.debug_struct("RedisOptions")
            .field("url", &url.unwrap_or_else(|error| error.to_string()))
            .field("timeout", &self.timeout)
            .field("key_prefix", &self.key_prefix)
            .field("deny_cache", &self.deny_cache)
            .field("leases", &self.leases)
            .finish()
    }
}

/// A store that keeps states in Redis or Valkey and decides on them there.
///
/// Clones are handles to the same store. When the last one is dropped, its connections are closed.
/// A separate thread sends and reads, so that callers do not time out because their runtime is
/// busy. The store must be used within a `tokio` runtime.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    url: RedisUrl,
    key_names: KeyNames,
    timeout: Duration,
    topology: Topology,
    counters: Arc<StoreCounters>,
    denials: Option<DenyCache>,
    leases: Option<Arc<Leases>>,
    heartbeats: Arc<Heartbeats>,
    deferred_release: ReleaseQueue,
    /// Runs the tasks of the store.
    io_thread: IoThread,
    machine: Machine,
    permits: AtomicU64,
    random: RandomState,
}

/// The timeout for connecting, in deadlines. Connecting takes a few round trips.
const CONNECT_ROUND_TRIPS: u32 = 8;
/// The shortest timeout for connecting.
const MIN_CONNECT_TIME: Duration = Duration::from_millis(500);
/// Part of the error that a script raises for a value that is not a state; see `lua/common.lua`.
const NOT_A_STATE: &str = "is not a state: delete it";
/// The size of a permit id, which must be exact in the doubles of Lua.
const PERMIT_BITS: u32 = 53;

impl RedisStore {
    /// Connects to the store, and checks that its server is of the kind that the URL names.
    ///
    /// An unreachable server is not an error: the store is down until the server can be reached.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(options: RedisOptions) -> Result<Self, ConnectError> {
        Self::connect_on(Machine::Real, options).await
    }

    /// Connects to a simulated store. All tasks run on the current runtime.
    ///
    /// # Errors
    /// See [`ConnectError`].
    #[cfg(feature = "unstable")]
    pub async fn connect_simulated(
        machine: Arc<dyn machine::SimulatedMachine>,
        options: RedisOptions,
    ) -> Result<Self, ConnectError> {
        Self::connect_on(Machine::Simulated(machine), options).await
    }

    async fn connect_on(machine: Machine, options: RedisOptions) -> Result<Self, ConnectError> {
        let url = options.check()?;
        let tls = url.tls.as_ref().map(connection::tls_connector).transpose()?;
        let key_names = KeyNames::new(&options.key_prefix);
        let io_thread = IoThread::start(&machine).map_err(|error| {
            ConnectError::Unusable(format!("its thread cannot be started: {error}").into())
        })?;
        let dialer = Dialer {
            deployment: url.deployment,
            login: url.login.clone(),
            db: url.db,
            tls,
            connect_timeout: (options.timeout * CONNECT_ROUND_TRIPS).max(MIN_CONNECT_TIME),
            timeout: options.timeout,
            sample: key_names.sample(),
            runtime: io_thread.runtime().clone(),
            machine: machine.clone(),
        };
        let counters = Arc::new(StoreCounters::default());
        let topology = Topology::start(&url, Arc::new(dialer), Arc::clone(&counters)).await?;
        let (deferred_release, waiting) = ReleaseQueue::new(Arc::clone(&counters));
        let denials =
            options.deny_cache.then(|| DenyCache::new(Arc::clone(&counters), machine.random()));
        let leases = options.leases.then(|| Arc::new(Leases::new(Arc::clone(&counters), &machine)));
        let inner = Inner {
            url,
            key_names,
            timeout: options.timeout,
            topology,
            counters,
            denials,
            leases,
            heartbeats: Arc::new(Heartbeats::new()),
            deferred_release,
            io_thread,
            machine,
            permits: AtomicU64::new(0),
            random: RandomState::new(),
        };
        let inner = Arc::new(inner);
        let releasing = deferred_release::release_all(Arc::downgrade(&inner), waiting);
        inner.io_thread.runtime().spawn(releasing);
        if inner.leases.is_some() {
            inner.io_thread.runtime().spawn(leases::renew_all(Arc::downgrade(&inner)));
        }
        Ok(RedisStore { inner })
    }

    /// Returns the counters of the store.
    pub fn stats(&self) -> RedisStats {
        let leases_active = self.inner.leases.as_ref().map_or(0, |leases| leases.active());
        let queued = self.inner.topology.queued() as u64;
        RedisStats {
            queued,
            ..self.inner.counters.read(self.inner.topology.is_up(), leases_active)
        }
    }

    /// Returns the servers of the store: the primaries of a cluster, the primary that the Sentinels
    /// named last, or the single server. At most 128 servers of a cluster are returned.
    pub fn servers(&self) -> Vec<RedisServer> {
        self.inner.topology.servers()
    }

    /// Gives back the units that this node has leased, so that other nodes can use them. Call it
    /// before the program ends. A store that is dropped gives them back in the background, if the
    /// program runs for long enough.
    pub async fn give_back_leases(&self) {
        if let Some(leases) = &self.inner.leases {
            leases::give_back_all(leases, &self.inner.topology, self.inner.timeout).await;
        }
    }

    /// Announces this node to the others that share the store, from now on every five seconds, with
    /// a name for operators and a fingerprint of its policies. A later call changes both. Without
    /// it, this node is not counted.
    ///
    /// The name is cut to 72 printable ASCII characters.
    pub fn announce(&self, name: &str, fingerprint: u64) {
        if self.inner.heartbeats.announce(name, fingerprint) {
            self.inner.io_thread.runtime().spawn(heartbeat::beat(Arc::downgrade(&self.inner)));
        }
    }

    /// Returns the nodes that have announced themselves in the last 15 seconds, at most 256, as of
    /// the last heartbeat of this node; none if it has not announced itself.
    pub fn live_nodes(&self) -> Vec<LiveNode> {
        self.inner.heartbeats.live_nodes()
    }

    /// Ends the announcement of this node, so that others do not count it any more. Call it before
    /// the program ends. Otherwise it counts for 15 seconds.
    pub async fn withdraw(&self) {
        self.inner.withdraw().await;
    }

    /// Returns warnings for the operator about settings of the servers that put limits at risk,
    /// such as a `maxmemory-policy` that evicts keys.
    pub fn warnings(&self) -> Vec<String> {
        self.inner.counters.warnings()
    }

    /// Returns why the last attempt to connect failed, or the error with which a server refuses all
    /// calls; `None` once it is usable again.
    pub fn last_error(&self) -> Option<String> {
        self.inner.counters.last_error()
    }

    /// Returns where a value that is not a state of tidegate was last found: the policy, and the
    /// beginning of the SHA-256 of the key's name in Redis. Requests on such a key are decided by
    /// `on_store_failure` until the value is deleted.
    pub fn last_foreign(&self) -> Option<String> {
        self.inner.counters.last_foreign()
    }

    /// Returns how data was last lost: the server, and what happened to it. See
    /// [`RedisStats::data_losses`].
    pub fn last_data_loss(&self) -> Option<String> {
        self.inner.counters.last_data_loss()
    }

    /// Decides a request at a given time and without the deny cache, for tests.
    #[cfg(feature = "unstable")]
    pub async fn decide_at(
        &self,
        now: Timestamp,
        request: &Request<'_>,
    ) -> Result<Verdict, StoreError> {
        self.inner.decide_with_deadline(request, Some(now), Duration::ZERO).await
    }
}

impl Store for RedisStore {
    async fn decide(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        self.inner.decide(request).await
    }

    async fn reset(&self, key: &[u8], limit: &Limit) -> Result<bool, StoreError> {
        self.inner.reset(key, limit).await
    }

    /// Returns a random id of 53 bits, so that nodes choose different ids and nobody can guess one.
    fn new_permit(&self) -> PermitId {
        let number = self.inner.permits.fetch_add(1, Relaxed);
        let random = self.inner.random.hash_one(number) >> (u64::BITS - PERMIT_BITS);
        PermitId(random.max(1))
    }

    /// Releases or renews a permit. A release that fails, or is dropped, is repeated in the
    /// background until the lease has ended.
    async fn update_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        operation: PermitOperation,
    ) -> Result<bool, StoreError> {
        let call = script::permit_call(&self.inner.key_names, key, limit, operation, None);
        let retry = RetryOnDrop(match operation {
            PermitOperation::Release(permit) => Some(PendingPermit {
                states: call.keys.clone(),
                permit,
                lease: Duration::from_micros(limit.window_us()),
                deferred_release: self.inner.deferred_release.clone(),
            }),
            PermitOperation::Renew(_) => None,
        });
        let value = self.inner.with_deadline(self.inner.call(&call)).await;
        let keys = std::iter::once((key, limit));
        let value = value.inspect_err(|error| self.inner.note_foreign(error, keys))?;
        let held = script::was_held(&value)?;
        retry.done();
        Ok(held)
    }

    fn detach(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.inner.io_thread.runtime().spawn(task));
    }

    /// Returns the number of nodes that have [announced](RedisStore::announce) themselves: the
    /// largest number of the last 15 seconds, or the last known one while the store fails.
    fn nodes(&self) -> Option<u32> {
        self.inner.heartbeats.count()
    }

    fn next_attempt(&self) -> Duration {
        self.inner.counters.next_attempt().saturating_duration_since(Instant::now())
    }
}

impl Inner {
    async fn decide(self: &Arc<Self>, request: &Request<'_>) -> Result<Verdict, StoreError> {
        self.counters.requests.fetch_add(1, Relaxed);
        let leases = self.leases.as_ref();
        let answer = leases.map(|leases| leases.decide(request, &self.key_names));
        let gather_time = match answer.unwrap_or(Err(AskStore::NOW)) {
            Ok(verdict) => return Ok(verdict),
            Err(AskStore { gather_time }) => gather_time.min(self.timeout / 5),
        };
        let candidate = match self.lookup(request) {
            Lookup::Denied(verdict) => {
                self.counters.deny_cache_hits.fetch_add(1, Relaxed);
                return Ok(verdict);
            }
            Lookup::Unknown(candidate) => Some(candidate),
            Lookup::NotCacheable => None,
        };
        let verdict = self.decide_with_deadline(request, None, gather_time).await?;
        if let (Some(denials), Some(candidate)) = (&self.denials, candidate) {
            denials.insert(candidate, &verdict, Instant::now());
        }
        if !verdict.allowed
            && let Some(leases) = &self.leases
            && let Some(leased) = leases.peek(request)
        {
            return Ok(leased);
        }
        Ok(verdict)
    }

    fn lookup(&self, request: &Request<'_>) -> Lookup {
        let lookup = |denials: &DenyCache| denials.lookup(request, Instant::now());
        self.denials.as_ref().map_or(Lookup::NotCacheable, lookup)
    }

    async fn decide_with_deadline(
        self: &Arc<Self>,
        request: &Request<'_>,
        at: Option<Timestamp>,
        gather_time: Duration,
    ) -> Result<Verdict, StoreError> {
        // A refund may end denials early. A check that consumes the units that are left makes the
        // waits of cached denials too short.
        let is_plain_cost = |check: &crate::Check<'_>| matches!(check.cost, Cost::Ask(_));
        let is_plain = request.checks.iter().all(is_plain_cost) && !may_consume(request.checks);
        let _invalidation = (!is_plain).then(|| self.invalidate_denials(request));
        let send = async {
            if gather_time > Duration::ZERO {
                tokio::time::sleep(gather_time).await;
            }
            self.send_request(request, at).await
        };
        let decided = self.with_deadline(send).await;
        decided.inspect_err(|error| {
            let checks = request.checks.iter().map(|check| (check.key, check.limit));
            self.note_foreign(error, checks);
        })
    }

    /// Counts a failure that is caused by a value at one of these keys that is not a state.
    fn note_foreign<'k>(
        &self,
        error: &StoreError,
        mut keys: impl Iterator<Item = (&'k [u8], &'k Limit)>,
    ) {
        let StoreError::Failed(Failure::Refused(text)) = error else { return };
        let is_wrong_type = text.contains("WRONGTYPE ");
        if !is_wrong_type && !text.contains(NOT_A_STATE) {
            return;
        }
        // The error of a script names the key. `WRONGTYPE` does not, so the first key is reported.
        let location = keys.find_map(|(key, limit)| {
            let name = self.key_names.state(key, limit);
            let named = is_wrong_type || text.contains(&*String::from_utf8_lossy(&name));
            named.then(|| key_names::describe(key, &name))
        });
        self.counters.found_foreign(location.unwrap_or_else(|| "an idempotency id".into()));
    }

    /// Waits for an answer until the deadline, and counts failures.
    async fn with_deadline<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let decided = tokio::time::timeout(self.timeout, call).await;
        let decided = decided.unwrap_or(Err(StoreError::Failed(Failure::TimedOut)));
        decided.inspect_err(|error| self.counters.failed(error))
    }

    async fn send_request(
        self: &Arc<Self>,
        request: &Request<'_>,
        at: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        let plan = ScriptPlan::new(request, &self.key_names)?;
        if plan.states().is_empty() {
            return Ok(Verdict::new(request.checks, []));
        }
        let split_by_slot = plan.split_by_slot(|name| self.topology.slot(name));
        let script_reply = if split_by_slot.len() > 1 {
            // Units that are charged only for a moment may cause denials of other requests. Those
            // denials must not stay in the cache.
            let _invalidation = self.invalidate_denials(request);
            cluster::decide_across_slots(self, plan.clone(), split_by_slot, at).await?
        } else {
            self.submit_plan(&plan, ScriptMode::Decide, at).await?
        };
        self.machine.note_decided(script_reply.now);
        Ok(plan.verdict(request.checks, &script_reply))
    }

    /// Submits a plan whose keys are in one slot.
    async fn submit_plan(
        &self,
        plan: &ScriptPlan,
        mode: ScriptMode,
        at: Option<Timestamp>,
    ) -> Result<ScriptReply, StoreError> {
        let first = plan.states().first().map(|state| &state.key);
        let first = first.or(plan.id().map(|id| &id.key));
        let slot = first.map_or(0, |key| self.topology.slot(key));
        // The permits are released if the caller no longer waits when the answer arrives.
        let pending_permit = self.pending_permit(plan).filter(|_| mode == ScriptMode::Decide);
        let pending_permit = pending_permit.map(Arc::new);
        let work = || Work::Decide(Box::new(plan.clone()), mode, at, pending_permit.clone());
        match self.topology.submit(slot, work, &self.counters).await? {
            CallReply::Decided(script_reply) => Ok(*script_reply),
            CallReply::Value(value) => Err(script::unexpected_reply(&value).into()),
        }
    }

    async fn reset(&self, key: &[u8], limit: &Limit) -> Result<bool, StoreError> {
        let generation = |denials: &DenyCache| smallvec![denials.generation(key, limit)];
        let _invalidation = self
            .denials
            .as_ref()
            .map(|denials| InvalidateOnDrop::new(denials, generation(denials)));
        let key = self.key_names.state(key, limit);
        let operations = vec![LeaseOperation::Reset];
        let entries = [LeaseEntry { key, limit: *limit, operations }];
        let reply = self.with_deadline(self.call(&lease_call(&entries, None))).await?;
        let replies = decode_lease_reply(&entries, &reply)?;
        let reply = replies.into_iter().next().unwrap_or(Err(script::unexpected_reply(&reply)))?;
        Ok(reply.existed)
    }

    /// Calls a script. All keys must be in one slot.
    async fn call(&self, call: &ScriptCall) -> Result<Value, StoreError> {
        let slot = call.keys.first().map_or(0, |name| self.topology.slot(name));
        self.topology.send_call(slot, call, &self.counters).await
    }

    /// The permits that a plan acquires if it is admitted; `None` if it acquires none.
    fn pending_permit(&self, plan: &ScriptPlan) -> Option<PendingPermit> {
        let lease_us = plan.acquiring().map(|state| state.limit.window_us()).max()?;
        Some(PendingPermit {
            states: plan.acquiring().map(|state| state.key.clone()).collect(),
            permit: plan.permit(),
            lease: Duration::from_micros(lease_us),
            deferred_release: self.deferred_release.clone(),
        })
    }

    /// Invalidates the cached denials of a request that may refund units: now, and when the
    /// returned guard is dropped, which also happens if the caller drops the request.
    fn invalidate_denials(&self, request: &Request<'_>) -> Option<InvalidateOnDrop<'_>> {
        let denials = self.denials.as_ref()?;
        Some(InvalidateOnDrop::new(denials, denials.generations(request)))
    }
}

/// Gives back leases when the last handle is dropped.
impl Drop for Inner {
    fn drop(&mut self) {
        let Some(leases) = self.leases.take().filter(|leases| leases.has_keys()) else { return };
        let (topology, timeout) = (self.topology.clone(), self.timeout);
        self.io_thread.end_after(async move {
            leases::give_back_all(&leases, &topology, timeout).await;
        });
    }
}

/// Invalidates cached denials when it is created and when it is dropped.
struct InvalidateOnDrop<'a> {
    denials: &'a DenyCache,
    generations: GenerationIndexes,
}

impl<'a> InvalidateOnDrop<'a> {
    /// Invalidates denials immediately: a later check of the same caller must not be answered by a
    /// denial from before this call.
    fn new(denials: &'a DenyCache, generations: GenerationIndexes) -> Self {
        denials.invalidate(&generations);
        InvalidateOnDrop { denials, generations }
    }
}

impl Drop for InvalidateOnDrop<'_> {
    fn drop(&mut self) {
        self.denials.invalidate(&self.generations);
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("url", &self.inner.url)
            .field("stats", &self.stats())
            .finish()
    }
}
