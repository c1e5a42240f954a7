//! The shapes: a load with its targets each, and their families.

use super::load::{Load, Source};
use crate::declare::parameter::field::{Named, field_of_name};
use crate::declare::parameter::measure::Name;
use crate::scenario::hosts::Hosts;

/// A load with its targets.
pub(super) struct Shape {
    pub(super) name: &'static str,
    help: &'static str,
    family: &'static str,
    pub(super) load: fn() -> Load,
    pub(super) target: Target,
}

/// The limit of a 99th percentile.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Limit {
    /// Four times the base round trip, or that and the time of 12 packets, whichever is more.
    Base,
    /// Times that without control.
    OfNone(f64),
    /// Times that without the small calls.
    WithoutSmall(f64),
    /// Times that of another shape.
    OfShape(&'static str, f64),
}

/// Targets of a shape; `None`: there is none.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Target {
    /// Round trips of the network.
    pub(super) rtt: Option<Limit>,
    /// Large requests from call to completion.
    pub(super) calls: Option<Limit>,
    /// Small calls from call to completion, ns.
    pub(super) small_ns: Option<f64>,
    /// Packets accepted as a share of those without control, at least.
    pub(super) of_none: f64,
    /// Share of the slowest flow in the mean, at least.
    pub(super) slowest: Option<f64>,
    /// The longest queue of a switch after the first packets, bytes.
    pub(super) queue_bytes: Option<f64>,
    /// The time from the end of the small calls to the last millisecond above the limit.
    pub(super) back_ns: Option<u64>,
}

/// A buffer that some switches have for a port: longer queues would lose packets there.
const SMALL_BUFFER: f64 = 480_000.0;

/// Targets of many senders with any number of endpoints.
const MANY: Target = Target {
    rtt: Some(Limit::Base),
    of_none: 0.95,
    slowest: Some(0.7),
    queue_bytes: Some(SMALL_BUFFER),
    ..GOODPUT
};

/// Senders that come and go, or whose requests differ, are not equal.
const UNEQUAL: Target = Target { slowest: None, ..MANY };

/// No shape has less than 0.9 of the goodput without control.
const GOODPUT: Target = Target {
    rtt: None,
    calls: None,
    small_ns: None,
    of_none: 0.9,
    slowest: None,
    queue_bytes: None,
    back_ns: None,
};

const BUSY: Target = Target { of_none: 0.97, ..GOODPUT };

/// Single packets gain nothing from control.
const SINGLE: Target = Target { calls: Some(Limit::OfNone(1.1)), ..GOODPUT };

macro_rules! shapes {
    ($($family:literal { $($name:literal, $help:literal, $target:expr, { $($field:ident: $value:expr),* };)+ })+) => {
        /// All shapes.
        pub(super) const SHAPES: &[Shape] = &[$($(
            Shape {
                name: $name,
                help: $help,
                family: $family,
                load: || Load { $($field: $value,)* ..Load::default() },
                target: $target,
            },
        )+)+];
    };
}

/// Hosts with frames of this size.
fn frames(max_frame: usize) -> Hosts {
    Hosts { max_frame, ..Load::default().hosts }
}

/// Hosts with this number of credits.
fn credits(credits: u32) -> Hosts {
    Hosts { credits, ..Load::default().hosts }
}

/// The longest request: between two of them a sender is idle for a round trip.
const LONG: usize = 8 << 20;
const GBPS: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const US: u64 = 1_000;

