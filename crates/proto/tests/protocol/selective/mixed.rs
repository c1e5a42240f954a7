//! Endpoints and sessions with different recovery schemes.

use courser_proto::Recovery::{GoBackN, GoBackNNack, GoBackZero, Melo, Selective};

use super::*;

/// Sizes of requests and responses, from none to many packets.
fn size(id: u16) -> usize {
    [10, 3 * DPP, 0, 30 * DPP + 1, DPP][usize::from(id) % 5]
}

pub(super) fn run_calls(w: &mut World, sessions: &[(usize, SessionId)], calls: u16) {
    for n in &mut w.nodes {
        n.handler = Box::new(|id, req| {
            assert!(req == pattern(id.into(), size(id)), "request {id} arrived changed");
            Action::Reply(pattern(0xa000 + u64::from(id), size(id / 5)))
        });
    }
    for (i, &(node, s)) in sessions.iter().enumerate() {
        for call in 0..calls {
            let id = i as u16 * calls + call;
            w.call(node, s, id, size(id));
        }
    }
    for (node, n) in [0, 1, 2].map(|node| (node, sessions.iter().filter(|s| s.0 == node).count())) {
        if n == 0 {
            continue;
        }
        for done in w.finish(node, n * usize::from(calls)) {
            let id = done.id as u16;
            let answer = pattern(0xa000 + u64::from(id), size(id / 5));
            let got = done.result.unwrap_or_else(|e| panic!("call {id}: {e}"));
            assert!(got == answer, "call {id}: another's response");
        }
    }
    for n in 0..sessions.len() as u16 * calls {
        let times: u32 = w.nodes.iter().filter_map(|node| node.executed.get(&n)).sum();
        assert_eq!(times, 1, "request {n}");
    }
}

pub(super) fn credits_are_back(w: &World, sessions: &[(usize, SessionId)]) {
    for &(node, s) in sessions {
        let t = w.nodes[node].ep.session_stats(s).unwrap();
        assert_eq!((t.credits, t.pool_left, t.in_flight), (t.credit_limit, t.pool, 0));
    }
}

pub(super) fn spoil(w: &mut World) {
    w.tracing = false;
    (w.link.loss, w.link.duplicate, w.link.reorder) = (50_000, 20_000, 50_000);
    w.link.late_ns = 3 * RTT_NS;
}

pub(super) fn agreed(w: &World, node: usize, s: SessionId) -> Recovery {
    w.nodes[node].ep.session_stats(s).unwrap().recovery
}

#[test]
fn either_side_can_require_go_back_n() {
    for (client, server) in
        [(GoBackN, Selective), (Selective, GoBackN), (Melo, GoBackN), (GoBackNNack, GoBackN)]
    {
        let mut w = World::new(&[settings(client), settings(server)], 5);
        let s = w.connect(0, 1);
        assert_eq!(agreed(&w, 0, s), GoBackN);
        spoil(&mut w);
        run_calls(&mut w, &[(0, s)], 100);
        for node in 0..2 {
            let t = stats(&w, node);
            assert_eq!((t.tx_kinds[NACK], t.tx_kinds[GAP], t.probes), (0, 0, 0), "{client}");
        }
        assert!(stats(&w, 0).rollbacks > 0);
        credits_are_back(&w, &[(0, s)]);
    }
}

/// M21: it wastes the link of both, so that neither imposes it on the other.
#[test]
fn go_back_0_applies_only_when_both_sides_have_set_it() {
    for other in Recovery::ALL {
        for (client, server) in [(GoBackZero, other), (other, GoBackZero)] {
            let mut w = World::new(&[settings(client), settings(server)], 5);
            let s = w.connect(0, 1);
            assert_eq!(agreed(&w, 0, s), GoBackN, "{client} with {server}");
            spoil(&mut w);
            run_calls(&mut w, &[(0, s)], 20);
            credits_are_back(&w, &[(0, s)]);
        }
    }
    let mut w = World::pair(settings(GoBackZero));
    let s = w.connect(0, 1);
    assert_eq!(agreed(&w, 0, s), GoBackZero);
}

#[test]
fn sessions_between_two_endpoints_may_have_different_schemes() {
    for (a, b) in [(Selective, Melo), (Melo, Selective)] {
        for seed in 0..4 {
            let mut w = World::new(&[settings(a), settings(b)], seed);
            let all = [(0, w.connect(0, 1)), (1, w.connect(1, 0)), (0, w.connect(0, 1))];
            assert_eq!((agreed(&w, 0, all[0].1), agreed(&w, 1, all[1].1)), (a, b));
            spoil(&mut w);
            run_calls(&mut w, &all, 100);
            credits_are_back(&w, &all);
            assert!(stats(&w, 0).tx_kinds[NACK] > 0 && stats(&w, 1).tx_kinds[NACK] > 0);
        }
    }
}

#[test]
fn a_server_has_clients_of_every_scheme() {
    for seed in 0..4 {
        let mut w = World::new(&[settings(Selective), settings(Selective), settings(Melo)], seed);
        let all = [(0, w.connect(0, 1)), (2, w.connect(2, 1)), (2, w.connect(2, 0))];
        assert_eq!((agreed(&w, 0, all[0].1), agreed(&w, 2, all[1].1)), (Selective, Melo));
        spoil(&mut w);
        run_calls(&mut w, &all, 100);
        credits_are_back(&w, &all);
    }
}

#[test]
fn heavy_loss_ends_as_well() {
    for recovery in [Selective, Melo] {
        for seed in 0..6 {
            // Two of five round trips fail: a few successive timeouts do not mean a dead path.
            let cfg = Config { datapath_timeout_ns: 2_000_000_000, ..settings(recovery) };
            let mut w = World::new(&[cfg.clone(), cfg], seed);
            let s = w.connect(0, 1);
            spoil(&mut w);
            w.link.loss = 200_000;
            run_calls(&mut w, &[(0, s)], 60);
            credits_are_back(&w, &[(0, s)]);
        }
    }
}
