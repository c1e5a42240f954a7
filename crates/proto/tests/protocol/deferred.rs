//! Deferred calls, as with many sessions; here with any number (`Config::prefetch_min_sessions`).

use courser_buf::{Ecn, MsgBuf, RxFrame};
use courser_proto::{
    Body, CallError, CallId, Config, Driver, Endpoint, Executed, RejectReason, RequestId,
    SessionEnd, SessionId, SessionState,
};

use crate::support::{World, addr, config, pattern};

/// Most deferred calls.
const SPAN: usize = 8;

fn far(config: Config) -> Config {
    Config { prefetch_min_sessions: 0, ..config }
}

/// A session whose next calls are deferred.
fn world(config: Config) -> (World, SessionId) {
    let mut w = World::pair(config);
    let s = w.connect(0, 1);
    use_session(&mut w, s);
    (w, s)
}

/// The first call allocates the slots; the next one finds a slot, and later ones are deferred.
fn use_session(w: &mut World, s: SessionId) {
    for _ in 0..2 {
        w.call(0, s, 0, 32);
        w.finish(0, 1);
    }
}

/// Waiting calls, including deferred ones, and calls on slots.
fn waiting(w: &World, s: SessionId) -> (usize, u32) {
    let stats = w.nodes[0].ep.session_stats(s).unwrap();
    (stats.queued, stats.in_flight)
}

/// Completions that no packet causes.
fn ends(w: &mut World) -> Vec<(u64, CallError)> {
    w.nodes[0].collect();
    w.take_done(0).into_iter().map(|d| (d.id, d.result.unwrap_err())).collect()
}

#[test]
fn the_next_batch_makes_the_remaining_calls() {
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
fn rejected_calls_are_rejected_at_the_call() {
    let accepted = |prefetch_min_sessions: usize, call_queue: usize| {
        let config = Config { slots: 1, call_queue, prefetch_min_sessions, ..config() };
        let (mut w, s) = world(config);
        let calls = (1..).take_while(|&id| match w.try_call(0, s, id, 32) {
            Ok(_) => true,
            Err(rejected) => {
                assert_eq!(rejected, RejectReason::QueueFull { limit: call_queue });
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
    // Small messages only: longer ones would be rejected too late.
    let (mut w, s) = world(far(Config { max_msg_size: 100, ..config() }));
    let limit = 100;
    assert_eq!(w.try_call(0, s, 1, 101).unwrap_err(), RejectReason::TooLarge { bytes: 101, limit });
    w.call(0, s, 2, 100);
    w.finish(0, 1);
    // A session that has ended, and the next one with its number.
    w.ep(0).close(s);
    assert_eq!(w.try_call(0, s, 3, 32).unwrap_err(), RejectReason::NoSession(SessionEnd::Unknown));
    let next = w.connect(0, 1);
    use_session(&mut w, next);
    assert_eq!(next.index(), s.index());
    assert_eq!(w.try_call(0, s, 4, 32).unwrap_err(), RejectReason::NoSession(SessionEnd::Unknown));
}

/// The order in which the server runs calls of these lengths, after `before`; the first is number
/// 1.
fn order(config: Config, lens: &[usize], before: impl Fn(&mut World, SessionId)) -> Vec<u16> {
    let (mut w, s) = world(config);
    before(&mut w, s);
    w.nodes[1].started.clear();
    for (id, &len) in (1..).zip(lens) {
        w.call(0, s, id, len);
        w.ep(0).check();
    }
    assert!(w.finish(0, lens.len()).iter().all(|d| d.result.is_ok()));
    w.nodes[1].started.iter().map(|started| started.0).collect()
}

#[test]
fn earlier_sessions_of_a_number_accept_no_calls() {
    // The server is not notified of the ends of sessions.
    let (mut w, mut s) = world(far(Config { max_paths_per_peer: 1000, ..config() }));
    let mut old = Vec::new();
    for round in 0..520_usize {
        w.ep(0).close(s);
        old.push(s);
        s = w.connect(0, 1);
        assert_eq!(s.index(), old[0].index());
        use_session(&mut w, s);
        for at in [0, round / 2, round.saturating_sub(255)] {
            assert_eq!(
                w.try_call(0, old[at], 1_000, 32).unwrap_err(),
                RejectReason::NoSession(SessionEnd::Unknown)
            );
        }
        w.call(0, s, 1, 32);
        // The first 255 are deferred; later ones are made at once.
        assert_eq!(waiting(&w, s), if round < 254 { (1, 0) } else { (0, 1) }, "{round}");
        w.finish(0, 1);
    }
}

#[test]
fn an_immediate_call_does_not_overtake_deferred_ones() {
    let in_order = |n: u16| (1..=n).collect::<Vec<_>>();
    // One packet, but too long to be deferred.
    let config_of = |slots| far(Config { slots, ..config() });
    assert_eq!(order(config_of(1), &[32, 32, 600, 32], |_, _| {}), in_order(4));
    // It leaves in a frame of its own before shared frames; this applies to all calls.
    let never = Config { prefetch_min_sessions: usize::MAX, ..config_of(8) };
    let orders = [config_of(8), never].map(|config| order(config, &[32, 32, 600, 32], |_, _| {}));
    assert_eq!(orders[0], orders[1]);
    // The ninth call allocates the slots.
    let config = far(Config { slots: 32, idle_after_ns: 1_000_000, ..config() });
    let idle = |w: &mut World, _| w.run_until(w.now_ns + 20_000_000);
    assert_eq!(order(config, &[32; 12], idle), in_order(12));
}

/// Cancels calls, or closes their session, when a request arrives.
struct GivesUp<'a> {
    ep: &'a mut Endpoint<u64>,
    session: Option<SessionId>,
    calls: Vec<CallId>,
    now_ns: u64,
}

impl Driver<u64> for GivesUp<'_> {
    fn endpoint(&mut self) -> &mut Endpoint<u64> {
        self.ep
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn on_request(&mut self, _: RequestId, _: u16, _: Body<'_>, _: u64) {
        let calls = std::mem::take(&mut self.calls);
        match self.session {
            Some(session) => drop(self.ep.close(session)),
            None => assert!(calls.iter().all(|&call| self.ep.cancel(call))),
        }
    }

    fn on_completion(&mut self, _: u64, _: SessionId, _: MsgBuf, _: Result<Body<'_>, CallError>) {
        unreachable!("no call was sent");
    }
}

#[test]
fn calls_cancelled_while_a_frame_is_handled_were_never_sent() {
    for closes in [false, true] {
        let (mut w, s) = world(far(config()));
        let back = w.connect(1, 0);
        let mut frames = Vec::new();
        w.call(1, back, 500, 32);
        let now_ns = w.now_ns;
        for (_, bytes) in w.nodes[1].transmit(now_ns, false, true) {
            frames.push(bytes);
        }
        let calls = [1, 2].map(|id| w.call(0, s, id, 32)).to_vec();
        let mut app = GivesUp { ep: w.ep(0), session: closes.then_some(s), calls, now_ns };
        let frame = RxFrame::new(addr(1), &frames[0], Ecn::NotEct);
        Endpoint::receive(&mut app, &frame);
        assert!(app.calls.is_empty(), "the request was handled");
        let error = match closes {
            true => CallError::Closed(Executed::Never),
            false => CallError::Cancelled(Executed::Never),
        };
        assert_eq!(ends(&mut w), [(1, error), (2, error)]);
        w.run_until(now_ns + 10_000_000);
        assert!([1, 2].iter().all(|id| !w.nodes[1].executed.contains_key(id)));
    }
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
fn a_call_wakes_an_idle_session() {
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
