//! The door: nothing behind it is touched by a frame that does not belong (F14).

use courser_buf::{Ecn, RxFrame};
use courser_proto::{Drop, EndpointStats};

use crate::support::forge::frame;
use crate::support::{World, addr, config};

/// All counters but those of the door.
fn inside(stats: &EndpointStats) -> EndpointStats {
    EndpointStats { rx_frames: 0, drops: Default::default(), ..stats.clone() }
}

#[test]
fn frames_that_do_not_belong_change_nothing() {
    let mut w = World::pair(config());
    let (s, mut f) = w.connect_forge(0, 1);
    w.call(0, s, 1, 100);
    w.finish(0, 1);
    let good = f.header(1);
    let data = [0u8; 4];
    let packet = courser_proto::wire::Packet::Request {
        session: f.accept.session,
        req_num: 8,
        req_type: 1,
        msg_size: 4,
        index: 0,
        remaining_us: None,
        data: &data,
    };
    let mut ours = frame(&good, &[packet]);
    let bad = |edit: fn(&mut courser_proto::wire::FrameHeader)| {
        let mut h = good;
        edit(&mut h);
        frame(&h, &[packet])
    };
    let cases = [
        (bad(|h| h.peer += 1), addr(0), Drop::UnknownPeer),
        (bad(|h| h.peer = u32::MAX), addr(0), Drop::UnknownPeer),
        (bad(|h| h.cookie ^= 1), addr(0), Drop::Cookie),
        (bad(|h| h.data_per_packet -= 1), addr(0), Drop::PacketSize),
        (bad(|_| {}), addr(1), Drop::WrongSource),
        (vec![], addr(0), Drop::Truncated),
        (bad(|_| {})[..23].to_vec(), addr(0), Drop::Truncated),
        (vec![0; 40], addr(0), Drop::Version),
    ];
    let before = inside(w.ep(1).stats());
    let now = w.now_ns;
    w.ep(1).on_deadline(now);
    let figures = format!("{:?}", w.ep(1));
    for (n, (bytes, src, reason)) in cases.iter().enumerate() {
        let count = w.ep(1).stats().dropped(*reason);
        let rx = RxFrame::new(*src, bytes, Ecn::Ce);
        assert!(w.ep(1).on_frame(&rx, now).is_none(), "case {n}");
        assert_eq!(w.ep(1).stats().dropped(*reason), count + 1, "case {n}");
        assert_eq!(inside(w.ep(1).stats()), before, "case {n}");
    }
    // All state there is, peers and their estimators included; only the counters differ.
    let cut = |s: &str| s.split(" stats: ").next().unwrap_or("").to_owned();
    assert!(cut(&format!("{:?}", w.ep(1))) == cut(&figures), "state changed");
    // The same frame unharmed is taken, so the cases were dropped for what was wrong with them.
    w.inject(0, 1, &ours);
    assert_eq!(w.nodes[1].executed[&1], 2);
    // A broken packet costs what follows it in the frame, and nothing before it.
    ours.extend_from_slice(&[11; 16]);
    let malformed = w.ep(1).stats().dropped(Drop::Kind) + w.ep(1).stats().dropped(Drop::Flags);
    w.inject(0, 1, &ours);
    let stats = w.ep(1).stats();
    assert_eq!(stats.dropped(Drop::Kind) + stats.dropped(Drop::Flags), malformed + 1);
    assert_eq!(stats.dropped(Drop::Duplicate), 1);
}

#[test]
fn a_peer_that_is_gone_is_unknown() {
    let mut w = World::pair(config());
    let (s, f) = w.connect_forge(0, 1);
    let request = f.request(0, 4, 0, b"abcd");
    let (remote, path) = w.ep(0).close(s).unwrap();
    assert!(path.is_some());
    assert!(w.ep(1).disconnected(remote, 0xbad, 7).is_none(), "not its owner");
    assert!(w.ep(1).disconnected(remote, 0xe0, 7).is_some());
    w.inject(0, 1, &request);
    assert_eq!(w.ep(1).stats().dropped(Drop::UnknownPeer), 1);
    // The next connect takes the same numbers; the old cookie opens nothing.
    w.connect(0, 1);
    w.inject(0, 1, &request);
    assert_eq!(w.ep(1).stats().dropped(Drop::Cookie), 1);
}
