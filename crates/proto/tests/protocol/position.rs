//! Each packet kind as past, in order, and future: the right counter, and nothing else changes.
//! Eight slots, so request numbers of slot 0 are 0, 8, 16, ...

use courser_proto::wire::Packet;
use courser_proto::{Grant, RxDrop, SessionId};

use crate::support::forge::Forge;
use crate::support::{Action, DPP, World, config, expect_drop};

const SIZE: u32 = 3 * DPP as u32;

fn world() -> (World, SessionId, Forge) {
    let mut w = World::pair(config());
    let (s, f) = w.connect_forge(0, 1);
    (w, s, f)
}

/// A world whose server never answers.
fn mute() -> (World, SessionId, Forge) {
    let (mut w, s, f) = world();
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    (w, s, f)
}

fn part(n: usize) -> Vec<u8> {
    vec![n as u8; DPP]
}

#[test]
fn requests_at_the_server() {
    let (mut w, _, f) = mute();
    w.link.loss = 1_000_000; // the packets of the server are lost
    expect_drop(&mut w, 1, &f.request(8, 4, 0, b"abcd"), RxDrop::Future);
    expect_drop(&mut w, 1, &f.request(0, SIZE, 1, &part(1)), RxDrop::OutOfOrder);
    w.inject(0, 1, &f.request(0, SIZE, 0, &part(0)));
    expect_drop(&mut w, 1, &f.request(0, SIZE, 2, &part(2)), RxDrop::OutOfOrder);
    let again = expect_drop(&mut w, 1, &f.request(0, SIZE, 0, &part(0)), RxDrop::Duplicate);
    assert_eq!(again, ["1: CR 0+1"]);
    expect_drop(&mut w, 1, &f.request(0, SIZE + 1, 1, &part(1)), RxDrop::Inconsistent);
    w.inject(0, 1, &f.request(0, SIZE, 1, &part(1)));
    w.inject(0, 1, &f.request(0, SIZE, 2, &part(2)));
    assert_eq!(w.nodes[1].executed[&5], 1);
    // Executing: the last packet requests the state, an earlier one only credits.
    let last = expect_drop(&mut w, 1, &f.request(0, SIZE, 2, &part(2)), RxDrop::Duplicate);
    assert_eq!(last, ["1: CR 0+2!"]);
    let first = expect_drop(&mut w, 1, &f.request(0, SIZE, 0, &part(0)), RxDrop::Duplicate);
    assert_eq!(first, ["1: CR 0+2"]);
    // The client cannot have continued, since it has no answer.
    expect_drop(&mut w, 1, &f.request(8, 4, 0, b"abcd"), RxDrop::Future);
    let id = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(id, b"done").unwrap();
    w.pump();
    let resent = expect_drop(&mut w, 1, &f.request(0, SIZE, 2, &part(2)), RxDrop::Duplicate);
    assert_eq!(resent, ["1: RESP 0#0/4"]);
    w.inject(0, 1, &f.request(8, 4, 0, b"abcd"));
    assert_eq!(w.nodes[1].executed[&5], 2);
    expect_drop(&mut w, 1, &f.request(0, 4, 0, b"abcd"), RxDrop::Stale);
}

#[test]
fn credit_returns_at_the_client() {
    let (mut w, s, f) = mute();
    expect_drop(&mut w, 0, &f.credit_return(0, 0, false), RxDrop::Future);
    w.call(0, s, 5, 4 * DPP);
    w.filter = Some(Box::new(|_, _| false));
    w.pump();
    expect_drop(&mut w, 0, &f.credit_return(8, 1, false), RxDrop::Future);
    expect_drop(&mut w, 0, &f.credit_return(0u32.wrapping_sub(8), 1, false), RxDrop::Stale);
    expect_drop(&mut w, 0, &f.credit_return(0, 4, false), RxDrop::Inconsistent);
    expect_drop(&mut w, 0, &f.credit_return(0, 1, true), RxDrop::Inconsistent);
    w.inject(1, 0, &f.credit_return(0, 2, false));
    assert_eq!(w.ep(0).session_stats(s).unwrap().credits, 30);
    expect_drop(&mut w, 0, &f.credit_return(0, 1, false), RxDrop::Duplicate);
    expect_drop(&mut w, 0, &f.credit_return(0, 2, false), RxDrop::Duplicate);
    w.inject(1, 0, &f.response(0, SIZE, 0, &part(0)));
    assert_eq!(w.ep(0).session_stats(s).unwrap().credits, 30, "two asked for");
    expect_drop(&mut w, 0, &f.credit_return(0, 3, false), RxDrop::Duplicate);
}

