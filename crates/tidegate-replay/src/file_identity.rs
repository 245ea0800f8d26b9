//! Which file a path leads to.
//!
//! Paths differ where files do not: `./x`, links, standard input that comes from a file.
//! So files are told apart by what the system knows them by. Only regular files are: of
//! a device or a pipe nothing is lost by writing to it.

use std::path::{Path, PathBuf};

/// Whether a path stands for standard input or output.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Whether what is read and what is written are one regular file.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let both = (file_id(one), file_id(other));
    matches!(both, (Some(one), Some(other)) if one == other)
}

/// Whether two paths would be written to one regular file, which need not exist yet.
pub fn is_same_output(one: &Path, other: &Path) -> bool {
    if is_dash(one) || is_dash(other) {
        return false;
    }
    match (one.metadata(), other.metadata()) {
        (Err(_), Err(_)) => {
            matches!((future_path(one), future_path(other)), (Some(a), Some(b)) if a == b)
        }
        _ => is_same_file(one, other),
    }
}

/// Where a file that does not exist would be.
fn future_path(path: &Path) -> Option<PathBuf> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new(".")).canonicalize().ok()?;
    Some(directory.join(path.file_name()?))
}

/// A file, by its device and number there.
#[cfg(unix)]
fn file_id(path: &Path) -> Option<(u64, u64)> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    let metadata = if is_dash(path) {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().ok()?;
        std::fs::File::from(stdin).metadata().ok()?
    } else {
        path.metadata().ok()?
    };
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

/// A file, by its full path.
#[cfg(not(unix))]
fn file_id(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|full| !is_dash(path) && full.is_file())
}
