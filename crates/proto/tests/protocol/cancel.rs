//! Cancelled calls and quarantined slots (ADR 15). Eight slots unless stated otherwise, so request
//! numbers of slot 0 are 0, 8, 16, ...

use courser_proto::wire::Packet;
use courser_proto::{CallError, Config, Executed, RxDrop, SessionId, SessionStats, Status};

use crate::support::forge::Forge;
use crate::support::{Action, DPP, World, config, expect_drop, pattern};

const CANCELLED: u16 = Status::Cancelled as u16;

fn one_slot() -> Config {
    Config { slots: 1, ..config() }
}

/// A world whose handlers do not reply by themselves.
fn mute(config: Config) -> (World, SessionId, Forge) {
    let mut w = World::pair(config);
    let (s, f) = w.connect_forge(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    w.tracing = true;
    (w, s, f)
}

fn stats(w: &World, s: SessionId) -> SessionStats {
    w.nodes[0].ep.session_stats(s).unwrap()
}

/// Completions that no packet causes.
fn ends(w: &mut World) -> Vec<(u64, CallError)> {
    w.nodes[0].collect();
    w.take_done(0).into_iter().map(|d| (d.id, d.result.unwrap_err())).collect()
}

fn cancelled(id: u64, executed: Executed) -> Vec<(u64, CallError)> {
    vec![(id, CallError::Cancelled(executed))]
}

fn count(w: &World, text: &str) -> usize {
    w.trace.iter().filter(|p| p.text.starts_with(text)).count()
}

#[test]
fn a_waiting_call_leaves_the_queue() {
    let (mut w, s, _) = mute(one_slot());
    w.call(0, s, 1, 10);
    let waiting = [2, 3, 4].map(|id| w.call(0, s, id, 10));
    assert!(w.ep(0).cancel(waiting[1]));
    assert!(!w.ep(0).cancel(waiting[1]), "it has ended");
    assert_eq!(ends(&mut w), cancelled(3, Executed::Never));
    assert_eq!(stats(&w, s).queued, 2);
    w.pump();
    w.settle_until_idle_link();
    w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
    let id = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(id, b"now").unwrap();
    let order: Vec<u64> = w.finish(0, 3).iter().map(|d| d.id).collect();
    assert_eq!(order, [1, 2, 4]);
    assert_eq!(w.nodes[1].executed.get(&3), None);
    let all = w.ep(0).stats();
    assert_eq!((all.calls, all.responses, all.errors, all.cancelled), (4, 3, 1, 1));
}

#[test]
fn the_number_of_an_unsent_call_is_reused() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.tracing = true;
    for id in 0..50 {
        let call = w.call(0, s, id, 10);
        assert!(w.ep(0).cancel(call) && !w.ep(0).cancel(call));
        assert_eq!(ends(&mut w), cancelled(id.into(), Executed::Never));
        w.ep(0).check();
    }
    w.call(0, s, 99, 10);
    w.finish(0, 1);
    assert_eq!(w.story(), ["0: REQ 0#0/10", "1: RESP 0#0/10"]);
    // Also after a batch has processed the slot; and a pending acknowledgement stays pending.
    let call = w.call(0, s, 100, 10);
    assert!(w.ep(0).cancel(call));
    assert_eq!(ends(&mut w), cancelled(100, Executed::Never));
    w.settle();
    assert_eq!(w.story()[2..], ["0: ACK 0"]);
    w.call(0, s, 101, 10);
    assert!(w.finish(0, 1)[0].result.is_ok());
    assert_eq!(w.story()[3..], ["0: REQ 8#0/10", "1: RESP 8#0/10"]);
}

#[test]
fn a_waiting_call_takes_the_number_of_an_unsent_one() {
    let mut w = World::pair(one_slot());
    let s = w.connect(0, 1);
    w.tracing = true;
    let first = w.call(0, s, 1, 10);
    w.call(0, s, 2, 20);
    assert!(w.ep(0).cancel(first));
    let done = w.finish(0, 2);
    assert_eq!(done[0].result, Err(CallError::Cancelled(Executed::Never)));
    assert_eq!(done[1].result, Ok(pattern(2, 20)));
    assert_eq!(w.story(), ["0: REQ 0#0/20", "1: RESP 0#0/20"]);
}

