//! Calls whose packets wait for the pacer, when something else happens to them meanwhile.

use std::cell::Cell;
use std::rc::Rc;

use courser_proto::wire::Packet;
use courser_proto::{Config, Control, Factors, SessionId};

use crate::support::forge::packets;
use crate::support::{World, config};

const MS: u64 = 1_000_000;

/// Full-sized packets leave at least 1.2 ms apart: one takes that long at 10 Mbit/s.
fn slow_line() -> Config {
    let (control, line_rate_bps) = (Control::Timely, 10_000_000);
    let factors = Factors { pacing_bypass: false, ..Factors::default() };
    Config { control, factors, line_rate_bps, datapath_timeout_ns: 1_000 * MS, ..config() }
}

/// Loses all frames, and counts the request packets of node 0.
fn lose_all(w: &mut World) -> Rc<Cell<usize>> {
    let requests = Rc::new(Cell::new(0));
    let count = Rc::clone(&requests);
    w.filter = Some(Box::new(move |from, frame| {
        let sent = packets(frame).filter(|p| matches!(p, Packet::Request { .. })).count();
        count.set(count.get() + if from == 0 { sent } else { 0 });
        false
    }));
    requests
}

#[test]
fn a_response_completes_a_call_whose_copy_waits_for_the_pacer() {
    // E69
    let mut w = World::pair(slow_line());
    let (session, forge) = w.connect_forge(0, 1);
    let requests = lose_all(&mut w);
    let begin_ns = w.now_ns;
    w.call(0, session, 1, 1_000);
    w.pump();
    assert_eq!(requests.get(), 1);
    // The timeout, of 100 us, has passed; the copy's departure time has not come.
    w.run_to(begin_ns + MS / 2);
    assert_eq!((requests.get(), w.nodes[0].ep.stats().paced), (1, 1));
    w.inject(1, 0, &forge.response(0, 4, 0, b"done"));
    let ended = w.take_done(0);
    assert!(matches!(&ended[..], [done] if done.result.is_ok()), "{}", ended.len());
    w.run_to(begin_ns + 100 * MS);
    assert_eq!(requests.get(), 1, "the copy was sent after the response");
    w.ep(0).check();
}

#[test]
fn a_failed_peer_leaves_no_packet_with_the_pacer() {
    // E67
    let mut w = World::pair(slow_line());
    let session = w.connect(0, 1);
    let requests = lose_all(&mut w);
    let begin_ns = w.now_ns;
    for id in 0..6 {
        w.call(0, session, id, 5_000);
    }
    w.run_to(begin_ns + 3 * MS);
    let sent = requests.get();
    assert!((1..24).contains(&sent), "{sent} packets were sent");
    assert!(w.nodes[0].ep.stats().paced > 0);
    w.ep(0).peer_lost(7, &mut Vec::new());
    w.nodes[0].collect();
    assert_eq!(w.take_done(0).iter().filter(|done| done.result.is_err()).count(), 6);
    w.ep(0).check();
    w.settle();
    assert_eq!(requests.get(), sent, "a packet of a failed call");
    assert_eq!(w.nodes[0].ep.next_deadline(), None);
    // The next sessions with this peer are paced again.
    w.ep(1).peer_lost(7, &mut Vec::new());
    w.filter = None;
    let session = w.connect(0, 1);
    w.call(0, session, 9, 5_000);
    assert!(w.finish(0, 1)[0].result.is_ok());
}

/// A path on which a packet of 32 bytes, 130 on the wire, leaves each 1.04 us, and the request packets
/// that node 0 has sent.
fn microseconds_apart() -> (World, Rc<Cell<usize>>) {
    let mut w = World::pair(Config { line_rate_bps: 1_000_000_000, ..slow_line() });
    let requests = Rc::new(Cell::new(0));
    let count = Rc::clone(&requests);
    w.filter = Some(Box::new(move |from, frame| {
        let sent = packets(frame).filter(|p| matches!(p, Packet::Request { .. })).count();
        count.set(count.get() + if from == 0 { sent } else { 0 });
        true
    }));
    (w, requests)
}

#[test]
fn small_packets_leave_at_a_rate_in_bytes() {
    let (mut w, requests) = microseconds_apart();
    let session = w.connect(0, 1);
    let begin_ns = w.now_ns;
    for id in 0..8 {
        w.call(0, session, id, 32);
    }
    w.pump();
    assert_eq!(requests.get(), 1);
    // A full-sized packet takes 12 us.
    w.run_to(begin_ns + 5_000);
    assert!((4..=5).contains(&requests.get()), "{} in 5 us", requests.get());
    w.run_to(begin_ns + 9_000);
    assert_eq!(requests.get(), 8);
}

/// Calls from `sessions` after a packet of the first and one of the last, which had to wait. Returns
/// how many leave at once 5 us after that.
fn burst_after_a_wait(end: fn(&mut World, [SessionId; 2])) -> usize {
    let (mut w, requests) = microseconds_apart();
    let sessions = [w.connect(0, 1), w.connect(0, 1)];
    let begin_ns = w.now_ns;
    w.call(0, sessions[0], 0, 32);
    w.call(0, sessions[1], 1, 32);
    w.pump();
    assert_eq!((requests.get(), w.nodes[0].ep.stats().paced), (1, 1));
    end(&mut w, sessions);
    w.run_to(begin_ns + 7_000);
    let before = requests.get();
    for id in 2..8 {
        w.call(0, sessions[0], id, 32);
    }
    w.pump();
    w.ep(0).check();
    requests.get() - before
}

#[test]
fn packets_after_a_wait_are_no_burst() {
    assert_eq!(burst_after_a_wait(|_, _| ()), 1);
}

#[test]
fn packets_after_a_wait_that_ended_without_a_packet_are_no_burst() {
    let close = |w: &mut World, [_, waits]: [SessionId; 2]| {
        w.ep(0).close(waits).expect("open");
    };
    assert_eq!(burst_after_a_wait(close), 1);
}
