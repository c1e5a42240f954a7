//! Calls: sizes, outcomes, buffers, order, back-pressure.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use courser::{
    CallError, CallWaitReason, Config, Executed, Nexus, RejectReason, ReplyHandle, Rpc, SessionId,
    Status,
};

const ECHO: u16 = 1;
const OTHER: u16 = 2;

/// A connected client and server on this thread.
fn pair(config: Config, set_up: impl FnOnce(&mut Rpc)) -> (Rpc, Rpc, SessionId) {
    let nexus = Nexus::bind_with(LOOPBACK, config.clone()).unwrap();
    let mut server = nexus.endpoint().unwrap();
    set_up(&mut server);
    let mut client = client(config);
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    (client, server, session)
}

fn echo(rpc: &mut Rpc) {
    rpc.on(ECHO, |cx, req| cx.reply(req));
}

#[test]
fn messages_of_all_sizes_around_packet_boundaries_are_echoed() {
    let (mut client, mut server, session) = pair(Config::default(), echo);
    let dpp = usize::from(client.session_stats(session).unwrap().data_per_packet);
    assert!((1000..=1472).contains(&dpp), "{dpp}");
    let mut sizes = vec![0, 1, 7, 31, 32, 33, 511, 512, 513, 705, 706, 707];
    sizes.extend([1_279, 1_280, 1_281]);
    for packets in 1..=3 {
        sizes.extend([packets * dpp - 1, packets * dpp, packets * dpp + 1]);
    }
    for (i, &len) in sizes.iter().enumerate() {
        let request = message(&client, i as u64, len);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
        assert_eq!(ended.result.as_ref().map(Vec::len), Ok(len));
        assert!(ended.result == Ok(expected(i as u64, len)), "content of {len} bytes");
        assert!(*ended.request == *expected(i as u64, len), "the request is unchanged");
    }
    assert_eq!(server.stats().requests, sizes.len() as u64);
    client.check();
    server.check();
}

#[test]
fn a_blocking_call_returns_response_and_request_while_the_endpoint_works() {
    let server = Server::start(Config::default(), |rpc| {
        echo(rpc);
        rpc.on(OTHER, |cx, _| cx.reject());
    });
    let mut client = client(Config::default());
    let ticks = Rc::new(Cell::new(0));
    let counted = ticks.clone();
    client.context().every(Duration::from_nanos(1), move |_| counted.set(counted.get() + 1));
    client.context().after(Duration::ZERO, |cx| cx.stop());
    // The session is still connecting.
    let session = client.connect(&server.uri).unwrap();
    for len in [0, 100, 100_000] {
        let request = message(&client, 1, len);
        let answered = client.call_wait(session, ECHO, request, PATIENCE).unwrap();
        assert!(*answered.response == *expected(1, len) && *answered.request == *expected(1, len));
    }
    assert!(ticks.get() > 0, "timers run");
    client.run().unwrap(); // returns because of the stop above
    let request = message(&client, 2, 10);
    let error = client.call_wait(session, OTHER, request, None).unwrap_err();
    let failed = CallError::Server(Status::Rejected);
    assert!(matches!(&error.reason, CallWaitReason::Failed(e) if *e == failed), "{error}");
    assert!(*error.request.unwrap() == *expected(2, 10));
    client.close(session);
    let request = message(&client, 3, 10);
    let error = client.call_wait(session, ECHO, request, None).unwrap_err();
    let rejected = matches!(error.reason, CallWaitReason::Rejected(RejectReason::NoSession(_)));
    assert!(rejected && *error.request.unwrap() == *expected(3, 10));
}

#[test]
fn large_messages_are_transferred_in_both_directions() {
    let server = Server::start(Config::default(), echo);
    let mut client = client(Config::default());
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    for (seed, len) in [(1, 1 << 20), (2, (1 << 20) + 1), (3, 8 << 20)] {
        let request = message(&client, seed, len);
        let ended = call_and_wait(&mut client, &mut [], session, ECHO, request);
        assert!(ended.result == Ok(expected(seed, len)), "content of {len} bytes");
    }
    // One byte more than agreed: the call returns an error with the buffer.
    let request = message(&client, 4, (8 << 20) + 1);
    let rejected = client.call(session, ECHO, request, |_, _| {}).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::TooLarge { bytes: (8 << 20) + 1, limit: 8 << 20 });
    assert_eq!(rejected.request.len(), (8 << 20) + 1);
}

