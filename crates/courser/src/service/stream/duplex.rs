//! The client's end of a stream each way.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::batch::{Added, Filling};
use super::counted::CountedStream;
use super::download::{End, Next, Streaming};
use super::halves::{Half, Halves};
use super::pool::{OpenCall, Opened};
use super::pushing::{BatchMemory, Items, Pushes};
use crate::channel::Channel;
use crate::counts::MethodCells;
use crate::error::service::{MidStreamError, RpcError};
use crate::service::codec::{Decode, Encode};

/// A stream each way: the client sends items, and reads those of the server. Dropping it, or one of its
/// halves, cancels the call: the server drops the stream of its handler.
///
/// It is used whole by one task, or [`Duplex::split`] into halves that two tasks have. A handler that
/// stalls, or a client that does not read, stalls one direction only, within the bounds of
/// [`DuplexSender`] and [`Streaming`]. But a handler whose stream has an item that the client does not
/// read takes no items of the client either, unless it has a task for that. So a client that sends much
/// reads at the same time.
///
/// ```
/// use courser::service::{Incoming, Stream};
/// use futures::StreamExt;
///
/// #[courser::service]
/// trait Chat {
///     /// Repeats what the client says.
///     fn chat(&self, room: String, notes: Incoming<String>) -> impl Stream<Item = String>;
/// }
///
/// struct Rooms;
///
/// impl Chat for Rooms {
///     fn chat(&self, room: String, notes: Incoming<String>) -> impl Stream<Item = String> {
///         notes.filter_map(|note| async { note.ok() }).map(move |note| format!("{room}: {note}"))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(ChatServer::new(Rooms))?;
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let client = ChatClient::connect(&uri).await?;
/// let mut chat = client.chat("hall".to_owned()).await?;
/// for note in ["hello", "and good night"] {
///     chat.send(&note.to_owned()).await?;
///     assert_eq!(chat.next().await.transpose()?, Some(format!("hall: {note}")));
/// }
/// // The server's items are read to their end after the client's.
/// let mut rest = chat.finish();
/// assert_eq!(rest.next().await.transpose()?, None);
/// # Ok(()) })
/// # }
/// ```
pub struct Duplex<C: Channel, K, I, T, E> {
    sender: DuplexSender<C, K, I, E>,
    receiver: Streaming<C, K, T, E>,
}

impl<C: Channel, K, I, T, E> fmt::Debug for Duplex<C, K, I, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duplex")
            .field("sender", &self.sender)
            .field("receiver", &self.receiver)
            .finish()
    }
}

impl<C: Channel, K: Decode<T> + Decode<E>, I, T, E> Duplex<C, K, I, T, E> {
    /// # Errors
    /// The open call has ended with an error, before the first item.
    pub(super) fn new(opened: Opened<C>) -> Result<Self, RpcError<E>> {
        let Opened { channel, pool, stream, open } = opened;
        let (call, ended) = match open {
            OpenCall::Running(call) => (Some(call), None),
            OpenCall::Answered(answer) => (None, Some(answer)),
        };
        let is_open = call.is_some();
        let halves = Halves::new(call, Pushes::new(channel.clone(), stream));
        let end = is_open.then(|| End::of_both(halves.clone()));
        let receiver = Streaming::opened((channel.clone(), pool, stream), end, ended)?;
        let sender = DuplexSender { channel, halves, cells: None, types: PhantomData };
        Ok(Duplex { sender, receiver })
    }

    /// The next item of the server; `None` after the last one. Items that were sent go on their way
    /// meanwhile.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Next<'_, Self> {
        Next::new(self)
    }
}

impl<C: Channel, K, I, T, E> Duplex<C, K, I, T, E> {
    /// Counts the stream.
    pub(super) fn counted(mut self, counted: CountedStream<C>) -> Self {
        self.sender.cells = counted.cells();
        self.receiver = self.receiver.counted(counted);
        self
    }

