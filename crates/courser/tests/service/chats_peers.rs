//! Streams each way with peers that break the rules, items that are none, and wakers that drop tasks.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, Ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use courser::service::{
    CallOptions, Channel, DecodeError, Incoming, MidStreamError, RpcError, Service, Stream,
    StreamError,
};
use courser::{AllocError, CallFailure, Executed, MsgBuf};
use futures::{FutureExt, StreamExt, stream};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use words::{Repeats, WordsServer, mistaken};

use crate::chat::{ChatClient, Room, serve};
use crate::chats::{closed, note};
use crate::world::{Running, Session, World};

/// A text that is not checked when it is written.
pub struct Unchecked(Vec<u8>);

impl Unchecked {
    pub fn new(bytes: Vec<u8>) -> Self {
        Unchecked(bytes)
    }
}

impl Serialize for Unchecked {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => to.serialize_str(text),
            Err(_) => to.serialize_bytes(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Unchecked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Unchecked(text.into()))
    }
}

/// The same service as servers have it, and as a mistaken client does.
mod words {
    use super::*;

    #[courser::service(name = "Words", codec = Postcard)]
    pub(super) trait Words {
        fn words(&self, words: Incoming<String>) -> impl Stream<Item = String>;
    }

    pub(super) mod mistaken {
        use super::*;

        #[courser::service(name = "Words", codec = Postcard)]
        pub(crate) trait Words {
            fn words(&self, words: Incoming<Unchecked>) -> impl Stream<Item = String>;
        }
    }

    pub(super) struct Repeats;

    impl Words for Repeats {
        fn words(&self, words: Incoming<String>) -> impl Stream<Item = String> {
            let words = words.map(|word| word.unwrap_or("not read".to_owned()));
            words.chain(stream::iter(["and so on".to_owned()]))
        }
    }
}

#[test]
fn an_item_that_the_server_cannot_decode_ends_the_clients_items_alone() {
    let mut world = World::new(1);
    WordsServer::new(Repeats).register(&mut world).unwrap();
    let client = mistaken::WordsClient::unchecked(world.session());
    world.run(async {
        let mut chat = client.words().await.unwrap();
        chat.send(&Unchecked(b"word".to_vec())).await.unwrap();
        assert_eq!(chat.next().await, Some(Ok("word".to_owned())));
        chat.send(&Unchecked(vec![0xff; 3])).await.unwrap();
        let error = chat.flush().await.unwrap_err();
        let remote = |e: &_| {
            matches!(e, RpcError::MidStream(MidStreamError::Decode(DecodeError::Remote(_))))
        };
        assert!(remote(&error), "{error:?}");
        assert_eq!(error.executed(), Executed::Maybe);
        let closed = chat.send(&Unchecked(b"word".to_vec())).await;
        assert_eq!(closed, Err(MidStreamError::Closed.into()));
        let rest: Vec<_> = chat.finish().collect().await;
        assert_eq!(rest, [Ok("not read".to_owned()), Ok("and so on".to_owned())]);
    });
    assert_eq!(world.services.stats().decode_errors, 1);
    world.assert_clean();
}

thread_local! {
    /// Calls wake no task: a poll alone finds their answers.
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// A session whose calls wake their task when they are first polled, or never.
#[derive(Clone)]
struct Eager(Session);

struct EagerCall(Running, bool);

impl Future for EagerCall {
    type Output = Result<MsgBuf, CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if SILENT.get() {
            return Pin::new(&mut self.0).poll(&mut Context::from_waker(Waker::noop()));
        }
        if !std::mem::replace(&mut self.1, true) {
            cx.waker().wake_by_ref();
        }
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Channel for Eager {
    type Call<'a> = Running;
    type Sent<'a> = <Session as Channel>::Sent<'a>;
    type Another<'a> = Ready<Result<Self, CallFailure>>;
    type OwnedCall = EagerCall;

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.0.alloc(len)
    }
    fn call(&self, number: u16, request: MsgBuf, options: CallOptions) -> Running {
        self.0.call(number, request, options)
    }
    fn call_owned(&self, number: u16, request: MsgBuf, options: CallOptions) -> EagerCall {
        EagerCall(self.0.call_owned(number, request, options), false)
    }
    fn send(&self, number: u16, message: MsgBuf, options: CallOptions) -> Self::Sent<'_> {
        self.0.send(number, message, options)
    }
    fn another(&self, _: CallOptions) -> Self::Another<'_> {
        std::future::ready(Ok(Eager(self.0.world.session())))
    }
}

