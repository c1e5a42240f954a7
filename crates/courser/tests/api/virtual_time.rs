//! Nexuses on simulated machines: nothing blocks, everything happens at its exact virtual time, and
//! two runs are identical.

mod machine;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{
    CallError, ClientError, Completion, Config, Context, DialError, Endpoints, Executed,
    LostReason, Nexus, RunError, Server, ServerError, SessionError, SessionId, SessionState,
    Status,
};
use machine::{SERVICE_NS, World};

const ECHO: u16 = 1;
const LATER: u16 = 2;
const NEVER: u16 = 3;
const WORK: u16 = 4;
const MS: u64 = 1_000_000;

/// Ended calls: number, time, result.
type Ends = Rc<RefCell<Vec<(u32, u64, Result<Vec<u8>, CallError>)>>>;

fn config() -> Config {
    Config { workers: 1, ..Config::default() }
}

/// A server with every kind of handler, endpoint 0 of host `n0`, and its nexus.
fn server(world: &mut World) -> (Nexus, usize) {
    let nexus = world.nexus(config());
    let mut rpc = nexus.endpoint().unwrap();
    rpc.on(ECHO, |cx, req| cx.reply(req));
    rpc.on(LATER, |cx, _| {
        let handle = cx.defer().unwrap();
        cx.after(Duration::from_millis(3), move |cx| {
            cx.reply_to(handle, b"later".as_slice()).unwrap();
        });
    });
    let kept = RefCell::new(Vec::new());
    rpc.on(NEVER, move |cx, _| kept.borrow_mut().push(cx.defer()));
    rpc.on_worker(WORK, |work| {
        let left_ns = work.time_left().map_or(0, |t| t.as_nanos() as u64);
        work.reply(left_ns.to_le_bytes().as_slice());
    })
    .unwrap();
    let seat = world.seat(rpc);
    (nexus, seat)
}

/// A client on another host.
fn client(world: &mut World) -> usize {
    let nexus = world.nexus(config());
    let rpc = nexus.endpoint().unwrap();
    world.seat(rpc)
}

/// Server, client and session.
fn pair(world: &mut World) -> (Nexus, usize, SessionId) {
    let (nexus, _) = server(world);
    let client = client(world);
    let session = world.rpc(client).connect("mem://n0:31850").unwrap();
    world.run_for(MS);
    assert_eq!(world.rpc(client).session_state(session), SessionState::Connected);
    (nexus, client, session)
}

fn call(
    world: &mut World,
    client: usize,
    session: SessionId,
    req_type: u16,
    deadline: Option<Duration>,
    ends: &Ends,
) {
    let number = ends.borrow().len() as u32 + world.rpc(client).outstanding_calls() as u32;
    let start_ns = world.now_ns;
    let rpc = world.rpc(client);
    let offset_ns = start_ns - rpc.context().now_ns();
    let mut request = rpc.alloc(4).unwrap();
    request.copy_from_slice(&number.to_le_bytes());
    let ends = ends.clone();
    let done = move |cx: &mut Context<'_>, done: Completion<'_>| {
        let result = done.result.map(|r| r.to_vec());
        ends.borrow_mut().push((number, cx.now_ns() + offset_ns, result));
    };
    rpc.request(session, req_type, request).deadline(deadline).then(done).unwrap();
}

/// Calls of every kind, with and without expired deadlines.
fn program(world: &mut World) -> Ends {
    let (nexus, client, session) = pair(world);
    let ends = Ends::default();
    let start_ns = world.now_ns;
    let after = |ns| start_ns + ns;
    call(world, client, session, ECHO, None, &ends);
    call(world, client, session, LATER, None, &ends);
    call(world, client, session, NEVER, Some(Duration::from_millis(5)), &ends);
    // One worker, 2 ms each: the third job has expired when the worker takes it.
    call(world, client, session, WORK, Some(Duration::from_millis(50)), &ends);
    call(world, client, session, WORK, None, &ends);
    call(world, client, session, WORK, Some(Duration::from_millis(4)), &ends);
    world.run_for(100 * MS);
    let stats = nexus.worker_stats();
    assert_eq!((stats.started, stats.finished, stats.expired, stats.threads), (2, 2, 1, 1));
    let mut done = ends.borrow().clone();
    done.sort_by_key(|(number, ..)| *number);
    let late = |executed| Err(CallError::DeadlineExceeded(executed));
    let left = (48 * MS).to_le_bytes().to_vec();
    assert_eq!(done[0], (0, start_ns, Ok(0u32.to_le_bytes().to_vec())));
    assert_eq!(done[1], (1, after(3 * MS), Ok(b"later".to_vec())));
    assert_eq!(done[2], (2, after(5 * MS), late(Executed::Maybe)));
    assert_eq!(done[3], (3, after(SERVICE_NS), Ok(left)));
    assert_eq!(done[4], (4, after(2 * SERVICE_NS), Ok(0u64.to_le_bytes().to_vec())));
    assert_eq!(done[5], (5, after(4 * MS), late(Executed::Maybe)));
    assert_eq!(done.len(), 6);
    ends
}

