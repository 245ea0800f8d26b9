//! The RESP protocol: decodes commands, which are arrays of bulk strings or inline commands, and
//! encodes replies in RESP2 or RESP3, into one buffer.
//!
//! A command is parsed in place and returned as slices of the buffer. Nothing is copied, and
//! nothing is allocated for a declared length. An incomplete command is parsed again from its start
//! when more bytes have arrived. That is cheaper than storing the state of a partial command,
//! because nearly every command arrives complete, and it makes the result independent of how the
//! bytes were split.
//!
//! Bytes that are not a command get the error message of Redis, and the connection is closed,
//! because the start of the next command is unknown.

use std::io::Write as _;
use std::ops::Range;

use smallvec::SmallVec;

use crate::error::RequestError;
use crate::server_state::{REPLY_CODES, ReplyCounts};

/// The maximum number of arguments: enough for `COMMAND INFO` with all commands.
pub const MAX_ARGS: i64 = 1024;

/// The maximum length of an argument. Keys and limits take up to a kilobyte; `PING` and `ECHO` may
/// be longer.
pub const MAX_BULK_BYTES: i64 = 32 * 1024;

/// The maximum length of a command, and the size of the input buffer: a deep pipeline of ordinary
/// commands, and an inline command as long as Redis allows.
pub const MAX_COMMAND_BYTES: usize = 64 * 1024;

/// The maximum number of arguments before authentication, as in Redis.
const MAX_UNAUTHENTICATED_ARGS: i64 = 10;

/// The maximum length of an argument before authentication, as in Redis.
const MAX_UNAUTHENTICATED_BULK_BYTES: i64 = 16 * 1024;

/// The maximum length of the line that holds a length. More digits exceed every bound, so a client
/// that never ends the line is rejected.
const MAX_LENGTH_BYTES: usize = 32;

/// The arguments of a command, beginning with its name. Ordinary commands have up to eight. A
/// command without any is ignored, as Redis ignores empty lines and arrays.
pub type Args<'b> = SmallVec<[&'b [u8]; 8]>;

/// The positions of the arguments of a command, and its end.
#[derive(Debug, Default)]
struct Found {
    words: SmallVec<[Range<usize>; 8]>,
    end: usize,
}

/// Why bytes are not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("Protocol error: invalid multibulk length")]
    InvalidMultibulkLength,
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulkLength,
    #[error("Protocol error: too big mbulk count string")]
    TooBigMultibulkCount,
    #[error(
        "Protocol error: expected '$', got '{}'",
        if .0.is_ascii_graphic() { char::from(*.0) } else { '?' }
    )]
    ExpectedBulk(u8),
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulkLength,
    #[error("Protocol error: too big bulk count string")]
    TooBigBulkCount,
    #[error("Protocol error: too big inline request")]
    TooBigInline,
    #[error("Protocol error: too big request")]
    TooBigCommand,
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
}

/// Takes the first command off the bytes; `None` if it is incomplete. The words of an inline
/// command are unquoted in place, so its bytes may change. The bounds are lower for an
/// `unauthenticated` client.
///
/// # Errors
/// When the bytes do not begin with a command.
#[inline]
pub fn decode<'b>(
    bytes: &mut &'b mut [u8],
    unauthenticated: bool,
) -> Result<Option<Args<'b>>, ProtocolError> {
    let found = match bytes {
        [] => None,
        [b'*', ..] => find_array(bytes, unauthenticated)?,
        _ => find_line(bytes)?,
    };
    let Some(Found { words, end }) = found else { return Ok(None) };
    let (command, rest) = std::mem::take(bytes).split_at_mut(end);
    *bytes = rest;
    let command: &'b [u8] = command;
    Ok(Some(words.into_iter().map(|word| &command[word]).collect()))
}

#[inline]
fn find_array(bytes: &[u8], unauthenticated: bool) -> Result<Option<Found>, ProtocolError> {
    let Some(head) = length(bytes, ProtocolError::TooBigMultibulkCount)? else {
        return Ok(None);
    };
    let count = head.number.filter(|count| *count <= MAX_ARGS);
    let count = count.ok_or(ProtocolError::InvalidMultibulkLength)?;
    if unauthenticated && count > MAX_UNAUTHENTICATED_ARGS {
        return Err(ProtocolError::UnauthenticatedMultibulkLength);
    }
    let mut found = Found { end: head.end, ..Found::default() };
    for _ in 0..count {
        let rest = &bytes[found.end..];
        let Some(head) = length(rest, ProtocolError::TooBigBulkCount)? else {
            return Ok(None);
        };
        if rest[0] != b'$' {
            return Err(ProtocolError::ExpectedBulk(rest[0]));
        }
        let declared = head.number.filter(|length| (0..=MAX_BULK_BYTES).contains(length));
        let declared = declared.ok_or(ProtocolError::InvalidBulkLength)?;
        if unauthenticated && declared > MAX_UNAUTHENTICATED_BULK_BYTES {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        let end = head.end + usize::try_from(declared).unwrap_or_default();
        // The next two bytes are assumed to be CR and LF, as in Redis.
        if rest.len() < end + 2 {
            return Ok(None);
        }
        found.words.push(found.end + head.end..found.end + end);
        found.end += end + 2;
    }
    Ok(Some(found))
}

/// Parses the number after the first byte of a line, and the end of the line. The number is `None`
/// if it is invalid. Returns `None` if the line is incomplete.
///
/// # Errors
/// `too_long` if the line exceeds [`MAX_LENGTH_BYTES`].
#[inline]
fn length(line: &[u8], too_long: ProtocolError) -> Result<Option<Length>, ProtocolError> {
    // Nearly all lengths have one or two digits.
    match line {
        [_, one @ b'0'..=b'9', b'\r', _, ..] => {
            Ok(Some(Length { number: Some(i64::from(one - b'0')), end: 4 }))
        }
        [_, ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', _, ..] => {
            let number = i64::from(ten - b'0') * 10 + i64::from(one - b'0');
            Ok(Some(Length { number: Some(number), end: 5 }))
        }
        _ => long_length(line, too_long),
    }
}

#[derive(Clone, Copy)]
struct Length {
    number: Option<i64>,
    end: usize,
}

fn long_length(line: &[u8], too_long: ProtocolError) -> Result<Option<Length>, ProtocolError> {
    let within = &line[..line.len().min(MAX_LENGTH_BYTES)];
    match within.iter().position(|byte| *byte == b'\r') {
        // The next byte is assumed to be LF.
        Some(end) if line.len() > end + 1 => {
            let number = line.get(1..end).and_then(whole_number);
            Ok(Some(Length { number, end: end + 2 }))
        }
        None if line.len() > MAX_LENGTH_BYTES => Err(too_long),
        _ => Ok(None),
    }
}

/// Parses an integer as Redis does: no plus sign, no leading zeros.
pub fn whole_number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if digits.len() == text.len() => Some(0),
        [b'1'..=b'9', ..] if digits.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(text).ok()?.parse().ok()
        }
        _ => None,
    }
}

