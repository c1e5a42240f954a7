//! Packets of client sessions pass the gate of credits and pacing, and one loop sends them: those of a
//! call, and one-way messages `[eRPC section 4.3.1, section 5.1]` (E33, E43, ADR 4).

use super::lane::Lane;
use crate::credits::{CreditPool, SessionCredits};
use crate::flow::ClientFlow;
use crate::mutant::{self, Mutant};
use crate::peer::Peer;

/// The gate's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    /// Send this many packets now.
    Now(u32),
    /// Send at this time, ns.
    At(u64),
    /// Send when credits of the session or room in the peer's pool return.
    Credits,
}

/// The gate for all client packets: credits, the window of congestion control (which the pool
/// applies), and the pacer of the path.
#[inline(always)]
pub(super) fn gate(peer: &Peer, credits: SessionCredits, units: u16, now_ns: u64) -> Gate {
    match peer.credits.grant(credits, units) {
        0 => Gate::Credits,
        packets if peer.path.is_paced() => match peer.path.pace(now_ns) {
            Ok(most) => Gate::Now(packets.min(most)),
            Err(at_ns) => Gate::At(at_ns),
        },
        packets => Gate::Now(packets),
    }
}

/// Takes credits for packets that the gate has admitted, of `units` and `data` bytes each.
#[inline]
pub(super) fn pass(
    peer: &mut Peer,
    credits: &mut SessionCredits,
    packets: u32,
    (units, data): (u16, u64),
    now_ns: u64,
) {
    peer.credits.spend(credits, packets, units);
    peer.path.on_sent(packets, (units, data), now_ns);
}

/// A sequence of packets that one session sends: those of a call, or its messages.
pub(super) trait Packets {
    /// The next packet.
    type Next<'p>: Next
    where
        Self: 'p;

    /// The credits that the packets take.
    fn credits(&mut self) -> &mut SessionCredits;

    /// The next packet; `None`: nothing can be sent now.
    fn next(&mut self, lane: &mut Lane<'_>, now_ns: u64) -> Option<Self::Next<'_>>;

    /// Records that a packet of `units` was sent; `again`: it was sent before.
    fn on_sent(&mut self, units: u16, again: bool);
}

/// A packet of a sequence that may be sent now.
pub(super) trait Next {
    /// The packet, when it is in a frame.
    type Packet: Copy;

    /// Its units in the peer's pool.
    fn units(&self, pool: &CreditPool) -> u16;

    /// Returns why the packet waits although there are credits for `most` packets; `None`: it does
    /// not.
    fn holds(&mut self, most: u32) -> Option<Stop>;

    /// Adds the packet to a frame; it may take up to `most` credits. `None`: the batch has no room.
    fn add(&mut self, lane: &mut Lane<'_>, most: u32, now_ns: u64) -> Option<Self::Packet>;

    /// Data of the packet, bytes; of a request-for-response, data of each packet that it asks for.
    fn data(&self, packet: Self::Packet) -> u64;

    /// Records that it was sent. Returns the credits that it takes, and whether it was sent before.
    fn on_sent(self, packet: Self::Packet, units: u16, now_ns: u64) -> (u32, bool);
}

/// Why the loop has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// There is nothing more to send for now.
    Done,
    /// It is the turn of the next item of the transmit queue.
    Quantum,
    /// The batch has no room.
    Full,
    /// The message waits for its turn at the host's transmit queue.
    Host,
    /// The session lacks credits, or waits until it has those for several packets.
    Credits,
    /// The peer's pool lacks room for these units.
    Room(u16),
    /// The pacer delays these units until this time, ns.
    Paced(u16, u64),
}

/// Sends packets as far as the gate, the batch and the sequence itself admit them. Returns why it has
/// stopped, and the number of packets that were sent before.
#[inline]
pub(super) fn send_packets<P: Packets>(
    packets: &mut P,
    lane: &mut Lane<'_>,
    now_ns: u64,
) -> (Stop, u64) {
    let mut again = 0;
    let stop = loop {
        let credits = *packets.credits();
        let Some(mut next) = packets.next(lane, now_ns) else { break Stop::Done };
        let units = next.units(&lane.peer.credits);
        let most = match gate(lane.peer, credits, units, now_ns) {
            Gate::Now(most) => most,
            Gate::Credits if credits.left() == 0 => break Stop::Credits,
            Gate::Credits => break Stop::Room(units),
            Gate::At(at_ns) => {
                if mutant::is_on(Mutant::PacedTwice) {
                    let _ = next.add(lane, 1, now_ns);
                }
                break Stop::Paced(units, at_ns);
            }
        };
        if let Some(stop) = next.holds(most) {
            break stop;
        }
        let Some(packet) = next.add(lane, most, now_ns) else { break Stop::Full };
        let data = if lane.peer.path.is_paced() { next.data(packet) } else { 0 };
        let (taken, repeated) = next.on_sent(packet, units, now_ns);
        packets.on_sent(units, repeated);
        pass(lane.peer, packets.credits(), taken, (units, data), now_ns);
        again += u64::from(repeated);
    };
    lane.stats.retransmitted += again;
    (stop, again)
}

impl<C> ClientFlow<'_, C> {
    /// After [`send_packets`]: what was sent again is counted, and a session that lacks room waits for
    /// its turn.
    pub(super) fn end_sending(&mut self, stop: Stop, again: u64) {
        self.s.on_retransmitted(again);
        if let Stop::Paced(_, at_ns) = stop {
            self.io.pace(self.peer, at_ns);
        }
        if let Stop::Room(units) | Stop::Paced(units, _) = stop {
            self.wait_for_room(units);
        }
    }
}
