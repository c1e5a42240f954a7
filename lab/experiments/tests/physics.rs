//! Whole endpoints on simulated hosts against closed forms. Packets in the network alone are tested
//! beside the fabric.

use courser::{Control, Recovery};
use courser_lab::experiments::buffers::{self, Buffers};
use courser_lab::experiments::credits::{self, Credits};
use courser_lab::experiments::incast::{self, Incast};
use courser_lab::experiments::response_rtt::{self, ResponseRtt};
use courser_lab::experiments::sessions::{self, Sessions};
use courser_lab::experiments::shapes::{self, Pick, Shapes};
use courser_lab::scenario::{Cpu, wire_bytes, wire_ns};
use courser_sim::fabric::{Buffer, CableSpec, HOST_RATE_BPS, SWITCH_LATENCY_NS};
use courser_sim::{CpuCosts, NicConfig};

/// `seen` is within `ppm` parts per million of `expected`.
#[track_caller]
fn assert_close(seen: u64, expected: u64, ppm: u64) {
    let off = seen.abs_diff(expected);
    assert!(
        u128::from(off) * 1_000_000 <= u128::from(expected) * u128::from(ppm),
        "{seen} instead of {expected}: off by {off}"
    );
}

/// One session's large requests take the whole line except for headers: of the 1,530 bytes of a
/// full packet on the wire 1,424 are data, 66 are of Ethernet, IP and UDP, 24 of the frame, 16 of
/// the packet.
#[test]
fn a_single_flow_reaches_line_rate_minus_headers() {
    for rate_bps in [25_000_000_000, 100_000_000_000] {
        let settings = Credits { rate_bps, time_ns: 5_000_000, ..Credits::default() };
        let bdp = rate_bps / 8 * settings.rtt_ns / 1_000_000_000;
        let credits = (bdp.div_ceil(1_530) + 4) as u32;
        let seen = credits::point(&settings, credits).expect("runs");
        assert_eq!(seen.retransmitted, 0);
        let expected = u128::from(rate_bps) * 1_424 / (1_424 + 16 + 24 + 66);
        assert_close(seen.goodput_bps, expected as u64, 10_000);
    }
}

/// Fewer credits than the bandwidth-delay product result in their share of the line (E35).
#[test]
fn fewer_credits_give_their_share_of_the_line() {
    let settings = Credits { time_ns: 5_000_000, ..Credits::default() };
    for credits in [1, 2, 5, 9, 12] {
        let seen = credits::point(&settings, credits).expect("runs");
        assert_close(seen.line_ppm, u64::from(credits) * 1_530 * 1_000_000 / 19_000, 10_000);
    }
}

/// A call of 32 bytes on an idle network takes exactly the sum of its parts: in each direction the
/// sender's NIC, two cables and a cut-through switch between them, the receiver's NIC; and the
/// CPUs' work.
#[test]
fn an_unloaded_round_trip_is_the_sum_of_its_parts() {
    let nic = NicConfig::default();
    let cable = CableSpec::default();
    let wire = wire_ns(wire_bytes(32), HOST_RATE_BPS);
    assert_eq!(wire_bytes(32), 32 + 16 + 28 + 66);
    assert_eq!(wire, 45, "142 bytes at 25 Gbit/s: 45.44 ns");
    for cpu in Cpu::ALL {
        let settings = ResponseRtt { max_packets: 1, cpu, ..ResponseRtt::default() };
        let seen = response_rtt::run(&settings).expect("runs");
        // The switch cuts through: the packet is on the second cable one switch latency after its
        // first bit has arrived.
        let way =
            nic.tx_latency_ns + wire + 2 * cable.delay_ns + SWITCH_LATENCY_NS + nic.rx_latency_ns;
        let work = cpu_ns(&cpu.costs());
        assert_eq!(seen[0].idle.small_ns, 2 * way + work, "{cpu:?}");
    }
}

/// CPU work between a call and its completion: the client makes a packet and a frame; the server
/// receives it, runs the handler, makes another; the client receives that. The time of a pass
/// follows its work.
fn cpu_ns(costs: &CpuCosts) -> u64 {
    let frame = 24 + 16 + 32;
    let receive = costs.rx_frame_ns + costs.rx_packet_ns + frame * costs.rx_byte_ps / 1_000;
    let send = costs.tx_frame_ns + costs.tx_packet_ns;
    2 * (receive + send) + costs.handler_ns
}

