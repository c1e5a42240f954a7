use std::sync::Arc;

use crate::{
    Arena, ArenaConfig, HEADER_ROOM, Heap, HugePages, MsgBuf, PacketAccess, SetLenError, TxSeg,
};

fn arena(data_per_packet: usize, headroom: usize) -> Arena {
    let cfg = ArenaConfig { limit_bytes: 1 << 20, data_per_packet, headroom };
    Arena::new(Arc::new(Heap { huge: HugePages::Never }), cfg).unwrap()
}

/// Distance of `ptr` from the first data byte.
fn offset(buf: &MsgBuf, ptr: *const u8) -> isize {
    ptr as isize - buf.as_ptr() as isize
}

fn header(buf: &mut MsgBuf, index: u32, len: usize) -> TxSeg {
    buf.packet_segs(index, len, 0..0).unwrap().0
}

#[test]
fn positions_are_exact() {
    // 48 + 66 bytes of header and headroom round up to slots of 128 (without headroom, to 48).
    for (headroom, slot) in [(0, 48), (16, 64), (66, 128)] {
        let arena = arena(100, headroom);
        let mut buf = arena.alloc(350).unwrap();
        assert_eq!(buf.capacity(), 384);
        assert_eq!(buf.as_ptr().align_offset(64), 0);

        // 384 bytes of capacity are four packets: header 0 is before the data, 1 to 3 are behind
        // it.
        for index in 0..4 {
            let end = if index == 0 { 0 } else { 384 + index as isize * slot };
            let header = buf.header_mut(index).unwrap();
            header.fill(index as u8 + 1);
            let at = header.as_ptr();
            assert_eq!(offset(&buf, at), end - HEADER_ROOM as isize, "header {index}");
        }
        assert!(buf.header_mut(4).is_none() && buf.header_mut(u32::MAX).is_none());
        buf.fill(0xd0);

        for index in 1..4u32 {
            let (seg, data) = buf.packet_segs(index, 20, 100..130).unwrap();
            assert_eq!(&*seg, [index as u8 + 1; 20]);
            assert_eq!(offset(&buf, seg.as_ptr()), 384 + index as isize * slot - 20);
            assert_eq!(seg.headroom(), slot as usize - 20);
            assert!(seg.headroom() >= headroom + HEADER_ROOM - 20);
            assert_eq!((offset(&buf, data.as_ptr()), data.len(), data.headroom()), (100, 30, 0));
        }
        assert!(!buf.is_shared());
        let seg = buf.first_seg(32, 100);
        assert_eq!(offset(&buf, seg.as_ptr()), -32);
        assert_eq!((seg.len(), seg.headroom()), (132, 96));
        assert_eq!(seg[..32], [1; 32]);
        assert_eq!(seg[32..], [0xd0; 100]);
        let seg = buf.data_seg(100..200).unwrap();
        assert_eq!((offset(&buf, seg.as_ptr()), seg.len(), seg.headroom()), (100, 100, 0));
    }
}

#[test]
fn a_transport_may_write_the_headroom() {
    let arena = arena(100, 66);
    let mut buf = arena.alloc(300).unwrap();
    buf.fill(0xd0);
    for index in 0..3 {
        buf.header_mut(index).unwrap().fill(0xaa);
    }
    for index in 0..3 {
        let seg = header(&mut buf, index, HEADER_ROOM);
        assert!(seg.headroom() >= 66);
        // SAFETY: the headroom of a segment is its transport's to write. Test: this one (miri).
        unsafe {
            let start = seg.as_ptr().cast_mut().sub(seg.headroom());
            std::slice::from_raw_parts_mut(start, seg.headroom()).fill(0xee);
        }
    }
    for index in 0..3 {
        assert_eq!(*header(&mut buf, index, HEADER_ROOM), [0xaa; HEADER_ROOM]);
    }
    assert_eq!(*buf, [0xd0; 300]);
}

#[test]
fn pieces_beyond_the_buffer_are_refused() {
    let arena = arena(100, 0);
    let mut buf = arena.alloc(10).unwrap();
    assert!(buf.data_seg(0..11).is_none());
    assert!(buf.data_seg(11..11).is_none());
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = buf.data_seg(5..4);
    assert!(reversed.is_none());
    assert!(buf.data_seg(usize::MAX..usize::MAX).is_none());
    for (index, header, range) in [(3, 1, 0..1), (0, HEADER_ROOM + 1, 0..1), (0, 1, 0..11)] {
        assert!(buf.packet_segs(index, header, range).is_none());
    }
    assert!(!buf.is_shared(), "a rejected piece holds no reference");
    assert!(buf.data_seg(10..10).unwrap().is_empty());
}

#[test]
#[should_panic(expected = "first_seg(16, 11) of a buffer of 10 bytes")]
fn a_first_piece_longer_than_the_data_is_a_bug() {
    let _ = arena(100, 0).alloc(10).unwrap().first_seg(16, 11);
}

#[test]
fn lengths_can_change_within_the_capacity() {
    let arena = arena(100, 0);
    let mut buf = arena.alloc(300).unwrap();
    assert_eq!((buf.len(), buf.capacity()), (300, 320));
    buf.truncate(301);
    assert_eq!(buf.len(), 300);
    buf.truncate(0);
    assert!(buf.is_empty());
    buf.set_len(320).unwrap();
    assert_eq!(buf.get_mut().unwrap().len(), 320);
    let refused = buf.set_len(321).unwrap_err();
    assert_eq!(refused, SetLenError::Capacity { asked: 321, capacity: 320 });
    assert!(refused.to_string().contains("321") && refused.to_string().contains("320"));
    assert!(buf.set_len(usize::MAX).is_err());
    assert_eq!(buf.len(), 320);
}

