//! The scoreboard beside a plain list of packets, each judged by itself.

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
    /// It was given up for want of an answer, not for the order.
    timed: bool,
}

/// Every packet that was ever sent.
#[derive(Default)]
struct Model {
    packets: Vec<Packet>,
    newest_ns: u64,
    /// As of before the frame at hand.
    known_ns: u64,
    seen: Seen,
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

    fn arrive(&mut self, index: u32, heard: Heard) -> bool {
        let Some(p) = self.packets.get_mut(index as usize) else { return false };
        let was = std::mem::replace(&mut p.state, State::Arrived);
        let late_ns = self.known_ns.saturating_sub(p.sent_ns);
        match was {
            State::Arrived => return false,
            State::Lost => self.seen.late_ns = self.seen.late_ns.max(late_ns),
            State::Sent if !p.again => {
                self.seen.late_ns = self.seen.late_ns.max(late_ns);
                self.newest_ns = self.newest_ns.max(p.sent_ns);
            }
            // Nothing comes back sooner than a round trip after it was sent.
            State::Sent if heard.now_ns - p.sent_ns < heard.round_trip_ns => {
                self.seen.spurious += 1;
                self.seen.hasty += u16::from(!p.timed);
            }
            State::Sent => {
                self.seen.useful += 1;
                self.newest_ns = self.newest_ns.max(p.sent_ns);
            }
        }
        true
    }

    /// A packet on its way is lost exactly when one sent more than a window later has arrived.
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
    /// What a receiver says that has these of the packets, by their place behind the first missing.
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

/// What a receiver says that has `has`, counted from `count` on, and the packets that it tells of.
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
    fn it_knows_what_a_list_of_all_packets_knows(
        window_ns in 0..4_000_u64,
        round_trip_ns in 0..3_000_u64,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let (mut b, mut m) = (Scoreboard::new(0), Model::default());
        let mut now_ns = 10_000;
        for op in ops {
            let heard = Heard { now_ns, round_trip_ns, window_ns };
            m.seen = Seen::default();
            let mut seen = Seen::default();
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
                        prop_assert!(m.arrive(index, heard));
                        prop_assert_eq!(m.judge(window_ns), 0);
                    } else {
                        prop_assert_eq!(b.arrived(index, heard, &mut seen), m.arrive(index, heard));
                        b.advance();
                        prop_assert_eq!(b.judge(window_ns), m.judge(window_ns));
                    }
                }
                Op::InOrder(more) => {
                    let count = (m.base() + more).min(end);
                    let short = b.arrive_in_order(count);
                    (0..count).for_each(|index| _ = m.arrive(index, heard));
                    if short {
                        prop_assert_eq!((b.base, m.judge(window_ns)), (count, 0));
                    } else {
                        b.in_order(count, heard, &mut seen);
                        prop_assert_eq!(b.advance(), m.base());
                        prop_assert_eq!(b.judge(window_ns), m.judge(window_ns));
                    }
                }
                Op::Nack(has) => {
                    // Only of what was sent, and never of the last packet alone.
                    let count = m.base();
                    let has = &has[..has.len().min((end - count) as usize)];
                    let mut room = NO_HOLES;
                    let (high, holes, told) = nack_of(count, has, &mut room);
                    let news = b.on_nack(Nack { count, high, holes, last: end }, heard, &mut seen);
                    let fresh = told.into_iter().filter(|&i| m.arrive(i, heard)).count();
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
            prop_assert_eq!(seen, m.seen);
            agree(&b, &m);
        }
        // Whatever has happened, all that is lost can be sent again.
        while let Some((first, run)) = b.next_lost(u32::MAX >> 8) {
            (first..first + run).for_each(|index| b.sent(index, now_ns));
            b.check();
        }
        prop_assert_eq!(b.lost(), 0);
    }
}

const HEARD: Heard = Heard { now_ns: 10_000, round_trip_ns: 2_000, window_ns: 500 };

/// A board of packets that were sent 100 ns after each other.
fn sent(n: u32) -> Scoreboard {
    let mut b = Scoreboard::new(0);
    (0..n).for_each(|index| b.sent(index, u64::from(index) * 100));
    b
}