/// N windows of C packets without congestion control: each packet's round trip is the time of all N
/// C of them on the receiver's link, and the queue holds all that cables, NICs and switch do not.
#[test]
fn an_incast_queues_all_windows() {
    for (senders, credits) in [(5, 32), (20, 32), (40, 8)] {
        let settings = Incast {
            senders,
            credits,
            warm_up_ns: 3_000_000,
            time_ns: 3_000_000,
            ..Incast::default()
        };
        let seen = incast::run(&settings).expect("runs");
        assert_eq!(seen.traffic.drops_total() + seen.traffic.retransmitted, 0);
        assert_close(seen.goodput_bps, seen.expected_goodput_bps, 10_000);
        assert_close(seen.rtt.p50_ns, seen.expected_rtt_ns, 1_000);
        assert_close(seen.rtt.p99_ns, seen.expected_rtt_ns, 1_000);
        // Outside of the queue: the idle network's round trip, at one packet each 489.6 ns.
        let stored = 1_530 - 20;
        let all = u64::from(senders * credits) * stored;
        let idle_ns = 2_400 + 600;
        let outside = idle_ns * 1_000 / 489_600 + 2;
        assert!(seen.queue_max_bytes <= all, "{seen:?}");
        assert!(seen.queue_mean_bytes + outside * stored >= all, "{seen:?}");
    }
}

/// With the default control one setting holds from 2 to 999 senders: a short queue, the full rate,
/// nothing lost, every sender its share (E82).
#[test]
fn the_default_control_keeps_an_incast_short_and_fair() {
    for senders in [1, 2, 20, 50, 100, 999] {
        let settings = Incast {
            senders,
            control: Control::TwoWindow,
            recovery: Recovery::Selective,
            max_frame: 1_072,
            request_bytes: if senders < 999 { 8 << 20 } else { 900_000 },
            ..Incast::default()
        };
        let seen = incast::run(&settings).expect("runs");
        let share = seen.goodput_bps as f64 / seen.expected_goodput_bps as f64;
        let least = if senders == 1 { 0.99 } else { 0.97 };
        assert!(share >= least, "{senders}: {share}");
        // Three times the idle round trip; a single sender's own window is not the receiver's.
        let most_ns = if senders == 1 { 12_000 } else { 8_000 };
        assert!(seen.rtt.p99_ns <= most_ns, "{senders}: {}", seen.rtt.p99_ns);
        assert_eq!(seen.drops, 0, "{senders}");
        let few = senders < 999; // 55 packets each in the measured time
        assert!(
            seen.slowest_share >= if few { 0.85 } else { 0.8 },
            "{senders}: {}",
            seen.slowest_share
        );
        assert!(seen.jain >= 0.95, "{senders}: {}", seen.jain);
    }
}

/// Endpoints of a host that receive over one link keep its queue as short as one endpoint does, and
/// are fair to each other.
#[test]
fn endpoints_of_a_host_share_its_link() {
    meets_its_targets(&["e2-n20", "e4-n96", "e8-n96"]);
}

/// Two senders, each of which pauses between its messages, keep the queue as short as many do.
#[test]
fn the_budget_outlasts_the_pauses_of_one_of_two_senders() {
    meets_its_targets(&["e1-n2"]);
}

/// Runs shapes for as long as the share of the slowest sender needs.
fn meets_its_targets(names: &[&str]) {
    let rows = names.iter().map(|name| Pick::of(name).expect("a shape")).collect();
    let mut settings = Shapes { rows, alone: true, ..Shapes::default() };
    settings.changed.push(("duration_ns", 60_000_000));
    for row in shapes::run(&settings).expect("runs") {
        let missed: Vec<_> = row.targets.iter().filter(|aim| !aim.met).collect();
        assert!(missed.is_empty(), "{}: {missed:?}", row.shape);
    }
}

