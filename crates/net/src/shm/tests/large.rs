//! Large frames between peers that do not trust each other: the tail stays in the ring until the
//! next burst, and is copied from there.

use std::collections::VecDeque;

use courser_buf::{RX_HEAD, RxFrame};

use super::super::inbound::LARGE;
use super::*;

const LARGE_SHAPE: Shape = Shape { slots: 16, data: 1 << 16, max_frame: 8192 };

fn whole(frame: &RxFrame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.copy_to(&mut out);
    out
}

/// A receiver, connected senders, and their paths to it.
fn meeting(
    room: &Room,
    senders: usize,
    change: fn(&mut ShmConfig),
) -> (ShmTransport, Vec<(ShmTransport, PathId)>) {
    let mut cfg = room.cfg();
    change(&mut cfg);
    let bind = || ShmTransport::bind(&cfg).unwrap();
    let mut t = bind();
    let mut all: Vec<_> = (0..senders).map(|_| bind()).collect();
    let paths: Vec<_> = all.iter_mut().map(|p| p.path_open(t.local, None).unwrap().id).collect();
    for (peer, &path) in all.iter_mut().zip(&paths) {
        reaches(peer, path, &mut t);
    }
    while !poll(&mut t).is_empty() {}
    (t, all.into_iter().zip(paths).collect())
}

