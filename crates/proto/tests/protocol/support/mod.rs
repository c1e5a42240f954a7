//! The test world: endpoints, a link with faults, virtual time, and checkers.
//!
//! Checked after every step: the invariants of [`Endpoint::check`]; that a server sends no more
//! packets than were requested (E39); that a returned request buffer is the original one, unchanged
//! and unshared (E24, E27).

#![allow(dead_code)] // each test uses a part

pub mod forge;
pub mod link;
pub mod messages;
pub mod node;
pub mod rng;

use std::collections::BTreeMap;

use courser_buf::{Addr, PathId};
use courser_proto::wire::{FRAME_HEADER, PACKET_HEADER};
use courser_proto::{
    CallId, CallOptions, Config, ConnectAccept, ConnectOffer, ConnectRefuseReason, ConnectRequest,
    Control, Dialed, Endpoint, Integrity, Notice, Recovery, RejectReason, SessionEnd, SessionId,
};
pub use forge::{Forge, expect_drop};
pub use link::{Link, Seen, flip_bits};
pub use messages::messages_arrive;
pub use node::{Action, Done, Node};
pub use rng::{Rng, pattern};

use link::{allowance, describe};

/// Largest frame of the world's transports.
pub const MAX_FRAME: usize = DPP + FRAME_HEADER + PACKET_HEADER;
/// The resulting data bytes per packet.
pub const DPP: usize = 1424;

/// Receives the sender and the bytes of a frame.
pub type Filter = Box<dyn FnMut(usize, &[u8]) -> bool>;

pub struct World {
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    pub link: Link,
    pub rng: Rng,
    pub trace: Vec<Seen>,
    pub tracing: bool,
    /// Client sessions, with their nodes.
    pub sessions: Vec<(usize, SessionId)>,
    /// Each client is a process of its own. Otherwise all of them share a control connection.
    pub processes: bool,
    /// Called for frames before they are sent; `false` loses the frame.
    pub filter: Option<Filter>,
    /// The integrity that servers require of sessions.
    pub integrity: Integrity,
    wire: BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    steps: u64,
}

impl World {
    /// Endpoints that echo by default. Small arenas, so that leaks are detected.
    pub fn new(configs: &[Config], seed: u64) -> World {
        let nodes = configs.iter().enumerate().map(|(i, c)| Node::new(i, c.clone())).collect();
        World {
            now_ns: 1_000,
            nodes,
            link: Link::perfect(),
            rng: Rng(seed),
            trace: Vec::new(),
            tracing: false,
            sessions: Vec::new(),
            processes: false,
            filter: None,
            integrity: Integrity::None,
            wire: BTreeMap::new(),
            sent: 0,
            steps: 0,
        }
    }

    pub fn pair(config: Config) -> World {
        World::new(&[config.clone(), config], 1)
    }

    pub fn ep(&mut self, node: usize) -> &mut Endpoint<u64> {
        &mut self.nodes[node].ep
    }

    /// Takes the notices of a node.
    pub fn notices(&mut self, node: usize) -> Vec<Notice> {
        std::iter::from_fn(|| self.ep(node).poll_notice()).collect()
    }

    // ---- handshake ----------------------------------------------------------------------------

    pub fn dial(&mut self, client: usize, random: u64) -> Dialed {
        self.nodes[client].ep.dial(7, random, port(client), MAX_FRAME).expect("dial")
    }

    pub fn accept(
        &mut self,
        server: usize,
        client: usize,
        r: &ConnectRequest,
    ) -> Result<ConnectAccept, ConnectRefuseReason> {
        let offer = ConnectOffer {
            addr: addr(client),
            path: Some((PathId(client as u32), MAX_FRAME)),
            local_port: port(server),
            control: if self.processes { 100 + client as u64 } else { 7 },
            client_index: 0,
            integrity: self.integrity,
            random: self.rng.next() as u32,
            credits: u32::MAX,
        };
        self.nodes[server].ep.accept(r, offer)
    }

    pub fn try_connect(
        &mut self,
        client: usize,
        server: usize,
        random: u64,
    ) -> Result<(SessionId, ConnectAccept), ConnectRefuseReason> {
        let d = self.dial(client, random);
        match self.accept(server, client, &d.request) {
            Ok(a) => {
                let path = PathId(server as u32);
                self.nodes[client].ep.established(&a, addr(server), path).expect("established");
                self.sessions.push((client, d.session));
                Ok((d.session, a))
            }
            Err(reason) => {
                self.nodes[client].ep.refused(d.session.index(), SessionEnd::Refused(reason));
                Err(reason)
            }
        }
    }

