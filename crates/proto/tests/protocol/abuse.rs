//! Attacks by peers with a session and by outsiders: replayed frames, forged numbers, guesses,
//! unfinished messages, unacknowledged responses.

use std::cell::RefCell;
use std::rc::Rc;

use courser_buf::{Ecn, RxFrame};
use courser_proto::wire::{FRAME_HEADER, FrameHeader, PACKET_HEADER, Packet};
use courser_proto::{Config, Grant, RxDrop, SessionId, SessionStats};

use crate::support::forge::frame;
use crate::support::{Action, DPP, Rng, World, addr, config, pattern};

/// The destination and the bytes.
type Frames = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

fn record(w: &mut World) -> Frames {
    let frames = Frames::default();
    let seen = frames.clone();
    w.filter = Some(Box::new(move |from, bytes| {
        seen.borrow_mut().push((1 - from, bytes.to_vec()));
        true
    }));
    frames
}

fn size(id: u16) -> usize {
    [20, 0, 3 * DPP, DPP, 20 * DPP + 1][usize::from(id) % 5]
}

/// Short replies to some requests, long ones to others, late ones to a few.
fn answer(id: u16) -> Vec<u8> {
    pattern(0xa000 + u64::from(id), size(id / 5))
}

fn serve(w: &mut World) {
    w.nodes[1].handler = Box::new(|id, req| {
        assert!(req == pattern(id.into(), size(id)), "request {id} arrived changed");
        if id % 7 == 0 { Action::Defer(60_000, answer(id)) } else { Action::Reply(answer(id)) }
    });
}

fn run_calls(w: &mut World, s: SessionId, ids: std::ops::Range<u16>) {
    let n = ids.len();
    for id in ids {
        w.call(0, s, id, size(id));
    }
    for done in w.finish(0, n) {
        assert!(done.result == Ok(answer(done.id as u16)), "call {}: another's response", done.id);
    }
}

/// State that replays must not change: executions, ends of calls, credits, memory. The number of
/// sent frames is excluded: duplicates are answered.
fn figures(w: &World, s: SessionId) -> impl PartialEq + std::fmt::Debug + use<> {
    let stats = |i: usize| {
        let n = &w.nodes[i];
        let t = n.ep.stats();
        let held = n.arena.stats().in_use_bytes;
        (t.calls, t.responses, t.errors, t.requests, t.replies, held, n.ep.live_sessions())
    };
    let session = w.nodes[0].ep.session_stats(s).unwrap();
    let SessionStats { credits, credit_limit, in_flight, queued, .. } = session;
    assert_eq!(credits, credit_limit);
    (w.nodes[1].executed.clone(), stats(0), stats(1), (credits, in_flight, queued))
}

#[test]
fn replaying_every_old_frame_changes_nothing() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    serve(&mut w);
    let frames = record(&mut w);
    run_calls(&mut w, s, 0..100);
    w.settle();
    w.filter = None;
    let old = frames.take();
    assert!(old.len() > 200);
    let before = figures(&w, s);
    let dropped = w.nodes.iter().map(|n| n.ep.stats().drops_total()).sum::<u64>();
    for order in [false, true] {
        for i in 0..old.len() {
            let (to, bytes) = &old[if order { old.len() - 1 - i } else { i }];
            w.inject(1 - to, *to, bytes);
        }
        w.settle();
        assert_eq!(figures(&w, s), before);
    }
    let after = w.nodes.iter().map(|n| n.ep.stats().drops_total()).sum::<u64>();
    assert!(after - dropped >= old.len() as u64, "each was counted");
    run_calls(&mut w, s, 100..120);
}

#[test]
fn old_frames_between_new_calls_corrupt_nothing() {
    let mut w = World::pair(Config { slots: 2, ..config() });
    let s = w.connect(0, 1);
    serve(&mut w);
    let frames = record(&mut w);
    let mut rng = Rng(21);
    for round in 0..20u16 {
        let ids = round * 10..round * 10 + 10;
        for id in ids.clone() {
            w.call(0, s, id, size(id));
        }
        while w.nodes[0].done.len() < ids.len() {
            assert!(w.step());
            // Any frame sent so far, also those in flight.
            let all = frames.borrow();
            let picked: Vec<_> =
                (0..3).map(|_| all[rng.below(all.len() as u64) as usize].clone()).collect();
            drop(all);
            for (to, bytes) in picked {
                w.inject(1 - to, to, &bytes);
            }
        }
        for done in w.take_done(0) {
            assert!(done.result == Ok(answer(done.id as u16)), "call {}", done.id);
        }
    }
    assert!((0..200).all(|id| w.nodes[1].executed[&id] == 1));
    w.settle();
    figures(&w, s);
}

