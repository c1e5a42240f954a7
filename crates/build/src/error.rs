//! Errors of generating code.

use std::fmt;
use std::io;

/// Why no code was generated.
///
/// Its `Debug` is its text, as that is printed for the error of a build script.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not found, or not correct. The text begins with the file, its line and its column.
    #[error("{0}; correct the file, or the folders to include")]
    File(String),
    /// A service cannot be generated, or a setting does not fit it. The text begins with the file, the
    /// line and the column of the service or of the method.
    #[error("{0}")]
    Service(String),
    /// A setting is for a service or a method that is not there, or that is in an imported file.
    #[error(
        "`{setting}` is set for `{path}`, and none of the files to compile has a service or a method of this name; write \
         `package.Service`, `package.Service.Method`, or `.` for all"
    )]
    Unused {
        /// The setting.
        setting: &'static str,
        /// The name that it was set for.
        path: String,
    },
    /// A setting of `prost-build` is not correct, such as a path without a `.` at its beginning.
    #[error("prost-build refuses a setting: {0}")]
    Setting(String),
    /// The code was not written.
    #[error(
        "the code was not written ({0}); set Builder::out_dir to a folder outside of build scripts"
    )]
    Output(io::Error),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidInput => Error::Setting(error.to_string()),
            _ => Error::Output(error),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
