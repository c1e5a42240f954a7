//! Switches for benchmarks and tests, apart from the settings of users.

use std::time::Duration;

use courser_proto::Factors;

use super::declare::{AT_LEAST_1, Allowed, MS_TO_DAY, TO_SECOND, Value, range, settings};

settings! {
    /// Switches and bounds that benchmarks turn to measure what they are worth, and that tests turn to
    /// reach rare cases. The defaults are the fastest values that were measured, so no program needs
    /// them, and one of [`Tuning::factors`] changes what handlers read: they are hidden from the documentation of
    /// [`crate::Config`] and may change in any version.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Tuning: "tuning.", p {
        /// Frames of one transmit batch, at least 1 (E62). Default 128.
        pub tx_frames: usize = p.tx_frames, in AT_LEAST_1 => tx_frames;
        /// Requests and replies of one transmit batch, at least 1. Default 64.
        pub tx_items: usize = p.tx_items, in AT_LEAST_1 => tx_items;
        /// Optimisations that are switched off to measure what they save.
        pub factors: Factors = p.factors => factors;
        /// While a packet of a message is missing, further ones are sent until they spread over this
        /// many times C packets: 1 to 1,024, default 4 (M26).
        pub reorder_span: u32 = p.reorder_span,
            in range(1, 1_024, "from 1 to 1,024") => reorder_span;
        /// Bits of each of MELO's two pools of an endpoint: 0 to 64,512. Default 0: as many as frames
        /// of 1,472 bytes, or of the largest size if that is smaller, are in flight at
        /// [`crate::Config::line_rate_bps`] in [`Tuning::melo_rtt`], at least 1,024 (M34).
        pub melo_bits: u32 = p.melo_bits, in range(0, 64_512, "from 0 to 64,512") => melo_bits;
        /// Longest round trip for which MELO's pools have bits: up to 1 s. Default 200 us.
        pub melo_rtt: Duration = Duration::from_nanos(p.melo_rtt_ns), in TO_SECOND => melo_rtt_ns;
        /// Bytes of a block of MELO's pools: a power of two, 1 to 128. Default 1 (M35).
        pub melo_block_bytes: u32 = p.melo_block_bytes,
            in Allowed { powers_of_two: true, ..range(1, 128, "to a power of two, 1 to 128") }
                => melo_block_bytes;
        /// Arriving messages that hold bits of MELO's pool at once: 0 to 4,096. The states of further
        /// ones are swapped out. Default 0: no limit (M17).
        pub melo_connections: u32 = p.melo_connections,
            in range(0, 4_096, "from 0 to 4,096") => melo_connections;
        /// With [`crate::Packing::Gather`] in [`crate::Config::packing`], packets of at least this many
        /// data bytes are gathered, and smaller ones copied: 1 to 2,048. Default 64.
        pub gather_from: usize = p.gather_from,
            in range(1, 2_048, "from 1 to 2,048 bytes") => gather_from;
        /// With [`crate::Packing::Gather`], larger packets than this, in data bytes, leave in frames of
        /// their own: 0 to 65,535, default 1,280.
        pub gather_to: usize = p.gather_to,
            in range(0, 65_535, "from 0 to 65,535 bytes") => gather_to;
        /// Prefetch the state that the next frames of a received burst, the next calls and the next
        /// timers need. Default true. With many sessions in use ([`Tuning::prefetch_min_sessions`]) small calls
        /// are put on their slots up to eight calls later, in the same pass, unless [`crate::Config::call_queue`]
        /// is 8 or less, or a request of [`crate::Config::inline_max`] or 512 bytes, the smaller, is more
        /// than a packet.
        pub prefetch: bool = p.prefetch => prefetch;
        /// Number of sessions in use, client and server together, from which on calls are deferred and
        /// session state is prefetched: distinct sessions among four times as many received packets,
        /// by a sample. Both end when fewer than half of this number are in use. Default 512. 0: always;
        /// `usize::MAX`: never. Costs a bit for each session, and a byte for each client session.
        pub prefetch_min_sessions: usize = p.prefetch_min_sessions => prefetch_min_sessions;
        /// A frame of a single small packet that answers a frame carries no time for this long after
        /// the last one to the same peer that did, which saves both sides a clock reading: 20 ns of a
        /// round trip over shared memory. Round trips are sampled this often then. Default 4 us, at most
        /// 1 s; 0: every frame carries the time. Clocks may differ by 50 ppm, which is 5 ns in 100 us and
        /// 50 us in 1 s, of round trips and of deadlines at the server: more than 100 us is for tools
        /// that slow everything down.
        pub timestamp_interval: Duration = Duration::from_nanos(p.timestamp_interval_ns),
            in TO_SECOND => timestamp_interval_ns;
        /// Smallest round trip of the network where it is known, for [`crate::Control::Swift`]; 0, the
        /// default: each path measures its own, and flows that join a queue take more than their share.
        pub base_rtt: Duration = Duration::from_nanos(p.base_rtt_ns), in TO_SECOND => base_rtt_ns;
        /// Memory of large messages that is unused for once to twice this time is returned to the
        /// system. Default 5 s. Less costs system calls and page faults for each large message; it is
        /// for simulations of many hosts, whose virtual time is short.
        pub trim_after: Duration = Duration::from_secs(5), in MS_TO_DAY;
    }
}

impl Value for Tuning {}
