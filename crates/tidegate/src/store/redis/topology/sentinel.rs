//! Sentinel: somebody else knows which server is the primary.
//!
//! They are asked anew for every connection, so a failover is followed as soon as
//! the old connection breaks, answers READONLY or falls silent.

use std::sync::Mutex;

use redis::Value;

use super::super::connection::{Connection, DialError, Dialer};
use super::super::error::ConnectError;
use super::super::server_info::ServerInfo;
use super::super::url::{Address, Login, StoreUrl};

/// The Sentinels of one primary.
pub(in super::super) struct Sentinels {
    /// Who answered last stands first.
    hosts: Mutex<Vec<Address>>,
    master: Box<str>,
    login: Login,
}

impl Sentinels {
    pub(super) fn new(url: &StoreUrl) -> Self {
        Sentinels {
            hosts: Mutex::new(url.hosts.clone()),
            master: url.master.as_str().into(),
            login: url.sentinel_login.clone(),
        }
    }

    /// Connects to the primary they name. Between its fall and the failover they
    /// still name the old one, and for a moment a replica: neither is an error.
    pub(in super::super) async fn dial(
        &self,
        dialer: &Dialer,
    ) -> Result<(Connection, ServerInfo), DialError> {
        let primary = self.primary(dialer).await?;
        match dialer.dial(&primary).await {
            Err(DialError::Refused(ConnectError::IsReplica)) => {
                Err(DialError::Unreachable("the primary the Sentinels name is a replica".into()))
            }
            dialed => dialed,
        }
    }

    /// The primary's address, from the first Sentinel that tells it.
    async fn primary(&self, dialer: &Dialer) -> Result<Address, DialError> {
        let hosts = self.hosts().clone();
        let mut last_error = DialError::Unreachable("there is no Sentinel".into());
        for sentinel in hosts {
            let command = ["SENTINEL", "get-master-addr-by-name", &*self.master];
            match dialer.send_once(&sentinel, &self.login, &command).await {
                Ok(answer) => match read_address(&answer, &sentinel) {
                    Some(primary) => {
                        self.prefer(&sentinel);
                        return Ok(primary);
                    }
                    None => {
                        let unknown = ConnectError::UnknownMaster(self.master.clone());
                        last_error = DialError::Refused(unknown);
                    }
                },
                Err(DialError::Refused(ConnectError::Unusable(text))) => {
                    last_error = DialError::Refused(ConnectError::NotSentinel(text));
                }
                Err(DialError::Refused(
                    ConnectError::Credentials(text) | ConnectError::NotPermitted(text),
                )) => last_error = DialError::Refused(ConnectError::SentinelRefuses(text)),
                // What one refuses is worth more than that another is not there.
                Err(error) if !matches!(last_error, DialError::Refused(_)) => last_error = error,
                Err(_) => {}
            }
        }
        Err(last_error)
    }

    fn prefer(&self, sentinel: &Address) {
        let mut hosts = self.hosts();
        if let Some(index) = hosts.iter().position(|host| host == sentinel) {
            hosts[..=index].rotate_right(1);
        }
    }

    fn hosts(&self) -> std::sync::MutexGuard<'_, Vec<Address>> {
        self.hosts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn read_address(answer: &Value, queried: &Address) -> Option<Address> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else { return None };
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Address::reported(std::str::from_utf8(host).ok()?, port, queried))
}