#[test]
fn sixty_four_mebibytes_with_raised_limits() {
    let len = 64 << 20;
    let config = Config { max_msg_size: len as u32, memory_limit: 512 << 20, ..Config::default() };
    let server = Server::start(config.clone(), |rpc| {
        // One direction at a time: the answer is the sum of the bytes.
        rpc.on(ECHO, |cx, req| {
            assert!(*req == *expected(64, req.len()));
            cx.reply((req.len() as u64).to_le_bytes());
        });
        rpc.on(OTHER, |cx, _| {
            let mut m = cx.alloc(64 << 20).unwrap();
            pattern(65, &mut m);
            cx.reply(m);
        });
    });
    let mut client = client(config);
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    let request = message(&client, 64, len);
    let ended = call_and_wait(&mut client, &mut [], session, ECHO, request);
    assert_eq!(ended.result, Ok((len as u64).to_le_bytes().to_vec()));
    drop(ended.request);
    let request = message(&client, 0, 8);
    let ended = call_and_wait(&mut client, &mut [], session, OTHER, request);
    assert!(ended.result.unwrap() == expected(65, len));
}

#[test]
fn calls_without_an_answer_report_whether_the_handler_ran() {
    let (mut client, mut server, session) = pair(Config::default(), |rpc| {
        rpc.on(1, |_, _| {});
        rpc.on(2, |cx, _| drop(cx.defer()));
        rpc.on(3, |cx, _| cx.reject());
        rpc.on(4, |cx, _| {
            let handle = cx.defer().unwrap();
            assert!(cx.defer().is_none(), "a request can be deferred once");
            cx.reply("ignored");
            // Dropped later, outside of a handler.
            cx.after(Duration::from_millis(1), move |_| drop(handle));
        });
        rpc.on(5, |cx, _| {
            cx.reply("first");
            cx.reply("second");
        });
    });
    for (req_type, status) in [
        (1, Status::NoReply),
        (2, Status::NoReply),
        (3, Status::Rejected),
        (4, Status::NoReply),
        (999, Status::UnknownType),
        (u16::MAX, Status::UnknownType),
    ] {
        let request = message(&client, 9, 5000);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, req_type, request);
        let error = ended.result.unwrap_err();
        assert_eq!(error, CallError::Server(status), "type {req_type}");
        let ran = if status == Status::UnknownType { Executed::Never } else { Executed::Yes };
        assert_eq!(error.executed(), ran);
        assert!(*ended.request == *expected(9, 5000), "the request is unchanged");
    }
    let request = message(&client, 9, 1);
    let ended = call_and_wait(&mut client, &mut [&mut server], session, 5, request);
    assert_eq!(ended.result.unwrap(), b"first");
}

#[test]
fn the_request_buffer_is_returned_and_can_be_reused() {
    let (mut client, mut server, session) = pair(Config::default(), echo);
    let mut request = message(&client, 0, 4000);
    let at = request.as_ptr();
    let in_use = client.memory().in_use_buffers;
    for seed in 1..50 {
        pattern(seed, &mut request);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
        assert!(ended.result == Ok(expected(seed, 4000)));
        request = ended.request;
        assert_eq!(request.as_ptr(), at);
    }
    assert_eq!(client.memory().in_use_buffers, in_use, "no buffer is held");
    request.truncate(10);
    let ended = call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
    assert_eq!(ended.result.map(|r| r.len()), Ok(10));
}

#[test]
fn answers_arrive_in_the_order_of_the_replies() {
    let held: Rc<RefCell<Vec<ReplyHandle>>> = Rc::default();
    let keep = held.clone();
    let (mut client, mut server, session) = pair(Config::default(), move |rpc| {
        rpc.on(ECHO, move |cx, req| match req[0] {
            0 => keep.borrow_mut().push(cx.defer().unwrap()),
            _ => cx.reply(req),
        });
    });
    let log = Log::default();
    for id in 0..6_u64 {
        let mut request = client.alloc(3000).unwrap();
        request.fill((id % 2) as u8);
        call(&mut client, session, ECHO, request, &log, id);
    }
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 3);
    drive(&mut [&mut client, &mut server], || held.borrow().len() == 3);
    assert!(log.borrow().iter().all(|(id, e)| id % 2 == 1 && e.result.is_ok()));
    // The deferred requests are answered in reverse order, after the retransmission timeouts.
    while let Some(handle) = held.borrow_mut().pop() {
        server.reply_to(handle, "late").unwrap();
    }
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 6);
    let log = log.borrow();
    assert!(log[3..].iter().all(|(id, e)| id % 2 == 0 && e.result == Ok(b"late".to_vec())));
    assert_eq!(server.stats().requests, 6, "each handler ran once");
}

