//! Selective retransmission: `Recovery::Selective` and `Recovery::Melo`, packet by packet where
//! this is predictable, by their counters elsewhere.
//!
//! A frame takes 1 us each way, so a round trip is 2 us, and the reordering window without late
//! packets half a microsecond. The retransmission timeout is at least 1 ms: a test that ends within
//! some microseconds has not waited for it.

use courser_proto::{Config, EndpointStats, Packing, Recovery, SessionId};

use crate::support::link::describe;
use crate::support::{Action, DPP, World, config, pattern};

/// A round trip.
const RTT_NS: u64 = 2_000;
/// Kinds of packets, in the order of [`EndpointStats::tx_kinds`].
const NACK: usize = 6;
const GAP: usize = 7;

fn settings(recovery: Recovery) -> Config {
    Config {
        recovery,
        credits: 8,
        inline_max: 0,
        packing: Packing::Off,
        rto_min_ns: 1_000_000,
        rto_initial_ns: 1_000_000,
        rto_max_ns: 20_000_000,
        ..config()
    }
}

/// Two endpoints with round-trip samples and free slots.
fn warm(cfg: Config) -> (World, SessionId) {
    warm_by(4, cfg)
}

/// Number of single calls made by [`warm`], of which every other one gives a round-trip sample:
/// `Config::timestamp_interval_ns`.
fn warm_by(calls: usize, cfg: Config) -> (World, SessionId) {
    let mut w = World::pair(cfg);
    let s = w.connect(0, 1);
    for _ in 0..calls {
        w.call(0, s, 9_999, 10);
        assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(9_999, 10)));
    }
    w.tracing = true;
    (w, s)
}

/// Loses the frames with the first packets of node `from` that match a text, the given number of
/// each. Each packet's text ends with a line break, so that a number can be matched as a whole.
fn lose(w: &mut World, from: usize, what: &[(&str, u32)]) {
    let mut what: Vec<_> = what.iter().map(|&(text, times)| (text.to_owned(), times)).collect();
    w.filter = Some(Box::new(move |sender, bytes| {
        let said: Vec<_> = describe(sender, bytes).iter().map(|p| p.text.clone() + "\n").collect();
        let hit = what.iter_mut().find(|(text, times)| {
            sender == from && *times > 0 && said.iter().any(|s| s.contains(text.as_str()))
        });
        hit.is_none_or(|(_, times)| {
            *times -= 1;
            false
        })
    }));
}

/// A call with a request of `packets` packets and a response of one; returns its duration.
fn upload(w: &mut World, s: SessionId, packets: usize) -> u64 {
    w.nodes[1].handler = Box::new(move |id, req| {
        assert!(req == pattern(id.into(), packets * DPP), "the request arrived changed");
        Action::Reply(vec![7])
    });
    let start = w.now_ns;
    w.call(0, s, 1, packets * DPP);
    assert_eq!(w.finish(0, 1)[0].result, Ok(vec![7]));
    w.now_ns - start
}

/// A call with a response of `packets` packets; returns its duration.
fn download(w: &mut World, s: SessionId, packets: usize) -> u64 {
    let response = pattern(77, packets * DPP);
    let answer = response.clone();
    w.nodes[1].handler = Box::new(move |_, _| Action::Reply(answer.clone()));
    let start = w.now_ns;
    w.call(0, s, 1, 4);
    assert!(w.finish(0, 1)[0].result == Ok(response), "the response arrived changed");
    w.now_ns - start
}

fn stats(w: &World, node: usize) -> &EndpointStats {
    w.nodes[node].ep.stats()
}

/// The client's (retransmissions, probes, rollbacks).
fn efforts(w: &World) -> (u64, u64, u64) {
    let s = stats(w, 0);
    (s.retransmitted, s.probes, s.rollbacks)
}

/// The packets whose texts start like this.
fn said(w: &World, text: &str) -> Vec<String> {
    w.story().into_iter().filter(|line| line.starts_with(text)).collect()
}

/// [`upload`] or [`download`].
type Run = fn(&mut World, SessionId, usize) -> u64;

fn time_without_loss(cfg: Config, run: Run, n: usize) -> u64 {
    let (mut w, s) = warm(cfg);
    run(&mut w, s, n)
}

mod go_back;
mod hostile;
mod mixed;
mod small;

// ---- requests ---------------------------------------------------------------------------------

