//! Finds the server that decides a key, and follows redirects.
//!
//! A single server, or a primary behind Sentinels, has one client. A cluster has a client for
//! each primary, and redirects are followed. A call is sent again only after a reply which proves
//! that it was not carried out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;

use super::cluster::{Cluster, slot_of};
use super::connection::{Connection, DialError, Dialer};
use super::error::ConnectError;
use super::key_names::slot_key;
use super::script::{ScriptCall, unexpected_reply};
use super::server::{
    CallError, CallReply, KeyHashes, SendMode, ServerClient, ServerStatus, ServerTarget, Work,
    key_hash,
};
use super::server_info::ServerInfo;
use super::stats::{RedisServer, StoreCounters};
use super::url::{Address, Deployment, Login, RedisUrl};
use crate::{Failure, StoreError};

/// The maximum number of times that a call is sent again. A slot that is being migrated takes two
/// redirects, and some retries if the call has several keys.
const MAX_RESENDS: u32 = 6;
/// The delay after `TRYAGAIN`, which a call gets if its keys are on both sides of a migration. It
/// is multiplied by the number of times that the call was sent again.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// The maximum number of servers whose health is reported separately. Each is a series of a metric.
const MAX_LISTED_SERVERS: usize = 128;

/// The servers of a store.
#[derive(Clone)]
pub(super) enum Topology {
    Single(Arc<ServerClient>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Connects to the servers. Returns an error only if one was reached and cannot be used.
    pub(super) async fn start(
        url: &RedisUrl,
        dialer: Arc<Dialer>,
        counters: Arc<StoreCounters>,
    ) -> Result<Self, ConnectError> {
        let target = match url.deployment {
            Deployment::Single => ServerTarget::Fixed(url.hosts[0].clone()),
            Deployment::Sentinel => ServerTarget::Sentinel(Arc::new(Sentinels::new(url))),
            Deployment::Cluster => {
                return Ok(Topology::Cluster(Cluster::start(url, dialer, counters).await?));
            }
        };
        let server = ServerClient::start(target, dialer, counters, None);
        server.started().await?;
        Ok(Topology::Single(Arc::new(server)))
    }

    /// Whether all servers are connected and do not refuse calls.
    pub(super) fn is_up(&self) -> bool {
        match self {
            Topology::Single(server) => server.state() == ServerStatus::Up,
            Topology::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// The number of jobs that wait to be sent.
    pub(super) fn queued(&self) -> usize {
        match self {
            Topology::Single(server) => server.queued(),
            Topology::Cluster(cluster) => cluster.clients().iter().map(|it| it.queued()).sum(),
        }
    }

    /// The servers and their health.
    pub(super) fn servers(&self) -> Vec<RedisServer> {
        match self {
            Topology::Single(server) => server.describe().into_iter().collect(),
            Topology::Cluster(cluster) => {
                let clients = cluster.clients().into_iter().take(MAX_LISTED_SERVERS);
                clients.filter_map(|server| server.describe()).collect()
            }
        }
    }

    /// The slot of a name. One call may touch only names with equal slots. Without a cluster, all
    /// names have slot 0.
    pub(super) fn slot(&self, name: &[u8]) -> u16 {
        match self {
            Topology::Single(_) => 0,
            Topology::Cluster(_) => slot_of(slot_key(name)),
        }
    }

    /// Sends work on the keys of one slot to its server, and follows redirects.
    pub(super) async fn submit(
        &self,
        slot: u16,
        work: impl Fn() -> Work,
        counters: &StoreCounters,
    ) -> Result<CallReply, StoreError> {
        let (mut server, mut send_mode) = (self.server(slot)?, SendMode::Batched);
        for resends in 0..=MAX_RESENDS {
            if resends > 0 {
                StoreCounters::add(&counters.resent, 1);
            }
            // A client that stops drops its callers. A job that it has sent is then lost.
            let reply = server.submit(work(), send_mode)?.await.unwrap_or(LOST);
            (server, send_mode) = match reply {
                Ok(reply) => return Ok(reply),
                Err(CallError::Failed(failure)) => {
                    self.refresh_after(&failure);
                    return Err(failure.into());
                }
                Err(CallError::Invalid(error)) => return Err(error.into()),
                Err(CallError::Moved(address)) => {
                    self.refresh_after(&Failure::Down);
                    (self.server_at(&address)?, SendMode::Single)
                }
                Err(CallError::Ask(address)) => (self.server_at(&address)?, SendMode::Asking),
                Err(CallError::TryAgain) => {
                    // The first retry is immediate, because the call may succeed without the other
                    // keys of its batch.
                    tokio::time::sleep(RETRY_DELAY * resends).await;
                    (self.server(slot)?, SendMode::Single)
                }
            };
        }
        Err(Failure::Refused("TRYAGAIN: the slot of this key is being moved".into()).into())
    }

    /// Calls a script on keys of one slot.
    pub(super) async fn send_call(
        &self,
        slot: u16,
        call: &ScriptCall,
        counters: &StoreCounters,
    ) -> Result<Value, StoreError> {
        let key_hashes: KeyHashes = call.keys.iter().map(|name| key_hash(name)).collect();
        let command = call.cmd();
        let work = || Work::Send(command.clone(), key_hashes.clone());
        match self.submit(slot, work, counters).await? {
            CallReply::Value(value) => Ok(value),
            CallReply::Decided(_) => Err(unexpected_reply(&Value::Nil).into()),
        }
    }

    fn server(&self, slot: u16) -> Result<Arc<ServerClient>, Failure> {
        match self {
            Topology::Single(server) => Ok(Arc::clone(server)),
            Topology::Cluster(cluster) => cluster.server(slot).ok_or_else(|| {
                cluster.mark_stale();
                Failure::Down
            }),
        }
    }

    fn server_at(&self, address: &super::url::Address) -> Result<Arc<ServerClient>, Failure> {
        match self {
            // A single server does not send redirects.
            Topology::Single(_) => {
                Err(Failure::Refused("a redirect from a server in no cluster".into()))
            }
            Topology::Cluster(cluster) => cluster.server_at(address).ok_or(Failure::Down),
        }
    }

    /// Requests a new map of the cluster if the server is down, because the slots may have moved.
    fn refresh_after(&self, failure: &Failure) {
        if let (Topology::Cluster(cluster), Failure::Down) = (self, failure) {
            cluster.mark_stale();
        }
    }
}

const LOST: Result<CallReply, CallError> = Err(CallError::Failed(Failure::Lost));

/// The Sentinels of one primary.
pub(super) struct Sentinels {
    /// The Sentinels in the order in which they are tried. The one that answered last is the first.
    hosts: Mutex<Vec<Address>>,
    master: Box<str>,
    login: Login,
    /// The primary that a Sentinel named last.
    last_primary: Mutex<Option<Address>>,
}

impl Sentinels {
    pub(super) fn new(url: &RedisUrl) -> Self {
        Sentinels {
            hosts: Mutex::new(url.hosts.clone()),
            master: url.master.as_str().into(),
            login: url.sentinel_login.clone(),
            last_primary: Mutex::default(),
        }
    }

    /// The primary that a Sentinel named last.
    pub(super) fn last_primary(&self) -> Option<Address> {
        self.last_primary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connects to the primary that the Sentinels name. During a failover they may name the failed
    /// primary or, for a moment, a replica. Both are temporary, and neither is an error.
    pub(super) async fn dial(
        &self,
        dialer: &Dialer,
    ) -> Result<(Connection, ServerInfo), DialError> {
        let primary = self.primary(dialer).await?;
        *self.last_primary.lock().unwrap_or_else(PoisonError::into_inner) = Some(primary.clone());
        match dialer.dial(&primary).await {
            Err(DialError::Refused(ConnectError::IsReplica)) => {
                Err(DialError::Unreachable("the primary the Sentinels name is a replica".into()))
            }
            dialed => dialed,
        }
    }

    /// The address of the primary, from the first Sentinel that returns it.
    async fn primary(&self, dialer: &Dialer) -> Result<Address, DialError> {
        let hosts = self.hosts().clone();
        let mut last_error = DialError::Unreachable("there is no Sentinel".into());
        for sentinel in hosts {
            let command = ["SENTINEL", "get-master-addr-by-name", &*self.master];
            match dialer.send_once(&sentinel, &self.login, &command).await {
                Ok(reply) => match read_address(&reply, &sentinel) {
                    Some(primary) => {
                        self.prefer(&sentinel);
                        return Ok(primary);
                    }
                    None => {
                        let unknown = ConnectError::UnknownMaster(self.master.clone());
                        last_error = DialError::Refused(unknown);
                    }
                },
                Err(DialError::Refused(ConnectError::Unusable(text))) => {
                    last_error = DialError::Refused(ConnectError::NotSentinel(text));
                }
                Err(DialError::Refused(
                    ConnectError::Credentials(text) | ConnectError::NotPermitted(text),
                )) => last_error = DialError::Refused(ConnectError::SentinelRefuses(text)),
                // A refusal by one Sentinel is reported rather than that another cannot be reached.
                Err(error) if !matches!(last_error, DialError::Refused(_)) => last_error = error,
                Err(_) => {}
            }
        }
        Err(last_error)
    }

    fn prefer(&self, sentinel: &Address) {
        let mut hosts = self.hosts();
        if let Some(index) = hosts.iter().position(|host| host == sentinel) {
            hosts[..=index].rotate_right(1);
        }
    }

    fn hosts(&self) -> MutexGuard<'_, Vec<Address>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_address(reply: &Value, queried: &Address) -> Option<Address> {
    let Value::Array(elements) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = elements.as_slice() else {
        return None;
    };
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Address::reported(std::str::from_utf8(host).ok()?, port, queried))
}
