//! Errors of the compiler about types that a codec does not send, by compiling `fixtures/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde_json::Value;

/// An error: its line, the source that it points at, and its message.
#[derive(PartialEq, Debug)]
struct Reported {
    line: u64,
    at: String,
    message: String,
}

/// Compiles a fixture against a build of the library, up to the errors of types.
fn compile(fixture: &str, library: &Path) -> Vec<Reported> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dependencies = library.parent().unwrap();
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .current_dir(manifest)
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--error-format=json"])
        .arg(format!("--extern=courser={}", library.display()))
        .arg(format!("-Ldependency={}", dependencies.display()))
        .arg(format!("-o{}/{fixture}.rmeta", env!("CARGO_TARGET_TMPDIR")))
        .arg(manifest.join(format!("tests/service/fixtures/{fixture}.rs")))
        .output()
        .expect("a compiler");
    let text = String::from_utf8(output.stderr).unwrap();
    let mut errors = Vec::new();
    for line in text.lines() {
        let Ok(diagnostic) = serde_json::from_str::<Value>(line) else { continue };
        let spans = diagnostic["spans"].as_array().cloned().unwrap_or_default();
        // Without a place: the number of errors.
        let (true, Some(span)) = (diagnostic["level"] == "error", spans.first()) else { continue };
        assert_eq!(span["line_start"], span["line_end"], "{line}");
        let column = |name: &str| span[name].as_u64().unwrap() as usize - 1;
        let source = span["text"][0]["text"].as_str().unwrap_or_default();
        let at = source.get(column("column_start")..column("column_end")).unwrap_or_default();
        let message = diagnostic["message"].as_str().unwrap_or_default().to_owned();
        errors.push(Reported {
            line: span["line_start"].as_u64().unwrap(),
            at: at.into(),
            message,
        });
    }
    assert_eq!(output.status.success(), errors.is_empty(), "{text}");
    errors
}

/// The build of the library that this program has: the last one that a correct service compiles with.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(program.parent().unwrap()).unwrap();
    let mut builds: Vec<(SystemTime, PathBuf)> = files
        .map(|file| file.unwrap())
        .filter(|file| {
            let name = file.file_name().into_string().unwrap_or_default();
            name.starts_with("libcourser-") && name.ends_with(".rlib")
        })
        .map(|file| (file.metadata().unwrap().modified().unwrap(), file.path()))
        .collect();
    builds.sort();
    let found = builds.into_iter().rev().find(|(_, path)| compile("sent", path).is_empty());
    found.expect("no build of the library is usable").1
}

#[test]
fn a_type_that_the_codec_does_not_send_is_reported_once_at_the_type_in_the_method() {
    let source = include_str!("fixtures/unsent.rs");
    let mut errors = compile("unsent", &library());
    errors.sort_by_key(|error| error.line);
    // Comments state what is wrong in their line: the type, and what the text says about it.
    let mut expected = source.lines().enumerate().filter_map(|(n, line)| {
        let (at, says) = line.split_once("//~ ")?.1.split_once(" => ")?;
        Some((n as u64 + 1, at, says))
    });
    for error in &errors {
        let (line, at, says) = expected.next().unwrap_or_else(|| panic!("also {error:?}"));
        assert_eq!((error.line, &*error.at), (line, at), "{error:?}");
        let (message, is_sent) = (&error.message, " cannot be sent by the codec ");
        assert!(message.contains(is_sent) && message.contains(says), "{error:?}");
    }
    assert_eq!(expected.next(), None);
}
