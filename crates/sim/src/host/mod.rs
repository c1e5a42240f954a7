//! A host: its NIC, its clock, its CPU, and the process that runs on it.

pub(crate) mod clock;
pub(crate) mod costs;
pub(crate) mod hash;
pub(crate) mod life;
pub(crate) mod machine;
pub(crate) mod port;
pub(crate) mod process;

use std::net::{IpAddr, Ipv4Addr};

use courser_proto::wire::{FrameHeader, parse_packet};

use crate::packet::HostId;

/// The network of the simulated hosts: addresses from 10.0.0.1 on. A topology has fewer hosts than
/// this network has addresses ([`crate::fabric::MAX_NODES`]).
const NETWORK: u32 = 10 << 24;
const _: () = assert!(crate::fabric::MAX_NODES < 1 << 24);

/// A host's IP address.
pub(crate) fn ip_of(host: HostId) -> Ipv4Addr {
    Ipv4Addr::from_bits(NETWORK + 1 + host.0)
}

/// The host that has an address, if it is one of `hosts`.
pub(crate) fn host_of(ip: IpAddr, hosts: usize) -> Option<HostId> {
    let IpAddr::V4(ip) = ip.to_canonical() else { return None };
    let number = ip.to_bits().checked_sub(NETWORK + 1)?;
    ((number as usize) < hosts).then_some(HostId(number))
}

/// Packets of a frame, for their CPU cost. A frame of several pieces has one packet, whose data
/// leave from message memory. Bytes that are no frame count as one packet.
pub(crate) fn packets_in<'a>(mut pieces: impl Iterator<Item = &'a [u8]>) -> u64 {
    let Some(first) = pieces.next() else { return 0 };
    if pieces.next().is_some() {
        return 1;
    }
    let Ok((header, mut rest)) = FrameHeader::parse(first) else { return 1 };
    let mut packets = 0;
    while let Ok(Some((_, more))) = parse_packet(rest, header.data_per_packet) {
        packets += 1;
        rest = more;
    }
    packets.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_hosts() {
        for n in [0, 1, 254, 255, 70_000] {
            assert_eq!(host_of(ip_of(HostId(n)).into(), 70_001), Some(HostId(n)));
        }
        assert_eq!(ip_of(HostId(0)), Ipv4Addr::new(10, 0, 0, 1));
        for other in ["10.0.0.3", "10.0.0.0", "9.0.0.1", "::1"] {
            assert_eq!(host_of(other.parse().unwrap(), 2), None, "{other}");
        }
    }

    #[test]
    fn bytes_that_are_no_frame_cost_one_packet() {
        let frame = [0u8; 10];
        assert_eq!(packets_in(std::iter::once(&frame[..])), 1);
        assert_eq!(packets_in([&frame[..], &frame[..]].into_iter()), 1);
        assert_eq!(packets_in(std::iter::empty()), 0);
    }
}
