//! How small packets share frames: off, by copy, by reference (S3, S4, S6, S19), and how long frames
//! wait for more (S21).

use courser_buf::{Arena, ArenaConfig, Heap, TxBurst, TxFrame};
use courser_proto::{Config, Framing, Integrity, Packing};

use crate::faults::{quiet, some_link};
use crate::support::{Action, DPP, Link, MAX_FRAME, Node, Rng, World, config, pattern};

const US: u64 = 1_000;

/// Bytes of headers in a frame, and in a packet.
const FRAME: usize = MAX_FRAME - DPP - PACKET;
const PACKET: usize = courser_proto::wire::PACKET_HEADER;

fn gather() -> Config {
    Config { packing: Packing::Gather, gather_from: 64, slots: 32, ..config() }
}

/// The frames that a node sends now.
fn frames(w: &mut World, node: usize) -> Vec<TxFrame> {
    let mut out = TxBurst::new();
    let now_ns = w.now_ns;
    let ep = &mut w.nodes[node].ep;
    if ep.next_deadline() == Some(0) {
        ep.poll_transmit(|| now_ns, &mut out, |_, _| false);
        ep.check();
    }
    out.into()
}

fn bytes_of(frame: &TxFrame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.copy_to(&mut bytes);
    bytes
}

#[test]
fn the_same_traffic_has_the_same_results_with_every_packing() {
    for (seed, integrity) in (0..12).map(|seed| (seed, [Integrity::None, Integrity::Crc])) {
        let mut stories = Vec::new();
        for packing in Packing::ALL {
            let gather_from = Rng(seed).pick(&[1, 64, 300]);
            let cfg = Config { packing, gather_from, slots: 32, ..config() };
            let mut w = World::pair(cfg);
            w.integrity = integrity[seed as usize % 2];
            let s = w.connect(0, 1);
            w.nodes[1].handler = Box::new(|id, req| {
                assert_eq!(req, pattern(id.into(), req.len()));
                match id % 2 {
                    0 => Action::Reply(req.to_vec()),
                    _ => Action::ReplyMsg(req.to_vec()),
                }
            });
            let mut rng = Rng(seed + 100);
            let mut results = Vec::new();
            for round in 0..20_u16 {
                let count = rng.below(24) as u16;
                for id in 0..count {
                    let len =
                        rng.pick(&[0, 1, 63, 64, 65, 200, 300, 500, 700, 1_424, 1_500, 4_000]);
                    w.call(0, s, round * 100 + id, len);
                }
                let mut done = w.finish(0, count.into());
                done.sort_by_key(|d| d.id);
                for d in done {
                    let got = d.result.expect("a response");
                    assert_eq!(got, pattern(d.id, d.request.len()));
                    results.push((d.id, got.len()));
                }
            }
            let packets = w.nodes[0].ep.stats().tx_packets;
            let retransmitted = w.nodes[0].ep.stats().retransmitted;
            assert_eq!(retransmitted, 0, "seed {seed}, {packing}");
            quiet(&mut w, &[(0, s)]);
            stories.push((results, packets));
        }
        assert!(stories.iter().all(|s| s.0 == stories[0].0), "seed {seed}");
    }
}

#[test]
fn under_faults_every_call_is_answered_and_no_buffer_is_lost() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut one = || Config {
            packing: rng.pick(&Packing::ALL),
            gather_from: rng.pick(&[1, 64, 300]),
            gather_to: rng.pick(&[400, 2_048]),
            batch_budget_ns: rng.pick(&[0, 0, 5 * US, BUDGET]),
            slots: 8,
            ..config()
        };
        let mut w = World::new(&[one(), one()], seed);
        w.link = Link { flip: 0, ..some_link(&mut rng) };
        w.integrity = rng.pick(&[Integrity::None, Integrity::Crc]);
        let s = w.connect(0, 1);
        let mut ended = 0;
        for id in 0..150 {
            w.call(0, s, id, rng.below(900) as usize);
            for _ in 0..rng.below(8) {
                w.step();
            }
            ended += w.take_done(0).len();
        }
        w.link = Link { hold: w.link.hold, ..Link::perfect() };
        ended += w.finish(0, 150 - ended).len();
        assert_eq!(ended, 150);
        quiet(&mut w, &[(0, s)]);
    }
}

