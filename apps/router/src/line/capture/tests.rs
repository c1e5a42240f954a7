use std::fs;

use proptest::prelude::*;

use super::*;

/// A file that is removed when it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("courser-{}-{name}", std::process::id()));
        fs::write(&path, bytes).expect("writes");
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An Ethernet frame.
fn frame(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&[2; 6], &[3; 6], &kind.to_be_bytes()[..], packet].concat()
}

/// A pcap file in little-endian order.
fn pcap(link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    pcap_of(0xa1b2_c3d4, u32::to_le_bytes, link, frames)
}

/// A pcap file with times of this kind, and numbers in this order.
fn pcap_of(magic: u32, number: fn(u32) -> [u8; 4], link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let version = if number(1) == 1u32.to_le_bytes() { [2, 0, 4, 0] } else { [0, 2, 0, 4] };
    let mut file = [number(magic), version].concat();
    file.extend([0; 8]);
    file.extend([number(65_535), number(link)].concat());
    for frame in frames {
        let len = number(frame.len() as u32);
        file.extend([number(1), number(2), len, len].concat());
        file.extend(frame);
    }
    file
}

/// A pcapng file with one interface, in big-endian order.
fn pcapng(link: u16, frames: &[Vec<u8>]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = (12 + body.len() as u32).to_be_bytes();
        [&kind.to_be_bytes(), &len[..], body, &len].concat()
    };
    let section = [0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0];
    let mut file = block(0x0a0d_0d0a, &[&section[..], &[0xff; 8]].concat());
    file.extend(block(1, &[&link.to_be_bytes()[..], &[0, 0], &[0, 1, 0, 0]].concat()));
    // A block of an unknown kind.
    file.extend(block(0x0bad, &[1, 2, 3, 4]));
    for frame in frames {
        let len = (frame.len() as u32).to_be_bytes();
        let mut data = frame.clone();
        data.resize(frame.len().next_multiple_of(4), 0);
        file.extend(block(6, &[&[0; 12], &len[..], &len, &data].concat()));
    }
    file
}

fn open(name: &str, bytes: &[u8]) -> Result<CaptureIntake, CaptureError> {
    CaptureIntake::open(&Temporary::new(name, bytes).0, 2, Some(1))
}

fn packets(intake: &mut CaptureIntake) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while intake.burst(&mut |port, packet| {
        assert_eq!(port, 2);
        packets.push(packet.to_vec());
    }) > 0
    {}
    packets
}

#[test]
fn ip_packets_of_all_kinds_of_files_are_read() {
    let (v4, v6) = (vec![0x45; 21], vec![0x60; 63]);
    let frames = [frame(0x800, &v4), frame(0x806, &[1; 28]), frame(0x86dd, &v6), vec![1; 13]];
    let raw = [v4.clone(), v6.clone()];
    for (name, bytes, skipped) in [
        ("pcap", pcap(1, &frames), 2),
        ("raw", pcap(101, &raw), 0),
        ("pcapng", pcapng(1, &frames), 2),
        ("rawng", pcapng(101, &raw), 0),
    ] {
        let mut intake = open(name, &bytes).expect(name);
        assert_eq!((intake.len(), intake.skipped()), (2, skipped), "{name}");
        assert_eq!(packets(&mut intake), raw, "{name}");
        assert!(intake.is_done());
    }
    assert!(open("empty", &pcap(1, &[])).expect("opens").is_empty());
}

#[test]
fn pcap_files_of_both_byte_orders_and_both_units_of_time_are_read() {
    let packet = vec![0x45; 21];
    for magic in [0xa1b2_c3d4, 0xa1b2_3c4d] {
        for number in [u32::to_le_bytes, u32::to_be_bytes] {
            // Ethernet, with the bits of a checksum of 4 bytes after each frame.
            for link in [1, 1 | 0x2400_0000] {
                let bytes = pcap_of(magic, number, link, &[frame(0x800, &packet)]);
                let mut intake = open("orders", &bytes).expect("opens");
                assert_eq!(packets(&mut intake), [&packet[..]], "{magic:x} {link:x}");
                assert_eq!(intake.warnings(), [""; 0]);
            }
        }
    }
}