    /// The two ends, for two tasks.
    ///
    /// ```
    /// # use courser::service::{Incoming, Stream};
    /// # use futures::StreamExt;
    /// #[courser::service]
    /// trait Adder {
    ///     /// The sum after each number.
    ///     fn sums(&self, numbers: Incoming<u64>) -> impl Stream<Item = u64>;
    /// }
    /// # struct Sums;
    /// # impl Adder for Sums {
    /// #     fn sums(&self, numbers: Incoming<u64>) -> impl Stream<Item = u64> {
    /// #         numbers.scan(0, |sum, n| { *sum += n.unwrap_or(0); std::future::ready(Some(*sum)) })
    /// #     }
    /// # }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(AdderServer::new(Sums))?;
    /// # let (uri, _serving) = (server.local_uri(), server.serve()?);
    /// # let last = futures::executor::block_on(async {
    /// let adder = AdderClient::connect(&uri).await?;
    /// let (mut sender, mut sums) = adder.sums().await?.split();
    /// let sending = std::thread::spawn(move || {
    ///     futures::executor::block_on(async {
    ///         for n in 1..=1_000 {
    ///             sender.send(&n).await?;
    ///         }
    ///         sender.finish().await
    ///     })
    /// });
    /// let mut last = 0;
    /// while let Some(sum) = sums.next().await {
    ///     last = sum?;
    /// }
    /// sending.join().expect("no panic")?;
    /// # Ok::<_, Box<dyn std::error::Error>>(last) })?;
    /// assert_eq!(last, 500_500);
    /// # Ok(())
    /// # }
    /// ```
    // An alias would hide the two types.
    #[allow(clippy::type_complexity)]
    pub fn split(self) -> (DuplexSender<C, K, I, E>, Streaming<C, K, T, E>) {
        (self.sender, self.receiver)
    }

    /// Ends the items of the client, without waiting. Reading those of the server sends what is left.
    pub fn finish(self) -> Streaming<C, K, T, E> {
        let Duplex { sender, receiver } = self;
        sender.halves.with(Items::finish);
        sender.halves.progress(None);
        receiver
    }
}

impl<C: Channel, K: Encode<I>, I, T, E> Duplex<C, K, I, T, E> {
    /// Sends an item: see [`DuplexSender::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&mut self, item: &I) -> Result<(), RpcError<E>> {
        self.sender.send(item).await
    }

    /// Waits until the handler has taken all items: see [`DuplexSender::flush`]. A handler that has items
    /// of its own takes none before they are read.
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&mut self) -> Result<(), RpcError<E>> {
        self.sender.flush().await
    }
}

impl<C: Channel, K: Decode<T> + Decode<E>, I, T, E> Stream for Duplex<C, K, I, T, E> {
    type Item = Result<T, RpcError<E>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.receiver).poll_next(cx)
    }
}

/// The sending half of a [`Duplex`]: [`DuplexSender::send`] its items, then [`DuplexSender::finish`].
///
/// Dropping it before that cancels the call, and the receiving half ends with
/// [`CallError::Cancelled`](crate::CallError::Cancelled). Dropping it later, or after an error of it,
/// has no effect, except that after [`MidStreamError::Encode`], which is the error of one item, it
/// cancels the call too.
///
/// At most two batches are on the way, a third one is filled, each with up to 64 KiB of items, or one
/// larger item, and the next item waits. The server holds those on the way. Either half sends them while
/// it is polled.
///
/// When the handler takes no more items, or the stream has ended, an item is refused with
/// [`MidStreamError::Closed`]: the receiving half has the outcome.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// let store = StoreClient::connect(&uri).await?;
/// let (mut sender, mut followed) = store.follow().await?.split();
/// let sending = async {
///     sender.send(&"apple".to_owned()).await?;
///     sender.finish().await
/// };
/// let reading = async { followed.next().await.transpose() };
/// let (sent, read) = futures::future::join(sending, reading).await;
/// sent?;
/// assert_eq!(read?.as_deref(), Some("apple!"));
/// # Ok(()) }) }
/// ```
pub struct DuplexSender<C: Channel, K, I, E> {
    channel: C,
    halves: Arc<Halves<C>>,
    cells: Option<Arc<MethodCells>>,
    types: PhantomData<fn(K, I) -> E>,
}

