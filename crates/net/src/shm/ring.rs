//! Ring of one sender and one receiver, in memory that both can write.
//!
//! # Layout
//! A page of words, then `slots` slots of [`SLOT`] bytes, then `data` bytes. A record is a slot: a
//! header of 16 bytes whose first word is `sequence << 32 | length`, followed by the frame if that
//! has at most [`INLINE`] bytes. Longer frames are in the data area, in whole lines, in order, and
//! never across its end; both sides compute the position from the lengths before.
//!
//! # Lines
//! * The store of its header publishes a record. The header is in the line of the frame's first
//!   bytes, so polling that line fetches both. No index of the sender is shared.
//! * Sequence numbers distinguish laps, so the receiver clears nothing and never writes to the
//!   sender's lines. Headers and frames have separate places, so no frame can pass for a header.
//! * The receiver reports its count once per eighth of the ring, and around bursts with large
//!   frames. The sender reads it only when the ring is full according to the last report.
//!
//! # Trust
//! None. The sender uses only the receiver's count, and only within the range of records in flight.
//! The receiver reads a length once, checks it, and uses the checked value. A sender that breaks
//! the rules causes wrong frames, no frames, or [`Broken`].
//!
//! # Invariants
//! 1. `consumed <= head <= consumed + slots` at the sender; likewise of the data area.
//! 2. A slot and its data are written only by the sender, and only while the receiver has counted
//!    them as consumed; they are read only between publication and that count.

use std::sync::atomic::Ordering;

use super::map::{Mapping, PAGE, Word, Words};

/// Bytes of a slot: four lines, of which a small frame uses one or two.
pub(super) const SLOT: usize = 256;
/// Bytes of a record's header. 16, so that the frame after it is aligned for 16-byte moves, and a
/// frame of 48 bytes fits the line.
const HEADER: usize = 16;
/// Largest frame that is stored in its slot.
pub(super) const INLINE: usize = SLOT - HEADER;
const LINE: usize = 64;
/// Offset of the receiver's count, in a line that the sender rarely reads.
const CONSUMED: usize = 128;
/// Prefetch distance in records.
const AHEAD: u64 = 4;
/// The receiver reports after this part of the ring.
const PART: u64 = 8;
/// A burst of frames that are read in place ends after this part of the ring.
const LENT_PART: u64 = 4;

/// The frames whose places stay occupied until the next burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lent {
    /// None: all frames are copied out.
    Nothing,
    /// Large frames, whose tails are copied later: [`Consumer::release_tails`].
    Tails,
    /// All frames: [`Consumer::release`].
    Frames,
}

/// Largest frame of any ring.
pub(super) const MAX_FRAME: usize = 65_536;
const MAX_SLOTS: u32 = 1 << 16;
const MIN_SLOTS: u32 = 16;
const MAX_DATA: u32 = 64 << 20;

const _: () = assert!(INLINE.is_multiple_of(16) && SLOT.is_power_of_two() && PAGE >= SLOT);
const _: () = assert!(MIN_SLOTS as usize * SLOT >= PAGE, "slots end at a page");

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Records: a power of two, 16 to 65,536.
    pub(super) slots: u32,
    /// Bytes for frames that do not fit a slot: a power of two, 4 KiB to 64 MiB, at least four
    /// largest frames.
    pub(super) data: u32,
    /// Largest frame, 1 to 65,536 bytes.
    pub(super) max_frame: u32,
}

impl Shape {
    /// Returns whether all values are within bounds; also checks the shape that a peer sent.
    pub(super) fn is_valid(&self) -> bool {
        let Shape { slots, data, max_frame } = *self;
        slots.is_power_of_two()
            && (MIN_SLOTS..=MAX_SLOTS).contains(&slots)
            && data.is_power_of_two()
            && (PAGE as u32..=MAX_DATA).contains(&data)
            && (1..=MAX_FRAME as u32).contains(&max_frame)
            && max_frame <= data / 4
    }

    /// Bytes of the whole ring.
    pub(super) fn bytes(&self) -> usize {
        PAGE + self.slots as usize * SLOT + self.data as usize
    }

    /// Bytes before the data area.
    pub(super) fn front(&self) -> usize {
        PAGE + self.slots as usize * SLOT
    }