#[test]
fn gathered_packets_are_references_to_the_messages() {
    let mut w = World::pair(gather());
    let s = w.connect(0, 1);
    // One that is copied is among them, and the last begins a frame of its own.
    let sizes = [100, 200, 10, 300, 400, 500];
    for (id, len) in (0..).zip(sizes) {
        w.call(0, s, id, len);
    }
    let sent = frames(&mut w, 0);
    let pieces: Vec<_> = sent.iter().map(|f| f.segs().len()).collect();
    assert_eq!(pieces, [1 + 2 + 1 + 2, 1 + 1]);
    let given = w.nodes[0].given.clone();
    let data = |id: u64| given[&id].0 - PACKET;
    let at = |frame: usize, piece: usize| sent[frame].segs()[piece].as_ptr() as usize;
    assert_eq!([at(0, 1), at(0, 2), at(0, 4), at(0, 5)], [0, 1, 3, 4].map(data));
    assert_eq!(at(1, 1), data(5));
    let lens = [0, 1, 2, 3, 4].map(|i| PACKET + sizes[i]);
    assert_eq!(sent[0].len() as usize, FRAME + lens.iter().sum::<usize>());
    let stats = w.nodes[0].ep.stats();
    assert_eq!((stats.tx_packets, stats.tx_frames, stats.tx_copied), (6, 2, 0));
    for frame in &sent {
        w.deliver_only(0, 1, &bytes_of(frame));
    }
    drop(sent);
    assert!(w.finish(0, 6).iter().all(|d| d.result == Ok(pattern(d.id, d.request.len()))));
    // So are the responses.
    let server = w.nodes[1].ep.stats();
    assert_eq!((server.tx_packets, server.tx_frames), (6, 2));
}

#[test]
fn a_frame_has_no_more_pieces_than_the_transport_takes() {
    for (most, in_a_frame) in [(1, 18), (3, 18), (4, 2), (5, 3), (8, 6), (64, 18)] {
        let limits = ArenaConfig { data_per_packet: DPP, limit_bytes: 1 << 30, headroom: 0 };
        let arena = Arena::new(std::sync::Arc::new(Heap::default()), limits).expect("an arena");
        let framing = Framing { max_frame: MAX_FRAME, gather: most, tailroom: 0 };
        let mut w = World::pair(gather());
        w.nodes[0] = Node::with_framing(0, gather(), arena, framing);
        let s = w.connect(0, 1);
        (0..32).for_each(|id| _ = w.call(0, s, id, 64));
        let sent = frames(&mut w, 0);
        assert!(sent.iter().all(|f| f.segs().len() <= most.max(1)), "{most}");
        let packets = (MAX_FRAME - FRAME) / (PACKET + 64);
        let want = if most < 4 { packets } else { packets.min(in_a_frame) };
        assert_eq!((sent[0].len() as usize - FRAME) / (PACKET + 64), want, "{most} pieces");
        let gathered = most >= 4;
        assert_eq!(sent[0].segs().len() > 1, gathered, "{most}");
        sent.iter().for_each(|frame| w.deliver_only(0, 1, &bytes_of(frame)));
        drop(sent);
        assert!(w.finish(0, 32).iter().all(|d| d.result == Ok(pattern(d.id, 64))));
    }
}

