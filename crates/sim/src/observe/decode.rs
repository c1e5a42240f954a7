//! Readable form of a frame: its packets and their kinds, one phrase each.

use std::fmt;

use courser_proto::wire::{FrameHeader, Malformed, Packet, packets_of, parse_packet};

/// The kind of a packet in traces and tables. Besides the wire's kinds, error responses are a kind
/// of their own, and so are bytes that are no packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A packet of a request.
    Request,
    /// Credit return.
    CreditReturn,
    /// Request-for-response.
    Rfr,
    /// A packet of a response.
    Response,
    /// An error in place of a response.
    ErrorResponse,
    /// A one-way message of one packet.
    OneWay,
    /// The client has the response.
    Ack,
    /// The client has given up the request.
    Cancel,
    /// A credit return with holes.
    Nack,
    /// A frame is missing.
    Gap,
    /// One-way messages have arrived.
    MessageAck,
    /// The answer to a challenge of an address.
    Proof,
    /// Bytes that are no packet, or a frame without a valid header.
    Malformed,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 13] = [
        Kind::Request,
        Kind::CreditReturn,
        Kind::Rfr,
        Kind::Response,
        Kind::ErrorResponse,
        Kind::OneWay,
        Kind::Ack,
        Kind::Cancel,
        Kind::Nack,
        Kind::Gap,
        Kind::MessageAck,
        Kind::Proof,
        Kind::Malformed,
    ];
    /// Number of kinds.
    pub const COUNT: usize = Self::ALL.len();
    /// Their names, in the same order: short, lower case, the same in every release.
    pub const NAMES: [&'static str; Self::COUNT] = [
        "request",
        "credit-return",
        "request-for-response",
        "response",
        "error-response",
        "one-way",
        "ack",
        "cancel",
        "nack",
        "gap",
        "message-ack",
        "proof",
        "malformed",
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub(super) fn of(packet: &Result<Packet<'_>, Malformed>) -> Kind {
        match packet {
            Ok(Packet::Request { .. }) => Kind::Request,
            Ok(Packet::CreditReturn { .. }) => Kind::CreditReturn,
            Ok(Packet::Rfr { .. }) => Kind::Rfr,
            Ok(Packet::Response { .. }) => Kind::Response,
            Ok(Packet::ErrorResponse { .. }) => Kind::ErrorResponse,
            Ok(Packet::Message { .. }) => Kind::OneWay,
            Ok(Packet::Ack { .. }) => Kind::Ack,
            Ok(Packet::Cancel { .. }) => Kind::Cancel,
            Ok(Packet::Nack { .. }) => Kind::Nack,
            Ok(Packet::Gap) => Kind::Gap,
            Ok(Packet::MessageAck { .. }) => Kind::MessageAck,
            Ok(Packet::Proof { .. }) => Kind::Proof,
            Err(_) => Kind::Malformed,
        }
    }
}

/// The packets of a frame behind its header, in order; an error is the last.
#[derive(Debug)]
pub struct Packets<'f> {
    rest: &'f [u8],
    data_per_packet: u16,
}

impl<'f> Iterator for Packets<'f> {
    type Item = Result<Packet<'f>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        match parse_packet(self.rest, self.data_per_packet) {
            Ok(None) => None,
            Ok(Some((packet, rest))) => {
                self.rest = rest;
                Some(Ok(packet))
            }
            Err(why) => {
                self.rest = &[];
                Some(Err(why))
            }
        }
    }
}

/// Header and packets of a frame.
///
/// # Errors
/// The header is malformed.
pub fn frame(bytes: &[u8]) -> Result<(FrameHeader, Packets<'_>), Malformed> {
    let (header, rest) = FrameHeader::parse(bytes)?;
    Ok((header, Packets { rest, data_per_packet: header.data_per_packet }))
}

/// Data of the requests and responses in a frame.
pub fn payloads(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let packets = frame(bytes).ok().map(|(_, packets)| packets);
    packets.into_iter().flatten().filter_map(|packet| match packet {
        Ok(
            Packet::Request { data, .. }
            | Packet::Response { data, .. }
            | Packet::Message { data, .. },
        ) => Some(data),
        _ => None,
    })
}

/// The request number of a packet, if its kind has one.
pub(super) fn req_num(packet: &Packet<'_>) -> Option<u32> {
    match *packet {
        Packet::Request { req_num, .. }
        | Packet::CreditReturn { req_num, .. }
        | Packet::Rfr { req_num, .. }
        | Packet::Response { req_num, .. }
        | Packet::ErrorResponse { req_num, .. }
        | Packet::Ack { req_num, .. }
        | Packet::Cancel { req_num, .. }
        | Packet::Nack { req_num, .. } => Some(req_num),
        Packet::Message { .. } | Packet::MessageAck { .. } | Packet::Gap | Packet::Proof { .. } => {
            None
        }
    }
}

