//! A pair of live endpoints under a program of calls, faults, time, and frames that pass ingress
//! because their sender has the session's cookies. Nothing panics; all invariants of
//! `Endpoint::check` and of the protocol's test world hold after each step; memory stays within the
//! limits of the sessions; once the sessions are closed each call has ended exactly once and all
//! memory is free.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use courser_buf::{Arena, ArenaConfig, Heap, HugePages};
use courser_proto::wire::{EcnCounts, Packet};
use courser_proto::{Config, RequestId, SessionId};

use crate::program::{Op, Setup, decode};
use crate::support::forge::frame;
use crate::support::{Action, DPP, Forge, Node, World, config, pattern};

/// Largest message: small, so that limits on memory are significant.
const MAX_MSG: u32 = 64 << 10;
/// Most sessions of a program at a time.
const SESSIONS: usize = 4;
/// Longest time of one operation: 160 of the shortest timeouts.
const MOST_US: u64 = 8192;
/// Frames that can be replayed.
const KEPT: usize = 64;

/// Memory limit of one endpoint: for each slot of each session a request and a response of the
/// largest size, rounded up to their size class, and a buffer of a packet; besides them, queued
/// calls and [`staging_bytes`].
const BOUND: usize = SESSIONS * (8 * (2 * MAX_MSG as usize * 5 / 4 + 2 * DPP) + QUEUE * (80 << 10));
/// Most queued calls.
const QUEUE: usize = 32;

pub fn run(bytes: &[u8]) {
    let Ok((setup, ops)) = decode(bytes) else { return };
    let mut machine = Machine::new(setup);
    for op in &ops {
        machine.execute(op);
        machine.look();
    }
    machine.end();
}

type Sent = Rc<RefCell<VecDeque<(usize, Vec<u8>)>>>;

struct Machine {
    w: World,
    slots: u32,
    first: u32,
    sessions: Vec<(SessionId, Forge)>,
    /// The newest frames: receiver and bytes.
    sent: Sent,
    calls: u16,
    /// Ends of calls: exactly one for each.
    ended: BTreeMap<u64, u32>,
    data: Vec<u8>,
    idle_bytes: [usize; 2],
}

impl Machine {
    fn new(setup: Setup) -> Machine {
        let bit = |n: u8| setup.bits >> n & 1 != 0;
        let slots = if bit(1) { 1 } else { 8 };
        let cfg = Config {
            slots,
            credits: if bit(2) { 2 } else { 32 },
            max_msg_size: MAX_MSG,
            max_held_per_peer: if bit(5) { 256 << 10 } else { 64 << 20 },
            idle_after_ns: 1_000_000,
            call_queue: QUEUE,
            ..config()
        };
        let mut w = World::pair(cfg.clone());
        for (i, little) in [(0, false), (1, bit(0))] {
            let limit_bytes = if little { 2 << 20 } else { 16 << 20 };
            let limits = ArenaConfig { data_per_packet: DPP, limit_bytes, headroom: 0 };
            let arena = Arena::new(std::sync::Arc::new(Heap { huge: HugePages::Never }), limits)
                .expect("arena");
            w.nodes[i] = Node::with_arena(i, cfg.clone(), arena);
        }
        w.link.hold = bit(3);
        w.nodes[1].handler = Box::new(handle);
        let sent = Sent::default();
        let seen = sent.clone();
        w.filter = Some(Box::new(move |from, bytes| {
            let mut seen = seen.borrow_mut();
            seen.push_front((1 - from, bytes.to_vec()));
            seen.truncate(KEPT);
            true
        }));
        let idle_bytes = [0, 1].map(|i| w.nodes[i].arena.stats().in_use_bytes);
        let first = if bit(4) { 0u32.wrapping_sub(16) } else { 0 };
        let mut machine = Machine {
            w,
            slots: slots.into(),
            first,
            sessions: Vec::new(),
            sent,
            calls: 0,
            ended: BTreeMap::new(),
            data: pattern(1, DPP),
            idle_bytes,
        };
        machine.connect();
        machine
    }

