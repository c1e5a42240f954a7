//! Limits: sessions, credits, queues, message sizes, memory.

use std::sync::Arc;

use courser_buf::{Arena, ArenaConfig, Heap, PathId};
use courser_proto::{
    Admission, CallError, Config, ConnectError, ConnectRefuseReason, RejectReason, ReplyError,
    SessionId, Status,
};

use crate::support::{Action, DPP, Node, World, addr, config, pattern, port};

fn small_arena(limit_bytes: usize) -> Arena {
    let cfg = ArenaConfig { data_per_packet: DPP, limit_bytes, headroom: 0 };
    Arena::new(Arc::new(Heap::default()), cfg).unwrap()
}

#[test]
fn strict_admission_takes_queue_over_credits_sessions() {
    // E34: |RQ| / C = 100 / 32 = 3, of both roles together.
    let server = Config { admission: Admission::Strict, rx_queue_frames: 100, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let kept: Vec<_> = (0..3).map(|_| w.connect(0, 1)).collect();
    let refused = w.try_connect(0, 1, 9).unwrap_err();
    assert_eq!(refused, ConnectRefuseReason::NoCredits { queue: 100, credits: 32 });
    let own = w.ep(1).dial(7, 9, port(1), 1472).unwrap_err();
    assert_eq!(own, ConnectError::NoCredits { queue: 100, credits: 32 });
    // The end of a session makes room for another.
    let (remote, _) = w.ep(0).close(kept[1]).unwrap();
    w.ep(1).disconnected(remote, 0xe0, 7);
    w.connect(0, 1);
    assert!(w.try_connect(0, 1, 9).is_err());
    assert_eq!(w.ep(0).live_sessions(), 3, "a refused connect leaves nothing");
}

/// A client endpoint's pool: its size, and the unused part.
fn pool(w: &mut World, node: usize, s: SessionId) -> (u32, u32) {
    let figures = w.ep(node).session_stats(s).unwrap();
    (figures.pool, figures.pool_left)
}

#[test]
fn oversubscribed_sessions_share_what_the_queue_holds() {
    // ADR 7, E36: each session may have C in flight, all together half of the queue.
    let server = Config { rx_queue_frames: 64, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let sessions: Vec<_> = (0..20).map(|_| w.connect(0, 1)).collect();
    for &s in &sessions {
        assert_eq!(w.ep(0).session_stats(s).unwrap().credit_limit, 32);
        assert_eq!(pool(&mut w, 0, s), (32, 32));
    }
    assert_eq!((w.ep(0).credits_granted(), w.ep(1).credits_granted()), (32, 32));
    for (id, &s) in sessions.iter().enumerate() {
        w.call(0, s, id as u16, 50 * DPP);
    }
    w.step();
    assert_eq!(pool(&mut w, 0, sessions[0]).1, 0, "all of it is in flight");
    assert!(w.finish(0, 20).iter().all(|d| d.result == Ok(pattern(d.id, 50 * DPP))));
    assert!(w.ep(0).stats().pool_waits >= 19);
    w.settle();
    assert_eq!(pool(&mut w, 0, sessions[0]), (32, 32), "all of it is home");
}

#[test]
fn a_pool_of_one_credit_serves_every_session() {
    let server = Config { rx_queue_frames: 1, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let sessions: Vec<_> = (0..50).map(|_| w.connect(0, 1)).collect();
    for round in 0..3 {
        for (id, &s) in sessions.iter().enumerate() {
            w.call(0, s, round * 50 + id as u16, 100);
        }
    }
    assert_eq!(pool(&mut w, 0, sessions[7]), (1, 1));
    // All requests are small, and so they leave in the order of the queue.
    let order: Vec<u64> = w.finish(0, 150).iter().map(|d| d.id).collect();
    assert!(order[..50].iter().all(|id| *id < 50), "{order:?}");
    assert_eq!(w.ep(1).credits_granted(), 1);
}

#[test]
fn a_large_message_does_not_starve_the_small_ones_of_other_sessions() {
    let server = Config { rx_queue_frames: 8, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let (bulk, small) = (w.connect(0, 1), w.connect(0, 1));
    w.call(0, bulk, 999, 1_000 * DPP);
    w.step();
    for id in 0..20 {
        w.call(0, small, id, 10);
        assert_eq!(w.finish(0, 1)[0].id, u64::from(id), "the large one was first");
    }
    assert_eq!(w.finish(0, 1)[0].id, 999);
}

#[test]
fn a_session_that_waits_may_be_closed() {
    let server = Config { rx_queue_frames: 2, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let sessions: Vec<_> = (0..6).map(|_| w.connect(0, 1)).collect();
    for (id, &s) in sessions.iter().enumerate() {
        w.call(0, s, id as u16, 3 * DPP);
    }
    w.step();
    // The first in the queue, one in the middle, and the last.
    for &at in &[1, 3, 5] {
        let (remote, _) = w.ep(0).close(sessions[at]).unwrap();
        w.ep(1).disconnected(remote, 0xe0, 7);
        w.ep(0).check();
    }
    let done = w.finish(0, 6);
    assert_eq!(done.iter().filter(|d| d.result.is_ok()).count(), 3);
    w.settle();
    assert_eq!(pool(&mut w, 0, sessions[0]), (1, 1));
}

#[test]
fn pools_of_many_peers_fit_the_queue_and_go_with_them() {
    let mut configs = vec![Config { rx_queue_frames: 64, ..config() }];
    configs.extend((0..12).map(|_| config()));
    let mut w = World::new(&configs, 1);
    let sessions: Vec<_> = (1..=12).map(|client| (client, w.connect(client, 0))).collect();
    let pools: Vec<u32> = sessions.iter().map(|&(node, s)| pool(&mut w, node, s).0).collect();
    // Half of the remaining room, and one when there is none.
    assert_eq!(pools, [32, 16, 8, 4, 2, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(w.ep(0).credits_granted(), 64 + 5);
    for &(node, s) in &sessions {
        w.call(node, s, node as u16, 20 * DPP);
    }
    for node in 1..=12 {
        assert!(w.finish(node, 1)[0].result.is_ok());
    }
    for (node, s) in sessions {
        let (remote, _) = w.ep(node).close(s).unwrap();
        w.ep(0).disconnected(remote, 0xe0 + node as u64, 7);
        assert_eq!(w.ep(node).credits_granted(), 0);
    }
    assert_eq!(w.ep(0).credits_granted(), 0);
}

#[test]
fn with_a_queue_per_peer_pools_do_not_reduce_each_other() {
    let own = Config { rx_queue_frames: 65, rx_queue_per_peer: true, ..config() };
    let mut w = World::new(&vec![own; 6], 1);
    // All directions between 0 and the others, one after the other, each requesting more than it
    // gets.
    let pairs = (1..6).flat_map(|n| [(n, 0), (0, n), (n, 0), (0, n)]);
    let sessions: Vec<_> = pairs.map(|(from, to)| (from, w.connect(from, to))).collect();
    for &(node, s) in &sessions {
        assert_eq!(pool(&mut w, node, s), (32, 32));
    }
    assert_eq!(w.ep(0).credits_granted(), 5 * 64);
    for (id, &(node, s)) in sessions.iter().enumerate() {
        w.call(node, s, id as u16, 50 * DPP);
    }
    for (node, calls) in [(0, 10), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2)] {
        assert!(w.finish(node, calls).iter().all(|d| d.result.is_ok()));
    }
}

#[test]
fn crossing_connects_stay_within_the_queue_of_their_peer() {
    // Each side dials before the other's request arrives, so each has the other as two peers.
    let own = Config { rx_queue_frames: 64, rx_queue_per_peer: true, ..config() };
    let mut w = World::pair(own);
    let dialed: Vec<_> = (0..6).map(|n| (n % 2, w.dial(n % 2, 5 + n as u64))).collect();
    let accepted: Vec<_> =
        dialed.iter().map(|(n, d)| w.accept(1 - n, *n, &d.request).unwrap()).collect();
    let mut sessions = Vec::new();
    for ((n, d), a) in dialed.iter().zip(&accepted) {
        let path = courser_buf::PathId((1 - n) as u32);
        w.ep(*n).established(a, crate::support::addr(1 - n), path).unwrap();
        sessions.push((*n, d.session));
    }
    sessions.extend((0..6).map(|n| (n % 2, w.connect(n % 2, 1 - n % 2))));
    for node in [0, 1] {
        // One half for the requests of each side, and one for every further peer that needs one.
        let granted = w.ep(node).credits_granted();
        assert!((64..=64 + 6).contains(&granted), "{granted}");
        w.ep(node).check();
    }
    for (id, &(node, s)) in sessions.iter().enumerate() {
        w.call(node, s, id as u16, 50 * DPP);
    }
    for node in [0, 1] {
        assert!(w.finish(node, 6).iter().all(|d| d.result.is_ok()));
    }
}

#[test]
fn strict_admission_counts_all_peers_even_with_a_queue_per_peer() {
    // The capacity of a queue is divided before a client's peer is known.
    let server = Config {
        admission: Admission::Strict,
        rx_queue_frames: 100,
        rx_queue_per_peer: true,
        ..config()
    };
    let mut w = World::new(&[config(), server, config()], 1);
    for client in [0, 2, 0] {
        w.connect(client, 1);
    }
    for client in [0, 2] {
        let refused = w.try_connect(client, 1, 9).unwrap_err();
        assert_eq!(refused, ConnectRefuseReason::NoCredits { queue: 100, credits: 32 });
    }
}

#[test]
fn a_pool_shrinks_with_its_sessions_equally_on_both_sides() {
    let server = Config { rx_queue_frames: 100, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let sessions: Vec<_> = (0..4).map(|_| w.connect(0, 1)).collect();
    assert_eq!(pool(&mut w, 0, sessions[0]).0, 50);
    let mut left = Vec::new();
    for &s in &sessions[1..] {
        let (remote, _) = w.ep(0).close(s).unwrap();
        w.ep(1).disconnected(remote, 0xe0, 7);
        let pool = pool(&mut w, 0, sessions[0]).0;
        assert_eq!(u64::from(pool), w.ep(1).credits_granted());
        left.push(pool);
    }
    assert_eq!(left, [50, 50, 32]);
}

#[test]
fn the_session_table_has_a_limit() {
    let mut w = World::new(&[config(), Config { max_sessions: 2, ..config() }], 1);
    w.connect(0, 1);
    w.connect(0, 1);
    let refused = w.try_connect(0, 1, 9).unwrap_err();
    assert_eq!(refused, ConnectRefuseReason::TooManySessions { limit: 2 });
    let own = w.ep(1).dial(7, 9, port(1), 1472).unwrap_err();
    assert_eq!(own, ConnectError::TooManySessions { limit: 2 });
}

#[test]
fn a_full_queue_rejects_with_the_buffer() {
    let mut w = World::pair(Config { slots: 2, call_queue: 3, ..config() });
    let s = w.connect(0, 1);
    for id in 0..5 {
        w.call(0, s, id, 10);
    }
    // `support` checks that the buffer and the continuation are returned.
    assert_eq!(w.try_call(0, s, 5, 10), Err(RejectReason::QueueFull { limit: 3 }));
    assert_eq!(w.finish(0, 5).len(), 5);
    w.call(0, s, 6, 10);
    assert_eq!(w.finish(0, 1).len(), 1);
}

#[test]
fn sizes_are_limited_both_ways() {
    let server = Config { max_msg_size: 5_000, ..config() };
    let mut w = World::new(&[Config { max_msg_size: 9_000, ..config() }, server], 1);
    let s = w.connect(0, 1);
    let rejected = w.try_call(0, s, 0, 5_001).unwrap_err();
    assert_eq!(rejected, RejectReason::TooLarge { bytes: 5_001, limit: 5_000 });
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![0; 5_001]));
    w.call(0, s, 1, 5_000);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::Server(Status::ResponseFailed)));
    // The client's own limit applies as well, and the server's handler has run.
    let client = w.connect(1, 0);
    w.nodes[0].handler = Box::new(|_, _| Action::Forget);
    w.call(1, client, 2, 10);
    w.step();
    let id = w.nodes[0].requests[0];
    let refused = w.ep(0).reply_bytes(id, &[0; 6_000]);
    assert_eq!(refused, Err(ReplyError::TooLarge { bytes: 6_000, limit: 5_000 }));
    w.finish(1, 1);
}

#[test]
fn calls_that_waited_for_the_handshake_meet_the_servers_limit() {
    let mut w = World::new(&[config(), Config { max_msg_size: 1_000, ..config() }], 1);
    let d = w.dial(0, 5);
    for (id, len) in [(0, 1_000), (1, 1_001), (2, 10_000)] {
        w.call(0, d.session, id, len);
    }
    let a = w.accept(1, 0, &d.request).unwrap();
    let path = courser_buf::PathId(1);
    w.ep(0).established(&a, crate::support::addr(1), path).unwrap();
    let mut done = w.finish(0, 3);
    done.sort_by_key(|d| d.id);
    assert!(done[0].result.is_ok());
    for d in &done[1..] {
        assert_eq!(d.result, Err(CallError::Server(Status::TooLarge)), "{}", d.id);
    }
    assert!(w.nodes[1].executed.keys().eq(&[0]));
    assert_eq!(w.ep(1).stats().requests_refused, 2);
}

#[test]
fn a_server_without_memory_answers_with_no_memory() {
    let mut w = World::pair(config());
    w.nodes[1] = Node::with_arena(1, config(), small_arena(4 << 20));
    let s = w.connect(0, 1);
    w.call(0, s, 0, 6 << 20);
    w.call(0, s, 1, 100);
    let mut done = w.finish(0, 2);
    done.sort_by_key(|d| d.id);
    assert_eq!(done[0].result, Err(CallError::Server(Status::NoMemory)));
    assert!(done[1].result.is_ok());
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![0; 6 << 20]));
    w.call(0, s, 2, 100);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::Server(Status::ResponseFailed)));
}

