//! Counts the handlers of typed methods that end in their first poll on the endpoint's thread.
//!
//! They are counted together after the burst of their requests: one reading of the clock for all of them,
//! before their answers leave, and few instructions for each. Their latency is the time from the burst to
//! its end, when their answers are sent.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::counts::{CallOutcome, MethodCells};

/// A method of the endpoint's own server.
#[derive(Debug)]
pub(crate) struct LocalMethod {
    pub(crate) cells: Arc<MethodCells>,
    /// Its place in [`Counting::methods`].
    at: u32,
    /// Handlers that have ended in this burst.
    ended: Cell<u64>,
}

impl LocalMethod {
    /// A handler has ended in its first poll. Returns whether it is the first one in the burst.
    #[inline]
    pub(crate) fn count_ended(&self, outcome: CallOutcome) -> bool {
        let ended = self.ended.get();
        self.ended.set(ended + 1);
        if outcome != CallOutcome::Ok {
            self.cells.error(outcome);
        }
        ended == 0
    }
}

/// The methods of the endpoint's own server.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    methods: Vec<Rc<LocalMethod>>,
    /// The places of those whose handlers have ended in this burst.
    ended: Vec<u32>,
    /// The time of the burst.
    begun_ns: u64,
}

impl Counting {
    /// Adds a method.
    pub(crate) fn method(&mut self, cells: Arc<MethodCells>) -> Rc<LocalMethod> {
        let at = self.methods.len() as u32;
        let method = Rc::new(LocalMethod { cells, at, ended: Cell::new(0) });
        self.methods.push(method.clone());
        method
    }

    /// Returns whether handlers have ended in this burst.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The first handler of the method has ended in the burst of this time.
    #[inline]
    pub(crate) fn add(&mut self, method: &LocalMethod, burst_ns: u64) {
        if self.ended.is_empty() {
            self.begun_ns = burst_ns;
        }
        self.ended.push(method.at);
    }

    /// The burst has ended at this time.
    #[inline]
    pub(crate) fn end(&mut self, now_ns: u64) {
        let took_ns = now_ns.saturating_sub(self.begun_ns);
        for at in &self.ended {
            if let Some(method) = self.methods.get(*at as usize) {
                method.cells.end_many(took_ns, method.ended.take());
            }
        }
        self.ended.clear();
    }
}
