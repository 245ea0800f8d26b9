//! Compares the decoder with a naive one that gets all bytes in one piece and need not be fast.

use super::super::codec::{MAX_COMMAND_BYTES, ProtocolError, decode};

/// The commands in some bytes, and the error that ends them.
type Read = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Decodes pieces as a connection does: after each piece, complete commands are taken.
fn decode_pieces(pieces: &[&[u8]], unauthenticated: bool) -> Read {
    let (mut commands, mut bytes) = (Vec::new(), Vec::new());
    for piece in pieces {
        bytes.extend_from_slice(piece);
        let mut unread = &mut bytes[..];
        loop {
            let before = unread.len();
            match decode(&mut unread, unauthenticated) {
                Ok(Some(args)) if args.is_empty() => {}
                Ok(Some(args)) => commands.push(args.iter().map(|arg| arg.to_vec()).collect()),
                Ok(None) => break,
                Err(error) => return (commands, Some(error)),
            }
            assert!(unread.len() < before, "it goes on");
        }
        bytes = unread.to_vec();
    }
    (commands, None)
}

/// Decodes complete input step by step, as the protocol is specified.
fn naive(bytes: &[u8]) -> Read {
    let mut commands = Vec::new();
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let read = if *first == b'*' { naive_array(&mut rest) } else { naive_line(&mut rest) };
        match read {
            Ok(Some(args)) if args.is_empty() => {}
            Ok(Some(args)) => commands.push(args),
            Ok(None) => break,
            Err(error) => return (commands, Some(error)),
        }
    }
    (commands, None)
}

type NaiveCommand = Result<Option<Vec<Vec<u8>>>, ProtocolError>;

fn naive_array(rest: &mut &[u8]) -> NaiveCommand {
    let mut at = *rest;
    let Some(count) = naive_length(&mut at, ProtocolError::TooBigMultibulkCount)? else {
        return Ok(None);
    };
    let count =
        count.filter(|count| *count <= 1024).ok_or(ProtocolError::InvalidMultibulkLength)?;
    let mut args = Vec::new();
    for _ in 0..count {
        let kind = at.first().copied();
        let Some(length) = naive_length(&mut at, ProtocolError::TooBigBulkCount)? else {
            return Ok(None);
        };
        if let Some(other) = kind.filter(|kind| *kind != b'$') {
            return Err(ProtocolError::ExpectedBulk(other));
        }
        let length = length.filter(|length| (0..=32 * 1024).contains(length));
        let length = length.ok_or(ProtocolError::InvalidBulkLength)?;
        let length = usize::try_from(length).expect("it is not negative");
        if at.len() < length + 2 {
            return Ok(None);
        }
        args.push(at[..length].to_vec());
        at = &at[length + 2..];
    }
    *rest = at;
    Ok(Some(args))
}

