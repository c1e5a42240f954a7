//! Time between the writing of a request and the end of its frame: long continuations.

use std::cell::RefCell;
use std::rc::Rc;

use courser_buf::{Ecn, MsgBuf, RxFrame};
use courser_proto::{
    Body, CallError, CallOptions, Config, Driver, Endpoint, Recovery, RequestId, SessionId,
};

use crate::support::{Action, Link, Node, World, addr, config, pattern};

type Frames = Rc<RefCell<Vec<Vec<u8>>>>;

fn warm(recovery: Recovery) -> (World, SessionId) {
    let cfg = Config {
        recovery,
        rto_min_ns: 1_000_000,
        rto_initial_ns: 1_000_000,
        rto_max_ns: 20_000_000,
        ..config()
    };
    let mut w = World::pair(cfg);
    let s = w.connect(0, 1);
    for id in 60_000..60_020 {
        w.call(0, s, id, 10);
        w.finish(0, 1);
    }
    (w, s)
}

/// The answer to call 1, which is not delivered.
fn answer(w: &mut World, s: SessionId) -> Vec<u8> {
    let frames = Frames::default();
    let seen = Rc::clone(&frames);
    w.filter = Some(Box::new(move |from, bytes| {
        if from == 1 {
            seen.borrow_mut().push(bytes.to_vec());
        }
        from == 0
    }));
    w.call(0, s, 1, 32);
    while frames.borrow().is_empty() {
        w.step();
    }
    w.filter = None;
    frames.take().swap_remove(0)
}

fn slow_continuation(recovery: Recovery, slow_ns: u64) -> (u64, u64, u64) {
    let (mut w, s) = warm(recovery);
    let answer = answer(&mut w, s);
    // Its continuation makes the next call and takes a while; then the call leaves.
    w.nodes[0].next = [(s, 2, 32)].into();
    w.deliver_only(1, 0, &answer);
    w.now_ns += slow_ns;
    w.pump();
    // The next pass of the event loop, 0.2 us later: no answer can have arrived yet.
    let now_ns = w.now_ns + 200;
    w.ep(0).on_deadline(now_ns);
    w.now_ns = now_ns;
    w.pump();
    let st = w.ep(0).stats();
    let r = (st.probes, st.rollbacks, st.retransmitted);
    w.finish(0, 2);
    r
}

#[test]
fn a_slow_continuation_is_no_loss() {
    assert_eq!(slow_continuation(Recovery::GoBackN, 2_000_000), (0, 0, 0));
    assert_eq!(slow_continuation(Recovery::Selective, 2_000_000), (0, 0, 0));
    assert_eq!(slow_continuation(Recovery::Selective, 50_000), (0, 0, 0));
}

struct Caller<'a> {
    node: &'a mut Node,
    session: SessionId,
    deadline_ns: u64,
}

impl Driver<u64> for Caller<'_> {
    fn endpoint(&mut self) -> &mut Endpoint<u64> {
        &mut self.node.ep
    }
    fn now_ns(&mut self) -> u64 {
        self.node.now_ns()
    }
    fn on_request(&mut self, id: RequestId, req_type: u16, body: Body<'_>, expires_ns: u64) {
        self.node.on_request(id, req_type, body, expires_ns);
    }
    fn on_completion(
        &mut self,
        cont: u64,
        session: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    ) {
        self.node.on_completion(cont, session, request, result);
        let mut req = self.node.ep.alloc(32).unwrap();
        req.copy_from_slice(&pattern(2, 32));
        self.node.given.insert(2, (req.as_ptr() as usize, 32));
        let options = CallOptions::new().with_deadline_ns(self.deadline_ns);
        self.node.ep.call_with(self.session, 2, req, 2, options).map_err(|e| e.0).unwrap();
    }
}

