//! The requirements, one function each.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use courser_buf::{
    Ecn, PacketAccess, PathId, RX_BURST, RxBurst, RxFrame, TX_GATHER, TxBurst, TxFrame,
};
use rustix::event::{EventfdFlags, eventfd};

use super::{Check, Rig, assert_quiet, poll, receive, whole};
use crate::Transport;

/// After this time without a frame, a queue that was filled is empty.
const QUIET: Duration = Duration::from_secs(2);
/// Multiple of its length that passes a queue which is refilled while it is read.
const REFILLED: usize = 3;

macro_rules! checks {
    ($($name:literal => $f:ident),* $(,)?) => { vec![$(Check { name: $name, run: $f }),*] };
}

pub(super) fn all<A: Transport, B: Transport>() -> Vec<Check<A, B>> {
    checks![
        "capabilities agree with each other" => caps,
        "frames of every size arrive intact" => sizes,
        "frames of up to `gather` pieces arrive whole" => gather,
        "bursts arrive in order" => order,
        "trains of equal frames keep their boundaries" => trains,
        "frames of unequal sizes keep their boundaries" => boundaries,
        "frames for different destinations do not mix" => destinations,
        "frames above the path's limit are refused and counted" => too_large,
        "the receive queue holds `rx_queue_frames` of the largest frames" => promised,
        "the receive queue holds `rx_queue_small_frames` small frames" => promised_small,
        "more frames than fit are dropped, never duplicated or invented" => overload,
        "the source address is right and can be answered" => source,
        "receiving without frames returns at once" => empty,
        "a receive burst adds at most the remaining capacity" => room,
        "waiting ends with a frame" => wait_frame,
        "waiting ends while a burst is half received" => wait_rest,
        "waiting ends with the wake descriptor and with time" => wait_other,
        "flushing releases frames, and the count of held ones is right" => held,
        "frames that are copied arrive like others, and are not held" => copied,
        "a dropped transport releases all memory" => dropped,
        "congestion marks can be read" => ecn,
        "counters count" => counters,
        "closed paths can be opened again" => reopen,
    ]
}

fn caps<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let (caps, path) = (rig.caps(), rig.path);
    assert!(!caps.scheme.is_empty() && caps.scheme.bytes().all(|b| b.is_ascii_alphanumeric()));
    assert!((1..=caps.max_frame).contains(&path.max_frame), "{path:?} {caps:?}");
    assert!(caps.headroom <= 66, "{caps:?}");
    assert!((2..=TX_GATHER).contains(&caps.gather), "{caps:?}");
    assert!(caps.train_frames >= 1 && caps.train_bytes >= caps.max_frame, "{caps:?}");
    assert!(caps.rx_queue_frames >= 1, "{caps:?}");
    assert!((1..=caps.max_frame).contains(&caps.small_frame), "{caps:?}");
    assert!(caps.rx_queue_small_frames >= caps.rx_queue_frames, "{caps:?}");
}

fn sizes<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let max = rig.path.max_frame;
    let step = (max / 97).max(1);
    let mut lens: Vec<usize> = (1..=max.min(70)).chain((71..max).step_by(step)).collect();
    lens.extend([max.saturating_sub(1).max(1), max]);
    // One at a time, without trains; then together.
    for &len in &lens {
        rig.exchange(&[len]);
    }
    rig.exchange(&lens);
}

fn gather<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let pieces = rig.caps().gather;
    let len = rig.path.max_frame.min(900);
    let mut burst = TxBurst::new();
    for cuts in [[0, 0], [1, 1], [len / 3, len / 2], [len - 1, len], [48.min(len), len]] {
        if pieces < 3 && cuts[0] != cuts[1] {
            continue;
        }
        let buf = rig.buf(cuts[0], len);
        let mut frame = TxFrame::EMPTY;
        frame.path = rig.path.id;
        for range in [0..cuts[0], cuts[0]..cuts[1], cuts[1]..len] {
            if !range.is_empty() {
                frame
                    .push(buf.data_seg(range).expect("within the buffer"))
                    .expect("three pieces at most");
            }
        }
        let frame_again = whole(rig.path.id, &buf);
        burst.extend([frame, frame_again]);
    }
    let count = burst.len();
    assert!(count <= rig.window() || rig.window() < 10);
    for frame in std::mem::take(&mut burst) {
        let mut sum = Vec::new();
        frame.copy_to(&mut sum);
        rig.send(&mut TxBurst::from([frame]));
        assert_eq!(receive(&mut rig.b, 1)[0].data, sum);
    }
    many_pieces(rig);
}

