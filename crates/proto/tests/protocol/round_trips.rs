//! Any round trip from 100 ns to 100 ms works with the default settings: a slow network is not
//! mistaken for loss, and a fast one causes no needless waiting.

use courser_proto::Config;

use super::support::{Action, Link, World, pattern};

const TRIPS_NS: [u64; 7] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// A pair at a distance, and a session whose handshake took one round trip too.
fn pair(rtt_ns: u64, loss: u32, cfg: Config) -> (World, courser_proto::SessionId) {
    let mut w = World::pair(cfg);
    w.link = Link { latency_ns: rtt_ns / 2, loss, ..Link::default() };
    w.nodes[1].handler = Box::new(|kind, req| match kind {
        1_000.. => Action::ReplyMsg(pattern(kind.into(), 60_000)),
        _ => Action::Reply(req.to_vec()),
    });
    let s = w.connect(0, 1);
    w.ep(0).expect_round_trip(s, rtt_ns);
    (w, s)
}

/// Sequential small calls, with large ones in between. Returns the number of lost frames.
fn work(w: &mut World, s: courser_proto::SessionId, calls: u16) -> u64 {
    for id in 0..calls {
        w.call(0, s, id, 32);
        if id % 20 == 0 {
            w.call(0, s, 1_000 + id, 60_000);
        }
        for done in w.finish(0, 1 + usize::from(id % 20 == 0)) {
            let result = done.result.expect("a call that fails");
            let len = if done.id < 1_000 { 32 } else { 60_000 };
            assert!(result == pattern(done.id, len));
        }
    }
    assert!(w.nodes[1].executed.values().all(|&n| n == 1), "executed twice");
    w.settle_until_idle_link();
    let stats = |w: &mut World, i| (w.ep(i).stats().tx_frames, w.ep(i).stats().rx_frames);
    let ((t0, r0), (t1, r1)) = (stats(w, 0), stats(w, 1));
    t0 + t1 - r0 - r1
}

#[test]
fn without_loss_no_loss_is_suspected() {
    for rtt_ns in TRIPS_NS {
        let (mut w, s) = pair(rtt_ns, 0, Config::default());
        assert_eq!(work(&mut w, s, 100), 0);
        let stats = w.ep(0).session_stats(s).unwrap();
        assert_eq!((stats.rollbacks, stats.retransmitted), (0, 0), "at {rtt_ns} ns");
        let smoothed = stats.srtt_ns.unwrap();
        assert!(smoothed.abs_diff(rtt_ns) <= rtt_ns / 10, "{smoothed} for {rtt_ns} ns");
        // A small call takes a round trip, a large one a few: no other waiting.
        assert!(w.now_ns <= 1_000 + rtt_ns * (100 + 5 * 20), "{} at {rtt_ns} ns", w.now_ns);
    }
}

#[test]
fn loss_costs_timeouts_that_fit_the_round_trip() {
    for rtt_ns in TRIPS_NS {
        let (mut w, s) = pair(rtt_ns, 10_000, Config::default());
        let lost = work(&mut w, s, 500);
        assert!(lost > 10, "{lost} lost at {rtt_ns} ns");
        let floor_ns = Config::default().rto_min_ns;
        let timeout_ns = floor_ns.max(4 * rtt_ns);
        let limit_ns = rtt_ns * (500 + 25 * 20) + lost * 2 * timeout_ns;
        assert!(w.now_ns < limit_ns, "{} of {limit_ns} ns at {rtt_ns} ns", w.now_ns);
    }
}

#[test]
fn the_smallest_timeout_may_be_a_few_of_the_shortest_round_trips() {
    let cfg = Config { rto_min_ns: 400, rto_initial_ns: 1_000, ..Config::default() };
    let (mut w, s) = pair(100, 10_000, cfg);
    let lost = work(&mut w, s, 500);
    assert!(lost > 10, "{lost}");
    assert!(w.now_ns < 100 * (500 + 25 * 20) + lost * 2_000, "{} ns", w.now_ns);
}

#[test]
fn an_unexpected_first_round_trip_costs_only_duplicates() {
    let mut w = World::pair(Config::default());
    w.link.latency_ns = 50_000_000;
    let s = w.connect(0, 1);
    w.call(0, s, 1, 32);
    assert!(w.finish(0, 1)[0].result.is_ok());
    assert_eq!(w.now_ns, 1_000 + 100_000_000);
    let asked = |w: &mut World| w.ep(0).stats().probes + w.ep(0).stats().rollbacks;
    assert_eq!(asked(&mut w), 2, "at 20 and 60 ms");
    // From the first sample on, the timeout fits.
    w.call(0, s, 2, 60_000);
    assert!(w.finish(0, 1)[0].result.is_ok());
    assert_eq!(asked(&mut w), 2);
}

#[test]
fn the_estimate_applies_until_the_first_sample_and_within_the_limits() {
    let cfg = Config::default();
    let at = |foreseen_ns: u64, real_ns: u64| {
        let mut w = World::pair(cfg.clone());
        w.link.latency_ns = real_ns / 2;
        let s = w.connect(0, 1);
        w.ep(0).expect_round_trip(s, foreseen_ns);
        w.filter = Some(Box::new({
            let mut sent = 0;
            move |from, _| {
                sent += u32::from(from == 0);
                from != 0 || sent > 1 // the first frame is lost
            }
        }));
        w.call(0, s, 1, 32);
        w.finish(0, 1);
        let recovered = w.now_ns - 1_000 - real_ns;
        w.ep(0).expect_round_trip(s, 1 << 40); // measured: the estimate is ignored
        (recovered, w.ep(0).session_stats(s).unwrap().rto_ns.unwrap())
    };
    assert_eq!(at(0, 1_000), (cfg.rto_initial_ns, cfg.rto_min_ns));
    assert_eq!(at(50_000_000, 50_000_000).0, 100_000_000);
    assert_eq!(at(u64::MAX, 1_000).0, cfg.rto_max_ns);
}
