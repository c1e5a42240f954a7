//! A peer: another endpoint in one incarnation. Owns what is per frame: cookies, numbers, the
//! time echo, ECN counts, round trips.

use courser_buf::{Addr, Ecn, PathId};

use super::pool::Pool;
use super::transit::Transit;
use crate::config::Config;
use crate::loss::rto::Rtt;
use crate::loss::{Recovery, ReorderWindow, Seen};
use crate::mutant::{self, Mutant};
use crate::wire::{
    EcnCounts, FRAME_HEADER, FRAME_HEADER_MAX, FrameHeader, PACKET_HEADER, PlainHeader, Times,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerState {
    /// A connect that the other side has not answered; nothing is sent or accepted.
    Tentative,
    /// Agreed with the other side.
    Live,
}

/// So often the end of a message is probed for before all of it is given up: at once, and after twice
/// the time.
pub(crate) const PROBES: u8 = 2;

/// Probes never wait more than a thousand times as long.
const PATIENCE_MOST: u8 = 10;

/// More than any time apart from every time.
const NEVER: u64 = 1 << 63;

/// Marks that no frame to this peer is being filled.
pub(crate) const NO_FRAME: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Peer {
    // What the door and the header need.
    pub(crate) addr: Addr,
    pub(crate) rx_cookie: u32,
    pub(crate) tx_cookie: u32,
    pub(crate) remote: u32,
    pub(crate) data_per_packet: u16,
    pub(crate) state: PeerState,
    pub(crate) path: PathId,
    /// The frame of the current transmit stage that still has room, or [`NO_FRAME`].
    pub(crate) open_frame: u32,
    /// Credits of all sessions with it (F7).
    pub(crate) pool: Pool,
    tx_number: u64,
    /// When it was last told the time, ns, or [`NEVER`].
    told_ns: u64,
    /// Number of its newest frame.
    newest: Option<u32>,
    /// Its newest frame that said when it was sent.
    echo: Option<Echo>,
    received: EcnCounts,
    pub(crate) last_heard_ns: u64,
    pub(crate) rtt: Rtt,
    transit: Transit,
    /// A session with it has [`Recovery::Selective`].
    pub(crate) selective: bool,
    /// It is to be told that a frame is missing.
    pub(crate) gap_queued: bool,
    /// When the calls under way with it were last given timers, ns.
    watched_ns: u64,
    /// Probes wait `1 << patience` times as long.
    patience: u8,
    /// When that may grow again, ns.
    patient_ns: u64,
    reorder: ReorderWindow,
    // Cold.
    pub(crate) endpoint_id: u64,
    pub(crate) sessions: u32,
    /// What the peer says it received of our frames (F11).
    pub(crate) reported: EcnCounts,
}

#[derive(Clone, Copy, Debug)]
struct Echo {
    sent_at: u32,
    arrived_ns: u64,
}

impl Echo {
    /// Without the time that it has been held (F5).
    #[inline(always)]
    fn at(&self, now_ns: u64) -> u32 {
        let held = now_ns.saturating_sub(self.arrived_ns) as u32;
        self.sent_at.wrapping_add(held)
    }
}

/// The number of an endpoint and its address.
pub(crate) type PeerName = (u64, Addr);

impl Peer {
    pub(crate) fn name(&self) -> PeerName {
        (self.endpoint_id, self.addr)
    }

    pub(crate) fn tentative(rx_cookie: u32, cfg: &Config) -> Self {
        Peer {
            addr: Addr { host: 0, port: 0 },
            rx_cookie,
            tx_cookie: 0,
            remote: 0,
            data_per_packet: 0,
            state: PeerState::Tentative,
            path: PathId(u32::MAX),
            open_frame: NO_FRAME,
            pool: Pool::new(),
            tx_number: 0,
            told_ns: NEVER,
            newest: None,
            echo: None,
            received: EcnCounts::default(),
            last_heard_ns: 0,
            rtt: Rtt::new(cfg),
            transit: Transit::new(),
            selective: false,
            gap_queued: false,
            watched_ns: 0,
            patience: 0,
            patient_ns: 0,
            reorder: ReorderWindow::default(),
            endpoint_id: 0,
            sessions: 0,
            reported: EcnCounts::default(),
        }
    }

    /// Bytes that a frame header to this peer has now. ECN counts ride along once a mark was
    /// seen: until then there is nothing to tell.
    #[inline]
    pub(crate) fn header_len(&self) -> usize {
        if self.received.marked == 0 { FRAME_HEADER } else { FRAME_HEADER_MAX }
    }

    /// Largest frame both sides agreed on.
    #[inline]
    pub(crate) fn max_frame(&self) -> usize {
        FRAME_HEADER_MAX + PACKET_HEADER + usize::from(self.data_per_packet)
    }

    /// Whether it was told the time less than `within_ns` ago.
    #[inline(always)]
    pub(crate) fn was_told(&self, now_ns: u64, within_ns: u64) -> bool {
        now_ns.wrapping_sub(self.told_ns) < within_ns
    }

    /// The header of the next frame: takes a fresh number (F2) and ages the echo (F5). `len` is
    /// what [`Peer::header_len`] said when the frame was begun; `now_ns` is `None` for a frame that is to
    /// say no time.
    pub(crate) fn next_header(&mut self, now_ns: Option<u64>, len: usize) -> FrameHeader {
        let number = self.tx_number as u32;
        self.tx_number += 1;
        let echo_at = self.echo.zip(now_ns).map(|(echo, now_ns)| echo.at(now_ns));
        FrameHeader {
            data_per_packet: self.data_per_packet,
            peer: self.remote,
            cookie: self.tx_cookie,
            number,
            sent_at: now_ns.map(|now_ns| now_ns as u32),
            echo_at,
            ecn: (len == FRAME_HEADER_MAX).then_some(self.received),
        }
    }

    /// Writes [`Peer::next_header`] to the first `len` bytes of a frame.
    #[inline(always)]
    pub(crate) fn write_header(&mut self, now_ns: u64, len: usize, frame: &mut [u8]) {
        self.told_ns = now_ns;
        match (self.echo, frame.first_chunk_mut::<FRAME_HEADER>()) {
            (Some(echo), Some(out)) if len == FRAME_HEADER => {
                let times = Times { sent_at: now_ns as u32, echo_at: echo.at(now_ns) };
                self.plain_header(Some(times)).write(out);
            }
            _ => self.write_any_header(Some(now_ns), len, frame),
        }
    }

    /// Writes the header of a frame that says no time.
    #[inline(always)]
    pub(crate) fn write_untimed_header(&mut self, len: usize, frame: &mut [u8]) {
        match frame.first_chunk_mut::<FRAME_HEADER>() {
            Some(out) if len == FRAME_HEADER => self.plain_header(None).write(out),
            _ => self.write_any_header(None, len, frame),
        }
    }

    #[inline(always)]
    fn plain_header(&mut self, times: Option<Times>) -> PlainHeader {
        let number = self.tx_number as u32;
        self.tx_number += 1;
        let (data_per_packet, peer, cookie) = (self.data_per_packet, self.remote, self.tx_cookie);
        PlainHeader { data_per_packet, peer, cookie, number, times }
    }

    #[cold]
    fn write_any_header(&mut self, now_ns: Option<u64>, len: usize, frame: &mut [u8]) {
        self.next_header(now_ns, len).write(frame);
    }

    /// [`Peer::on_frame`] for a frame that was not marked, with a header without ECN counts.
    #[inline(always)]
    pub(crate) fn on_plain(&mut self, h: &PlainHeader, now_ns: u64) -> bool {
        self.last_heard_ns = now_ns;
        self.received.received = self.received.received.wrapping_add(1);
        let ahead = self.ahead(h.number);
        match h.times {
            Some(Times { sent_at, echo_at }) => {
                self.on_times(ahead, h.number, sent_at, Some(echo_at), now_ns);
            }
            None => self.on_untimed(ahead, h.number),
        }
        ahead > 1
    }

    /// How far a frame is ahead of the newest one.
    #[inline(always)]
    fn ahead(&self, number: u32) -> i32 {
        self.newest.map_or(1, |newest| number.wrapping_sub(newest) as i32)
    }

    /// A frame that is so far ahead of all before, and its times. Copies and frames that were overtaken
    /// tell nothing of the present: a replayed frame would pass for a round trip of any length.
    #[inline(always)]
    fn on_times(&mut self, ahead: i32, number: u32, sent_at: u32, echo: Option<u32>, now_ns: u64) {
        if ahead <= 0 {
            return self.transit.on_older(sent_at, now_ns);
        }
        self.newest = Some(number);
        self.echo = Some(Echo { sent_at, arrived_ns: now_ns });
        let round_trip = echo.and_then(|e| self.rtt.on_echo(now_ns as u32, e));
        self.transit.on_newer(sent_at, round_trip, now_ns);
    }

    /// [`Peer::on_times`] of a frame without. When it arrived is not known exactly.
    #[inline(always)]
    fn on_untimed(&mut self, ahead: i32, number: u32) {
        if ahead > 0 {
            self.newest = Some(number);
        }
        self.transit.on_untimed();
    }

    /// Takes what a frame that passed the door says about the path. Whether it shows that frames
    /// before it are missing.
    pub(crate) fn on_frame(&mut self, h: &FrameHeader, ecn: Ecn, now_ns: u64) -> bool {
        self.last_heard_ns = now_ns;
        self.received.received = self.received.received.wrapping_add(1);
        if ecn == Ecn::Ce {
            self.received.marked = self.received.marked.wrapping_add(1).max(1);
        }
        let ahead = self.ahead(h.number);
        if let Some(counts) = h.ecn.filter(|_| ahead > 0) {
            self.reported = counts;
        }
        match h.sent_at {
            Some(sent_at) => self.on_times(ahead, h.number, sent_at, h.echo_at, now_ns),
            None => self.on_untimed(ahead, h.number),
        }
        ahead > 1
    }

    /// After how long without an answer to suspect loss, when that was suspected `retries` times: never
    /// later than with go-back-N.
    pub(crate) fn timeout_ns(&self, recovery: Recovery, retries: u8, cfg: &Config) -> u64 {
        let most_ns = self.rtt.rto_ns(retries, cfg);
        if recovery != Recovery::Selective {
            return most_ns;
        }
        let once_ns = self.rtt.probe_ns(cfg) + self.window_ns(self.last_heard_ns);
        let doubled = |times: u8| once_ns.saturating_mul(1 << u32::from(times).min(32));
        let wait_ns = match retries.checked_sub(PROBES) {
            None => doubled(retries.saturating_add(self.patience)),
            Some(timeouts) => self.rtt.rto_ns(timeouts, cfg).max(doubled(retries)),
        };
        wait_ns.min(most_ns)
    }

    /// The reorder window.
    pub(crate) fn window_ns(&self, now_ns: u64) -> u64 {
        self.reorder.window_ns(self.rtt.smoothed_ns(), self.rtt.least_ns(), now_ns)
    }

    /// The shortest time that a packet can be under way to cause the frame at hand: its round
    /// trip, if it is the newest frame, or the smallest one.
    pub(crate) fn round_trip_ns(&self) -> u64 {
        self.transit.round_trip_ns().unwrap_or(self.rtt.least_ns())
    }

    /// Takes what an arrival has shown.
    #[cold]
    pub(crate) fn learn(&mut self, seen: Seen, now_ns: u64) {
        if seen.late_ns > 0 {
            self.reorder.on_late(seen.late_ns, now_ns);
        }
        if seen.hasty > 0 {
            let (srtt_ns, least_ns) = (self.rtt.smoothed_ns(), self.rtt.least_ns());
            self.reorder.on_spurious(srtt_ns, least_ns, now_ns);
        }
        if seen.useful > 0 {
            self.be_hasty();
        }
    }

    /// A frame is missing on either side. Whether the calls under way are to be looked at: there are
    /// some, and it was not done within the last half of a round trip.
    #[cold]
    pub(crate) fn is_to_be_watched(&mut self, now_ns: u64, cfg: &Config) -> bool {
        let soon_ns = self.watched_ns.saturating_add(self.rtt.probe_ns(cfg) / 4);
        if !self.selective || !self.pool.is_used() || now_ns < soon_ns {
            return false;
        }
        self.watched_ns = now_ns.max(1);
        true
    }

    /// A packet that was sent again had been lost.
    #[cold]
    pub(crate) fn be_hasty(&mut self) {
        self.patience = self.patience.saturating_sub(1);
    }

    /// A call was asked after that was not lost: its handler takes long.
    #[cold]
    pub(crate) fn be_patient(&mut self, now_ns: u64, cfg: &Config) {
        // Calls that wait together are one lesson.
        if now_ns >= self.patient_ns {
            self.patience = (self.patience + 1).min(PATIENCE_MOST);
            self.patient_ns = now_ns.saturating_add(self.rtt.probe_ns(cfg));
        }
    }

    /// A deadline in this endpoint's time, of which `remaining_us` were left when the frame at
    /// hand was sent: never later than the client's (see [`super::transit`]).
    #[cold]
    pub(crate) fn deadline_ns(&mut self, remaining_us: u32) -> u64 {
        self.rtt.settle();
        let mut age_ns = self.transit.age_ns(self.rtt.least_ns());
        if mutant::is_on(Mutant::AgeForgotten) {
            age_ns = 0;
        }
        let left_ns = u64::from(remaining_us) * 1_000;
        (self.last_heard_ns + left_ns).saturating_sub(age_ns)
    }

    /// Frames sent to this peer.
    pub(crate) fn tx_number(&self) -> u64 {
        self.tx_number
    }

    /// Frames accepted from this peer, modulo 2^32.
    pub(crate) fn rx_frames(&self) -> u32 {
        self.received.received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(number: u32, sent_at: u32) -> FrameHeader {
        FrameHeader {
            data_per_packet: 1024,
            peer: 0,
            cookie: 0,
            number,
            sent_at: Some(sent_at),
            echo_at: None,
            ecn: None,
        }
    }

    #[test]
    fn every_frame_takes_a_fresh_number() {
        let mut p = Peer::tentative(1, &Config::default());
        let numbers: Vec<u32> =
            (0..4).map(|_| p.next_header(Some(0), FRAME_HEADER).number).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
    }

    #[test]
    fn the_echo_is_the_newest_frames_and_ages_while_it_is_held() {
        let cfg = Config::default();
        let mut p = Peer::tentative(1, &cfg);
        assert_eq!(p.next_header(Some(5), FRAME_HEADER).echo_at, None);
        p.on_frame(&header(7, 1000), Ecn::NotEct, 50);
        p.on_frame(&header(6, 900), Ecn::NotEct, 60); // reordered: older
        assert_eq!(p.next_header(Some(80), FRAME_HEADER).echo_at, Some(1030));
    }

    #[test]
    fn copies_and_overtaken_frames_are_no_round_trips() {
        let cfg = Config::default();
        let mut p = Peer::tentative(1, &cfg);
        let frame = |number, echo| FrameHeader { echo_at: Some(echo), ..header(number, 0) };
        p.on_frame(&frame(5, 1_000), Ecn::NotEct, 3_000);
        assert_eq!(p.rtt.report(&cfg).unwrap().0, 2_000);
        for replayed in [5, 4] {
            p.on_frame(&frame(replayed, 1_000), Ecn::NotEct, 900_000_000);
        }
        assert_eq!(p.rtt.report(&cfg).unwrap().0, 2_000);
        p.on_frame(&frame(6, 900_000_000), Ecn::NotEct, 900_004_000);
        assert_eq!(p.rtt.report(&cfg).unwrap().0, 4_000);
    }

    #[test]
    fn a_deadline_is_what_was_left_less_the_time_on_the_way() {
        let cfg = Config::default();
        let mut p = Peer::tentative(1, &cfg);
        // The peer's clock is 5 s ahead; a frame takes 1,000 ns, an echo comes back after 3,000.
        let at = |number, sent: u64, echo: u64| FrameHeader {
            echo_at: Some(echo as u32),
            ..header(number, (sent + 5_000_000_000) as u32)
        };
        p.on_frame(&at(1, 9_000, 7_000), Ecn::NotEct, 10_000);
        assert_eq!(p.deadline_ns(50), 10_000 + 50_000 - 3_000);
        // This one has waited for 200 us; so had the answer whose echo it brings.
        p.on_frame(&at(2, 99_000, 50_000), Ecn::NotEct, 300_000);
        assert_eq!(p.deadline_ns(50), 300_000 + 50_000 - 200_000 - 3_000);
    }

    #[test]
    fn a_frame_without_times_counts_and_reports_marks_and_keeps_the_echo() {
        let cfg = Config::default();
        let mut p = Peer::tentative(1, &cfg);
        p.on_frame(&header(0, 1_000), Ecn::Ce, 5_000);
        let counts = Some(EcnCounts { marked: 7, received: 9 });
        let untimed = FrameHeader { sent_at: None, ecn: counts, ..header(1, 0) };
        assert!(!p.on_frame(&untimed, Ecn::Ce, 5_500));
        assert!(p.on_frame(&FrameHeader { number: 3, ..untimed }, Ecn::NotEct, 5_500), "a gap");
        assert_eq!(p.reported, EcnCounts { marked: 7, received: 9 });
        let mut bytes = [0; FRAME_HEADER_MAX];
        p.write_untimed_header(FRAME_HEADER_MAX, &mut bytes);
        let (h, _) = FrameHeader::parse(&bytes).unwrap();
        assert_eq!((h.sent_at, h.echo_at), (None, None));
        assert_eq!(h.ecn, Some(EcnCounts { marked: 2, received: 3 }));
        assert_eq!(p.next_header(Some(6_000), FRAME_HEADER_MAX).echo_at, Some(2_000));
    }

    #[test]
    fn ecn_marks_are_counted_and_reported_from_the_first_on() {
        let cfg = Config::default();
        let mut p = Peer::tentative(1, &cfg);
        p.on_frame(&header(0, 0), Ecn::Ect0, 0);
        assert_eq!(p.header_len(), FRAME_HEADER);
        p.on_frame(&header(1, 0), Ecn::Ce, 0);
        let len = p.header_len();
        assert_eq!(len, FRAME_HEADER_MAX);
        let ecn = p.next_header(Some(0), len).ecn;
        assert_eq!(ecn, Some(EcnCounts { marked: 1, received: 2 }));
    }
}
