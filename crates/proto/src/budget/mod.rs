//! The receiver's budget: the packets of large messages that all peers together may have in flight
//! over the link of this endpoint (ADR 35), which other endpoints may share ([`ReceiveLink`]).
//!
//! The first packet of a message states its size, so a receiver can share out its link before the
//! rest arrives: as a server it limits request packets by the grants in its credit returns, as a
//! client it limits the response packets that it requests. Both take from one budget, whose size in
//! bytes follows the delay that arriving frames had in queues ([`size::Size`]). The queue in front of the
//! receiver is then about as long as with one sender, whatever their number.
//!
//! The budget is in force while messages of several peers arrive. A single peer is bounded by its
//! credits and its own window, and one comparison is all that it costs. Messages of one packet never
//! wait for the budget.
//!
//! The first packets of a message are sent before the receiver knows of it: [`UNSCHEDULED`] of them,
//! or what the receiver has advised ([`Grant::unscheduled`]). After a while they use the budget up
//! except for a few packets, which only grants use.
//!
//! The table of messages also has what the memory of requests needs (`memory`, `requests`), whether
//! there is a budget or not.
//!
//! # Invariants
//! 1. `granted` is the sum of `outstanding` of all messages.
//! 2. A message is in the queue at most once, and only while it has packets that are not granted.
//! 3. `owed` of a peer is the number of its messages with a withheld credit return. It stays below the
//!    credits of the peer: withheld credit returns would otherwise keep it from sending what other
//!    messages were granted.
//! 4. A client that has sent all that was granted has a packet that is not acknowledged, and the
//!    server owes a credit return for it: losses of grants are recovered by the client's timers.

use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::shortest_first::{ShortestFirst, Ticket};

mod link;
mod memory;
mod requests;
mod size;

use link::LinkShare;
pub use link::ReceiveLink;
use memory::MemoryQueue;
pub(crate) use memory::Reserved;
pub(crate) use size::{BUSY_WAIT_NS, Delays, HOST_WAIT_NS, QueueDelay};

/// Packets that a message may send before its receiver has answered, while nothing is known of the
/// receiver.
pub(crate) const UNSCHEDULED: u32 = 4;

/// Most unscheduled packets that a receiver advises.
const UNSCHEDULED_MAX: u32 = 63;

/// A message without an arrival for this many base round trips has lost its packets: they no longer
/// count.
const STALE_ROUND_TRIPS: u64 = 16;
/// And for at least this time, ns: a descheduled sender is not lost.
const STALE_MIN_NS: u64 = 1_000_000;
/// And for no longer than this, ns, whatever round trips senders feign.
const STALE_MAX_NS: u64 = 1_000_000_000;

/// When the budget was used up for this number of arrivals in a row, unscheduled packets leave a few
/// packets of it to grants, whatever their number: short messages of many senders would keep a long one
/// waiting for ever.
const USED_UP_MOST: u32 = 256;
const SCHEDULED_LEAST: u32 = 2;

/// Time that messages stay limited after a single peer is left, ns: two peers that send one message
/// after the other would each fill the queue with all of their credits whenever the other one pauses.
const LINGERS_NS: u64 = 50_000;

/// Messages without a recent arrival, as [`crate::Endpoint::check_overdue`] has seen them: the time since
/// the last arrival, ns, and place, time of the last arrival, packets granted and outstanding.
#[derive(Clone, Debug, Default)]
pub struct OverduePackets {
    messages: Vec<(u64, (usize, u64, u32, u32))>,
    /// Messages that the endpoint had checked until then, and the most places of its table since.
    checked: u64,
    places: usize,
    /// Calls of `Budget::limit` until then.
    limited: u64,
}

/// No message.
pub(crate) const NO_MESSAGE: u32 = u32::MAX;

/// Places of the table that are kept while there is no message.
const KEPT_PLACES: usize = 1_024;

/// A grant as stated in a credit return: the packets of the message that may be sent, and how many
/// packets of later messages may be sent before an answer. The default is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grant(u32);

