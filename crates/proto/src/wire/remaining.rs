//! The remaining time of a call, encoded in 16 bits (ADR 15).
//!
//! A four-bit exponent and a twelve-bit mantissa: `mantissa << exponent` microseconds. Exact up to
//! 4.1 ms, within 0.05 % above, and at most 134 s. It is rounded down, so that the server never
//! assumes a later deadline than the client's. It is relative, so that the two clocks need not
//! agree.

/// The longest remaining time that a packet can carry: 134 s. A call with more time left carries
/// none.
pub const MAX_REMAINING_US: u32 = MANTISSA_MAX << 15;

const MANTISSA_BITS: u32 = 12;
const MANTISSA_MAX: u32 = (1 << MANTISSA_BITS) - 1;

/// The code of the longest time that is at most `us`.
#[inline]
pub(super) fn encode(us: u32) -> u16 {
    let us = us.min(MAX_REMAINING_US);
    let exponent = (u32::BITS - us.leading_zeros()).saturating_sub(MANTISSA_BITS);
    (exponent << MANTISSA_BITS | us >> exponent) as u16
}

/// The time of a code in microseconds; every code is valid.
#[inline]
pub(super) fn decode(code: u16) -> u32 {
    (u32::from(code) & MANTISSA_MAX) << (code >> MANTISSA_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_are_exact_and_the_longest_fits() {
        for us in [0, 1, 999, 4_095] {
            assert_eq!(decode(encode(us)), us);
        }
        assert_eq!(encode(4_096), 0x1800);
        assert_eq!(encode(MAX_REMAINING_US), 0xffff);
        assert_eq!(decode(0xffff), 134_184_960);
        assert_eq!(encode(u32::MAX), 0xffff);
    }

    #[test]
    fn encoding_never_exceeds_the_time_and_loses_little() {
        let mut us = 1u32;
        while us < MAX_REMAINING_US {
            for us in [us - 1, us, us + 1] {
                let back = decode(encode(us));
                assert!(back <= us && us - back <= us / 2_048, "{us} became {back}");
            }
            us += us / 7 + 1;
        }
        // Any bits are a valid time, also those that `encode` never produces.
        assert_eq!(decode(0xf001), 1 << 15);
    }
}
