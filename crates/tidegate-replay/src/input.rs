//! Files as lines: plain, gzipped or compressed with zstd, in bounded memory.
//!
//! The compression is detected by the first bytes of a file, not by its name. Lines are found in
//! one buffer of fixed size. A line longer than [`MAX_LINE_BYTES`] is skipped, whatever its length.

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

/// The longest accepted line. Keys are limited to 64 KiB, and log lines are shorter than that.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// The size of the line buffer: a few of the longest lines or thousands of ordinary ones, and small
/// enough to stay in the cache while they are parsed.
const BUFFER_BYTES: usize = 256 * 1024;

/// The number of bytes of a line longer than the buffer that are kept for the error message.
const OVERLONG_SHOWN: usize = 80;

/// The size of the buffer between the file and the decompressor.
const RAW_BUFFER_BYTES: usize = 128 * 1024;

/// The signature in the first header of a tar archive, and its position.
const TAR_SIGNATURE: (usize, &[u8]) = (257, b"ustar");

/// The number of first bytes that contain every signature.
const SIGNATURE_BYTES: usize = TAR_SIGNATURE.0 + TAR_SIGNATURE.1.len();

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstd,
    /// Recognised, so that the error can name it, but not supported.
    Xz,
    Bzip2,
    Zip,
}

impl Compression {
    /// The name of the compression.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Xz => "xz",
            Compression::Bzip2 => "bzip2",
            Compression::Zip => "zip",
        }
    }

    /// The command that writes the decompressed file to its output.
    pub const fn command(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip -dc",
            Compression::Zstd => "zstd -dc",
            Compression::Xz => "xz -dc",
            Compression::Bzip2 => "bzip2 -dc",
            Compression::Zip => "unzip -p",
        }
    }

    fn detect(head: &[u8]) -> Option<Self> {
        let signatures: [(&[u8], _); 5] = [
            (b"\x1f\x8b", Compression::Gzip),
            (b"\x28\xb5\x2f\xfd", Compression::Zstd),
            (b"\xfd7zXZ\0", Compression::Xz),
            (b"BZh", Compression::Bzip2),
            (b"PK\x03\x04", Compression::Zip),
        ];
        let known = signatures.into_iter().find(|(magic, _)| head.starts_with(magic));
        // A zstd file may begin with a skippable frame, of which there are 16 kinds.
        let skippable = head.get(1..4) == Some(b"\x2a\x4d\x18") && head[0] >> 4 == 5;
        known.map(|(_, kind)| kind).or(skippable.then_some(Compression::Zstd))
    }
}

/// Why a compressed file ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Truncated,
    Corrupt,
}

/// The number of bytes read from the file so far, before decompression.
pub type BytesRead = Arc<AtomicU64>;

/// A line, or a marker for a line that was skipped.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// The range of the line in the buffer; see [`Lines::text`].
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

/// Reports the errors that can be found before a file is read, so that a long replay does not fail
/// at its last file. Returns the size of a regular file.
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
    // Opening a pipe could block, or consume the reader that it waits for.
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

    /// Reads the first bytes of the text. Skips a byte order mark, which spreadsheets write before
    /// the first field.
    fn begin(&mut self) -> Result<(), ReplayError> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        while self.end < SIGNATURE_BYTES && !self.ended {
            self.fill()?;
        }
        let head = &self.buffer[..self.end];
        if let (Some(outer), Some(inner)) = (self.compression, Compression::detect(head)) {
            return Err(FileFault::CompressedTwice([outer, inner]).at(&self.path));
        }
        let (at, signature) = TAR_SIGNATURE;
        if head.get(at..).is_some_and(|rest| rest.starts_with(signature)) {
            return Err(FileFault::Tar.at(&self.path));
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

    /// Returns why the file ended early, once it has.
    pub fn damage(&self) -> Option<Damage> {
        self.damage
    }

    /// Returns the first lines that are not blank, at most `count`, without consuming them.
    pub fn peek(&mut self, count: usize) -> Result<Vec<&[u8]>, ReplayError> {
        while !self.ended && self.end < self.buffer.len() && self.in_buffer().count() < count {
            self.fill()?;
        }
        Ok(self.in_buffer().take(count).collect())
    }

    /// Returns the start of the first line if that line does not fit the buffer.
    pub fn overlong(&self) -> Option<Vec<u8>> {
        let bytes = &self.buffer[self.start..self.end];
        let whole = self.ended || memchr::memchr(b'\n', bytes).is_some();
        (!whole).then(|| bytes[..bytes.len().min(OVERLONG_SHOWN)].to_vec())
    }

    /// Returns the complete lines in the buffer that are not blank.
    fn in_buffer(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = &self.buffer[self.start..self.end];
        let whole = if self.ended && self.damage.is_none() {
            bytes
        } else {
            &bytes[..memchr::memrchr(b'\n', bytes).unwrap_or(0)]
        };
        whole.split(|&byte| byte == b'\n').map(trim_return).filter(|line| !line.is_empty())
    }

    /// Returns the next line, including blank ones, or `None` at the end.
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
                // The last line of a damaged file is incomplete, so it is dropped.
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

    /// Returns the text of the line returned last, without its line ending.
    #[inline]
    pub fn text(&self, range: Range<usize>) -> &[u8] {
        trim_return(&self.buffer[range])
    }

    /// Moves the unread bytes to the front of the buffer and reads more behind them. There is
    /// always space for more: the unread bytes are at most one line, or [`Lines::peek`] stopped
    /// before the buffer was full.
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

/// Counts the bytes read, for the progress bar.
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

    /// Returns a few bytes per read, so that lines are split between reads at every position.
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