impl Grant {
    const UNSCHEDULED_SHIFT: u32 = 21;

    /// `packets` of the message, at least 1, and `unscheduled` of later ones.
    pub(crate) fn new(packets: u32, unscheduled: u32) -> Self {
        debug_assert!((1..=1 << 20).contains(&packets));
        Grant(packets | unscheduled.min(UNSCHEDULED_MAX) << Self::UNSCHEDULED_SHIFT)
    }

    /// The grant with this field on the wire, 28 bits.
    pub const fn from_bits(bits: u32) -> Self {
        Grant(bits & ((1 << 28) - 1))
    }

    /// Its field on the wire.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Packets of the message that may be sent, counted from its first; `None`: all.
    pub fn packets(self) -> Option<u32> {
        let packets = self.0 & ((1 << Self::UNSCHEDULED_SHIFT) - 1);
        (packets > 0).then_some(packets)
    }

    /// Packets of a later message that may be sent before the receiver has answered.
    pub fn unscheduled(self) -> u32 {
        (self.0 >> Self::UNSCHEDULED_SHIFT).max(1)
    }
}

/// The identity of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) session: u32,
    pub(crate) generation: u32,
    pub(crate) slot: u8,
    pub(crate) req_num: u32,
    /// A response that this endpoint requests; otherwise a request that it receives.
    pub(crate) is_response: bool,
}

/// A message of several packets that arrives.
#[derive(Clone, Copy, Debug)]
struct Message {
    owner: Owner,
    peer: u32,
    packets: u32,
    /// Packets granted so far, counted from the first.
    granted: u32,
    /// Granted packets that have not arrived.
    outstanding: u32,
    /// Outstanding packets that were sent without a grant. They count as the first to arrive.
    unscheduled: u32,
    arrived: u32,
    last_ns: u64,
    /// Its entry in the queue; 0: none.
    ticket: Ticket,
    /// The server withholds a credit return until the next grant.
    owes: bool,
    reserved: Reserved,
}

/// A peer with arriving messages.
#[derive(Clone, Copy, Debug)]
struct Sender {
    peer: u32,
    messages: u32,
    /// Messages with a withheld credit return.
    owed: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Budget {
    enabled: bool,
    /// Messages are limited: several peers send over the link.
    in_force: bool,
    /// Since when one peer at most sends, as far as that was looked at, ns.
    alone_ns: Option<u64>,
    link: LinkShare,
    /// Packets.
    granted: u32,
    unscheduled: u32,
    /// Packets that have arrived while the budget was used up.
    used_up: u32,
    messages: Vec<Option<Message>>,
    vacant: Vec<u32>,
    live: u32,
    /// Peers with arriving messages, in their order. A vector, because most messages come alone and
    /// must not allocate.
    peers: Vec<Sender>,
    queue: ShortestFirst<u32>,
    /// The message that is checked next for packets that were lost.
    hand: usize,
    /// Messages that were checked for them so far.
    checked: u64,
    /// Calls of [`Budget::limit`] so far, which counts packets that were lost again.
    limited: u64,
    /// The longest time after which packets were taken for lost, in this round through the table and in
    /// the one before.
    stale_ns: [u64; 2],
    /// Requests that wait for memory.
    memory: MemoryQueue,
}

impl Budget {
    /// The budget of an endpoint of a link whose time begins with the endpoint's. `frames`: bytes of a
    /// full frame on the wire, and the frames of the receive queue that it may use.
    pub(crate) fn new(enabled: bool, link: Arc<ReceiveLink>, frames: (u32, u32)) -> Self {
        Budget {
            enabled,
            in_force: false,
            alone_ns: None,
            link: LinkShare::new(link, frames, 0),
            granted: 0,
            unscheduled: 0,
            used_up: 0,
            messages: Vec::new(),
            vacant: Vec::new(),
            live: 0,
            peers: Vec::new(),
            queue: ShortestFirst::default(),
            hand: 0,
            checked: 0,
            limited: 0,
            stale_ns: [0; 2],
            memory: MemoryQueue::default(),
        }
    }

