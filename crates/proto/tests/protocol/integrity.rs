//! Frames that are changed on the way ([`Integrity::Crc`]).

use std::cell::RefCell;
use std::rc::Rc;

use courser_buf::{Ecn, RxFrame};
use courser_proto::wire::FRAME_HEADER;
use courser_proto::{
    Config, ConnectError, ConnectOver, Endpoint, Integrity, Recovery, RxDrop, SessionState,
};

use crate::fuzz::{Echo, calls_work, frames};
use crate::support::{DPP, Link, Rng, World, addr, config, flip_bits, pattern};

fn protected(config: Config) -> World {
    let mut w = World::pair(config);
    w.integrity = Integrity::Crc;
    w
}

/// Sizes of one packet, copied and gathered, and of several.
const SIZES: [usize; 7] = [0, 1, 32, 600, DPP, DPP + 1, 20 * DPP + 77];

#[test]
fn frames_with_flipped_bits_change_nothing_and_are_counted() {
    for recovery in [Recovery::GoBackN, Recovery::Melo, Recovery::Selective] {
        let mut w = protected(Config { recovery, ..config() });
        w.link = Link { flip: 50_000, ..Link::perfect() };
        let s = w.connect(0, 1);
        for id in 0..700_u16 {
            let size = SIZES[usize::from(id) % SIZES.len()];
            w.call(0, s, id, size);
            assert!(
                w.finish(0, 1)[0].result == Ok(pattern(id.into(), size)),
                "{id} of {size} bytes"
            );
            assert_eq!(w.nodes[1].executed[&id], 1);
        }
        for node in [0, 1] {
            let stats = w.ep(node).stats().clone();
            assert!(stats.dropped(RxDrop::Checksum) > 10, "{recovery}: {stats:?}");
        }
        assert_eq!(w.ep(0).session_stats(s).map(|s| s.integrity), Some(Integrity::Crc));
        assert_eq!(w.ep(0).session_state(s), SessionState::Connected);
    }
}

/// Frames of both directions, as sent.
fn corpus() -> (World, courser_proto::SessionId, Vec<(usize, Vec<u8>)>) {
    let mut w = protected(config());
    let s = w.connect(0, 1);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let copy = seen.clone();
    w.filter = Some(Box::new(move |from, bytes| {
        copy.borrow_mut().push((1 - from, bytes.to_vec()));
        true
    }));
    for (id, size) in (0..).zip(SIZES) {
        w.call(0, s, id, size);
        w.finish(0, 1);
    }
    w.filter = None;
    let frames = seen.take();
    (w, s, frames)
}

/// `COURSER_FUZZ_FRAMES` sets the number of frames.
#[test]
fn no_frame_with_up_to_three_flipped_bits_is_accepted() {
    let (mut w, s, corpus) = corpus();
    assert!(corpus.len() > 40 && corpus.iter().any(|f| f.1.len() == DPP + FRAME_HEADER + 16));
    let mut rng = Rng(5);
    let accepted = [0, 1].map(|node| w.ep(node).stats().rx_frames_accepted);
    let mut bytes = Vec::new();
    for _ in 0..frames(200_000) {
        let (to, frame) = &corpus[rng.below(corpus.len() as u64) as usize];
        let to = *to;
        bytes.clone_from(frame);
        flip_bits(&mut bytes, &mut rng);
        let rx = RxFrame::new(addr(1 - to), &bytes, Ecn::NotEct);
        Endpoint::receive(&mut Echo(&mut w.nodes[to].ep, 2_000), &rx);
    }
    assert_eq!(accepted, [0, 1].map(|node| w.ep(node).stats().rx_frames_accepted));
    calls_work(&mut w, s);
}

/// A receiver that compares the first word of frames with what it expects has nothing to compare it with
/// when frames are protected, or before a session is connected.
#[test]
fn no_frame_whose_first_word_was_erased_is_accepted() {
    let (mut w, s, corpus) = corpus();
    let accepted = [0, 1].map(|node| w.ep(node).stats().rx_frames_accepted);
    for (to, frame) in &corpus {
        for flags in 0..=3 {
            let mut bytes = frame.clone();
            bytes[..8].copy_from_slice(&[0, flags, 0, 0, 0, 0, 0, 0]);
            let rx = RxFrame::new(addr(1 - to), &bytes, Ecn::NotEct);
            Endpoint::receive(&mut Echo(&mut w.nodes[*to].ep, 2_000), &rx);
        }
    }
    assert_eq!(accepted, [0, 1].map(|node| w.ep(node).stats().rx_frames_accepted));
    calls_work(&mut w, s);
}

/// The frames are those that a receiver without the agreement would drop by their cookies.
#[test]
fn frames_are_as_long_as_without_protection() {
    let lengths = |integrity| {
        let mut w = World::pair(config());
        w.integrity = integrity;
        let s = w.connect(0, 1);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let copy = seen.clone();
        w.filter = Some(Box::new(move |_, bytes| {
            copy.borrow_mut().push(bytes.len());
            true
        }));
        w.call(0, s, 1, 5 * DPP);
        w.finish(0, 1);
        seen.take()
    };
    assert_eq!(lengths(Integrity::None), lengths(Integrity::Crc));
}

#[test]
fn the_stronger_choice_of_both_sides_holds() {
    use Integrity::{Crc, None};
    for (client, server, agreed) in
        [(None, None, None), (Crc, None, Crc), (None, Crc, Crc), (Crc, Crc, Crc)]
    {
        let mut w = World::pair(config());
        w.integrity = server;
        let over = ConnectOver { control: 7, integrity: client, same_host: false };
        let mut d = w.dial(0, 5);
        w.ep(0).connect_over(d.session, &mut d.request, over);
        let a = w.accept(1, 0, &d.request).unwrap();
        assert_eq!(a.schemes.integrity, agreed);
        // A server that agrees to less than was asked for is refused.
        if agreed == Crc && client == Crc {
            let mut weaker = a.clone();
            weaker.schemes.integrity = None;
            let mut other = World::pair(config());
            let mut d = other.dial(0, 5);
            other.ep(0).connect_over(d.session, &mut d.request, over);
            let refused = other.ep(0).established(&weaker, addr(1), courser_buf::PathId(1));
            assert_eq!(refused, Err(ConnectError::BadAnswer));
        }
        let established = w.ep(0).established(&a, addr(1), courser_buf::PathId(1));
        assert!(established.is_ok());
        w.sessions.push((0, d.session));
        w.call(0, d.session, 1, 3 * DPP);
        assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(1, 3 * DPP)));
    }
}
