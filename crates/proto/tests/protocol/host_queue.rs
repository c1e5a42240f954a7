//! The host's own transmit queue: large messages wait while it is long, and nothing else does (ADR 57).

use courser_proto::{Config, Recovery, SessionId};

use crate::support::node::Action;
use crate::support::{World, pattern};

const GBIT: u64 = 1_000_000_000;
const US: u64 = 1_000;
/// Servers, or clients, of one host.
const PEERS: usize = 20;
/// A message of 632 packets: it takes 14 ms to send one to each.
const LARGE: usize = 900_000;

fn settings() -> Config {
    Config { line_rate_bps: 10 * GBIT, ..Config::default() }
}

/// Node 0 has a NIC of 10 Gbit/s and a session with each of the others, all of which receive at once.
fn one_to_many(reports: bool) -> (World, Vec<SessionId>) {
    let mut w = World::new(&vec![settings(); PEERS + 1], 3);
    match reports {
        true => w.nodes[0].set_nic(10 * GBIT),
        false => w.nodes[0].nic.rate_bps = 10 * GBIT,
    }
    let sessions = (1..=PEERS).map(|server| w.connect(0, server)).collect();
    w.nodes.iter_mut().for_each(|n| n.handler = Box::new(|_, _| Action::Reply(Vec::new())));
    (w, sessions)
}

/// The time that a small call takes beside a large request to each server, and the most bytes that the
/// NIC had, ns.
fn small_beside_large(reports: bool) -> (u64, u64) {
    let (mut w, sessions) = one_to_many(reports);
    for (id, &session) in (0..).zip(&sessions) {
        w.call(0, session, id, 500_000);
    }
    w.run_to(w.now_ns + 1_000 * US);
    let begin_ns = w.now_ns;
    w.call(0, sessions[7], 99, 32);
    let is_done = |w: &World| w.nodes[0].done.iter().any(|done| done.id == 99);
    while !is_done(&w) {
        assert!(w.step());
    }
    let took_ns = w.now_ns - begin_ns;
    assert_eq!(w.finish(0, PEERS + 1).iter().filter(|done| done.result.is_ok()).count(), PEERS + 1);
    let stats = w.ep(0).stats().clone();
    assert!(!reports || (stats.retransmitted, stats.probes) == (0, 0), "{stats:?}");
    assert_eq!(stats.host_waits > 1_000, reports);
    (took_ns, w.nodes[0].nic.peak)
}

#[test]
fn a_small_call_does_not_wait_behind_large_requests_of_its_host() {
    let (waited_ns, peak) = small_beside_large(false);
    assert!(waited_ns > 200 * US && peak > 300_000, "{waited_ns} ns, {peak} bytes");
    let (waited_ns, peak) = small_beside_large(true);
    assert!(waited_ns < 20 * US && peak < 20_000, "{waited_ns} ns, {peak} bytes");
}

#[test]
fn large_requests_share_the_link_and_a_shorter_one_is_first() {
    let (mut w, sessions) = one_to_many(true);
    for (id, &session) in (0..).zip(&sessions) {
        w.call(0, session, id, LARGE);
    }
    w.run_to(w.now_ns + 5_000 * US);
    let received = (1..=PEERS).map(|server| w.ep(server).stats().rx_packets).collect::<Vec<_>>();
    assert_fair(&received);
    let begin_ns = w.now_ns;
    w.call(0, sessions[3], 99, 14_000);
    let mut ended_ns = Vec::new();
    let mut short_ns = 0;
    while ended_ns.len() < PEERS {
        assert!(w.step());
        for done in w.take_done(0) {
            match done.id {
                99 => short_ns = w.now_ns - begin_ns,
                _ => ended_ns.push(w.now_ns - begin_ns),
            }
        }
    }
    // Alone it takes 12 us for its packets and some round trips of 2 us.
    assert!((1..100 * US).contains(&short_ns), "{short_ns} ns");
    assert_busy(ended_ns[PEERS - 1] + 5_000 * US);
}

/// All have about the same.
fn assert_fair(packets: &[u64]) {
    let (least, most) = (packets.iter().min().unwrap(), packets.iter().max().unwrap());
    assert!(*least > 100 && least * 10 >= most * 9, "{packets:?}");
}

