//! Streams between their handlers and the calls of clients in every order of threads.

use std::sync::LazyLock;

use courser_buf::{Arena, MsgBuf};
use loom::thread;

use super::super::batch::{Filling, with_trailer};
use super::super::incoming::PushReply;
use super::super::open::Use;
use super::super::outgoing::PullReply;
use super::super::table::Direction;
use super::*;
use crate::service::Postcard;
use crate::service::key::SessionKey;
use crate::sync::model::{LOST, block_on, check, must_fail};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// An accept call looks for the stream, and begins to wait afterwards.
    LooksFirst,
    /// A pull looks for items, and begins to wait afterwards.
    WaitsLate,
}

const STREAM: u32 = 5;
const LIMIT: usize = 1 << 20;

fn memory() -> &'static Arena {
    static MEMORY: LazyLock<Arena> = LazyLock::new(Arena::heap);
    &MEMORY
}

fn received(bytes: &[u8]) -> Received<'_> {
    Received::borrowed(bytes, SessionKey::new(0, 1), memory(), LIMIT)
}

/// The bytes of a pull.
fn pull(number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&STREAM.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The accept call of a client.
fn accept(services: &Services, broken: Broken) -> AcceptReply {
    if broken != Broken::LooksFirst {
        return block_on(services.accept(received(&STREAM.to_le_bytes())));
    }
    let key = (SessionKey::new(0, 1), STREAM);
    if services.streams().lock().is_accepted(key) {
        return AcceptReply::Accepted;
    }
    assert!(services.streams().lock().accepts.add(key).is_ok());
    let waiting = Waiting { services: services.clone(), key };
    block_on(poll_fn(|cx| waiting.poll(cx)))
}

/// A pull that waits too late.
fn pull_late(services: &Services) {
    let key = (SessionKey::new(0, 1), STREAM);
    let call = Use::new(services, (key, None), 0, Direction::Outgoing, |stream| {
        stream.pulled = true;
        stream.wake_handler();
        Ok(())
    });
    let call = call.expect("an open stream");
    block_on(poll_fn(|cx| {
        if call.entry.lock().complete {
            return Poll::Ready(());
        }
        call.wait(&mut call.entry.lock(), cx.waker());
        Poll::Pending
    }));
}

/// A handler sends one item. The client opens the stream and pulls two batches together.
fn downloading(broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let services = Services::default();
        let own = services.clone();
        let handler = thread::spawn(move || {
            let bytes = STREAM.to_le_bytes();
            let opened = own.open_outgoing::<Postcard, ()>(received(&bytes));
            let (_, stream) = opened.expect("a new stream");
            let items = futures::stream::iter([Ok::<u32, u32>(7)]);
            block_on(stream.send_all::<Postcard, u32, u32, _>(items));
        });
        assert!(matches!(accept(&services, broken), AcceptReply::Accepted));
        if broken == Broken::WaitsLate {
            pull_late(&services);
        }
        let (first, second) = (pull(0), pull(1));
        let calls = (services.pull(received(&first)), services.pull(received(&second)));
        let (first, second) = block_on(futures::future::join(calls.0, calls.1));
        assert!(matches!(first, PullReply::Batch(_)) && matches!(second, PullReply::Ended));
        handler.join().unwrap();
    }
}

/// A batch with one item, and the trailer of a push that is the last one.
fn push() -> MsgBuf {
    let mut batch = Filling::default();
    assert!(batch.add::<Postcard, u32>(&7, memory()).is_ok());
    let mut trailer = [1; 9];
    trailer[..8].copy_from_slice(&pull(0));
    with_trailer(batch.take(), &trailer, memory()).expect("memory")
}

/// A handler reads all items. The client opens the stream and pushes one batch.
fn uploading() {
    let services = Services::default();
    let own = services.clone();
    let handler = thread::spawn(move || {
        let bytes = STREAM.to_le_bytes();
        let opened = own.open_incoming::<Postcard, (), u32>(received(&bytes));
        let (_, mut items, open) = opened.expect("a new stream");
        let taken = open.run(async {
            let mut taken = 0;
            while let Some(item) = items.next().await {
                taken += item.expect("an item");
            }
            taken
        });
        assert_eq!(block_on(taken).ok(), Some(7));
    });
    assert!(matches!(accept(&services, Broken::Nothing), AcceptReply::Accepted));
    let bytes = push();
    assert!(matches!(block_on(services.push(received(&bytes))), PushReply::Taken));
    handler.join().unwrap();
}

#[test]
fn a_stream_opens_and_its_items_pass() {
    check(downloading(Broken::Nothing));
    check(uploading);
}

#[test]
fn a_stream_with_a_broken_rule_is_found() {
    must_fail(
        module_path!(),
        "a_stream_with_a_broken_rule_is_found",
        LOST,
        &[
            ("an accept call that waits too late", || check(downloading(Broken::LooksFirst))),
            ("a pull that waits too late", || check(downloading(Broken::WaitsLate))),
        ],
    );
}
