//! The messages of the soak test. The number of a call determines every byte of its request and its
//! response, so both sides can check that a message is correct and belongs to the call.
//!
//! | type | handler | request | response |
//! | --- | --- | --- | --- |
//! | `HELLO` | dispatch | empty | the server's incarnation |
//! | `ECHO` | dispatch | header, pattern | number, incarnation, pattern |
//! | `WORK` | worker, takes `work_us` | " | " |
//! | `NESTED` | dispatch, calls `LEAF` at another server first | " | " |
//! | `LEAF` | dispatch | " | " |
//! | `TINY` | dispatch | 0 to 15 bytes, no header | its bytes, inverted |

pub(super) const HELLO: u16 = 1;
pub(super) const ECHO: u16 = 2;
pub(super) const WORK: u16 = 3;
pub(super) const NESTED: u16 = 4;
pub(super) const LEAF: u16 = 5;
pub(super) const TINY: u16 = 6;

/// Bytes of [`Header`]; a shorter request is `TINY`.
pub(super) const HEADER: usize = 16;

const REQUEST_SALT: u64 = 0x5265_7175_6573_7421;
const RESPONSE_SALT: u64 = 0x416e_7377_6572_2121;

/// The first bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Number of the call, unique in a run.
    pub(super) id: u64,
    /// Length of the response.
    pub(super) resp_len: u32,
    /// Duration of a worker handler, microseconds.
    pub(super) work_us: u32,
}

impl Header {
    /// Writes a whole request; `out` has at least [`HEADER`] bytes.
    pub(super) fn fill_request(&self, out: &mut [u8]) {
        let (header, body) = out.split_at_mut(HEADER);
        header[..8].copy_from_slice(&self.id.to_le_bytes());
        header[8..12].copy_from_slice(&self.resp_len.to_le_bytes());
        header[12..].copy_from_slice(&self.work_us.to_le_bytes());
        fill(self.id ^ REQUEST_SALT, body);
    }

    /// Reads a request; `None` if one of its bytes is wrong.
    pub(super) fn check_request(request: &[u8]) -> Option<Self> {
        let (header, body) = request.split_at_checked(HEADER)?;
        let word = |at: usize| header[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let id = u64::from_le_bytes(header[..8].try_into().ok()?);
        let read = Self { id, resp_len: word(8)?, work_us: word(12)? };
        is_filled(id ^ REQUEST_SALT, body).then_some(read)
    }
}

/// Writes the response to call `id`; its length is that of `out`.
pub(super) fn fill_response(id: u64, incarnation: u64, out: &mut [u8]) {
    let start = response_start(id, incarnation);
    let head = out.len().min(start.len());
    out[..head].copy_from_slice(&start[..head]);
    fill(id ^ RESPONSE_SALT, &mut out[head..]);
}

/// Whether `response` is the response of `len` bytes to call `id` from this incarnation.
pub(super) fn is_response(id: u64, incarnation: u64, len: usize, response: &[u8]) -> bool {
    let start = response_start(id, incarnation);
    let head = response.len().min(start.len());
    response.len() == len
        && response[..head] == start[..head]
        && is_filled(id ^ RESPONSE_SALT, &response[head..])
}

/// The incarnation in a response; `None` if the response is too short.
pub(super) fn incarnation_of(response: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(response.get(8..16)?.try_into().ok()?))
}

fn response_start(id: u64, incarnation: u64) -> [u8; 16] {
    let mut start = [0; 16];
    start[..8].copy_from_slice(&id.to_le_bytes());
    start[8..].copy_from_slice(&incarnation.to_le_bytes());
    start
}

/// Writes a `TINY` request.
pub(super) fn fill_tiny(id: u64, out: &mut [u8]) {
    fill(id, out);
}

/// The response to a `TINY` request, and its length.
pub(super) fn tiny_response(request: &[u8]) -> ([u8; HEADER], usize) {
    let mut out = [0; HEADER];
    let len = request.len().min(HEADER);
    out.iter_mut().zip(request).for_each(|(o, r)| *o = !r);
    (out, len)
}

