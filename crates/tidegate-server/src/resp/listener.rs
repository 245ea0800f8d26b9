//! Listening: connections in, conversations out.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::RespFront;
use super::connection::Conversation;
use super::session::Session;
use crate::admin::Front;
use crate::serve::{Accepting, Bounds, Connections, Entered, HANDSHAKE_TIMEOUT, Watched};

/// When a silent peer is asked whether it is still there, as in Redis: connections of a
/// pool are kept, those of a machine that has gone are not.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// What is served on one socket.
pub struct RespListener {
    pub socket: TcpListener,
    pub front: Arc<RespFront>,
    pub tls: Option<TlsAcceptor>,
    pub connections: Arc<Connections>,
    pub bounds: Bounds,
}

impl RespListener {
    /// Accepts until dropped. Connections live on.
    pub async fn run(self) {
        let ids = AtomicU64::new(1);
        let accepting = Accepting::new(self.socket, Front::Resp, self.bounds.connections);
        loop {
            let (stream, address, place) = accepting.next().await;
            let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
            let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
            let serving = Serving {
                session: Session::new(ids.fetch_add(1, Relaxed), &self.front),
                front: Arc::clone(&self.front),
                entered: self.connections.enter(),
                address,
            };
            let tls = self.tls.clone();
            let connected = self.front.facts.connected(Front::Resp);
            tokio::spawn(async move {
                serving.accept(stream, tls).await;
                drop((connected, place));
            });
        }
    }
}

/// One connection being served.
struct Serving {
    front: Arc<RespFront>,
    session: Session,
    entered: Entered,
    address: SocketAddr,
}

impl Serving {
    async fn accept(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        match tls {
            None => self.serve(stream).await,
            // Boxed, because it is large, and others should not have to make room for it.
            Some(tls) => Box::pin(self.accept_tls(stream, tls)).await,
        }
    }

    async fn accept_tls(self, stream: TcpStream, tls: TlsAcceptor) {
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => debug!(peer = %self.address, %error, "a TLS handshake failed"),
            Err(_) => debug!(peer = %self.address, "a TLS handshake took too long"),
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let marks = Arc::clone(self.entered.connection());
        let stream = Watched::new(stream, Arc::clone(&marks));
        let held = Conversation { front: self.front, stream, session: self.session, marks };
        if let Err(error) = held.hold().await {
            let expected = error.kind() == io::ErrorKind::ConnectionReset;
            debug!(peer = %self.address, %error, expected, "a connection ended early");
        }
    }
}
