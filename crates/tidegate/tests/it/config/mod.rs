//! Configs: the settings read from valid ones, and the complete message for every invalid one.
//!
//! `errors/NAME.yaml` must be rejected with exactly the text of `errors/NAME.txt`, and
//! `warnings/NAME.yaml` accepted with the warnings of `warnings/NAME.txt`. After a change of
//! wording, `TIDEGATE_BLESS=1 cargo test -p tidegate --features config --test it config` rewrites
//! the messages; review the diff.

mod errors;
mod hostile_input;
mod schema;
mod valid;
mod warnings;

use std::fs;
use std::path::{Path, PathBuf};

fn files(directory: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    paths.sort();
    paths
}

/// Asserts that the message of every config in the directory is that of the file beside it.
#[track_caller]
fn assert_as_recorded(directory: &str, message: impl Fn(&Path) -> String) {
    let bless = std::env::var_os("TIDEGATE_BLESS").is_some();
    let mut wrong = Vec::new();
    for path in files(directory, "yaml") {
        let found = message(&path);
        let golden = path.with_extension("txt");
        if bless {
            fs::write(&golden, &found).expect("written");
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if found != expected {
            wrong.push(format!("{}\n-- expected\n{expected}-- found\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
