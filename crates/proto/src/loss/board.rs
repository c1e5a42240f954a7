//! The retransmission scoreboard of a client slot, for every recovery scheme. Messages of one
//! packet and sessions with go-back-N have none.

use super::papers::{MeloBoard, PoolSize, Pools, is_kept};
use super::{AckInfo, LossFeedback, Nack, Recovery, Scoreboard};
use crate::stats::RxDrop;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) enum Board {
    Selective(Scoreboard),
    Melo(MeloBoard),
}

impl Board {
    /// For a request of `req_packets` packets, none of them sent; or, if `in_order` is not 0, for a
    /// response with `in_order` packets received. `None`: the scheme has no scoreboard.
    pub(crate) fn new(
        recovery: Recovery,
        pools: &Pools,
        req_packets: u32,
        in_order: u32,
    ) -> Option<Board> {
        match recovery {
            Recovery::GoBackN | Recovery::GoBackNNack | Recovery::GoBackZero => None,
            Recovery::Melo => Some(Board::Melo(MeloBoard::new(pools, req_packets, in_order))),
            Recovery::Selective => Some(Board::Selective(Scoreboard::new(in_order))),
        }
    }

    /// Reuses it for another message, with the arguments of [`Board::new`]; `false`: not possible.
    pub(crate) fn renew(&mut self, in_order: u32) -> bool {
        match self {
            Board::Selective(board) => {
                board.begin(in_order);
                true
            }
            Board::Melo(_) => false,
        }
    }

