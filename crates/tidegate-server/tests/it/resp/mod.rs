//! The RESP front over sockets. Decoding and commands are tested in `src/fronts/resp/tests`; these
//! tests need a connection, a real client or a real server.
//!
//! - `redis_parity.rs`: replies that clients of Redis expect, compared with a `redis-server`;
//! - `clients/`: redis-cli, redis-py, ioredis and redis-rs;
//! - `resource_limits.rs`: abusive clients; `lifecycle.rs`: secrets, TLS and shutdown;
//!   `shared_store.rs`: a store that nodes share.

mod clients;
mod lifecycle;
mod redis_parity;
mod resource_limits;
mod shared_store;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::server_harness::{PATIENCE, Server, Start};

const POLICIES: &str = "
policies:
  - name: login
    key: \"{client_ip}\"
    limits: [\"2 per 1h sliding-log\"]
  - name: api
    key: \"{client_ip}\"
    limits: [\"1000000 per 1h\"]
";

/// Configures a server with the RESP front on a free port.
fn start(test: &str) -> Start {
    Start::new(&format!("resp-{test}")).args(&["--resp", "127.0.0.1:0"])
}

fn run(test: &str) -> Server {
    start(test).config(POLICIES).run()
}

/// One connection.
struct RespClient(TcpStream);

impl RespClient {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_nodelay(true).expect("an option");
        RespClient(stream)
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("the peer reads");
    }

    /// Reads `len` bytes as text.
    #[track_caller]
    fn read(&mut self, len: usize) -> String {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("a reply");
        String::from_utf8(bytes).expect("UTF-8")
    }

    /// Sends bytes, and checks the reply.
    #[track_caller]
    fn expect_reply(&mut self, bytes: impl AsRef<[u8]>, expected: &str) {
        self.send(&bytes);
        assert_eq!(self.read(expected.len()), expected, "{}", bytes.as_ref().escape_ascii());
    }

    /// Reads everything until the server closes the connection.
    fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the connection was not closed: {error}"),
        }
        String::from_utf8(bytes).expect("UTF-8")
    }
}

/// Checks that a server still replies.
#[track_caller]
fn assert_answers(server: &Server) {
    RespClient::connect(server.resp()).expect_reply("PING\r\n", "+PONG\r\n");
}
