//! Good packets of all kinds, and mutations of them.

use crate::build::{MORE, TCP, V4, V6, extension, fix, fragment_header, tcp, udp};

/// A generator of numbers (xorshift64*, Marsaglia and Vigna).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end.max(1)
    }
}

/// Good packets of all kinds.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let v4 = |protocol, fragment, options: &[u8], data: Vec<u8>| {
        V4 { protocol, fragment, options: options.to_vec(), data, ..V4::default() }.bytes()
    };
    let v6 = |next, parts: &[Vec<u8>]| V6 { next, data: parts.concat(), ..V6::default() }.bytes();
    let echo = |kind, sum: u16| [&[kind, 0], &sum.to_be_bytes()[..], &[0; 4], &[0; 64]].concat();
    let long: Vec<u8> = (0..1400).map(|n| n as u8).collect();
    vec![
        v4(17, 0, &[], udp(b"data")),
        v4(17, 0, &[148, 4, 0, 0], udp(&long)),
        v4(17, 0, &[7, 7, 4, 0, 0, 0, 0, 1, 130, 4, 1, 2], udp(&long)),
        v4(TCP, 0x4000, &[], tcp(b"data")),
        v4(TCP, 0, &[1; 40], tcp(&long)),
        v4(17, MORE, &[], udp(&[9; 512])),
        v4(17, 64, &[136, 4, 1, 2], vec![9; 500]),
        v4(17, MORE | 64, &[], vec![9; 504]),
        v4(1, 0, &[], echo(8, 0xf7ff)),
        v4(1, 0, &[], echo(3, 0xfcff)),
        v6(17, &[udp(b"data")]),
        v6(TCP, &[tcp(&long)]),
        v6(58, &[echo(128, echo_sum_v6())]),
        v6(58, &[echo(1, 0)]),
        v6(44, &[fragment_header(17, 0, true), udp(&[9; 512])]),
        v6(44, &[fragment_header(17, 65, false), vec![9; 99]]),
        v6(0, &[extension(43, 0), extension(60, 1), extension(17, 0), udp(b"data")]),
        v6(0, &[extension(44, 0), fragment_header(TCP, 0, true), tcp(&[1; 100])]),
        v6(51, &[vec![TCP, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], tcp(b"data")]),
    ]
}

/// The checksum of the echo request among the seeds.
fn echo_sum_v6() -> u16 {
    let packet = V6 { next: 58, data: vec![], ..V6::default() }.bytes();
    let pseudo = [&packet[8..40], &[0, 0, 0, 72, 0, 0, 0, 58], &[128, 0]].concat();
    crate::build::checksum(&pseudo)
}

/// Mutates a packet in one to four ways.
pub(crate) fn mutate(random: &mut Random, seeds: &[Vec<u8>], packet: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let len = packet.len();
        match random.below(8) {
            0 => packet.truncate(random.below(len + 1)),
            1 | 2 if len > 0 => packet[random.below(len)] ^= 1 << random.below(8),
            3 | 4 if len > 0 => packet[random.below(len.min(64))] = random.next() as u8,
            5 => {
                // The beginning of this one and the end of another.
                let other = &seeds[random.below(seeds.len())];
                packet.truncate(random.below(len.min(80) + 1));
                packet.extend(&other[random.below(other.len().min(80))..]);
            }
            6 => packet.extend(std::iter::repeat_n(random.next() as u8, random.below(50))),
            _ => {
                // Lengths that fit, as far as there are any.
                let len = packet.len() as u16;
                match packet.first().map(|first| first >> 4) {
                    Some(4) if len >= 20 => packet[2..4].copy_from_slice(&len.to_be_bytes()),
                    Some(6) if len >= 40 => packet[4..6].copy_from_slice(&(len - 40).to_be_bytes()),
                    _ => {}
                }
            }
        }
    }
    // A wrong checksum would hide all other checks.
    if packet.first().is_some_and(|first| first >> 4 == 4) && random.below(16) > 0 {
        fix(packet);
    }
}
