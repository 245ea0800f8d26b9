//! One connection to one server, ready to decide.
//!
//! The socket is opened here and not by the client library, for three reasons: its
//! end is noticed at once and not at the next call; the certificate check has our
//! provider and no way around it; and nothing is replayed or reconnected behind
//! our back, because a call whose outcome is unknown must not count twice.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, ErrorKind, Pipeline, RedisConnectionInfo, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::error::ConnectError;
use super::facts::Facts;
use super::script::Script;
use super::url::{Address, Kind, Login};

/// Writes that wait for the socket. There are only a few in flight.
const WRITE_BUFFER: usize = 16;

/// How servers of a store are spoken to.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) kind: Kind,
    pub(super) login: Login,
    pub(super) db: u32,
    pub(super) tls: Option<TlsConnector>,
    /// For all of connecting.
    pub(super) connect_timeout: Duration,
    /// For one answer.
    pub(super) timeout: Duration,
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(super) enum DialError {
    /// It is not there, or not ready: later it may be.
    Unreachable(Box<str>),
    /// It is there, and will not do.
    Refused(ConnectError),
}

/// A connection; ends when all its clones are dropped.
#[derive(Clone)]
pub(super) struct Connection {
    multiplexed: MultiplexedConnection,
    driver: Arc<Driver>,
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
    /// Sends commands in one write; one value each, errors among them as values.
    pub(super) async fn send(&mut self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.multiplexed.req_packed_commands(commands, 0, commands.len()).await
    }

    /// Whether it has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.driver.task.is_finished()
    }

    /// Waits for its end.
    pub(super) async fn closed(&self) {
        let mut ended = self.driver.ended.clone();
        // An error is what is waited for: the sender is gone.
        while ended.changed().await.is_ok() {}
    }

    async fn ask(&mut self, command: &[&str]) -> Result<Value, DialError> {
        let mut commands = Pipeline::new();
        commands.cmd(command[0]).arg(&command[1..]);
        let values = self.ask_all(&commands).await?;
        values.into_iter().next().ok_or(DialError::Unreachable("no answer".into()))
    }

    /// Teaches the server all scripts, in one round trip.
    async fn teach(&mut self) -> Result<(), DialError> {
        let mut commands = Pipeline::new();
        add_scripts(&mut commands);
        self.ask_all(&commands).await.map(drop)
    }

    async fn ask_all(&mut self, commands: &Pipeline) -> Result<Vec<Value>, DialError> {
        let values = self.send(commands).await.map_err(|error| unreachable(&error))?;
        let error = values.iter().find_map(|value| match value {
            Value::ServerError(error) => Some(refused(error)),
            _ => None,
        });
        error.map_or(Ok(values), Err)
    }
}

impl Dialer {
    /// Connects to a server that decides: checks what it is, and teaches it the scripts.
    pub(super) async fn dial(&self, address: &Address) -> Result<(Connection, Facts), DialError> {
        let dialed = tokio::time::timeout(self.connect_timeout, async {
            let mut connection = self.connect(address, &self.login, self.db).await?;
            let facts = self.check(&mut connection).await?;
            connection.teach().await?;
            Ok((connection, facts))
        });
        let (mut connection, facts) =
            dialed.await.unwrap_or_else(|_| Err(DialError::Unreachable(NO_ANSWER.into())))?;
        // It must also be quick enough to be of use.
        match tokio::time::timeout(self.timeout, connection.ask(&["PING"])).await {
            Ok(pong) => pong.map(|_| (connection, facts)),
            Err(_) => Err(DialError::Unreachable(NO_ANSWER.into())),
        }
    }

    /// Asks one question of a server that need not decide, over a connection of its own.
    pub(super) async fn ask_once(
        &self,
        address: &Address,
        login: &Login,
        question: &[&str],
    ) -> Result<Value, DialError> {
        let asked = async { self.connect(address, login, 0).await?.ask(question).await };
        let asked = tokio::time::timeout(self.connect_timeout, asked).await;
        asked.unwrap_or_else(|_| Err(DialError::Unreachable(NO_ANSWER.into())))
    }

