//! Calls that a client makes on each new session before any other: they check that the server, which
//! may have been replaced, still has the services that the client uses.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use courser_buf::MsgBuf;

/// Reads the answer of a greeting.
type Check = dyn Fn(MsgBuf) -> Result<(), String> + Send + Sync;

/// A call on each new session of a client. Its check returns why the session is of no use.
#[doc(hidden)]
pub struct Greeting {
    req_type: u16,
    request: Vec<u8>,
    check: Box<Check>,
}

impl Greeting {
    pub fn new(
        req_type: u16,
        request: Vec<u8>,
        check: impl Fn(MsgBuf) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Greeting { req_type, request, check: Box::new(check) }
    }
}

impl fmt::Debug for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Greeting").field("req_type", &self.req_type).finish_non_exhaustive()
    }
}

/// The greetings of a client, in the order in which they were added.
#[derive(Clone, Default, Debug)]
pub(super) struct Greetings(Arc<Mutex<Vec<Greeting>>>);

impl Greetings {
    fn lock(&self) -> MutexGuard<'_, Vec<Greeting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a greeting, unless there is the same one.
    pub(super) fn add(&self, new: Greeting) {
        let mut all = self.lock();
        let same =
            |known: &Greeting| (known.req_type, &known.request) == (new.req_type, &new.request);
        if !all.iter().any(same) {
            all.push(new);
        }
    }

    /// The request of a greeting; `None`: there are no more.
    pub(super) fn request(&self, at: usize) -> Option<(u16, Vec<u8>)> {
        self.lock().get(at).map(|greeting| (greeting.req_type, greeting.request.clone()))
    }

    /// Checks the answer to a greeting.
    pub(super) fn check(&self, at: usize, answer: MsgBuf) -> Result<(), String> {
        match self.lock().get(at) {
            Some(greeting) => (greeting.check)(answer),
            None => Ok(()),
        }
    }
}
