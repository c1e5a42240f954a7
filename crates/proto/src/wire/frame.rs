//! The frame header: 28 bytes, the same for every frame.

use super::Malformed;

/// First byte of every frame: protocol number in the high nibble, version in the low nibble.
pub const WIRE_VERSION: u8 = 0xC2;

/// Bytes of a frame header.
pub const FRAME_HEADER: usize = 28;

/// Largest peer number: 24 bits.
pub const MAX_PEER: u32 = (1 << 24) - 1;

/// `echo_at` is valid.
const FLAG_ECHO: u8 = 0x01;
/// `sent_at` is not valid; then neither is `echo_at`.
const FLAG_UNTIMED: u8 = 0x02;

/// Cumulative counts of received frames, modulo 2^16, as echoed to the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EcnCounts {
    /// Frames that arrived with the mark "congestion experienced".
    pub marked: u16,
    /// Frames that arrived.
    pub received: u16,
}

/// A frame's header, checked for form. Peer, cookie and source are checked in `ingress`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Data bytes per full packet in this frame's messages, agreed at connect.
    pub data_per_packet: u16,
    /// Random number of the receiver for this incarnation of the connection.
    pub cookie: u32,
    /// The receiver's number for the sender, at most [`MAX_PEER`].
    pub peer: u32,
    /// How long the oldest packet waited in the frame before the frame was completed, encoded by
    /// [`encode_held`], rounded up.
    pub held: u8,
    /// Low 32 bits of the frame number; never used twice in one direction.
    pub number: u32,
    /// Frames that the sender has received from the receiver of this frame.
    pub ecn: EcnCounts,
    /// The sender's clock when it completed the frame: nanoseconds modulo 2^32. `None`: the clock
    /// was not read; then there is no echo either.
    pub sent_at: Option<u32>,
    /// The newest `sent_at` that the sender has received, plus the time the sender has held it. The
    /// receiver's clock minus this value is a round trip without the peer's processing time.
    pub echo_at: Option<u32>,
}

/// The bytes after the header of a well-formed frame; arbitrary bytes for any other input.
#[inline]
pub(crate) fn body_of(frame: &[u8]) -> &[u8] {
    frame.get(FRAME_HEADER..).unwrap_or_default()
}

/// A frame of sufficient length, whose header is not checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UncheckedFrame<'f> {
    words: [u64; 3],
    echo_at: u32,
    /// The bytes after the header.
    pub(crate) rest: &'f [u8],
}

impl<'f> UncheckedFrame<'f> {
    /// `None`: the frame is too short.
    #[inline]
    pub(crate) fn of(frame: &'f [u8]) -> Option<Self> {
        let (head, rest) = frame.split_first_chunk::<FRAME_HEADER>()?;
        let ([low, middle, high], tail) = head.as_chunks::<8>() else { return None };
        let words = [low, middle, high].map(|word| u64::from_le_bytes(*word));
        let echo_at = tail.first_chunk().map_or(0, |tail| u32::from_le_bytes(*tail));
        Some(UncheckedFrame { words, echo_at, rest })
    }

    /// # Errors
    /// The frame is of another version, or has an undefined flag.
    #[inline]
    fn check(&self) -> Result<(), Malformed> {
        if self.words[0] as u8 != WIRE_VERSION {
            return Err(Malformed::Version);
        }
        if self.flags() > FLAG_UNTIMED { Err(Malformed::Flags) } else { Ok(()) }
    }

    #[inline]
    fn flags(&self) -> u8 {
        (self.words[0] >> 8) as u8
    }

    /// Returns whether it carries no send time.
    #[inline]
    pub(crate) fn is_untimed(&self) -> bool {
        self.flags() & FLAG_UNTIMED != 0
    }

    /// Returns whether its first word is that of [`front_word`], with valid flags.
    #[inline]
    pub(crate) fn begins_with(&self, front: u64) -> bool {
        let word = self.words[0];
        word == front | u64::from(FLAG_UNTIMED) << 8 || word & !(u64::from(FLAG_ECHO) << 8) == front
    }

    /// The header, if its form is valid.
    #[inline]
    pub(crate) fn header(&self) -> FrameHeader {
        let ([low, middle, high], flags) = (self.words, self.flags());
        FrameHeader {
            data_per_packet: (low >> 16) as u16,
            cookie: (low >> 32) as u32,
            peer: middle as u32 & MAX_PEER,
            held: (middle >> 24) as u8,
            number: (middle >> 32) as u32,
            ecn: EcnCounts { marked: high as u16, received: (high >> 16) as u16 },
            sent_at: (flags & FLAG_UNTIMED == 0).then_some((high >> 32) as u32),
            echo_at: (flags & FLAG_ECHO != 0).then_some(self.echo_at),
        }
    }
}

/// The first word of a frame with this packet size and cookie, without flags. Never 0.
pub(crate) fn front_word(data_per_packet: u16, cookie: u32) -> u64 {
    u64::from(WIRE_VERSION) | u64::from(data_per_packet) << 16 | u64::from(cookie) << 32
}

impl FrameHeader {
    /// Parses a frame header; returns it and the bytes after it.
    ///
    /// # Errors
    /// The frame is too short, of another version, or has an undefined flag.
    pub fn parse(bytes: &[u8]) -> Result<(FrameHeader, &[u8]), Malformed> {
        let frame = UncheckedFrame::of(bytes).ok_or(Malformed::Truncated)?;
        frame.check()?;
        Ok((frame.header(), frame.rest))
    }

    /// Writes the header. Without a send time the echo is omitted.
    #[inline]
    pub fn write(&self, out: &mut [u8; FRAME_HEADER]) {
        let echo_at = self.echo_at.filter(|_| self.sent_at.is_some());
        let flags = if echo_at.is_some() { FLAG_ECHO } else { 0 }
            | if self.sent_at.is_none() { FLAG_UNTIMED } else { 0 };
        let first =
            u32::from(WIRE_VERSION) | u32::from(flags) << 8 | u32::from(self.data_per_packet) << 16;
        let second = self.peer & MAX_PEER | u32::from(self.held) << 24;
        let counts = u32::from(self.ecn.marked) | u32::from(self.ecn.received) << 16;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            pair(first, self.cookie),
            pair(second, self.number),
            pair(counts, self.sent_at.unwrap_or(0)),
        ];
        let (head, tail) = out.as_chunks_mut::<8>();
        for (out, word) in head.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
        tail.copy_from_slice(&echo_at.unwrap_or(0).to_le_bytes());
    }
}

/// The smallest code whose time is at least `held_ns`: microseconds up to 7, then a five-bit
/// exponent and a three-bit mantissa. Saturates at 4.5 hours.
#[inline]
pub fn encode_held(held_ns: u64) -> u8 {
    let us = held_ns.div_ceil(1_000);
    if us < 8 {
        return us as u8;
    }
    let exponent = u64::BITS - 4 - us.leading_zeros();
    // Rounded up; a mantissa that overflows is the first of the next exponent.
    let mantissa = us.div_ceil(1 << exponent) as u32 - 8;
    (((exponent + 1) << 3) + mantissa).min(0xff) as u8
}

/// The time of a code in microseconds.
#[inline]
pub fn decode_held(code: u8) -> u64 {
    match code >> 3 {
        0 => code.into(),
        exponent => (8 + u64::from(code & 7)) << (exponent - 1),
    }
}
