//! The recorded results of every experiment: those that the program was built with, or the files of a
//! directory.

use std::fs;
use std::path::{Path, PathBuf};

use courser_kit::Failure;

use super::result::Recorded;
use crate::declare::points::Experiment;

/// The place of recorded results.
#[derive(Clone, Copy, Debug)]
pub(super) enum Store<'a> {
    /// The results that the program was built with.
    BuiltIn,
    /// The files of a directory.
    Directory(&'a Path),
}

impl<'a> Store<'a> {
    /// The directory that is named, or what the program was built with.
    pub(super) fn of(directory: Option<&'a Path>) -> Store<'a> {
        directory.map_or(Store::BuiltIn, Store::Directory)
    }

    /// The name of an experiment's results in messages.
    pub(super) fn name(self, experiment: &Experiment) -> String {
        match self {
            Store::BuiltIn => format!("{} in this program", experiment.id),
            Store::Directory(directory) => path(directory, experiment).display().to_string(),
        }
    }

    /// Reads the results of an experiment; `None` if there are none.
    ///
    /// # Errors
    /// The file cannot be read, or has no recorded results; the error names it.
    pub(super) fn read(self, experiment: &Experiment) -> Result<Option<Recorded>, Failure> {
        let name = self.name(experiment);
        let text = match self {
            Store::BuiltIn => Some(experiment.results.to_owned()),
            Store::Directory(directory) => match fs::read_to_string(path(directory, experiment)) {
                Ok(text) => Some(text),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
                Err(e) => return Err(Failure::Usage(format!("cannot read {name}: {e}"))),
            },
        };
        text.map(|text| Recorded::parse(&text, &name, experiment)).transpose()
    }
}

/// The file of an experiment in a directory.
pub(super) fn path(directory: &Path, experiment: &Experiment) -> PathBuf {
    directory.join(format!("{}.json", experiment.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::all;

    #[test]
    fn the_program_has_the_results_of_every_experiment_and_of_no_other() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded");
        let files = fs::read_dir(directory).expect("readable").count();
        assert_eq!(files, all().len());
        for experiment in all() {
            let recorded = Store::BuiltIn.read(experiment).expect("readable");
            assert!(recorded.is_some_and(|r| r.short.is_some()), "{}", experiment.id);
        }
    }
}
