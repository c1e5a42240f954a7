//! The parsers of frames and packets: they return a verdict, read within the bytes, and parsed
//! values survive writing and parsing.

use courser_proto::wire::{FRAME_HEADER, FrameHeader, PACKET_HEADER, Packet, parse_packet};

pub fn run(bytes: &[u8]) {
    let Ok((header, mut rest)) = FrameHeader::parse(bytes) else { return };
    let mut again = [0; FRAME_HEADER];
    header.write(&mut again);
    assert_eq!(FrameHeader::parse(&again), Ok((header, &[][..])));
    assert_eq!(rest.len(), bytes.len() - FRAME_HEADER);
    while let Ok(Some((packet, after))) = parse_packet(rest, header.data_per_packet) {
        let used = rest.len() - after.len();
        assert_eq!(used, PACKET_HEADER + packet.data().len());
        assert_eq!(after, &rest[used..], "the next packet begins where this one ends");
        round_trip(&packet, header.data_per_packet);
        rest = after;
    }
}

fn round_trip(packet: &Packet<'_>, data_per_packet: u16) {
    let mut bytes = vec![0; PACKET_HEADER];
    let mut header = [0; PACKET_HEADER];
    packet.write_header(&mut header);
    bytes.copy_from_slice(&header);
    bytes.extend_from_slice(packet.data());
    assert_eq!(parse_packet(&bytes, data_per_packet), Ok(Some((*packet, &[][..]))));
}
