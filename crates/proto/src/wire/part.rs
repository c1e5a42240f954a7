//! Fast parsing of packets of messages of several packets: nearly every packet of a large message.
//!
//! Like [`super::single`]: such a packet is recognised by its header alone, without a division. For
//! these packets [`super::parse_packet`] gives the same result (`part_and_general_parsing_agree`).

use super::{MAX_MSG_SIZE, MIN_DATA_PER_PACKET, PACKET_HEADER, PLAIN_REQUEST};

/// First byte of a packet of a one-way message of several packets: a request with that flag.
pub(crate) const ONE_WAY_REQUEST: u8 = PLAIN_REQUEST | 2 << 4;

/// A packet of a message of several packets, if its `kind` is [`PLAIN_REQUEST`], [`ONE_WAY_REQUEST`]
/// or [`super::PLAIN_RESPONSE`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartPacket<'f> {
    pub(crate) kind: u8,
    pub(crate) session: u32,
    pub(crate) req_num: u32,
    pub(crate) req_type: u16,
    pub(crate) msg_size: u32,
    pub(crate) index: u32,
    /// Place of the data in the message.
    pub(crate) offset: u32,
    /// The packet's bytes, or those of them that are available.
    pub(crate) data: &'f [u8],
}

/// The next packet of a frame body and the bytes after it, if it can be a packet of a message of
/// several packets. The last `extra` bytes of the body are not available: if there are such, the
/// packet is the only one of the body, and they are the end of its data.
#[inline(always)]
pub(crate) fn parse_part(
    bytes: &[u8],
    data_per_packet: u16,
    extra: usize,
) -> Option<(PartPacket<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<PACKET_HEADER>()?;
    let header = u128::from_le_bytes(*header);
    let (low, high) = (header as u64, (header >> 64) as u64);
    let (msg_size, dpp) = (high as u32 & MAX_MSG_SIZE, u32::from(data_per_packet));
    let index = (high as u32 >> 28) << 16 | u32::from((high >> 32) as u16);
    // The product of 20 and 16 bits does not overflow.
    let offset = u64::from(index) * u64::from(dpp);
    if data_per_packet < MIN_DATA_PER_PACKET || msg_size <= dpp || offset >= u64::from(msg_size) {
        return None;
    }
    let offset = offset as u32;
    let len = (msg_size - offset).min(dpp) as usize;
    let (data, rest) = match extra {
        0 => rest.split_at_checked(len)?,
        _ if rest.len() + extra == len => (rest, &[][..]),
        _ => return None,
    };
    let packet = PartPacket {
        kind: low as u8,
        session: low as u32 >> 8,
        req_num: (low >> 32) as u32,
        req_type: (high >> 48) as u16,
        msg_size,
        index,
        offset,
        data,
    };
    Some((packet, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::packet::parse_front;
    use super::super::{PLAIN_RESPONSE, Packet, PacketKind, parse_packet};
    use super::*;

    const DPP: u16 = 300;

    fn general<'f>(p: &PartPacket<'f>) -> Option<Packet<'f>> {
        let PartPacket { kind, session, req_num, req_type, msg_size, index, data, .. } = *p;
        match kind {
            PLAIN_REQUEST | ONE_WAY_REQUEST => Some(Packet::Request {
                session,
                req_num,
                req_type,
                msg_size,
                index,
                remaining_us: None,
                one_way: kind == ONE_WAY_REQUEST,
                data,
            }),
            PLAIN_RESPONSE => Some(Packet::Response { session, req_num, msg_size, index, data }),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn part_and_general_parsing_agree(
            mut bytes in prop::collection::vec(any::<u8>(), PACKET_HEADER..400),
            kind in 0..=PacketKind::Proof as u8,
            flags in 0_u8..4,
            (msg_size, index) in (0_u32..1_300, 0_u16..5),
            plain in any::<bool>(),
            extra in prop::sample::select(vec![0_usize, 0, 1, 50, 299]),
        ) {
            if plain {
                bytes[0] = kind | flags << 4;
                bytes[8..12].copy_from_slice(&msg_size.to_le_bytes());
                bytes[12..14].copy_from_slice(&index.to_le_bytes());
            }
            let part = parse_part(&bytes, DPP, extra);
            let expected = if extra == 0 {
                parse_packet(&bytes, DPP).ok().flatten()
            } else {
                parse_front(&bytes, DPP, extra).map(|packet| (packet, &[][..]))
            };
            if let Some((p, rest)) = part && let Some(packet) = general(&p) {
                prop_assert_eq!(expected, Some((packet, rest)));
                prop_assert_eq!(p.offset, p.index * u32::from(DPP));
            } else if let Some((packet, _)) = expected {
                // Every packet of such a message is one, except for the first one with a deadline.
                let is_part = match packet {
                    Packet::Request { msg_size, remaining_us: None, .. }
                    | Packet::Response { msg_size, .. } => msg_size > u32::from(DPP),
                    _ => false,
                };
                prop_assert!(!is_part, "{:?}", packet);
            }
        }
    }
}
