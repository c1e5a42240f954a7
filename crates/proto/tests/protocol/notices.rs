//! Events that the application waits for.

use courser_proto::{Config, Notice, RejectReason};

use crate::support::{Action, World, config};

/// A client whose queue of calls is full, with a server that answers nothing by itself.
fn full(call_queue: usize) -> (World, courser_proto::SessionId) {
    let mut w = World::pair(Config { call_queue, slots: 1, ..config() });
    let s = w.connect(0, 1);
    for id in 0..=call_queue as u16 {
        w.call(0, s, id, 8);
    }
    w.ep(0).await_room(s, &RejectReason::QueueFull { limit: call_queue });
    (w, s)
}

#[test]
fn a_session_reports_room_for_calls_once_when_it_is_awaited() {
    for call_queue in [0, 1, 2] {
        let (mut w, s) = full(call_queue);
        assert_eq!(w.ep(0).poll_notice(), None, "a queue of {call_queue}");
        w.settle();
        assert!(w.ep(0).has_notices());
        assert_eq!(
            w.notices(0),
            [Notice::Freed { session: s, messages: false }],
            "a queue of {call_queue}"
        );
        w.call(0, s, 100, 8);
        w.settle();
        assert_eq!(w.ep(0).poll_notice(), None, "no room is awaited any more");
    }
}

#[test]
fn room_for_messages_is_reported_when_half_of_their_queue_is_free() {
    let mut w = World::pair(Config { message_queue: 4, ..config() });
    let s = w.connect(0, 1);
    while w.send_message(0, s, 0, 32, None).is_ok() {}
    assert_eq!(w.ep(0).poll_notice(), None);
    w.settle();
    assert_eq!(w.notices(0), [Notice::Freed { session: s, messages: true }]);
}

#[test]
fn a_session_that_ends_reports_the_room_that_is_awaited() {
    let (mut w, s) = full(1);
    w.ep(0).close(s);
    assert_eq!(w.notices(0), [Notice::Freed { session: s, messages: false }]);
    // A session that is gone reports nothing.
    w.ep(0).await_room(s, &RejectReason::QueueFull { limit: 1 });
    assert_eq!(w.ep(0).poll_notice(), None);
}

#[test]
fn a_request_that_is_cancelled_while_its_handler_has_it_is_reported_once() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    let calls = [1, 2, 3].map(|id| w.call(0, s, id, 10));
    w.pump();
    w.settle_until_idle_link();
    let requests = w.nodes[1].requests.clone();
    assert_eq!((requests.len(), w.ep(1).poll_notice()), (3, None));
    assert!(w.ep(0).cancel(calls[1]));
    w.pump();
    w.settle_until_idle_link();
    assert_eq!(w.notices(1), [Notice::Cancelled(requests[1])]);
}