#[test]
fn a_call_that_is_answered_in_part_has_executed() {
    let mut w = World::pair(Config { credits: 2, ..config() });
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![7; 20 * DPP]));
    w.tracing = true;
    let call = w.call(0, s, 1, 10);
    while w.trace.len() < 6 {
        w.step();
    }
    assert!(w.ep(0).cancel(call));
    assert_eq!(ends(&mut w), cancelled(1, Executed::Yes));
    let figures = stats(&w, s);
    assert_eq!((figures.quarantined, figures.in_flight, figures.credits), (0, 0, 2));
    // The server receives an acknowledgement, and the slot continues.
    w.settle();
    assert_eq!(w.trace.last().unwrap().text, "ACK 0");
    w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
    w.call(0, s, 2, 10);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(2, 10)));
    assert_eq!(w.ep(1).stats().drops_total(), 0);
}

#[test]
fn a_lost_request_is_in_quarantine_until_the_server_answers() {
    let (mut w, s, _) = mute(config());
    w.link.loss = 1_000_000;
    let call = w.call(0, s, 1, 10);
    w.pump();
    assert!(w.ep(0).cancel(call));
    assert_eq!(ends(&mut w), cancelled(1, Executed::Maybe));
    let figures = stats(&w, s);
    assert_eq!((figures.quarantined, figures.in_flight, figures.credits), (1, 0, 32));
    assert!(!w.ep(0).is_quiet());
    // 100 us, doubled up to 2 ms: 1 at once, 5 in the first 3.1 ms, then one each 2 ms.
    let start = w.now_ns;
    w.run_until(start + 13_000_000);
    assert_eq!(count(&w, "CANCEL 0"), 1 + 5 + 5);
    w.link.loss = 0;
    w.settle();
    assert_eq!(stats(&w, s).quarantined, 0);
    let end: Vec<_> = w.story().into_iter().rev().take(3).collect();
    assert_eq!(end, ["0: ACK 0", "1: ERR 0=10", "0: CANCEL 0"]);
    assert_eq!(w.ep(1).stats().requests_cancelled, 1);
    w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
    w.call(0, s, 2, 10);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(2, 10)));
    assert_eq!(count(&w, "REQ 8#0"), 1);
    assert_eq!(w.nodes[1].executed.get(&1), None);
}

#[test]
fn a_request_that_was_sent_in_part_never_runs() {
    let (mut w, s, _) = mute(Config { credits: 2, ..config() });
    let idle = w.nodes[1].arena.stats().in_use_bytes;
    let call = w.call(0, s, 1, 20 * DPP);
    w.pump();
    w.step();
    w.step();
    assert!(w.nodes[1].arena.stats().in_use_bytes > idle + 20 * DPP);
    assert!(w.ep(0).cancel(call));
    assert_eq!(ends(&mut w), cancelled(1, Executed::Never));
    w.settle();
    assert_eq!(w.nodes[1].arena.stats().in_use_bytes, idle, "what had arrived is freed");
    let figures = stats(&w, s);
    assert_eq!((figures.quarantined, figures.credits), (0, 2));
    assert!(w.nodes[1].executed.is_empty());
    assert_eq!(w.ep(1).stats().requests_cancelled, 1);
}

#[test]
fn a_handler_can_detect_a_cancelled_request() {
    let (mut w, s, _) = mute(config());
    let call = w.call(0, s, 1, 10);
    w.pump();
    w.settle_until_idle_link();
    let id = w.nodes[1].requests[0];
    assert!(!w.ep(1).is_cancelled(id));
    assert!(w.ep(0).cancel(call));
    assert_eq!(ends(&mut w), cancelled(1, Executed::Maybe));
    w.settle_until_idle_link();
    assert!(w.ep(1).is_cancelled(id) && w.ep(1).is_answerable(id));
    assert_eq!(w.story()[1..], ["0: CANCEL 0", "1: CR 0+0!"]);
    // The handler takes long, and cancellations become ever rarer.
    let start = w.now_ns;
    w.run_until(start + 20_000_000);
    assert!((5..30).contains(&count(&w, "CANCEL")), "{}", count(&w, "CANCEL"));
    assert_eq!(stats(&w, s).quarantined, 1);
    w.ep(1).reply_bytes(id, b"discarded").unwrap();
    w.settle();
    assert_eq!(stats(&w, s).quarantined, 0);
    assert!(w.take_done(0).is_empty());
    assert_eq!(w.nodes[1].executed[&1], 1);
    w.ep(1).reply_status(id, Status::Rejected); // gone: ignored
    assert_eq!(w.ep(1).stats().replies, 1);
}