#[test]
fn a_client_without_memory_fails_the_call_and_acknowledges_the_response() {
    let mut w = World::pair(config());
    w.nodes[0] = Node::with_arena(0, config(), small_arena(4 << 20));
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![0; 6 << 20]));
    let s = w.connect(0, 1);
    w.call(0, s, 0, 100);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::NoMemory { response_bytes: 6 << 20 }));
    w.settle();
    assert!(w.nodes[1].arena.stats().in_use_bytes < 1 << 20);
}

#[test]
fn a_response_too_large_for_its_client_is_acknowledged() {
    // An honest server does not send one; it is acknowledged all the same.
    let mut w = World::pair(Config { max_msg_size: 5_000, ..config() });
    let (s, f) = w.connect_forge(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    w.call(0, s, 0, 100);
    w.step();
    w.inject(1, 0, &f.response(0, 6_000, 0, &[0; DPP]));
    let error = CallError::ResponseTooLarge { response_bytes: 6_000, limit: 5_000 };
    assert_eq!(w.finish(0, 1)[0].result, Err(error));
    w.tracing = true;
    w.settle();
    assert_eq!(w.story(), ["0: ACK 0"]);
}

#[test]
fn an_exhausted_arena_causes_no_busy_loop_and_recovers() {
    let arena = small_arena(2 << 20);
    let mut w = World::pair(config());
    w.nodes[0] = Node::with_arena(0, config(), arena.clone());
    let s = w.connect(0, 1);
    w.call(0, s, 0, 100);
    w.call(0, s, 1, 100);
    let hog: Vec<_> = std::iter::from_fn(|| arena.alloc(1_400).ok()).collect();
    assert!(!hog.is_empty());
    // The transport holds the only staging buffer.
    w.ep(0).poll_transmit(|| 1_000, &mut Default::default(), |_, _| false);
    let mut held = courser_buf::TxBurst::new();
    w.call(0, s, 2, 0);
    w.ep(0).poll_transmit(|| 2_000, &mut held, |_, _| false);
    w.call(0, s, 3, 0);
    let mut none = courser_buf::TxBurst::new();
    w.ep(0).poll_transmit(|| 3_000, &mut none, |_, _| false);
    assert_eq!((held.len(), none.len()), (1, 0));
    let due = w.ep(0).next_deadline().unwrap();
    assert!(due > 3_000, "due at once would be a busy loop");
    drop(held);
    w.ep(0).on_deadline(due.max(60_000));
    assert_eq!(w.ep(0).next_deadline(), Some(0));
    w.now_ns = 60_000;
    assert_eq!(w.finish(0, 4).len(), 4, "one staging buffer is enough, though slow");
}

#[test]
fn a_message_of_64_mib() {
    let big = Config { max_msg_size: 64 << 20, train_frames: 16, ..config() };
    let mut w = World::pair(big);
    let s = w.connect(0, 1);
    w.call(0, s, 0, 64 << 20);
    let done = w.finish(0, 1);
    assert!(done[0].result.as_ref().is_ok_and(|r| *r == pattern(0, 64 << 20)));
}

/// All connects are under way at the same time, so that every endpoint has asked 53 others for
/// credits before the first one asks it.
#[test]
fn fifty_four_endpoints_that_all_connect_at_once_share_their_queues() {
    const HOSTS: usize = 54;
    let config = Config { credits: 3_500, rx_queue_frames: 65_535, ..config() };
    let mut w = World::new(&vec![config; HOSTS], 1);
    let pairs =
        || (0..HOSTS).flat_map(|a| (0..HOSTS).filter(move |&b| a != b).map(move |b| (a, b)));
    let dialed: Vec<_> = pairs().map(|(a, b)| w.dial(a, (a * HOSTS + b) as u64)).collect();
    let accepted: Vec<_> = pairs()
        .zip(&dialed)
        .map(|((client, server), d)| w.accept(server, client, &d.request).unwrap())
        .collect();
    for ((client, server), a) in pairs().zip(&accepted) {
        w.ep(client).established(a, addr(server), PathId(server as u32)).unwrap();
    }
    let mut pools = Vec::new();
    for ((client, _), d) in pairs().zip(&dialed) {
        pools.push(w.ep(client).session_stats(d.session).unwrap().pool);
    }
    for node in 0..HOSTS {
        w.ep(node).check();
    }
    let least = pools.iter().min().unwrap();
    assert!(*least >= 8, "the smallest pool has {least} credits");
}
