//! The server's end of a stream of the client.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use courser_buf::{Arena, MsgBuf};
use futures_core::Stream as ItemStream;

use super::batch::Reading;
use super::open::{Open, Use};
use super::outgoing::read_trailer;
use super::table::{Direction, Entry};
use super::{Next, slot};
use crate::core::message::{Reply, ReplySink};
use crate::core::shares::Client;
use crate::counts::{CallOutcome, MethodCells};
use crate::error::service::{DecodeError, StreamError};
use crate::service::answer::{Refusal, RefusalReply, tag};
use crate::service::codec::{Decode, Payload};
use crate::service::load::Charge;
use crate::service::registry::Received;
use crate::service::services::Services;

/// The items that a client sends: the parameter of a method whose client sends a stream.
///
/// A stream that ends when the client has finished. An item that cannot be decoded is an error,
/// after which the stream ends. If the client cancels, or is gone, the future of the handler is
/// dropped, or its stream in a method with a stream each way; an `Incoming` that is elsewhere ends. Dropping
/// it tells the client that no more items are wanted.
///
/// At most two batches of the client are here, each with up to 64 KiB of items, or one larger item.
/// The heap that an item needs has the limits of arguments, and counts with that of the requests in
/// progress while it is decoded; later it is the handler's.
///
/// ```
/// use courser::service::Incoming;
///
/// #[courser::service]
/// trait Sums {
///     async fn sum(&self, numbers: Incoming<u64>) -> Result<u64, String>;
/// }
///
/// struct Adder;
///
/// impl Sums for Adder {
///     async fn sum(&self, mut numbers: Incoming<u64>) -> Result<u64, String> {
///         let mut sum: u64 = 0;
///         while let Some(n) = numbers.next().await {
///             sum = sum.wrapping_add(n.map_err(|e| e.to_string())?);
///         }
///         Ok(sum)
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(SumsServer::new(Adder))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
///
/// let sums = SumsClient::connect(&uri).await?;
/// let mut numbers = sums.sum().await?;
/// numbers.send_all(futures::stream::iter(1..=4)).await?;
/// assert_eq!(numbers.finish().await?, 10);
/// # Ok(()) }) }
/// ```
pub struct Incoming<T> {
    entry: Arc<Entry>,
    services: Services,
    arena: Arena,
    reading: Option<Reading>,
    done: bool,
    /// The heap of items is counted, while they are decoded.
    charged: bool,
    client: Option<Arc<Client>>,
    cells: Option<Arc<MethodCells>>,
    /// Items that were counted in the cells.
    counted: u64,
    decode: fn(Payload<'_>) -> Result<T, DecodeError>,
}

impl<T> fmt::Debug for Incoming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("done", &self.done).finish_non_exhaustive()
    }
}

impl Services {
    /// Opens a stream of the client.
    #[doc(hidden)]
    pub fn open_incoming<K: Decode<A> + Decode<T>, A, T>(
        &self,
        mut received: Received<'_>,
    ) -> Result<(A, Incoming<T>, Open), Refusal> {
        let trailer = received.split_trailer::<4>().map_err(|e| self.undecoded(e))?;
        let key = (received.session(), u32::from_le_bytes(trailer));
        let arena = received.arena().clone();
        let (client, charged) = (received.client(), received.is_charged());
        let cells = received.cells();
        let arguments = self.arguments::<K, A>(received)?;
        let open = Open::new(self, key, (Direction::Incoming, None), client.clone())?;
        let incoming = Incoming::new::<K>(self, open.entry(), (arena, client, charged), cells);
        Ok((arguments, incoming, open))
    }

    /// Answers a push when the handler has taken its items.
    pub(in crate::service) fn push(
        &self,
        received: Received<'_>,
    ) -> impl Future<Output = PushReply> + Send + use<> {
        let mut call = self.begin_push(received);
        poll_fn(move |cx| match &mut call {
            Ok(call) => poll_push(call, cx),
            Err(refusal) => Poll::Ready(PushReply::Refused(refusal.clone())),
        })
    }

    fn begin_push(&self, mut received: Received<'_>) -> Result<Use, Refusal> {
        let trailer = received.split_trailer::<9>().map_err(|e| self.undecoded(e))?;
        let (stream, number) = read_trailer(&trailer);
        let is_last = match trailer[8] {
            0 => false,
            1 => true,
            _ => return Err(self.undecoded(DecodeError::Form("a push with an unknown mark"))),
        };
        let key = (received.session(), stream);
        let of = (key, received.finder());
        let batch = received.take().map_err(|e| self.undecoded(e.into()))?;
        Use::new(self, of, number, Direction::Incoming, |stream| {
            if (stream.reading && number == stream.next)
                || stream.pushed[slot(number)].is_some()
                || (stream.complete && number > stream.last)
                || (is_last && stream.complete)
            {
                return Err(StreamError::Sequence);
            }
            if is_last {
                (stream.complete, stream.last) = (true, number);
            }
            stream.pushed[slot(number)] = Some(batch);
            stream.wake_handler();
            Ok(())
        })
    }
}

