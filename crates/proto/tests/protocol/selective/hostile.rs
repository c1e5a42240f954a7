//! Peers that forge acknowledgements, or request without limit.

use courser_proto::RxDrop;
use courser_proto::wire::{Packet, parse_packet};

use super::*;
use crate::support::Forge;
use crate::support::forge::expect_drop;

/// Content of a NACK: packets in order, the newest packet, and holes, most recent first.
pub(super) type Said<'a> = (u32, u32, &'a [(u32, u32)]);

/// A NACK to the client, as a server could write it. Hole offsets are relative to `count`.
pub(super) fn nack(f: &mut Forge, req_num: u32, (count, high, holes): Said<'_>) -> Vec<u8> {
    let session = f.accept.client_session;
    // A request's header has the same fields.
    let as_request = Packet::Request {
        session,
        req_num,
        req_type: holes.len() as u16,
        msg_size: high,
        index: count,
        remaining_us: None,
        one_way: false,
        data: &[],
    };
    let mut bytes = f.frame(0, &[as_request]);
    let at = bytes.len() - courser_proto::wire::PACKET_HEADER;
    bytes[at] = courser_proto::wire::PacketKind::Nack as u8;
    for &(first, len) in holes {
        bytes.extend_from_slice(&(first as u16).to_le_bytes());
        bytes.extend_from_slice(&(len as u16).to_le_bytes());
    }
    let (parsed, _) = parse_packet(&bytes[at..], DPP as u16).expect("well made").expect("a packet");
    assert!(matches!(parsed, Packet::Nack { .. }));
    bytes
}

/// A request of `packets` packets, of which the first ones within the credits were sent and lost.
pub(super) fn half_way(recovery: Recovery, packets: usize) -> (World, Forge) {
    let mut w = World::pair(settings(recovery));
    let (s, f) = w.connect_forge(0, 1);
    w.filter = Some(Box::new(|_, _| false));
    w.call(0, s, 1, packets * DPP);
    w.pump();
    assert_eq!(w.nodes[0].ep.session_stats(s).unwrap().credits, 0);
    (w, f)
}

#[test]
fn a_nack_for_packets_that_were_never_sent_is_dropped() {
    for recovery in [Recovery::Selective, Recovery::Melo] {
        let (mut w, mut f) = half_way(recovery, 40);
        let (high, count): (Said<'_>, Said<'_>) = ((1, 9, &[(2, 3)]), (8, 39, &[(4, 3)]));
        for said in [high, count, (39, 40, &[]), (40, 41, &[]), (0, 1 << 20, &[(0, 1)])] {
            let bytes = nack(&mut f, 0, said);
            expect_drop(&mut w, 0, &bytes, RxDrop::Inconsistent);
        }
        for (req_num, reason) in [(8, RxDrop::Future), (0_u32.wrapping_sub(8), RxDrop::Stale)] {
            let bytes = nack(&mut f, req_num, (0, 2, &[(0, 1)]));
            let before = w.nodes[0].ep.stats().drops_total();
            w.inject(1, 0, &bytes);
            assert_eq!(w.nodes[0].ep.stats().drops_total(), before + 1, "{reason:?}");
        }
    }
}

#[test]
fn a_forged_nack_affects_its_own_call_only() {
    // Each is valid by itself, and they contradict each other.
    let lies: [Said<'_>; 6] = [
        (0, 8, &[(1, 6)]),
        (0, 8, &[(0, 7)]),
        (0, 8, &[(6, 1), (4, 1), (2, 1), (0, 1)]),
        (3, 8, &[(1, 1)]),
        (0, 2, &[(0, 1)]),
        (7, 8, &[]),
    ];
    for recovery in [Recovery::Selective, Recovery::Melo] {
        for first in 0..lies.len() {
            let (mut w, mut f) = half_way(recovery, 40);
            for turn in 0..200 {
                let bytes = nack(&mut f, 0, lies[(first + turn * (first + 1)) % lies.len()]);
                w.inject(1, 0, &bytes); // checks the endpoint
                w.now_ns += 700;
                w.pump();
            }
            let sent = w.nodes[0].ep.stats().tx_packets;
            assert!(sent < 400, "{recovery}: {sent} packets for 200 lies");
            let s = w.sessions[0].1;
            assert!(w.nodes[0].ep.memory().total_bytes() < 16 << 20);
            // The session is intact: closed, and another one works.
            let (remote, _) = w.ep(0).close(s).unwrap();
            w.ep(1).disconnected(remote, 0xe0, 7);
            w.filter = None;
            w.settle_until_idle_link();
            w.take_done(0);
            let s = w.connect(0, 1);
            w.call(0, s, 2, 30 * DPP);
            assert!(w.finish(0, 1)[0].result.is_ok());
        }
    }
}

#[test]
fn a_nack_to_a_small_request_or_a_go_back_n_session_is_dropped() {
    for recovery in [Recovery::Selective, Recovery::Melo] {
        let mut w = World::pair(settings(recovery));
        let (s, mut f) = w.connect_forge(0, 1);
        w.filter = Some(Box::new(|_, _| false));
        w.call(0, s, 1, 10);
        w.pump();
        let bytes = nack(&mut f, 0, (0, 1, &[]));
        expect_drop(&mut w, 0, &bytes, RxDrop::Inconsistent);
    }
    let (mut w, mut f) = half_way(Recovery::GoBackN, 40);
    for said in [(0, 2, &[(0, 1)][..]), (3, 8, &[(1, 1)])] {
        let bytes = nack(&mut f, 0, said);
        expect_drop(&mut w, 0, &bytes, RxDrop::Inconsistent);
    }
}

