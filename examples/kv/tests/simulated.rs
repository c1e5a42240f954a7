//! The service in a simulated datacenter: lost packets, a partition, a server that is restarted.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use courser::service::{MidStreamError, RpcError};
use courser::{Executed, Local, Nexus, Session};
use courser_example_kv::{Change, KvClient, KvError, KvServer, MAX_VALUE, Store};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, World, WorldConfig};

const MS: Duration = Duration::from_millis(1);
const SERVER: HostId = HostId(0);
const CLIENTS: [HostId; 2] = [HostId(1), HostId(2)];
const ENTRIES: u32 = 200;

/// A world with a server, whose store survives restarts, and two endpoints of clients.
fn world(seed: u64, store: &Arc<Store>) -> World {
    let mut world = World::new(WorldConfig::new(seed, Topology::one_switch(3))).unwrap();
    let store = store.clone();
    let setup = move |nexus: &Nexus| {
        let mut rpc = nexus.endpoint()?;
        store.drain_with(rpc.drain_token());
        rpc.add_service(KvServer::shared(store.clone()))?;
        anyhow::Ok(rpc)
    };
    world.start(SERVER, setup).unwrap();
    for client in CLIENTS {
        world.start(client, Nexus::endpoint).unwrap();
    }
    world
}

/// Runs a task on the endpoint of a host. The flag is set when it has ended.
fn spawn(
    world: &mut World,
    host: HostId,
    task: impl Future<Output = ()> + 'static,
) -> Rc<Cell<bool>> {
    let ended = Rc::new(Cell::new(false));
    let set = ended.clone();
    drop(world.rpc(host).local().spawn(async move {
        task.await;
        set.set(true);
    }));
    world.rpc(host).handle().wake();
    ended
}

fn key(client: u32, n: u32) -> String {
    format!("{client}-{n:04}")
}

/// Connects, again and again while the server cannot be reached.
async fn connect(local: &Local, uri: &str) -> KvClient<Session> {
    loop {
        if let Ok(session) = local.connect(uri).await
            && let Ok(kv) = KvClient::new(session).await
        {
            return kv;
        }
        local.sleep(MS).await;
    }
}

/// Stores an entry each millisecond, each again and again until it is acknowledged.
async fn fill(local: Local, uri: String, client: u32) {
    let mut kv = connect(&local, &uri).await;
    for n in 0..ENTRIES {
        let put = |kv: KvClient<Session>| async move {
            kv.put(key(client, n), key(client, n).into_bytes()).deadline(20 * MS).await
        };
        while let Err(error) = put(kv.clone()).await {
            // A put may run twice; an error of the store would repeat itself.
            assert!(!matches!(error, RpcError::Service(_)), "{error}");
            kv = connect(&local, &uri).await;
        }
        local.sleep(MS).await;
    }
}

/// All keys, by a scan.
async fn keys(local: Local, uri: String) {
    let kv = connect(&local, &uri).await;
    let mut entries = kv.scan(String::new()).await.unwrap();
    for (client, n) in (1..3).flat_map(|client| (0..ENTRIES).map(move |n| (client, n))) {
        let (found, value) = entries.next().await.unwrap().unwrap();
        assert_eq!((found, value), (key(client, n), key(client, n).into_bytes()));
    }
    assert!(entries.next().await.is_none());
}

#[test]
fn acknowledged_entries_are_found_after_losses_a_partition_and_a_restart() {
    for seed in 0..20 {
        let store = Arc::default();
        let mut world = world(seed, &store);
        for link in 0..world.fabric().links() {
            let faults = LinkFaults { loss_ppm: 20_000, ..LinkFaults::default() };
            world.set_link_faults(LinkId(link), faults);
        }
        let uri = world.uri(SERVER);
        let filled = CLIENTS.map(|host| {
            let local = world.rpc(host).local();
            spawn(&mut world, host, fill(local, uri.clone(), host.0))
        });
        world.run_for(MS);
        world.partition(&[&[SERVER, CLIENTS[0]], &[CLIENTS[1]]]);
        world.run_for(100 * MS);
        world.heal();
        world.run_for(MS);
        world.restart(SERVER).unwrap();
        let all = |_: &mut World| filled.iter().all(|ended| ended.get());
        assert!(world.run_until(Duration::from_secs(60), all), "seed {seed}: entries are missing");

        let local = world.rpc(CLIENTS[0]).local();
        let read = spawn(&mut world, CLIENTS[0], keys(local, uri));
        assert!(world.run_until(Duration::from_secs(10), |_| read.get()), "seed {seed}: no scan");
        assert!(world.violations().is_empty(), "seed {seed}: {:?}", world.violations());
    }
}

#[test]
fn a_watch_and_a_call_that_waits_end_with_their_server() {
    let mut world = world(3, &Arc::default());
    let (uri, local) = (world.uri(SERVER), world.rpc(CLIENTS[0]).local());
    let waits = spawn(&mut world, CLIENTS[0], {
        let (local, uri) = (local.clone(), uri.clone());
        async move {
            let kv = connect(&local, &uri).await;
            assert_eq!(kv.wait_for("0".to_owned()).await.unwrap(), b"value");
            let ended = kv.wait_for("never".to_owned()).await.unwrap_err();
            assert_eq!(ended, RpcError::Service(KvError::ShuttingDown));
        }
    });
    let watch = spawn(&mut world, CLIENTS[0], async move {
        let kv = connect(&local, &uri).await;
        let mut changes = kv.watch().await.unwrap();
        for n in 0..10 {
            let change = Change::Put(n.to_string(), b"value".to_vec());
            assert_eq!(changes.next().await.unwrap().unwrap(), change);
        }
        let end = changes.next().await.unwrap().unwrap_err();
        assert_eq!(end, RpcError::MidStream(MidStreamError::ShuttingDown { items: 10 }));
        assert!(changes.next().await.is_none());
    });
    world.run_for(100 * MS);
    let (uri, local) = (world.uri(SERVER), world.rpc(CLIENTS[1]).local());
    let puts = spawn(&mut world, CLIENTS[1], async move {
        let kv = connect(&local, &uri).await;
        for n in 0..10 {
            kv.put(n.to_string(), b"value".to_vec()).await.unwrap();
        }
    });
    assert!(world.run_until(Duration::from_secs(10), |_| puts.get()));
    world.run_for(10 * MS);
    world.stop(SERVER, Duration::from_secs(10));
    let both = |_: &mut World| watch.get() && waits.get();
    assert!(world.run_until(100 * MS, both), "a tenth of a second after the token");
}

#[test]
fn errors_of_the_store_arrive_as_they_are() {
    let mut world = world(1, &Arc::default());
    let (uri, local) = (world.uri(SERVER), world.rpc(CLIENTS[0]).local());
    let ended = spawn(&mut world, CLIENTS[0], async move {
        let kv = connect(&local, &uri).await;
        let missing = kv.get("absent".to_owned()).await.unwrap_err();
        assert_eq!(missing, RpcError::Service(KvError::NotFound));
        let size = MAX_VALUE + 1;
        let large = kv.put("large".to_owned(), vec![0; size]).await.unwrap_err();
        let expected = KvError::TooLarge { size: size as u64, limit: MAX_VALUE as u64 };
        assert_eq!(large, RpcError::Service(expected));
        assert_eq!(large.executed(), Executed::Yes);
    });
    assert!(world.run_until(Duration::from_secs(10), |_| ended.get()));
}
