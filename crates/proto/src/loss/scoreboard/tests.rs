//! The scoreboard compared with a plain list of packets.

use proptest::prelude::*;

use super::*;
use crate::loss::Hole;
use crate::wire::{Holes, HolesRoom, NO_HOLES};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Sent,
    Arrived,
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Packet {
    state: State,
    sent_ns: u64,
    again: bool,
    /// Marked lost by a timeout or probe, not by reordering.
    timed: bool,
}

/// Every packet that was ever sent.
#[derive(Default)]
struct Model {
    packets: Vec<Packet>,
    newest_ns: u64,
    /// State before the current frame.
    known_ns: u64,
    feedback: LossFeedback,
}

impl Model {
    fn send(&mut self, index: u32, now_ns: u64) {
        let again = (index as usize) < self.packets.len();
        let timed = self.packets.get(index as usize).is_some_and(|p| p.timed);
        let packet = Packet { state: State::Sent, sent_ns: now_ns, again, timed };
        if again {
            self.packets[index as usize] = packet;
        } else {
            self.packets.push(packet);
        }
    }

    fn arrive(&mut self, index: u32, ack: AckInfo) -> bool {
        let Some(p) = self.packets.get_mut(index as usize) else { return false };
        let was = std::mem::replace(&mut p.state, State::Arrived);
        let late_ns = self.known_ns.saturating_sub(p.sent_ns);
        match was {
            State::Arrived => return false,
            State::Lost => self.feedback.late_ns = self.feedback.late_ns.max(late_ns),
            State::Sent if !p.again => {
                self.feedback.late_ns = self.feedback.late_ns.max(late_ns);
                self.newest_ns = self.newest_ns.max(p.sent_ns);
            }
            // No acknowledgement arrives earlier than a round trip after the transmission.
            State::Sent if ack.now_ns - p.sent_ns < ack.round_trip_ns => {
                self.feedback.spurious += 1;
                self.feedback.early += u16::from(!p.timed);
            }
            State::Sent => {
                self.feedback.useful += 1;
                self.newest_ns = self.newest_ns.max(p.sent_ns);
            }
        }
        true
    }

    /// A packet in flight is lost exactly when one sent more than a window later has arrived.
    fn judge(&mut self, window_ns: u64) -> u32 {
        let newest_ns = self.newest_ns;
        self.known_ns = newest_ns;
        let late = |p: &&mut Packet| p.state == State::Sent && p.sent_ns + window_ns < newest_ns;
        let lost = self.packets.iter_mut().filter(late).map(|p| {
            (p.state, p.timed) = (State::Lost, false);
        });
        lost.count() as u32
    }

    fn base(&self) -> u32 {
        let base = self.packets.iter().position(|p| p.state != State::Arrived);
        base.unwrap_or(self.packets.len()) as u32
    }

    fn count(&self, state: State) -> u32 {
        let base = self.base() as usize;
        self.packets[base..].iter().filter(|p| p.state == state).count() as u32
    }

    fn state(&self, index: u32) -> Option<State> {
        self.packets.get(index as usize).map(|p| p.state)
    }
}

fn agree(b: &Scoreboard, m: &Model) {
    b.check();
    assert_eq!(b.base, m.base());
    assert_eq!((b.arrived_count(), b.lost()), (m.count(State::Arrived), m.count(State::Lost)));
    assert_eq!(b.base as usize + b.entries.len(), m.packets.len());
    for (index, entry) in (b.base..).zip(&b.entries) {
        let state = match entry & STATE {
            SENT => State::Sent,
            ARRIVED => State::Arrived,
            _ => State::Lost,
        };
        assert_eq!(Some(state), m.state(index), "packet {index}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Wait(u64),
    SendNew(u32),
    SendLost(u32),
    Arrive(u32),
    InOrder(u32),
    /// A receiver's NACK, as a list of which packets it has from the first missing one on.
    Nack(Vec<bool>),
    Probe,
    TimeOut,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..3_000_u64).prop_map(Op::Wait),
        3 => (1..12_u32).prop_map(Op::SendNew),
        3 => (1..12_u32).prop_map(Op::SendLost),
        4 => (0..64_u32).prop_map(Op::Arrive),
        1 => (0..8_u32).prop_map(Op::InOrder),
        2 => prop::collection::vec(any::<bool>(), 1..200).prop_map(Op::Nack),
        1 => Just(Op::Probe),
        1 => Just(Op::TimeOut),
    ]
}

