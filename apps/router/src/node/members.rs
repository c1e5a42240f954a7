//! Which nodes are alive: heartbeats over the links.
//!
//! A node sends each other one a heartbeat four times in the silence after which that one counts as
//! dead, with the set of nodes that it receives heartbeats from, and the state of its ports and of
//! theirs. A node that is not received directly, but by another one, is reached through that: a cable
//! of a mesh may fail. Next hops of dead nodes and of ports that are down get no packets.

use courser::{Context, Rpc, SessionState, Transport};

use super::heartbeat::{Heard, Heartbeat};
use super::message::{HEADER_MIN, HEARTBEAT};
use super::settings::silence;
use super::{Node, Probe, Shared};
use crate::config::FAILURE_TIMEOUT;
use crate::counters::PacketDrop;
use crate::line::Outlet;
use crate::route::{MAX_PORTS, NodeId};

/// The state of a node as another one sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// The node itself.
    Own,
    /// Heartbeats arrive.
    Direct,
    /// Heartbeats arrive at another node, through which it is reached.
    ThroughAnother,
    /// Nothing arrives.
    Dead,
}

impl NodeState {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            NodeState::Own => "self",
            NodeState::Direct => "direct",
            NodeState::ThroughAnother => "through another",
            NodeState::Dead => "dead",
        }
    }
}

/// Starts the timer of heartbeats and of the search for dead nodes.
pub(super) fn start_timer<T, O, P>(rpc: &mut Rpc<T>, node: &Shared<O, P>)
where
    T: Transport,
    O: Outlet + 'static,
    P: Probe + 'static,
{
    let period = silence(node.borrow().settings.failure_timeout) / 8;
    let node = node.clone();
    let mut odd = false;
    rpc.context().every(period, move |cx| {
        odd = !odd;
        node.borrow_mut().tick(cx, odd);
    });
}

