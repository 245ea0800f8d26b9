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
const NAMES: u32 = 16;

/// A file that is being written.
#[derive(Debug)]
pub struct Aside {
    path: PathBuf,
    /// Where it is written; none if that is its place.
    beside: Option<PathBuf>,
    file: File,
    /// Whether what was there before has to go first.
    full: bool,
}

impl Aside {
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
                Ok(Aside { path, beside: None, file, full: false })
            }
            Some((metadata, file)) => match beside(&path) {
                Ok((beside, new)) => {
                    let aside = Aside { path, beside: Some(beside), file: new, full: false };
                    aside.file.set_permissions(metadata.permissions())?;
                    Ok(aside)
                }
                // The file may be written though its directory may not.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    Ok(Aside { path, beside: None, file, full: true })
                }
                Err(error) => Err(error),
            },
            None => {
                let (beside, file) = beside(&path)?;
                Ok(Aside { path, beside: Some(beside), file, full: false })
            }
        }
    }

    /// Writes more.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.full) {
            self.file.set_len(0)?;
        }
        self.file.write_all(bytes)
    }

    /// Puts it in its place.
    pub fn finish(mut self) -> io::Result<()> {
        self.write_all(b"")?;
        let Some(beside) = &self.beside else { return Ok(()) };
        match fs::rename(beside, &self.path) {
            Ok(()) => {
                self.beside = None;
                Ok(())
            }
            // A place that something is mounted on cannot be taken, only filled.
            Err(_) => fs::copy(beside, &self.path).map(drop),
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // It is of no use to anybody, and there is nobody to tell.
            let _ = fs::remove_file(beside);
        }
    }
}

/// A new file in the same directory.
fn beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut number = 0;
    loop {
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}-{number}.part", std::process::id()));
        let beside = path.with_file_name(name);
        match File::options().write(true).create_new(true).open(&beside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < NAMES => number += 1,
            made => return made.map(|file| (beside, file)),
        }
    }
}
