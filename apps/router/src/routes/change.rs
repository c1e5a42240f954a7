//! Several changes at once, of which either all or none are made.

use ipnet::IpNet;
use thiserror::Error;

use super::{Origin, RouteError, Routes};
use crate::route::Members;

/// A change of the routes of an origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds a route. The origin must have none for this prefix.
    Add(IpNet, Members),
    /// Adds a route, or replaces the one that is there.
    Replace(IpNet, Members),
    /// Removes a route, which must be there.
    Delete(IpNet),
}

impl Change {
    /// The prefix of the route.
    pub fn prefix(&self) -> IpNet {
        match self {
            Change::Add(prefix, _) | Change::Replace(prefix, _) | Change::Delete(prefix) => *prefix,
        }
    }
}

/// Why a change is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    /// The origin has a route for the prefix.
    #[error("{0} is announced here already: replace it")]
    Exists(IpNet),
    /// The origin has no route for the prefix.
    #[error("{0} is not announced here: `routes {0}` lists where it comes from")]
    Absent(IpNet),
    /// The origin has the route from its kernel.
    #[error(
        "{0} is imported from the kernel's table: remove it there, or put another one in its place by \
         `route replace`"
    )]
    Imported(IpNet),
    /// The route is refused.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// Why a list of changes was not made. The routes are as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{refusal}")]
pub struct ChangeError {
    /// The position of the first impossible change in the list.
    pub position: usize,
    /// The reason.
    pub refusal: Refusal,
}

impl Routes {
    /// Makes changes of the routes of an origin in their order, all or none.
    pub fn apply(&mut self, origin: Origin, changes: &[Change]) -> Result<(), ChangeError> {
        let mut undo = Vec::with_capacity(changes.len());
        for (position, change) in changes.iter().enumerate() {
            let prefix = change.prefix();
            let old = self.get(origin, prefix).map(|route| Members::from(route.members));
            if let Err(refusal) = self.change(origin, change) {
                self.undo(origin, undo);
                return Err(ChangeError { position, refusal });
            }
            undo.push((prefix, old));
        }
        Ok(())
    }

    fn change(&mut self, origin: Origin, change: &Change) -> Result<(), Refusal> {
        match change {
            Change::Add(prefix, _) if self.get(origin, *prefix).is_some() => {
                Err(Refusal::Exists(*prefix))
            }
            Change::Add(prefix, members) | Change::Replace(prefix, members) => {
                Ok(self.announce(origin, *prefix, members)?)
            }
            Change::Delete(prefix) if self.withdraw(origin, prefix) => Ok(()),
            Change::Delete(prefix) => Err(Refusal::Absent(*prefix)),
        }
    }

    /// Restores the routes that were there before, the last one first. Each step leads to a state
    /// that was within all limits before.
    fn undo(&mut self, origin: Origin, changes: Vec<(IpNet, Option<Members>)>) {
        for (prefix, old) in changes.into_iter().rev() {
            match old {
                Some(members) => {
                    let restored = self.announce(origin, prefix, &members);
                    debug_assert_eq!(restored, Ok(()));
                }
                None => {
                    self.withdraw(origin, &prefix);
                }
            }
        }
    }
}