#[test]
fn packets_above_the_upper_limit_of_gathering_leave_in_frames_of_their_own() {
    for (len, pieces) in [(300, vec![1 + 3]), (301, vec![1, 1, 1])] {
        let mut w = World::pair(Config { gather_to: 300, ..gather() });
        let s = w.connect(0, 1);
        (0..3).for_each(|id| _ = w.call(0, s, id, len));
        let sent = frames(&mut w, 0);
        assert_eq!(sent.iter().map(|f| f.segs().len()).collect::<Vec<_>>(), pieces, "{len} B");
    }
}

#[test]
fn a_batch_has_no_more_frames_than_its_limit() {
    // One packet in a frame, copied and not, and messages of three packets.
    for (packing, len, packets) in
        [(Packing::Off, 10, 1), (Packing::Copy, 800, 1), (Packing::Gather, 3 * DPP, 3)]
    {
        for tx_frames in [1, 2, 5] {
            let credits = 64;
            let mut w = World::pair(Config { tx_frames, packing, credits, slots: 32, ..config() });
            let s = w.connect(0, 1);
            (0..10).for_each(|id| _ = w.call(0, s, id, len));
            let mut batches = Vec::new();
            while batches.iter().sum::<usize>() < 10 * packets {
                let sent = frames(&mut w, 0);
                assert!(!sent.is_empty(), "{packing}: {batches:?}");
                batches.push(sent.len());
            }
            assert!(batches.iter().all(|&frames| frames <= tx_frames), "{packing}: {batches:?}");
            assert_eq!(batches[0], tx_frames, "{packing}");
        }
    }
}

#[test]
fn a_retransmission_is_copied_while_the_transport_holds_the_first_frame() {
    let mut w = World::pair(Config { slots: 4, ..gather() });
    let s = w.connect(0, 1);
    (0..4).for_each(|id| _ = w.call(0, s, id, 200));
    let held = frames(&mut w, 0); // lost, but the transport still reads it
    let before: Vec<_> = held.iter().map(bytes_of).collect();
    assert_eq!(held[0].segs().len(), 5);
    let retransmit = |w: &mut World| loop {
        let due_ns = w.nodes[0].ep.next_deadline().expect("a timeout");
        w.now_ns = w.now_ns.max(due_ns);
        let now_ns = w.now_ns;
        w.nodes[0].ep.on_deadline(now_ns);
        let again = frames(w, 0);
        if !again.is_empty() {
            return again;
        }
    };
    let again = retransmit(&mut w);
    assert!(w.nodes[0].ep.stats().retransmitted > 0);
    assert!(again.iter().all(|frame| frame.segs().len() == 1), "copied");
    assert!(w.nodes[0].ep.stats().tx_copied > 0);
    assert_eq!(held.iter().map(bytes_of).collect::<Vec<_>>(), before);
    // Released, they are gathered again.
    drop((held, again));
    let third = retransmit(&mut w);
    assert!(third.iter().all(|frame| frame.segs().len() > 1), "gathered");
    for frame in &third {
        w.deliver_only(0, 1, &bytes_of(frame));
    }
    drop(third);
    assert!(w.finish(0, 4).iter().all(|d| d.result == Ok(pattern(d.id, 200))));
}

#[test]
fn without_memory_for_frames_packets_wait() {
    let limits = ArenaConfig { data_per_packet: DPP, limit_bytes: 4 << 20, headroom: 0 };
    let arena = Arena::new(std::sync::Arc::new(Heap::default()), limits).expect("an arena");
    let mut w = World::pair(gather());
    w.nodes[0] = Node::with_arena(0, gather(), arena.clone());
    w.link.hold = true;
    let s = w.connect(0, 1);
    (0..100).for_each(|id| _ = w.call(0, s, id, 300));
    let taken: Vec<_> = std::iter::from_fn(|| arena.alloc(MAX_FRAME).ok()).collect();
    assert_eq!(w.finish(0, 100).len(), 100, "one frame at a time");
    drop((taken, arena));
    quiet(&mut w, &[(0, s)]);
}

// ---- the latency budget -------------------------------------------------------------------------

const BUDGET: u64 = 12 * US;

