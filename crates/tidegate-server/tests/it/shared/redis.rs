//! A real `redis-server` on a free port.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::served::{PATIENCE, wait_for};

/// Its password.
pub const PASSWORD: &str = "s3cr3t-p4ssw0rd";

/// One that runs; killed when dropped.
pub struct Redis {
    address: SocketAddr,
    child: Option<Child>,
}

impl Redis {
    /// Starts one and waits until it answers.
    pub fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let mut redis = Redis { address, child: None };
        redis.restart();
        redis
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
        let port = self.address.port().to_string();
        let args = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let child = Command::new("redis-server")
            .args(args)
            .args(["--requirepass", PASSWORD])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed (scripts/test does that; apt: redis-server)");
        self.child = Some(child);
        wait_for(|| (self.ask(&["PING"])? == "+PONG").then_some(()));
    }

    /// The first line of its answer; `None` if it does not answer.
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
        Some(answer.trim_end().to_owned())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
