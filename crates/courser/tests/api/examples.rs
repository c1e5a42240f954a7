//! Each example runs to its end and stays short.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The modification time of a file, or of the newest file in a directory.
fn changed(path: &Path) -> SystemTime {
    if !path.is_dir() {
        return path.metadata().unwrap().modified().unwrap();
    }
    let entries = path.read_dir().unwrap().map(|entry| changed(&entry.unwrap().path()));
    entries.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Whether a program is newer than its sources. Then `cargo test` has built it, and building it
/// alone would rebuild its dependencies with other features.
fn is_fresh(program: &Path, name: &str) -> bool {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["src", "../buf/src", "../net/src", "../proto/src", "../../Cargo.lock"];
    let example = format!("examples/{name}.rs");
    let newest = sources.iter().chain([&&*example]).map(|s| changed(&here.join(s))).max();
    program.exists() && Some(changed(program)) > newest
}

/// Builds an example unless `cargo test` did, and returns the path of its program.
fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    // The path is .../debug/deps/examples-0123, so the profile's directory is two levels up.
    let dir = own.ancestors().nth(2).unwrap();
    let program = dir.join("examples").join(name);
    if is_fresh(&program, name) {
        return program;
    }
    let profile = if dir.ends_with("release") { "release" } else { "test" };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "courser", "--example", name])
        .args(["--profile", profile, "--target-dir"])
        .arg(dir.parent().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(built.success());
    program
}

fn prints(name: &str, text: &str) {
    let output = Command::new(program(name)).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.contains(text) && stderr.is_empty(), "{stdout}{stderr}");
}

#[test]
fn hello_runs() {
    prints("hello", "hello, world");
}

#[test]
fn large_runs() {
    prints("large", "round 3: 8388608 bytes there and back");
}

#[test]
fn nested_runs() {
    prints("nested", "the square after 11 is 144");
}

#[test]
fn failover_runs() {
    prints("failover", "written: 1 2 3 4\n");
}

#[test]
fn worker_runs() {
    prints("worker", "33860 primes below 400000; pings answered meanwhile: ");
}

#[test]
fn the_first_examples_are_under_sixty_lines() {
    for name in ["hello", "nested", "large", "worker"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
        let lines = std::fs::read_to_string(path).unwrap().lines().count();
        assert!(lines < 60, "{name}: {lines} lines");
    }
}
