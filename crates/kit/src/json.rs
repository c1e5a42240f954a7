//! Results as one JSON object, to standard output or to a file that is replaced atomically.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::environment::Environment;
use crate::fail::Failure;
use crate::{affinity, file, interrupt};

/// True for `-`.
pub fn is_stdout(target: &Path) -> bool {
    target == Path::new("-")
}

/// True if the JSON replaces the text on standard output.
pub fn only(target: Option<&Path>) -> bool {
    target.is_some_and(is_stdout)
}

/// Checks before a long measurement that the result can be written.
///
/// # Errors
/// The target's directory does not exist or cannot be written.
pub fn check_target(target: Option<&Path>) -> Result<(), Failure> {
    let Some(target) = target.filter(|target| !is_stdout(target)) else { return Ok(()) };
    if target.exists() && !target.is_file() {
        // A pipe or a device is opened when the result is written.
        let directory = io::Error::from(io::ErrorKind::IsADirectory);
        return if target.is_dir() { Err(Failure::writing(target, &directory)) } else { Ok(()) };
    }
    let part = file::beside(target).map_err(|e| Failure::writing(target, &e))?;
    let _writing = interrupt::writing();
    let tried = OpenOptions::new().write(true).create_new(true).open(&part);
    tried.map_err(|e| Failure::writing(target, &e))?;
    let _ = fs::remove_file(&part);
    Ok(())
}

/// Writes `value` and a newline.
///
/// # Errors
/// An error of the system; no partial file is left.
pub fn write(target: &Path, value: &impl Serialize) -> Result<(), Failure> {
    if is_stdout(target) {
        // `Failure` treats a closed standard output as success.
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from)? + "\n";
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        return Ok(out.flush()?);
    }
    // Writing to a pipe may block, and Ctrl-C must end it; only files need protection.
    let replaced = !target.exists() || target.is_file();
    let _writing = replaced.then(interrupt::writing);
    file::write_json(target, value).map_err(|e| Failure::writing(target, &e))
}

/// Writes a text, such as an SVG file, in the same way as [`write()`].
///
/// # Errors
/// An error of the system; no partial file is left.
pub fn write_text(target: &Path, text: &str) -> Result<(), Failure> {
    let replaced = !target.exists() || target.is_file();
    let _writing = replaced.then(interrupt::writing);
    file::write_text(target, text).map_err(|e| Failure::writing(target, &e))
}

/// Description of the machine for a result without pinned threads; `null` if it cannot be read.
/// `clock_error_ppm` is that of the clock that measured, if it was compared with the system's.
pub fn environment(clock_error_ppm: Option<i64>) -> Option<Value> {
    let cores = affinity::choose().ok()?;
    let mut here = serde_json::to_value(Environment::collect(clock_error_ppm, &cores)).ok()?;
    here.as_object_mut()?.retain(|key, _| key != "client_cpu" && key != "server_cpu");
    Some(here)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("courser-json-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("temporary directory");
        path
    }

    #[test]
    fn a_file_is_replaced_atomically_and_nothing_else_is_left() {
        let dir = directory("whole");
        let target = dir.join("out.json");
        fs::write(&target, "old and much longer than the new text").expect("write");
        check_target(Some(&target)).expect("writable");
        write(&target, &[1, 2]).expect("written");
        let read: Vec<u32> =
            serde_json::from_str(&fs::read_to_string(&target).expect("read")).expect("JSON");
        let left = fs::read_dir(&dir).expect("list").count();
        fs::remove_dir_all(&dir).expect("clean up");
        assert_eq!((read, left), (vec![1, 2], 1));
    }

    #[test]
    fn a_target_that_cannot_be_written_is_an_error_before_and_after() {
        let dir = directory("refused");
        let nowhere = dir.join("absent/out.json");
        for target in [nowhere.as_path(), dir.as_path()] {
            assert!(matches!(check_target(Some(target)), Err(Failure::Usage(_))));
            assert!(matches!(write(target, &1), Err(Failure::Usage(_))));
        }
        fs::remove_dir_all(&dir).expect("clean up");
        assert!(check_target(None).is_ok());
        assert!(check_target(Some("-".as_ref())).is_ok());
        assert!(write("/dev/null".as_ref(), &1).is_ok());
    }
}