/// Packets of one frame that are written out; the others are only counted. Bounds a line to about 1
/// KiB, whatever the frame.
const WRITTEN: usize = 16;

/// A whole frame in one phrase.
///
/// `#7 peer 3 cookie deadbeef | REQ s5 r8 0/3 of 2900 B type 1` is frame 7 to the connection that
/// its receiver numbers 3, with packet 0 of the 3 packets of request 8 of session 5.
pub(super) struct FrameText<'f>(pub(super) &'f [u8]);

impl fmt::Display for FrameText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (h, packets) = match frame(self.0) {
            Ok(parsed) => parsed,
            Err(why) => return write!(f, "malformed frame: {why}"),
        };
        write!(f, "#{} peer {} cookie {:08x}", h.number, h.peer, h.cookie)?;
        if h.ecn.marked > 0 {
            write!(f, " ecn {}/{}", h.ecn.marked, h.ecn.received)?;
        }
        let mut more = 0;
        for (i, packet) in packets.enumerate() {
            match packet {
                _ if i >= WRITTEN => more += 1,
                Ok(p) => {
                    f.write_str(" | ")?;
                    write_packet(f, &p, h.data_per_packet)?;
                }
                Err(why) => write!(f, " | malformed packet: {why}")?,
            }
        }
        if more > 0 { write!(f, " | and {more} more") } else { Ok(()) }
    }
}

fn write_packet(f: &mut fmt::Formatter<'_>, packet: &Packet<'_>, dpp: u16) -> fmt::Result {
    match *packet {
        Packet::Request { session, req_num, req_type, msg_size, index, remaining_us, .. } => {
            let of = packets_of(msg_size, dpp);
            write!(f, "REQ s{session} r{req_num} {index}/{of} of {msg_size} B type {req_type}")?;
            remaining_us.map_or(Ok(()), |us| write!(f, " left {us} us"))
        }
        Packet::CreditReturn { session, req_num, count, in_progress, grant } => {
            let state = if in_progress { " in progress" } else { "" };
            write!(f, "CR s{session} r{req_num} credits {count}{state}")?;
            grant.packets().map_or(Ok(()), |n| write!(f, " granted {n}"))
        }
        Packet::Rfr { session, req_num, first, count } => {
            write!(f, "RFR s{session} r{req_num} from {first} credits {count}")
        }
        Packet::Response { session, req_num, msg_size, index, .. } => {
            let of = packets_of(msg_size, dpp);
            write!(f, "RESP s{session} r{req_num} {index}/{of} of {msg_size} B")
        }
        Packet::ErrorResponse { session, req_num, status } => {
            write!(f, "ERR s{session} r{req_num} status {status}")
        }
        Packet::Message { session, number, msg_type, remaining_us, data } => {
            write!(f, "MSG s{session} m{number} of {} B type {msg_type}", data.len())?;
            remaining_us.map_or(Ok(()), |us| write!(f, " left {us} us"))
        }
        Packet::MessageAck { session, next, later } => {
            write!(f, "MACK s{session} before m{next} and {later:x}")
        }
        Packet::Ack { session, req_num } => write!(f, "ACK s{session} r{req_num}"),
        Packet::Cancel { session, req_num } => write!(f, "CANCEL s{session} r{req_num}"),
        Packet::Nack { session, req_num, count, high, holes } => {
            write!(f, "NACK s{session} r{req_num} {count} of {high} missing")?;
            holes.iter().try_for_each(|hole| write!(f, " {}+{}", hole.first, hole.len))
        }
        Packet::Gap => f.write_str("GAP"),
        Packet::Proof { token } => write!(f, "PROOF {token:x}"),
    }
}

/// Frames for the tests of this module's parts.
#[cfg(test)]
pub(super) mod made {
    use courser_buf::Addr;
    use courser_buf::Ecn;
    use courser_proto::wire::{EcnCounts, FRAME_HEADER, PACKET_HEADER};

    use super::*;
    use crate::HostId;

    pub(in crate::observe) const HEADER: FrameHeader = FrameHeader {
        data_per_packet: 1000,
        peer: 3,
        cookie: 0xdead_beef,
        held: 0,
        number: 7,
        ecn: EcnCounts { marked: 0, received: 0 },
        sent_at: Some(0),
        echo_at: None,
    };