impl<C: Channel, K, I, E> Unpin for DuplexSender<C, K, I, E> {}

impl<C: Channel, K, I, E> fmt::Debug for DuplexSender<C, K, I, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.halves.with(|items| f.debug_tuple("DuplexSender").field(items).finish())
    }
}

/// The batch that is filled, while an item is encoded. It is put back at the drop, also after a panic.
struct Taken<'a, C: Channel> {
    halves: &'a Halves<C>,
    filling: Filling,
    added: Option<Added>,
}

impl<C: Channel> Drop for Taken<'_, C> {
    fn drop(&mut self) {
        let (filling, added) = (std::mem::take(&mut self.filling), self.added.take());
        self.halves.with(|items| items.put_back(filling, added));
    }
}

impl<C: Channel, K: Encode<I>, I, E> DuplexSender<C, K, I, E> {
    /// Sends an item, when there is room for it. Items share batches while two batches are on the
    /// way.
    ///
    /// Dropping the future before its end sends nothing of the item.
    ///
    /// # Errors
    /// The item cannot be encoded ([`MidStreamError::Encode`]), and others may be sent; the handler takes
    /// no more items ([`MidStreamError::Closed`]); or the call has failed. The error of an item that the
    /// server could not decode, or of a lost connection, is returned once, and `Closed` afterwards.
    pub async fn send(&mut self, item: &I) -> Result<(), RpcError<E>> {
        poll_fn(|cx| self.halves.poll_room::<E>(cx)).await?;
        // Out of the lock, since the application's code encodes.
        let filling = self.halves.with(Items::take_filling);
        let mut taken = Taken { halves: &self.halves, filling, added: None };
        let encoded = match taken.filling.add::<K, I>(item, &BatchMemory(&self.channel)) {
            Ok(added) => {
                taken.added = Some(added);
                Ok(())
            }
            Err(e) => Err(MidStreamError::Encode(e).into()),
        };
        drop(taken);
        self.halves.progress(None);
        if let (Ok(()), Some(cells)) = (&encoded, &self.cells) {
            cells.add_items(1);
        }
        encoded
    }

    /// Sends the items of a stream, until it ends.
    ///
    /// # Errors
    /// As [`DuplexSender::send`]; the items after it were not sent.
    pub async fn send_all<S: Stream<Item = I>>(&mut self, items: S) -> Result<(), RpcError<E>> {
        let mut items = pin!(items);
        while let Some(item) = poll_fn(|cx| items.as_mut().poll_next(cx)).await {
            self.send(&item).await?;
        }
        Ok(())
    }
}

impl<C: Channel, K, I, E> DuplexSender<C, K, I, E> {
    /// Waits until the handler has taken all items.
    ///
    /// # Errors
    /// It has not taken all, and takes no more ([`MidStreamError::Closed`]); or the call has failed.
    pub async fn flush(&mut self) -> Result<(), RpcError<E>> {
        poll_fn(|cx| self.halves.poll_taken(cx)).await
    }

    /// Ends the items, and waits until the handler has taken all. The receiving half goes on until the
    /// end of the server's items. If the future is dropped after a first poll, the receiving half sends
    /// what is left. Dropped before that, it cancels the call.
    ///
    /// # Errors
    /// As [`DuplexSender::flush`].
    pub async fn finish(self) -> Result<(), RpcError<E>> {
        self.halves.with(Items::finish);
        poll_fn(|cx| self.halves.poll_taken(cx)).await
    }
}

impl<C: Channel, K, I, E> Drop for DuplexSender<C, K, I, E> {
    fn drop(&mut self) {
        self.halves.cancel(Half::Sender);
    }
}
