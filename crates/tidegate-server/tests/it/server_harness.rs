//! A running server, and a client that can violate the protocol.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
pub use tidegate_testkit::{PATIENCE, wait_for};

use crate::cli_harness::Files;

/// Configures a server to start.
pub struct Start {
    files: Files,
    args: Vec<String>,
    env: Vec<(String, String)>,
    wrap: Option<Wrap>,
}

/// Returns the command to run, such as a shell around the given one.
type Wrap = Box<dyn Fn(&Command) -> Command>;

impl Start {
    /// Uses free ports and no config. `test` names the directory of its files.
    pub fn new(test: &str) -> Self {
        let args = ["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let off = ["--grpc", "off", "--resp", "off"];
        let args = args.into_iter().chain(off).map(str::to_owned);
        Start { files: Files::new(test), args: args.collect(), env: Vec::new(), wrap: None }
    }

    /// Starts the server without any flag. Addresses come from the environment.
    pub fn without_flags(mut self) -> Self {
        self.args = vec!["serve".into()];
        self
    }

    /// Adds this config.
    pub fn config(mut self, text: &str) -> Self {
        let path = self.files.write("tidegate.yaml", text);
        self.args.extend(["--config".into(), path]);
        self
    }

    /// Adds these arguments. An earlier flag of the same name is replaced.
    pub fn args(mut self, args: &[&str]) -> Self {
        for pair in args.chunks(2) {
            match self.args.iter().position(|arg| arg == pair[0]) {
                Some(at) if pair.len() == 2 => self.args[at + 1] = pair[1].into(),
                _ => self.args.extend(pair.iter().map(|arg| (*arg).to_owned())),
            }
        }
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs the command that `wrap` returns instead.
    pub fn wrapped(mut self, wrap: impl Fn(&Command) -> Command + 'static) -> Self {
        self.wrap = Some(Box::new(wrap));
        self
    }

    pub fn files(&self) -> &Files {
        &self.files
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
            command.env_remove(name);
        }
        command.args(&self.args).env("RUST_LOG", "info").envs(self.env.iter().cloned());
        command.env("RUST_BACKTRACE", "0");
        if let Some(wrap) = &self.wrap {
            command = wrap(&command);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Starts the server and waits for its addresses.
    pub fn run(self) -> Server {
        let log = File::create(self.files.path("stderr")).expect("a file");
        self.run_with_stderr(log)
    }

    /// Starts the server with this standard error, and waits for its addresses.
    pub fn run_with_stderr(self, stderr: impl Into<Stdio>) -> Server {
        let log = self.files.path("stderr");
        let child = self.command().stderr(stderr).spawn();
        let mut child = child.expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut server = Server {
            child,
            http: None,
            grpc: None,
            resp: None,
            admin: None,
            printed: String::new(),
            log,
            files: self.files,
        };
        // The last line printed is an example command, or the last front if HTTP is off.
        for line in lines.by_ref().map_while(Result::ok) {
            let mut words = line.split_whitespace();
            let address = |url: &str| url.split_once("://").and_then(|(_, at)| at.parse().ok());
            match (words.next(), words.next()) {
                (Some("http"), Some(url)) => server.http = address(url),
                (Some("grpc"), Some(url)) => server.grpc = address(url),
                (Some("resp"), Some(url)) => server.resp = address(url),
                (Some("admin"), Some(url)) => server.admin = address(url),
                _ => {}
            }
            server.printed += &line;
            server.printed.push('\n');
            // The example command is left out if there are no policies.
            let is_last_page = line.trim_start().starts_with("dashboard ");
            let done = line.trim_start().starts_with("curl ")
                || is_last_page && server.printed.contains(", 0 policies from ")
                || server.http.is_none() && server.admin.is_some();
            if done {
                return server;
            }
        }
        panic!("the server did not start: {}{}", server.printed, server.log());
    }

    /// Runs a server that must fail to start. Returns the exit code and standard error.
    pub fn fails(self) -> (i32, String) {
        let output = self.command().stderr(Stdio::piped()).output().expect("the binary starts");
        assert!(output.stdout.is_empty(), "{:?}", String::from_utf8_lossy(&output.stdout));
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        (output.status.code().expect("no signal"), stderr)
    }
}

/// A running server, which is killed on drop.
pub struct Server {
    child: Child,
    http: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    resp: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    pub printed: String,
    log: String,
    pub files: Files,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Returns a server whose output is not read, with its admin front at a known address.
    pub fn listening(child: Child, start: Start, admin: SocketAddr) -> Self {
        let log = start.files.path("stderr");
        Server {
            child,
            http: None,
            grpc: None,
            resp: None,
            admin: Some(admin),
            printed: String::new(),
            log,
            files: start.files,
        }
    }

    pub fn http(&self) -> SocketAddr {
        self.http.expect("HTTP is on")
    }

    pub fn grpc(&self) -> SocketAddr {
        self.grpc.expect("gRPC is on")
    }

    pub fn resp(&self) -> SocketAddr {
        self.resp.expect("RESP is on")
    }

    pub fn admin(&self) -> SocketAddr {
        self.admin.expect("the admin front is on")
    }

    /// Returns the contents of standard error so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log")
    }

    /// Waits until the log contains `part`, and returns the log.
    #[track_caller]
    pub fn logged(&self, part: &str) -> String {
        wait_for(|| Some(self.log()).filter(|log| log.contains(part)))
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().expect("kill");
        assert!(sent.success());
    }

    /// Waits for the exit, and returns the exit code.
    pub fn ended(&mut self) -> i32 {
        let code = wait_for(|| self.child.try_wait().expect("a child"));
        code.code().expect("no signal")
    }

    /// Returns the resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the status");
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a number");
        let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
        kib * 1024
    }

    /// Sends a request on a new connection.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut client = Client::connect(self.http());
        client.send(&request(method, path, headers, body));
        client.reply(method)
    }

