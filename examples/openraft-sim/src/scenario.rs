//! A run in the simulated datacenter: the leader is cut off, then a machine crashes and restarts, while
//! clients write through a network that loses packets.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use courser::{Local, Nexus, Session};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, World, WorldConfig};
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;

use crate::network::NodeClient;
use crate::store::{Disk, StateMachine};
use crate::{Command, Raft, node};

const NODES: u64 = 3;
const CLIENTS: u32 = 2;
/// Writes that are acknowledged in a step.
const WRITES: usize = 20;
const MS: Duration = Duration::from_millis(1);
/// Only a defect takes longer, in simulated time.
const LIMIT: Duration = Duration::from_secs(60);

type Values = BTreeMap<String, String>;

/// The result of a run.
pub struct Outcome {
    /// The digest of all events. Two runs of a seed have the same.
    pub digest: u64,
    /// Simulated time.
    pub took: Duration,
    /// The steps, with their times.
    pub story: Vec<String>,
    /// Writes that clients were told of.
    pub acknowledged: Values,
    /// The values of each node.
    pub nodes: BTreeMap<u64, Values>,
    /// Snapshots of a leader that nodes installed.
    pub installed: u64,
    /// Reads that were answered, each with the value that the client had written.
    pub reads: usize,
    /// The leader handed over to the node that it was told to.
    pub handed_over: bool,
    /// The machine that crashed was that of the leader.
    pub leader_crashed: bool,
}

impl Outcome {
    /// Acknowledged writes that a node does not have, and nodes that differ.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (id, values) in &self.nodes {
            let lost = |key: &String, value: &String| values.get(key) != Some(value);
            let lost = self.acknowledged.iter().filter(|(key, value)| lost(key, value)).count();
            if lost > 0 {
                faults.push(format!("node {id} has lost {lost} acknowledged writes"));
            }
            if Some(values) != self.nodes.values().next() {
                faults.push(format!("node {id} differs from the first one"));
            }
        }
        faults
    }
}

struct Running {
    raft: Raft,
    state: StateMachine,
}

struct Cluster {
    world: World,
    nodes: Rc<RefCell<BTreeMap<u64, Running>>>,
    acknowledged: Rc<RefCell<Values>>,
    stop: Rc<Cell<bool>>,
    story: Vec<String>,
    reads: Rc<Cell<usize>>,
    handed_over: bool,
    leader_crashed: bool,
}

fn host(id: u64) -> HostId {
    HostId(id as u32 - 1)
}

/// The host of a client.
fn client_host(client: u32) -> HostId {
    HostId(NODES as u32 + client)
}

/// Writes new keys until the end, each until it is acknowledged, and reads each back.
struct Writer {
    name: u32,
    local: Local,
    uris: Vec<String>,
    /// The node that is called, and its connection.
    at: usize,
    client: Option<NodeClient<Session>>,
    /// Answered reads of all clients.
    reads: Rc<Cell<usize>>,
}

impl Writer {
    async fn client(&mut self) -> Option<NodeClient<Session>> {
        if self.client.is_none() {
            let connecting = self.local.connect(&self.uris[self.at]);
            let session = self.local.timeout(300 * MS, connecting).await.ok()?.ok()?;
            self.client = NodeClient::new(session).await.ok();
        }
        self.client.clone()
    }

    /// Tries the next node.
    async fn turn(&mut self) {
        self.client = None;
        self.at = (self.at + 1) % self.uris.len();
        self.local.sleep(10 * MS).await;
    }

