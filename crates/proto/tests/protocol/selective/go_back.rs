//! Go-back-N on a NACK, `Recovery::GoBackNNack`, and go-back-0, `Recovery::GoBackZero`.

use std::cell::RefCell;
use std::rc::Rc;

use courser_proto::Recovery::{GoBackN, GoBackNNack, GoBackZero, Selective};

use super::*;

/// Within this time no timeout has expired.
const SOON_NS: u64 = 500_000;

#[test]
fn a_gap_in_a_request_has_the_client_go_back_once() {
    let (mut w, s) = warm(settings(GoBackNNack));
    let n = 8 * DPP;
    lose(&mut w, 0, &[(&format!("#2/{n}"), 1)]);
    let took = upload(&mut w, s, 8);
    let req = |index| format!("0: REQ 32#{index}/{n}");
    let requests: Vec<_> = [0, 1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6, 7].map(req).into();
    assert_eq!(said(&w, "0: REQ"), requests);
    assert_eq!(said(&w, "1: NACK"), ["1: NACK 32+2<4 2+1"], "of five packets behind the gap");
    assert_eq!(efforts(&w), (6, 0, 0));
    assert_eq!(stats(&w, 0).lost, 1);
    assert!(took <= 4 * RTT_NS, "{took}");
}

#[test]
fn a_gap_in_a_response_has_the_client_go_back_once() {
    let (mut w, s) = warm(settings(GoBackNNack));
    lose(&mut w, 1, &[(&format!("#3/{}", 20 * DPP), 1)]);
    let took = download(&mut w, s, 20);
    assert!(said(&w, "1: NACK").is_empty(), "the client sees the gap itself");
    let (again, probes, rollbacks) = efforts(&w);
    assert!((1..=8).contains(&again) && (probes, rollbacks) == (0, 0), "{:?}", efforts(&w));
    assert_eq!(stats(&w, 0).lost, 1);
    assert!(took < SOON_NS, "{took}");
}

#[test]
fn the_first_packet_of_a_request_may_be_the_lost_one() {
    let (mut w, s) = warm(settings(GoBackNNack));
    lose(&mut w, 0, &[(&format!("#0/{}", 8 * DPP), 1)]);
    let took = upload(&mut w, s, 8);
    assert_eq!(said(&w, "1: NACK"), ["1: NACK 32+0<2 0+1"]);
    assert_eq!(efforts(&w), (8, 0, 0));
    assert!(took < SOON_NS, "{took}");
}

#[test]
fn each_gap_has_its_nack() {
    let (mut w, s) = warm(settings(GoBackNNack));
    // Packets 4 and 18 are lost behind a gap, and would be dropped in any case.
    let lost = [1, 4, 15, 18, 30].map(|index| format!("#{index}/{}\n", 40 * DPP));
    lose(&mut w, 0, &lost.each_ref().map(|text| (text.as_str(), 1)));
    let took = upload(&mut w, s, 40);
    let nacks = ["1: NACK 32+1<3 1+1", "1: NACK 32+15<17 15+1", "1: NACK 32+30<32 30+1"];
    assert_eq!((said(&w, "1: NACK"), efforts(&w).2), (nacks.map(String::from).to_vec(), 0));
    assert!(took < SOON_NS, "{took}");
}

#[test]
fn a_retransmission_that_is_lost_waits_for_the_timeout() {
    for (from, run) in [(0, upload as Run), (1, download as Run)] {
        let (mut w, s) = warm(settings(GoBackNNack));
        lose(&mut w, from, &[(&format!("#2/{}\n", 12 * DPP), 2)]);
        let took = run(&mut w, s, 12);
        assert_eq!(efforts(&w).2, 1, "one timeout");
        assert!(took > 1_000_000, "{took}");
        assert!(said(&w, "1: NACK").len() <= 1, "one for the gap, whatever happens to its answer");
    }
}

#[test]
fn a_lost_nack_waits_for_the_timeout() {
    let (mut w, s) = warm(settings(GoBackNNack));
    let mut nacks = 1;
    let n = 12 * DPP;
    let mut packets = 1;
    w.filter = Some(Box::new(move |sender, bytes| {
        let said: Vec<_> = describe(sender, bytes).into_iter().map(|p| p.text + "\n").collect();
        let has = |text: &str| said.iter().any(|s| s.contains(text));
        let lost =
            (sender == 1 && nacks > 0 && has("NACK"), packets > 0 && has(&format!("#2/{n}\n")));
        (nacks, packets) = (nacks - u32::from(lost.0), packets - u32::from(lost.1));
        !(lost.0 || lost.1)
    }));
    let took = upload(&mut w, s, 12);
    assert_eq!(efforts(&w).2, 1);
    assert!(took > 1_000_000, "{took}");
}

