//! The table of messages as the table of requests that have memory, or wait for it (ADR 36).

use super::memory::{Reserved, Watch};
use super::{Budget, Owner};

impl Budget {
    /// Sets the memory of a request that begins.
    pub(crate) fn reserve(&mut self, at: u32, owner: &Owner, reserved: Reserved) {
        if let Some(m) = self.of_mut(at, owner) {
            m.reserved = reserved;
        }
    }

    /// A request waits for memory from now on, and the credit return for its first packet is
    /// withheld. `false`: its sender has not enough credits for that.
    pub(crate) fn wait_for_memory(&mut self, at: u32, owner: &Owner, credits: u32) -> bool {
        if !self.withhold(at, owner, credits) {
            return false;
        }
        let Some(quota) = self.of(at, owner).map(|m| m.reserved.quota) else { return false };
        let ticket = self.memory.push(quota, at);
        self.link.remove_message();
        if let Some(m) = self.of_mut(at, owner) {
            m.reserved.ticket = ticket;
        }
        true
    }

    /// The packets of a request that have arrived are discarded, and its client sends them again, at
    /// most `most` at once. Its grant and its memory stay. Returns the quota, and the bytes that had
    /// arrived and are promised again.
    pub(crate) fn begin_again(&mut self, at: u32, owner: &Owner, most: u32) -> Option<(u32, u32)> {
        let in_force = self.is_in_force();
        let m = self.of_mut(at, owner)?;
        m.arrived = 0;
        // Messages that are not limited are not counted.
        let outstanding = if in_force { m.granted.min(most) } else { 0 };
        let before = std::mem::replace(&mut m.outstanding, outstanding);
        let unscheduled = m.unscheduled.min(outstanding);
        let before_unscheduled = std::mem::replace(&mut m.unscheduled, unscheduled);
        let kept = std::mem::take(&mut m.reserved.kept);
        m.reserved.promised += kept;
        let quota = m.reserved.quota;
        self.remove_granted(before);
        self.add_granted(outstanding);
        self.unscheduled = self.unscheduled - before_unscheduled + unscheduled;
        Some((quota, kept))
    }

    /// A request has its memory now.
    pub(crate) fn end_wait(&mut self, at: u32, owner: &Owner, promised: u32) {
        let Some(m) = self.of_mut(at, owner) else { return };
        let before = m.reserved;
        m.reserved = Reserved { promised, growing: 0, ticket: 0, ..before };
        if before.waits() {
            self.link.add_message();
        }
        self.memory.remove(at, &before);
    }

    /// Returns whether requests wait for memory.
    #[inline]
    pub(crate) fn lacks_memory(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Returns whether a request waits for memory.
    pub(crate) fn waits(&self, at: u32, owner: &Owner) -> bool {
        self.of(at, owner).is_some_and(|m| m.reserved.waits())
    }

    /// Packets of a message in all, those that have arrived, and those that are granted.
    pub(crate) fn progress(&self, at: u32, owner: &Owner) -> Option<(u32, u32, u32)> {
        self.of(at, owner).map(|m| (m.packets, m.arrived, m.granted))
    }

    /// The request whose turn it is to get memory.
    pub(crate) fn next_for_memory(&mut self) -> Option<(u32, Owner)> {
        let at = self.memory.next()?;
        let m = self.messages.get(at as usize)?.as_ref()?;
        Some((at, m.owner))
    }

    /// The memory of a message.
    pub(crate) fn reserved(&self, at: u32, owner: &Owner) -> Option<Reserved> {
        self.of(at, owner).map(|m| m.reserved)
    }

    /// A packet of `bytes` of a request has arrived that had not arrived before. Returns the quota, and
    /// the number of bytes that had been promised for the packet.
    #[inline(always)]
    pub(crate) fn on_part(
        &mut self,
        at: u32,
        owner: &Owner,
        bytes: u32,
        now_ns: u64,
    ) -> Option<(u32, u32)> {
        let m = self.arrive(at, owner, now_ns)?;
        let kept = bytes.min(m.reserved.promised);
        m.reserved.promised -= kept;
        m.reserved.kept += kept;
        (kept > 0).then_some((m.reserved.quota, kept))
    }

    /// Packets of a message that have arrived.
    pub(crate) fn arrived(&self, at: u32, owner: &Owner) -> u32 {
        self.of(at, owner).map_or(0, |m| m.arrived)
    }

    /// A packet of a message arrived that had arrived before, or could not be stored.
    pub(crate) fn touch(&mut self, at: u32, owner: &Owner, now_ns: u64) {
        if let Some(m) = self.of_mut(at, owner) {
            m.reserved.heard_ns = now_ns;
        }
    }

    /// Requests of which nothing has arrived since `before_ns`, or that have waited for memory since
    /// then.
    pub(crate) fn overdue(&self, before_ns: u64) -> Vec<Owner> {
        let messages = self.messages.iter().flatten().filter(|m| !m.owner.is_response);
        let overdue = messages.filter(|m| {
            let r = &m.reserved;
            r.heard_ns <= before_ns || r.waits() && r.begun_ns <= before_ns
        });
        overdue.map(|m| m.owner).collect()
    }

    /// Returns whether requests of a client wait for memory.
    pub(crate) fn waits_of(&self, quota: u32) -> bool {
        self.memory.has(quota)
    }

    /// The times at which unfinished requests are checked.
    pub(crate) fn memory_watch(&mut self) -> &mut Watch {
        self.memory.watch()
    }

    /// Returns whether requests arrive.
    pub(crate) fn has_requests(&self) -> bool {
        self.messages.iter().flatten().any(|m| !m.owner.is_response)
    }

    /// Bytes that are reserved for requests and have not arrived, those of them that have, and those of
    /// requests whose memory grows.
    pub(crate) fn promised(&self) -> [u64; 3] {
        let sum = |of: fn(&Reserved) -> u32| {
            self.messages.iter().flatten().map(|m| u64::from(of(&m.reserved))).sum()
        };
        [sum(|r| r.promised), sum(|r| r.kept), sum(|r| r.growing)]
    }
}
