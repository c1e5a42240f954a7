//! The service for clients.

use std::cell::Cell;
use std::future::ready;

use courser::service::Stream;
use futures::channel::oneshot;
use futures::{StreamExt, stream};
use serde_bytes::ByteBuf;

use super::Node;
use crate::address;
use crate::api::{KvError, LocalKv, MAX_WATCHES, Page};
use crate::command::{Applied, Op, Ticket, Written};
use crate::core::{MemberChange, MemberError, Refused, Status, Writer};
use crate::store::{Change, Kind};

/// Most entries of a page, and the bytes after which it ends.
const PAGE: (usize, usize) = (4_096, 1 << 20);

/// Entries without a change for a watch after which it is sent the index that it has reached. Less than
/// the changes that a node keeps, so that the watch misses none when it begins again at another node.
const QUIET: u64 = 1_024;

impl Node {
    fn refusal(&self, refused: Refused) -> KvError {
        match refused {
            Refused::NotLeader { leader } => {
                let leader = leader.filter(|id| *id != self.options.settings.id);
                let uri = leader.and_then(|id| self.addresses(id).into_iter().next());
                KvError::NotLeader { leader: uri }
            }
            Refused::Busy => KvError::Busy,
            Refused::Stopped => self.stopped_error(),
        }
    }

    fn stopped_error(&self) -> KvError {
        let core = self.core.borrow();
        KvError::Stopped(core.failed().unwrap_or("it is ending").to_owned())
    }

    /// Proposes something, and waits for its result.
    async fn applied(&self, propose: impl FnOnce(&Node, Writer)) -> Result<Applied, KvError> {
        let (writer, result) = oneshot::channel();
        propose(self, writer);
        match result.await {
            Ok(Ok(Applied::Refused(reason))) => Err(KvError::Unwritten(reason)),
            Ok(Ok(applied)) => Ok(applied),
            Ok(Err(refused)) => Err(self.refusal(refused)),
            Err(oneshot::Canceled) => Err(self.stopped_error()),
        }
    }

    async fn write(&self, ticket: Ticket, op: Op) -> Result<Written, KvError> {
        if let Some((size, limit)) = op.oversized() {
            return Err(KvError::TooLarge { size: size as u64, limit: limit as u64 });
        }
        let propose = |node: &Node, writer| node.with(|core| core.write(ticket, op, writer));
        match self.applied(propose).await? {
            Applied::Written(written) => Ok(written),
            _ => Err(self.stopped_error()),
        }
    }

    /// Waits until the store may be read.
    async fn readable(&self) -> Result<(), KvError> {
        let (reader, word) = oneshot::channel();
        self.with(|core| core.read(reader));
        match word.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(refused)) => Err(self.refusal(refused)),
            Err(oneshot::Canceled) => Err(self.stopped_error()),
        }
    }

    /// The next change for a watch, and the index from which it goes on.
    async fn next_change(&self, prefix: &[u8], mut after: u64) -> Change {
        let begin = after;
        loop {
            let found = {
                let core = self.core.borrow();
                core.store().changes().next(after, prefix, core.store().applied().0)
            };
            match found {
                Ok(change) => return change,
                Err(index) => after = index,
            }
            if after - begin >= QUIET {
                return Change::mark(after, Kind::Reached);
            }
            self.applied.above(after).await;
        }
    }
}

/// A watch of the node, as long as its client is there.
struct Watching<'a>(&'a Cell<usize>);

