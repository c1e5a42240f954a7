use serde_json::Value;

use super::*;
use crate::declare::parameter;
use courser_sim::fabric::{DCQCN_MARKING, Marking};

/// A few milliseconds.
fn small() -> Loss {
    Loss {
        schemes: vec![Recovery::GoBackN],
        loss_ppm: vec![0, 1_000],
        warm_up_ns: Some(1_000_000),
        time_ns: 5_000_000,
        request_bytes: 4 << 20,
        ..Loss::default()
    }
}

#[test]
fn without_loss_the_line_is_full_and_with_it_go_back_n_stops() {
    let settings = small();
    assert_eq!((settings.bdp_packets(), settings.credits()), (71, 213));
    let points = run(&settings).expect("runs");
    let [clean, lossy] = &points[..] else { panic!("{points:?}") };
    let line_bps = settings.line_goodput_bps();
    let full = clean.goodput_bps as f64 / line_bps as f64;
    assert!((0.97..=1.0).contains(&full), "{full}: a round trip each 4 MiB is missing");
    assert_eq!((clean.lost, clean.timeouts, clean.duplicates), (0, 0, 0), "{clean:?}");
    assert_eq!((clean.goodput_fraction, lossy.paper_fraction), (1.0, Some(0.456)));
    assert!((0.2..0.8).contains(&lossy.goodput_fraction), "{lossy:?}");
    assert!(lossy.lost > 0 && lossy.timeouts > 0 && lossy.retransmitted > 0, "{lossy:?}");
}

#[test]
fn a_nack_costs_a_round_trip_of_packets_and_no_timeout() {
    // A share of 1 / (1 + p n) remains with n packets in flight and in the NIC.
    for (window_permille, shares) in [(1_000, 0.90..0.96), (3_000, 0.76..0.90)] {
        let schemes = vec![Recovery::GoBackNNack];
        let settings = Loss { schemes, window_permille, time_ns: 20_000_000, ..small() };
        let points = run(&settings).expect("runs");
        let [clean, lossy] = &points[..] else { panic!("{points:?}") };
        assert_eq!((clean.lost, clean.retransmitted), (0, 0), "{clean:?}");
        assert!(shares.contains(&lossy.goodput_fraction), "{lossy:?}");
        assert!(lossy.lost > 50 && lossy.timeouts <= lossy.lost / 20, "{lossy:?}");
        assert_eq!(lossy.paper_fraction, Some(0.456));
    }
}

/// M21: figure 1 of the paper, with messages of 4 MiB.
#[test]
fn go_back_0_falls_past_one_in_ten_thousand_and_ends_at_one_in_a_thousand() {
    let settings = Loss {
        schemes: vec![Recovery::GoBackZero, Recovery::GoBackNNack],
        loss_ppm: vec![100, 1_000],
        window_permille: 1_000,
        time_ns: 30_000_000,
        ..small()
    };
    let shares: Vec<f64> =
        run(&settings).expect("runs").iter().map(|o| o.goodput_fraction).collect();
    let [slight, heavy, nack_slight, nack_heavy] = shares[..] else { panic!("{shares:?}") };
    // A message has 4,096 packets: 81 and 7 % of the goodput are expected.
    assert!((0.6..0.95).contains(&slight) && heavy < 0.2, "{shares:?}");
    assert!(nack_slight > 0.97 && nack_heavy > 0.85, "{shares:?}");
}

/// A run that ends before a message does shows nothing.
#[test]
fn each_seed_of_the_short_run_of_a_nic_completes_messages() {
    let recorded: Value =
        serde_json::from_str(include_str!("../../../recorded/M21.json")).expect("JSON");
    let points = recorded["short"]["points"].as_array().expect("points");
    assert!(points.len() >= 4, "{points:?}");
    assert!(points.iter().all(|p| p["min"].as_f64() > Some(0.0)), "{points:?}");
}