/// Parses an inline command, as typed into telnet.
fn find_line(bytes: &mut [u8]) -> Result<Option<Found>, ProtocolError> {
    let Some(newline) = memchr::memchr(b'\n', bytes) else {
        if bytes.len() >= MAX_COMMAND_BYTES {
            return Err(ProtocolError::TooBigInline);
        }
        return Ok(None);
    };
    let line = match &mut bytes[..newline] {
        [rest @ .., b'\r'] => rest,
        line => line,
    };
    Ok(Some(Found { words: find_words(line)?, end: newline + 1 }))
}

/// Splits a line into words. A quoted word is unquoted in place, which never makes it longer.
fn find_words(line: &mut [u8]) -> Result<SmallVec<[Range<usize>; 8]>, ProtocolError> {
    let mut words = SmallVec::new();
    let mut at = 0;
    loop {
        at += line[at..].iter().take_while(|byte| is_space(**byte)).count();
        if at == line.len() {
            return Ok(words);
        }
        let (read, written) = unquote(&mut line[at..])?;
        words.push(at..at + written);
        at += read;
    }
}

/// Unquotes the first word, and returns its length in the line and its length unquoted.
fn unquote(line: &mut [u8]) -> Result<(usize, usize), ProtocolError> {
    let (mut read, mut written) = (0, 0);
    let mut quote = None;
    loop {
        let (byte, taken) = match (quote, &line[read..]) {
            (None, []) => return Ok((read, written)),
            (Some(_), []) => return Err(ProtocolError::UnbalancedQuotes),
            (None, [space, ..]) if is_space(*space) => return Ok((read, written)),
            (None, [mark @ (b'"' | b'\''), ..]) => {
                quote = Some(*mark);
                read += 1;
                continue;
            }
            (Some(mark), [end, behind @ ..]) if *end == mark => {
                // A closing quote ends the word.
                match behind.first() {
                    Some(next) if !is_space(*next) => return Err(ProtocolError::UnbalancedQuotes),
                    _ => return Ok((read + 1, written)),
                }
            }
            (Some(b'"'), escaped @ [b'\\', _, ..]) => unescape(escaped),
            (Some(b'\''), [b'\\', b'\'', ..]) => (b'\'', 2),
            (_, [byte, ..]) => (*byte, 1),
        };
        line[written] = byte;
        written += 1;
        read += taken;
    }
}

/// Decodes an escape sequence, and returns the byte and the length of the sequence.
fn unescape(escaped: &[u8]) -> (u8, usize) {
    match escaped {
        [_, b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
            (hex(*high) << 4 | hex(*low), 4)
        }
        [_, b'n', ..] => (b'\n', 2),
        [_, b'r', ..] => (b'\r', 2),
        [_, b't', ..] => (b'\t', 2),
        [_, b'b', ..] => (0x08, 2),
        [_, b'a', ..] => (0x07, 2),
        [_, byte, ..] => (*byte, 2),
        _ => (b'\\', 1),
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// Whether C's `isspace` is true.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// The protocol version of a connection. `HELLO` changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    #[default]
    Resp2,
    Resp3,
}

impl RespVersion {
    pub const fn number(self) -> i64 {
        match self {
            RespVersion::Resp2 => 2,
            RespVersion::Resp3 => 3,
        }
    }
}

/// The replies of one connection, in order.
pub struct Replies<'o> {
    out: &'o mut Vec<u8>,
    pub protocol: RespVersion,
    /// Errors by code.
    errors: ReplyCounts,
}

impl<'o> Replies<'o> {
    /// Creates a writer that appends to `out`.
    pub fn new(out: &'o mut Vec<u8>, protocol: RespVersion) -> Self {
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
            RespVersion::Resp2 => self.bulk(text),
            RespVersion::Resp3 => {
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
            RespVersion::Resp2 => self.put(b"$-1\r\n"),
            RespVersion::Resp3 => self.put(b"_\r\n"),
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
            RespVersion::Resp2 => self.headed(b'*', len),
            RespVersion::Resp3 => self.headed(b'~', len),
        }
    }

    /// Begins a map of the next `pairs` pairs of replies.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.headed(b'*', 2 * pairs),
            RespVersion::Resp3 => self.headed(b'%', pairs),
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
