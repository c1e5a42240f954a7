//! Frames whose end a transport has left in shared memory have the same effect as frames in one
//! piece. (In `faults.rs` half of the worlds have such frames, too.)

use courser_proto::wire::{FRAME_HEADER, PACKET_HEADER, Packet};
use courser_proto::{Config, Factors, Recovery, RxDrop};

use super::support::{Action, DPP, Link, Rng, World, config, expect_drop, pattern};

/// Lengths of the front, no shorter than the headers.
const FRONTS: [usize; 4] = [FRAME_HEADER + PACKET_HEADER, 256, 257, 1400];

/// Calls of all sizes, several per frame where they fit. Nodes receive all of a frame but its front
/// as a tail.
fn calls(cfg: &Config, front: usize) -> World {
    let mut w = World::new(&[cfg.clone(), cfg.clone()], 7);
    w.tracing = true;
    w.link = Link { loss: 10_000, reorder: 50_000, latency_ns: 3_000, ..Link::perfect() };
    w.nodes.iter_mut().for_each(|n| n.front = front);
    w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.iter().rev().copied().collect()));
    let s = w.connect(0, 1);
    let mut rng = Rng(3);
    for round in 0..12 {
        let lens: Vec<usize> = (0..8)
            .map(|_| {
                let most = rng.pick(&[40, 300, DPP as u64, DPP as u64 * 2, DPP as u64 * 20]);
                rng.below(most) as usize
            })
            .collect();
        for (i, &len) in (0..).zip(&lens) {
            w.call_within(0, s, 8 * round + i, len, 10_000_000_000);
        }
        for d in w.finish(0, 8) {
            let mut want = pattern(d.id, lens[d.id as usize % 8]);
            want.reverse();
            assert!(d.result == Ok(want), "call {}", d.id);
        }
    }
    w
}

#[test]
fn frames_in_two_pieces_act_like_whole_ones() {
    for recovery in Recovery::ALL {
        let zero_copy_rx = recovery != Recovery::Melo;
        let factors = Factors { zero_copy_rx, ..Factors::default() };
        let cfg = Config { recovery, factors, ..config() };
        let whole = calls(&cfg, usize::MAX);
        assert!(whole.nodes[0].ep.stats().drops_total() > 0, "{recovery:?}: nothing was lost");
        for front in FRONTS {
            let parts = calls(&cfg, front);
            assert!(parts.story() == whole.story(), "{recovery:?}, front of {front}");
            for (parts, whole) in parts.nodes.iter().zip(&whole.nodes) {
                assert_eq!(parts.ep.stats(), whole.ep.stats());
                assert_eq!(parts.copied, whole.copied);
            }
        }
    }
}

/// Packets with a wrong data length, in two pieces.
#[test]
fn wrong_lengths_are_dropped() {
    for front in FRONTS {
        let mut w = World::pair(config());
        let (_, forge) = w.connect_forge(0, 1);
        w.nodes[1].front = front;
        let size = 3 * DPP as u32;
        let data = pattern(5, DPP);
        for short in [1, 2, 10] {
            let frame = forge.request(0, size, 0, &data[..DPP - short]);
            expect_drop(&mut w, 1, &frame, RxDrop::Length);
        }
        let beyond = forge.request(0, size, 3, &data);
        expect_drop(&mut w, 1, &beyond, RxDrop::Range);
        // The bytes after a packet are the next packet, and invalid here.
        let mut long = forge.request(0, size, 1, &data);
        long.push(0x0f);
        let before = w.nodes[1].ep.stats().clone();
        w.inject(0, 1, &long);
        let after = w.nodes[1].ep.stats();
        assert_eq!(after.dropped(RxDrop::OutOfOrder), before.dropped(RxDrop::OutOfOrder) + 1);
        assert_eq!(after.dropped(RxDrop::Truncated), before.dropped(RxDrop::Truncated) + 1);
        assert!(w.nodes[1].executed.is_empty());
    }
}

/// Every packet is checked as in one piece: here those of the last request, and unrequested ones.
#[test]
fn duplicates_and_unrequested_packets_are_dropped() {
    let mut w = World::pair(config());
    let (_, forge) = w.connect_forge(0, 1);
    w.nodes.iter_mut().for_each(|n| n.front = 256);
    let (size, data) = (2 * DPP as u32, pattern(5, 2 * DPP));
    w.inject(0, 1, &forge.request(0, size, 0, &data[..DPP]));
    expect_drop(&mut w, 1, &forge.request(0, size, 0, &data[..DPP]), RxDrop::Duplicate);
    let other = forge.request(0, size + 1, 1, &data[..DPP]);
    expect_drop(&mut w, 1, &other, RxDrop::Inconsistent);
    w.inject(0, 1, &forge.request(0, size, 1, &data[DPP..]));
    assert_eq!((w.nodes[1].executed[&5], w.nodes[1].copied), (1, 1));
    let unasked = forge.response(0, size, 0, &data[..DPP]);
    assert!(w.nodes[0].ep.stats().drops_total() <= 2, "answers without a call");
    let before = w.nodes[0].ep.stats().drops_total();
    w.inject(1, 0, &unasked);
    assert_eq!(w.nodes[0].ep.stats().drops_total(), before + 1);
}

/// Ingress validation needs only the front of a frame with a tail.
#[test]
fn the_door_is_as_narrow() {
    let mut w = World::pair(config());
    let (_, mut forge) = w.connect_forge(0, 1);
    w.nodes[1].front = 64;
    let data = pattern(5, DPP);
    let session = forge.accept.session.number;
    let (req_num, req_type, msg_size, index) = (0, 5, 2 * DPP as u32, 0);
    let packet = Packet::Request {
        session,
        req_num,
        req_type,
        msg_size,
        index,
        remaining_us: None,
        one_way: false,
        data: &data,
    };
    let mut header = forge.header(1);
    header.cookie ^= 1;
    expect_drop(&mut w, 1, &super::support::forge::frame(&header, &[packet]), RxDrop::Cookie);
    header.cookie ^= 1;
    header.data_per_packet -= 1;
    expect_drop(&mut w, 1, &super::support::forge::frame(&header, &[packet]), RxDrop::PacketSize);
}
