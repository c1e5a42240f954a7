//! Slow handlers, wrapping request numbers, freed responses.

use courser_proto::{Config, Control, Recovery, SessionId};

use crate::support::{Action, DPP, World, config, pattern};

fn slow(after_ns: u64, len: usize) -> (World, SessionId) {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.nodes[1].handler =
        Box::new(move |id, _| Action::Defer(after_ns, pattern(u64::from(id) + 9, len)));
    w.tracing = true;
    (w, s)
}

#[test]
fn a_slow_handler_is_in_progress_and_runs_once() {
    // ADR 5: 10 ms are a hundred timeouts; each retry is answered, and retries become rare.
    for len in [10, 5 * DPP] {
        let (mut w, s) = slow(10_000_000, 10);
        w.call(0, s, 1, len);
        let done = w.finish(0, 1);
        assert_eq!(done[0].result, Ok(pattern(10, 10)));
        assert_eq!(w.nodes[1].executed[&1], 1);
        let in_progress = w.ep(1).stats().in_progress_sent;
        assert!((3..20).contains(&in_progress), "{in_progress}");
        assert_eq!(w.trace.iter().filter(|p| p.text.ends_with('!')).count() as u64, in_progress);
    }
}

#[test]
fn a_slow_handler_leaves_the_window_alone_and_a_lost_call_does_not() {
    for recovery in [Recovery::GoBackN, Recovery::Selective] {
        let cfg = Config { control: Control::TwoWindow, recovery, ..config() };
        for len in [10, 5 * DPP] {
            let mut w = World::pair(cfg.clone());
            let s = w.connect(0, 1);
            w.nodes[1].handler = Box::new(|_, _| Action::Defer(20_000_000, vec![]));
            w.call(0, s, 1, len);
            w.finish(0, 1);
            let stats = w.ep(0).session_stats(s).unwrap();
            assert_eq!((stats.window, stats.decreases), (None, 0), "{recovery} {len}");
        }
        let mut w = World::pair(cfg);
        let s = w.connect(0, 1);
        w.call(0, s, 1, 10);
        w.finish(0, 1);
        let mut lost = 0;
        w.filter = Some(Box::new(move |from, _| {
            lost += u32::from(from == 0);
            from != 0 || lost > 4
        }));
        w.call(0, s, 2, 10);
        w.finish(0, 1);
        let stats = w.ep(0).session_stats(s).unwrap();
        assert_eq!(stats.decreases, 1, "{recovery}");
    }
}

#[test]
fn round_trips_do_not_contain_the_handler() {
    // ADR 5
    let (mut w, s) = slow(3_000_000, 10);
    for id in 0..10 {
        w.call(0, s, id, 10);
        w.finish(0, 1);
    }
    let stats = w.ep(0).session_stats(s).unwrap();
    assert_eq!(stats.rtt_min_ns, Some(2_000));
    assert!(stats.srtt_ns.unwrap() < 2_100, "{stats:?}");
    assert_eq!(stats.rto_ns, Some(config().rto_min_ns));
}

#[test]
fn a_fast_neighbour_does_not_wait_for_a_slow_handler() {
    // E31
    let (mut w, s) = slow(10_000_000, 10);
    w.nodes[1].handler = Box::new(|id, _| match id {
        0 => Action::Defer(10_000_000, vec![]),
        _ => Action::Reply(vec![]),
    });
    for id in 0..5 {
        w.call(0, s, id, 10);
    }
    let order: Vec<u64> = w.finish(0, 5).iter().map(|d| d.id).collect();
    assert_eq!(order, [1, 2, 3, 4, 0]);
}

#[test]
fn requests_that_are_long_with_their_handlers_hold_no_credits_of_the_others() {
    // A pool of one credit, and a timeout of up to a second: if the long ones held it until their
    // timeouts, a short one would take seconds.
    let client = Config { rto_max_ns: 1_000_000_000, ..config() };
    let server = Config { rx_queue_frames: 1, ..client.clone() };
    let mut w = World::new(&[client, server], 1);
    w.nodes[1].handler = Box::new(|id, _| match id {
        0..60 => Action::Defer(60_000_000_000, vec![]),
        _ => Action::Reply(vec![]),
    });
    let sessions: Vec<_> = (0..61).map(|_| w.connect(0, 1)).collect();
    for id in 0..60 {
        w.call(0, sessions[usize::from(id)], id, if id % 2 == 0 { 10 } else { 3 * DPP });
    }
    w.run_to(3_000_000_000);
    for id in 60..100 {
        let start_ns = w.now_ns;
        w.call(0, sessions[60], id, 10);
        assert_eq!(w.finish(0, 1)[0].id, u64::from(id));
        let took_ns = w.now_ns - start_ns;
        assert!(took_ns < 5_000_000, "call {id} took {took_ns} ns");
        let next_ns = w.now_ns + 20_000_000;
        w.run_to(next_ns);
    }
    let stats = w.ep(0).session_stats(sessions[60]).unwrap();
    assert_eq!((stats.pool, stats.pool_left), (1, 1), "between two probes");
}