/// The link was always busy with large messages to all.
fn assert_busy(took_ns: u64) {
    let packets_ns = PEERS as u64 * LARGE as u64 * 8 / 10;
    assert!(took_ns < packets_ns * 106 / 100, "{took_ns} ns instead of {packets_ns}");
}

/// A server with a NIC of 10 Gbit/s, whose clients each request a large response.
fn many_to_one(recovery: Recovery) -> World {
    let settings = Config { recovery, ..settings() };
    let mut w = World::new(&vec![settings; PEERS + 1], 5);
    w.nodes[0].set_nic(10 * GBIT);
    w.nodes[0].handler = Box::new(|id, _| Action::ReplyMsg(pattern(id.into(), LARGE)));
    for client in 1..=PEERS {
        let session = w.connect(client, 0);
        w.call(client, session, client as u16, 32);
    }
    w
}

#[test]
fn large_responses_share_the_link_of_the_server_and_their_clients_suspect_no_loss() {
    for recovery in [Recovery::Selective, Recovery::GoBackN] {
        let mut w = many_to_one(recovery);
        let begin_ns = w.now_ns;
        w.run_to(begin_ns + 5_000 * US);
        let received = (1..=PEERS).map(|client| w.ep(client).stats().rx_packets);
        assert_fair(&received.collect::<Vec<_>>());
        let mut ended = 0;
        while ended < PEERS {
            assert!(w.step());
            for client in 1..=PEERS {
                for done in w.take_done(client) {
                    assert!(done.result.is_ok_and(|body| body == pattern(client as u64, LARGE)));
                    ended += 1;
                }
            }
        }
        assert_busy(w.now_ns - begin_ns);
        assert!(w.nodes[0].nic.peak < 20_000, "{recovery}: {} bytes", w.nodes[0].nic.peak);
        let all = (1..=PEERS).map(|client| w.ep(client).stats().clone()).collect::<Vec<_>>();
        let again: u64 = all.iter().map(|stats| stats.retransmitted).sum();
        // The responses have 12,640 packets. Clients repeat some until they wait as long as these do.
        assert!(again < 100, "{recovery}: {again} requested again");
        assert_eq!(all.iter().map(|stats| stats.rollbacks).sum::<u64>(), 0, "{recovery}");
    }
}

#[test]
fn calls_that_end_while_they_wait_leave_nothing_and_the_next_one_of_the_slot_does_not_wait() {
    let (mut w, sessions) = one_to_many(true);
    for (id, &session) in (0..).zip(&sessions) {
        w.call(0, session, id, 500_000);
    }
    w.run_to(w.now_ns + 300 * US);
    let before = w.ep(0).memory().timers_bytes;
    for _ in 0..2_000 {
        let waiting = w.call(0, sessions[0], 98, 100_000);
        w.pump();
        w.ep(0).cancel(waiting);
        w.pump();
        w.nodes[0].collect();
    }
    assert_eq!(w.take_done(0).iter().filter(|done| done.result.is_err()).count(), 2_000);
    assert!(w.ep(0).memory().timers_bytes < before + 4_096);
    let begin_ns = w.now_ns;
    w.call(0, sessions[0], 99, 32);
    while !w.nodes[0].done.iter().any(|done| done.id == 99) {
        assert!(w.step());
    }
    assert!(w.now_ns - begin_ns < 20 * US, "{} ns", w.now_ns - begin_ns);
    w.finish(0, PEERS + 1);
    w.settle();
    assert!(w.ep(0).is_quiet());
}

/// [`one_to_many`] with a pool of a few packets at server 1, with which three more sessions are made.
fn small_pool() -> (World, Vec<SessionId>, [SessionId; 3]) {
    let mut configs = vec![settings(); PEERS + 1];
    configs[1].rx_queue_frames = 4;
    let mut w = World::new(&configs, 7);
    w.nodes[0].set_nic(10 * GBIT);
    let sessions: Vec<_> = (1..=PEERS).map(|server| w.connect(0, server)).collect();
    w.nodes.iter_mut().for_each(|n| n.handler = Box::new(|_, _| Action::Reply(Vec::new())));
    let more = [(); 3].map(|()| w.connect(0, 1));
    (w, sessions, more)
}

