//! A node: each of its threads passes packets from its queue of plain packets to a thread of another
//! node, and from there to the line of their destination.

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Context, MsgBuf, Nexus, Rpc, SessionId};

use super::lines::{outside, plain};
use super::tally::{Head, LINE_IN, SharedTally};
use super::{Settings, Shape};
use crate::host::process::SetupError;
use crate::world::{PlainQueue, thread_now_ns};
use crate::{HostId, Rng, World};

/// Type of the messages between nodes.
const PACKET: u16 = 1;

/// Packets that a thread takes from its queue of plain packets before the next pass of its event
/// loop, as programs over DPDK do.
const BURST: usize = 32;

/// One thread of a node.
struct Thread {
    settings: Settings,
    node: u32,
    /// Sessions with the same thread of each other node.
    sessions: Vec<Option<SessionId>>,
    queue: PlainQueue,
    rng: Rng,
    tally: SharedTally,
    /// Memory for a plain packet.
    spare: Vec<u8>,
}

/// Starts all nodes.
pub(super) fn start(
    world: &mut World,
    settings: &Settings,
    tally: &SharedTally,
) -> Result<(), super::ScenarioError> {
    let cores = settings.cores as usize;
    for node in 0..settings.nodes {
        world.start(HostId(node), move |nexus: &Nexus| -> Result<Vec<Rpc>, SetupError> {
            let endpoints = (0..cores).map(|_| Ok(nexus.endpoint()?));
            endpoints.collect()
        })?;
    }
    for node in 0..settings.nodes {
        for core in 0..cores {
            attach(world, settings, node, core, tally)
                .map_err(|error| setup_failed(world, node, &error))?;
        }
    }
    Ok(())
}

fn setup_failed(world: &World, host: u32, error: &SetupError) -> super::ScenarioError {
    let cause = error.to_string();
    crate::WorldError::Setup { host, at_ns: world.now_ns(), cause }.into()
}

/// Connects a thread with the same one of all other nodes, and makes it forward.
fn attach(
    world: &mut World,
    settings: &Settings,
    node: u32,
    core: usize,
    tally: &SharedTally,
) -> Result<(), SetupError> {
    let uris: Vec<_> =
        (0..settings.nodes).map(|to| format!("{}/{core}", world.uri(HostId(to)))).collect();
    let queue = world.plain_queue(HostId(node), core).ok_or("no such endpoint")?;
    let rpc = world.endpoint(HostId(node), core).ok_or("no such endpoint")?;
    let connect = |(to, uri): (u32, &String)| match to {
        own if own == node => Ok(None),
        _ => rpc.connect(uri).map(Some),
    };
    let sessions = (0..).zip(&uris).map(connect).collect::<Result<_, _>>()?;
    let thread = Rc::new(RefCell::new(Thread {
        settings: *settings,
        node,
        sessions,
        queue,
        rng: Rng::stream(settings.hosts.seed, 0x0de << 32 | u64::from(node) << 8 | core as u64),
        tally: Rc::clone(tally),
        spare: Vec::new(),
    }));
    let own = Rc::clone(&thread);
    rpc.on_message(PACKET, move |cx, packet| own.borrow_mut().on_message(cx, &packet));
    world.set_beside(HostId(node), core, move |rpc| thread.borrow_mut().poll_line(rpc));
    Ok(())
}

impl Thread {
    /// Takes packets from the line.
    fn poll_line(&mut self, rpc: &mut Rpc) -> bool {
        let mut any = false;
        for _ in 0..BURST {
            let Some(bytes) = self.queue.receive() else { break };
            any = true;
            if let Some(head) = Head::read(&bytes) {
                let head = self.hop_ends(LINE_IN, head);
                let to = self.first_node(head.to.into());
                self.forward(&mut rpc.context(), to, &head);
            }
            self.queue.give_back(bytes);
        }
        any
    }

    /// A message of another node.
    fn on_message(&mut self, cx: &mut Context<'_>, packet: &[u8]) {
        let Some(head) = Head::read(packet) else { return };
        let head = self.hop_ends(head.passed.into(), head);
        self.forward(cx, head.to.into(), &head);
    }

    /// A packet has arrived at this node.
    fn hop_ends(&mut self, hop: usize, head: Head) -> Head {
        let now_ns = thread_now_ns().unwrap_or(head.since_ns);
        self.tally.borrow_mut().hop_ends(hop, &head, now_ns);
        Head { since_ns: now_ns, passed: head.passed + 1, ..head }
    }

    /// The node to which one of the line sends a packet: with Valiant load balancing any of them,
    /// which includes itself.
    fn first_node(&mut self, to: u32) -> u32 {
        match self.settings.topology {
            Shape::Mesh => {
                let between = self.rng.below(self.settings.nodes.into()) as u32;
                if between == self.node { to } else { between }
            }
            Shape::Switch | Shape::Mixed => to,
        }
    }

    /// Sends a packet to a node, or on the line of this one.
    fn forward(&mut self, cx: &mut Context<'_>, to: u32, head: &Head) {
        let sent = if to == self.node {
            plain(&self.settings, head, &mut self.spare);
            self.queue.send(outside(&self.settings, to), &self.spare)
        } else {
            self.send(cx, to, head)
        };
        self.tally.borrow_mut().refused += u64::from(!sent);
    }

    /// Sends a message to another node. False: it was refused.
    fn send(&self, cx: &mut Context<'_>, to: u32, head: &Head) -> bool {
        let Some(Some(session)) = self.sessions.get(to as usize) else { return false };
        let Ok(mut message) = cx.alloc_recycled(self.settings.packet_bytes as usize) else {
            return false;
        };
        write(head, &mut message);
        let sent = cx.send(*session, PACKET, message).is_ok();
        if sent {
            self.tally.borrow_mut().passes(self.node, to, head);
        }
        sent
    }
}

/// A packet between nodes: its head, and otherwise the same in each run.
fn write(head: &Head, message: &mut MsgBuf) {
    message.fill(0xa5);
    head.write(message);
}

/// Messages that nodes have sent, and frames.
pub(super) fn sent(world: &World, settings: &Settings) -> (u64, u64) {
    let (mut messages, mut frames) = (0, 0);
    for node in 0..settings.nodes {
        for core in 0..settings.cores as usize {
            let Some(rpc) = world.peek(HostId(node), core) else { continue };
            messages += rpc.stats().messages_sent;
            frames += rpc.stats().tx_frames;
        }
    }
    (messages, frames)
}
