//! Retries of typed calls in virtual time: the load on a server that refuses, the pauses, and handlers that
//! run at most once under loss and crashes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use courser::parts::machine::VirtualClients;
use courser::service::{
    CallEnd, ClientMiddleware, Denied, IncomingCall, NoError, OutgoingCall, Retries, RetryPolicy,
    RpcError, ServerMiddleware,
};
use courser::{CallError, CallFailure, Client, Endpoints, Executed, Local, Nexus, Session};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, World, WorldConfig};
use futures::future::join_all;

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);
const MS: Duration = Duration::from_millis(1);

#[courser::service]
trait Desk {
    #[idempotent]
    async fn read(&self, id: u64) -> u64;
    async fn write(&self, id: u64) -> u64;
    #[idempotent]
    async fn hold(&self, id: u64) -> u64;
}

/// How often the handlers of each number ran.
#[derive(Clone, Default)]
struct Runs(Rc<RefCell<BTreeMap<u64, u64>>>);

impl LocalDesk for Runs {
    async fn read(&self, id: u64) -> u64 {
        *self.0.borrow_mut().entry(id).or_default() += 1;
        id
    }
    async fn write(&self, id: u64) -> u64 {
        *self.0.borrow_mut().entry(id).or_default() += 1;
        id
    }
    async fn hold(&self, id: u64) -> u64 {
        *self.0.borrow_mut().entry(id).or_default() += 1;
        std::future::pending().await
    }
}

/// Refuses all calls, or none, and counts them.
#[derive(Clone, Default)]
struct Gate {
    refuses: bool,
    seen: Arc<AtomicU64>,
}

impl ServerMiddleware for Gate {
    fn before(&self, _: &mut IncomingCall<'_>) -> Result<(), Denied> {
        self.seen.fetch_add(1, Ordering::Relaxed);
        match self.refuses {
            true => Err(Denied::too_many("overload", Duration::ZERO)),
            false => Ok(()),
        }
    }
}

fn world(seed: u64, gate: &Gate, has_client: bool) -> (World, Runs) {
    let mut world = World::new(WorldConfig::new(seed, Topology::two_hosts())).unwrap();
    let (runs, gate) = (Runs::default(), gate.clone());
    let of_server = runs.clone();
    let start = move |nexus: &Nexus| -> Result<_, Box<dyn std::error::Error>> {
        let mut rpc = nexus.endpoint()?;
        rpc.add_service(DeskServer::local(of_server.clone()))?;
        rpc.middleware(gate.clone());
        Ok(rpc)
    };
    world.start(SERVER, move |nexus| start(nexus).map_err(|e| e.to_string())).unwrap();
    if has_client {
        world.start(CLIENT, Nexus::endpoint).unwrap();
    }
    (world, runs)
}

/// Runs a client's future.
fn run<F: Future<Output = ()> + 'static>(
    world: &mut World,
    client: impl FnOnce(Local, DeskClient<Session>) -> F + 'static,
) {
    let uri = world.uri(SERVER);
    let (local, handle) = (world.rpc(CLIENT).local(), world.rpc(CLIENT).handle());
    let of_task = local.clone();
    let task = local.spawn(async move {
        let session = of_task.connect(&uri).await.unwrap();
        client(of_task.clone(), DeskClient::new(session).await.unwrap()).await;
    });
    handle.wake();
    assert!(world.run_until(Duration::from_secs(1_000), |_| task.is_finished()), "it hangs");
}

