//! Packets that look like the next one of a large message and are not: the straight line of large
//! messages has to leave them alone. Each in one piece, and with its end in memory of its sender.

use courser_proto::{Config, Recovery, RxDrop, SessionId};

use crate::support::forge::Forge;
use crate::support::{Action, DPP, World, config, expect_drop, pattern};

const PACKETS: usize = 6;
const SIZE: u32 = (PACKETS * DPP) as u32;

/// Runs a test with packets in either form, with and without a scoreboard.
fn in_each_form(test: impl Fn(World, Recovery)) {
    for recovery in [Recovery::GoBackN, Recovery::Selective] {
        for front in [usize::MAX, 48] {
            let cfg = Config { recovery, ..config() };
            let mut w = World::new(&[cfg.clone(), cfg.clone(), cfg], 1);
            w.nodes.iter_mut().for_each(|node| node.front = front);
            w.nodes[1].handler = Box::new(|_, req| {
                assert!(req == pattern(5, SIZE as usize), "the request arrived changed");
                Action::Forget
            });
            test(w, recovery);
        }
    }
}

/// The bytes of a packet of the message.
fn part(index: u32) -> Vec<u8> {
    pattern(5, SIZE as usize)[index as usize * DPP..][..DPP].to_vec()
}

fn request(f: &Forge, index: u32) -> Vec<u8> {
    f.request(0, SIZE, index, &part(index))
}

fn executions(w: &World) -> u32 {
    w.nodes[1].executed.values().sum()
}

#[test]
fn a_packet_of_another_request_is_not_the_next_of_this_one() {
    in_each_form(|mut w, _| {
        let (_, f) = w.connect_forge(0, 1);
        let (_, mut other) = w.connect_forge(2, 1);
        (0..2).for_each(|index| w.inject(0, 1, &request(&f, index)));
        let old = 0_u32.wrapping_sub(8);
        expect_drop(&mut w, 1, &f.request(0, SIZE + 1, 2, &part(2)), RxDrop::Inconsistent);
        expect_drop(&mut w, 1, &f.request_of(6, 0, (SIZE, 2), &part(2)), RxDrop::Inconsistent);
        expect_drop(&mut w, 1, &f.request(old, SIZE, 2, &part(2)), RxDrop::Stale);
        expect_drop(&mut w, 1, &f.request(16, SIZE, 2, &part(2)), RxDrop::Future);
        // The session of another peer.
        other.accept.session = f.accept.session;
        w.inject(2, 1, &request(&other, 2));
        assert_eq!(w.ep(1).stats().dropped(RxDrop::UnknownSession), 1);
        (2..PACKETS as u32).for_each(|index| w.inject(0, 1, &request(&f, index)));
        assert_eq!(executions(&w), 1);
    });
}

#[test]
fn a_repeated_packet_of_a_request_is_not_the_next() {
    in_each_form(|mut w, _| {
        let (_, f) = w.connect_forge(0, 1);
        (0..4).for_each(|index| w.inject(0, 1, &request(&f, index)));
        for index in 0..4 {
            expect_drop(&mut w, 1, &request(&f, index), RxDrop::Duplicate);
        }
        (4..PACKETS as u32).for_each(|index| w.inject(0, 1, &request(&f, index)));
        assert_eq!(executions(&w), 1);
        expect_drop(&mut w, 1, &request(&f, 3), RxDrop::Duplicate);
    });
}

#[test]
fn packets_of_a_request_that_arrived_early_are_counted_when_the_missing_one_arrives() {
    in_each_form(|mut w, recovery| {
        let (_, f) = w.connect_forge(0, 1);
        (0..2).for_each(|index| w.inject(0, 1, &request(&f, index)));
        if recovery == Recovery::GoBackN {
            expect_drop(&mut w, 1, &request(&f, 3), RxDrop::OutOfOrder);
            (2..PACKETS as u32).for_each(|index| w.inject(0, 1, &request(&f, index)));
        } else {
            [3, 2, 5, 4].into_iter().for_each(|index| w.inject(0, 1, &request(&f, index)));
        }
        assert_eq!(executions(&w), 1);
        assert_eq!(w.ep(1).stats().rx_kinds[0], PACKETS as u64);
    });
}

