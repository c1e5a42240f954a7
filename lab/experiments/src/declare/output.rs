//! Where the result of an experiment goes: the table, a picture and a JSON object.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::picture::{self, Chart};
use courser_kit::Failure;
use courser_kit::{json, out};

/// Files for the result of an experiment.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Draw the result as SVG to a file
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

impl OutputArgs {
    /// Checks before a run that the files can be written.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        json::check_target(self.json.as_deref())?;
        picture::check_target(self.svg.as_deref())
    }

    /// Draws the picture, prints the table and writes the JSON object.
    pub(crate) fn print(
        &self,
        bench: &str,
        config: &impl Serialize,
        results: Value,
        chart: impl FnOnce() -> Chart,
        table: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if let Some(path) = &self.svg {
            chart().write(path)?;
        }
        print(self.json.as_deref(), bench, config, results, table)
    }
}

/// Prints the table and writes the JSON object.
pub(crate) fn print(
    target: Option<&Path>,
    bench: &str,
    config: &impl Serialize,
    results: Value,
    table: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if !json::only(target) {
        write!(out::stdout(), "{}", table())?;
    }
    let Some(target) = target else { return Ok(()) };
    let results = if results.is_array() { results } else { json!([results]) };
    let report = json!({
        "bench": bench,
        "transport": "sim",
        "config": config,
        "results": results,
        "environment": json::environment(None),
    });
    json::write(target, &report)
}
