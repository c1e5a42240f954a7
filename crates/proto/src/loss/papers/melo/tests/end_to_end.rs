//! Senders and receivers over a channel that loses and reorders in both directions, with two shared
//! pools. Integer time: one packet per tick.

use proptest::prelude::*;

use super::super::pool::MeloPool;
use super::super::{Arrival, Hole, Reorder, SenderMap};

#[derive(Clone, Copy, Debug)]
struct Channel {
    /// Lost data packets per 1,000, and lost feedback.
    data_loss: u32,
    feedback_loss: u32,
    /// True if retransmissions can be lost.
    lose_again: bool,
    /// The one-way delay is 10 ticks plus up to `jitter`.
    jitter: u64,
}

const RTO: u64 = 400;

enum Frame {
    Data(u32),
    Feedback { rcv_nxt: u32, rcv_high: u32, holes: Vec<Hole> },
}

/// A message in flight.
struct Message {
    packets: u32,
    window: u32,
    map: SenderMap<u16>,
    reorder: Reorder<u16>,
    /// The next packet to send, reset by a timeout; and the highest ever sent.
    next: u32,
    sent_high: u32,
    again: Option<Hole>,
    progress: u64,
    received: Vec<bool>,
    sent: u32,
    lost: u32,
    wasted: u32,
}

impl Message {
    fn new(packets: u32, window: u32) -> Message {
        Message {
            packets,
            window,
            map: SenderMap::new(),
            reorder: Reorder::new(),
            next: 0,
            sent_high: 0,
            again: None,
            progress: 0,
            received: vec![false; packets as usize],
            sent: 0,
            lost: 0,
            wasted: 0,
        }
    }

    /// The next packet to send: a lost one before a new one.
    fn transmit(&mut self, pool: &MeloPool) -> Option<u32> {
        if self.again.is_none_or(|hole| hole.len == 0) {
            self.again = self.map.next_lost(pool);
        }
        let again = self.again.as_mut().filter(|hole| hole.first >= self.map.una());
        let psn = if let Some(hole) = again {
            hole.first += 1;
            hole.len -= 1;
            hole.first - 1
        } else {
            self.again = None;
            self.next = self.next.max(self.map.una());
            if self.next == self.packets || self.next >= self.map.una() + self.window {
                return None;
            }
            self.next += 1;
            self.next - 1
        };
        self.sent += 1;
        Some(psn)
    }

    /// Receives a data packet and returns the feedback.
    fn on_data(&mut self, pool: &mut MeloPool, psn: u32) -> Frame {
        let before = std::mem::replace(&mut self.received[psn as usize], true);
        match self.reorder.on_packet(pool, psn) {
            Arrival::InOrder | Arrival::OutOfOrder { .. } => {
                assert!(!before, "packet {psn} delivered twice");
            }
            Arrival::Duplicate | Arrival::Middle | Arrival::NoBits => {
                self.received[psn as usize] = before;
                self.wasted += 1;
            }
        }
        self.reorder.check(pool);
        let (rcv_nxt, rcv_high) = (self.reorder.rcv_nxt(), self.reorder.rcv_high());
        assert!(self.received[..rcv_nxt as usize].iter().all(|&received| received));
        Frame::Feedback { rcv_nxt, rcv_high, holes: self.reorder.holes().collect() }
    }

    fn on_feedback(
        &mut self,
        pool: &mut MeloPool,
        (rcv_nxt, rcv_high): (u32, u32),
        holes: &[Hole],
        now: u64,
    ) {
        assert!(rcv_high <= self.sent_high);
        let una = self.map.una();
        self.map.on_nack(pool, rcv_nxt, rcv_high, holes).expect("from a receiver");
        self.map.check(pool);
        if self.map.una() > una {
            self.progress = now;
        }
    }

