//! A small HTTP server that sends scripted responses and records the requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A received request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub head: String,
    pub body: String,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Returns the response to a request by its number, from 0: status, fields and body.
type Script = dyn Fn(usize, &Asked) -> (u16, String, String) + Send + Sync;

/// The server. It stops when the test's runtime ends.
#[derive(Clone)]
pub struct Scripted {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    pub async fn start(
        script: impl Fn(usize, &Asked) -> (u16, String, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let server = Scripted { address, asked };
        let (keeper, script): (_, Arc<Script>) = (server.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (keeper, script) = (keeper.clone(), Arc::clone(&script));
                tokio::spawn(async move { keeper.serve(stream, &*script).await });
            }
        });
        server
    }

    /// Starts a server that sends these responses in order, and the last one repeatedly.
    pub async fn answers(rows: &'static [(u16, &'static str)]) -> Self {
        Scripted::start(|at, _| {
            let (status, fields) = rows[at.min(rows.len() - 1)];
            (status, fields.to_owned(), "said".to_owned())
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("http://{}/things", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    async fn serve(&self, mut stream: TcpStream, script: &Script) -> Option<()> {
        let mut bytes = Vec::new();
        loop {
            let asked = read(&mut stream, &mut bytes).await?;
            let at = {
                let mut all = self.asked.lock().expect("no panic");
                all.push(asked.clone());
                all.len() - 1
            };
            let (status, fields, body) = script(at, &asked);
            let len = body.len();
            let answer =
                format!("HTTP/1.1 {status} Said\r\n{fields}content-length: {len}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.ok()?;
        }
    }
}

async fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<Asked> {
    loop {
        if let Some(asked) = take(bytes) {
            return Some(asked);
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn take(bytes: &mut Vec<u8>) -> Option<Asked> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let mut first = head.lines().next()?.split(' ');
    let mut asked = Asked {
        method: first.next()?.to_owned(),
        path: first.next()?.to_owned(),
        head: head.to_owned(),
        body: String::new(),
    };
    let len = asked.header("content-length").map_or(0, |len| len.parse().expect("a number"));
    asked.body = rest.get(..len)?.to_owned();
    bytes.drain(..head.len() + 4 + len);
    Some(asked)
}