shapes! {
    "endpoints" {
        "e1-n1", "A sender, an endpoint", BUSY, { senders: 1 };
        "e1-n2", "2 senders, an endpoint", MANY, { senders: 2 };
        "e1-n8", "8 senders, an endpoint", MANY, { senders: 8 };
        "e1-n20", "20 senders, an endpoint", MANY, { senders: 20 };
        "e1-n50", "50 senders, an endpoint", MANY, { senders: 50 };
        "e1-n96", "96 senders, an endpoint", MANY, { senders: 96 };
        "e1-n999", "999 senders, an endpoint",
            Target { rtt: Some(Limit::OfShape("e1-n20", 1.3)), slowest: None, ..MANY },
            { senders: 999 };
        "e2-n2", "2 senders, 2 endpoints", MANY, { senders: 2, endpoints: 2 };
        "e2-n20", "20 senders, 2 endpoints", MANY, { senders: 20, endpoints: 2 };
        "e2-n96", "96 senders, 2 endpoints", MANY, { senders: 96, endpoints: 2 };
        "e4-n8", "8 senders, 4 endpoints", MANY, { senders: 8, endpoints: 4 };
        "e4-n20", "20 senders, 4 endpoints", MANY, { senders: 20, endpoints: 4 };
        "e4-n96", "96 senders, 4 endpoints", MANY, { senders: 96, endpoints: 4 };
        "e8-n8", "8 senders, 8 endpoints", MANY, { senders: 8, endpoints: 8 };
        "e8-n20", "20 senders, 8 endpoints", MANY, { senders: 20, endpoints: 8 };
        "e8-n96", "96 senders, 8 endpoints", MANY, { senders: 96, endpoints: 8 };
    }
    "frames" {
        "1072-n2", "2 senders, frames of 1,072 bytes", MANY,
            { senders: 2, hosts: frames(1_072) };
        "1072-n20", "20 senders, frames of 1,072 bytes", MANY, { hosts: frames(1_072) };
        "1072-e4-n96", "96 senders, 4 endpoints, frames of 1,072 bytes", MANY,
            { senders: 96, endpoints: 4, hosts: frames(1_072) };
        "8972-n2", "2 senders, frames of 8,972 bytes", MANY,
            { senders: 2, hosts: frames(8_972) };
        "8972-n20", "20 senders, frames of 8,972 bytes", MANY, { hosts: frames(8_972) };
        "8972-n96", "96 senders, frames of 8,972 bytes", MANY,
            { senders: 96, hosts: frames(8_972) };
        "8972-e4-n96", "96 senders, 4 endpoints, frames of 8,972 bytes", MANY,
            { senders: 96, endpoints: 4, hosts: frames(8_972) };
    }
    "sizes" {
        "1p-n20", "20 senders of a packet", SINGLE, { least_bytes: 1, most_bytes: 1_428 };
        "1p-n100", "100 senders of a packet", SINGLE,
            { senders: 100, least_bytes: 1, most_bytes: 1_428 };
        "1p-n999", "999 senders of a packet", SINGLE,
            { senders: 999, least_bytes: 1, most_bytes: 1_428 };
        "32b-n999", "999 senders of 32 bytes", SINGLE,
            { senders: 999, least_bytes: 1, most_bytes: 32 };
        "32b-cpu", "999 senders of 32 bytes, a receiver that takes 160 ns for a packet", SINGLE,
            { senders: 999, least_bytes: 1, most_bytes: 32, packet_ns: 160 };
        "32b-cpu-l10", "100 senders of 10 requests of 32 bytes, and such a receiver", SINGLE,
            { senders: 100, lanes: 10, least_bytes: 1, most_bytes: 32, packet_ns: 160 };
        "4p-n96", "96 senders of 4 packets", MANY,
            { senders: 96, least_bytes: 5_712, most_bytes: 5_712 };
        "16k-n96", "96 senders of 16 KiB", MANY,
            { senders: 96, least_bytes: 16 << 10, most_bytes: 16 << 10 };
        "64k-n20", "20 senders of 64 KiB", MANY, { least_bytes: 64 << 10, most_bytes: 64 << 10 };
        "64k-e4-n96", "96 senders of 64 KiB, 4 endpoints", MANY,
            { senders: 96, endpoints: 4, least_bytes: 64 << 10, most_bytes: 64 << 10 };
        "8m-n20", "20 senders of 8 MiB", MANY, { least_bytes: LONG, most_bytes: LONG };
        "mixed-n20", "20 senders of a packet to 8 MiB", UNEQUAL,
            { least_bytes: 1, most_bytes: 8 << 20 };
        "mixed-e4-n96", "96 senders of a packet to 8 MiB, 4 endpoints", UNEQUAL,
            { senders: 96, endpoints: 4, least_bytes: 1, most_bytes: 8 << 20 };
    }
    "starts" {
        "same-n96", "96 senders that start at the same time", MANY, { senders: 96, starts_ns: 0 };
        "churn-n20", "20 senders that rest half of the time", UNEQUAL, { churn_ns: 5 * MS };
        "churn-e4-n96", "96 senders that rest half of the time, 4 endpoints", UNEQUAL,
            { senders: 96, endpoints: 4, churn_ns: 5 * MS };
    }
    "calls" {
        "small", "320 small calls beside 20 senders",
            Target { rtt: Some(Limit::WithoutSmall(2.0)), ..UNEQUAL }, { small: 320 };
        "small-e4", "320 small calls beside 20 senders, 4 endpoints",
            Target { rtt: Some(Limit::WithoutSmall(2.0)), ..UNEQUAL }, { small: 320, endpoints: 4 };
        "small-ends", "320 small calls that end beside 20 senders",
            Target { rtt: None, back_ns: Some(5 * MS), ..MANY }, { small: 320, small_ends: true };
        "to-100", "A sender to 100 receivers, with a small call",
            Target { small_ns: Some(30e3), of_none: 0.95, slowest: Some(0.8), ..GOODPUT },
            { senders: 1, receivers: 100, small: 1, small_from: Source::Senders };
    }
    "jitter" {
        "j5-n1", "5 us of jitter, a sender", GOODPUT,
            { least_bytes: LONG, most_bytes: LONG, senders: 1, jitter_ns: 5 * US, hosts: credits(256) };
        "j5-n20", "5 us of jitter, 20 senders", GOODPUT, { jitter_ns: 5 * US };
        "j20-n1", "20 us of jitter, a sender", GOODPUT,
            { least_bytes: LONG, most_bytes: LONG, senders: 1, jitter_ns: 20 * US, hosts: credits(256) };
        "j20-n2", "20 us of jitter, 2 senders", GOODPUT,
            { least_bytes: LONG, most_bytes: LONG, senders: 2, jitter_ns: 20 * US, hosts: credits(256) };
        "j20-n20", "20 us of jitter, 20 senders", GOODPUT, { jitter_ns: 20 * US };
        "j20-n100", "20 us of jitter, 100 senders", GOODPUT, { senders: 100, jitter_ns: 20 * US };
        "j20-e4-n96", "20 us of jitter, 96 senders, 4 endpoints", GOODPUT,
            { senders: 96, endpoints: 4, jitter_ns: 20 * US };
        "j50-n1", "50 us of jitter, a sender", GOODPUT,
            { least_bytes: LONG, most_bytes: LONG, senders: 1, jitter_ns: 50 * US, hosts: credits(512) };
        "j50-n20", "50 us of jitter, 20 senders", GOODPUT, { jitter_ns: 50 * US };
        "j20-10g-n1", "20 us of jitter, a sender, 10 Gbit/s", GOODPUT,
            { least_bytes: LONG, most_bytes: LONG, senders: 1, jitter_ns: 20 * US, rate_bps: 10 * GBPS, hosts: credits(256) };
        "j20-100g-n1", "20 us of jitter, a sender, 100 Gbit/s", GOODPUT,
            { least_bytes: LONG, most_bytes: LONG, senders: 1, jitter_ns: 20 * US, rate_bps: 100 * GBPS, hosts: credits(1_024) };
        "j20-100g-n20", "20 us of jitter, 20 senders, 100 Gbit/s", GOODPUT,
            { jitter_ns: 20 * US, rate_bps: 100 * GBPS, hosts: credits(64) };
        "j20-far-n1", "20 us of jitter, a sender, a base round trip of 100 us", GOODPUT,
            { least_bytes: LONG, most_bytes: LONG, senders: 1, jitter_ns: 20 * US, delay_ns: 24 * US, hosts: credits(1_024) };
        "j20-far-n20", "20 us of jitter, 20 senders, a base round trip of 100 us", GOODPUT,
            { jitter_ns: 20 * US, delay_ns: 24 * US, hosts: credits(64) };
        "pause-n1", "Pauses of 1 ms, a sender", GOODPUT,
            { least_bytes: LONG, most_bytes: LONG, senders: 1, pause_every_ns: 10 * MS, hosts: credits(256) };
        "pause-n20", "Pauses of 1 ms, 20 senders", GOODPUT, { pause_every_ns: 10 * MS };
    }
    "hosts" {
        "cpu", "20 senders, a receiver that takes 650 ns for a packet", BUSY, { packet_ns: 650 };
        "cpu-n2", "2 senders, a receiver that takes 650 ns for a packet", BUSY,
            { senders: 2, packet_ns: 650 };
        "handler", "20 senders, a handler of 50 us on the endpoint's thread", BUSY,
            { handler_ns: 50 * US };
        "4x10g", "4 senders at 10 Gbit/s, a receiver at 25 Gbit/s", MANY,
            { senders: 4, sender_rate_bps: 10 * GBPS };
        "10g-n20", "20 senders, 10 Gbit/s", MANY, { rate_bps: 10 * GBPS };
        "100g-n20", "20 senders, 100 Gbit/s", MANY,
            { rate_bps: 100 * GBPS, hosts: credits(64) };
        "100g-e4-n96", "96 senders, 4 endpoints, 100 Gbit/s", MANY,
            { senders: 96, endpoints: 4, rate_bps: 100 * GBPS };
    }
    "paths" {
        "uplink-2", "2 senders to a receiver each, over an uplink of 25 Gbit/s",
            // Shares within 1.2 : 1.
            Target { slowest: Some(2.0 / 2.2), ..MANY },
            {
                senders: 2, pairs: true, uplink_bps: 25 * GBPS,
                least_bytes: LONG, most_bytes: LONG
            };
        "uplink-8", "8 senders to a receiver each, over an uplink of 25 Gbit/s", MANY,
            { senders: 8, pairs: true, uplink_bps: 25 * GBPS };
        "ecmp-8", "8 senders to a receiver each, over 4 paths, one of them slow", GOODPUT,
            {
                senders: 8, pairs: true, uplink_bps: 50 * GBPS, paths: 4,
                slow_path_bps: 10 * GBPS
            };
        "ecmp-n20", "20 senders, over 2 paths, one of them slow", GOODPUT,
            { uplink_bps: 25 * GBPS, paths: 2, slow_path_bps: 5 * GBPS };
    }
    "buffers" {
        "480k-n96", "96 senders, 480 kB of buffer for a port", MANY,
            { senders: 96, buffer_bytes: 480_000 };
        "480k-e4-n96", "96 senders, 4 endpoints, 480 kB of buffer for a port", MANY,
            { senders: 96, endpoints: 4, buffer_bytes: 480_000 };
        "120k-n20", "20 senders, 120 kB of buffer for a port", MANY, { buffer_bytes: 120_000 };
        "120k-e4-n96", "96 senders, 4 endpoints, 120 kB of buffer for a port", MANY,
            { senders: 96, endpoints: 4, buffer_bytes: 120_000 };
        "2m-e4-n96", "96 senders, 4 endpoints, 2 MB of buffer for all ports", MANY,
            { senders: 96, endpoints: 4, shared_bytes: 2_000_000 };
    }
}

