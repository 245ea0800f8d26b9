//! One connection to one server, and the thread that runs the tasks of a store.
//!
//! The socket is opened here and not by the client library, for three reasons. A closed connection
//! is noticed immediately and not at the next call. Certificates are always checked, with the
//! cryptography provider that is chosen here. And the library never reconnects or repeats a command
//! by itself, because a call whose outcome is unknown must not be charged twice.

use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use std::{io, thread};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, ServerError, Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use tokio_rustls::{TlsConnector, rustls};

use super::error::ConnectError;
use super::machine::Machine;
use super::script::{Script, ScriptCall};
use super::server_info::{DataMarks, ServerInfo};
use super::url::{Address, ClientTlsFiles, Deployment, Login};

/// The maximum number of commands that wait for the socket. It is larger than the number that can
/// be in flight, so that queueing a command never waits, and the order is kept.
const WRITE_BUFFER: usize = 16 * 1024;

/// Opens connections to the servers of a store.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) deployment: Deployment,
    pub(super) login: Login,
    pub(super) db: u32,
    pub(super) tls: Option<TlsConnector>,
    /// The timeout for all steps of connecting.
    pub(super) connect_timeout: Duration,
    /// The timeout for one answer.
    pub(super) timeout: Duration,
    /// A key name with the prefix of all states, to check the permissions of the user.
    pub(super) sample: Vec<u8>,
    /// Runs the tasks that communicate with servers.
    pub(super) runtime: Handle,
    /// Opens the sockets of a simulation.
    pub(super) machine: Machine,
}

/// The reason that connecting failed.
#[derive(Clone, Debug)]
pub(super) enum DialError {
    /// The server cannot be reached, or is not ready. Later it may be.
    Unreachable(Box<str>),
    /// The server was reached, and cannot be used.
    Refused(ConnectError),
}

/// A connection. It is closed when all its clones are dropped.
#[derive(Clone)]
pub(super) struct Connection {
    multiplexed: MultiplexedConnection,
    driver: Arc<Driver>,
    /// A hint for the error if the server closes the connection at the first command.
    hint: &'static str,
}

const TLS_HINT: &str = "if it uses TLS, write rediss:// or tls=true; or it is not a Redis server";
const SOCKET_HINT: &str = "check that the socket is that of Redis";
const CERTIFICATE_HINT: &str = "if it requires a client certificate, add cert=FILE and key=FILE";

/// Sends commands over a connection, without keeping the connection open.
#[derive(Clone)]
pub(super) struct CommandSender(MultiplexedConnection);

/// The reply to a command that was sent.
pub(super) struct PendingReply {
    reply: Pin<Box<dyn Future<Output = Result<Value, RedisError>> + Send>>,
    replied: Option<Result<Value, RedisError>>,
}

impl CommandSender {
    /// Sends commands in order. Each reply is delivered separately.
    pub(super) async fn send(&self, commands: Vec<Cmd>) -> Vec<PendingReply> {
        let begin = |command: Cmd| {
            let mut sender = self.0.clone();
            let reply = async move { sender.send_packed_command(&command).await };
            // With the cooperative budget of the task, only the first 128 commands would be sent.
            PendingReply { reply: Box::pin(tokio::task::unconstrained(reply)), replied: None }
        };
        let mut sent: Vec<PendingReply> = commands.into_iter().map(begin).collect();
        poll_fn(|context| {
            for sent in &mut sent {
                if let Poll::Ready(replied) = sent.reply.as_mut().poll(context) {
                    sent.replied = Some(replied);
                }
            }
            Poll::Ready(())
        })
        .await;
        sent
    }
}

impl PendingReply {
    /// Waits for the reply. An error of the server is a value, and only a failure of the connection
    /// is an error.
    pub(super) async fn reply(self) -> Result<Value, RedisError> {
        match self.replied {
            Some(replied) => replied,
            None => self.reply.await,
        }
    }
}

