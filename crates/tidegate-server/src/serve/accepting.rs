//! Accepting connections, as many as there are places.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use super::listener::Bounds;

/// How long accepting pauses after an error such as "too many open files", which
/// would otherwise come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A socket, and how many may come in through it.
pub struct Accepting {
    socket: TcpListener,
    places: [Arc<Semaphore>; 2],
}

/// A connection's place, on its own front and among all. Free again when dropped.
pub type Place = [Option<OwnedSemaphorePermit>; 2];

impl Accepting {
    /// At most so many connections at once; further ones wait in the kernel.
    pub fn new(socket: TcpListener, bounds: &Bounds) -> Self {
        let own = Arc::new(Semaphore::new(bounds.connections));
        Accepting { socket, places: [own, Arc::clone(&bounds.shared)] }
    }

    /// The next connection, and its place.
    pub async fn next(&self) -> (TcpStream, SocketAddr, Place) {
        // Never closed, so there always is one in the end.
        let [own, shared] = &self.places;
        let own = Arc::clone(own).acquire_owned().await.ok();
        let place = [own, Arc::clone(shared).acquire_owned().await.ok()];
        loop {
            match self.socket.accept().await {
                Ok((stream, address)) => {
                    // Answers are one small packet; waiting to fill it would only delay them.
                    let _ = stream.set_nodelay(true);
                    return (stream, address, place);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Errors that say something about the peer and nothing about us.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