impl<O: Outlet + 'static, P: Probe + 'static> Node<O, P> {
    /// Begins to connect to all other nodes.
    pub(super) fn connect_all(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Result<(), courser::SessionError> {
        for (node, link) in self.links.iter_mut().enumerate() {
            if node != usize::from(self.settings.node) {
                link.session = Some(cx.connect(&self.settings.addresses[node])?);
            }
        }
        Ok(())
    }

    fn tick(&mut self, cx: &mut Context<'_>, heartbeat: bool) {
        let now_ns = cx.now_ns();
        self.note_active(now_ns);
        for node in 0..self.links.len() as NodeId {
            if node != self.settings.node {
                self.keep_connected(cx, node, now_ns);
            }
        }
        self.update_alive(now_ns);
        for node in 0..self.links.len() as NodeId {
            if heartbeat && self.links[usize::from(node)].up {
                self.send_heartbeat(cx, node);
            }
        }
        self.sweep_incoming(cx);
        self.sweep_routes(cx);
        self.announcer.tick();
        self.send_announcements(cx);
    }

    /// A node whose packets arrive is alive: its heartbeats have no room in a queue that is full.
    fn note_active(&mut self, now_ns: u64) {
        let mut active = std::mem::take(&mut self.active);
        while active != 0 {
            let node = active.trailing_zeros() as usize;
            active &= active - 1;
            if let Some(heard) = self.links[node].heard.as_mut() {
                heard.at_ns = now_ns;
            }
        }
    }

    /// Connects again what is not connected, and greets what is connected now.
    fn keep_connected(&mut self, cx: &mut Context<'_>, node: NodeId, now_ns: u64) {
        let link = &mut self.links[usize::from(node)];
        let state = link.session.map_or(SessionState::Gone, |s| cx.session_state(s));
        match state {
            SessionState::Connecting => {}
            SessionState::Connected if link.up => {}
            SessionState::Connected => {
                link.up = true;
                link.next = 0;
                self.send_heartbeat(cx, node);
                self.announcer.begin(node);
            }
            _ => {
                link.up = false;
                link.session = None;
                link.full = false;
                if now_ns >= link.retry_ns {
                    let pause = silence(self.settings.failure_timeout) / 2;
                    link.retry_ns = now_ns + pause.as_nanos() as u64;
                    link.session = cx.connect(&self.settings.addresses[usize::from(node)]).ok();
                }
            }
        }
    }

    /// Messages to a node are refused since its session has ended.
    pub(super) fn link_failed(&mut self, cx: &Context<'_>, node: NodeId) {
        self.links[usize::from(node)].up = false;
        self.update_alive(cx.now_ns());
    }

    fn send_heartbeat(&mut self, cx: &mut Context<'_>, to: NodeId) {
        let heard = (0..self.links.len()).filter(|n| self.usable >> n & 1 == 1);
        let others = heard.map(|n| self.links[n].heard.map_or(0, |heard| heard.ports));
        let heartbeat = Heartbeat {
            fingerprint: self.settings.fingerprint,
            life: self.life,
            node: self.settings.node,
            hears: self.usable,
            ports: self.own_ports(),
            others: others.collect(),
            silence_ns: self.silence_ns(),
            epoch: self.announcer.epoch(to),
        };
        let Ok(bytes) = postcard::to_allocvec(&heartbeat) else { return };
        // A full queue has other messages for that node, but none that says that this one lives: the
        // next heartbeat follows soon.
        let _ = self.send_message(cx, to, HEADER_MIN + bytes.len(), |message| {
            message[4..8].copy_from_slice(&[HEARTBEAT, 0, 0, 0]);
            message[HEADER_MIN..].copy_from_slice(&bytes);
        });
    }

    /// A heartbeat.
    pub(super) fn on_heartbeat(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        from: Option<NodeId>,
        body: &[u8],
    ) {
        let read = postcard::from_bytes::<Heartbeat>(body).ok();
        let Some((beat, others)) = read.and_then(|beat| beat.others().map(|o| (beat, o))) else {
            return self.counters.drop(PacketDrop::BadMessage);
        };
        let node = beat.node;
        let known = usize::from(node) < self.links.len() && node != self.settings.node;
        let same = beat.fingerprint == self.settings.fingerprint;
        let session = self.incoming.get(at).and_then(Option::as_ref).map(|i| i.session);
        let valid = same && known && from.is_none_or(|f| f == node);
        if !valid || !session.is_some_and(|s| self.owns_name(cx, s, node, beat.life)) {
            self.refused_heartbeats += 1;
            return self.counters.drop(PacketDrop::BadMessage);
        }
        self.name_incoming(at, node, beat.life);
        self.announcer.heard(node, beat.epoch);
        let (own_ns, most_ns) =
            (self.silence_ns(), silence(*FAILURE_TIMEOUT.end()).as_nanos() as u64);
        let heard = Heard {
            at_ns: cx.now_ns(),
            life: beat.life,
            hears: beat.hears,
            others,
            ports: beat.ports,
            // During a change of the setting nodes differ; those with more send less often.
            silence_ns: beat.silence_ns.clamp(own_ns, most_ns.max(own_ns)),
        };
        let before = self.links[usize::from(node)].heard.replace(heard);
        if before.is_none_or(|before| before.state() != heard.state()) {
            self.update_alive(heard.at_ns);
        }
    }

    fn silence_ns(&self) -> u64 {
        silence(self.settings.failure_timeout).as_nanos() as u64
    }

    /// This node's ports that are up.
    fn own_ports(&self) -> u32 {
        let ports = self.settings.ports[usize::from(self.settings.node)].len().min(MAX_PORTS);
        (0..ports).fold(0, |set, p| set | u32::from(self.outlet.is_up(p as u8)) << p)
    }

    /// Computes the nodes that are reached, and tells the routes of changes.
    pub(super) fn update_alive(&mut self, now_ns: u64) {
        let own = self.settings.node;
        let fresh = |heard: &&Heard| heard.is_fresh(now_ns);
        let heard: Vec<Option<Heard>> =
            self.links.iter().map(|link| link.heard.as_ref().filter(fresh).copied()).collect();
        let usable = |n: &usize| self.links[*n].up && heard[*n].is_some();
        let usable = (0..heard.len()).filter(usable).fold(0_u64, |set, n| set | 1 << n);
        self.usable = usable;
        self.hears = heard.iter().map(|h| h.map_or(0, |h| h.hears)).collect();
        for n in 0..heard.len() {
            let is_relayed = usable >> n & 1 == 0 && self.relays(n as NodeId) != 0;
            let since_ns = self.links[n].relayed_ns.unwrap_or(now_ns);
            self.links[n].relayed_ns = is_relayed.then_some(since_ns);
        }
        let alive = (0..heard.len()).map(|n| {
            if n == usize::from(own) {
                return Some(self.own_ports());
            }
            if usable >> n & 1 == 1 {
                return heard[n].map(|heard| heard.ports);
            }
            // Another node knows which ports it has.
            let relay = self.relays(n as NodeId).trailing_zeros() as usize;
            let relay = heard.get(relay).copied().flatten();
            relay.filter(|_| self.is_relayed(n, now_ns)).map(|relay| relay.others[n])
        });
        let alive: Vec<Option<u32>> = alive.collect();
        if alive == self.alive {
            return;
        }
        for (n, (before, now)) in self.alive.iter().zip(&alive).enumerate() {
            if before.is_some() && now.is_none() {
                self.deaths += 1;
                self.announcer.died(n as NodeId);
            }
        }
        self.routes.set_alive(|hop| {
            let ports = alive.get(usize::from(hop.node)).copied().flatten();
            ports.is_some_and(|ports| hop.port().is_none_or(|p| ports >> p & 1 == 1))
        });
        self.alive = alive;
    }

    /// Whether a node is reached through another one. One that has just started is connected
    /// directly soon: until then it counts as dead, since packets that went the direct way would
    /// overtake those before them.
    fn is_relayed(&self, node: usize, now_ns: u64) -> bool {
        let was_alive = self.alive.get(node).is_some_and(Option::is_some);
        let since = self.links[node].relayed_ns;
        since.is_some_and(|since_ns| {
            was_alive || now_ns.saturating_sub(since_ns) >= self.silence_ns()
        })
    }

    /// Nodes that are connected with this one and with `last`.
    pub(super) fn relays(&self, last: NodeId) -> u64 {
        let connected = |n: &usize| self.hears[*n] >> last & 1 == 1;
        let relays = (0..self.hears.len()).filter(connected).fold(0, |set, n| set | 1_u64 << n);
        relays & self.usable
    }

    /// Ways of Valiant load balancing to a node: this one and that one, when they are connected,
    /// and the nodes between.
    pub(super) fn ways(&self, last: NodeId) -> u64 {
        let direct = self.usable >> last & 1;
        self.relays(last) | direct << last | direct << self.settings.node
    }

    /// The state of a node.
    pub fn state(&self, node: NodeId) -> NodeState {
        if node == self.settings.node {
            NodeState::Own
        } else if self.usable.checked_shr(node.into()).is_some_and(|u| u & 1 == 1) {
            NodeState::Direct
        } else if self.alive.get(usize::from(node)).is_some_and(|alive| alive.is_some()) {
            NodeState::ThroughAnother
        } else {
            NodeState::Dead
        }
    }

    /// Number of other nodes that are connected with this one in both directions.
    pub fn connected(&self) -> usize {
        self.usable.count_ones() as usize
    }

    /// Nodes that have died since the start.
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    /// Heartbeats of nodes that have another cluster file, or of none, or of processes that may not
    /// speak for their node.
    pub fn refused_heartbeats(&self) -> u64 {
        self.refused_heartbeats
    }
}
