//! IP packets: checks, flows, time to live, transport checksums. Functions on bytes, without I/O,
//! clock or allocation.
//!
//! Options and extension headers are passed on unchanged: the router neither records routes or
//! timestamps nor acts on router alerts or hop-by-hop options (RFC 7126, RFC 8200 section 4.3).
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::counters::PacketDrop;

pub(crate) mod checksum;
mod flow;
pub mod fragment;
pub mod icmp;
mod options;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use flow::flow_hash;

/// IP version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// IPv4, RFC 791.
    V4,
    /// IPv6, RFC 8200.
    V6,
}

/// The header of a packet that has passed the checks of [`parse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// IP version.
    pub version: Version,
    /// Bytes of the header: with options for IPv4, 40 for IPv6.
    pub header_len: u16,
    /// Bytes of the packet: at most 65,535 for IPv4, 65,575 for IPv6.
    pub total_len: u32,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Protocol, or the next header of the fixed IPv6 header.
    pub protocol: u8,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Routers may not fragment the packet. Always true for IPv6.
    pub dont_fragment: bool,
    /// A fragment. Of IPv6, only a fragment header directly behind the fixed header counts.
    pub is_fragment: bool,
}

const V4_LEN: usize = 20;
const V6_LEN: usize = 40;
const MORE_FRAGMENTS: u16 = 0x2000;
const DONT_FRAGMENT: u16 = 0x4000;
const OFFSET: u16 = 0x1fff;

/// Protocol numbers.
mod number {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ICMP: u8 = 1;
    pub(super) const TCP: u8 = 6;
    pub(super) const UDP: u8 = 17;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const ICMP_V6: u8 = 58;
    pub(super) const DESTINATION_OPTIONS: u8 = 60;
    pub(super) const SCTP: u8 = 132;
    pub(super) const UDP_LITE: u8 = 136;
}

/// Checks a packet from outside (RFC 1812 section 5.2.2, RFC 8200): version, lengths, IPv4 header
/// checksum and options, addresses that may be forwarded, fragments. Bytes behind the packet, as of
/// Ethernet padding, are allowed; the caller cuts to [`Header::total_len`]. The time to live is not
/// checked.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Header, PacketDrop> {
    match bytes.first().map(|first| first >> 4) {
        Some(4) => parse_v4(bytes),
        Some(6) => parse_v6(bytes),
        Some(_) => Err(PacketDrop::Version),
        None => Err(PacketDrop::Truncated),
    }
}

#[inline]
fn parse_v4(bytes: &[u8]) -> Result<Header, PacketDrop> {
    let fixed = bytes.first_chunk::<V4_LEN>().ok_or(PacketDrop::Truncated)?;
    let header_len = usize::from(fixed[0] & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if header_len < V4_LEN {
        return Err(PacketDrop::HeaderLength);
    }
    if total_len < header_len {
        return Err(PacketDrop::TotalLength);
    }
    if bytes.len() < total_len {
        return Err(PacketDrop::Truncated);
    }
    let options = &bytes[V4_LEN..header_len];
    if !checksum::header_is_right(fixed, options) {
        return Err(PacketDrop::Checksum);
    }
    let src = Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]);
    let dst = Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]);
    if !forwarded_v4(src) {
        return Err(PacketDrop::Source);
    }
    if !forwarded_v4(dst) {
        return Err(PacketDrop::Destination);
    }
    if !options.is_empty() && !options::forwarded(options) {
        return Err(PacketDrop::Options);
    }
    let flags = u16::from_be_bytes([fixed[6], fixed[7]]);
    let is_fragment = flags & (MORE_FRAGMENTS | OFFSET) != 0;
    if is_fragment {
        // The reassembled packet has a header at least as long as this one.
        let start = header_len + usize::from(flags & OFFSET) * 8;
        check_fragment(start, total_len - header_len, flags & MORE_FRAGMENTS != 0)?;
    }
    Ok(Header {
        version: Version::V4,
        header_len: header_len as u16,
        total_len: total_len as u32,
        ttl: fixed[8],
        protocol: fixed[9],
        src: src.into(),
        dst: dst.into(),
        dont_fragment: flags & DONT_FRAGMENT != 0,
        is_fragment,
    })
}