#[test]
fn data_is_not_written_while_sent() {
    let arena = arena(100, 0);
    let mut buf = arena.alloc(300).unwrap();
    let seg = buf.data_seg(0..1).unwrap();
    let second = seg.clone();
    drop(seg);
    assert!(buf.is_shared() && buf.get_mut().is_none());
    drop(second);
    assert!(!buf.is_shared() && buf.get_mut().is_some());
    buf[0] = 1;
}

#[test]
#[should_panic(expected = "written while a transmit queue still holds")]
fn writing_while_sent_panics() {
    let mut buf = arena(100, 0).alloc(300).unwrap();
    let _seg = buf.data_seg(0..1);
    buf[0] = 1;
}

#[test]
fn headers_are_not_written_while_sent() {
    let arena = arena(100, 0);
    let mut buf = arena.alloc(512).unwrap();
    let first = buf.first_seg(16, 100);
    assert!(buf.header_mut(0).is_none());
    buf.header_mut(1).unwrap().fill(1);
    let (third, data) = buf.packet_segs(2, 16, 0..100).unwrap();
    // Headers up to the highest exposed one cannot be written, those above can.
    assert!(buf.header_mut(1).is_none() && buf.header_mut(2).is_none());
    buf.header_mut(3).unwrap().fill(3);
    drop(first);
    assert!(buf.header_mut(0).is_none(), "another piece is still alive");
    drop(third);
    assert!(buf.header_mut(2).is_none(), "the piece of the data is still alive");
    drop(data);
    for index in 0..6 {
        assert!(buf.header_mut(index).is_some(), "header {index}");
    }
    // The buffer is not shared any more; a piece of data exposes no header.
    let _data = buf.data_seg(0..512).unwrap();
    assert!(buf.header_mut(0).is_some());
}

/// A header that is sent again stays exposed although a later packet has a lower index.
#[test]
fn exposure_is_reset_only_when_nothing_is_sent() {
    let arena = arena(100, 0);
    let mut buf = arena.alloc(512).unwrap();
    let high = header(&mut buf, 4, 16);
    let low = header(&mut buf, 0, 16);
    drop(low);
    assert!(buf.header_mut(4).is_none());
    drop(high);
    assert!(buf.get_mut().is_some());
    let _low = header(&mut buf, 0, 16);
    assert!(buf.header_mut(4).is_some() && buf.header_mut(0).is_none());
}

#[test]
fn an_unshared_buffer_is_written_and_sent() {
    let arena = arena(100, 0);
    let buf = arena.alloc(300).unwrap();
    let place = buf.as_ptr();
    let seg = buf.data_seg(0..10).unwrap();
    let buf = buf.try_unshare().expect_err("a transmit queue reads it");
    drop(seg);

    let mut unshared = buf.try_unshare().unwrap();
    assert_eq!((unshared.len(), unshared.capacity(), unshared.as_ptr()), (300, 320, place));
    unshared.fill(7);
    unshared.truncate(301);
    assert_eq!(unshared.len(), 300);
    unshared.truncate(200);
    unshared.fill(8);
    assert_eq!(unshared.len(), 200);
    // The message has its full length again and can be used.
    let mut buf = unshared.into_msg();
    assert_eq!(*buf, [[8; 200].as_slice(), &[7; 100]].concat());
    assert_eq!(*buf.first_seg(0, 300), *buf);

    let dropped = buf.try_unshare().unwrap();
    drop(dropped);
    assert_eq!(arena.stats().in_use_buffers, 0);
}

#[test]
fn debug_output_is_short() {
    let mut buf = arena(100, 0).alloc(3).unwrap();
    let seg = buf.first_seg(16, 3);
    assert_eq!(format!("{buf:?}"), "MsgBuf { len: 3, capacity: 256, shared: true }");
    assert_eq!(format!("{seg:?}"), "TxSeg { len: 19, headroom: 112 }");
}

#[test]
fn handles_have_the_intended_sizes() {
    assert_eq!((size_of::<MsgBuf>(), size_of::<TxSeg>()), (16, 24));
    assert_eq!(size_of::<Option<MsgBuf>>(), 16);
}

#[test]
fn bytes_that_a_buffer_grows_by_are_zero_and_do_not_change_under_a_reader() {
    let arena = Arena::heap();
    let mut buf = arena.alloc(300).unwrap();
    buf.fill(7);
    buf.truncate(100);
    buf.set_len(200).unwrap();
    assert!(buf[..100].iter().all(|&b| b == 7) && buf[100..].iter().all(|&b| b == 0));
    buf.set_len_recycled(300).unwrap();
    assert!(buf[200..].iter().all(|&b| b == 7));
    let seg = buf.first_seg(0, 300);
    buf.truncate(100);
    assert_eq!(buf.set_len(300), Err(SetLenError::Shared));
    assert_eq!(buf.set_len(50), Ok(()));
    assert!(seg.iter().skip(200).all(|&b| b == 7));
}
