//! Ingress validation (step 10 of a packet's path): acceptance of received frames by form, peer,
//! cookie and source, and the path samples in their headers. Frames of another source: `moves`.

use courser_buf::RxFrame;

use crate::driver::Driver;
use crate::endpoint::Endpoint;
use crate::moves::Stray;
use crate::path::{Seen, Times};
use crate::peer::{FrameSignal, Peer, PeerState};
use crate::rx::{self, Packets};
use crate::stats::RxDrop;
use crate::wire::{FrameHeader, UncheckedFrame};

/// The event loop is told of every this many refused frames, as there may be a flood.
pub(crate) const REFUSED_NEWS: u64 = 256;

impl<C> Endpoint<C> {
    /// Receives a frame: checks its form, peer, cookie, source and packet size, and handles its
    /// packets. Requests and completions are passed to the driver in order. If a check fails, only
    /// a counter changes.
    /// The driver's clock is read only for frames with a send time. Other frames count as received
    /// at the newest time that was set ([`Endpoint::advance`]).
    #[inline(always)] // inlined into the event loop, its only caller
    pub fn receive(driver: &mut impl Driver<C>, frame: &RxFrame<'_>) {
        let Some(unchecked) = UncheckedFrame::of(frame.data) else {
            return driver.endpoint().refuse_frame(RxDrop::Truncated);
        };
        if !unchecked.is_untimed() {
            let now_ns = driver.now_ns();
            driver.endpoint().io.now_ns = now_ns;
        }
        if !frame.tail().is_empty() {
            return Self::receive_in_parts(driver, unchecked, frame);
        }
        let wait_ns = Self::wait_ns(driver, frame);
        let Some(packets) = driver.endpoint().open(unchecked, frame, wait_ns) else { return };
        rx::packets(driver, packets);
        Self::received(driver);
    }

    /// Receives a frame whose end its sender can still write. The checksum of a protected frame is
    /// that of a copy, which does not change any more.
    #[inline(never)]
    fn receive_in_parts(
        driver: &mut impl Driver<C>,
        unchecked: UncheckedFrame<'_>,
        frame: &RxFrame<'_>,
    ) {
        if driver.endpoint().is_protected(frame.data) {
            let mut scratch = std::mem::take(&mut driver.endpoint().io.scratch);
            Self::receive(driver, &frame.join(&mut scratch));
            driver.endpoint().io.scratch = scratch;
            return;
        }
        let wait_ns = Self::wait_ns(driver, frame);
        let Some(packets) = driver.endpoint().open(unchecked, frame, wait_ns) else { return };
        rx::packets_in_parts(driver, packets, frame);
        Self::received(driver);
    }

    /// Returns whether the peer that a frame names protects its frames.
    fn is_protected(&self, frame: &[u8]) -> bool {
        let header = FrameHeader::parse(frame);
        let peer = header.ok().and_then(|(h, _)| self.peers.at(h.peer));
        peer.is_some_and(|peer| peer.protection.covers_frames())
    }

    /// The part of the time for which a frame has waited in this host, in its kernel and behind other frames
    /// of its burst, that is no delay to the congestion control.
    #[inline(always)]
    fn wait_ns(driver: &mut impl Driver<C>, frame: &RxFrame<'_>) -> u32 {
        let Some(ns) = frame.waited_ns() else { return 0 };
        let most_ns = driver.endpoint().io.allowed_wait_ns();
        ns.saturating_add(driver.since_burst_ns()).min(most_ns)
    }

    /// All packets of a frame were handled.
    #[inline]
    fn received(driver: &mut impl Driver<C>) {
        let endpoint = driver.endpoint();
        endpoint.io.tx.close_append();
        if endpoint.io.signal.is_some() {
            endpoint.io.on_signal(&mut endpoint.peers);
        }
    }

    /// Opens a frame: the only place that accepts frames.
    #[inline(always)]
    fn open<'f>(
        &mut self,
        unchecked: UncheckedFrame<'f>,
        frame: &RxFrame<'f>,
        wait_ns: u32,
    ) -> Option<Packets<'f>> {
        let (h, rest) = (unchecked.header(), unchecked.rest);
        let peer = self.peers.at_mut(h.peer);
        // Frames that nothing protects need one comparison.
        let fits = |peer: &Peer| peer.is_front_of(&unchecked) && peer.addr == frame.src;
        let peer = match peer {
            Some(peer) if fits(peer) => peer,
            peer => match check(peer, frame) {
                Ok(peer) if peer.addr == frame.src => peer,
                Ok(peer) => {
                    let stray = self.outbox.moves.on_stray(peer, frame, self.io.now_ns);
                    self.on_stray(stray);
                    return None;
                }
                Err(reason) => {
                    self.refuse_frame(reason);
                    return None;
                }
            },
        };
        let limits = self.admission.budget.is_in_force();
        let times = Times {
            now_ns: self.io.now_ns,
            wait_ns,
            is_excluded: wait_ns > 0 && self.admission.budget.has_sender(h.peer),
        };
        let Seen { is_gap, is_signal } = peer.path.on_frame(&h, frame.ecn, times);
        self.io.stats.rx_frames += 1;
        self.io.stats.rx_frames_accepted += 1;
        if is_signal {
            let (in_flight, sent) = (peer.credits.in_flight_units(), peer.path.sent_units());
            self.io.signal = Some(FrameSignal { peer: h.peer, in_flight, sent });
        }
        if limits {
            self.admission.on_budget_frame(&self.io, peer, (frame.data.len(), wait_ns));
        }
        // The peer is not used below: a first round trip concerns all peers.
        let arms_calls = is_gap && self.io.on_gap(peer);
        if self.io.tail_loss.guessed && peer.path.rtt().smoothed_ns() > 0 {
            self.io.on_round_trip(&self.peers);
        }
        if arms_calls {
            self.arm_small_calls(Some(h.peer));
        }
        self.io.open_append();
        Some(Packets { rest, peer: h.peer, data_per_packet: h.data_per_packet })
    }

    /// A frame came from another source than its peer's address.
    #[cold]
    fn on_stray(&mut self, stray: Stray) {
        if stray != Stray::Kept {
            self.refuse_frame(RxDrop::WrongSource);
        }
        self.outbox.has_news |= stray != Stray::Dropped;
    }

    #[cold]
    pub(crate) fn refuse_frame(&mut self, reason: RxDrop) {
        self.io.stats.rx_frames += 1;
        self.io.stats.drop(reason);
        let refused = self.io.stats.rx_frames - self.io.stats.rx_frames_accepted;
        self.outbox.has_news |= refused.is_multiple_of(REFUSED_NEWS);
    }
}

/// Checks the form of a frame, and that the peer in its header has made it. Returns the peer, whose address
/// may not be the frame's source.
#[inline(never)] // frames that nothing protects do not come here
fn check<'p>(peer: Option<&'p mut Peer>, frame: &RxFrame<'_>) -> Result<&'p mut Peer, RxDrop> {
    let (h, _) = FrameHeader::parse(frame.data)?;
    let Some(peer) = peer.filter(|peer| peer.state == PeerState::Live) else {
        return Err(RxDrop::UnknownPeer);
    };
    if peer.protection.refuses_cookie(peer.rx_cookie, h.cookie) {
        return Err(RxDrop::Cookie);
    }
    if peer.data_per_packet != h.data_per_packet {
        return Err(RxDrop::PacketSize);
    }
    if !peer.protection.opens(peer.rx_cookie, h.cookie, frame.data) {
        return Err(RxDrop::Checksum);
    }
    Ok(peer)
}
