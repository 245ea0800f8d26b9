//! Hand-written ends of a gateway: a client that sends exactly the given bytes, including forged
//! headers, from its own address; and an application that returns the request it received.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Longer than any gateway in these tests waits for tidegate.
const PATIENCE: Duration = Duration::from_secs(20);
/// Larger than any response here.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A request as the client sends it.
#[derive(Clone)]
pub struct Request<'a> {
    /// The client's address, one of 127.0.0.0/8.
    pub from: Ipv4Addr,
    pub method: &'a str,
    pub target: &'a [u8],
    pub host: &'a str,
    /// Complete lines, as `name: value`.
    pub headers: &'a [&'a str],
    pub body: &'a str,
}

impl Request<'_> {
    /// Sends the request to this port, and reads the complete response.
    pub fn send(&self, port: u16) -> io::Result<Response> {
        let mut stream = connect(self.from, port)?;
        let mut bytes = [self.method.as_bytes(), b" ", self.target, b" HTTP/1.1\r\n"].concat();
        let mut lines = format!("host: {}\r\ncontent-length: {}\r\n", self.host, self.body.len());
        for line in self.headers {
            write!(lines, "{line}\r\n").expect("memory");
        }
        if !self.headers.iter().any(|line| line.starts_with("connection:")) {
            lines += "connection: close\r\n";
        }
        bytes.extend(format!("{lines}\r\n{}", self.body).into_bytes());
        // A gateway may reject a request before it has read all of it. Its response is then more
        // useful than the write error.
        let sent = stream.write_all(&bytes);
        let answer = Message::read(&mut stream).map_err(|error| sent.err().unwrap_or(error))?;
        Response::new(answer)
    }
}

/// Opens a connection from the address `from`.
pub fn connect(from: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into(), PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket.into())
}

struct Message {
    first: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Message {
    /// Reads until the head and the announced body are complete, or to the end. A gateway that
    /// rejects a request may keep the connection open for a while.
    fn read(stream: &mut TcpStream) -> io::Result<Message> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let read = match stream.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            bytes.extend(&buffer[..read]);
            match Message::parse(&bytes) {
                Ok(message) if message.is_whole()? => return Ok(message),
                Err(error) if read == 0 || bytes.len() > MAX_MESSAGE_BYTES => return Err(error),
                _ if read == 0 => return Err(cut(&bytes)),
                _ => {}
            }
        }
    }

    /// Returns whether the body is complete. A chunked body is complete once it parses.
    fn is_whole(&self) -> io::Result<bool> {
        let length = self.headers.iter().find(|(name, _)| name == "content-length");
        let length = length.map_or(Ok(0), |(_, value)| value.parse()).map_err(io::Error::other)?;
        Ok(self.body.len() >= length)
    }

    fn parse(bytes: &[u8]) -> io::Result<Message> {
        let end = find(bytes, b"\r\n\r\n").ok_or_else(|| cut(bytes))?;
        let head = String::from_utf8_lossy(&bytes[..end]);
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or_default().to_string();
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_string()))
            .collect();
        let rest = &bytes[end + 4..];
        let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        let body = if chunked { joined(rest)? } else { rest.to_vec() };
        Ok(Message { first, headers, body: String::from_utf8_lossy(&body).into_owned() })
    }
}

/// Joins the chunks of a body.
fn joined(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = find(bytes, b"\r\n").ok_or_else(|| cut(bytes))?;
        let size = String::from_utf8_lossy(&bytes[..end]);
        let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
        if size == 0 {
            return Ok(body);
        }
        let chunk = bytes.get(end + 2..end + 2 + size).ok_or_else(|| cut(bytes))?;
        body.extend(chunk);
        bytes = bytes.get(end + 2 + size + 2..).ok_or_else(|| cut(bytes))?;
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn cut(bytes: &[u8]) -> io::Error {
    io::Error::other(format!("ends early: {:?}", String::from_utf8_lossy(bytes)))
}

/// A response of the gateway.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    fn new(message: Message) -> io::Result<Response> {
        let Message { first, headers, body } = message;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {first}")))?;
        Ok(Response { status, headers, body })
    }

    /// Returns the value of a header that occurs at most once.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(found, _)| found == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} occurs twice: {self:?}");
        value
    }

    /// Returns whether the response comes from the application.
    pub fn reached_application(&self) -> bool {
        self.header(MARK).is_some()
    }
}

/// A header of every response of the application.
const MARK: &str = "x-application";
/// The usage that every response of the application reports in `x-usage-tokens`.
pub const USAGE: u64 = 300;

/// An HTTP server that responds with 200 and the request it received.
pub struct Application {
    pub port: u16,
    request_count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Application {
    pub fn start() -> Application {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (request_count, stop) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let application =
            Application { port, request_count: request_count.clone(), stop: stop.clone() };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let request_count = request_count.clone();
                // A gateway may keep unused connections open.
                thread::spawn(move || drop(serve(stream, &request_count)));
            }
        });
        application
    }

    /// Returns the number of requests that have reached the application.
    pub fn request_count(&self) -> usize {
        self.request_count.load(Ordering::SeqCst)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

/// Responds to one request and closes the connection.
fn serve(mut stream: TcpStream, request_count: &AtomicUsize) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = Message::read(&mut stream)?;
    request_count.fetch_add(1, Ordering::SeqCst);
    let mut echo = format!("{}\n", request.first);
    for (name, value) in &request.headers {
        writeln!(echo, "{name}: {value}").map_err(io::Error::other)?;
    }
    echo = format!("{echo}\n{}", request.body);
    let length = echo.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\n{MARK}: yes\r\nx-usage-tokens: {USAGE}\r\ncontent-length: {length}\r\n\
         connection: close"
    );
    stream.write_all(format!("{head}\r\n\r\n{echo}").as_bytes())
}
