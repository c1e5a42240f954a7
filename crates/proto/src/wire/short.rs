//! Short messages: a request or a response that is whole in one packet and carries no flag.
//!
//! Almost every packet of a small RPC is one. It is told by its header alone, with one test of the
//! frame's length and whole-word loads; anything else is [`super::parse_packet`]'s, which takes
//! short messages for the same (`short_and_general_parsing_agree`).

use super::{PACKET_HEADER, PacketKind};

/// First byte of a short request and of a short response: the kind, no flags.
pub(crate) const SHORT_REQUEST: u8 = PacketKind::Request as u8;
pub(crate) const SHORT_RESPONSE: u8 = PacketKind::Response as u8;

/// A packet that is a whole message, if its `kind` is one of the two above.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short<'f> {
    pub(crate) kind: u8,
    pub(crate) session: u32,
    pub(crate) req_num: u32,
    pub(crate) req_type: u16,
    pub(crate) data: &'f [u8],
}

/// The next packet of a frame body and what follows it, if it can be a short message of fewer than
/// `end` bytes. `end` is at most the data bytes of a packet, plus one.
#[inline(always)]
pub(crate) fn parse_short(bytes: &[u8], end: u32) -> Option<(Short<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<PACKET_HEADER>()?;
    let header = u128::from_le_bytes(*header);
    let (low, high) = (header as u64, (header >> 64) as u64);
    // The upper bits of an index stand above the size, the lower ones behind it: all are 0.
    let (size, index) = (high as u32, (high >> 32) as u16);
    if size >= end || index != 0 {
        return None;
    }
    let (data, rest) = rest.split_at_checked(size as usize)?;
    let short = Short {
        kind: low as u8,
        session: low as u32 >> 8,
        req_num: (low >> 32) as u32,
        req_type: (high >> 48) as u16,
        data,
    };
    Some((short, rest))
}

/// The header of a short message, as [`super::Packet::header`] makes it, in two words that are
/// little endian on the wire: gathered in memory before they are copied, they would have to reach
/// it first.
#[inline(always)]
pub(crate) fn short_header(
    kind: u8,
    session: u32,
    req_num: u32,
    req_type: u16,
    size: u32,
) -> [u64; 2] {
    let low = u64::from(kind) | u64::from(session) << 8 | u64::from(req_num) << 32;
    let high = u64::from(size) | u64::from(req_type) << 48;
    [low, high]
}

/// A header as bytes, in the two words that [`short_header`] makes.
#[inline(always)]
pub(crate) fn header_words(bytes: [u8; PACKET_HEADER]) -> [u64; 2] {
    let header = u128::from_le_bytes(bytes);
    [header as u64, (header >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MAX_SESSION, Packet, parse_packet};
    use super::*;

    const DPP: u16 = 300;

    proptest! {
        #[test]
        fn short_and_general_parsing_agree(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400),
            kind in 0_u8..9,
            size in 0_u32..302,
            plain in any::<bool>(),
        ) {
            if plain && bytes.len() >= PACKET_HEADER {
                bytes[0] = kind;
                bytes[8..12].copy_from_slice(&size.to_le_bytes());
                bytes[12..14].fill(0);
            }
            let short = parse_short(&bytes, u32::from(DPP) + 1);
            let Some((s, rest)) = short else { return Ok(()) };
            let (session, req_num, msg_size) = (s.session, s.req_num, s.data.len() as u32);
            let packet = match s.kind {
                SHORT_REQUEST => Packet::Request {
                    session,
                    req_num,
                    req_type: s.req_type,
                    msg_size,
                    index: 0,
                    remaining_us: None,
                    data: s.data,
                },
                SHORT_RESPONSE => Packet::Response { session, req_num, msg_size, index: 0, data: s.data },
                _ => return Ok(()),
            };
            prop_assert_eq!(parse_packet(&bytes, DPP), Ok(Some((packet, rest))));
        }

        #[test]
        fn a_short_message_is_found_by_its_header(
            session in 0..=MAX_SESSION,
            req_num in any::<u32>(),
            req_type in any::<u16>(),
            data in prop::collection::vec(any::<u8>(), 0..=300),
            behind in 0_usize..40,
        ) {
            let msg_size = data.len() as u32;
            let packet = Packet::Request {
                session, req_num, req_type, msg_size, index: 0, remaining_us: None, data: &data,
            };
            let words = short_header(SHORT_REQUEST, session, req_num, req_type, msg_size);
            let header = packet.header();
            prop_assert_eq!(header_words(header), words);
            let frame = [&header[..], &data, &vec![0; behind]].concat();
            let (s, rest) = parse_short(&frame, msg_size + 1).expect("it is short");
            prop_assert_eq!((s.kind, s.session, s.req_num), (SHORT_REQUEST, session, req_num));
            prop_assert_eq!((s.req_type, s.data, rest.len()), (req_type, &data[..], behind));
            prop_assert!(parse_short(&frame, msg_size).is_none(), "too large");
            let cut = &frame[..PACKET_HEADER + data.len()];
            prop_assert!(parse_short(&cut[..cut.len() - 1], msg_size + 1).is_none(), "cut off");

            let response = Packet::Response { session, req_num, msg_size, index: 0, data: &data };
            let words = short_header(SHORT_RESPONSE, session, req_num, 0, msg_size);
            prop_assert_eq!(words, header_words(response.header()));
        }
    }
}