#[test]
fn only_the_lost_packet_of_a_request_is_retransmitted() {
    let (mut w, s) = warm(Config { credits: 4, ..settings(Recovery::Selective) });
    let n = 8 * DPP;
    lose(&mut w, 0, &[(&format!("#1/{n}"), 1)]);
    let took = upload(&mut w, s, 8);
    // Packets 2 and 3 were sent with 1, and reveal nothing; 4 was sent a round trip later.
    let req = |index| format!("0: REQ 32#{index}/{n}");
    let want = [
        req(0),
        req(1),
        req(2),
        req(3),
        "1: CR 32+1".into(),
        "1: GAP".into(),
        "1: NACK 32+1<3 1+1".into(),
        "1: NACK 32+1<4 1+1".into(),
        req(4),
        req(5),
        req(6),
        "1: NACK 32+1<5 1+1".into(),
        "1: NACK 32+1<6 1+1".into(),
        "1: NACK 32+1<7 1+1".into(),
        req(1),
        req(7),
        "1: CR 32+7".into(),
        "1: RESP 32#0/1".into(),
    ];
    assert_eq!(w.story(), want);
    assert_eq!(efforts(&w), (1, 0, 0));
    assert!(took <= 5 * RTT_NS, "{took}");
}

#[test]
fn melo_retransmits_a_packet_as_soon_as_its_hole_is_reported() {
    let (mut w, s) = warm(Config { credits: 4, ..settings(Recovery::Melo) });
    let n = 8 * DPP;
    lose(&mut w, 0, &[(&format!("#1/{n}"), 1)]);
    let took = upload(&mut w, s, 8);
    let req = |index| format!("0: REQ 32#{index}/{n}");
    let want = [
        req(0),
        req(1),
        req(2),
        req(3),
        "1: CR 32+1".into(),
        "1: NACK 32+1<3 1+1".into(),
        "1: NACK 32+1<4 1+1".into(),
        req(4),
        req(1),
        req(5),
        req(6),
        "1: NACK 32+1<5 1+1".into(),
        "1: CR 32+5".into(),
        "1: CR 32+6".into(),
        "1: CR 32+7".into(),
        req(7),
        "1: RESP 32#0/1".into(),
    ];
    assert_eq!(w.story(), want);
    assert_eq!(efforts(&w), (1, 0, 0));
    assert!(took <= 4 * RTT_NS, "{took}");
}

#[test]
fn a_lost_packet_costs_a_long_message_next_to_nothing() {
    for recovery in [Recovery::Selective, Recovery::Melo] {
        for (from, run) in [upload as Run, download].into_iter().enumerate() {
            let plain = time_without_loss(settings(recovery), run, 200);
            let (mut w, s) = warm(settings(recovery));
            let n = 200 * DPP;
            lose(&mut w, from, &[(&format!("#90/{n}"), 1)]);
            let took = run(&mut w, s, 200);
            assert_eq!(efforts(&w), (1, 0, 0), "{recovery} {from}");
            assert!(took <= plain + 2 * RTT_NS, "{recovery}: {took} ns, without loss {plain}");
        }
    }
}

#[test]
fn the_last_packet_of_a_request_is_probed() {
    let (mut w, s) = warm(settings(Recovery::Selective));
    let n = 20 * DPP;
    lose(&mut w, 0, &[(&format!("#19/{n}"), 1)]);
    let plain = time_without_loss(settings(Recovery::Selective), upload, 20);
    let took = upload(&mut w, s, 20);
    assert_eq!(efforts(&w), (1, 1, 0));
    assert!(took <= plain + 4 * RTT_NS, "{took} ns, without loss {plain}");
    assert_eq!(w.nodes[1].executed[&1], 1);
}

#[test]
fn all_packets_of_a_window_lost_cost_one_probe_and_no_timeout() {
    let (mut w, s) = warm(settings(Recovery::Selective));
    let n = 8 * DPP;
    let lost: Vec<_> = (0..8).map(|i| format!("#{i}/{n}")).collect();
    let lost: Vec<_> = lost.iter().map(|text| (text.as_str(), 1)).collect();
    lose(&mut w, 0, &lost);
    let took = upload(&mut w, s, 8);
    assert_eq!(efforts(&w), (8, 1, 0), "the probe, and then what it has shown");
    assert!(took <= 7 * RTT_NS, "{took}");
}

#[test]
fn a_lost_retransmission_is_detected_without_a_timeout() {
    // Many packets may follow it: each shows that it is lost again.
    let cfg = Config { reorder_span: 16, ..settings(Recovery::Selective) };
    let plain = time_without_loss(cfg.clone(), upload, 100);
    let (mut w, s) = warm(cfg);
    let n = 100 * DPP;
    lose(&mut w, 0, &[(&format!("#10/{n}"), 5)]);
    let took = upload(&mut w, s, 100);
    assert_eq!(efforts(&w), (5, 0, 0));
    assert_eq!(stats(&w, 0).lost, 5);
    assert!(took <= plain + 2 * RTT_NS, "{took} ns, without loss {plain}");
}