    fn on_tick(&mut self, pool: &mut MeloPool, now: u64) {
        if now - self.progress > RTO {
            self.map.on_timeout(pool);
            (self.next, self.again, self.progress) = (self.map.una(), None, now);
        }
    }
}

/// Runs messages to completion over one channel and returns them.
fn run(
    (blocks, block_bytes): (u32, u32),
    mut messages: Vec<Message>,
    channel: Channel,
    seed: u64,
) -> Vec<Message> {
    let pool = || MeloPool::new(blocks * block_bytes * 8, block_bytes);
    let (mut receivers, mut senders) = (pool(), pool());
    let mut flying: Vec<(u64, usize, Frame)> = Vec::new();
    let mut random = seed | 1;
    let mut draw = move |below: u64| {
        random ^= random << 13; // Marsaglia's xorshift64
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) % below
    };
    let mut now = 0;
    while messages.iter().any(|message| message.map.una() < message.packets) {
        now += 1;
        assert!(now < 5_000_000, "the run does not end");
        let due: Vec<_> = flying.extract_if(.., |(due, ..)| *due <= now).collect();
        for (_, at, frame) in due {
            let message = &mut messages[at];
            match frame {
                Frame::Data(psn) => {
                    let feedback = message.on_data(&mut receivers, psn);
                    if draw(1000) >= u64::from(channel.feedback_loss) {
                        flying.push((now + 10 + draw(channel.jitter + 1), at, feedback));
                    }
                }
                Frame::Feedback { rcv_nxt, rcv_high, holes } => {
                    message.on_feedback(&mut senders, (rcv_nxt, rcv_high), &holes, now);
                }
            }
        }
        for (at, message) in messages.iter_mut().enumerate() {
            if message.map.una() == message.packets {
                continue;
            }
            message.on_tick(&mut senders, now);
            let Some(psn) = message.transmit(&senders) else { continue };
            let first_time = psn >= message.sent_high;
            message.sent_high = message.sent_high.max(psn + 1);
            if (first_time || channel.lose_again) && draw(1000) < u64::from(channel.data_loss) {
                message.lost += 1;
                continue;
            }
            flying.push((now + 10 + draw(channel.jitter + 1), at, Frame::Data(psn)));
        }
        receivers.check(messages.iter().flat_map(|message| message.reorder.blocks(&receivers)));
        senders.check(messages.iter().flat_map(|message| message.map.blocks(&senders)));
    }
    assert_eq!((receivers.usage().in_use, senders.usage().in_use), (0, 0), "blocks leaked");
    messages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// M14: when retransmissions are not lost, only useful and lost packets are sent, and no packet
    /// that arrives is dropped.
    #[test]
    fn only_lost_packets_are_sent_again(
        loss in 0..300u32, window in 1..200u32, packets in 1..800u32, seed: u64
    ) {
        let channel =
            Channel { data_loss: loss, feedback_loss: 0, lose_again: false, jitter: 0 };
        for message in run((128, 1), vec![Message::new(packets, window)], channel, seed) {
            prop_assert_eq!(message.sent, packets + message.lost);
            prop_assert_eq!(message.wasted, 0);
        }
    }

    /// With arbitrary loss and reordering in both directions, and pools that are large or much too
    /// small: messages complete, every packet is delivered once, no block is lost.
    #[test]
    fn messages_end(
        data_loss in 0..300u32, feedback_loss in 0..300u32, jitter in 0..60u64,
        window in 1..100u32, packets in 1..200u32, small: bool, shift in 0..4_u32, seed: u64,
    ) {
        let channel = Channel { data_loss, feedback_loss, lose_again: true, jitter };
        let messages = || (1..=3).map(|i| Message::new(packets * i / 2 + 1, window)).collect();
        let ended = if small {
            run((2, 1 << shift), messages(), channel, seed)
        } else {
            run((40, 1 << shift), messages(), channel, seed)
        };
        for message in ended {
            prop_assert!(message.received.iter().all(|&received| received));
        }
    }
}
