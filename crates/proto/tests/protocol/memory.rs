//! Memory of requests that arrive (ADR 36): what a client can reserve, who waits, and what ends.

use std::sync::Arc;

use courser_buf::{Arena, ArenaConfig, Heap};
use courser_proto::{CallError, Config, Control, Executed, Recovery, SessionId, Status};

use crate::support::forge::Forge;
use crate::support::{Action, DPP, Link, Node, World, config, pattern};

const MS: u64 = 1_000_000;
const MIB: usize = 1 << 20;
const BIG: u32 = 8 << 20;

/// Sixteen slots, so that a session has sixteen requests of several packets.
fn wide() -> Config {
    Config { slots: 16, recovery: Recovery::Selective, ..config() }
}

fn with_memory(w: &mut World, node: usize, cfg: Config, limit_bytes: usize) {
    let limits = ArenaConfig { data_per_packet: DPP, limit_bytes, headroom: 0 };
    let arena = Arena::new(Arc::new(Heap::default()), limits).unwrap();
    w.nodes[node] = Node::with_arena(node, cfg, arena);
}

/// The first packets of 224 requests of 8 MiB, from one client.
fn announce(w: &mut World) -> (Vec<SessionId>, Vec<Forge>) {
    let (sessions, forges): (Vec<_>, Vec<_>) = (0..14).map(|_| w.connect_forge(0, 1)).unzip();
    for f in &forges {
        for slot in 0..16 {
            w.inject(0, 1, &f.request(slot, BIG, 0, &[1; DPP]));
        }
    }
    (sessions, forges)
}

#[test]
fn announcing_large_requests_reserves_little_and_not_for_long() {
    for control in [Control::TwoWindow, Control::None] {
        let cfg = Config { control, ..wide() };
        let mut w = World::pair(cfg.clone());
        w.filter = Some(Box::new(|_, _| false));
        let begin_ns = w.now_ns;
        let (_, forges) = announce(&mut w);
        let held = w.ep(1).memory().held_bytes;
        assert!(held <= 40 * MIB, "{} MiB", held / MIB);
        // Repeating them reserves nothing more.
        for f in &forges {
            w.inject(0, 1, &f.request(0, BIG, 0, &[1; DPP]));
        }
        assert_eq!(w.ep(1).memory().held_bytes, held);
        w.run_until(begin_ns + 2 * cfg.datapath_timeout_ns);
        w.settle();
        assert_eq!(w.ep(1).memory().held_bytes, 0);
        // The others were refused at once.
        assert!((20..224).contains(&w.ep(1).stats().requests_given_up));
        assert_eq!(w.ep(1).next_deadline(), None, "nothing is left to check");
    }
}

#[test]
fn announcing_small_requests_reserves_the_share_of_a_client() {
    let mut w = World::pair(wide());
    with_memory(&mut w, 1, Config { max_held_per_peer: usize::MAX, ..wide() }, 256 * MIB);
    w.filter = Some(Box::new(|_, _| false));
    let begin_ns = w.now_ns;
    for _ in 0..200 {
        let (_, forge) = w.connect_forge(0, 1);
        for slot in 0..16 {
            w.inject(0, 1, &forge.request(slot, 16 << 10, 0, &[1; DPP]));
        }
    }
    let held = w.ep(1).memory().held_bytes;
    // 16 MiB whose data is missing, and what has arrived: a fifteenth, which allows as much again.
    assert!((16 * MIB..=20 * MIB).contains(&held), "{} KiB of 50 MiB", held >> 10);
    w.run_until(begin_ns + 2 * wide().datapath_timeout_ns);
    w.settle();
    assert_eq!(w.ep(1).memory().held_bytes, 0);
}

