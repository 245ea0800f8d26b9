//! Which server decides a key, and what happens when it is another one.
//!
//! One server or one primary behind Sentinels is one node. A cluster has a node for
//! each primary and follows redirects. A call is only ever sent again after an
//! answer that proves it was not carried out.

mod cluster;
pub(super) use self::cluster::Cluster;
pub(super) use self::cluster::slot_of;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;

use super::connection::{Connection, DialError, Dialer};
use super::error::ConnectError;
use super::key_names::slot_key;
use super::node::{CallError, CallReply, NodeClient, SendMode, State, Target, Work};
use super::server_info::ServerInfo;
use super::stats::StoreCounters;
use super::url::{Address, Kind, Login, StoreUrl};
use crate::Failure;

/// How often one call is sent again. A slot that moves takes two redirects, and a
/// little patience when a call has several keys.
const MAX_RESENDS: u32 = 6;
/// What a call waits that has keys on both sides of a move, times how often it has.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// The servers of a store.
#[derive(Clone)]
pub(super) enum Topology {
    Single(Arc<NodeClient>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Connects; an error only if servers are there and will not do.
    pub(super) async fn start(
        url: &StoreUrl,
        dialer: Arc<Dialer>,
        counters: Arc<StoreCounters>,
    ) -> Result<Self, ConnectError> {
        let target = match url.kind {
            Kind::Single => Target::Fixed(url.hosts[0].clone()),
            Kind::Sentinel => Target::Sentinel(Arc::new(Sentinels::new(url))),
            Kind::Cluster => {
                return Ok(Topology::Cluster(Cluster::start(url, dialer, counters).await?));
            }
        };
        let node = NodeClient::start(target, dialer, counters, None);
        node.started().await?;
        Ok(Topology::Single(Arc::new(node)))
    }

    /// Whether everything can be asked, and is answered.
    pub(super) fn is_up(&self) -> bool {
        match self {
            Topology::Single(node) => node.state() == State::Up,
            Topology::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// A number that is equal for names that one call may have together.
    pub(super) fn slot(&self, name: &[u8]) -> u16 {
        match self {
            Topology::Single(_) => 0,
            Topology::Cluster(_) => slot_of(slot_key(name)),
        }
    }

    /// Has work done on keys of one slot.
    pub(super) async fn submit(
        &self,
        slot: u16,
        work: impl Fn() -> Work,
        counters: &StoreCounters,
    ) -> Result<CallReply, Failure> {
        let (mut node, mut send_mode) = (self.node(slot)?, SendMode::Batched);
        for resends in 0..=MAX_RESENDS {
            if resends > 0 {
                StoreCounters::add(&counters.resent, 1);
            }
            // A node that ends answers nobody; what it had sent is lost.
            let answer = node.submit(work(), send_mode)?.await.unwrap_or(LOST);
            (node, send_mode) = match answer {
                Ok(answer) => return Ok(answer),
                Err(CallError::Failed(failure)) => {
                    self.refresh_after(&failure);
                    return Err(failure);
                }
                Err(CallError::Moved(address)) => {
                    self.refresh_after(&Failure::Down);
                    (self.node_at(&address)?, SendMode::Single)
                }
                Err(CallError::Ask(address)) => (self.node_at(&address)?, SendMode::Asking),
                Err(CallError::TryAgain) => {
                    // Alone it may pass at once.
                    tokio::time::sleep(RETRY_DELAY * resends).await;
                    (self.node(slot)?, SendMode::Single)
                }
            };
        }
        Err(Failure::Refused("TRYAGAIN: the slot of this key is being moved".into()))
    }

    fn node(&self, slot: u16) -> Result<Arc<NodeClient>, Failure> {
        match self {
            Topology::Single(node) => Ok(Arc::clone(node)),
            Topology::Cluster(cluster) => cluster.node(slot).ok_or_else(|| {
                cluster.mark_stale();
                Failure::Down
            }),
        }
    }

    fn node_at(&self, address: &super::url::Address) -> Result<Arc<NodeClient>, Failure> {
        match self {
            // One server redirects nobody.
            Topology::Single(_) => {
                Err(Failure::Refused("a redirect from a server in no cluster".into()))
            }
            Topology::Cluster(cluster) => cluster.node_at(address).ok_or(Failure::Down),
        }
    }

    /// Somebody is not where they were: the map may have changed.
    fn refresh_after(&self, failure: &Failure) {
        if let (Topology::Cluster(cluster), Failure::Down) = (self, failure) {
            cluster.mark_stale();
        }
    }
}

const LOST: Result<CallReply, CallError> = Err(CallError::Failed(Failure::Lost));

/// The Sentinels of one primary.
pub(super) struct Sentinels {
    /// Who answered last stands first.
    hosts: Mutex<Vec<Address>>,
    master: Box<str>,
    login: Login,
}

impl Sentinels {
    pub(super) fn new(url: &StoreUrl) -> Self {
        Sentinels {
            hosts: Mutex::new(url.hosts.clone()),
            master: url.master.as_str().into(),
            login: url.sentinel_login.clone(),
        }
    }

    /// Connects to the primary they name. Between its fall and the failover they
    /// still name the old one, and for a moment a replica: neither is an error.
    pub(super) async fn dial(
        &self,
        dialer: &Dialer,
    ) -> Result<(Connection, ServerInfo), DialError> {
        let primary = self.primary(dialer).await?;
        match dialer.dial(&primary).await {
            Err(DialError::Refused(ConnectError::IsReplica)) => {
                Err(DialError::Unreachable("the primary the Sentinels name is a replica".into()))
            }
            dialed => dialed,
        }
    }

    /// The primary's address, from the first Sentinel that tells it.
    async fn primary(&self, dialer: &Dialer) -> Result<Address, DialError> {
        let hosts = self.hosts().clone();
        let mut last_error = DialError::Unreachable("there is no Sentinel".into());
        for sentinel in hosts {
            let command = ["SENTINEL", "get-master-addr-by-name", &*self.master];
            match dialer.send_once(&sentinel, &self.login, &command).await {
                Ok(answer) => match read_address(&answer, &sentinel) {
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
                // What one refuses is worth more than that another is not there.
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

    fn hosts(&self) -> std::sync::MutexGuard<'_, Vec<Address>> {
        self.hosts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn read_address(answer: &Value, queried: &Address) -> Option<Address> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else { return None };
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Address::reported(std::str::from_utf8(host).ok()?, port, queried))
}