#[test]
fn a_blocking_call_in_virtual_time_returns_an_error_and_the_buffer() {
    let mut world = World::new();
    let (_nexus, client, session) = pair(&mut world);
    let rpc = world.rpc(client);
    let request = rpc.alloc(4).unwrap();
    let error = rpc.call_wait(session, ECHO, request, None).unwrap_err();
    assert!(error.to_string().contains("virtual time") && error.request.is_some());
}

#[test]
fn repeated_timers_do_not_drift_and_run_in_the_order_of_their_start() {
    let mut world = World::new();
    let seat = client(&mut world);
    let start_ns = world.rpc(seat).context().now_ns();
    let runs: Rc<RefCell<Vec<(char, u64)>>> = Rc::default();
    let note = |name, runs: &Rc<RefCell<Vec<(char, u64)>>>| {
        let runs = runs.clone();
        move |cx: &mut Context<'_>| runs.borrow_mut().push((name, (cx.now_ns() - start_ns) / MS))
    };
    let a = world.rpc(seat).context().every(Duration::from_millis(2), note('a', &runs));
    world.rpc(seat).context().every(Duration::from_millis(3), note('b', &runs));
    world.rpc(seat).context().after(Duration::from_millis(6), note('c', &runs));
    world.run_for(7 * MS);
    let expected = [('a', 2), ('b', 3), ('a', 4), ('a', 6), ('b', 6), ('c', 6)];
    assert_eq!(*runs.borrow(), expected);
    assert!(world.rpc(seat).context().cancel_timer(a));
    runs.borrow_mut().clear();
    world.run_for(6 * MS);
    assert_eq!(*runs.borrow(), [('b', 9), ('b', 12)]);
}

#[test]
fn calls_timers_deadlines_and_workers_keep_virtual_time() {
    let mut world = World::new();
    program(&mut world);
    let trace = world.trace.lock().unwrap();
    let ran = |kind: &str| trace.iter().filter(|line| line.contains(kind)).count();
    assert_eq!(ran("handler 0"), 3, "the machine is notified of dispatch handlers: {trace:#?}");
    assert_eq!(ran("worker 0"), 2, "the expired one did not run: {trace:#?}");
}

#[test]
fn two_runs_are_identical() {
    let traces = [(); 2].map(|()| {
        let mut world = World::new();
        let ends = program(&mut world);
        world.cut();
        world.run_for(5_000 * MS);
        let trace = world.trace.lock().unwrap().join("\n");
        format!("{trace}\n{:?}", ends.borrow())
    });
    assert!(traces[0].lines().count() > 50, "{}", traces[0]);
    assert!(traces[0] == traces[1], "{}\n\n{}", traces[0], traces[1]);
}

#[test]
fn a_silent_peer_fails_exactly_after_the_failure_timeout() {
    let mut world = World::new();
    let (_nexus, client, session) = pair(&mut world);
    let timeout_ns = config().failure_timeout.as_nanos() as u64;
    // Since the handshake at time 0 they have exchanged only heartbeats.
    world.run_until(100 * timeout_ns);
    assert_eq!(world.rpc(client).session_state(session), SessionState::Connected);
    // An idle pair sends every quarter of the timeout, and has just done so.
    world.cut();
    world.run_until(101 * timeout_ns - 1);
    assert_eq!(world.rpc(client).session_state(session), SessionState::Connected);
    world.run_for(1);
    let error = world.rpc(client).session_error(session).unwrap();
    let timeout = config().failure_timeout;
    let silent = |r: &LostReason| match r {
        LostReason::Silent { after, paused } => *after == timeout && paused.is_zero(),
        _ => false,
    };
    assert!(matches!(&error, SessionError::PeerFailed(r) if silent(r)), "{error}");
}

/// Frames of the datapath are signs of life of a process whose control thread is starved; a connection
/// that is broken in itself ends nevertheless.
#[test]
fn calls_that_are_answered_keep_a_session_for_ten_failure_timeouts() {
    let mut world = World::new();
    let (_nexus, client, session) = pair(&mut world);
    let timeout_ns = config().failure_timeout.as_nanos() as u64;
    world.run_until(100 * timeout_ns);
    world.cut();
    let ends = Ends::default();
    let mut made = 0;
    while world.rpc(client).session_state(session) == SessionState::Connected {
        assert!(world.now_ns < 120 * timeout_ns, "it never ends");
        call(&mut world, client, session, ECHO, None, &ends);
        made += 1;
        world.run_for(timeout_ns / 8);
    }
    assert!(world.now_ns > 109 * timeout_ns, "{} timeouts", world.now_ns / timeout_ns);
    let answered = ends.borrow().iter().filter(|(.., result)| result.is_ok()).count();
    // The server gives its side up a little earlier.
    assert!(answered * 10 >= made * 9, "{answered} of {made}");
}

