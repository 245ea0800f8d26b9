//! A small HTTP server that sends scripted responses and records the requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A received request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub method: String,
    pub path: String,
    pub head: String,
    pub body: String,
}

impl RecordedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Returns the response to a request by its number, from 0: status, fields and body.
type Script = dyn Fn(usize, &RecordedRequest) -> (u16, String, String) + Send + Sync;

/// The server. It stops when the test's runtime ends.
#[derive(Clone)]
pub struct Scripted {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl Scripted {
    pub async fn start(
        script: impl Fn(usize, &RecordedRequest) -> (u16, String, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let server = Scripted { address, requests };
        let (server_copy, script): (_, Arc<Script>) = (server.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server_copy, script) = (server_copy.clone(), Arc::clone(&script));
                tokio::spawn(async move { server_copy.serve(stream, &*script).await });
            }
        });
        server
    }

    /// Starts a server that sends these responses in order, and the last one repeatedly.
    pub async fn replying(rows: &'static [(u16, &'static str)]) -> Self {
        Scripted::start(|at, _| {
            let (status, fields) = rows[at.min(rows.len() - 1)];
            (status, fields.to_owned(), "done".to_owned())
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("http://{}/things", self.address)
    }

    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().expect("no panic").clone()
    }

    async fn serve(&self, mut stream: TcpStream, script: &Script) -> Option<()> {
        let mut bytes = Vec::new();
        loop {
            let request = read(&mut stream, &mut bytes).await?;
            let at = {
                let mut all = self.requests.lock().expect("no panic");
                all.push(request.clone());
                all.len() - 1
            };
            let (status, fields, body) = script(at, &request);
            let len = body.len();
            let response = format!(
                "HTTP/1.1 {status} Scripted\r\n{fields}content-length: {len}\r\n\r\n{body}"
            );
            stream.write_all(response.as_bytes()).await.ok()?;
        }
    }
}

async fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<RecordedRequest> {
    loop {
        if let Some(request) = take(bytes) {
            return Some(request);
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn take(bytes: &mut Vec<u8>) -> Option<RecordedRequest> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let mut first = head.lines().next()?.split(' ');
    let mut request = RecordedRequest {
        method: first.next()?.to_owned(),
        path: first.next()?.to_owned(),
        head: head.to_owned(),
        body: String::new(),
    };
    let len = request.header("content-length").map_or(0, |len| len.parse().expect("a number"));
    request.body = rest.get(..len)?.to_owned();
    bytes.drain(..head.len() + 4 + len);
    Some(request)
}
