//! The tap that passes each event to its recorders.

use std::cell::RefCell;
use std::rc::Rc;

use super::decode::{Kind, frame};
use super::pcapng::Capture;
use super::report::Report;
use super::trace::Trace;
use super::{
    CaptureSettings, DropReason, Entry, Event, EventLog, LinkId, Names, Place, Series,
    SeriesSettings, Sink, Tap, TraceSettings, place_ids,
};
use crate::{HostId, Packet};

/// Optional recordings. The default is none.
#[derive(Debug, Default)]
pub struct Settings {
    /// A readable trace.
    pub trace: Option<TraceSettings>,
    /// Captures for Wireshark.
    pub captures: Vec<CaptureSettings>,
    /// Counters of links and queues over time.
    pub series: Option<SeriesSettings>,
    /// The text of the event log, for comparing two runs line by line.
    pub log: Option<Sink>,
}

/// Observes a simulation.
///
/// It is the fabric's and the world's [`Tap`]; where both need it, they share it in an
/// `Rc<RefCell<Observer>>`, which is a tap too. The world adds what packets do not show with
/// [`Observer::completed`], [`Observer::round_trip`] and [`Observer::note`].
#[derive(Debug)]
pub struct Observer {
    names: Names,
    log: EventLog,
    trace: Option<Trace>,
    captures: Vec<Capture>,
    seen: Report,
}

impl Observer {
    /// An observer of the hosts and links of these names.
    pub fn new(settings: Settings, names: Names) -> Self {
        let seen = Report { series: settings.series.map(Series::new), ..Report::default() };
        Observer {
            names,
            log: EventLog::new(settings.log),
            trace: settings.trace.map(Trace::new),
            captures: settings.captures.into_iter().map(Capture::new).collect(),
            seen,
        }
    }

    /// A call of `host` has ended with a response, `latency_ns` after it was made; its request and
    /// response have `bytes` in total.
    pub fn completed(&mut self, now_ns: u64, host: HostId, latency_ns: u64, bytes: u64) {
        self.log.record(now_ns, Entry::Completed, &[host.0.into(), latency_ns, bytes], &[]);
        self.seen.latency.record(latency_ns);
        self.seen.message_bytes += bytes;
    }

    /// An endpoint has measured a round trip. Not part of the digest: it follows from the packets.
    pub fn round_trip(&mut self, rtt_ns: u64) {
        self.seen.rtt.record(rtt_ns);
    }

    /// An event of the world itself, for the digest and the log: a fault, a restart, an outcome.
    /// `ids` are the world's own numbers, `text` its description.
    pub fn note(&mut self, now_ns: u64, ids: &[u64], text: &str) {
        self.log.record(now_ns, Entry::World, ids, text.as_bytes());
    }

    /// Its names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The digest of all events so far.
    pub fn digest(&self) -> u64 {
        self.log.digest()
    }

    /// The last lines of the trace, oldest first; none without [`TraceSettings::keep`].
    pub fn last_lines(&self) -> Vec<String> {
        self.trace.as_ref().map_or_else(Vec::new, |t| t.last_lines(&self.names))
    }

    /// The observations until `now_ns`. Files are flushed.
    pub fn into_report(mut self, now_ns: u64) -> Report {
        self.seen.now_ns = now_ns;
        self.seen.digest = self.log.digest();
        self.seen.events = self.log.entries();
        self.seen.last_lines = self.last_lines();
        let named = |what: &str| {
            let what = what.to_string();
            move |error: String| format!("{what}: {error}")
        };
        let log = self.log.flush().map(named("event log"));
        let trace = self.trace.as_mut().and_then(Trace::flush).map(named("trace"));
        let captures = self.captures.iter_mut().filter_map(Capture::flush).map(named("capture"));
        self.seen.errors = log.into_iter().chain(trace).chain(captures).collect();
        self.seen.names = self.names;
        self.seen
    }

    fn traced(&mut self, now_ns: u64, event: Event, at: Place, p: &Packet) {
        if let Some(trace) = &mut self.trace {
            trace.event(&self.names, now_ns, event, at, p);
        }
    }

    fn count_kinds(&mut self, bytes: &[u8]) {
        match frame(bytes) {
            Err(_) => self.seen.kinds[Kind::Malformed as usize] += 1,
            Ok((_, packets)) => {
                packets.for_each(|p| self.seen.kinds[Kind::of(&p) as usize] += 1);
            }
        }
    }
}

impl Tap for Observer {
    fn sent(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.log.record(now_ns, Entry::Sent, &[link.0.into(), packet.id], &[]);
        self.seen.sent += 1;
        if let Some(series) = &mut self.seen.series {
            series.sent(now_ns, link, packet);
        }
        self.captures.iter_mut().for_each(|c| c.sent(&self.names, now_ns, link, packet));
        self.traced(now_ns, Event::Send, Place::Link(link), packet);
    }

    fn dropped(&mut self, now_ns: u64, at: &Place, why: DropReason, packet: &Packet) {
        let (sort, number) = place_ids(at);
        let ids = [sort, number, why as u64, packet.id];
        self.log.record(now_ns, Entry::Dropped, &ids, &packet.bytes);
        self.seen.drops.add(*at, why);
        if let (Some(series), Place::Link(link)) = (&mut self.seen.series, *at) {
            series.dropped(now_ns, link);
        }
        self.captures.iter_mut().for_each(|c| c.dropped(&self.names, now_ns, at, why, packet));
        self.traced(now_ns, Event::Drop(why), *at, packet);
    }

    fn delivered(&mut self, now_ns: u64, host: HostId, packet: &Packet) {
        self.log.record(now_ns, Entry::Delivered, &[host.0.into(), packet.id], &packet.bytes);
        self.seen.delivered += 1;
        self.seen.delivered_bytes += packet.bytes.len() as u64;
        self.seen.one_way.record(now_ns.saturating_sub(packet.sent_ns));
        self.count_kinds(&packet.bytes);
        self.traced(now_ns, Event::Recv, Place::Host(host), packet);
    }

    fn queue(&mut self, now_ns: u64, link: LinkId, bytes: u64) {
        self.seen.queue_max_bytes = self.seen.queue_max_bytes.max(bytes);
        if let Some(series) = &mut self.seen.series {
            series.queue(now_ns, link, bytes);
        }
    }

    fn marked(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.log.record(now_ns, Entry::Marked, &[link.0.into(), packet.id], &[]);
        self.seen.marked += 1;
        if let Some(series) = &mut self.seen.series {
            series.marked(now_ns, link);
        }
        self.captures.iter_mut().for_each(|c| c.marked(link, packet));
        self.traced(now_ns, Event::Mark, Place::Link(link), packet);
    }
}

/// A tap shared on one thread: its owner keeps one reference, the fabric another.
impl<T: Tap> Tap for Rc<RefCell<T>> {
    fn sent(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.borrow_mut().sent(now_ns, link, packet);
    }

    fn dropped(&mut self, now_ns: u64, at: &Place, why: DropReason, packet: &Packet) {
        self.borrow_mut().dropped(now_ns, at, why, packet);
    }

    fn delivered(&mut self, now_ns: u64, host: HostId, packet: &Packet) {
        self.borrow_mut().delivered(now_ns, host, packet);
    }

    fn queue(&mut self, now_ns: u64, link: LinkId, bytes: u64) {
        self.borrow_mut().queue(now_ns, link, bytes);
    }

    fn marked(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.borrow_mut().marked(now_ns, link, packet);
    }
}

#[cfg(test)]
mod tests;