    /// Returns whether this endpoint has a budget.
    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Shares a link with other endpoints. `epoch_ns` is the time of the link at time 0 of this one.
    /// # Panics
    /// Messages are arriving.
    pub(crate) fn share_link(&mut self, link: Arc<ReceiveLink>, epoch_ns: u64) {
        assert_eq!(self.live, 0, "messages are arriving");
        if self.enabled {
            self.link = self.link.moved(link, epoch_ns);
        }
    }

    /// Returns whether it limits messages now.
    #[inline(always)]
    pub(crate) fn is_in_force(&self) -> bool {
        self.in_force
    }

    /// Returns whether it limits messages now, or is to.
    #[inline]
    pub(crate) fn may_limit(&self) -> bool {
        self.in_force || self.enabled && self.link.is_shared()
    }

    /// Returns whether it is to limit messages, and does not yet: several peers send over the link.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        !self.in_force && self.may_limit()
    }

    /// Returns whether it limits messages without need: a single peer sends, or none, and has done so
    /// for [`LINGERS_NS`].
    pub(crate) fn is_over(&mut self, now_ns: u64) -> bool {
        if !self.in_force || self.link.is_shared() {
            self.alone_ns = None;
            return false;
        }
        let since_ns = *self.alone_ns.get_or_insert(now_ns);
        now_ns.saturating_sub(since_ns) >= LINGERS_NS
    }

    /// Returns whether no message arrives.
    pub(crate) fn is_idle(&self) -> bool {
        self.live == 0
    }

    /// Returns whether messages of this peer arrive.
    pub(crate) fn has_sender(&self, peer: u32) -> bool {
        self.peers.binary_search_by_key(&peer, |s| s.peer).is_ok()
    }

    /// Limits messages from now on, or no longer.
    pub(crate) fn set_in_force(&mut self, in_force: bool) {
        (self.in_force, self.alone_ns) = (in_force, None);
    }

    /// A frame of `bytes` on the wire arrived, with these delays if they are known.
    pub(crate) fn on_frame(&mut self, bytes: u64, delays: Option<Delays>, now_ns: u64) {
        self.link.on_frame(bytes, delays, now_ns);
    }

    /// The smallest round trip of the senders, ns.
    pub(crate) fn base_ns(&self) -> u64 {
        self.link.base_ns()
    }

    /// Packets that may be in flight to this endpoint, and those that are granted and have not arrived.
    pub(crate) fn usage(&self) -> (u32, u32) {
        (self.packets(), self.granted)
    }

    /// The endpoint's part of the budget, packets.
    fn packets(&self) -> u32 {
        (self.link.part() / self.link.packet_bytes()) as u32
    }

    /// Counts packets as granted, here and at the link.
    fn add_granted(&mut self, packets: u32) {
        self.granted += packets;
        self.link.grant(u64::from(packets) * self.link.packet_bytes());
    }

    /// Packets that were granted have arrived, or will not.
    fn remove_granted(&mut self, packets: u32) {
        self.granted -= packets;
        self.link.take_back(u64::from(packets) * self.link.packet_bytes());
    }

    /// A message of several packets begins with `arrived` of them; `granted` may be in flight or have
    /// arrived. Returns its number.
    pub(crate) fn begin(
        &mut self,
        owner: Owner,
        peer: u32,
        packets: u32,
        (arrived, granted): (u32, u32),
        now_ns: u64,
    ) -> u32 {
        let granted = granted.clamp(arrived, packets);
        let outstanding = granted - arrived;
        let message = Message {
            owner,
            peer,
            packets,
            granted,
            outstanding,
            unscheduled: outstanding,
            arrived,
            last_ns: now_ns,
            ticket: 0,
            owes: false,
            reserved: Reserved::default(),
        };
        self.add_granted(outstanding);
        self.unscheduled += outstanding;
        self.used_up = self.used_up.saturating_add(1);
        self.live += 1;
        let sender = self.peers.binary_search_by_key(&peer, |s| s.peer);
        self.link.begin(sender.is_err());
        match sender {
            Ok(at) => self.peers[at].messages += 1,
            Err(at) => self.peers.insert(at, Sender { peer, messages: 1, owed: 0 }),
        }
        match self.vacant.pop() {
            Some(at) => {
                self.messages[at as usize] = Some(message);
                at
            }
            None => {
                self.messages.push(Some(message));
                self.messages.len() as u32 - 1
            }
        }
    }

