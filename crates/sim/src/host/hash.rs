//! A hash of frames' bytes: the same whatever pieces they come in, and on every machine.

/// A running hash over numbers: the event log's digest.
#[derive(Clone, Debug)]
pub(crate) struct Mix(u64);

impl Mix {
    pub(crate) fn new(seed: u64) -> Self {
        Mix(seed ^ 0x243f_6a88_85a3_08d3)
    }

    #[inline]
    pub(crate) fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word) * 0x9fb2_1c65_1e98_df25_u128;
        self.0 = (wide as u64) ^ (wide >> 64) as u64 ^ 0x1319_8a2e_0370_7344;
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}

/// Hashes the bytes of all pieces, as if they were one.
pub(crate) fn payload_hash<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut h = Hasher { state: Mix::new(0), word: 0, bits: 0, len: 0 };
    for piece in pieces {
        h.add(piece);
    }
    h.state.mix(h.word);
    h.state.mix(h.len);
    h.state.finish()
}

struct Hasher {
    state: Mix,
    /// Bytes that do not fill a word yet.
    word: u64,
    bits: u32,
    len: u64,
}

impl Hasher {
    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let word = u64::from_le_bytes(*word);
            if self.bits == 0 {
                self.state.mix(word);
            } else {
                self.state.mix(self.word | word << self.bits);
                self.word = word >> (64 - self.bits);
            }
        }
        for &byte in rest {
            self.word |= u64::from(byte) << self.bits;
            self.bits += 8;
            if self.bits == 64 {
                let word = std::mem::take(&mut self.word);
                self.bits = 0;
                self.state.mix(word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_matter_and_every_bit_does() {
        let bytes: Vec<u8> = (0..61u8).collect();
        let whole = payload_hash(std::iter::once(&bytes[..]));
        for a in 0..bytes.len() {
            for b in a..bytes.len() {
                let pieces = [&bytes[..a], &bytes[a..b], &bytes[b..]];
                assert_eq!(payload_hash(pieces.into_iter()), whole, "{a} {b}");
            }
        }
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(payload_hash(std::iter::once(&other[..])), whole, "{bit}");
        }
        let longer = [bytes.clone(), vec![0]].concat();
        assert_ne!(payload_hash(std::iter::once(&longer[..])), whole);
    }
}
