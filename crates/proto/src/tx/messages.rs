//! Transmission of one-way messages and of their acknowledgements. Messages pass the gate of credits
//! and pacing, as requests do.

use courser_buf::TxBurst;

use super::gate::{Next, Packets, Stop, send_packets};
use super::lane::Lane;
use super::{Sent, TxItem};
use crate::credits::{CreditPool, SessionCredits};
use crate::flow::{ClientFlow, ServerFlow};
use crate::oneway::{Outgoing, Unacknowledged};
use crate::session::SessionState;
use crate::wire::{MAX_REMAINING_US, Packet, single_message};

/// Messages that a session sends before the next item of the queue: half of a frame of small ones.
const QUANTUM: u32 = 32;

impl<C> ClientFlow<'_, C> {
    /// Sends the messages that credits allow: lost ones, then waiting ones, in order.
    #[inline(never)]
    pub(super) fn tx_messages(&mut self, out: &mut TxBurst) -> Sent {
        let (s, io) = (&mut *self.s, &mut *self.io);
        let now_ns = io.now_ns;
        let Some(outgoing) = &mut s.outgoing else { return Sent::All };
        (outgoing.queued, outgoing.stalled) = (false, false);
        if s.state != SessionState::Connected {
            return Sent::All; // queued again when it is
        }
        let mut lane = Lane {
            tx: &mut io.tx,
            arena: &io.arena,
            stats: &mut io.stats,
            inline_max: io.cfg.inline_max,
            peer: self.peer,
            out,
        };
        let was_idle = outgoing.units() == 0;
        let (session, remote) = (self.index, s.remote);
        let mut messages = Messages { outgoing, remote, left: QUANTUM };
        let (stop, again) = send_packets(&mut messages, &mut lane, now_ns);
        if stop == Stop::Quantum {
            lane.tx.push(TxItem::Messages { session });
        }
        outgoing.queued = matches!(stop, Stop::Full | Stop::Quantum);
        outgoing.stalled = matches!(stop, Stop::Room(_) | Stop::Paced(..));
        let begins = was_idle && outgoing.units() > 0;
        if begins && outgoing.retries == 0 {
            outgoing.waits_since_ns = now_ns;
        }
        if begins {
            self.time_messages(u64::MAX);
        }
        self.end_sending(stop, again);
        self.note_room();
        if stop == Stop::Full { Sent::Rest(TxItem::Messages { session }) } else { Sent::All }
    }
}

/// The messages of a session.
struct Messages<'a> {
    outgoing: &'a mut Outgoing,
    /// The server's number for the session.
    remote: u32,
    /// Messages that it may still send before the next item of the queue.
    left: u32,
}

impl Packets for Messages<'_> {
    type Next<'p>
        = Message<'p>
    where
        Self: 'p;

    #[inline(always)]
    fn credits(&mut self) -> &mut SessionCredits {
        &mut self.outgoing.credits
    }

    #[inline(always)]
    fn next(&mut self, lane: &mut Lane<'_>, now_ns: u64) -> Option<Message<'_>> {
        let mut expired = 0;
        let next = self.outgoing.next(now_ns, &mut expired);
        lane.stats.messages_unsent += expired;
        let (number, entry) = next?;
        Some(Message { entry, number, remote: self.remote, left: &mut self.left })
    }

    #[inline(always)]
    fn on_sent(&mut self, units: u16, again: bool) {
        self.outgoing.on_sent(units, again);
    }
}

/// The next message of a session.
struct Message<'p> {
    entry: &'p mut Unacknowledged,
    number: u32,
    remote: u32,
    left: &'p mut u32,
}

impl Next for Message<'_> {
    type Packet = ();

    #[inline(always)]
    fn units(&self, pool: &CreditPool) -> u16 {
        pool.units_of_message(self.entry.msg.len())
    }

    #[inline(always)]
    fn holds(&mut self, _: u32) -> Option<Stop> {
        (*self.left == 0).then_some(Stop::Quantum)
    }

    #[inline(always)]
    fn add(&mut self, lane: &mut Lane<'_>, _: u32, now_ns: u64) -> Option<()> {
        send_message(lane, self.entry, self.remote, self.number, now_ns).then_some(())
    }

    #[inline(always)]
    fn data(&self, (): ()) -> u64 {
        self.entry.msg.len() as u64
    }

    #[inline(always)]
    fn on_sent(self, (): (), units: u16, now_ns: u64) -> (u32, bool) {
        *self.left -= 1;
        (1, self.entry.on_sent(units, now_ns))
    }
}

impl<C> ServerFlow<'_, C> {
    /// Acknowledges the messages of the session.
    pub(super) fn tx_message_ack(&mut self) -> Sent {
        let Some(incoming) = &mut self.s.incoming else { return Sent::All };
        let (next, later) = incoming.state();
        let packet = Packet::MessageAck { session: self.s.remote, next, later };
        if !self.io.tx_header(9, self.peer, packet) {
            return Sent::Rest(TxItem::MessageAck { session: self.index });
        }
        incoming.ack_queued = false;
        Sent::All
    }
}

/// Adds a message to a frame. `false`: the batch has no room.
#[inline(always)]
fn send_message(
    lane: &mut Lane<'_>,
    entry: &mut Unacknowledged,
    session: u32,
    number: u32,
    now_ns: u64,
) -> bool {
    let remaining_us = match entry.expires_ns {
        u64::MAX => None,
        expires_ns => {
            let left_us = expires_ns.saturating_sub(now_ns) / 1_000;
            u32::try_from(left_us).ok().filter(|us| *us <= MAX_REMAINING_US)
        }
    };
    let (msg_type, len) = (entry.msg_type, entry.msg.len());
    let data = &entry.msg[..];
    // A frame of its own would overtake earlier messages in frames that have not left.
    let first = !lane.tx.has_open(lane.peer) && !lane.tx.has_full_batch();
    if len > lane.inline_max && (first || lane.tx.gathers(lane.peer, len)) {
        let packet = Packet::Message { session, number, msg_type, remaining_us, data };
        return lane.part(8, packet.header(), &mut entry.msg, 0, 0..len);
    }
    let header = single_message(session, number, msg_type, len as u32, remaining_us);
    let sent = lane.tx.append(lane.peer, lane.arena, header, data);
    if sent {
        lane.stats.sent(8);
    }
    sent
}
