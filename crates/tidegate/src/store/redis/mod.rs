//! The Redis store: state shared by many nodes.

mod codec;
mod counter;
mod names;
mod permits;
mod plan;
mod script;

use std::time::Duration;

use tidegate_core::{Limit, PermitId};

use super::PermitAct;
use crate::{Failure, Request, Store, StoreError, Verdict};

/// What is said to the server and how its replies are read, for tests and benchmarks
/// that talk to it themselves.
#[doc(hidden)]
pub mod wire {
    pub use super::counter::{
        Answer, Entry, MAX_TIMES, Quick, answers as counter_answers, call as counter_call,
        is_quick, verdict as quick_verdict,
    };
    pub use super::names::{Names, slot_key};
    pub use super::permits::{call as permit_call, was_held};
    pub use super::plan::{Answers, Mode, Part, Plan, Planned};
    pub use super::script::{Call, Script};
    pub use crate::store::PermitAct;
}

/// Where the store is and how it is used.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// `redis://`, `rediss://`, `redis-sentinel://` or `redis-cluster://`.
    pub url: String,
    /// How long a caller waits for an answer.
    pub timeout: Duration,
    /// What the names of all keys begin with.
    pub key_prefix: String,
    /// Whether denials are answered from memory until they end.
    pub deny_cache: bool,
}

/// What the store has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisStats {
    /// Whether it can be asked now.
    pub up: bool,
}

/// Keeps states in Redis or Valkey and decides on them there.
#[derive(Clone, Debug)]
pub struct RedisStore {}

/// Why a store cannot be used at all.
#[derive(Clone, Debug)]
pub struct ConnectError {}

impl RedisStore {
    /// Connects, and looks whether it is the kind of server the address says.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(_options: RedisOptions) -> Result<Self, ConnectError> {
        Ok(RedisStore {})
    }

    /// What it has done.
    pub fn stats(&self) -> RedisStats {
        RedisStats::default()
    }

    /// A number no permit has had.
    pub fn new_permit(&self) -> PermitId {
        PermitId(0)
    }

    /// Gives a permit back, or renews it; says whether it was held.
    pub(crate) async fn with_permit(
        &self,
        _key: &[u8],
        _limit: &Limit,
        _act: PermitAct,
    ) -> Result<bool, StoreError> {
        Err(Failure::Down.into())
    }
}

impl Store for RedisStore {
    async fn decide(&self, _request: &Request<'_>) -> Result<Verdict, StoreError> {
        Err(Failure::Down.into())
    }

    async fn reset(&self, _key: &[u8], _limit: &Limit) -> Result<bool, StoreError> {
        Err(Failure::Down.into())
    }
}
