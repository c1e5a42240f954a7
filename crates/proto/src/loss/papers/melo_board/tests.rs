//! The MELO scoreboard over a network with arbitrary loss and reordering: a request with a receiver
//! that acknowledges, and a response that is requested.

use proptest::prelude::*;

use super::super::pooled::PoolSize;
use super::*;

fn pools() -> Pools {
    Pools::new(PoolSize { bits: 1_024, block_bytes: 1, connections: 0 })
}

/// Feedback of a receiver.
type Said = (u32, u32, Vec<Hole>);

#[derive(Clone, Debug)]
enum Op {
    Send(u32),
    /// One of the packets or acknowledgements in flight arrives or is lost.
    Packet(usize, bool),
    Answer(usize, bool),
    TimeOut(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1..8_u32).prop_map(Op::Send),
        5 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(at, ok)| Op::Packet(at, ok)),
        4 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(at, ok)| Op::Answer(at, ok)),
        1 => any::<bool>().prop_map(Op::TimeOut),
    ]
}

/// A client slot with a scoreboard, reduced to one message.
struct Client {
    board: MeloBoard,
    packets: u32,
    acked: u32,
    sent: u32,
}

impl Client {
    fn check(&mut self) {
        let b = &self.board;
        b.resend.check();
        assert!(b.arrived + b.lost() <= self.sent - self.acked, "{b:?}, {} sent", self.sent);
    }

    /// The next packet to send.
    fn send(&mut self) -> Option<u32> {
        let lost = if self.board.lost() > 0 { self.board.next_lost() } else { None };
        let index = lost.map_or(self.sent, |run| run.first);
        if index >= self.packets {
            return None;
        }
        self.board.sent(index);
        self.sent = self.sent.max(index + 1);
        Some(index)
    }

    fn time_out(&mut self, is_response: bool, again: bool) {
        if let Some(end) = self.board.time_out(is_response, again) {
            let end = if is_response { end } else { end.min(self.packets - 1) };
            self.sent = self.sent.min(end.max(self.acked));
        }
    }
}

fn take<T>(from: &mut Vec<T>, at: usize) -> Option<T> {
    if from.is_empty() { None } else { Some(from.swap_remove(at % from.len())) }
}

struct Upload {
    client: Client,
    server: Receiver,
    wire: Vec<u32>,
    answers: Vec<Said>,
}

impl Upload {
    fn packet(&mut self, index: u32) {
        self.server.on_packet(index);
        let (count, high) = (self.server.rcv_nxt(), self.server.rcv_high());
        self.answers.push((count, high, self.server.holes().collect()));
    }

    /// Processes feedback as a slot does.
    fn answer(&mut self, (count, high, holes): Said) {
        let c = &mut self.client;
        let last = c.packets - 1;
        let is_nack = high > count; // otherwise it is a credit return
        let count = count.min(last);
        if is_nack && high <= c.sent {
            assert!(c.board.on_nack(count, high, holes.into_iter()), "an honest NACK");
        } else {
            c.board.in_order(count);
        }
        c.acked = c.acked.max(count);
        c.sent = c.sent.max(c.acked);
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Send(n) => (0..n).for_each(|_| self.wire.extend(self.client.send())),
            Op::Packet(at, arrives) => {
                let index = take(&mut self.wire, at).filter(|_| arrives);
                index.into_iter().for_each(|index| self.packet(index));
            }
            Op::Answer(at, arrives) => {
                let said = take(&mut self.answers, at).filter(|_| arrives);
                said.into_iter().for_each(|said| self.answer(said));
            }
            Op::TimeOut(again) => self.client.time_out(false, again),
        }
        self.client.check();
    }
}

