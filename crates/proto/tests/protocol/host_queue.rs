//! The host's own transmit queue: large messages wait while it is long, and nothing else does (ADR 57).

use courser_proto::{Config, Control, Recovery, SessionId};

use crate::support::node::Action;
use crate::support::{World, pattern};

const GBIT: u64 = 1_000_000_000;
const US: u64 = 1_000;
/// Servers, or clients, of one host.
const PEERS: usize = 20;
/// A message of 632 packets: it takes 14 ms to send one to each.
const LARGE: usize = 900_000;

fn settings() -> Config {
    Config { control: Control::None, line_rate_bps: 10 * GBIT, ..Config::default() }
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
        // Of 12,640 packets of responses, before clients have learnt how long they wait.
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