    /// Posts JSON.
    pub fn post(&self, path: &str, body: &str) -> Reply {
        self.ask("POST", path, &[JSON], body)
    }

    pub fn check(&self, body: &str) -> Reply {
        self.post("/v1/check", body)
    }

    /// Gets a page of the admin front.
    pub fn admin_get(&self, path: &str) -> Reply {
        let mut client = Client::connect(self.admin());
        client.send(&request("GET", path, &[], ""));
        client.reply("GET")
    }

    /// Returns the value of a metric, by its name with labels.
    pub fn metric(&self, name: &str) -> Option<u64> {
        let page = self.admin_get("/metrics").text();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        Some(line.parse().expect("a number"))
    }
}

/// The headers of a request.
pub type Fields<'a> = &'a [(&'a str, &'a str)];

pub const JSON: (&str, &str) = ("content-type", "application/json");

/// Returns a request as bytes, to `localhost` unless the headers contain a host.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    if headers.iter().all(|(name, _)| *name != "host") {
        text += "host: localhost\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() || method == "POST" {
        text += &format!("content-length: {}\r\n", body.len());
    }
    (text + "\r\n" + body).into_bytes()
}

/// A connection to a server.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
        Client { stream }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the peer reads");
    }

    /// Sends bytes. Returns `false` once the connection is closed.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends bytes repeatedly until that fails, and returns the kind of the error.
    pub fn send_until_refused(&mut self, bytes: &[u8]) -> std::io::ErrorKind {
        loop {
            if let Err(error) = self.stream.write_all(bytes) {
                return error.kind();
            }
        }
    }

    /// Reads the next response. `method` is that of the request, because a response to HEAD has no
    /// body.
    #[track_caller]
    pub fn reply(&mut self, method: &str) -> Reply {
        read_reply(&mut self.stream, method)
    }

    /// Returns whether the server closes the connection without sending more.
    pub fn closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Reads one response.
#[track_caller]
pub fn read_reply(stream: &mut impl Read, method: &str) -> Reply {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("UTF-8");
    let mut lines = head.lines();
    let status = lines.next().expect("a status line").split(' ').nth(1).expect("a status");
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers: Vec<_> = headers.map(|(n, v)| (n.to_lowercase(), v.to_owned())).collect();
    let mut reply = Reply { status: status.parse().expect("a status"), headers, body: Vec::new() };
    let length = reply.header("content-length").map_or(0, |text| text.parse().expect("a length"));
    if method != "HEAD" {
        reply.body.resize(length, 0);
        stream.read_exact(&mut reply.body).expect("a body");
    }
    reply
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks a rejection: its status, its field and a part of its detail.
    #[track_caller]
    pub fn refuses(&self, status: u16, field: Option<&str>, part: &str) {
        let problem = self.json();
        assert_eq!(self.status, status, "{problem}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()));
        assert_eq!(
            (&problem["status"], problem["field"].as_str()),
            (&status.into(), field),
            "{problem}"
        );
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.contains(part), "{part:?} is not in: {detail}");
    }
}
