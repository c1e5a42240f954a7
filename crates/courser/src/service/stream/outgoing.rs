//! The server's end of a stream of the server.

use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use courser_buf::{AllocError, Arena, MsgBuf};
use futures_core::Stream;

use super::batch::Added;
use super::open::{Open, Use};
use super::table::Direction;
use super::{WINDOW, batch};
use crate::core::message::{Reply, ReplySink};
use crate::counts::{CallOutcome, MethodCells};
use crate::error::service::{DecodeError, EncodeError};
use crate::service::answer::{self, Concluded, Refusal, RefusalReply, tag};
use crate::service::codec::{Decode, Encode};
use crate::service::registry::Received;
use crate::service::services::Services;
use crate::service::writer::Memory;

/// Memory of an endpoint, with the limit of its messages.
#[derive(Clone, Debug)]
pub(super) struct Limited {
    pub(super) arena: Arena,
    pub(super) limit: usize,
}

impl Limited {
    /// Memory of the batches of a stream that is opened.
    pub(super) fn of_batches(received: &Received<'_>) -> Self {
        // The trailer of a batch takes a byte.
        let limit = received.limit().saturating_sub(1);
        Limited { arena: received.arena().clone(), limit }
    }
}

impl Memory for Limited {
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.arena.alloc(len)
    }
    fn limit(&self) -> usize {
        self.limit
    }
}

/// Streams hold at most this part of the memory that is left in batches that their clients do not wait
/// for. Beyond it a batch is made when it is pulled.
const AHEAD_PART: usize = 8;

/// An open stream whose items the handler sends.
#[doc(hidden)]
#[derive(Debug)]
pub struct Outgoing {
    open: Open,
    memory: Limited,
    cells: Option<Arc<MethodCells>>,
}

impl Services {
    /// Opens a stream of the server.
    #[doc(hidden)]
    pub fn open_outgoing<K: Decode<A>, A>(
        &self,
        mut received: Received<'_>,
    ) -> Result<(A, Outgoing), Refusal> {
        let trailer = received.split_trailer::<4>().map_err(|e| self.undecoded(e))?;
        let key = (received.session(), u32::from_le_bytes(trailer));
        let memory = Limited::of_batches(&received);
        let (client, cells) = (received.client(), received.cells());
        let arguments = self.arguments::<K, A>(received)?;
        let open = Open::new(self, key, (Direction::Outgoing, None), client)?;
        Ok((arguments, Outgoing::new(open, memory, cells)))
    }

    /// Answers a pull.
    pub(in crate::service) fn pull(
        &self,
        mut received: Received<'_>,
    ) -> impl Future<Output = PullReply> + Send + use<> {
        let arena = received.arena().clone();
        let mut call = self.begin_pull(&mut received);
        poll_fn(move |cx| match &mut call {
            Ok(call) => poll_pull(call, &arena, cx),
            Err(refusal) => Poll::Ready(PullReply::Refused(refusal.clone())),
        })
    }

    fn begin_pull(&self, received: &mut Received<'_>) -> Result<Use, Refusal> {
        let trailer = received.split_trailer::<8>().map_err(|e| self.undecoded(e))?;
        if !received.bytes().is_empty() {
            let left = received.bytes().len();
            return Err(self.undecoded(DecodeError::Trailing { left }));
        }
        let (stream, number) = read_trailer(&trailer);
        let key = (received.session(), stream);
        let of = (key, received.finder());
        Use::new(self, of, number, Direction::Outgoing, |stream| {
            if !std::mem::replace(&mut stream.pulled, true) {
                stream.wake_handler();
            }
            Ok(())
        })
    }
}

/// The numbers of a stream and a batch.
pub(super) fn read_trailer(trailer: &[u8]) -> (u32, u32) {
    let number = |at| {
        let bytes = trailer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default())
    };
    (number(0), number(4))
}