    async fn check(&self, connection: &mut Connection) -> Result<Facts, DialError> {
        let info = connection.ask(&["INFO"]).await?;
        let Value::BulkString(text) = &info else {
            let text = "it does not answer INFO with text";
            return Err(DialError::Refused(ConnectError::Unusable(text.into())));
        };
        let facts = Facts::read(&String::from_utf8_lossy(text));
        facts.check(self.kind).map_err(DialError::Refused)?;
        if facts.is_loading {
            return Err(DialError::Unreachable("it is still loading its data".into()));
        }
        Ok(facts)
    }

    async fn connect(
        &self,
        address: &Address,
        login: &Login,
        db: u32,
    ) -> Result<Connection, DialError> {
        let socket = TcpStream::connect((&*address.host, address.port)).await;
        let socket = socket.map_err(|error| DialError::Unreachable(error.to_string().into()))?;
        // Batches are gathered here, not by the kernel. Without it all still works.
        let _ = socket.set_nodelay(true);
        let Some(tls) = &self.tls else { return greet(socket, login, db).await };
        let name = ServerName::try_from(String::from(&*address.host)).map_err(|_| {
            let text = format!("`{}` is no name a certificate can have", address.host);
            DialError::Refused(ConnectError::Tls(text.into()))
        })?;
        let secured = tls.connect(name, socket).await.map_err(|error| tls_error(&error))?;
        greet(secured, login, db).await
    }
}

/// Adds the commands that teach a server all scripts: one each.
pub(super) fn add_scripts(commands: &mut Pipeline) {
    for script in Script::ALL {
        commands.cmd("SCRIPT").arg("LOAD").arg(script.source());
    }
}

const NO_ANSWER: &str = "it does not answer in time";

/// Logs in, and lets the connection run.
async fn greet<S>(stream: S, login: &Login, db: u32) -> Result<Connection, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut info = RedisConnectionInfo::default()
        .set_db(i64::from(db))
        // It would need one more right, and help nobody.
        .set_skip_set_lib_name();
    if let Some(user) = &login.user {
        info = info.set_username(user.as_str());
    }
    if let Some(password) = &login.password {
        info = info.set_password(password.as_str());
    }
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(WRITE_BUFFER);
    let (multiplexed, driver) = MultiplexedConnection::new_with_config(&info, stream, config)
        .await
        .map_err(|error| greeting_error(&error))?;
    let (running, ended) = watch::channel(());
    let task = tokio::spawn(async move {
        driver.await;
        drop(running);
    });
    Ok(Connection { multiplexed, driver: Arc::new(Driver { task, ended }) })
}

fn unreachable(error: &RedisError) -> DialError {
    DialError::Unreachable(error.to_string().into())
}

/// A broken handshake is the wrong kind of server or certificate; a broken socket is not.
fn tls_error(error: &std::io::Error) -> DialError {
    let text = error.to_string().into();
    match error.kind() {
        std::io::ErrorKind::InvalidData => DialError::Refused(ConnectError::Tls(text)),
        _ => DialError::Unreachable(text),
    }
}

fn greeting_error(error: &RedisError) -> DialError {
    match error.kind() {
        // The text is the server's; it does not repeat what it was sent.
        ErrorKind::AuthenticationFailed => {
            let text = error.detail().unwrap_or("AUTH failed");
            DialError::Refused(ConnectError::Credentials(text.into()))
        }
        ErrorKind::Io => unreachable(error),
        _ => DialError::Refused(ConnectError::Unusable(error.to_string().into())),
    }
}

fn refused(error: &redis::ServerError) -> DialError {
    let text = format!("{} {}", error.code(), error.details().unwrap_or(""));
    let text: Box<str> = text.trim_end().into();
    DialError::Refused(match error.code() {
        "NOAUTH" | "WRONGPASS" => ConnectError::Credentials(text),
        "NOPERM" => ConnectError::NotPermitted(text),
        "LOADING" | "MASTERDOWN" | "BUSY" | "CLUSTERDOWN" => return DialError::Unreachable(text),
        _ => ConnectError::Unusable(text),
    })
}