    /// Switches from the request to the response.
    pub(crate) fn begin_response(&mut self) {
        match self {
            Board::Selective(board) => board.begin(1),
            Board::Melo(board) => board.begin_response(),
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Board>()
            + match self {
                Board::Selective(board) => board.heap_bytes(),
                Board::Melo(board) => board.heap_bytes(),
            }
    }

    /// Packets that were sent, are not in order, and are not in flight: their number, and how many
    /// of them are to be retransmitted.
    #[inline]
    pub(crate) fn idle_and_lost(&self) -> (u32, u32) {
        let (arrived, lost) = match self {
            Board::Selective(board) => (board.arrived_count(), board.lost()),
            Board::Melo(board) => (board.arrived(), board.lost()),
        };
        (arrived + lost, lost)
    }

    /// Records transmissions and retransmissions.
    #[inline]
    pub(crate) fn sent(&mut self, first: u32, count: u32, now_ns: u64) {
        match self {
            Board::Selective(board) => {
                (first..first + count).for_each(|index| board.sent(index, now_ns));
            }
            Board::Melo(board) => (first..first + count).for_each(|index| board.sent(index)),
        }
    }

    /// The lost packets to be sent next: the first, and the length of the run, at most `most`.
    pub(crate) fn next_lost(&mut self, most: u32) -> Option<(u32, u32)> {
        match self {
            Board::Selective(board) => board.next_lost(most),
            Board::Melo(board) => board.next_lost().map(|run| (run.first, run.len)),
        }
    }

    /// Takes a cumulative acknowledgement of request packets; returns the number in order, which
    /// may be higher.
    pub(crate) fn in_order(
        &mut self,
        count: u32,
        ack: AckInfo,
        feedback: &mut LossFeedback,
    ) -> u32 {
        match self {
            Board::Selective(board) => {
                if board.arrive_in_order(count) {
                    return count;
                }
                board.in_order(count, ack, feedback);
                board.conclude(ack, feedback)
            }
            Board::Melo(board) => {
                board.in_order(count);
                count
            }
        }
    }

    /// Takes a negative acknowledgement; returns the number of packets in order, and whether it
    /// acknowledged anything new.
    /// # Errors
    /// No receiver sends this content.
    pub(crate) fn on_nack(
        &mut self,
        nack: Nack<'_>,
        ack: AckInfo,
        feedback: &mut LossFeedback,
    ) -> Result<(u32, bool), RxDrop> {
        match self {
            Board::Selective(board) => {
                board.in_order(nack.count, ack, feedback);
                let news = board.on_nack(nack, ack, feedback);
                Ok((board.conclude(ack, feedback), news))
            }
            Board::Melo(board) => {
                let before = (board.arrived(), board.lost());
                if !board.on_nack(nack.count, nack.high, nack.holes.iter()) {
                    return Err(RxDrop::Inconsistent);
                }
                feedback.add_lost(board.lost().saturating_sub(before.1));
                Ok((nack.count, before != (board.arrived(), board.lost())))
            }
        }
    }

    /// Records a response packet; returns the number of packets in order.
    /// # Errors
    /// It is a duplicate, or cannot be tracked.
    pub(crate) fn on_response(
        &mut self,
        index: u32,
        ack: AckInfo,
        feedback: &mut LossFeedback,
    ) -> Result<u32, RxDrop> {
        match self {
            Board::Selective(board) => {
                if board.is_next(index) && board.arrive_in_order(index + 1) {
                    return Ok(index + 1);
                }
                if !board.arrived(index, ack, feedback) {
                    return Err(RxDrop::Duplicate);
                }
                Ok(board.conclude(ack, feedback))
            }
            Board::Melo(board) => {
                let before = board.lost();
                let (arrival, in_order) = board.on_response(index);
                feedback.add_lost(board.lost().saturating_sub(before));
                is_kept(arrival).map(|()| in_order)
            }
        }
    }

    /// Records a response packet if it is the next in order, no packet is lost, and none has arrived
    /// before a missing one. `false`: nothing was changed.
    #[inline]
    pub(crate) fn takes_next(&mut self, index: u32) -> bool {
        match self {
            Board::Selective(board) => board.is_next(index) && board.arrive_in_order(index + 1),
            Board::Melo(_) => false,
        }
    }

    /// Marks the newest packet in flight for retransmission, as a tail-loss probe. `false`: the
    /// scheme does not probe.
    pub(crate) fn probe(&mut self) -> bool {
        match self {
            Board::Selective(board) => board.probe(),
            Board::Melo(_) => false,
        }
    }

    /// All packets in flight are lost. If it returns a packet, the packets from there on are
    /// removed from the scoreboard and are to be sent as if for the first time.
    pub(crate) fn time_out(&mut self, is_response: bool, again: bool) -> Option<u32> {
        match self {
            Board::Selective(board) => {
                board.time_out();
                None
            }
            Board::Melo(board) => board.time_out(is_response, again),
        }
    }

    /// Checks its invariants.
    pub(crate) fn check(&self) {
        if let Board::Selective(board) = self {
            board.check();
        }
    }
}

/// Spare scoreboards that are kept for later messages: each has room for the credits of a session.
const SPARE_BOARDS: usize = 64;

/// State of loss recovery beside the slots: spare scoreboards, and MELO's pools of bits (M5).
#[derive(Debug)]
pub(crate) struct Boards {
    /// Boxed, since slots hold them boxed.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Board>>,
    pub(crate) pools: Pools,
}

impl Boards {
    pub(crate) fn new(size: PoolSize) -> Self {
        Boards { spare: Vec::new(), pools: Pools::new(size) }
    }

    /// A scoreboard for a request of `req_packets` packets, or a response with `in_order` packets
    /// received.
    pub(crate) fn take(
        &mut self,
        recovery: Recovery,
        req_packets: u32,
        in_order: u32,
    ) -> Option<Box<Board>> {
        if recovery == Recovery::Selective
            && let Some(mut board) = self.spare.pop()
            && board.renew(in_order)
        {
            return Some(board);
        }
        Board::new(recovery, &self.pools, req_packets, in_order).map(Box::new)
    }

    /// Takes back the scoreboard of a message that has ended.
    pub(crate) fn put(&mut self, mut board: Box<Board>) {
        if self.spare.len() < SPARE_BOARDS && board.renew(0) {
            self.spare.push(board);
        }
    }

    /// Frees the spare scoreboards, and MELO's states if no message has one.
    pub(crate) fn trim(&mut self) {
        self.spare = Vec::new();
        self.pools.trim();
    }

    /// Heap bytes of the spare scoreboards, and of MELO's states and pools.
    pub(crate) fn heap_bytes(&self) -> usize {
        let spare: usize = self.spare.iter().map(|board| board.heap_bytes()).sum();
        spare + self.pools.heap_bytes()
    }
}
