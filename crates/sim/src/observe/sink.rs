//! Output of traces and captures.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A file or another writer. Its first error is kept and ends the writing: a failing observer must
/// not change the run.
pub struct Sink {
    out: Box<dyn Write + Send>,
    error: Option<io::Error>,
}

impl Sink {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Sink { out: Box::new(out), error: None }
    }

    /// Creates a file, or truncates an old one.
    ///
    /// # Errors
    /// The error of the system when the file cannot be created.
    pub fn file(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::new(BufWriter::with_capacity(1 << 16, File::create(path)?)))
    }

    pub(super) fn run(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.error.is_none() {
            self.error = write(&mut *self.out).err();
        }
    }

    /// Flushes the buffer; returns the first error of writing.
    pub(super) fn flush(&mut self) -> Option<String> {
        self.run(|out| out.flush());
        self.error.as_ref().map(ToString::to_string)
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("error", &self.error).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Memory that a test and a sink share.
    #[derive(Clone, Default)]
    pub(in crate::observe) struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        pub(in crate::observe) fn bytes(&self) -> Vec<u8> {
            self.0.lock().unwrap().clone()
        }

        pub(in crate::observe) fn text(&self) -> String {
            String::from_utf8(self.bytes()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("no room"))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_first_error_is_kept_and_ends_the_writing() {
        let mut sink = Sink::new(Full);
        sink.run(|out| out.write_all(b"x"));
        sink.run(|_| unreachable!("a sink that has failed writes no more"));
        assert_eq!(sink.flush().as_deref(), Some("no room"));
    }
}
