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
    const ALL: &'static [&'static dyn Declaration] =
        &[&loss::EXPERIMENT, &fct::EXPERIMENT, &bits_pool::EXPERIMENT, &lost_call::EXPERIMENT];
}