#[test]
fn a_full_queue_is_an_error_at_the_call() {
    let config = Config { call_queue: 3, slots: 2, ..Config::default() };
    let (mut client, mut server, session) = pair(config, echo);
    let log = Log::default();
    for id in 0..5 {
        let request = message(&client, id, 100);
        call(&mut client, session, ECHO, request, &log, id);
    }
    let stats = client.session_stats(session).unwrap();
    assert_eq!((stats.in_flight, stats.slots, stats.queued), (2, 2, 3));
    let rejected = client.call(session, ECHO, message(&client, 5, 100), |_, _| panic!("rejected"));
    let rejected = rejected.unwrap_err();
    assert_eq!(rejected.reason, RejectReason::QueueFull { limit: 3 });
    assert!(*rejected.request == *expected(5, 100));
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 5);
    assert!(log.borrow().iter().all(|(id, e)| e.result == Ok(expected(*id, 100))));
    // The queue has room again.
    call(&mut client, session, ECHO, rejected.request, &log, 5);
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 6);
}

#[test]
fn calls_with_tags_and_with_closures_can_be_mixed() {
    let (mut client, mut server, session) = pair(Config::default(), echo);
    let tags: Rc<RefCell<Vec<u64>>> = Rc::default();
    let seen = tags.clone();
    client.on_completion(move |cx, tag, done| {
        assert_eq!(done.result.unwrap().first_chunk(), Some(&tag.to_le_bytes()));
        seen.borrow_mut().push(tag);
        // A continuation calls again, with a tag and with a closure of more than 64 bytes.
        if tag < 20 {
            let mut request = done.request;
            request.copy_from_slice(&(tag + 100).to_le_bytes());
            cx.request(done.session, ECHO, request).tag(tag + 100).send().unwrap();
            let (big, seen) = ([tag; 32], seen.clone());
            let again = cx.alloc(8).unwrap();
            cx.call(done.session, ECHO, again, move |_, done| {
                assert!(done.result.is_ok());
                seen.borrow_mut().push(1000 + big[31]);
            })
            .unwrap();
        }
    });
    for tag in 0..20_u64 {
        let mut request = client.alloc(8).unwrap();
        request.copy_from_slice(&tag.to_le_bytes());
        client.request(session, ECHO, request).tag(tag).send().unwrap();
    }
    drive(&mut [&mut client, &mut server], || tags.borrow().len() == 60);
    let mut tags = tags.borrow().clone();
    tags.sort_unstable();
    assert!(tags.into_iter().eq((0..20).chain(100..120).chain(1000..1020)));
}

#[test]
fn an_endpoint_is_client_and_server_and_calls_can_be_nested() {
    let back_nexus = Nexus::bind(LOOPBACK).unwrap();
    let front_nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut back = back_nexus.endpoint().unwrap();
    let mut front = front_nexus.endpoint().unwrap();
    let mut client = client(Config::default());
    echo(&mut back);
    let to_back = front.connect(&back_nexus.local_uri()).unwrap();
    front.on(OTHER, move |cx, req| {
        let handle = cx.defer().unwrap();
        let nested = req.take(cx).unwrap();
        cx.call(to_back, ECHO, nested, move |cx, done| {
            let _ = cx.reply_to(handle, done.result.unwrap());
        })
        .unwrap();
    });
    let session = connect(&mut client, &mut [&mut front, &mut back], &front_nexus.local_uri());
    let log = Log::default();
    for id in 0..64 {
        let request = message(&client, id, 1 + id as usize * 300);
        call(&mut client, session, OTHER, request, &log, id);
    }
    drive(&mut [&mut client, &mut front, &mut back], || log.borrow().len() == 64);
    for (id, ended) in log.borrow().iter() {
        assert!(ended.result == Ok(expected(*id, 1 + *id as usize * 300)), "call {id}");
    }
}

