//! Exact packet sequences of `[eRPC §5.1]`, Fig. 3.

use courser_proto::wire::PACKET_HEADER;
use courser_proto::{Config, SessionId};

use crate::support::{Action, DPP, World, config, pattern};

/// C = 2, no shared frames, every packet is handled and answered before the next.
fn fig3() -> (World, SessionId) {
    let mut w = World::pair(Config { credits: 2, inline_max: 0, ..config() });
    let s = w.connect(0, 1);
    w.tracing = true;
    (w, s)
}

#[test]
fn a_small_rpc_is_two_packets() {
    // E41, E45
    let (mut w, s) = fig3();
    w.call(0, s, 9, 32);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result.as_ref().unwrap(), &pattern(9, 32));
    assert_eq!(w.story(), ["0: REQ 0#0/32", "1: RESP 0#0/32"]);
    // The response is acknowledged only when the slot stays idle (ADR 6).
    w.settle();
    assert_eq!(w.story()[2..], ["0: ACK 0"]);
}

#[test]
fn the_next_request_acknowledges_the_response() {
    let (mut w, s) = fig3();
    for id in 0..20 {
        w.call(0, s, id, 32);
        w.finish(0, 1);
    }
    assert_eq!(w.trace.len(), 40);
}

#[test]
fn an_empty_message_is_one_packet_too() {
    let (mut w, s) = fig3();
    w.call(0, s, 0, 0);
    assert_eq!(w.finish(0, 1)[0].result, Ok(vec![]));
    assert_eq!(w.story(), ["0: REQ 0#0/0", "1: RESP 0#0/0"]);
}

#[test]
fn three_packets_each_way_with_two_credits() {
    // E42, E43: the paper's figure; one request-for-response requests as many packets as there are
    // credits (ADR 4).
    let (mut w, s) = fig3();
    let n = 3 * DPP;
    w.call(0, s, 1, n);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result.as_ref().unwrap(), &pattern(1, n));
    let want = [
        format!("0: REQ 0#0/{n}"),
        format!("0: REQ 0#1/{n}"),
        "1: CR 0+1".into(),
        "1: CR 0+2".into(),
        format!("0: REQ 0#2/{n}"),
        format!("1: RESP 0#0/{n}"),
        "0: RFR 0#1x2".into(),
        format!("1: RESP 0#1/{n}"),
        format!("1: RESP 0#2/{n}"),
    ];
    assert_eq!(w.story(), want);
}

#[test]
fn with_one_credit_everything_alternates() {
    let mut w = World::pair(Config { credits: 1, inline_max: 0, ..config() });
    let s = w.connect(0, 1);
    w.tracing = true;
    let n = 3 * DPP;
    w.call(0, s, 1, n);
    w.finish(0, 1);
    let senders: Vec<usize> = w.trace.iter().map(|p| p.from).collect();
    assert_eq!(senders, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(w.story()[6..8], ["0: RFR 0#1x1".to_string(), format!("1: RESP 0#1/{n}")]);
}

#[test]
fn credit_returns_and_requests_for_response_are_sixteen_bytes() {
    // E45
    let (mut w, s) = fig3();
    w.call(0, s, 1, 10 * DPP);
    w.call(0, s, 2, 10);
    w.finish(0, 2);
    for p in &w.trace {
        if p.text.starts_with("CR") || p.text.starts_with("RFR") {
            assert_eq!(p.bytes, PACKET_HEADER);
            assert!(!p.text.contains(" 1"), "never for the small RPC of slot 1: {p:?}");
        }
    }
    assert!(w.trace.iter().any(|p| p.text.starts_with("RFR")));
}

#[test]
fn a_server_alone_sends_nothing_and_has_no_timer_but_to_free_the_request() {
    // E39, E40
    let (mut w, s) = fig3();
    w.nodes[1].handler = Box::new(|_, req| Action::ReplyMsg(req.to_vec()));
    w.call(0, s, 1, 5 * DPP);
    w.filter = Some(Box::new(|from, _| from == 0)); // no packet of the server arrives
    for _ in 0..3 {
        w.step();
    }
    assert!(w.ep(1).memory().held_bytes >= 5 * DPP);
    let (sent, t) = (w.ep(1).stats().tx_packets, w.now_ns);
    w.ep(1).on_deadline(t + 1_000_000_000);
    w.pump();
    assert_eq!(w.ep(1).stats().tx_packets, sent);
    assert_eq!((w.ep(1).memory().held_bytes, w.ep(1).next_deadline()), (0, None));
}

#[test]
fn small_packets_of_two_sessions_share_a_frame() {
    let mut w = World::pair(config());
    let a = w.connect(0, 1);
    let b = w.connect(0, 1);
    w.call(0, a, 1, 32);
    w.call(0, b, 2, 32);
    w.finish(0, 2);
    assert_eq!(w.ep(0).stats().tx_frames, 1);
    assert_eq!(w.ep(1).stats().tx_frames, 1);
    assert_eq!(w.ep(1).stats().rx_packets, 2);
}