/// The names of shapes that each stand for others.
const MAIN: &str = "e1-n1 e1-n2 e1-n20 e1-n96 e4-n20 e4-n96 e8-n96 1072-n20 8972-n20 1p-n999 32b-cpu mixed-n20 \
    small small-ends to-100 j20-n1 j20-n2 j20-n20 cpu handler 4x10g uplink-2";

/// The names of those of a short comparison.
const SHORT: &str = "e1-n2 e1-n20 e1-n96 e2-n20 e4-n96 e8-n96 8972-n20 1p-n100 small small-ends to-100 \
    j20-n1 j20-n20 cpu handler 4x10g uplink-2 480k-e4-n96";

/// The names of those that are recorded: each family, at little cost.
const GATE: &str = "e1-n2 e1-n20 e8-n96 8972-n20 1p-n100 mixed-n20 churn-n20 small-ends to-100 j20-n20 \
    pause-n20 cpu 4x10g uplink-2 ecmp-8 480k-e4-n96 2m-e4-n96";

/// Names for several shapes.
const GROUPS: &[Name] = &[
    Name { name: "main", help: "A choice of all" },
    Name { name: "short", help: "A choice for short comparisons" },
    Name { name: "gate", help: "A choice of each family, which is recorded" },
    Name { name: "all", help: "All" },
    Name { name: "endpoints", help: "Numbers of senders and of endpoints" },
    Name { name: "frames", help: "Sizes of frames" },
    Name { name: "sizes", help: "Sizes of requests" },
    Name { name: "starts", help: "Senders that start together, or rest" },
    Name { name: "calls", help: "Small calls beside large requests" },
    Name { name: "jitter", help: "Jitter and pauses of hosts" },
    Name { name: "hosts", help: "Slow receivers, slow senders, rates" },
    Name { name: "paths", help: "Uplinks" },
    Name { name: "buffers", help: "Buffers of switches" },
];

