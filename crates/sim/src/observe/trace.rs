//! A readable trace: one line for each event of a datagram.
//!
//! ```text
//!      12.345 n0>s0      send n0:31850 > n1:31851 id 17 84 B #7 peer 3 cookie deadbeef | REQ s5 r8 0/1 of 44 B type 1
//!      13.021 s0         drop(buffer-full) n0:31850 > n1:31851 id 17 84 B ...
//! ```
//!
//! Microseconds with three decimals; the link, host or switch; the event; sender and receiver; the
//! datagram's number and its payload bytes; then the header of the frame and each of its packets.
//! `dup` after the event: a repetition of the same datagram there; `CE`: it has a congestion mark;
//! `corrupt`: a fault has changed it.

use std::collections::VecDeque;
use std::fmt;

use courser_buf::Ecn;

use super::decode::{FrameText, Kind, frame, req_num};
use super::{DropReason, Names, Place, Sink};
use crate::{HostId, Packet};

/// Events of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Its first bit leaves on a link.
    Send,
    /// It reaches an endpoint's receive queue.
    Recv,
    /// It is dropped.
    Drop(DropReason),
    /// A switch marks it.
    Mark,
}

/// Filter of events: all conditions must match. The default matches everything; an empty list means
/// "any".
#[derive(Clone, Debug)]
pub struct TraceFilter {
    /// Datagrams from or to one of these.
    pub hosts: Vec<HostId>,
    /// Events at one of these. A link is also a place of sending and of marks.
    pub places: Vec<Place>,
    /// Frames that hold a packet of one of these kinds.
    pub kinds: Vec<Kind>,
    /// Frames that hold a packet of this request number.
    pub request: Option<u32>,
    /// From this time on, ns.
    pub from_ns: u64,
    /// Before this time, ns.
    pub until_ns: u64,
}

impl Default for TraceFilter {
    fn default() -> Self {
        TraceFilter {
            hosts: Vec::new(),
            places: Vec::new(),
            kinds: Vec::new(),
            request: None,
            from_ns: 0,
            until_ns: u64::MAX,
        }
    }
}

impl TraceFilter {
    fn lets_through(&self, now_ns: u64, at: &Place, p: &Packet) -> bool {
        let any = |hosts: &[HostId]| hosts.iter().any(|h| *h == p.src || *h == p.dst);
        (self.from_ns..self.until_ns).contains(&now_ns)
            && (self.hosts.is_empty() || any(&self.hosts))
            && (self.places.is_empty() || self.places.contains(at))
            && self.wants_frame(&p.bytes)
    }

    /// One packet has both the kind and the number.
    fn wants_frame(&self, bytes: &[u8]) -> bool {
        if self.kinds.is_empty() && self.request.is_none() {
            return true;
        }
        let Ok((_, mut packets)) = frame(bytes) else {
            return self.request.is_none() && self.kinds.contains(&Kind::Malformed);
        };
        packets.any(|p| {
            let number = p.as_ref().ok().and_then(req_num);
            (self.kinds.is_empty() || self.kinds.contains(&Kind::of(&p)))
                && (self.request.is_none() || self.request == number)
        })
    }
}

/// Settings of a trace.
#[derive(Debug, Default)]
pub struct TraceSettings {
    /// Output for lines as they occur.
    pub to: Option<Sink>,
    /// Number of last lines that are kept for a report of a failure. They are kept as datagrams and
    /// formatted only for the report: a line costs its datagram's bytes and about 150 more, and the
    /// time of the copy.
    pub keep: usize,
    /// The events that are traced.
    pub filter: TraceFilter,
}

/// Writes and keeps lines.
#[derive(Debug)]
pub(super) struct Trace {
    settings: TraceSettings,
    kept: VecDeque<Line>,
    seen: Recent,
}

#[derive(Debug)]
struct Line {
    at_ns: u64,
    event: Event,
    place: Place,
    again: bool,
    packet: Packet,
}

impl Trace {
    pub(super) fn new(settings: TraceSettings) -> Self {
        Trace { settings, kept: VecDeque::new(), seen: Recent::default() }
    }

    pub(super) fn event(&mut self, n: &Names, at_ns: u64, event: Event, at: Place, p: &Packet) {
        if !self.settings.filter.lets_through(at_ns, &at, p) {
            return;
        }
        let again = matches!(event, Event::Send | Event::Recv) && self.seen.again(&at, p.id);
        if let Some(sink) = &mut self.settings.to {
            let line = Text { names: n, at_ns, event, place: &at, again, packet: p };
            sink.run(|out| writeln!(out, "{line}"));
        }
        self.keep(at_ns, event, at, again, p);
    }