#[test]
fn a_client_that_announces_large_requests_does_not_keep_others_out() {
    let mut w = World::new(&[wide(), wide(), wide()], 1);
    w.processes = true;
    announce(&mut w);
    let honest = w.connect(2, 1);
    for id in 0..8 {
        w.call(2, honest, id, MIB);
    }
    let begin_ns = w.now_ns;
    assert!(w.finish(2, 8).iter().all(|d| d.result.is_ok()));
    assert!(w.now_ns < begin_ns + wide().datapath_timeout_ns / 2, "they waited for the others");
}

#[test]
fn a_client_that_stops_makes_its_call_again() {
    let mut w = World::pair(wide());
    let (s, _) = w.connect_forge(0, 1);
    let mut packets = 0;
    w.filter = Some(Box::new(move |from, _| {
        packets += u32::from(from == 0);
        from == 1 || packets <= 10
    }));
    w.call(0, s, 1, 100 * DPP);
    w.run_until(MS);
    assert!(w.ep(1).memory().held_bytes > 0);
    // As if the client's thread did not run: its timers are late.
    let late_ns = w.now_ns + 2 * wide().datapath_timeout_ns;
    w.ep(1).on_deadline(late_ns);
    w.pump();
    assert_eq!((w.ep(1).memory().held_bytes, w.ep(1).stats().requests_given_up), (0, 1));
    w.filter = None;
    // The server has dropped the request, and states that when the client continues.
    assert!(w.finish(0, 1)[0].result.is_ok());
    assert_eq!((w.ep(0).stats().held_back, w.nodes[1].executed[&1]), (1, 1));
}

/// Eight calls of 8 MiB of these clients to a server with this memory; returns the time that they
/// take, ns.
fn run(cfg: &Config, link: Link, memory: usize, clients: usize) -> (World, u64) {
    let calls = 8 / clients as u16;
    let mut w = World::new(&vec![cfg.clone(); clients + 1], 7);
    w.processes = true;
    with_memory(&mut w, 0, cfg.clone(), memory);
    w.nodes[0].handler = Box::new(|id, req| {
        assert!(req == pattern(id.into(), req.len()), "request {id} arrived changed");
        Action::Reply(vec![1])
    });
    let sessions: Vec<_> = (1..=clients).map(|client| (client, w.connect(client, 0))).collect();
    w.link = link;
    let begin_ns = w.now_ns;
    for (client, s) in &sessions {
        for id in 0..calls {
            w.call(*client, *s, (*client * 100) as u16 + id, BIG as usize);
        }
    }
    for (client, _) in &sessions {
        for d in w.finish(*client, calls.into()) {
            assert_eq!(d.result, Ok(vec![1]), "call {}", d.id);
        }
    }
    let took_ns = w.now_ns - begin_ns;
    w.settle();
    assert_eq!(w.ep(0).memory().held_bytes, 0, "all of it has returned");
    (w, took_ns)
}

#[test]
fn requests_of_twice_the_memory_arrive_one_after_the_other() {
    for control in [Control::TwoWindow, Control::None] {
        let cfg = Config { control, datapath_timeout_ns: 2_000 * MS, ..wide() };
        let (mut w, enough_ns) = run(&cfg, Link::perfect(), 1 << 30, 1);
        assert_eq!(w.ep(0).stats().requests_given_up, 0);
        let (mut w, half_ns) = run(&cfg, Link::perfect(), 32 * MIB, 1);
        assert!(w.ep(0).stats().requests_waited > 0);
        // The credits of the session bound both. Goodput of at least 0.85 of that with memory for all.
        assert!(half_ns * 85 <= enough_ns * 100, "{control:?}: {half_ns} ns, {enough_ns} ns");
        let (again, sent) = (w.ep(1).stats().retransmitted, w.ep(1).stats().tx_packets);
        assert!(again * 20 <= sent, "{again} of {sent} packets were sent again");
    }
}