#[test]
fn a_nack_to_a_server_is_dropped() {
    let mut w = World::pair(settings(Recovery::Selective));
    let (_, mut f) = w.connect_forge(0, 1);
    (f.accept.client_session, f.accept.client_peer) = (f.accept.session.number, f.accept.peer);
    f.accept.client_cookie = f.accept.cookie;
    let bytes = nack(&mut f, 0, (0, 2, &[(0, 1)]));
    let before = w.nodes[1].ep.stats().drops_total();
    w.inject(0, 1, &bytes);
    assert_eq!(w.nodes[1].ep.stats().drops_total(), before + 1);
}

#[test]
fn a_flood_of_gaps_acts_like_one() {
    let mut w = World::pair(Config { inline_max: 512, ..settings(Recovery::Selective) });
    let (s, mut f) = w.connect_forge(0, 1);
    for id in 0..8 {
        w.call(0, s, id, 10);
    }
    w.filter = Some(Box::new(|_, _| false)); // no answer arrives
    w.pump();
    let start = w.now_ns;
    let memory = w.nodes[0].ep.memory().total_bytes();
    let gaps = [Packet::Gap; 80];
    for _ in 0..1_000 {
        let bytes = f.frame(0, &gaps);
        w.deliver_only(1, 0, &bytes);
    }
    w.pump();
    assert_eq!(w.nodes[0].ep.stats().rx_kinds[GAP], 80_000);
    assert!(w.nodes[0].ep.memory().total_bytes() <= memory + 4096, "one timer a call");
    // Eight calls are probed as after a single gap: each after its time, twice.
    w.run_until(start + 900_000);
    let (again, probes, rollbacks) = efforts(&w);
    assert!(again <= 16 && probes <= 16 && rollbacks == 0, "{:?}", (again, probes, rollbacks));
}

#[test]
fn frames_with_gaps_in_their_numbers_are_answered_once_per_batch() {
    let mut w = World::pair(settings(Recovery::Selective));
    let (_, mut f) = w.connect_forge(0, 1);
    let before = w.nodes[1].ep.stats().tx_packets;
    let ack = Packet::Ack { session: f.accept.session.number, req_num: 0 };
    for _ in 0..10_000 {
        _ = f.header(1); // a number that is never received
        let bytes = f.frame(1, &[ack]);
        w.deliver_only(0, 1, &bytes);
    }
    w.pump();
    let after = w.nodes[1].ep.stats();
    assert!(after.gaps >= 9_999);
    assert_eq!((after.tx_packets - before, after.tx_kinds[GAP]), (1, 1));
}

#[test]
fn requested_parts_never_exceed_the_credits() {
    for recovery in [Recovery::Selective, Recovery::Melo] {
        let mut w = World::pair(settings(recovery));
        let (_, mut f) = w.connect_forge(0, 1);
        w.nodes[1].handler = Box::new(|_, _| Action::ReplyMsg(vec![7; 400 * DPP]));
        let request = f.request(0, 4, 0, b"abcd");
        w.inject(0, 1, &request);
        w.settle_until_idle_link();
        let memory = w.nodes[1].ep.memory().total_bytes();
        let before = w.nodes[1].ep.stats().tx_kinds[3];
        let session = f.accept.session.number;
        for turn in 0..100 {
            for i in 0..190 {
                // With distance between them, so that none is merged with the one before.
                let first = 1 + (2 * i + 7 * turn) % 399;
                let rfr = Packet::Rfr { session, req_num: 0, first, count: 1 };
                let bytes = f.frame(1, &[rfr]);
                w.deliver_only(0, 1, &bytes);
            }
            assert!(w.nodes[1].ep.memory().total_bytes() <= memory + 4096);
            w.pump();
        }
        let sent = w.nodes[1].ep.stats().tx_kinds[3] - before;
        let credits = u64::from(settings(recovery).credits);
        assert!(sent <= 100 * credits, "{recovery}: {sent} packets");
        assert!(sent >= 100, "{recovery}: {sent}");
    }
}

#[test]
fn packets_far_ahead_cost_only_their_bits() {
    // A message of the largest size of which only every second packet arrives.
    let cfg = Config { max_msg_size: 8 << 20, ..settings(Recovery::Selective) };
    for recovery in [Recovery::Selective, Recovery::Melo] {
        let mut w = World::pair(Config { recovery, ..cfg.clone() });
        let (_, f) = w.connect_forge(0, 1);
        w.filter = Some(Box::new(|_, _| false));
        let size = 8 << 20;
        let packets = (size as usize).div_ceil(DPP) as u32;
        w.inject(0, 1, &f.request(0, size, 1, &[1; DPP]));
        let memory = w.nodes[1].ep.memory().total_bytes();
        for index in (3..packets - 1).step_by(2) {
            w.inject(0, 1, &f.request(0, size, index, &[1; DPP]));
        }
        let more = w.nodes[1].ep.memory().total_bytes().saturating_sub(memory);
        assert!(more <= packets as usize / 8 + 4096, "{recovery}: {more} bytes");
        assert!(w.nodes[1].executed.is_empty());
        let t = w.nodes[1].ep.stats();
        assert!(recovery == Recovery::Melo || t.dropped(RxDrop::OutOfOrder) == 0);
    }
}
