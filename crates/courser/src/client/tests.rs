//! The state of calls, and the ends of the threads of endpoints.

mod room;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};

use courser_buf::Arena;

use super::*;
use crate::channel::call::{Call, Dropped, Started, Target};
use crate::error::{CallRejected, ClientError};

/// Counts its wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn call(arena: &Arena, waker: Option<Waker>) -> Call {
    let target =
        Target { link: 0, method: 1.into(), one_way: false, wait_for_ready: false, expires: None };
    Call::new(target, arena.alloc(300).expect("memory"), waker)
}

#[test]
fn a_result_wakes_its_task_once_and_is_taken_once() {
    let arena = Arena::heap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let call = call(&arena, Some(waker.clone()));
    assert!(call.poll(&waker).is_pending() && !call.is_done());
    call.finish(Err(CallFailure::Stopped)).expect("a task").wake();
    assert!(call.is_done());
    assert!(call.finish(Ok(None)).is_none(), "the first result holds");
    assert!(matches!(call.poll(&waker), Poll::Ready(Err(CallFailure::Stopped))));
    assert!(call.poll(&waker).is_pending());
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_dropped_future_frees_its_request_or_its_result() {
    let arena = Arena::heap();
    let waiting = call(&arena, None);
    assert!(matches!(waiting.abandon(), Dropped::Waiting));
    assert_eq!(arena.in_use_bytes(), 0);
    assert!(waiting.is_over());
    assert!(matches!(waiting.start(|_| unreachable!()), Started::Over));
    let done = call(&arena, None);
    assert!(done.finish(Ok(Some(arena.alloc(9).expect("memory")))).is_none());
    assert!(arena.in_use_bytes() > 0);
    assert!(matches!(done.abandon(), Dropped::Done));
    assert_eq!(arena.in_use_bytes(), 0);
}

#[test]
fn a_request_that_is_refused_waits_as_before() {
    let arena = Arena::heap();
    let call = call(&arena, None);
    let reason = courser_proto::RejectReason::QueueFull { limit: 1 };
    let refused = call.start(|request| Err(CallRejected { reason, request }));
    assert!(matches!(refused, Started::Refused(_)));
    assert!(!call.is_over() && call.running().is_none());
    assert!(matches!(call.start(|_| Ok(None)), Started::Sent(None)), "as a message");
    assert!(matches!(call.poll(Waker::noop()), Poll::Ready(Ok(None))));
}

#[test]
fn futures_fail_after_their_endpoint_has_ended() {
    let endpoints = Endpoints::bind("udp://127.0.0.1:0", 1, Config::default()).expect("endpoints");
    // A connect that does not end by itself.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let uri = format!("udp://{}", listener.local_addr().expect("bound"));
    let connect = Client::connect_on(&endpoints, &uri);
    endpoints.user().expect("it runs").stop();
    assert!(matches!(connect.wait(), Err(ClientError::Stopped)));
    let late = Client::connect_on(&endpoints, &uri).wait();
    assert!(matches!(late, Err(ClientError::Stopped)));
}

#[test]
fn the_number_of_endpoints_has_limits() {
    let none = Endpoints::bind("udp://127.0.0.1:0", 0, Config::default()).map(drop);
    assert!(matches!(none, Err(ClientError::Setting { .. })));
    let many = Endpoints::bind("udp://127.0.0.1:0", 2_000, Config::default()).map(drop);
    assert!(matches!(many, Err(ClientError::Setting { .. })));
}

#[test]
fn handles_and_futures_may_move_between_threads() {
    fn moves<T: Send + 'static>() {}
    fn shared<T: Send + Sync + Clone + 'static>() {}
    shared::<Client>();
    moves::<ClientCall>();
    moves::<ClientSend>();
    moves::<ClientConnect>();
    moves::<Endpoints>();
    moves::<ClientAnother>();
}

/// A client over UDP, with its server.
fn connected() -> (crate::Serving, Client) {
    let server = crate::Server::bind("udp://127.0.0.1:0").expect("a free port");
    let uri = server.local_uri();
    let serving = server.serve().expect("a server");
    (serving, Client::connect(&uri).wait().expect("a client"))
}

/// Drives the endpoint as soon as no other thread does.
fn visit(endpoint: &endpoint::Endpoint) -> endpoint::Visit<'_> {
    loop {
        if let Some(visit) = endpoint.visit() {
            return visit;
        }
        std::thread::yield_now();
    }
}

#[test]
fn the_thread_of_an_endpoint_sleeps_while_a_caller_drives_and_has_mail() {
    let (_serving, client) = connected();
    let endpoint = client.inner.endpoint();
    let visit = visit(endpoint);
    endpoint.inbox.wake();
    let (begun, before) = (std::time::Instant::now(), client.polling().looks);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let looks = client.polling().looks - before;
    let most = begun.elapsed().as_micros() / 500 + 10;
    visit.leave();
    assert!(u128::from(looks) <= most, "{looks} looks");
}

/// Polls a call or message once beside tasks that were woken and may submit calls. Returns a visit
/// afterwards.
fn poll_beside_tasks<'e>(
    endpoint: &'e endpoint::Endpoint,
    outgoing: Pin<&mut impl Future>,
) -> endpoint::Visit<'e> {
    let mut first = visit(endpoint);
    first.engine().batch.expect(3);
    first.leave();
    let _ = outgoing.poll(&mut std::task::Context::from_waker(Waker::noop()));
    visit(endpoint)
}

#[test]
fn a_message_leaves_at_once_beside_tasks_that_may_submit_calls() {
    let (_serving, client) = connected();
    let message = client.alloc(9).expect("memory");
    let sent = std::pin::pin!(client.send(5, message).into_future());
    let mut second = poll_beside_tasks(client.inner.endpoint(), sent);
    assert!(!second.engine().batch.has_unsent());
    second.leave();
}

/// Begins a call beside tasks that were woken and may submit calls, one of which computes for long.
/// Returns whether the frame of the call has waited for them.
fn waits_for_others(client: &Client) -> bool {
    let endpoint = client.inner.endpoint();
    let request = client.alloc(9).expect("memory");
    let call = std::pin::pin!(client.call(5, request).into_future());
    let mut second = poll_beside_tasks(endpoint, call);
    let waits = second.engine().batch.has_unsent();
    if waits {
        std::thread::sleep(std::time::Duration::from_millis(1));
        second.engine().rpc.begin_turn();
        second.engine().pass(&endpoint.inbox);
    }
    second.leave();
    waits
}

#[test]
fn after_a_call_has_waited_long_for_other_tasks_the_next_ones_leave_at_once() {
    let (_serving, client) = connected();
    let waits: Vec<_> = (0..40).map(|_| waits_for_others(&client)).collect();
    assert!(!waits.windows(3).any(|w| w[0] && (w[1] || w[2])), "{waits:?}");
    // With one CPU a task does not wait for others.
    let has_others = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    assert!(!has_others || waits.contains(&true), "no call waits at all");
}
