//! Tail loss of single-packet messages, which no later packet acknowledges, at no cost per call.

use super::*;

/// Duration of a call that loses a packet: the timer that detects it, twice the smoothed round trip
/// plus the window, and the round trip of its retransmission.
const LATE_NS: u64 = 4 * RTT_NS;

fn small() -> Config {
    Config { inline_max: 512, slots: 8, ..settings(Recovery::Selective) }
}

#[test]
fn a_loss_amid_traffic_is_probed_after_the_next_frame() {
    // The frame after the lost one shows the server, or the client, that one is missing.
    for (from, text) in [(0, "REQ"), (1, "RESP")] {
        let (mut w, s) = warm(small());
        lose(&mut w, from, &[(text, 1)]);
        let start = w.now_ns;
        w.call(0, s, 1, 10);
        w.pump();
        w.now_ns += 100;
        let mut ended = None;
        for id in 2..40u16 {
            w.call(0, s, id, 10);
            w.step();
            w.step();
            if w.nodes[0].done.iter().any(|d| d.id == 1) {
                ended = ended.or(Some(w.now_ns - start));
            }
        }
        w.finish(0, 39);
        let ended = ended.expect("an answer while others are under way");
        assert!(ended <= LATE_NS, "{text}: {ended} ns");
        assert_eq!(efforts(&w), (1, 1, 0), "{text}");
        assert_eq!(w.nodes[1].executed[&1], 1, "{text}");
        let missed = stats(&w, 1 - from);
        assert_eq!((missed.gaps, missed.tx_kinds[GAP]), (1, 1), "{text}");
        assert_eq!(stats(&w, from).rx_kinds[GAP], 1, "{text}");
    }
}

#[test]
fn a_loss_without_later_frames_is_probed_after_a_silence() {
    for (from, text) in [(0, "REQ"), (1, "RESP")] {
        let (mut w, s) = warm(small());
        lose(&mut w, from, &[(text, 1)]);
        let start = w.now_ns;
        w.call(0, s, 1, 10);
        assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(1, 10)));
        let took = w.now_ns - start;
        assert!(took <= LATE_NS, "{text}: {took} ns");
        assert_eq!(efforts(&w), (1, 1, 0), "{text}");
        assert_eq!(w.nodes[1].executed[&1], 1, "{text}");
    }
}

#[test]
fn a_second_loss_doubles_the_probe_interval_before_the_timeout() {
    let took = |times| {
        let (mut w, s) = warm_by(8, small());
        lose(&mut w, 0, &[("REQ", times)]);
        let start = w.now_ns;
        w.call(0, s, 1, 10);
        assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(1, 10)));
        (w.now_ns - start, efforts(&w))
    };
    let (twice, after) = took(2);
    assert!(twice <= 8 * RTT_NS, "{twice} ns");
    assert_eq!(after, (2, 2, 0));
    let (thrice, after) = took(3);
    assert!(thrice > 1_000_000 && thrice < 1_100_000, "{thrice} ns");
    assert_eq!(after, (3, 2, 1));
}

#[test]
fn with_go_back_n_and_melo_small_messages_wait_for_the_timeout() {
    // As in the papers; shows the benefit of the default.
    for recovery in [Recovery::GoBackN, Recovery::Melo] {
        let (mut w, s) = warm(Config { inline_max: 512, ..settings(recovery) });
        lose(&mut w, 0, &[("REQ", 1)]);
        let start = w.now_ns;
        w.call(0, s, 1, 10);
        w.finish(0, 1);
        let took = w.now_ns - start;
        assert!((1_000_000..1_100_000).contains(&took), "{recovery}: {took}");
        assert_eq!(efforts(&w), (1, 0, 1), "{recovery}");
    }
}

#[test]
fn at_a_loss_of_one_in_a_thousand_no_call_waits_for_the_timeout() {
    let (mut w, s) = warm(small());
    w.tracing = false;
    w.link.loss = 1_000;
    let (mut started, mut latest) = (std::collections::BTreeMap::new(), 0);
    let mut next = 0_u16;
    let calls = 20_000;
    for _ in 0..8 {
        w.call(0, s, next, 10);
        started.insert(u64::from(next), w.now_ns);
        next += 1;
    }
    let mut ended = 0;
    while ended < calls {
        assert!(w.step());
        for d in w.take_done(0) {
            assert!(d.result.is_ok());
            latest = latest.max(w.now_ns - started.remove(&d.id).unwrap());
            ended += 1;
            if next < calls {
                w.call(0, s, next, 10);
                started.insert(u64::from(next), w.now_ns);
                next += 1;
            }
        }
    }
    let (again, probes, rollbacks) = efforts(&w);
    assert!(again >= 20, "it is loss that is tested: {again}");
    assert_eq!(rollbacks, 0);
    assert!(probes <= 3 * calls as u64 / 500, "{probes} probes");
    assert!(latest <= 12 * RTT_NS, "{latest} ns");
}

#[test]
fn slow_handlers_are_probed_a_few_times_only() {
    let (mut w, s) = warm(small());
    w.nodes[1].handler = Box::new(|_, _| Action::Defer(100_000, vec![]));
    w.tracing = false;
    for id in 0..1000 {
        w.call(0, s, id, 10);
        w.finish(0, 1);
    }
    let (again, probes, rollbacks) = efforts(&w);
    assert!((1..=12).contains(&probes), "{probes}");
    assert_eq!((again, rollbacks), (probes, 0));
    assert!((0..1000).all(|id| w.nodes[1].executed[&id] == 1));
}

#[test]
fn probe_backoff_decreases_when_packets_are_lost() {
    let (mut w, s) = warm(small());
    w.nodes[1].handler = Box::new(|id, _| match id {
        0..10 => Action::Defer(100_000, vec![]),
        _ => Action::Reply(vec![]),
    });
    for id in 0..10 {
        w.call(0, s, id, 10);
        w.finish(0, 1);
    }
    // The probe backoff from slow handlers delays the detection of a loss, but not permanently.
    lose(&mut w, 0, &[("REQ", 1)]);
    let start = w.now_ns;
    w.call(0, s, 10, 10);
    w.finish(0, 1);
    assert!(w.now_ns - start < 1_000_000, "{}", w.now_ns - start);
    assert_eq!(stats(&w, 0).rollbacks, 0);
}