#[test]
fn without_the_nack_the_same_loss_waits_for_the_timeout() {
    for (from, run) in [(0, upload as Run), (1, download as Run)] {
        let took = |recovery| {
            let (mut w, s) = warm(settings(recovery));
            lose(&mut w, from, &[(&format!("#2/{}\n", 12 * DPP), 1)]);
            run(&mut w, s, 12)
        };
        assert!(took(GoBackNNack) < SOON_NS);
        assert!(took(GoBackN) > 1_000_000);
    }
}

#[test]
fn forged_nacks_cause_one_return_to_each_packet() {
    let (mut w, mut f) = hostile::half_way(GoBackNNack, 40);
    let before = w.nodes[0].ep.stats().tx_packets;
    // The client has sent packets 0 to 7.
    for _ in 0..100 {
        for missing in 0..7 {
            let bytes = hostile::nack(&mut f, 0, (0, missing + 2, &[(missing, 1)]));
            w.inject(1, 0, &bytes); // checks the endpoint
            w.pump();
        }
    }
    let sent = w.nodes[0].ep.stats().tx_packets - before;
    assert!(sent <= 8 + 7 + 6 + 5 + 4 + 3 + 2, "{sent} packets for 700 lies");
    // The session is intact.
    w.filter = None;
    w.settle_until_idle_link();
    assert!(w.finish(0, 1)[0].result.is_ok());
}

#[test]
fn forged_nacks_for_other_packets_are_dropped() {
    use courser_proto::RxDrop;
    let (mut w, mut f) = hostile::half_way(GoBackNNack, 40);
    // Beyond what was sent; without a missing packet; for a whole request.
    for said in [(0, 9, &[(2, 3)][..]), (0, 4, &[]), (8, 41, &[(4, 3)]), (40, 42, &[(0, 1)])] {
        let bytes = hostile::nack(&mut f, 0, said);
        crate::support::forge::expect_drop(&mut w, 0, &bytes, RxDrop::Inconsistent);
    }
    // Rolled back, and not sent again since.
    w.inject(1, 0, &hostile::nack(&mut f, 0, (3, 5, &[(0, 1)])));
    let late = hostile::nack(&mut f, 0, (0, 3, &[(1, 1)]));
    crate::support::forge::expect_drop(&mut w, 0, &late, RxDrop::Duplicate);
}

#[test]
fn a_flood_of_early_packets_is_answered_once() {
    let mut w = World::pair(settings(GoBackNNack));
    let (_, f) = w.connect_forge(0, 1);
    w.filter = Some(Box::new(|_, _| false));
    let size = (100 * DPP) as u32;
    for round in 0..50 {
        for index in 2..100 {
            w.inject(0, 1, &f.request(0, size, index, &[1; DPP]));
        }
        w.inject(0, 1, &f.request(0, size, 0, &[1; DPP]));
        let nacks = stats(&w, 1).tx_kinds[NACK];
        assert_eq!(nacks, 1 + u64::from(round > 0), "for packet 0, then for packet 1");
        assert!(w.nodes[1].executed.is_empty());
    }
}

#[test]
fn calls_end_under_heavy_loss() {
    for seed in 0..8 {
        let cfg = Config { datapath_timeout_ns: 2_000_000_000, ..settings(GoBackNNack) };
        let other = Config { recovery: Selective, ..cfg.clone() };
        let mut w = World::new(&[cfg, other], seed);
        let all = [(0, w.connect(0, 1)), (1, w.connect(1, 0))];
        assert_eq!(mixed::agreed(&w, 0, all[0].1), GoBackNNack);
        assert_eq!(mixed::agreed(&w, 1, all[1].1), Selective);
        mixed::spoil(&mut w);
        w.link.loss = if seed % 2 == 0 { 50_000 } else { 200_000 };
        mixed::run_calls(&mut w, &all, 60);
        mixed::credits_are_back(&w, &all);
    }
}

/// M21: what a NIC with go-back-0 sends `[MELO §2.2]`.
#[test]
fn a_gap_has_a_client_with_go_back_0_begin_the_request_again() {
    let (mut w, s) = warm(settings(GoBackZero));
    let n = 8 * DPP;
    lose(&mut w, 0, &[(&format!("#5/{n}"), 1)]);
    let took = upload(&mut w, s, 8);
    let req = |index| format!("0: REQ 32#{index}/{n}");
    let requests: Vec<_> = (0..8).chain(0..8).map(req).collect();
    assert_eq!(said(&w, "0: REQ"), requests);
    assert_eq!(efforts(&w), (8, 0, 0));
    assert!(took < SOON_NS, "{took}");
}

