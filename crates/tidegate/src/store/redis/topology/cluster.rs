//! Cluster: a map from slots to servers, a lane for each, and somebody who keeps
//! the map current.
//!
//! The map is read when the store starts, when a server says that a slot has moved,
//! and again and again while some lane of it is down. A server that is gone and has
//! left the map loses its lane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use tokio::sync::Notify;

use super::super::breaker::Rests;
use super::super::connection::{DialError, Dialer};
use super::super::error::ConnectError;
use super::super::lane::{Lane, State, Target};
use super::super::stats::Tally;
use super::super::url::{Address, StoreUrl};
use super::slots::{Range, SLOTS, read_ranges};

/// More servers than a cluster can sensibly have: what redirects name is bounded by it.
const MAX_LANES: usize = 1024;

/// A cluster's servers.
pub(in super::super) struct Cluster {
    seeds: Vec<Address>,
    dialer: Arc<Dialer>,
    tally: Arc<Tally>,
    lanes: Mutex<BTreeMap<Address, Arc<Lane>>>,
    map: RwLock<Arc<Map>>,
    /// Somebody wants the map read again, or the cluster is gone.
    stale: Arc<Notify>,
}

/// Which lane a slot has.
#[derive(Default)]
struct Map {
    /// Sorted, without overlap.
    ranges: Vec<(u16, u16, Arc<Lane>)>,
}

impl Map {
    fn lane(&self, slot: u16) -> Option<&Arc<Lane>> {
        let index = self.ranges.partition_point(|(_, last, _)| *last < slot);
        let (first, _, lane) = self.ranges.get(index)?;
        (*first <= slot).then_some(lane)
    }

    /// Whether every slot has a server, and all of them are so.
    fn all(&self, is_so: impl Fn(State) -> bool) -> bool {
        let covered: u32 =
            self.ranges.iter().map(|(first, last, _)| u32::from(last - first) + 1).sum();
        covered == u32::from(SLOTS) && self.ranges.iter().all(|(_, _, lane)| is_so(lane.state()))
    }
}

impl Cluster {
    /// Reads the map once; a cluster that is not there is found later.
    pub(super) async fn start(
        url: &StoreUrl,
        dialer: Arc<Dialer>,
        tally: Arc<Tally>,
    ) -> Result<Arc<Self>, ConnectError> {
        let cluster = Arc::new(Cluster {
            seeds: url.hosts.clone(),
            dialer,
            tally,
            lanes: Mutex::default(),
            map: RwLock::default(),
            stale: Arc::default(),
        });
        match cluster.refresh().await {
            Err(DialError::Refused(error)) => return Err(error),
            Err(DialError::Unreachable(text)) => {
                cluster.tally.set_last_error(Some(format!("the store is not there: {text}")));
            }
            Ok(()) => {}
        }
        let lanes: Vec<Arc<Lane>> = cluster.lanes().values().cloned().collect();
        for lane in lanes {
            lane.started().await?;
        }
        let keeping = keep_current(Arc::downgrade(&cluster), Arc::clone(&cluster.stale));
        cluster.dialer.runtime.spawn(keeping);
        Ok(cluster)
    }

    /// Who has a slot; `None` when nobody is known to.
    pub(in super::super) fn lane(&self, slot: u16) -> Option<Arc<Lane>> {
        self.map().lane(slot).cloned()
    }

    /// The lane to a server that another one named.
    pub(in super::super) fn lane_to(&self, address: &Address) -> Option<Arc<Lane>> {
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get(address) {
            return Some(Arc::clone(lane));
        }
        if lanes.len() >= MAX_LANES {
            return None;
        }
        let lane = Arc::new(Lane::start(
            Target::Fixed(address.clone()),
            Arc::clone(&self.dialer),
            Arc::clone(&self.tally),
            Some(Arc::clone(&self.stale)),
        ));
        lanes.insert(address.clone(), Arc::clone(&lane));
        Some(lane)
    }

    /// The map is not right: it is read again soon.
    pub(in super::super) fn is_stale(&self) {
        self.stale.notify_one();
    }

    pub(in super::super) fn is_up(&self) -> bool {
        self.map().all(|state| state == State::Up)
    }

    /// Whether the map leads to servers that are there.
    fn is_current(&self) -> bool {
        self.map().all(State::is_connected)
    }

    /// Asks the servers for the map, those first that are known to be there.
    async fn refresh(&self) -> Result<(), DialError> {
        let mut asked: Vec<Address> = Vec::new();
        asked.extend(self.known(State::is_connected));
        asked.extend(self.seeds.iter().cloned());
        asked.extend(self.known(|state| state == State::Down));
        let mut tried = BTreeSet::new();
        let mut trouble = DialError::Unreachable("it has no servers".into());
        for address in asked {
            if !tried.insert(address.clone()) {
                continue;
            }
            match self.read_map(&address).await {
                Ok(ranges) => {
                    self.adopt(ranges);
                    return Ok(());
                }
                Err(error) if !matches!(trouble, DialError::Refused(_)) => trouble = error,
                Err(_) => {}
            }
        }
        Err(trouble)
    }

    fn known(&self, is_so: impl Fn(State) -> bool) -> Vec<Address> {
        let lanes = self.lanes();
        let known = lanes.iter().filter(|(_, lane)| is_so(lane.state()));
        known.map(|(address, _)| address.clone()).collect()
    }

    async fn read_map(&self, address: &Address) -> Result<Vec<Range>, DialError> {
        let question = ["CLUSTER", "SLOTS"];
        let answer = self.dialer.ask_once(address, &self.dialer.login, &question).await;
        let answer = answer.map_err(|error| match error {
            // "This instance has cluster support disabled", in words that differ.
            DialError::Refused(ConnectError::Unusable(_)) => {
                DialError::Refused(ConnectError::NotCluster)
            }
            error => error,
        })?;
        match read_ranges(&answer, address) {
            // A server that was just started, or has forgotten the others.
            Some(ranges) if ranges.is_empty() => {
                Err(DialError::Unreachable("it serves no slots yet".into()))
            }
            Some(ranges) => Ok(ranges),
            None => {
                let text = "it does not answer CLUSTER SLOTS with a map";
                Err(DialError::Refused(ConnectError::Unusable(text.into())))
            }
        }
    }

    fn adopt(&self, mut ranges: Vec<Range>) {
        ranges.sort_unstable_by_key(|range| range.first);
        let kept: BTreeSet<Address> = ranges.iter().map(|range| range.primary.clone()).collect();
        let lanes = ranges
            .into_iter()
            .filter_map(|range| Some((range.first, range.last, self.lane_to(&range.primary)?)));
        let map = Arc::new(Map { ranges: lanes.collect() });
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = map;
        // One that is there but has no slots may just be being given some.
        let keep = |address: &Address, lane: &mut Arc<Lane>| {
            kept.contains(address) || lane.state() != State::Down
        };
        self.lanes().retain(keep);
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<Address, Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the map whenever it is stale, and while something is down. Ends with the cluster.
async fn keep_current(cluster: Weak<Cluster>, stale: Arc<Notify>) {
    let mut rests = Rests::new();
    loop {
        let is_current = match cluster.upgrade() {
            None => return,
            Some(cluster) => cluster.is_current(),
        };
        if is_current {
            rests.reset();
            stale.notified().await;
        }
        match cluster.upgrade() {
            None => return,
            // What is wrong is known to the lanes; here it is simply tried again.
            Some(cluster) => drop(cluster.refresh().await),
        }
        tokio::time::sleep(rests.next(false)).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stale.notify_one();
    }
}
