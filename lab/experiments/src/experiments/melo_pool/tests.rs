use super::*;

fn small() -> MeloPool {
    MeloPool { time_ns: 3_000_000, ..MeloPool::default() }
}

/// M34: 100 Gbit/s times 200 us are more packets than the paper's pool has bits.
#[test]
fn a_fast_link_exhausts_the_papers_pool_and_not_the_derived_one() {
    let settings = MeloPool { rate_bps: 100_000_000_000, bits: vec![1_024, 0], ..small() };
    assert_eq!(settings.net(1).bdp_packets(), 2_205);
    let points = run(&settings).expect("runs");
    let [fixed, derived] = &points[..] else { panic!("{points:?}") };
    assert!(fixed.bits_peak == 1_024 && fixed.refused_fraction > 0.0, "{fixed:?}");
    assert!(derived.bits_peak > 1_024 && derived.refused_fraction == 0.0, "{derived:?}");
    assert!(derived.goodput_bps > fixed.goodput_bps, "{derived:?} against {fixed:?}");
}

/// M31.
#[test]
fn pauses_exhaust_the_pool_of_the_idle_network() {
    let settings = MeloPool {
        senders: vec![1, 8],
        rtt_ns: 16_000,
        window_permille: 4_000,
        pfc: true,
        bits: vec![1_024, 0],
        covers_ns: 500_000,
        time_ns: 4_000_000,
        ..MeloPool::default()
    };
    let points = run(&settings).expect("runs");
    let [alone, paused, _, derived] = &points[..] else { panic!("{points:?}") };
    assert_eq!((alone.paused_fraction, alone.refused_fraction), (0.0, 0.0), "{alone:?}");
    assert!(paused.paused_fraction > 0.1 && paused.refused_fraction > 0.0, "{paused:?}");
    assert!(derived.paused_fraction > 0.5 && derived.refused_fraction == 0.0, "{derived:?}");
    assert!(derived.bits_peak > 1_024, "{derived:?}");
    assert!(
        points.iter().all(|o| o.losses.overflows == 0),
        "nothing is dropped but by loss: {points:?}"
    );
}

/// M35.
#[test]
fn larger_blocks_take_more_bits_and_fewer_pointers() {
    let settings = MeloPool {
        connections: vec![20],
        loss_ppm: 20_000,
        bits: vec![64_512],
        block_bytes: vec![1, 16],
        ..small()
    };
    let points = run(&settings).expect("runs");
    let [byte, large] = &points[..] else { panic!("{points:?}") };
    assert!(large.bits_peak > byte.bits_peak, "{points:?}");
    assert!(large.middle_fraction < byte.middle_fraction, "{points:?}");
    let blocks = |o: &PoolRun| u64::from(o.bits_peak / 8 / o.block_bytes);
    assert_eq!(byte.memory_peak_bytes, blocks(byte) * 3);
    assert_eq!(large.memory_peak_bytes, blocks(large) * 18);
}

/// M17 and M32.
#[test]
fn few_resident_connections_are_swapped_and_lose_nothing() {
    let settings = MeloPool { connections: vec![20], resident: vec![2, 19, 0], ..small() };
    let points = run(&settings).expect("runs");
    let [few, most, all] = &points[..] else { panic!("{points:?}") };
    assert_eq!(
        (all.swaps.swaps_per_packet, all.swaps.pcie_bps, all.swaps.stall_fraction),
        (0.0, 0, 0.0)
    );
    assert!(few.swaps.swaps_per_packet > most.swaps.swaps_per_packet, "{points:?}");
    assert!(few.bits_peak < all.bits_peak, "swapped out states hold no bits: {points:?}");
    // A swap takes no time here, so that all else is the same to the last bit.
    assert_eq!((few.digest, few.goodput_bps), (all.digest, all.goodput_bps));
    let stall = few.swaps.swaps_per_packet * few.goodput_bps as f64 / 8.0 / DATA as f64 * 1e-6;
    assert!((few.swaps.stall_fraction / stall - 1.0).abs() < 1e-3, "a microsecond each: {few:?}");
}

#[test]
fn blocks_are_powers_of_two_and_round_trips_contain_the_hosts() {
    let bad: [crate::scenario::Spoilt<MeloPool>; 3] = [
        ("block_bytes", |s| s.block_bytes = vec![3]),
        ("rtt_ns", |s| s.rtt_ns = 1),
        ("credits", |s| (s.rtt_ns, s.window_permille) = (10_000_000, 100_000)),
    ];
    crate::scenario::assert_refused(&bad, small, run);
}
