//! Results as one JSON object, to standard output or to a file that is replaced atomically.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::fail::Failure;
use super::interrupt;
use crate::clock::Clock;
use crate::environment::Environment;
use crate::{affinity, report};

/// True for `-`.
pub fn is_stdout(target: &Path) -> bool {
    target == Path::new("-")
}

/// True if the JSON goes to standard output and replaces the text there.
pub fn only(target: Option<&Path>) -> bool {
    target.is_some_and(is_stdout)
}

/// Fails early, before minutes are spent on a result that has no place to go.
///
/// # Errors
/// The target's directory does not exist or cannot be written.
pub fn check_target(target: Option<&Path>) -> Result<(), Failure> {
    let Some(target) = target.filter(|target| !is_stdout(target)) else { return Ok(()) };
    if target.exists() && !target.is_file() {
        // A pipe or a device is opened when there is something to write.
        let directory = io::Error::from(io::ErrorKind::IsADirectory);
        return if target.is_dir() { Err(Failure::writing(target, &directory)) } else { Ok(()) };
    }
    let part = report::beside(target).map_err(|e| Failure::writing(target, &e))?;
    let _writing = interrupt::writing();
    let tried = OpenOptions::new().write(true).create_new(true).open(&part);
    tried.map_err(|e| Failure::writing(target, &e))?;
    let _ = fs::remove_file(&part);
    Ok(())
}

/// Writes `value` and a newline.
///
/// # Errors
/// What the system said; no partial file is left.
pub fn write(target: &Path, value: &impl Serialize) -> Result<(), Failure> {
    if is_stdout(target) {
        // Here a reader that went away ends the program, quietly; that is `Failure`'s business.
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from)? + "\n";
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        return Ok(out.flush()?);
    }
    // A pipe may keep us waiting: nothing is half written there, and Ctrl-C must end the wait.
    let replaced = !target.exists() || target.is_file();
    let _writing = replaced.then(interrupt::writing);
    report::write_json(target, value).map_err(|e| Failure::writing(target, &e))
}

/// Writes a text, such as a picture, as [`write()`] does an object.
///
/// # Errors
/// What the system said; no partial file is left.
pub fn write_text(target: &Path, text: &str) -> Result<(), Failure> {
    let replaced = !target.exists() || target.is_file();
    let _writing = replaced.then(interrupt::writing);
    report::write_text(target, text).map_err(|e| Failure::writing(target, &e))
}

/// The machine of a result of which nothing was pinned; `null` when it cannot be told.
pub fn environment(clock: &Clock) -> Option<Value> {
    let cores = affinity::choose().ok()?;
    let mut here = serde_json::to_value(Environment::collect(clock, &cores)).ok()?;
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
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
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
    fn what_cannot_be_written_is_said_early_and_late() {
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
