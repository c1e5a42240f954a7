//! Counts the calls of typed clients.

use std::task::Poll;

use super::binding::Binding;
use crate::channel::Channel;
use crate::counts::{CallOutcome, MethodCells};
use crate::error::service::RpcError;

/// A call, from when it begins. Its drop counts a call that was cancelled. On channels that do not count
/// calls, all of it is left out by the compiler.
pub(crate) struct CountedCall<'a, C: Channel> {
    /// `None`: it is not counted, or was.
    of: Option<(&'a MethodCells, &'a C)>,
    /// A reading of the channel's clock.
    begun: u64,
}

impl<'a, C: Channel> CountedCall<'a, C> {
    /// A call of the method at this place begins.
    #[inline]
    pub(crate) fn begin(channel: &'a C, service: &'a Binding, index: u16) -> Self {
        if C::COUNTS
            && let Some(cells) = service.cells(index)
        {
            cells.begin::<false>();
            return CountedCall { of: Some((cells, channel)), begun: channel.reading() };
        }
        CountedCall { of: None, begun: 0 }
    }

    /// It was polled.
    #[inline]
    pub(crate) fn polled<T, E>(&mut self, polled: &Poll<Result<T, RpcError<E>>>) {
        if C::COUNTS
            && let Poll::Ready(result) = polled
        {
            self.end(result);
        }
    }

    /// It has ended.
    #[inline]
    pub(crate) fn end<T, E>(&mut self, result: &Result<T, RpcError<E>>) {
        if C::COUNTS && self.of.is_some() {
            self.end_as(CallOutcome::of(result));
        }
    }

    fn end_as(&mut self, outcome: CallOutcome) {
        if let Some((cells, channel)) = self.of.take() {
            let took_ns = channel.since_ns(self.begun);
            cells.end::<false>(took_ns, outcome);
        }
    }
}

impl<C: Channel> Drop for CountedCall<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if C::COUNTS && self.of.is_some() {
            self.end_as(CallOutcome::Cancelled);
        }
    }
}
