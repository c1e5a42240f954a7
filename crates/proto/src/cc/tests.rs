//! Controllers against a model of one queue.

use super::*;
use crate::config::Config;
use crate::loss::rto::Rtt;
use crate::wire::EcnCounts;

const GBPS_25: u64 = 25_000_000_000;

fn line() -> HostLink {
    let cfg = Config { line_rate_bps: GBPS_25, ..Config::default() };
    HostLink::new(&cfg, 1_028)
}

/// A queue at 25 Gbit/s that `flows` fill by their allowances, in steps of a round trip.
struct Queue {
    flows: Vec<Controller>,
    base_ns: u64,
    queued: u64,
    now_ns: u64,
    mark_above: Option<u64>,
}

impl Queue {
    fn new(control: Control, flows: usize, limit: u32) -> Self {
        let new = || Controller::new(control, line(), limit).expect("a controller");
        let flows = (0..flows).map(|_| new()).collect();
        Queue { flows, base_ns: 5_200, queued: 0, now_ns: 1_000_000, mark_above: None }
    }

    fn packet_ns() -> u64 {
        line().gap_ns(line().rate_bytes_per_s)
    }

    /// Packets that a flow has in a round trip, in parts.
    fn demand(&self, flow: &Controller, rtt_ns: u64, limit: u64) -> u64 {
        let allowed = flow.allowance(self.base_ns, rtt_ns, 0);
        let window = allowed.window.min(limit * PART);
        match allowed.gap_ns {
            0 => window,
            gap_ns => window.min(rtt_ns * PART / gap_ns),
        }
    }

    /// One round trip. Returns it, and the share of the link's rate that was used, per 1,000.
    fn step(&mut self, limit: u64) -> (u64, u64) {
        let rtt_ns = self.base_ns + self.queued * Self::packet_ns() / PART;
        let sent: Vec<u64> = self.flows.iter().map(|f| self.demand(f, rtt_ns, limit)).collect();
        let sum: u64 = sent.iter().sum();
        let capacity = rtt_ns * PART / Self::packet_ns();
        // In flight and not on the path.
        let on_path = self.base_ns * PART / Self::packet_ns();
        self.queued = sum.saturating_sub(on_path);
        self.now_ns += rtt_ns;
        let marks = self.mark_above.is_some_and(|above| self.queued > above * PART);
        for (flow, sent) in self.flows.iter_mut().zip(sent) {
            let counted = sent.div_ceil(PART) as u32;
            flow.on_signal(&Signal {
                now_ns: self.now_ns,
                rtt_ns,
                base_ns: self.base_ns,
                noise_ns: 0,
                acked: sent.max(1),
                counted,
                marked: if marks { counted } else { 0 },
            });
        }
        (rtt_ns, sum.min(capacity) * 1_000 / capacity)
    }

    /// Mean round trip and utilisation of the last half of `steps`.
    fn run(&mut self, steps: usize, limit: u64) -> (u64, u64) {
        let seen: Vec<_> = (0..steps).map(|_| self.step(limit)).skip(steps / 2).collect();
        let mean =
            |of: fn(&(u64, u64)) -> u64| seen.iter().map(of).sum::<u64>() / seen.len() as u64;
        (mean(|s| s.0), mean(|s| s.1))
    }
}

#[test]
fn an_uncongested_path_is_not_limited_and_needs_no_frames() {
    for control in Control::ALL.into_iter().filter(|&c| c != Control::None) {
        let c = Controller::new(control, line(), 32).unwrap();
        let allowed = c.allowance(5_200, 5_200, 0);
        assert_eq!((allowed.window, allowed.gap_ns), (u64::MAX, 0), "{control:?}");
        assert!(allowed.watch_ns > 5_200, "{control:?}");
    }
    assert!(Controller::new(Control::None, line(), 32).is_none());
}

