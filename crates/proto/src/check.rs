//! Checks of the invariants of a whole endpoint.

use crate::endpoint::Endpoint;
use crate::session::Session;

impl<C> Endpoint<C> {
    /// Checks every numbered invariant of sessions and slots; panics on the first violation. For
    /// debug builds, tests and simulations.
    pub fn check(&self) {
        for s in self.sessions.iter() {
            match s {
                Session::Client(s) => s.check(),
                Session::Server(s) => s.slots.iter().for_each(|slot| slot.check()),
                Session::Draining(d) => assert!(!d.executing.is_empty(), "nothing to wait for"),
                Session::Vacant { .. } => {}
            }
        }
        self.check_pools();
        self.check_held();
        self.check_deferred();
    }
}
