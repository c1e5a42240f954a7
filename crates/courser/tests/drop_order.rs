//! Drops a program's parts in any order, with calls in flight: no use after free, no leak, and the
//! remaining parts keep working. Also run under AddressSanitizer with leak detection
//! (`scripts/sanitize.sh asan`).

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::mpsc;

use common::*;
use courser::{
    Config, EndpointHandle, MsgBuf, Nexus, ReplyHandle, Rpc, SessionId, Transport, Work,
};
use courser_net::{DelayedCompletion, DelayedCompletionConfig, MemNetwork};

const ECHO: u16 = 1;
const DEFER: u16 = 2;
const KEEP: u16 = 3;
const PASS_ON: u16 = 4;

/// A part that can be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Server,
    Client,
    /// The client closes the session.
    Session,
    ServerNexus,
    ClientNexus,
    /// Reply handles of deferred requests.
    Deferred,
    /// Message buffers: a received response, a request stored by a handler, and an unused one.
    Buffers,
    /// An unanswered request that a worker handler has stored.
    Work,
    /// Handles of both endpoints, which are used once before the drop.
    Handles,
}

const ALL: [Part; 9] = [
    Part::Server,
    Part::Client,
    Part::Session,
    Part::ServerNexus,
    Part::ClientNexus,
    Part::Deferred,
    Part::Buffers,
    Part::Work,
    Part::Handles,
];

/// A client and a server with calls in flight. The order of the fields does not matter:
/// [`Scene::drop_part`] drops each.
struct Scene<T: Transport> {
    server: Option<Rpc<T>>,
    client: Option<Rpc<T>>,
    session: SessionId,
    server_nexus: Option<Nexus>,
    client_nexus: Option<Nexus>,
    deferred: Rc<RefCell<Vec<ReplyHandle>>>,
    /// With the seeds of their contents.
    buffers: Vec<(u64, MsgBuf)>,
    work: Vec<Work>,
    endpoints: Vec<EndpointHandle>,
    /// A clone is in each continuation, until it has run or was dropped.
    token: Rc<()>,
}

const LARGE: usize = 20_000;

impl<T: Transport> Scene<T> {
    /// Calls on slots: one deferred, one stored by a worker handler, one whose response has arrived
    /// unread, one whose request is half sent. Further calls are queued.
    fn new(server: (Nexus, Rpc<T>), client: (Nexus, Rpc<T>)) -> Scene<T> {
        let ((server_nexus, mut server), (client_nexus, mut client)) = (server, client);
        let deferred: Rc<RefCell<Vec<ReplyHandle>>> = Rc::default();
        let kept: Rc<RefCell<Vec<MsgBuf>>> = Rc::default();
        let (defer, keep) = (deferred.clone(), kept.clone());
        server.on(ECHO, |cx, req| cx.reply(req));
        server.on(DEFER, move |cx, _| defer.borrow_mut().extend(cx.defer()));
        server.on(KEEP, move |cx, req| {
            keep.borrow_mut().push(req.take(cx).unwrap());
            cx.reply(b"kept");
        });
        let (pass_on, passed_on) = mpsc::channel();
        server.on_worker(PASS_ON, move |work| pass_on.send(work).unwrap()).unwrap();
        let uri = server_nexus.local_uri();
        let session = connect(&mut client, &mut [&mut server], &uri);
        let mut scene = Scene {
            session,
            deferred,
            buffers: vec![(9, message(&client, 9, 100))],
            work: Vec::new(),
            endpoints: vec![server.handle(), client.handle()],
            token: Rc::new(()),
            server: Some(server),
            client: Some(client),
            server_nexus: Some(server_nexus),
            client_nexus: Some(client_nexus),
        };
        scene.take_a_response();
        scene.call(KEEP, 7, LARGE);
        scene.drive(|_| !kept.borrow().is_empty());
        scene.buffers.extend(kept.take().into_iter().map(|m| (7, m)));
        scene.call(DEFER, 1, 10);
        let held = scene.deferred.clone();
        scene.drive(|_| !held.borrow().is_empty());
        scene.call(PASS_ON, 4, LARGE);
        let mut work = None;
        scene.drive(|_| {
            work = passed_on.try_recv().ok();
            work.is_some()
        });
        scene.work.extend(work);
        // A response that the client does not read.
        let replies = scene.server.as_ref().map_or(0, |s| s.stats().replies);
        scene.call(ECHO, 2, 10);
        scene.poll_client();
        let end = std::time::Instant::now() + PATIENCE;
        while scene.server.as_mut().is_some_and(|s| s.poll() || s.stats().replies == replies) {
            assert!(std::time::Instant::now() < end, "no request arrived");
        }
        scene.call(ECHO, 3, 40 * LARGE);
        scene.poll_client();
        for seed in 0..6 {
            scene.call(DEFER, seed, 1000);
        }
        assert!(
            scene.client.as_ref().is_some_and(|c| c.session_stats(session).unwrap().queued > 0)
        );
        scene
    }

