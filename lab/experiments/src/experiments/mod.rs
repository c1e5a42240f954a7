//! The experiments of `courser-lab sim` and `courser-lab sim run`, each in one file: its parameters, its
//! simulation, and the declaration that its options, results, picture and recorded points follow from.

pub mod background;
pub mod bandwidth;
pub mod bits_pool;
pub mod buffers;
pub(crate) mod composed;
pub mod credits;
pub mod fan_in;
pub mod fct;
pub mod first_burst;
pub mod incast;
pub(crate) mod incast_table;
pub mod join_leave;
pub mod loss;
pub mod lost_call;
pub mod melo_pool;
pub mod operating_range;
pub mod reroute;
pub mod response_rtt;
pub mod sessions;
pub mod shapes;
pub mod slow_handler;
mod speed;
mod stopwatch;
pub mod uncongested;
pub mod uplink;

use crate::declare::Declaration;
use crate::declare::group::Group;

/// The experiments of `courser-lab sim run`.
#[derive(Debug)]
pub(crate) enum Run {}

impl Group for Run {
    const ALL: &'static [&'static dyn Declaration] = &[
        &sessions::EXPERIMENT,
        &incast::EXPERIMENT,
        &buffers::EXPERIMENT,
        &credits::EXPERIMENT,
        &bandwidth::EXPERIMENT,
        &response_rtt::EXPERIMENT,
        &background::EXPERIMENT,
        &join_leave::EXPERIMENT,
        &first_burst::EXPERIMENT,
        &uplink::EXPERIMENT,
        &shapes::EXPERIMENT,
        &uncongested::EXPERIMENT,
        &operating_range::EXPERIMENT,
        &fan_in::EXPERIMENT,
        &reroute::EXPERIMENT,
        &slow_handler::EXPERIMENT,
        &speed::Speed,
    ];
}

/// The experiments of loss recovery, which are commands of `courser-lab sim`.
#[derive(Debug)]
pub(crate) enum Recovery {}

impl Group for Recovery {
    const ALL: &'static [&'static dyn Declaration] = &[
        &loss::EXPERIMENT,
        &fct::EXPERIMENT,
        &bits_pool::EXPERIMENT,
        &melo_pool::EXPERIMENT,
        &lost_call::EXPERIMENT,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_help_texts_are_accepted() {
        let mut seen = 0;
        for (of, all) in [("courser-lab sim run ", Run::ALL), ("courser-lab sim ", Recovery::ALL)] {
            for experiment in all {
                let mut command = experiment.command();
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                let begin = format!("{of}{}", experiment.name());
                for line in help.lines().map(str::trim).filter(|line| line.starts_with(&begin)) {
                    // Two spaces or more precede the description.
                    let words = line[of.len()..].split("  ").next().unwrap_or_default();
                    let arguments = command.try_get_matches_from_mut(words.split(' '));
                    let arguments = arguments.unwrap_or_else(|e| panic!("{line}: {e}"));
                    let checked = experiment.check(&arguments);
                    assert!(checked.is_ok(), "{line}: {:?}", checked.err());
                    seen += 1;
                }
            }
        }
        assert!(seen >= 15, "{seen} examples");
    }
}
