//! A measured server as a child process.

use std::fs::File;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::load::{DOMAIN, ONE_LIMIT, TIGHT, TWO_LIMITS, connect, is_ok, send_request};
use crate::http::{LOOSE_LIMITS, affects_measurement, pinned_to};

/// How long a server may take to answer for the first time.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two attempts to reach a starting server.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The key of these requests, which no load uses.
const READINESS_KEY: u32 = 99_999_999;

/// A limit that [`PROBES`] requests exhaust.
const TIGHT_LIMIT: usize = 5;
/// Requests for one key in the check that a server enforces limits.
const PROBES: usize = 10;

/// A program and the files it needs to start.
#[derive(Clone, Debug)]
pub enum Program {
    Tidegate { program: PathBuf, config: PathBuf },
    Tonic,
}

/// Returns tidegate's config: one of six policies matches, as in `http`.
pub fn config() -> String {
    let mut text = String::from("policies:\n");
    for other in ["login", "search", "upload"] {
        text += &format!(
            "  - {{ name: {other}, match: {{ domain: {other}, descriptors: [remote_address] }}, \
             key: \"{{descriptor:remote_address}}\", limits: [\"100 per 1m\"] }}\n"
        );
    }
    let tight = format!("{TIGHT_LIMIT} per 1h sliding-window");
    for (entry, limits) in [
        (TIGHT, &[tight.as_str()][..]),
        (ONE_LIMIT, &LOOSE_LIMITS[..1]),
        (TWO_LIMITS, &LOOSE_LIMITS),
    ] {
        text += &format!(
            "  - {{ name: {entry}, match: {{ domain: {DOMAIN}, descriptors: [{entry}] }}, \
             key: \"{{descriptor:{entry}}}\", limits: {limits:?} }}\n"
        );
    }
    text
}

impl Program {
    fn command(&self, address: SocketAddr) -> io::Result<Command> {
        let mut command = match self {
            Program::Tidegate { program, config } => {
                let mut command = Command::new(program);
                command.arg("serve").arg("--config").arg(config);
                command.args(["--grpc", &address.to_string()]);
                command.args(["--http", "off", "--resp", "off", "--admin", "off"]);
                command
            }
            Program::Tonic => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("grpc-baseline").arg(address.to_string());
                command
            }
        };
        let names = std::env::vars_os().map(|(name, _)| name);
        for name in names.filter(|name| affects_measurement(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command)
    }
}

/// A running server. Dropping it ends the process.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    log: PathBuf,
}

impl Server {
    /// Starts a program on a free port and the given processor, and waits until it answers.
    /// Its stderr goes to a file in `directory`.
    pub fn start(
        program: &Program,
        processor: Option<usize>,
        directory: &Path,
    ) -> io::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = directory.join(format!("{}.log", address.port()));
        let mut command = program.command(address)?;
        command.stderr(File::create(&log)?);
        let start = Instant::now();
        let child = pinned_to(processor, || command.spawn())??;
        let mut server = Server { child, address, log };
        while !server.answers() {
            if start.elapsed() > READY_TIMEOUT || server.child.try_wait()?.is_some() {
                return Err(
                    server.error_with_log(&format!("{:?} did not answer", command.get_program()))
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(server)
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Checks that the server enforces limits: a tight limit admits exactly its number per key.
    pub fn verify(&self) -> io::Result<()> {
        let address = self.address;
        let admitted = block_on(async move {
            let mut client = connect(address).await?;
            let mut admitted = [0, 0];
            for (key, admitted) in admitted.iter_mut().enumerate() {
                for _ in 0..PROBES {
                    let key = u32::try_from(key).unwrap_or_default();
                    *admitted += usize::from(is_ok(&send_request(&mut client, TIGHT, key).await?));
                }
            }
            Ok(admitted)
        })?;
        if admitted != [TIGHT_LIMIT; 2] {
            return Err(self.error_with_log(&format!(
                "a limit of {TIGHT_LIMIT} admitted {admitted:?} of {PROBES}"
            )));
        }
        eprintln!("a limit of {TIGHT_LIMIT} admitted {TIGHT_LIMIT} of {PROBES} requests");
        Ok(())
    }

    fn answers(&self) -> bool {
        let address = self.address;
        let response = block_on(async move {
            send_request(&mut connect(address).await?, ONE_LIMIT, READINESS_KEY).await
        });
        response.is_ok_and(|response| is_ok(&response))
    }

    /// Creates an error that includes the last lines of the server's log.
    fn error_with_log(&self, problem: &str) -> io::Error {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(10)..].join("\n");
        io::Error::other(format!("{problem}; last lines of its log:\n{tail}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already; errors do not matter here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn block_on<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work)
}
