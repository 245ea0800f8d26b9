//! An application, tidegate and a gateway, started as users start them: the real programs, with the
//! configurations in `examples/gateways`.
//!
//! Every process has a process group, which is killed by its id when the test ends, also when it
//! fails. In that case the logs of the processes are shown.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use tidegate_testkit::{eventually, free_port};

use super::http_client::{Application, Request, Response, connect};
use crate::cli_harness::Files;

/// The number of bytes of a log that a failure shows.
const LOG_TAIL_BYTES: usize = 4_000;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/gateways");

/// Whether requests pass while tidegate does not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    Open,
    Closed,
}

/// How a gateway is started, and how it differs from the others.
pub struct Gateway {
    pub program: &'static str,
    /// The config files below `examples/gateways`, fail-open and fail-closed.
    pub open: &'static [&'static str],
    pub closed: &'static [&'static str],
    /// `{config}` is the first of those files. The working directory contains them.
    pub arguments: &'static [&'static str],
    /// Where the `RateLimit` fields of an admitted request are visible.
    pub fields: Fields,
    /// Whether a denial has tidegate's body, or one that the gateway wrote.
    pub body_passes: bool,
    /// The status that clients get while it fails closed.
    pub closed_status: u16,
    /// Whether that response is an `application/problem+json` with Retry-After.
    pub closed_problem: bool,
    /// Whether it gives up on an unresponsive tidegate within a second, when it fails closed.
    pub closed_hurries: bool,
    /// The front that the gateway uses.
    pub checked_over: CheckedOver,
}

/// The front that a gateway uses, and with it the config of tidegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedOver {
    Http,
    Grpc,
    /// gRPC, with `--as-envoy-ratelimit`.
    GrpcAsEnvoyRatelimit,
}