struct Driver {
    task: JoinHandle<()>,
    ended: watch::Receiver<()>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// Sends commands in one write. Returns a value for each, errors of the server included.
    async fn send(&mut self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.multiplexed.req_packed_commands(commands, 0, commands.len()).await
    }

    /// Returns a sender that does not keep the connection open.
    pub(super) fn sender(&self) -> CommandSender {
        CommandSender(self.multiplexed.clone())
    }

    /// Waits until the connection is closed.
    pub(super) async fn closed(&self) {
        let mut ended = self.driver.ended.clone();
        // `changed` fails when the sender is dropped, at the end of the driver.
        while ended.changed().await.is_ok() {}
    }

    /// Whether the server reports that it is a replica.
    pub(super) async fn is_replica(&mut self) -> bool {
        let info = self.send_command(&["INFO", "replication"]).await;
        matches!(info, Ok(Value::BulkString(text))
            if ServerInfo::read(&String::from_utf8_lossy(&text)).is_replica)
    }

    /// Reads what the server reports about the data of database `db`, in one round trip.
    pub(super) async fn data_marks(&mut self, db: u32) -> Result<DataMarks, DialError> {
        let mut commands = Pipeline::new();
        for section in DataMarks::SECTIONS {
            commands.cmd("INFO").arg(section);
        }
        let mut info = String::new();
        for value in self.send_all(&commands).await? {
            if let Value::BulkString(text) = value {
                info.push_str(&String::from_utf8_lossy(&text));
            }
        }
        Ok(DataMarks::read(&info, db))
    }

    async fn send_command(&mut self, command: &[&str]) -> Result<Value, DialError> {
        let mut commands = Pipeline::new();
        commands.cmd(command[0]).arg(&command[1..]);
        let values = self.send_all(&commands).await?;
        values.into_iter().next().ok_or(DialError::Unreachable("no answer".into()))
    }

    /// Loads all scripts, in one round trip.
    async fn load_scripts(&mut self) -> Result<(), DialError> {
        let mut commands = Pipeline::new();
        for command in script_load_commands() {
            commands.add_command(command);
        }
        self.send_all(&commands).await.map(drop)
    }

    async fn send_all(&mut self, commands: &Pipeline) -> Result<Vec<Value>, DialError> {
        let values = self.send(commands).await.map_err(|error| {
            DialError::Unreachable(
                format!("it closed the connection ({error}); {}", self.hint).into(),
            )
        })?;
        let error = values.iter().find_map(|value| match value {
            Value::ServerError(error) => Some(refused(error)),
            _ => None,
        });
        error.map_or(Ok(values), Err)
    }
}

impl Dialer {
    /// Connects to a server that decides. Checks its kind and its permissions, and loads the
    /// scripts.
    pub(super) async fn dial(
        &self,
        address: &Address,
    ) -> Result<(Connection, ServerInfo), DialError> {
        let dialing = async {
            let mut connection = self.connect(address, &self.login, self.db).await?;
            let server_info = self.check(&mut connection).await.map_err(unknown_command)?;
            connection.load_scripts().await.map_err(unknown_command)?;
            Ok((connection, server_info))
        };
        let (mut connection, server_info) = self.with_deadline(address, dialing).await?;
        // The server must also answer within the deadline of a call.
        match tokio::time::timeout(self.timeout, self.check_rights(&mut connection)).await {
            Ok(checked) => checked.map(|()| (connection, server_info)).map_err(unknown_command),
            Err(_) => Err(DialError::Unreachable(NO_ANSWER.into())),
        }
    }

    /// Sends one command over a separate connection, to a server that may be unable to decide.
    pub(super) async fn send_once(
        &self,
        address: &Address,
        login: &Login,
        command: &[&str],
    ) -> Result<Value, DialError> {
        let call = async { self.connect(address, login, 0).await?.send_command(command).await };
        self.with_deadline(address, call).await
    }

