//! Halves that are used while the other one polls their calls.

use std::cell::Cell;
use std::future::{Future, Pending, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{OnceLock, Weak};
use std::thread;
use std::time::Duration;

use courser_buf::{AllocError, Arena};

use super::super::pushing::BatchMemory;
use super::*;
use crate::channel::CallOptions;
use crate::service::Bytes;

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(30);

type Ended = Result<MsgBuf, CallFailure>;

/// A connection whose calls have no answers. It counts the pushes.
#[derive(Clone)]
struct Silent {
    arena: Arena,
    pushes: Arc<AtomicUsize>,
}

impl Channel for Silent {
    type Call<'a> = Pending<Ended>;
    type Sent<'a> = Pending<Result<(), CallFailure>>;
    type Another<'a> = Pending<Result<Self, CallFailure>>;
    type OwnedCall = Pin<Box<dyn Future<Output = Ended> + Send>>;

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.arena.alloc(len)
    }
    fn call(&self, _: u16, _: MsgBuf, _: CallOptions) -> Pending<Ended> {
        std::future::pending()
    }
    fn call_owned(&self, _: u16, _: MsgBuf, _: CallOptions) -> Self::OwnedCall {
        self.pushes.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    }
    fn send(&self, _: u16, _: MsgBuf, _: CallOptions) -> Self::Sent<'_> {
        std::future::pending()
    }
    fn another(&self, _: CallOptions) -> Self::Another<'_> {
        std::future::pending()
    }
}

/// Halves whose open call runs a function in its first poll, in the place of a waker.
struct Stream {
    halves: Arc<Halves<Silent>>,
    channel: Silent,
    /// Alive as long as the open call.
    open: Weak<()>,
}

fn stream(first_poll: impl Fn(&Halves<Silent>) + Send + 'static) -> Stream {
    let channel = Silent { arena: Arena::heap(), pushes: Arc::default() };
    let place = Arc::new(OnceLock::<Weak<Halves<Silent>>>::new());
    let (known, alive) = (place.clone(), Arc::new(()));
    let (open, is_first) = (Arc::downgrade(&alive), Cell::new(true));
    let call = poll_fn(move |_| {
        let _alive = &alive;
        if is_first.replace(false)
            && let Some(halves) = known.get().and_then(Weak::upgrade)
        {
            first_poll(&halves);
        }
        Poll::Pending
    });
    let halves = Halves::new(Some(Box::pin(call) as _), Pushes::new(channel.clone(), 1));
    place.set(Arc::downgrade(&halves)).unwrap();
    Stream { halves, channel, open }
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn add(halves: &Halves<Silent>, channel: &Silent, item: &[u8]) {
    let mut filling = halves.with(Items::take_filling);
    let added = filling.add::<Bytes, _>(&item.to_vec(), &BatchMemory(channel)).ok();
    halves.with(|items| items.put_back(filling, added));
}

/// Runs a test on another thread, which may block for ever.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let thread = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => panic!("the test has blocked"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => thread.join().unwrap(),
    }
}

