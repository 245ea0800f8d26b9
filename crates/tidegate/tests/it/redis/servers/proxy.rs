//! A proxy in front of a server that withholds replies, cuts connections or refuses them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A proxy, which runs until the process ends.
pub struct Proxy {
    port: u16,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    replies: Mutex<Replies>,
    changed: Condvar,
    /// Whether new connections are closed immediately.
    refuses: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

struct Replies {
    /// The number that have arrived from the server.
    arrived: u64,
    /// The number that were passed on to clients.
    passed: u64,
    /// The number that may be passed on.
    allowed: u64,
}

impl Default for Replies {
    fn default() -> Self {
        Replies { arrived: 0, passed: 0, allowed: u64::MAX }
    }
}

impl Proxy {
    /// Starts a proxy that passes on everything.
    pub fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let gate = Arc::<Gate>::default();
        let shared = Arc::clone(&gate);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else {
                    return;
                };
                let handle = |stream: &TcpStream| stream.try_clone().expect("a handle");
                shared.open().extend([handle(&client), handle(&server)]);
                relay(client, server, &shared);
            }
        });
        Proxy { port, gate }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Withholds all replies that were not passed on yet, and resets their counts.
    pub fn hold(&self) {
        *self.replies() = Replies { arrived: 0, passed: 0, allowed: 0 };
    }

    /// Passes on `replies` more replies.
    pub fn pass(&self, replies: u64) {
        self.replies().allowed += replies;
        self.gate.changed.notify_all();
    }

    /// Passes on all replies.
    pub fn pass_all(&self) {
        self.replies().allowed = u64::MAX;
        self.gate.changed.notify_all();
    }

    /// The number of replies that the server has sent since the last [`Proxy::hold`].
    pub fn arrived(&self) -> u64 {
        self.replies().arrived
    }

    /// Refuses new connections from now on, or accepts them again.
    pub fn refuse(&self, refuse: bool) {
        self.gate.refuses.store(refuse, Ordering::SeqCst);
    }

    /// Closes all connections. Replies that were withheld are lost.
    pub fn cut(&self) {
        for stream in self.gate.open().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn replies(&self) -> std::sync::MutexGuard<'_, Replies> {
        self.gate.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    fn open(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn relay(client: TcpStream, server: TcpStream, gate: &Arc<Gate>) {
    let (mut from, mut to) = (client.try_clone().expect("it"), server.try_clone().expect("it"));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    // One thread reads and counts replies, even while they are withheld; another passes them on.
    let (sender, receiver) = std::sync::mpsc::channel::<Vec<u8>>();
    let counted = Arc::clone(gate);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(server);
        loop {
            let mut reply = Vec::new();
            if read_reply(&mut reader, &mut reply).is_none() {
                return;
            }
            // The reply is counted before it can be passed on, so that counts start at 0 after
            // `hold`.
            if !is_info(&reply) {
                counted.replies.lock().unwrap_or_else(PoisonError::into_inner).arrived += 1;
            }
            if sender.send(reply).is_err() {
                return;
            }
        }
    });
    let (gate, mut client) = (Arc::clone(gate), client);
    std::thread::spawn(move || {
        for reply in receiver {
            if !is_info(&reply) {
                let mut replies = gate.replies.lock().unwrap_or_else(PoisonError::into_inner);
                while replies.passed >= replies.allowed {
                    replies = gate.changed.wait(replies).unwrap_or_else(PoisonError::into_inner);
                }
                replies.passed += 1;
            }
            if client.write_all(&reply).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    });
}

/// Whether this is a reply to `INFO`, which a connection sends by itself every few seconds. Its
/// text begins with the name of a section.
fn is_info(reply: &[u8]) -> bool {
    reply.first() == Some(&b'$') && reply.windows(4).take(16).any(|bytes| bytes == b"\r\n# ")
}

/// Reads one reply and appends its bytes. Returns `None` if the connection was closed.
fn read_reply(reader: &mut BufReader<TcpStream>, reply: &mut Vec<u8>) -> Option<()> {
    let start = reply.len();
    if reader.read_until(b'\n', reply).ok()? == 0 {
        return None;
    }
    let number = || std::str::from_utf8(&reply[start + 1..]).ok()?.trim().parse::<i64>().ok();
    match reply[start] {
        b'$' => {
            let length = u64::try_from(number()? + 2).unwrap_or(0);
            if length > 1 {
                reader.take(length).read_to_end(reply).ok()?;
            }
        }
        b'*' => {
            for _ in 0..number()? {
                read_reply(reader, reply)?;
            }
        }
        _ => {}
    }
    Some(())
}