#[test]
fn a_frame_replayed_a_thousand_times_causes_bounded_answers() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    serve(&mut w);
    let frames = record(&mut w);
    run_calls(&mut w, s, 0..8);
    w.filter = None;
    let before = figures(&w, s);
    for (to, bytes) in frames.take() {
        let sent = w.nodes[to].ep.stats().tx_packets;
        for _ in 0..1000 {
            w.inject(1 - to, to, &bytes);
        }
        // The world checks E39: no more packets than requests and requests-for-response allow. A
        // client sends none at all.
        if to == 0 {
            assert_eq!(w.nodes[0].ep.stats().tx_packets, sent);
        }
        w.settle_until_idle_link();
    }
    assert_eq!(figures(&w, s), before);
}

#[test]
fn frames_from_wrong_addresses_are_counted_only() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    serve(&mut w);
    let frames = record(&mut w);
    run_calls(&mut w, s, 0..20);
    w.settle();
    let before = figures(&w, s);
    let mut wrong = [addr(0), addr(1), addr(0), addr(1)];
    wrong[2].port += 1;
    wrong[3].host += 1;
    for (to, bytes) in frames.take() {
        for src in wrong {
            if src == addr(1 - to) {
                continue;
            }
            let (now, stats) = (w.now_ns, w.ep(to).stats().clone());
            let rx = RxFrame::new(src, &bytes, Ecn::Ce);
            assert!(!w.nodes[to].accepts(&rx, now));
            let after = w.ep(to).stats();
            assert_eq!(after.dropped(RxDrop::WrongSource), stats.dropped(RxDrop::WrongSource) + 1);
            assert_eq!(after.drops_total(), stats.drops_total() + 1);
        }
    }
    w.settle();
    assert_eq!(figures(&w, s), before);
}

#[test]
fn a_hundred_thousand_guessed_cookies_are_rejected() {
    let mut w = World::pair(config());
    let (s, mut f) = w.connect_forge(0, 1);
    serve(&mut w);
    run_calls(&mut w, s, 0..10);
    w.settle();
    let before = figures(&w, s);
    let real = f.header(1);
    let session = f.accept.session.number;
    let mut rng = Rng(22);
    for n in 0..100_000u32 {
        let cookie = match n % 4 {
            0 => real.cookie ^ 1 << (n / 4 % 32), // one bit off
            1 => n,
            _ => rng.next() as u32,
        };
        let peer = if n % 3 == 0 { real.peer } else { rng.below(4) as u32 };
        if (peer, cookie) == (real.peer, real.cookie) {
            continue;
        }
        let (req_num, data) = (rng.below(32) as u32, [1, 2, 3, 4]);
        let packet = Packet::Request {
            session,
            req_num,
            req_type: 1,
            msg_size: 4,
            index: 0,
            remaining_us: None,
            one_way: false,
            data: &data,
        };
        w.deliver_only(0, 1, &frame(&FrameHeader { peer, cookie, ..real }, &[packet]));
    }
    let stats = w.ep(1).stats();
    assert!(stats.dropped(RxDrop::Cookie) > 30_000 && stats.dropped(RxDrop::UnknownPeer) > 30_000);
    assert_eq!(figures(&w, s), before);
}