#[test]
fn a_half_is_polled_in_place_by_a_waker_within_the_poll_of_the_other() {
    in_time(|| {
        let polled = Arc::new(AtomicUsize::new(0));
        let count = polled.clone();
        let stream = stream(move |halves| {
            assert!(halves.poll_end(&cx()).is_pending());
            count.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(stream.halves.poll_room::<NoError>(&cx()), Poll::Ready(Ok(())));
        assert_eq!(polled.load(Ordering::SeqCst), 1);
        assert!(stream.open.upgrade().is_some());
    });
}

#[test]
fn a_thread_does_not_wait_for_another_one_that_polls_the_other_half() {
    in_time(|| {
        let ((begin, has_begun), (end, has_ended)) = (channel(), channel());
        let stream = stream(move |_| {
            begin.send(()).unwrap();
            has_ended.recv_timeout(PATIENCE).unwrap();
        });
        let halves = stream.halves.clone();
        let other = thread::spawn(move || {
            has_begun.recv().unwrap();
            assert!(halves.poll_end(&cx()).is_pending());
            end.send(()).unwrap();
        });
        assert_eq!(stream.halves.poll_room::<NoError>(&cx()), Poll::Ready(Ok(())));
        other.join().unwrap();
    });
}

#[test]
fn a_half_that_is_dropped_within_the_poll_of_the_other_cancels_the_calls() {
    in_time(|| {
        let stream = stream(|halves| halves.cancel(Half::Receiver));
        let closed = stream.halves.poll_room::<NoError>(&cx());
        assert_eq!(closed, Poll::Ready(Err(MidStreamError::Closed.into())));
        assert!(stream.open.upgrade().is_none(), "the open call is not cancelled");
        assert!(matches!(stream.halves.poll_end(&cx()), Poll::Ready(Err(_))));
    });
}

#[test]
fn items_that_are_added_within_a_poll_are_sent_by_it() {
    in_time(|| {
        let place = Arc::new(OnceLock::<Silent>::new());
        let known = place.clone();
        let stream = stream(move |halves| {
            add(halves, known.get().unwrap(), b"an item");
            halves.progress(None);
        });
        let pushes = stream.channel.pushes.clone();
        assert!(place.set(stream.channel).is_ok());
        assert!(stream.halves.poll_end(&cx()).is_pending());
        assert_eq!(pushes.load(Ordering::SeqCst), 1);
        assert!(!stream.halves.with(|items| items.is_taken()));
    });
}

/// Counts its wakes, and may panic.
#[derive(Default)]
struct Woken {
    times: AtomicUsize,
    panics: bool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "a waker");
    }
}

impl Woken {
    fn times(&self) -> usize {
        self.times.load(Ordering::SeqCst)
    }
}

#[test]
fn a_panic_of_a_call_wakes_both_tasks_and_carries_out_a_cancel_that_was_noted() {
    in_time(|| {
        let stream = stream(|halves| {
            halves.progress(None); // notes that there is more to do
            panic!("a call");
        });
        let [sender, receiver] = [(); 2].map(|()| Arc::new(Woken::default()));
        let wakers = [&sender, &receiver].map(|woken| Waker::from(woken.clone()));
        stream.halves.tasks.set(Half::Receiver, Some(wakers[1].clone()));
        let poll = || stream.halves.poll_taken::<NoError>(&Context::from_waker(&wakers[0]));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)).is_err());
        assert_eq!((sender.times(), receiver.times()), (1, 1));
        assert!(stream.open.upgrade().is_some());
    });
    in_time(|| {
        let stream = stream(|halves| {
            halves.cancel(Half::Receiver);
            panic!("a call");
        });
        let poll = || stream.halves.poll_end(&cx()).is_pending();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)).is_err());
        assert!(stream.open.upgrade().is_none(), "the open call is not cancelled");
    });
}

#[test]
fn a_waker_of_one_half_that_panics_does_not_keep_the_other_half_asleep() {
    let tasks = Tasks::default();
    let sender = Arc::new(Woken { panics: true, ..Woken::default() });
    let receiver = Arc::new(Woken::default());
    tasks.set(Half::Sender, Some(Waker::from(sender.clone())));
    tasks.set(Half::Receiver, Some(Waker::from(receiver.clone())));
    tasks.wake_other(None);
    assert_eq!((sender.times(), receiver.times()), (1, 1));
}

#[test]
fn calls_are_polled_again_after_a_panic_of_one() {
    in_time(|| {
        let stream = stream(|_| panic!("a call"));
        let poll = || stream.halves.poll_end(&cx()).is_pending();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)).is_err());
        assert!(stream.halves.poll_end(&cx()).is_pending() && stream.open.upgrade().is_some());
        stream.halves.cancel(Half::Receiver);
        assert!(stream.open.upgrade().is_none());
    });
}