#[test]
fn cancellations_at_the_server() {
    let (mut w, _, f) = mute(config());
    w.link.loss = 1_000_000; // the packets of the server are lost
    expect_drop(&mut w, 1, &f.cancel(8), RxDrop::Future);
    expect_drop(&mut w, 1, &f.cancel(0u32.wrapping_sub(8)), RxDrop::Stale);
    expect_drop(&mut w, 1, &f.cancel(0u32.wrapping_sub(16)), RxDrop::Stale);
    // Before any packet of the request: its number is used up, and late packets do not run it.
    w.inject(0, 1, &f.cancel(0));
    expect_drop(&mut w, 1, &f.request(0, 4, 0, b"abcd"), RxDrop::Stale);
    expect_drop(&mut w, 1, &f.request(0, 3 * DPP as u32, 1, &[1; DPP]), RxDrop::Stale);
    w.inject(0, 1, &f.cancel(0));
    // In the middle of it.
    w.inject(0, 1, &f.request(8, 2 * DPP as u32, 0, &[1; DPP]));
    w.inject(0, 1, &f.cancel(8));
    let late =
        expect_drop(&mut w, 1, &f.request(8, 2 * DPP as u32, 1, &[1; DPP]), RxDrop::Duplicate);
    assert_eq!(late, ["1: ERR 8=10"]);
    // While it is with its handler: no other answer may precede the reply.
    w.inject(0, 1, &f.request(16, 4, 0, b"abcd"));
    w.inject(0, 1, &f.cancel(16));
    expect_drop(&mut w, 1, &f.cancel(24), RxDrop::Future);
    let id = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(id, b"done").unwrap();
    w.pump();
    w.inject(0, 1, &f.cancel(16));
    w.inject(0, 1, &f.ack(16));
    expect_drop(&mut w, 1, &f.cancel(16), RxDrop::Stale);
    expect_drop(&mut w, 1, &f.cancel(8), RxDrop::Stale);
    let want = [
        format!("1: ERR 0={CANCELLED}"),
        format!("1: ERR 0={CANCELLED}"),
        "1: CR 8+1".into(),
        format!("1: ERR 8={CANCELLED}"),
        "1: CR 16+0!".into(),
        "1: RESP 16#0/4".into(),
        "1: RESP 16#0/4".into(),
    ];
    assert_eq!(w.story(), want);
    let all = w.ep(1).stats();
    assert_eq!((all.requests, all.requests_cancelled), (1, 2));
}

#[test]
fn a_flood_of_cancellations_is_answered_once() {
    let (mut w, _, mut f) = mute(config());
    w.link.loss = 1_000_000;
    let session = f.accept.session.number;
    let cancel = |req_num| Packet::Cancel { session, req_num };
    for req_num in [0, 8] {
        if req_num == 8 {
            w.inject(0, 1, &f.request(8, 4, 0, b"abcd")); // executing
        }
        let before = w.ep(1).stats().tx_packets;
        let flood = f.frame(1, &[cancel(req_num); 80]);
        w.inject(0, 1, &flood);
        assert_eq!(w.ep(1).stats().tx_packets - before, 1, "{req_num}");
    }
}

#[test]
fn packets_for_a_slot_in_quarantine() {
    let (mut w, s, f) = mute(config());
    w.filter = Some(Box::new(|_, _| false));
    let call = w.call(0, s, 5, 4 * DPP);
    w.pump();
    assert!(w.ep(0).cancel(call));
    ends(&mut w);
    w.pump();
    expect_drop(&mut w, 0, &f.credit_return(0, 2, false), RxDrop::Stale);
    expect_drop(&mut w, 0, &f.response(8, 4, 0, b"abcd"), RxDrop::Future);
    expect_drop(&mut w, 0, &f.error(0u32.wrapping_sub(8), CANCELLED), RxDrop::Stale);
    w.inject(1, 0, &f.credit_return(0, 3, true)); // in progress
    assert_eq!(stats(&w, s).quarantined, 1);
    w.inject(1, 0, &f.response(0, 3 * DPP as u32, 0, &[1; DPP]));
    let figures = stats(&w, s);
    assert_eq!((figures.quarantined, figures.credits, figures.in_flight), (0, 32, 0));
    // Duplicates and related packets are dropped.
    expect_drop(&mut w, 0, &f.response(0, 3 * DPP as u32, 0, &[1; DPP]), RxDrop::Stale);
    expect_drop(&mut w, 0, &f.credit_return(0, 3, true), RxDrop::Stale);
    expect_drop(&mut w, 0, &f.error(0, CANCELLED), RxDrop::Stale);
}

