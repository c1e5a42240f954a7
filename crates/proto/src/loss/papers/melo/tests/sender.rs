//! Tests of the sender with receivers, over channels that keep NACKs and channels that do not.

use proptest::prelude::*;

use super::super::pool::{MeloPool, PAPER_BITS};
use super::super::sender::{BadNack, Learned};
use super::super::{Hole, MAX_PSN, Reorder, SenderMap};

fn hole(first: u32, len: u32) -> Hole {
    Hole { first, len }
}

/// The content of a NACK.
#[derive(Clone, Debug)]
struct Nack {
    rcv_nxt: u32,
    rcv_high: u32,
    holes: Vec<Hole>,
}

impl Nack {
    fn of(reorder: &Reorder<u16>) -> Nack {
        let (rcv_nxt, rcv_high) = (reorder.rcv_nxt(), reorder.rcv_high());
        Nack { rcv_nxt, rcv_high, holes: reorder.holes().collect() }
    }

    /// The lowest packet that it covers.
    fn lowest(&self) -> u32 {
        self.holes.last().map_or(self.rcv_high.max(1) - 1, |hole| hole.first)
    }
}

/// A sender with the NACKs it received and the retransmissions it returned, checked at every step.
struct Checked {
    map: SenderMap<u16>,
    pool: MeloPool,
    /// By packet: was in a hole of a NACK.
    reported: Vec<bool>,
    /// Acked and received, minus what timeouts discarded.
    learned: u32,
    /// Lower limit for the next retransmission.
    from: u32,
}

impl Checked {
    fn new(bits: u32, block_bytes: u32, packets: u32) -> Self {
        let (map, pool) = (SenderMap::new(), MeloPool::new(bits, block_bytes));
        Checked { map, pool, reported: vec![false; packets as usize], learned: 0, from: 0 }
    }

    fn ack(&mut self, rcv_nxt: u32) {
        self.learned += self.map.on_ack(&mut self.pool, rcv_nxt);
        self.check();
    }

    fn nack(&mut self, nack: &Nack) -> Result<Learned, BadNack> {
        let Nack { rcv_nxt, rcv_high, holes } = nack;
        let learned = self.map.on_nack(&mut self.pool, *rcv_nxt, *rcv_high, holes)?;
        self.learned += learned.acked + learned.received;
        for hole in holes {
            self.reported[hole.first as usize..(hole.first + hole.len) as usize].fill(true);
        }
        self.check();
        Ok(learned)
    }

    fn timeout(&mut self) {
        let known = self.map.known_received();
        assert_eq!(self.map.on_timeout(&mut self.pool), known);
        self.learned -= known;
        self.from = self.map.una();
        self.check();
    }

    fn next_lost(&mut self) -> Option<Hole> {
        let known = self.known();
        let lost = self.map.next_lost(&self.pool)?;
        let packets = lost.first as usize..(lost.first + lost.len) as usize;
        assert!(lost.len > 0 && lost.first >= self.from.max(self.map.una()), "in order, once");
        assert!(self.reported[packets.clone()].iter().all(|&reported| reported), "{lost:?}");
        assert!(!known[packets].iter().any(|&known| known), "{lost:?} is received");
        self.from = lost.first + lost.len;
        self.check();
        Some(lost)
    }

    fn all_lost(&mut self) -> Vec<Hole> {
        std::iter::from_fn(|| self.next_lost()).collect()
    }

    /// By packet: is known as received.
    fn known(&self) -> Vec<bool> {
        let una = self.map.una();
        let mut known = vec![false; self.reported.len().max(una as usize) + 8];
        known[..una as usize].fill(true);
        let first = self.pool.block_of(una) * self.pool.block_bits();
        let blocks = self.map.blocks(&self.pool);
        let bytes = blocks.flat_map(|block| self.pool.bytes(block).iter().copied());
        let bits = bytes.flat_map(|byte| (0..8).map(move |bit| byte & 1 << bit != 0));
        known.resize(known.len() + self.pool.block_bits() as usize, false);
        for (psn, bit) in (first as usize..).zip(bits) {
            known[psn] |= bit;
        }
        known
    }

    fn check(&self) {
        self.map.check(&self.pool);
        self.pool.check(self.map.blocks(&self.pool));
        assert_eq!(self.map.una() + self.map.known_received(), self.learned);
    }

