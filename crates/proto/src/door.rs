//! The door (step 9 of a packet's path): which frames are let in (F14), and what a frame says about
//! the path to its sender.

use courser_buf::{Ecn, RxFrame};

use crate::endpoint::Endpoint;
use crate::event::{Driver, FrameCursor};
use crate::mutant::{self, Mutant};
use crate::session::PeerState;
use crate::stats::Drop;
use crate::wire::{FrameHeader, PlainHeader};

impl<C> Endpoint<C> {
    /// Checks a frame at the door: form, peer, cookie, source, packet size (F14). Until all hold
    /// no state is touched. `None`: the frame was discarded and counted.
    ///
    /// The cursor is over [`RxFrame::data`]. Frames that have a [`RxFrame::tail`] are for
    /// [`Endpoint::receive`], or have to be joined first: a packet that ends in the tail is
    /// discarded otherwise.
    ///
    /// For a frame that says no time ([`crate::wire::is_untimed`]) `now_ns` may be any earlier time that
    /// the endpoint was given, if [`Endpoint::heard_at`] follows.
    #[inline]
    pub fn on_frame<'f>(&mut self, frame: &RxFrame<'f>, now_ns: u64) -> Option<FrameCursor<'f>> {
        let cursor = self.admit_plain::<true>(frame, now_ns);
        let cursor = cursor.or_else(|| self.admit_plain::<false>(frame, now_ns));
        cursor.or_else(|| self.admit_counted(frame, now_ns))
    }

    /// [`Endpoint::on_frame`] and [`FrameCursor::drive`] in one; also of frames with a tail.
    #[inline(always)]
    pub fn receive(driver: &mut impl Driver<C>, frame: &RxFrame<'_>, now_ns: u64) {
        if !frame.tail.is_empty() {
            return Self::receive_in_parts(driver, frame, now_ns);
        }
        match driver.endpoint().admit_plain::<true>(frame, now_ns) {
            Some(cursor) => cursor.drive(driver),
            None => Self::receive_untimed(driver, frame, now_ns),
        }
    }

    /// The same for a frame that says no time, and is all in [`RxFrame::data`].
    #[inline(never)] // so that frames of many packets have the registers
    pub fn receive_untimed(driver: &mut impl Driver<C>, frame: &RxFrame<'_>, now_ns: u64) {
        match driver.endpoint().admit_plain::<false>(frame, now_ns) {
            Some(cursor) => cursor.drive(driver),
            None => Self::receive_any(driver, frame, now_ns),
        }
    }

    #[inline(never)] // so that plain frames have the registers
    fn receive_any(driver: &mut impl Driver<C>, frame: &RxFrame<'_>, now_ns: u64) {
        let Some(mut cursor) = driver.endpoint().admit_counted(frame, now_ns) else { return };
        while let Some(event) = driver.endpoint().next_event(&mut cursor) {
            driver.on_event(event);
        }
    }

    /// Admits a frame with a plain header, with times or without, that may be believed; `None`: it is
    /// for [`Endpoint::admit_any`] to judge, and nothing was done.
    #[inline(always)]
    fn admit_plain<'f, const TIMED: bool>(
        &mut self,
        frame: &RxFrame<'f>,
        now_ns: u64,
    ) -> Option<FrameCursor<'f>> {
        let (h, rest) = PlainHeader::parse::<TIMED>(frame.data)?;
        let (awaited, gap) = match self.peers.get_mut(h.peer as usize) {
            Some(Some(peer))
                if peer.rx_cookie == h.cookie
                    && peer.data_per_packet == h.data_per_packet
                    && peer.addr == frame.src
                    && peer.state == PeerState::Live
                    && frame.ecn != Ecn::Ce =>
            {
                let gap = peer.on_plain(&h, now_ns);
                (peer.pool.is_awaited(), gap)
            }
            _ => return None,
        };
        self.heard(h.peer, TIMED);
        self.now_ns = now_ns;
        self.stats.rx_frames += 1;
        self.stats.rx_frames_accepted += 1;
        if gap {
            self.on_gap(h.peer);
        }
        let short_end = self.short_end(h.data_per_packet);
        let (peer, data_per_packet) = (h.peer, h.data_per_packet);
        Some(FrameCursor { rest, peer, data_per_packet, awaited, short_end })
    }

    #[inline(never)]
    fn admit_counted<'f>(&mut self, frame: &RxFrame<'f>, now_ns: u64) -> Option<FrameCursor<'f>> {
        self.now_ns = now_ns;
        self.stats.rx_frames += 1;
        match self.admit_any(frame) {
            Ok(cursor) => {
                self.stats.rx_frames_accepted += 1;
                Some(cursor)
            }
            Err(reason) => {
                self.stats.drop(reason);
                None
            }
        }
    }

    /// Admits any frame, or says why not.
    fn admit_any<'f>(&mut self, frame: &RxFrame<'f>) -> Result<FrameCursor<'f>, Drop> {
        let (h, rest) = FrameHeader::parse(frame.data)?;
        let peer = self.peers.get_mut(h.peer as usize).and_then(Option::as_mut);
        let peer = peer.filter(|p| p.state == PeerState::Live).ok_or(Drop::UnknownPeer)?;
        if peer.rx_cookie != h.cookie && !mutant::is_on(Mutant::CookieIgnored) {
            return Err(Drop::Cookie);
        }
        if peer.addr != frame.src {
            return Err(Drop::WrongSource);
        }
        if peer.data_per_packet != h.data_per_packet {
            return Err(Drop::PacketSize);
        }
        let gap = peer.on_frame(&h, frame.ecn, self.now_ns);
        let (data_per_packet, awaited) = (h.data_per_packet, peer.pool.is_awaited());
        self.heard(h.peer, h.sent_at.is_some());
        if gap {
            self.on_gap(h.peer);
        }
        let short_end = self.short_end(data_per_packet);
        Ok(FrameCursor { rest, peer: h.peer, data_per_packet, awaited, short_end })
    }

    /// Says when a frame has come that says no time, for which an older time was given: now, or
    /// little before. To be called before [`Endpoint::on_deadline`], which would else take the peer for
    /// silent since then.
    #[inline(always)]
    pub fn heard_at(&mut self, now_ns: u64) {
        let peer = std::mem::replace(&mut self.heard_untimed, u32::MAX);
        if let Some(Some(peer)) = self.peers.get_mut(peer as usize) {
            peer.last_heard_ns = now_ns;
        }
    }

    /// Notes whose frame is at hand: its round trip is reckoned with when its packets have been
    /// taken, or before anything else wants to know. One that is not `timed` is for
    /// [`Endpoint::heard_at`], too.
    #[inline(always)]
    fn heard(&mut self, peer: u32, timed: bool) {
        if !timed {
            self.heard_untimed = peer;
        }
        if self.heard != peer {
            self.settle_round_trip();
            self.heard = peer;
        }
    }

    /// Reckons with the round trip that the newest frame has shown.
    #[inline]
    pub(crate) fn settle_round_trip(&mut self) {
        if let Some(Some(peer)) = self.peers.get_mut(self.heard as usize) {
            peer.rtt.settle();
            if self.silence_guessed && peer.rtt.smoothed_ns() > 0 {
                self.listen_anew();
            }
        }
    }

    /// Messages of fewer bytes fit one packet and are never refused for their size.
    #[inline(always)]
    fn short_end(&self, data_per_packet: u16) -> u32 {
        if !mutant::short_cuts() {
            return 0;
        }
        self.cfg.max_msg_size.min(data_per_packet.into()) + 1
    }
}