impl Watching<'_> {
    /// Counts a watch. `None`: there are as many as there may be.
    fn begin(count: &Cell<usize>) -> Option<Watching<'_>> {
        let next = count.get() + 1;
        (next <= MAX_WATCHES).then(|| {
            count.set(next);
            Watching(count)
        })
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl LocalKv for Node {
    async fn open(&self) -> Result<u64, KvError> {
        match self.applied(|node, writer| node.with(|core| core.open(writer))).await? {
            Applied::Opened(session) => Ok(session),
            _ => Err(self.stopped_error()),
        }
    }

    async fn close(&self, session: u64) -> Result<(), KvError> {
        let propose = |node: &Node, writer| node.with(|core| core.close(session, writer));
        self.applied(propose).await.map(|_| ())
    }

    async fn put(&self, ticket: Ticket, key: Vec<u8>, value: Vec<u8>) -> Result<Written, KvError> {
        self.write(ticket, Op::Put { key: key.into(), value: value.into() }).await
    }

    async fn delete(&self, ticket: Ticket, key: Vec<u8>) -> Result<Written, KvError> {
        self.write(ticket, Op::Delete { key: key.into() }).await
    }

    async fn cas(
        &self,
        ticket: Ticket,
        key: Vec<u8>,
        expected: Option<ByteBuf>,
        value: Option<ByteBuf>,
    ) -> Result<Written, KvError> {
        self.write(ticket, Op::Cas { key: key.into(), expected, value }).await
    }

    async fn get(&self, key: Vec<u8>) -> Result<Option<ByteBuf>, KvError> {
        self.readable().await?;
        Ok(self.core.borrow().store().get(&key).map(|value| ByteBuf::from(value.clone())))
    }

    async fn scan(&self, from: Vec<u8>, end: Option<ByteBuf>, limit: u32) -> Result<Page, KvError> {
        self.readable().await?;
        let core = self.core.borrow();
        let limit = PAGE.0.min(limit as usize);
        let mut range = core.store().range(&from, end.as_ref().map(|end| &end[..]));
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < limit
            && bytes < PAGE.1
            && let Some((key, value)) = range.next()
        {
            bytes += key.len() + value.len();
            entries.push((ByteBuf::from(key.clone()), ByteBuf::from(value.clone())));
        }
        Ok(Page { entries, more: range.next().is_some() })
    }

    fn watch(
        &self,
        prefix: Vec<u8>,
        after: Option<u64>,
    ) -> impl Stream<Item = Result<Change, KvError>> {
        let Some(place) = Watching::begin(&self.watches) else {
            return stream::once(ready(Err(KvError::Watches))).left_stream();
        };
        let applied = self.core.borrow().store().applied().0;
        let begin = after.is_none().then(|| Change::mark(applied, Kind::Reached));
        let state = (place, prefix, after.unwrap_or(applied));
        let changes = stream::unfold(state, move |(place, prefix, after)| async move {
            let change = self.next_change(&prefix, after).await;
            let index = change.index;
            Some((change, (place, prefix, index)))
        });
        stream::iter(begin).chain(changes).map(Ok).right_stream()
    }

    async fn status(&self) -> Status {
        let mut status = self.core.borrow().status();
        for member in &mut status.members {
            if member.uri.is_empty() || self.announced.borrow().contains_key(&member.id) {
                member.uri = self.addresses(member.id).into_iter().next().unwrap_or_default();
            }
        }
        status
    }

    async fn change(&self, change: MemberChange) -> Result<bool, KvError> {
        if let MemberChange::Add { uri, .. } = &change {
            let wrong = |error: address::AddressError| MemberError::Address(error.to_string());
            address::check(uri).map_err(|error| KvError::Members(wrong(error)))?;
        }
        // A leader that was replaced may lack a change.
        self.readable().await?;
        let (writer, result) = oneshot::channel();
        if !self.with(|core| core.change_members(&change, writer)).map_err(KvError::Members)? {
            return Ok(false);
        }
        match result.await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(refused)) => Err(self.refusal(refused)),
            Err(oneshot::Canceled) => Err(self.stopped_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_limited_number_of_watches() {
        let count = Cell::new(0);
        let mut all: Vec<_> = std::iter::from_fn(|| Watching::begin(&count)).collect();
        assert_eq!((all.len(), count.get()), (MAX_WATCHES, MAX_WATCHES));
        all.pop();
        assert!(Watching::begin(&count).is_some());
        drop(all);
        assert_eq!(count.get(), 0);
    }
}
