use std::time::Duration;

use super::*;
use crate::machine::VirtualClock;

#[test]
fn durations_are_between_those_of_the_systems_clock() {
    for is_steady in [has_steady_ticks(), false] {
        let stopwatch = Stopwatch::new(is_steady);
        for wait in [1, 2, 20] {
            let (outer, begun, inner) =
                (Clock::System.now(), stopwatch.read(), Clock::System.now());
            std::thread::sleep(Duration::from_millis(wait));
            let least = inner.elapsed();
            let took = Duration::from_nanos(stopwatch.since_ns(begun));
            let most = outer.elapsed();
            // The rate is that of a few milliseconds, at whose ends threads may be interrupted.
            assert!(took >= least / 2 && took <= most * 2, "{least:?} {took:?} {most:?}");
        }
        assert_eq!(stopwatch.since_ns(u64::MAX), 0, "a counter that is behind");
    }
}

#[test]
fn the_rate_is_measured_at_times_that_are_further_apart_up_to_a_second() {
    if !has_steady_ticks() {
        return;
    }
    let stopwatch = Stopwatch::new(true);
    let (at, time) = both(true);
    let second = || stopwatch.due.load(Ordering::Relaxed) - stopwatch.anchor().0;
    // 3 s ago by the system's clock, and by as many ticks of 1 ns.
    *stopwatch.anchor() = (at - 3_000_000_000, time - Duration::from_secs(3));
    stopwatch.measure();
    let rate = stopwatch.rate.load(Ordering::Relaxed) as f64 / (1_u64 << 32) as f64;
    assert!((rate - 1.0).abs() < 0.01, "{rate}");
    assert!(second() >= 3_000_000_000);
    assert!(stopwatch.anchor().1 >= time, "the anchor moves on");
    // A counter that was set back is not measured, and the rate stays.
    *stopwatch.anchor() = (u64::MAX, time);
    stopwatch.measure();
    assert_eq!(stopwatch.rate.load(Ordering::Relaxed) as f64 / (1_u64 << 32) as f64, rate);
    assert!(stopwatch.anchor().0 < u64::MAX);
}

#[test]
fn durations_in_virtual_time_are_exact() {
    let clock = std::sync::Arc::new(VirtualClock::default());
    let durations = Durations::by(Clock::Virtual(clock.clone()));
    clock.set(7);
    let begun = durations.read();
    clock.set(1_000_000_007);
    assert_eq!(durations.since_ns(begun), 1_000_000_000);
}