#[test]
fn a_packet_of_a_cancelled_request_is_dropped() {
    in_each_form(|mut w, _| {
        let (_, f) = w.connect_forge(0, 1);
        (0..2).for_each(|index| w.inject(0, 1, &request(&f, index)));
        w.inject(0, 1, &f.cancel(0));
        let drops = w.ep(1).stats().drops_total();
        (2..PACKETS as u32).for_each(|index| w.inject(0, 1, &request(&f, index)));
        assert_eq!(w.ep(1).stats().drops_total(), drops + PACKETS as u64 - 2);
        assert_eq!((executions(&w), w.ep(1).memory().held_bytes), (0, 0));
    });
}

/// A call of node 0 whose server is a forge: the first two packets of its response have arrived, and
/// the others were requested.
fn fetching(w: &mut World) -> (SessionId, Forge, courser_proto::CallId) {
    let (s, f) = w.connect_forge(0, 1);
    w.filter = Some(Box::new(|_, _| false));
    let call = w.call(0, s, 5, 40);
    w.pump();
    (0..2).for_each(|index| w.inject(1, 0, &response(&f, index)));
    (s, f, call)
}

fn response(f: &Forge, index: u32) -> Vec<u8> {
    f.response(0, SIZE, index, &part(index))
}

fn has_response(w: &mut World) -> bool {
    let done = w.take_done(0);
    done.len() == 1 && done[0].result == Ok(pattern(5, SIZE as usize))
}

#[test]
fn a_packet_of_another_response_is_not_the_next_of_this_one() {
    in_each_form(|mut w, _| {
        let (_, f, _) = fetching(&mut w);
        let old = 0_u32.wrapping_sub(8);
        expect_drop(&mut w, 0, &f.response(0, SIZE + 1, 2, &part(2)), RxDrop::Inconsistent);
        expect_drop(&mut w, 0, &f.response(old, SIZE, 2, &part(2)), RxDrop::Stale);
        expect_drop(&mut w, 0, &f.response(8, SIZE, 2, &part(2)), RxDrop::Future);
        // The session of another peer.
        let (_, mut other) = w.connect_forge(0, 2);
        other.accept.client_session = f.accept.client_session;
        w.inject(2, 0, &response(&other, 2));
        assert_eq!(w.ep(0).stats().dropped(RxDrop::UnknownSession), 1);
        (2..PACKETS as u32).for_each(|index| w.inject(1, 0, &response(&f, index)));
        assert!(has_response(&mut w));
    });
}

#[test]
fn repeated_and_early_packets_of_a_response_are_not_the_next() {
    in_each_form(|mut w, recovery| {
        let (s, f, _) = fetching(&mut w);
        for index in 0..2 {
            expect_drop(&mut w, 0, &response(&f, index), RxDrop::Duplicate);
        }
        if recovery == Recovery::GoBackN {
            expect_drop(&mut w, 0, &response(&f, 3), RxDrop::OutOfOrder);
            (2..PACKETS as u32).for_each(|index| w.inject(1, 0, &response(&f, index)));
        } else {
            [3, 2, 5, 4].into_iter().for_each(|index| w.inject(1, 0, &response(&f, index)));
        }
        assert!(has_response(&mut w));
        let stats = w.ep(0).session_stats(s).unwrap();
        assert_eq!((stats.credits, stats.in_flight), (config().credits, 0), "each was freed once");
    });
}

#[test]
fn a_packet_of_a_response_that_was_not_requested_is_dropped() {
    in_each_form(|mut w, _| {
        let (s, f) = w.connect_forge(0, 1);
        w.filter = Some(Box::new(|_, _| false));
        w.call(0, s, 5, 40);
        w.pump();
        w.deliver_only(1, 0, &response(&f, 0));
        w.deliver_only(1, 0, &response(&f, 1));
        assert_eq!(w.ep(0).stats().dropped(RxDrop::Inconsistent), 1);
        (0..PACKETS as u32).for_each(|index| w.inject(1, 0, &response(&f, index)));
        assert!(has_response(&mut w));
    });
}

#[test]
fn a_packet_for_a_cancelled_call_is_dropped() {
    in_each_form(|mut w, _| {
        let (_, f, call) = fetching(&mut w);
        assert!(w.ep(0).cancel(call));
        w.pump();
        let drops = w.ep(0).stats().drops_total();
        (2..PACKETS as u32).for_each(|index| w.inject(1, 0, &response(&f, index)));
        assert_eq!(w.ep(0).stats().drops_total(), drops + PACKETS as u64 - 2);
        let done = w.take_done(0);
        assert!(done.len() == 1 && done[0].result.is_err());
    });
}
