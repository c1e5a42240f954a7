//! Arbitrary bytes into a live pair of endpoints: no panic, each frame and each packet in exactly
//! one counter, and calls still work. `COURSER_FUZZ_FRAMES` sets the number of frames.

use courser_buf::{Ecn, MsgBuf, RxFrame};
use courser_proto::wire::{FRAME_HEADER, FrameHeader, parse_packet};
use courser_proto::{
    Body, CallError, CallOptions, Config, Driver, Endpoint, Recovery, RequestId, SessionId,
};

use crate::support::{Action, DPP, Rng, World, addr, config, pattern};

pub fn frames(default: u64) -> u64 {
    let set = std::env::var("COURSER_FUZZ_FRAMES").ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Number of packets in a frame, including a malformed one.
pub fn packets(bytes: &[u8]) -> u64 {
    let Ok((h, mut rest)) = FrameHeader::parse(bytes) else { return 0 };
    let mut n = 0;
    loop {
        match parse_packet(rest, h.data_per_packet) {
            Ok(Some((_, r))) => (n, rest) = (n + 1, r),
            Ok(None) => return n,
            Err(_) => return n + 1,
        }
    }
}

/// The application.
pub struct Echo<'a>(pub &'a mut Endpoint<u64>, pub u64);

impl Driver<u64> for Echo<'_> {
    fn endpoint(&mut self) -> &mut Endpoint<u64> {
        self.0
    }

    fn now_ns(&mut self) -> u64 {
        self.1
    }

    fn on_request(&mut self, id: RequestId, _: u16, body: Body<'_>, _: u64) {
        // A forged size can exceed the limit of responses; that is an error, not a panic.
        let n = body.len().min(4 * DPP);
        let _ = self.0.reply_bytes(id, &body[..n]);
    }

    fn on_completion(&mut self, _: u64, _: SessionId, _: MsgBuf, _: Result<Body<'_>, CallError>) {}
}

/// Delivers the frame to a node and handles its events like an application.
fn feed(w: &mut World, to: usize, bytes: &[u8], now_ns: u64) {
    let mut app = Echo(&mut w.nodes[to].ep, now_ns);
    let before = app.0.stats().clone();
    let rx = RxFrame::new(addr(1 - to), bytes, Ecn::NotEct);
    Endpoint::receive(&mut app, &rx);
    let ep = app.0;
    let accepted = ep.stats().rx_frames_accepted > before.rx_frames_accepted;
    let expected = if accepted { packets(bytes) } else { 1 };
    let after = ep.stats();
    let counted = after.rx_packets - before.rx_packets + after.drops_total() - before.drops_total();
    assert_eq!(counted, expected, "a packet was counted twice or not at all");
    assert_eq!(after.rx_frames, before.rx_frames + 1);
}

/// Discards the frames that a node sends.
fn drain(w: &mut World, node: usize, now_ns: u64) {
    w.nodes[node].ep.on_deadline(now_ns);
    for _ in 0..1_000 {
        if w.nodes[node].transmit(now_ns, false, false).is_empty() {
            break;
        }
    }
    while w.ep(node).poll_completion().is_some() {}
    w.ep(node).check();
}

pub fn calls_work(w: &mut World, s: SessionId) {
    for id in 30_000..30_010 {
        w.call(0, s, id, 3 * DPP);
    }
    let under_way = w.nodes[0].given.len();
    for d in w.finish(0, under_way).iter().filter(|d| d.id >= 30_000) {
        assert!(d.result == Ok(pattern(d.id, 3 * DPP)));
    }
}

#[test]
fn random_bytes() {
    let mut w = World::pair(config());
    let (s, mut f) = w.connect_forge(0, 1);
    w.call(0, s, 1, 10 * DPP); // a call in flight
    let mut rng = Rng(11);
    for n in 0..frames(200_000) {
        let to = (n & 1) as usize;
        let len = rng.below(120) as usize;
        let mut bytes = pattern(rng.next(), len);
        // Half of them pass ingress validation, with arbitrary packets.
        if rng.below(2) == 0
            && let Some((start, packets)) = bytes.split_first_chunk_mut::<FRAME_HEADER>()
        {
            f.header(to).write(start);
            for b in packets.iter_mut().step_by(16) {
                *b &= 0x17; // mostly defined kinds and flags
            }
        }
        feed(&mut w, to, &bytes, 2_000);
    }
    calls_work(&mut w, s);
}

