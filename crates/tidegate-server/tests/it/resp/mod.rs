//! The RESP front over sockets. What bytes come to is tested where it is decided, in
//! `src/fronts/resp/tests`; here is what takes a connection, a real client, or a real server.
//!
//! - `same.rs`: what clients of Redis are used to, held against a `redis-server`;
//! - `clients.rs`: redis-cli, redis-py, ioredis and redis-rs;
//! - `bounds.rs`: rude clients; `ends.rs`: secrets, TLS and the end; `shared.rs`: a store that nodes share.

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

/// A server that speaks RESP, on a free port.
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
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_nodelay(true).expect("an option");
        RespClient(stream)
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("it reads");
    }

    /// So many bytes, as text.
    #[track_caller]
    fn read(&mut self, len: usize) -> String {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("a reply");
        String::from_utf8(bytes).expect("UTF-8")
    }

    /// Sends, and expects these bytes.
    #[track_caller]
    fn expect_reply(&mut self, bytes: impl AsRef<[u8]>, expected: &str) {
        self.send(&bytes);
        assert_eq!(self.read(expected.len()), expected, "{}", bytes.as_ref().escape_ascii());
    }

    /// Everything until the other side closes.
    fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!("it was not closed: {error}"),
        }
        String::from_utf8(bytes).expect("UTF-8")
    }
}

/// Whether a server still answers.
#[track_caller]
fn assert_answers(server: &Server) {
    RespClient::connect(server.resp()).expect_reply("PING\r\n", "+PONG\r\n");
}