/// Whether `response` is the response to the `TINY` call `id` of `len` bytes.
pub(super) fn is_tiny_response(id: u64, len: usize, response: &[u8]) -> bool {
    let mut request = [0; HEADER];
    let Some(request) = request.get_mut(..len) else { return false };
    fill_tiny(id, request);
    response.len() == len && response.iter().zip(&*request).all(|(a, b)| *a == !*b)
}

/// The `k`-th word of a pattern (splitmix64: Steele et al., OOPSLA '14).
fn word(seed: u64, k: u64) -> u64 {
    let mut z = seed.wrapping_add(k.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fill(seed: u64, out: &mut [u8]) {
    let mut chunks = out.chunks_exact_mut(8);
    let mut k = 0;
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word(seed, k).to_le_bytes());
        k += 1;
    }
    let rest = chunks.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&word(seed, k).to_le_bytes()[..len]);
}

fn is_filled(seed: u64, bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let whole = (0..).zip(chunks).all(|(k, chunk)| *chunk == word(seed, k).to_le_bytes());
    whole && *rest == word(seed, chunks.len() as u64).to_le_bytes()[..rest.len()]
}

/// Pseudorandom numbers from a seed.
#[derive(Clone, Debug)]
pub(super) struct Rng {
    seed: u64,
    taken: u64,
}

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, taken: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.taken += 1;
        word(self.seed, self.taken)
    }

    /// 0 to `n - 1`; 0 for 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        // The bias is below n / 2^64.
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A random message size of at most `max` bytes. 5 % are below 16 bytes; the others are in ranges
    /// with decreasing weights and a uniform logarithm. With the default of 8 MiB the mean is near
    /// 20 KB.
    pub(super) fn size(&mut self, max: u64) -> usize {
        let (low, high) = match self.below(1000) {
            0..50 => return self.below(HEADER as u64) as usize,
            50..700 => (16, 1 << 10),
            700..900 => (1 << 10, 16 << 10),
            900..980 => (16 << 10, 128 << 10),
            980..998 => (128 << 10, 1 << 20),
            _ => (1 << 20, 8 << 20),
        };
        let doublings = u64::from(u64::ilog2(high / low));
        let base = low << self.below(doublings);
        // Uniform up to the next power of two, both ends included.
        (base + self.below(base + 1)).min(max) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_valid_and_each_wrong_byte_is_detected() {
        for len in [0, 1, 7, 8, 9, 100] {
            let header = Header { id: 77, resp_len: len as u32, work_us: 5 };
            let mut request = vec![0; HEADER + len];
            header.fill_request(&mut request);
            assert_eq!(Header::check_request(&request), Some(header));
            let mut response = vec![0; len];
            fill_response(77, 3, &mut response);
            assert!(is_response(77, 3, len, &response));
            assert!(!is_response(77, 3, len + 1, &response));
            for at in 0..len {
                request[HEADER + at] ^= 1;
                assert_eq!(Header::check_request(&request), None);
                request[HEADER + at] ^= 1;
                response[at] ^= 0x80;
                assert!(!is_response(77, 3, len, &response));
                response[at] ^= 0x80;
            }
        }
        let mut response = [0; 40];
        fill_response(77, 3, &mut response);
        assert!(!is_response(78, 3, 40, &response), "of another call");
        assert!(!is_response(77, 4, 40, &response), "of another incarnation");
    }

    #[test]
    fn tiny_messages_are_checked() {
        for len in 0..HEADER {
            let mut request = vec![0; len];
            fill_tiny(9, &mut request);
            let (response, n) = tiny_response(&request);
            assert!(is_tiny_response(9, len, &response[..n]));
            assert!(len == 0 || !is_tiny_response(10, len, &response[..n]));
        }
    }

    #[test]
    fn sizes_are_from_zero_to_the_largest() {
        let mut rng = Rng::new(1);
        let sizes: Vec<_> = (0..200_000).map(|_| rng.size(8 << 20)).collect();
        assert_eq!(sizes.iter().min(), Some(&0));
        assert!(sizes.iter().max() > Some(&(7 << 20)) && sizes.iter().max() <= Some(&(8 << 20)));
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((5_000..60_000).contains(&mean), "{mean}");
        assert!((0..1000).all(|_| rng.size(100) <= 100));
    }
}
