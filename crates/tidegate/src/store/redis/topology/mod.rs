//! Which server decides a key, and what happens when it is another one.
//!
//! One server or one primary behind Sentinels is one lane. A cluster has a lane for
//! each primary and follows redirects. A call is only ever sent again after an
//! answer that proves it was not carried out.

mod cluster;
mod sentinel;
mod slots;

use std::sync::Arc;
use std::time::Duration;

pub(super) use self::cluster::Cluster;
pub(super) use self::sentinel::Sentinels;
pub(super) use self::slots::slot_of;
use super::connection::Dialer;
use super::error::ConnectError;
use super::lane::{Answer, Lane, Manner, State, Target, Trouble, Work};
use super::names::slot_key;
use super::stats::Tally;
use super::url::{Kind, StoreUrl};
use crate::Failure;

/// How often one call is sent again. A slot that moves takes two redirects, and a
/// little patience when a call has several keys.
const MAX_RESENDS: u32 = 6;
/// What a call waits that has keys on both sides of a move, times how often it has.
const PATIENCE: Duration = Duration::from_millis(1);

/// The servers of a store.
#[derive(Clone)]
pub(super) enum Topology {
    One(Arc<Lane>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Connects; an error only if servers are there and will not do.
    pub(super) async fn start(
        url: &StoreUrl,
        dialer: Arc<Dialer>,
        tally: Arc<Tally>,
    ) -> Result<Self, ConnectError> {
        let target = match url.kind {
            Kind::Single => Target::Fixed(url.hosts[0].clone()),
            Kind::Sentinel => Target::Sentinel(Arc::new(Sentinels::new(url))),
            Kind::Cluster => {
                return Ok(Topology::Cluster(Cluster::start(url, dialer, tally).await?));
            }
        };
        let lane = Lane::start(target, dialer, tally, None);
        lane.started().await?;
        Ok(Topology::One(Arc::new(lane)))
    }

    /// Whether everything can be asked, and is answered.
    pub(super) fn is_up(&self) -> bool {
        match self {
            Topology::One(lane) => lane.state() == State::Up,
            Topology::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// A number that is equal for names that one call may have together.
    pub(super) fn slot(&self, name: &[u8]) -> u16 {
        match self {
            Topology::One(_) => 0,
            Topology::Cluster(_) => slot_of(slot_key(name)),
        }
    }

    /// Has work done on keys of one slot.
    pub(super) async fn ask(
        &self,
        slot: u16,
        work: impl Fn() -> Work,
        tally: &Tally,
    ) -> Result<Answer, Failure> {
        let (mut lane, mut manner) = (self.lane(slot)?, Manner::Together);
        for resends in 0..=MAX_RESENDS {
            if resends > 0 {
                Tally::add(&tally.resent, 1);
            }
            // A lane that ends answers nobody; what it had sent is lost.
            let answer = lane.submit(work(), manner)?.await.unwrap_or(LOST);
            (lane, manner) = match answer {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Failed(failure)) => {
                    self.suspect(&failure);
                    return Err(failure);
                }
                Err(Trouble::Moved(address)) => {
                    self.suspect(&Failure::Down);
                    (self.lane_to(&address)?, Manner::Alone)
                }
                Err(Trouble::Ask(address)) => (self.lane_to(&address)?, Manner::Asking),
                Err(Trouble::TryAgain) => {
                    // Alone it may pass at once.
                    tokio::time::sleep(PATIENCE * resends).await;
                    (self.lane(slot)?, Manner::Alone)
                }
            };
        }
        Err(Failure::Refused("TRYAGAIN: the slot of this key is being moved".into()))
    }

    fn lane(&self, slot: u16) -> Result<Arc<Lane>, Failure> {
        match self {
            Topology::One(lane) => Ok(Arc::clone(lane)),
            Topology::Cluster(cluster) => cluster.lane(slot).ok_or_else(|| {
                cluster.is_stale();
                Failure::Down
            }),
        }
    }

    fn lane_to(&self, address: &super::url::Address) -> Result<Arc<Lane>, Failure> {
        match self {
            // One server redirects nobody.
            Topology::One(_) => {
                Err(Failure::Refused("a redirect from a server in no cluster".into()))
            }
            Topology::Cluster(cluster) => cluster.lane_to(address).ok_or(Failure::Down),
        }
    }

    /// Somebody is not where they were: the map may have changed.
    fn suspect(&self, failure: &Failure) {
        if let (Topology::Cluster(cluster), Failure::Down) = (self, failure) {
            cluster.is_stale();
        }
    }
}

const LOST: Result<Answer, Trouble> = Err(Trouble::Failed(Failure::Lost));
