//! The routes that a node has of one other node.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::item::{Item, Number};
use crate::routes::{Origin, Routes};

/// Routes that are looked at in one go, to withdraw them: in less than a millisecond.
const AT_ONCE: usize = 1_024;

/// What a node has of another node's routes.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The other node's start.
    life: u64,
    /// The next call.
    next: Number,
    /// The routes of its last beginning are there, as far as they were sent.
    valid: bool,
    /// Not all routes were sent since the last beginning.
    incomplete: bool,
    /// Those that were sent since. Others are withdrawn at the end.
    fresh: BTreeSet<IpNet>,
    /// Routes that are not fresh are being withdrawn, after this prefix.
    sweep: Option<Option<IpNet>>,
}

impl Received {
    /// Whether a call is the next one, or a new beginning.
    pub(super) fn accept(&mut self, life: u64, number: Number) -> bool {
        let begins = number.call == 0 && (life != self.life || number.epoch > self.next.epoch);
        let follows = self.valid && life == self.life && number == self.next;
        if begins {
            self.valid = false;
        }
        if begins || follows {
            self.life = life;
            self.next = Number { call: number.call.saturating_add(1), ..number };
        }
        begins || follows
    }

    /// The beginning of which the routes are there; 0: none.
    pub(super) fn epoch(&self) -> u32 {
        if self.valid { self.next.epoch } else { 0 }
    }

    /// The node has sent what is not valid: calls are refused until it begins again.
    pub(super) fn refuse(&mut self) {
        self.valid = false;
    }

    /// The node is dead: its routes are to be withdrawn.
    pub(super) fn died(&mut self) {
        self.valid = false;
        self.incomplete = false;
        self.fresh = BTreeSet::new();
        self.sweep = Some(None);
    }

    /// Applies an item of a call. `None`: it is not valid.
    pub(super) fn apply(&mut self, routes: &mut Routes, origin: Origin, item: Item) -> Option<()> {
        match item {
            Item::Begin => {
                if self.next.call != 1 || self.valid {
                    return None;
                }
                (self.valid, self.incomplete) = (true, true);
                self.fresh = BTreeSet::new();
                self.sweep = None;
            }
            Item::Announce { prefix, members } if self.valid => {
                routes.announce(origin, prefix, &members).ok()?;
                if self.incomplete || self.sweep.is_some() {
                    self.fresh.insert(prefix);
                }
            }
            Item::Withdraw { prefix } if self.valid => {
                routes.withdraw(origin, &prefix);
            }
            Item::End if self.incomplete => {
                self.incomplete = false;
                self.sweep = Some(None);
            }
            _ => return None,
        }
        Some(())
    }

    /// Withdraws some of the routes that are not fresh. Returns whether there are more.
    pub(super) fn sweep(&mut self, routes: &mut Routes, origin: Origin) -> bool {
        let Some(after) = self.sweep else { return false };
        let some: Vec<IpNet> =
            routes.announced(origin, after).map(|route| route.prefix).take(AT_ONCE).collect();
        for prefix in some.iter().filter(|prefix| !self.fresh.contains(prefix)) {
            routes.withdraw(origin, prefix);
        }
        if some.len() < AT_ONCE {
            self.sweep = None;
            self.fresh = BTreeSet::new();
        } else {
            self.sweep = Some(some.last().copied());
        }
        self.sweep.is_some()
    }
}
