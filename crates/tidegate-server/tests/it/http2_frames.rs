//! Hand-written HTTP/2 frames in any order, including some that no library would send.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::server_harness::PATIENCE;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const CANCEL: u32 = 8;

/// A received frame.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub stream: u32,
    pub ends_stream: bool,
    pub payload: Vec<u8>,
}

/// Frames that are sent in one write.
#[derive(Default)]
pub struct Frames(Vec<u8>);

impl Frames {
    fn push(mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Self {
        let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
        self.0.extend_from_slice(&length[1..]);
        self.0.extend_from_slice(&[kind, flags]);
        self.0.extend_from_slice(&stream.to_be_bytes());
        self.0.extend_from_slice(payload);
        self
    }

    /// Appends the head of a POST. Fields are literals without indexing.
    pub fn post(self, stream: u32, path: &str, fields: &[(&str, &str)], is_whole: bool) -> Self {
        let usual = [(":method", "POST"), (":scheme", "http"), (":path", path)];
        let mut block = Vec::new();
        for (name, value) in usual.iter().chain(fields) {
            block.push(0);
            for text in [name, value] {
                block
                    .push(u8::try_from(text.len()).ok().filter(|n| *n < 127).expect("a short one"));
                block.extend_from_slice(text.as_bytes());
            }
        }
        let end = if is_whole { END_STREAM } else { 0 };
        self.push(HEADERS, END_HEADERS | end, stream, &block)
    }

    /// Appends the body of a POST.
    pub fn body(self, stream: u32, bytes: &[u8]) -> Self {
        self.push(DATA, END_STREAM, stream, bytes)
    }

    /// Cancels a request.
    pub fn cancel(self, stream: u32) -> Self {
        self.push(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
    }
}

/// An HTTP/2 connection.
pub struct Connection(TcpStream);

impl Connection {
    /// Sends the preface and empty settings.
    pub fn begin(mut stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
        let mut connection = Connection(stream);
        connection.send(Frames::default().push(SETTINGS, 0, 0, &[]));
        connection
    }

    pub fn send(&mut self, frames: Frames) {
        self.try_send(&frames).expect("the peer reads");
    }

    pub fn try_send(&mut self, frames: &Frames) -> std::io::Result<()> {
        self.0.write_all(&frames.0)
    }

    /// Returns the next frame. Settings are acknowledged.
    pub fn next(&mut self) -> Frame {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).expect("a frame");
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut payload = vec![0; usize::try_from(length).expect("a length")];
        self.0.read_exact(&mut payload).expect("a payload");
        if kind == SETTINGS && flags & ACK == 0 {
            self.send(Frames::default().push(SETTINGS, ACK, 0, &[]));
        }
        let can_end = matches!(kind, DATA | HEADERS);
        let ends_stream = can_end && flags & END_STREAM != 0;
        Frame { kind, stream: u32::from_be_bytes(stream), ends_stream, payload }
    }
}
