//! One-way messages of the swarm's application: bursts beside calls, and their handlers.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::time::Duration;

use courser::{Context, RejectReason, Request, Rpc, SessionId, SessionState};

use super::bytes::{NUMBER, number_of, write_request};
use super::client::{Client, Lane, Pace};
use super::dice::{Dice, MS, US};
use super::message_ledger::{MessageEnd, MessageKind, Sent};
use crate::host::hash::Mix as HashMix;
use crate::host::port::lock;
use crate::world::thread_now_ns;
use crate::{Invariant, Rng, WorldConfig};

/// Distribution of one-way messages.
#[derive(Clone, Debug)]
pub(super) struct MessageMix {
    /// Probability of a burst beside a call, per million.
    pub(super) burst_ppm: u32,
    /// Most messages of a burst.
    most: u64,
    /// Probability of a message of several packets.
    large_ppm: u32,
    /// Probability of a deadline, and the longest.
    deadline_ppm: u32,
    deadline_ns: u64,
    /// Probability that a refused message is sent again when there is room.
    again_ppm: u32,
    /// Probability of a handler that panics, and of a type without a handler.
    odd_ppm: u32,
}

impl MessageMix {
    /// Draws it, and the length of the queues.
    pub(super) fn draw(rng: &mut Rng, world: &mut WorldConfig) -> MessageMix {
        world.nexus.message_queue = rng.one(&[8, 1024]);
        MessageMix {
            burst_ppm: rng.one(&[0, 20_000, 50_000, 100_000, 200_000]),
            most: rng.one(&[1, 4, 20, 20]),
            large_ppm: rng.one(&[0, 5_000, 50_000]),
            deadline_ppm: rng.one(&[0, 100_000, 300_000]),
            deadline_ns: rng.one(&[50 * US, 300 * US, 4 * MS]),
            again_ppm: rng.one(&[0, 500_000, 1_000_000]),
            odd_ppm: rng.one(&[0, 10_000]),
        }
    }
}

/// Bytes of a message that is one packet whatever its session agrees on.
const SURELY_ONE_PACKET: u64 = 256;

/// Messages that prove at the end that a session works: no more than the shortest queue holds.
const PROOFS: usize = 3;

/// One of this number of messages makes its receiver send one.
const ANSWERED: u64 = 16;

/// A message that was drawn.
#[derive(Clone, Copy, Debug)]
struct Draft {
    kind: MessageKind,
    len: u64,
    /// Within this time, ns.
    within_ns: Option<u64>,
}

type OfSessions<T> = HashMap<SessionId, T, BuildHasherDefault<HashMix>>;

/// The state of the messages of an endpoint.
#[derive(Debug)]
pub(super) struct Messages {
    /// Its draws, apart from those of calls.
    rng: RefCell<Rng>,
    /// Sessions that have refused a message, and have not reported room since.
    pub(super) refused: RefCell<HashSet<SessionId, BuildHasherDefault<HashMix>>>,
    /// Messages that they have refused, to be sent again.
    again: RefCell<OfSessions<Vec<Draft>>>,
}

impl Messages {
    pub(super) fn new(rng: Rng) -> Self {
        Messages { rng: RefCell::new(rng), refused: RefCell::default(), again: RefCell::default() }
    }
}

impl Client {
    /// Registers the handlers of messages.
    pub(super) fn take_messages(self: &Rc<Self>, rpc: &mut Rpc) {
        for kind in [MessageKind::Plain, MessageKind::Panics] {
            let client = self.clone();
            rpc.on_message(kind as u16, move |cx, message| client.arrived(cx, kind, message));
        }
        let client = self.clone();
        rpc.on_room(move |cx, session| client.has_room(cx, session));
    }

    /// The handler of a message.
    fn arrived(self: &Rc<Self>, cx: &mut Context<'_>, kind: MessageKind, message: Request<'_>) {
        let began_ns = thread_now_ns().unwrap_or(0);
        let number = number_of(&message);
        lock(&self.shared.oracle).message_arrived(number, kind, self.who, began_ns, &message);
        if kind == MessageKind::Panics {
            // Without the panic hook: the panic is intended and needs no output.
            std::panic::resume_unwind(Box::new("a handler that panics"));
        }
        let number = number.unwrap_or(0);
        if number.is_multiple_of(8) {
            // Kept beyond the handler, as far as memory allows.
            if let Ok(kept) = message.take(cx) {
                self.keep(kept);
            }
        }
        if number.is_multiple_of(ANSWERED) && !self.shared.stopped.get() {
            let own = |lane: &&Lane| lane.plan.pace != Pace::Nested;
            let to = self.lanes.borrow().iter().find(own).and_then(|lane| lane.session);
            if let Some(session) = to {
                let draft = self.draft(cx, session);
                self.send(cx, session, draft);
            }
        }
    }

