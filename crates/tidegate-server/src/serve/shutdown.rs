//! Shutdown: readiness fails first, then no new connections are accepted, then requests in flight
//! are finished, then the process exits.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::connections::{ConnCommand, Connections};
use crate::server_state::ServerState;

/// How long requests in flight may take to finish. Kubernetes kills the process 30 s after SIGTERM.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// How long connections may take to end after the command to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The signals that the server handles.
pub struct Signals {
    pub stop: Stop,
    pub hangup: Signal,
}

/// The signals that stop the server.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn new() -> io::Result<Self> {
        let stop = Stop {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        Ok(Signals { stop, hangup: signal(SignalKind::hangup())? })
    }
}

impl Stop {
    /// Waits for the first of the signals and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The task that accepts connections to a front, and its open connections.
pub type RunningFront = (JoinHandle<()>, Arc<Connections>);

/// All fronts that are served.
pub struct RunningFronts {
    pub http: Option<RunningFront>,
    pub grpc: Option<RunningFront>,
    pub resp: Option<RunningFront>,
    pub admin: Option<RunningFront>,
    /// The page of metrics for Prometheus, with `--as-envoy-ratelimit`.
    pub prometheus: Option<RunningFront>,
    server_state: Arc<ServerState>,
}

impl RunningFronts {
    pub fn new(server_state: Arc<ServerState>) -> Self {
        RunningFronts {
            http: None,
            grpc: None,
            resp: None,
            admin: None,
            prometheus: None,
            server_state,
        }
    }

    /// Serves until a signal arrives, then drains. A second signal ends the process without
    /// draining.
    pub async fn until(self, mut stop: Stop) {
        let signal = stop.next().await;
        self.server_state.set_ready(false);
        info!(signal, "draining: refusing new connections, finishing requests in progress");
        tokio::select! {
            () = self.drain() => {}
            signal = stop.next() => warn!(signal, "second signal: exiting immediately"),
        }
    }

    /// Drains all fronts. The admin front is drained last, so that probes find the server not ready
    /// rather than unreachable while requests are in progress.
    async fn drain(self) {
        join_all([self.http, self.grpc, self.resp].into_iter().flatten().map(end)).await;
        join_all([self.admin, self.prometheus].into_iter().flatten().map(end)).await;
    }
}

/// Drains one front, and closes the connections that remain after [`DRAIN_TIMEOUT`].
async fn end((acceptor, connections): RunningFront) {
    acceptor.abort();
    let _ = acceptor.await;
    connections.send_all(ConnCommand::Drain);
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.empty()).await.is_err() {
        warn!(connections = connections.len(), "drain timeout reached: closing connections");
        connections.send_all(ConnCommand::Close);
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connections.empty()).await;
    }
}
