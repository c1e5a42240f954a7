//! Peers behind a translation of addresses (NAT).

use courser_buf::{Addr, Ecn, RxFrame};
use courser_proto::wire::Packet;
use courser_proto::{Challenge, RxDrop, SessionId, StrayFrame};

use crate::support::forge::frame;
use crate::support::{Forge, World, addr, config};

const CONTROL: u64 = 7;

fn behind(node: usize) -> Addr {
    Addr { port: 40_000, ..addr(node) }
}

/// A request of one packet to the server, which has not been sent.
fn request(f: &mut Forge, req_num: u32) -> Vec<u8> {
    let session = f.accept.session.number;
    let (req_type, msg_size, index, remaining_us) = (1, 4, 0, None);
    let data = &[0; 4][..];
    let packet = Packet::Request {
        session,
        req_num,
        req_type,
        msg_size,
        index,
        remaining_us,
        one_way: false,
        data,
    };
    frame(&f.header(1), &[packet])
}

fn receive(w: &mut World, bytes: &[u8], src: Addr) -> bool {
    let now_ns = w.now_ns;
    w.nodes[1].accepts(&RxFrame::new(src, bytes, Ecn::Ect0), now_ns)
}

/// Takes the frames of other sources as an event loop does; returns whether one was accepted.
fn follow(w: &mut World) -> Vec<(Addr, bool)> {
    let now_ns = w.now_ns;
    let mut out = Vec::new();
    while let Some(stray) = w.ep(1).poll_stray() {
        let StrayFrame { src, moves, .. } = stray;
        if moves {
            assert!(stray.path.is_some(), "the path of a client follows it");
            w.ep(1).moved(&stray);
        }
        out.push((src, w.nodes[1].accepts(&stray.frame(), now_ns)));
    }
    out
}

fn challenge(w: &mut World) -> Option<Challenge> {
    w.ep(1).wants_challenges().then(|| w.ep(1).poll_challenge(|| u64::MAX)).flatten()
}

fn world() -> (World, SessionId, Forge) {
    let mut w = World::pair(config());
    let (s, f) = w.connect_forge(0, 1);
    (w, s, f)
}

/// The address of a peer as its server has it.
fn address(w: &mut World) -> Option<Addr> {
    let id = w.ep(1).sessions_from(0).next()?;
    w.ep(1).session_stats(id)?.peer
}

#[test]
fn a_peer_has_the_source_of_its_first_frame() {
    let (mut w, _, mut f) = world();
    let bytes = request(&mut f, 0);
    assert!(!receive(&mut w, &bytes, behind(0)), "kept until the end of the burst");
    assert!(w.ep(1).has_session_news());
    assert_eq!(follow(&mut w), [(behind(0), true)]);
    assert_eq!(address(&mut w), Some(behind(0)));
    assert_eq!(w.ep(1).stats().moves, 1);
    // The stated address is another one now.
    let bytes = request(&mut f, 1);
    assert!(!receive(&mut w, &bytes, addr(0)));
    assert_eq!(follow(&mut w), []);
    assert_eq!(w.ep(1).stats().dropped(RxDrop::WrongSource), 1);
}

#[test]
fn a_later_change_is_followed_after_a_proof_only() {
    let (mut w, _, mut f) = world();
    let bytes = request(&mut f, 0);
    assert!(receive(&mut w, &bytes, addr(0)));
    let bytes = request(&mut f, 1);
    for _ in 0..10 {
        assert!(!receive(&mut w, &bytes, behind(0)));
        assert_eq!(follow(&mut w), []);
    }
    let asked = challenge(&mut w).expect("a challenge");
    assert_eq!((asked.control, asked.peer), (CONTROL, f.accept.client_peer));
    assert_eq!(asked.endpoint_id, w.ep(0).id());
    assert_eq!(challenge(&mut w), None, "one challenge, whatever arrives");
    // A token that was guessed moves nothing, and no frame without one does.
    let wrong = frame(&f.header(1), &[Packet::Proof { token: asked.token ^ 1 }]);
    assert!(!receive(&mut w, &wrong, behind(0)));
    assert_eq!((follow(&mut w), address(&mut w)), (vec![], Some(addr(0))));
    let right = frame(&f.header(1), &[Packet::Proof { token: asked.token }]);
    assert!(!receive(&mut w, &right, behind(0)));
    assert_eq!(follow(&mut w), [(behind(0), true)]);
    assert!(receive(&mut w, &bytes, behind(0)));
    // The token has served.
    assert!(!receive(&mut w, &right, addr(0)));
    assert_eq!((follow(&mut w), address(&mut w)), (vec![], Some(behind(0))));
}

