//! Errors of experiments.

use std::borrow::Cow;

use courser_sim::WorldError;

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The world could not be built or an application not be started.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A setting is out of its range.
    #[error("{name} = {value} is out of range; use {range}")]
    Setting {
        /// The field.
        name: &'static str,
        /// Its value, in its unit.
        value: String,
        /// Its range.
        range: Cow<'static, str>,
    },
    /// Sessions are not connected after this time.
    #[error("{missing} sessions are not connected after {after_ns} ns; use fewer of them")]
    NotConnected {
        /// Number of sessions.
        missing: usize,
        /// Time of the attempts, ns.
        after_ns: u64,
    },
    /// Calls have failed, which none should.
    #[error("{count} calls have failed, the first one: {first}; change the settings")]
    Calls {
        /// Number of calls.
        count: u64,
        /// Error of the first.
        first: String,
    },
}
