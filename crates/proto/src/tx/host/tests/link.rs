//! The queue in front of a link of 25 Gbit/s, which a large message has beside small ones.

use std::collections::VecDeque;

use super::*;

const PER_KB_NS: u64 = 320;
const TIME_NS: u64 = 100_000_000;
/// Bytes of a small frame on the link, and in the count of a kernel with its overhead.
const SMALL: (u64, u64) = (110, 768);

/// A link, and the device in front of it.
#[derive(Clone, Copy, Default)]
struct Link {
    /// Bytes that never leave the queue.
    stuck: u64,
    /// A small frame is added once in this time on average, ns; 0: none is.
    small_ns: u64,
    /// The device reports at multiples of this time what it has sent, ns; 0: at once.
    completes_ns: u64,
}

/// Frames that are in the queue as far as reported.
#[derive(Default)]
struct Device {
    free_ns: u64,
    held: u64,
    /// Times of reports, ns, and the bytes that they report.
    sent: VecDeque<(u64, u64)>,
}

impl Device {
    fn add(&mut self, now_ns: u64, (wire, bytes): (u64, u64), completes_ns: u64) {
        self.free_ns = self.free_ns.max(now_ns) + wire * PER_KB_NS / 1_000;
        let periods = self.free_ns.checked_div(completes_ns);
        let at_ns = periods.map_or(self.free_ns, |n| (n + 1) * completes_ns);
        self.sent.push_back((at_ns, bytes));
        self.held += bytes;
    }

    fn bytes(&mut self, now_ns: u64) -> u64 {
        while let Some(&(_, bytes)) = self.sent.front().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.held -= bytes;
            self.sent.pop_front();
        }
        self.held
    }
}

/// The part of the link that a large message had.
#[derive(Debug)]
struct Share {
    /// Its part of what small frames leave, in percent.
    percent: u64,
    /// Time in which the queue was drained, in percent.
    drained: u64,
    limit: u64,
}

fn share(link: Link) -> Share {
    let cfg = Config { train_frames: 44, ..Config::default() };
    let mut q = HostQueue::new(&cfg, FRAME);
    q.on_report(Some(0), 0);
    q.wait(entry(1), 100_000);
    let mut device = Device::default();
    let mut random = 0x9e37_79b9_u64;
    let (mut now_ns, mut small_at_ns) = (0, if link.small_ns == 0 { u64::MAX } else { 0 });
    let (mut sent, mut small, mut drained_ns) = (0, 0, 0);
    while now_ns < TIME_NS {
        while small_at_ns <= now_ns {
            device.add(small_at_ns, SMALL, link.completes_ns);
            small += SMALL.0;
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            small_at_ns += 1 + (random >> 33) % (2 * link.small_ns);
        }
        q.on_report(Some(link.stuck + device.bytes(now_ns)), now_ns);
        while q.begins() && begin_turn(&mut q).is_some() {
            for _ in 0..send(&mut q) {
                device.add(now_ns, (FRAME as u64, FRAME as u64), link.completes_ns);
                sent += FRAME as u64;
            }
            q.end_turn();
            q.wait(entry(1), 100_000);
        }
        let wait_ns = q.wait_ns();
        drained_ns += if q.progress.probes { wait_ns } else { 0 };
        now_ns += wait_ns;
    }
    let rest = TIME_NS * 1_000 / PER_KB_NS - small;
    Share { percent: 100 * sent / rest, drained: 100 * drained_ns / TIME_NS, limit: q.limit }
}

#[test]
fn a_large_message_has_the_link_beside_small_ones_and_stuck_bytes_of_a_device_that_reports_late() {
    for (completes_ns, least) in [(0, 99), (16_000, 99), (50_000, 98)] {
        let stuck = [(200_000, 0), (200_000, 10_000), (200_000, 1_000)];
        for (stuck, small_ns) in [(0, 0), (0, 10_000), (0, 1_000)].into_iter().chain(stuck) {
            let share = share(Link { stuck, small_ns, completes_ns });
            let least = if stuck > 0 { least.min(94) } else { least };
            assert!(share.percent >= least, "{completes_ns}, {stuck}, {small_ns}: {share:?}");
            assert!(share.limit < 1_000_000, "{completes_ns}, {stuck}, {small_ns}: {share:?}");
            assert!(share.drained <= 4, "{completes_ns}, {stuck}, {small_ns}: {share:?}");
        }
    }
}
