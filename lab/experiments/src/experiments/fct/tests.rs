use super::*;

fn small() -> WebSearch {
    WebSearch {
        schemes: vec![Recovery::GoBackN],
        load_ppm: vec![300_000],
        hosts: 20,
        flows: 30,
        lanes: 4,
        ..WebSearch::default()
    }
}

#[test]
fn a_lossy_spine_costs_go_back_n_time_and_the_seed_decides_all() {
    let clean = WebSearch { loss_ppm: 0, ..small() };
    let run = |settings: &WebSearch| run(settings).expect("runs").pop().expect("a point");
    let (clean, lossy) = (run(&clean), run(&small()));
    assert_eq!((clean.flows, clean.lost, lossy.flows), (30, 0, 30));
    assert!(lossy.lost > 0 && lossy.timeouts > 0, "{lossy:?}");
    assert!(lossy.fct_mean_ns > clean.fct_mean_ns, "{lossy:?} against {clean:?}");
    assert!(clean.fct_p50_ns > RTT_NS && clean.fct_p50_ns <= clean.fct_p99_ns, "{clean:?}");
    assert_eq!(run(&small()), lossy);
    assert_ne!(run(&WebSearch { seed: 2, ..small() }).digest, lossy.digest);
}

#[test]
fn each_control_has_the_same_flows() {
    let controls = vec![Control::None, Control::Dcqcn];
    let points = run(&WebSearch { controls, ..small() }).expect("runs");
    let [free, controlled] = &points[..] else { panic!("{points:?}") };
    assert_eq!((free.control, controlled.control), (Control::None, Control::Dcqcn));
    assert_eq!((free.flows, free.load), (controlled.flows, controlled.load));
    assert!(free.lost > 0 && controlled.lost > 0, "{points:?}");
}

#[test]
fn the_flows_of_a_load_use_that_share_of_the_links() {
    let settings = WebSearch { flows: 50_000, ..WebSearch::default() };
    let flows = flows(&settings, 500_000);
    let bytes: u64 = flows.iter().map(|f| f.bytes).sum();
    let wire = bytes as f64 * wire_bytes(DATA) as f64 / DATA as f64;
    let time_s = flows.last().expect("flows").at_ns as f64 / 1e9;
    let load = wire * 8.0 / time_s / (RATE_BPS as f64 * 20.0);
    assert!((0.48..0.52).contains(&load), "{load}");
    assert!(flows.is_sorted_by_key(|f| f.at_ns) && flows.iter().all(|f| f.sender < 20));
}

#[test]
fn the_scaled_network_matches_the_papers() {
    let t = WebSearch { hosts: 320, ..WebSearch::default() }.topology();
    assert_eq!(t, Topology::melo());
    assert_eq!(small().topology().switches().len(), 2 + 4);
    assert_eq!(WebSearch::default().credits(), 71);
}

/// Chance that the 99th percentile of `flows` flows, as [`summary`] takes it, is above that of all flows.
fn above(flows: u32) -> f64 {
    // It is above if at least this number of flows is longer than 99 % of all.
    let longer = flows - (flows * 99).div_ceil(100) + 1;
    let (p, n) = (0.01_f64, f64::from(flows));
    let mut chance = (1.0 - p).powf(n); // of none
    let mut fewer = 0.0;
    for k in 0..longer {
        fewer += chance;
        chance *= (n - f64::from(k)) / f64::from(k + 1) * p / (1.0 - p);
    }
    1.0 - fewer
}

/// M24: the range of five seeds contains the 99th percentile of all flows unless all five are above it,
/// or below. This holds if flows are independent.
#[test]
fn the_range_of_five_seeds_contains_the_percentile_with_94_percent() {
    let contains = |flows| 1.0 - above(flows).powi(5) - (1.0 - above(flows)).powi(5);
    for flows in [69, recorded::STEADY_FLOWS] {
        assert!((contains(flows) - 0.9375).abs() < 1e-3, "{flows}: {}", contains(flows));
    }
    assert!((1..69).all(|flows| above(flows) < 0.5), "no smaller number");
    assert!(contains(300) < 0.89, "of experiment M24");
}