/// Frames of 4 pieces up to the limit, alone and several in a burst.
fn many_pieces<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let (most, max) = (rig.caps().gather, rig.path.max_frame);
    let counts: Vec<_> = [4, 5, 16, 31, 32, 33, most - 1, most].into();
    let counts = counts.into_iter().filter(|pieces| (1..=most.min(max)).contains(pieces));
    for pieces in counts {
        for len in [pieces, 3 * pieces + 1, max / pieces * pieces, max] {
            let len = len.clamp(pieces, max);
            let frame = in_pieces(rig, pieces, len);
            assert_eq!((frame.segs().len(), frame.len() as usize), (pieces, len));
            // Trains of them need many gather entries.
            for count in [1, 2, 40] {
                let count = count.min(rig.window());
                let mut sum = Vec::new();
                frame.copy_to(&mut sum);
                rig.send(&mut (0..count).map(|_| frame.clone()).collect());
                assert!(receive(&mut rig.b, count).iter().all(|got| got.data == sum), "{pieces}");
            }
        }
    }
}

/// A frame of `len` bytes in pieces that are nowhere adjacent.
fn in_pieces<A: Transport, B: Transport>(
    rig: &mut Rig<A, B>,
    pieces: usize,
    len: usize,
) -> TxFrame {
    let bufs = [rig.buf(1, len), rig.buf(2, len)];
    let mut frame = TxFrame::EMPTY;
    frame.path = rig.path.id;
    for at in 0..pieces {
        let range = len * at / pieces..len * (at + 1) / pieces;
        let seg = bufs[at % 2].data_seg(range).expect("within the buffer");
        frame.push(seg).expect("within the limit");
    }
    frame
}

fn order<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    for n in [1, 2, 31, 64, 65, 200] {
        rig.exchange(&vec![16; n]);
    }
}

fn trains<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let max = rig.path.max_frame;
    for n in [2, 3, 44, 63, 64, 65, 130] {
        for len in [1, 2, 48, max / 2 + 1, max] {
            let mut lens = vec![len; n];
            rig.exchange(&lens);
            // The last may be shorter.
            lens[n - 1] = len.div_ceil(2);
            rig.exchange(&lens);
        }
    }
}

fn boundaries<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let max = rig.path.max_frame;
    let fit = |lens: &[usize]| lens.iter().map(|&n| n.min(max)).collect::<Vec<_>>();
    rig.exchange(&fit(&[100, 200, 300, 300, 200, 200, 100]));
    rig.exchange(&fit(&[500, 499, 500, 500, 1, 500]));
    rig.exchange(&fit(&[1, max, 1, 1, max, max, 7]));
    let mut state = 12_345u32;
    let mixed: Vec<usize> = (0..200)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few different sizes, so that short trains form and end.
            [24, 48, 48, 48, max / 2, max][(state >> 16) as usize % 6].clamp(1, max)
        })
        .collect();
    rig.exchange(&mixed);
}

fn destinations<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let own = rig.a().local_addr();
    let to_self = rig.a().path_open(own, None).expect("a path to itself").id;
    let n = rig.window().min(rig.caps().rx_queue_frames).min(40);
    let mut burst: TxBurst = (0..n)
        .map(|i| {
            let frame = rig.frame(i, 20);
            let mut frame = frame;
            if i % 3 == 0 {
                frame.path = to_self;
            }
            frame
        })
        .collect();
    rig.send(&mut burst);
    let expected = |own: bool| (0..n).filter(move |i| (i % 3 == 0) == own);
    let at_self = receive(rig.a(), expected(true).count());
    let at_b = receive(&mut rig.b, expected(false).count());
    for (i, got) in expected(true).zip(&at_self).chain(expected(false).zip(&at_b)) {
        assert_eq!(got.data, rig.buf(i, 20)[..], "frame {i}");
    }
}

