//! Ingress validation: a frame that fails it changes nothing but a counter (ADR 14).

use std::cell::RefCell;
use std::rc::Rc;

use courser_buf::{Addr, Ecn, RxFrame};
use courser_proto::wire::{EcnCounts, FrameHeader, Packet};
use courser_proto::{Config, EndpointStats, Recovery, RxDrop};

use crate::support::forge::{frame, packets};
use crate::support::{World, addr, config};

/// All counters but those of ingress.
fn inside(stats: &EndpointStats) -> EndpointStats {
    EndpointStats { rx_frames: 0, drops: Default::default(), ..stats.clone() }
}

#[test]
fn invalid_frames_change_nothing() {
    let mut w = World::pair(config());
    let (s, mut f) = w.connect_forge(0, 1);
    w.call(0, s, 1, 100);
    w.finish(0, 1);
    let good = f.header(1);
    let data = [0u8; 4];
    let packet = Packet::Request {
        session: f.accept.session.number,
        req_num: 8,
        req_type: 1,
        msg_size: 4,
        index: 0,
        remaining_us: None,
        one_way: false,
        data: &data,
    };
    let mut ours = frame(&good, &[packet]);
    let bad = |edit: fn(&mut FrameHeader)| {
        let mut h = good;
        edit(&mut h);
        frame(&h, &[packet])
    };
    let cases = [
        (bad(|h| h.peer += 1), addr(0), RxDrop::UnknownPeer),
        (bad(|h| h.peer = u32::MAX), addr(0), RxDrop::UnknownPeer),
        (bad(|h| h.cookie ^= 1), addr(0), RxDrop::Cookie),
        (bad(|h| h.data_per_packet -= 1), addr(0), RxDrop::PacketSize),
        (vec![], addr(0), RxDrop::Truncated),
        (bad(|_| {})[..23].to_vec(), addr(0), RxDrop::Truncated),
        (vec![0; 40], addr(0), RxDrop::Version),
    ];
    let before = inside(w.ep(1).stats());
    let now = w.now_ns;
    w.ep(1).on_deadline(now);
    let figures = format!("{:?}", w.ep(1));
    for (n, (bytes, src, reason)) in cases.iter().enumerate() {
        let count = w.ep(1).stats().dropped(*reason);
        let rx = RxFrame::new(*src, bytes, Ecn::Ce);
        assert!(!w.nodes[1].accepts(&rx, now), "case {n}");
        assert_eq!(w.ep(1).stats().dropped(*reason), count + 1, "case {n}");
        assert_eq!(inside(w.ep(1).stats()), before, "case {n}");
    }
    // The whole state, including peers and their estimators; only the counters differ.
    let cut = |s: &str| s.split(" stats: ").next().unwrap_or("").to_owned();
    assert!(cut(&format!("{:?}", w.ep(1))) == cut(&figures), "state changed");
    // A valid frame of another source changes what is wanted of its peer (`moves.rs`), and nothing else.
    let rx = RxFrame::new(addr(1), &ours, Ecn::Ce);
    assert!(!w.nodes[1].accepts(&rx, now));
    assert_eq!(w.ep(1).stats().dropped(RxDrop::WrongSource), 1);
    assert_eq!(inside(w.ep(1).stats()), before);
    let after = format!("{:?}", w.ep(1)).replace("wanted: [0]", "wanted: []");
    assert!(cut(&after) == cut(&figures), "state changed");
    // The same frame without the fault is accepted, so the cases were dropped for their faults.
    w.inject(0, 1, &ours);
    assert_eq!(w.nodes[1].executed[&1], 2);
    // A malformed packet discards the packets after it in the frame, and none before it.
    ours.extend_from_slice(&[12; 16]);
    let malformed = w.ep(1).stats().dropped(RxDrop::Kind) + w.ep(1).stats().dropped(RxDrop::Flags);
    w.inject(0, 1, &ours);
    let stats = w.ep(1).stats();
    assert_eq!(stats.dropped(RxDrop::Kind) + stats.dropped(RxDrop::Flags), malformed + 1);
    assert_eq!(stats.dropped(RxDrop::Duplicate), 1);
}

#[test]
fn a_removed_peer_is_unknown() {
    let mut w = World::pair(config());
    let (s, f) = w.connect_forge(0, 1);
    let request = f.request(0, 4, 0, b"abcd");
    let (remote, path) = w.ep(0).close(s).unwrap();
    assert!(path.is_some());
    assert!(w.ep(1).disconnected(remote, 0xbad, 7).is_none(), "not its owner");
    assert!(w.ep(1).disconnected(remote, 0xe0, 7).is_some());
    w.inject(0, 1, &request);
    assert_eq!(w.ep(1).stats().dropped(RxDrop::UnknownPeer), 1);
    // The next connect takes the same numbers; the old cookie is not valid for it.
    w.connect(0, 1);
    w.inject(0, 1, &request);
    assert_eq!(w.ep(1).stats().dropped(RxDrop::Cookie), 1);
}

/// Offsets of the header fields (docs/wire-protocol.md).
const VERSION: usize = 0;
const PACKET_SIZE: usize = 2;
const COOKIE: usize = 4;
const PEER: usize = 8;

