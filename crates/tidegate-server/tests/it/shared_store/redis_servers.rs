//! Real servers on free ports: a `redis-server`, one that Sentinel watches, a Cluster.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::cli_harness::Files;
use crate::server_harness::{PATIENCE, wait_for};

/// Its password.
pub const PASSWORD: &str = "s3cr3t-p4ssw0rd";

/// One that runs; killed when dropped.
pub struct Redis {
    address: SocketAddr,
    program: &'static str,
    args: Vec<String>,
    child: Option<Child>,
}

/// A loopback address that nobody listens on.
pub fn free_address() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    free.local_addr().expect("an address")
}

impl Redis {
    /// Starts one and waits until it answers.
    pub fn start() -> Self {
        Redis::with(&[])
    }

    /// The same, with these arguments too.
    fn with(more: &[&str]) -> Self {
        let address = free_address();
        let port = address.port().to_string();
        let args = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let login = ["--requirepass", PASSWORD, "--masterauth", PASSWORD];
        let args = args.iter().chain(&login).chain(more).map(|arg| (*arg).to_owned());
        Redis::run(address, "redis-server", args.collect())
    }

    fn run(address: SocketAddr, program: &'static str, args: Vec<String>) -> Self {
        let mut redis = Redis { address, program, args, child: None };
        redis.restart();
        redis
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How tidegate is told of it.
    pub fn url(&self) -> String {
        format!("redis://:{PASSWORD}@{}", self.address)
    }

    /// How it is shown.
    pub fn shown(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Ends at once, as in a crash: nothing is saved.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    /// Starts it on the same port, empty.
    pub fn restart(&mut self) {
        self.kill();
        let child = Command::new(self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; scripts/test installs it", self.program));
        self.child = Some(child);
        wait_for(|| (self.ask(&["PING"])? == "+PONG").then_some(()));
    }

    /// Its answer: a text, or the first line; `None` if it does not answer.
    pub fn ask(&self, words: &[&str]) -> Option<String> {
        let stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut lines = BufReader::new(&stream);
        let mut answer = String::new();
        for command in [&["AUTH", PASSWORD], words] {
            let mut sent = format!("*{}\r\n", command.len());
            for word in command {
                sent += &format!("${}\r\n{word}\r\n", word.len());
            }
            (&stream).write_all(sent.as_bytes()).ok()?;
            answer.clear();
            lines.read_line(&mut answer).ok()?;
        }
        if let Some(length) = answer.strip_prefix('$').and_then(|rest| rest.trim().parse().ok()) {
            let mut text = vec![0; length];
            lines.read_exact(&mut text).ok()?;
            return String::from_utf8(text).ok();
        }
        Some(answer.trim_end().to_owned())
    }

    fn says(&self, words: &[&str], part: &str) {
        wait_for(|| self.ask(words)?.contains(part).then_some(()));
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Servers of which one can go.
pub struct Group {
    pub url: String,
    /// The one that is to go; another takes its place.
    pub primary: Redis,
    _others: Vec<Redis>,
    /// What Sentinel, Cluster and replicas write down.
    _files: Files,
}

impl Group {
    /// A primary, its replica, and a Sentinel that watches them.
    pub fn watched(test: &str) -> Self {
        let primary = Redis::start();
        let port = primary.address.port().to_string();
        let (files, address) = (Files::new(test), free_address());
        let replica = Redis::with(&["--replicaof", "127.0.0.1", &port, "--dir", &files.path("")]);
        replica.says(&["INFO", "replication"], "master_link_status:up");
        let lines = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor primary 127.0.0.1 {port} 1\n\
             sentinel auth-pass primary {PASSWORD}\n\
             sentinel down-after-milliseconds primary 500\n\
             sentinel failover-timeout primary 5000\n",
            address.port()
        );
        let file = files.write("sentinel.conf", lines);
        let sentinel = Redis::run(address, "redis-sentinel", vec![file]);
        sentinel.says(&["INFO", "sentinel"], "slaves=1");
        let url = format!("redis-sentinel://:{PASSWORD}@{address}/primary");
        Group { url, primary, _others: vec![replica, sentinel], _files: files }
    }

    /// A Cluster of three primaries, the first with a replica.
    pub fn cluster(test: &str) -> Self {
        let files = Files::new(test);
        let mut buses = Vec::new();
        let mut nodes: Vec<Redis> = (0..4)
            .map(|number| {
                let bus = free_address().port().to_string();
                let file = files.path(&format!("nodes-{number}.conf"));
                let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
                let own = ["--cluster-port", &bus, "--cluster-config-file", &file];
                let dir = ["--dir", &files.path("")];
                let node = Redis::with(&[&args[..], &own, &dir].concat());
                buses.push(bus);
                node
            })
            .collect();
        for (node, bus) in nodes.iter().zip(&buses).skip(1) {
            let port = node.address.port().to_string();
            nodes[0].says(&["CLUSTER", "MEET", "127.0.0.1", &port, bus], "OK");
        }
        let slots = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
        for (node, (first, last)) in nodes.iter().zip(slots) {
            node.says(&["CLUSTER", "ADDSLOTSRANGE", first, last], "OK");
        }
        let id = nodes[0].ask(&["CLUSTER", "MYID"]).expect("an id");
        nodes[3].says(&["CLUSTER", "REPLICATE", &id], "OK");
        nodes[3].says(&["INFO", "replication"], "master_link_status:up");
        for node in &nodes {
            for part in ["cluster_state:ok", "cluster_known_nodes:4", "cluster_size:3"] {
                node.says(&["CLUSTER", "INFO"], part);
            }
        }
        let url = format!("redis-cluster://:{PASSWORD}@{}", nodes[1].address);
        let primary = nodes.remove(0);
        Group { url, primary, _others: nodes, _files: files }
    }
}