    pub(in crate::observe) fn frame_of(packets: &[Packet<'_>]) -> Vec<u8> {
        let mut start = [0; FRAME_HEADER];
        HEADER.write(&mut start);
        let mut out = start.to_vec();
        for p in packets {
            let mut h = [0; PACKET_HEADER];
            p.write_header(&mut h);
            out.extend_from_slice(&h);
            out.extend_from_slice(p.data());
        }
        out
    }

    pub(in crate::observe) fn request(req_num: u32, data: &[u8]) -> Packet<'_> {
        let msg_size = data.len() as u32;
        Packet::Request {
            session: 5,
            req_num,
            req_type: 1,
            msg_size,
            index: 0,
            remaining_us: None,
            one_way: false,
            data,
        }
    }

    /// A datagram from host 0 (10.0.0.1) to host 1.
    pub(in crate::observe) fn datagram(id: u64, bytes: Vec<u8>) -> crate::Packet {
        let addr = std::net::SocketAddr::from(([10, 0, 0, 1], 31_850));
        crate::Packet {
            id,
            src: HostId(0),
            dst: HostId(1),
            src_addr: Addr::from_socket(addr),
            dst_port: 31_851,
            flow: 9,
            bytes,
            ecn: Ecn::Ect0,
            corrupt: false,
            sent_ns: 1_000,
            queued_ns: 0,
            host_delay_ns: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::made::{HEADER, frame_of, request};
    use super::*;
    use courser_proto::Grant;
    use courser_proto::wire::{FRAME_HEADER, Holes};

    #[test]
    fn every_kind_is_read_and_named() {
        let data = [1; 900];
        let part = [2; 1000];
        let all = [
            request(8, &data),
            Packet::CreditReturn {
                session: 5,
                req_num: 8,
                count: 2,
                in_progress: true,
                grant: Grant::default(),
            },
            Packet::Rfr { session: 5, req_num: 8, first: 1, count: 4 },
            Packet::Response { session: 5, req_num: 8, msg_size: 2900, index: 1, data: &part },
            Packet::ErrorResponse { session: 5, req_num: 8, status: 4 },
            Packet::Message { session: 5, number: 6, msg_type: 1, remaining_us: None, data: &data },
            Packet::Ack { session: 5, req_num: 8 },
            Packet::Cancel { session: 5, req_num: 9 },
            Packet::Nack { session: 5, req_num: 8, count: 1, high: 3, holes: Holes::default() },
            Packet::Gap,
            Packet::MessageAck { session: 5, next: 6, later: 5 },
            Packet::Proof { token: 42 },
        ];
        let mut bytes = frame_of(&all);
        bytes.push(15); // no kind
        let text = FrameText(&bytes).to_string();
        assert_eq!(
            text,
            "#7 peer 3 cookie deadbeef | REQ s5 r8 0/1 of 900 B type 1 | \
             CR s5 r8 credits 2 in progress | RFR s5 r8 from 1 credits 4 | \
             RESP s5 r8 1/3 of 2900 B | ERR s5 r8 status 4 | MSG s5 m6 of 900 B type 1 | \
             ACK s5 r8 | CANCEL s5 r9 | NACK s5 r8 1 of 3 missing | GAP | MACK s5 before m6 and 5 | \
             PROOF 2a | malformed packet: truncated header"
        );
        let kinds: Vec<Kind> = frame(&bytes).unwrap().1.map(|p| Kind::of(&p)).collect();
        assert_eq!(kinds, Kind::ALL);
        let numbers: Vec<Option<u32>> = all.iter().map(req_num).collect();
        assert_eq!((numbers[5], numbers[7]), (None, Some(9)));
        assert_eq!(Kind::Malformed.name(), "malformed");
    }

    #[test]
    fn a_line_stays_short_whatever_the_frame() {
        let acks = vec![Packet::Ack { session: 1, req_num: 2 }; 500];
        let text = FrameText(&frame_of(&acks)).to_string();
        assert!(text.ends_with("ACK s1 r2 | and 484 more") && text.len() < 1024, "{text}");
    }

    #[test]
    fn a_header_of_another_version_is_reported_as_malformed() {
        assert_eq!(FrameText(&[0; FRAME_HEADER]).to_string(), "malformed frame: unknown version");
        assert_eq!(FrameText(&[]).to_string(), "malformed frame: truncated header");
    }

    proptest! {
        #[test]
        fn any_bytes_are_one_line(tail in proptest::collection::vec(any::<u8>(), 0..200), dpp: u16) {
            let mut start = [0; FRAME_HEADER];
            FrameHeader { data_per_packet: dpp, ..HEADER }.write(&mut start);
            let bytes = [&start[..], &tail].concat();
            for bytes in [&bytes, &tail] {
                let text = FrameText(bytes).to_string();
                prop_assert!(!text.is_empty() && !text.contains('\n'));
            }
        }
    }
}
