//! Permits: renewed while they are held, and then released.
//!
//! A background task does both. It ends when the sender that it listens to is dropped, so that
//! dropping a [`Permit`] needs no `await`, and releases it once. If that fails, the lease expires.
//!
//! The server's lease begins between the sending of a request and its answer, so it is counted
//! from the sending.

use std::time::{Duration, Instant};

use http::StatusCode;
use reqwest::Method;
use serde::Deserialize;
use tokio::sync::{oneshot, watch};

use super::answer::{Answer, Denial};
use super::{Client, Error};

/// A lease is renewed this many times before it expires, so that two renewals may fail.
const RENEW_AFTER: u32 = 3;
/// The shortest time between renewals.
const RENEW_AT_MOST_EVERY: Duration = Duration::from_millis(50);

/// The answer to a request for a permit.
#[derive(Debug)]
pub enum Taken {
    /// The permit is held.
    Held(Permit),
    /// The concurrency limit is reached, or a rate limit of the policy denied it.
    Denied(Denial),
}

impl Taken {
    /// Returns the permit, unless it was denied.
    pub fn held(self) -> Option<Permit> {
        match self {
            Taken::Held(permit) => Some(permit),
            Taken::Denied(_) => None,
        }
    }
}

/// A held permit. It is renewed in the background. Dropping it releases it, without waiting for the
/// server. If the runtime ends first, the lease expires.
#[derive(Debug)]
pub struct Permit {
    id: String,
    answer: Answer,
    lost: watch::Receiver<bool>,
    end: Option<oneshot::Sender<oneshot::Sender<Result<(), Error>>>>,
}

impl Permit {
    /// Returns the permit's id on the server.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the answer to the request for this permit.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Returns whether another client may hold the permit now: its lease has ended because it was
    /// not renewed in time, or the server no longer knows it, for example after a reset. A lost
    /// permit is neither renewed nor released.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Waits until the permit is lost. Never returns if it is not.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|lost| *lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Releases the permit and waits for the server's answer.
    ///
    /// # Errors
    ///
    /// The server did not confirm it. The permit's lease will expire.
    pub async fn release(mut self) -> Result<(), Error> {
        let (done, answered) = oneshot::channel();
        let sent = self.end.take().is_some_and(|end| end.send(done).is_ok());
        match answered.await {
            Ok(answered) if sent => answered,
            // The task has ended because the permit was lost.
            _ => Ok(()),
        }
    }

    /// `sent` is the time at which the request for the permit was sent.
    pub(super) fn hold(client: Client, held: Held, sent: Instant) -> Self {
        let (end, ended) = oneshot::channel();
        let (lost, is_lost) = watch::channel(false);
        let lease = Lease { ttl: Duration::from_millis(held.ttl_ms), sent };
        let keeper = Keeper { client, id: held.id.clone(), lost };
        tokio::spawn(keeper.keep(lease, ended));
        Permit { id: held.id, answer: held.answer, lost: is_lost, end: Some(end) }
    }
}

/// The server's response with a permit.
#[derive(Debug, Deserialize)]
pub(super) struct Held {
    id: String,
    ttl_ms: u64,
    #[serde(flatten)]
    answer: Answer,
}

struct Lease {
    ttl: Duration,
    /// When the request was sent that began the lease.
    sent: Instant,
}

impl Lease {
    fn left(&self) -> Duration {
        self.ttl.saturating_sub(self.sent.elapsed())
    }
}

struct Keeper {
    client: Client,
    id: String,
    lost: watch::Sender<bool>,
}

type Ended = oneshot::Receiver<oneshot::Sender<Result<(), Error>>>;

impl Keeper {
    async fn keep(self, mut lease: Lease, mut ended: Ended) {
        let every = (lease.ttl / RENEW_AFTER).max(RENEW_AT_MOST_EVERY);
        while !lease.left().is_zero() {
            tokio::select! {
                end = &mut ended => {
                    let released = self.release().await;
                    if let Ok(done) = end {
                        // The caller of `release` may have been dropped.
                        let _ = done.send(released);
                    }
                    return;
                }
                () = tokio::time::sleep(every.min(lease.left())) => {}
            }
            // A renewal would now last for a lease that nobody holds.
            if lease.left().is_zero() {
                break;
            }
            let sent = Instant::now();
            match tokio::time::timeout(lease.left(), self.send_request(Method::PUT)).await {
                Ok(Ok(())) => lease.sent = sent,
                Ok(Err(error)) if is_unknown(&error) => break,
                // The next renewal tries again, unless the lease has ended.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        self.lost.send_replace(true);
    }

    async fn release(&self) -> Result<(), Error> {
        match self.send_request(Method::DELETE).await {
            Err(error) if is_unknown(&error) => Ok(()),
            released => released,
        }
    }

    async fn send_request(&self, method: Method) -> Result<(), Error> {
        let path = format!("v1/permits/{}", self.id);
        let nothing = serde_json::Map::new();
        self.client.send(method, &path, &nothing, Duration::ZERO).await.map(drop)
    }
}

/// Returns whether the server does not know the permit.
fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Refused(problem) if problem.status == StatusCode::NOT_FOUND.as_u16())
}
