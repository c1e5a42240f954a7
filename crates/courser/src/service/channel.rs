//! What a typed client needs of the connection below it.

use std::future::Future;
use std::time::Duration;

use courser_buf::{AllocError, MsgBuf};

use crate::failure::CallFailure;

/// A connection to a server, on which typed clients call: a session of this thread's endpoint, or a
/// handle for any thread.
pub trait Channel: Clone + 'static {
    /// A call in progress. Dropping it cancels the call.
    type Call<'a>: Future<Output = Result<MsgBuf, CallFailure>> + 'a
    where
        Self: 'a;
    /// A one-way message that waits for room.
    type Sent<'a>: Future<Output = Result<(), CallFailure>> + 'a
    where
        Self: 'a;
    /// A session that is being connected.
    type Another<'a>: Future<Output = Result<Self, CallFailure>> + 'a
    where
        Self: 'a;

    /// Allocates a message of `len` bytes, with the contents of earlier messages.
    ///
    /// # Errors
    /// The memory limit of the endpoint is reached.
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError>;

    /// Calls; see [`crate::CallBuilder::deadline`] for the deadline.
    fn call(&self, req_type: u16, request: MsgBuf, deadline: Option<Duration>) -> Self::Call<'_>;

    /// Sends a one-way message when there is room for it.
    fn send(&self, msg_type: u16, message: MsgBuf, deadline: Option<Duration>) -> Self::Sent<'_>;

    /// Connects another session with the same server. A stream has a session of its own, so that a
    /// reader that stalls delays no other call.
    fn another(&self) -> Self::Another<'_>;
}
