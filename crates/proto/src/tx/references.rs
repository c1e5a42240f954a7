//! The pieces of a gathered frame that are not in its staging buffer.

use courser_buf::TxSeg;

/// The packets of an open frame that are references.
#[derive(Debug, Default)]
pub(super) struct References {
    /// Each piece, and the number of bytes of the staging buffer that precede it.
    pieces: Vec<(u32, TxSeg)>,
    /// Pieces of the staging buffer before the last of these.
    runs: u32,
    /// Bytes of the pieces.
    bytes: u32,
}

impl References {
    pub(super) fn add(&mut self, at: u32, seg: TxSeg) {
        let from = self.pieces.last().map_or(0, |(at, _)| *at);
        self.runs += u32::from(at > from);
        self.bytes += seg.len() as u32;
        self.pieces.push((at, seg));
    }

    /// Most pieces of the frame when `more` are added to it, whose staging buffer has `len` bytes.
    pub(super) fn pieces_with(&self, more: usize, len: u32) -> usize {
        // Copies may follow the added ones.
        self.pieces.len() + self.runs_of(len) + more + 1
    }

    /// Pieces of a staging buffer with `len` bytes.
    pub(super) fn runs_of(&self, len: u32) -> usize {
        let last = self.pieces.last().map_or(0, |(at, _)| *at);
        self.runs as usize + usize::from(len > last)
    }

    /// The pieces, each with the number of bytes of the staging buffer that precede it.
    pub(super) fn pieces(&self) -> &[(u32, TxSeg)] {
        &self.pieces
    }

    /// Bytes of the pieces.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Takes the pieces; the list is empty then.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (u32, TxSeg)> + '_ {
        (self.runs, self.bytes) = (0, 0);
        self.pieces.drain(..)
    }
}