fn patient(packing: Packing) -> Config {
    Config { batch_budget_ns: BUDGET, packing, slots: 32, ..config() }
}

/// Times and lengths of the frames of node 0, from now on.
fn watch(w: &mut World, until_ns: u64) -> Vec<(u64, usize)> {
    let mut seen = Vec::new();
    loop {
        let sent = frames(w, 0);
        seen.extend(sent.iter().map(|frame| (w.now_ns, frame.len() as usize)));
        let Some(due_ns) = w.nodes[0].ep.next_deadline().filter(|due| *due <= until_ns) else {
            w.now_ns = until_ns;
            return seen;
        };
        w.now_ns = w.now_ns.max(due_ns);
        let now_ns = w.now_ns;
        w.nodes[0].ep.on_deadline(now_ns);
    }
}

#[test]
fn a_packet_waits_for_others_until_the_budget_is_used() {
    for packing in [Packing::Copy, Packing::Gather] {
        let mut w = World::pair(patient(packing));
        let s = w.connect(0, 1);
        let begin_ns = w.now_ns;
        w.call(0, s, 0, 100);
        assert_eq!(watch(&mut w, begin_ns + BUDGET / 2), []);
        assert_eq!(w.nodes[0].ep.next_deadline(), Some(begin_ns + BUDGET));
        w.call(0, s, 1, 100);
        let sent = watch(&mut w, begin_ns + 2 * BUDGET);
        let both = FRAME + 2 * (PACKET + 100);
        assert_eq!(sent, [(begin_ns + BUDGET, both)], "{packing}: with the second packet");
    }
}

#[test]
fn a_full_frame_leaves_at_once() {
    for packing in [Packing::Copy, Packing::Gather] {
        let mut w = World::pair(patient(packing));
        let s = w.connect(0, 1);
        let begin_ns = w.now_ns;
        let (packet, in_a_frame) = (PACKET + 100, (MAX_FRAME - FRAME) / (PACKET + 100));
        (0..in_a_frame as u16 + 3).for_each(|id| _ = w.call(0, s, id, 100));
        let sent = watch(&mut w, begin_ns + 2 * BUDGET);
        let whole = (begin_ns, FRAME + in_a_frame * packet);
        assert_eq!(sent, [whole, (begin_ns + BUDGET, FRAME + 3 * packet)], "{packing}");
    }
}

#[test]
fn without_a_budget_or_without_packing_nothing_waits() {
    let off = patient(Packing::Off);
    for cfg in [config(), gather(), off] {
        let mut w = World::pair(cfg);
        let s = w.connect(0, 1);
        let begin_ns = w.now_ns;
        (0..3).for_each(|id| _ = w.call(0, s, id, 100));
        let sent = watch(&mut w, begin_ns + 2 * BUDGET);
        assert!(!sent.is_empty() && sent.iter().all(|(at_ns, _)| *at_ns == begin_ns), "{sent:?}");
    }
}

#[test]
fn a_full_batch_leaves_at_once() {
    // As many packets as a batch has, and as many peers as it has frames.
    let few_items = Config { tx_items: 3, ..patient(Packing::Copy) };
    let few_frames = Config { tx_frames: 2, ..patient(Packing::Copy) };
    for (cfg, peers, calls) in [(few_items, 1, 3), (few_frames, 3, 1)] {
        let configs = vec![cfg; 1 + peers];
        let mut w = World::new(&configs, 1);
        let sessions: Vec<_> = (1..=peers).map(|peer| w.connect(0, peer)).collect();
        let begin_ns = w.now_ns;
        for (peer, s) in (0..).zip(sessions) {
            (0..calls).for_each(|id| _ = w.call(0, s, peer * 10 + id, 100));
        }
        let sent = watch(&mut w, begin_ns + BUDGET / 2);
        assert!(!sent.is_empty() && sent.iter().all(|(at_ns, _)| *at_ns == begin_ns), "{sent:?}");
    }
}