/// The server discards what had arrived: a packet that is lost in the second try only is missing.
#[test]
fn a_server_with_go_back_0_keeps_nothing_of_the_try_before() {
    for (recovery, nacks, again) in [(GoBackZero, 2, 16), (GoBackNNack, 1, 3)] {
        let (mut w, s) = warm(settings(recovery));
        let n = 8 * DPP;
        let mut seen = 0;
        w.filter = Some(Box::new(move |sender, bytes| {
            let said: Vec<_> = describe(sender, bytes).into_iter().map(|p| p.text).collect();
            let has = |index| said.iter().any(|text| text.ends_with(&format!("#{index}/{n}")));
            let fifth = sender == 0 && has(5) && seen == 0;
            let second = sender == 0 && has(2) && seen == 1;
            seen += u32::from(fifth || second);
            !(fifth || second)
        }));
        upload(&mut w, s, 8);
        assert_eq!(said(&w, "1: NACK").len(), nacks, "{recovery}: packet 2 arrived before");
        assert_eq!(efforts(&w), (again, 0, 0), "{recovery}");
    }
}

/// A request that was admitted is work in progress.
#[test]
fn a_request_that_is_begun_again_during_a_shutdown_is_not_refused() {
    let (mut w, s) = warm(settings(GoBackZero));
    let n = 8 * DPP;
    lose(&mut w, 0, &[(&format!("#5/{n}"), 1)]);
    let start_ns = w.now_ns;
    w.call(0, s, 1, n);
    w.run_to(start_ns + RTT_NS * 3 / 4);
    assert!(w.ep(1).memory().held_bytes > 0, "some packets have arrived");
    w.ep(1).shut_down();
    let result = &w.finish(0, 1)[0].result;
    assert!(result.is_ok(), "{:?}", result.as_ref().err());
    assert_eq!(efforts(&w), (8, 0, 0), "begun again once");
    w.settle();
    assert!(w.ep(1).is_drained());
}

#[test]
fn a_first_packet_of_another_size_or_type_discards_nothing_with_go_back_0() {
    use courser_proto::RxDrop;
    let mut w = World::pair(settings(GoBackZero));
    let (_, f) = w.connect_forge(0, 1);
    w.filter = Some(Box::new(|_, _| false));
    let size = (100 * DPP) as u32;
    (0..3).for_each(|index| w.inject(0, 1, &f.request(0, size, index, &[1; DPP])));
    for (req_type, other) in [(5, size - 1), (6, size)] {
        let packet = f.request_of(req_type, 0, (other, 0), &[1; DPP]);
        crate::support::forge::expect_drop(&mut w, 1, &packet, RxDrop::Inconsistent);
    }
    w.inject(0, 1, &f.request(0, size, 3, &[1; DPP]));
    assert_eq!(stats(&w, 1).dropped(RxDrop::OutOfOrder), 0, "the next one is still expected");
}

#[test]
fn a_timeout_with_go_back_0_sends_the_last_packet_alone_if_the_others_arrived() {
    let (mut w, s) = warm(settings(GoBackZero));
    lose(&mut w, 0, &[(&format!("#11/{}\n", 12 * DPP), 1)]);
    assert!(upload(&mut w, s, 12) > 1_000_000);
    assert_eq!(efforts(&w), (1, 0, 1));
}

#[test]
fn a_timeout_with_go_back_0_begins_again_if_others_are_missing() {
    let (mut w, s) = warm(settings(GoBackZero));
    let (n, mut packets, mut nacks) = (12 * DPP, 1, 1);
    w.filter = Some(Box::new(move |sender, bytes| {
        let said: Vec<_> = describe(sender, bytes).into_iter().map(|p| p.text + "\n").collect();
        let has = |text: &str| said.iter().any(|s| s.contains(text));
        let nack = sender == 1 && nacks > 0 && has("NACK");
        let packet = packets > 0 && has(&format!("#2/{n}\n"));
        (nacks, packets) = (nacks - u32::from(nack), packets - u32::from(packet));
        !(nack || packet)
    }));
    assert!(upload(&mut w, s, 12) > 1_000_000);
    let (again, _, rollbacks) = efforts(&w);
    assert!(again >= 8 && rollbacks == 1, "{:?}", efforts(&w));
    assert!(said(&w, "0: REQ").iter().filter(|text| text.contains("#0/")).count() == 2);
}