    fn take_a_response(&mut self) {
        let taken: Rc<RefCell<Option<MsgBuf>>> = Rc::default();
        let client = self.client.as_mut().unwrap();
        let (request, put) = (message(client, 8, LARGE), taken.clone());
        let done = move |cx: &mut courser::Context<'_>, done: courser::Completion<'_>| {
            *put.borrow_mut() = Some(done.result.unwrap().take(cx).unwrap());
        };
        client.call(self.session, ECHO, request, done).unwrap();
        self.drive(|_| taken.borrow().is_some());
        self.buffers.extend(taken.take().map(|m| (8, m)));
    }

    fn call(&mut self, req_type: u16, seed: u64, len: usize) {
        let client = self.client.as_mut().unwrap();
        let (request, token) = (message(client, seed, len), self.token.clone());
        client.call(self.session, req_type, request, move |_, _| drop(token)).unwrap();
    }

    fn drive(&mut self, mut until: impl FnMut(&Self) -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        while !until(self) {
            self.poll();
            assert!(std::time::Instant::now() < end, "the condition does not become true");
        }
    }

    fn poll_client(&mut self) {
        self.client.as_mut().map(Rpc::poll);
    }

    /// Polls the remaining parts a few times and checks their invariants.
    fn poll(&mut self) {
        for rpc in [&mut self.server, &mut self.client].into_iter().flatten() {
            for _ in 0..4 {
                rpc.poll();
            }
            rpc.check();
        }
    }

    fn drop_part(&mut self, part: Part, dice: u64) {
        match part {
            Part::Server => self.server = None,
            Part::Client => self.client = None,
            Part::Session => {
                if let Some(client) = &mut self.client {
                    client.close(self.session);
                }
            }
            Part::ServerNexus => self.server_nexus = None,
            Part::ClientNexus => self.client_nexus = None,
            Part::Deferred => self.drop_deferred(dice),
            Part::Buffers => self.drop_buffers(dice),
            Part::Work => self.drop_work(dice),
            Part::Handles => {
                let endpoints = std::mem::take(&mut self.endpoints);
                let elsewhere =
                    std::thread::spawn(move || endpoints.iter().for_each(EndpointHandle::wake));
                elsewhere.join().unwrap();
            }
        }
    }

    /// Drops them, or answers while there is an endpoint.
    fn drop_deferred(&mut self, dice: u64) {
        let handles = self.deferred.take();
        match &mut self.server {
            Some(server) if dice.is_multiple_of(2) => {
                for handle in handles {
                    // The session may have ended.
                    let _ = server.reply_to(handle, b"late");
                }
            }
            _ => drop(handles),
        }
    }

    /// Drops it here, or answers on another thread, with or without an endpoint.
    fn drop_work(&mut self, dice: u64) {
        let work = std::mem::take(&mut self.work);
        if dice.is_multiple_of(2) {
            return drop(work);
        }
        let answer = |w: Work| {
            assert!(*w == *expected(4, LARGE), "the request was overwritten");
            w.reply(b"done");
        };
        std::thread::spawn(move || work.into_iter().for_each(answer)).join().unwrap();
    }

    /// Drops them here or on another thread, after a check of their contents.
    fn drop_buffers(&mut self, dice: u64) {
        let buffers = std::mem::take(&mut self.buffers);
        let look = move || {
            for (seed, buffer) in buffers {
                assert!(*buffer == *expected(seed, buffer.len()), "buffer {seed} was overwritten");
            }
        };
        if dice.is_multiple_of(2) { look() } else { std::thread::spawn(look).join().unwrap() }
    }

    /// Drops the parts in `order`, then the others.
    fn take_down(mut self, order: &[Part], dice: u64) {
        assert_eq!(self.buffers.len(), 3);
        for (n, &part) in order.iter().enumerate() {
            self.drop_part(part, dice >> n);
            if dice >> (n + 16) & 1 == 0 {
                self.poll();
            }
        }
        for part in ALL {
            self.drop_part(part, 0);
        }
        assert_eq!(Rc::strong_count(&self.token), 1, "a continuation was leaked: {order:?}");
        assert_eq!(Rc::strong_count(&self.deferred), 1, "a handler was leaked: {order:?}");
    }
}

fn config() -> Config {
    // Small, as there are hundreds of scenes.
    Config {
        slots: 4,
        workers: 1,
        memory_limit: 16 << 20,
        socket_buffer: 1 << 20,
        ..Config::default()
    }
}

fn scene_in_memory() -> Scene<impl Transport> {
    let network = MemNetwork::new();
    Scene::new(mem_endpoint(&network, config(), |t| t), mem_endpoint(&network, config(), |t| t))
}

/// A scene whose transport keeps all frames, and so references to message buffers.
fn scene_with_held_frames() -> Scene<impl Transport> {
    let network = MemNetwork::new();
    let make = || {
        mem_endpoint(&network, config(), |t| {
            DelayedCompletion::new(t, DelayedCompletionConfig::default())
        })
    };
    Scene::new(make(), make())
}

