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
    let second = || stopwatch.due.load(Ordering::Relaxed) - stopwatch.anchor().tick;
    // 3 s ago by the system's clock, and by as many ticks of 1 ns.
    *stopwatch.anchor() = Anchor::at((at - 3_000_000_000, time - Duration::from_secs(3)));
    stopwatch.measure();
    let rate = stopwatch.rate.load(Ordering::Relaxed) as f64 / (1_u64 << 32) as f64;
    assert!((rate - 1.0).abs() < 0.01, "{rate}");
    assert!((990_000_000..=1_010_000_000).contains(&second()), "{}", second());
    assert!(stopwatch.anchor().time >= time, "the anchor moves on");
    // A counter that was set back is not measured, and the rate stays.
    *stopwatch.anchor() = Anchor::at((u64::MAX, time));
    stopwatch.measure();
    assert_eq!(stopwatch.rate.load(Ordering::Relaxed) as f64 / (1_u64 << 32) as f64, rate);
    assert!(stopwatch.anchor().tick < u64::MAX);
}

#[test]
fn a_machine_that_was_suspended_does_not_change_the_rate() {
    let stopwatch = Stopwatch::new(true);
    let start = Clock::System.now();
    let mut anchor = Anchor::at((0, start));
    let (mut tick, mut time) = (0, start);
    // Readings after ticks of half a nanosecond, and the milliseconds of the system's clock.
    let mut measure = |ticks: u64, ms: u64| {
        tick += ticks;
        time += Duration::from_millis(ms);
        stopwatch.measure_at(&mut anchor, (tick, time));
        assert!(stopwatch.due.load(Ordering::Relaxed) - tick <= 2_000_000_000, "a second");
        assert_eq!(anchor.tick == tick, ms >= 1_000 || ticks >= 2_000_000_000);
        // Ten-thousandths of a nanosecond per tick.
        (stopwatch.rate.load(Ordering::Relaxed) as f64 / (1_u64 << 32) as f64 * 1e4).round() / 1e4
    };
    assert_eq!(measure(900_000_000, 450), 0.5);
    assert_eq!(measure(1_000_000_000, 500), 0.5);
    // The counter goes on for an hour, and then the system's clock.
    assert_eq!(measure(7_200_000_000_000, 400), 0.5);
    assert_eq!(measure(2_000_000_000, 1_000), 0.5);
    assert_eq!(measure(1_000_000, 3_600_000), 0.5);
    assert_eq!(measure(2_000_000_000, 1_000), 0.5);
    assert_eq!(measure(2_000_000_000, 1_005), 0.5025, "the clock is corrected");
    // Another rate is believed once it is measured again.
    assert_eq!(measure(1_000_000_000, 1_000), 0.5025);
    assert_eq!(measure(1_000_000_000, 1_000), 1.0);
    assert_eq!(stopwatch.due.load(Ordering::Relaxed) - tick, 1_000_000_000);
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
