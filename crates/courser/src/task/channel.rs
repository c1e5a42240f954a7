//! Typed clients on a session of this thread.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use courser_buf::{AllocError, MsgBuf};
use courser_proto::{CallError, SessionEnd, SessionState};

use super::call::{Call, Sent};
use super::connect::Connecting;
use super::local::Session;
use crate::channel::{Answer, CallClock, CallOptions, Channel, PAUSED};
use crate::core::Core;
use crate::core::lent;
use crate::error::failure::CallFailure;

/// Another session with the server of a [`Session`].
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// use courser::service::{CallOptions, Channel};
///
/// let session = local.connect(&uri).await?;
/// let another = session.another(CallOptions::default()).await?;
/// assert_ne!(session.id(), another.id());
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "a session is connected when it is awaited"]
pub struct Another(Option<Connecting>);

impl Future for Another {
    type Output = Result<Session, CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let failed = |end| Err(CallError::NotConnected(end).into());
        match &mut self.0 {
            Some(connecting) => match Pin::new(connecting).poll(cx) {
                Poll::Ready(Err(e)) => Poll::Ready(failed(e.end())),
                Poll::Ready(Ok(session)) => Poll::Ready(Ok(session)),
                Poll::Pending => Poll::Pending,
            },
            // The address is not known.
            None => Poll::Ready(failed(SessionEnd::Unknown)),
        }
    }
}

/// Until the drop, calls that start do not end at the deadline of the handler that is polled.
struct NoLimit<'a> {
    session: &'a Session,
    before_ns: Option<u64>,
}

impl<'a> NoLimit<'a> {
    fn begin(session: &'a Session) -> Self {
        let before_ns = lent::try_with(session.lender(), |core| {
            std::mem::replace(&mut core.tasks.deadline_ns, u64::MAX)
        });
        NoLimit { session, before_ns }
    }
}

impl Drop for NoLimit<'_> {
    fn drop(&mut self) {
        if let Some(before_ns) = self.before_ns {
            lent::try_with(self.session.lender(), |core| core.tasks.deadline_ns = before_ns);
        }
    }
}

impl Channel for Session {
    type Call<'a> = Call<'a>;
    type Sent<'a> = Sent<'a>;
    type Another<'a> = Another;
    type OwnedCall = Pin<Box<dyn Future<Output = Result<MsgBuf, CallFailure>>>>;

    #[inline]
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        match self.lender().take_spare(len) {
            Some(buffer) => Ok(buffer),
            None => self.local().alloc_recycled(len),
        }
    }

    #[inline]
    fn call(&self, req_type: u16, request: MsgBuf, options: CallOptions) -> Call<'_> {
        Session::call(self, req_type, request).deadline(options.deadline)
    }

    fn call_owned(&self, req_type: u16, request: MsgBuf, options: CallOptions) -> Self::OwnedCall {
        let session = self.clone();
        Box::pin(async move {
            let mut call = session.call(req_type, request).deadline(options.deadline);
            if !options.is_detached {
                return call.await;
            }
            poll_fn(|cx| {
                let _limit = NoLimit::begin(&session);
                Pin::new(&mut call).poll(cx)
            })
            .await
        })
    }

    #[inline]
    fn poll_call<'a, R>(
        call: Pin<&mut Call<'a>>,
        cx: &mut Context<'_>,
        read: impl FnOnce(Answer<'_>) -> R,
    ) -> Poll<Result<R, CallFailure>>
    where
        Self: 'a,
    {
        call.get_mut().poll_read(cx, read)
    }

    fn limit(&self) -> usize {
        self.local().limit()
    }

    fn is_usable(&self) -> bool {
        let gone = |core: &mut Core| core.proto.session_state(self.id()) == SessionState::Gone;
        !lent::try_with(self.lender(), gone).unwrap_or(false)
    }

    fn clock(&self) -> CallClock {
        let clock = lent::try_with(self.lender(), |core| core.clock().clone());
        clock.map(CallClock).unwrap_or_default()
    }

    fn slots(&self) -> Option<u32> {
        let stats = lent::try_with(self.lender(), |core| core.proto.session_stats(self.id()));
        stats.flatten().map(|stats| stats.slots)
    }

    fn time_left(&self) -> Option<Duration> {
        let left_ns = lent::try_with(self.lender(), |core| {
            let deadline_ns = core.tasks.deadline_ns;
            (deadline_ns != u64::MAX).then(|| deadline_ns.saturating_sub(core.now_ns()))
        });
        left_ns.flatten().map(Duration::from_nanos)
    }

    fn random(&self) -> u64 {
        lent::try_with(self.lender(), Core::random).unwrap_or_default()
    }

    fn pause(&self, after: Duration) -> Option<Self::OwnedCall> {
        let sleep = self.local().sleep(after);
        Some(Box::pin(async move {
            sleep.await;
            Err(PAUSED)
        }))
    }

    fn send(&self, msg_type: u16, message: MsgBuf, options: CallOptions) -> Sent<'_> {
        Session::send(self, msg_type, message).deadline(options.deadline)
    }

    fn another(&self, _: CallOptions) -> Another {
        Another(self.uri().map(|uri| self.local().connect(uri)))
    }
}