#[test]
fn responses_recover_with_go_back_0_as_with_nacks() {
    let took = |recovery| {
        let (mut w, s) = warm(settings(recovery));
        lose(&mut w, 1, &[(&format!("#3/{}", 20 * DPP), 1)]);
        (download(&mut w, s, 20), efforts(&w))
    };
    assert_eq!(took(GoBackZero), took(GoBackNNack));
}

/// A server begins a request of eight packets again because of a duplicate of its first one. Its client
/// has acknowledgements of all but the last, which is lost, as is the first NACK.
fn begun_again(spoil: fn(&mut World, &[u8])) -> (World, u64) {
    let (mut w, s) = warm(settings(GoBackZero));
    let n = 8 * DPP;
    let first = Rc::new(RefCell::new(Vec::new()));
    let (to, mut last, mut nacks) = (Rc::clone(&first), 1, 1);
    w.filter = Some(Box::new(move |sender, bytes| {
        let said: Vec<_> = describe(sender, bytes).into_iter().map(|p| p.text + "\n").collect();
        let has = |text: &str| said.iter().any(|s| s.contains(text));
        if has(&format!("#0/{n}\n")) {
            to.borrow_mut().extend_from_slice(bytes);
        }
        let lost = (has(&format!("#7/{n}\n")) && last > 0, has("NACK") && nacks > 0);
        (last, nacks) = (last - u32::from(lost.0), nacks - u32::from(lost.1));
        !(lost.0 || lost.1)
    }));
    let start_ns = w.now_ns;
    w.call(0, s, 1, n);
    w.run_until(start_ns + 10 * RTT_NS);
    assert_eq!(said(&w, "1: CR").last().map(String::as_str), Some("1: CR 32+7"));
    let first = first.take();
    spoil(&mut w, &first);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(1, n)));
    let took_ns = w.now_ns - start_ns;
    (w, took_ns)
}

#[test]
fn a_duplicate_that_begins_a_request_again_stalls_no_call_with_go_back_0() {
    let (w, took_ns) = begun_again(|w, first| w.inject(0, 1, first));
    // The last packet alone after the first timeout, all of them after the second.
    assert_eq!(efforts(&w), (9, 0, 2));
    assert!(took_ns < 5_000_000, "{took_ns}");
    // Without the duplicate the last packet suffices.
    let (w, took_ns) = begun_again(|_, _| {});
    assert_eq!(efforts(&w), (1, 0, 1));
    assert!(took_ns < 3_000_000, "{took_ns}");
}

#[test]
fn a_duplicate_of_the_only_packet_that_has_arrived_discards_nothing() {
    let mut w = World::pair(settings(GoBackZero));
    let (_, f) = w.connect_forge(0, 1);
    w.filter = Some(Box::new(|_, _| false));
    let size = (100 * DPP) as u32;
    w.inject(0, 1, &f.request(0, size, 0, &[1; DPP]));
    let held_bytes = w.ep(1).memory().held_bytes;
    for _ in 0..10 {
        w.inject(0, 1, &f.request(0, size, 0, &[1; DPP]));
        assert_eq!(w.ep(1).memory().held_bytes, held_bytes);
    }
    assert_eq!(stats(&w, 1).dropped(courser_proto::RxDrop::Duplicate), 10);
    // Each of them has the next gap reported again.
    for nacks in 1..4 {
        w.inject(0, 1, &f.request(0, size, 2, &[1; DPP]));
        w.inject(0, 1, &f.request(0, size, 3, &[1; DPP]));
        assert_eq!(stats(&w, 1).tx_kinds[NACK], nacks);
        w.inject(0, 1, &f.request(0, size, 0, &[1; DPP]));
    }
}

#[test]
fn calls_end_with_go_back_0_whatever_the_link_repeats_and_reorders() {
    for seed in 0..60 {
        let cfg = Config { datapath_timeout_ns: 200_000_000, ..settings(GoBackZero) };
        let mut w = World::new(&[cfg.clone(), cfg], seed);
        let all = [(0, w.connect(0, 1)), (1, w.connect(1, 0))];
        assert_eq!(mixed::agreed(&w, 0, all[0].1), GoBackZero);
        w.link.late_ns = 3 * RTT_NS;
        (w.link.loss, w.link.duplicate, w.link.reorder) = match seed % 3 {
            0 => (0, 100_000, 10_000),
            1 => (10_000, 200_000, 0),
            _ => (20_000, 20_000, 5_000),
        };
        mixed::run_calls(&mut w, &all, 60);
        mixed::credits_are_back(&w, &all);
    }
}
