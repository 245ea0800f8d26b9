//! A server that runs for one test, and what is asked of it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::Files;

/// For something to happen. Only ever spent on a failure.
pub const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

pub struct Server {
    child: Child,
    pub http: String,
    pub admin: String,
    pub config: String,
    log: String,
}

impl Server {
    pub fn start(test: &str, config: &str) -> Server {
        Server::start_with(test, config, &[], &[])
    }

    pub fn start_with(
        test: &str,
        config: &str,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Server {
        let files = Files::new(&format!("admin-{test}"));
        let (config, log) = (files.write("tidegate.yaml", config), files.path("log"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["serve", "--config", &config, "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(args)
            .env_remove("RUST_LOG")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a log"))
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut address = |front: &str| {
            lines
                .by_ref()
                .map_while(Result::ok)
                .find_map(|line| {
                    Some(
                        line.trim().strip_prefix(front)?.trim().strip_prefix("http://")?.to_owned(),
                    )
                })
                .unwrap_or_else(|| {
                    panic!("no address of {front}: {}", fs::read_to_string(&log).expect("a log"))
                })
        };
        let (http, admin) = (address("http "), address("admin "));
        // Whatever else it prints has a reader.
        thread::spawn(move || lines.for_each(drop));
        Server { child, http, admin, config, log }
    }

    /// Asks the admin side with GET.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }

    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, headers: &[&str]) -> Answer {
        request(&self.admin, method, path, headers, "")
    }

    /// Asks for a decision; `attributes` is JSON.
    #[track_caller]
    pub fn check(&self, attributes: &str, headers: &[&str]) -> Value {
        let body = format!("{{\"attributes\":{attributes}}}");
        let headers = [&["content-type: application/json"], headers].concat();
        let answer = request(&self.http, "POST", "/v1/check", &headers, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    /// A login from this address; whether it was allowed.
    pub fn login(&self, client_ip: &str) -> bool {
        let attributes =
            format!(r#"{{"method":"POST","path":"/login","client_ip":"{client_ip}"}}"#);
        self.check(&attributes, &[])["allowed"].as_bool().expect("a boolean")
    }

    /// So many logins from this address.
    pub fn logins(&self, times: usize, client_ip: &str) {
        for _ in 0..times {
            self.login(client_ip);
        }
    }

    pub fn signal(&self, name: &str) {
        let kill = format!("kill -s {name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
    }

    /// Its exit code, once it has ended by itself.
    pub fn ended(mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("-- {}\n{}", self.log, self.log());
        }
    }
}

pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// A header's value; names are in lower case.
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        let value = lines.filter(|(known, _)| *known == name).map(|(_, value)| value).next();
        value.unwrap_or_else(|| panic!("no {name} in: {}", self.headers))
    }
}

/// A connection with a request on its way.
#[track_caller]
pub fn send(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let lines: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{lines}content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("a request");
    stream.write_all(body.as_bytes()).expect("a request");
    stream
}

#[track_caller]
pub fn request(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    let mut bytes = Vec::new();
    let read = send(address, method, path, headers, body).read_to_end(&mut bytes);
    if let Err(error) = read {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{method} {path}: {error}");
    }
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (headers, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("cut off: {text}"));
    let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer {
        status: status.unwrap_or_else(|| panic!("no status: {headers}")),
        headers: headers.replace("\r\n", "\n"),
        body: body.to_owned(),
    }
}

#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "this never happened: {what}");
        thread::sleep(PAUSE);
    }
}