/// Repeats the small calls of sessions until `end_ns`, and returns the times that they took, ns.
fn repeat_small(w: &mut World, sessions: &[SessionId], end_ns: u64) -> Vec<u64> {
    let mut begun_ns = vec![w.now_ns; sessions.len()];
    let mut took_ns = Vec::new();
    for (id, &session) in (1_000..).zip(sessions) {
        w.call(0, session, id, 32);
    }
    while w.now_ns < end_ns {
        assert!(w.step());
        for done in w.take_done(0).into_iter().filter(|done| done.id >= 1_000) {
            assert!(done.result.is_ok());
            let n = (done.id - 1_000) as usize;
            took_ns.push(w.now_ns - begun_ns[n]);
            begun_ns[n] = w.now_ns;
            w.call(0, sessions[n], done.id as u16, 32);
        }
    }
    took_ns
}

#[test]
fn a_small_call_whose_pool_is_used_up_does_not_wait_with_the_large_ones_of_its_peer() {
    let (mut w, sessions, more) = small_pool();
    for (id, &session) in (0..).zip(sessions.iter().chain(&more[..1])) {
        w.call(0, session, id, LARGE);
    }
    w.run_to(w.now_ns + 1_000 * US);
    let end_ns = w.now_ns + 5_000 * US;
    let mut took_ns = repeat_small(&mut w, &more[1..2], end_ns);
    took_ns.sort_unstable();
    assert!(took_ns.len() > 500, "{} calls", took_ns.len());
    // A turn of all large ones takes 24 us.
    let p99_ns = took_ns[took_ns.len() * 99 / 100];
    assert!(p99_ns < 15 * US, "{p99_ns} ns");
    assert!(w.ep(0).stats().pool_waits > 500, "the pool is used up");
}

#[test]
fn large_requests_have_their_share_of_a_pool_that_small_calls_use_up() {
    let (mut w, sessions, more) = small_pool();
    for (id, &session) in (0..).zip(&sessions) {
        w.call(0, session, id, LARGE);
    }
    w.call(0, more[0], 99, LARGE);
    let before = w.ep(1).stats().rx_packets;
    let end_ns = w.now_ns + 10_000 * US;
    let small =
        repeat_small(&mut w, &[more[1], more[1], more[1], more[2], more[2], more[2]], end_ns);
    let large = w.ep(1).stats().rx_packets - before - small.len() as u64;
    assert!(large > 200, "{large} packets beside {} calls", small.len());
}

/// Large requests of two sessions in the pool of server 1, which is one packet, beside those to others.
fn pool_of_a_packet(frames: usize) -> (World, [SessionId; 2]) {
    let mut configs = vec![Config { tx_frames: frames, ..settings() }; PEERS + 1];
    configs[1].rx_queue_frames = 1;
    let mut w = World::new(&configs, 7);
    w.nodes[0].set_nic(10 * GBIT);
    let sessions: Vec<_> = (1..=PEERS).map(|server| w.connect(0, server)).collect();
    w.nodes.iter_mut().for_each(|n| n.handler = Box::new(|_, _| Action::Reply(Vec::new())));
    let other = w.connect(0, 1);
    for (id, &session) in (0..).zip(&sessions[1..]) {
        w.call(0, session, id, LARGE);
    }
    w.call(0, sessions[0], 98, 60_000);
    w.call(0, other, 99, 60_000);
    (w, [sessions[0], other])
}

#[test]
fn requests_of_two_sessions_take_turns_in_a_pool_of_one_packet() {
    let (mut w, _) = pool_of_a_packet(settings().tx_frames);
    let mut ended_ns = Vec::new();
    let begin_ns = w.now_ns;
    while ended_ns.len() < 2 {
        assert!(w.step());
        let small = w.take_done(0).into_iter().filter(|done| done.id >= 98);
        ended_ns.extend(small.map(|_| w.now_ns - begin_ns));
    }
    assert!(ended_ns[0] * 10 > ended_ns[1] * 9, "{ended_ns:?}");
}

#[test]
fn bytes_that_do_not_leave_the_queue_do_not_hold_messages_to_others() {
    let (mut w, sessions) = one_to_many(true);
    w.nodes[0].nic.stuck = 300_000;
    for (id, &session) in (0..).zip(&sessions) {
        w.call(0, session, id, LARGE);
    }
    let begin_ns = w.now_ns;
    assert_eq!(w.finish(0, PEERS).iter().filter(|done| done.result.is_ok()).count(), PEERS);
    let took_ns = w.now_ns - begin_ns;
    let alone_ns = PEERS as u64 * LARGE as u64 * 8 / 10;
    assert!(took_ns < alone_ns * 3 / 2, "{took_ns} ns instead of {alone_ns}");
}