    fn keep(&mut self, at_ns: u64, event: Event, place: Place, again: bool, p: &Packet) {
        if self.settings.keep == 0 {
            return;
        }
        let full = self.kept.len() >= self.settings.keep;
        let mut bytes = match self.kept.pop_front() {
            Some(oldest) if full => oldest.packet.bytes,
            Some(oldest) => {
                self.kept.push_front(oldest);
                Vec::new()
            }
            None => Vec::new(),
        };
        bytes.clear();
        bytes.extend_from_slice(&p.bytes);
        let packet = Packet { bytes, ..*p };
        self.kept.push_back(Line { at_ns, event, place, again, packet });
    }

    /// The last lines, oldest first.
    pub(super) fn last_lines(&self, names: &Names) -> Vec<String> {
        let text = |l: &Line| {
            let (at_ns, event, again) = (l.at_ns, l.event, l.again);
            Text { names, at_ns, event, place: &l.place, again, packet: &l.packet }.to_string()
        };
        self.kept.iter().map(text).collect()
    }

    pub(super) fn flush(&mut self) -> Option<String> {
        self.settings.to.as_mut().and_then(Sink::flush)
    }
}

/// One line.
struct Text<'a> {
    names: &'a Names,
    at_ns: u64,
    event: Event,
    place: &'a Place,
    again: bool,
    packet: &'a Packet,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (us, ns) = (self.at_ns / 1_000, self.at_ns % 1_000);
        write!(f, "{us:>8}.{ns:03} {:<10} ", self.names.place(self.place))?;
        match self.event {
            Event::Send => f.write_str("send")?,
            Event::Recv => f.write_str("recv")?,
            Event::Drop(why) => write!(f, "drop({})", why.name())?,
            Event::Mark => f.write_str("mark")?,
        }
        if self.again {
            f.write_str(" dup")?;
        }
        let p = self.packet;
        let (src, dst) = (self.names.host(p.src), self.names.host(p.dst));
        write!(f, " {src}:{} > {dst}:{}", p.src_addr.port, p.dst_port)?;
        write!(f, " id {} {} B", p.id, p.bytes.len())?;
        if p.ecn == Ecn::Ce {
            f.write_str(" CE")?;
        }
        if p.corrupt {
            f.write_str(" corrupt")?;
        }
        write!(f, " {}", FrameText(&p.bytes))
    }
}

/// Recent datagrams by place. Of fixed size: of two that share a slot, the later one is kept, so
/// that a duplicate can be missed more than about ten thousand events after its original.
#[derive(Default)]
struct Recent(Vec<u64>);

/// 128 KiB, allocated with the first event.
const RECENT: usize = 1 << 14;

impl Recent {
    fn again(&mut self, at: &Place, id: u64) -> bool {
        if self.0.is_empty() {
            self.0 = vec![u64::MAX; RECENT];
        }
        let (kind, number) = super::place_ids(at);
        let mut hash = super::Digest::new();
        hash.mix(kind << 32 | number);
        hash.mix(id);
        let (hash, slot) = (hash.finish(), hash.finish() as usize % RECENT);
        std::mem::replace(&mut self.0[slot], hash) == hash
    }
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recent")
    }
}

#[cfg(test)]
mod tests {
    use courser_proto::wire::Packet as Wire;

    use super::super::LinkId;
    use super::super::decode::made::{datagram, frame_of, request};
    use super::super::sink::tests::Shared;
    use super::*;

    const LINK: Place = Place::Link(LinkId(0));

    fn names() -> Names {
        Names { links: vec!["n0>s0".into()], ..Names::default() }
    }

    /// The lines that a filter passes of four events: a request sent, marked, dropped at a switch;
    /// an acknowledgement received.
    fn traced(filter: TraceFilter) -> Vec<String> {
        let out = Shared::default();
        let to = Some(Sink::new(out.clone()));
        let mut trace = Trace::new(TraceSettings { to, keep: 100, filter });
        let n = names();
        let mut req = datagram(1, frame_of(&[request(8, b"hello")]));
        let mut ack = datagram(2, frame_of(&[Wire::Ack { session: 5, req_num: 7 }]));
        (ack.src, ack.dst) = (HostId(2), HostId(0));
        trace.event(&n, 1_500, Event::Send, LINK, &req);
        req.ecn = Ecn::Ce;
        trace.event(&n, 2_001, Event::Mark, Place::Link(LinkId(3)), &req);
        let dropped = Event::Drop(DropReason::BufferFull);
        trace.event(&n, 1_234_567, dropped, Place::Switch(0), &req);
        trace.event(&n, 2_000_000, Event::Recv, Place::Host(HostId(0)), &ack);
        assert_eq!(trace.flush(), None);
        let lines: Vec<String> = out.text().lines().map(String::from).collect();
        assert_eq!(trace.last_lines(&n), lines, "kept and written lines are the same");
        lines
    }

