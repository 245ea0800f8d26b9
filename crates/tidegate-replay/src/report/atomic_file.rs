//! Files that are replaced only when they are complete.
//!
//! A replay can fail late, and the previous contents of a file are then still needed. So the new
//! contents are written to a temporary file in the same directory, which is renamed at the end.
//! Pipes, devices and other files that are not regular are written directly.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The number of names tried for the temporary file. Killed runs may have left files behind.
const MAX_NAMES: u32 = 16;

/// A file that is being written.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    /// The temporary file, or `None` if the file is written directly.
    temporary: Option<PathBuf>,
    file: File,
    /// Whether the previous contents must be truncated before the first write.
    truncate_first: bool,
}

impl AtomicFile {
    /// Checks that the file can be written, without changing it yet.
    pub fn create(path: &Path) -> io::Result<Self> {
        // Symbolic links are followed, so that a link is not replaced.
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
                // The file may be writable although its directory is not.
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

    /// Writes more bytes.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.truncate_first) {
            self.file.set_len(0)?;
        }
        self.file.write_all(bytes)
    }

    /// Moves the temporary file to its final path.
    pub fn finish(mut self) -> io::Result<()> {
        self.write_all(b"")?;
        let Some(temporary) = &self.temporary else { return Ok(()) };
        match fs::rename(temporary, &self.path) {
            Ok(()) => {
                self.temporary = None;
                Ok(())
            }
            // A mount point cannot be replaced, but its contents can.
            Err(_) => fs::copy(temporary, &self.path).map(drop),
        }
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // An error is ignored: the file is useless, and cannot be reported here.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Creates a temporary file in the same directory.
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
