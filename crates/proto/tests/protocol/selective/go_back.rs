//! Go-back-N on a NACK: `Recovery::GoBackNNack`.

use courser_proto::Recovery::{GoBackN, GoBackNNack, Selective};

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
