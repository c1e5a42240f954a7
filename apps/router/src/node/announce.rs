//! Routes that are announced at one node while the cluster runs, and sent to all others.
//!
//! A node sends its routes to another one when their link comes up, and changes from then on, in
//! order, by calls of which one is in progress at a time. What the receiver has of the node and is
//! not sent again at the beginning is withdrawn at its end; until then it stays, so that no packet
//! is lost when a link was down for a moment. When a node dies its routes are withdrawn.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use courser::{Context, Rpc, Transport};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Node, NodeState, Probe, Shared};
use crate::line::Outlet;
use crate::route::{Members, NextHop, NodeId};
use crate::routes::{Change, ChangeError, Origin, Routes};

/// Type of the calls.
const ROUTES: u16 = 1;

/// Bytes of changes in a call, which a receiver applies in well under a millisecond.
const CALL_BYTES: usize = 4_096;

/// Changes that may wait for a link. More are replaced by all routes.
const QUEUE: usize = 4_096;

/// Routes of a dead node that are withdrawn in one go.
const WITHDRAWN_AT_ONCE: usize = 1_024;

/// Next hops of a route.
const MOST_MEMBERS: usize = 256;

/// A part of a call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Item {
    /// All routes of the node follow.
    Begin,
    Announce {
        prefix: IpNet,
        members: Members,
    },
    Withdraw {
        prefix: IpNet,
    },
    /// All routes of the node were sent.
    End,
}

/// The head of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct CallHead {
    fingerprint: u64,
    life: u64,
    node: NodeId,
}

/// What is to be sent to one node.
#[derive(Default)]
struct Queue {
    changes: VecDeque<Item>,
    /// Position in the node's routes, while all are sent: the last one sent.
    dump: Option<Option<IpNet>>,
    in_progress: bool,
    /// Routes of that node that were not sent again since its `Begin`.
    stale: Option<BTreeSet<IpNet>>,
    /// The node is dead, and its routes are being withdrawn.
    is_dead: bool,
}

/// The routes that a node sends to others.
pub(super) struct Announcer {
    queues: Vec<Queue>,
}

impl Announcer {
    pub(super) fn new(nodes: usize) -> Self {
        Announcer { queues: (0..nodes).map(|_| Queue::default()).collect() }
    }

    /// A link came up: all routes are sent.
    pub(super) fn begin(&mut self, to: NodeId) {
        let queue = &mut self.queues[usize::from(to)];
        restart(queue);
        queue.in_progress = false;
    }

    /// A node is dead: its routes are to be withdrawn.
    pub(super) fn died(&mut self, node: NodeId) {
        let queue = &mut self.queues[usize::from(node)];
        queue.stale = None;
        queue.is_dead = true;
    }

    /// Sends an item to all nodes.
    fn push(&mut self, own: NodeId, item: &Item) {
        for (to, queue) in self.queues.iter_mut().enumerate() {
            if to == usize::from(own) {
                continue;
            }
            if queue.changes.len() >= QUEUE {
                restart(queue);
            } else {
                queue.changes.push_back(item.clone());
            }
        }
    }
}

/// All routes are sent in place of changes.
fn restart(queue: &mut Queue) {
    queue.changes.clear();
    queue.changes.push_back(Item::Begin);
    queue.dump = Some(None);
}

/// Registers the handler of other nodes' routes.
pub(super) fn register<T, O, P>(rpc: &mut Rpc<T>, node: &Shared<O, P>)
where
    T: Transport,
    O: Outlet + 'static,
    P: Probe + 'static,
{
    let node = node.clone();
    rpc.on(ROUTES, move |cx, request| {
        if node.borrow_mut().on_routes(&request).is_some() {
            cx.reply(b"");
        } else {
            cx.reject();
        }
    });
}

impl<O: Outlet + 'static, P: Probe + 'static> Node<O, P> {
    /// Changes the routes that are announced at this node, in the whole cluster: all or none.
    ///
    /// # Errors
    /// The first change that is impossible; nothing has changed.
    pub fn change(&mut self, cx: &mut Context<'_>, changes: &[Change]) -> Result<(), ChangeError> {
        let own = self.settings.node;
        self.routes.apply(Origin::Node(own), changes)?;
        for change in changes {
            let item = match change {
                Change::Add(prefix, members) | Change::Replace(prefix, members) => {
                    Item::Announce { prefix: *prefix, members: members.clone() }
                }
                Change::Delete(prefix) => Item::Withdraw { prefix: *prefix },
            };
            self.announcer.push(own, &item);
        }
        self.send_announcements(cx);
        Ok(())
    }

    /// Withdraws routes of dead nodes, some at a time: a packet waits for at most a millisecond.
    pub(super) fn withdraw_dead(&mut self, cx: &mut Context<'_>) {
        let mut more = false;
        for node in 0..self.links.len() {
            if !self.announcer.queues[node].is_dead {
                continue;
            }
            let origin = Origin::Node(node as NodeId);
            let all = self.routes.withdraw_some(origin, WITHDRAWN_AT_ONCE) < WITHDRAWN_AT_ONCE;
            self.announcer.queues[node].is_dead = !all;
            more |= !all;
        }
        if more && !self.withdraws {
            self.withdraws = true;
            let node = self.own.clone();
            cx.after(Duration::from_millis(2), move |cx| {
                let Some(node) = node.upgrade() else { return };
                let mut node = node.borrow_mut();
                node.withdraws = false;
                node.withdraw_dead(cx);
            });
        }
    }

