//! Routes that are announced at one node while the cluster runs, and sent to all others.
//!
//! A node sends its routes to another one when their link comes up (`queue`), and changes from then
//! on, in order, by calls of which one is in progress at a time. Calls are numbered, so that one that
//! was delayed does not undo a later one. What the receiver has of the node and is not sent again at
//! the beginning is withdrawn after its end (`received`); until then it stays, so that no packet is
//! lost when a link was down for a moment. When a node dies its routes are withdrawn. Heartbeats say
//! whose routes their sender has, so that a node sends them again to one that took it for dead.

mod announcer;
mod item;
mod queue;
mod received;
#[cfg(test)]
mod tests;

use std::time::Duration;

use courser::{CallError, Context, Rpc, SessionId, Transport};

use super::{Node, NodeState, Probe, Shared};
use crate::line::Outlet;
use crate::route::{NextHop, NodeId};
use crate::routes::{Change, ChangeError, Origin};
pub(super) use announcer::Announcer;
use item::{CallHead, Item, Number};

/// Type of the calls.
const ROUTES: u16 = 1;

/// Registers the handler of other nodes' routes.
pub(super) fn register<T, O, P>(rpc: &mut Rpc<T>, node: &Shared<O, P>)
where
    T: Transport,
    O: Outlet + 'static,
    P: Probe + 'static,
{
    let node = node.clone();
    rpc.on(ROUTES, move |cx, request| {
        if node.borrow_mut().on_routes(cx, request.session(), &request).is_some() {
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
            self.announcer.push(&item);
        }
        self.send_announcements(cx);
        Ok(())
    }

    /// Withdraws routes that other nodes no longer have, some at a time: a packet waits for at most a
    /// millisecond.
    pub(super) fn sweep_routes(&mut self, cx: &mut Context<'_>) {
        let mut more = false;
        for (node, received) in self.announcer.received.iter_mut().enumerate() {
            more |= received.sweep(&mut self.routes, Origin::Node(node as NodeId));
        }
        if more && !self.announcer.sweeps {
            self.announcer.sweeps = true;
            let node = self.own.clone();
            cx.after(Duration::from_millis(2), move |cx| {
                let Some(node) = node.upgrade() else { return };
                let mut node = node.borrow_mut();
                node.announcer.sweeps = false;
                node.sweep_routes(cx);
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
        let Some(session) = self.links[usize::from(to)].session else { return };
        let (settings, number) = (&self.settings, Number::default());
        let (fingerprint, node) = (settings.fingerprint, settings.node);
        let head = CallHead { fingerprint, life: self.life, node, number };
        let queue = &mut self.announcer.queues[usize::from(to)];
        let Some(bytes) = queue.next_call(&self.routes, Origin::Node(node), &head) else { return };
        let Ok(mut request) = cx.alloc(bytes.len()) else { return queue.done(false) };
        request.copy_from_slice(&bytes);
        let node = self.own.clone();
        let sent = cx.call(session, ROUTES, request, move |cx, done| {
            let Some(node) = node.upgrade() else { return };
            node.borrow_mut().changes_sent(cx, to, session, done.result.err());
        });
        if sent.is_err() {
            queue.done(false);
        }
    }

    fn changes_sent(
        &mut self,
        cx: &mut Context<'_>,
        to: NodeId,
        session: courser::SessionId,
        error: Option<CallError>,
    ) {
        if self.links[usize::from(to)].session != Some(session) {
            return; // a new session has begun again
        }
        self.announcer.refused += u64::from(matches!(error, Some(CallError::Server(_))));
        self.announcer.queues[usize::from(to)].done(error.is_none());
        self.send_changes(cx, to);
    }

    /// Applies another node's changes. `None`: they are not valid, or not the next ones, or the
    /// session is not that of the node's heartbeats, or those do not arrive; it sends all again.
    fn on_routes(&mut self, cx: &mut Context<'_>, session: SessionId, bytes: &[u8]) -> Option<()> {
        let (head, items) = postcard::take_from_bytes::<CallHead>(bytes).ok()?;
        let link = self.links.get(usize::from(head.node))?;
        if head.fingerprint != self.settings.fingerprint
            || link.heard.is_none_or(|heard| heard.life != head.life)
            || self.sender(session) != Some((head.node, head.life))
            || matches!(self.state(head.node), NodeState::Own | NodeState::Dead)
        {
            return None;
        }
        if !self.announcer.received[usize::from(head.node)].accept(head.life, head.number) {
            return None;
        }
        let applied = self.apply_all(head.node, items);
        if applied.is_none() {
            self.announcer.received[usize::from(head.node)].refuse();
        }
        self.sweep_routes(cx);
        applied
    }

    fn apply_all(&mut self, from: NodeId, mut items: &[u8]) -> Option<()> {
        while !items.is_empty() {
            let (item, after) = postcard::take_from_bytes::<Item>(items).ok()?;
            items = after;
            if let Item::Announce { members, .. } = &item
                && !members.iter().all(|(hop, _)| self.exists(hop))
            {
                return None;
            }
            let received = &mut self.announcer.received[usize::from(from)];
            received.apply(&mut self.routes, Origin::Node(from), item)?;
        }
        Some(())
    }

    /// Calls with this node's routes that other nodes have refused. Some at a start, while they do
    /// not receive this node's heartbeats yet. If it goes on growing, they have no room for the
    /// routes, or another version of the router.
    pub fn refused_announcements(&self) -> u64 {
        self.announcer.refused
    }

    /// Whether a next hop is one of this cluster's.
    pub fn exists(&self, hop: &NextHop) -> bool {
        let ports = self.settings.ports.get(usize::from(hop.node));
        ports.is_some_and(|ports| hop.port().is_none_or(|p| usize::from(p) < ports.len()))
    }
}
