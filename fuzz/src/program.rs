//! Programs of the `endpoint` target, as bytes. Each operation is a byte for its kind and a fixed
//! number of bytes after it, so that a mutation changes one operation and the generator of seeds
//! can write what the target reads. Missing bytes at the end are zero.

use arbitrary::{Result, Unstructured};
use courser_proto::wire::{MAX_MSG_SIZE, MAX_SESSION, Packet, data_len, packets_of};

/// Settings of the two endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setup {
    /// Bit 0: little server memory; bit 1: one slot; bit 2: few credits; bit 3: the transport
    /// holds frames; bit 4: request numbers start just before they wrap; bit 5: a peer may hold
    /// little.
    pub bits: u8,
}

/// A packet as a peer of the session could send it, with small numbers so that they match those of
/// the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forged {
    pub kind: u8,
    pub session: u8,
    pub slot: u8,
    /// Index of the request in the slot; negative: before the first.
    pub round: i8,
    pub size: u32,
    pub index: u16,
    /// Request type, status, or flag.
    pub extra: u8,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Advances time by a number of thousand nanoseconds.
    Run(u16),
    /// A call of `len` bytes on a session; `what` selects the behaviour of its handler.
    Call { session: u8, what: u8, len: u16 },
    /// A frame that passes the ingress of a node (bit 0 of `to`).
    Frame { to: u8, packets: Vec<Forged> },
    /// A frame header that passes ingress, and any bytes after it.
    Bytes { to: u8, bytes: Vec<u8> },
    /// Repeats the frame sent `back` frames ago.
    Replay { back: u8 },
    /// The same with a bit flipped.
    Flip { back: u8, at: u16 },
    /// Faults of the link, per 256 frames.
    Faults { loss: u8, duplicate: u8, reorder: u8 },
    /// Connects one more session, up to the limit.
    Connect,
    /// Closes a session.
    Close { session: u8 },
    /// Answers the requests that handlers deferred.
    Answer { len: u16 },
    /// A frame with arbitrary clocks and ECN counts of its sender.
    Clocks { to: u8, sent_at: u32, echo_at: u32, marked: u32 },
    /// An idle notice of the control channel for a server session, with these request counts.
    Idle { session: u8, done: Vec<i8> },
}

/// Most operations of one input, which bounds its time.
pub const MAX_OPS: usize = 200;

pub fn decode(bytes: &[u8]) -> Result<(Setup, Vec<Op>)> {
    let mut u = Unstructured::new(bytes);
    let setup = Setup { bits: u.arbitrary()? };
    let mut ops = Vec::new();
    while !u.is_empty() && ops.len() < MAX_OPS {
        ops.push(op(&mut u)?);
    }
    Ok((setup, ops))
}

fn op(u: &mut Unstructured<'_>) -> Result<Op> {
    Ok(match u.arbitrary::<u8>()? % 12 {
        0 => Op::Run(u.arbitrary()?),
        1 => Op::Call { session: u.arbitrary()?, what: u.arbitrary()?, len: u.arbitrary()? },
        2 => {
            let (to, n) = (u.arbitrary()?, u.arbitrary::<u8>()? % 8);
            Op::Frame { to, packets: (0..n).map(|_| forged(u)).collect::<Result<_>>()? }
        }
        3 => {
            let (to, n) = (u.arbitrary()?, u.arbitrary::<u8>()?);
            let n = usize::from(n).min(u.len());
            Op::Bytes { to, bytes: u.bytes(n)?.to_vec() }
        }
        4 => Op::Replay { back: u.arbitrary()? },
        5 => Op::Flip { back: u.arbitrary()?, at: u.arbitrary()? },
        6 => {
            Op::Faults { loss: u.arbitrary()?, duplicate: u.arbitrary()?, reorder: u.arbitrary()? }
        }
        7 => Op::Connect,
        8 => Op::Close { session: u.arbitrary()? },
        9 => Op::Answer { len: u.arbitrary()? },
        10 => Op::Clocks {
            to: u.arbitrary()?,
            sent_at: u.arbitrary()?,
            echo_at: u.arbitrary()?,
            marked: u.arbitrary()?,
        },
        _ => {
            let (session, n) = (u.arbitrary()?, u.arbitrary::<u8>()? % 40);
            Op::Idle { session, done: (0..n).map(|_| u.arbitrary()).collect::<Result<_>>()? }
        }
    })
}

