//! Shared memory within the fault middleware, with many seeds: exactly the frames that the faults
//! let pass arrive, intact. The transport loses nothing while the frames in flight fit the ring, so
//! the counts agree exactly.

use std::collections::BTreeMap;

use courser_buf::{Arena, PacketAccess, PathId, RxBurst, TxBurst, TxFrame};
use courser_net::{
    FaultConfig, FaultCounts, FaultPlan, FaultTransport, ShmConfig, ShmTransport, Transport,
};

const FRAMES: u32 = 3000;

type Faulty = FaultTransport<ShmTransport>;

fn pair(seed: u64, change: impl Fn(&mut ShmConfig)) -> (Faulty, Faulty) {
    let dir = std::env::temp_dir().join(format!("courser-faults-{}", std::process::id()));
    let mut cfg = ShmConfig { dir: Some(dir), ..ShmConfig::default() };
    change(&mut cfg);
    // Bits flip at the receiver only, where the frame is not duplicated afterwards.
    let rx = FaultPlan {
        loss_ppm: 40_000,
        duplicate_ppm: 30_000,
        reorder_ppm: 50_000,
        reorder_span: 8,
        corrupt_ppm: 20_000,
        script: Vec::new(),
    };
    let tx = FaultPlan { corrupt_ppm: 0, ..rx.clone() };
    let endpoint = |seed| {
        let shm = ShmTransport::bind(&cfg).expect("an endpoint");
        FaultTransport::new(shm, FaultConfig { seed, tx: tx.clone(), rx: rx.clone() })
    };
    (endpoint(seed), endpoint(seed + 1000))
}

/// Sizes around the largest frame of a slot, and up to the largest frame.
fn len(number: u32, max_frame: usize) -> usize {
    [8, 48, 239, 240, 241, 700, 1500, max_frame][number as usize % 8].min(max_frame)
}

/// A byte that depends on number and position.
fn byte(number: u32, at: usize) -> u8 {
    (number.wrapping_mul(0x9e37_79b1) >> 24) as u8 ^ (at * 5) as u8
}

fn send(t: &mut Faulty, path: PathId, arena: &Arena, numbers: std::ops::Range<u32>) {
    let max_frame = t.caps().max_frame;
    let frame = |number: u32| {
        let mut buf = arena.alloc(len(number, max_frame)).expect("memory");
        buf.iter_mut().enumerate().for_each(|(i, b)| *b = byte(number, i));
        buf[..4].copy_from_slice(&number.to_be_bytes());
        TxFrame::one(path, buf.data_seg(0..buf.len()).expect("all of it"))
    };
    let mut burst: TxBurst = numbers.map(frame).collect();
    t.tx_burst(&mut burst);
    assert!(burst.is_empty());
}

/// The frame's number, and the bits in which it differs from the sent frame; `None` for an unknown
/// one.
fn flipped(data: &[u8], max_frame: usize) -> Option<(u32, u32)> {
    let number = u32::from_be_bytes(*data.first_chunk()?);
    let expected = |i: usize| match i {
        0..4 => number.to_be_bytes()[i],
        _ => byte(number, i),
    };
    let bits = data.iter().enumerate().map(|(i, &b)| (b ^ expected(i)).count_ones()).sum();
    (number < FRAMES && data.len() == len(number, max_frame)).then_some((number, bits))
}

/// Received frames: intact ones by number, and a count of changed ones.
#[derive(Default)]
struct Seen {
    whole: BTreeMap<u32, u32>,
    changed: u64,
}

impl Seen {
    fn poll(&mut self, t: &mut Faulty) {
        let max_frame = t.caps().max_frame;
        let mut out = RxBurst::new();
        t.rx_burst(&mut out);
        for frame in &out {
            match flipped(frame.join(&mut Vec::new()).data, max_frame) {
                Some((number, 0)) => *self.whole.entry(number).or_default() += 1,
                _ => self.changed += 1,
            }
        }
    }

    fn agrees(&self, tx: FaultCounts, rx: FaultCounts) {
        let whole: u64 = self.whole.values().map(|&n| u64::from(n)).sum();
        assert_eq!(tx.frames, u64::from(FRAMES));
        assert_eq!(rx.frames, tx.frames - tx.lost + tx.duplicated, "the ring loses nothing");
        assert_eq!(whole + self.changed, rx.frames - rx.lost + rx.duplicated);
        assert_eq!(self.changed, rx.corrupted);
        assert!(self.whole.values().all(|&n| n <= 4), "duplicated in each direction at most");
        assert!(
            tx.lost.min(tx.duplicated).min(tx.delayed).min(rx.corrupted) > 0,
            "every fault occurred"
        );
        assert_eq!(tx.overflow + rx.overflow, 0);
    }
}

fn both_ways(seed: u64, change: impl Fn(&mut ShmConfig)) {
    let (mut a, mut b) = pair(seed, change);
    let there = a.path_open(b.local_addr(), None).expect("a path").id;
    let back = b.path_open(a.local_addr(), None).expect("a path").id;
    let arena = Arena::heap();
    let (mut at_a, mut at_b) = <(Seen, Seen)>::default();
    let step = 5;
    for first in (0..FRAMES).step_by(step as usize) {
        send(&mut a, there, &arena, first..first + step);
        send(&mut b, back, &arena, first..first + step);
        at_b.poll(&mut b);
        at_a.poll(&mut a);
    }
    for _ in 0..200 {
        a.tx_reclaim();
        b.tx_reclaim();
        at_a.poll(&mut a);
        at_b.poll(&mut b);
    }
    at_b.agrees(a.tx_faults(), b.rx_faults());
    at_a.agrees(b.tx_faults(), a.rx_faults());
}

#[test]
fn faults_are_the_only_faults() {
    for seed in 0..12 {
        both_ways(seed, |_| {});
    }
}

#[test]
fn faults_are_the_only_faults_of_trusted_pairs() {
    for seed in 0..12 {
        both_ways(seed, |c| c.trust = trust());
    }
}

#[test]
fn faults_are_the_only_faults_of_small_rings() {
    for seed in 0..12 {
        both_ways(seed, |c| (c.slots, c.data_bytes, c.max_frame) = (64, 1 << 17, 2000));
    }
}

/// Both ends are threads of this test, which writes to no frame that was sent.
fn trust() -> Option<courser_net::Trust> {
    // SAFETY: as above.
    Some(unsafe { courser_net::Trust::in_peers() })
}
