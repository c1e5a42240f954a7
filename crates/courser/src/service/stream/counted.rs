//! Counts the streams of typed clients, and their items.

use std::sync::Arc;

use crate::channel::Channel;
use crate::counts::{CallOutcome, MethodCells};
use crate::error::service::RpcError;
use crate::service::binding::Binding;

/// A stream, from when its opening begins. Its drop counts a stream that was cancelled.
pub(super) struct CountedStream<C: Channel> {
    /// `None`: it is not counted, or was.
    of: Option<(Arc<MethodCells>, C)>,
    /// A reading of the channel's clock.
    begun: u64,
    /// Items that are not counted yet.
    items: u64,
}

impl<C: Channel> Default for CountedStream<C> {
    fn default() -> Self {
        CountedStream { of: None, begun: 0, items: 0 }
    }
}

impl<C: Channel> CountedStream<C> {
    /// A stream of the method at this place begins.
    pub(super) fn begin(channel: &C, service: &Binding, index: u16) -> Self {
        let Some(cells) = service.cells(index) else { return CountedStream::default() };
        cells.begin::<false>();
        let of = Some((cells.clone(), channel.clone()));
        CountedStream { of, begun: channel.reading(), items: 0 }
    }

    /// The counters of the method, for the other half of a stream each way.
    pub(super) fn cells(&self) -> Option<Arc<MethodCells>> {
        self.of.as_ref().map(|(cells, _)| cells.clone())
    }

    /// Adds an item, which is counted with its batch.
    pub(super) fn item(&mut self) {
        self.items += 1;
    }

    /// Counts the items.
    pub(super) fn batch(&mut self) {
        let items = std::mem::take(&mut self.items);
        if let Some((cells, _)) = &self.of {
            cells.add_items(items);
        }
    }

    /// The stream has ended.
    pub(super) fn end<T, E>(&mut self, result: &Result<T, RpcError<E>>) {
        self.end_as(CallOutcome::of(result));
    }

    /// It has ended with this error.
    pub(super) fn fail<E>(&mut self, error: &RpcError<E>) {
        self.end_as(CallOutcome::of_error(error));
    }

    fn end_as(&mut self, outcome: CallOutcome) {
        self.batch();
        if let Some((cells, channel)) = self.of.take() {
            let took_ns = channel.since_ns(self.begun);
            cells.end::<false>(took_ns, outcome);
        }
    }
}

impl<C: Channel> Drop for CountedStream<C> {
    fn drop(&mut self) {
        self.end_as(CallOutcome::Cancelled);
    }
}