    async fn run(mut self, stop: Rc<Cell<bool>>, acknowledged: Rc<RefCell<Values>>) {
        for n in 0.. {
            let (key, value) = (format!("{} {n}", self.name), n.to_string());
            let command = Command { key: key.clone(), value: value.clone() };
            loop {
                if stop.get() {
                    return;
                }
                let Some(client) = self.client().await else {
                    self.turn().await;
                    continue;
                };
                // The same write twice has the same effect.
                match client.write(command.clone()).deadline(300 * MS).await {
                    Ok(_) => break,
                    Err(_) => self.turn().await,
                }
            }
            acknowledged.borrow_mut().insert(key.clone(), value.clone());
            if let Some(client) = self.client().await
                && let Ok(read) = client.read(key).deadline(300 * MS).await
            {
                assert_eq!(read, Some(value), "a read after the write");
                self.reads.set(self.reads.get() + 1);
            }
            self.local.sleep(5 * MS).await;
        }
    }
}

impl Cluster {
    fn start(seed: u64) -> anyhow::Result<Cluster> {
        let hosts = NODES as u32 + CLIENTS;
        let mut config = WorldConfig::new(seed, Topology::one_switch(hosts));
        config.nexus.failure_timeout = 500 * MS;
        let mut world = World::new(config)?;
        for link in 0..world.fabric().links() {
            let faults = LinkFaults {
                loss_ppm: 10_000,
                duplicate_ppm: 5_000,
                reorder_ppm: 10_000,
                reorder_max_ns: 500_000,
                ..LinkFaults::default()
            };
            world.set_link_faults(LinkId(link), faults);
        }
        let mut cluster = Cluster {
            world,
            nodes: Rc::default(),
            acknowledged: Rc::default(),
            stop: Rc::default(),
            story: Vec::new(),
            reads: Rc::default(),
            handed_over: false,
            leader_crashed: false,
        };
        let members: BTreeMap<_, _> =
            (1..=NODES).map(|id| (id, cluster.world.uri(host(id)))).collect();
        for id in 1..=NODES {
            let (disk, nodes, members) = (Disk::default(), cluster.nodes.clone(), members.clone());
            let setup = move |nexus: &Nexus| {
                let nodes = nodes.clone();
                let started = move |raft, state| {
                    nodes.borrow_mut().insert(id, Running { raft, state });
                };
                node(nexus, id, &disk, members.clone(), started).map_err(|e| e.to_string())
            };
            cluster.world.start(host(id), setup)?;
        }
        let uris: Vec<_> = members.into_values().collect();
        for name in 0..CLIENTS {
            cluster.world.start(client_host(name), Nexus::endpoint)?;
            let rpc = cluster.world.rpc(client_host(name));
            let local = rpc.local();
            let (uris, at, reads) = (uris.clone(), name as usize, cluster.reads.clone());
            let writer = Writer { name, local: local.clone(), uris, at, client: None, reads };
            drop(local.spawn(writer.run(cluster.stop.clone(), cluster.acknowledged.clone())));
            rpc.handle().wake();
        }
        Ok(cluster)
    }

    fn tell(&mut self, text: &str) {
        let at_ms = self.world.now_ns() / 1_000_000;
        let writes = self.acknowledged.borrow().len();
        self.story.push(format!("{at_ms:>6} ms, {writes:>4} writes: {text}"));
    }

    /// Runs the world until `done`.
    fn wait(&mut self, what: &str, mut done: impl FnMut(&Cluster) -> bool) {
        let begin_ns = self.world.now_ns();
        while !done(self) {
            let took = Duration::from_nanos(self.world.now_ns() - begin_ns);
            assert!(took < LIMIT, "not in time: {what}\n{}", self.story.join("\n"));
            self.world.run_for(MS);
        }
    }

    /// Waits for this many more acknowledged writes.
    fn wait_for_writes(&mut self, more: usize) {
        let end = self.acknowledged.borrow().len() + more;
        self.wait("the clients write", |cluster| cluster.acknowledged.borrow().len() >= end);
    }