/// A shape or several, by their name.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pick(usize);

const PICKS: usize = GROUPS.len() + SHAPES.len();

const fn names() -> [Name; PICKS] {
    let mut all = [GROUPS[0]; PICKS];
    let mut at = 0;
    while at < PICKS {
        all[at] = if at < GROUPS.len() {
            GROUPS[at]
        } else {
            let shape = &SHAPES[at - GROUPS.len()];
            Name { name: shape.name, help: shape.help }
        };
        at += 1;
    }
    all
}

const fn picks() -> [Pick; PICKS] {
    let mut all = [Pick(0); PICKS];
    let mut at = 0;
    while at < PICKS {
        all[at] = Pick(at);
        at += 1;
    }
    all
}

impl Named for Pick {
    const NAMES: &'static [Name] = &names();
    const VALUES: &'static [Self] = &picks();
}
field_of_name!(Pick);

impl Pick {
    /// The pick with a name.
    pub fn of(name: &str) -> Option<Pick> {
        Pick::NAMES.iter().position(|n| n.name == name).map(Pick)
    }

    fn has(self, shape: &Shape) -> bool {
        let is_in = |names: &str| names.split_whitespace().any(|name| name == shape.name);
        match self.named() {
            "all" => true,
            "main" => is_in(MAIN),
            "short" => is_in(SHORT),
            "gate" => is_in(GATE),
            name => shape.family == name || shape.name == name,
        }
    }
}

