//! Runs the binary.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The output of a run.
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, 0, "stderr: {}", self.stderr);
        self
    }

    /// Asserts that the run failed with this exit code and an error message that contains all of
    /// `parts` and no internal details.
    #[track_caller]
    pub fn failed(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "stderr: {}", self.stderr);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        assert_eq!(self.stdout, "");
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect(&self.stdout)
    }
}

pub fn tidegate(args: &[&str]) -> Output {
    tidegate_reading(args, b"")
}

/// Runs the binary with these bytes on standard input.
pub fn tidegate_reading(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    let output = std::thread::scope(|scope| {
        // A run that stops early closes the pipe, which is not an error.
        scope.spawn(move || drop(pipe.write_all(stdin)));
        child.wait_with_output().expect("the binary ends")
    });
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Output {
        code: output.status.code().expect("no signal"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// A directory for the files of one test, initially empty.
pub struct Files {
    directory: PathBuf,
}

impl Files {
    pub fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        if directory.exists() {
            fs::remove_dir_all(&directory).expect("old files are removed");
        }
        fs::create_dir_all(&directory).expect("a directory");
        Files { directory }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).into_os_string().into_string().expect("UTF-8")
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, content).expect("a file");
        path
    }

    /// Replaces a file at once, so that a server that watches it never reads half of it.
    pub fn replace(&self, name: &str, content: impl AsRef<[u8]>) {
        let complete = self.write(&format!("{name}.part"), content);
        fs::rename(complete, self.path(name)).expect("the same directory");
    }
}

pub fn gzip(content: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content.as_ref()).expect("memory");
    encoder.finish().expect("memory")
}

pub fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("memory");
        hex
    })
}

/// Returns the decisions for a trace on standard input.
#[track_caller]
pub fn decisions(trace: &str, args: &[&str]) -> String {
    let args = [&["replay", "-", "--decisions", "-"], args].concat();
    tidegate_reading(&args, trace.as_bytes()).succeeded().stdout
}
