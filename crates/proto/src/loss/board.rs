//! What a client slot knows of the packets of its message, whatever the scheme. A session with
//! go-back-N has none, nor has a message of one packet.

use super::melo_board::MeloBoard;
use super::pooled::{self, Pools};
use super::{Heard, Nack, Recovery, Scoreboard, Seen};
use crate::stats::Drop;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) enum Board {
    Selective(Scoreboard),
    Melo(MeloBoard),
}

impl Board {
    /// For a request of so many packets, of which none was sent, or, if `in_order` is not 0, for a
    /// response of which so many have arrived. `None`: the scheme has no use for one.
    pub(crate) fn new(
        recovery: Recovery,
        pools: &Pools,
        req_packets: u32,
        in_order: u32,
    ) -> Option<Board> {
        match recovery {
            Recovery::GoBackN => None,
            Recovery::Melo => Some(Board::Melo(MeloBoard::new(pools, req_packets, in_order))),
            Recovery::Selective => Some(Board::Selective(Scoreboard::new(in_order))),
        }
    }

    /// Makes it one for another message, as [`Board::new`]; `false`: it has to be a new one.
    pub(crate) fn renew(&mut self, in_order: u32) -> bool {
        match self {
            Board::Selective(board) => {
                board.begin(in_order);
                true
            }
            Board::Melo(_) => false,
        }
    }

    /// The response has begun.
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

    /// Packets that were sent, are not in order, and are not on their way: how many, and how many of
    /// them are to be sent again.
    #[inline]
    pub(crate) fn idle_and_lost(&self) -> (u32, u32) {
        let (arrived, lost) = match self {
            Board::Selective(board) => (board.arrived_count(), board.lost()),
            Board::Melo(board) => (board.arrived(), board.lost()),
        };
        (arrived + lost, lost)
    }

    /// Packets are sent, for the first time or again.
    #[inline]
    pub(crate) fn sent(&mut self, first: u32, count: u32, now_ns: u64) {
        match self {
            Board::Selective(board) => {
                (first..first + count).for_each(|index| board.sent(index, now_ns));
            }
            Board::Melo(board) => (first..first + count).for_each(|index| board.sent(index)),
        }
    }

    /// The lost packets that are to be sent next: the first one and how many in a row, at most `most`.
    pub(crate) fn next_lost(&mut self, most: u32) -> Option<(u32, u32)> {
        match self {
            Board::Selective(board) => board.next_lost(most),
            Board::Melo(board) => board.next_lost().map(|run| (run.first, run.len)),
        }
    }

    /// So many packets of the request have arrived in order; or more, as it knows itself.
    pub(crate) fn in_order(&mut self, count: u32, heard: Heard, seen: &mut Seen) -> u32 {
        match self {
            Board::Selective(board) => {
                if board.arrive_in_order(count) {
                    return count;
                }
                board.in_order(count, heard, seen);
                board.conclude(heard, seen)
            }
            Board::Melo(board) => {
                board.in_order(count);
                count
            }
        }
    }

    /// Takes a negative acknowledgement; gives how many packets are in order, and whether any of it
    /// was news.
    ///
    /// # Errors
    /// No receiver sends that.
    pub(crate) fn on_nack(
        &mut self,
        nack: Nack<'_>,
        heard: Heard,
        seen: &mut Seen,
    ) -> Result<(u32, bool), Drop> {
        match self {
            Board::Selective(board) => {
                board.in_order(nack.count, heard, seen);
                let news = board.on_nack(nack, heard, seen);
                Ok((board.conclude(heard, seen), news))
            }
            Board::Melo(board) => {
                let before = (board.arrived(), board.lost());
                if !board.on_nack(nack.count, nack.high, nack.holes.iter()) {
                    return Err(Drop::Inconsistent);
                }
                seen.add_lost(board.lost().saturating_sub(before.1));
                Ok((nack.count, before != (board.arrived(), board.lost())))
            }
        }
    }

    /// A packet of the response has arrived; gives how many are in order.
    ///
    /// # Errors
    /// It has been here before, or cannot be kept.
    pub(crate) fn on_response(
        &mut self,
        index: u32,
        heard: Heard,
        seen: &mut Seen,
    ) -> Result<u32, Drop> {
        match self {
            Board::Selective(board) => {
                if board.is_next(index) && board.arrive_in_order(index + 1) {
                    return Ok(index + 1);
                }
                if !board.arrived(index, heard, seen) {
                    return Err(Drop::Duplicate);
                }
                Ok(board.conclude(heard, seen))
            }
            Board::Melo(board) => {
                let before = board.lost();
                let (arrival, in_order) = board.on_response(index);
                seen.add_lost(board.lost().saturating_sub(before));
                pooled::is_kept(arrival).map(|()| in_order)
            }
        }
    }

    /// The newest packet on its way is to be sent again, to see what has become of the others.
    /// `false`: that is not done.
    pub(crate) fn probe(&mut self) -> bool {
        match self {
            Board::Selective(board) => board.probe(),
            Board::Melo(_) => false,
        }
    }

    /// All packets on their way are lost. If it gives a packet, those from there on are forgotten, and
    /// to be sent as if for the first time.
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

/// Boards that are kept for messages to come: each has room for the credits of a session.
const SPARE_BOARDS: usize = 64;

/// What loss recovery needs besides the slots: spare boards, and MELO's pools of bits (M5).
#[derive(Debug)]
pub(crate) struct Boards {
    /// Boxed, as slots have them.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Board>>,
    pub(crate) pools: Pools,
}

impl Boards {
    pub(crate) fn new() -> Self {
        Boards { spare: Vec::new(), pools: Pools::new() }
    }

    /// A board for a request of so many packets, or a response of which `in_order` have arrived.
    #[cold]
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

    /// A message needs its board no more.
    pub(crate) fn put(&mut self, mut board: Box<Board>) {
        if self.spare.len() < SPARE_BOARDS && board.renew(0) {
            self.spare.push(board);
        }
    }

    /// Frees the spare boards.
    pub(crate) fn trim(&mut self) {
        self.spare = Vec::new();
    }

    /// Bytes of the spare boards on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.spare.iter().map(|board| board.heap_bytes()).sum()
    }
}