#[test]
fn the_first_packet_may_come_last_and_its_deadline_counts() {
    // ADR 15: packet 0 carries the remaining time.
    for recovery in [Recovery::Selective, Recovery::Melo] {
        let (mut w, s) = warm(settings(recovery));
        let n = 6 * DPP;
        lose(&mut w, 0, &[(&format!("#0/{n}"), 1)]);
        w.call_within(0, s, 1, n, 50_000_000);
        let deadline = w.nodes[0].deadlines[&1];
        assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(1, n)));
        let (_, _, told) = w.nodes[1].started.last().copied().unwrap();
        let told = told.expect("a deadline");
        assert!(told <= deadline && told + 1_000_000 > deadline, "{recovery}: {told} {deadline}");
        let (again, _, rollbacks) = efforts(&w);
        assert!(again <= 2 && rollbacks == 0, "{recovery}: {:?}", efforts(&w));
    }
}

#[test]
fn a_request_that_expires_before_its_first_packet_arrives_is_not_executed() {
    for recovery in [Recovery::Selective, Recovery::Melo] {
        let (mut w, s) = warm(settings(recovery));
        let n = 6 * DPP;
        lose(&mut w, 0, &[(&format!("#0/{n}"), 1000)]);
        w.call_within(0, s, 1, n, 300_000);
        let done = w.finish(0, 1);
        assert!(done[0].result.is_err(), "{recovery}");
        w.filter = None;
        w.run_until(w.now_ns + 30_000_000);
        assert!(!w.nodes[1].executed.contains_key(&1), "{recovery}");
    }
}

#[test]
fn credit_returns_are_cumulative() {
    let (mut w, s) = warm(settings(Recovery::Selective));
    // All but the last of each round trip.
    let lost: Vec<_> = (1..40).filter(|i| i % 8 != 0).map(|i| format!("+{i}\n")).collect();
    let lost: Vec<_> = lost.iter().map(|text| (text.as_str(), 1000)).collect();
    lose(&mut w, 1, &lost);
    upload(&mut w, s, 41);
    assert_eq!(efforts(&w), (0, 0, 0));
}

#[test]
fn without_credit_returns_one_packet_is_probed() {
    let (mut w, s) = warm(settings(Recovery::Selective));
    let lost: Vec<_> = (1..=8).map(|i| format!("+{i}\n")).collect();
    let lost: Vec<_> = lost.iter().map(|text| (text.as_str(), 1)).collect();
    lose(&mut w, 1, &lost);
    let took = upload(&mut w, s, 20);
    let (again, probes, rollbacks) = efforts(&w);
    assert_eq!((again, probes, rollbacks), (1, 1, 0));
    assert!(took <= 9 * RTT_NS, "{took}");
    assert_eq!(w.nodes[1].executed[&1], 1);
}

// ---- responses --------------------------------------------------------------------------------

#[test]
fn each_run_of_missing_response_packets_is_requested_once() {
    let (mut w, s) = warm(settings(Recovery::Selective));
    let n = 60 * DPP;
    let lost: Vec<_> = [20, 21, 22, 40].iter().map(|i| format!("#{i}/{n}")).collect();
    let lost: Vec<_> = lost.iter().map(|text| (text.as_str(), 1)).collect();
    lose(&mut w, 1, &lost);
    download(&mut w, s, 60);
    assert_eq!(efforts(&w), (2, 0, 0));
    let asked = said(&w, "0: RFR");
    assert!(asked.iter().any(|r| r.ends_with("#20x3")), "{asked:?}");
    assert_eq!(asked.iter().filter(|r| r.ends_with("#40x1")).count(), 2, "{asked:?}");
    // Each packet was sent once, and the four lost ones twice.
    assert_eq!(said(&w, "1: RESP").len(), 64);
}

#[test]
fn a_lost_request_for_response_is_detected() {
    let plain = time_without_loss(settings(Recovery::Selective), download, 60);
    for (text, probes) in [("#1x", 1), ("#30x", 0), ("#59x", 1)] {
        let (mut w, s) = warm(settings(Recovery::Selective));
        lose(&mut w, 0, &[(text, 1)]);
        let took = download(&mut w, s, 60);
        let (again, probed, rollbacks) = efforts(&w);
        assert_eq!((probed, rollbacks), (probes, 0), "{text}");
        assert!(again <= 2, "{text}: {again}");
        assert!(took <= plain + 6 * RTT_NS, "{text}: {took} ns, without loss {plain}");
    }
}