#[test]
fn a_session_with_all_slots_in_quarantine_recovers() {
    let (mut w, s, _) = mute(Config { slots: 2, ..config() });
    let calls = [1, 2].map(|id| w.call(0, s, id, 10));
    w.pump();
    w.settle_until_idle_link();
    calls.iter().for_each(|&call| assert!(w.ep(0).cancel(call)));
    assert_eq!(ends(&mut w).len(), 2);
    // New calls wait, and end at their deadlines.
    w.call_within(0, s, 3, 10, 2_000_000);
    w.call(0, s, 4, 10);
    assert_eq!((stats(&w, s).quarantined, stats(&w, s).queued), (2, 2));
    let start = w.now_ns;
    let done = w.finish(0, 1);
    assert_eq!(done[0].id, 3);
    assert_eq!(done[0].result, Err(CallError::DeadlineExceeded(Executed::Never)));
    assert_eq!(w.now_ns, start + 2_000_000);
    w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
    let id = w.nodes[1].requests[1];
    w.ep(1).reply_status(id, Status::NoReply);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(4, 10)));
    assert_eq!(w.trace.iter().rev().find(|p| p.from == 0).unwrap().text, "REQ 3#0/10");
}

#[test]
fn a_dead_datapath_is_found_by_slots_in_quarantine_alone() {
    // ADR 13
    let (mut w, s, _) = mute(config());
    let call = w.call(0, s, 1, 10);
    w.pump();
    w.settle_until_idle_link();
    assert!(w.ep(0).cancel(call));
    ends(&mut w);
    w.link.loss = 1_000_000;
    let start = w.now_ns;
    while w.step() {}
    assert!(w.now_ns >= start + config().datapath_timeout_ns);
    assert_eq!(w.ep(0).poll_failed(), Some(s));
    assert!(w.ep(0).is_quiet() && w.take_done(0).is_empty());
    assert!(w.ep(0).close(s).is_some());
    assert!(!w.ep(0).cancel(call));
}

#[test]
fn buffers_of_cancelled_calls_return_after_the_transport_releases_them() {
    // E24, E27
    let (mut w, s, _) = mute(config());
    w.link.hold = true;
    let call = w.call(0, s, 1, 3 * DPP);
    w.pump();
    assert!(w.ep(0).cancel(call));
    assert!(w.ep(0).needs_flush() && w.ep(0).poll_completion().is_none());
    assert_eq!(ends(&mut w), cancelled(1, Executed::Maybe)); // `support` checks the buffer
}

#[test]
fn a_call_id_of_another_session_cancels_nothing() {
    let (mut w, s, _) = mute(config());
    let old = w.call(0, s, 1, 10);
    let (remote, _) = w.ep(0).close(s).unwrap();
    w.ep(1).disconnected(remote, 0xe0, 7);
    ends(&mut w);
    let t = w.connect(0, 1);
    assert_eq!(s.index(), t.index());
    let call = w.call(0, t, 2, 10);
    assert!(!w.ep(0).cancel(old));
    assert_eq!((old.session(), call.session()), (s, t));
    assert!(w.ep(0).cancel(call));
}

#[test]
fn a_cancellation_wakes_the_slots_of_an_idle_session() {
    // ADR 6: the request is lost, so the cancellation is the first packet that reaches the server
    // again.
    let (mut w, s, f) = mute(config());
    w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
    w.call(0, s, 1, 10);
    w.finish(0, 1);
    w.settle();
    let idle = w.ep(0).poll_idle().expect("idle");
    w.ep(1).on_idle(idle.remote, 0xe0, 7, &idle.done);
    let asleep = w.ep(1).memory().slots_bytes;
    expect_drop(&mut w, 1, &f.cancel(0), RxDrop::Stale);
    expect_drop(&mut w, 1, &f.cancel(16), RxDrop::Future);
    assert_eq!(w.ep(1).memory().slots_bytes, asleep, "what is late wakes nothing");
    let mut first = true;
    w.filter = Some(Box::new(move |_, _| !std::mem::take(&mut first)));
    let call = w.call(0, s, 2, 10);
    w.pump();
    assert!(w.ep(0).cancel(call));
    assert_eq!(ends(&mut w), cancelled(2, Executed::Maybe));
    w.settle();
    assert_eq!(stats(&w, s).quarantined, 0);
    assert_eq!(w.ep(1).stats().requests_cancelled, 1);
    w.call(0, s, 3, 10);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(3, 10)));
}

