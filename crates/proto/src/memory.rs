//! Memory of an endpoint's sessions, by component (E18, ADR 6).
//!
//! A session costs an entry of the session table, a share of its peer's entry, and 4 bytes per
//! slot; at a client with many sessions one byte more, at a server 8 to 16 bytes more. While it is in use it also has its slots,
//! and at the server a packet-sized buffer for each slot that has answered (E32). These are freed
//! when it has been idle for `Config::idle_after_ns`.

use courser_buf::{Runs, stats};

use crate::endpoint::Endpoint;
use crate::peer::Peer;
use crate::session::{QueuedCall, Session};
use crate::slot::{ClientSlot, ServerSlot, Stored};

const _: () = {
    // Stated in docs/performance.md. `C` is 8 bytes here; a larger one costs its size per client
    // slot.
    assert!(size_of::<Session<u64>>() <= 192);
    assert!(size_of::<ClientSlot<u64>>() <= 192);
    assert!(size_of::<ServerSlot>() <= 192);
    assert!(size_of::<Peer>() <= 512);
};

stats! {
    /// Bytes in use for sessions, by component. The last two session fields are parts of the arena's
    /// total.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct MemoryUse: "session memory" {
        /// Entries of the session table, and with many sessions (`Config::prefetch_min_sessions`) a bit
        /// for each, and at a client a byte if it is deferrable.
        pub sessions_bytes: usize = gauge(bytes),
        /// Entries of the peer and quota tables.
        pub peers_bytes: usize = gauge(bytes),
        /// Slots of sessions in use, in blocks of 16 KiB to 2 MiB, and the request numbers of idle
        /// ones.
        pub slots_bytes: usize = gauge(bytes),
        /// Waiting calls, without their messages.
        pub queues_bytes: usize = gauge(bytes),
        /// Timers.
        pub timers_bytes: usize = gauge(bytes),
        /// Preallocated responses (E32), in the arena.
        pub prealloc_bytes: usize = gauge(bytes),
        /// Arriving requests and stored responses, in the arena.
        pub held_bytes: usize = gauge(bytes),
        /// Staging buffers of frames, in the arena: independent of sessions, and not part of
        /// [`MemoryUse::total_bytes`]. They grow with bursts up to 8 MiB and are kept.
        pub staging_bytes: usize = gauge(bytes),
    }
}

impl MemoryUse {
    /// The total, including message buffers.
    pub fn total_bytes(&self) -> usize {
        self.sessions_bytes
            + self.peers_bytes
            + self.slots_bytes
            + self.queues_bytes
            + self.timers_bytes
            + self.prealloc_bytes
            + self.held_bytes
    }
}

impl<C> Endpoint<C> {
    /// Bytes in use for sessions, by component. Walks all sessions: not for the hot path.
    pub fn memory(&self) -> MemoryUse {
        let mut m = MemoryUse {
            sessions_bytes: self.sessions.table_bytes()
                + self.deferred.heap_bytes()
                + self.working_set.heap_bytes(),
            peers_bytes: self.peers.table_bytes() + self.admission.quotas.table_bytes(),
            timers_bytes: self.io.timers.heap_bytes()
                + self.io.wheel.heap_bytes()
                + self.io.tx.host.heap_bytes()
                + self.admission.budget.heap_bytes(),
            staging_bytes: self.io.tx.buffer_bytes(),
            slots_bytes: self.io.boards.heap_bytes()
                + self.sessions.client_slots.bytes()
                + self.sessions.server_slots.bytes(),
            ..MemoryUse::default()
        };
        for s in self.sessions.iter() {
            match s {
                Session::Client(s) => {
                    m.slots_bytes += s.slots.heap_bytes();
                    m.slots_bytes += s.slots.iter().map(|slot| slot.board_bytes()).sum::<usize>();
                    m.queues_bytes += s.queue.capacity() * size_of::<QueuedCall<C>>();
                }
                Session::Server(s) => {
                    m.slots_bytes += s.slots.heap_bytes();
                    for slot in s.slots.iter() {
                        m.prealloc_bytes += slot.prealloc.as_ref().map_or(0, |b| b.capacity());
                        m.slots_bytes += slot.gaps.as_ref().map_or(0, |gaps| gaps.heap_bytes());
                        m.held_bytes += slot.req.as_ref().map_or(0, |b| b.capacity());
                        if let Stored::Owned(b) = &slot.resp {
                            m.held_bytes += b.capacity();
                        }
                    }
                }
                Session::Draining(d) => {
                    m.slots_bytes += d.executing.capacity() * size_of::<(u8, u32)>();
                }
                Session::Vacant { .. } => {}
            }
        }
        m
    }

    /// Bytes of one session in use and of an idle one, on the client's and the server's side,
    /// without message buffers and without its peer.
    pub const fn session_bytes(slots: usize) -> SessionBytes {
        let entry = size_of::<Session<C>>();
        SessionBytes {
            idle: entry + slots * size_of::<u32>(),
            client: entry + in_use::<ClientSlot<C>>(slots),
            server: entry + in_use::<ServerSlot>(slots),
            peer: size_of::<Option<Peer>>(),
        }
    }
}

/// Bytes of the slots of a session in use.
const fn in_use<S>(slots: usize) -> usize {
    match Runs::<S>::stride(slots) {
        Some(bytes) => bytes,
        None => usize::MAX,
    }
}

/// See [`Endpoint::session_bytes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SessionBytes {
    /// An idle session, on either side.
    pub idle: usize,
    /// A client session in use.
    pub client: usize,
    /// A server session in use.
    pub server: usize,
    /// The peer, shared by all sessions between the same two endpoints.
    pub peer: usize,
}