#[test]
fn only_the_front_of_large_frames_is_copied_at_once() {
    let room = Room::new();
    let (mut t, mut peers) = meeting(&room, 1, |_| {});
    let before = t.stats();
    let lens = [10, LARGE - 1, LARGE, 100, 8192, 0, 240, 241, LARGE + 1, 8191, 5];
    let (peer, path) = &mut peers[0];
    lens.iter().for_each(|&len| send(peer, *path, &bytes(len)));
    let mut out = RxBurst::new();
    t.rx_burst(&mut out);
    assert_eq!(out.len(), lens.len());
    for (frame, &len) in out.iter().zip(&lens) {
        let front = if len >= LARGE { RX_HEAD } else { len };
        assert_eq!((frame.data.len(), frame.tail().len()), (front, len - front));
        assert_eq!((whole(frame), frame.src), (bytes(len).to_vec(), peer.local));
    }
    drop(out);
    let (now, sum) = (t.stats(), lens.iter().sum::<usize>());
    let rx = (now.rx_frames - before.rx_frames, now.rx_bytes - before.rx_bytes);
    assert_eq!((rx, now.rx_calls - before.rx_calls), ((lens.len() as u64, sum as u64), 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Against queues as the model: sent frames arrive in order and stay unchanged until the next
    /// burst, whatever is sent meanwhile.
    #[test]
    fn a_burst_stays_unchanged(
        bursts in proptest::collection::vec(
            (proptest::collection::vec((0..2usize, 0..3u8, 0..8193usize), 0..30), any::<bool>()),
            0..40,
        ),
    ) {
        let room = Room::new();
        let (mut t, mut peers) =
            meeting(&room, 2, |c| (c.slots, c.data_bytes) = (64, 1 << 16));
        let mut queues = [VecDeque::new(), VecDeque::new()];
        let mut number = 0_u8;
        let mut send_all = |frames: &[(usize, u8, usize)], queues: &mut [VecDeque<Vec<u8>>; 2]| {
            for &(from, size, len) in frames {
                let len = [len % 300, len, 8192][usize::from(size)];
                let (peer, path) = &mut peers[from];
                number = number.wrapping_add(1);
                let mut frame = bytes(len);
                frame.iter_mut().for_each(|b| *b = b.wrapping_mul(3) ^ number);
                let dropped = peer.stats().tx_dropped;
                send(peer, *path, &frame);
                if peer.stats().tx_dropped == dropped {
                    queues[from].push_back(frame.to_vec());
                }
            }
            [peers[0].0.local, peers[1].0.local]
        };
        let addrs = send_all(&[], &mut queues);
        for (frames, before) in bursts {
            if before {
                send_all(&frames, &mut queues);
            }
            let mut out = RxBurst::new();
            t.rx_burst(&mut out);
            if !before {
                send_all(&frames, &mut queues);
            }
            for frame in &out {
                let from = addrs.iter().position(|&a| a == frame.src).unwrap();
                prop_assert!(Some(whole(frame)) == queues[from].pop_front());
            }
        }
        let end = Instant::now() + PATIENCE;
        while queues.iter().any(|q| !q.is_empty()) {
            prop_assert!(Instant::now() < end, "frames are missing");
            let mut out = RxBurst::new();
            t.rx_burst(&mut out);
            for frame in &out {
                let from = addrs.iter().position(|&a| a == frame.src).unwrap();
                prop_assert!(Some(whole(frame)) == queues[from].pop_front());
            }
        }
    }

    /// The promised number of frames always fits, also while a burst is in use.
    #[test]
    fn promised_frames_fit_beside_a_burst(
        rounds in proptest::collection::vec((0..40usize, 1..100usize), 1..10),
        other in any::<bool>(),
    ) {
        let room = Room::new();
        let (mut t, mut peers) = meeting(&room, 1, if other {
            |c| (c.slots, c.data_bytes, c.max_frame) = (16, 1 << 18, LARGE)
        } else {
            |c| (c.slots, c.data_bytes) = (256, 1 << 17)
        });
        let (promised, max_frame) = (t.caps.rx_queue_frames, t.caps.max_frame);
        let (peer, path) = &mut peers[0];
        let dropped = peer.stats().tx_dropped;
        for (shift, ahead) in rounds {
            for n in 0..shift {
                send(peer, *path, &bytes([max_frame, 300, 20][n % 3]));
                while poll(&mut t).is_empty() {}
            }
            let ahead = ahead.min(promised);
            (0..ahead).for_each(|_| send(peer, *path, &bytes(max_frame)));
            let mut out = RxBurst::new();
            t.rx_burst(&mut out);
            let left = ahead - out.len();
            (left..promised).for_each(|_| send(peer, *path, &bytes(max_frame)));
            prop_assert_eq!(peer.stats().tx_dropped, dropped, "{} of {}", left, promised);
            drop(out);
            let mut got = 0;
            while got < promised {
                got += poll(&mut t).len();
            }
        }
    }
}

/// A scripted ring with a large frame of one repeated byte, and the offset of its data.
fn forge(t: &mut ShmTransport, second: u64) -> (OwnedFd, Mapping, usize) {
    let shape = LARGE_SHAPE;
    let (socket, memory) = impostor(t, Hello { shape, ..hello(7) });
    until(t, |t, _| t.inbound.len() == 1);
    memory.write_bulk(shape.front(), &[b'a'; 8000]);
    memory.word(PAGE + 256).store(second, Ordering::Release);
    memory.word(PAGE).store(1 << 32 | 8000, Ordering::Release);
    (socket, memory, shape.front())
}

/// Later writes of a sender to its own ring change the tail, not the front.
#[test]
fn a_front_does_not_change() {
    let room = Room::new();
    let mut t = room.endpoint();
    let (_socket, memory, at) = forge(&mut t, 0);
    let mut out = RxBurst::new();
    t.rx_burst(&mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(whole(&out[0]), [b'a'; 8000]);
    for new in [b'b', b'c'] {
        memory.write_bulk(at, &[new; 8192]);
        // Also change the header.
        memory.word(PAGE).store(u64::from(new), Ordering::Release);
        assert_eq!((out[0].data, out[0].tail().len()), (&[b'a'; RX_HEAD][..], 8000 - RX_HEAD));
        let mut rest = vec![0; 8000 - RX_HEAD];
        out[0].tail().copy_to(&mut rest);
        assert!(rest.iter().all(|&b| b == new));
    }
}

/// A ring that breaks after a large frame of the same burst stays mapped as long as the frame is in
/// use, also when its sender is gone.
#[test]
fn large_frames_of_a_ring_that_broke_stay() {
    for gone in [false, true] {
        let room = Room::new();
        let mut t = room.endpoint();
        let (socket, memory, _) = forge(&mut t, 2 << 32 | 8193);
        let mut out = RxBurst::new();
        if gone {
            drop((socket, memory));
        }
        t.rx_burst(&mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(whole(&out[0]), [b'a'; 8000]);
        drop(out);
        assert_eq!((t.stats().rx_dropped, t.inbound.len()), (1, 0));
        until(&mut t, |t, _| t.inbound.is_empty());
    }
}

/// The sender ends while its frames are lent.
#[test]
fn large_frames_outlive_their_sender() {
    let room = Room::new();
    let (mut t, mut peers) = meeting(&room, 1, |_| {});
    let (mut peer, path) = peers.remove(0);
    (0..5).for_each(|_| send(&mut peer, path, &bytes(8000)));
    let mut out = RxBurst::new();
    t.rx_burst(&mut out);
    drop(peer);
    assert_eq!(out.len(), 5);
    assert!(out.iter().all(|f| whole(f) == bytes(8000)[..]));
    drop(out);
    until(&mut t, |t, _| t.inbound.is_empty());
}

/// The next burst releases the frames of a burst to the sender, also when no further frame arrives.
#[test]
fn the_next_burst_frees_the_places() {
    let room = Room::new();
    let (mut t, mut peers) = meeting(&room, 1, |c| c.data_bytes = 1 << 20);
    let (peer, path) = &mut peers[0];
    for _ in 0..20 {
        // An eighth of the ring.
        (0..16).for_each(|_| send(peer, *path, &bytes(8192)));
        assert_eq!((poll(&mut t).len(), poll(&mut t).len()), (16, 0));
        let dropped = peer.stats().tx_dropped;
        (0..127).for_each(|_| send(peer, *path, &bytes(8192)));
        assert_eq!(peer.stats().tx_dropped, dropped, "the frames were released");
        while !poll(&mut t).is_empty() {}
    }
}

/// After any number of small frames, a large one can be lent at once.
#[test]
fn small_frames_do_not_count_as_lent() {
    let room = Room::new();
    let (mut t, mut peers) = meeting(&room, 1, |_| {});
    let (peer, path) = &mut peers[0];
    for _ in 0..20 {
        for _ in 0..5 {
            (0..100).for_each(|_| send(peer, *path, &bytes(1000)));
            assert_eq!(poll(&mut t).len(), 100);
        }
        send(peer, *path, &bytes(8192));
        assert_eq!(poll(&mut t).len(), 1);
    }
}