#[test]
fn a_server_that_refuses_gets_at_most_a_tenth_more_load() {
    const CALLS: u64 = 2_000;
    let gate = Gate { refuses: true, ..Gate::default() };
    let (mut world, runs) = world(1, &gate, true);
    let retries = Retries::new(RetryPolicy::default().attempts(10).pauses(MS, MS * 4));
    let (of_client, seen) = (retries.clone(), gate.seen.clone());
    run(&mut world, move |_, desk| async move {
        let desk = desk.with_retries(of_client);
        for id in 0..CALLS {
            let error = desk.read(id).await.unwrap_err();
            assert!(matches!(error, RpcError::TooMany { .. }), "{error}");
        }
    });
    let (seen, stats) = (seen.load(Ordering::Relaxed), retries.stats());
    assert_eq!(seen, CALLS + stats.retries);
    // A tenth, and the three that a client has at first.
    assert!(stats.retries <= CALLS / 10 + 3, "{stats:?}");
    assert!(stats.retries >= CALLS / 10, "{stats:?}");
    assert_eq!(stats.calls, CALLS);
    assert!(stats.over_budget > CALLS / 2, "{stats:?}");
    assert!(runs.0.borrow().is_empty());
}

/// Keeps the durations of calls.
#[derive(Clone, Default)]
struct Durations(Arc<std::sync::Mutex<Vec<(Duration, u32)>>>);

impl ClientMiddleware for Durations {
    fn before(&self, _: &mut OutgoingCall<'_>) -> Result<(), Denied> {
        Ok(())
    }
    fn after(&self, end: &CallEnd<'_>) {
        self.0.lock().unwrap().push((end.duration, end.attempts));
    }
}

/// The durations of calls with these retries that are refused, in virtual time.
fn durations(seed: u64, policy: RetryPolicy, deadline: Option<Duration>) -> Vec<(Duration, u32)> {
    let (mut world, _) = world(seed, &Gate { refuses: true, ..Gate::default() }, true);
    let durations = Durations::default();
    let kept = durations.clone();
    run(&mut world, move |_, desk| async move {
        for id in 0..3 {
            // Each has the retries of a new client.
            let desk = desk.with_middleware(durations.clone()).with_retries(policy);
            assert!(desk.read(id).deadline(deadline).await.is_err());
        }
    });
    let durations = kept.0.lock().unwrap();
    durations.clone()
}

#[test]
fn pauses_double_and_are_drawn_and_end_by_the_deadline() {
    let policy = RetryPolicy::default().attempts(4).pauses(MS * 10, MS * 20);
    let drawn = durations(2, policy, None);
    assert_eq!(drawn, durations(2, policy, None), "the same seed");
    assert!(drawn[0].0 != drawn[1].0 && drawn[1].0 != drawn[2].0, "{drawn:?}");
    for (duration, attempts) in drawn {
        // 10, 20 and 20 ms, of which the second half is drawn.
        assert_eq!(attempts, 4);
        assert!(duration >= MS * 25 && duration < MS * 52, "{duration:?}");
    }
    for (duration, attempts) in durations(3, policy, Some(MS * 16)) {
        assert!(attempts == 2 && duration < MS * 16, "{duration:?} {attempts}");
    }
}

// ---- the verdict, and runs of handlers ------------------------------------------------------------

/// A call that has ended: its number, whether it is one of `write`, and its verdict without an answer.
type End = (u64, bool, Option<Executed>);

/// Starts a process on a host whose endpoint is one of clients that connect again.
fn start_clients(world: &mut World) -> Endpoints {
    let made = Rc::new(RefCell::new(None));
    let to = made.clone();
    let start = move |nexus: &Nexus| {
        let mut rpc = nexus.endpoint()?;
        *to.borrow_mut() = Some(VirtualClients::new(&mut rpc));
        Ok::<_, courser::BindError>(rpc)
    };
    world.start(CLIENT, start).unwrap();
    let (mut clients, endpoints) = made.take().unwrap();
    world.set_beside(CLIENT, 0, move |rpc| clients.turn(rpc));
    endpoints
}

/// Polls a future while time passes.
fn finish<T>(world: &mut World, future: impl Future<Output = T>, limit: Duration) -> Option<T> {
    let (mut future, mut took) = (pin!(future), Duration::ZERO);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(result);
        }
        if took >= limit {
            return None;
        }
        world.run_for(MS / 10);
        took += MS / 10;
    }
}

