//! Streams of items, which ride on calls.
//!
//! A stream is a call, its *open call*, whose answer is the stream's end. Items travel in batches
//! beside it, on the same session: a server's in the answers to `pull` calls, a client's in `push`
//! calls. Batches are numbered from 0, and at most two are between the ends, which is the credit.
//! So a reader that stalls stops the writer, and each end holds a bounded number of bytes. A stream each
//! way has both, each with numbers and a credit of its own, under one open call.
//!
//! A client sends an *accept* call together with the open call. It is answered when the handler has
//! made its stream, which ends the wait of the client that opens the stream. Pulls and pushes follow,
//! so those of a stream that is not open are refused at once.
//!
//! Trailers, behind the codec's bytes, little endian: an open call and an accept call have the number
//! of their stream (4 bytes, chosen by the client); a pull is that number and the number of the batch
//! (4); a push has both, and whether it is the last one (1).

mod accept;
mod accepts;
mod batch;
mod both;
mod client;
mod counted;
mod download;
mod duplex;
mod halves;
mod incoming;
mod open;
mod outgoing;
mod pool;
mod pushing;
mod table;
mod upload;

pub use client::{OpenDuplex, OpenStream, OpenUpload, Opening, OpeningDuplex, OpeningUpload};
pub use download::{Next, Streaming};
pub use duplex::{Duplex, DuplexSender};
pub use incoming::Incoming;
pub use outgoing::{Mapped, StreamEnd};
pub(crate) use pool::Pool;
pub(crate) use table::Streams;
pub use upload::Upload;

/// Batches between the ends of a stream.
pub(crate) const WINDOW: u32 = 2;
/// Bytes of items after which a batch is complete. A larger item is alone in its batch.
pub(crate) const BATCH: usize = 64 << 10;

/// The slot of a batch among [`WINDOW`].
fn slot(number: u32) -> usize {
    (number % WINDOW) as usize
}