    /// Runs a future that begins with connecting, within the timeout. If it times out with TLS, the
    /// server is tried without TLS, because a plain server may wait for the end of the handshake,
    /// which it takes for a long command.
    async fn with_deadline<T>(
        &self,
        address: &Address,
        doing: impl Future<Output = Result<T, DialError>>,
    ) -> Result<T, DialError> {
        match tokio::time::timeout(self.connect_timeout, doing).await {
            Ok(done) => done,
            Err(_) if self.tls.is_some() && self.answers_without_tls(address).await => {
                Err(DialError::Refused(ConnectError::NoTls))
            }
            Err(_) => Err(DialError::Unreachable(NO_ANSWER.into())),
        }
    }

    /// Whether a server answers without TLS, even if with an error. No secret is sent to it.
    async fn answers_without_tls(&self, address: &Address) -> bool {
        let without_tls = Dialer { tls: None, ..self.clone() };
        let call = async {
            without_tls.connect(address, &Login::default(), 0).await?.send_command(&["PING"]).await
        };
        let reply = tokio::time::timeout(self.connect_timeout, call).await;
        matches!(reply, Ok(Ok(_) | Err(DialError::Refused(_))))
    }

    async fn check(&self, connection: &mut Connection) -> Result<ServerInfo, DialError> {
        let info = connection.send_command(&["INFO"]).await?;
        let Value::BulkString(text) = &info else {
            let text = "it does not answer INFO with text";
            return Err(DialError::Refused(ConnectError::Unusable(text.into())));
        };
        let server_info = ServerInfo::read(&String::from_utf8_lossy(text));
        server_info.check(self.deployment).map_err(DialError::Refused)?;
        if server_info.is_loading {
            return Err(DialError::Unreachable("it is still loading its data".into()));
        }
        Ok(server_info)
    }