    fn of(&self, at: u32, owner: &Owner) -> Option<&Message> {
        self.messages.get(at as usize)?.as_ref().filter(|m| m.owner == *owner)
    }

    fn of_mut(&mut self, at: u32, owner: &Owner) -> Option<&mut Message> {
        self.messages.get_mut(at as usize)?.as_mut().filter(|m| m.owner == *owner)
    }

    fn sender_mut(&mut self, peer: u32) -> Option<&mut Sender> {
        let at = self.peers.binary_search_by_key(&peer, |s| s.peer).ok()?;
        self.peers.get_mut(at)
    }

    /// A message has ended; returns its memory. Nothing happens if it had ended before.
    pub(crate) fn end(&mut self, at: u32, owner: &Owner) -> Reserved {
        if self.of(at, owner).is_some() { self.remove(at) } else { Reserved::default() }
    }

    fn remove(&mut self, at: u32) -> Reserved {
        let removed = self.messages.get_mut(at as usize).and_then(Option::take);
        let Some(m) = removed else { return Reserved::default() };
        self.memory.remove(at, &m.reserved);
        self.remove_granted(m.outstanding);
        self.unscheduled -= m.unscheduled;
        self.live -= 1;
        self.vacant.push(at);
        if let Ok(at) = self.peers.binary_search_by_key(&m.peer, |s| s.peer) {
            let sender = &mut self.peers[at];
            sender.messages -= 1;
            sender.owed -= u32::from(m.owes);
            let is_last = sender.messages == 0;
            if is_last {
                self.peers.remove(at);
            }
            self.link.end(is_last, m.reserved.waits());
        }
        if self.live == 0 {
            self.queue.clear();
            self.shrink();
        } else if m.ticket != 0 {
            self.leave_queue();
        }
        m.reserved
    }

    /// Frees most of the table when no message is left in it.
    fn shrink(&mut self) {
        self.messages.clear();
        self.vacant.clear();
        self.messages.shrink_to(KEPT_PLACES);
        self.vacant.shrink_to(KEPT_PLACES);
    }

    /// A message no longer waits; its entry stays in the queue until it is taken, or until there are
    /// too many of these.
    fn leave_queue(&mut self) {
        self.queue.on_dead();
        if self.queue.has_many_dead() {
            let messages = &self.messages;
            self.queue.remove_dead(|at, ticket| {
                messages.get(at as usize).is_some_and(|m| m.is_some_and(|m| m.ticket == ticket))
            });
        }
    }

    /// A packet of a message has arrived that had not arrived before.
    pub(crate) fn on_arrival(&mut self, at: u32, owner: &Owner, now_ns: u64) {
        self.arrive(at, owner, now_ns);
    }

    /// [`Budget::on_arrival`]; returns the message.
    #[inline(always)]
    fn arrive(&mut self, at: u32, owner: &Owner, now_ns: u64) -> Option<&mut Message> {
        let m = self.messages.get_mut(at as usize)?.as_mut().filter(|m| m.owner == *owner)?;
        if std::mem::take(&mut m.reserved.is_new) {
            return Some(m);
        }
        m.arrived += 1;
        (m.last_ns, m.reserved.heard_ns) = (now_ns, now_ns);
        if m.granted < m.arrived {
            m.granted = m.arrived; // sent without a grant
        } else if m.outstanding > 0 {
            let early = u32::from(m.unscheduled > 0);
            m.outstanding -= 1;
            m.unscheduled -= early;
            self.granted -= 1;
            self.link.take_back(self.link.packet_bytes());
            self.unscheduled -= early;
        }
        self.used_up = self.used_up.saturating_add(1);
        Some(m)
    }