#[test]
fn the_first_and_the_last_packet_of_a_response_are_probed() {
    let plain = time_without_loss(settings(Recovery::Selective), download, 30);
    let n = 30 * DPP;
    for index in [0, 29] {
        let (mut w, s) = warm(settings(Recovery::Selective));
        lose(&mut w, 1, &[(&format!("#{index}/{n}"), 1)]);
        let took = download(&mut w, s, 30);
        assert_eq!(efforts(&w), (1, 1, 0), "packet {index}");
        assert!(took <= plain + 5 * RTT_NS, "packet {index}: {took} ns, without loss {plain}");
        assert_eq!(w.nodes[1].executed[&1], 1);
    }
}

// ---- reordering -------------------------------------------------------------------------------

/// Delays a packet of a request until `late_ns` after it was sent.
fn hold_back(w: &mut World, s: SessionId, text: String, late_ns: u64) {
    let kept = std::rc::Rc::new(std::cell::RefCell::new(None));
    let keeps = kept.clone();
    w.filter = Some(Box::new(move |from, bytes| {
        let hit = from == 0 && describe(from, bytes).iter().any(|p| p.text.contains(&text));
        if !hit || keeps.borrow().is_some() {
            return true;
        }
        *keeps.borrow_mut() = Some(bytes.to_vec());
        false
    }));
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![7]));
    w.call(0, s, 1, 60 * DPP);
    w.pump();
    while kept.borrow().is_none() {
        assert!(w.step());
    }
    let frame = kept.borrow().clone().unwrap();
    w.arrive_at(0, 1, frame, w.now_ns + late_ns);
    assert_eq!(w.finish(0, 1)[0].result, Ok(vec![7]));
}

#[test]
fn a_packet_late_by_less_than_the_window_is_not_retransmitted() {
    let (mut w, s) = warm(settings(Recovery::Selective));
    // Packets that were sent a round trip later arrive after 3 us.
    hold_back(&mut w, s, format!("#10/{}", 60 * DPP), 2_900);
    assert_eq!(efforts(&w), (0, 0, 0));
    assert!(stats(&w, 1).tx_kinds[NACK] > 0);
}

#[test]
fn the_window_grows_with_late_packets() {
    // It arrives half a microsecond too soon to acknowledge the retransmission.
    let (mut w, s) = warm(settings(Recovery::Selective));
    let mut again = Vec::new();
    for _ in 0..6 {
        hold_back(&mut w, s, format!("#10/{}", 60 * DPP), 4_500);
        w.filter = None;
        w.settle_until_idle_link();
        again.push(efforts(&w).0);
    }
    // Half a microsecond, then 1.25, then 3.125: longer than a round trip.
    assert_eq!(again, [1, 2, 2, 2, 2, 2], "then it is waited for");
    assert_eq!((stats(&w, 0).spurious, stats(&w, 0).rollbacks), (2, 0));
}

#[test]
fn the_window_adapts_to_a_reordering_path() {
    // 5 % of all frames are late by up to three round trips.
    let mut cfg = settings(Recovery::Selective);
    cfg.credits = 32;
    let (mut w, s) = warm(cfg);
    w.tracing = false;
    (w.link.reorder, w.link.late_ns) = (50_000, 3 * RTT_NS);
    (0..20).for_each(|_| _ = upload(&mut w, s, 200));
    let before = stats(&w, 0).clone();
    (0..50).for_each(|_| _ = upload(&mut w, s, 200));
    let after = stats(&w, 0);
    let (sent, again) =
        (after.tx_kinds[0] - before.tx_kinds[0], after.retransmitted - before.retransmitted);
    assert!(sent >= 10_000 && again * 1_000 <= sent, "{again} of {sent} were sent twice");
    assert_eq!(after.rollbacks, 0);
}

// ---- without loss -----------------------------------------------------------------------------

#[test]
fn without_loss_all_schemes_send_the_same_packets() {
    let run = |recovery| {
        let (mut w, s) = warm(settings(recovery));
        w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
        for round in 0..10u16 {
            for (i, len) in [0, 10, DPP, DPP + 1, 3 * DPP, 40 * DPP].into_iter().enumerate() {
                w.call(0, s, 10 * round + i as u16, len);
            }
            let done = w.finish(0, 6);
            assert!(done.iter().all(|d| d.result.is_ok()));
        }
        for node in 0..2 {
            let t = stats(&w, node);
            assert_eq!((t.tx_kinds[NACK], t.tx_kinds[GAP]), (0, 0), "{recovery}");
            assert_eq!((t.retransmitted, t.probes, t.rollbacks), (0, 0, 0), "{recovery}");
            assert_eq!((t.lost, t.spurious, t.gaps), (0, 0, 0), "{recovery}");
        }
        w.story()
    };
    let plain = run(Recovery::GoBackN);
    assert!(run(Recovery::Selective) == plain, "the same packets in the same order");
    assert!(run(Recovery::Melo) == plain, "the same packets in the same order");
    assert!(run(Recovery::GoBackNNack) == plain, "the same packets in the same order");
}