/// The NACK of a receiver with the packets `has`, counted from `count` on, and the packets that it
/// acknowledges.
fn nack_of<'o>(count: u32, has: &[bool], out: &'o mut HolesRoom) -> (u32, Holes<'o>, Vec<u32>) {
    let high = has.iter().rposition(|&b| b).map_or(0, |at| at + 1);
    let mut holes = Vec::new();
    let mut at = high;
    while at > 0 {
        let end = at;
        while at > 0 && !has[at - 1] {
            at -= 1;
        }
        if at < end {
            holes.push(Hole { first: count + at as u32, len: (end - at) as u32 });
        } else {
            at -= 1;
        }
    }
    let told_from = if holes.len() < MAX_HOLES { count } else { holes[MAX_HOLES - 1].first };
    let told =
        (count..count + high as u32).filter(|&i| i >= told_from && has[(i - count) as usize]);
    let told = told.collect();
    (count + high as u32, Holes::write(count, holes.into_iter(), out), told)
}

proptest! {
    #[test]
    fn it_agrees_with_a_list_of_all_packets(
        window_ns in 0..4_000_u64,
        round_trip_ns in 0..3_000_u64,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let (mut b, mut m) = (Scoreboard::new(0), Model::default());
        let mut now_ns = 10_000;
        for op in ops {
            let ack = AckInfo { now_ns, round_trip_ns, window_ns };
            m.feedback = LossFeedback::default();
            let mut feedback = LossFeedback::default();
            let end = m.packets.len() as u32;
            match op {
                Op::Wait(ns) => now_ns += ns,
                Op::SendNew(n) => (end..end + n).for_each(|index| {
                    b.sent(index, now_ns);
                    m.send(index, now_ns);
                }),
                Op::SendLost(most) => {
                    if let Some((first, run)) = b.next_lost(u32::MAX >> 8) {
                        for index in first..first + run.min(most) {
                            prop_assert_eq!(m.state(index), Some(State::Lost));
                            b.sent(index, now_ns);
                            m.send(index, now_ns);
                        }
                    } else {
                        prop_assert_eq!(m.count(State::Lost), 0);
                    }
                }
                Op::Arrive(ahead) => {
                    let index = m.base() + ahead;
                    if b.is_next(index) && b.arrive_in_order(index + 1) {
                        prop_assert!(m.arrive(index, ack));
                        prop_assert_eq!(m.judge(window_ns), 0);
                    } else {
                        prop_assert_eq!(b.arrived(index, ack, &mut feedback), m.arrive(index, ack));
                        b.advance();
                        prop_assert_eq!(b.judge(window_ns), m.judge(window_ns));
                    }
                }
                Op::InOrder(more) => {
                    let count = (m.base() + more).min(end);
                    let short = b.arrive_in_order(count);
                    (0..count).for_each(|index| _ = m.arrive(index, ack));
                    if short {
                        prop_assert_eq!((b.base, m.judge(window_ns)), (count, 0));
                    } else {
                        b.in_order(count, ack, &mut feedback);
                        prop_assert_eq!(b.advance(), m.base());
                        prop_assert_eq!(b.judge(window_ns), m.judge(window_ns));
                    }
                }
                Op::Nack(has) => {
                    // Only packets that were sent, and never the last packet alone.
                    let count = m.base();
                    let has = &has[..has.len().min((end - count) as usize)];
                    let mut room = NO_HOLES;
                    let (high, holes, told) = nack_of(count, has, &mut room);
                    let news = b.on_nack(Nack { count, high, holes, last: end }, ack, &mut feedback);
                    let fresh = told.into_iter().filter(|&i| m.arrive(i, ack)).count();
                    prop_assert_eq!(news, fresh > 0);
                    prop_assert_eq!(b.advance(), m.base());
                    prop_assert_eq!(b.judge(window_ns), m.judge(window_ns));
                }
                Op::Probe => {
                    let newest = m.packets.iter().rposition(|p| p.state == State::Sent);
                    prop_assert_eq!(b.probe(), newest.is_some());
                    if let Some(at) = newest {
                        (m.packets[at].state, m.packets[at].timed) = (State::Lost, true);
                    }
                }
                Op::TimeOut => {
                    b.time_out();
                    let sent = m.packets.iter_mut().filter(|p| p.state != State::Arrived);
                    sent.for_each(|p| (p.state, p.timed) = (State::Lost, true));
                }
            }
            prop_assert_eq!(feedback, m.feedback);
            agree(&b, &m);
        }
        // At the end, every lost packet can be sent again.
        while let Some((first, run)) = b.next_lost(u32::MAX >> 8) {
            (first..first + run).for_each(|index| b.sent(index, now_ns));
            b.check();
        }
        prop_assert_eq!(b.lost(), 0);
    }
}

const HEARD: AckInfo = AckInfo { now_ns: 10_000, round_trip_ns: 2_000, window_ns: 500 };

/// A scoreboard of packets that were sent 100 ns apart.
fn sent(n: u32) -> Scoreboard {
    let mut b = Scoreboard::new(0);
    (0..n).for_each(|index| b.sent(index, u64::from(index) * 100));
    b
}