#[test]
fn requests_that_wait_survive_losses_with_every_recovery() {
    for recovery in [Recovery::Selective, Recovery::Melo, Recovery::GoBackN, Recovery::GoBackNNack]
    {
        let cfg = Config { recovery, datapath_timeout_ns: 5_000 * MS, ..wide() };
        let link = Link { loss: 2_000, reorder: 2_000, late_ns: 20_000, ..Link::perfect() };
        run(&cfg, link, 32 * MIB, 2);
    }
}

/// A request that waits for longer than the timeout keeps its place and what has arrived, although
/// go-back-0 begins a request again after a timeout.
#[test]
fn requests_that_wait_are_not_begun_again_with_go_back_0() {
    for control in [Control::TwoWindow, Control::None] {
        let recovery = Recovery::GoBackZero;
        let cfg = Config { recovery, control, datapath_timeout_ns: 100 * MS, ..wide() };
        let (mut w, _) = run(&cfg, Link::perfect(), 32 * MIB, 2);
        assert!(w.ep(0).stats().requests_waited > 0);
        let (again, sent) = (w.ep(1).stats().retransmitted, w.ep(1).stats().tx_packets);
        assert!(again * 20 <= sent, "{control:?}: {again} of {sent} packets were sent again");
    }
}

/// A request that was admitted is not admitted again when go-back-0 begins it again.
#[test]
fn a_request_that_is_begun_again_keeps_its_memory_and_its_turn() {
    let mut w = World::pair(Config { recovery: Recovery::GoBackZero, ..wide() });
    w.filter = Some(Box::new(|_, _| false));
    let (_, f) = w.connect_forge(0, 1);
    let send = |w: &mut World, index| w.inject(0, 1, &f.request(0, BIG, index, &[1; DPP]));
    (0..3).for_each(|index| send(&mut w, index));
    for slot in 1..16 {
        w.inject(0, 1, &f.request(slot, BIG, 0, &[1; DPP]));
    }
    let figures = |w: &mut World| {
        let stats = w.ep(1).stats();
        let counts = (stats.requests_waited, stats.requests_refused);
        (w.ep(1).memory().held_bytes, counts)
    };
    let before = figures(&mut w);
    assert!(before.1.0 > 0, "later ones of the same client wait: {before:?}");
    for _ in 0..3 {
        let packets = w.ep(1).stats().rx_packets;
        (0..3).for_each(|index| send(&mut w, index));
        assert_eq!(w.ep(1).stats().rx_packets, packets + 3, "it begins again");
        assert_eq!(figures(&mut w), before);
        w.ep(1).check();
    }
}

#[test]
fn requests_that_wait_survive_losses_with_go_back_0() {
    let recovery = Recovery::GoBackZero;
    let cfg = Config { recovery, datapath_timeout_ns: 5_000 * MS, ..wide() };
    let (mut w, _) = run(&cfg, Link { loss: 50, ..Link::perfect() }, 32 * MIB, 2);
    assert!(w.ep(0).stats().requests_waited > 0);
    assert!(w.ep(1).stats().retransmitted + w.ep(2).stats().retransmitted > 1_000, "begun again");
}

#[test]
fn small_calls_pass_while_requests_wait_for_memory() {
    let cfg = Config { credits: 8, datapath_timeout_ns: 1_000 * MS, ..wide() };
    let mut w = World::pair(cfg);
    let s = w.connect(0, 1);
    // Handlers that do not answer hold the memory that a client may have.
    w.nodes[1].handler = Box::new(|id, _| match id {
        0..100 => Action::Forget,
        _ => Action::Reply(vec![2]),
    });
    w.nodes[1].ep.check();
    for id in 0..12 {
        w.call(0, s, id, BIG as usize);
    }
    w.run_until(w.now_ns + 5 * MS);
    for id in 100..120 {
        w.call(0, s, id, 10);
        let begin_ns = w.now_ns;
        let done = w.finish(0, 1);
        assert_eq!((done[0].id, &done[0].result), (id.into(), &Ok(vec![2])));
        assert!(w.now_ns < begin_ns + MS, "{} ns", w.now_ns - begin_ns);
    }
}