fn too_large<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let max = rig.path.max_frame;
    let before = rig.a().stats().tx_dropped;
    let lens = [10, max + 1, 11, max + 100, max + 1, 12];
    let mut burst = lens.iter().enumerate().map(|(i, &len)| rig.frame(i, len)).collect();
    rig.send(&mut burst);
    let lens: Vec<_> = receive(&mut rig.b, 3).iter().map(|g| g.data.len()).collect();
    assert_eq!(lens, [10, 11, 12]);
    assert_quiet(&mut rig.b);
    assert_eq!(rig.a().stats().tx_dropped - before, 3);
}

fn promised<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let (frames, len) = (rig.b.caps().rx_queue_frames, rig.path.max_frame);
    holds(rig, frames, len);
}

fn promised_small<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let caps = rig.b.caps();
    let (frames, len) = (caps.rx_queue_small_frames, caps.small_frame.min(rig.path.max_frame));
    holds(rig, frames, len);
    // Smaller ones use the same room.
    holds(rig, frames, len.min(1));
}

/// The receive queue of the second endpoint holds `frames` frames of a length, also while it is
/// read: the number of frames that a burst receives may be sent again.
fn holds<A: Transport, B: Transport>(rig: &mut Rig<A, B>, frames: usize, len: usize) {
    let buf = rig.buf(7, len);
    let path = rig.path.id;
    let some = |count: usize| -> TxBurst { (0..count).map(|_| whole(path, &buf)).collect() };
    let (mut sent, mut got) = (frames, 0);
    rig.send(&mut some(frames));
    let mut arrived = Instant::now();
    while got < sent {
        let burst = poll(&mut rig.b);
        assert!(burst.iter().all(|frame| frame.data == buf[..]), "other bytes");
        if burst.is_empty() {
            let lost = sent - got;
            let long = arrived.elapsed() > QUIET;
            assert!(!long, "{lost} of {sent} frames of {len} bytes are lost, {frames} at a time");
            continue;
        }
        arrived = Instant::now();
        got += burst.len();
        if sent < REFILLED * frames {
            rig.send(&mut some(burst.len()));
            sent += burst.len();
        }
    }
    assert_eq!(got, sent, "more frames arrived than were sent");
    assert_quiet(&mut rig.b);
}

fn overload<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let n = (rig.b.caps().rx_queue_frames * 3).clamp(300, 30_000);
    let mut burst = TxBurst::new();
    for i in 0..n {
        let mut buf = rig.buf(0, 8.min(rig.path.max_frame).max(4));
        buf[..4].copy_from_slice(&(i as u32).to_be_bytes());
        burst.push_back(whole(rig.path.id, &buf));
    }
    rig.send(&mut burst);
    let mut seen = BTreeSet::new();
    let mut idle = 0;
    while idle < 200 {
        let got = poll(&mut rig.b);
        idle = if got.is_empty() { idle + 1 } else { 0 };
        for frame in got {
            let number = u32::from_be_bytes(frame.data[..4].try_into().expect("four bytes"));
            assert!((number as usize) < n, "frame {number} was invented");
            assert!(seen.insert(number), "frame {number} arrived twice");
        }
    }
    assert!(!seen.is_empty(), "no frame arrived");
    // Normal operation continues.
    rig.exchange(&[10, 20, 30]);
}

fn source<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    rig.send(&mut TxBurst::from([rig.frame(1, 10)]));
    let src = receive(&mut rig.b, 1)[0].src;
    assert_eq!(src.port, rig.a().local_addr().port);
    let back = rig.b.path_open(src, Some(rig.b.local_addr())).expect("a path back");
    let buf = rig.buf(2, 12);
    rig.b.tx_burst(&mut TxBurst::from([whole(back.id, &buf)]));
    let local = rig.b.local_addr();
    let got = receive(rig.a(), 1);
    assert_eq!((&got[0].data[..], got[0].src), (&buf[..], local));
}

