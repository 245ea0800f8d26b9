//! Encodes replies in RESP2 or RESP3, into one buffer.

use std::io::Write as _;

use crate::admin::{REPLY_CODES, ReplyCounts};
use crate::error::RequestError;

/// The protocol version of a connection. `HELLO` changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

impl Protocol {
    pub const fn number(self) -> i64 {
        match self {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
    }
}

/// The replies of one connection, in order.
pub struct Replies<'o> {
    out: &'o mut Vec<u8>,
    pub protocol: Protocol,
    /// Errors by code.
    errors: ReplyCounts,
}

impl<'o> Replies<'o> {
    /// Creates a writer that appends to `out`.
    pub fn new(out: &'o mut Vec<u8>, protocol: Protocol) -> Self {
        Replies { out, protocol, errors: ReplyCounts::default() }
    }

    /// The number of replies by code, if `commands` commands were answered.
    #[inline]
    pub fn counted(&self, commands: u32) -> ReplyCounts {
        let mut counts = self.errors;
        counts[0] = commands.saturating_sub(self.errors.iter().sum());
        counts
    }

    /// The number of bytes in the buffer.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    pub fn simple(&mut self, text: &str) {
        self.put(b"+");
        self.put(text.as_bytes());
        self.put(b"\r\n");
    }

    pub fn ok(&mut self) {
        self.put(b"+OK\r\n");
    }

    /// Appends an error with its code. Control characters are replaced, so that it is a single
    /// line.
    pub fn error(&mut self, error: &RequestError) {
        let code = error.resp_code();
        let known = REPLY_CODES.iter().position(|known| *known == code);
        self.errors[known.unwrap_or(1)] += 1;
        self.put(b"-");
        let start = self.out.len();
        // Writing to memory cannot fail.
        let _ = write!(self.out, "{code} {error}");
        for byte in &mut self.out[start..] {
            if byte.is_ascii_control() {
                *byte = b' ';
            }
        }
        self.put(b"\r\n");
    }

    #[inline]
    pub fn number(&mut self, number: i64) {
        // Appending one buffer is cheaper than appending its three parts.
        let mut line = [0; 24];
        line[0] = b':';
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        let end = 1 + digits.len();
        line[1..end].copy_from_slice(digits);
        line[end] = b'\r';
        line[end + 1] = b'\n';
        self.put(&line[..end + 2]);
    }

    /// Appends a number, saturated at the largest that RESP can encode.
    #[inline]
    pub fn count(&mut self, number: u64) {
        self.number(i64::try_from(number).unwrap_or(i64::MAX));
    }

    #[inline]
    pub fn count_or_nil(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.count(number),
            None => self.nil(),
        }
    }

    #[inline]
    pub fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        self.headed(b'$', bytes.as_ref().len());
        self.put(bytes.as_ref());
        self.put(b"\r\n");
    }

    /// Appends text of several lines for people.
    pub fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.headed(b'=', text.len() + 4);
                self.put(b"txt:");
                self.put(text.as_bytes());
                self.put(b"\r\n");
            }
        }
    }

    #[inline]
    pub fn nil(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.put(b"$-1\r\n"),
            Protocol::Resp3 => self.put(b"_\r\n"),
        }
    }

    /// Begins an array of the next `len` replies.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.headed(b'*', len);
    }

    /// Appends a command in the form that clients send.
    pub fn command(&mut self, args: &[&[u8]]) {
        self.array(args.len());
        args.iter().for_each(|arg| self.bulk(arg));
    }

    /// Begins a set of the next `len` replies.
    pub fn set(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.headed(b'*', len),
            Protocol::Resp3 => self.headed(b'~', len),
        }
    }

    /// Begins a map of the next `pairs` pairs of replies.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.headed(b'*', 2 * pairs),
            Protocol::Resp3 => self.headed(b'%', pairs),
        }
    }

    #[inline]
    fn headed(&mut self, kind: u8, len: usize) {
        match u8::try_from(len) {
            Ok(digit @ 0..=9) => self.put(&[kind, b'0' + digit, b'\r', b'\n']),
            _ => {
                self.put(&[kind]);
                self.put(itoa::Buffer::new().format(len).as_bytes());
                self.put(b"\r\n");
            }
        }
    }

    /// Appends encoded bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
}