    fn finish(mut self) {
        self.map.release(&mut self.pool);
        assert_eq!(self.pool.usage().in_use, 0);
        self.pool.check([]);
    }
}

fn nack(rcv_nxt: u32, rcv_high: u32, holes: &[(u32, u32)]) -> Nack {
    let holes = holes.iter().map(|&(first, len)| hole(first, len)).collect();
    Nack { rcv_nxt, rcv_high, holes }
}

#[test]
fn holes_are_retransmitted_once() {
    let mut sender = Checked::new(128 * 8, 1, 100);
    let learned = sender.nack(&nack(3, 12, &[(9, 2), (3, 4)]));
    assert_eq!(learned, Ok(Learned { acked: 3, received: 3 }));
    assert_eq!(sender.all_lost(), [hole(3, 4), hole(9, 2)]);
    // A new hole; the others are reported again, and another NACK arrives before it.
    let learned = sender.nack(&nack(3, 30, &[(20, 9), (9, 2), (3, 4)]));
    assert_eq!(learned, Ok(Learned { acked: 0, received: 9 }));
    assert_eq!(sender.nack(&nack(3, 12, &[(9, 2), (3, 4)])), Ok(Learned::default()));
    assert_eq!(sender.all_lost(), [hole(20, 9)]);
    sender.ack(9);
    assert_eq!((sender.map.una(), sender.map.known_received(), sender.learned), (9, 10, 19));
    sender.ack(50);
    assert_eq!((sender.map.una(), sender.map.known_received(), sender.learned), (50, 0, 50));
    assert_eq!(sender.pool.usage().in_use, 0);
    assert_eq!(sender.nack(&nack(3, 30, &[(20, 9)])), Ok(Learned::default()), "old");
    sender.finish();
}

/// Packets that no NACK reported are not taken as lost, and are left to the timeout (M15).
#[test]
fn packets_covered_only_by_lost_nacks_are_unknown() {
    let mut sender = Checked::new(128 * 8, 1, 100);
    // The hole at 2 is one of four or more.
    let learned = sender.nack(&nack(2, 20, &[(18, 1), (14, 2), (10, 1)]));
    assert_eq!(learned, Ok(Learned { acked: 2, received: 6 }));
    assert_eq!(sender.next_lost(), Some(hole(10, 1)));
    assert_eq!(sender.nack(&nack(2, 42, &[(40, 1), (38, 1), (36, 1)])).unwrap().received, 3);
    assert_eq!(
        sender.all_lost(),
        [hole(14, 2), hole(18, 1), hole(36, 1), hole(38, 1), hole(40, 1)]
    );
    // A late old NACK: only the packets that it reports as received are learned.
    assert_eq!(sender.nack(&nack(2, 36, &[(30, 4), (24, 1), (22, 1)])).unwrap().received, 8);
    assert_eq!(sender.nack(&nack(2, 8, &[])).unwrap().received, 1);
    assert_eq!(sender.all_lost(), []);
    sender.timeout();
    assert_eq!((sender.map.una(), sender.learned, sender.pool.usage().in_use), (2, 2, 0));
    sender.finish();
}

/// Two unknown ranges before either is passed become one (documented at `SenderMap::extend`).
#[test]
fn two_unknown_ranges_become_one() {
    let mut sender = Checked::new(128 * 8, 1, 100);
    sender.nack(&nack(0, 20, &[(18, 1)])).unwrap();
    sender.nack(&nack(0, 40, &[(38, 1)])).unwrap();
    assert_eq!(sender.all_lost(), [hole(38, 1)]);
    sender.finish();
}

/// Without blocks the packets of a NACK stay unknown; a later NACK may report them again (M16).
#[test]
fn an_exhausted_pool_learns_nothing() {
    let mut sender = Checked::new(2 * 8, 1, 100);
    let learned = sender.nack(&nack(1, 30, &[(20, 1), (1, 3)]));
    assert_eq!(learned, Ok(Learned { acked: 1, received: 0 }));
    assert_eq!((sender.all_lost(), sender.pool.usage().refusals), (vec![], 1));
    let learned = sender.nack(&nack(15, 30, &[(20, 1), (15, 1)]));
    assert_eq!(learned, Ok(Learned { acked: 14, received: 0 }));
    let learned = sender.nack(&nack(20, 30, &[(20, 1)]));
    assert_eq!(learned, Ok(Learned { acked: 5, received: 9 }));
    assert_eq!(sender.all_lost(), [hole(20, 1)]);
    // Packets within the bitmap are learned even when it cannot be extended.
    let learned = sender.nack(&nack(20, 90, &[(80, 1), (50, 1), (20, 1)]));
    assert_eq!(learned, Ok(Learned { acked: 0, received: 0 }));
    sender.finish();
}