thread_local! {
    /// A half of a chat that is dropped when its task is woken.
    static HALF: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

struct DropsHalf;

impl Wake for DropsHalf {
    fn wake(self: Arc<Self>) {
        drop(HALF.take());
    }
}

#[test]
fn a_half_may_be_dropped_by_the_waker_that_a_poll_of_the_other_half_wakes() {
    let (world, _, rooms) = serve(1);
    let client = ChatClient::unchecked(Eager(world.session()));
    let chat = world.run(async { client.chat(Room::Deaf).await }).unwrap();
    let (mut sender, mut receiver) = chat.split();
    let waker = Waker::from(Arc::new(DropsHalf));
    assert!(receiver.poll_next_unpin(&mut Context::from_waker(&waker)).is_pending());
    HALF.set(Some(Box::new(receiver)));
    world.run(async {
        // Its push wakes the task of the receiver.
        sender.send(&note(1, 3_000)).await.unwrap();
        closed(&sender.send(&note(1, 3_000)).await);
    });
    assert!(HALF.take().is_none());
    world.assert_clean();
    assert_eq!(rooms.live(), 0);
}

/// Counts its wake-ups.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_half_that_finds_an_answer_wakes_the_other_half() {
    let (world, _, _) = serve(1);
    let client = ChatClient::unchecked(Eager(world.session()));
    let (tasks, wakers) = tasks();
    let [mut of_sender, mut of_receiver] = wakers.each_ref().map(Context::from_waker);
    let chat = world.run(async { client.chat(Room::Leave(2)).await }).unwrap();
    let (mut sender, mut receiver) = chat.split();
    world.settle();
    SILENT.set(true);
    // The receiver finds the answer of the push.
    assert!(sender.send(&note(1, 10)).now_or_never().unwrap().is_ok());
    {
        let mut flush = pin!(sender.flush());
        assert!(flush.as_mut().poll(&mut of_sender).is_pending());
        world.settle();
        assert_eq!(tasks[0].count(), 0);
        assert!(receiver.poll_next_unpin(&mut of_receiver).is_pending());
        assert_eq!(tasks[0].count(), 1);
        assert_eq!(flush.as_mut().poll(&mut of_sender), Poll::Ready(Ok(())));
    }
    // The sender finds that of the open call.
    assert!(sender.send(&note(2, 10)).now_or_never().unwrap().is_ok());
    assert!(receiver.poll_next_unpin(&mut of_receiver).is_pending(), "the end is not there");
    world.settle();
    let before = tasks[1].count();
    let _ = sender.flush().now_or_never();
    assert_eq!(tasks[1].count(), before + 1);
    assert_eq!(receiver.poll_next_unpin(&mut of_receiver), Poll::Ready(None));
    SILENT.set(false);
    drop((sender, receiver));
    world.assert_clean();
}

/// Two tasks, and their wakers.
fn tasks() -> ([Arc<Woken>; 2], [Waker; 2]) {
    let tasks = [Arc::<Woken>::default(), Arc::default()];
    let wakers = tasks.clone().map(Waker::from);
    (tasks, wakers)
}

const PULL: u16 = 0x03F1;
const PUSH: u16 = 0x03F2;

fn number(method: &str) -> u16 {
    let methods = ChatClient::SERVICE.methods;
    0x4000 + methods.iter().position(|m| m.name == method).unwrap() as u16
}

fn pull(stream: u32, batch: u32) -> Vec<u8> {
    [stream.to_le_bytes(), batch.to_le_bytes()].concat()
}

