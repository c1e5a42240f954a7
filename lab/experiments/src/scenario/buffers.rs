//! Loss against the size of switch buffers `[eRPC §2.1]` (E84): whether an incast of N windows of C
//! packets fits into a buffer.
//!
//! N windows of C packets are at most N C packets in a switch, less those on cables, in NICs and
//! with CPUs: about one bandwidth-delay product in total, since the queue is filled as fast as it
//! drains. With a window of one bandwidth-delay product, 12 MB suffice for 640 senders in theory;
//! the paper's target is 50.

use courser::{Control, Recovery};
use serde::Serialize;

use super::incast;
use super::{Cpu, ScenarioError, Traffic, check, control_name, recovery_name};
use super::{control_names, recovery_names, run_pairs, wire_bytes};
use courser_sim::fabric::Buffer;
use courser_sim::observe::{DropReason, Tap};
use courser_sim::{STORED_OVERHEAD, WIRE_OVERHEAD};

/// The paper's switch: 12 MB, of which one queue can use eight ninths.
pub const DYNAMIC: Buffer = Buffer::Shared { bytes: 12_000_000, alpha_num: 8, alpha_den: 1 };

/// Bytes of a request: many windows, and a thousand of them fit into a server.
const REQUEST_BYTES: usize = 512 << 10;

/// Settings of the experiment: each number of senders runs with each buffer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Numbers of senders. Default 20, 50, 100.
    pub senders: Vec<u32>,
    /// Static buffers of each port, bytes. Default 120 kB, 480 kB, 1,920 kB.
    pub static_bytes: Vec<u64>,
    /// Credits of each session, C. Default 13: a bandwidth-delay product of 19 kB.
    pub credits: u32,
    /// Congestion controls: one or more. Default none, and Courser's own.
    #[serde(serialize_with = "control_names")]
    pub controls: Vec<Control>,
    /// Schemes of loss recovery: one or more. Default go-back-N, as in the
    /// paper, and Courser's own.
    #[serde(serialize_with = "recovery_names")]
    pub recoveries: Vec<Recovery>,
    /// The CPUs.
    pub cpu: Cpu,
    /// Warm-up, ns. Default 30 ms: the first timeouts occur after 20.
    pub warm_up_ns: u64,
    /// Measured time, ns. Default 50 ms.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            senders: vec![20, 50, 100],
            static_bytes: vec![120_000, 480_000, 1_920_000],
            credits: 13,
            controls: vec![Control::None, Control::default()],
            recoveries: vec![Recovery::GoBackN, Recovery::default()],
            cpu: Cpu::None,
            warm_up_ns: 30_000_000,
            time_ns: 50_000_000,
        }
    }
}

/// How the hosts send: congestion control and loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scheme {
    /// Congestion control.
    pub control: Control,
    /// Loss recovery.
    pub recovery: Recovery,
}

/// One number of senders with one buffer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Point {
    /// Congestion control.
    #[serde(serialize_with = "control_name")]
    pub control: Control,
    /// Loss recovery.
    #[serde(serialize_with = "recovery_name")]
    pub recovery: Recovery,
    /// Senders, N.
    pub senders: u32,
    /// Capacity of one queue, bytes.
    pub buffer_bytes: u64,
    /// True if the capacity is a static part of the buffer, false if it is a share of a dynamic one.
    pub is_static: bool,
    /// Bytes of N windows of C packets.
    pub windows_bytes: u64,
    /// True if they exceed the capacity.
    pub overflow_expected: bool,
    /// Datagrams dropped by the switch for lack of buffer.
    pub overflows: u64,
    /// Overflows per million datagrams to the server.
    pub loss_ppm: u64,
    /// Datagrams dropped for lack of buffer after the first round trip, warm-up included.
    pub overflows_after_first_rtt: u64,
    /// Overflows per million datagrams to the server in that time.
    pub loss_after_first_rtt_ppm: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Goodput: data that the server has accepted, bit/s.
    pub goodput_bps: u64,
    /// Largest number of bytes in the queue.
    pub queue_max_bytes: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "super::hex")]
    pub digest: u64,
}