#[test]
fn a_packet_is_lost_when_one_sent_more_than_a_window_later_has_arrived() {
    let mut b = sent(8);
    let mut seen = Seen::default();
    b.arrived(5, HEARD, &mut seen);
    assert_eq!(b.judge(500), 0, "packet 0 was sent 500 ns before");
    assert_eq!(b.judge(499), 1);
    b.check();
    assert_eq!(b.next_lost(u32::MAX >> 8), Some((0, 1)));
    assert_eq!(seen, Seen::default());
}

#[test]
fn a_retransmission_that_is_lost_is_found_as_fast() {
    let mut b = sent(2);
    let mut seen = Seen::default();
    b.arrived(1, HEARD, &mut seen);
    assert_eq!(b.judge(0), 1);
    for turn in 0..5 {
        let now_ns = 10_000 + turn * 1_000;
        let next = 2 + turn as u32;
        b.sent(0, now_ns);
        b.sent(next, now_ns + 600);
        b.arrived(next, Heard { now_ns: now_ns + 700, ..HEARD }, &mut seen);
        assert_eq!(b.judge(600), 0);
        assert_eq!(b.judge(500), 1, "turn {turn}");
        assert_eq!(b.next_lost(u32::MAX >> 8), Some((0, 1)));
        b.check();
    }
}

#[test]
fn an_answer_within_a_round_trip_is_to_the_first_copy() {
    for (after_ns, spurious, useful) in [(1_999, 1, 0), (2_000, 0, 1)] {
        let mut b = sent(2);
        let mut seen = Seen::default();
        b.arrived(1, HEARD, &mut seen);
        b.judge(0);
        b.sent(0, HEARD.now_ns);
        b.arrived(0, Heard { now_ns: HEARD.now_ns + after_ns, ..HEARD }, &mut seen);
        assert_eq!((seen.spurious, seen.useful), (spurious, useful));
    }
}

/// A NACK of a receiver that has every second packet of the first `2 n`: it has `n` holes.
fn every_second(n: usize) -> Scoreboard {
    let mut b = sent(300);
    let has: Vec<bool> = (0..2 * n).map(|i| i % 2 == 1).collect();
    let mut room = NO_HOLES;
    let (high, holes, _) = nack_of(0, &has, &mut room);
    assert_eq!(holes.len(), n.min(MAX_HOLES));
    assert!(b.on_nack(Nack { count: 0, high, holes, last: 299 }, HEARD, &mut Seen::default()));
    b.check();
    b
}

#[test]
fn with_fewer_holes_than_there_is_room_for_all_else_has_arrived() {
    let n = MAX_HOLES as u32 - 1;
    assert_eq!(every_second(MAX_HOLES - 1).arrived_count(), n);
}

#[test]
fn with_as_many_holes_as_there_is_room_for_the_rest_is_not_known() {
    let n = MAX_HOLES as u32;
    // The oldest hole is packet 0, and there is nothing before it.
    assert_eq!(every_second(MAX_HOLES).arrived_count(), n);
    // 36 holes are not told of, nor the 36 packets between them.
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
    assert!(!b.on_nack(Nack { count: 0, high, holes, last: 7 }, HEARD, &mut Seen::default()));
    assert_eq!(b.arrived_count(), 0, "only the response acknowledges it");
    assert_eq!(b.judge(0), 7);
    // Others that were sent again after it have arrived: that does not make it lost.
    (0..7).for_each(|index| b.sent(index, 20_000));
    b.arrived(0, Heard { now_ns: 30_000, ..HEARD }, &mut Seen::default());
    b.advance();
    assert_eq!((b.judge(0), b.lost()), (0, 0));
    b.check();
    // It asks for the response, when all others have arrived.
    (1..7).for_each(|index| _ = b.arrived(index, HEARD, &mut Seen::default()));
    b.advance();
    assert!(b.probe());
    assert_eq!(b.next_lost(u32::MAX >> 8), Some((7, 1)));
    b.check();
}

#[test]
fn a_board_is_used_for_one_message_after_the_other() {
    let mut b = sent(8);
    b.time_out();
    b.begin(1);
    b.check();
    assert_eq!((b.lost(), b.arrived_count(), b.next_lost(u32::MAX >> 8)), (0, 0, None));
    b.sent(1, 5);
    assert!(b.arrived(1, HEARD, &mut Seen::default()));
    assert_eq!(b.advance(), 2);
}
