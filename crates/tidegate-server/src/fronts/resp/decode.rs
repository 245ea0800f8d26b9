//! What clients send: arrays of bulk strings, or a line of words.
//!
//! A command is looked at where it lies and handed on as slices of the buffer; nothing
//! is copied, and nothing is allocated for a length that was only declared. A command
//! that is not complete is looked at again once more of it has come: that is cheaper than
//! keeping half of it, because nearly every command comes whole, and it makes the answer
//! independent of how the bytes were split.
//!
//! What is no command gets Redis's own text, and the connection ends: nobody can know
//! where the next command would begin.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

/// The most arguments of a command: room for `COMMAND INFO` of all there are.
pub const MAX_ARGS: i64 = 1024;

/// The longest argument. Keys and limits take up to a kilobyte; `PING` and `ECHO` may
/// bring more.
pub const MAX_BULK_BYTES: i64 = 32 * 1024;

/// The longest command, and the most that is read at once: a deep pipeline of ordinary
/// commands, and a line as long as Redis takes.
pub const MAX_COMMAND_BYTES: usize = 64 * 1024;

/// The most arguments of somebody who has not shown a secret, as in Redis.
const MAX_STRANGER_ARGS: i64 = 10;

/// The longest argument of somebody who has not shown a secret, as in Redis.
const MAX_STRANGER_BULK_BYTES: i64 = 16 * 1024;

/// A length of more digits is too long for any bound, so a client that goes on and on
/// without ending the line is not listened to.
const MAX_LENGTH_BYTES: usize = 32;

/// The arguments of a command, its name first. Ordinary ones have up to eight. Without
/// any it is to be ignored, as Redis ignores empty lines and arrays.
pub type Args<'b> = SmallVec<[&'b [u8]; 8]>;

/// Where the arguments of a command lie, and where it ends.
#[derive(Debug, Default)]
struct Found {
    words: SmallVec<[Range<usize>; 8]>,
    end: usize,
}

/// Bytes that are no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    InvalidMultibulkLength,
    StrangerMultibulkLength,
    TooBigMultibulkCount,
    ExpectedBulk(u8),
    InvalidBulkLength,
    StrangerBulkLength,
    TooBigBulkCount,
    TooBigInline,
    TooBigCommand,
    UnbalancedQuotes,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        f.write_str(match self {
            ProtocolError::InvalidMultibulkLength => "invalid multibulk length",
            ProtocolError::StrangerMultibulkLength => "unauthenticated multibulk length",
            ProtocolError::TooBigMultibulkCount => "too big mbulk count string",
            ProtocolError::ExpectedBulk(got) => {
                let got = if got.is_ascii_graphic() { char::from(*got) } else { '?' };
                return write!(f, "expected '$', got '{got}'");
            }
            ProtocolError::InvalidBulkLength => "invalid bulk length",
            ProtocolError::StrangerBulkLength => "unauthenticated bulk length",
            ProtocolError::TooBigBulkCount => "too big bulk count string",
            ProtocolError::TooBigInline => "too big inline request",
            ProtocolError::TooBigCommand => "too big request",
            ProtocolError::UnbalancedQuotes => "unbalanced quotes in request",
        })
    }
}

/// Takes the first command off the bytes; `None` if it is not complete. Words of a line
/// are unquoted where they lie, so its bytes may change.
///
/// # Errors
/// When they begin no command.
#[inline]
pub fn decode<'b>(
    bytes: &mut &'b mut [u8],
    stranger: bool,
) -> Result<Option<Args<'b>>, ProtocolError> {
    let found = match bytes {
        [] => None,
        [b'*', ..] => find_array(bytes, stranger)?,
        _ => find_line(bytes)?,
    };
    let Some(Found { words, end }) = found else { return Ok(None) };
    let (command, rest) = std::mem::take(bytes).split_at_mut(end);
    *bytes = rest;
    let command: &'b [u8] = command;
    Ok(Some(words.into_iter().map(|word| &command[word]).collect()))
}

#[inline]
fn find_array(bytes: &[u8], stranger: bool) -> Result<Option<Found>, ProtocolError> {
    let Some(head) = length(bytes, ProtocolError::TooBigMultibulkCount)? else {
        return Ok(None);
    };
    let count = head.number.filter(|count| *count <= MAX_ARGS);
    let count = count.ok_or(ProtocolError::InvalidMultibulkLength)?;
    if stranger && count > MAX_STRANGER_ARGS {
        return Err(ProtocolError::StrangerMultibulkLength);
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
        if stranger && declared > MAX_STRANGER_BULK_BYTES {
            return Err(ProtocolError::StrangerBulkLength);
        }
        let end = head.end + usize::try_from(declared).unwrap_or_default();
        // The two bytes behind it are taken for CR and LF, as Redis takes them.
        if rest.len() < end + 2 {
            return Ok(None);
        }
        found.words.push(found.end + head.end..found.end + end);
        found.end += end + 2;
    }
    Ok(Some(found))
}

/// The number behind the first byte, if it is one, and where its line ends; `None` if the
/// line has not ended yet.
///
/// # Errors
/// `too_long` if it goes on and on.
#[inline]
fn length(line: &[u8], too_long: ProtocolError) -> Result<Option<Length>, ProtocolError> {
    // Nearly all lengths have one digit or two.
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
        // The byte behind it is taken for LF.
        Some(end) if line.len() > end + 1 => {
            let number = line.get(1..end).and_then(whole_number);
            Ok(Some(Length { number, end: end + 2 }))
        }
        None if line.len() > MAX_LENGTH_BYTES => Err(too_long),
        _ => Ok(None),
    }
}

/// A whole number the way Redis wants it: no sign but minus, no leading zeros.
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

/// A line of words, as somebody types it into telnet.
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

/// The words of a line. A quoted one is unquoted where it lies: that never makes it longer.
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

/// How many bytes the first word takes, and how many it has once it is unquoted.
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

/// The byte that a backslash and what is behind it stand for, and how many bytes that takes.
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

/// What C takes for a space.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}
