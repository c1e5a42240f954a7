//! The receiver's budget against faulty and silent senders (ADR 35).

use courser_proto::wire::Packet;
use courser_proto::{Config, Control, Grant, Recovery, RxDrop, SessionId};

use crate::support::forge::Forge;
use crate::support::{DPP, World, config};

const MS: u64 = 1_000_000;
/// Bytes of a request of 100 packets.
const SIZE: u32 = 100 * DPP as u32;

fn crowded() -> Config {
    let (control, recovery) = (Control::TwoWindow, Recovery::Selective);
    Config { control, recovery, rx_queue_frames: 64, slots: 16, ..config() }
}

/// More senders than a receiver's budget lets send at once, each of which waits for longer than the
/// timeout: what has arrived is kept.
#[test]
fn requests_that_wait_for_grants_are_not_begun_again_with_go_back_0() {
    for loss in [0, 100] {
        let (recovery, rto_min_ns) = (Recovery::GoBackZero, 50_000);
        let cfg = Config { recovery, rto_min_ns, rto_initial_ns: rto_min_ns, ..crowded() };
        let mut w = World::new(&vec![cfg; 9], 1);
        let sessions: Vec<_> = (1..9).map(|client| (client, w.connect(client, 0))).collect();
        w.link.loss = loss;
        for &(client, s) in &sessions {
            for id in 0..4 {
                w.call(client, s, client as u16 * 4 + id, 3 * SIZE as usize);
            }
        }
        let (mut again, mut sent) = (0, 0);
        for &(client, _) in &sessions {
            assert!(w.finish(client, 4).iter().all(|d| d.result.is_ok()));
            let stats = w.ep(client).stats();
            (again, sent) = (again + stats.retransmitted, sent + stats.tx_packets);
        }
        assert!(again * 10 <= sent, "{again} of {sent} packets were sent again, loss {loss}");
    }
}

/// A server, node 1, with a client that only sends forged frames, node 0, and an honest one.
fn world() -> (World, Forge, SessionId) {
    let mut w = World::new(&[crowded(), crowded(), crowded()], 1);
    let (_, forge) = w.connect_forge(0, 1);
    let honest = w.connect(2, 1);
    (w, forge, honest)
}

#[test]
fn a_client_that_begins_the_next_request_early_leaves_nothing_in_the_budget() {
    for cancels in [false, true] {
        let (mut w, f, _) = world();
        w.inject(0, 1, &f.request(0, SIZE, 0, &[0; DPP]));
        let next = if cancels { f.cancel(16) } else { f.request(16, SIZE, 0, &[0; DPP]) };
        w.inject(0, 1, &next);
        w.ep(1).check();
    }
}

#[test]
fn a_silent_sender_does_not_keep_its_part_of_the_budget() {
    let (mut w, f, honest) = world();
    for slot in 0..16 {
        w.inject(0, 1, &f.request(slot, SIZE, 0, &[slot as u8; DPP]));
    }
    let begin_ns = w.now_ns;
    for id in 0..12 {
        w.call(2, honest, id, SIZE as usize);
    }
    let ended = w.finish(2, 12);
    assert!(ended.iter().all(|d| d.result.is_ok()));
    assert!(w.now_ns < begin_ns + 30 * MS, "{} ns", w.now_ns - begin_ns);
}

#[test]
fn a_lost_credit_return_with_a_grant_is_sent_again() {
    let (mut w, f, honest) = world();
    for slot in 0..16 {
        w.inject(0, 1, &f.request(slot, SIZE, 0, &[slot as u8; DPP]));
    }
    // One frame of the server in seven is lost, whatever it carries.
    let mut frames = 0;
    w.filter = Some(Box::new(move |from, _| {
        frames += u32::from(from == 1);
        from != 1 || frames % 7 != 0
    }));
    for id in 0..12 {
        w.call(2, honest, id, SIZE as usize);
    }
    assert!(w.finish(2, 12).iter().all(|d| d.result.is_ok()));
}

#[test]
fn a_client_sends_on_after_a_credit_return_that_grants_nothing_further() {
    for recovery in Recovery::ALL.into_iter().chain([Recovery::GoBackZero]) {
        let config = || Config { recovery, ..crowded() };
        let mut w = World::new(&[config(), config()], 1);
        let (session, mut f) = w.connect_forge(0, 1);
        w.filter = Some(Box::new(|_, _| false));
        w.call(0, session, 1, SIZE as usize);
        w.pump();
        for _ in 0..99 {
            let sent = w.nodes[0].ep.stats().tx_packets as u32;
            // As if a bit of the field had flipped: a server without a limit states none.
            let (session, req_num) = (f.accept.client_session, 0);
            let (count, in_progress, grant) = (sent, false, Grant::from_bits(sent));
            let packet = Packet::CreditReturn { session, req_num, count, in_progress, grant };
            let bytes = f.frame(0, &[packet]);
            w.inject(1, 0, &bytes);
            w.pump();
            if w.nodes[0].ep.stats().tx_packets >= 100 {
                break;
            }
        }
        assert_eq!(w.nodes[0].ep.stats().tx_packets, 100, "{recovery}");
    }
}

#[test]
fn a_request_with_gaps_that_waits_for_a_grant_is_answered_once_for_each_packet() {
    for (recovery, frames) in [(Recovery::Melo, 16), (Recovery::Selective, 64)] {
        let config = || Config { recovery, rx_queue_frames: frames, ..crowded() };
        let clients = 1..=2;
        let mut w = World::new(&[config(), config(), config()], 1);
        let sessions: Vec<_> = clients.clone().map(|client| w.connect(client, 0)).collect();
        let mut sent = 0;
        w.filter = Some(Box::new(move |from, _| {
            sent += u32::from(from != 0);
            from == 0 || sent % 3 != 0
        }));
        for id in 0..40 {
            for (client, &session) in clients.clone().zip(&sessions) {
                w.call(client, session, id, (2 + usize::from(id) % 5) * DPP);
            }
        }
        for client in clients {
            let ended = w.finish(client, 40);
            assert!(ended.iter().all(|d| d.result.is_ok()), "{recovery}");
            assert_eq!(w.ep(client).stats().dropped(RxDrop::Inconsistent), 0, "{recovery}");
        }
    }
}