    /// Perhaps a burst of messages on the session of a lane.
    pub(super) fn messages_beside_call(self: &Rc<Self>, cx: &mut Context<'_>, lane: usize) {
        let mix = &self.shared.messages;
        let Some(session) = self.lanes.borrow()[lane].session else { return };
        let count = {
            let mut rng = self.messages.rng.borrow_mut();
            if !rng.chance_ppm(mix.burst_ppm) {
                return;
            }
            rng.between(1, mix.most)
        };
        for _ in 0..count {
            let draft = self.draft(cx, session);
            self.send(cx, session, draft);
        }
    }

    /// Draws a message.
    fn draft(&self, cx: &Context<'_>, session: SessionId) -> Draft {
        let mix = &self.shared.messages;
        let packet = match cx.session_stats(session) {
            Some(s) if cx.session_state(session) == SessionState::Connected => {
                u64::from(s.data_per_packet)
            }
            _ => self.shared.mix.packet,
        };
        let mut rng = self.messages.rng.borrow_mut();
        let len = if rng.chance_ppm(mix.large_ppm) {
            rng.between(packet, 6 * packet)
        } else {
            match rng.below(16) {
                // Sizes at the edge of a packet are cases of their own.
                0 => packet - rng.below(3),
                1 => rng.below(packet),
                _ => rng.below(64),
            }
        };
        let odd = rng.chance_ppm(mix.odd_ppm);
        let kind = match rng.below(2) {
            _ if !odd => MessageKind::Plain,
            0 => MessageKind::Panics,
            _ => MessageKind::Unhandled,
        };
        let timed = rng.chance_ppm(mix.deadline_ppm);
        let within_ns = timed.then(|| rng.between(5_000, mix.deadline_ns));
        Draft { kind, len: len.max(NUMBER as u64), within_ns }
    }

    /// Sends a message; false: it was refused.
    fn send(self: &Rc<Self>, cx: &mut Context<'_>, session: SessionId, draft: Draft) -> bool {
        let Draft { kind, len, within_ns } = draft;
        let Some(mut m) = self.buffer(cx, len as usize) else { return false };
        let Some(bytes) = m.get_mut() else {
            let detail = "a buffer of the application's is still referenced".to_owned();
            lock(&self.shared.oracle).wrong(Invariant::Ownership, detail);
            return false;
        };
        let connected = cx.session_state(session) == SessionState::Connected;
        let packet = cx.session_stats(session).map_or(0, |s| u64::from(s.data_per_packet));
        let deadline_ns = within_ns.map(|ns| cx.now_ns() + ns);
        let sent = Sent {
            by: self.who,
            endpoint: self.endpoint,
            session,
            to: self.lanes.borrow().iter().find(|l| l.session == Some(session)).map(|l| l.plan.to),
            kind,
            len: len as u32,
            in_order: len <= if connected { packet } else { SURELY_ONE_PACKET },
            timed: within_ns.is_some(),
            due_ns: self.due_ns(cx, session, deadline_ns),
        };
        let number = lock(&self.shared.oracle).messages.send(sent);
        write_request(number, bytes);
        let message = cx.message(session, kind as u16, m);
        let Err(rejected) = message.deadline(within_ns.map(Duration::from_nanos)).send() else {
            return true;
        };
        let full = matches!(
            rejected.reason,
            RejectReason::MessagesFull { .. } | RejectReason::QueueFull { .. }
        );
        lock(&self.shared.oracle).messages.refused(number, full);
        self.keep(rejected.request);
        if full {
            self.messages.refused.borrow_mut().insert(session);
            let retried = self.messages.rng.borrow_mut().chance_ppm(self.shared.messages.again_ppm);
            if retried {
                self.messages.again.borrow_mut().entry(session).or_default().push(draft);
            }
        }
        false
    }

    /// A session that has refused messages has room.
    fn has_room(self: &Rc<Self>, cx: &mut Context<'_>, session: SessionId) {
        let mut oracle = lock(&self.shared.oracle);
        oracle.messages.count(MessageEnd::Room);
        if !self.messages.refused.borrow_mut().remove(&session) {
            let host = self.who.host;
            let detail = format!("n{host}: room was reported for a session that refused nothing");
            oracle.wrong(Invariant::Application, detail);
        }
        drop(oracle);
        let drafts = self.messages.again.borrow_mut().remove(&session).unwrap_or_default();
        if self.shared.stopped.get() {
            return;
        }
        for draft in drafts {
            self.send(cx, session, draft);
        }
    }

    /// Messages that prove that a session works; they must arrive.
    pub(super) fn prove_messages(self: &Rc<Self>, cx: &mut Context<'_>, session: SessionId) {
        for _ in 0..PROOFS {
            let len = NUMBER as u64 + self.messages.rng.borrow_mut().below(SURELY_ONE_PACKET / 2);
            let draft = Draft { kind: MessageKind::Plain, len, within_ns: None };
            if self.has_memory(cx, len as usize) && !self.send(cx, session, draft) {
                let host = self.who.host;
                let detail = format!("n{host}: a message on a connected session was refused");
                lock(&self.shared.oracle).wrong(Invariant::Liveness, detail);
            }
        }
    }
}
