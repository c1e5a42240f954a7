//! Report of an observer.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{DropReason, Kind, Names, Place, Series, Times};

/// Drops by place and reason. As large as the topology at most.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Drops(BTreeMap<(Place, DropReason), u64>);

impl Drops {
    pub(super) fn add(&mut self, at: Place, why: DropReason) {
        *self.0.entry((at, why)).or_default() += 1;
    }

    /// Drops at one place for one reason.
    pub fn at(&self, place: Place, why: DropReason) -> u64 {
        self.0.get(&(place, why)).copied().unwrap_or(0)
    }

    /// Drops for one reason.
    pub fn because(&self, why: DropReason) -> u64 {
        self.0.iter().filter(|((_, w), _)| *w == why).map(|(_, n)| n).sum()
    }

    /// All drops.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    fn to_json(&self, names: &Names) -> Value {
        let by_reason = DropReason::ALL.map(|why| (why.name().into(), self.because(why).into()));
        let by_place = self.0.iter().map(|((at, why), packets)| {
            json!({ "place": names.place(at), "reason": why.name(), "packets": packets })
        });
        json!({
            "total": self.total(),
            "by_reason": Map::from_iter(by_reason),
            "by_place": by_place.collect::<Vec<Value>>(),
        })
    }
}

/// All observations until a time.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The time, ns.
    pub now_ns: u64,
    /// Digest of the event log: the same for the same seed and build, on every machine.
    pub digest: u64,
    /// Entries of the event log.
    pub events: u64,
    /// Transmissions of packets, one for each hop.
    pub sent: u64,
    /// Packets that reached an endpoint's receive queue.
    pub delivered: u64,
    /// Their bytes, without headers of Ethernet, IP and UDP.
    pub delivered_bytes: u64,
    /// Marks by switches.
    pub marked: u64,
    /// Drops.
    pub drops: Drops,
    /// Courser packets in the datagrams that were delivered, by [`Kind`]; a datagram without a
    /// valid header counts as one malformed packet.
    pub kinds: [u64; Kind::COUNT],
    /// Largest number of bytes in any output queue.
    pub queue_max_bytes: u64,
    /// Calls: from the call to its response.
    pub latency: Times,
    /// Bytes of their requests and responses.
    pub message_bytes: u64,
    /// Round trips as endpoints measure them.
    pub rtt: Times,
    /// Datagrams, from the NIC's first bit to the endpoint's receive queue.
    pub one_way: Times,
    /// Links and queues over time, if enabled.
    pub series: Option<Series>,
    /// The trace's last lines, oldest first, if enabled.
    pub last_lines: Vec<String>,
    /// Write errors.
    pub errors: Vec<String>,
    /// Names of the places.
    pub names: Names,
}

impl Report {
    /// As one object. Keys name their units; rates are over the whole time, and `null` where that
    /// is zero. Latencies and bytes of calls are `null` unless calls were reported
    /// ([`super::Observer::completed`]). `log_digest` is that of this observer's event log, a
    /// string of 16 hexadecimal digits.
    pub fn to_json(&self) -> Value {
        let mut o = Map::new();
        let per_s = |n: u64, unit: u64| {
            let scaled = u128::from(n) * u128::from(unit) * 1_000_000_000;
            scaled
                .checked_div(self.now_ns.into())
                .map(|rate| u64::try_from(rate).unwrap_or(u64::MAX))
        };
        // An observer has only those calls that were reported to it.
        let told = self.latency.count() > 0;
        let kinds = Kind::ALL.map(|k| (k.name().to_string(), self.kinds[k as usize].into()));
        let fields = [
            ("time_ns", json!(self.now_ns)),
            ("log_digest", json!(format!("{:016x}", self.digest))),
            ("events", json!(self.events)),
            ("hops", json!(self.sent)),
            ("packets_delivered", json!(self.delivered)),
            ("delivered_bytes", json!(self.delivered_bytes)),
            ("delivered_bps", json!(per_s(self.delivered_bytes, 8))),
            ("packets_marked", json!(self.marked)),
            ("queue_max_bytes", json!(self.queue_max_bytes)),
            ("message_bytes", json!(told.then_some(self.message_bytes))),
            ("goodput_bps", json!(told.then(|| per_s(self.message_bytes, 8)))),
            ("rate_rps", json!(told.then(|| per_s(self.latency.count(), 1)))),
            ("kinds", Map::from_iter(kinds).into()),
            ("drops", self.drops.to_json(&self.names)),
        ];
        o.extend(fields.map(|(key, value)| (key.to_string(), value)));
        self.latency.put(&mut o, "latency");
        self.rtt.put(&mut o, "rtt");
        self.one_way.put(&mut o, "one_way");
        if let Some(series) = &self.series {
            o.insert("series".into(), series.to_json(&self.names));
        }
        if !self.last_lines.is_empty() {
            o.insert("last_lines".into(), json!(self.last_lines));
        }
        if !self.errors.is_empty() {
            o.insert("errors".into(), json!(self.errors));
        }
        o.into()
    }
}
