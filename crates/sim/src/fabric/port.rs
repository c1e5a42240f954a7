//! The sending end of a link: serialization in exact time, and the output queue before it.

use std::collections::VecDeque;

use super::NEVER;
use super::faults::FaultState;
use super::topology::{CableSpec, Node};
use crate::{DropReason, Packet, Rng};

/// Counters of packets that a link has carried and lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounters {
    /// Packets whose first bit was sent.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Time spent sending, pause frames included, ns.
    pub busy_ns: u64,
    /// Packets that were marked before they were sent on it.
    pub marked: u64,
    /// Copies made by a fault.
    pub duplicated: u64,
    /// Packets and copies that a fault delayed beyond the extra delay of the link.
    pub delayed: u64,
    /// Packets and copies of which a fault flipped a bit.
    pub corrupted: u64,
    /// Packets that were dropped on it, at its end, or before it for lack of buffer, by
    /// [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
    /// Pause frames sent on it, those that end a pause included.
    pub pause_frames: u64,
    /// Number of pauses of its sender.
    pub pauses: u64,
    /// Their total time, ns; up to the end of the last pause that has ended.
    pub paused_ns: u64,
}

/// Occupancy of an output queue. A packet counts until its last bit was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueCounters {
    /// Bytes in it now.
    pub bytes: u64,
    /// Packets in it now, with the one that is being sent.
    pub packets: u64,
    /// Largest number of bytes in it.
    pub max_bytes: u64,
    /// Integral of its bytes over time, in byte-nanoseconds: divided by the time, the mean.
    pub byte_ns: u128,
}

/// A packet in an output queue.
pub(super) struct Queued {
    pub(super) packet: Box<Packet>,
    /// Bytes in the buffer; 0 at a host.
    pub(super) stored: u32,
    /// The input link.
    pub(super) from: u32,
}

/// The transmission of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sending {
    Nothing,
    Control,
    Packet { stored: u32, from: u32 },
}

/// The sending end of a link, and the receiving end's state of it.
pub(super) struct Port {
    pub(super) spec: CableSpec,
    pub(super) from: Node,
    pub(super) to: Node,
    pub(super) sending: Sending,
    /// Paused by the other end.
    pub(super) paused: bool,
    paused_since_ns: u64,
    /// Taken down by [`set_link_up`](super::Fabric::set_link_up).
    pub(super) up: bool,
    /// How often it was taken down.
    pub(super) falls: u32,
    /// End of the current transmission, with its fraction of a nanosecond, in units of a nanosecond
    /// by the rate.
    busy_until_ns: u64,
    carry: u64,
    pub(super) queue: VecDeque<Queued>,
    /// Pause frame that is queued for the port: whether it begins or ends a pause.
    pub(super) control: Option<bool>,
    pub(super) counters: LinkCounters,
    queue_counters: QueueCounters,
    queue_since_ns: u64,
    /// Bytes that the receiving switch stores from this link, and whether it has paused it.
    pub(super) held: u64,
    pub(super) xoff: bool,
    pub(super) faults: Option<Box<FaultState>>,
    /// Marks of the queue.
    pub(super) rng: Rng,
}

impl Port {
    pub(super) fn new(spec: CableSpec, from: Node, to: Node, rng: Rng) -> Self {
        Port {
            spec,
            from,
            to,
            sending: Sending::Nothing,
            paused: false,
            paused_since_ns: 0,
            up: true,
            falls: 0,
            busy_until_ns: 0,
            carry: 0,
            queue: VecDeque::new(),
            control: None,
            counters: LinkCounters::default(),
            queue_counters: QueueCounters::default(),
            queue_since_ns: 0,
            held: 0,
            xoff: false,
            faults: None,
            rng,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sending == Sending::Nothing
    }

    /// Begins a transmission of `bytes`; returns when the last bit leaves. The fraction of a
    /// nanosecond is carried over to a transmission that follows without a gap, so that rates are
    /// exact in the long run and each time is low by less than a nanosecond.
    pub(super) fn serialize(&mut self, now_ns: u64, wire_bytes: u32) -> u64 {
        let carry = if now_ns == self.busy_until_ns { self.carry } else { 0 };
        let work = u64::from(wire_bytes) * 8 * 1_000_000_000 + carry;
        let (time_ns, carry) = (work / self.spec.rate_bps, work % self.spec.rate_bps);
        self.carry = carry;
        self.busy_until_ns = now_ns.saturating_add(time_ns).min(NEVER);
        self.counters.busy_ns += time_ns;
        self.busy_until_ns
    }

    pub(super) fn grow(&mut self, now_ns: u64, bytes: u32) -> u64 {
        self.account(now_ns);
        let queue = &mut self.queue_counters;
        queue.bytes += u64::from(bytes);
        queue.packets += 1;
        queue.max_bytes = queue.max_bytes.max(queue.bytes);
        queue.bytes
    }

    pub(super) fn shrink(&mut self, now_ns: u64, bytes: u32) -> u64 {
        self.account(now_ns);
        self.queue_counters.bytes -= u64::from(bytes);
        self.queue_counters.packets -= 1;
        self.queue_counters.bytes
    }

    fn account(&mut self, now_ns: u64) {
        let time = u128::from(now_ns - self.queue_since_ns);
        self.queue_counters.byte_ns += time * u128::from(self.queue_counters.bytes);
        self.queue_since_ns = now_ns;
    }

    pub(super) fn queue_bytes(&self) -> u64 {
        self.queue_counters.bytes
    }

    pub(super) fn queue_counters(&self, now_ns: u64) -> QueueCounters {
        let time = u128::from(now_ns.saturating_sub(self.queue_since_ns));
        let since = time * u128::from(self.queue_counters.bytes);
        QueueCounters { byte_ns: self.queue_counters.byte_ns + since, ..self.queue_counters }
    }

    pub(super) fn pause(&mut self, now_ns: u64, on: bool) {
        if on && !self.paused {
            self.counters.pauses += 1;
            self.paused_since_ns = now_ns;
        } else if !on && self.paused {
            self.counters.paused_ns += now_ns - self.paused_since_ns;
        }
        self.paused = on;
    }

    /// Returns whether the link is down, and how often it has gone down: a packet that finds
    /// another number at its arrival than at its departure was on the link when it went down.
    pub(super) fn down(&mut self, now_ns: u64) -> (bool, u32) {
        let (flap, falls) = match &mut self.faults {
            Some(faults) => faults.flap(now_ns),
            None => (false, 0),
        };
        (flap || !self.up, self.falls.wrapping_add(falls))
    }
}