#[test]
fn nacks_that_no_receiver_sends_change_nothing() {
    use BadNack::{Holes, Range, TooMany};
    let mut sender = Checked::new(128 * 8, 1, 100);
    sender.nack(&nack(2, 12, &[(9, 2), (2, 4)])).unwrap();
    let before = format!("{:?} {:?}", sender.map, sender.pool);
    let cases = [
        (nack(5, 4, &[]), Range),
        (nack(5, MAX_PSN + 2, &[(5, 1)]), Range),
        (nack(5, u32::MAX, &[(5, 1)]), Range),
        (nack(5, 40, &[(30, 1), (20, 1), (10, 1), (5, 1)]), TooMany),
        (nack(5, 5, &[(5, 1)]), Holes),          // nothing is missing
        (nack(5, 5, &[(4, 1)]), Holes),          // nor below
        (nack(5, 6, &[]), Holes),                // RCV.NXT would be received
        (nack(5, 40, &[(6, 3)]), Holes),         // so would it
        (nack(5, 40, &[(30, 0)]), Holes),        // empty
        (nack(5, 40, &[(4, 3)]), Holes),         // below RCV.NXT
        (nack(5, 40, &[(30, 10)]), Holes),       // RCV.HIGH - 1 is received
        (nack(5, 40, &[(30, 11)]), Holes),       // above RCV.HIGH
        (nack(5, 40, &[(30, u32::MAX)]), Holes), // far above
        (nack(5, 40, &[(10, 3), (20, 3)]), Holes), // ascending
        (nack(5, 40, &[(20, 3), (20, 3)]), Holes), // twice
        (nack(5, 40, &[(20, 3), (18, 3)]), Holes), // overlapping
        (nack(5, 40, &[(20, 3), (18, 2)]), Holes), // one hole, not two
        (nack(0, 40, &[(0, 1), (0, 1)]), Holes),
    ];
    for (nack, bad) in cases {
        assert_eq!(sender.nack(&nack), Err(bad), "{nack:?}");
        assert_eq!(format!("{:?} {:?}", sender.map, sender.pool), before, "{nack:?}");
    }
    sender.finish();
}

/// A receiver that receives one packet per step, near RCV.NXT or RCV.HIGH; its NACKs.
fn nacks(packets: u32, steps: &[(u8, u32)]) -> Vec<(Nack, Vec<bool>)> {
    let (mut reorder, mut pool) = (Reorder::new(), MeloPool::new(PAPER_BITS, 1));
    let mut received = vec![false; packets as usize];
    let mut said = Vec::new();
    for &(what, number) in steps {
        let (nxt, high) = (reorder.rcv_nxt(), reorder.rcv_high());
        let psn = match what % 8 {
            0..=2 => nxt,
            3 => (high + number % 10).saturating_sub(9),
            4 => nxt + number % 8,
            _ => high + number % 3 * (number / 3 % 6),
        };
        use super::super::Arrival::{InOrder, OutOfOrder};
        let psn = psn.min(packets - 1);
        if let InOrder | OutOfOrder { .. } = reorder.on_packet(&mut pool, psn) {
            received[psn as usize] = true;
        }
        said.push((Nack::of(&reorder), received.clone()));
    }
    reorder.release(&mut pool);
    said
}

fn steps() -> impl Strategy<Value = Vec<(u8, u32)>> {
    prop::collection::vec((any::<u8>(), 0..1000u32), 1..200)
}

/// An arbitrary NACK, often a valid one.
fn any_nack() -> impl Strategy<Value = Nack> {
    let places = (0..80u32, 0..12u32);
    (0..60u32, 0..40u32, prop::collection::vec(places, 0..4), any::<bool>()).prop_map(
        |(rcv_nxt, more, holes, valid)| {
            let mut top = (rcv_nxt + more).max(1) - 1;
            let holes = holes.into_iter().map(|(at, len)| {
                if !valid {
                    return hole(at, len);
                }
                let end = top.saturating_sub(at % 6);
                let first = end.saturating_sub(len % 6 + 1);
                top = first.saturating_sub(1);
                hole(first, end - first)
            });
            let holes = holes.collect();
            Nack { rcv_nxt, rcv_high: rcv_nxt + more, holes }
        },
    )
}