#[test]
fn a_request_waits_for_memory_for_a_limited_time() {
    let cfg = wide();
    let mut w = World::pair(cfg.clone());
    with_memory(&mut w, 1, cfg.clone(), 20 * MIB);
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|id, _| match id {
        0 => Action::Forget,
        _ => Action::Reply(vec![2]),
    });
    w.call(0, s, 0, BIG as usize);
    w.run_until(w.now_ns + 30 * MS);
    assert_eq!(w.nodes[1].executed.len(), 1);
    assert_eq!(w.ep(1).stats().requests_waited, 0);
    let begin_ns = w.now_ns;
    w.call(0, s, 1, BIG as usize);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::Server(Status::NoMemory)));
    assert!(w.now_ns >= begin_ns + cfg.datapath_timeout_ns);
    // A call that is refused costs one packet, not its data, once the client knows.
    let before = w.ep(0).stats().tx_packets;
    w.call(0, s, 2, BIG as usize);
    w.run_until(w.now_ns + MS);
    let sent = w.ep(0).stats().tx_packets - before;
    assert!(sent <= 4, "{sent} packets");
    let id = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(id, b"well").unwrap();
    let done = w.finish(0, 2);
    assert!(done.iter().all(|d| d.result.is_ok()), "it had its turn");
}

/// A server whose memory holds two requests of 2 MiB, one of a client, and a session with few credits:
/// three requests can wait at the server.
fn scarce(loss: u32, timeout_ns: u64) -> (World, SessionId) {
    let cfg = Config { credits: 8, datapath_timeout_ns: timeout_ns, ..wide() };
    let mut w = World::pair(cfg.clone());
    with_memory(&mut w, 1, cfg, 5 * MIB);
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![1]));
    let s = w.connect(0, 1);
    w.link = Link { loss, ..Link::perfect() };
    (w, s)
}

#[test]
fn calls_that_are_refused_are_made_again_until_they_have_run_once() {
    for loss in [0, 2_000] {
        let (mut w, s) = scarce(loss, 300 * MS);
        for id in 0..40 {
            w.call(0, s, id, 2 * MIB);
        }
        let done = w.finish(0, 40);
        assert!(done.iter().all(|d| d.result == Ok(vec![1])), "{loss}");
        assert!(w.ep(0).stats().held_back > 0);
        assert!(w.nodes[1].executed.len() == 40, "all have run");
        assert!(w.nodes[1].executed.values().all(|&times| times == 1), "none has run twice");
        w.settle();
        assert_eq!(w.ep(1).memory().held_bytes, 0);
        assert_eq!(w.ep(0).next_deadline(), None, "nothing is held back");
    }
}

#[test]
fn a_call_that_is_held_back_goes_before_later_calls() {
    let timeout_ns = 60 * MS;
    let (mut w, s) = scarce(0, timeout_ns);
    for id in 0..16 {
        w.call(0, s, id, 2 * MIB);
    }
    // As soon as a call ends the next one is made, for longer than a call is held back at most.
    let (mut next, end_ns) = (16_u16, w.now_ns + 2 * timeout_ns);
    while w.now_ns < end_ns {
        for d in w.finish(0, 1) {
            assert_eq!(d.result, Ok(vec![1]), "call {}", d.id);
            assert!(d.id + 32 > u64::from(next), "call {} was overtaken until {next}", d.id);
            w.call(0, s, next, 2 * MIB);
            next += 1;
        }
    }
    assert!(w.finish(0, 16).iter().all(|d| d.result.is_ok()));
    // In the steady state hardly a request is sent in vain.
    let refused = w.ep(0).stats().held_back;
    assert!(refused < 16 + u64::from(next) / 2, "{refused} refusals, {next} calls");
}

