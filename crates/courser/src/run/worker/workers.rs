//! The workers, as an endpoint holds them.

use std::rc::Rc;
use std::sync::Arc;

use crate::core::shares::Entrance;
use crate::run::worker::origin::Origin;
use crate::run::worker::pool::Pool;

/// The state of an endpoint that uses the worker pool.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(super) pool: Pool,
    /// To the places in the queue.
    pub(super) entrance: Rc<Entrance>,
    /// Set by the first [`Rpc::on_worker`].
    pub(super) origin: Option<Arc<Origin>>,
    /// [`courser_proto::Endpoint::given_up`] and the time, ns, at the last search of the queue.
    pub(super) seen_given_up: u64,
    pub(super) searched_ns: u64,
}

impl Workers {
    pub(crate) fn new(pool: Pool) -> Self {
        let entrance = Rc::new(Entrance::new(pool.places().clone()));
        Workers { pool, entrance, origin: None, seen_given_up: 0, searched_ns: 0 }
    }

    /// Worker handlers that panicked.
    pub(super) fn panics(&self) -> u64 {
        self.origin.as_ref().map_or(0, |origin| origin.panics())
    }
}
