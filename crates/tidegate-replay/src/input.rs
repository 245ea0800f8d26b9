//! Files as lines: plain, gzipped or compressed with zstd, in bounded memory.
//!
//! A file is told apart by its first bytes, not its name. Lines are found in one
//! buffer of fixed size: a line that does not end within [`MAX_LINE_BYTES`] is
//! passed over, however long it goes on.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;

use crate::error::{FileFault, ReplayError};
use crate::file_identity::is_dash;
use crate::zstd::Zstd;

/// The longest line taken for one: keys end at 64 KiB, and no log line is as long.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// Holds a few of the longest lines and thousands of ordinary ones, and stays in
/// the cache while they are parsed.
const BUFFER_BYTES: usize = 256 * 1024;

/// How much of a line that does not fit the buffer is kept to be shown.
const OVERLONG_SHOWN: usize = 80;

/// What compressed data is taken from the file in.
const RAW_BUFFER_BYTES: usize = 128 * 1024;

/// By so many bytes everything is told apart that is.
const LONGEST_SIGNATURE: usize = 6;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstd,
    /// Recognised, to say so, but not read.
    Xz,
    Bzip2,
}

impl Compression {
    /// Its name, which is also the program's.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Xz => "xz",
            Compression::Bzip2 => "bzip2",
        }
    }

    fn detect(head: &[u8]) -> Option<Self> {
        let signatures: [(&[u8], _); 4] = [
            (b"\x1f\x8b", Compression::Gzip),
            (b"\x28\xb5\x2f\xfd", Compression::Zstd),
            (b"\xfd7zXZ\0", Compression::Xz),
            (b"BZh", Compression::Bzip2),
        ];
        let known = signatures.into_iter().find(|(magic, _)| head.starts_with(magic));
        // Files of zstd may begin with a frame to be skipped, of which there are 16 kinds.
        let skippable = head.get(1..4) == Some(b"\x2a\x4d\x18") && head[0] >> 4 == 5;
        known.map(|(_, kind)| kind).or(skippable.then_some(Compression::Zstd))
    }
}

/// How a compressed file ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Truncated,
    Corrupt,
}

/// The bytes of a file that have been read so far, as they lie on disk.
pub type BytesRead = Arc<AtomicU64>;

/// One line, or what stands in its place.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Where it lies; see [`Lines::text`].
    Text(Range<usize>),
    TooLong,
}

/// The lines of one file.
pub struct Lines {
    path: PathBuf,
    source: Box<dyn Read + Send>,
    compression: Option<Compression>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
    damage: Option<Damage>,
}

/// Finds what can be found wrong with a file before any is read, so that a long
/// replay does not fail at its last file. Returns its size, if it has one.
pub fn inspect(path: &Path) -> Result<Option<u64>, ReplayError> {
    if is_dash(path) {
        return Ok(None);
    }
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FileFault::Missing.at(path),
        _ => FileFault::Open(error).at(path),
    })?;
    if metadata.is_dir() {
        return Err(FileFault::Directory.at(path));
    }
    // Opening a pipe could wait, or take it from the reader to come.
    if metadata.is_file() {
        File::open(path).map_err(|error| FileFault::Open(error).at(path))?;
        if metadata.len() == 0 {
            return Err(FileFault::Empty.at(path));
        }
    }
    Ok(metadata.is_file().then_some(metadata.len()))
}

