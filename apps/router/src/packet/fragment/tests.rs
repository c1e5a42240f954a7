use proptest::prelude::*;

use super::super::testing::*;
use super::super::{DONT_FRAGMENT, MORE_FRAGMENTS, OFFSET, decrement_ttl};
use super::*;

fn cut(packet: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let mut fragments = Vec::new();
    assert!(fragment(packet, &header(packet), mtu, |fragment| fragments.push(fragment.to_vec())));
    fragments
}

/// Puts fragments together: header of the first, data in the order of their offsets.
fn reassemble(mut fragments: Vec<Vec<u8>>) -> Vec<u8> {
    let flags = |f: &[u8]| u16::from_be_bytes([f[6], f[7]]);
    fragments.sort_by_key(|f| flags(f) & OFFSET);
    let first = fragments[0].clone();
    let mut packet = first[..usize::from(header(&first).header_len)].to_vec();
    let (start, mut at) = (flags(&first) & OFFSET, 0);
    for (n, f) in fragments.iter().enumerate() {
        let parsed = header(f);
        assert_eq!(parsed.total_len as usize, f.len());
        assert_eq!(usize::from((flags(f) & OFFSET) - start) * 8, at, "gaps or overlaps");
        let last = n + 1 == fragments.len();
        assert!(last || flags(f) & MORE_FRAGMENTS != 0);
        packet.extend(&f[usize::from(parsed.header_len)..]);
        at += f.len() - usize::from(parsed.header_len);
    }
    let more = flags(fragments.last().unwrap()) & MORE_FRAGMENTS;
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    let flags = (flags(&first) & !MORE_FRAGMENTS) | more;
    packet[6..8].copy_from_slice(&flags.to_be_bytes());
    fix(&mut packet);
    packet
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

proptest! {
    #[test]
    fn fragments_reassemble_also_if_cut_again(
        options in super::super::testing::options(),
        len in 0..5000usize,
        mtu in MIN_MTU..2000,
        mtu_again in MIN_MTU..2000,
        offset in 0..2000u16,
        more: bool,
    ) {
        let len = if more { len & !7 } else { len };
        let len = if more || offset > 0 { len.max(8) } else { len };
        let flags = offset | (u16::from(more) * MORE_FRAGMENTS);
        let packet = v4(17, flags, &options, &data(len));
        let fragments = cut(&packet, mtu);
        prop_assert!(fragments.iter().all(|f| f.len() <= mtu));
        let again: Vec<_> = fragments.iter().flat_map(|f| cut(f, mtu_again)).collect();
        prop_assert!(again.iter().all(|f| f.len() <= mtu_again));
        prop_assert_eq!(&reassemble(fragments), &packet);
        prop_assert_eq!(&reassemble(again), &packet);
    }
}

#[test]
fn the_last_fragment_is_filled_and_others_have_multiples_of_8() {
    // 100 bytes of MTU have room for 80 bytes of data, of which 80 are a multiple of 8.
    let lens =
        |len, mtu| cut(&v4(17, 0, &[], &data(len)), mtu).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lens(80, 100), [100]);
    assert_eq!(lens(81, 100), [100, 21]);
    assert_eq!(lens(160, 100), [100, 100]);
    // 107 bytes: 87 of data in the last, 80 in others.
    assert_eq!(lens(80 + 87, 107), [100, 107]);
    assert_eq!(lens(80 + 88, 107), [100, 100, 28]);
}

#[test]
fn options_are_copied_by_their_flag() {
    // Record route (not copied), security (copied), no operation, router alert (copied), end.
    let options = [7, 3, 4, 130, 3, 9, 1, 148, 4, 0, 0, 0];
    let fragments = cut(&v4(17, 0, &options, &data(100)), 68);
    assert_eq!(fragments.len(), 3);
    assert_eq!(fragments[0][20..32], options);
    for f in &fragments[1..] {
        assert_eq!(header(f).header_len, 28);
        assert_eq!(f[20..28], [130, 3, 9, 148, 4, 0, 0, 0]);
    }
    let fragments = cut(&v4(17, 0, &[7, 3, 4, 1], &data(100)), 68);
    assert_eq!(header(&fragments[1]).header_len, 20);
}

#[test]
fn the_largest_packet_takes_the_smallest_mtu() {
    let packet =
        v4(17, 0, &[130, 40].into_iter().chain([7; 38]).collect::<Vec<_>>(), &data(65_475));
    assert_eq!(packet.len(), 65_535);
    let fragments = cut(&packet, MIN_MTU);
    assert_eq!(fragments.len(), 65_475_usize.div_ceil(8));
    assert_eq!(reassemble(fragments), packet);
    let fragments = cut(&packet, 20_000);
    assert!(fragments.iter().all(|f| f.len() <= MAX_FRAGMENT));
    assert_eq!(reassemble(fragments), packet);
}

#[test]
fn padding_and_changes_of_the_header_are_respected() {
    let mut packet = v4(17, 0, &[], &data(100));
    let good = header(&packet);
    decrement_ttl(&mut packet, &good);
    let expected = packet.clone();
    packet.extend([0xee; 10]);
    assert_eq!(reassemble(cut(&packet, 68)), expected);
    assert_eq!(cut(&packet, 120), [expected], "it fits without padding");
}

#[test]
fn packets_that_cannot_be_cut() {
    let refused = |packet: &[u8], mtu| {
        assert!(!fragment(packet, &header(packet), mtu, |_| panic!("a fragment")));
    };
    refused(&v4(17, DONT_FRAGMENT, &[], &data(100)), 68);
    refused(&v6(17, &data(100)), 68);
    let packet = v6(17, &data(100));
    let wrong = Header { dont_fragment: false, ..header(&packet) };
    assert!(!fragment(&packet, &wrong, 68, |_| panic!("a fragment")));
    refused(&v4(17, 0, &[], &data(100)), 67);
    let packet = v4(17, 0, &[], &data(100));
    assert!(!fragment(&packet[..50], &header(&packet), 68, |_| panic!("a fragment")));
}