/// An incast whose windows fit into the buffer loses nothing, one whose windows do not loses and
/// recovers (E84).
#[test]
fn a_buffer_overflows_when_the_windows_are_larger() {
    let settings =
        Buffers { credits: 13, warm_up_ns: 5_000_000, time_ns: 10_000_000, ..Buffers::default() };
    let scheme = buffers::Scheme { control: Control::None, recovery: Recovery::GoBackN };
    // 10 windows of 13 packets of 1,510 bytes: 196 kB.
    for (bytes, overflows) in [(60_000, true), (180_000, true), (200_000, false)] {
        let buffer = Buffer::PerPort { bytes };
        let seen = buffers::point(&settings, scheme, 10, buffer).expect("runs");
        assert_eq!(seen.overflow_expected, overflows, "{bytes}");
        assert_eq!(
            (seen.overflows > 0, seen.retransmitted > 0),
            (overflows, overflows),
            "{seen:?}"
        );
        assert!(seen.queue_max_bytes <= bytes);
        assert!(seen.goodput_bps > 5_000_000_000, "{seen:?}");
    }
    let seen = buffers::point(&settings, scheme, 10, buffers::DYNAMIC).expect("runs");
    assert_eq!((seen.overflow_expected, seen.overflows, seen.retransmitted), (false, 0, 0));
}

/// Responses of several packets cost a round trip less the time of a packet, whatever their size
/// (E44).
#[test]
fn multi_packet_responses_cost_less_than_a_round_trip() {
    for (cpu, two_racks) in [(Cpu::None, false), (Cpu::Erpc, true), (Cpu::Courser, false)] {
        let settings = ResponseRtt { max_packets: 12, cpu, two_racks, ..ResponseRtt::default() };
        let seen = response_rtt::run(&settings).expect("runs");
        assert_eq!(seen[0].extra_ns, 0);
        for point in &seen[1..] {
            assert!(point.extra_ns < point.idle.rtt_ns, "{cpu:?} {point:?}");
            let idle = point.idle;
            assert!(point.extra_ns + 2 * idle.packet_ns > idle.rtt_ns, "{cpu:?} {point:?}");
        }
    }
}

/// All hosts call all others: every request of one is executed at another, none is lost, and equal
/// seeds result in equal runs.
#[test]
fn sessions_of_all_with_all_work_and_repeat() {
    let settings = Sessions {
        nodes: 10,
        threads: 2,
        at_most_once: true,
        warm_up_ns: 100_000,
        time_ns: 300_000,
        ..Sessions::default()
    };
    let seen = sessions::run(&settings).expect("runs");
    assert_eq!(seen.sessions_per_node, 2 * 2 * 19);
    assert_eq!(seen.latency.count, seen.traffic.responses);
    assert_close(seen.traffic.requests, seen.traffic.responses, 10_000);
    assert_eq!(seen.traffic.drops_total() + seen.traffic.retransmitted, 0);
    // Never more than 60 in flight: by Little's law the rate is at most 60 by the latency.
    let most = 60 * 2 * 1_000_000_000 / seen.latency.min_ns;
    assert!(seen.rate_per_node_rps > 1_000_000 && seen.rate_per_node_rps < most, "{seen:?}");
    assert_eq!(sessions::run(&settings).expect("runs"), seen);
    let other = Sessions { seed: 2, ..settings };
    assert_ne!(sessions::run(&other).expect("runs").digest, seen.digest);
}

/// Invalid settings are refused by name.
#[test]
fn invalid_settings_are_refused() {
    let text = |e: courser_lab::scenario::ScenarioError| e.to_string();
    let sessions = |change: fn(&mut Sessions)| {
        let mut settings = Sessions::default();
        change(&mut settings);
        sessions::run(&settings).map_err(text).expect_err("refused")
    };
    assert!(sessions(|s| s.nodes = 1).contains("nodes = 1"));
    assert!(sessions(|s| s.in_flight = 61).contains("in_flight = 61"));
    assert!(sessions(|s| s.threads = 16).contains("nodes * threads = 1600"));
    assert!(sessions(|s| s.batch = 0).contains("batch = 0"));
    let many = Incast { senders: 500, ..Incast::default() };
    assert!(incast::run(&many).map_err(text).expect_err("refused").contains("960 MiB"));
    let short = Credits { rtt_ns: 100, ..Credits::default() };
    assert!(credits::point(&short, 1).map_err(text).expect_err("refused").contains("rtt_ns"));
    let none = ResponseRtt { max_packets: 0, ..ResponseRtt::default() };
    assert!(response_rtt::run(&none).map_err(text).expect_err("refused").contains("max_p"));
}