#[inline]
fn parse_v6(bytes: &[u8]) -> Result<Header, PacketDrop> {
    let fixed = bytes.first_chunk::<V6_LEN>().ok_or(PacketDrop::Truncated)?;
    let payload = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if bytes.len() < V6_LEN + payload {
        return Err(PacketDrop::Truncated);
    }
    let mut src = [0; 16];
    src.copy_from_slice(&fixed[8..24]);
    let mut dst = [0; 16];
    dst.copy_from_slice(&fixed[24..40]);
    let (src, dst) = (Ipv6Addr::from(src), Ipv6Addr::from(dst));
    if !forwarded_v6(src) {
        return Err(PacketDrop::Source);
    }
    if !forwarded_v6(dst) {
        return Err(PacketDrop::Destination);
    }
    let protocol = fixed[6];
    if matches!(protocol, number::HOP_BY_HOP | number::FRAGMENT) {
        // Both headers take 8 bytes or more. Jumbograms (RFC 2675) have a length of 0 and a
        // hop-by-hop header, and are not supported.
        let next =
            bytes[V6_LEN..V6_LEN + payload].first_chunk::<8>().ok_or(PacketDrop::TotalLength)?;
        if protocol == number::FRAGMENT {
            let field = u16::from_be_bytes([next[2], next[3]]);
            // The offset is in units of 8 bytes, in the bits above the lowest three.
            check_fragment(usize::from(field & !7), payload - 8, field & 1 != 0)?;
        }
    }
    Ok(Header {
        version: Version::V6,
        header_len: V6_LEN as u16,
        total_len: (V6_LEN + payload) as u32,
        ttl: fixed[7],
        protocol,
        src: src.into(),
        dst: dst.into(),
        dont_fragment: true,
        is_fragment: protocol == number::FRAGMENT,
    })
}

/// Checks a fragment of `data` bytes at `start` of the reassembled packet. It must have data, a
/// multiple of 8 bytes unless it is the last fragment, and end within the largest packet.
fn check_fragment(start: usize, data: usize, more: bool) -> Result<(), PacketDrop> {
    let possible =
        data > 0 && (!more || data.is_multiple_of(8)) && start + data <= usize::from(u16::MAX);
    if possible { Ok(()) } else { Err(PacketDrop::Fragment) }
}

/// Returns whether packets from or to an address are forwarded: unicast, and neither of network 0, loopback
/// (RFC 1812 section 5.3.7), link-local (RFC 3927 section 7), nor of the reserved class E.
#[inline]
fn forwarded_v4(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    !(first == 0 || first == 127 || first >= 224 || (first == 169 && second == 254))
}

/// Returns whether packets from or to an address are forwarded: neither multicast, unspecified, loopback,
/// link-local (RFC 4291 section 2), nor an IPv4-mapped address (RFC 6890 section 2.2.3).
#[inline]
fn forwarded_v6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    let multicast = bits >> 120 == 0xff;
    let link_local = bits >> 118 == 0xfe80 >> 6;
    let mapped = bits >> 32 == 0xffff;
    !(multicast || link_local || mapped || bits <= 1)
}

/// Returns whether packets from or to an address are forwarded.
pub(crate) fn forwarded(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => forwarded_v4(address),
        IpAddr::V6(address) => forwarded_v6(address),
    }
}

/// Decrements the time to live or hop limit, which must be at least 1, and updates the IPv4 header
/// checksum (RFC 1624).
#[inline]
pub fn decrement_ttl(bytes: &mut [u8], header: &Header) {
    match header.version {
        Version::V4 => {
            let Some(fixed) = bytes.first_chunk_mut::<V4_LEN>() else { return };
            debug_assert!(fixed[8] > 0, "packets with TTL 0 are not forwarded");
            let Some(ttl) = fixed[8].checked_sub(1) else { return };
            fixed[8] = ttl;
            // HC' = ~(~HC + ~m + m'), where m' = m - 0x100, hence ~m + m' = 0xfeff.
            let old = u16::from_be_bytes([fixed[10], fixed[11]]);
            let sum = u32::from(!old) + 0xfeff;
            let new = !((sum & 0xffff) + (sum >> 16)) as u16;
            [fixed[10], fixed[11]] = new.to_be_bytes();
        }
        Version::V6 => {
            let Some(fixed) = bytes.first_chunk_mut::<V6_LEN>() else { return };
            debug_assert!(fixed[7] > 0, "packets with hop limit 0 are not forwarded");
            fixed[7] = fixed[7].saturating_sub(1);
        }
    }
}

/// Completes the TCP or UDP checksum of a packet whose sender has left it to hardware (Linux
/// `CHECKSUM_PARTIAL`: the field holds the sum of the pseudo header). The checksum is computed in
/// full. False, and nothing is changed, if there is nothing to complete: another protocol, a
/// fragment, UDP without a checksum, bad lengths, a routing header that hides the last destination.
pub fn complete_checksum(packet: &mut [u8], header: &Header) -> bool {
    let upper = flow::upper(packet, header);
    if upper.fragment.is_some() || upper.routed {
        return false;
    }
    // If the transport header was not found, there is none here, or it is of no such protocol.
    let Some(data) = packet.get_mut(upper.at..header.total_len as usize) else { return false };
    let (data, field) = match upper.protocol {
        number::TCP if data.len() >= 20 => (data, 16),
        number::UDP if data.len() >= 8 => {
            let len = usize::from(u16::from_be_bytes([data[4], data[5]]));
            // A sum of the pseudo header, which has addresses other than 0, is never 0.
            if len < 8 || len > data.len() || data[6..8] == [0, 0] {
                return false;
            }
            (&mut data[..len], 6)
        }
        _ => return false,
    };
    data[field..field + 2].fill(0);
    let mut sum = checksum::transport(header, upper.protocol, data);
    if upper.protocol == number::UDP && sum == 0 {
        sum = 0xffff; // 0 means that there is none (RFC 768).
    }
    data[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    true
}
