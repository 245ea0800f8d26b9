//! Every kind of mistake in a file, with its complete error message.

use std::fs;
use std::path::PathBuf;

use super::converted;

const DIRECTORY: &str = "tests/it/envoy/errors";

fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(DIRECTORY).expect("the directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    paths.sort();
    paths
}

#[test]
fn error_messages_are_as_recorded() {
    assert!(files().len() > 20);
    let bless = std::env::var_os("TIDEGATE_BLESS").is_some();
    let mut wrong = Vec::new();
    for path in files() {
        let text = fs::read_to_string(&path).expect("a file");
        let found = match converted(&text) {
            Ok(converted) => panic!("{}: {:?}", path.display(), converted.yaml()),
            Err(errors) => format!("error: {errors}\n"),
        };
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
