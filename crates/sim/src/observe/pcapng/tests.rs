//! Captures, read back by another implementation.

use courser_buf::Ecn;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::{Block, PcapNgReader};

use super::super::decode::made::{datagram, frame_of, request};
use super::super::sink::tests::Shared;
use super::*;
use crate::HostId;

/// One packet as a reader sees it.
#[derive(Debug)]
struct Read {
    interface: String,
    at_ns: u128,
    frame: Vec<u8>,
    flags: u32,
    comment: Option<String>,
}

fn read(file: &[u8]) -> Vec<Read> {
    let mut reader = PcapNgReader::new(file).expect("section header");
    let mut out = Vec::new();
    while let Some(block) = reader.next_block() {
        let (block, state) = block.expect("a valid block");
        let Block::EnhancedPacket(p) = block else { continue };
        let options = &state.interfaces()[p.interface_id as usize].options;
        let interface = options.iter().find_map(|o| match o {
            InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
            _ => None,
        });
        let mut read = Read {
            interface: interface.expect("a name"),
            at_ns: p.timestamp.as_nanos(),
            frame: p.data.to_vec(),
            flags: 0,
            comment: None,
        };
        assert_eq!(p.original_len as usize, read.frame.len());
        for option in &p.options {
            match option {
                EnhancedPacketOption::Flags(flags) => read.flags = *flags,
                EnhancedPacketOption::Common(CommonOption::Comment(text)) => {
                    read.comment = Some(text.to_string());
                }
                other => panic!("unexpected option {other:?}"),
            }
        }
        out.push(read);
    }
    out
}

/// The internet checksum's sum of 16-bit words (RFC 1071): all ones over what carries a right one.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |&b| b.into()));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn capture(links: Links, fill: impl FnOnce(&mut Capture, &Names)) -> (Vec<u8>, Option<String>) {
    let out = Shared::default();
    let mut capture = Capture::new(CaptureSettings { to: Sink::new(out.clone()), links });
    fill(&mut capture, &Names { links: vec!["n0>s0".into(), "s0>n0".into()], ..Names::default() });
    let error = capture.flush();
    (out.bytes(), error)
}

#[test]
fn links_are_interfaces_and_times_are_nanoseconds() {
    let p = datagram(1, vec![7; 100]);
    let (file, error) = capture(Links::All, |c, n| {
        c.sent(n, 1_234_567_890_123_456_789, LinkId(1), &p);
        c.sent(n, 5, LinkId(0), &p);
        c.sent(n, 6, LinkId(1), &p);
        c.dropped(n, 7, &Place::Switch(0), DropReason::BufferFull, &p);
    });
    let packets = read(&file);
    let seen: Vec<_> =
        packets.iter().map(|p| (&*p.interface, p.at_ns, p.comment.as_deref())).collect();
    let want = [
        ("s0>n0", 1_234_567_890_123_456_789, None),
        ("n0>s0", 5, None),
        ("s0>n0", 6, None),
        ("drops", 7, Some("dropped at s0: buffer-full")),
    ];
    assert_eq!((seen.as_slice(), error), (want.as_slice(), None));
    assert!(packets.iter().all(|p| p.flags == FLAG_OUTBOUND));
}

#[test]
fn frames_are_what_a_nic_would_send() {
    // Odd and even lengths, shorter than the shortest frame and longer.
    for len in [1, 2, 17, 18, 45, 1472] {
        let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut p = datagram(0x1_2345, payload.clone());
        p.ecn = Ecn::Ce;
        let (file, _) = capture(Links::All, |c, n| c.sent(n, 0, LinkId(0), &p));
        let frame = read(&file).remove(0).frame;
        assert_eq!(frame.len() as u32 + 4, p.stored_bytes(), "with the check sequence");
        assert_eq!(frame[..14], [2, 0, 10, 0, 0, 2, 2, 0, 10, 0, 0, 1, 8, 0]);
        let ip = &frame[14..34];
        assert_eq!((ip[0], ip[1], sum(ip)), (0x45, 3, 0xffff), "version, ECN, checksum");
        assert_eq!(ip[2..6], [((28 + len) >> 8) as u8, (28 + len) as u8, 0x23, 0x45]);
        assert_eq!((ip[8], ip[9]), (64, 17));
        assert_eq!(ip[12..], [10, 0, 0, 1, 10, 0, 0, 2]);
        let udp = &frame[34..34 + 8 + len];
        let ports = [31_850u16.to_be_bytes(), 31_851u16.to_be_bytes()].concat();
        assert_eq!((&udp[..4], &udp[8..]), (&ports[..], &payload[..]));
        let pseudo = [&ip[12..], &[0, 17], &udp[4..6], udp].concat();
        assert_eq!(sum(&pseudo), 0xffff, "checksum of {len} bytes");
    }
}

#[test]
fn only_the_chosen_links_are_captured() {
    let p = datagram(1, vec![]);
    let (file, _) = capture(Links::Only(vec![LinkId(1)]), |c, n| {
        c.sent(n, 1, LinkId(0), &p);
        c.sent(n, 2, LinkId(1), &p);
        c.dropped(n, 3, &Place::Link(LinkId(0)), DropReason::Loss, &p);
        c.dropped(n, 4, &Place::Link(LinkId(1)), DropReason::Loss, &p);
        c.dropped(n, 5, &Place::Host(HostId(1)), DropReason::NoListener, &p);
    });
    let times: Vec<u128> = read(&file).iter().map(|p| p.at_ns).collect();
    assert_eq!(times, [2, 4, 5]);
}

#[test]
fn a_mark_is_a_comment_where_it_was_made_and_flipped_bits_are_a_flag() {
    let mut p = datagram(1, frame_of(&[request(1, b"abc")]));
    let other = datagram(2, vec![]);
    let (file, _) = capture(Links::All, |c, n| {
        c.marked(LinkId(0), &p);
        c.sent(n, 1, LinkId(0), &other);
        c.sent(n, 2, LinkId(0), &p);
        p.corrupt = true;
        c.sent(n, 3, LinkId(1), &p);
    });
    let seen: Vec<_> = read(&file).into_iter().map(|p| (p.comment, p.flags)).collect();
    let marked = Some("marked before n0>s0".to_string());
    assert_eq!(seen, [(None, 2), (marked, 2), (None, 2 | 1 << 24)]);
}

#[test]
fn a_datagram_too_large_for_ip_is_counted_and_not_written() {
    let (file, error) =
        capture(Links::All, |c, n| c.sent(n, 1, LinkId(0), &datagram(1, vec![0; 65_508])));
    assert_eq!(read(&file).len(), 0);
    assert_eq!(error.as_deref(), Some("1 datagrams too large for IP are not in the capture"));
    let (file, error) =
        capture(Links::All, |c, n| c.sent(n, 1, LinkId(0), &datagram(1, vec![0; 65_507])));
    assert_eq!((read(&file).len(), error), (1, None));
}