fn poll_push(call: &mut Use, cx: &mut Context<'_>) -> Poll<PushReply> {
    let entry = call.entry.clone();
    let mut stream = entry.lock();
    Poll::Ready(if let Some(e) = &stream.undecoded {
        PushReply::Refused(Refusal::Undecoded(e.clone()))
    } else if stream.next > call.number {
        PushReply::Taken
    } else if stream.ended {
        PushReply::Ended
    } else {
        call.wait(&mut stream, cx.waker());
        return Poll::Pending;
    })
}

/// The answer to a push.
pub(in crate::service) enum PushReply {
    Taken,
    Ended,
    Refused(Refusal),
}

impl Reply for PushReply {
    fn outcome(&self) -> CallOutcome {
        match self {
            PushReply::Taken | PushReply::Ended => CallOutcome::Ok,
            PushReply::Refused(refusal) => refusal.outcome(),
        }
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self {
            PushReply::Taken => to.bytes(&[tag::OK]),
            PushReply::Ended => to.bytes(&[tag::ENDED]),
            PushReply::Refused(refusal) => RefusalReply(refusal).send_to(to),
        }
    }
}

impl<T> Incoming<T> {
    pub(super) fn new<K: Decode<T>>(
        services: &Services,
        entry: &Arc<Entry>,
        (arena, client, charged): (Arena, Option<Arc<Client>>, bool),
        cells: Option<Arc<MethodCells>>,
    ) -> Self {
        Incoming {
            entry: entry.clone(),
            services: services.clone(),
            arena,
            reading: None,
            done: false,
            charged,
            client,
            cells,
            counted: 0,
            decode: K::decode,
        }
    }

    /// The next item; `None` after the last one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Next<'_, Self> {
        Next::new(self)
    }

    /// The next item of the batch that is read.
    fn read(&mut self) -> Option<Result<T, DecodeError>> {
        let reading = self.reading.as_mut()?;
        let limit = self.arena.config().limit_bytes;
        let charge = Charge::new(self.services.load(), limit).of_client(self.client.as_ref());
        let item = match reading.next() {
            Some(Ok(bytes)) => {
                let mut payload = Payload::borrowed(bytes, &self.arena);
                if self.charged {
                    payload.charged_to(&charge);
                }
                (self.decode)(payload)
            }
            Some(Err(e)) => Err(e),
            None => return None,
        };
        let is_empty = reading.is_empty();
        drop(charge);
        if let Err(e) = &item {
            let _ = self.services.undecoded(e.clone());
            self.fail(e.clone());
            return Some(item);
        }
        self.entry.take_item();
        if is_empty {
            self.batch_taken();
        }
        Some(item)
    }

    /// Ends the stream, whose items cannot be decoded.
    fn fail(&mut self, error: DecodeError) {
        self.done = true;
        self.reading = None;
        let mut stream = self.entry.lock();
        stream.undecoded = Some(error);
        stream.end();
    }

    /// Counts the items that were taken since the last time.
    fn count_items(&mut self) {
        if let Some(cells) = &self.cells {
            let taken = self.entry.taken();
            cells.add_items(taken - self.counted);
            self.counted = taken;
        }
    }

    /// Answers the push of the batch that was read.
    fn batch_taken(&mut self) {
        self.reading = None;
        self.count_items();
        let mut stream = self.entry.lock();
        stream.reading = false;
        let number = stream.next;
        stream.advance();
        self.done |= stream.complete && stream.last == number;
    }

    /// Begins to read the next batch. `None`: it is not here.
    fn next_batch(&mut self, cx: &Context<'_>) -> Option<MsgBuf> {
        let mut stream = self.entry.lock();
        let at = slot(stream.next);
        let batch = stream.pushed[at].take();
        match batch {
            Some(_) => stream.reading = true,
            None if stream.ended => self.done = true,
            None => stream.handler = Some(cx.waker().clone()),
        }
        batch
    }
}

impl<T> ItemStream for Incoming<T> {
    type Item = Result<T, DecodeError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.read() {
                return Poll::Ready(Some(item));
            }
            if self.reading.is_some() {
                self.batch_taken(); // it had no items
            }
            if self.done {
                return Poll::Ready(None);
            }
            match self.next_batch(cx) {
                Some(batch) => self.reading = Some(Reading::new(batch)),
                None if self.done => return Poll::Ready(None),
                None => return Poll::Pending,
            }
        }
    }
}

impl<T> Drop for Incoming<T> {
    fn drop(&mut self) {
        self.count_items();
        self.entry.lock().end();
    }
}