fn naive_length(
    at: &mut &[u8],
    too_long: ProtocolError,
) -> Result<Option<Option<i64>>, ProtocolError> {
    let Some(end) = at.iter().take(32).position(|byte| *byte == b'\r') else {
        return if at.len() > 32 { Err(too_long) } else { Ok(None) };
    };
    if at.len() < end + 2 {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(at.get(1..end).unwrap_or_default()).into_owned();
    *at = &at[end + 2..];
    // A number in the form of Redis is unchanged if it is parsed and formatted.
    Ok(Some(text.parse::<i64>().ok().filter(|number| number.to_string() == text)))
}

fn naive_line(rest: &mut &[u8]) -> NaiveCommand {
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
        let too_long = rest.len() >= MAX_COMMAND_BYTES;
        return if too_long { Err(ProtocolError::TooBigInline) } else { Ok(None) };
    };
    let mut line = &rest[..end];
    *rest = &rest[end + 1..];
    line = line.strip_suffix(b"\r").unwrap_or(line);
    let (mut words, mut word, mut quote) = (Vec::new(), None::<Vec<u8>>, None);
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let space = matches!(byte, b' ' | b'\t'..=b'\r');
        match quote {
            None if space => words.extend(word.take()),
            None if byte == b'"' || byte == b'\'' => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            None => word.get_or_insert_default().push(byte),
            Some(mark) if byte == mark => {
                if bytes.peek().is_some_and(|next| !matches!(next, b' ' | b'\t'..=b'\r')) {
                    return Err(ProtocolError::UnbalancedQuotes);
                }
                quote = None;
                words.extend(word.take());
            }
            Some(mark) => {
                let pushed = match (mark, byte, bytes.peek().copied()) {
                    (b'\'', b'\\', Some(b'\'')) => bytes.next().expect("peeked"),
                    (b'"', b'\\', Some(escaped)) => {
                        bytes.next();
                        let digits: Vec<u8> = bytes.clone().take(2).collect();
                        let digits = std::str::from_utf8(&digits).unwrap_or_default();
                        let is_hex = digits.len() == 2 && !digits.starts_with('+');
                        match (escaped, u8::from_str_radix(digits, 16)) {
                            (b'x', Ok(value)) if is_hex => {
                                bytes.nth(1);
                                value
                            }
                            (b'n', _) => b'\n',
                            (b'r', _) => b'\r',
                            (b't', _) => b'\t',
                            (b'b', _) => 8,
                            (b'a', _) => 7,
                            _ => escaped,
                        }
                    }
                    _ => byte,
                };
                word.get_or_insert_default().push(pushed);
            }
        }
    }
    if quote.is_some() {
        return Err(ProtocolError::UnbalancedQuotes);
    }
    words.extend(word.take());
    Ok(Some(words))
}

/// A deterministic pseudo-random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).expect("64 bits") % end
    }

    fn one<'a>(&mut self, of: &[&'a [u8]]) -> &'a [u8] {
        of[self.below(of.len())]
    }
}

/// Pieces of valid and invalid commands.
const PIECES: [&[u8]; 34] = [
    b"*1\r\n$4\r\nPING\r\n",
    b"*3\r\n$8\r\nTG.CHECK\r\n$5\r\nlogin\r\n$1\r\na\r\n",
    b"PING\r\n",
    b"ECHO 'a b'\r\n",
    b"ECHO \"\\x41\\n\\\"\"\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"*",
    b"$",
    b"*2\r\n",
    b"$3\r\nabc\r\n",
    b"$0\r\n\r\n",
    b"$12\r\nabcdefghijkl\r\n",
    b"$-1\r\n",
    b"$4294967296\r\n",
    b"*1000000\r\n",
    b"*01\r\n",
    b"+OK\r\n",
    b":1\r\n",
    b"\"",
    b"'",
    b"\\",
    b"\\x4",
    b" ",
    b"\t",
    b"\x00",
    b"\xff\xfe",
    b"1111111111111111111111111111111111",
    b"*1024\r\n",
    b"$32768\r\n",
    b"a",
];

#[test]
fn decoding_does_not_depend_on_splits() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut complete, mut broken) = (0, 0);
    for _ in 0..60_000 {
        let mut bytes = Vec::new();
        for _ in 0..=random.below(6) {
            bytes.extend_from_slice(random.one(&PIECES));
        }
        for _ in 0..random.below(3) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = u8::try_from(random.below(256)).expect("a byte"),
                1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at + 1),
            }
            if bytes.is_empty() {
                bytes.push(b'*');
            }
        }
        let expected = naive(&bytes);
        assert_eq!(decode_pieces(&[&bytes], false), expected, "{}", bytes.escape_ascii());
        let (mut pieces, mut rest) = (Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(1 + random.below(rest.len()));
            pieces.push(piece);
            rest = later;
        }
        assert_eq!(decode_pieces(&pieces, false), expected, "{}", bytes.escape_ascii());
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decode_pieces(&single, false), expected, "{}", bytes.escape_ascii());
        complete += expected.0.len();
        broken += usize::from(expected.1.is_some());
    }
    assert!(complete > 30_000 && broken > 10_000, "{complete} commands, {broken} errors");
}