#[test]
fn without_the_bypasses_frames_and_packets_pass_controller_and_pacer() {
    let line = HostLink { skips_updates: false, skips_pacing: false, ..line() };
    for control in [Control::Timely, Control::TimelyPatched, Control::Dcqcn] {
        let c = Controller::new(control, line, 32).unwrap();
        let allowed = c.allowance(5_200, 5_200, 0);
        assert_eq!((allowed.gap_ns, allowed.watch_ns), (line.gap_ns(line.rate_bytes_per_s), 0));
    }
}

#[test]
fn windows_hold_the_queue_near_their_target_with_any_number_of_flows() {
    for control in [Control::Swift, Control::TwoWindow] {
        for flows in [1, 2, 20, 100, 999] {
            let mut q = Queue::new(control, flows, 32);
            let (rtt_ns, used) = q.run(2_000, 32);
            assert!(used >= 700, "{control:?} of {flows}: {used}, all in step");
            assert!(rtt_ns < 12 * 5_200, "{control:?} of {flows}: {rtt_ns}");
        }
    }
}

#[test]
fn marks_decide_where_there_are_any() {
    let mut q = Queue::new(Control::TwoWindow, 20, 32);
    q.mark_above = Some(10);
    let (rtt_ns, used) = q.run(2_000, 32);
    assert!(used >= 700 && rtt_ns < 5_200 + 40 * Queue::packet_ns(), "{used}, {rtt_ns}");
}

#[test]
fn a_path_that_uses_little_of_its_window_gets_it_back_after_a_mark() {
    let mut c = Controller::new(Control::TwoWindow, line(), 1_000).unwrap();
    for round in 0..400_u64 {
        let now_ns = 1_000_000 + round * 6_000;
        let signal = Signal { now_ns, rtt_ns: 5_300, base_ns: 5_200, ..Signal::default() };
        let marked = u32::from(round == 0);
        c.on_signal(&Signal { acked: PART, counted: 1, marked, ..signal });
        if round == 0 {
            assert!(c.allowance(5_200, 5_300, 0).window <= 500 * PART, "a mark halves it");
        }
    }
    assert_eq!(c.allowance(5_200, 5_300, 0).window, u64::MAX);
}

#[test]
fn a_slow_frame_among_fast_ones_is_no_congestion() {
    let mut c = Controller::new(Control::TwoWindow, line(), 32).unwrap();
    let mut seen = 0;
    for frame in 0..400_u64 {
        let rtt_ns = if frame % 10 == 0 { 300_000 } else { 5_300 };
        if rtt_ns < c.allowance(5_200, 5_300, 0).watch_ns {
            continue;
        }
        seen += 1;
        let now_ns = 1_000_000 + frame * 400_000;
        let signal = Signal { now_ns, rtt_ns, base_ns: 5_200, ..Signal::default() };
        c.on_signal(&Signal { acked: PART, counted: 1, ..signal });
        assert_eq!(c.allowance(5_200, 5_300, 0).window, u64::MAX);
    }
    assert!(seen < 400, "fast frames are needed after slow ones only");
}

#[test]
fn dcqcn_lowers_its_rate_on_marks_and_recovers_without() {
    let mut c = Dcqcn::new(line(), DcqcnConstants::PAPER);
    let at =
        |now_ns, marked| Signal { now_ns, acked: PART, counted: 1, marked, ..Signal::default() };
    let gap_ns = |c: &Dcqcn| c.allowance().gap_ns;
    assert_eq!(gap_ns(&c), 0);
    c.on_signal(&at(1_000_000, 1));
    let halved_ns = gap_ns(&c);
    assert!(halved_ns >= 2 * line().gap_ns(line().rate_bytes_per_s) - 2, "alpha begins at one");
    c.on_signal(&at(1_020_000, 1));
    assert_eq!(gap_ns(&c), halved_ns, "one notification in 50 us");
    c.on_signal(&at(1_051_000, 0));
    assert!(gap_ns(&c) > halved_ns, "the mark within the 50 us is not forgotten");
    for at_us in 1_100..200_000 {
        c.on_signal(&at(at_us * 1_000, 0));
    }
    assert_eq!(gap_ns(&c), 0, "the rate of the link again");
}

