//! The origin of a request, as the context of its call keeps it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::trailer::Arrived;
use crate::core::shares::FindClient;
use crate::platform::Clock;
use crate::service::access::Peer;

/// The server below a typed service, which knows the origin of a request.
pub(crate) trait Source: FindClient {
    fn caller(&self) -> Caller;
}

/// States whether a handler was cancelled, before its thread drops it.
pub(crate) trait Watched: Debug + Send + Sync {
    fn is_cancelled(&self) -> bool;
}

/// The origin of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) peer: Option<Peer>,
    /// The deadline, in the time of `clock`.
    pub(crate) expires: Option<Instant>,
    pub(crate) clock: Clock,
    /// `None`: handlers run on the thread that cancels them.
    pub(crate) watched: Option<Arc<dyn Watched>>,
    /// The number of the endpoint whose tasks its handlers are, and the deadline in its time; `u64::MAX`:
    /// none.
    pub(crate) endpoint: Option<(u64, u64)>,
    /// The largest answer, bytes.
    pub(crate) limit: usize,
    /// The metadata of the request, if it has some.
    pub(crate) arrived: Option<Arc<Arrived>>,
}

impl Caller {
    /// Time until the deadline; `None`: there is none. Reads the clock.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        Some(self.expires?.saturating_duration_since(self.clock.now()))
    }
}

impl Default for Caller {
    fn default() -> Self {
        Caller {
            peer: None,
            expires: None,
            clock: Clock::System,
            watched: None,
            endpoint: None,
            limit: usize::MAX,
            arrived: None,
        }
    }
}