    /// Eighths ([`PART`]) of a ring that are certainly free once all records were received: the
    /// receiver's report may be late, and the frames of a burst may occupy their places until the
    /// next one.
    fn parts(lent: Lent) -> usize {
        let part = PART as usize;
        // The receiver reports before it lends tails, so the two do not add up.
        part - 1 - if lent == Lent::Frames { part / LENT_PART as usize } else { 0 }
    }

    /// Number of frames of at most [`INLINE`] bytes that certainly fit.
    pub(super) fn small_frames(&self, lent: Lent) -> usize {
        self.slots as usize / PART as usize * Self::parts(lent)
    }

    /// Number of frames of the maximum size that certainly fit: as for small ones, minus the gap
    /// before the end of the data area.
    pub(super) fn frames(&self, lent: Lent) -> usize {
        let (part, parts) = (PART as usize, Self::parts(lent));
        let slots = self.small_frames(lent);
        if self.max_frame as usize <= INLINE {
            return slots;
        }
        let line = (self.max_frame as usize).next_multiple_of(LINE);
        // The last frame of a burst may extend beyond its part.
        let left = 1 + usize::from(lent != Lent::Nothing);
        let data = (self.data as usize / part * parts).saturating_sub(left * line) / line;
        slots.min(data).max(1)
    }

    #[inline]
    fn slot_at(&self, record: u64) -> usize {
        PAGE + (record as usize & (self.slots as usize - 1)) * SLOT
    }

    /// Start of a frame's data after `data_head`, and the count after it; counts never wrap.
    #[inline(always)]
    fn place(&self, data_head: u64, len: usize) -> (u64, u64) {
        let size = u64::from(self.data);
        let bytes = (len as u64).next_multiple_of(LINE as u64);
        let left = size - (data_head & (size - 1));
        let begin = if bytes <= left { data_head } else { data_head + left };
        (begin, begin + bytes)
    }

    #[inline]
    fn data_at(&self, begin: u64) -> usize {
        self.front() + (begin & (u64::from(self.data) - 1)) as usize
    }
}

/// Memory of a ring: a mapping, or a model of it.
pub(super) trait Memory: Words {
    /// Copies a few bytes in.
    fn write(&self, at: usize, src: &[u8]);
    /// Copies many bytes in.
    fn write_bulk(&self, at: usize, src: &[u8]);
    /// Copies out a whole number of 16-byte units.
    fn read(&self, at: usize, dst: &mut [u8]);
    /// Prefetches the line at `at`.
    fn prefetch(&self, at: usize);
}

impl Memory for Mapping {
    #[inline]
    fn write(&self, at: usize, src: &[u8]) {
        Mapping::write(self, at, src);
    }
    #[inline]
    fn write_bulk(&self, at: usize, src: &[u8]) {
        Mapping::write_bulk(self, at, src);
    }
    #[inline]
    fn read(&self, at: usize, dst: &mut [u8]) {
        Mapping::read(self, at, dst);
    }
    #[inline]
    fn prefetch(&self, at: usize) {
        Mapping::prefetch(self, at);
    }
}

/// The other side breaks the rules, so the ring must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The reason why a frame was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// No room until the receiver consumes more.
    Full,
    /// The receiver's count is out of range.
    Broken,
}

#[inline]
fn header(record: u64, len: usize) -> u64 {
    // Headers count records from 1, so fresh memory contains no record.
    (record.wrapping_add(1) & 0xffff_ffff) << 32 | len as u64
}

/// The sender's side.
#[derive(Debug)]
pub(super) struct Producer<M> {
    mem: M,
    shape: Shape,
    /// Records published.
    head: u64,
    /// Number of records up to which there is room according to the receiver's last report.
    limit: u64,
    data_head: u64,
    data_limit: u64,
    /// By slot: `data_head` after its record.
    data_ends: Box<[u64]>,
}

impl<M: Memory> Producer<M> {
    /// On memory that is all zero, of [`Shape::bytes`] bytes; the shape is valid.
    pub(super) fn new(mem: M, shape: Shape) -> Self {
        assert!(shape.is_valid());
        let data_ends = vec![0; shape.slots as usize].into();
        let (limit, data_limit) = (u64::from(shape.slots), u64::from(shape.data));
        Producer { mem, shape, head: 0, limit, data_head: 0, data_limit, data_ends }
    }

