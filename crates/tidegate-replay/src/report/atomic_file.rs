//! Files that appear when they are whole.
//!
//! A replay can fail late, and what was in a file before is then still wanted. So
//! it is written beside its place and put there at the end. What is no regular file, a
//! pipe or a device, is written as it is.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Names tried for the file beside: others may be left of runs that were killed.
const MAX_NAMES: u32 = 16;

/// A file that is being written.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    /// Where it is written; none if that is its place.
    temporary: Option<PathBuf>,
    file: File,
    /// Whether what was there before has to go first.
    truncate_first: bool,
}

impl AtomicFile {
    /// Finds out whether it can be written, and changes nothing yet.
    pub fn create(path: &Path) -> io::Result<Self> {
        // A link stays one.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let before = match fs::metadata(&path) {
            Ok(metadata) => Some((metadata, File::options().write(true).open(&path)?)),
            Err(_) => None,
        };
        match before {
            Some((metadata, file)) if !metadata.is_file() => {
                Ok(AtomicFile { path, temporary: None, file, truncate_first: false })
            }
            Some((metadata, file)) => match temporary(&path) {
                Ok((temporary, new)) => {
                    let atomic = AtomicFile {
                        path,
                        temporary: Some(temporary),
                        file: new,
                        truncate_first: false,
                    };
                    atomic.file.set_permissions(metadata.permissions())?;
                    Ok(atomic)
                }
                // The file may be written though its directory may not.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    Ok(AtomicFile { path, temporary: None, file, truncate_first: true })
                }
                Err(error) => Err(error),
            },
            None => {
                let (temporary, file) = temporary(&path)?;
                Ok(AtomicFile { path, temporary: Some(temporary), file, truncate_first: false })
            }
        }
    }

    /// Writes more.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.truncate_first) {
            self.file.set_len(0)?;
        }
        self.file.write_all(bytes)
    }

    /// Puts it in its place.
    pub fn finish(mut self) -> io::Result<()> {
        self.write_all(b"")?;
        let Some(temporary) = &self.temporary else { return Ok(()) };
        match fs::rename(temporary, &self.path) {
            Ok(()) => {
                self.temporary = None;
                Ok(())
            }
            // A place that something is mounted on cannot be taken, only filled.
            Err(_) => fs::copy(temporary, &self.path).map(drop),
        }
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // It is of no use to anybody, and there is nobody to tell.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// A new file in the same directory.
fn temporary(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut number = 0;
    loop {
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}-{number}.part", std::process::id()));
        let temporary = path.with_file_name(name);
        match File::options().write(true).create_new(true).open(&temporary) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MAX_NAMES => {
                number += 1
            }
            made => return made.map(|file| (temporary, file)),
        }
    }
}
