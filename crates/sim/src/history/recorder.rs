//! Histories as tasks of a simulated world record them.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use super::History;
use crate::world::thread_now_ns;

/// A history that tasks of a world share; clones are the same. Times are those of the world.
pub struct Recorder<O, A>(Rc<RefCell<History<O, A>>>);

/// A call that is recorded. Dropped, its outcome is unknown, as when its task is dropped.
#[must_use = "a call that is dropped at once has an unknown outcome"]
pub struct Recording<O, A> {
    history: Recorder<O, A>,
    call: usize,
}

impl<O, A> Recorder<O, A> {
    /// A call begins, on the simulated thread that runs.
    ///
    /// # Panics
    /// Outside of a simulated thread.
    pub fn begin(&self, op: O) -> Recording<O, A> {
        let call = self.0.borrow_mut().begin(now_ns(), op);
        Recording { history: self.clone(), call }
    }

    /// Uses the history so far.
    pub fn with<R>(&self, f: impl FnOnce(&mut History<O, A>) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

impl<O, A> Recording<O, A> {
    /// The call ends with an answer.
    ///
    /// # Panics
    /// Outside of a simulated thread.
    pub fn end(self, answer: A) {
        self.history.0.borrow_mut().end(self.call, now_ns(), answer);
    }

    /// The call ended, certainly had no effect, and never will have one.
    pub fn end_without_effect(self) {
        self.history.0.borrow_mut().end_without_effect(self.call);
    }
}

#[track_caller]
fn now_ns() -> u64 {
    thread_now_ns().expect("calls are recorded in handlers and tasks of a world")
}

impl<O, A> Clone for Recorder<O, A> {
    fn clone(&self) -> Self {
        Recorder(self.0.clone())
    }
}

impl<O, A> Default for Recorder<O, A> {
    fn default() -> Self {
        Recorder(Rc::default())
    }
}

impl<O, A> fmt::Debug for Recorder<O, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("calls", &self.0.borrow().calls().len()).finish()
    }
}

impl<O, A> fmt::Debug for Recording<O, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("call", &self.call).finish_non_exhaustive()
    }
}