#[test]
fn timely_increases_below_its_low_threshold_and_decreases_above_the_high_one() {
    let mut c = Timely::new(line(), false, TimelyConstants::ERPC);
    let at = |now_ns, rtt_ns| Signal { now_ns, rtt_ns, acked: PART, ..Signal::default() };
    for at_us in 0..100 {
        c.on_signal(&at(1_000_000 + at_us * 10_000, 2_000_000));
    }
    let slow_ns = c.allowance().gap_ns;
    assert!(slow_ns > 10 * line().gap_ns(line().rate_bytes_per_s), "{slow_ns}");
    for at_us in 0..100 {
        c.on_signal(&at(3_000_000 + at_us * 10_000, 20_000));
    }
    assert!(c.allowance().gap_ns < slow_ns);
    let before = c.allowance();
    c.on_signal(&at(5_000_000, 1_000));
    assert_eq!(c.allowance(), before, "samples below 2 us are ignored, as in eRPC");
}

#[test]
fn a_step_of_timely_counts_the_packets_that_a_credit_return_acknowledged() {
    let run = |acked| {
        let mut c = Timely::new(line(), false, TimelyConstants::ERPC);
        for at in 0..2_u64 {
            let signal = Signal { rtt_ns: 3_000_000, acked, ..Signal::default() };
            c.on_signal(&Signal { now_ns: 1_000_000 + at * 1_000_000, ..signal });
        }
        c.allowance().gap_ns
    };
    assert!(run(8 * PART) > run(PART));
}

/// Round trips of an idle network may be shorter than the one that normalises gradients.
#[test]
fn timely_recovers_with_the_constants_of_its_paper_in_a_short_network() {
    for base_ns in [1_500, 4_500, 19_000] {
        let mut c = Timely::new(line(), false, TimelyConstants::PAPER);
        let at = |now_ns, rtt_ns| Signal { now_ns, rtt_ns, acked: PART, ..Signal::default() };
        let rate = |c: &Timely| 1_000_000_000 / c.allowance().gap_ns.max(1);
        for at_us in 0..1_000 {
            c.on_signal(&at(1_000_000 + at_us * 10_000, 2_000_000));
        }
        let low = rate(&c);
        for at_us in 0..20_000 {
            c.on_signal(&at(20_000_000 + at_us * 10_000, base_ns));
        }
        assert!(rate(&c) > 4 * low, "{base_ns} ns: {low} to {}", rate(&c));
    }
}

/// A path may be idle for years.
#[test]
fn timely_takes_a_signal_after_a_long_time() {
    let mut c = Timely::new(line(), true, TimelyConstants::PATCHED);
    for now_ns in [1_000, 1 << 50, u64::MAX / 2, u64::MAX - 1] {
        c.on_signal(&Signal { now_ns, rtt_ns: 20_000, acked: PART, ..Signal::default() });
        c.allowance();
    }
}

#[test]
fn a_loss_halves_the_window_once_per_round_trip_and_a_spurious_one_is_undone() {
    for control in [Control::Swift, Control::TwoWindow] {
        let mut c = Controller::new(control, line(), 32).unwrap();
        let window = |c: &Controller| c.allowance(5_200, 5_200, 0).window;
        c.on_loss(1_000_000, 5_000);
        c.on_loss(1_001_000, 5_000);
        assert_eq!(window(&c), 16 * PART, "{control:?}");
        c.on_spurious();
        assert_eq!(window(&c), u64::MAX, "{control:?}");
        c.on_spurious();
        assert_eq!(window(&c), u64::MAX, "{control:?}");
    }
}

#[test]
fn windows_below_one_packet_are_paced() {
    let mut c = Controller::new(Control::Swift, line(), 32).unwrap();
    for at in 0..2_000_u64 {
        let now_ns = 1_000_000 + at * 1_000_000;
        let signal = Signal { now_ns, rtt_ns: 900_000, base_ns: 5_200, ..Signal::default() };
        c.on_signal(&Signal { acked: PART, ..signal });
    }
    let allowed = c.allowance(5_200, 900_000, 0);
    assert_eq!(allowed.window, PART);
    assert_eq!(allowed.gap_ns, 64 * 900_000, "a packet in 64 round trips at least");
}