impl CheckedOver {
    /// Returns the config below `examples/gateways`.
    fn config(self) -> &'static str {
        match self {
            CheckedOver::Http => "tidegate.yaml",
            CheckedOver::Grpc => "envoy/tidegate.yaml",
            CheckedOver::GrpcAsEnvoyRatelimit => {
                "../../crates/tidegate-server/tests/it/gateways/scenarios/limits.yaml"
            }
        }
    }

    /// Returns the port of tidegate in the examples.
    fn port(self) -> u16 {
        match self {
            CheckedOver::Http => 8080,
            CheckedOver::Grpc | CheckedOver::GrpcAsEnvoyRatelimit => 8081,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    ToClient,
    ToApplication,
}

/// The application, tidegate and the gateway, running.
pub struct GatewaySetup {
    pub application: Application,
    gateway: Process,
    pub tidegate: Tidegate,
    port: u16,
}

impl GatewaySetup {
    /// Starts all three. `more` is appended to the policies of the example.
    pub fn start(gateway: &Gateway, fails: Fails, test: &str, more: &str) -> GatewaySetup {
        let program = installed(gateway.program);
        let files = Files::new(&format!("{}-{:?}-{test}", gateway.program, gateway.checked_over));
        let application = Application::start();
        let port = free_port();
        let tidegate = Tidegate::start(&files, gateway.checked_over, more);
        let ports = [
            (8000, port),
            (8001, free_port()),
            (gateway.checked_over.port(), tidegate.port),
            (3000, application.port),
        ];
        let paths = if fails == Fails::Open { gateway.open } else { gateway.closed };
        let names: Vec<_> = paths.iter().map(|path| copy_example(&files, path, &ports)).collect();
        let mut command = Command::new(program);
        command.args(gateway.arguments.iter().map(|text| text.replace("{config}", &names[0])));
        // The gateway keeps its data in the directory of the test.
        let home = files.path("");
        command.current_dir(&home).env("HOME", &home).env("XDG_DATA_HOME", &home);
        let process = Process::start(command, &files.path("gateway.log"));
        let mut setup = GatewaySetup { application, gateway: process, tidegate, port };
        setup.gateway_answers();
        setup
    }

    #[track_caller]
    pub fn send(&self, request: &Request<'_>) -> Response {
        self.try_send(request).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_send(&self, request: &Request<'_>) -> io::Result<Response> {
        request.send(self.port)
    }

    /// Opens a connection from this client to the gateway.
    pub fn connect(&self, from: Ipv4Addr) -> TcpStream {
        connect(from, self.port).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until a request that no policy matches passes.
    fn gateway_answers(&mut self) {
        let port = self.port;
        let request = Request {
            from: Ipv4Addr::LOCALHOST,
            method: "GET",
            target: b"/ready",
            host: "localhost",
            headers: &[],
            body: "",
        };
        self.gateway.until("answers", || {
            request.send(port).is_ok_and(|response| response.reached_application())
        });
    }
}

/// The server, which a test can pause, kill and restart.
pub struct Tidegate {
    pub port: u16,
    admin: u16,
    /// The port of the metrics of envoyproxy/ratelimit.
    prometheus: u16,
    checked_over: CheckedOver,
    config: String,
    log: String,
    token: Option<&'static str>,
    process: Option<Process>,
}

impl Tidegate {
    fn start(files: &Files, checked_over: CheckedOver, more: &str) -> Tidegate {
        let example = format!("{EXAMPLES}/{}", checked_over.config());
        let example = fs::read_to_string(example).expect("the example");
        let mut tidegate = Tidegate {
            port: free_port(),
            admin: free_port(),
            prometheus: free_port(),
            checked_over,
            config: files.write("tidegate.yaml", example + more),
            log: files.path("tidegate.log"),
            token: None,
            process: None,
        };
        tidegate.restart();
        tidegate
    }

    /// Restarts with a token, which the gateway does not know.
    pub fn require_token(&mut self, token: &'static str) {
        self.token = Some(token);
        self.restart();
    }

    pub fn restart(&mut self) {
        self.kill();
        let address = format!("127.0.0.1:{}", self.port);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let admin = format!("127.0.0.1:{}", self.admin);
        command.args(["serve", "--resp", "off", "--admin", &admin]);
        let (http, grpc) = match self.checked_over {
            CheckedOver::Http => (&*address, "off"),
            CheckedOver::Grpc | CheckedOver::GrpcAsEnvoyRatelimit => ("off", &*address),
        };
        if self.checked_over == CheckedOver::GrpcAsEnvoyRatelimit {
            command.args(["--as-envoy-ratelimit", "--envoy-config", &self.config]);
            command.env("RESPONSE_DYNAMIC_METADATA", "true").env("USE_PROMETHEUS", "true");
            command.env("PROMETHEUS_ADDR", format!("127.0.0.1:{}", self.prometheus));
        } else {
            command.args(["--config", &self.config]);
        }
        command.args(["--http", http, "--grpc", grpc]);
        command.envs(self.token.map(|token| ("TIDEGATE_TOKENS", token)));
        let mut process = Process::start(command, &self.log);
        process.until("listens", || TcpStream::connect(&*address).is_ok());
        self.process = Some(process);
    }

    /// Returns the number of counted decisions of a policy. Requests of 0 hits are not counted.
    pub fn decisions(&self, policy: &str) -> u64 {
        self.decisions_with(&format!("policy=\"{policy}\""))
    }

    /// Returns the number of counted decisions of all policies.
    pub fn charges(&self) -> u64 {
        self.decisions_with("")
    }

    /// Returns the metrics of envoyproxy/ratelimit.
    pub fn prometheus_page(&self) -> String {
        metrics(self.prometheus)
    }

    fn decisions_with(&self, label: &str) -> u64 {
        let metrics = metrics(self.admin);
        let lines = metrics.lines().filter(|line| line.starts_with("tidegate_decisions_total{"));
        let counts = lines.filter(|line| line.contains(label));
        counts
            .map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect(line))
            .sum()
    }

    /// Pauses the process, which stays connected but does not respond.
    pub fn freeze(&self) {
        let process = self.process.as_ref().expect("a running process");
        assert!(process.signal("STOP"));
        // Threads stop one by one, and one that still runs could respond.
        eventually("all threads are stopped", || process.threads().all(|state| state == b'T'));
    }

    pub fn kill(&mut self) {
        self.process = None;
    }
}

/// Gets the page of metrics at this port.
fn metrics(port: u16) -> String {
    let request = Request {
        from: Ipv4Addr::LOCALHOST,
        method: "GET",
        target: b"/metrics",
        host: "localhost",
        headers: &[],
        body: "",
    };
    request.send(port).expect("metrics").body
}

/// A process that is killed on drop.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(mut command: Command, log: &str) -> Process {
        let file = File::create(log).expect("a log");
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a log"))
            .stderr(file)
            .env("RUST_BACKTRACE", "0")
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process { child, log: log.into() }
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        let log = self.log.display().to_string();
        eventually(&format!("{log}: the process {what}"), || {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{log}: the process has exited: {ended:?}");
            holds()
        });
    }

    /// Returns the states of the threads, as Linux reports them: `T` is stopped.
    fn threads(&self) -> impl Iterator<Item = u8> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("Linux");
        tasks.flatten().filter_map(|task| {
            let stat = fs::read(task.path().join("stat")).ok()?;
            // `id (name) state ...`. The name may contain any characters.
            let name_end = stat.iter().rposition(|byte| *byte == b')')?;
            stat.get(name_end + 2).copied()
        })
    }

    /// Sends the process group a signal, and returns whether that succeeded. Uses the `kill` of the
    /// shell, because the program of that name is not installed everywhere.
    fn signal(&self, name: &str) -> bool {
        let kill = format!("kill -s {name} -- -{}", self.child.id());
        let status = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The whole group is killed, because the workers of a gateway survive a killed parent.
        self.signal("KILL");
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            let log = fs::read(&self.log).unwrap_or_default();
            let tail = &log[log.len().saturating_sub(LOG_TAIL_BYTES)..];
            eprintln!("---- {}\n{}", self.log.display(), String::from_utf8_lossy(tail));
        }
    }
}

/// Returns the program, installed by `scripts/lib/gateways.sh` or in PATH.
fn installed(program: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = [target.join("gateways/bin")].into_iter().chain(std::env::split_paths(&path));
    let mut programs = directories.map(|directory| directory.join(program));
    programs.find(|program| program.is_file()).unwrap_or_else(|| {
        panic!("{program} is not installed: run ./scripts/test, which installs it")
    })
}

/// Copies an example with the port numbers replaced, and returns its name.
fn copy_example(files: &Files, path: &str, ports: &[(u16, u16)]) -> String {
    let text = fs::read_to_string(format!("{EXAMPLES}/{path}")).expect(path);
    let name = path.rsplit('/').next().expect("a name");
    files.write(name, with_ports(&text, ports));
    name.to_string()
}

/// Replaces complete numbers, in one pass, because a new number may contain an old one.
fn with_ports(text: &str, ports: &[(u16, u16)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = &rest[start..];
        let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let number = &digits[..length];
        let port = ports.iter().find(|(old, _)| number == old.to_string());
        out += &rest[..start];
        out += &port.map_or_else(|| number.to_string(), |(_, new)| new.to_string());
        rest = &digits[length..];
    }
    out + rest
}

#[test]
fn replaces_whole_ports_once() {
    let ports = [(8000, 28080), (8080, 23000)];
    assert_eq!(with_ports("a:8000 80800 8080\n", &ports), "a:28080 80800 23000\n");
    assert_eq!(with_ports("none", &ports), "none");
}