    async fn check_rights(&self, connection: &mut Connection) -> Result<(), DialError> {
        let mut args = vec![self.sample.clone()];
        if self.deployment == Deployment::Cluster {
            args.push(b"ASKING".to_vec());
        }
        let call = ScriptCall { script: Script::Rights, keys: Vec::new(), args };
        let mut commands = Pipeline::new();
        commands.add_command(call.cmd());
        match connection.send_all(&commands).await?.first() {
            Some(Value::BulkString(command)) => {
                let command = String::from_utf8_lossy(command);
                let key = String::from_utf8_lossy(&self.sample);
                let text = format!("{command} is not permitted for keys like `{key}`");
                Err(DialError::Refused(ConnectError::NotPermitted(text.into())))
            }
            Some(Value::Array(unknown)) => match unknown.first() {
                Some(Value::BulkString(command)) => {
                    Err(unknown_command_error(&String::from_utf8_lossy(command)))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    async fn connect(
        &self,
        address: &Address,
        login: &Login,
        db: u32,
    ) -> Result<Connection, DialError> {
        #[cfg(feature = "unstable")]
        if let Machine::Simulated(machine) = &self.machine {
            let socket = machine.connect().await;
            let socket =
                socket.map_err(|error| DialError::Unreachable(error.to_string().into()))?;
            return log_in(begin(socket, TLS_HINT).await?, login, db).await;
        }
        if address.is_socket() {
            let socket = connect_unix(&address.host).await;
            let socket = socket.map_err(|reason| DialError::Unreachable(reason.into()))?;
            return log_in(begin(socket, SOCKET_HINT).await?, login, db).await;
        }
        let socket = TcpStream::connect((&*address.host, address.port)).await;
        let socket = socket.map_err(|error| DialError::Unreachable(error.to_string().into()))?;
        // `server.rs` assembles batches, so the kernel must not delay writes. A failure to set the
        // option costs only time.
        let _ = socket.set_nodelay(true);
        // Closing the connection discards the data that was not delivered. Otherwise the kernel
        // would continue to send it, and an acquire could arrive after its release.
        let _ = socket.set_zero_linger();
        let Some(tls) = &self.tls else {
            return log_in(begin(socket, TLS_HINT).await?, login, db).await;
        };
        let name = ServerName::try_from(String::from(&*address.host)).map_err(|_| {
            let text = format!("`{}` is not a valid name for a certificate", address.host);
            DialError::Refused(ConnectError::Tls(text.into()))
        })?;
        let secured = tls.connect(name, socket).await.map_err(|error| tls_error(&error))?;
        log_in(begin(secured, CERTIFICATE_HINT).await?, login, db).await
    }
}

/// Connects to a unix socket, or returns why not. What was written to it cannot be discarded when
/// it is closed, as over TCP. So a permit that is acquired and given up at the same moment may be
/// held until it expires.
#[cfg(unix)]
async fn connect_unix(path: &str) -> Result<tokio::net::UnixStream, String> {
    use std::os::unix::fs::FileTypeExt as _;

    tokio::net::UnixStream::connect(path).await.map_err(|error| {
        let is_other =
            std::fs::metadata(path).is_ok_and(|metadata| !metadata.file_type().is_socket());
        if is_other { "the path is not that of a socket".to_owned() } else { error.to_string() }
    })
}

#[cfg(not(unix))]
async fn connect_unix(_: &str) -> Result<TcpStream, String> {
    Err("this system has no unix sockets".to_owned())
}

/// The commands that load all scripts, one for each.
pub(super) fn script_load_commands() -> impl Iterator<Item = Cmd> {
    Script::ALL.into_iter().map(|script| {
        let mut command = Cmd::new();
        command.arg("SCRIPT").arg("LOAD").arg(script.source());
        command
    })
}

const NO_ANSWER: &str = "it does not answer in time";

/// Starts the task that drives a connection.
async fn begin<S>(stream: S, hint: &'static str) -> Result<Connection, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // `CLIENT SETINFO` would require one more permission, for little use.
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(WRITE_BUFFER);
    let (multiplexed, driver) = MultiplexedConnection::new_with_config(&silent, stream, config)
        .await
        .map_err(|error| DialError::Unreachable(error.to_string().into()))?;
    let (running, ended) = watch::channel(());
    let task = tokio::spawn(async move {
        driver.await;
        drop(running);
    });
    Ok(Connection { multiplexed, driver: Arc::new(Driver { task, ended }), hint })
}

/// Authenticates and selects the database. The client library is not used for this, because it
/// reports every error as a wrong password, without the reason.
async fn log_in(
    mut connection: Connection,
    login: &Login,
    db: u32,
) -> Result<Connection, DialError> {
    if let Some(password) = &login.password {
        let words = [Some("AUTH"), login.user.as_deref(), Some(password)];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        connection.send_command(&words).await.map_err(|error| login_error(error, password))?;
    }
    if db != 0 {
        connection.send_command(&["SELECT", &db.to_string()]).await?;
    }
    Ok(connection)
}

/// Replaces an error about an unknown command, because the server repeats the arguments in it.
fn unknown_command(error: DialError) -> DialError {
    let DialError::Refused(ConnectError::Unusable(text)) = &error else { return error };
    let quoted = text.strip_prefix("ERR unknown command ");
    let name = quoted.and_then(|quoted| quoted.split(['\'', '`']).nth(1));
    name.map_or_else(|| error.clone(), unknown_command_error)
}

fn unknown_command_error(command: &str) -> DialError {
    let text = format!("it does not know the command {command}: undo its `rename-command`");
    DialError::Refused(ConnectError::Unusable(text.into()))
}

/// Converts an error of `AUTH`. An error without a kind is about the credentials: no password is
/// set on the server, for example.
fn login_error(error: DialError, password: &str) -> DialError {
    let text = match error {
        DialError::Refused(ConnectError::Credentials(text) | ConnectError::Unusable(text)) => text,
        error => return error,
    };
    // A server that does not know the command repeats its arguments.
    let text = if text.contains(password) { "AUTH failed".into() } else { text };
    DialError::Refused(ConnectError::Credentials(text))
}

/// Converts an error of the TLS handshake. A failed handshake means a wrong server or certificate.
/// A broken socket does not.
fn tls_error(error: &std::io::Error) -> DialError {
    let broken = error.get_ref().and_then(|broken| broken.downcast_ref::<rustls::Error>());
    match broken {
        // The answer is not TLS.
        Some(rustls::Error::InvalidMessage(_)) => DialError::Refused(ConnectError::NoTls),
        Some(broken) => DialError::Refused(ConnectError::Tls(broken.to_string().into())),
        None => DialError::Unreachable(error.to_string().into()),
    }
}

/// The text of an error, as the server sent it.
pub(super) fn text_of(error: &ServerError) -> Box<str> {
    format!("{} {}", error.code(), error.details().unwrap_or("")).trim_end().into()
}

fn refused(error: &ServerError) -> DialError {
    let text = text_of(error);
    DialError::Refused(match error.code() {
        "NOAUTH" | "WRONGPASS" => ConnectError::Credentials(text),
        "NOPERM" => ConnectError::NotPermitted(text),
        // `NOSCRIPT`: the scripts that were just loaded are gone, by a failover or `SCRIPT FLUSH`.
        "LOADING" | "MASTERDOWN" | "BUSY" | "CLUSTERDOWN" | "NOSCRIPT" => {
            return DialError::Unreachable(text);
        }
        // Other clients may disconnect.
        "ERR" if text.contains("max number of clients") => return DialError::Unreachable(text),
        _ => ConnectError::Unusable(text),
    })
}

/// Reads the files and builds the TLS configuration for all connections.
pub(super) fn tls_connector(files: &ClientTlsFiles) -> Result<TlsConnector, ConnectError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::TlsFiles(error.to_string().into()))?
        .with_root_certificates(roots(files)?);
    let config = match &files.own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert)?;
            let own = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
            builder.with_client_auth_cert(chain, own).map_err(|error| unreadable(cert, &error))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The trusted certificate authorities: those in the given file, or else those of the system.
fn roots(files: &ClientTlsFiles) -> Result<RootCertStore, ConnectError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &files.ca {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| unreadable(path, &error))?;
        }
        return Ok(roots);
    }
    // Unusable certificates of the system are skipped, but it is an error if none is usable.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let text = "the system has no certificate authorities: name one with ?ca=FILE";
        return Err(ConnectError::TlsFiles(text.into()));
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, &error))?;
    let chain: Result<Vec<_>, _> = read.collect();
    let chain = chain.map_err(|error| unreadable(path, &error))?;
    if chain.is_empty() {
        return Err(unreadable(path, &"there is no certificate in it"));
    }
    Ok(chain)
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> ConnectError {
    ConnectError::TlsFiles(format!("{}: {reason}", path.display()).into())
}

/// A thread with a separate runtime. When this is dropped, the thread and its tasks end.
#[derive(Debug)]
pub(super) struct IoThread {
    runtime: Handle,
    running: Option<oneshot::Sender<()>>,
}

impl IoThread {
    /// Starts the thread. A simulation has a single thread, and runs the tasks on its runtime.
    pub(super) fn start(machine: &Machine) -> io::Result<Self> {
        if !matches!(machine, Machine::Real) {
            return Ok(IoThread { runtime: Handle::current(), running: None });
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, dropped) = oneshot::channel::<()>();
        thread::Builder::new().name("tidegate-redis".into()).spawn(move || {
            // An error is expected, because the sender is dropped and sends nothing.
            let _ = runtime.block_on(dropped);
            // This does not wait for a host name that is being resolved.
            runtime.shutdown_background();
        })?;
        Ok(IoThread { runtime: handle, running: Some(running) })
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Ends the thread after a last task, instead of when this is dropped.
    pub(super) fn end_after(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let running = self.running.take();
        self.runtime.spawn(async move {
            task.await;
            drop(running);
        });
    }
}
