//! The servers that faults are injected into.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::fault::Fault;
use super::proxy::Proxy;
use crate::BoxError;
use crate::redis::server::Server;

/// Delay of every answer from a slow server.
const SLOW: Duration = Duration::from_millis(200);
/// Change of the clock, in seconds.
const HOUR_S: i64 = 3_600;
/// How long Sentinel may take to promote the replica.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(30);

/// A Redis server with the additional processes that a fault needs.
pub struct RedisSetup {
    program: PathBuf,
    port: u16,
    server: Option<Server>,
    proxy: Option<Proxy>,
    sentinel: Option<Sentinel>,
    clock: Option<Clock>,
    /// When the server had lost its keys, or its clock was set.
    pub lost: Option<Instant>,
    directory: tempfile::TempDir,
}

impl RedisSetup {
    /// Starts the processes that a fault needs.
    pub async fn start(fault: Fault, program: &Path) -> Result<Self, BoxError> {
        let directory = tempfile::tempdir()?;
        let port = free_port()?;
        let mut setup = RedisSetup {
            program: program.to_owned(),
            port,
            server: None,
            proxy: None,
            sentinel: None,
            clock: None,
            lost: None,
            directory,
        };
        if matches!(fault, Fault::ClockBack | Fault::ClockForward) {
            setup.clock = Some(Clock::new(setup.directory.path())?);
        }
        setup.start_server()?;
        match fault {
            Fault::Slow => {
                let address = (Ipv4Addr::LOCALHOST, port).into();
                setup.proxy = Some(Proxy::start(address).await?);
            }
            Fault::FailedOver => {
                setup.sentinel = Some(Sentinel::start(program, port, setup.directory.path())?);
            }
            _ => {}
        }
        Ok(setup)
    }

    /// Returns the URL for the nodes.
    pub fn url(&self) -> String {
        match (&self.sentinel, &self.proxy) {
            (Some(sentinel), _) => format!("redis-sentinel://127.0.0.1:{}/main", sentinel.port),
            (None, Some(proxy)) => format!("redis://{}", proxy.address),
            (None, None) => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    fn start_server(&mut self) -> io::Result<()> {
        let settings: Vec<(&str, String)> =
            self.clock.as_ref().map(Clock::environment).unwrap_or_default();
        self.server = Some(Server::start_with(&self.program, self.port, &[], &settings)?);
        Ok(())
    }

    /// Prepares a fault that nodes do not notice yet.
    pub fn prepare(&self) -> Result<(), BoxError> {
        match &self.sentinel {
            // The stopped replica misses the last writes.
            Some(sentinel) => signal(sentinel.replica.pid(), Signal::STOP),
            None => Ok(()),
        }
    }

    /// Injects a fault, waits, and removes it.
    pub async fn inject(&mut self, fault: Fault, lasts: Duration) -> Result<(), BoxError> {
        match fault {
            Fault::Killed => {
                self.kill_server();
                tokio::time::sleep(lasts).await;
                self.start_server()?;
            }
            Fault::RestartedEmpty => {
                self.kill_server();
                self.start_server()?;
            }
            Fault::Stopped => {
                self.signal(Signal::STOP)?;
                tokio::time::sleep(lasts).await;
                self.signal(Signal::CONT)?;
            }
            Fault::Slow => {
                if let Some(proxy) = &self.proxy {
                    proxy.set_delay(SLOW);
                    tokio::time::sleep(lasts).await;
                    proxy.set_delay(Duration::ZERO);
                }
            }
            Fault::ScriptsFlushed => self.command(&["SCRIPT", "FLUSH"])?,
            Fault::FailedOver => self.fail_over().await?,
            Fault::MemoryFull => {
                self.command(&["CONFIG", "SET", "maxmemory", "1"])?;
                tokio::time::sleep(lasts).await;
                self.command(&["CONFIG", "SET", "maxmemory", "0"])?;
            }
            Fault::ClockBack => self.set_clock(-HOUR_S, lasts).await?,
            Fault::ClockForward => self.set_clock(HOUR_S, lasts).await?,
            // The fault is injected into a node instead.
            Fault::NodeKilled => {}
            Fault::Reconnects => {
                for _ in 0..10 {
                    self.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])?;
                    tokio::time::sleep(lasts / 10).await;
                }
            }
        }
        Ok(())
    }

    fn kill_server(&mut self) {
        self.server = None;
        self.lost = Some(Instant::now());
    }