    /// Publishes a frame of one piece, of at most `max_frame` bytes.
    #[inline(always)]
    pub(super) fn push_one(&mut self, frame: &[u8]) -> Result<(), Refused> {
        if frame.len() > INLINE || self.head >= self.limit {
            return self.push(&[frame], frame.len());
        }
        let at = self.shape.slot_at(self.head);
        self.mem.write(at + HEADER, frame);
        self.publish(at, frame.len());
        Ok(())
    }

    /// Publishes a frame that is given as pieces, which have `len` bytes in total and at most
    /// `max_frame`.
    pub(super) fn push<P: AsRef<[u8]>>(&mut self, pieces: &[P], len: usize) -> Result<(), Refused> {
        debug_assert!(len <= self.shape.max_frame as usize);
        if self.head >= self.limit {
            self.refresh()?;
            if self.head >= self.limit {
                return Err(Refused::Full);
            }
        }
        let at = self.shape.slot_at(self.head);
        if len <= INLINE {
            self.write_pieces(at + HEADER, pieces);
        } else {
            let (begin, end) = self.shape.place(self.data_head, len);
            if end > self.data_limit {
                self.refresh()?;
                if end > self.data_limit {
                    return Err(Refused::Full);
                }
            }
            let mut to = self.shape.data_at(begin);
            for piece in pieces.iter().map(AsRef::as_ref) {
                self.mem.write_bulk(to, piece);
                to += piece.len();
            }
            self.data_head = end;
        }
        self.publish(at, len);
        Ok(())
    }

    #[inline(always)]
    fn publish(&mut self, at: usize, len: usize) {
        // Release: orders the frame before its header.
        self.mem.word(at).store(header(self.head, len), Ordering::Release);
        self.data_ends[self.head as usize & (self.data_ends.len() - 1)] = self.data_head;
        self.head += 1;
    }

    /// Writes a small frame of several pieces, last bytes first, as `Memory::write` does.
    fn write_pieces<P: AsRef<[u8]>>(&self, at: usize, pieces: &[P]) {
        let mut end = at + pieces.iter().map(|p| p.as_ref().len()).sum::<usize>();
        for piece in pieces.iter().rev().map(AsRef::as_ref) {
            end -= piece.len();
            self.mem.write(end, piece);
        }
    }

