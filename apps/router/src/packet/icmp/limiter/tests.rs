use proptest::prelude::*;

use super::*;

#[test]
fn a_burst_then_the_rate_without_drift() {
    let mut limiter = Limiter::new(3, 2);
    assert!(limiter.allow(5) && limiter.allow(5) && !limiter.allow(5));
    // Three a second are one each 333,333,333.3 ns. Asking each nanosecond around these times loses
    // no fraction.
    let mut allowed = Vec::new();
    for n in 1..=9_000_u64 {
        let due = 5 + n * 1_000_000_000 / 3;
        allowed.extend((due - 2..=due + 2).filter(|now| limiter.allow(*now)));
    }
    let exact = |n: u64| 5 + (n * 1_000_000_000).div_ceil(3);
    assert_eq!(allowed, (1..=9_000).map(exact).collect::<Vec<_>>());
}

#[test]
fn a_limit_of_nothing() {
    assert!(!Limiter::new(1000, 0).allow(u64::MAX));
    let mut limiter = Limiter::new(0, 1);
    assert!(!limiter.allow(0) && !limiter.allow(u64::MAX));
}

#[test]
fn jumps_of_time() {
    let mut limiter = Limiter::new(u32::MAX, u32::MAX);
    assert!(limiter.allow(u64::MAX));
    let mut limiter = Limiter::new(1 << 31, 1);
    assert!(limiter.allow(0) && limiter.allow(1 << 33), "2^64 billionths of credit");
    let mut limiter = Limiter::new(1, 1);
    assert!(limiter.allow(u64::MAX));
    assert!(!limiter.allow(0), "time went back, which earns nothing");
    assert!(!limiter.allow(999_999_999));
    assert!(limiter.allow(1_000_000_000), "the credit grows again");
    assert!(limiter.allow(u64::MAX) && !limiter.allow(u64::MAX), "a burst at most");
}

proptest! {
    /// Within any time, at most the burst and the rate are allowed; a message is refused only if
    /// one more would exceed them.
    #[test]
    fn no_more_than_allowed_and_no_less(
        per_second in 1..2_000_000u32,
        burst in 1..50u32,
        start in 0..u64::MAX / 2,
        steps in prop::collection::vec(prop_oneof![Just(0), 0..1000u64, 0..100_000_000u64], 1..200),
    ) {
        let mut limiter = Limiter::new(per_second, burst);
        // The level of a bucket that leaks, in billionths of a message.
        let (mut now, mut level) = (start, 0u128);
        let full = u128::from(burst) * 1_000_000_000;
        for step in steps {
            now += step;
            level = level.saturating_sub(u128::from(step) * u128::from(per_second));
            let fits = level + 1_000_000_000 <= full;
            prop_assert_eq!(limiter.allow(now), fits);
            if fits {
                level += 1_000_000_000;
            }
        }
    }
}
