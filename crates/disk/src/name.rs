//! Names of files.

use std::io;

/// Most bytes of a name, as in Linux's file systems.
pub const LONGEST_NAME: usize = 255;

/// The file that an open [`crate::Directory`] locks.
pub(crate) const LOCK: &str = "LOCK";

/// Checks a name; see [`crate::Storage`]. For implementations.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`].
pub fn check_name(name: &str) -> io::Result<()> {
    let reserved = [".", "..", LOCK].contains(&name);
    if reserved || name.is_empty() || name.len() > LONGEST_NAME || name.contains(['/', '\0']) {
        let text = format!(
            "{name:?} is no name of a file here; use 1 to {LONGEST_NAME} bytes without '/' and NUL, \
             and none of '.', '..' and '{LOCK}'"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for good in ["a", "wal-0001", "..a", "lock", &"x".repeat(255)] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", "LOCK", "a/b", "/a", "a\0", &"x".repeat(256)] {
            assert_eq!(check_name(bad).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bad:?}");
        }
    }
}
