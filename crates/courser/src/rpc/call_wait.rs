//! One call that blocks, for clients that have nothing to do meanwhile.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser_buf::MsgBuf;
use courser_net::Transport;
use courser_proto::{CallError, RejectReason, SessionId};

use crate::error::RunError;
use crate::rpc::Rpc;

/// A call of [`Rpc::call_wait`] that ended with a response.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// use std::time::Duration;
///
/// let session = rpc.connect(&uri)?;
/// let request = rpc.alloc(3)?;
/// let answered = rpc.call_wait(session, ECHO, request, Duration::from_secs(5))?;
/// assert_eq!((answered.response.len(), answered.request.len()), (3, 3));
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct Answered {
    /// The response.
    pub response: MsgBuf,
    /// The request buffer.
    pub request: MsgBuf,
}

/// A call of [`Rpc::call_wait`] that ended without a response.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// use std::time::Duration;
///
/// let session = rpc.connect(&uri)?;
/// let request = rpc.alloc(3)?;
/// // The server has no handler of this type.
/// let error = rpc.call_wait(session, 7, request, Duration::from_secs(5)).unwrap_err();
/// println!("{}", error.reason);
/// assert_eq!(error.request.expect("the event loop has not failed").len(), 3);
/// # Ok(()) }) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct CallWaitError {
    /// The reason, with an advice.
    #[source]
    pub reason: CallWaitReason,
    /// The request buffer. `None` only with [`CallWaitReason::Run`], when the event loop failed
    /// while the call was under way: the call is cancelled, and its buffer is freed when it ends.
    pub request: Option<MsgBuf>,
}

/// Why a call of [`Rpc::call_wait`] has no response.
///
/// Example: [`CallWaitError`](crate::CallWaitError).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallWaitReason {
    /// The call did not start.
    #[error(transparent)]
    Rejected(#[from] RejectReason),
    /// The call ended with an error.
    #[error(transparent)]
    Failed(#[from] CallError),
    /// The event loop failed, or time is virtual.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The end of a call, as its continuation stores it.
type End = (MsgBuf, Result<MsgBuf, CallError>);

impl<T: Transport> Rpc<T> {
    /// Calls, and drives the event loop until the call has ended. `deadline` is that of
    /// [`crate::CallBuilder::deadline`]; without one, the function blocks as long as the session
    /// lives. A session that is still being connected is waited for.
    ///
    /// Everything else of the endpoint goes on meanwhile: handlers, other calls' continuations and
    /// timers run. [`crate::Context::stop`] and [`crate::EndpointHandle::stop`] do not end the call:
    /// they end the next [`Rpc::run`]. Handlers and continuations have a [`crate::Context`] and no
    /// [`Rpc`], and so cannot block in this function.
    ///
    /// Costs two allocations, and a copy of a response of one packet, more than [`Rpc::call`].
    ///
    /// # Errors
    /// The call did not start, ended without a response, or the event loop failed; the error
    /// returns the buffer.
    pub fn call_wait(
        &mut self,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
        deadline: impl Into<Option<Duration>>,
    ) -> Result<Answered, CallWaitError> {
        if let Err(e) = self.may_block() {
            return Err(CallWaitError { reason: e.into(), request: Some(request) });
        }
        let ended: Rc<RefCell<Option<End>>> = Rc::default();
        let end = ended.clone();
        let started =
            self.request(session, req_type, request).deadline(deadline).then(move |cx, done| {
                let result = done.result.and_then(|response| {
                    let response_bytes = response.len() as u32;
                    response.take(cx).map_err(|_| CallError::NoMemory { response_bytes })
                });
                *end.borrow_mut() = Some((done.request, result));
            });
        let call = match started {
            Ok(call) => call,
            Err(e) => {
                return Err(CallWaitError { reason: e.reason.into(), request: Some(e.request) });
            }
        };
        loop {
            if let Some((request, result)) = ended.take() {
                return match result {
                    Ok(response) => Ok(Answered { response, request }),
                    Err(e) => Err(CallWaitError { reason: e.into(), request: Some(request) }),
                };
            }
            if let Err(e) = self.pass() {
                self.cancel(call);
                return Err(CallWaitError { reason: e.into(), request: None });
            }
        }
    }
}
