use super::*;

fn header(number: u32, sent_at: u32) -> FrameHeader {
    FrameHeader {
        data_per_packet: 1024,
        peer: 0,
        held: 0,
        cookie: 0,
        number,
        ecn: EcnCounts::default(),
        sent_at: Some(sent_at),
        echo_at: None,
    }
}

fn path() -> Path {
    Path::new(&Config::default())
}

/// The times of a frame that has not waited in this host.
fn at_once(now_ns: u64) -> Times {
    Times { now_ns, wait_ns: 0, is_excluded: false }
}

#[test]
fn every_frame_takes_a_fresh_number() {
    let mut p = path();
    let numbers: Vec<u32> = (0..4).map(|_| p.next_number()).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
}

#[test]
fn waits_of_many_slots_double_the_time_to_the_next_probe_once() {
    let cfg = Config::default();
    let mut p = path();
    let mut now_ns = 1_000_000_000;
    for doubled in 1..5 {
        (0..16).for_each(|slot| p.on_wait_for_turn(now_ns + slot * 100, &cfg));
        let (waits_ns, pto_ns) = (p.grant_wait.longest_ns(now_ns), p.rtt.pto_ns(&cfg));
        assert!((0..8_000 << doubled).contains(&(waits_ns - (pto_ns << doubled))), "{waits_ns}");
        now_ns += waits_ns + 10_000;
    }
}

#[test]
fn the_echo_is_the_newest_frames_and_ages_while_it_is_held() {
    let mut p = path();
    assert_eq!(p.times(5), (Some(5), None));
    p.on_frame(&header(7, 1000), Ecn::NotEct, at_once(50));
    p.on_frame(&header(6, 900), Ecn::NotEct, at_once(60)); // reordered: older
    assert_eq!(p.times(80), (Some(80), Some(1030)));
}

#[test]
fn duplicate_and_reordered_frames_give_no_round_trips() {
    let cfg = Config::default();
    let mut p = path();
    let frame = |number, echo| FrameHeader { echo_at: Some(echo), ..header(number, 0) };
    p.on_frame(&frame(5, 1_000), Ecn::NotEct, at_once(3_000));
    assert_eq!(p.rtt.report(&cfg).unwrap().0, 2_000);
    for replayed in [5, 4] {
        p.on_frame(&frame(replayed, 1_000), Ecn::NotEct, at_once(900_000_000));
    }
    assert_eq!(p.rtt.report(&cfg).unwrap().0, 2_000);
    p.on_frame(&frame(6, 900_000_000), Ecn::NotEct, at_once(900_004_000));
    assert_eq!(p.rtt.report(&cfg).unwrap().0, 4_000);
}

/// A header with a round trip of `rtt_ns` at `now_ns`.
fn echoed(number: u32, now_ns: u64, rtt_ns: u64) -> FrameHeader {
    FrameHeader { echo_at: Some((now_ns - rtt_ns) as u32), ..header(number, now_ns as u32) }
}

#[test]
fn one_frame_far_ahead_changes_nothing_and_round_trips_are_still_measured() {
    let cfg = Config::default();
    let mut now_ns = 10_000;
    for far in [NEAR as u32 + 300, 1 << 20, i32::MAX as u32] {
        let mut p = path();
        p.on_frame(&echoed(5, now_ns, 2_000), Ecn::NotEct, at_once(now_ns));
        // It is repeated by the network, which is no second frame.
        for _ in 0..2 {
            let ecn = EcnCounts { marked: 999, received: 999 };
            let forged = FrameHeader { ecn, ..echoed(far, now_ns, 9_000) };
            assert!(!p.on_frame(&forged, Ecn::NotEct, at_once(now_ns)).is_gap, "a gap");
        }
        assert_eq!((p.rtt.latest_ns(), p.marks_reported()), (2_000, 0), "{far}");
        for number in 6..200 {
            now_ns += 1_000;
            let rtt_ns = 3_000 + u64::from(number);
            let frame = echoed(number, now_ns, rtt_ns);
            assert!(
                !p.on_frame(&frame, Ecn::NotEct, at_once(now_ns)).is_gap,
                "{number} is the next one"
            );
            assert_eq!(p.rtt.latest_ns(), rtt_ns, "{far}");
        }
        // Much later another one, near the first: they do not belong together.
        p.on_frame(&echoed(far + 1, now_ns, 9_000), Ecn::NotEct, at_once(now_ns));
        assert_ne!(p.rtt.latest_ns(), 9_000);
        assert!(p.rtt.report(&cfg).is_some());
    }
}

#[test]
fn a_changed_number_of_the_first_frame_does_not_make_all_later_ones_old() {
    let numbers = [NEAR as u32 + 1, 1 << 20, (1 << 30) - 1, 1 << 30, 1 << 31, u32::MAX];
    for changed in numbers {
        let mut p = path();
        p.on_frame(&echoed(changed, 10_000, 9_000), Ecn::NotEct, at_once(10_000));
        p.on_frame(&echoed(1, 20_000, 2_000), Ecn::NotEct, at_once(20_000));
        assert_eq!(p.rtt.latest_ns(), 2_000, "{changed}");
    }
}

