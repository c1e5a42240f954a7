//! The start of a node.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use courser::{Rpc, SessionError, Transport};

use super::announce::{self, Announcer};
use super::names::Names;
use super::peers::Link;
use super::settings::{Settings, host_mask};
use super::sources::Sources;
use super::valiant::Valiant;
use super::{Node, Probe, Shared, link, members};
use crate::counters::Counters;
use crate::line::Outlet;
use crate::packet::icmp::Limiter;
use crate::route::MAX_NODES;
use crate::routes::Routes;

impl<O: Outlet + 'static, P: Probe + 'static> Node<O, P> {
    /// A node of the cluster with its routes, which runs on `rpc`: registers the handlers and timers,
    /// and begins to connect to the other nodes.
    ///
    /// # Errors
    /// The address of a node cannot be read.
    ///
    /// # Panics
    /// The settings have more nodes than [`MAX_NODES`], or this node is none of them.
    pub fn start<T: Transport>(
        rpc: &mut Rpc<T>,
        settings: Settings,
        routes: Routes,
        outlet: O,
        probe: P,
    ) -> Result<Shared<O, P>, SessionError> {
        let nodes = settings.ports.len();
        assert!(nodes <= MAX_NODES && usize::from(settings.node) < nodes, "checked by the caller");
        assert_eq!(settings.addresses.len(), nodes, "one address for each node");
        let mut cx = rpc.context();
        let (per_second, burst) = settings.icmp;
        let mut node = Node {
            routes,
            outlet,
            probe,
            links: (0..nodes).map(|_| Link::default()).collect(),
            incoming: Vec::new(),
            refused_in_a_row: 0,
            paused_until_ns: 0,
            valiant: Valiant::new(nodes),
            announcer: Announcer::new(nodes),
            limiter: Limiter::new(per_second, burst),
            echo_limiter: Limiter::new(per_second, burst),
            counters: Counters::default(),
            life: cx.random(),
            scratch: Vec::new(),
            host_mask: host_mask(settings.ports.iter().flatten()),
            sources: Sources::new(settings.ports.iter().flatten()),
            system: BTreeSet::new(),
            alive: Vec::new(),
            usable: 0,
            active: 0,
            hears: vec![0; nodes],
            deaths: 0,
            refused_heartbeats: 0,
            names: Names::new(&settings),
            own: Weak::new(),
            settings,
        };
        node.connect_all(&mut cx)?;
        node.update_alive(cx.now_ns());
        let node = Rc::new(RefCell::new(node));
        node.borrow_mut().own = Rc::downgrade(&node);
        link::register(rpc, &node);
        announce::register(rpc, &node);
        members::start_timer(rpc, &node);
        Ok(node)
    }
}
