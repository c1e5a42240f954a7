//! Destination of the packets of one slot: the batch and the peer.

use std::ops::Range;

use courser_buf::{Arena, MsgBuf, TxBurst};

use super::TxBatch;
use super::batch::{Direct, Piece};
use crate::peer::Peer;
use crate::stats::EndpointStats;
use crate::wire::{PACKET_HEADER, header_words};

/// See the module's documentation.
pub(super) struct Lane<'a> {
    pub(super) tx: &'a mut TxBatch,
    pub(super) arena: &'a Arena,
    pub(super) stats: &'a mut EndpointStats,
    pub(super) inline_max: usize,
    pub(super) peer: &'a mut Peer,
    pub(super) out: &'a mut TxBurst,
}

impl Lane<'_> {
    /// Adds a packet without data; `kind` as in [`EndpointStats::tx_kinds`]. `false`: no room.
    #[inline]
    pub(super) fn header_only(&mut self, kind: usize, header: [u8; PACKET_HEADER]) -> bool {
        self.short(kind, header, &[])
    }

    /// Adds a packet with a copy of its data. `false`: no room.
    #[inline]
    pub(super) fn short(&mut self, kind: usize, header: [u8; PACKET_HEADER], data: &[u8]) -> bool {
        let header = header_words(header);
        let sent = self.tx.append(self.peer, self.arena, header, data);
        if sent {
            self.stats.sent(kind);
        }
        sent
    }

    /// Adds packet `index` of `msg`, with `range` of its data. `false`: no room.
    pub(super) fn part(
        &mut self,
        kind: usize,
        header: [u8; PACKET_HEADER],
        msg: &mut MsgBuf,
        index: u32,
        range: Range<usize>,
    ) -> bool {
        let Some(data) = msg.get(range.clone()) else { return false };
        let sent = if data.len() <= self.inline_max {
            let header = header_words(header);
            self.tx.append(self.peer, self.arena, header, data)
        } else {
            let gathers = self.tx.gathers(self.peer, data.len());
            let piece = Piece { header, msg, index, range };
            let how = if gathers {
                self.tx.gather(self.peer, self.arena, piece)
            } else {
                self.tx.direct(self.peer, self.arena, piece, self.out)
            };
            self.stats.tx_copied += u64::from(how == Direct::Copied);
            how != Direct::NoRoom
        };
        if sent {
            self.stats.sent(kind);
        }
        sent
    }
}