/// Runs all combinations, the dynamic buffer first. `progress` is called with the number of
/// finished runs and their total.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(
    settings: &Settings,
    progress: impl FnMut(usize, usize),
) -> Result<Vec<Point>, ScenarioError> {
    let fixed = settings.static_bytes.iter().map(|&bytes| Buffer::PerPort { bytes });
    let buffers: Vec<Buffer> = std::iter::once(DYNAMIC).chain(fixed).collect();
    let all = buffers.len() * settings.senders.len();
    check((1..=1_000).contains(&all), "combinations", all as u64, "1 to 1,000")?;
    for &bytes in &settings.static_bytes {
        check((2_000..=1 << 40).contains(&bytes), "static_bytes", bytes, "2,000 to 2^40")?;
    }
    let schemes = settings.controls.iter().flat_map(|&control| {
        settings.recoveries.iter().map(move |&recovery| Scheme { control, recovery })
    });
    let schemes: Vec<Scheme> = schemes.collect();
    check(!schemes.is_empty(), "controls and recoveries", 0_u64, "one or more of each")?;
    let mut pairs = Vec::with_capacity(all);
    for &senders in &settings.senders {
        pairs.extend(buffers.iter().map(|&buffer| (senders, buffer)));
    }
    run_pairs(&schemes, &pairs, progress, |scheme, (senders, buffer)| {
        point(settings, scheme, senders, buffer, None)
    })
}

/// Runs one combination.
///
/// # Errors
/// As [`run`].
pub fn point(
    settings: &Settings,
    scheme: Scheme,
    senders: u32,
    buffer: Buffer,
    tap: Option<Box<dyn Tap>>,
) -> Result<Point, ScenarioError> {
    let incast = incast::Settings {
        seed: settings.seed,
        senders,
        credits: settings.credits,
        control: scheme.control,
        recovery: scheme.recovery,
        buffer: Some(buffer),
        cpu: settings.cpu,
        request_bytes: REQUEST_BYTES,
        warm_up_ns: settings.warm_up_ns,
        time_ns: settings.time_ns,
        ..incast::Settings::default()
    };
    let seen = incast::run(&incast, tap)?;
    let stored = wire_bytes(incast.packet_data()) - u64::from(WIRE_OVERHEAD - STORED_OVERHEAD);
    let windows_bytes = u64::from(senders) * u64::from(settings.credits) * stored;
    let (buffer_bytes, is_static) = match buffer {
        // Capacity of one queue that never empties.
        Buffer::Shared { bytes, alpha_num, alpha_den } => {
            let (num, den) = (u128::from(alpha_num), u128::from(alpha_den));
            ((u128::from(bytes) * num / (num + den)) as u64, false)
        }
        Buffer::PerPort { bytes } => (bytes, true),
    };
    let ppm = |traffic: &Traffic| {
        let lost = traffic.dropped(DropReason::BufferFull);
        let arrived = traffic.request_packets + lost;
        (lost, (lost * 1_000_000).checked_div(arrived).unwrap_or(0))
    };
    let (overflows_after_first_rtt, loss_after_first_rtt_ppm) = ppm(&seen.after_first_rtt);
    Ok(Point {
        control: scheme.control,
        recovery: scheme.recovery,
        senders,
        buffer_bytes,
        is_static,
        windows_bytes,
        overflow_expected: windows_bytes > buffer_bytes,
        overflows: seen.overflows(),
        loss_ppm: ppm(&seen.traffic).1,
        overflows_after_first_rtt,
        loss_after_first_rtt_ppm,
        retransmitted: seen.traffic.retransmitted,
        goodput_bps: seen.goodput_bps,
        queue_max_bytes: seen.queue_max_bytes,
        digest: seen.digest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_and_recovery_has_a_point() {
        let settings = Settings {
            senders: vec![2],
            static_bytes: vec![20_000],
            warm_up_ns: 100_000,
            time_ns: 100_000,
            ..Settings::default()
        };
        let points = run(&settings, |_, _| {}).expect("runs");
        let names: Vec<_> = points.iter().map(|p| (p.control.name(), p.recovery.name())).collect();
        let (none, own) = ("none", "default");
        let expected = [(none, "go-back-n"), (none, own), (own, "go-back-n"), (own, own)];
        assert_eq!(names, expected.map(|pair| [pair; 2]).concat());
    }

    #[test]
    fn an_empty_list_is_refused() {
        let bad: [fn(&mut Settings); 3] =
            [|s| s.controls.clear(), |s| s.recoveries.clear(), |s| s.senders.clear()];
        for spoil in bad {
            let mut settings = Settings::default();
            spoil(&mut settings);
            let refused = run(&settings, |_, _| {});
            assert!(matches!(refused, Err(ScenarioError::Setting { .. })), "{settings:?}");
        }
    }
}