#[test]
fn calls_that_are_held_back_end_at_their_deadline_or_when_they_are_cancelled() {
    let (mut w, s) = scarce(0, 300 * MS);
    w.nodes[1].handler = Box::new(|id, _| match id {
        0 => Action::Forget,
        _ => Action::Reply(vec![1]),
    });
    for id in 0..4 {
        w.call(0, s, id, 2 * MIB); // one is with its handler, three wait at the server
    }
    w.run_until(w.now_ns + 20 * MS);
    let end_ns = w.now_ns + 50 * MS;
    w.call_within(0, s, 5, 2 * MIB, 50 * MS);
    let cancelled = w.call(0, s, 6, 2 * MIB);
    w.run_until(w.now_ns + 20 * MS);
    assert!(w.ep(0).stats().held_back > 0);
    assert!(w.ep(0).cancel(cancelled));
    assert_eq!(w.finish(0, 1)[0].result, Err(CallError::Cancelled(Executed::Never)));
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::DeadlineExceeded(Executed::Never)));
    assert!((end_ns..end_ns + 2 * MS).contains(&w.now_ns));
    // Their slots can be used again.
    let request = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(request, b"well").unwrap();
    w.call(0, s, 7, 2 * MIB);
    assert!(w.finish(0, 5).iter().all(|d| d.result.is_ok()));
    assert!(!w.nodes[1].executed.contains_key(&5) && !w.nodes[1].executed.contains_key(&6));
}

#[test]
fn calls_that_are_held_back_end_with_their_session() {
    let (mut w, s) = scarce(0, 300 * MS);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    for id in 0..16 {
        w.call(0, s, id, 2 * MIB);
    }
    w.run_until(w.now_ns + 20 * MS);
    assert!(w.ep(0).stats().held_back > 0);
    let mut paths = Vec::new();
    w.ep(0).peer_lost(7, &mut paths);
    w.pump();
    assert_eq!(w.finish(0, 16).len(), 16);
    w.ep(0).check();
    let timeout_ns = w.ep(0).config().datapath_timeout_ns;
    w.run_until(w.now_ns + timeout_ns);
    assert_eq!(w.ep(0).next_deadline(), None, "nothing is held back");
}

/// Calls that the server never takes, with others on the same session that wait for slots: all end
/// together, and one that it takes does not wait for them.
#[test]
fn calls_that_are_always_refused_end_together_and_block_no_other() {
    let cfg = wide();
    let mut w = World::pair(cfg.clone());
    with_memory(&mut w, 1, cfg.clone(), 4 * MIB);
    let s = w.connect(0, 1);
    let begin_ns = w.now_ns;
    for id in 0..40 {
        w.call(0, s, id, BIG as usize);
    }
    let other = w.connect(0, 1);
    w.call(0, other, 40, 3 * DPP);
    let done = w.finish(0, 1);
    assert_eq!((done[0].id, done[0].result.is_ok()), (40, true));
    assert!(w.now_ns - begin_ns < cfg.datapath_timeout_ns, "it waited for the others");
    let done = w.finish(0, 40);
    assert!(done.iter().all(|d| d.result == Err(CallError::Server(Status::NoMemory))));
    let took_ns = w.now_ns - begin_ns;
    assert!(took_ns < 6 * cfg.datapath_timeout_ns, "{took_ns}");
}

#[test]
fn a_call_that_is_always_refused_ends_with_the_error_after_the_timeout() {
    let cfg = wide();
    let mut w = World::pair(cfg.clone());
    with_memory(&mut w, 1, cfg.clone(), 4 * MIB);
    let s = w.connect(0, 1);
    let begin_ns = w.now_ns;
    w.call(0, s, 0, BIG as usize);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::Server(Status::NoMemory)));
    let took_ns = w.now_ns - begin_ns;
    assert!((cfg.datapath_timeout_ns..4 * cfg.datapath_timeout_ns).contains(&took_ns), "{took_ns}");
    let sent = w.ep(0).stats().tx_packets;
    assert!(sent < 100, "{sent} packets");
}
