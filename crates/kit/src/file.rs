//! Files that are replaced atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Writes a result as one JSON value and a newline; `-` is standard output.
///
/// A file is written under a temporary name and renamed, so it is complete or absent. A closed standard
/// output is no error.
///
/// # Errors
/// An error of the system; the temporary file is removed.
pub fn write_json(target: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    write_text(target, &text)
}

/// Writes a text in the same way as [`write_json`].
///
/// # Errors
/// An error of the system; the temporary file is removed.
pub fn write_text(target: &Path, text: &str) -> io::Result<()> {
    if target == Path::new("-") {
        return quiet_on_broken_pipe(write_all(io::stdout().lock(), text));
    }
    match fs::canonicalize(target) {
        // The target of a symbolic link is replaced, not the link.
        Ok(real) if real.is_file() => replace(&real, text),
        // A pipe or a device is written directly, because a rename would replace it.
        Ok(real) if !real.is_dir() => {
            let file = OpenOptions::new().write(true).open(real)?;
            quiet_on_broken_pipe(write_all(file, text))
        }
        Ok(_) => Err(io::ErrorKind::IsADirectory.into()),
        Err(_) => replace(target, text),
    }
}

fn write_all(mut sink: impl Write, text: &str) -> io::Result<()> {
    sink.write_all(text.as_bytes())?;
    sink.flush()
}

fn quiet_on_broken_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn replace(target: &Path, text: &str) -> io::Result<()> {
    let temporary = beside(target)?;
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary)
        .and_then(|mut file: File| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, target));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A temporary name in the same directory, because a rename does not cross file systems.
pub fn beside(target: &Path) -> io::Result<PathBuf> {
    let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.part", std::process::id()));
    Ok(target.with_file_name(temporary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_whole() {
        let directory = std::env::temp_dir().join(format!("courser-file-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("temporary directory");
        let value = serde_json::json!({"a": [1, 2]});
        let target = directory.join("out.json");
        let link = directory.join("link.json");
        fs::write(&target, "old and longer than nothing").expect("write");
        std::os::unix::fs::symlink(&target, &link).expect("link");

        write_json(&link, &value).expect("written");
        let text = fs::read_to_string(&target).expect("read");
        assert!(text.ends_with("}\n"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("parses"), value);
        assert!(link.is_symlink(), "the link stays");

        assert!(write_json(&directory, &value).is_err(), "a directory");
        assert!(write_json(&directory.join("none/out.json"), &value).is_err());
        assert!(write_json(Path::new("/dev/null"), &value).is_ok());
        let left = fs::read_dir(&directory).expect("list").count();
        fs::remove_dir_all(&directory).expect("clean up");
        assert_eq!(left, 2, "no temporary file stays");
    }

    #[test]
    fn only_a_broken_pipe_is_quiet() {
        assert!(quiet_on_broken_pipe(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(quiet_on_broken_pipe(Err(io::ErrorKind::StorageFull.into())).is_err());
        let (reader, writer) = io::pipe().expect("pipe");
        drop(reader);
        assert!(quiet_on_broken_pipe(write_all(writer, "text")).is_ok());
    }
}
