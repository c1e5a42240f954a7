//! Commands that run experiments.

use std::marker::PhantomData;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use courser_kit::Failure;

use super::Declaration;

/// The experiments of a command, in the order of its help.
pub(crate) trait Group {
    const ALL: &'static [&'static dyn Declaration];
}

/// An experiment of a group with its options.
#[derive(Debug)]
pub(crate) struct Chosen<G> {
    arguments: ArgMatches,
    name: &'static str,
    group: PhantomData<G>,
}

fn declaration<G: Group>(name: &str) -> Option<&'static dyn Declaration> {
    G::ALL.iter().copied().find(|e| e.name() == name)
}

impl<G: Group> Chosen<G> {
    /// Runs it, and prints and writes the results.
    ///
    /// # Errors
    /// It cannot run as given, failed, or its result could not be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        declaration::<G>(self.name).map_or(Ok(()), |e| e.run(&self.arguments))
    }
}

impl<G: Group> FromArgMatches for Chosen<G> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let of = |(name, arguments): (&str, &ArgMatches)| {
            let name = declaration::<G>(name)?.name();
            Some(Chosen { arguments: arguments.clone(), name, group: PhantomData })
        };
        let missing = || clap::Error::new(ErrorKind::InvalidSubcommand);
        matches.subcommand().and_then(of).ok_or_else(missing)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<G: Group> Subcommand for Chosen<G> {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(G::ALL.iter().map(|e| e.command()))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        declaration::<G>(name).is_some()
    }
}
