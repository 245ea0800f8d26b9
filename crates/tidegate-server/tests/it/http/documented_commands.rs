//! The commands of `docs/http-api.md` print the documented output.

use std::process::Command;

use serde_json::Value;

use super::timeless;
use crate::server_harness::Start;

/// Returns the code blocks of a page, with their languages.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut fenced = page.split("```").skip(1).step_by(2);
    let mut blocks = Vec::new();
    while let Some((language, text)) = fenced.next().and_then(|block| block.split_once('\n')) {
        blocks.push((language, text.trim()));
    }
    blocks
}

/// Returns the response without its random parts.
fn settled(mut answer: Value) -> Value {
    if answer.get("id").is_some() {
        answer["id"] = "random".into();
    }
    timeless(&answer)
}

#[test]
fn documented_commands_print_documented_output() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http-api.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let blocks = blocks(&page);
    let (_, config) = blocks.iter().find(|(language, _)| *language == "yaml").expect("a config");
    let server = Start::new("documented").config(config).run();
    let mut checked = 0;
    for pair in blocks.windows(2) {
        let [("sh", command), ("json", expected)] = *pair else { continue };
        let command = command.replace("localhost:8080", &server.http().to_string());
        let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
        assert!(output.status.success(), "is curl installed? {command}");
        let got: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let expected: Value = serde_json::from_str(expected).expect("JSON");
        assert_eq!(settled(got), settled(expected), "{command}");
        checked += 1;
    }
    assert!(checked >= 6, "only {checked} commands were found");
}
