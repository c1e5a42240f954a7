//! Command-line arguments of all programs with results.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::fail::Failure;
use crate::{json, out};

/// Destination of the result, and whether figures of a busy machine are shown.
#[derive(Clone, Debug, Default, Args)]
pub struct ResultArgs {
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Show figures even if other programs took CPU time from the benchmark
    #[arg(long)]
    pub anyway: bool,
}

impl ResultArgs {
    /// Fails early if the file cannot be written.
    ///
    /// # Errors
    /// The target's directory does not exist or cannot be written.
    pub fn check(&self) -> Result<(), Failure> {
        json::check_target(self.json.as_deref())
    }

    /// Returns an error if other programs took this share of the time. With `--json` it is a warning
    /// because the report contains the share.
    ///
    /// # Errors
    /// [`Failure::Runtime`] that states the share and the remedy.
    pub fn accept(&self, disturbed: Option<f64>) -> Result<(), Failure> {
        let Some(share) = disturbed.filter(|_| !self.anyway) else { return Ok(()) };
        let text = format!(
            "the machine was busy: the benchmark's threads waited {share:.2} s for a CPU in each second, \
             so its figures say little about Courser; end other programs and repeat, or add --anyway"
        );
        match self.json {
            Some(_) => out::warn(&text),
            None => return Err(Failure::Runtime(text)),
        }
        Ok(())
    }

    /// Prints `text`, unless standard output is for JSON, and writes the JSON.
    ///
    /// # Errors
    /// Standard output or the file cannot be written.
    pub fn show(
        &self,
        report: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let target: Option<&Path> = self.json.as_deref();
        if !json::only(target) {
            let mut out = out::stdout();
            write!(out, "{}", text())?;
            out.flush()?;
        }
        target.map_or(Ok(()), |target| json::write(target, report))
    }
}
