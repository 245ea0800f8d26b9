//! Decompresses Zstandard, frame by frame.
//!
//! A file may consist of several frames, with skippable frames among them, as written by `zstd`,
//! `pzstd` and concatenation. Only the window of the current frame is held, and its size is bounded
//! by the decoder.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Reads the contents of the frames of a file.
pub struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
    /// The error to return after everything that was decoded before it has been read.
    fault: Option<io::Error>,
}

/// An empty last block, and a checksum that is not verified. The decoder holds back a whole window
/// for blocks to come; after the last block it returns that data.
const NO_MORE: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

impl<R: BufRead> Zstd<R> {
    pub fn new(source: R) -> Self {
        Zstd { source, decoder: FrameDecoder::new(), in_frame: false, fault: None }
    }

    /// Begins the next frame with data. Returns whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => self.skip(length.into())?,
                Err(error) => return Err(self.fault(error)),
            }
        }
    }

    fn skip(&mut self, length: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
        if skipped < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn end(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stored_checksum = self.decoder.get_checksum_from_data();
        if stored_checksum.is_some() && stored_checksum != self.decoder.get_calculated_checksum() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "wrong checksum"));
        }
        Ok(())
    }

    /// Returns `UnexpectedEof` at the end of the file, and `InvalidData` elsewhere.
    fn fault(&mut self, error: FrameDecoderError) -> io::Error {
        match self.source.fill_buf() {
            Ok([]) => io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => io::Error::new(io::ErrorKind::InvalidData, error),
            Err(error) => error,
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(fault) = self.fault.take() {
                let length = self.decoder.read(buffer)?;
                if length == 0 {
                    return Err(fault);
                }
                self.fault = Some(fault);
                return Ok(length);
            }
            if !self.in_frame {
                self.in_frame = self.begin()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.end()?;
                continue;
            }
            let one = BlockDecodingStrategy::UptoBlocks(1);
            if let Err(error) = self.decoder.decode_blocks(&mut self.source, one) {
                self.fault = Some(self.fault(error));
                // The result does not matter, because the frame has already failed.
                let _ =
                    self.decoder.decode_blocks(&NO_MORE[..], BlockDecodingStrategy::UptoBlocks(1));
            }
        }
    }
}