    #[test]
    fn lines_have_time_place_event_hosts_and_packets() {
        let lines = traced(TraceFilter::default());
        let head = "#7 peer 3 cookie deadbeef";
        let req = format!("{head} | REQ s5 r8 0/1 of 5 B type 1");
        let want = [
            format!("       1.500 n0>s0      send n0:31850 > n1:31851 id 1 49 B {req}"),
            format!("       2.001 link 3     mark n0:31850 > n1:31851 id 1 49 B CE {req}"),
            format!(
                "    1234.567 s0         drop(buffer-full) n0:31850 > n1:31851 id 1 49 B CE {req}"
            ),
            format!(
                "    2000.000 n0         recv n2:31850 > n0:31851 id 2 44 B {head} | ACK s5 r7"
            ),
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn a_filter_passes_events_that_match_all_conditions() {
        let any = TraceFilter::default;
        let left = |filter| -> Vec<char> {
            let initial = |l: String| l[24..].chars().next().unwrap();
            traced(filter).into_iter().map(initial).collect()
        };
        assert_eq!(left(any()), ['s', 'm', 'd', 'r']);
        assert_eq!(left(TraceFilter { hosts: vec![HostId(2)], ..any() }), ['r']);
        assert_eq!(left(TraceFilter { hosts: vec![HostId(1)], ..any() }), ['s', 'm', 'd']);
        assert_eq!(left(TraceFilter { places: vec![LINK, Place::Switch(0)], ..any() }), ['s', 'd']);
        assert_eq!(left(TraceFilter { kinds: vec![Kind::Ack], ..any() }), ['r']);
        assert_eq!(left(TraceFilter { request: Some(8), ..any() }), ['s', 'm', 'd']);
        let ack_8 = TraceFilter { request: Some(8), kinds: vec![Kind::Ack], ..any() };
        assert_eq!(left(ack_8), [' '; 0]);
        let window = TraceFilter { from_ns: 2_001, until_ns: 2_000_000, ..any() };
        assert_eq!(left(window), ['m', 'd']);
    }

    #[test]
    fn a_malformed_frame_is_a_line_and_a_kind() {
        let kinds = vec![Kind::Malformed];
        let filter = TraceFilter { kinds, ..TraceFilter::default() };
        let mut trace = Trace::new(TraceSettings { keep: 4, filter, ..TraceSettings::default() });
        let mut bad = datagram(1, vec![1, 2, 3]);
        bad.corrupt = true;
        trace.event(&names(), 0, Event::Send, LINK, &bad);
        trace.event(&names(), 0, Event::Send, LINK, &datagram(2, frame_of(&[request(1, b"")])));
        let lines = trace.last_lines(&names());
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with("id 1 3 B corrupt malformed frame: truncated header"));
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut trace = Trace::new(TraceSettings { keep: 3, ..TraceSettings::default() });
        for id in 0..10 {
            let bytes = vec![0; 100 - 10 * id as usize];
            trace.event(&names(), id, Event::Send, LINK, &datagram(id, bytes));
        }
        let lines = trace.last_lines(&names());
        let ids: Vec<bool> = (7..10)
            .zip(&lines)
            .map(|(id, l)| l.contains(&format!(" id {id} {} B ", 100 - 10 * id)))
            .collect();
        assert_eq!((lines.len(), ids), (3, vec![true; 3]), "{lines:?}");
    }

    #[test]
    fn a_datagram_repeated_at_a_place_is_a_duplicate() {
        let mut trace = Trace::new(TraceSettings { keep: 9, ..TraceSettings::default() });
        let (a, b) = (datagram(1, vec![]), datagram(2, vec![]));
        let host = Place::Host(HostId(0)); // not the link of the same number
        for (at, p) in [(LINK, &a), (LINK, &b), (host, &a), (LINK, &a), (host, &b)] {
            trace.event(&names(), 0, Event::Send, at, p);
        }
        let dup: Vec<bool> =
            trace.last_lines(&names()).iter().map(|l| l.contains("send dup ")).collect();
        assert_eq!(dup, [false, false, false, true, false]);
    }
}