    fn connect(&mut self) {
        if self.sessions.len() >= SESSIONS {
            return;
        }
        let random = u64::from(self.first) << 32 | self.w.rng.next() >> 32;
        let (session, accept) = self.w.try_connect(0, 1, random).expect("there is room");
        self.sessions.push((session, Forge::new(accept)));
    }

    fn close(&mut self, at: usize) {
        let (session, _) = self.sessions.remove(at);
        if let Some((remote, _)) = self.w.ep(0).close(session) {
            self.w.ep(1).disconnected(remote, 0xe0, 7);
        }
        self.w.pump();
    }

    fn execute(&mut self, op: &Op) {
        match *op {
            Op::Run(us) => {
                let us = u64::from(us) % MOST_US;
                self.w.run_until(self.w.now_ns + 1 + us * 1_000);
            }
            Op::Call { session, what, len } => self.call(session.into(), what, len.into()),
            Op::Frame { to, ref packets } => {
                let (slots, first, data) = (self.slots, self.first, self.data.clone());
                let packets: Vec<Packet<'_>> =
                    packets.iter().map(|p| p.packet(first, slots, DPP as u16, &data)).collect();
                self.forge(to.into(), |f, to| f.frame(to, &packets));
            }
            Op::Bytes { to, ref bytes } => self.forge(to.into(), |f, to| {
                let mut out = f.frame(to, &[]);
                out.extend_from_slice(bytes);
                out
            }),
            Op::Replay { back } => self.replay(back.into(), |_| {}),
            Op::Flip { back, at } => self.replay(back.into(), |bytes| {
                let at = usize::from(at) % (bytes.len() * 8);
                bytes[at / 8] ^= 1 << (at % 8);
            }),
            Op::Faults { loss, duplicate, reorder } => {
                // At most a third, so that calls make progress.
                let ppm = |n: u8| u32::from(n) * 1_300;
                let link = &mut self.w.link;
                (link.loss, link.duplicate) = (ppm(loss), ppm(duplicate));
                (link.reorder, link.late_ns) = (ppm(reorder), 20_000);
            }
            Op::Connect => self.connect(),
            Op::Close { session } if !self.sessions.is_empty() => {
                self.close(usize::from(session) % self.sessions.len());
            }
            Op::Close { .. } => {}
            Op::Answer { len } => self.answer(usize::from(len) % (MAX_MSG as usize + 2)),
            Op::Idle { session, ref done } => {
                let number = |&n: &i8| self.first.wrapping_add(i32::from(n) as u32);
                let done: Vec<u32> = done.iter().map(number).collect();
                self.w.ep(1).on_idle(session.into(), 0xe0, 7, &done);
            }
            Op::Clocks { to, sent_at, echo_at, marked } => self.forge(to.into(), |f, to| {
                let mut h = f.header(to);
                h.sent_at = (sent_at != 0).then_some(sent_at); // or it is not said
                h.echo_at = h.sent_at.map(|_| echo_at);
                h.ecn = EcnCounts { marked: marked as u16, received: sent_at as u16 };
                frame(&h, &[])
            }),
        }
    }

    fn call(&mut self, session: usize, what: u8, len: usize) {
        if self.sessions.is_empty() {
            return;
        }
        let session = self.sessions[session % self.sessions.len()].0;
        let id = self.calls * KINDS + u16::from(what) % KINDS;
        self.calls += 1;
        if self.w.try_call(0, session, id, len).is_ok() {
            self.ended.insert(id.into(), 0);
        }
    }