#[test]
fn a_packet_is_lost_when_one_sent_more_than_a_window_later_has_arrived() {
    let mut b = sent(8);
    let mut feedback = LossFeedback::default();
    b.arrived(5, HEARD, &mut feedback);
    assert_eq!(b.judge(500), 0, "packet 0 was sent 500 ns before");
    assert_eq!(b.judge(499), 1);
    b.check();
    assert_eq!(b.next_lost(u32::MAX >> 8), Some((0, 1)));
    assert_eq!(feedback, LossFeedback::default());
}

#[test]
fn a_lost_retransmission_is_detected_as_fast() {
    let mut b = sent(2);
    let mut feedback = LossFeedback::default();
    b.arrived(1, HEARD, &mut feedback);
    assert_eq!(b.judge(0), 1);
    for turn in 0..5 {
        let now_ns = 10_000 + turn * 1_000;
        let next = 2 + turn as u32;
        b.sent(0, now_ns);
        b.sent(next, now_ns + 600);
        b.arrived(next, AckInfo { now_ns: now_ns + 700, ..HEARD }, &mut feedback);
        assert_eq!(b.judge(600), 0);
        assert_eq!(b.judge(500), 1, "turn {turn}");
        assert_eq!(b.next_lost(u32::MAX >> 8), Some((0, 1)));
        b.check();
    }
}

#[test]
fn an_acknowledgement_within_a_round_trip_is_of_the_first_copy() {
    for (after_ns, spurious, useful) in [(1_999, 1, 0), (2_000, 0, 1)] {
        let mut b = sent(2);
        let mut feedback = LossFeedback::default();
        b.arrived(1, HEARD, &mut feedback);
        b.judge(0);
        b.sent(0, HEARD.now_ns);
        b.arrived(0, AckInfo { now_ns: HEARD.now_ns + after_ns, ..HEARD }, &mut feedback);
        assert_eq!((feedback.spurious, feedback.useful), (spurious, useful));
    }
}

/// The NACK of a receiver that has every second of the first `2 n` packets: `n` holes.
fn every_second(n: usize) -> Scoreboard {
    let mut b = sent(300);
    let has: Vec<bool> = (0..2 * n).map(|i| i % 2 == 1).collect();
    let mut room = NO_HOLES;
    let (high, holes, _) = nack_of(0, &has, &mut room);
    assert_eq!(holes.len(), n.min(MAX_HOLES));
    assert!(b.on_nack(
        Nack { count: 0, high, holes, last: 299 },
        HEARD,
        &mut LossFeedback::default()
    ));
    b.check();
    b
}

#[test]
fn with_fewer_holes_than_the_limit_all_other_packets_have_arrived() {
    let n = MAX_HOLES as u32 - 1;
    assert_eq!(every_second(MAX_HOLES - 1).arrived_count(), n);
}

#[test]
fn with_the_maximum_of_holes_the_rest_is_unknown() {
    let n = MAX_HOLES as u32;
    // The oldest hole is packet 0, and there is nothing before it.
    assert_eq!(every_second(MAX_HOLES).arrived_count(), n);
    // 36 holes are not listed, and so the 36 packets between them are unknown.
    let mut b = every_second(100);
    assert_eq!(b.arrived_count(), n);
    assert_eq!(b.entry(71).map(|e| *e & STATE), Some(SENT));
    assert_eq!(b.entry(73).map(|e| *e & STATE), Some(ARRIVED));
}

#[test]
fn the_last_packet_keeps_its_credit_and_its_time_counts() {
    let mut b = sent(8);
    let mut room = NO_HOLES;
    let has = [false, false, false, false, false, false, false, true];
    let (high, holes, _) = nack_of(0, &has, &mut room);
    assert!(!b.on_nack(
        Nack { count: 0, high, holes, last: 7 },
        HEARD,
        &mut LossFeedback::default()
    ));
    assert_eq!(b.arrived_count(), 0, "only the response acknowledges it");
    assert_eq!(b.judge(0), 7);
    // Retransmissions that were sent after it have arrived: it is not lost by that.
    (0..7).for_each(|index| b.sent(index, 20_000));
    b.arrived(0, AckInfo { now_ns: 30_000, ..HEARD }, &mut LossFeedback::default());
    b.advance();
    assert_eq!((b.judge(0), b.lost()), (0, 0));
    b.check();
    // When all others have arrived, it is probed to request the response.
    (1..7).for_each(|index| _ = b.arrived(index, HEARD, &mut LossFeedback::default()));
    b.advance();
    assert!(b.probe());
    assert_eq!(b.next_lost(u32::MAX >> 8), Some((7, 1)));
    b.check();
}

#[test]
fn a_board_is_reused_for_the_next_message() {
    let mut b = sent(8);
    b.time_out();
    b.begin(1);
    b.check();
    assert_eq!((b.lost(), b.arrived_count(), b.next_lost(u32::MAX >> 8)), (0, 0, None));
    b.sent(1, 5);
    assert!(b.arrived(1, HEARD, &mut LossFeedback::default()));
    assert_eq!(b.advance(), 2);
}
