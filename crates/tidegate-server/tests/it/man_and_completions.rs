//! Shell completions and manual pages.

use std::fs;
use std::process::Command;

use crate::cli_harness::{Files, tidegate};

/// Returns the commands that `tidegate --help` lists.
fn commands() -> Vec<String> {
    let help = tidegate(&["--help"]).succeeded().stdout;
    let (_, list) = help.split_once("Commands:\n").expect("a list");
    let names = list.lines().map_while(|line| line.split_whitespace().next());
    let names: Vec<_> = names.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(names.len() >= 6, "{names:?}");
    names
}

#[test]
fn completions_cover_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = tidegate(&["completions", shell]).succeeded().stdout;
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
        assert!(script.contains("log-format"), "{shell}");
    }
    let unknown = tidegate(&["completions", "csh"]);
    unknown.failed(2, &["invalid value 'csh'", "[possible values: bash, elvish, fish,"]);
}

#[test]
fn bash_completes_commands_options_and_values() {
    let script = Files::new("papers-bash")
        .write("tidegate.bash", tidegate(&["completions", "bash"]).succeeded().stdout);
    let rows = [
        ("tidegate repl", "replay"),
        ("tidegate config s", "schema"),
        ("tidegate serve --insec", "--insecure-no-auth"),
        ("tidegate serve --log-format j", "json"),
    ];
    for (typed, completed) in rows {
        let ask = format!(
            "source '{script}'; COMP_WORDS=({typed}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
             _tidegate tidegate \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["-c", &ask]).output().expect("bash");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            printed.trim(),
            completed,
            "{typed}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn man_pages_cover_every_option() {
    let files = Files::new("papers-man");
    assert_eq!(tidegate(&["man", "--dir", &files.path(".")]).succeeded().stdout, "");
    let first = tidegate(&["man"]).succeeded().stdout;
    assert_eq!(fs::read_to_string(files.path("tidegate.1")).expect("a page"), first);
    for command in commands() {
        let page = fs::read_to_string(files.path(&format!("tidegate-{command}.1")));
        let page = page.unwrap_or_else(|error| panic!("{command}: {error}"));
        assert!(
            page.contains(&format!("tidegate\\-{command} \\- ")),
            "{command}: the name of the page"
        );
        let help = tidegate(&[&command, "--help"]).succeeded().stdout;
        let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
        for flag in flags.filter_map(|flag| flag.split_whitespace().next()) {
            let flag = format!("\\-\\-{}", flag.replace('-', "\\-"));
            assert!(page.contains(&flag), "{command}: {flag}");
        }
        assert!(
            first.contains(&format!("tidegate\\-{command}(1)")),
            "{command}: listed on the main page"
        );
    }
}

#[test]
fn man_rejects_missing_directory() {
    let nowhere = Files::new("papers-nowhere").path("none");
    let run = tidegate(&["man", "--dir", &nowhere]);
    run.failed(1, &[&nowhere, "make the directory first"]);
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for args in [&["completions", "bash"][..], &["man"], &["config", "schema"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(args).stdout(full).output().expect("tidegate");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {printed}");
        assert!(printed.starts_with("error: standard output: "), "{args:?}: {printed}");
    }
}
