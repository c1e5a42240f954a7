//! The contexts of handlers in the simulator: in virtual time, and in tasks of an endpoint.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use courser::Nexus;
use courser::service::{CallContext, Metadata, NoError, RpcError};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, World, WorldConfig};

const FRONT: HostId = HostId(0);
const CLIENT: HostId = HostId(1);
const MS: Duration = Duration::from_millis(1);

#[courser::service]
trait Back {
    async fn left(&self, cx: CallContext) -> Option<Duration>;
    /// The keys of its metadata.
    async fn keys(&self, cx: CallContext) -> Vec<String>;
}

#[courser::service]
trait Front {
    async fn keys(&self, cx: CallContext, scoped: bool) -> Vec<String>;
    async fn left(&self, cx: CallContext, spawns: u8) -> Option<Duration>;
    async fn hang(&self, cx: CallContext);
}

struct Clock;

impl LocalBack for Clock {
    async fn left(&self, cx: CallContext) -> Option<Duration> {
        assert_eq!((cx.service(), cx.method()), ("Back", "left"));
        cx.time_left()
    }
    async fn keys(&self, cx: CallContext) -> Vec<String> {
        cx.metadata().iter().map(|(key, _)| key.to_owned()).collect()
    }
}

/// Calls the service of its own host.
struct Passing {
    local: RefCell<Option<(courser::Local, String)>>,
    cancelled: Rc<Cell<u64>>,
}

impl LocalFront for Passing {
    async fn left(&self, cx: CallContext, spawns: u8) -> Option<Duration> {
        let (local, uri) = self.local.borrow().clone().unwrap();
        let back = BackClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
        let call = async move { back.left().await.unwrap() };
        match spawns {
            0 => call.await,
            1 => local.spawn(call).await.unwrap(),
            _ => local.spawn(cx.scope(call)).await.unwrap(),
        }
    }
    async fn keys(&self, cx: CallContext, scoped: bool) -> Vec<String> {
        let (local, uri) = self.local.borrow().clone().unwrap();
        let back = BackClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
        cx.respond_with("answered", "yes").unwrap();
        // In a later poll of the handler.
        let mut keys = back.keys().await.unwrap();
        let call = async move { back.keys().metadata("own", "v").await.unwrap() };
        keys.extend(match scoped {
            true => local.spawn(cx.scope(call)).await.unwrap(),
            false => local.spawn(call).await.unwrap(),
        });
        keys
    }
    async fn hang(&self, cx: CallContext) {
        let (local, _) = self.local.borrow().clone().unwrap();
        let cancelled = self.cancelled.clone();
        let task = cx.clone();
        let watching = local.spawn(async move {
            task.cancelled().await;
            assert!(task.is_cancelled());
            cancelled.set(cancelled.get() + 1);
        });
        watching.await.unwrap();
    }
}

fn world(seed: u64) -> (World, Rc<Cell<u64>>) {
    let mut world = World::new(WorldConfig::new(seed, Topology::two_hosts())).unwrap();
    let uri = world.uri(FRONT);
    let cancelled = Rc::<Cell<u64>>::default();
    let counts = cancelled.clone();
    let start = move |nexus: &Nexus| -> Result<_, Box<dyn std::error::Error>> {
        let mut rpc = nexus.endpoint()?;
        let local = RefCell::new(Some((rpc.local(), uri.clone())));
        rpc.add_service(BackServer::local(Clock))?;
        rpc.add_service(FrontServer::local(Passing { local, cancelled: counts.clone() }))?;
        Ok(rpc)
    };
    world.start(FRONT, move |nexus| start(nexus).map_err(|e| e.to_string())).unwrap();
    world.start(CLIENT, Nexus::endpoint).unwrap();
    (world, cancelled)
}

/// Runs a client's future.
fn run<F: Future<Output = ()> + 'static>(
    world: &mut World,
    client: impl FnOnce(courser::Local, FrontClient<courser::Session>) -> F + 'static,
) {
    let uri = world.uri(FRONT);
    let (local, handle) = (world.rpc(CLIENT).local(), world.rpc(CLIENT).handle());
    let of_task = local.clone();
    let task = local.spawn(async move {
        let session = of_task.connect(&uri).await.unwrap();
        client(of_task.clone(), FrontClient::new(session).await.unwrap()).await;
    });
    handle.wake();
    assert!(world.run_until(Duration::from_secs(100), |_| task.is_finished()), "it hangs");
    assert!(world.violations().is_empty(), "{:?}", world.violations());
}

#[test]
fn calls_within_a_call_have_its_virtual_deadline_in_its_scope() {
    let (mut world, _) = world(1);
    run(&mut world, |_, front| async move {
        let left = |spawns| {
            let front = front.clone();
            async move { front.left(spawns).deadline(MS * 90).await.unwrap() }
        };
        for spawns in [0, 2] {
            let left = left(spawns).await.expect("a deadline");
            assert!(left > MS * 80 && left < MS * 90, "{spawns}: {left:?}");
        }
        assert_eq!(left(1).await, None, "in a task without the scope");
        assert_eq!(front.left(2).await.unwrap(), None, "of a call without a deadline");
    });
}

#[test]
fn metadata_arrives_under_loss_and_the_trace_goes_on() {
    for seed in 0..20 {
        let (mut world, _) = world(seed);
        for link in 0..world.fabric().links() {
            let faults =
                LinkFaults { loss_ppm: 20_000, duplicate_ppm: 20_000, ..LinkFaults::default() };
            world.set_link_faults(LinkId(link), faults);
        }
        run(&mut world, |_, front| async move {
            let mut metadata = Metadata::new();
            metadata.insert("token", vec![1; 3_000]).unwrap();
            metadata.insert("tracestate", "t=1").unwrap();
            let of_all = front.with_metadata(metadata);
            for _ in 0..20 {
                let (keys, answered) = of_all.keys(true).with_response_metadata().await;
                assert_eq!(keys.unwrap(), ["tracestate", "own", "tracestate"]);
                assert_eq!(answered.text("answered"), Some("yes"));
                assert_eq!(of_all.keys(false).await.unwrap(), ["tracestate", "own"]);
                assert_eq!(front.keys(true).await.unwrap(), ["own"]);
            }
        });
    }
}

#[test]
fn a_task_sees_that_the_call_of_its_handler_is_cancelled() {
    let (mut world, cancelled) = world(2);
    run(&mut world, |local, front| async move {
        let hang = front.hang().deadline(MS);
        assert!(matches!(hang.await, Err(RpcError::<NoError>::Call(_))));
        local.timeout(MS, async { front.hang().await }).await.unwrap_err();
        local.sleep(MS * 10).await;
    });
    assert_eq!(cancelled.get(), 2);
}