/// Makes a frame of the type of a device, the type of the frame, and a packet.
type OfDevice<'a> = &'a dyn Fn([u8; 2], &[u8], &[u8]) -> Vec<u8>;

#[test]
fn frames_of_all_devices_and_frames_with_a_priority_are_read() {
    let (v4, v6) = (vec![0x45; 21], vec![0x60; 63]);
    let sll = |device: [u8; 2], kind: &[u8], packet: &[u8]| {
        [&[0, 0][..], &device, &[0, 6, 1, 2, 3, 4, 5, 6, 0, 0], kind, packet].concat()
    };
    let sll2 = |device: [u8; 2], kind: &[u8], packet: &[u8]| {
        let (kind, tag) = kind.split_at(2);
        let middle = [0, 0, 0, 0, 0, 2, device[0], device[1], 0, 6, 1, 2, 3, 4, 5, 6, 0, 0];
        [kind, &middle, tag, packet].concat()
    };
    let (ethernet, none, netlink) = ([0, 1], [0xff, 0xfe], [3, 0x38]);
    let all = |frame: OfDevice<'_>| {
        vec![
            frame(ethernet, &[8, 0], &v4),
            frame(ethernet, &[8, 6], &[1; 28]),
            frame(none, &[0x86, 0xdd], &v6),
            frame(netlink, &[8, 0], &[9; 40]),
            frame(ethernet, &[0x81, 0, 0xa0, 0, 8, 0], &v4),
            frame(ethernet, &[0x88, 0xa8, 0, 0, 0x81, 0, 0x20, 0, 0x86, 0xdd], &v6),
            frame(ethernet, &[0x81, 0, 0, 5, 8, 0], &v4),
            frame(ethernet, &[0x81, 0, 0, 0, 0x81, 0, 0, 5, 8, 0], &v4),
            frame(ethernet, &[0x81, 0, 0], &[]),
        ]
    };
    let lan = |_: [u8; 2], kind: &[u8], packet: &[u8]| [&[2; 12], kind, packet].concat();
    let mut on_ethernet = all(&lan);
    on_ethernet.remove(3);
    // A frame that consists of tags.
    let tags = lan(ethernet, &[0x81, 0, 0, 0].repeat(60_000), &[]);
    on_ethernet.push(tags);
    for (name, link, frames) in
        [("sll", 113, all(&sll)), ("sll2", 276, all(&sll2)), ("tags", 1, on_ethernet)]
    {
        for bytes in [pcap(link, &frames), pcapng(link as u16, &frames)] {
            let mut intake = open(name, &bytes).expect(name);
            assert_eq!((intake.skipped(), intake.tagged()), (3, 2), "{name}");
            assert_eq!(packets(&mut intake), [&v4[..], &v6, &v4, &v6], "{name}");
        }
    }
}

#[test]
fn a_file_that_ends_within_a_record_and_packets_that_were_cut_are_warned_of() {
    let packet = vec![0x45; 21];
    let frames = [frame(0x800, &packet), frame(0x86dd, &[0x60; 50])];
    for (name, bytes, record) in [("cut", pcap(1, &frames), 2), ("cutng", pcapng(1, &frames), 4)] {
        // Within the last record's data, and within its header.
        for missing in [1, 8, 68] {
            let mut intake = open(name, &bytes[..bytes.len() - missing]).expect(name);
            let [warning] = intake.warnings() else { panic!("{:?}", intake.warnings()) };
            let expected = format!("the file ends within record {record}, which is left out");
            assert!(warning.ends_with(&expected), "{warning}");
            assert_eq!(packets(&mut intake), [&packet[..]], "{name}");
        }
        assert_eq!(open(name, &bytes).expect(name).warnings(), [""; 0]);
    }
    let mut bytes = pcap(1, &frames[..1]);
    let length = bytes.len() - frames[0].len() - 4;
    bytes[length] += 10;
    let mut intake = open("short", &bytes).expect("opens");
    let [warning] = intake.warnings() else { panic!("{:?}", intake.warnings()) };
    assert!(warning.contains("of 1 packets the capture has the beginning only"), "{warning}");
    assert_eq!(packets(&mut intake), [&packet[..]]);
}

