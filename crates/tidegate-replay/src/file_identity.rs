//! Compares the files that paths lead to.
//!
//! Different paths can lead to the same file: `./x`, links, or standard input that is redirected
//! from a file. So files are compared by the identity that the system gives them. Only regular
//! files are compared, because writing to a device or a pipe does not destroy its input.

use std::path::{Path, PathBuf};

/// Returns whether a path stands for standard input or output.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns whether an input and an output are the same regular file.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let both = (file_id(one), file_id(other));
    matches!(both, (Some(one), Some(other)) if one == other)
}

/// Returns whether two outputs are both standard output, or the same regular file, which need not
/// exist yet.
pub fn is_same_output(one: &Path, other: &Path) -> bool {
    if is_dash(one) || is_dash(other) {
        return is_dash(one) && is_dash(other);
    }
    match (one.metadata(), other.metadata()) {
        (Err(_), Err(_)) => {
            matches!((future_path(one), future_path(other)), (Some(a), Some(b)) if a == b)
        }
        _ => is_same_file(one, other),
    }
}

/// Returns the path that a file would have if it were created.
fn future_path(path: &Path) -> Option<PathBuf> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new(".")).canonicalize().ok()?;
    Some(directory.join(path.file_name()?))
}

/// Identifies a file by its device and inode.
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

/// Identifies a file by its canonical path.
#[cfg(not(unix))]
fn file_id(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|full| !is_dash(path) && full.is_file())
}