/// Asserts that ten large requests have the link while `callers` sessions repeat small calls to others.
/// With `completes_ns` the NIC counts 768 bytes for a small frame, as a kernel does.
fn assert_large_beside_small(callers: usize, stuck: u64, completes_ns: u64) {
    let (mut w, sessions) = one_to_many(true);
    let nic = &mut w.nodes[0].nic;
    (nic.stuck, nic.completes_ns, nic.frame_bytes) = (stuck, completes_ns, 768);
    for (id, &session) in (0..).zip(&sessions[..10]) {
        w.call(0, session, id, LARGE);
    }
    let small: Vec<_> = (0..callers).map(|n| sessions[10 + n % 10]).collect();
    // Alone they take 7.3 ms. A stall is found after 2 ms.
    let end_ns = w.now_ns + 11_000 * US;
    let took_ns = repeat_small(&mut w, &small, end_ns);
    let received: u64 = (1..=10).map(|n| w.ep(n).stats().rx_packets).sum();
    let case =
        format!("{callers} callers, {stuck} bytes stuck, completions each {completes_ns} ns");
    assert!(received >= 10 * 632, "{case}: {received} packets");
    assert!(took_ns.len() > 100 * callers, "{case}: {} small calls", took_ns.len());
}

#[test]
fn large_requests_have_the_link_beside_small_calls_while_other_bytes_do_not_leave() {
    assert_large_beside_small(16, 300_000, 0);
    assert_large_beside_small(1, 300_000, 16_000);
}

#[test]
fn large_requests_have_the_link_beside_small_calls_of_a_nic_that_reports_late() {
    assert_large_beside_small(4, 0, 16_000);
    assert_large_beside_small(16, 0, 50_000);
}

#[test]
fn a_count_that_never_falls_lets_messages_through_and_is_read_a_thousand_times_a_second() {
    let (mut w, sessions) = one_to_many(true);
    w.nodes[0].nic.keeps = true;
    w.call(0, sessions[0], 0, 100_000);
    w.call(0, sessions[1], 1, 100_000);
    let begin_ns = w.now_ns;
    assert_eq!(w.finish(0, 2).iter().filter(|done| done.result.is_ok()).count(), 2);
    let took_ns = w.now_ns - begin_ns;
    assert!(took_ns < 100_000 * US, "{took_ns} ns");
    let reports = w.nodes[0].nic.reported;
    assert!(reports < 600, "{reports} reports");
}

#[test]
fn packets_that_wait_for_the_queue_are_not_sent() {
    let (mut w, sessions) = one_to_many(true);
    for (id, &session) in (0..).zip(&sessions) {
        w.call(0, session, id, 100_000);
    }
    w.ep(0).shut_down();
    w.run_to(w.now_ns + 100 * US);
    for _ in 0..1_000 {
        assert!(w.step() && !w.ep(0).is_sent());
    }
    w.finish(0, PEERS);
    w.settle();
    assert!(w.ep(0).is_sent());
}

#[test]
fn turns_that_full_batches_cut_go_on_in_the_next() {
    for frames in 1..4 {
        let (mut w, [_, other]) = pool_of_a_packet(frames);
        w.ep(0).close(other); // the request that is left waits alone
        let done = w.finish(0, PEERS + 1);
        assert_eq!(done.iter().filter(|done| done.result.is_ok()).count(), PEERS);
    }
}

#[test]
fn a_session_that_ends_at_the_queue_leaves_its_turn_to_others() {
    for after_us in 1..60 {
        let (mut w, [one, _]) = pool_of_a_packet(32);
        w.run_to(w.now_ns + after_us * 10 * US);
        w.ep(0).close(one);
        let begin_ns = w.now_ns;
        while !w.take_done(0).iter().any(|done| done.id == 99) {
            assert!(w.step());
        }
        assert!(w.now_ns - begin_ns < 20_000 * US, "{after_us}: {} ns", w.now_ns - begin_ns);
    }
}