#[test]
fn a_session_with_a_slot_in_quarantine_does_not_shrink() {
    let quick = Config { idle_after_ns: 1_000_000, ..config() };
    let (mut w, s, _) = mute(quick);
    let call = w.call(0, s, 1, 10);
    w.pump();
    w.settle_until_idle_link();
    assert!(w.ep(0).cancel(call));
    ends(&mut w);
    let start = w.now_ns;
    w.run_until(start + 30_000_000);
    assert_eq!(w.ep(0).poll_idle(), None);
    let id = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(id, b"at last").unwrap();
    w.settle();
    assert!(w.ep(0).poll_idle().is_some());
}

#[test]
fn a_dropped_part_of_a_request_is_no_longer_held() {
    // Quota for one such request: if it were not released, the second would be rejected.
    let len = 20 * DPP;
    let (mut w, s, _) = mute(Config { credits: 2, max_held_per_peer: len + DPP, ..config() });
    for id in 1..6 {
        let call = w.call(0, s, id, len);
        w.pump();
        w.step();
        w.step();
        assert!(w.ep(1).memory().held_bytes >= len);
        assert!(w.ep(0).cancel(call));
        assert_eq!(ends(&mut w), cancelled(id.into(), Executed::Never));
        w.settle();
        assert_eq!(w.ep(1).memory().held_bytes, 0);
    }
    assert_eq!(w.ep(1).stats().requests_cancelled, 5, "none was refused for lack of memory");
}

#[test]
fn a_session_whose_only_call_was_cancelled_before_it_was_sent_shrinks() {
    // ADR 6: nothing was sent, so nothing else causes a check of the slot.
    let quick = Config { idle_after_ns: 1_000_000, ..config() };
    let (mut w, s, _) = mute(quick);
    let call = w.call(0, s, 1, 10);
    assert!(w.ep(0).cancel(call));
    assert_eq!(ends(&mut w), cancelled(1, Executed::Never));
    w.settle();
    assert!(w.ep(0).poll_idle().is_some());
}

#[test]
fn an_answer_that_overtakes_its_cancellation_is_acknowledged() {
    // ADR 6: the deadline passes, and in the same pass the answer arrives.
    let quick = Config { idle_after_ns: 1_000_000, ..config() };
    let (mut w, s, f) = mute(quick);
    let time_ns = 30_000; // before any retransmission
    w.call_within(0, s, 1, 10, time_ns);
    w.pump();
    w.settle_until_idle_link();
    let id = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(id, b"late").unwrap();
    let at_ns = w.now_ns + time_ns;
    w.ep(0).on_deadline(at_ns);
    w.now_ns = at_ns;
    w.deliver_only(1, 0, &f.response(0, 4, 0, b"late"));
    assert_eq!(w.take_done(0).len() + ends(&mut w).len(), 1);
    assert_eq!(stats(&w, s).quarantined, 0);
    w.filter = Some(Box::new(|from, _| from == 0));
    w.settle();
    assert_eq!(count(&w, "ACK 0"), 1);
    assert!(w.ep(0).poll_idle().is_some());
}

#[test]
fn an_unsent_number_goes_to_a_call_that_is_appended_at_once() {
    let mut w = World::pair(config());
    let (there, back) = (w.connect(0, 1), w.connect(1, 0));
    // The queue item of the cancelled call remains.
    let given_up = w.call(1, back, 1, 32);
    assert!(w.ep(1).cancel(given_up));
    w.nodes[1].handler = Box::new(move |_, _| Action::Nest(back, 2, 32));
    let now_ns = w.now_ns;
    w.call(0, there, 20, 32);
    let frames = w.nodes[0].transmit(now_ns, false, true);
    w.tracing = true;
    w.deliver_only(0, 1, &frames[0].1);
    assert_eq!(w.nodes[1].ep.session_stats(back).unwrap().in_flight, 1, "written before its stage");
    w.pump();
    assert_eq!(count(&w, "REQ"), 1, "of the call that came in its place");
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(2, 32)), "what the nested call gave");
    let ended: Vec<u64> = w.take_done(1).iter().map(|d| d.id).collect();
    assert_eq!(ended[0], 1, "given up");
    // Its slot takes calls as before.
    for id in 3..12 {
        w.call(1, back, id, 32);
        assert!(w.finish(1, 1).iter().all(|d| d.result.is_ok()));
    }
    assert_eq!(w.ep(1).stats().retransmitted, 0);
}