#[test]
fn a_longer_route_is_adopted_and_a_queue_is_not() {
    // A route of 10 or 20 us more, with the window's own queue; or a queue of 20 us that others fill
    // too, and that shrinks with the window.
    for (longer_ns, is_route) in [(10_000, true), (20_000, true), (20_000, false)] {
        let mut c = Controller::new(Control::TwoWindow, line(), 64).unwrap();
        let (mut base_ns, mut now_ns, mut found) = (4_000, 1_000_000, None);
        for _ in 0..400 {
            let allowed = c.allowance(base_ns, 4_000 + longer_ns, 0);
            let window = allowed.window.min(64 * PART) / PART;
            let route_ns = 4_000 + longer_ns;
            let own_ns = (364 * window).saturating_sub(route_ns);
            let rtt_ns = if is_route { route_ns + own_ns } else { 4_000 + longer_ns * window / 64 };
            for _ in 0..window.max(1) {
                let signal = Signal { now_ns, rtt_ns, base_ns, ..Signal::default() };
                c.on_signal(&Signal { acked: PART, counted: 1, ..signal });
            }
            now_ns += rtt_ns;
            if let Some(least_ns) = c.take_longer_route() {
                (base_ns, found) = (least_ns, Some(now_ns));
            }
        }
        assert_eq!(found.is_some(), is_route, "{longer_ns}");
        if is_route {
            assert!(found.is_some_and(|at_ns| at_ns < 2_000_000), "{found:?}");
            assert_eq!(base_ns, 4_000 + longer_ns);
            assert_eq!(c.allowance(base_ns, base_ns, 0).window, u64::MAX);
        }
    }
}

/// A window that nothing has reduced is no limit, and is halved for a drain like any other. Controllers
/// with a rate have none.
#[test]
fn a_path_with_its_whole_window_drains_to_half_of_it() {
    for control in [Control::TwoWindow, Control::Swift, Control::Timely, Control::Dcqcn] {
        let cfg = Config { control, line_rate_bps: GBPS_25, ..Config::default() };
        let mut path = PathControl::new(&cfg, 1_028, 64).expect("a control");
        let mut rtt = Rtt::new(&cfg);
        let (mut windows, begin_ns) = ([0; 2], 1 << 40);
        for at_us in (0..100_000).step_by(10) {
            let now_ns = begin_ns + at_us * 1_000;
            let rtt_ns = if at_us < 30_000 { 5_000 } else { 7_000 };
            rtt.on_echo(now_ns, (now_ns - rtt_ns) as u32, 0);
            path.on_frame(&rtt, (rtt_ns, PART, now_ns), EcnCounts::default(), 0);
            let drains = usize::from(rtt.drains());
            windows[drains] = windows[drains].max(path.allowed().window);
        }
        let halves = matches!(control, Control::TwoWindow | Control::Swift);
        let drained = if halves { 32 * PART } else { u64::MAX / 2 };
        assert_eq!(windows, [u64::MAX, drained], "{control:?}, without a drain and in one");
        path.set_limit(&rtt, 16, begin_ns + 100_000_000);
        assert_eq!(path.allowed().window, u64::MAX);
    }
}

/// The first frame of a path may take as long as its receiver needs to wake up.
#[test]
fn marks_lower_the_window_in_each_round_trip_after_a_slow_first_frame() {
    let mut c = Controller::new(Control::TwoWindow, line(), 128).unwrap();
    let mut signal = |now_ns, rtt_ns| {
        let base_ns = rtt_ns;
        let marks = Signal { acked: PART, counted: 1, marked: 1, ..Signal::default() };
        c.on_signal(&Signal { now_ns, rtt_ns, base_ns, ..marks });
        c.allowance(base_ns, rtt_ns, 0).window / PART
    };
    assert_eq!(signal(10_000_000, 3_000_000), 64);
    let windows: Vec<_> = (1..5).map(|n| signal(10_000_000 + n * 100_000, 80_000)).collect();
    assert_eq!(windows, [32, 16, 8, 4]);
}