fn forged(u: &mut Unstructured<'_>) -> Result<Forged> {
    Ok(Forged {
        kind: u.arbitrary()?,
        session: u.arbitrary()?,
        slot: u.arbitrary()?,
        round: u.arbitrary()?,
        size: u.arbitrary()?,
        index: u.arbitrary()?,
        extra: u.arbitrary()?,
    })
}

pub fn encode(setup: Setup, ops: &[Op]) -> Vec<u8> {
    let mut out = vec![setup.bits];
    for op in ops {
        match *op {
            Op::Run(us) => put(&mut out, 0, &[&us.to_le_bytes()]),
            Op::Call { session, what, len } => {
                put(&mut out, 1, &[&[session, what], &len.to_le_bytes()]);
            }
            Op::Frame { to, ref packets } => {
                put(&mut out, 2, &[&[to, packets.len() as u8]]);
                for p in packets {
                    out.extend([p.kind, p.session, p.slot, p.round as u8]);
                    out.extend(p.size.to_le_bytes());
                    out.extend(p.index.to_le_bytes());
                    out.push(p.extra);
                }
            }
            Op::Bytes { to, ref bytes } => put(&mut out, 3, &[&[to, bytes.len() as u8], bytes]),
            Op::Replay { back } => put(&mut out, 4, &[&[back]]),
            Op::Flip { back, at } => put(&mut out, 5, &[&[back], &at.to_le_bytes()]),
            Op::Faults { loss, duplicate, reorder } => {
                put(&mut out, 6, &[&[loss, duplicate, reorder]]);
            }
            Op::Connect => put(&mut out, 7, &[]),
            Op::Close { session } => put(&mut out, 8, &[&[session]]),
            Op::Answer { len } => put(&mut out, 9, &[&len.to_le_bytes()]),
            Op::Clocks { to, sent_at, echo_at, marked } => {
                let words = [sent_at.to_le_bytes(), echo_at.to_le_bytes(), marked.to_le_bytes()];
                put(&mut out, 10, &[&[to], &words.concat()]);
            }
            Op::Idle { session, ref done } => {
                let numbers: Vec<u8> = done.iter().map(|&n| n as u8).collect();
                put(&mut out, 11, &[&[session, done.len() as u8], &numbers]);
            }
        }
    }
    out
}

fn put(out: &mut Vec<u8>, op: u8, parts: &[&[u8]]) {
    out.push(op);
    parts.iter().for_each(|p| out.extend_from_slice(p));
}

impl Forged {
    /// The packet of these numbers, and the bytes that it takes from `data`.
    pub fn packet<'d>(&self, first: u32, slots: u32, dpp: u16, data: &'d [u8]) -> Packet<'d> {
        let session = u32::from(self.session) & MAX_SESSION;
        let req_num = first
            .wrapping_add((i32::from(self.round) as u32).wrapping_mul(slots))
            .wrapping_add(u32::from(self.slot) & (slots - 1));
        let msg_size = self.size & MAX_MSG_SIZE;
        let index = u32::from(self.index) % packets_of(msg_size, dpp);
        let req_type = u16::from(self.extra);
        // Every other first packet of a request has its remaining time.
        let timed = self.kind % 9 == 1 && index == 0;
        let remaining_us = timed.then(|| u32::from(self.extra) << 8);
        let data = &data[..data_len(msg_size, index, dpp)];
        match self.kind % 9 {
            0 | 1 => Packet::Request {
                session,
                req_num,
                req_type,
                msg_size,
                index,
                remaining_us,
                one_way: false,
                data,
            },
            2 => {
                let in_progress = self.extra & 1 != 0;
                let (count, grant) =
                    (self.index.into(), courser_proto::Grant::from_bits(self.size));
                Packet::CreditReturn { session, req_num, count, in_progress, grant }
            }
            3 => {
                let count = msg_size.max(1);
                Packet::Rfr { session, req_num, first: self.index.into(), count }
            }
            4 => Packet::Response { session, req_num, msg_size, index, data },
            5 if self.extra & 2 == 0 => {
                let number = first.wrapping_add(i32::from(self.round) as u32);
                let remaining_us = (self.extra & 1 != 0).then_some(1_000);
                Packet::Message { session, number, msg_type: req_type, remaining_us, data }
            }
            5 => {
                let next = first.wrapping_add(u32::from(self.slot));
                Packet::MessageAck { session, next, later: u64::from(self.size) }
            }
            6 => Packet::Ack { session, req_num },
            8 => Packet::Cancel { session, req_num },
            _ => Packet::ErrorResponse { session, req_num, status: req_type },
        }
    }
}