    /// The node that leads in the last term, besides one.
    fn leader(&self, besides: Option<u64>) -> Option<u64> {
        let nodes = self.nodes.borrow();
        let leads = |(id, node): (&u64, &Running)| {
            let metrics = node.raft.metrics();
            let metrics = metrics.borrow_watched();
            let leads = metrics.state == ServerState::Leader && Some(*id) != besides;
            leads.then_some((metrics.current_term, *id))
        };
        nodes.iter().filter_map(leads).max().map(|(_, id)| id)
    }

    /// Waits for a leader besides a node.
    fn wait_for_leader(&mut self, besides: Option<u64>) -> u64 {
        self.wait("a node leads", |cluster| cluster.leader(besides).is_some());
        let leader = self.leader(besides).expect("a leader");
        self.tell(&format!("node {leader} leads"));
        leader
    }

    /// Lets the leader hand over to another node. On this network the request may be lost.
    fn hand_over(&mut self) {
        let leader = self.wait_for_leader(None);
        let next = 1 + leader % NODES;
        let raft = self.nodes.borrow()[&leader].raft.clone();
        let rpc = self.world.rpc(host(leader));
        let local = rpc.local();
        let transfer = async move {
            let _ = raft.trigger().transfer_leader(next).await;
        };
        drop(local.spawn(local.enter(transfer)));
        rpc.handle().wake();
        self.tell(&format!("node {leader} is told to hand over to node {next}"));
        self.wait_for_writes(WRITES);
        self.handed_over = self.wait_for_leader(None) == next;
    }

    /// All nodes have applied the same, last entry of the log.
    fn agree(&self) -> bool {
        let nodes = self.nodes.borrow();
        let ends = nodes.values().map(|node| {
            let metrics = node.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.last_log_index, metrics.last_applied.map(|id| id.index))
        });
        let ends: Vec<_> = ends.collect();
        ends.len() == NODES as usize && ends.iter().all(|end| *end == (ends[0].0, ends[0].0))
    }

    fn outcome(self) -> Outcome {
        let nodes = self.nodes.borrow();
        Outcome {
            digest: self.world.digest(),
            took: Duration::from_nanos(self.world.now_ns()),
            story: self.story,
            acknowledged: self.acknowledged.take(),
            nodes: nodes.iter().map(|(id, node)| (*id, node.state.values())).collect(),
            installed: nodes.values().map(|node| node.state.installed()).sum(),
            reads: self.reads.get(),
            handed_over: self.handed_over,
            leader_crashed: self.leader_crashed,
        }
    }
}

/// Runs the scenario of a seed.
///
/// # Errors
/// The world cannot be made.
///
/// # Panics
/// A step does not end, or a read lacks a write: both are defects.
pub fn run(seed: u64) -> anyhow::Result<Outcome> {
    let mut cluster = Cluster::start(seed)?;
    let leader = cluster.wait_for_leader(None);
    cluster.wait_for_writes(WRITES);

    // One client is with it, and gets no answer.
    cluster.world.partition(&[&[host(leader), client_host(0)]]);
    cluster.tell(&format!("node {leader} is cut off"));
    cluster.wait_for_leader(Some(leader));
    cluster.wait_for_writes(WRITES);
    cluster.world.heal();
    cluster.tell("the network is whole");
    cluster.wait_for_writes(WRITES);
    cluster.hand_over();

    // The machine follows from the seed, and the leader from random times, so it is the leader's with a
    // chance of 1/3.
    let crashed = 1 + seed % NODES;
    cluster.leader_crashed = cluster.leader(None) == Some(crashed);
    cluster.nodes.borrow_mut().remove(&crashed);
    cluster.world.crash(host(crashed));
    cluster.tell(&format!("the machine of node {crashed} crashes"));
    cluster.wait_for_writes(WRITES);
    cluster.world.restart(host(crashed))?;
    cluster.tell(&format!("node {crashed} starts again"));
    cluster.wait_for_writes(WRITES);

    cluster.stop.set(true);
    cluster.wait("the nodes agree", Cluster::agree);
    cluster.tell("the nodes agree");
    Ok(cluster.outcome())
}
