//! The ends of calls, as middleware sees them.

use std::time::Duration;

use crate::counts::CallOutcome;
use crate::service::access::Peer;
use crate::service::context::Metadata;
use crate::shape::method::MethodKind;

/// The end of a call that middleware has let pass.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::sync::mpsc::{Sender, channel};
///
/// use courser::service::{CallEnd, CallOutcome, ClientMiddleware, Denied, OutgoingCall};
///
/// /// Reports how calls have ended.
/// struct Ends(Sender<(String, CallOutcome)>);
///
/// impl ClientMiddleware for Ends {
///     fn before(&self, _: &mut OutgoingCall<'_>) -> Result<(), Denied> {
///         Ok(())
///     }
///     fn after(&self, end: &CallEnd<'_>) {
///         let _ = self.0.send((end.method.to_owned(), end.outcome));
///     }
/// }
///
/// let (sender, ends) = channel();
/// let store = StoreClient::connect(&uri).await?.with_middleware(Ends(sender));
/// assert!(store.get("plum".to_owned()).await.is_err());
/// assert_eq!(ends.recv()?, ("get".to_owned(), CallOutcome::Failed));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CallEnd<'a> {
    /// The name of the service.
    pub service: &'a str,
    /// The name of the method.
    pub method: &'a str,
    /// The kind of the method.
    pub kind: MethodKind,
    /// The client; `None` at the client itself.
    pub peer: Option<Peer>,
    /// The metadata of the request, with what middleware has added.
    pub metadata: &'a Metadata,
    /// How it has ended, as in the statistics of the method ([`crate::service::MethodStats`]). At a server a
    /// handler that was dropped before its end is [`CallOutcome::Deadline`] if the deadline of its call had
    /// passed, and otherwise [`CallOutcome::Cancelled`].
    pub outcome: CallOutcome,
    /// The time from [`crate::service::ServerMiddleware::before`] to the end; at a client from the first poll of the call.
    /// For a stream it is the time that the stream was open.
    pub duration: Duration,
    /// How often the call was made: more than 1 at clients with retries only.
    pub attempts: u32,
}

/// The method and the client of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    pub(crate) kind: MethodKind,
    pub(crate) peer: Peer,
}