    /// A session whose request numbers start at 0, and a forge for its frames.
    pub fn connect_forge(&mut self, client: usize, server: usize) -> (SessionId, Forge) {
        let cookie = self.rng.next() >> 32;
        let (s, accept) = self.try_connect(client, server, cookie).expect("connect");
        (s, Forge::new(accept))
    }

    /// A session whose request numbers start at 0.
    pub fn connect(&mut self, client: usize, server: usize) -> SessionId {
        let cookie = self.rng.next() >> 32;
        self.try_connect(client, server, cookie).expect("connect").0
    }

    // ---- calls --------------------------------------------------------------------------------

    /// A call of `len` bytes; its number is its request type and determines its bytes.
    pub fn call(&mut self, node: usize, s: SessionId, id: u16, len: usize) -> CallId {
        self.try_call(node, s, id, len).expect("call")
    }

    /// A call with a deadline, which its node records.
    pub fn call_within(
        &mut self,
        node: usize,
        s: SessionId,
        id: u16,
        len: usize,
        time_ns: u64,
    ) -> CallId {
        let deadline_ns = self.now_ns + time_ns;
        let n = &mut self.nodes[node];
        n.deadlines.insert(id, deadline_ns);
        let options = CallOptions::new().with_deadline_ns(deadline_ns + n.clock_ns);
        self.try_call_with(node, s, id, len, options).expect("call")
    }

    pub fn try_call(
        &mut self,
        node: usize,
        s: SessionId,
        id: u16,
        len: usize,
    ) -> Result<CallId, RejectReason> {
        self.try_call_with(node, s, id, len, CallOptions::new())
    }

    pub fn try_call_with(
        &mut self,
        node: usize,
        s: SessionId,
        id: u16,
        len: usize,
        options: CallOptions,
    ) -> Result<CallId, RejectReason> {
        let n = &mut self.nodes[node];
        let mut req = n.ep.alloc(len).expect("client memory");
        req.copy_from_slice(&pattern(id.into(), len));
        let at = req.as_ptr() as usize;
        match n.ep.call_with(s, id, req, id.into(), options) {
            Ok(call) => {
                assert!(n.given.insert(u64::from(id), (at, len)).is_none());
                Ok(call)
            }
            Err((rejected, req, cont)) => {
                assert_eq!((req.as_ptr() as usize, req.len(), cont), (at, len, id.into()));
                Err(rejected)
            }
        }
    }

    /// Takes the completions of a node so far.
    pub fn take_done(&mut self, node: usize) -> Vec<Done> {
        std::mem::take(&mut self.nodes[node].done)
    }

    // ---- time ---------------------------------------------------------------------------------

    /// Lets every endpoint send.
    pub fn pump(&mut self) {
        for i in 0..self.nodes.len() {
            self.pump_node(i);
        }
    }

    /// Lets an endpoint send, and checks its invariants.
    fn pump_node(&mut self, i: usize) {
        self.transmit(i);
        self.nodes[i].ep.check();
    }

    /// Lets an endpoint send and completes its calls; returns whether there was anything to do.
    fn transmit(&mut self, i: usize) -> bool {
        let mut busy = false;
        for _ in 0..10_000 {
            let flush = self.link.hold && self.rng.below(16) == 0;
            let frames = self.nodes[i].transmit(self.now_ns, self.link.hold, flush);
            if frames.is_empty() {
                break;
            }
            busy = true;
            for (to, bytes) in frames {
                self.send(i, to, bytes);
            }
        }
        let n = &mut self.nodes[i];
        busy |= n.collect();
        assert!(n.server_sent <= n.allowed, "a server sent more than it was asked for (E39)");
        busy
    }

    fn send(&mut self, from: usize, to: usize, mut bytes: Vec<u8>) {
        assert!(bytes.len() <= MAX_FRAME);
        let seen = describe(from, &bytes);
        assert!(!seen.is_empty(), "an empty or malformed frame was sent");
        self.nodes[from].server_sent += seen.iter().filter(|s| s.server_kind).count() as u64;
        if self.tracing {
            self.trace.extend(seen);
        }
        if self.filter.as_mut().is_some_and(|f| !f(from, &bytes)) {
            return;
        }
        let nic_ns = self.nodes[from].nic.send(self.now_ns, bytes.len());
        let fate = self.link.fate(&mut self.rng);
        self.link.spoil(&mut bytes, &mut self.rng);
        for delay in fate {
            self.sent += 1;
            let at_ns = self.now_ns + nic_ns + delay;
            self.wire.insert((at_ns, self.sent), (from, to, bytes.clone()));
        }
    }