/// A push of one number.
fn push(bytes: &[u8], stream: u32, batch: u32, last: u8) -> Vec<u8> {
    let len = (bytes.len() as u32).to_le_bytes();
    [&len[..], bytes, &pull(stream, batch), &[last]].concat()
}

/// The tag of a call that is answered at once, and the code of a refusal.
fn answer(world: &World, method: u16, bytes: &[u8]) -> Option<(u8, u8)> {
    let answer = world.try_run(world.raw(50, method, bytes))?.unwrap();
    let (tag, rest) = answer.split_last().unwrap();
    Some((*tag, if *tag == 5 { rest[0] } else { 0 }))
}

#[test]
fn pulls_and_pushes_that_break_the_rules_are_refused_in_each_direction_by_itself() {
    let (world, _, _) = serve(3);
    let refused = |e: StreamError| Some((5, e as u8));
    let opened = world.raw(50, number("sums"), &4_u32.to_le_bytes());
    world.settle();
    let mut first = world.raw(50, PUSH, &push(&[7], 4, 0, 0));
    world.settle();
    // The handler has taken the number of batch 0, and the sum waits for a pull.
    assert_eq!(world.run(&mut first).unwrap()[..], [0]);
    assert_eq!(answer(&world, PUSH, &push(&[7], 4, 0, 0)), refused(StreamError::Sequence));
    assert_eq!(answer(&world, PUSH, &push(&[7], 4, 9, 0)), refused(StreamError::Sequence));
    assert_eq!(answer(&world, PULL, &pull(4, 2)), refused(StreamError::Sequence));
    let again = answer(&world, number("sums"), &4_u32.to_le_bytes());
    assert_eq!(again, refused(StreamError::Open));
    // The handler takes another number, and its sum is pulled.
    for batch in 0..9_u32 {
        assert_eq!(answer(&world, PULL, &pull(4, batch)), Some((0, 0)), "batch {batch}");
        assert_eq!(answer(&world, PULL, &pull(4, batch)), refused(StreamError::Sequence));
        assert_eq!(answer(&world, PUSH, &push(&[1], 4, batch + 1, 0)), Some((0, 0)));
    }
    // An item that is no number ends the client's direction alone.
    assert_eq!(answer(&world, PULL, &pull(4, 9)), Some((0, 0)));
    assert_eq!(answer(&world, PUSH, &push(&[0xff], 4, 10, 0)), Some((2, 0)));
    assert_eq!(answer(&world, PUSH, &push(&[1], 4, 11, 0)), Some((2, 0)));
    assert_eq!(answer(&world, PULL, &pull(4, 10)), Some((0, 0)), "the sum is the same");
    // The end, after 11 batches.
    assert_eq!(world.run(opened).unwrap()[..], [11, 0, 0, 0, 0]);
    assert_eq!(answer(&world, PULL, &pull(4, 11)), refused(StreamError::Unknown));
    assert_eq!(answer(&world, PUSH, &push(&[1], 4, 12, 1)), refused(StreamError::Unknown));
    world.assert_clean();
}

#[test]
fn a_peer_that_neither_reads_nor_keeps_the_window_holds_bounded_memory() {
    let (world, _, _) = serve(4);
    let opened = world.raw(50, number("sums"), &4_u32.to_le_bytes());
    world.settle();
    // Batches of 60,000 numbers whose sums are not pulled.
    let items = [1, 0, 0, 0, 1].repeat(12_000);
    let mut waiting = Vec::new();
    for batch in 0..200_u32 {
        for number in [batch, batch / 50, 0, 1] {
            let bytes = [&items[..], &pull(4, number), &[0]].concat();
            waiting.push(world.raw(50, PUSH, &bytes));
            world.settle();
        }
    }
    drop(waiting);
    world.settle();
    let held = world.arena.stats().in_use_bytes;
    assert!(held <= 3 * (81 << 10), "{held} bytes");
    drop(opened);
    world.assert_clean();
}