    /// A message that has packets without a grant requests one.
    pub(crate) fn enqueue(&mut self, at: u32, owner: &Owner) {
        let Some(m) = self.messages.get_mut(at as usize).and_then(Option::as_mut) else { return };
        let has_memory = m.owner == *owner && !m.reserved.waits();
        if has_memory && m.ticket == 0 && m.granted < m.packets {
            m.ticket = self.queue.push(at, m.packets - m.granted);
        }
    }

    /// Returns whether the sender of a message has nothing that it may send: the credit return for
    /// its last packet is withheld until the next grant. While more of its packets are on the way,
    /// grants leave with their credit returns.
    ///
    /// At most half of the `credits` of a sender are withheld, since it may have fewer than were
    /// agreed on; beyond that its messages get another packet in any case.
    pub(crate) fn withholds(&mut self, at: u32, owner: &Owner, credits: u32) -> bool {
        let Some(m) = self.of_mut(at, owner) else { return false };
        if m.ticket == 0 || m.arrived < m.granted || m.owes {
            return m.owes;
        }
        let withholds = self.withhold(at, owner, credits);
        let Some(m) = self.of_mut(at, owner) else { return false };
        if !withholds {
            (m.granted, m.outstanding) = (m.granted + 1, m.outstanding + 1);
            let leaves = m.granted == m.packets && std::mem::take(&mut m.ticket) != 0;
            self.add_granted(1);
            if leaves {
                self.leave_queue();
            }
        }
        withholds
    }

    /// Withholds the credit return of a message, if its sender has enough credits left.
    fn withhold(&mut self, at: u32, owner: &Owner, credits: u32) -> bool {
        let Some(peer) = self.of(at, owner).map(|m| m.peer) else { return false };
        let withholds = self.may_withhold(peer, credits);
        let Some(sender) = self.sender_mut(peer) else { return false };
        sender.owed += u32::from(withholds);
        if let Some(m) = self.of_mut(at, owner) {
            m.owes = withholds;
        }
        withholds
    }

    /// Returns whether a further credit return of a sender may be withheld.
    pub(crate) fn may_withhold(&self, peer: u32, credits: u32) -> bool {
        let at = self.peers.binary_search_by_key(&peer, |s| s.peer);
        2 * (at.map_or(0, |at| self.peers[at].owed) + 1) < credits
    }

    /// Returns whether a credit return is withheld.
    pub(crate) fn owes(&self, at: u32, owner: &Owner) -> bool {
        self.of(at, owner).is_some_and(|m| m.owes)
    }

    /// Returns whether a credit return was withheld, which is to be sent now.
    pub(crate) fn take_owed(&mut self, at: u32, owner: &Owner) -> bool {
        let Some(m) = self.of_mut(at, owner) else { return false };
        let (peer, owed) = (m.peer, std::mem::take(&mut m.owes));
        if owed && let Some(sender) = self.sender_mut(peer) {
            sender.owed -= 1;
        }
        owed
    }

    /// Packets by which the budget counts as used.
    fn used(&self) -> u32 {
        if self.used_up <= USED_UP_MOST {
            return self.granted;
        }
        let most = self.packets().saturating_sub(SCHEDULED_LEAST);
        self.granted - self.unscheduled + self.unscheduled.min(most)
    }

    /// Packets that may be granted now.
    fn room(&self) -> u32 {
        // Packets without a grant that use the budget up leave a packet to grants in any case.
        let is_owed = self.used_up > USED_UP_MOST && self.granted == self.unscheduled;
        self.room_beside(self.used()).max(u32::from(is_owed))
    }

    /// Packets that may be granted beside `used` of this endpoint.
    fn room_beside(&self, used: u32) -> u32 {
        let packet = self.link.packet_bytes();
        (self.link.room(u64::from(used) * packet) / packet) as u32
    }

