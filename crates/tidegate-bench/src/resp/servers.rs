//! Starts the servers and checks that they enforce limits.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisResult, Value, cmd};
use tempfile::TempDir;

use super::subjects::{ServerKind, Subject};
use crate::cli::RespArgs;
use crate::http::{LOOSE_LIMITS, pinned_to, programs};
use crate::redis::server::info;

/// How long a server may take to answer for the first time.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two attempts to connect to a starting server.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Limit of the tight policy, which is used to check that tidegate enforces limits.
const TIGHT: usize = 5;

/// Returns tidegate's policies: one with a loose limit, one with two of them, and a tight one.
fn policies() -> String {
    let tight = format!("{TIGHT} per 1h sliding-window");
    let all = [
        ("one-limit", &LOOSE_LIMITS[..1]),
        ("two-limits", &LOOSE_LIMITS),
        ("tight", &[tight.as_str()]),
    ];
    let policy = |(name, limits)| {
        format!("  - {{ name: {name}, key: \"{{client_ip}}\", limits: {limits:?} }}\n")
    };
    format!("policies:\n{}", all.map(policy).concat())
}

/// A running server. Dropping it ends the process.
pub struct Server {
    child: Child,
    pub server_kind: ServerKind,
    pub port: u16,
}

impl Server {
    /// Starts the server on a free port and the given processor, and waits until it answers.
    pub fn start(
        server_kind: ServerKind,
        args: &RespArgs,
        processor: Option<usize>,
        directory: &TempDir,
    ) -> io::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = command(server_kind, port, args, directory.path())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = pinned_to(processor, || command.spawn())?.map_err(|error| {
            io::Error::other(format!("{:?} failed to start: {error}", command.get_program()))
        })?;
        let mut server = Server { child, server_kind, port };
        let start = Instant::now();
        while server.connect().is_err() {
            if start.elapsed() > READY_TIMEOUT || server.child.try_wait()?.is_some() {
                let program = command.get_program();
                return Err(io::Error::other(format!("{program:?} did not answer")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(server)
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    fn connect(&self) -> RedisResult<Connection> {
        let mut connection =
            Client::open(format!("redis://127.0.0.1:{}", self.port))?.get_connection()?;
        cmd("PING").query::<()>(&mut connection)?;
        Ok(connection)
    }

    /// Checks that the server enforces limits: a tight limit admits exactly its number.
    pub fn verify(&self, subject: Subject) -> io::Result<()> {
        let mut connection = self.connect().map_err(io::Error::other)?;
        let (arguments, admitted): (&[&str], _) = match subject {
            Subject::Ping | Subject::Incr => return Ok(()),
            Subject::Check => (&["TG.CHECK", "tight", "proof"], 1),
            Subject::CheckTwoLimits => (&["TG.CHECK", "tight", "proof-2limits"], 1),
            Subject::ClThrottle => (&["CL.THROTTLE", "proof", "4", "1", "3600"], 0),
            Subject::Throttlecrab => (&["THROTTLE", "proof", "5", "1", "3600"], 1),
        };
        let mut count = 0;
        for _ in 0..2 * TIGHT {
            let mut command = redis::Cmd::new();
            command.arg(arguments);
            let reply: Vec<Value> = command.query(&mut connection).map_err(io::Error::other)?;
            count += usize::from(reply.first() == Some(&Value::Int(admitted)));
        }
        if count != TIGHT {
            let message = format!("{arguments:?} admitted {count} of a limit of {TIGHT}");
            return Err(io::Error::other(message));
        }
        Ok(())
    }

    /// Returns the number of keys that the server holds, if it reports it.
    pub fn keys(&self) -> io::Result<Option<f64>> {
        let mut connection = self.connect().map_err(io::Error::other)?;
        let keys = match self.server_kind {
            ServerKind::Tidegate => info(&mut connection, "tracked_keys"),
            ServerKind::Redis => cmd("DBSIZE").query(&mut connection),
            ServerKind::Throttlecrab => return Ok(None),
        };
        keys.map(Some).map_err(io::Error::other)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already; errors do not matter here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(
    server_kind: ServerKind,
    port: u16,
    args: &RespArgs,
    directory: &Path,
) -> io::Result<Command> {
    let port = port.to_string();
    Ok(match server_kind {
        ServerKind::Tidegate => {
            let program = args.tidegate.clone().map_or_else(programs::tidegate, Ok)?;
            let config = directory.join("tidegate.yaml");
            std::fs::write(&config, policies())?;
            let mut command = Command::new(program);
            let names = std::env::vars_os().map(|(name, _)| name);
            for name in names.filter(|name| name.to_string_lossy().starts_with("TIDEGATE_")) {
                command.env_remove(name);
            }
            command.arg("serve").arg("--config").arg(config);
            command.args(["--http", "off", "--grpc", "off", "--admin", "off"]);
            command.args(["--resp", &format!("127.0.0.1:{port}")]);
            command
        }
        ServerKind::Redis => {
            let mut command = Command::new(&args.server);
            command.args(["--bind", "127.0.0.1", "--port", &port, "--save", ""]);
            command
        }
        ServerKind::Throttlecrab => {
            let mut command = Command::new(programs::throttlecrab()?);
            command.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port]);
            command
        }
    })
}
