//! Recorded points of MELO's pool.

use courser_bench::report::Unit;

use super::{MeloPool, PoolRun};
use crate::declare::Recorded;
use crate::declare::points::Axis;

pub(super) const ALL: &[Recorded<MeloPool, PoolRun>] = &[PAUSES, SWAPS, SIZE, BLOCKS];

/// The name of a pool.
fn pool(settings: &MeloPool, o: &PoolRun) -> String {
    match o.bits {
        0 => format!("bits for {} us", settings.covers_ns / 1_000),
        bits => format!("{bits} bits"),
    }
}

const SIZE: Recorded<MeloPool, PoolRun> = Recorded {
    id: "M34",
    results: include_str!("../../../recorded/M34.json"),
    title: "MELO's pool by bandwidth and round trip",
    source: "MELO section 3.2.3, footnotes 1 and 3",
    model: "A sender and a receiver under different leaves with hosts at 100 Gbit/s, and a round trip of \
        200 us, so that 2,205 packets of 1,134 bytes are in flight (2,500 of a kilobyte in the \
        paper). All connections share credits of one bandwidth-delay product; the receiver's leaf \
        loses 1 %. The pool has the 1,024 bits of the paper's evaluation, or as many as the endpoint \
        derives from the rate of its link and 200 us.",
    axis: Axis { label: "connections", unit: Unit::Count, log: false },
    x: |_, o| o.connections.into(),
    series: pool,
    only: &["peak bits", "refused packets", "goodput"],
    runs: |size| {
        vec![MeloPool {
            rate_bps: 100_000_000_000,
            connections: size.pick(vec![1], vec![1, 5, 20]),
            bits: vec![1_024, 0],
            time_ns: size.pick(2_000_000, 20_000_000),
            ..MeloPool::default()
        }]
    },
    more: |_, _| {},
    paper: &[],
};

const PAUSES: Recorded<MeloPool, PoolRun> = Recorded {
    id: "M31",
    results: include_str!("../../../recorded/M31.json"),
    title: "MELO's pool under pauses",
    source: "MELO section 3.2.5",
    model: "Senders under one leaf and a receiver under another, 40 Gbit/s and a round trip of 16 us, \
        each sender with a connection and credits of four bandwidth-delay products. Switches pause a \
        link of which they store 100 kB, and drop nothing. The receiver's leaf loses 1 %. The pool \
        has the paper's 1,024 bits, which cover 232 us, or those that the endpoint derives for 500 us.",
    axis: Axis { label: "senders", unit: Unit::Count, log: false },
    x: |_, o| o.senders.into(),
    series: pool,
    only: &["peak bits", "refused packets", "goodput", "paused"],
    runs: |size| {
        vec![MeloPool {
            senders: size.pick(vec![8], vec![1, 2, 4, 8]),
            bits: vec![1_024, 0],
            covers_ns: 500_000,
            rtt_ns: 16_000,
            window_permille: 4_000,
            pfc: true,
            time_ns: size.pick(2_000_000, 20_000_000),
            ..MeloPool::default()
        }]
    },
    more: |_, _| {},
    paper: &[],
};

const BLOCKS: Recorded<MeloPool, PoolRun> = Recorded {
    id: "M35",
    results: include_str!("../../../recorded/M35.json"),
    title: "Size of the blocks of MELO's pool",
    source: "MELO section 3.2.3",
    model: "As figure 6b (experiment M26): a sender and a receiver under different leaves, 40 Gbit/s, a \
        round trip of 200 us, the receiver's leaf loses 2 %. The pool is large enough. The memory is \
        that of a pool with just the blocks that were in use at once: their bytes, and two pointers \
        each.",
    axis: Axis { label: "bytes of a block", unit: Unit::Count, log: true },
    x: |_, o| o.block_bytes.into(),
    series: |_, o| match o.connections {
        1 => "1 connection".to_owned(),
        connections => format!("{connections} connections"),
    },
    only: &["peak bits", "memory of the peak", "dropped in the middle", "goodput"],
    runs: |size| {
        vec![MeloPool {
            connections: size.pick(vec![20], vec![1, 20, 100]),
            loss_ppm: 20_000,
            bits: vec![64_512],
            block_bytes: size.pick(vec![1, 8], vec![1, 2, 4, 8, 16, 32]),
            time_ns: size.pick(2_000_000, 20_000_000),
            ..MeloPool::default()
        }]
    },
    more: |_, _| {},
    paper: &[],
};

const SWAPS: Recorded<MeloPool, PoolRun> = Recorded {
    id: "M32",
    results: include_str!("../../../recorded/M32.json"),
    title: "Swaps of MELO's states",
    source: "MELO sections 2.3 and 3.2.5",
    model: "As figure 6b (experiment M26), with 20 or 100 connections and a loss of 0.5 %. A \
        limited number of connections hold bits at once; the state that was used longest ago is \
        swapped out, and in again when a packet of its connection arrives. A swap takes no time in \
        the simulation. A NIC, by a model, waits for 1 us for each state (\"at least\" in section \
        3.2.1), and PCIe carries state and bitmap with 26 bytes around each transaction.",
    axis: Axis { label: "connections that hold bits", unit: Unit::Count, log: false },
    x: |_, o| if o.resident == 0 { o.connections } else { o.resident }.into(),
    series: |_, o| format!("{} connections", o.connections),
    only: &["swaps a packet", "bytes a swap", "PCIe bandwidth", "stall of the NIC", "goodput"],
    runs: |size| {
        let limited = |connections, resident| MeloPool {
            connections: vec![connections],
            resident,
            loss_ppm: 5_000,
            time_ns: size.pick(2_000_000, 20_000_000),
            ..MeloPool::default()
        };
        size.pick(
            vec![limited(20, vec![5])],
            vec![limited(20, vec![1, 5, 10, 15, 0]), limited(100, vec![5, 10, 25, 50, 75, 0])],
        )
    },
    more: |_, _| {},
    paper: &[],
};
