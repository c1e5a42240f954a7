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

/// Returns whether a well-formed frame carries no send time.
#[inline(always)]
pub(crate) fn is_untimed(frame: &[u8]) -> bool {
    frame.get(1).is_some_and(|flags| flags & FLAG_UNTIMED != 0)
}

impl FrameHeader {
    /// Parses a frame header; returns it and the bytes after it.
    ///
    /// # Errors
    /// The frame is too short, of another version, or has an undefined flag.
    #[inline(always)] // inlined into the receive path, where the fields stay in registers
    pub fn parse(bytes: &[u8]) -> Result<(FrameHeader, &[u8]), Malformed> {
        let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER>().ok_or(Malformed::Truncated)?;
        let ([low, middle, high], tail) = head.as_chunks::<8>() else {
            return Err(Malformed::Truncated);
        };
        let [low, middle, high] = [low, middle, high].map(|word| u64::from_le_bytes(*word));
        let echo_at = tail.first_chunk().map_or(0, |tail| u32::from_le_bytes(*tail));
        if low as u8 != WIRE_VERSION {
            return Err(Malformed::Version);
        }
        let flags = (low >> 8) as u8;
        if flags > FLAG_UNTIMED {
            return Err(Malformed::Flags);
        }
        let header = FrameHeader {
            data_per_packet: (low >> 16) as u16,
            cookie: (low >> 32) as u32,
            peer: middle as u32 & MAX_PEER,
            held: (middle >> 24) as u8,
            number: (middle >> 32) as u32,
            ecn: EcnCounts { marked: high as u16, received: (high >> 16) as u16 },
            sent_at: (flags & FLAG_UNTIMED == 0).then_some((high >> 32) as u32),
            echo_at: (flags & FLAG_ECHO != 0).then_some(echo_at),
        };
        Ok((header, rest))
    }

    /// Writes the header. Without a send time the echo is omitted.
    #[inline(always)] // inlined into the frame builder, where the fields are in registers
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
