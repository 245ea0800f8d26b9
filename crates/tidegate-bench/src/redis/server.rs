//! A Redis server as a child process.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisError, RedisResult};

/// How long the server may take to answer for the first time.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts to connect to a starting server.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running server without persistence. Dropping it ends the process.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    /// Starts `program` on a free loopback port and waits until it answers.
    pub fn start(program: &Path) -> io::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Self::start_with(program, port, &[], &[])
    }

    /// Starts `program` on this port with additional settings and environment variables.
    pub fn start_with(
        program: &Path,
        port: u16,
        settings: &[&str],
        environment: &[(&str, String)],
    ) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no"]).args(settings);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().map_err(|error| {
            io::Error::other(format!(
                "{} failed to start: {error}; install redis-server, or set its path with --server",
                program.display()
            ))
        })?;
        let mut server = Server { child, port };
        let start = Instant::now();
        while server.connect().is_err() {
            if start.elapsed() > READY_TIMEOUT || server.child.try_wait()?.is_some() {
                return Err(io::Error::other(format!("{} did not answer", program.display())));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(server)
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connect(&self) -> RedisResult<Connection> {
        let mut connection = Client::open(self.url())?.get_connection()?;
        redis::cmd("PING").query::<()>(&mut connection)?;
        Ok(connection)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already; errors do not matter here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a number from `INFO`.
pub fn info(connection: &mut Connection, field: &str) -> RedisResult<f64> {
    let text: String = redis::cmd("INFO").arg("everything").query(connection)?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|value| value.trim().parse().ok());
    number.ok_or_else(|| RedisError::from((redis::ErrorKind::Client, "INFO lacks a field")))
}

/// Reads a text field from `INFO`.
pub fn info_text(connection: &mut Connection, field: &str) -> RedisResult<String> {
    let text: String = redis::cmd("INFO").arg("server").query(connection)?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line.unwrap_or("unknown").trim().to_owned())
}

/// Returns the processor time, in seconds, of the thread that runs commands.
pub fn processor_seconds(connection: &mut Connection) -> RedisResult<f64> {
    let user = info(connection, "used_cpu_user_main_thread")?;
    Ok(user + info(connection, "used_cpu_sys_main_thread")?)
}