#[test]
fn the_death_of_a_process_is_detected_at_once() {
    let mut world = World::new();
    let (nexus, client, session) = pair(&mut world);
    let ends = Ends::default();
    call(&mut world, client, session, NEVER, None, &ends);
    world.run_for(MS);
    world.kill(0);
    drop(nexus);
    let now_ns = world.now_ns;
    world.run_for(0);
    let error = world.rpc(client).session_error(session).unwrap();
    assert!(matches!(error, SessionError::PeerFailed(LostReason::Closed)), "{error}");
    let failed = Err(CallError::PeerFailed(Executed::Maybe));
    assert_eq!(*ends.borrow(), [(0, now_ns, failed)]);
}

#[test]
fn a_failed_connect_reports_its_reason_and_time() {
    let mut world = World::new();
    let client = client(&mut world);
    let mut connect = |uri: &str, after_ns| {
        let session = world.rpc(client).connect(uri).unwrap();
        world.run_for(after_ns);
        world.rpc(client).session_error(session)
    };
    let refused = connect("mem://n7:31850", 0).unwrap().to_string();
    assert!(refused.contains("nothing listens on 10.0.0.7:31850"), "{refused}");
    let unknown = connect("mem://nobody:31850", 0).unwrap();
    assert!(matches!(unknown, SessionError::Dial(DialError::Resolve { .. })), "{unknown}");
    // This process itself listens, but has no endpoint that accepts sessions.
    let alone = connect("mem://n0:31850", 0).unwrap();
    assert!(matches!(alone, SessionError::Refused(_)), "{alone}");
}

#[test]
fn calls_to_a_server_that_never_answers_fail_in_time() {
    let mut world = World::new();
    let (_nexus, server) = server(&mut world);
    let client = client(&mut world);
    // Its control loop runs, but its event loop does not.
    let frozen = world.take(server);
    let session = world.rpc(client).connect("mem://n0:31850").unwrap();
    world.run_until(5_000 * MS - 1);
    assert_eq!(world.rpc(client).session_state(session), SessionState::Connecting);
    world.run_for(1);
    let error = world.rpc(client).session_error(session).unwrap();
    assert!(matches!(error, SessionError::Timeout { after_ms: 5000, .. }), "{error}");
    drop(frozen);
}

#[test]
fn blocking_functions_return_an_error_with_an_alternative() {
    let mut world = World::new();
    let nexus = world.nexus(config());
    let mut rpc = nexus.endpoint().unwrap();
    let no_waiting = |e: RunError| {
        assert!(matches!(e, RunError::VirtualTime), "{e}");
        assert!(e.to_string().contains("use callbacks"), "{e}");
    };
    no_waiting(rpc.run().unwrap_err());
    no_waiting(rpc.run_until(|| false).unwrap_err());
    no_waiting(rpc.run_for(Duration::from_secs(1000)).unwrap_err());
    let session = rpc.connect("mem://n1:1").unwrap();
    let error = rpc.wait_connected(session).unwrap_err();
    assert!(matches!(error, SessionError::VirtualTime), "{error}");
    assert!(rpc.event_fd().is_none());
    no_waiting(rpc.shutdown(Duration::from_secs(1000)).unwrap_err());
}

#[test]
fn a_shutdown_can_be_done_step_by_step() {
    let mut world = World::new();
    let (nexus, server) = server(&mut world);
    let client = client(&mut world);
    let session = world.rpc(client).connect("mem://n0:31850").unwrap();
    let ends = Ends::default();
    call(&mut world, client, session, LATER, None, &ends);
    world.run_for(MS);
    world.rpc(server).begin_shutdown();
    call(&mut world, client, session, ECHO, None, &ends);
    world.run_for(0);
    assert_eq!(ends.borrow()[0].2, Err(CallError::Server(Status::ShuttingDown)));
    assert!(!world.rpc(server).is_drained());
    assert_eq!(world.rpc(server).left_behind().executing, 1);
    world.run_for(2_000 * MS);
    assert_eq!(ends.borrow()[1].2, Ok(b"later".to_vec()));
    assert!(world.rpc(server).is_drained() && world.rpc(server).left_behind().is_clean());
    drop(world.take(server));
    world.run_for(0);
    let error = world.rpc(client).session_error(session).unwrap();
    assert!(matches!(error, SessionError::EndpointGone), "{error}");
    assert!(!world.has_ended(0));
    drop(nexus);
    world.run_for(0);
    assert!(world.has_ended(0), "the control loop ends with the nexus");
}

#[test]
fn an_unused_machine_is_dropped() {
    let mut world = World::new();
    let (nexus, client, session) = pair(&mut world);
    let ends = Ends::default();
    call(&mut world, client, session, WORK, None, &ends);
    call(&mut world, client, session, WORK, None, &ends);
    // One request is running, one is queued, mail is in flight, and no session is closed.
    world.run_for(MS);
    let hosts = world.hosts();
    drop((nexus, world));
    assert!(hosts.iter().all(|h| h.strong_count() == 0), "a reference cycle");
}

#[test]
fn clients_and_servers_with_threads_are_refused_in_virtual_time() {
    let mut world = World::new();
    let client = Endpoints::of(world.nexus(config()), 1).unwrap_err();
    assert!(matches!(client, ClientError::VirtualTime), "{client}");
    let server = Server::of(world.nexus(config())).unwrap_err();
    assert!(matches!(server, ServerError::VirtualTime), "{server}");
}