proptest! {
    #[test]
    fn every_packet_of_a_request_arrives_and_counts_stay_within_the_sent(
        packets in 2..120_u32,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let (ours, other) = (pools(), pools());
        let client = Client { board: MeloBoard::new(&ours, packets, 0), packets, acked: 0, sent: 0 };
        let server = Receiver::new(0, &other.rx);
        let mut up = Upload { client, server, wire: Vec::new(), answers: Vec::new() };
        ops.into_iter().for_each(|op| up.step(op));
        // Without further loss, each timeout makes progress.
        for turn in 0..2 * packets {
            up.step(Op::TimeOut(turn > 0));
            up.step(Op::Send(2 * packets));
            while !up.wire.is_empty() {
                up.step(Op::Packet(0, true));
            }
            while !up.answers.is_empty() {
                up.step(Op::Answer(0, true));
            }
            if up.server.rcv_nxt() == packets {
                break;
            }
        }
        prop_assert_eq!(up.server.rcv_nxt(), packets);
        drop((up.client, up.server));
        prop_assert_eq!(ours.tx.blocks_in_use(), 0, "all blocks are back");
        prop_assert_eq!(other.rx.blocks_in_use(), 0, "all blocks are back");
    }

    #[test]
    fn every_packet_of_a_response_arrives_and_counts_stay_within_the_requested(
        packets in 2..120_u32,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let pools = pools();
        let mut c = Client { board: MeloBoard::new(&pools, 1, 0), packets, acked: 1, sent: 1 };
        c.board.begin_response();
        let (mut wire, mut had) = (Vec::new(), vec![false; packets as usize]);
        had[0] = true;
        let arrive = |c: &mut Client, had: &mut Vec<bool>, index: u32| {
            if index >= c.sent {
                return; // removed by a timeout and not requested again
            }
            let (arrival, in_order) = c.board.on_response(index);
            if matches!(arrival, Arrival::InOrder | Arrival::OutOfOrder { .. }) {
                assert!(!std::mem::replace(&mut had[index as usize], true), "{index} twice");
            }
            c.acked = in_order;
            c.sent = c.sent.max(in_order);
            let count = had.iter().position(|&had| !had).unwrap_or(had.len());
            assert_eq!(in_order as usize, count);
        };
        for op in ops {
            match op {
                Op::Send(n) => (0..n).for_each(|_| wire.extend(c.send())),
                Op::Packet(at, arrives) | Op::Answer(at, arrives) => {
                    let index = take(&mut wire, at).filter(|_| arrives);
                    index.into_iter().for_each(|index| arrive(&mut c, &mut had, index));
                }
                Op::TimeOut(again) => c.time_out(true, again),
            }
            c.check();
        }
        for turn in 0..2 * packets {
            c.time_out(true, turn > 0);
            c.check();
            while let Some(index) = c.send() {
                wire.push(index);
            }
            for index in std::mem::take(&mut wire) {
                arrive(&mut c, &mut had, index);
                c.check();
            }
            if c.acked == packets {
                break;
            }
        }
        prop_assert_eq!(c.acked, packets);
        drop(c);
        prop_assert_eq!(pools.rx.blocks_in_use(), 0, "all blocks are back");
    }
}

fn sent(packets: u32) -> MeloBoard {
    let mut b = MeloBoard::new(&pools(), packets, 0);
    (0..packets).for_each(|index| b.sent(index));
    b
}

const fn hole(first: u32, len: u32) -> Hole {
    Hole { first, len }
}

#[test]
fn a_hole_is_retransmitted_once() {
    let mut b = sent(20);
    assert!(b.on_nack(2, 8, [hole(2, 3)].into_iter()));
    assert_eq!((b.arrived(), b.lost(), b.next_lost()), (3, 3, Some(hole(2, 3))));
    (2..5).for_each(|index| b.sent(index));
    assert!(b.on_nack(2, 9, [hole(2, 3)].into_iter()));
    assert_eq!((b.arrived(), b.lost(), b.next_lost()), (4, 0, None), "not a second time");
}

#[test]
fn a_timeout_resends_holes_and_the_next_one_also_what_follows() {
    let mut b = sent(20);
    assert!(b.on_nack(2, 8, [hole(5, 2), hole(2, 1)].into_iter()));
    (2..3).chain(5..7).for_each(|index| b.sent(index));
    assert_eq!(b.lost(), 0);
    assert_eq!(b.time_out(false, false), None, "later packets may be in flight");
    assert_eq!(b.next_lost(), Some(hole(2, 1)));
    assert_eq!((b.arrived(), b.lost()), (3, 3));
    assert_eq!(b.time_out(false, true), Some(8), "now all from there on");
    assert_eq!((b.arrived(), b.lost()), (3, 3));
    let mut b = sent(20);
    assert_eq!(b.time_out(false, false), Some(0), "without information, all of it");
}