    /// Sends what waits for each link that is up.
    pub(super) fn send_announcements(&mut self, cx: &mut Context<'_>) {
        for to in 0..self.links.len() as NodeId {
            if self.links[usize::from(to)].up {
                self.send_changes(cx, to);
            }
        }
    }

    fn send_changes(&mut self, cx: &mut Context<'_>, to: NodeId) {
        let own = self.settings.node;
        let head = CallHead { fingerprint: self.settings.fingerprint, life: self.life, node: own };
        let queue = &mut self.announcer.queues[usize::from(to)];
        let Some(session) = self.links[usize::from(to)].session else { return };
        if queue.in_progress {
            return;
        }
        let Some(bytes) = next_call(queue, &self.routes, own, head) else { return };
        let Ok(mut request) = cx.alloc(bytes.len()) else { return restart(queue) };
        request.copy_from_slice(&bytes);
        let node = self.own.clone();
        let sent = cx.call(session, ROUTES, request, move |cx, done| {
            let Some(node) = node.upgrade() else { return };
            node.borrow_mut().changes_sent(cx, to, session, done.result.is_ok());
        });
        queue.in_progress = sent.is_ok();
        if sent.is_err() {
            restart(queue);
        }
    }

    fn changes_sent(
        &mut self,
        cx: &mut Context<'_>,
        to: NodeId,
        session: courser::SessionId,
        ok: bool,
    ) {
        if self.links[usize::from(to)].session != Some(session) {
            return; // a new session has begun again
        }
        let queue = &mut self.announcer.queues[usize::from(to)];
        queue.in_progress = false;
        if ok {
            self.send_changes(cx, to);
        } else {
            // Sent again with the next tick of the timer.
            restart(queue);
        }
    }

    /// Applies another node's changes. `None`: they are not valid, or its heartbeats have not arrived
    /// since it started; it sends all again.
    fn on_routes(&mut self, bytes: &[u8]) -> Option<()> {
        let (head, mut rest) = postcard::take_from_bytes::<CallHead>(bytes).ok()?;
        let known = |link: &super::Link| link.heard.is_some_and(|heard| heard.life == head.life);
        if head.fingerprint != self.settings.fingerprint
            || !self.links.get(usize::from(head.node)).is_some_and(known)
            || matches!(self.state(head.node), NodeState::Own | NodeState::Dead)
        {
            return None;
        }
        while !rest.is_empty() {
            let (change, after) = postcard::take_from_bytes::<Item>(rest).ok()?;
            rest = after;
            self.apply(head.node, change)?;
        }
        Some(())
    }

    fn apply(&mut self, from: NodeId, change: Item) -> Option<()> {
        let origin = Origin::Node(from);
        let queue = usize::from(from);
        match change {
            Item::Begin => {
                self.announcer.queues[queue].is_dead = false;
                let all = self.routes.announced(origin).map(|route| route.prefix).collect();
                self.announcer.queues[queue].stale = Some(all);
            }
            Item::Announce { prefix, members } => {
                if let Some(stale) = &mut self.announcer.queues[queue].stale {
                    stale.remove(&prefix);
                }
                if members.len() > MOST_MEMBERS || !members.iter().all(|(hop, _)| self.exists(hop))
                {
                    return None;
                }
                self.routes.announce(origin, prefix, &members).ok()?;
            }
            Item::Withdraw { prefix } => {
                self.routes.withdraw(origin, &prefix);
            }
            Item::End => {
                let stale = self.announcer.queues[queue].stale.take();
                for prefix in stale.into_iter().flatten() {
                    self.routes.withdraw(origin, &prefix);
                }
            }
        }
        Some(())
    }

    /// Whether a next hop is one of this cluster's.
    pub fn exists(&self, hop: &NextHop) -> bool {
        let ports = self.settings.ports.get(usize::from(hop.node));
        ports.is_some_and(|ports| hop.port().is_none_or(|p| usize::from(p) < ports.len()))
    }
}

/// The bytes of the next call to a node; `None`: nothing is to be sent.
fn next_call(queue: &mut Queue, routes: &Routes, own: NodeId, head: CallHead) -> Option<Vec<u8>> {
    if queue.changes.is_empty() && queue.dump.is_none() {
        return None;
    }
    let mut bytes = postcard::to_allocvec(&head).ok()?;
    let append = |bytes: &mut Vec<u8>, change: &Item| {
        if let Ok(more) = postcard::to_allocvec(change) {
            bytes.extend_from_slice(&more);
        }
    };
    // `Begin`, then the routes, then changes made since.
    if queue.dump.is_some() && queue.changes.front() == Some(&Item::Begin) {
        queue.changes.pop_front();
        append(&mut bytes, &Item::Begin);
    }
    while let Some(last) = queue.dump {
        if bytes.len() >= CALL_BYTES {
            return Some(bytes);
        }
        let origin = Origin::Node(own);
        let next = match last {
            None => routes.announced(origin).next(),
            Some(last) => routes.announced_after(origin, last).next(),
        };
        let Some(route) = next else {
            queue.dump = None;
            append(&mut bytes, &Item::End);
            break;
        };
        append(
            &mut bytes,
            &Item::Announce { prefix: route.prefix, members: route.members.to_vec() },
        );
        queue.dump = Some(Some(route.prefix));
    }
    while bytes.len() < CALL_BYTES {
        let Some(change) = queue.changes.pop_front() else { break };
        append(&mut bytes, &change);
    }
    Some(bytes)
}