fn poll_pull(call: &mut Use, arena: &Arena, cx: &mut Context<'_>) -> Poll<PullReply> {
    let entry = call.entry.clone();
    let mut stream = entry.lock();
    if stream.next == call.number {
        let batch = stream.ready.pop_front().or_else(|| stream.filling.take());
        if let Some(batch) = batch {
            stream.advance();
            let following = stream.next;
            stream.wake(following);
            stream.wake_handler();
            drop(stream);
            let sealed = batch::with_trailer(Some(batch), &[tag::OK], arena);
            return Poll::Ready(sealed.map_or_else(PullReply::Unsealed, PullReply::Batch));
        }
    }
    let nothing_left = stream.complete && stream.ready.is_empty() && stream.filling.is_empty();
    if stream.ended || nothing_left {
        return Poll::Ready(PullReply::Ended);
    }
    stream.wake_handler(); // it may have waited for a pull
    call.wait(&mut stream, cx.waker());
    Poll::Pending
}

/// The answer to a pull.
pub(in crate::service) enum PullReply {
    Batch(MsgBuf),
    /// No memory to add the trailer: the batch is lost, and the client ends the stream.
    Unsealed(EncodeError),
    Ended,
    Refused(Refusal),
}

impl Reply for PullReply {
    fn outcome(&self) -> CallOutcome {
        match self {
            PullReply::Batch(_) | PullReply::Ended => CallOutcome::Ok,
            PullReply::Unsealed(_) => CallOutcome::Undecoded,
            PullReply::Refused(refusal) => refusal.outcome(),
        }
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self {
            PullReply::Batch(batch) => to.msg(batch),
            PullReply::Unsealed(e) => answer::reply(to, |_| Err(e)),
            PullReply::Ended => to.bytes(&[tag::ENDED]),
            PullReply::Refused(refusal) => RefusalReply(refusal).send_to(to),
        }
    }
}

/// The end of a handler's stream: what it returns after the last item.
fn end_of<T, E>(end: Option<Result<T, E>>) -> Result<(), E> {
    end.map_or(Ok(()), |end| end.map(drop))
}

/// The batch of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Batch {
    /// Has room for more.
    Open,
    Complete,
    /// The one before it is complete, and the item was not added.
    Before,
}

/// An item that the handler has and did not add to a batch: the first one, before the client pulls,
/// and one that did not fit while memory is short.
enum First<T> {
    Unpolled,
    Item(T),
    Taken,
}

impl Outgoing {
    pub(super) fn new(open: Open, memory: Limited, cells: Option<Arc<MethodCells>>) -> Self {
        Outgoing { open, memory, cells }
    }

    /// Sends the items of a stream, as the client takes them, and returns the end.
    ///
    /// The stream is polled once before it is accepted, so that it has begun then, and an error that
    /// it has at once is that of opening it. Nothing more is taken from it before the first pull; from
    /// a stream of a method with a stream each way one item at most.
    pub async fn send_all<K, T, E, S>(self, items: S) -> StreamEnd<K, E>
    where
        K: Encode<T> + Encode<E>,
        S: Stream<Item = Result<T, E>>,
    {
        let outcome = {
            let mut items = pin!(items);
            let mut first = First::Unpolled;
            let filling = poll_fn(|cx| {
                let polled = self.fill::<K, T, E, S>(items.as_mut(), &mut first, cx);
                self.count_items();
                polled
            });
            self.unless_shut_down(filling).await
        };
        let concluded = matches!(outcome, Ok(Ok(_)));
        let drained = match &outcome {
            Ok(_) => self.unless_shut_down(poll_fn(|cx| self.drained(cx))).await,
            Err(batches) => Err(*batches),
        };
        let end = match (outcome, drained) {
            (Ok(Ok(end)), Ok(batches)) => Ok((end, batches)),
            (Ok(Err(e)), Ok(batches)) => Err(Unsent::Unencoded(e, batches)),
            (Err(batches), _) | (_, Err(batches)) => Err(Unsent::ShuttingDown(batches)),
        };
        StreamEnd { concluded, end, codec: PhantomData }
    }