    /// Changes the clock permanently: the fault is the change, so it is not undone.
    async fn set_clock(&mut self, by_s: i64, lasts: Duration) -> Result<(), BoxError> {
        self.clock.as_ref().ok_or("no clock to set")?.set(by_s)?;
        self.lost = Some(Instant::now());
        tokio::time::sleep(lasts).await;
        Ok(())
    }

    async fn fail_over(&mut self) -> Result<(), BoxError> {
        self.kill_server();
        let sentinel = self.sentinel.as_ref().ok_or("no sentinel")?;
        signal(sentinel.replica.pid(), Signal::CONT)?;
        let deadline = Instant::now() + FAILOVER_TIMEOUT;
        while !sentinel.replica_is_master()? {
            if Instant::now() > deadline {
                return Err("Sentinel did not promote the replica in time".into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    fn signal(&self, signal_kind: Signal) -> Result<(), BoxError> {
        signal(self.server.as_ref().ok_or("no server")?.pid(), signal_kind)
    }

    fn command(&self, arguments: &[&str]) -> Result<(), BoxError> {
        let mut connection = self.server.as_ref().ok_or("no server")?.connect()?;
        let mut command = redis::cmd(arguments[0]);
        command.arg(&arguments[1..]);
        Ok(command.query::<redis::Value>(&mut connection).map(drop)?)
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal_kind: Signal) -> Result<(), BoxError> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no such process")?;
    Ok(kill_process(pid, signal_kind)?)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A replica, and the Sentinel process that monitors it and its master.
struct Sentinel {
    port: u16,
    replica: Server,
    process: Child,
}

impl Sentinel {
    fn start(program: &Path, main: u16, directory: &Path) -> Result<Self, BoxError> {
        let main_port = main.to_string();
        // A replica writes the data it receives to a file first.
        let files = directory.to_string_lossy();
        let settings = [
            "--replicaof",
            "127.0.0.1",
            &main_port,
            "--repl-diskless-sync-delay",
            "0",
            "--dir",
            &files,
        ];
        let replica = Server::start_with(program, free_port()?, &settings, &[])?;
        let port = free_port()?;
        let config = directory.join("sentinel.conf");
        std::fs::write(
            &config,
            format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {main} 1\n\
                 sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
            ),
        )?;
        let mut command = Command::new(program);
        command.arg(&config).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null());
        let sentinel = Sentinel { port, replica, process: command.spawn()? };
        sentinel.wait_for_replica()?;
        Ok(sentinel)
    }

    fn wait_for_replica(&self) -> Result<(), BoxError> {
        let deadline = Instant::now() + FAILOVER_TIMEOUT;
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        while Instant::now() < deadline {
            if let Ok(mut connection) = client.get_connection()
                && let Ok(replicas) = redis::cmd("SENTINEL")
                    .arg("replicas")
                    .arg("main")
                    .query::<Vec<redis::Value>>(&mut connection)
                && !replicas.is_empty()
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("Sentinel did not find the replica in time".into())
    }

    /// Returns whether the replica was promoted and Sentinel reports it as the master.
    fn replica_is_master(&self) -> Result<bool, BoxError> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let leader: (String, u16) = redis::cmd("SENTINEL")
            .arg("get-master-addr-by-name")
            .arg("main")
            .query(&mut client.get_connection()?)?;
        let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut self.replica.connect()?)?;
        let leads = matches!(&role[..], [redis::Value::BulkString(role), ..] if role == b"master");
        Ok(leads && leader.1 == self.replica.port)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // The process may have ended already; errors do not matter here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A wall clock that can be changed for one server.
struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Compiles the library that replaces the time functions of a process.
    fn new(directory: &Path) -> Result<Self, BoxError> {
        let source = directory.join("clock.c");
        std::fs::write(&source, include_str!("clock.c"))?;
        let clock = Clock { library: directory.join("clock.so"), file: directory.join("clock") };
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&clock.library).arg(&source);
        if !compiler.status()?.success() {
            return Err("the clock library failed to compile".into());
        }
        clock.set(0)?;
        Ok(clock)
    }

    /// Changes the clock. The server sees the change immediately, because it maps the file.
    fn set(&self, by_s: i64) -> io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&self.file)?;
        file.write_all(&by_s.to_ne_bytes())
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("TIDEGATE_CLOCK", self.file.display().to_string()),
        ]
    }
}
