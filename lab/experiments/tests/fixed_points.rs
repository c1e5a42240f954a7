//! The fixed points of the controllers of papers: queue and rates that "ECN or Delay" (Zhu et al.,
//! CoNEXT '16) derives from their rules.

use courser::{Control, DcqcnConstants, TimelyConstants};
use courser_lab::experiments::incast::{self, Incast, Queueing};
use courser_lab::scenario::wire_bytes;
use courser_sim::fabric::Marking;

/// Senders that are never idle, with credits for more than the queue of the fixed point.
fn busy(control: Control, senders: u32, rate_bps: u64) -> Incast {
    Incast {
        control,
        senders,
        rate_bps,
        credits: 512,
        max_frame: 1_072,
        request_bytes: 4 << 20,
        outstanding: 2,
        starts_ns: 1_000_000,
        warm_up_ns: 40_000_000,
        time_ns: 100_000_000,
        ..Incast::default()
    }
}

fn run(settings: &Incast) -> Queueing {
    let seen = incast::run(settings).expect("runs");
    assert_eq!((seen.drops, seen.traffic.retransmitted), (0, 0));
    assert!(seen.jain >= 0.95, "{} senders: {}", settings.senders, seen.jain);
    seen
}

/// Within a quarter.
#[track_caller]
fn assert_near([seen, expected]: [f64; 2], of: &str) {
    println!("{of}: {seen}, expected {expected}");
    assert!((seen / expected - 1.0).abs() <= 0.25, "{of}: {seen}, expected {expected}");
}

/// The share of marked packets at DCQCN's fixed point, theorem 1: the solution of
/// `a^2 alpha / ((b + d)(c + e)) = tau^2 R_AI R` with `R = C / N`. The theorem's approximation,
/// `p^3 = (R_AI N^2 / (tau' C^2)) (1 / B + N / (T C))^2`, is its first term for a small `p`, and 30 %
/// too much for ten flows.
fn marked_at_fixed_point(constants: &DcqcnConstants, rate_bps: u64, flows: u32) -> f64 {
    let packet_bytes = wire_bytes(1_028) as f64;
    let s = |ns: u64| ns as f64 / 1e9;
    let packets = |bps: u64| bps as f64 / 8.0 / packet_bytes;
    let rate = packets(rate_bps) / f64::from(flows);
    let (tau, timer) = (s(constants.decrease_ns), s(constants.timer_ns) * rate);
    let (counter, steps) =
        (constants.counter_bytes as f64 / packet_bytes, f64::from(constants.recovery_steps));
    let too_much = |p: f64| {
        let none = |packets: f64| (1.0 - p).powf(packets);
        let a = 1.0 - none(tau * rate);
        let alpha = 1.0 - none(s(constants.alpha_ns) * rate);
        let events = |every: f64| p / (none(-every) - 1.0);
        let (b, d) = (events(counter), events(timer));
        let (c, e) = (none(steps * counter) * b, none(steps * timer) * d);
        a * a * alpha / ((b + d) * (c + e)) > tau * tau * packets(constants.step_bps) * rate
    };
    let (mut low, mut high) = (1e-9_f64, 0.5_f64);
    for _ in 0..100 {
        let middle = (low * high).sqrt();
        if too_much(middle) { high = middle } else { low = middle }
    }
    low
}

const GBPS: u64 = 1_000_000_000;
const MIN_BYTES: u64 = 40_000;

/// Runs DCQCN over switches that mark up to 1 % between 40 kB and `max_bytes`. Returns the share of
/// marks and the queue, each measured and expected. Switches mark departures, as the model of "ECN
/// or Delay" has it: marks do not wait in the queue.
fn dcqcn(senders: u32, gbps: u64, constants: DcqcnConstants, max_bytes: u64) -> [[f64; 2]; 2] {
    let marking = Marking::Red { min_bytes: MIN_BYTES, max_bytes, pmax_ppm: 10_000 };
    let rate_bps = gbps * GBPS;
    let seen = run(&Incast {
        marking: Some(marking),
        marks_departures: true,
        dcqcn_constants: Some(constants),
        ..busy(Control::Dcqcn, senders, rate_bps)
    });
    let marked = marked_at_fixed_point(&constants, rate_bps, senders);
    let queue = MIN_BYTES as f64 + marked / 0.01 * (max_bytes - MIN_BYTES) as f64;
    [[seen.marked_share, marked], [seen.queue_mean_bytes as f64, queue]]
}

/// Four flows at 40 Gbit/s with the constants of the DCQCN paper. Rates rise by chance until the next
/// mark, so that two slower flows, or ten, reach the 200 kB from which all packets are marked: they
/// run with the flatter slope and the smaller step that "ECN or Delay" proposes in figure 3 (c).
#[test]
fn dcqcn_has_the_queue_and_the_marks_of_its_fixed_point() {
    let paper = DcqcnConstants::PAPER;
    let gentle = DcqcnConstants { step_bps: 10_000_000, ..paper };
    for (senders, gbps, constants, max_bytes) in
        [(2, 10, gentle, 1_000_000), (4, 40, paper, 200_000), (10, 40, gentle, 1_000_000)]
    {
        let [marks, queue] = dcqcn(senders, gbps, constants, max_bytes);
        assert_near(marks, &format!("marks of {senders}"));
        assert_near(queue, &format!("queue of {senders}"));
    }
}

/// Two flows at 40 Gbit/s are the example of "ECN or Delay". A notification lowers a rate by 5 %
/// once in 400 us, which takes 16 kB out of a queue of 54: the queue is often below the 40 kB from
/// which packets are marked. With as many marks as at the fixed point its mean is then less.
#[test]
fn two_dcqcn_flows_get_the_marks_of_their_fixed_point_from_a_noisy_queue() {
    let [marks, [queue, expected]] = dcqcn(2, 40, DcqcnConstants::PAPER, 200_000);
    assert!((54_000.0..55_000.0).contains(&expected), "{expected}");
    assert_near(marks, "marks");
    assert!((0.65..1.25).contains(&(queue / expected)), "{queue}, expected {expected}");
}

/// Round trip of a packet on the idle network, with its time on the cables.
const BASE_NS: f64 = 1_500.0;

/// At the fixed point of patched Timely the round trip is `T_low (1 + N delta / (beta C))`, of which
/// the queue has all but the base.
#[test]
fn patched_timely_has_the_queue_of_its_fixed_point() {
    for senders in [2, 4, 10] {
        let settings = busy(Control::TimelyPatched, senders, 25_000_000_000);
        let seen = run(&settings);
        let TimelyConstants { low_ns, step_bps, beta_ppm, .. } = TimelyConstants::PATCHED;
        let more = f64::from(senders) * step_bps as f64
            / (beta_ppm as f64 / 1e6 * settings.rate_bps as f64);
        let rtt_ns = low_ns as f64 * (1.0 + more);
        assert_near([seen.rtt.p50_ns as f64, rtt_ns], &format!("round trip of {senders}"));
        let queue = (rtt_ns - BASE_NS) / 8e9 * settings.rate_bps as f64;
        assert_near([seen.queue_mean_bytes as f64, queue], &format!("queue of {senders}"));
        assert!(seen.slowest_share > 0.9, "{seen:?}");
    }
}
