//! The frame header: 24 bytes, and 8 more when it carries ECN counts.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Malformed;

/// First byte of every frame: protocol mark in the high nibble, version in the low one.
pub const WIRE_VERSION: u8 = 0xC1;

/// Bytes of a frame header without extensions.
pub const FRAME_HEADER: usize = size_of::<RawHeader>();

/// Bytes of a frame header with every extension of this version.
pub const FRAME_HEADER_MAX: usize = FRAME_HEADER + size_of::<RawEcn>();

const _: () = assert!(FRAME_HEADER == 24 && FRAME_HEADER_MAX == 32);

/// `echo_at` is valid.
const FLAG_ECHO: u8 = 0x01;
/// The ECN extension follows the fixed header.
const FLAG_ECN: u8 = 0x02;
/// `sent_at` is not valid; then neither is `echo_at`.
const FLAG_UNTIMED: u8 = 0x04;
const KNOWN_FLAGS: u8 = FLAG_ECHO | FLAG_ECN | FLAG_UNTIMED;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    version: u8,
    flags: u8,
    data_per_packet: U16,
    peer: U32,
    cookie: U32,
    number: U32,
    sent_at: U32,
    echo_at: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEcn {
    marked: U32,
    received: U32,
}

/// Cumulative counts of what arrived from the other side, modulo 2^32 (F11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EcnCounts {
    /// Frames that arrived marked "congestion experienced".
    pub marked: u32,
    /// Frames that arrived.
    pub received: u32,
}

/// A frame's header, checked for form; whether it may be believed is the endpoint's question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Data bytes per full packet in this frame's messages, agreed at connect (F10).
    pub data_per_packet: u16,
    /// The receiver's number for the sender.
    pub peer: u32,
    /// The receiver's secret for this incarnation of the connection (F14).
    pub cookie: u32,
    /// Low 32 bits of the frame's number; never used twice in a direction (F2).
    pub number: u32,
    /// The sender's clock when it built the frame: nanoseconds modulo 2^32. `None`: it has not looked
    /// at its clock, and there is no echo.
    pub sent_at: Option<u32>,
    /// The newest `sent_at` the sender has received, advanced by the time it has held it (F5), so
    /// that the receiver's clock less this is a round trip without the peer's processing.
    pub echo_at: Option<u32>,
    /// What the sender has received so far, when it reports it (F11).
    pub ecn: Option<EcnCounts>,
}

/// What follows the header of a frame that is well-formed; of any other, anything in it.
#[inline]
pub(crate) fn body_of(frame: &[u8]) -> &[u8] {
    let counts = frame.get(1).is_some_and(|flags| flags & FLAG_ECN != 0);
    frame.get(if counts { FRAME_HEADER_MAX } else { FRAME_HEADER }..).unwrap_or_default()
}

/// Whether a well-formed frame says no time, so that it does not matter when exactly it arrives.
#[inline]
pub fn is_untimed(frame: &[u8]) -> bool {
    frame.get(1).is_some_and(|flags| flags & FLAG_UNTIMED != 0)
}

/// A header with both times or none, and without extensions: all but the first ones of a
/// connection, while no frame is marked. It is told by its first two bytes, and read and written in
/// whole words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlainHeader {
    pub(crate) data_per_packet: u16,
    pub(crate) peer: u32,
    pub(crate) cookie: u32,
    pub(crate) number: u32,
    pub(crate) times: Option<Times>,
}

/// The times of a frame: see [`FrameHeader`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    pub(crate) sent_at: u32,
    pub(crate) echo_at: u32,
}

const PLAIN: u16 = WIRE_VERSION as u16 | (FLAG_ECHO as u16) << 8;
const PLAIN_UNTIMED: u16 = WIRE_VERSION as u16 | (FLAG_UNTIMED as u16) << 8;

