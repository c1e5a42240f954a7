//! ICMP and ICMPv6: error messages, echo replies, and their rate limit.

use std::net::IpAddr;

use etherparse::icmpv4::{DestUnreachableHeader, TimeExceededCode as TimeExceededV4};
use etherparse::icmpv6::{DestUnreachableCode, TimeExceededCode as TimeExceededV6};
use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpDscp, IpNumber,
    Ipv4Header, Ipv6FlowLabel, Ipv6Header,
};

use super::{Header, Version, checksum, flow, forwarded, number};

mod limiter;
#[cfg(test)]
mod tests;

pub use limiter::Limiter;

/// What an error message is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// The time to live or hop limit is used up.
    TimeExceeded,
    /// There is no route to the destination.
    NoRoute,
    /// The destination, or the router to it, does not answer.
    HostUnreachable,
    /// The packet is larger than the next link takes, and may not be fragmented.
    TooBig {
        /// The MTU of that link.
        mtu: u16,
    },
}

/// TTL and hop limit of the messages.
const TTL: u8 = 64;
/// The largest error message (RFC 1812 section 4.3.2.3), with its IP header.
const MAX_V4: usize = 576;
/// The largest error message (RFC 4443 section 2.4 c), with its IP header.
const MAX_V6: usize = 1280;
/// Bytes of ICMP before the quoted packet, or before the data of an echo.
const ICMP_LEN: usize = 8;
/// Internetwork control, the precedence of error messages (RFC 1812 section 4.3.2.5).
const CONTROL: u8 = 48;
/// The bits of the traffic class for explicit congestion notification, which replies do not repeat.
const ECN: u8 = 3;
const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;

/// Writes the error message about `original` from `source` into `out`, which is cleared first. It
/// is ready to forward, and quotes as much of the packet as fits 576 bytes (IPv4) or 1,280 bytes
/// (IPv6).
///
/// False, and `out` is empty, if none may be sent (RFC 1812 section 4.3.2.7, RFC 4443 section
/// 2.4 e): about ICMP errors and redirects, about fragments other than the first, from or to
/// addresses other than of one host, or if `source` is of the other version. Neither is one sent if
/// the transport header is hidden by IPv6 extension headers, since it could be an ICMP error.
pub fn error(
    problem: Problem,
    original: &[u8],
    header: &Header,
    source: IpAddr,
    out: &mut Vec<u8>,
) -> bool {
    out.clear();
    let Some(original) = original.get(..header.total_len as usize) else { return false };
    if !may_be_reported(original, header) {
        return false;
    }
    match (source, header.src) {
        (IpAddr::V4(source), IpAddr::V4(to)) => {
            let quote = &original[..original.len().min(MAX_V4 - Ipv4Header::MIN_LEN - ICMP_LEN)];
            let message = Icmpv4Header::with_checksum(type_v4(problem), quote);
            // As the packet's: links of an MTU below 576 bytes get it in fragments.
            let identification = u16::from_be_bytes([original[4], original[5]]);
            let ip = IpV4 { dscp: CONTROL, identification, dont_fragment: false };
            ip.write(source.octets(), to.octets(), &message, quote, out)
        }
        (IpAddr::V6(source), IpAddr::V6(to)) => {
            let quote = &original[..original.len().min(MAX_V6 - Ipv6Header::LEN - ICMP_LEN)];
            write_v6(0, source.octets(), to.octets(), type_v6(problem), quote, out)
        }
        _ => false,
    }
}

fn type_v4(problem: Problem) -> Icmpv4Type {
    Icmpv4Type::DestinationUnreachable(match problem {
        Problem::TimeExceeded => {
            return Icmpv4Type::TimeExceeded(TimeExceededV4::TtlExceededInTransit);
        }
        Problem::NoRoute => DestUnreachableHeader::Network,
        Problem::HostUnreachable => DestUnreachableHeader::Host,
        Problem::TooBig { mtu } => DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu },
    })
}

fn type_v6(problem: Problem) -> Icmpv6Type {
    match problem {
        Problem::TimeExceeded => Icmpv6Type::TimeExceeded(TimeExceededV6::HopLimitExceeded),
        Problem::NoRoute => Icmpv6Type::DestinationUnreachable(DestUnreachableCode::NoRoute),
        Problem::HostUnreachable => {
            Icmpv6Type::DestinationUnreachable(DestUnreachableCode::Address)
        }
        Problem::TooBig { mtu } => Icmpv6Type::PacketTooBig { mtu: mtu.into() },
    }
}

