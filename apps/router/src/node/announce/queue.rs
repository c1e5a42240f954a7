//! What a node sends of its routes to one other node.

use std::collections::VecDeque;

use ipnet::IpNet;

use super::item::{CallHead, Item, Number};
use crate::fib::Fib;
use crate::routes::{Origin, Routes};

/// Bytes of routes in a call.
const CALL_BYTES: usize = 4_096;

/// No further route follows in a call after this many [entries](Fib::work) of the receiver's tables:
/// it applies a call in a millisecond, but for prefixes of a few bits, each of which takes more.
const CALL_WORK: usize = 1 << 18;

/// Changes that may wait. More are replaced by all routes.
const CHANGES: usize = 4_096;

/// Runs of the timer between two attempts, at most: some seconds.
const LONGEST_PAUSE: u32 = 128;

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    /// Only changes: all routes were sent.
    #[default]
    Changes,
    /// All routes, from the beginning.
    Begin,
    /// The routes after this prefix.
    After(Option<IpNet>),
}

/// What is to be sent to one node.
#[derive(Debug, Default)]
pub(super) struct Queue {
    stage: Stage,
    /// Changes of routes that were sent already.
    changes: VecDeque<Item>,
    number: Number,
    in_progress: bool,
    /// Runs of the timer until the next call, and after the next failure.
    wait: u32,
    pause: u32,
    /// Heartbeats in a row in which the node has other routes than were sent.
    differs: u32,
}

impl Queue {
    /// A new session: all routes are sent.
    pub(super) fn begin(&mut self) {
        self.restart();
        (self.in_progress, self.wait, self.pause) = (false, 0, 0);
    }

    /// All routes are sent in place of changes.
    fn restart(&mut self) {
        self.changes.clear();
        self.stage = Stage::Begin;
        self.differs = 0;
    }

    /// A change of the own routes, which were changed already. Routes that are not sent yet need none.
    pub(super) fn push(&mut self, change: &Item) {
        let is_sent = match (self.stage, change.prefix()) {
            (Stage::Changes, _) => true,
            (Stage::After(Some(last)), Some(prefix)) => prefix <= last,
            _ => false,
        };
        if !is_sent {
            return;
        }
        if self.changes.len() >= CHANGES {
            self.restart();
        } else {
            self.changes.push_back(change.clone());
        }
    }

    /// Called by a timer.
    pub(super) fn tick(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }

    /// The bytes of the next call; `None`: nothing is to be sent now.
    pub(super) fn next_call(
        &mut self,
        routes: &Routes,
        origin: Origin,
        head: &CallHead,
    ) -> Option<Vec<u8>> {
        let nothing = self.stage == Stage::Changes && self.changes.is_empty();
        if nothing || self.in_progress || self.wait > 0 {
            return None;
        }
        let mut call = Call { bytes: Vec::new(), work: 0 };
        if self.stage == Stage::Begin {
            self.number = Number { epoch: self.number.epoch + 1, call: 0 };
        }
        call.bytes = postcard::to_allocvec(&CallHead { number: self.number, ..*head }).ok()?;
        if self.stage == Stage::Begin {
            call.append(&Item::Begin)?;
            self.stage = Stage::After(None);
        }
        if let Stage::After(after) = self.stage {
            self.stage = call.append_routes(routes, origin, after)?;
        }
        if self.stage == Stage::Changes {
            while call.has_room() {
                let Some(change) = self.changes.pop_front() else { break };
                call.append(&change)?;
            }
        }
        self.number.call += 1;
        self.in_progress = true;
        Some(call.bytes)
    }

    /// The call is over, or could not be made. After a failure all is sent again, later after each one in a row.
    pub(super) fn done(&mut self, ok: bool) {
        self.in_progress = false;
        if !ok {
            self.restart();
            self.wait = self.pause.max(1);
            self.pause = (self.wait * 2).min(LONGEST_PAUSE);
        } else if self.stage == Stage::Changes {
            self.pause = 0;
        }
    }

    /// The node says in a heartbeat of which beginning it has the routes. If it is not the last, twice
    /// in a row since one may have been under way, it has dropped them, and they are sent again.
    pub(super) fn heard(&mut self, epoch: u32) {
        let idle = self.stage == Stage::Changes && !self.in_progress;
        let differs = idle && epoch != self.number.epoch;
        self.differs = if differs { self.differs + 1 } else { 0 };
        if self.differs > 1 {
            self.restart();
        }
    }
}

#[cfg(test)]
impl Queue {
    pub(super) fn changes_waiting(&self) -> usize {
        self.changes.len()
    }
}

/// A call that is written.
struct Call {
    bytes: Vec<u8>,
    work: usize,
}

impl Call {
    fn has_room(&self) -> bool {
        self.bytes.len() < CALL_BYTES && self.work < CALL_WORK
    }

    fn append(&mut self, item: &Item) -> Option<()> {
        self.work += item.prefix().map_or(0, |prefix| Fib::work(&prefix));
        self.bytes = postcard::to_extend(item, std::mem::take(&mut self.bytes)).ok()?;
        Some(())
    }

    /// Appends the routes after a prefix. Returns what comes next.
    fn append_routes(
        &mut self,
        routes: &Routes,
        origin: Origin,
        mut after: Option<IpNet>,
    ) -> Option<Stage> {
        while self.has_room() {
            let Some(route) = routes.announced(origin, after).next() else {
                self.append(&Item::End)?;
                return Some(Stage::Changes);
            };
            let members = route.members.to_vec();
            self.append(&Item::Announce { prefix: route.prefix, members })?;
            after = Some(route.prefix);
        }
        Some(Stage::After(after))
    }
}
