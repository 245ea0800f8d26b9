//! A running server, used through its admin front.

use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::thread;

use serde_json::Value;

use crate::server_harness::{self, Client, JSON, PATIENCE, Start, request};

pub struct Server(server_harness::Server);

impl Deref for Server {
    type Target = server_harness::Server;

    fn deref(&self) -> &server_harness::Server {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut server_harness::Server {
        &mut self.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Server {
    pub fn start(test: &str, config: &str) -> Server {
        Server::start_with(test, config, &[], &[])
    }

    pub fn start_with(test: &str, config: &str, args: &[&str], env: &[(&str, &str)]) -> Server {
        let start = Start::new(&format!("admin-{test}")).config(config).args(args);
        Server(env.iter().fold(start, |start, (name, value)| start.env(name, value)).run())
    }

    /// Sends a GET request to the admin front.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }

    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        ask(self.admin(), &request(method, path, headers, ""), method)
    }

    /// Sends a check; `attributes` is JSON.
    #[track_caller]
    pub fn check(&self, attributes: &str, headers: &[(&str, &str)]) -> Value {
        self.check_body(&format!("{{\"attributes\":{attributes}}}"), headers)
    }

    /// Sends a check with this body.
    #[track_caller]
    pub fn check_body(&self, body: &str, headers: &[(&str, &str)]) -> Value {
        let headers = [&[JSON], headers].concat();
        let answer = ask(self.http(), &request("POST", "/v1/check", &headers, body), "POST");
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    /// Sends a login from this address. Returns whether it was allowed.
    pub fn login(&self, client_ip: &str) -> bool {
        let attributes =
            format!(r#"{{"method":"POST","path":"/login","client_ip":"{client_ip}"}}"#);
        self.check(&attributes, &[])["allowed"].as_bool().expect("a boolean")
    }

    /// Sends `times` logins from this address.
    pub fn logins(&self, times: usize, client_ip: &str) {
        for _ in 0..times {
            self.login(client_ip);
        }
    }

    /// Opens a connection to the admin front, and sends these bytes.
    pub fn open(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.admin()).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        std::io::Write::write_all(&mut stream, bytes).expect("the peer reads");
        stream
    }
}

#[track_caller]
fn ask(address: SocketAddr, bytes: &[u8], method: &str) -> Answer {
    let mut client = Client::connect(address);
    client.send(bytes);
    let reply = client.reply(method);
    Answer { status: reply.status, body: reply.text(), headers: reply.headers }
}

pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Returns a header that must be present. Names are in lower case.
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| &**value).unwrap_or_else(|| panic!("no {name}: {:?}", self.headers))
    }
}
