//! Servers for one test each, on sockets of their own: no ports to share.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that ends with its owner.
pub struct Server {
    pub name: &'static str,
    child: Child,
    folder: PathBuf,
}

/// Runs a test on Redis and on Valkey.
pub fn on_each(test: impl Fn(&Server)) {
    let valkey = std::env::var("VALKEY_SERVER").unwrap_or_else(|_| "valkey-server".into());
    for (name, program) in [("redis", "redis-server"), ("valkey", &valkey)] {
        test(&Server::start(name, program));
    }
}

impl Server {
    fn start(name: &'static str, program: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = format!("tidegate-{name}-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).expect("a folder for the server");
        let child = Command::new(program)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", "socket"])
            .current_dir(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{program} does not start ({error}): run scripts/test, or set VALKEY_SERVER")
            });
        let server = Server { name, child, folder };
        let start = Instant::now();
        while server.try_connect().is_none() {
            assert!(start.elapsed() < PATIENCE, "{program} does not answer");
            thread::sleep(Duration::from_millis(5));
        }
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    pub fn connect(&self) -> redis::Connection {
        self.try_connect().expect("a server that has answered")
    }

    fn try_connect(&self) -> Option<redis::Connection> {
        let url = format!("redis+unix://{}", self.socket().display());
        let mut connection = redis::Client::open(url).ok()?.get_connection().ok()?;
        redis::cmd("PING").exec(&mut connection).ok()?;
        Some(connection)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