/// Calls one after the other, of both methods in turn.
async fn calls(desk: DeskClient, of: u64, ends: &RefCell<Vec<End>>) {
    for id in of * 100..of * 100 + 40 {
        let writes = (id + of).is_multiple_of(2);
        let result = if writes { desk.write(id).await } else { desk.read(id).await };
        ends.borrow_mut().push((id, writes, result.map_err(|e| e.executed()).err()));
    }
}

/// Calls of several tasks under loss, while the server crashes and starts again.
fn crashing(seed: u64, retries: &Retries) -> (Vec<End>, BTreeMap<u64, u64>) {
    let (mut world, runs) = world(seed, &Gate::default(), false);
    for link in 0..world.fabric().links() {
        let faults =
            LinkFaults { loss_ppm: 50_000, duplicate_ppm: 50_000, ..LinkFaults::default() };
        world.set_link_faults(LinkId(link), faults);
    }
    let endpoints = start_clients(&mut world);
    let connect = Client::connect_on(&endpoints, &world.uri(SERVER));
    let client = finish(&mut world, connect, MS * 5_000).expect("it hangs").unwrap();
    let desk = DeskClient::unchecked(client).with_retries(retries.clone());
    let ends = RefCell::new(Vec::new());
    let all = join_all((0..4).map(|of| calls(desk.clone(), of, &ends)));
    let mut all = pin!(all);
    for pause in [1, 3] {
        assert!(finish(&mut world, all.as_mut(), MS * pause).is_none(), "{seed}: too early");
        world.crash(SERVER);
        assert!(finish(&mut world, all.as_mut(), MS * 3).is_none(), "{seed}: without a server");
        world.restart(SERVER).unwrap();
    }
    assert!(finish(&mut world, all, Duration::from_secs(200)).is_some(), "{seed}: it hangs");
    let ended = ends.borrow().clone();
    (ended, runs.0.borrow().clone())
}

#[test]
fn handlers_of_methods_that_are_not_idempotent_run_at_most_once_under_loss_and_crashes() {
    let (mut repeated, mut unknown, mut twice) = (0, 0, 0);
    for seed in 0..12 {
        let policy = RetryPolicy::default().attempts(6).pauses(MS * 100, MS * 800);
        let retries = Retries::new(policy);
        let (ends, runs) = crashing(seed, &retries);
        assert_eq!(ends.len(), 160);
        for (id, writes, verdict) in ends {
            let count = runs.get(&id).copied().unwrap_or_default();
            assert!(!writes || count <= 1, "{seed}: {id} ran {count} times");
            assert!(verdict != Some(Executed::Never) || count == 0, "{seed}: {id} has run");
            assert!(verdict.is_some() || count >= 1, "{seed}: {id} has an answer of no handler");
            unknown += u64::from(writes && verdict == Some(Executed::Maybe));
            twice += u64::from(count > 1);
        }
        repeated += retries.stats().retries;
    }
    assert!(
        unknown > 0 && repeated > 0,
        "{unknown} unknown, {repeated} repeated, {twice} ran twice"
    );
}

#[test]
fn a_call_whose_first_attempt_has_run_does_not_end_as_never_executed() {
    let (mut world, runs) = world(5, &Gate::default(), false);
    let endpoints = start_clients(&mut world);
    let connect = Client::connect_on(&endpoints, &world.uri(SERVER));
    let client = finish(&mut world, connect, MS * 5_000).expect("it hangs").unwrap();
    let retries = Retries::new(RetryPolicy::default().pauses(MS, MS * 2));
    let desk = DeskClient::unchecked(client).with_retries(retries.clone());
    let mut call = pin!(desk.hold(1).into_future());
    assert!(finish(&mut world, call.as_mut(), MS * 2).is_none());
    assert_eq!(runs.0.borrow().get(&1), Some(&1));
    // The server is not there any more at the other attempts.
    world.crash(SERVER);
    let result = finish(&mut world, call, Duration::from_secs(200)).expect("it hangs");
    let error = result.unwrap_err();
    assert_eq!(retries.stats().retries, 2, "{error}");
    assert_eq!(error.executed(), Executed::Maybe, "{error}");
    let other = finish(&mut world, desk.hold(2).into_future(), Duration::from_secs(200));
    assert_eq!(other.expect("it hangs").map_err(|e| e.executed()), Err(Executed::Never));
}

