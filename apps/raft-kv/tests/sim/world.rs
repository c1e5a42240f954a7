//! A world with nodes and clients.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use courser::{Local, Nexus};
use courser_disk::Storage;
use courser_raft_kv::client::Client;
use courser_raft_kv::core::Settings;
use courser_raft_kv::node::{Node, Options};
use courser_sim::fabric::Topology;
use courser_sim::{HostId, SimDisk, World, WorldConfig};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Nodes 1 to N on hosts 0 to N - 1, and clients on the hosts behind them.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) nodes: Rc<RefCell<BTreeMap<u64, Rc<Node>>>>,
    pub(crate) disks: Vec<SimDisk>,
    /// The events that nodes reported.
    pub(crate) reports: Rc<RefCell<Vec<String>>>,
    pub(crate) count: u64,
    /// The largest snapshot that nodes receive which start after this.
    pub(crate) max_snapshot: Rc<Cell<u64>>,
    clients: u32,
}

/// A node, and the host of its process.
#[derive(Clone)]
pub(crate) struct Place {
    /// Its key in [`Cluster::nodes`], which is in front of its reports too.
    pub(crate) key: u64,
    pub(crate) at: HostId,
    pub(crate) uri: String,
    pub(crate) cluster: &'static str,
    pub(crate) members: BTreeMap<u64, String>,
    pub(crate) join: bool,
    pub(crate) new: bool,
}

pub(crate) fn settings(id: u64) -> Settings {
    let ticks = 10 + 3 * id as usize;
    Settings { election_ticks: ticks..ticks + 1, ..Settings::new(id) }
}

pub(crate) fn host(id: u64) -> HostId {
    HostId(id as u32 - 1)
}

impl Cluster {
    /// Hosts for nodes and clients; nothing runs yet but the clients' endpoints.
    pub(crate) fn hosts(seed: u64, count: u64, clients: u32) -> Cluster {
        let hosts = count as u32 + clients;
        let mut config = WorldConfig::new(seed, Topology::one_switch(hosts as usize as _));
        config.nexus.failure_timeout = 500 * MS;
        config.connect_retry_ns = 100_000_000;
        let mut world = World::new(config).unwrap();
        let disks = (1..=count).map(|id| world.disk(host(id))).collect();
        for client in 0..clients {
            world.start(HostId(count as u32 + client), Nexus::endpoint).unwrap();
        }
        let (nodes, reports) = (Rc::default(), Rc::default());
        let max_snapshot = Rc::new(Cell::new(1 << 30));
        Cluster { world, nodes, disks, reports, count, max_snapshot, clients }
    }

    /// A cluster whose nodes all run.
    pub(crate) fn new(seed: u64, count: u64, clients: u32, change: fn(&mut Settings)) -> Cluster {
        let mut cluster = Cluster::hosts(seed, count, clients);
        for id in 1..=count {
            cluster.start(id, false, change);
        }
        cluster
    }

    /// Starts a node.
    pub(crate) fn start(&mut self, id: u64, join: bool, change: fn(&mut Settings)) {
        let mut settings = settings(id);
        settings.durable = true;
        change(&mut settings);
        let members = (1..=3).map(|id| (id, self.world.uri(host(id)))).collect();
        let (at, uri) = (host(id), self.world.uri(host(id)));
        self.start_as(
            Place { key: id, at, uri, cluster: "test", members, join, new: !join },
            settings,
        );
    }

    /// Starts a node anywhere.
    pub(crate) fn start_as(&mut self, place: Place, settings: Settings) {
        let (nodes, reports) = (self.nodes.clone(), self.reports.clone());
        let max_snapshot = self.max_snapshot.clone();
        let disk: Option<Arc<dyn Storage>> = settings
            .durable
            .then(|| Arc::new(self.disks[place.at.0 as usize].clone()) as Arc<dyn Storage>);
        let at = place.at;
        let setup = move |nexus: &Nexus| {
            let (reports, key) = (reports.clone(), place.key);
            let options = Options {
                cluster: place.cluster.to_owned(),
                uri: place.uri.clone(),
                members: place.members.clone(),
                join: place.join,
                new: place.new,
                settings: settings.clone(),
                max_snapshot: max_snapshot.get(),
                report: Rc::new(move |text| reports.borrow_mut().push(format!("{key}: {text}"))),
            };
            let mut rpc = nexus.endpoint()?;
            let node = Node::start(&mut rpc, options, disk.clone())?;
            nodes.borrow_mut().insert(key, node);
            anyhow_free(rpc)
        };
        self.world.start(at, setup).unwrap();
    }

    pub(crate) fn uris(&self) -> Vec<String> {
        (1..=self.count).map(|id| self.world.uri(host(id))).collect()
    }

    /// The endpoint of a client.
    pub(crate) fn local(&mut self, client: u32) -> Local {
        assert!(client < self.clients);
        let host = HostId(self.count as u32 + client);
        self.world.rpc(host).local()
    }

    /// Runs a client's task. The flag is set when it has ended.
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(
        &mut self,
        client: u32,
        task: impl FnOnce(Client<Local>, Local) -> F,
    ) -> Rc<Cell<bool>> {
        let local = self.local(client);
        let kv = Client::new(local.clone(), self.uris(), 60 * SECOND).attempt(300 * MS);
        let ended = Rc::new(Cell::new(false));
        let set = ended.clone();
        let task = task(kv, local.clone());
        drop(local.spawn(async move {
            task.await;
            set.set(true);
        }));
        let host = HostId(self.count as u32 + client);
        self.world.rpc(host).handle().wake();
        ended
    }

    /// Runs the world until a task has ended.
    pub(crate) fn finish(&mut self, ended: &Rc<Cell<bool>>) {
        let done = self.world.run_until(120 * SECOND, |_| ended.get());
        assert!(done, "the client's task hangs; {:?}", self.reports.borrow());
    }

    /// The node that leads, after waiting for one.
    pub(crate) fn leader(&mut self) -> u64 {
        let nodes = self.nodes.clone();
        let find = move || {
            let nodes = nodes.borrow();
            let leaders = nodes.iter().filter(|(_, node)| node.core().is_leader());
            leaders.max_by_key(|(_, node)| node.core().term()).map(|(id, _)| *id)
        };
        assert!(self.world.run_until(20 * SECOND, |_| find().is_some()), "no leader");
        find().unwrap()
    }
}

/// The result of a set-up.
fn anyhow_free<T>(rpc: T) -> Result<T, Box<dyn std::error::Error>> {
    Ok(rpc)
}
