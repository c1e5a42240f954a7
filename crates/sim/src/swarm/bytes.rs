//! Contents of messages: every byte follows from a number, so that a single wrong byte, or one of
//! another message, is detected.

/// Spreads the bits of a number (Stafford's mix 13).
pub(super) fn spread(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(of: u64, at: usize) -> [u8; 8] {
    spread(of.wrapping_add((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

/// Fills a message with the bytes of a number.
pub(super) fn fill(of: u64, out: &mut [u8]) {
    for (at, part) in out.chunks_mut(8).enumerate() {
        part.copy_from_slice(&word(of, at)[..part.len()]);
    }
}

/// The first byte that differs from those of [`fill`].
pub(super) fn first_wrong(of: u64, bytes: &[u8]) -> Option<usize> {
    let mut parts = bytes.chunks(8).enumerate();
    let (at, part) = parts.find(|(at, part)| word(of, *at)[..part.len()] != **part)?;
    let within = part.iter().zip(word(of, at)).position(|(is, should)| *is != should);
    Some(at * 8 + within.unwrap_or(0))
}

/// Bytes at the start of a request that contain the number of its call.
pub(super) const NUMBER: usize = 8;

/// Writes a request: the call's number, then its bytes.
pub(super) fn write_request(number: u64, out: &mut [u8]) {
    let (head, rest) = out.split_at_mut(NUMBER.min(out.len()));
    head.copy_from_slice(&number.to_le_bytes()[..head.len()]);
    fill(spread(number), rest);
}

/// The number of a request.
pub(super) fn number_of(request: &[u8]) -> Option<u64> {
    request.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The first wrong byte of a request of that number.
pub(super) fn first_wrong_in_request(number: u64, request: &[u8]) -> Option<usize> {
    let (head, rest) = request.split_at(NUMBER.min(request.len()));
    let wrong = head.iter().zip(number.to_le_bytes()).position(|(is, should)| *is != should);
    wrong.or_else(|| first_wrong(spread(number), rest).map(|at| at + NUMBER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        for len in [0, 1, 7, 8, 9, 40, 1001] {
            let mut m = vec![0; len];
            write_request(77, &mut m);
            assert_eq!(first_wrong_in_request(77, &m), None, "{len}");
            for at in 0..len {
                m[at] ^= 1;
                assert_eq!(first_wrong_in_request(77, &m), Some(at), "{len}");
                m[at] ^= 1;
            }
        }
        let mut m = [0; 24];
        write_request(5, &mut m);
        assert_eq!((number_of(&m), number_of(&m[..7])), (Some(5), None));
    }
}