/// Whether error messages about a packet may be sent.
fn may_be_reported(packet: &[u8], header: &Header) -> bool {
    if !forwarded(header.src) || !forwarded(header.dst) {
        return false;
    }
    let upper = flow::upper(packet, header);
    if upper.hidden || upper.fragment.unwrap_or(0) != 0 {
        return false;
    }
    let icmp_type = packet.get(upper.at).copied();
    match (header.version, upper.protocol) {
        // Of other types, it is not known whether they are errors.
        (Version::V4, number::ICMP) => {
            matches!(icmp_type, Some(0 | 8..=10 | 13..=18 | 42 | 43))
        }
        // All errors are below 128 (RFC 4443 section 2.1); 137 is a redirect.
        (Version::V6, number::ICMP_V6) => icmp_type.is_some_and(|t| t >= 128 && t != 137),
        _ => true,
    }
}

/// Writes the answer to an echo request to an address of this node into `out`, which is cleared
/// first. It is ready to forward.
///
/// False, and `out` is empty, if the packet is no echo request, is a fragment, has a wrong ICMP
/// checksum, or has IPv6 extension headers.
pub fn echo_reply(request: &[u8], header: &Header, out: &mut Vec<u8>) -> bool {
    out.clear();
    let from = usize::from(header.header_len);
    let Some(icmp) = request.get(from..header.total_len as usize) else { return false };
    let Some((&[kind, code, _, _, id0, id1, seq0, seq1], data)) = icmp.split_first_chunk() else {
        return false;
    };
    let echo = IcmpEchoHeader {
        id: u16::from_be_bytes([id0, id1]),
        seq: u16::from_be_bytes([seq0, seq1]),
    };
    if header.is_fragment || code != 0 {
        return false;
    }
    match (header.dst, header.src, header.protocol, kind) {
        (IpAddr::V4(own), IpAddr::V4(to), number::ICMP, ECHO_V4) => {
            if !checksum::icmp_is_right(icmp) {
                return false;
            }
            let message = Icmpv4Header::with_checksum(Icmpv4Type::EchoReply(echo), data);
            // The sender takes care that its identifications differ (RFC 6864).
            let ip = IpV4 {
                dscp: request[1] >> 2,
                identification: u16::from_be_bytes([request[4], request[5]]),
                dont_fragment: header.dont_fragment,
            };
            ip.write(own.octets(), to.octets(), &message, data, out)
        }
        (IpAddr::V6(own), IpAddr::V6(to), number::ICMP_V6, ECHO_V6) => {
            if checksum::transport(header, number::ICMP_V6, icmp) != 0 {
                return false;
            }
            let class = (request[0] << 4 | request[1] >> 4) & !ECN;
            write_v6(class, own.octets(), to.octets(), Icmpv6Type::EchoReply(echo), data, out)
        }
        _ => false,
    }
}

/// The fields of an IPv4 header in which messages differ.
struct IpV4 {
    dscp: u8,
    identification: u16,
    dont_fragment: bool,
}

impl IpV4 {
    fn write(
        &self,
        source: [u8; 4],
        to: [u8; 4],
        message: &Icmpv4Header,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let len = u16::try_from(message.header_len() + data.len());
        let header = len.map(|len| Ipv4Header::new(len, TTL, IpNumber::ICMP, source, to));
        let Ok(Ok(mut header)) = header else { return false };
        header.dscp = IpDscp::try_new(self.dscp).unwrap_or_default();
        header.identification = self.identification;
        header.dont_fragment = self.dont_fragment;
        header.header_checksum = header.calc_header_checksum();
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(&message.to_bytes());
        out.extend_from_slice(data);
        true
    }
}

fn write_v6(
    class: u8,
    source: [u8; 16],
    to: [u8; 16],
    kind: Icmpv6Type,
    data: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    let Ok(message) = Icmpv6Header::with_checksum(kind, source, to, data) else { return false };
    let Ok(payload_length) = u16::try_from(message.header_len() + data.len()) else { return false };
    let header = Ipv6Header {
        traffic_class: class,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length,
        next_header: IpNumber::IPV6_ICMP,
        hop_limit: TTL,
        source,
        destination: to,
    };
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(&message.to_bytes());
    out.extend_from_slice(data);
    true
}