fn over_udp() -> Scene<impl Transport> {
    let make = || {
        let nexus = Nexus::bind_with(LOOPBACK, config()).unwrap();
        let rpc = nexus.endpoint().unwrap();
        (nexus, rpc)
    };
    Scene::new(make(), make())
}

/// Calls `f` with each order of `parts` (Heap's algorithm: B. R. Heap, 1963).
fn orders(parts: &mut [Part], n: usize, f: &mut impl FnMut(&[Part])) {
    if n <= 1 {
        return f(parts);
    }
    for i in 0..n {
        orders(parts, n - 1, f);
        parts.swap(if n.is_multiple_of(2) { i } else { 0 }, n - 1);
    }
}

/// splitmix64
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn shuffled(state: &mut u64) -> [Part; ALL.len()] {
    let mut parts = ALL;
    for i in (1..parts.len()).rev() {
        parts.swap(i, (next(state) % (i as u64 + 1)) as usize);
    }
    parts
}

#[test]
fn every_drop_order_of_five_parts() {
    let mut parts = [Part::Server, Part::Client, Part::Session, Part::Deferred, Part::Work];
    let (mut dice, mut count) = (1, 0);
    orders(&mut parts.clone(), parts.len(), &mut |order| {
        scene_in_memory().take_down(order, next(&mut dice));
        count += 1;
    });
    assert_eq!(count, 120);
    // On a transport that still holds frames of the dropped parts.
    orders(&mut parts, 4, &mut |order| scene_with_held_frames().take_down(order, next(&mut dice)));
}

#[test]
fn drop_orders_with_nexuses_and_handles() {
    let mut state = 2;
    for _ in 0..60 {
        let order = shuffled(&mut state);
        scene_in_memory().take_down(&order, next(&mut state));
    }
}

#[test]
fn drop_orders_over_sockets() {
    let mut state = 3;
    for _ in 0..30 {
        let order = shuffled(&mut state);
        over_udp().take_down(&order, next(&mut state));
    }
}

/// Drops a scene in an order while its thread unwinds.
struct Owner<T: Transport> {
    scene: Option<Scene<T>>,
    order: [Part; ALL.len()],
}

impl<T: Transport> Drop for Owner<T> {
    fn drop(&mut self) {
        assert!(std::thread::panicking());
        if let Some(mut scene) = self.scene.take() {
            self.order.iter().for_each(|&part| scene.drop_part(part, 0));
        }
    }
}

/// Panics without the panic hook, whose message would look like a failure.
fn panic_quietly() -> ! {
    resume_unwind(Box::new("on purpose"))
}

#[test]
fn a_panic_that_unwinds_the_owner_drops_everything() {
    let mut state = 4;
    for _ in 0..30 {
        let order = shuffled(&mut state);
        let scene = scene_in_memory();
        let (token, deferred) = (scene.token.clone(), scene.deferred.clone());
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _owner = Owner { scene: Some(scene), order };
            panic_quietly();
        }));
        assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"on purpose"));
        assert_eq!(Rc::strong_count(&token), 1, "a continuation was leaked: {order:?}");
        assert_eq!(Rc::strong_count(&deferred), 1, "a handler was leaked: {order:?}");
    }
}

#[test]
fn a_panic_in_a_continuation_unwinds_through_the_event_loop() {
    let mut state = 5;
    for _ in 0..30 {
        let mut scene = scene_in_memory();
        let client = scene.client.as_mut().unwrap();
        client.close(scene.session);
        let again = connect(client, &mut [scene.server.as_mut().unwrap()], &{
            scene.server_nexus.as_ref().unwrap().local_uri()
        });
        let request = message(client, 1, 10);
        client.call(again, ECHO, request, |_, _| panic_quietly()).unwrap();
        scene.session = again;
        let end = std::time::Instant::now() + PATIENCE;
        while catch_unwind(AssertUnwindSafe(|| scene.poll())).is_ok() {
            assert!(std::time::Instant::now() < end, "the continuation did not run");
        }
        let order = shuffled(&mut state);
        scene.take_down(&order, next(&mut state));
    }
}

/// A connect that fails, and the call that waits for it.
fn fail_to_connect(client: &mut Rpc, uri: &str) {
    let session = client.connect(uri).unwrap();
    let log = Log::default();
    let request = message(client, 1, 10);
    call(client, session, ECHO, request, &log, 0);
    client.wait_connected(session).unwrap_err();
    drive_until(&mut [client], |_| !log.borrow().is_empty());
}

#[test]
fn descriptors_do_not_leak() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let round = || {
        let nexus = Nexus::bind(LOOPBACK).unwrap();
        let mut server = nexus.endpoint().unwrap();
        server.on(ECHO, |cx, req| cx.reply(req));
        let mut client = client(Config::default());
        connect(&mut client, &mut [&mut server], &nexus.local_uri());
        fail_to_connect(&mut client, "udp://127.0.0.1:1");
    };
    // Other tests of this process open descriptors too, so that a leak shows in the total only:
    // 200 rounds hold at least 10 each.
    round();
    let before = open();
    for _ in 0..200 {
        round();
    }
    let after = open();
    assert!(after < before + 400, "{before} descriptors became {after}");
}
