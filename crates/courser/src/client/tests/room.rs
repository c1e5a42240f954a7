//! Calls and messages of clients that wait for room.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use courser_net::{AnyTransport, MemConfig, MemNetwork};

use crate::client::calls::Clients;
use crate::client::driver;
use crate::client::endpoint::Endpoint;
use crate::client::inbox::{Inbox, Submitted};
use crate::error::failure::CallFailure;
use crate::platform::Clock;
use crate::{Client, Config, Endpoints, Nexus, ReplyHandle, Rpc};

const CLIENTS: usize = 40;
/// Calls, and messages, of each client.
const EACH: usize = 12;
/// Messages in the queue of a session.
const QUEUED: usize = 4;

type Pending = Pin<Box<dyn Future<Output = Result<(), CallFailure>>>>;

/// An endpoint of [`CLIENTS`] clients with a session of one slot each, and a server that defers its
/// answers.
struct Pair {
    rpc: Rpc,
    state: Rc<RefCell<Clients>>,
    endpoint: Arc<Endpoint>,
    submitted: Submitted,
    server: Rpc,
    deferred: Rc<RefCell<Vec<ReplyHandle>>>,
    received: Rc<Cell<usize>>,
    clients: Vec<Client>,
    /// The futures that have begun.
    pending: Vec<Pending>,
    ended: usize,
}

