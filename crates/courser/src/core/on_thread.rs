//! The closures and tasks of an application that stays on its thread.

use crate::control::mailbox::Mailbox;
use crate::core::Lender;
use crate::core::app::{App, Kept, OnThread};
use crate::core::context::{ContinuationFn, OnceFn, RepeatedFn};
use crate::core::continuations::Continuations;
use crate::core::queue::LocalQueue;
use crate::core::tasks::Tasks;
use crate::core::timer::Timers;

impl App for OnThread {
    type Continuations = Continuations<ContinuationFn>;
    type Queue = LocalQueue;
    type Lender = Lender;
    type Tasks = Tasks;
    type Timers = Timers<OnceFn, RepeatedFn>;

    fn kept(mailbox: Mailbox, max_streams: usize) -> Kept<Self> {
        let queue = LocalQueue::default();
        Kept {
            continuations: Continuations::default(),
            tasks: Tasks::new(mailbox, queue.clone(), max_streams),
            queue,
            lender: Lender::default(),
            timers: Timers::default(),
        }
    }
}