#[test]
fn a_peer_cannot_use_the_session_of_another() {
    let mut w = World::new(&[config(), config(), config()], 1);
    let (_, mut mine) = w.connect_forge(0, 1);
    let own = mine.accept.session.number;
    let (theirs, other) = w.connect_forge(2, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    w.call(2, theirs, 1, 3 * DPP);
    w.settle_until_idle_link();
    let half = w.nodes[1].arena.stats().in_use_bytes;
    let executed = w.nodes[1].executed.clone();
    let mut expected = 0;
    let numbers = (0..5000).chain((0..24).map(|bit| 1 << bit)).chain([other.accept.session.number]);
    for session in numbers.filter(|&n| n != own) {
        let data = [0u8; 4];
        let packets = [
            Packet::Request {
                session,
                req_num: 8,
                req_type: 1,
                msg_size: 4,
                index: 0,
                remaining_us: None,
                one_way: false,
                data: &data,
            },
            Packet::Rfr { session, req_num: 0, first: 1, count: 1 },
            Packet::Ack { session, req_num: 0 },
            Packet::Response { session, req_num: 0, msg_size: 4, index: 0, data: &data },
            Packet::CreditReturn {
                session,
                req_num: 0,
                count: 1,
                in_progress: false,
                grant: Grant::default(),
            },
            Packet::ErrorResponse { session, req_num: 0, status: 1 },
        ];
        let bytes = mine.frame(1, &packets);
        w.inject(0, 1, &bytes);
        expected += packets.len() as u64;
        assert_eq!(w.ep(1).stats().dropped(RxDrop::UnknownSession), expected, "session {session}");
    }
    assert_eq!(w.nodes[1].executed, executed);
    assert_eq!(w.nodes[1].arena.stats().in_use_bytes, half);
    let id = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(id, b"well").unwrap();
    assert_eq!(w.finish(2, 1)[0].result, Ok(b"well".to_vec()));
}

#[test]
fn unfinished_messages_stay_within_the_quota() {
    let (max, cap) = (1 << 20, 8 << 20);
    let cfg = Config { max_msg_size: max, max_held_per_peer: cap, ..config() };
    let mut w = World::pair(cfg.clone());
    let forges: Vec<_> = (0..4).map(|_| w.connect_forge(0, 1)).collect();
    w.link.loss = 1_000_000; // the server's packets are lost
    let idle = w.nodes[1].arena.stats().in_use_bytes;
    let part = vec![1; DPP];
    let mut peak = 0;
    for again in 0..10 {
        for (_, f) in &forges {
            for slot in 0..8 {
                // Too large, as large as possible, and the same again.
                w.inject(0, 1, &f.request(slot, max, 0, &part));
                w.inject(0, 1, &f.request(slot + 8, max, 0, &part));
                w.inject(0, 1, &f.request(slot, max + 1, 0, &part));
            }
        }
        let held = w.nodes[1].arena.stats().in_use_bytes - idle;
        // 32 slots request 32 MiB; the rest of the quota serves rejections and credit returns.
        assert!(held <= cap + cap / 4 + (1 << 20), "{held} bytes");
        assert!(held >= cap / 2, "it is the limit that is tested: {held} bytes");
        if again == 0 {
            peak = held;
        }
        assert_eq!(held, peak, "announcing again holds more");
    }
    assert!(w.nodes[1].executed.is_empty());
    w.link.loss = 0;
    for (s, _) in forges {
        let (remote, _) = w.ep(0).close(s).unwrap();
        w.ep(1).disconnected(remote, 0xe0, 7);
    }
    let left = w.nodes[1].arena.stats().in_use_bytes;
    assert!(left < idle + (1 << 20), "{left} bytes are held for a peer that is gone");
    serve(&mut w);
    let s = w.connect(0, 1);
    run_calls(&mut w, s, 0..10);
}

#[test]
fn a_client_that_never_acknowledges_holds_one_response_per_slot() {
    // ADR 6: a slot's next request acknowledges the previous response; its last response stays.
    let mut w = World::pair(config());
    let (_, f) = w.connect_forge(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![7; 100 * DPP]));
    w.link.loss = 1_000_000;
    let mut held = Vec::new();
    for round in 0..100 {
        for slot in 0..8 {
            w.inject(0, 1, &f.request(round * 8 + slot, 4, 0, b"abcd"));
        }
        held.push(w.nodes[1].arena.stats().in_use_bytes);
    }
    assert_eq!(w.nodes[1].executed[&5], 800);
    assert!(held.iter().all(|&h| h <= held[0] + 8 * DPP), "{held:?}");
    assert!(held[0] <= 8 * 125 * DPP + (1 << 20));
    w.run_until(w.now_ns + 1_000_000_000);
    assert_eq!(w.ep(1).stats().rollbacks, 0, "a server has no timers of its own (ADR 3)");
}

#[test]
fn every_bit_of_every_header_flipped() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    serve(&mut w);
    let frames = record(&mut w);
    run_calls(&mut w, s, 0..30);
    w.settle();
    w.filter = None;
    w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
    w.link.loss = 1_000_000;
    for (to, bytes) in frames.take() {
        for bit in 0..(FRAME_HEADER + PACKET_HEADER).min(bytes.len()) * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let before = w.ep(to).stats().clone();
            w.inject(1 - to, to, &bad);
            let after = w.ep(to).stats();
            let counted =
                after.rx_packets - before.rx_packets + after.drops_total() - before.drops_total();
            let inside = after.rx_frames_accepted > before.rx_frames_accepted;
            let expected = if inside { crate::fuzz::packets(&bad) } else { 1 };
            assert_eq!(counted, expected, "bit {bit}: counted twice or not at all");
        }
    }
    w.link.loss = 0;
    serve(&mut w);
    // Requests of other types and numbers may have run on the old session; a new one is not
    // affected.
    if let Some((remote, _)) = w.ep(0).close(s) {
        w.ep(1).disconnected(remote, 0xe0, 7);
    }
    w.settle_until_idle_link();
    w.take_done(0);
    let s = w.connect(0, 1);
    run_calls(&mut w, s, 200..220);
}