#[test]
fn files_that_are_no_captures_are_refused_with_a_reason() {
    let frames = [frame(0x800, &[0x45; 20])];
    for bytes in [&b""[..], b"x", b"no capture at all, but text", &PCAPNG] {
        let error = open("text", bytes).expect_err("refused");
        assert!(matches!(error, CaptureError::Malformed { record: 0, .. }), "{error}");
    }
    let huge = pcap(1, &[frame(0x800, &vec![0x45; RECORD])]);
    assert!(matches!(open("huge", &huge), Err(CaptureError::Malformed { record: 1, .. })));
    let hugeng = pcapng(1, &[frame(0x800, &vec![0x45; RECORD])]);
    assert!(matches!(open("hugeng", &hugeng), Err(CaptureError::Malformed { record: 3, .. })));
    let error = open("link", &pcap(105, &frames)).expect_err("refused");
    assert!(matches!(error, CaptureError::LinkType { link: 105, .. }), "{error}");
    let error = CaptureIntake::open(Path::new("/nonexistent"), 0, None).expect_err("refused");
    assert!(error.to_string().starts_with("/nonexistent: No such file"), "{error}");
}

#[test]
fn packets_that_leave_are_read_again() {
    let file = Temporary::new("outlet", b"");
    let mut outlet = CaptureOutlet::create(&[&file.0]).expect("creates");
    let to = IpAddr::from([10, 0, 0, 1]);
    let sent = [vec![0x45; 20], vec![0x60; 1500], vec![0x45; 65_535]];
    outlet.set_time(Duration::from_millis(1_500));
    for packet in &sent {
        assert_eq!(outlet.send(0, to, packet), Ok(()));
    }
    assert_eq!(outlet.send(0, to, &[0x45; 65_536]), Err(PacketDrop::TooBig));
    assert_eq!(outlet.send(1, to, &[0x45; 20]), Err(PacketDrop::PortDown));
    assert_eq!((outlet.is_up(0), outlet.is_up(1)), (true, false));
    outlet.finish().expect("writes");
    let bytes = fs::read(&file.0).expect("reads");
    assert_eq!(bytes[24..32], [1u32.to_ne_bytes(), 500_000u32.to_ne_bytes()].concat());
    let mut intake = CaptureIntake::open(&file.0, 2, Some(1)).expect("opens");
    assert_eq!(packets(&mut intake), sent);
}

#[test]
fn an_error_of_writing_is_reported_at_the_end() {
    let mut outlet = CaptureOutlet::create(&[Path::new("/dev/full")]).expect("creates");
    let to = IpAddr::from([10, 0, 0, 1]);
    assert_eq!(outlet.send(0, to, &[0x45; 20]), Ok(()));
    outlet.flush();
    assert_eq!(outlet.send(0, to, &[0x45; 20]), Err(PacketDrop::LineFull));
    assert!(matches!(outlet.finish(), Err(CaptureError::File { .. })));
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused(
        is_ng: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end: prop::sample::Index,
    ) {
        let frames = [frame(0x800, &[0x45; 20]), frame(0x86dd, &[0x60; 41])];
        let mut bytes = if is_ng { pcapng(1, &frames) } else { pcap(1, &frames) };
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(1 + end.index(bytes.len()));
        if let Ok(mut intake) = open("damaged", &bytes) {
            prop_assert!(packets(&mut intake).iter().map(Vec::len).sum::<usize>() <= bytes.len());
        }
    }
}
