//! Faults of a link, and the record of packets.

use courser_proto::wire::{FrameHeader, Packet, parse_packet};

use super::rng::Rng;

/// Faults per million frames, and delays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    pub loss: u32,
    pub duplicate: u32,
    /// Frames that are delayed by up to `late_ns`.
    pub reorder: u32,
    /// Frames with a bit flipped in a field that ingress checks. (UDP's checksum covers the rest;
    /// the fuzz tests flip any bit.)
    pub corrupt: u32,
    /// Frames with one to three bits flipped anywhere, as by a device that computes UDP's checksum
    /// again.
    pub flip: u32,
    pub latency_ns: u64,
    pub late_ns: u64,
    /// Transmitted frames stay referenced until an explicit flush (ADR 8).
    pub hold: bool,
}

impl Link {
    pub fn perfect() -> Link {
        Link { latency_ns: 1_000, ..Link::default() }
    }

    /// Delays after which copies of a frame arrive; empty when it is lost.
    pub fn fate(&self, rng: &mut Rng) -> Vec<u64> {
        if rng.per_million(self.loss) {
            return Vec::new();
        }
        let copies = 1 + usize::from(rng.per_million(self.duplicate));
        let mut delay = || {
            let late = if rng.per_million(self.reorder) { rng.below(self.late_ns + 1) } else { 0 };
            self.latency_ns + late
        };
        (0..copies).map(|_| delay()).collect()
    }

    /// Flips one bit in a field that ingress checks: version, packet size, peer, cookie.
    pub fn spoil(&self, bytes: &mut [u8], rng: &mut Rng) {
        if rng.per_million(self.corrupt) {
            let at = rng.pick(&[0usize, 2, 3, 4, 5, 6, 8, 9, 10, 11]);
            bytes[at] ^= 1 << rng.below(8);
        }
        if self.flip > 0 && rng.per_million(self.flip) {
            flip_bits(bytes, rng);
        }
    }
}

/// Flips one to three different bits.
pub fn flip_bits(bytes: &mut [u8], rng: &mut Rng) {
    let wanted = 1 + rng.below(3) as usize;
    let mut flipped = Vec::new();
    while flipped.len() < wanted {
        let bit = rng.below(8 * bytes.len() as u64) as usize;
        if !flipped.contains(&bit) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            flipped.push(bit);
        }
    }
}

/// A packet as sent by an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub from: usize,
    pub text: String,
    /// Bytes of header and data.
    pub bytes: usize,
    pub server_kind: bool,
}

/// The packets of a frame as text: `REQ 8#0/3` is packet 0 of request 8 with 3 bytes.
pub fn describe(from: usize, frame: &[u8]) -> Vec<Seen> {
    let mut out = Vec::new();
    let Ok((h, mut rest)) = FrameHeader::parse(frame) else { return out };
    while let Ok(Some((packet, r))) = parse_packet(rest, h.data_per_packet) {
        let bytes = rest.len() - r.len();
        rest = r;
        let (server_kind, text) = match packet {
            Packet::Request { req_num, index, msg_size, .. } => {
                (false, format!("REQ {req_num}#{index}/{msg_size}"))
            }
            Packet::CreditReturn { req_num, count, in_progress, .. } => {
                (true, format!("CR {req_num}+{count}{}", if in_progress { "!" } else { "" }))
            }
            Packet::Rfr { req_num, first, count, .. } => {
                (false, format!("RFR {req_num}#{first}x{count}"))
            }
            Packet::Response { req_num, index, msg_size, .. } => {
                (true, format!("RESP {req_num}#{index}/{msg_size}"))
            }
            Packet::ErrorResponse { req_num, status, .. } => {
                (true, format!("ERR {req_num}={status}"))
            }
            Packet::Message { number, data, .. } => (false, format!("MSG {number}/{}", data.len())),
            Packet::MessageAck { next, later, .. } => (true, format!("MACK {next}+{later:x}")),
            Packet::Ack { req_num, .. } => (false, format!("ACK {req_num}")),
            Packet::Cancel { req_num, .. } => (false, format!("CANCEL {req_num}")),
            Packet::Nack { req_num, count, high, holes, .. } => {
                let holes = holes.iter().map(|h| format!(" {}+{}", h.first, h.len));
                (true, format!("NACK {req_num}+{count}<{high}{}", holes.collect::<String>()))
            }
            Packet::Proof { .. } => (from == 1, "PROOF".to_owned()),
            Packet::Gap => (false, "GAP".into()),
        };
        out.push(Seen { from, text, bytes, server_kind });
    }
    out
}

/// Number of packets that a server may send because of a frame (E39).
pub fn allowance(frame: &[u8]) -> u64 {
    let mut sum = 0;
    let Ok((h, mut rest)) = FrameHeader::parse(frame) else { return 0 };
    while let Ok(Some((packet, r))) = parse_packet(rest, h.data_per_packet) {
        rest = r;
        sum += match packet {
            Packet::Request { .. } | Packet::Cancel { .. } | Packet::Message { .. } => 1,
            Packet::Rfr { count, .. } => u64::from(count),
            _ => 0,
        };
    }
    sum
}
