//! The receiving side of a host's link, which endpoints share ([`ReceiveLink`]).
//!
//! All endpoints of a nexus receive over one link: a budget for each of them would fill its queue once
//! for each. So they share one budget, whose size follows the delay of the frames of all. An endpoint
//! has a part of it in proportion to its arriving messages, and always a packet. It learns of a change
//! with the next packet that arrives, so that no endpoint wakes another.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::size::{Delays, Size};

/// The receiving side of a link: what the endpoints of a nexus share of it
/// ([`crate::Endpoint::share_link`]). Its counts are read without a lock, and may be a packet old.
#[derive(Debug)]
pub struct ReceiveLink {
    size: Mutex<Size>,
    /// The size of the budget, bytes.
    bytes: AtomicU64,
    /// The smallest round trip of the senders, ns.
    base_ns: AtomicU64,
    /// Bytes that are granted and have not arrived.
    granted: AtomicU64,
    /// Peers of all endpoints that are sending messages of several packets, and these messages.
    senders: AtomicU32,
    messages: AtomicU32,
    /// Messages have waited for the budget in the present run of frames.
    short: AtomicBool,
}

impl ReceiveLink {
    /// A link with this rate, bits per second.
    pub fn new(line_rate_bps: u64) -> Arc<Self> {
        let size = Size::new(line_rate_bps);
        Arc::new(ReceiveLink {
            bytes: size.bytes().into(),
            size: size.into(),
            base_ns: 0.into(),
            granted: 0.into(),
            senders: 0.into(),
            messages: 0.into(),
            short: false.into(),
        })
    }

    /// Changes the size of the budget, and takes over the result.
    fn update(&self, size: &mut Size, change: impl FnOnce(&mut Size)) {
        change(size);
        store_changed(&self.bytes, size.bytes());
        store_changed(&self.base_ns, size.base_ns());
    }
}

/// Endpoints of other threads read these often.
fn store_changed(to: &AtomicU64, value: u64) {
    if to.load(Relaxed) != value {
        to.store(value, Relaxed);
    }
}

/// The part of one endpoint in the budget of its link. What it counts leaves the link with it.
#[derive(Debug)]
pub(super) struct LinkShare {
    link: Arc<ReceiveLink>,
    /// Bytes of a full frame on the wire.
    packet_bytes: u32,
    /// The most that this endpoint may have in flight to it, bytes.
    most: u64,
    granted: u64,
    senders: u32,
    /// Messages that do not wait for memory.
    messages: u32,
    /// Bytes of frames that have arrived, which the link does not know of.
    arrived: u64,
    /// Time of the link at time 0 of the endpoint, ns.
    epoch_ns: u64,
}

impl LinkShare {
    /// A share of a link for an endpoint with frames of `packet_bytes` on the wire, and a receive queue
    /// of `most` of them.
    pub(super) fn new(
        link: Arc<ReceiveLink>,
        (packet_bytes, most): (u32, u32),
        epoch_ns: u64,
    ) -> Self {
        let most = u64::from(most.max(2)) * u64::from(packet_bytes);
        let mut size = link.size.lock().unwrap_or_else(PoisonError::into_inner);
        link.update(&mut size, |size| size.add_endpoint(packet_bytes, most));
        drop(size);
        LinkShare {
            link,
            packet_bytes,
            most,
            granted: 0,
            senders: 0,
            messages: 0,
            arrived: 0,
            epoch_ns,
        }
    }

    /// A share of another link, with the same frames.
    pub(super) fn moved(&self, link: Arc<ReceiveLink>, epoch_ns: u64) -> Self {
        let most = (self.most / u64::from(self.packet_bytes)) as u32;
        LinkShare::new(link, (self.packet_bytes, most), epoch_ns)
    }

    /// Bytes of a full frame on the wire.
    pub(super) fn packet_bytes(&self) -> u64 {
        self.packet_bytes.into()
    }

