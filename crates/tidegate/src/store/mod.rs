//! Stores keep state and decide.

mod memory;

use std::future::Future;

use tidegate_core::{Limit, PermitId};

use crate::{Check, CheckError, Verdict};

pub use memory::{MemoryOptions, MemoryStats, MemoryStore, OutOfMemory, WhenFull};
pub(crate) use memory::{PermitAct, Told};

/// All that is asked of a store at once.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is asked; all are charged or none.
    pub checks: &'a [Check<'a>],
    /// An idempotency id: the same request with the same id is charged once.
    pub id: Option<&'a [u8]>,
    /// The permit under which admitted `concurrency` limits are held.
    pub(crate) permit: Option<PermitId>,
}

impl<'a> Request<'a> {
    /// A request without id or permit.
    pub fn new(checks: &'a [Check<'a>]) -> Self {
        Request { checks, id: None, permit: None }
    }

    /// The same request under an idempotency id.
    #[must_use]
    pub fn with_id<I: AsRef<[u8]> + ?Sized>(self, id: &'a I) -> Self {
        Request { id: Some(id.as_ref()), ..self }
    }
}

/// Keeps states and decides on them, atomically and in one call.
///
/// There is no get and set in it: a store that only kept bytes could not decide
/// without races.
pub trait Store: Send + Sync + 'static {
    /// Decides all checks of a request: all are charged or none.
    fn decide(
        &self,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<Verdict, CheckError>> + Send;

    /// Forgets what a key has used of a limit; says whether there was anything.
    fn reset(
        &self,
        key: &[u8],
        limit: &Limit,
    ) -> impl Future<Output = Result<bool, CheckError>> + Send;
}