#[test]
fn each_destination_waits_for_itself() {
    let mut w = World::new(&[(); 4].map(|()| patient(Packing::Gather)), 1);
    let sessions: Vec<_> = (1..4).map(|peer| w.connect(0, peer)).collect();
    let begin_ns = w.now_ns;
    for (at, s) in (0..).zip(&sessions) {
        w.now_ns = begin_ns + u64::from(at) * 3 * US;
        w.nodes[0].ep.advance(w.now_ns);
        w.call(0, *s, at, 100 + usize::from(at));
        assert_eq!(frames(&mut w, 0).len(), 0);
    }
    let frame = |at: usize| FRAME + PACKET + 100 + at;
    let at_ns = |at: u64| begin_ns + at * 3 * US + BUDGET;
    let sent = watch(&mut w, begin_ns + 3 * BUDGET);
    assert_eq!(sent, [(at_ns(0), frame(0)), (at_ns(1), frame(1)), (at_ns(2), frame(2))]);
}

#[test]
fn a_removed_peer_takes_its_waiting_frame_along() {
    for packing in [Packing::Copy, Packing::Gather] {
        let mut w = World::pair(patient(packing));
        let s = w.connect(0, 1);
        (0..4).for_each(|id| _ = w.call(0, s, id, 200));
        assert_eq!(frames(&mut w, 0).len(), 0);
        w.ep(0).peer_lost(7, &mut Vec::new());
        w.nodes[0].collect(); // checks that the buffers are not referenced
        assert_eq!(w.take_done(0).iter().filter(|done| done.result.is_err()).count(), 4);
        let until_ns = w.now_ns + 2 * BUDGET;
        assert_eq!(watch(&mut w, until_ns), []);
        w.ep(0).check();
    }
}

#[test]
fn an_answered_call_does_not_wait_for_a_frame_that_waits() {
    let mut w = World::pair(patient(Packing::Gather));
    let s = w.connect(0, 1);
    w.call(0, s, 0, 200);
    assert_eq!(frames(&mut w, 0).len(), 0);
    w.now_ns += BUDGET;
    let now_ns = w.now_ns;
    w.nodes[0].ep.on_deadline(now_ns);
    let first = frames(&mut w, 0);
    assert_eq!(first.len(), 1);
    let request = bytes_of(&first[0]);
    drop(first);
    // The timeout: a copy of the packet waits for others, as a reference.
    while !w.nodes[0].ep.wants_transmit() {
        w.now_ns = w.now_ns.max(w.nodes[0].ep.next_deadline().expect("a timeout"));
        let now_ns = w.now_ns;
        w.nodes[0].ep.on_deadline(now_ns);
    }
    assert_eq!(frames(&mut w, 0).len(), 0, "it waits");
    assert_eq!(w.nodes[0].ep.stats().retransmitted, 1);
    // The answer comes before it leaves.
    w.deliver_only(0, 1, &request);
    let now_ns = w.now_ns + BUDGET;
    w.nodes[1].ep.on_deadline(now_ns);
    let answer = w.nodes[1].transmit(now_ns, false, false);
    let answer = if answer.is_empty() {
        w.nodes[1].ep.on_deadline(now_ns + BUDGET);
        w.nodes[1].transmit(now_ns + BUDGET, false, false)
    } else {
        answer
    };
    w.deliver_only(1, 0, &answer[0].1);
    w.nodes[0].collect();
    let done = w.take_done(0);
    assert!(matches!(&done[..], [done] if done.result == Ok(pattern(0, 200))));
    // The packet leaves as it was.
    w.now_ns += 2 * BUDGET;
    let now_ns = w.now_ns;
    w.nodes[0].ep.on_deadline(now_ns);
    let sent = frames(&mut w, 0);
    assert_eq!(sent.iter().map(|f| f.segs().len()).collect::<Vec<_>>(), [1]);
    assert_eq!(bytes_of(&sent[0])[FRAME..], request[FRAME..]);
}
