//! Calls that are taken and made some calls later, as with many sessions; here from the first on
//! (`Config::far_sessions`).

use courser_proto::{CallError, CallRefused, Config, Executed, SessionId, SessionState};

use crate::support::{World, config, pattern};

/// As many calls are deferred at most.
const SPAN: usize = 8;

fn far(config: Config) -> Config {
    Config { far_sessions: 0, ..config }
}

/// A session whose next calls are deferred.
fn world(config: Config) -> (World, SessionId) {
    let mut w = World::pair(config);
    let s = w.connect(0, 1);
    use_session(&mut w, s);
    (w, s)
}

/// One call makes the slots; the next finds one, and those after it are deferred.
fn use_session(w: &mut World, s: SessionId) {
    for _ in 0..2 {
        w.call(0, s, 0, 32);
        w.finish(0, 1);
    }
}

/// Calls that wait, deferred ones among them, and calls on slots.
fn waiting(w: &World, s: SessionId) -> (usize, u32) {
    let stats = w.nodes[0].ep.session_stats(s).unwrap();
    (stats.queued, stats.in_flight)
}

/// Ends of calls that no packet brings.
fn ends(w: &mut World) -> Vec<(u64, CallError)> {
    w.nodes[0].collect();
    w.take_done(0).into_iter().map(|d| (d.id, d.result.unwrap_err())).collect()
}

#[test]
fn the_next_stage_makes_what_is_left() {
    let (mut w, s) = world(far(Config { slots: 32, ..config() }));
    let ns = w.now_ns;
    for id in 1..=SPAN {
        w.call(0, s, id as u16, 32);
        assert_eq!(waiting(&w, s), (id, 0));
    }
    for more in 1..=4 {
        w.call(0, s, (SPAN + more) as u16, 32);
        assert_eq!(waiting(&w, s), (SPAN, more as u32));
    }
    let ep = w.ep(0);
    ep.check();
    assert!(ep.wants_transmit() && !ep.is_quiet() && ep.next_deadline() == Some(0));
    assert_eq!(ep.outstanding_calls(), SPAN as u64 + 4);
    w.pump();
    assert_eq!((w.now_ns, waiting(&w, s)), (ns, (0, SPAN as u32 + 4)));
    let done = w.finish(0, SPAN + 4);
    assert!(done.iter().all(|d| d.result == Ok(pattern(d.id, 32))));
    assert!(w.ep(0).is_quiet());
}

#[test]
fn calls_of_every_kind_stay_in_their_order() {
    let (mut w, s) = world(far(Config { slots: 1, ..config() }));
    let lens = [32, 32, 5_000, 32, 600, 32, 32];
    for (id, &len) in (1..).zip(&lens) {
        w.call(0, s, id, len);
    }
    let now_ns = w.now_ns;
    w.call_within(0, s, 8, 32, now_ns + 1_000_000);
    w.call(0, s, 9, 32);
    let done = w.finish(0, lens.len() + 2);
    assert!(done.iter().map(|d| d.id).eq(1..=9));
    assert!(done.iter().all(|d| d.result.is_ok()));
}

#[test]
fn what_is_refused_is_refused_at_once() {
    let accepted = |far_sessions: usize, call_queue: usize| {
        let config = Config { slots: 1, call_queue, far_sessions, ..config() };
        let (mut w, s) = world(config);
        let calls = (1..).take_while(|&id| match w.try_call(0, s, id, 32) {
            Ok(_) => true,
            Err(refused) => {
                assert_eq!(refused, CallRefused::QueueFull { limit: call_queue });
                false
            }
        });
        let calls = calls.count();
        assert!(w.finish(0, calls).iter().all(|d| d.result.is_ok()));
        calls
    };
    for call_queue in [0, 1, SPAN - 1, SPAN, SPAN + 1, 40] {
        let calls = [0, usize::MAX].map(|far| accepted(far, call_queue));
        assert_eq!(calls, [1 + call_queue; 2]);
    }
    // Small messages only: longer ones would be refused too late.
    let (mut w, s) = world(far(Config { max_msg_size: 100, ..config() }));
    let limit = 100;
    assert_eq!(w.try_call(0, s, 1, 101).unwrap_err(), CallRefused::TooLarge { bytes: 101, limit });
    w.call(0, s, 2, 100);
    w.finish(0, 1);
    // A session that has ended, and the next with its number.
    w.ep(0).close(s);
    assert_eq!(w.try_call(0, s, 3, 32).unwrap_err(), CallRefused::NoSession);
    let next = w.connect(0, 1);
    use_session(&mut w, next);
    assert_eq!(next.index(), s.index());
    assert_eq!(w.try_call(0, s, 4, 32).unwrap_err(), CallRefused::NoSession);
}

#[test]
fn a_session_of_long_ago_has_its_calls_ended_at_the_latest() {
    let (mut w, old) = world(far(config()));
    w.ep(0).close(old);
    let mut ended = 0;
    for _ in 0..300 {
        let s = w.connect(0, 1);
        assert_eq!(s.index(), old.index());
        use_session(&mut w, s);
        if w.try_call(0, old, 1_000, 32).is_ok() {
            w.pump();
            assert_eq!(ends(&mut w), [(1_000, CallError::Closed(Executed::Never))]);
            ended += 1;
        }
        w.ep(0).close(s);
    }
    assert_eq!(ended, 2, "of 128 generations one looks the same");
    assert!(w.ep(0).is_quiet());
}

#[test]
fn a_deferred_call_can_be_cancelled() {
    let (mut w, s) = world(far(config()));
    let calls = [1, 2, 3].map(|id| w.call(0, s, id, 32));
    assert!(w.ep(0).cancel(calls[1]) && !w.ep(0).cancel(calls[1]));
    assert_eq!(ends(&mut w), [(2, CallError::Cancelled(Executed::Never))]);
    assert_eq!(w.finish(0, 2).iter().map(|d| d.id).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(w.nodes[1].executed.get(&2), None);
}

#[test]
fn calls_end_with_their_session() {
    let (mut w, s) = world(far(config()));
    (1..=3).for_each(|id| _ = w.call(0, s, id, 32));
    w.ep(0).close(s);
    let closed = |id| (id, CallError::Closed(Executed::Never));
    let mut ended = ends(&mut w);
    ended.sort_by_key(|end| end.0);
    assert_eq!(ended, [1, 2, 3].map(closed));
    w.pump();
    assert!(w.ep(0).is_quiet() && w.ep(0).session_state(s) == SessionState::Gone);
    assert!(w.try_call(0, s, 4, 32).is_err());
}

#[test]
fn a_call_wakes_a_session_that_was_idle() {
    let (mut w, s) = world(far(Config { idle_after_ns: 1_000_000, ..config() }));
    w.run_until(w.now_ns + 20_000_000);
    assert_eq!(w.ep(0).memory().slots_bytes, w.ep(0).config().slots as usize * 4);
    w.call(0, s, 1, 32);
    assert_eq!(waiting(&w, s), (1, 0), "deferred");
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(1, 32)));
}

#[test]
fn without_prefetching_no_call_is_deferred() {
    let (mut w, s) = world(far(Config { prefetch: false, ..config() }));
    w.call(0, s, 1, 32);
    assert_eq!(waiting(&w, s), (0, 1));
}
