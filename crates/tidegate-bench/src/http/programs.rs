//! Builds or installs the measured programs.
//!
//! tidegate is built by `cargo build --release`, unless a path is given. throttlecrab's server is
//! installed from its published crate, next to the build. It is not a dependency of this crate,
//! although it has a library: its build script needs `protoc`, and then every build of the
//! benchmarks would need it. The `protoc` from a crate is passed to it here. It is built with the
//! settings of our release profile; otherwise the comparison would be one of compiler settings.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::subjects::version;

/// Builds tidegate in release mode and returns the path.
pub fn tidegate() -> io::Result<PathBuf> {
    eprintln!("building tidegate (cargo build --release -p tidegate-server)");
    let output = Command::new(cargo())
        .args(["build", "--release", "--locked", "-p", "tidegate-server"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(
            "building tidegate failed; use --tidegate PATH for an existing binary",
        ));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let executables = lines.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    let mut executable =
        executables.filter(|path| path.file_stem().is_some_and(|name| name == "tidegate"));
    executable
        .next()
        .ok_or_else(|| io::Error::other("cargo reported no executable named `tidegate`"))
}

/// Installs throttlecrab's server in the version of the library that is measured in process.
pub fn throttlecrab() -> io::Result<PathBuf> {
    let root = target_directory()?.join("bench-peers");
    let program = root.join("bin/throttlecrab-server");
    let version = version("throttlecrab");
    if is_version(&program, version) {
        return Ok(program);
    }
    eprintln!(
        "installing throttlecrab-server {version} into {} (takes minutes, only once)",
        root.display()
    );
    let protoc = protoc_bin_vendored::protoc_bin_path().map_err(io::Error::other)?;
    let status = Command::new(cargo())
        .args(["install", "--locked", "throttlecrab-server", "--version", version, "--root"])
        .arg(&root)
        .env("CARGO_TARGET_DIR", root.join("build"))
        .env("CARGO_PROFILE_RELEASE_LTO", "thin")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("PROTOC", protoc)
        .stdout(Stdio::from(io::stderr()))
        .status()?;
    if !status.success() {
        return Err(io::Error::other(
            "installing throttlecrab-server failed; exclude it with --subject, e.g. --subject tidegate-check,axum",
        ));
    }
    Ok(program)
}

fn is_version(program: &Path, version: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(version))
}

/// Returns the cargo that runs this program, or `cargo` from the path.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns the build directory: `target` of `target/release/tidegate-bench`.
fn target_directory() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).map(Path::to_path_buf);
    target.ok_or_else(|| io::Error::other("this program is not in a target directory"))
}