#[test]
fn responses_at_the_client() {
    let (mut w, s, f) = mute();
    expect_drop(&mut w, 0, &f.response(0, 4, 0, b"abcd"), RxDrop::Future);
    w.filter = Some(Box::new(|_, _| false));
    w.call(0, s, 5, 40);
    w.pump();
    expect_drop(&mut w, 0, &f.response(0, SIZE, 1, &part(1)), RxDrop::OutOfOrder);
    w.inject(1, 0, &f.response(0, SIZE, 0, &part(0)));
    expect_drop(&mut w, 0, &f.response(0, SIZE, 0, &part(0)), RxDrop::Duplicate);
    expect_drop(&mut w, 0, &f.response(0, SIZE, 2, &part(2)), RxDrop::OutOfOrder);
    expect_drop(&mut w, 0, &f.response(0, SIZE - 1, 1, &part(1)), RxDrop::Inconsistent);
    w.inject(1, 0, &f.response(0, SIZE, 1, &part(1)));
    w.inject(1, 0, &f.response(0, SIZE, 2, &part(2)));
    let done = w.take_done(0);
    assert_eq!(done[0].result.as_ref().unwrap(), &[part(0), part(1), part(2)].concat());
    expect_drop(&mut w, 0, &f.response(0, SIZE, 2, &part(2)), RxDrop::Stale);
}

#[test]
fn a_response_to_half_a_request_is_dropped() {
    let (mut w, s, f) = mute();
    w.filter = Some(Box::new(|_, _| false));
    w.call(0, s, 5, 100 * DPP);
    w.pump();
    expect_drop(&mut w, 0, &f.response(0, 4, 0, b"abcd"), RxDrop::Inconsistent);
}

#[test]
fn requests_for_response_at_the_server() {
    let (mut w, _, f) = world();
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![7; 100 * DPP]));
    w.link.loss = 1_000_000;
    expect_drop(&mut w, 1, &f.rfr(0, 1, 1), RxDrop::Future);
    w.inject(0, 1, &f.request(0, 2 * DPP as u32, 0, &part(0)));
    expect_drop(&mut w, 1, &f.rfr(0, 1, 1), RxDrop::Stale);
    w.inject(0, 1, &f.request(0, 2 * DPP as u32, 1, &part(1)));
    expect_drop(&mut w, 1, &f.rfr(0, 0, 1), RxDrop::Inconsistent);
    expect_drop(&mut w, 1, &f.rfr(0, 99, 2), RxDrop::Inconsistent);
    expect_drop(&mut w, 1, &f.rfr(0, 1, 33), RxDrop::Inconsistent);
    expect_drop(&mut w, 1, &f.rfr(0, u32::from(u16::MAX), 1 << 27), RxDrop::Inconsistent);
    expect_drop(&mut w, 1, &f.rfr(8, 1, 1), RxDrop::Future);
    expect_drop(&mut w, 1, &f.rfr(0u32.wrapping_sub(8), 1, 1), RxDrop::Stale);
    w.tracing = true;
    w.inject(0, 1, &f.rfr(0, 98, 2));
    w.inject(0, 1, &f.rfr(0, 1, 1)); // again, and backwards: stateless
    let n = 100 * DPP;
    let want = [98, 99, 1].map(|i| format!("1: RESP 0#{i}/{n}"));
    assert_eq!(w.story(), want);
}

#[test]
fn a_flood_of_requests_for_response_is_answered_once() {
    // A frame full of equal requests: without a limit, 16 bytes would cause 32 packets each.
    let (mut w, _, mut f) = world();
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![7; 100 * DPP]));
    w.link.loss = 1_000_000;
    w.inject(0, 1, &f.request(0, 4, 0, b"abcd"));
    let session = f.accept.session.number;
    let rfr = Packet::Rfr { session, req_num: 0, first: 1, count: 32 };
    let far = Packet::Rfr { session, req_num: 0, first: 60, count: 32 };
    let before = w.ep(1).stats().tx_packets;
    let flood = f.frame(1, &[[rfr; 40], [far; 40]].concat());
    w.inject(0, 1, &flood);
    assert_eq!(w.ep(1).stats().tx_packets - before, 32);
    // Requesting the following parts does not help either.
    let runs = [1, 33, 65].map(|first| Packet::Rfr { session, req_num: 0, first, count: 32 });
    let before = w.ep(1).stats().tx_packets;
    let flood = f.frame(1, &runs);
    w.inject(0, 1, &flood);
    assert_eq!(w.ep(1).stats().tx_packets - before, 32);
    // Nor does repeating the request.
    let again = Packet::Request {
        session,
        req_num: 0,
        req_type: 5,
        msg_size: 4,
        index: 0,
        remaining_us: None,
        one_way: false,
        data: b"abcd",
    };
    let before = w.ep(1).stats().clone();
    let flood = f.frame(1, &[again; 40]);
    w.inject(0, 1, &flood);
    assert_eq!(w.ep(1).stats().tx_packets - before.tx_packets, 1);
    assert_eq!(w.ep(1).stats().responses_resent - before.responses_resent, 1, "queued once");
}