fn empty<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    // Hangs if the transport blocks.
    for _ in 0..1000 {
        assert_eq!(poll(&mut rig.b), []);
    }
}

fn room<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let n = rig.window().min(60);
    let mut burst = (0..n).map(|i| rig.frame(i, 30)).collect();
    rig.send(&mut burst);
    let filler = RxFrame::new(rig.b.local_addr(), b"there before", Ecn::NotEct);
    let mut got = Vec::new();
    let deadline = Instant::now() + super::PATIENCE;
    for space in [0, 1, 3, 7].into_iter().cycle() {
        let mut out = RxBurst::new();
        (space..RX_BURST).for_each(|_| out.push(filler));
        rig.b.rx_burst(&mut out);
        let (before, new) = out.split_at(RX_BURST - space);
        assert!(before.iter().all(|f| f.data == filler.data));
        got.extend(new.iter().map(super::bytes));
        if got.len() >= n {
            break;
        }
        assert!(Instant::now() < deadline, "{} of {n} arrived", got.len());
    }
    for (i, data) in got.iter().enumerate() {
        assert_eq!(data[..], rig.buf(i, 30)[..], "frame {i}");
    }
    assert_quiet(&mut rig.b);
}

fn wait_frame<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    for i in 0..20 {
        rig.send(&mut TxBurst::from([rig.frame(i, 10)]));
        let mut got = Vec::new();
        while got.is_empty() {
            // No timeout: hangs if the transport misses the frame.
            rig.b.wait(-1, None).expect("waiting works");
            got = poll(&mut rig.b);
        }
        assert_eq!(got.len(), 1);
    }
}

fn wait_rest<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let n = rig.window();
    let mut burst = (0..n).map(|i| rig.frame(i, 30)).collect();
    rig.send(&mut burst);
    let mut count = 0;
    while count < n {
        rig.b.wait(-1, None).expect("waiting works");
        let filler = RxFrame::new(rig.b.local_addr(), b"", Ecn::NotEct);
        let mut out = RxBurst::new();
        (10..RX_BURST).for_each(|_| out.push(filler));
        rig.b.rx_burst(&mut out);
        count += out.len() + 10 - RX_BURST;
    }
    assert_eq!(count, n);
}

fn wait_other<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let idle = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
    let awake = eventfd(1, EventfdFlags::NONBLOCK).expect("a descriptor");
    // Each call hangs if its reason to return is missed.
    rig.b.wait(awake.as_raw_fd(), None).expect("waiting works");
    rig.b.wait(idle.as_raw_fd(), Some(1_000_000)).expect("waiting works");
    rig.b.wait(idle.as_raw_fd(), Some(0)).expect("waiting works");
    rig.b.wait(-1, Some(1)).expect("waiting works");
    rig.exchange(&[10]);
}

fn held<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let holds = rig.caps().holds_frames;
    for i in 0..5 {
        let buf = rig.buf(i, 100.min(rig.path.max_frame));
        let mut burst = TxBurst::from([whole(rig.path.id, &buf)]);
        rig.a().tx_burst(&mut burst);
        assert!(burst.is_empty(), "an idle queue takes a frame");
        if !holds {
            assert!(!buf.is_shared(), "a frame is held against the capabilities");
        }
        for _ in 0..3 {
            let count = rig.a().tx_reclaim();
            assert_eq!(count > 0, buf.is_shared(), "tx_reclaim says {count}");
        }
        rig.a().tx_flush();
        assert!(!buf.is_shared(), "a frame is held after tx_flush");
        assert_eq!(rig.a().tx_reclaim(), 0);
        assert_eq!(receive(&mut rig.b, 1)[0].data, buf[..]);
    }
}

