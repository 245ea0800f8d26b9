//! The end: unready first, then no new connections, then what is on its way is
//! finished, then out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::connections::{ConnCommand, Connections};
use crate::admin::ServerState;

/// How long requests on their way may take to finish. Kubernetes kills 30 s after
/// it says stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection that was told to close now may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The signals a server listens to.
pub struct Signals {
    pub stop: Stop,
    pub hangup: Signal,
}

/// The signals that end it.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the operating system does not let it.
    pub fn new() -> io::Result<Self> {
        let stop = Stop {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        Ok(Signals { stop, hangup: signal(SignalKind::hangup())? })
    }
}

impl Stop {
    /// Ends with the first of them, by name.
    async fn come(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A front that is served: what accepts, and what it accepted.
type RunningFront = (JoinHandle<()>, Arc<Connections>);

/// Everything that is served.
pub struct RunningFronts {
    pub http: Option<RunningFront>,
    pub grpc: Option<RunningFront>,
    pub resp: Option<RunningFront>,
    pub admin: Option<RunningFront>,
    server_state: Arc<ServerState>,
}

impl RunningFronts {
    pub fn new(server_state: Arc<ServerState>) -> Self {
        RunningFronts { http: None, grpc: None, resp: None, admin: None, server_state }
    }

    /// Serves until a signal comes, then drains. A second signal ends the draining.
    pub async fn until(self, mut stop: Stop) {
        let signal = stop.come().await;
        self.server_state.set_ready(false);
        info!(signal, "draining: no new connections, requests on their way are finished");
        tokio::select! {
            () = self.drain() => {}
            signal = stop.come() => warn!(signal, "told again: ending at once"),
        }
    }

    /// The admin front goes last, so that probes see the server unready, not gone.
    async fn drain(self) {
        join_all([self.http, self.grpc, self.resp].into_iter().flatten().map(end)).await;
        join_all(self.admin.map(end)).await;
    }
}

/// Ends one front.
async fn end((acceptor, connections): RunningFront) {
    acceptor.abort();
    let _ = acceptor.await;
    connections.send_all(ConnCommand::Drain);
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.empty()).await.is_err() {
        warn!(connections = connections.len(), "out of patience: closing connections");
        connections.send_all(ConnCommand::Close);
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connections.empty()).await;
    }
}