#[test]
fn a_due_credit_return_does_not_suppress_that_of_the_next_request() {
    // A late copy of request 0 and the first packet of request 8 arrive in one burst.
    let (mut w, _, mut f) = world();
    w.link.loss = 1_000_000;
    let two = 2 * DPP as u32;
    w.inject(0, 1, &f.request(0, two, 0, &part(0)));
    w.inject(0, 1, &f.request(0, two, 1, &part(1)));
    let (session, data) = (f.accept.session.number, part(0));
    let first = |req_num, msg_size| {
        let req_type = 5;
        let (index, remaining_us, data) = (0, None, &data[..]);
        Packet::Request {
            session,
            req_num,
            req_type,
            msg_size,
            index,
            remaining_us,
            one_way: false,
            data,
        }
    };
    let burst = f.frame(1, &[first(0, two), first(8, SIZE)]);
    w.tracing = true;
    w.inject(0, 1, &burst);
    assert_eq!(w.story(), ["1: CR 8+1"]);
}

#[test]
fn acknowledgements_at_the_server() {
    // ADR 6: an acknowledged response is freed.
    let (mut w, _, f) = world();
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![7; 100 * DPP]));
    w.link.loss = 1_000_000;
    expect_drop(&mut w, 1, &f.ack(0), RxDrop::Future);
    let idle = w.nodes[1].arena.stats().in_use_bytes;
    w.inject(0, 1, &f.request(0, 2 * DPP as u32, 0, &part(0)));
    expect_drop(&mut w, 1, &f.ack(0), RxDrop::Inconsistent);
    w.inject(0, 1, &f.request(0, 2 * DPP as u32, 1, &part(1)));
    assert!(w.nodes[1].arena.stats().in_use_bytes > idle + 100 * DPP);
    expect_drop(&mut w, 1, &f.ack(0u32.wrapping_sub(8)), RxDrop::Stale);
    w.inject(0, 1, &f.ack(0));
    assert!(w.nodes[1].arena.stats().in_use_bytes < idle + 2 * DPP);
    expect_drop(&mut w, 1, &f.ack(0), RxDrop::Duplicate);
    let silence =
        expect_drop(&mut w, 1, &f.request(0, 2 * DPP as u32, 1, &part(1)), RxDrop::Duplicate);
    assert!(silence.is_empty(), "the client said that it has the response");
}

#[test]
fn roles_sessions_and_reserved_kinds() {
    let (mut w, _, mut f) = world();
    let session = f.accept.session.number;
    let cr = Packet::CreditReturn {
        session,
        req_num: 0,
        count: 1,
        in_progress: false,
        grant: Grant::default(),
    };
    let bytes = f.frame(1, &[cr]);
    expect_drop(&mut w, 1, &bytes, RxDrop::WrongRole);
    let session = f.accept.client_session;
    let bytes = f.frame(0, &[Packet::Ack { session, req_num: 0 }]);
    expect_drop(&mut w, 0, &bytes, RxDrop::WrongRole);
    let bytes = f.frame(1, &[Packet::Ack { session: 77, req_num: 0 }]);
    expect_drop(&mut w, 1, &bytes, RxDrop::UnknownSession);
    let (number, msg_type, remaining_us) = (0, 1, None);
    let message = Packet::Message { session, number, msg_type, remaining_us, data: &[] };
    let bytes = f.frame(0, &[message]);
    expect_drop(&mut w, 0, &bytes, RxDrop::WrongRole);
    let session = f.accept.session.number;
    let bytes = f.frame(1, &[Packet::MessageAck { session, next: 0, later: 0 }]);
    expect_drop(&mut w, 1, &bytes, RxDrop::WrongRole);
}
