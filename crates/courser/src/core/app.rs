//! The application at an endpoint, as its core keeps it.

use crate::control::mailbox::Mailbox;

/// The closures and tasks that handlers and continuations leave at an endpoint. Their types decide
/// whether the endpoint can move between threads.
pub(crate) trait App: Sized + 'static {
    /// The closures of calls in flight.
    type Continuations;
    /// Commands that futures and reply handles leave.
    type Queue;
    /// Lends the endpoint to the futures that it polls.
    type Lender;
    type Tasks;
    type Timers;

    /// All of them, empty.
    fn kept(mailbox: Mailbox, max_streams: usize) -> Kept<Self>;
}

/// See [`App`].
pub(crate) struct Kept<A: App> {
    pub(crate) continuations: A::Continuations,
    pub(crate) queue: A::Queue,
    pub(crate) lender: A::Lender,
    pub(crate) tasks: A::Tasks,
    pub(crate) timers: A::Timers,
}

/// The application of an endpoint that stays on its thread: closures and futures of any type.
#[derive(Debug)]
pub struct OnThread;