#[test]
fn slots_take_turns_for_credits() {
    // E31: large messages share the credits of their session, and small ones do not wait for their
    // end.
    let mut w = World::pair(Config { credits: 2, ..config() });
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![]));
    let start = w.now_ns;
    for (id, packets) in [(0, 200), (1, 200), (2, 200)] {
        w.call(0, s, id, packets * DPP);
    }
    w.call(0, s, 3, 10);
    w.call(0, s, 4, 10);
    let first: Vec<u64> = w.finish(0, 2).iter().map(|d| d.id).collect();
    assert_eq!(first, [3, 4]);
    w.finish(0, 1);
    let one = w.now_ns - start;
    w.finish(0, 2);
    assert!(w.now_ns - start < one + one / 10, "three equal messages end together");
    assert_eq!(w.ep(0).stats().rollbacks, 0);
}

#[test]
fn waiting_for_credits_is_not_loss() {
    // The only credit is with a slow request, repeatedly; the large one then has nothing in flight
    // and nothing to roll back.
    let mut w = World::pair(Config { credits: 1, ..config() });
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|id, _| match id {
        0 => Action::Defer(5_000_000, vec![]),
        _ => Action::Reply(vec![]),
    });
    w.call(0, s, 0, 10);
    w.call(0, s, 1, 30 * DPP);
    w.finish(0, 2);
    let stats = w.ep(0).stats();
    assert!(stats.rollbacks <= stats.retransmitted, "{stats:?}");
}

#[test]
fn request_numbers_wrap_in_use() {
    let mut w = World::pair(config());
    let first = u32::MAX - 31;
    let (s, _) = w.try_connect(0, 1, u64::from(first) << 32 | 77).unwrap();
    w.link.loss = 100_000;
    w.link.duplicate = 100_000;
    w.tracing = true;
    for id in 0..200 {
        w.call(0, s, id, 10);
    }
    let done = w.finish(0, 200);
    assert!(done.iter().all(|d| d.result == Ok(pattern(d.id, 10))));
    assert!((0..200).all(|id| w.nodes[1].executed[&id] == 1));
    assert_eq!(w.trace[0].text, format!("REQ {first}#0/10"));
    assert!(w.trace.iter().any(|p| p.text == "REQ 0#0/10"));
}

#[test]
fn a_large_response_is_freed_once_its_client_has_it() {
    // ADR 6, also for a client that rejects the response.
    let (mut w, s) = slow(0, 60 * DPP);
    let idle = w.nodes[1].arena.stats().in_use_bytes;
    w.call(0, s, 1, 10);
    w.finish(0, 1);
    assert!(w.nodes[1].arena.stats().in_use_bytes > idle + 60 * DPP);
    w.settle();
    assert_eq!(w.nodes[1].arena.stats().in_use_bytes, idle);
    assert_eq!(w.story().last().unwrap(), "0: ACK 0");
}

#[test]
fn a_call_after_a_long_pause_gets_its_full_timeout() {
    // The time of a call is its send time, not the endpoint's last clock reading.
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.call(0, s, 0, 10);
    w.finish(0, 1);
    w.settle();
    w.call(0, s, 1, 10);
    w.now_ns += 10 * config().datapath_timeout_ns;
    let mut losses = 4;
    w.filter = Some(Box::new(move |_, _| {
        losses -= 1;
        losses < 0
    }));
    assert!(w.finish(0, 1)[0].result.is_ok());
}

#[test]
fn a_call_that_waits_for_credits_is_not_overtaken_by_successive_calls() {
    // `loops` chains of successive calls hold the credits of their session.
    let passed_by = |credits, slots, loops: u16, len, split_batches| {
        let mut w = World::pair(Config { credits, slots, split_batches, ..config() });
        let s = w.connect(0, 1);
        w.call(0, s, 0, 32);
        w.finish(0, 1); // the response buffers exist
        w.nodes[0].next.extend((100..5_000).map(|id| (s, id, 32)));
        (1..=loops).for_each(|id| _ = w.call(0, s, id, 32));
        w.pump();
        w.call(0, s, 9_000, len);
        let mut ended = Vec::new();
        while !ended.contains(&9_000) {
            assert!(w.step());
            ended.extend(w.take_done(0).into_iter().map(|d| d.id));
        }
        ended.len() - 1
    };
    for halves in [false, true] {
        for (credits, slots, loops) in [(1, 2, 1), (1, 8, 3), (2, 8, 5), (7, 8, 7)] {
            let passed = passed_by(credits, slots, loops, 32, halves);
            assert!(passed <= 2 * usize::from(loops), "{passed} of C = {credits}");
        }
        // Each batch sends at least one packet of it.
        for (credits, slots, loops) in [(1, 2, 1), (7, 8, 7), (16, 32, 20), (32, 32, 31)] {
            let passed = passed_by(credits, slots, loops, 20 * DPP, halves);
            assert!(passed <= 200, "{passed} of C = {credits}, 20 packets");
        }
    }
}