    /// Returns whether several peers send messages over the link.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.link.senders.load(Relaxed) > 1
    }

    /// The smallest round trip of the senders, ns.
    pub(super) fn base_ns(&self) -> u64 {
        self.link.base_ns.load(Relaxed)
    }

    /// The size of the budget of all endpoints, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.link.bytes.load(Relaxed)
    }

    /// Bytes of this endpoint that are granted and have not arrived.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// Messages of this endpoint that do not wait for memory.
    pub(super) fn messages(&self) -> u32 {
        self.messages
    }

    /// The endpoint's part of the budget, bytes.
    pub(super) fn part(&self) -> u64 {
        let all = self.link.messages.load(Relaxed).max(self.messages).max(1);
        (self.bytes() * u64::from(self.messages) / u64::from(all)).min(self.most)
    }

    /// Bytes that this endpoint may grant now, of which it has `used` some: up to its part of the
    /// budget, rounded up to a packet while the link has one left. Half of the part is there in any
    /// case: packets of another endpoint whose sender or thread has stopped count for seconds.
    pub(super) fn room(&self, used: u64) -> u64 {
        let (packet, part) = (self.packet_bytes(), self.part());
        let others = self.link.granted.load(Relaxed).saturating_sub(self.granted);
        let free = self.bytes().saturating_sub(others + used);
        let free = free.max((part / 2).saturating_sub(used));
        let room = free.min(part.saturating_sub(used).next_multiple_of(packet));
        let least = if used == 0 { packet } else { 0 };
        room.max(least)
    }

    /// Adds to what is granted.
    pub(super) fn grant(&mut self, bytes: u64) {
        self.granted += bytes;
        self.link.granted.fetch_add(bytes, Relaxed);
    }

    /// Granted bytes have arrived, or will not.
    pub(super) fn take_back(&mut self, bytes: u64) {
        self.granted -= bytes;
        self.link.granted.fetch_sub(bytes, Relaxed);
    }

    /// A message begins, which may be the first one of its peer.
    pub(super) fn begin(&mut self, is_first: bool) {
        self.add_message();
        if is_first {
            self.senders += 1;
            self.link.senders.fetch_add(1, Relaxed);
        }
    }

    /// A message has ended, or waits for memory: it takes no part of the budget.
    pub(super) fn remove_message(&mut self) {
        self.messages -= 1;
        self.link.messages.fetch_sub(1, Relaxed);
    }

    /// A message has its memory.
    pub(super) fn add_message(&mut self) {
        self.messages += 1;
        self.link.messages.fetch_add(1, Relaxed);
    }

    /// A message has ended, which may be the last one of its peer.
    pub(super) fn end(&mut self, is_last: bool, waited: bool) {
        if !waited {
            self.remove_message();
        }
        if is_last {
            self.senders -= 1;
            self.link.senders.fetch_sub(1, Relaxed);
        }
    }

    /// A frame of `bytes` on the wire has arrived. While another endpoint's frame is counted its
    /// delays, if they are known, are left out.
    pub(super) fn on_frame(&mut self, bytes: u64, delays: Option<Delays>, now_ns: u64) {
        self.arrived += bytes;
        let mut size = match self.link.size.try_lock() {
            Ok(size) => size,
            Err(TryLockError::Poisoned(size)) => size.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let now_ns = now_ns.saturating_add(self.epoch_ns);
        let arrived = std::mem::take(&mut self.arrived);
        let messages = self.link.messages.load(Relaxed);
        self.link.update(&mut size, |size| {
            size.on_bytes(arrived, now_ns);
            if let Some(delays) = delays {
                let short = self.link.short.load(Relaxed);
                if size.on_delay(delays, (messages, short), now_ns) {
                    self.link.short.store(false, Relaxed);
                }
            }
        });
    }

    /// Messages wait because the budget is used up.
    pub(super) fn on_shortage(&self) {
        if !self.link.short.load(Relaxed) {
            self.link.short.store(true, Relaxed);
        }
    }
}

impl Drop for LinkShare {
    fn drop(&mut self) {
        self.link.granted.fetch_sub(self.granted, Relaxed);
        self.link.senders.fetch_sub(self.senders, Relaxed);
        self.link.messages.fetch_sub(self.messages, Relaxed);
        // In the child of a fork another thread may have held the lock.
        if let Ok(mut size) = self.link.size.try_lock() {
            self.link.update(&mut size, |size| size.remove_endpoint(self.most));
        }
    }
}