#[test]
fn challenges_are_repeated_with_one_token_while_it_is_valid() {
    let (mut w, _, mut f) = world();
    let first = request(&mut f, 0);
    assert!(receive(&mut w, &first, addr(0)));
    let bytes = request(&mut f, 1);
    let (mut challenges, mut random) = (Vec::new(), 100);
    for _ in 0..80 {
        w.now_ns += 50_000_000;
        receive(&mut w, &bytes, behind(0));
        random += 1;
        challenges.extend(w.ep(1).poll_challenge(|| random).map(|c| c.token));
    }
    assert_eq!(challenges.len(), 80);
    challenges.dedup();
    assert_eq!(challenges.len(), 2, "a token is valid for 3 s: {challenges:?}");
}

#[test]
fn a_client_answers_the_challenges_of_its_server_only() {
    let (mut w, s, f) = world();
    w.call(0, s, 1, 100);
    w.finish(0, 1);
    let (peer, server, token) = (f.accept.client_peer, w.ep(1).id(), 5);
    let sent = |w: &mut World| w.ep(0).stats().tx_kinds[10];
    for (peer, id, control, token) in [
        (peer + 1, server, CONTROL, token),
        (peer, server ^ 1, CONTROL, token),
        (peer, server, CONTROL + 1, token),
        (peer, server, CONTROL, u64::MAX),
    ] {
        w.ep(0).on_challenge(peer, id, control, token);
        w.settle();
        assert_eq!(sent(&mut w), 0);
    }
    w.ep(0).on_challenge(peer, server, CONTROL, token);
    w.ep(0).on_challenge(peer, server, CONTROL, token + 1);
    w.settle();
    assert_eq!(sent(&mut w), 1, "the newest one, once");
    assert_eq!(w.ep(1).stats().rx_kinds[10], 1);
}

#[test]
fn kept_frames_are_bounded_and_the_first_source_is_the_one() {
    let (mut w, _, mut f) = world();
    for n in 0..200 {
        let bytes = request(&mut f, n % 8);
        receive(&mut w, &bytes, Addr { port: 30_000 + n, ..addr(0) });
    }
    let followed = follow(&mut w);
    assert_eq!(followed.len(), 128);
    assert!(followed[0].1 && followed[1..].iter().all(|(_, accepted)| !accepted), "{followed:?}");
    assert_eq!(w.ep(1).stats().dropped(RxDrop::WrongSource), 199);
    assert!(challenge(&mut w).is_some());
    assert_eq!(w.ep(1).stats().moves, 1);
}

/// The reason for the proof: a forger with a seen cookie cannot move a session.
#[test]
fn a_hundred_thousand_frames_of_a_forger_with_the_cookie_move_nothing() {
    let (mut w, s, mut f) = world();
    w.call(0, s, 1, 100);
    w.finish(0, 1);
    let mut challenges = 0;
    for n in 0..100_000_u32 {
        w.now_ns += 1_000;
        let token = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 4;
        let bytes = frame(&f.header(1), &[Packet::Proof { token }]);
        receive(&mut w, &bytes, Addr { port: 20_000 + n % 40_000, ..addr(0) });
        assert_eq!(follow(&mut w), []);
        challenges += usize::from(challenge(&mut w).is_some());
    }
    assert_eq!(challenges, 2, "in 100 ms");
    assert_eq!(address(&mut w), Some(addr(0)));
    w.call(0, s, 2, 100);
    w.finish(0, 1);
}