impl PlainHeader {
    /// The header of a frame that has such a one, with times or without, and the bytes behind it.
    #[inline(always)]
    pub(crate) fn parse<const TIMED: bool>(bytes: &[u8]) -> Option<(PlainHeader, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER>()?;
        let ([low, middle, high], []) = head.as_chunks::<8>() else { return None };
        let [low, middle, high] = [low, middle, high].map(|word| u64::from_le_bytes(*word));
        if low as u16 != if TIMED { PLAIN } else { PLAIN_UNTIMED } {
            return None;
        }
        let times = Times { sent_at: high as u32, echo_at: (high >> 32) as u32 };
        let times = if TIMED { Some(times) } else { None };
        let header = PlainHeader {
            data_per_packet: (low >> 16) as u16,
            peer: (low >> 32) as u32,
            cookie: middle as u32,
            number: (middle >> 32) as u32,
            times,
        };
        Some((header, rest))
    }

    #[inline(always)]
    pub(crate) fn write(&self, out: &mut [u8; FRAME_HEADER]) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (mark, times) = match self.times {
            Some(Times { sent_at, echo_at }) => (PLAIN, pair(sent_at, echo_at)),
            None => (PLAIN_UNTIMED, 0),
        };
        let first = u32::from(mark) | u32::from(self.data_per_packet) << 16;
        let words = [pair(first, self.peer), pair(self.cookie, self.number), times];
        for (out, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
    }
}

impl FrameHeader {
    /// Parses the header of a frame; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(FrameHeader, &[u8]), Malformed> {
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if raw.version != WIRE_VERSION {
            return Err(Malformed::Version);
        }
        let untimed = raw.flags & FLAG_UNTIMED != 0;
        if raw.flags & !KNOWN_FLAGS != 0 || (untimed && raw.flags & FLAG_ECHO != 0) {
            return Err(Malformed::Flags);
        }
        let (ecn, rest) = if raw.flags & FLAG_ECN != 0 {
            let (e, rest) = RawEcn::ref_from_prefix(rest).map_err(|_| Malformed::Truncated)?;
            (Some(EcnCounts { marked: e.marked.get(), received: e.received.get() }), rest)
        } else {
            (None, rest)
        };
        let header = FrameHeader {
            data_per_packet: raw.data_per_packet.get(),
            peer: raw.peer.get(),
            cookie: raw.cookie.get(),
            number: raw.number.get(),
            sent_at: (!untimed).then_some(raw.sent_at.get()),
            echo_at: (raw.flags & FLAG_ECHO != 0).then_some(raw.echo_at.get()),
            ecn,
        };
        Ok((header, rest))
    }

    /// Bytes this header takes on the wire.
    #[inline]
    pub fn wire_len(&self) -> usize {
        if self.ecn.is_some() { FRAME_HEADER_MAX } else { FRAME_HEADER }
    }

    /// Writes the header to the first [`FrameHeader::wire_len`] bytes of `out`.
    ///
    /// # Panics
    /// When `out` is shorter: a mistake of ours, not of the peer.
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        let echo_at = self.echo_at.filter(|_| self.sent_at.is_some());
        let flags = if echo_at.is_some() { FLAG_ECHO } else { 0 }
            | if self.ecn.is_some() { FLAG_ECN } else { 0 }
            | if self.sent_at.is_none() { FLAG_UNTIMED } else { 0 };
        let raw = RawHeader {
            version: WIRE_VERSION,
            flags,
            data_per_packet: self.data_per_packet.into(),
            peer: self.peer.into(),
            cookie: self.cookie.into(),
            number: self.number.into(),
            sent_at: self.sent_at.unwrap_or(0).into(),
            echo_at: echo_at.unwrap_or(0).into(),
        };
        out[..FRAME_HEADER].copy_from_slice(raw.as_bytes());
        if let Some(e) = self.ecn {
            let raw = RawEcn { marked: e.marked.into(), received: e.received.into() };
            out[FRAME_HEADER..FRAME_HEADER_MAX].copy_from_slice(raw.as_bytes());
        }
    }
}