    /// Takes the next message that may have a grant, with its number.
    pub(crate) fn next(&mut self) -> Option<(u32, Owner)> {
        if self.room_beside(self.granted) > 0 {
            self.used_up = 0;
        }
        while self.room() > 0 {
            let (at, ticket) = self.queue.pop()?;
            if let Some(m) = self.messages.get_mut(at as usize).and_then(Option::as_mut)
                && m.ticket == ticket
            {
                m.ticket = 0;
                return Some((at, m.owner));
            }
            self.queue.on_dead_taken();
        }
        if !self.queue.is_empty() {
            self.link.on_shortage();
        }
        None
    }

    /// Grants packets of a message up to `limit`, and at most `most`. Returns the new total; `None`:
    /// nothing was granted.
    pub(crate) fn grant(&mut self, at: u32, owner: &Owner, limit: u32, most: u32) -> Option<u32> {
        let room = self.room();
        let m = self.of_mut(at, owner)?;
        let more = limit.min(m.packets).saturating_sub(m.granted).min(most).min(room.max(1));
        if more == 0 {
            return None;
        }
        m.granted += more;
        m.outstanding += more;
        let granted = m.granted;
        self.add_granted(more);
        self.enqueue(at, owner);
        Some(granted)
    }

    /// Takes a message out of the budget's accounting: all of it may be sent.
    pub(crate) fn grant_all(&mut self, at: u32, owner: &Owner) {
        let Some(m) = self.of_mut(at, owner).filter(|m| !m.reserved.waits()) else { return };
        let outstanding = std::mem::take(&mut m.outstanding);
        let unscheduled = std::mem::take(&mut m.unscheduled);
        let ticket = std::mem::take(&mut m.ticket);
        m.granted = m.packets;
        self.remove_granted(outstanding);
        self.unscheduled -= unscheduled;
        if ticket != 0 {
            self.leave_queue();
        }
    }

    /// Brings a message, all of which could be sent, under the budget: packets up to `granted` may
    /// be in flight.
    pub(crate) fn limit(&mut self, at: u32, owner: &Owner, granted: u32) {
        self.limited += 1;
        let Some(m) = self.of_mut(at, owner) else { return };
        m.granted = granted.clamp(m.arrived, m.packets);
        let outstanding = m.granted - m.arrived;
        let before = std::mem::replace(&mut m.outstanding, outstanding);
        let before_unscheduled = std::mem::replace(&mut m.unscheduled, outstanding);
        self.remove_granted(before);
        self.add_granted(outstanding);
        self.unscheduled = self.unscheduled - before_unscheduled + outstanding;
        self.enqueue(at, owner);
    }

