//! The experiments of `courser-lab sim` and `courser-lab sim run`, each in one file: its parameters, its
//! simulation, and the declaration that its options, results, picture and recorded points follow from.

pub mod background;
pub mod bits_pool;
pub(crate) mod composed;
pub mod fan_in;
pub mod fct;
pub mod first_burst;
pub mod join_leave;
pub mod loss;
pub mod lost_call;
pub mod operating_range;
pub mod reroute;
pub mod slow_handler;
pub mod uncongested;
pub mod uplink;

use crate::declare::Declaration;
use crate::declare::group::Group;

/// The experiments of `courser-lab sim run`.
#[derive(Debug)]
pub(crate) enum Run {}

impl Group for Run {
    const ALL: &'static [&'static dyn Declaration] = &[
        &background::EXPERIMENT,
        &join_leave::EXPERIMENT,
        &first_burst::EXPERIMENT,
        &uplink::EXPERIMENT,
        &uncongested::EXPERIMENT,
        &operating_range::EXPERIMENT,
        &fan_in::EXPERIMENT,
        &reroute::EXPERIMENT,
        &slow_handler::EXPERIMENT,
    ];
}