    /// Waits for a future of the stream, at most until the stream is to end because the server shuts
    /// down.
    ///
    /// # Errors
    /// It is, after this number of batches. The stream has ended.
    async fn unless_shut_down<R>(&self, future: impl Future<Output = R>) -> Result<R, u32> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(ready) => Poll::Ready(Ok(ready)),
            Poll::Pending => {
                let mut stream = self.open.entry().lock();
                if !stream.own(cx.waker()) {
                    return Poll::Pending;
                }
                let batches = stream.next;
                stream.end(); // no pull takes a batch that is not counted
                Poll::Ready(Err(batches))
            }
        })
        .await
    }

    /// Takes items until the stream ends, while there is room for them. Returns the application's
    /// error, or that of encoding an item.
    fn fill<K, T, E, S>(
        &self,
        mut items: Pin<&mut S>,
        first: &mut First<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Result<(), E>, EncodeError>>
    where
        K: Encode<T>,
        S: Stream<Item = Result<T, E>>,
    {
        loop {
            if matches!(first, First::Unpolled) {
                match items.as_mut().poll_next(cx) {
                    Poll::Ready(Some(Ok(item))) => *first = First::Item(item),
                    Poll::Ready(ended) => return Poll::Ready(Ok(end_of(ended))),
                    Poll::Pending => *first = First::Taken,
                }
                self.open.accept();
            }
            let room = self.make_room(cx);
            let next = match std::mem::replace(first, First::Taken) {
                First::Item(item) if room => Poll::Ready(Some(Ok(item))),
                // The handler of a stream each way goes on with the items of its client, until it has
                // one of its own.
                First::Taken if room || self.open.is_both() => items.as_mut().poll_next(cx),
                kept => {
                    *first = kept;
                    return Poll::Pending;
                }
            };
            let ended = match next {
                Poll::Ready(Some(Ok(item))) if !room => {
                    *first = First::Item(item);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(item))) => match self.add::<K, T>(&item) {
                    Ok(Batch::Open) => continue,
                    Ok(complete) => {
                        if complete == Batch::Before {
                            *first = First::Item(item);
                        }
                        // Other tasks run before the next batch is filled.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Err(e) => Err(e),
                },
                Poll::Ready(ended) => Ok(end_of(ended)),
                Poll::Pending => {
                    let mut stream = self.open.entry().lock();
                    if !stream.filling.is_empty() {
                        let next = stream.next;
                        stream.wake(next);
                    }
                    return Poll::Pending;
                }
            };
            let mut stream = self.open.entry().lock();
            stream.complete = true;
            (0..WINDOW).for_each(|number| stream.wake(number));
            return Poll::Ready(ended);
        }
    }

    /// Counts the items that were added since the last time.
    fn count_items(&self) {
        if let Some(cells) = &self.cells {
            cells.add_items(self.open.entry().lock().filling.take_added());
        }
    }

    /// Returns whether another item may be taken.
    fn make_room(&self, cx: &Context<'_>) -> bool {
        let mut stream = self.open.entry().lock();
        if stream.ready.len() < WINDOW as usize && stream.filling.is_full() {
            let full = stream.filling.take();
            stream.ready.extend(full);
            let next = stream.next;
            stream.wake(next);
        }
        let ahead = stream.may_read_ahead(self.left());
        stream.filling.tight = !ahead;
        let room =
            stream.pulled && stream.ready.len() < WINDOW as usize && (ahead || stream.is_awaited());
        if !room {
            stream.handler = Some(cx.waker().clone());
        }
        room
    }

    /// Bytes that batches of all streams may hold besides those that they hold.
    fn left(&self) -> usize {
        let arena = &self.memory.arena;
        let free = arena.config().limit_bytes.saturating_sub(arena.in_use_bytes());
        (free / AHEAD_PART).saturating_sub(self.open.held_by_all())
    }

    /// Adds an item to the batch.
    fn add<K: Encode<T>, T>(&self, item: &T) -> Result<Batch, EncodeError> {
        // Out of the lock, since the application's code encodes.
        let mut filling = std::mem::take(&mut self.open.entry().lock().filling);
        let added = filling.add::<K, T>(item, &self.memory);
        let mut stream = self.open.entry().lock();
        let full = filling.is_full();
        stream.filling = filling;
        let (complete, of_item) = match added? {
            Added::Here if full => return Ok(Batch::Complete),
            Added::Here => return Ok(Batch::Open),
            Added::Next(complete) => (complete, Batch::Complete),
            Added::Nowhere(complete) => (complete, Batch::Before),
        };
        stream.ready.push_back(complete);
        let next = stream.next;
        stream.wake(next);
        Ok(of_item)
    }

    /// Waits until all batches were pulled, and returns their number.
    fn drained(&self, cx: &Context<'_>) -> Poll<u32> {
        let mut stream = self.open.entry().lock();
        if stream.ready.is_empty() && stream.filling.is_empty() {
            return Poll::Ready(stream.next);
        }
        stream.handler = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The end of a stream: the answer of its open call. The number of batches is behind the codec's
/// bytes.
#[doc(hidden)]
#[derive(Debug)]
pub struct StreamEnd<K, E> {
    /// The handler's stream has ended by itself.
    concluded: bool,
    end: Result<(Result<(), E>, u32), Unsent>,
    codec: PhantomData<fn() -> K>,
}

#[derive(Debug)]
enum Unsent {
    Refused(Refusal),
    /// An item, after this number of batches.
    Unencoded(EncodeError, u32),
    /// The server shuts down, after this number of batches.
    ShuttingDown(u32),
}

impl<K, E> StreamEnd<K, E> {
    pub fn refused(refusal: Refusal) -> Self {
        StreamEnd { concluded: false, end: Err(Unsent::Refused(refusal)), codec: PhantomData }
    }
}

impl<K, E> Concluded for StreamEnd<K, E> {
    fn is_concluded(&self) -> bool {
        self.concluded
    }
}

impl<K: Encode<E>, E> Reply for StreamEnd<K, E> {
    fn outcome(&self) -> CallOutcome {
        match &self.end {
            Ok((Ok(()), _)) => CallOutcome::Ok,
            Ok((Err(_), _)) => CallOutcome::Failed,
            Err(Unsent::Refused(refusal)) => refusal.outcome(),
            Err(Unsent::Unencoded(..)) => CallOutcome::Undecoded,
            Err(Unsent::ShuttingDown(_)) => CallOutcome::ShuttingDown,
        }
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self.end {
            Ok((outcome, batches)) => answer::reply(to, |out| {
                let tag = match &outcome {
                    Ok(()) => tag::OK,
                    Err(e) => {
                        K::encode(e, out)?;
                        tag::FAILED
                    }
                };
                // A failure is kept in the writer.
                let _ = out.extend(&batches.to_le_bytes());
                Ok(tag)
            }),
            Err(Unsent::Refused(refusal)) => RefusalReply(refusal).send_to(to),
            Err(Unsent::ShuttingDown(batches)) => answer::reply(to, |out| {
                // A failure is kept in the writer.
                let _ = out.extend(&batches.to_le_bytes());
                Ok(tag::SHUTTING_DOWN)
            }),
            Err(Unsent::Unencoded(e, batches)) => answer::reply(to, |out| {
                // A failure is kept in the writer.
                let _ = out.extend(answer::short_text(&e).as_bytes());
                let _ = out.extend(&batches.to_le_bytes());
                Ok(tag::ITEM_UNENCODED)
            }),
        }
    }
}

pin_project_lite::pin_project! {
    /// The items of a method, each as a `Result`.
    #[doc(hidden)]
    #[derive(Debug)]
    pub struct Mapped<S, F> {
        #[pin]
        items: S,
        map: F,
    }
}

impl<S, F> Mapped<S, F> {
    pub fn new(items: S, map: F) -> Self {
        Mapped { items, map }
    }
}

impl<S: Stream, F: FnMut(S::Item) -> R, R> Stream for Mapped<S, F> {
    type Item = R;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        this.items.poll_next(cx).map(|item| item.map(this.map))
    }
}
