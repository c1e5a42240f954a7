//! Rates, frames, latency and acknowledgements.

use super::*;
use crate::scenario::{Spoilt, assert_refused};

const GBIT: u64 = 1_000_000_000;

fn short(traffic: Traffic, packing: Packing, bytes: u32, batch: u32) -> Settings {
    let in_flight = if traffic == Traffic::Calls { batch } else { 128 };
    let (warm_up_ns, time_ns) = (100_000, 300_000);
    let settings = Settings { traffic, packing, bytes, batch, in_flight, ..Settings::default() };
    Settings { warm_up_ns, time_ns, ..settings }
}

fn seen(settings: &Settings) -> Outcome {
    run(settings).expect("runs")
}

#[test]
fn packed_batches_have_several_times_the_rate_of_single_messages() {
    // At 40 Gbit/s the CPUs are the limit, at 10 the link.
    for (gbps, times) in [(40, 3.7), (10, 2.3)] {
        let rate = |packing, batch| {
            let settings = short(Traffic::Both, packing, 64, batch);
            seen(&Settings { link_bps: gbps * GBIT, ..settings }).operations as f64
        };
        let [off, one] = [rate(Packing::Off, 1), rate(Packing::Copy, 1)];
        assert!((one / off - 1.0).abs() < 0.01, "nothing to pack: {one}, {off}");
        for packing in [Packing::Copy, Packing::Gather] {
            let packed = rate(packing, 32);
            assert!(packed > times * one, "{gbps}, {packing}: {packed}, {one}");
        }
    }
}

#[test]
fn frames_have_a_batch_and_the_link_is_not_exceeded() {
    let settings =
        Settings { link_bps: 10 * GBIT, ..short(Traffic::One, Packing::Gather, 1_024, 32) };
    let first = seen(&settings).first;
    // Eight packets fit.
    assert!(first.messages as f64 / first.frames as f64 > 3.5, "{first:?}");
    let small = seen(&Settings { bytes: 64, ..settings }).first;
    let per_frame = small.messages as f64 / small.frames as f64;
    assert!((15.0..31.5).contains(&per_frame), "the NIC takes 32 pieces: {small:?}");
    let carried = settings.link_bps * settings.time_ns / 8 / GBIT;
    // A frame of the window may begin in it, or end.
    assert!(first.wire_bytes.abs_diff(carried) < 9_100, "{} of {carried}", first.wire_bytes);
}

#[test]
fn large_batches_fill_the_link_when_enough_are_in_flight() {
    let carried = |in_flight| {
        let settings = Settings { in_flight, ..short(Traffic::Both, Packing::Copy, 256, 32) };
        let bits = seen(&settings).first.wire_bytes * 8 * GBIT;
        bits as f64 / settings.time_ns as f64 / settings.link_bps as f64
    };
    let [few, enough] = [128, 512].map(carried);
    assert!(few < 0.85 && enough > 0.95, "{few}, {enough}");
}

#[test]
fn the_latency_of_one_way_is_that_of_nics_cables_and_cpus() {
    let p50 =
        |bytes, batch| seen(&short(Traffic::Calls, Packing::Copy, bytes, batch)).one_way.p50_ns;
    // Two NICs 800 ns; the switch and cables, 174 bytes on the wire twice, and the CPUs of both.
    assert!((900..1_500).contains(&p50(64, 1)), "{}", p50(64, 1));
    let [small, large] = [p50(64, 32), p50(1_500, 32)];
    assert!(p50(64, 1) < small && small < large && large < 13_500, "{small}, {large}");
}

#[test]
fn latency_grows_with_the_size_and_the_number_of_gathered_messages() {
    let of = |bytes, batch| {
        let settings = short(Traffic::Calls, Packing::Gather, bytes, batch);
        seen(&Settings { link_bps: 10 * GBIT, ..settings }).one_way.p99_ns
    };
    let (sizes, batches) = ([64, 512, 1_500], [1, 8, 32]);
    let grows = |all: [u64; 3]| assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
    sizes.into_iter().for_each(|bytes| grows(batches.map(|batch| of(bytes, batch))));
    batches.into_iter().for_each(|batch| grows(sizes.map(|bytes| of(bytes, batch))));
    // No longer than its bits take on the link.
    let wire_ns = super::super::wire_ns(32 * 1_500, 10 * GBIT);
    assert!(of(1_500, 32) < of(1_500, 1) + wire_ns);
}

#[test]
fn messages_that_arrive_together_are_acknowledged_together() {
    let acks = |packing, batch| {
        let Outcome { first, second, .. } = seen(&short(Traffic::One, packing, 64, batch));
        let share = second.wire_bytes as f64 / first.wire_bytes as f64;
        (second.frames as f64, share, first.messages as f64)
    };
    let (frames, share, messages) = acks(Packing::Copy, 32);
    assert!(frames * 30.0 <= messages && share < 0.1, "{frames} of {messages}, {share}");
    let (frames, _, messages) = acks(Packing::Off, 32);
    assert!(frames * 4.0 < messages, "{frames} of {messages}");
    // Alone, each has one.
    let (frames, _, messages) = acks(Packing::Copy, 1);
    assert!(frames <= messages * 1.01, "{frames} of {messages}");
}

#[test]
fn the_same_seed_has_the_same_results() {
    for traffic in [Traffic::Both, Traffic::One, Traffic::Calls] {
        let settings = short(traffic, Packing::Gather, 256, 8);
        let first = seen(&settings);
        assert_eq!(first, seen(&settings));
        let mut other = settings;
        other.hosts.seed += 1;
        assert_ne!(first.digest, seen(&other).digest);
    }
}

#[test]
fn settings_have_limits() {
    let bad: [Spoilt<Settings>; 8] = [
        ("link_bps", |s| s.link_bps = 999_999_999),
        ("bytes", |s| s.bytes = 15),
        ("bytes", |s| s.bytes = 65_537),
        ("batch", |s| s.batch = 0),
        ("batch", |s| s.batch = 257),
        ("in_flight", |s| s.in_flight = s.batch - 1),
        ("sessions", |s| s.sessions = 0),
        ("time_ns", |s| s.time_ns = 0),
    ];
    assert_refused(&bad, Settings::default, run);
}