proptest! {
    /// M13: when every NACK arrives, the sender knows for each packet from the lowest hole of the
    /// last NACK on what the receiver knows, and no more below.
    #[test]
    fn the_bitmap_is_rebuilt_from_nacks(steps in steps(), shift in 0..5_u32) {
        let mut sender = Checked::new(128 * 8, 1 << shift, 200);
        for (nack, received) in nacks(200, &steps) {
            sender.nack(&nack).unwrap();
            let known = sender.known();
            prop_assert_eq!(sender.map.una(), nack.rcv_nxt);
            let told = nack.lowest() as usize..200;
            prop_assert_eq!(&known[told.clone()], &received[told]);
            prop_assert!(known.iter().zip(&received).all(|(&known, &received)| received || !known));
            while sender.next_lost().is_some() {}
        }
        sender.finish();
    }

    /// When holes are filled in order, as without lost retransmissions, the two bitmaps are equal,
    /// even with NACKs only for new holes.
    #[test]
    fn holes_that_are_filled_in_order_leave_equal_bitmaps(
        steps in prop::collection::vec(0..8u32, 1..300)
    ) {
        let (mut reorder, mut pool) = (Reorder::new(), MeloPool::new(PAPER_BITS, 1));
        let mut sender = Checked::new(128 * 8, 1, 1000);
        let mut received = vec![false; 1008];
        for step in steps {
            use super::super::Arrival::OutOfOrder;
            let psn = if step < 4 { reorder.rcv_nxt() } else { reorder.rcv_high() + step - 4 };
            received[psn as usize] = true;
            let arrival = reorder.on_packet(&mut pool, psn);
            sender.ack(reorder.rcv_nxt());
            // The packets after a hole, without a new one, are reported by the next NACK.
            if step == 7 || arrival == (OutOfOrder { new_hole: true }) {
                sender.nack(&Nack::of(&reorder)).unwrap();
                prop_assert_eq!(&sender.known()[..1000], &received[..1000]);
                let lost: u32 = sender.all_lost().iter().map(|hole| hole.len).sum();
                prop_assert!(lost < 4, "new ones only");
            }
        }
        reorder.release(&mut pool);
        sender.finish();
    }

    /// With lost, repeated and reordered NACKs, acknowledgements and timeouts, and a small pool:
    /// packets known as received were received, and retransmitted packets were reported
    /// (`Checked`).
    #[test]
    fn a_sender_knows_only_what_nacks_reported(
        steps in steps(),
        deliveries in prop::collection::vec((any::<prop::sample::Index>(), 0..24u8), 0..200),
        shift in 0..4_u32,
    ) {
        let said = nacks(120, &steps);
        let mut sender = Checked::new(9 * 8, 1 << shift, 120);
        let mut latest = 0;
        for (index, what) in deliveries {
            // From anywhere, or a bit later than the one before.
            let at = match what {
                0..4 => index.index(said.len()),
                _ => (latest + usize::from(what) % 7).min(said.len() - 1),
            };
            latest = latest.max(at);
            let (nack, _) = &said[at];
            match what {
                5 => sender.timeout(),
                6..=9 => sender.ack(nack.rcv_nxt),
                _ => { sender.nack(nack).unwrap(); }
            }
            if what % 3 == 0 {
                sender.next_lost();
            }
            let received = &said[latest].1;
            let known = sender.known();
            prop_assert!(known.iter().enumerate().all(|(psn, &known)| !known || received[psn]));
        }
        sender.finish();
    }

    /// Arbitrary NACKs: no panic, the invariants hold, a rejected NACK changes nothing.
    #[test]
    fn arbitrary_nacks_are_rejected_or_harmless(
        said in prop::collection::vec((any_nack(), 0..12u8), 1..100), shift in 0..3_u32
    ) {
        let mut sender = Checked::new(6 * 8, 1 << shift, 200);
        for (nack, what) in said {
            let before = format!("{:?} {:?}", sender.map, sender.pool);
            match what {
                0 => sender.timeout(),
                1 => sender.ack(nack.rcv_high),
                _ => if sender.nack(&nack).is_err() {
                    prop_assert_eq!(before, format!("{:?} {:?}", sender.map, sender.pool));
                }
            }
            if what % 4 == 3 {
                sender.next_lost();
            }
        }
        sender.finish();
    }
}