#[test]
fn numbers_that_jump_are_accepted_with_the_second_frame() {
    for (second, third) in [(1, 2), (-1, 1), (1_000, 999)] {
        let mut p = path();
        p.on_frame(&echoed(5, 10_000, 2_000), Ecn::NotEct, at_once(10_000));
        let jumped = |by: i32| (1_u32 << 25).wrapping_add_signed(by);
        p.on_frame(&echoed(jumped(0), 20_000, 3_000), Ecn::NotEct, at_once(20_000));
        p.on_frame(&echoed(4, 20_000, 2_000), Ecn::NotEct, at_once(20_000)); // reordered
        assert_eq!(p.rtt.latest_ns(), 2_000);
        let frame = echoed(jumped(second), 30_000, 4_000);
        assert!(p.on_frame(&frame, Ecn::NotEct, at_once(30_000)).is_gap, "frames are missing");
        assert_eq!(p.rtt.latest_ns(), 4_000);
        p.on_frame(&echoed(jumped(third), 40_000, 5_000), Ecn::NotEct, at_once(40_000));
        let expected_ns = if third > second { 5_000 } else { 4_000 };
        assert_eq!(p.rtt.latest_ns(), expected_ns);
    }
}

#[test]
fn a_deadline_excludes_the_time_in_flight_and_in_the_frame() {
    let mut p = path();
    // The peer's clock is 5 s ahead; a frame takes 1,000 ns, an echo arrives after 3,000.
    let at = |number, sent: u64, echo: u64| FrameHeader {
        echo_at: Some(echo as u32),
        ..header(number, (sent + 5_000_000_000) as u32)
    };
    p.on_frame(&at(1, 9_000, 7_000), Ecn::NotEct, at_once(10_000));
    assert_eq!(p.deadline_ns(50), 10_000 + 50_000 - 3_000);
    // This frame waited for 200 us, and so did the one with the echo that it carries.
    p.on_frame(&at(2, 99_000, 50_000), Ecn::NotEct, at_once(300_000));
    assert_eq!(p.deadline_ns(50), 300_000 + 50_000 - 200_000 - 3_000);
    // This frame was filled for 7 us.
    let filled = FrameHeader { held: 7, ..at(3, 309_000, 307_000) };
    p.on_frame(&filled, Ecn::NotEct, at_once(310_000));
    assert_eq!(p.deadline_ns(50), 310_000 + 50_000 - 3_000 - 7_000);
}

#[test]
fn a_deadline_excludes_the_wait_in_the_host() {
    // All frames wait for 20 us in this host, and their smallest round trip in the network is 2 us.
    let mut p = path();
    for n in 1..4 {
        let now_ns = 100_000 * n;
        let h = FrameHeader {
            echo_at: Some(now_ns as u32 - 22_000),
            ..header(n as u32, now_ns as u32 - 21_000)
        };
        p.on_frame(&h, Ecn::NotEct, Times { now_ns, wait_ns: 20_000, is_excluded: false });
    }
    assert!((277_000..=279_000).contains(&p.deadline_ns(0)), "{}", p.deadline_ns(0));
    // Nor does one that arrives behind a newer one.
    let times = Times { now_ns: 400_000, wait_ns: 20_000, is_excluded: false };
    p.on_frame(&header(2, 379_000), Ecn::NotEct, times);
    assert!((377_000..=379_000).contains(&p.deadline_ns(0)), "{}", p.deadline_ns(0));
}

#[test]
fn waits_in_hosts_are_no_delay_of_the_network() {
    let cfg = Config::default();
    // A frame arrives after 2 us, and is received 20 us later.
    let receive = |p: &mut Path, is_excluded| {
        let times = Times { now_ns: 122_000, wait_ns: 20_000, is_excluded };
        let h = FrameHeader { echo_at: Some(100_000), ..header(1, 100_000) };
        p.on_frame(&h, Ecn::NotEct, times);
    };
    let mut p = path();
    p.on_frame(
        &FrameHeader { echo_at: Some(90_000), ..header(0, 98_000) },
        Ecn::NotEct,
        at_once(100_000),
    );
    receive(&mut p, false);
    assert_eq!((p.signal_ns, p.rtt.latest_ns(), p.rtt.least_ns()), (2_000, 22_000, 2_000));
    assert_eq!(
        p.queue_delay_ns(20_000, 122_000).map(|d| (d.queue_ns, d.host_ns)),
        Some((0, 20_000))
    );
    assert_eq!(p.times(130_000), (Some(130_000), Some(108_000)), "timeouts of the peer contain it");

    // A peer of large messages is told the time of arrival.
    let mut p = path();
    receive(&mut p, true);
    assert_eq!(p.times(130_000).1, Some(128_000));
    assert!(p.timeout_ns(Recovery::Selective, 0, &cfg) >= 22_000, "{p:?}");
}

#[test]
fn a_frame_without_a_time_counts_and_reports_marks_and_keeps_the_echo() {
    let mut p = path();
    p.on_frame(&header(0, 1_000), Ecn::Ce, at_once(5_000));
    let ecn = EcnCounts { marked: 7, received: 9 };
    let untimed = FrameHeader { sent_at: None, ecn, ..header(1, 0) };
    assert!(!p.on_frame(&untimed, Ecn::Ce, at_once(5_500)).is_gap);
    assert!(
        p.on_frame(&FrameHeader { number: 3, ..untimed }, Ecn::NotEct, at_once(5_500)).is_gap,
        "a gap"
    );
    assert_eq!(p.marks_reported(), 7);
    assert_eq!(p.ecn(), EcnCounts { marked: 2, received: 3 });
    assert_eq!(p.times(6_000).1, Some(2_000));
}

#[test]
fn reported_marks_add_up_across_the_wrap_and_old_reports_are_ignored() {
    let mut p = path();
    let report = |number, marked| FrameHeader {
        ecn: EcnCounts { marked, received: 0 },
        ..header(number, 0)
    };
    p.on_frame(&report(1, 65_000), Ecn::NotEct, at_once(0));
    p.on_frame(&report(3, 100), Ecn::NotEct, at_once(0));
    p.on_frame(&report(2, 65_300), Ecn::NotEct, at_once(0));
    assert_eq!(p.marks_reported(), 65_636);
}