/// Frames of real traffic: both directions, all kinds, short and long messages.
fn corpus(recovery: Recovery) -> (World, Vec<(usize, Vec<u8>)>) {
    let mut w = World::pair(Config { recovery, ..config() });
    let s = w.connect(0, 1);
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let copy = seen.clone();
    w.link.late_ns = 6_000;
    (w.link.loss, w.link.reorder) = match recovery {
        Recovery::GoBackZero => (2_000, 5_000), // no request with more of it completes
        _ => (50_000, 200_000),
    };
    w.nodes[1].handler = Box::new(|id, _| match id % 3 {
        0 => Action::Reply(vec![1; 10]),
        1 => Action::Reply(vec![2; if id % 2 == 0 { 4 } else { 90 } * DPP]),
        _ => Action::Defer(300_000, vec![]),
    });
    w.filter = Some(Box::new(move |from, bytes| {
        copy.borrow_mut().push((1 - from, bytes.to_vec()));
        true
    }));
    for id in 0..100 {
        let len = match id % 6 {
            0 | 2 | 4 => 20,
            3 => 80 * DPP,
            _ => 3 * DPP,
        };
        match id % 5 {
            0 => {
                let call = w.call(0, s, id, len);
                w.step();
                w.ep(0).cancel(call);
            }
            1 => {
                w.call_within(0, s, id, len, 200_000);
            }
            _ => {
                w.call(0, s, id, len);
            }
        }
    }
    let ended = w.nodes[0].done.len();
    w.finish(0, 100.max(ended));
    w.settle();
    w.filter = None;
    w.link.loss = 0;
    let frames = seen.take();
    assert!(frames.len() > 100);
    let cancels = w.ep(1).stats().rx_kinds[5];
    assert!(cancels > 0, "{cancels} cancellations are in the corpus");
    (w, frames)
}

fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..=rng.below(3) {
        // Mostly in headers.
        let span = if rng.below(3) == 0 { bytes.len() } else { bytes.len().min(40) };
        let at = rng.below(span as u64) as usize;
        match rng.below(5) {
            0 => bytes[at] = rng.next() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes[at] = bytes[at].wrapping_add(8),
            3 => bytes.truncate(at.max(1)),
            _ => bytes.extend_from_within(at..bytes.len().min(at + 200)),
        }
    }
}

#[test]
fn mutated_frames_with_go_back_n() {
    mutated_frames(Recovery::GoBackN);
}

#[test]
fn mutated_frames_with_go_back_n_on_nacks() {
    mutated_frames(Recovery::GoBackNNack);
}

#[test]
fn mutated_frames_with_go_back_0() {
    mutated_frames(Recovery::GoBackZero);
}

#[test]
fn mutated_frames_with_melo() {
    mutated_frames(Recovery::Melo);
}

#[test]
fn mutated_frames_with_selective_recovery() {
    mutated_frames(Recovery::Selective);
}

fn mutated_frames(recovery: Recovery) {
    let (mut w, corpus) = corpus(recovery);
    let old = w.sessions[0].1;
    let mut rng = Rng(12);
    let mut now_ns = w.now_ns;
    let mut bytes = Vec::new();
    for n in 0..frames(100_000) {
        let (to, frame) = &corpus[rng.below(corpus.len() as u64) as usize];
        bytes.clone_from(frame);
        mutate(&mut bytes, &mut rng);
        feed(&mut w, *to, &bytes, now_ns);
        if n % 64 == 0 {
            // A call is always in flight, and time advances.
            now_ns += rng.below(200_000);
            let packets = [2, 40, 90][rng.below(3) as usize];
            let mut req = w.ep(0).alloc(packets * DPP).expect("memory");
            req.fill(1);
            let options = CallOptions::new().with_deadline_ns(now_ns + rng.below(300_000));
            if let Ok(call) = w.ep(0).call_with(old, 1, req, n, options)
                && rng.below(4) == 0
            {
                drain(&mut w, 0, now_ns);
                w.ep(0).cancel(call);
            }
            drain(&mut w, 0, now_ns);
            drain(&mut w, 1, now_ns);
        }
    }
    // Forged frames with the right cookie may ruin the session that they name, but no other.
    w.now_ns = now_ns;
    drain(&mut w, 0, now_ns);
    drain(&mut w, 1, now_ns);
    if let Some((remote, _)) = w.ep(0).close(old) {
        w.ep(1).disconnected(remote, 0xe0, 7);
    }
    while w.ep(0).poll_completion().is_some() {}
    let used = w.nodes[1].arena.stats().in_use_bytes;
    assert!(used < 16 << 20, "what garbage can make a server keep is bounded: {used}");
    w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
    let s = w.connect(0, 1);
    calls_work(&mut w, s);
}
