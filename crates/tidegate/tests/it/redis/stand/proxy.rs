//! A TCP proxy in front of a server, to lose replies and connections on purpose.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a thread looks whether replies may pass again.
const TICK: Duration = Duration::from_millis(1);

/// A running proxy. Its threads end with their connections.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Replies stay here; requests still pass.
    holds_replies: AtomicBool,
    /// New connections are closed immediately.
    refuses: AtomicBool,
    is_over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// A proxy on a free port in front of the server at `upstream`.
    pub fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                if !accepting.refuses.load(Ordering::SeqCst) {
                    accepting.serve(client, upstream);
                }
            }
        });
        Proxy { port, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn hold_replies(&self, hold: bool) {
        self.shared.holds_replies.store(hold, Ordering::SeqCst);
    }

    pub fn refuse(&self, refuse: bool) {
        self.shared.refuses.store(refuse, Ordering::SeqCst);
    }

    /// Closes every connection; replies that were held are lost.
    pub fn cut(&self) {
        for stream in self.shared.open().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: TcpStream, upstream: u16) {
        let server = TcpStream::connect(("127.0.0.1", upstream)).expect("the server is there");
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let twin = |stream: &TcpStream| stream.try_clone().expect("a handle");
        self.open().extend([twin(&client), twin(&server)]);
        let (requests, replies) = ((twin(&client), twin(&server)), (server, client));
        thread::spawn(move || copy(requests, || {}));
        let shared = Arc::clone(self);
        thread::spawn(move || copy(replies, || shared.wait_for_replies()));
    }

    fn wait_for_replies(&self) {
        while self.holds_replies.load(Ordering::SeqCst) {
            thread::sleep(TICK);
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn copy((mut from, mut to): (TcpStream, TcpStream), before_write: impl Fn()) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        before_write();
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.holds_replies.store(false, Ordering::SeqCst);
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}