impl Lines {
    pub fn open(path: &Path, bytes_read: &BytesRead) -> Result<Self, ReplayError> {
        let raw: Box<dyn Read + Send> = if is_dash(path) {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(|error| FileFault::Open(error).at(path))?)
        };
        Self::read_from(path, CountingReader { raw, bytes_read: Arc::clone(bytes_read) })
    }

    fn read_from(path: &Path, raw: CountingReader) -> Result<Self, ReplayError> {
        let mut raw = BufReader::with_capacity(RAW_BUFFER_BYTES, raw);
        let head = loop {
            match raw.fill_buf() {
                Ok(head) => break head,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FileFault::Read(error).at(path)),
            }
        };
        if head.is_empty() {
            return Err(FileFault::Empty.at(path));
        }
        let compression = Compression::detect(head);
        let source: Box<dyn Read + Send> = match compression {
            None => Box::new(raw),
            Some(Compression::Gzip) => Box::new(MultiGzDecoder::new(raw)),
            Some(Compression::Zstd) => Box::new(Zstd::new(raw)),
            Some(other) => return Err(FileFault::Compressed(other).at(path)),
        };
        let buffer = vec![0; BUFFER_BYTES];
        let mut lines = Lines {
            path: path.to_path_buf(),
            source,
            compression,
            buffer,
            start: 0,
            end: 0,
            ended: false,
            damage: None,
        };
        lines.begin()?;
        Ok(lines)
    }

    /// Looks at the first bytes of the text. Spreadsheets begin theirs with a mark that is
    /// no part of the first field.
    fn begin(&mut self) -> Result<(), ReplayError> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        while self.end < LONGEST_SIGNATURE && !self.ended {
            self.fill()?;
        }
        let head = &self.buffer[..self.end];
        if let (Some(outer), Some(inner)) = (self.compression, Compression::detect(head)) {
            return Err(FileFault::CompressedTwice([outer, inner]).at(&self.path));
        }
        if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
            return Err(FileFault::Utf16.at(&self.path));
        }
        if head.starts_with(MARK) {
            self.start = MARK.len();
        }
        Ok(())
    }

    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// Why the file ended early, once it has.
    pub fn damage(&self) -> Option<Damage> {
        self.damage
    }

    /// The first lines that are not blank, at most `count`, without taking them.
    pub fn peek(&mut self, count: usize) -> Result<Vec<&[u8]>, ReplayError> {
        while !self.ended && self.end < self.buffer.len() && self.in_buffer().count() < count {
            self.fill()?;
        }
        Ok(self.in_buffer().take(count).collect())
    }

    /// How the first line begins if it does not fit the buffer.
    pub fn overlong(&self) -> Option<Vec<u8>> {
        let bytes = &self.buffer[self.start..self.end];
        let whole = self.ended || memchr::memchr(b'\n', bytes).is_some();
        (!whole).then(|| bytes[..bytes.len().min(OVERLONG_SHOWN)].to_vec())
    }

    /// Lines in the buffer that are whole and not blank.
    fn in_buffer(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = &self.buffer[self.start..self.end];
        let whole = if self.ended && self.damage.is_none() {
            bytes
        } else {
            &bytes[..memchr::memrchr(b'\n', bytes).unwrap_or(0)]
        };
        whole.split(|&byte| byte == b'\n').map(trim_return).filter(|line| !line.is_empty())
    }

    /// The next line, blank ones included; `None` at the end.
    #[inline]
    pub fn next(&mut self) -> Result<Option<Line>, ReplayError> {
        match memchr(b'\n', &self.buffer[self.start..self.end]) {
            Some(length) => Ok(Some(self.take(length, 1))),
            None => self.next_beyond_buffer(),
        }
    }

    #[cold]
    fn next_beyond_buffer(&mut self) -> Result<Option<Line>, ReplayError> {
        loop {
            let searched = self.end - self.start;
            if searched > MAX_LINE_BYTES {
                return self.skip_long_line().map(Some);
            }
            if self.ended {
                // The last line of a damaged file was cut somewhere: no telling what it said.
                if self.damage.is_some() {
                    self.start = self.end;
                }
                let length = self.end - self.start;
                return Ok((length > 0).then(|| self.take(length, 0)));
            }
            self.fill()?;
            let fresh = &self.buffer[self.start + searched..self.end];
            if let Some(length) = memchr(b'\n', fresh) {
                return Ok(Some(self.take(searched + length, 1)));
            }
        }
    }

    #[inline]
    fn take(&mut self, length: usize, newline: usize) -> Line {
        let range = self.start..self.start + length;
        self.start += length + newline;
        if length > MAX_LINE_BYTES { Line::TooLong } else { Line::Text(range) }
    }

    fn skip_long_line(&mut self) -> Result<Line, ReplayError> {
        self.start = self.end;
        while !self.ended {
            self.fill()?;
            match memchr(b'\n', &self.buffer[self.start..self.end]) {
                Some(length) => {
                    self.start += length + 1;
                    break;
                }
                None => self.start = self.end,
            }
        }
        Ok(Line::TooLong)
    }

    /// The text of the line last taken, without its line end.
    #[inline]
    pub fn text(&self, range: Range<usize>) -> &[u8] {
        trim_return(&self.buffer[range])
    }

    /// Reads more behind what is left, which moves to the front. There is always
    /// room: what is left is at most a line, or [`Lines::peek`] stopped in time.
    fn fill(&mut self) -> Result<(), ReplayError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let compressed = self.compression.is_some();
        match self.source.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.ended = true,
            Ok(length) => self.end += length,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::UnexpectedEof if compressed => self.end_at(Damage::Truncated),
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput if compressed => {
                    self.end_at(Damage::Corrupt);
                }
                _ => return Err(FileFault::Read(error).at(&self.path)),
            },
        }
        Ok(())
    }

    fn end_at(&mut self, damage: Damage) {
        self.ended = true;
        self.damage = Some(damage);
    }
}

