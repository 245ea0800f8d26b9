//! Accepting connections, up to the bound of a front.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use super::log_throttle::Bursts;
use super::settings::FrontName;

/// How long accepting pauses after an error such as "too many open files", which
/// would otherwise come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A socket, and how many may come in through it.
pub struct Accepting {
    socket: TcpListener,
    front: FrontName,
    most: usize,
    places: Arc<Semaphore>,
    full: Bursts,
    failed: Bursts,
}

/// A connection's place on its front. Free again when dropped.
pub type Place = Option<OwnedSemaphorePermit>;

impl Accepting {
    /// Keeps at most `most` connections open; further ones wait in the kernel.
    pub fn new(socket: TcpListener, front: FrontName, most: usize) -> Self {
        let places = Arc::new(Semaphore::new(most));
        let (full, failed) = (Bursts::default(), Bursts::default());
        Accepting { socket, front, most, places, full, failed }
    }

    /// The next connection, and its place.
    pub async fn next(&self) -> (TcpStream, SocketAddr, Place) {
        let place = self.place().await;
        loop {
            match self.socket.accept().await {
                Ok((stream, address)) => {
                    // Answers are one small packet; waiting to fill it would only delay them.
                    let _ = stream.set_nodelay(true);
                    return (stream, address, place);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if let Some(suppressed) = self.failed.note(Instant::now()) {
                        let front = self.front.name();
                        warn!(front, %error, suppressed, "cannot accept connections; retrying");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits for a place.
    async fn place(&self) -> Place {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Some(place);
        }
        if let Some(suppressed) = self.full.note(Instant::now()) {
            warn!(
                front = self.front.name(),
                connections = self.most,
                suppressed,
                "connection limit reached: new connections wait until others close"
            );
        }
        // Never closed, so there always is one in the end.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }
}

/// Errors that say something about the peer and nothing about us.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
