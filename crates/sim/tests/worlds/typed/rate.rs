//! A limit of the rate of calls, as the documentation of `courser::service` shows it, in simulated time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use courser::service::{Denied, IncomingCall, NoError, RpcError, ServerMiddleware};
use courser::{Local, Nexus, Session};
use courser_sim::fabric::Topology;
use courser_sim::{HostId, World, WorldConfig};

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);
const SECOND: Duration = Duration::from_secs(1);
const LIMIT: u32 = 5;

#[courser::service]
trait Counter {
    async fn next(&self) -> u32;
}

struct Numbers(Mutex<u32>);

impl LocalCounter for Numbers {
    async fn next(&self) -> u32 {
        let mut number = self.0.lock().unwrap();
        *number += 1;
        *number
    }
}

/// Calls of each address in one second.
type Counts = BTreeMap<Option<IpAddr>, u32>;

/// Lets [`LIMIT`] calls of each address pass in a second.
#[derive(Default)]
struct RateLimit(Mutex<(Option<Instant>, Counts)>);

impl ServerMiddleware for RateLimit {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        let address = call.peer().addr().to_socket().map(|socket| socket.ip());
        let (now, mut state) = (call.begun(), self.0.lock().unwrap());
        let (second, counts) = &mut *state;
        let since = now - *second.get_or_insert(now);
        if since >= SECOND {
            *second = Some(now);
            counts.clear();
        }
        let count = counts.entry(address).or_default();
        *count += 1;
        match *count {
            ..=LIMIT => Ok(()),
            _ => Err(Denied::too_many("5 calls in a second", SECOND.saturating_sub(since))),
        }
    }
}

/// The time after which a refused call may be made again.
fn retry_after(refused: Result<u32, RpcError<NoError>>) -> Duration {
    match refused {
        Err(RpcError::TooMany { retry_after, .. }) => retry_after,
        other => panic!("the call is not refused: {other:?}"),
    }
}

async fn calls(local: Local, session: Session) {
    let counter = CounterClient::new(session).await.unwrap();
    for second in 0..30 {
        for number in 1..=LIMIT {
            assert_eq!(counter.next().await, Ok(second * LIMIT + number));
        }
        let left = retry_after(counter.next().await);
        assert!(left <= SECOND && left > SECOND / 2, "{left:?}");
        // A little too early: as refused calls wait for the rest of the same second.
        local.sleep(left - left / 10).await;
        let rest = retry_after(counter.next().await);
        assert!(rest <= left / 10, "{rest:?} of {left:?}");
        local.sleep(rest).await;
    }
}

#[test]
fn a_rate_limit_refuses_calls_and_lets_them_pass_again_by_simulated_time() {
    let mut world = World::new(WorldConfig::new(1, Topology::two_hosts())).unwrap();
    let start = |nexus: &Nexus| -> Result<_, Box<dyn std::error::Error>> {
        let mut rpc = nexus.endpoint()?;
        rpc.add_service(CounterServer::local(Numbers(Mutex::new(0))))?;
        rpc.middleware(RateLimit::default());
        Ok(rpc)
    };
    world.start(SERVER, move |nexus| start(nexus).map_err(|e| e.to_string())).unwrap();
    world.start(CLIENT, Nexus::endpoint).unwrap();
    let uri = world.uri(SERVER);
    let (local, handle) = (world.rpc(CLIENT).local(), world.rpc(CLIENT).handle());
    let (of_task, ended) = (local.clone(), Rc::<Cell<bool>>::default());
    let has_ended = ended.clone();
    let task = local.spawn(async move {
        let session = of_task.connect(&uri).await.unwrap();
        calls(of_task.clone(), session).await;
        has_ended.set(true);
    });
    handle.wake();
    assert!(world.run_until(100 * SECOND, |_| task.is_finished()), "it hangs");
    assert!(world.violations().is_empty(), "{:?}", world.violations());
    assert!(ended.get(), "the client has panicked");
}