    /// The messages.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (u32, Owner)> + '_ {
        let messages = self.messages.iter().enumerate();
        messages.filter_map(|(at, m)| m.as_ref().map(|m| (at as u32, m.owner)))
    }

    /// Packets of a message that its sender may send before an answer: an equal share.
    pub(crate) fn unscheduled(&self) -> u32 {
        (self.packets() / self.link.messages().max(1)).clamp(1, UNSCHEDULED)
    }

    /// The message to be checked next. One is checked at each arrival.
    pub(crate) fn next_to_check(&mut self) -> Option<(u32, Owner)> {
        self.checked += 1;
        for _ in 0..2 {
            self.hand += 1;
            if self.hand >= self.messages.len() {
                (self.hand, self.stale_ns) = (0, [0, self.stale_ns[0]]);
            }
            if let Some(Some(m)) = self.messages.get(self.hand) {
                return Some((self.hand as u32, m.owner));
            }
        }
        None
    }

    /// Packets of a message that should have arrived long ago are lost, or their sender is gone:
    /// others may use their part of the budget. Later arrivals count as sent without a grant.
    pub(crate) fn expire(&mut self, at: u32, owner: &Owner, base_ns: u64, now_ns: u64) {
        let stale_ns = stale_ns(base_ns);
        self.stale_ns[0] = self.stale_ns[0].max(stale_ns);
        let Some(m) = self.of_mut(at, owner) else { return };
        if m.outstanding > 0
            && now_ns.saturating_sub(m.last_ns) > stale_ns
            && !mutant::is_on(Mutant::LostPacketsGranted)
        {
            let lost = std::mem::take(&mut m.outstanding);
            let unscheduled = std::mem::take(&mut m.unscheduled);
            self.remove_granted(lost);
            self.unscheduled -= unscheduled;
        }
    }

    /// Checks that packets which were overdue at the call before are no longer in the budget, if all
    /// messages were checked since; for tests and simulations.
    pub(crate) fn check_overdue(&self, seen: &mut OverduePackets, now_ns: u64) {
        seen.places = seen.places.max(self.messages.len());
        // The last round through the table has begun since then.
        if self.checked - seen.checked <= 2 * seen.places as u64 {
            return;
        }
        let state = |at: usize, m: &Message| (at, m.last_ns, m.granted, m.outstanding);
        for &(age_ns, before) in &seen.messages {
            let now = self.messages.get(before.0).and_then(Option::as_ref);
            let stays = now.is_some_and(|m| state(before.0, m) == before);
            let overdue = age_ns > self.stale_ns[1] && seen.limited == self.limited;
            assert!(!(stays && overdue), "{} packets that were lost are in the budget", before.3);
        }
        let messages = self.messages.iter().enumerate();
        let messages = messages.filter_map(|(at, m)| m.as_ref().map(|m| (at, m)));
        let old = messages.map(|(at, m)| (now_ns.saturating_sub(m.last_ns), state(at, m)));
        let old = old.filter(|(age_ns, state)| *age_ns > STALE_MIN_NS && state.3 > 0);
        seen.messages.clear();
        seen.messages.extend(old);
        (seen.checked, seen.limited) = (self.checked, self.limited);
        seen.places = self.messages.len();
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.messages.capacity() * size_of::<Option<Message>>()
            + self.vacant.capacity() * size_of::<u32>()
            + self.queue.heap_bytes()
            + self.peers.capacity() * size_of::<Sender>()
            + self.memory.heap_bytes()
    }

    /// Checks the invariants; for tests and simulations.
    pub(crate) fn check(&self) {
        let messages = || self.messages.iter().flatten();
        let outstanding: u32 = messages().map(|m| m.outstanding).sum();
        assert_eq!(outstanding, self.granted, "the budget in use");
        let bytes = u64::from(outstanding) * self.link.packet_bytes();
        assert_eq!(self.link.granted(), bytes, "the part of the link's budget in use");
        let unscheduled: u32 = messages().map(|m| m.unscheduled).sum();
        assert_eq!(unscheduled, self.unscheduled, "packets without a grant");
        assert_eq!(messages().count(), self.live as usize);
        for m in messages() {
            assert!(m.granted <= m.packets && m.arrived <= m.packets);
            assert!(m.unscheduled <= m.outstanding);
            assert!(m.ticket == 0 || m.granted < m.packets, "nothing to grant");
            assert!(m.ticket == 0 || !m.reserved.waits(), "grants come after the memory");
        }
        let (entries, dead) = self.queue.counts();
        assert_eq!(messages().filter(|m| m.ticket != 0).count(), entries - dead, "the queue");
        assert!(!self.queue.has_many_dead(), "{dead} of {entries} entries are dead");
        let waiting = messages().filter(|m| m.reserved.waits()).count();
        assert_eq!(waiting, self.memory.len() as usize, "waiting for memory");
        for s in &self.peers {
            let of = || messages().filter(|m| m.peer == s.peer);
            assert_eq!(of().count(), s.messages as usize);
            assert_eq!(of().filter(|m| m.owes).count(), s.owed as usize, "withheld");
        }
    }
}

/// Time without an arrival after which the packets of a message are taken for lost.
fn stale_ns(base_ns: u64) -> u64 {
    (STALE_ROUND_TRIPS * base_ns).clamp(STALE_MIN_NS, STALE_MAX_NS)
}

#[cfg(test)]
mod tests;
