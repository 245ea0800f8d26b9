//! A measured server as a child process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::process::pinned_to;
use super::wire::{Budget, HttpResponse, Request, RequestKind, Verdict};

/// How long a server may take to answer for the first time.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long one answer may take on an idle server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts to reach a starting server.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The key of these requests, which no load uses.
const READINESS_KEY: u32 = 99_999_999;

/// A program and the files it needs to start.
#[derive(Clone, Debug)]
pub enum Program {
    Tidegate {
        program: PathBuf,
        config: PathBuf,
    },
    /// The axum handlers of `baseline.rs` and the file with their answers.
    Axum {
        answers: PathBuf,
    },
    Throttlecrab {
        program: PathBuf,
    },
}

impl Program {
    fn command(&self, address: SocketAddr) -> io::Result<Command> {
        let mut command = match self {
            Program::Tidegate { program, config } => {
                let mut command = Command::new(program);
                command.arg("serve").arg("--config").arg(config);
                command.args(["--http", &address.to_string(), "--admin", "off"]);
                command.args(["--grpc", "off", "--resp", "off"]);
                command
            }
            Program::Axum { answers } => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("http-baseline").arg(address.to_string()).arg(answers);
                command
            }
            Program::Throttlecrab { program } => {
                let mut command = Command::new(program);
                command.args(["--http", "--http-host", &address.ip().to_string()]);
                command.args(["--http-port", &address.port().to_string()]);
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

    /// Returns a kind of request that the program answers.
    pub fn kind(&self) -> RequestKind {
        match self {
            Program::Tidegate { .. } | Program::Axum { .. } => RequestKind::Check,
            Program::Throttlecrab { .. } => RequestKind::Throttle,
        }
    }
}

/// Returns whether an environment variable would change the measurement.
pub fn affects_measurement(name: &str) -> bool {
    ["TIDEGATE_", "THROTTLECRAB_", "RUST_LOG", "TOKIO_", "OTEL_"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// A running server. Dropping it ends the process.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    log: PathBuf,
    /// Time from starting the process to its first answer.
    pub first_answer: Duration,
}

impl Server {
    /// Starts a program on a free port and the given processor, and waits until it answers.
    /// Its stderr goes to a file in `directory`.
    pub fn start(
        program: &Program,
        processor: Option<usize>,
        directory: &Path,
    ) -> io::Result<Self> {
        let address = free_address()?;
        let log = directory.join(format!("{}.log", address.port()));
        let stderr = File::create(&log)?.into();
        Server::start_at(address, program, processor, log, stderr)
    }

    /// Starts a program whose log goes to `stderr`, and waits until it answers.
    pub fn start_logging_to(
        stderr: Stdio,
        program: &Program,
        processor: Option<usize>,
        directory: &Path,
    ) -> io::Result<Self> {
        let address = free_address()?;
        let log = directory.join(format!("{}.log", address.port()));
        Server::start_at(address, program, processor, log, stderr)
    }

    fn start_at(
        address: SocketAddr,
        program: &Program,
        processor: Option<usize>,
        log: PathBuf,
        stderr: Stdio,
    ) -> io::Result<Self> {
        let mut command = program.command(address)?;
        command.stderr(stderr);
        let start = Instant::now();
        let child = pinned_to(processor, || command.spawn())?.map_err(|error| {
            io::Error::other(format!("{:?} failed to start: {error}", command.get_program()))
        })?;
        let mut server = Server { child, address, log, first_answer: Duration::ZERO };
        let mut request = Request::render(program.kind(), Budget::Loose, address);
        request.set_key(READINESS_KEY);
        while !server.answers(&request) {
            if start.elapsed() > READY_TIMEOUT || server.child.try_wait()?.is_some() {
                return Err(
                    server.error_with_log(&format!("{:?} did not answer", command.get_program()))
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        server.first_answer = start.elapsed();
        Ok(server)
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the process has ended.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Creates an error that includes the last lines of the server's log.
    pub fn error_with_log(&self, problem: &str) -> io::Error {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(10)..].join("\n");
        io::Error::other(format!("{problem}; last lines of its log:\n{tail}"))
    }

    fn answers(&self, request: &Request) -> bool {
        let answered = Client::connect(self.address).and_then(|mut client| {
            client.send_request(request.bytes(), |response| Ok(response.status == 200))
        });
        answered.unwrap_or(false)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already; errors do not matter here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// A blocking connection for the few requests of a set-up.
pub struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Client { stream, bytes: Vec::new() })
    }

    /// Sends a request and passes the answer to `read`.
    pub fn send_request<T>(
        &mut self,
        request: &[u8],
        read: impl FnOnce(&HttpResponse<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.stream.write_all(request)?;
        self.bytes.clear();
        let mut piece = [0; 4096];
        loop {
            if let Some(response) = HttpResponse::parse(&self.bytes)? {
                return read(&response);
            }
            let len = match self.stream.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                len => len?,
            };
            if len == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ));
            }
            self.bytes.extend_from_slice(&piece[..len]);
        }
    }

    pub fn verdict(&mut self, request: &Request, kind: RequestKind) -> io::Result<Verdict> {
        self.send_request(request.bytes(), |response| response.verdict(kind))
    }
}