#[inline]
fn trim_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Counts what passes, for the progress bar.
struct CountingReader {
    raw: Box<dyn Read + Send>,
    bytes_read: BytesRead,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.raw.read(buffer)?;
        self.bytes_read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out a few bytes at a time, so that lines meet the ends of reads everywhere.
    struct SlowReader {
        bytes: Vec<u8>,
        at: usize,
        step: usize,
    }

    impl Read for SlowReader {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.step.min(self.bytes.len() - self.at).min(buffer.len());
            buffer[..length].copy_from_slice(&self.bytes[self.at..self.at + length]);
            self.at += length;
            Ok(length)
        }
    }

    fn lines(bytes: &[u8], step: usize) -> Lines {
        let raw = Box::new(SlowReader { bytes: bytes.to_vec(), at: 0, step });
        Lines::read_from(
            Path::new("drip"),
            CountingReader { raw, bytes_read: BytesRead::default() },
        )
        .expect("not empty")
    }

    fn all(lines: &mut Lines) -> Vec<Option<Vec<u8>>> {
        let mut all = Vec::new();
        while let Some(line) = lines.next().expect("no error") {
            all.push(match line {
                Line::Text(range) => Some(lines.text(range).to_vec()),
                Line::TooLong => None,
            });
        }
        all
    }

    #[test]
    fn lines_do_not_depend_on_read_sizes() {
        let text = b"\xef\xbb\xbfone\r\n\ntwo\n\nthree";
        let expected: Vec<_> =
            ["one", "", "two", "", "three"].map(|line| Some(line.as_bytes().to_vec())).into();
        for step in [1, 2, 3, 5, 100] {
            assert_eq!(all(&mut lines(text, step)), expected, "{step}");
        }
    }

    #[test]
    fn skips_and_counts_overlong_line_once() {
        for length in [MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 2 * BUFFER_BYTES, 5 * BUFFER_BYTES + 7] {
            let mut text = b"a\n".to_vec();
            text.extend(std::iter::repeat_n(b'x', length));
            let long = (length <= MAX_LINE_BYTES).then(|| text[2..].to_vec());
            text.extend(b"\nb");
            for step in [MAX_LINE_BYTES - 1, 1 << 20] {
                let expected = [Some(b"a".to_vec()), long.clone(), Some(b"b".to_vec())];
                assert!(all(&mut lines(&text, step)) == expected, "{length} in steps of {step}");
            }
            text.truncate(length + 2);
            let unended = [Some(b"a".to_vec()), long];
            assert!(all(&mut lines(&text, 1 << 20)) == unended, "{length} at the end");
        }
    }

    #[test]
    fn peeking_consumes_nothing() {
        let mut lines = lines(b"\n\none\ntwo\nthree", 2);
        assert_eq!(lines.peek(2).expect("no error"), [b"one", b"two"]);
        assert_eq!(lines.peek(9).expect("no error"), [&b"one"[..], b"two", b"three"]);
        assert_eq!(all(&mut lines).len(), 5);
    }
}