impl Pair {
    /// `in_flight`: calls of each client that are in progress at a time.
    fn new(in_flight: usize) -> Pair {
        let network = MemNetwork::new();
        let host = u128::from(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        let config = MemConfig { host, ..MemConfig::default() };
        let transport = || -> AnyTransport { Box::new(network.endpoint(config).unwrap()) };
        let config = Config { slots: 1, message_queue: QUEUED, ..Config::default() };
        let nexus = Nexus::bind_with("mem://127.0.0.1:0", config).unwrap();
        let mut server = nexus.endpoint_on(transport()).unwrap();
        let mut rpc = nexus.endpoint_on(transport()).unwrap();
        let (deferred, received): (Rc<RefCell<Vec<_>>>, Rc<Cell<usize>>) = Default::default();
        let (handles, count) = (deferred.clone(), received.clone());
        server.on(1, move |cx, _| handles.borrow_mut().extend(cx.defer()));
        server.on_message(1, move |_, _| count.set(count.get() + 1));

        let clients = Clients::new(Clock::System, nexus.config().connect_timeout);
        let state = Rc::new(RefCell::new(clients));
        driver::register(&mut rpc, &state);
        let (inbox, arena) = (Inbox::new(rpc.mailbox.clone()), rpc.core.proto.arena().clone());
        let endpoint = Arc::new(Endpoint::driven_elsewhere(inbox, arena, 1 << 20));
        let endpoints = Endpoints::driven(endpoint.clone());
        let (clients, pending, submitted) = (Vec::new(), Vec::new(), Submitted::default());
        let mut pair = Pair {
            rpc,
            state,
            endpoint,
            submitted,
            server,
            deferred,
            received,
            clients,
            pending,
            ended: 0,
        };
        let uri = nexus.local_uri();
        for _ in 0..CLIENTS {
            let builder = Client::builder().endpoints(&endpoints).sessions(1).in_flight(in_flight);
            let mut connect = pin!(builder.connect(&uri));
            let client = loop {
                if let Poll::Ready(client) = connect.as_mut().poll(&mut waker()) {
                    break client.unwrap();
                }
                pair.pass();
                pair.server.poll();
            };
            pair.clients.push(client);
        }
        pair
    }

    /// One pass of the clients' endpoint.
    fn pass(&mut self) {
        let mut cx = self.rpc.context();
        let mut state = self.state.borrow_mut();
        if self.endpoint.inbox.take(&mut self.submitted) {
            state.accept(&mut cx, &mut self.submitted);
        }
        if state.has_due(cx.now_ns()) {
            state.tend(&mut cx);
        }
        drop(state);
        self.rpc.poll();
        let before = self.pending.len();
        self.pending.retain_mut(|future| future.as_mut().poll(&mut waker()).is_pending());
        self.ended += before - self.pending.len();
    }

    fn passes(&mut self, passes: usize) {
        for _ in 0..passes {
            self.pass();
        }
    }

    /// One pass of both sides.
    fn pass_both(&mut self) {
        self.pass();
        self.server.poll();
    }

    /// Begins [`EACH`] calls of each client.
    fn call(&mut self) {
        for client in &self.clients {
            for _ in 0..EACH {
                let call = client.call(1, client.alloc(8).unwrap());
                self.pending.push(Box::pin(async move { call.await.map(drop) }));
            }
        }
        self.begin();
    }

    /// Begins [`EACH`] messages of each client.
    fn send(&mut self) {
        for client in &self.clients {
            for _ in 0..EACH {
                let send = client.send(1, client.alloc(8).unwrap());
                self.pending.push(Box::pin(send));
            }
        }
        self.begin();
    }

    fn begin(&mut self) {
        for future in &mut self.pending {
            let _ = future.as_mut().poll(&mut waker());
        }
        self.pass();
    }

    /// Answers a deferred request.
    fn answer(&mut self) -> bool {
        let Some(handle) = self.deferred.borrow_mut().pop() else { return false };
        self.server.reply_to(handle, b"done").unwrap();
        true
    }

    /// The number of times that calls and messages which waited were tried.
    fn tries(&self) -> usize {
        self.state.borrow().tries
    }
}

fn waker() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[test]
fn hundreds_of_waiting_calls_are_tried_when_a_slot_of_their_own_client_is_free() {
    let mut pair = Pair::new(1_000);
    pair.call();
    while pair.deferred.borrow().len() < CLIENTS {
        pair.pass_both();
    }
    let waiting = CLIENTS * (EACH - 1);
    assert_eq!((pair.pending.len(), pair.tries()), (CLIENTS * EACH, 0));
    pair.passes(1_000);
    assert_eq!(pair.tries(), 0, "no slot is free");
    // One answer frees one slot: one call starts, and the next one finds no slot.
    assert!(pair.answer());
    while pair.ended == 0 {
        pair.pass_both();
    }
    pair.passes(100);
    assert_eq!(pair.tries(), 2);
    while pair.ended < CLIENTS * EACH {
        while pair.answer() {}
        pair.pass_both();
    }
    assert!(pair.tries() <= 2 * waiting, "{} tries of {waiting} calls", pair.tries());
}

#[test]
fn hundreds_of_waiting_messages_are_tried_when_the_queue_of_their_session_has_room() {
    let mut pair = Pair::new(1);
    pair.send();
    // Nothing is acknowledged, since the server does not run.
    pair.passes(1_000);
    let waiting = CLIENTS * (EACH - QUEUED);
    assert_eq!((pair.pending.len(), pair.tries()), (waiting, 0));
    while pair.received.get() < CLIENTS * EACH || !pair.pending.is_empty() {
        pair.pass_both();
    }
    // Half of a queue is free when room is reported: two messages are sent, and the next one is refused.
    assert!(pair.tries() <= waiting * 3 / 2, "{} tries of {waiting} messages", pair.tries());
}

#[test]
fn a_message_that_waits_for_room_is_not_tried_when_calls_of_its_client_end() {
    let mut pair = Pair::new(1);
    pair.call();
    pair.send();
    pair.passes(100);
    assert_eq!(pair.tries(), 0);
    // The calls in progress end without an answer, and others take their places.
    let waiting = CLIENTS * (EACH - 1);
    for call in 0..EACH - 1 {
        for client in (0..CLIENTS).rev() {
            drop(pair.pending.remove(client * (EACH - call)));
        }
        pair.passes(3);
        assert_eq!(pair.tries(), CLIENTS * (call + 1), "one call of each client is started");
    }
    assert_eq!(pair.tries(), waiting);
    assert_eq!(pair.received.get(), 0);
}