/// Otherwise a client could have a server send to any host, and be taken for one by `Authorize`.
#[test]
fn a_client_keeps_the_host_of_its_control_connection() {
    let (mut w, _, mut f) = world();
    let elsewhere = Addr { host: addr(0).host + 1, ..behind(0) };
    let bytes = request(&mut f, 0);
    assert!(!receive(&mut w, &bytes, elsewhere));
    assert_eq!((follow(&mut w), challenge(&mut w)), (vec![], None));
    assert!(receive(&mut w, &bytes, addr(0)));
    let next = request(&mut f, 1);
    receive(&mut w, &next, behind(0));
    let token = challenge(&mut w).expect("a challenge").token;
    let proof = frame(&f.header(1), &[Packet::Proof { token }]);
    assert!(!receive(&mut w, &proof, elsewhere));
    assert_eq!((follow(&mut w), address(&mut w)), (vec![], Some(addr(0))));
}

/// A token travels in the clear.
#[test]
fn a_proof_that_is_sent_again_from_elsewhere_moves_nothing() {
    let (mut w, _, mut f) = world();
    let other = Addr { port: 50_000, ..addr(0) };
    let bytes = request(&mut f, 0);
    assert!(receive(&mut w, &bytes, addr(0)));
    // A forger has caused the challenge; the peer is where it was.
    let next = request(&mut f, 1);
    receive(&mut w, &next, other);
    let token = challenge(&mut w).expect("a challenge").token;
    let proof = frame(&f.header(1), &[Packet::Proof { token }]);
    assert!(receive(&mut w, &proof, addr(0)));
    assert!(!receive(&mut w, &proof, other));
    assert_eq!((follow(&mut w), address(&mut w)), (vec![], Some(addr(0))));
    // Both arrive in one burst.
    w.now_ns += 100_000_000;
    receive(&mut w, &next, behind(0));
    let token = challenge(&mut w).expect("another challenge").token;
    let proof = frame(&f.header(1), &[Packet::Proof { token }]);
    receive(&mut w, &proof, behind(0));
    receive(&mut w, &proof, other);
    assert_eq!(follow(&mut w), [(behind(0), true), (other, false)]);
}

#[test]
fn a_proof_behind_other_packets_counts() {
    let (mut w, _, mut f) = world();
    let bytes = request(&mut f, 0);
    assert!(receive(&mut w, &bytes, addr(0)));
    let next = request(&mut f, 1);
    receive(&mut w, &next, behind(0));
    let token = challenge(&mut w).expect("a challenge").token;
    let proof = frame(&f.header(1), &[Packet::Gap, Packet::Proof { token }]);
    receive(&mut w, &proof, behind(0));
    assert_eq!(follow(&mut w), [(behind(0), true)]);
}

#[test]
fn frames_that_are_kept_end_with_their_peer() {
    let (mut w, s, mut f) = world();
    let bytes = request(&mut f, 0);
    receive(&mut w, &bytes, behind(0));
    let session = w.ep(0).close(s).expect("connected").0;
    let client = w.ep(0).id();
    assert!(w.ep(1).disconnected(session, client, CONTROL).is_some());
    let (_, again) = w.connect_forge(0, 1);
    assert_eq!(again.accept.peer, f.accept.peer, "the number is used again");
    assert_eq!((follow(&mut w), address(&mut w)), (vec![], Some(addr(0))));
}

#[test]
fn a_peer_that_has_moved_is_found_by_its_stated_address() {
    let (mut w, _, mut f) = world();
    let bytes = request(&mut f, 0);
    receive(&mut w, &bytes, behind(0));
    follow(&mut w);
    let (_, again) = w.connect_forge(0, 1);
    assert_eq!(again.accept.peer, f.accept.peer, "one peer for both sessions");
    w.ep(1).check();
}