    /// Reads the receiver's count. Costs a cache miss.
    fn refresh(&mut self) -> Result<(), Refused> {
        // Acquire: orders later writes after the receiver's reads of the same places.
        let consumed = self.mem.word(CONSUMED).load(Ordering::Acquire);
        let slots = u64::from(self.shape.slots);
        let known = self.limit - slots;
        if !(known..=self.head).contains(&consumed) {
            return Err(Refused::Broken);
        }
        self.limit = consumed + slots;
        if consumed > 0 {
            let last = (consumed - 1) as usize & (self.data_ends.len() - 1);
            self.data_limit = self.data_ends[last] + u64::from(self.shape.data);
        }
        Ok(())
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Consumer<M> {
    mem: M,
    shape: Shape,
    /// Records received.
    tail: u64,
    /// Offset of the next record, and the sequence number of its header.
    at: usize,
    expected: u64,
    data_tail: u64,
    /// The counts at which the receiver reports next.
    report_at: u64,
    report_data_at: u64,
    /// The counts at which lending stops.
    lend_until: u64,
    lend_data_until: u64,
}

impl<M: Memory> Consumer<M> {
    /// On memory of [`Shape::bytes`] bytes; the shape is valid.
    pub(super) fn new(mem: M, shape: Shape) -> Self {
        assert!(shape.is_valid());
        let mut ring = Consumer {
            mem,
            shape,
            tail: 0,
            at: shape.slot_at(0),
            expected: header(0, 0),
            data_tail: 0,
            report_at: 0,
            report_data_at: 0,
            lend_until: 0,
            lend_data_until: 0,
        };
        ring.schedule_report();
        ring.release();
        ring
    }

    fn schedule_report(&mut self) {
        self.report_at = self.tail + u64::from(self.shape.slots) / PART;
        self.report_data_at = self.data_tail + u64::from(self.shape.data) / PART;
    }

    /// Length of the next frame, if there is one.
    ///
    /// # Errors
    /// The length is above the agreed maximum.
    #[inline]
    pub(super) fn peek(&self) -> Result<Option<usize>, Broken> {
        // Acquire: a header that is seen makes its record visible.
        let word = self.mem.word(self.at).load(Ordering::Acquire);
        // Prefetch the second line of a typical frame too, even if it is not written yet: the
        // sender's store invalidates the line, and the next poll prefetches it again.
        self.mem.prefetch(self.at + LINE);
        let len = word ^ self.expected;
        if len > 0xffff_ffff {
            // While the ring is empty there is time to prefetch the slot's other lines.
            self.mem.prefetch(self.at + 2 * LINE);
            self.mem.prefetch(self.at + 3 * LINE);
            return Ok(None);
        }
        let len = len as usize;
        if len > self.shape.max_frame as usize { Err(Broken) } else { Ok(Some(len)) }
    }

    /// Copies the next frame out and counts it. `len` is the result of [`Consumer::peek`]; `dst` is
    /// `len` rounded up to 16-byte units.
    #[inline]
    pub(super) fn pop(&mut self, len: usize, dst: &mut [u8]) {
        debug_assert_eq!(dst.len(), len.next_multiple_of(16));
        let at = self.take(len);
        self.mem.read(at, dst);
        self.report();
    }

    /// Advances over the next frame and returns its offset. `len` is the result of
    /// [`Consumer::peek`]. The place is not reused before the next report.
    #[inline(always)]
    fn take(&mut self, len: usize) -> usize {
        let ahead = self.shape.slot_at(self.tail + AHEAD);
        self.mem.prefetch(ahead);
        self.mem.prefetch(ahead + LINE);
        let at = if len <= INLINE {
            self.at + HEADER
        } else {
            let (begin, end) = self.shape.place(self.data_tail, len);
            self.data_tail = end;
            self.shape.data_at(begin)
        };
        self.tail += 1;
        (self.at, self.expected) = (self.shape.slot_at(self.tail), header(self.tail, 0));
        at
    }

    /// Reports the count to the sender if a report is due.
    #[inline(always)]
    fn report(&mut self) {
        if self.tail >= self.report_at || self.data_tail >= self.report_data_at {
            self.report_now();
        }
    }

    #[inline]
    fn report_now(&mut self) {
        // Release: orders the reads of all counted records before the count.
        self.mem.word(CONSUMED).store(self.tail, Ordering::Release);
        self.schedule_report();
    }

    /// Like [`Consumer::pop`] without the copy: the offset of the frame, valid until
    /// [`Consumer::release`]. `None`: the limit of lent frames is reached; the sender needs the
    /// rest.
    #[inline]
    pub(super) fn lend(&mut self, len: usize) -> Option<usize> {
        let more = self.tail < self.lend_until && self.data_tail < self.lend_data_until;
        more.then(|| self.take(len))
    }

    /// Releases all lent frames.
    #[inline]
    pub(super) fn release(&mut self) {
        self.report();
        self.lend_until = self.tail + u64::from(self.shape.slots) / LENT_PART;
        self.lend_data_until = self.data_tail + u64::from(self.shape.data) / LENT_PART;
    }

    /// Like [`Consumer::release`] for a ring that lends only tails of large frames. The limit is an
    /// eighth of the ring and the report is immediate, so the ring has as much room as with copies,
    /// minus one frame.
    #[inline]
    pub(super) fn release_tails(&mut self) {
        if self.tail + u64::from(self.shape.slots) / PART != self.report_at {
            self.report_now();
        }
        self.lend_until = self.tail + u64::from(self.shape.slots) / PART;
        self.lend_data_until = self.data_tail + u64::from(self.shape.data) / PART;
    }

    /// The memory of lent frames.
    pub(super) fn memory(&self) -> &M {
        &self.mem
    }

    /// Records received so far.
    pub(super) fn received(&self) -> u64 {
        self.tail
    }

    /// The size of the ring.
    pub(super) fn shape(&self) -> Shape {
        self.shape
    }
}