#[test]
fn responses_are_written_in_place_taken_or_rejected_as_too_large() {
    let taken: Rc<RefCell<Option<courser::MsgBuf>>> = Rc::default();
    let config = Config { max_msg_size: 100_000, ..Config::default() };
    let (mut client, mut server, session) = pair(config, |rpc| {
        rpc.on(1, |cx, req| {
            let len = u32::from_le_bytes(*req.first_chunk().unwrap()) as usize;
            let done = cx.reply_with(len, |bytes| pattern(7, bytes));
            assert_eq!(done.is_ok(), len <= 100_000, "{done:?}");
        });
    });
    for len in [0, 32, 1400, 5000, 100_000] {
        let mut request = client.alloc(4).unwrap();
        request.copy_from_slice(&(len as u32).to_le_bytes());
        let keep = taken.clone();
        client
            .call(session, 1, request, move |cx, done| {
                *keep.borrow_mut() = Some(done.result.unwrap().take(cx).unwrap());
            })
            .unwrap();
        drive(&mut [&mut client, &mut server], || taken.borrow().is_some());
        let response = taken.take().unwrap();
        assert!(*response == *expected(7, len), "{len} bytes stay valid after the continuation");
    }
    let mut request = client.alloc(4).unwrap();
    request.copy_from_slice(&100_001_u32.to_le_bytes());
    let ended = call_and_wait(&mut client, &mut [&mut server], session, 1, request);
    assert_eq!(ended.result, Err(CallError::Server(Status::ResponseFailed)));
}

#[test]
fn a_call_on_a_connecting_session_is_queued_until_it_is_connected() {
    let server = Server::start(Config::default(), echo);
    let mut client = client(Config::default());
    let session = client.connect(&server.uri).unwrap();
    let got = Rc::new(Cell::new(0));
    for _ in 0..20 {
        let (got, request) = (got.clone(), message(&client, 3, 2000));
        client
            .call(session, ECHO, request, move |_, done| {
                assert_eq!(done.result.map(|r| r.len()), Ok(2000));
                got.set(got.get() + 1);
            })
            .unwrap();
    }
    client.run_until(|| got.get() == 20).unwrap();
}

/// E28, ADR 16: a request of one packet is borrowed from the frame and copied only by `take`; a larger
/// one is owned and moved.
#[test]
fn a_request_of_one_packet_is_read_in_place_and_a_larger_one_is_moved() {
    let seen: Rc<RefCell<Vec<(bool, bool)>>> = Rc::default();
    let log = seen.clone();
    let (mut client, mut server, session) = pair(Config::default(), |rpc| {
        rpc.on(1, move |cx, req| {
            let in_place = format!("{req:?}").contains("body: Borrowed");
            let before = req.as_ptr();
            let taken = req.take(cx).unwrap();
            log.borrow_mut().push((in_place, taken.as_ptr() == before));
            cx.reply(taken);
        });
    });
    for len in [32, 1400, 20_000] {
        let request = message(&client, 1, len);
        call_and_wait(&mut client, &mut [&mut server], session, 1, request);
    }
    let (lent, moved) = ((true, false), (false, true));
    assert_eq!(*seen.borrow(), [lent, lent, moved], "(in place, moved by take)");
}

/// E32: short responses reuse the slot's buffer; a long one allocates a buffer.
#[test]
fn short_responses_use_the_preallocated_buffer() {
    let (mut client, mut server, session) = pair(Config { slots: 1, ..Config::default() }, |rpc| {
        rpc.on(1, |cx, req| {
            let len = u32::from_le_bytes(*req.first_chunk().unwrap()) as usize;
            cx.reply(vec![1; len]);
        });
    });
    let mut held = |len: u32| {
        let mut request = client.alloc(4).unwrap();
        request.copy_from_slice(&len.to_le_bytes());
        let ended = call_and_wait(&mut client, &mut [&mut server], session, 1, request);
        assert_eq!(ended.result.map(|r| r.len()), Ok(len as usize));
        server.memory().in_use_buffers
    };
    let none = held(40);
    let first = held(41);
    assert_eq!(first, none + 1, "the slot itself has room for 40 bytes");
    for len in [0, 700, 1400, 32] {
        assert_eq!(held(len), first, "a response of {len} bytes took a buffer");
    }
    assert_eq!(held(20_000), first + 1, "a long response allocates a buffer");
    assert_eq!(held(32), first, "the next request frees it");
}

/// Memory of earlier messages is not visible in new ones.
#[test]
fn new_buffers_are_zero_unless_recycled_ones_are_asked_for() {
    let mut client = client(Config::default());
    for len in [32, 5_000, 100_000] {
        let mut earlier = client.alloc(len).unwrap();
        earlier.fill(7);
        drop(earlier);
        assert!(client.alloc_recycled(len).unwrap().iter().all(|&b| b == 7), "{len}");
        assert!(client.alloc(len).unwrap().iter().all(|&b| b == 0), "{len}");
        client.alloc_recycled(len).unwrap().fill(7);
        assert!(client.context().alloc(len).unwrap().iter().all(|&b| b == 0), "{len}");
    }
}