fn copied<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let (path, max) = (rig.path, rig.path.max_frame);
    let mut copies = false;
    for (tag, len) in [1, 2, 16, 48, 100, 300, max / 2, max - 1, max].into_iter().enumerate() {
        let len = len.clamp(1, max);
        let mut buf = rig.buf(tag, len);
        copies = rig.a().tx_copy(path.id, &buf);
        assert_eq!(rig.a().tx_reclaim(), 0, "a copied frame is held");
        let want = buf.to_vec();
        buf.fill(0);
        if copies {
            assert_eq!(receive(&mut rig.b, 1)[0].data, want, "{len} bytes");
        }
    }
    // In order with frames of bursts; a frame that no path can carry is not sent.
    let (one, two, three) = (rig.frame(1, 10), rig.buf(2, max.min(20)), rig.frame(3, 10));
    let large = rig.buf(4, max + 1);
    rig.send(&mut TxBurst::from([one]));
    let sent = rig.a().stats().tx_frames;
    for path in [path.id, PathId(u32::MAX)] {
        let frame: &[u8] = if path == rig.path.id { &large } else { &two };
        rig.a().tx_copy(path, frame);
    }
    assert_eq!(rig.a().stats().tx_frames, sent);
    rig.a().tx_copy(path.id, &two);
    rig.send(&mut TxBurst::from([three]));
    let got: Vec<_> =
        receive(&mut rig.b, 2 + usize::from(copies)).into_iter().map(|g| g.data).collect();
    let want = [rig.buf(1, 10).to_vec(), two.to_vec(), rig.buf(3, 10).to_vec()];
    assert_eq!(got, if copies { want.to_vec() } else { vec![want[0].clone(), want[2].clone()] });
    assert_quiet(&mut rig.b);
}

fn dropped<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let n = rig.window().min(20);
    let mut burst = (0..n).map(|i| rig.frame(i, 40)).collect();
    rig.send(&mut burst);
    drop((rig.a.take(), burst));
    assert_eq!(rig.arena.stats().in_use_buffers, 0);
}

fn ecn<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let n = rig.window().min(20);
    let mut burst = (0..n).map(|i| rig.frame(i, 40)).collect();
    rig.send(&mut burst);
    for got in receive(&mut rig.b, n) {
        // NotEct where the transport carries no marks; no switch is between the endpoints.
        assert!(matches!(got.ecn, Ecn::Ect0 | Ecn::NotEct), "{:?}", got.ecn);
    }
}

fn counters<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let (tx, rx) = (rig.a().stats(), rig.b.stats());
    rig.exchange(&[10, 10, 20, 7]);
    let (tx2, rx2) = (rig.a().stats(), rig.b.stats());
    assert_eq!((tx2.tx_frames - tx.tx_frames, tx2.tx_bytes - tx.tx_bytes), (4, 47));
    assert_eq!((rx2.rx_frames - rx.rx_frames, rx2.rx_bytes - rx.rx_bytes), (4, 47));
    assert!(tx2.tx_calls > tx.tx_calls && rx2.rx_calls > rx.rx_calls);
    assert_eq!((rx2.rx_dropped, rx2.rx_overflow, tx2.tx_dropped), (0, 0, 0));
    // More frames than a burst holds.
    let max = rig.path.max_frame;
    rig.exchange(&vec![max; 300]);
    let (tx3, rx3) = (rig.a().stats(), rig.b.stats());
    assert_eq!((tx3.tx_frames - tx2.tx_frames, rx3.rx_frames - rx2.rx_frames), (300, 300));
    let bytes = 300 * max as u64;
    assert_eq!((tx3.tx_bytes - tx2.tx_bytes, rx3.rx_bytes - rx2.rx_bytes), (bytes, bytes));
}

fn reopen<A: Transport, B: Transport>(rig: &mut Rig<A, B>) {
    let to = rig.b.local_addr();
    for _ in 0..100 {
        let old = rig.path.id;
        rig.a().path_close(old);
        rig.path = rig.a().path_open(to, None).expect("a path again");
        rig.exchange(&[33]);
    }
    // Closing an unknown path has no effect.
    let never = courser_buf::PathId(u32::MAX);
    rig.a().path_close(never);
    rig.exchange(&[34]);
}