#[test]
fn a_deadline_is_not_late_however_long_its_frame_was_open() {
    let (mut w, s) = warm(Recovery::GoBackN);
    let answer = answer(&mut w, s);
    let deadline_ns = w.now_ns + 10_000_000_000;
    let node = &mut w.nodes[0];
    let mut caller = Caller { node, session: s, deadline_ns };
    Endpoint::receive(&mut caller, &RxFrame::new(addr(1), &answer, Ecn::Ect0));
    w.now_ns += 2_000_000_000; // duration of the continuations
    w.nodes[1].started.clear();
    w.finish(0, 2);
    let (_, _, given) = w.nodes[1].started[0];
    let given = given.unwrap();
    assert!(given <= deadline_ns, "{} ns late", given - deadline_ns);
}

/// Number of calls in 2 ms with 32 in flight, after `warm_ns` of the same.
fn calls_in_2_ms(
    rx_queue: (u32, u32),
    warm_ns: u64,
    handler: impl Fn(u16, &[u8]) -> Action + 'static,
) -> usize {
    let cfg = Config {
        slots: 32,
        credits: 32,
        rx_queue_frames: rx_queue.0,
        rx_queue_small_frames: rx_queue.1,
        small_data: 200,
        rto_min_ns: 1_000_000,
        rto_initial_ns: 1_000_000,
        ..config()
    };
    let mut w = World::pair(cfg);
    w.link = Link { latency_ns: 10_000, ..Default::default() };
    w.nodes[1].handler = Box::new(handler);
    let s = w.connect(0, 1);
    w.nodes[0].next = (1_100..60_000).map(|id| (s, id, 32)).collect();
    (1_000..1_032).for_each(|id| {
        w.call(0, s, id, 32);
    });
    let t = w.now_ns + warm_ns;
    w.run_to(t);
    w.take_done(0);
    let t = w.now_ns + 2_000_000;
    w.run_to(t);
    w.take_done(0).len()
}

/// One response in `one_in` is not small.
fn mixed(one_in: u16) -> usize {
    calls_in_2_ms((8, 2048), 2_000_000, move |id, req| {
        let len = if id % one_in == 0 { 201 } else { req.len() };
        Action::Reply(vec![1; len])
    })
}

#[test]
fn a_few_large_responses_do_not_reduce_the_room_of_all() {
    let small = mixed(60_001);
    for one_in in [1_000, 200, 64] {
        let calls = mixed(one_in);
        assert!(calls * 10 >= small * 9, "1 in {one_in}: {calls} calls, {small} without");
    }
}

#[test]
fn waiting_sessions_use_room_as_it_returns() {
    // 16 in flight, each 40 us in flight on average; stop-and-wait reaches 566.
    let calls = calls_in_2_ms((2, 32), 8_000_000, |id, req| {
        Action::Defer(u64::from(id) * 7_919 % 40_000, vec![1; req.len()])
    });
    assert!(calls > 750, "{calls} calls");
}

#[test]
fn a_call_that_ends_while_waiting_for_room_blocks_no_other() {
    let cfg = Config {
        rto_min_ns: 20_000_000,
        rto_initial_ns: 20_000_000,
        rto_max_ns: 20_000_000,
        rx_queue_frames: 2,
        rx_queue_small_frames: 32,
        small_data: 200,
        ..config()
    };
    let mut w = World::pair(cfg);
    let sessions = [w.connect(0, 1), w.connect(0, 1), w.connect(0, 1)];
    for id in 1_000..1_200 {
        w.call(0, sessions[0], id, 32);
        w.finish(0, 1);
    }
    w.nodes[1].handler = Box::new(|id, _| match id {
        100 => Action::Defer(50_000_000, vec![1]),
        _ => Action::Reply(vec![1]),
    });
    w.call(0, sessions[0], 100, 32); // one unit of 16, for long
    let large = w.call(0, sessions[1], 2, 300);
    w.call(0, sessions[2], 3, 32); // queued after the large one
    let t = w.now_ns + 1_000_000;
    w.run_to(t);
    assert_eq!(w.take_done(0).len(), 0, "no room for the large one, and none passes it");
    assert!(w.ep(0).cancel(large));
    let t = w.now_ns + 1_000_000;
    w.run_to(t);
    assert_eq!(w.take_done(0).len(), 2, "it has ended, and the one behind it has its response");
}
