//! A proxy for Redis that can delay answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Forwards bytes with a configurable delay.
pub struct Proxy {
    pub address: SocketAddr,
    delay_ms: Arc<AtomicU64>,
    listening: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let delay_ms = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&delay_ms);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let delay = Arc::clone(&delay);
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(to).await else { return };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let ((client_in, client_out), (server_in, server_out)) =
                        (client.into_split(), server.into_split());
                    // Answers are delayed, requests are not.
                    tokio::spawn(forward(client_in, server_out, Arc::new(AtomicU64::new(0))));
                    forward(server_in, client_out, delay).await;
                });
            }
        });
        Ok(Proxy { address, delay_ms, listening })
    }

    /// Delays all later answers by this much.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Forwards bytes in order until either side ends, each piece after its delay.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay_ms: Arc<AtomicU64>) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(1_024);
    let reading = async move {
        let mut buffer = vec![0; 16 * 1_024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + Duration::from_millis(delay_ms.load(Relaxed));
            if sender.send((due, buffer[..read].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let writing = async move {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(reading, writing);
}