/// The shapes that are picked, in the order of the list of all.
pub(super) fn picked(picks: &[Pick]) -> Vec<&'static Shape> {
    SHAPES.iter().filter(|shape| picks.iter().any(|pick| pick.has(shape))).collect()
}

/// The shape with a name.
pub(super) fn of_name(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_groups_have_shapes() {
        let names: Vec<&str> = Pick::NAMES.iter().map(|n| n.name).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name} twice");
        }
        for group in GROUPS {
            let pick = Pick::of(group.name).expect("it is one");
            assert!(!picked(&[pick]).is_empty(), "{}", group.name);
        }
        assert!(SHAPES.iter().all(|s| GROUPS.iter().any(|group| group.name == s.family)));
        for (group, names) in [("main", MAIN), ("short", SHORT)] {
            assert!(names.split_whitespace().all(|name| of_name(name).is_some()), "{names}");
            let picks: Vec<Pick> = Pick::of(group).into_iter().collect();
            assert_eq!(picked(&picks).len(), names.split_whitespace().count());
        }
    }

    #[test]
    fn shapes_that_are_compared_exist_and_loads_are_in_range() {
        for shape in SHAPES {
            if let Some(Limit::OfShape(other, _)) = shape.target.rtt {
                assert!(of_name(other).is_some(), "{other}");
            }
            crate::declare::parameter::check(&(shape.load)()).expect(shape.name);
        }
    }
}
