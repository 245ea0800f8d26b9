//! A place that is held: renewed while it is held, given back at the end.
//!
//! A task of its own does both. It is told to end by dropping the sender it listens to, so
//! that giving back needs no `await` where a [`Permit`] is dropped, and happens once.
//! Whatever goes wrong, the lease ends by itself: that is what it is for.

use std::time::Duration;

use http::StatusCode;
use reqwest::Method;
use serde::Deserialize;
use tokio::sync::{oneshot, watch};

use super::answer::{Answer, Denial};
use super::{Client, Error};

/// The lease is renewed when this part of it has passed: two renewals may fail.
const RENEW_AFTER: u32 = 3;
/// Leases are not renewed more often than this.
const RENEW_AT_MOST_EVERY: Duration = Duration::from_millis(50);

/// What asking for a permit comes to.
#[derive(Debug)]
pub enum Taken {
    /// The place is held.
    Held(Permit),
    /// All places are taken, or a rate limit of the policy denied it.
    Denied(Denial),
}

impl Taken {
    /// The permit, if there is one.
    pub fn held(self) -> Option<Permit> {
        match self {
            Taken::Held(permit) => Some(permit),
            Taken::Denied(_) => None,
        }
    }
}

/// A held place. It is renewed in the background; dropping it gives it back, without
/// waiting for that. Where the runtime ends first, the lease ends it.
#[derive(Debug)]
pub struct Permit {
    id: String,
    answer: Answer,
    lost: watch::Receiver<bool>,
    end: Option<oneshot::Sender<oneshot::Sender<Result<(), Error>>>>,
}

impl Permit {
    /// Its name on the server.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the server said when it was taken.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Whether the server does not know it any more: it could not be renewed in time, or
    /// was reset. The place may be somebody else's now.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Waits until it is lost; for ever, if that does not happen.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|lost| *lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Gives it back, and waits until the server has it.
    ///
    /// # Errors
    ///
    /// The server did not take it back; its lease will end.
    pub async fn release(mut self) -> Result<(), Error> {
        let (done, answered) = oneshot::channel();
        let sent = self.end.take().is_some_and(|end| end.send(done).is_ok());
        match answered.await {
            Ok(answered) if sent => answered,
            // The task has ended, because the permit was lost: nothing is held.
            _ => Ok(()),
        }
    }

    pub(super) fn hold(client: Client, held: Held) -> Self {
        let (end, ended) = oneshot::channel();
        let (lost, is_lost) = watch::channel(false);
        let keeper = Keeper { client, id: held.id.clone(), lost };
        tokio::spawn(keeper.keep(Duration::from_millis(held.ttl_ms), ended));
        Permit { id: held.id, answer: held.answer, lost: is_lost, end: Some(end) }
    }
}

/// What the server sends with a permit.
#[derive(Debug, Deserialize)]
pub(super) struct Held {
    id: String,
    ttl_ms: u64,
    #[serde(flatten)]
    answer: Answer,
}

struct Keeper {
    client: Client,
    id: String,
    lost: watch::Sender<bool>,
}

type Ended = oneshot::Receiver<oneshot::Sender<Result<(), Error>>>;

impl Keeper {
    async fn keep(self, ttl: Duration, mut ended: Ended) {
        let every = (ttl / RENEW_AFTER).max(RENEW_AT_MOST_EVERY);
        loop {
            tokio::select! {
                end = &mut ended => {
                    let released = self.release().await;
                    if let Ok(done) = end {
                        // Whoever asked may have gone meanwhile.
                        let _ = done.send(released);
                    }
                    return;
                }
                () = tokio::time::sleep(every) => {
                    if !self.renew().await {
                        self.lost.send_replace(true);
                        return;
                    }
                }
            }
        }
    }

    /// Whether it is still held, as far as one knows: a failure is tried again at the next
    /// time.
    async fn renew(&self) -> bool {
        !matches!(self.ask(Method::PUT).await, Err(Error::Refused(problem))
            if problem.status == StatusCode::NOT_FOUND.as_u16())
    }

    async fn release(&self) -> Result<(), Error> {
        match self.ask(Method::DELETE).await {
            Err(Error::Refused(problem)) if problem.status == StatusCode::NOT_FOUND.as_u16() => {
                Ok(())
            }
            released => released,
        }
    }

    async fn ask(&self, method: Method) -> Result<(), Error> {
        let path = format!("v1/permits/{}", self.id);
        let nothing = serde_json::Map::new();
        self.client.send(method, &path, &nothing, Duration::ZERO).await.map(drop)
    }
}
