//! `courser-lab record`: writes the recorded results.

use std::io::Write;

use courser_kit::{Failure, json, out};

use super::args::RecordArgs;
use super::result::{Recorded, Results};
use super::store::{Store, path};
use super::{chosen, pool};

/// Runs experiments and writes their results.
///
/// # Errors
/// An experiment failed, or a file could not be written.
pub(crate) fn run(args: &RecordArgs) -> Result<(), Failure> {
    let experiments = chosen(&args.select.only)?;
    let directory = &args.recorded;
    if !directory.is_dir() {
        let shown = directory.display();
        let text = format!("{shown} is no directory: start at the repository's root, or name one");
        return Err(Failure::Usage(format!("{text} with --recorded")));
    }
    for &size in args.sizes() {
        let measured = pool::run(&experiments, size, args.select.threads())?;
        for (experiment, measured) in experiments.iter().zip(measured) {
            let new = || Recorded { experiment: experiment.id.into(), short: None, full: None };
            let mut recorded = Store::Directory(directory).read(experiment)?.unwrap_or_else(new);
            let count = measured.points.len();
            recorded.set(size, Results::new(measured));
            let path = path(directory, experiment);
            json::write(&path, &recorded)?;
            let (shown, size) = (path.display(), size.name());
            writeln!(out::stdout(), "{shown}: {count} points of the {size} runs")?;
        }
    }
    Ok(())
}