    /// Injects a frame that belongs to one of the sessions.
    fn forge(&mut self, to: usize, make: impl FnOnce(&mut Forge, usize) -> Vec<u8>) {
        if self.sessions.is_empty() {
            return;
        }
        let at = to / 2 % self.sessions.len();
        let to = to % 2;
        let bytes = make(&mut self.sessions[at].1, to);
        self.w.inject(1 - to, to, &bytes);
    }

    fn replay(&mut self, back: usize, change: impl FnOnce(&mut [u8])) {
        let old = self.sent.borrow().get(back % KEPT).cloned();
        let Some((to, mut bytes)) = old else { return };
        change(&mut bytes);
        self.w.inject(1 - to, to, &bytes);
    }

    fn answer(&mut self, len: usize) {
        let requests: Vec<RequestId> = std::mem::take(&mut self.w.nodes[1].requests);
        let bytes = pattern(2, len);
        for id in requests {
            let _ = self.w.ep(1).reply_bytes(id, &bytes);
        }
        self.w.pump();
    }

    /// Does the work of an application's event loop, and checks the invariants.
    fn look(&mut self) {
        self.w.pump();
        for i in 0..2 {
            while let Some(failed) = self.w.ep(i).poll_failed() {
                if let Some(at) = self.sessions.iter().position(|s| s.0 == failed) {
                    self.close(at);
                }
            }
        }
        while let Some(idle) = self.w.ep(0).poll_idle() {
            // Messages that the control channel would carry.
            self.w.ep(1).on_idle(idle.remote, 0xe0, 7, &idle.done);
        }
        for done in self.w.take_done(0) {
            let n = self.ended.get_mut(&done.id).expect("an unknown call has ended");
            *n += 1;
            assert_eq!(*n, 1, "call {} ended twice", done.id);
        }
        for n in &self.w.nodes {
            n.ep.check();
            let used = n.arena.stats().in_use_bytes;
            let bound = BOUND + staging_bytes(self.w.link.hold);
            assert!(used <= bound, "{used} bytes are in use, {bound} may be");
        }
    }

    fn end(mut self) {
        self.w.link.loss = 0;
        self.w.run_until(self.w.now_ns + 5_000_000);
        while !self.sessions.is_empty() {
            self.close(0);
            self.look();
        }
        // Sessions remain until their handlers have answered.
        self.answer(1);
        self.w.run_until(self.w.now_ns + 5_000_000);
        self.look();
        for n in &mut self.w.nodes {
            n.flush();
            n.collect();
        }
        self.look();
        assert!(self.ended.values().all(|&n| n == 1), "a call has not ended: {:?}", self.ended);
        let staging = staging_bytes(self.w.link.hold);
        for (i, n) in self.w.nodes.drain(..).enumerate() {
            assert_eq!(n.ep.live_sessions(), 0);
            let used = n.arena.stats().in_use_bytes;
            assert!(used <= self.idle_bytes[i] + staging, "node {i} still holds {used} bytes");
            let arena = n.arena.clone();
            drop(n);
            assert_eq!(arena.stats().in_use_bytes, 0, "node {i} has leaked");
        }
    }
}

/// Bytes of frame buffers that the transmit stage may keep: 128 frames of one stage; up to the
/// protocol's limit of 8 MiB where the transport holds them.
fn staging_bytes(hold: bool) -> usize {
    if hold { 9 << 20 } else { 256 << 10 }
}

/// Behaviour of handlers, by the lowest digit of the request type.
const KINDS: u16 = 8;

fn handle(req_type: u16, body: &[u8]) -> Action {
    let len = usize::from(req_type) * 131 % (MAX_MSG as usize + 2);
    match req_type % KINDS {
        0 | 1 => Action::Reply(body.to_vec()),
        2 => Action::Reply(pattern(3, len)),
        3 => Action::Defer(300_000, body.to_vec()),
        4 => Action::Defer(3_000, pattern(4, len)),
        5 => Action::Status(courser_proto::Status::Rejected),
        6 => Action::Reply(Vec::new()),
        _ => Action::Forget,
    }
}