/// A valid request in flight in a session that has been used: the frame that would arrive next, as
/// built by its client, with send time or without.
fn in_flight(timed: bool) -> (World, Vec<u8>) {
    let mut w = World::pair(Config { recovery: Recovery::Selective, ..config() });
    let s = w.connect(0, 1);
    let caught = Rc::new(RefCell::new(Vec::new()));
    let catch = Rc::clone(&caught);
    w.filter = Some(Box::new(move |from, frame| {
        let plain = frame.get(1) == Some(if timed { &ECHOES } else { &UNTIMED });
        let is_request = |p| matches!(p, Packet::Request { req_type: 9.., .. });
        if from != 0 || !plain || !packets(frame).any(is_request) {
            return true;
        }
        *catch.borrow_mut() = frame.to_vec();
        false
    }));
    // Each call is made when the previous one has ended: frames that answer others may carry no
    // time.
    w.nodes[0].next = (1..40).map(|id| (s, id, 20)).collect();
    w.call(0, s, 0, 20);
    while caught.borrow().is_empty() {
        assert!(w.step(), "no frame of that form was sent");
    }
    w.filter = None;
    (w, caught.take())
}

/// Flags of a header with send time and echo, and of one without.
const ECHOES: u8 = 1;
const UNTIMED: u8 = 2;

/// The frame is dropped for this reason, and has no other effect.
fn expect_shut(w: &mut World, frame: &[u8], src: Addr, reason: RxDrop, what: &str) {
    let before = w.ep(1).stats().clone();
    let executed = w.nodes[1].executed.clone();
    let now_ns = w.now_ns;
    w.nodes[1].receive(src, frame, now_ns);
    let after = w.ep(1).stats().clone();
    assert_eq!(w.nodes[1].executed, executed, "{what}: a handler ran");
    assert_eq!(after.rx_frames, before.rx_frames + 1, "{what}");
    assert_eq!(after.rx_frames_accepted, before.rx_frames_accepted, "{what}: it was let in");
    assert_eq!(after.dropped(reason), before.dropped(reason) + 1, "{what}: {reason:?}");
    assert_eq!(after.drops_total(), before.drops_total() + 1, "{what}");
    assert_eq!(inside(&after), inside(&before), "{what}");
}

/// Valid frames, each with one wrong field.
fn ordinary_frames_with_one_wrong_field_are_discarded(timed: bool) {
    let (mut w, frame) = in_flight(timed);
    let changed = |at: usize, bits: u8| {
        let mut frame = frame.clone();
        frame[at] ^= bits;
        frame
    };
    let cases = [
        (changed(COOKIE, 1), addr(0), RxDrop::Cookie, "cookie, lowest bit"),
        (changed(COOKIE + 3, 0x80), addr(0), RxDrop::Cookie, "cookie, highest bit"),
        (frame.clone(), addr(1), RxDrop::WrongSource, "source"),
        (frame.clone(), Addr { port: 7, ..addr(0) }, RxDrop::WrongSource, "source port"),
        (changed(PACKET_SIZE, 1), addr(0), RxDrop::PacketSize, "packet size, low byte"),
        (changed(PACKET_SIZE + 1, 1), addr(0), RxDrop::PacketSize, "packet size, high byte"),
        (changed(PEER, 1), addr(0), RxDrop::UnknownPeer, "peer"),
        (changed(PEER + 2, 0x40), addr(0), RxDrop::UnknownPeer, "peer, far beyond the table"),
        (changed(VERSION, 1), addr(0), RxDrop::Version, "version"),
        (changed(VERSION, 0x80), addr(0), RxDrop::Version, "protocol mark"),
        (changed(1, 0x80), addr(0), RxDrop::Flags, "unknown flag"),
    ];
    for (bytes, src, reason, what) in &cases {
        expect_shut(&mut w, bytes, *src, *reason, what);
    }
    // Without the change it is accepted: nothing else was wrong.
    let executed: u32 = w.nodes[1].executed.values().sum();
    w.inject(0, 1, &frame);
    assert_eq!(w.nodes[1].executed.values().sum::<u32>(), executed + 1);
}

#[test]
fn ordinary_frames_with_times_and_one_wrong_field_are_discarded() {
    ordinary_frames_with_one_wrong_field_are_discarded(true);
}

#[test]
fn ordinary_frames_without_times_and_one_wrong_field_are_discarded() {
    ordinary_frames_with_one_wrong_field_are_discarded(false);
}

#[test]
fn frames_of_a_tentative_peer_are_dropped() {
    let mut w = World::pair(config());
    let request = w.dial(1, 77).request;
    for sent_at in [Some(5), None] {
        // The state of its table entry until the answer arrives: no address, no packet size.
        let header = FrameHeader {
            data_per_packet: 0,
            peer: request.peer,
            cookie: request.cookie,
            held: 0,
            number: 1,
            ecn: EcnCounts::default(),
            sent_at,
            echo_at: sent_at,
        };
        let frame = frame(&header, &[Packet::Gap]);
        let nowhere = Addr { host: 0, port: 0 };
        expect_shut(&mut w, &frame, nowhere, RxDrop::UnknownPeer, "a tentative peer");
    }
}
