//! Flows: the transport header of a packet, and a hash of the fields that make a flow.

use std::net::IpAddr;

use super::{Header, OFFSET, Version, number};

#[cfg(test)]
mod tests;

/// The most IPv6 extension headers that are passed to find the transport header.
const MOST_EXTENSIONS: usize = 8;

/// The transport header of a packet.
pub(super) struct Upper {
    /// Its protocol.
    pub(super) protocol: u8,
    /// Where it begins.
    pub(super) at: usize,
    /// It was not found: the packet ends before, or has too many extension headers.
    pub(super) hidden: bool,
    /// The offset of a fragment, in units of 8 bytes. The transport header is in the first.
    pub(super) fragment: Option<u16>,
    /// A routing header names further destinations.
    pub(super) routed: bool,
}

/// Finds the transport header of a packet.
pub(super) fn upper(packet: &[u8], header: &Header) -> Upper {
    let mut upper = Upper {
        protocol: header.protocol,
        at: header.header_len.into(),
        hidden: false,
        fragment: None,
        routed: false,
    };
    let packet = packet.get(..header.total_len as usize).unwrap_or_default();
    if header.version == Version::V6 {
        let mut chain = Chain { packet, upper, passed: 0 };
        while chain.is_extension() && !chain.upper.hidden {
            chain.upper.hidden = chain.pass().is_none();
        }
        return chain.upper;
    }
    if let (true, [_, _, _, _, _, _, high, low, ..]) = (header.is_fragment, packet) {
        upper.fragment = Some(u16::from_be_bytes([*high, *low]) & OFFSET);
    }
    upper
}

/// A walk along IPv6 extension headers.
struct Chain<'a> {
    packet: &'a [u8],
    /// The position, as if the transport header began there.
    upper: Upper,
    passed: usize,
}

impl Chain<'_> {
    /// Whether there is an extension header at the position. Data of fragments other than the first
    /// begin anywhere.
    fn is_extension(&self) -> bool {
        let known = matches!(
            self.upper.protocol,
            number::HOP_BY_HOP
                | number::ROUTING
                | number::FRAGMENT
                | number::AUTHENTICATION
                | number::DESTINATION_OPTIONS
        );
        known && self.upper.fragment.unwrap_or(0) == 0
    }

    /// Passes an extension header. All have at least 8 bytes. None if it is cut, or one too many.
    fn pass(&mut self) -> Option<()> {
        let extension = self.packet.get(self.upper.at..)?.first_chunk::<8>()?;
        if self.passed == MOST_EXTENSIONS {
            return None;
        }
        self.passed += 1;
        let len = usize::from(extension[1]);
        self.upper.at += match self.upper.protocol {
            number::AUTHENTICATION => (len + 2) * 4,
            number::FRAGMENT => {
                self.upper.fragment = Some(u16::from_be_bytes([extension[2], extension[3]]) >> 3);
                8
            }
            number::ROUTING => {
                self.upper.routed |= extension[3] > 0;
                (len + 1) * 8
            }
            _ => (len + 1) * 8,
        };
        self.upper.protocol = extension[0];
        (self.upper.at <= self.packet.len()).then_some(())
    }
}

/// Hash of the flow of a packet: addresses, protocol, and the ports of TCP, UDP, SCTP and UDP-Lite.
///
/// Ports of fragments are not used, since only the first has them: all fragments of a packet have
/// the same hash. If some packets of a flow are fragments and some are not, their hashes differ,
/// and they may overtake each other. IPv6 extension headers are passed, at most 8 of them; behind more,
/// ports are not used.
#[inline]
pub fn flow_hash(bytes: &[u8], header: &Header, seed: u64) -> u32 {
    let mut hash = seed;
    match (header.src, header.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            hash = mix(hash, u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
        }
        (src, dst) => {
            for address in [src, dst] {
                let bits = match address {
                    IpAddr::V4(address) => address.to_bits().into(),
                    IpAddr::V6(address) => address.to_bits(),
                };
                hash = mix(mix(hash, (bits >> 64) as u64), bits as u64);
            }
        }
    }
    let (protocol, ports) = if header.version == Version::V4 && !header.is_fragment {
        (header.protocol, ports(bytes, header, header.protocol, header.header_len.into()))
    } else {
        protocol_and_ports(bytes, header)
    };
    hash = mix(hash, u64::from(protocol) << 32 | u64::from(ports));
    // The finalizer of MurmurHash3: each bit of the input changes half of the bits of the result.
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (hash >> 32) as u32
}

/// One step of the hash. It is a bijection of either argument, so that no input hides another.
#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

/// The protocol and the ports behind extension headers, or of a fragment.
fn protocol_and_ports(bytes: &[u8], header: &Header) -> (u8, u32) {
    let upper = upper(bytes, header);
    if upper.fragment.is_some() {
        // The fixed headers of all fragments are alike. The protocols in IPv6 fragment headers may
        // differ: that of the first fragment counts (RFC 8200 section 4.5).
        return (header.protocol, 0);
    }
    (upper.protocol, ports(bytes, header, upper.protocol, upper.at))
}

/// The ports of a transport header; 0 if its protocol has none.
#[inline]
fn ports(bytes: &[u8], header: &Header, protocol: u8, at: usize) -> u32 {
    let with_ports =
        matches!(protocol, number::TCP | number::UDP | number::SCTP | number::UDP_LITE);
    let data = bytes.get(at..header.total_len as usize).unwrap_or_default();
    data.first_chunk().filter(|_| with_ports).map_or(0, |p| u32::from_be_bytes(*p))
}
