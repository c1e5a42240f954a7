//! The workers, as an endpoint holds them.

use std::rc::Rc;
use std::sync::Arc;

use crate::control::mailbox::Answer;
use crate::core::shares::Entrance;
use crate::run::worker::origin::Origin;
use crate::run::worker::pool::Pool;

/// Minimum interval of searches for cancelled requests, as each visits the whole queue.
const SEARCH_INTERVAL_NS: u64 = 1_000_000;

/// The state of an endpoint that uses the worker pool.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(super) pool: Pool,
    /// To the places in the queue.
    pub(super) entrance: Rc<Entrance>,
    /// Set by the first [`Rpc::on_worker`].
    pub(super) origin: Option<Arc<Origin>>,
    /// Requests were cancelled since the last search of the queue, at this time, ns.
    has_cancelled: bool,
    searched_ns: u64,
    /// Answers that are being sent.
    pub(in crate::run) answers: Vec<Answer>,
}

impl Workers {
    pub(crate) fn new(pool: Pool) -> Self {
        let entrance = Rc::new(Entrance::new(pool.places().clone()));
        let (origin, answers) = (None, Vec::new());
        Workers { pool, entrance, origin, has_cancelled: false, searched_ns: 0, answers }
    }

    /// A request was cancelled, which may be in the queue.
    pub(crate) fn note_cancelled(&mut self) {
        self.has_cancelled |= self.origin.is_some();
    }

    /// Returns whether the queue is to be searched for cancelled requests.
    #[inline]
    pub(crate) fn has_cancelled(&self) -> bool {
        self.has_cancelled
    }

    /// The time of the next search, ns, if there is something to search for.
    pub(crate) fn search_due_ns(&self) -> Option<u64> {
        self.has_cancelled.then(|| self.searched_ns.saturating_add(SEARCH_INTERVAL_NS))
    }

    /// Begins a search.
    pub(super) fn search(&mut self, now_ns: u64) {
        (self.has_cancelled, self.searched_ns) = (false, now_ns);
    }

    /// Worker handlers that panicked.
    pub(super) fn panics(&self) -> u64 {
        self.origin.as_ref().map_or(0, |origin| origin.panics())
    }
}