#[test]
fn switches_mark_under_congestion_control_only() {
    let marking = |control| {
        let case = Case { control, ..small().cases()[0] };
        let config = config(&small(), &case);
        assert_eq!(config.nexus.control, control);
        config.topology.switches()[0].marking
    };
    assert_eq!(marking(Control::None), Marking::Off);
    assert_eq!(marking(Control::Dcqcn), DCQCN_MARKING);
}

#[test]
fn one_flow_is_the_same_under_dcqcn_and_without_control() {
    let controls = vec![Control::None, Control::Dcqcn];
    let settings = Loss { controls, loss_ppm: vec![1_000], ..small() };
    let points = run(&settings).expect("runs");
    let [free, controlled] = &points[..] else { panic!("{points:?}") };
    assert_eq!((free.control, controlled.control), (Control::None, Control::Dcqcn));
    assert_eq!(free.goodput_bps, controlled.goodput_bps, "it fills no queue in the switch");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let digest = |seed| {
        let settings = Loss { seed, loss_ppm: vec![10_000], ..small() };
        run(&settings).expect("runs").pop().expect("a point").digest
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn a_recovery_time_is_measured_against_the_longest_without_loss() {
    // Shorter than a round trip: packets in flight are considered lost.
    let settings = Loss { loss_ppm: vec![0], rto_ns: vec![5_000, 250_000], ..small() };
    let points = run(&settings).expect("runs");
    let [short, long] = &points[..] else { panic!("{points:?}") };
    assert_eq!((short.rto_ns, long.goodput_fraction), (Some(5_000), 1.0));
    assert!(short.goodput_fraction < 1.0 && short.timeouts > 0, "{short:?}");
}

#[test]
fn late_packets_are_overtaken_and_counted() {
    let reorder = vec![Reorder { ppm: 50_000, max_ns: 48_000 }];
    let settings = Loss { reorder, loss_ppm: vec![0], ..small() };
    let points = run(&settings).expect("runs");
    let [late] = &points[..] else { panic!("{points:?}") };
    assert_eq!((late.lost, late.reorder, late.reorder_max_ns), (0, 0.05, 48_000));
    assert!(late.goodput_fraction < 0.5, "go-back-N drops packets that arrive early: {late:?}");
}

#[test]
fn the_round_trip_is_that_of_the_settings() {
    // One credit: a packet each round trip.
    let settings = Loss { loss_ppm: vec![0], window_permille: 100, rtt_ns: 16_000, ..small() };
    let one = Loss { window_permille: 100, ..settings };
    assert_eq!(one.credits(), 8);
    let points = run(&one).expect("runs");
    let expected = 8.0 * 1_024.0 * 8.0 / 16e-6;
    let seen = points[0].goodput_bps as f64 / expected;
    assert!((0.99..1.01).contains(&seen), "{seen}");
}

#[test]
fn a_sweep_of_recovery_times_is_of_melo_by_default_and_reordering_without_loss() {
    use crate::declare::Declaration;
    let of = |line: &str| {
        let arguments = EXPERIMENT.command().get_matches_from(line.split(' '));
        let mut s = parameter::of_arguments::<Loss>(&arguments).pop().expect("one");
        adjust(&mut s, &arguments);
        s
    };
    assert_eq!(of("loss"), Loss::default());
    let s = of("loss --rto-sweep");
    assert_eq!((s.schemes, s.loss_ppm), (vec![Recovery::Melo], vec![10_000]));
    assert_eq!(s.rto_ns, SWEEP);
    let s = of("loss --rto-sweep=1ms,2ms --scheme go-back-n --loss 1e-3 --window 2");
    assert_eq!((s.schemes, s.loss_ppm), (vec![Recovery::GoBackN], vec![1_000]));
    assert_eq!((s.rto_ns, s.window_permille), (vec![1_000_000, 2_000_000], 2_000));
    let s = of("loss --reorder 5%:48us,0.1%:1us");
    let expected = [(50_000, 48_000), (1_000, 1_000)].map(|(ppm, max_ns)| Reorder { ppm, max_ns });
    assert_eq!((&s.reorder[..], s.loss_ppm), (&expected[..], vec![0]));
}
