//! Transmission of one-way messages and of their acknowledgements. Messages pass the gate of credits
//! and pacing, as requests do.

use courser_buf::TxBurst;

use super::client::{Gate, gate, pass};
use super::lane::Lane;
use super::{Sent, TxItem};
use crate::flow::{ClientFlow, ServerFlow};
use crate::oneway::Unacknowledged;
use crate::peer::NO_FRAME;
use crate::session::SessionState;
use crate::wire::{MAX_REMAINING_US, Packet, single_message};

/// Messages that a session sends before the next item of the queue: half of a frame of small ones.
const QUANTUM: u32 = 32;

impl<C> ClientFlow<'_, C> {
    /// Sends the messages that credits allow: lost ones, then waiting ones, in order.
    #[inline(never)]
    pub(super) fn tx_messages(&mut self, out: &mut TxBurst) -> Sent {
        let (s, io, session) = (&mut *self.s, &mut *self.io, self.index);
        let (now_ns, peer_no, remote) = (io.now_ns, s.peer, s.remote);
        let Some(outgoing) = &mut s.outgoing else { return Sent::All };
        (outgoing.queued, outgoing.stalled) = (false, false);
        if s.state != SessionState::Connected {
            return Sent::All; // queued again when it is
        }
        let Some(peer) = io.peers.at_mut(peer_no) else { return Sent::All };
        let mut lane = Lane {
            tx: &mut io.tx,
            arena: &io.arena,
            stats: &mut io.stats,
            inline_max: io.cfg.inline_max,
            peer_no,
            peer,
            out,
        };
        let was_idle = outgoing.units() == 0;
        let (mut lacked_units, mut paced_until_ns, mut left) = (0, None, QUANTUM);
        let mut again = 0;
        let sent = loop {
            let (mut expired, credits) = (0, outgoing.credits);
            let next = outgoing.next(now_ns, &mut expired);
            lane.stats.messages_unsent += expired;
            let Some((number, entry)) = next else { break Sent::All };
            let units = lane.peer.credits.units_of_message(entry.msg.len());
            match gate(lane.peer, credits, units, now_ns) {
                Gate::Now(_) => {}
                Gate::Credits if credits.left() == 0 => break Sent::All, // until some arrive
                Gate::Credits => {
                    (outgoing.stalled, lacked_units) = (true, units);
                    break Sent::All;
                }
                Gate::At(at_ns) => {
                    outgoing.stalled = true;
                    (lacked_units, paced_until_ns) = (units, Some(at_ns));
                    break Sent::All;
                }
            }
            if left == 0 {
                outgoing.queued = true;
                lane.tx.push(TxItem::Messages { session });
                break Sent::All;
            }
            if !send_message(&mut lane, entry, remote, number, now_ns) {
                outgoing.queued = true;
                break Sent::Rest(TxItem::Messages { session });
            }
            let repeated = entry.on_sent(units, now_ns);
            outgoing.on_sent(units, repeated);
            pass(lane.peer, &mut outgoing.credits, 1, units, now_ns);
            again += u64::from(repeated);
            left -= 1;
        };
        let begins = was_idle && outgoing.units() > 0;
        if begins && outgoing.retries == 0 {
            outgoing.waits_since_ns = now_ns;
        }
        lane.stats.retransmitted += again;
        s.on_retransmitted(again);
        if begins {
            self.time_messages(u64::MAX);
        }
        if let Some(at_ns) = paced_until_ns {
            self.io.pace(peer_no, at_ns);
        }
        if lacked_units > 0 {
            self.wait_for_room(lacked_units);
        }
        self.note_room();
        sent
    }
}

impl<C> ServerFlow<'_, C> {
    /// Acknowledges the messages of the session.
    pub(super) fn tx_message_ack(&mut self) -> Sent {
        let Some(incoming) = &mut self.s.incoming else { return Sent::All };
        let (next, later) = incoming.state();
        let packet = Packet::MessageAck { session: self.s.remote, next, later };
        if !self.io.tx_header(9, self.s.peer, packet) {
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
    let first = lane.peer.open_frame == NO_FRAME && !lane.tx.has_full_batch();
    if len > lane.inline_max && (first || lane.tx.gathers(lane.peer, len)) {
        let packet = Packet::Message { session, number, msg_type, remaining_us, data };
        return lane.part(8, packet.header(), &mut entry.msg, 0, 0..len);
    }
    let header = single_message(session, number, msg_type, len as u32, remaining_us);
    let sent = lane.tx.append(lane.peer_no, lane.peer, lane.arena, header, data);
    if sent {
        lane.stats.sent(8);
    }
    sent
}