/// The attempts and durations of calls of a client that connects again, whose server is not there.
fn paused(seed: u64) -> Vec<(Duration, u32)> {
    let (mut world, _) = world(seed, &Gate::default(), false);
    let endpoints = start_clients(&mut world);
    let connect = Client::connect_on(&endpoints, &world.uri(SERVER));
    let client = finish(&mut world, connect, MS * 5_000).expect("it hangs").unwrap();
    let durations = Durations::default();
    let desk = DeskClient::unchecked(client).with_middleware(durations.clone());
    let desk = desk.with_retries(RetryPolicy::default().pauses(MS * 100, MS * 500));
    world.crash(SERVER);
    let ended = finish(&mut world, desk.read(1).into_future(), Duration::from_secs(200));
    assert!(ended.expect("it hangs").is_err());
    let durations = durations.0.lock().unwrap();
    durations.clone()
}

#[test]
fn pauses_of_a_client_are_those_of_the_seed_in_virtual_time() {
    let drawn = paused(6);
    assert_eq!(drawn, paused(6));
    assert!(drawn != paused(7), "{drawn:?}");
    assert!(drawn[0].1 == 3 && drawn[0].0 >= MS * 150, "{drawn:?}");
}

#[test]
fn deadlines_of_a_client_that_connects_again_are_in_virtual_time() {
    let (mut world, runs) = world(8, &Gate::default(), false);
    let endpoints = start_clients(&mut world);
    // Far from the time of the system, which has passed some milliseconds meanwhile.
    world.run_for(Duration::from_secs(1_000));
    let connect = Client::connect_on(&endpoints, &world.uri(SERVER));
    let client = finish(&mut world, connect, MS * 5_000).expect("it hangs").unwrap();
    let durations = Durations::default();
    let desk = DeskClient::unchecked(client).with_middleware(durations.clone());
    let took = |calls: usize| {
        let durations = durations.0.lock().unwrap();
        assert_eq!(durations.len(), calls);
        durations[calls - 1]
    };
    let is_late = |result: Option<Result<u64, RpcError<NoError>>>| {
        let error = result.expect("it hangs").unwrap_err();
        let late = CallFailure::Failed(CallError::DeadlineExceeded(Executed::Maybe));
        assert_eq!(error, RpcError::Call(late));
    };
    let call = desk.hold(1).deadline(MS * 70).into_future();
    is_late(finish(&mut world, call, Duration::from_secs(200)));
    assert!(took(1).0 >= MS * 69 && took(1).0 < MS * 75, "{:?}", took(1));
    let of_client = desk.with_deadline(MS * 50);
    is_late(finish(&mut world, of_client.hold(2).into_future(), Duration::from_secs(200)));
    assert!(took(2).0 >= MS * 49 && took(2).0 < MS * 55, "{:?}", took(2));
    assert_eq!(runs.0.borrow().keys().copied().collect::<Vec<_>>(), [1, 2]);
    // All attempts at a server that is not there, and their pauses.
    world.crash(SERVER);
    let policy = RetryPolicy::default().attempts(20).pauses(MS * 10, MS * 20);
    let retrying = of_client.with_retries(Retries::new(policy));
    let ended = finish(&mut world, retrying.read(3).into_future(), Duration::from_secs(200));
    assert!(ended.expect("it hangs").is_err());
    assert!(took(3).0 < MS * 55, "{:?}", took(3));
}