    /// Delivers a frame at `at_ns`.
    pub fn arrive_at(&mut self, from: usize, to: usize, bytes: Vec<u8>, at_ns: u64) {
        self.sent += 1;
        self.wire.insert((at_ns, self.sent), (from, to, bytes));
    }

    /// Delivers a frame to a node as if sent by `from`, and lets it answer.
    pub fn inject(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.deliver(from, to, bytes);
        self.pump_node(to);
    }

    /// [`World::inject`] without the node's answers: for floods.
    pub fn deliver_only(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.deliver(from, to, bytes);
    }

    fn deliver(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.nodes[to].allowed += allowance(bytes);
        self.nodes[to].receive(addr(from), bytes, self.now_ns);
    }

    /// Advances to the next event and handles it. `false`: there is none. Checks the invariants of the
    /// endpoints that do something, and of all when a timer is due or there is no event: to check all in
    /// each step would take half of the time of some tests.
    pub fn step(&mut self) -> bool {
        for i in 0..self.nodes.len() {
            if self.transmit(i) {
                self.nodes[i].ep.check();
            }
        }
        let Some(at) = self.next_ns() else {
            self.nodes.iter().for_each(|n| n.ep.check());
            return false;
        };
        let is_frame = self.wire.first_key_value().is_some_and(|(key, _)| key.0 == at);
        self.steps += 1;
        assert!(self.steps < 20_000_000, "the world does not settle: {self:?}");
        self.now_ns = self.now_ns.max(at);
        if is_frame && let Some((_, (from, to, bytes))) = self.wire.pop_first() {
            self.deliver(from, to, &bytes);
            self.pump_node(to);
            return true;
        }
        for i in 0..self.nodes.len() {
            self.nodes[i].wake(self.now_ns);
            self.pump_node(i);
        }
        true
    }

    /// Runs until no event is left.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Runs until no frame is in flight.
    pub fn settle_until_idle_link(&mut self) {
        self.pump();
        while !self.wire.is_empty() {
            self.step();
        }
    }

    pub fn run_until(&mut self, t_ns: u64) {
        while self.now_ns < t_ns && self.step() {}
    }

    /// Runs to a time and not beyond it.
    pub fn run_to(&mut self, t_ns: u64) {
        self.pump();
        while self.next_ns().is_some_and(|at| at <= t_ns) && self.step() {}
        self.now_ns = self.now_ns.max(t_ns);
    }

    /// Time of the next event.
    fn next_ns(&self) -> Option<u64> {
        let frame = self.wire.first_key_value().map(|(&(at, _), _)| at);
        let own = self.nodes.iter().filter_map(Node::due_ns).min();
        frame.into_iter().chain(own).min()
    }

    /// Runs until `n` calls of a node have ended.
    pub fn finish(&mut self, node: usize, n: usize) -> Vec<Done> {
        while self.nodes[node].done.len() < n {
            let more = self.step();
            let ended = self.nodes[node].done.len();
            assert!(more || ended >= n, "{ended} of {n} calls ended, and nothing is left");
        }
        self.take_done(node)
    }

    // ---- what happened ------------------------------------------------------------------------

    /// The packets since tracing began: sender and text.
    pub fn story(&self) -> Vec<String> {
        self.trace.iter().map(|s| format!("{}: {}", s.from, s.text)).collect()
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now_ns", &self.now_ns)
            .field("link", &self.link)
            .field("on the wire", &self.wire.len())
            .finish_non_exhaustive()
    }
}

pub fn port(node: usize) -> u32 {
    1000 + node as u32
}

pub fn addr(node: usize) -> Addr {
    Addr { host: 0xfd00 + node as u128, port: port(node) }
}

/// Small credits and short timeouts, so that errors show soon. Recovery is go-back-N, whose packets
/// can be predicted; `selective.rs` tests the other schemes. Sessions have the paper's eight slots,
/// which the request numbers in the tests assume.
pub fn config() -> Config {
    Config {
        slots: 8,
        control: Control::None,
        recovery: Recovery::GoBackN,
        rto_min_ns: 50_000,
        rto_initial_ns: 100_000,
        rto_max_ns: 2_000_000,
        datapath_timeout_ns: 50_000_000,
        ..Config::default()
    }
}
