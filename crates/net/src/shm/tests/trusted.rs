//! Pairs that trust each other: frames are lent in place.

use super::*;
use crate::shm::Trust;

/// Lends the next frame, if there is one within the limit of lent frames.
fn lend(ring: &mut Consumer<Mapping>) -> Result<Option<&'static [u8]>, Broken> {
    let Some(len) = ring.peek()? else { return Ok(None) };
    let Some(at) = ring.lend(len) else { return Ok(None) };
    // SAFETY: each test stops using the frames before it releases or drops the ring, and only the
    // producer writes. Test: those here.
    Ok(Some(unsafe { ring.memory().lend(at, len) }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Against a queue as the model: pushed frames are lent in order and stay unchanged until their
    /// release, whatever the sender sends.
    #[test]
    fn lent_frames_stay_while_they_are_lent(
        ops in proptest::collection::vec((0..8u8, 0..1025usize), 0..2000),
    ) {
        let (mut tx, mut rx, _) = ring(SHAPE);
        let mut model = std::collections::VecDeque::new();
        let mut lent = Vec::new();
        for (n, (op, len)) in ops.into_iter().enumerate() {
            match op {
                0..4 => {
                    let frame: Vec<u8> = (0..len).map(|i| (i * 3 + n) as u8).collect();
                    if tx.push(&[&frame], len).is_ok() {
                        model.push_back(frame);
                    }
                }
                4..7 => match lend(&mut rx).unwrap() {
                    Some(data) => lent.push((data, model.pop_front().unwrap())),
                    None => prop_assert!(model.is_empty() || !lent.is_empty()),
                },
                _ => {
                    prop_assert!(lent.drain(..).all(|(data, frame)| data == frame));
                    rx.release();
                }
            }
        }
        prop_assert!(lent.drain(..).all(|(data, frame)| data == frame));
        while !model.is_empty() {
            rx.release();
            while let Some(data) = lend(&mut rx).unwrap() {
                prop_assert!(data == model.pop_front().unwrap());
            }
        }
    }

    /// The promised number of frames always fits, also while a burst is lent.
    #[test]
    fn promised_frames_fit_beside_lent_ones(
        slots in 4..9u32,
        data in 12..17u32,
        max_frame in 1..16_384u32,
        ahead in 0..100usize,
    ) {
        let shape = Shape { slots: 1 << slots, data: 1 << data, max_frame };
        prop_assume!(shape.is_valid());
        let (mut tx, mut rx, _) = ring(shape);
        let frame = vec![1; max_frame as usize];
        for _ in 0..ahead {
            prop_assert_eq!(tx.push(&[&frame], frame.len()), Ok(()));
            if lend(&mut rx).unwrap().is_none() {
                rx.release();
                prop_assert!(lend(&mut rx).unwrap().is_some());
            }
        }
        for n in 0..shape.frames(Lent::Frames) {
            let pushed = tx.push(&[&frame], frame.len());
            prop_assert_eq!(pushed, Ok(()), "frame {} of {}", n, shape.frames(Lent::Frames));
        }
    }

    /// For any content of the memory, lent frames are inside it and of at most the agreed length.
    #[test]
    fn any_records_are_lent(
        lens in proptest::collection::vec((0..80u64, 0..1100u64), 0..200),
        releases in proptest::collection::vec(any::<bool>(), 300),
    ) {
        let (_tx, mut rx, memory) = ring(SHAPE);
        for chunk in lens.chunks(5) {
            for &(record, len) in chunk {
                let at = PAGE + (record % 16) as usize * 256;
                memory.word(at).store((record + 1) << 32 | len, Ordering::Relaxed);
            }
            for &release in &releases {
                match lend(&mut rx) {
                    Ok(Some(frame)) => prop_assert!(frame.len() <= 1024),
                    Ok(None) => {}
                    Err(Broken) => return Ok(()),
                }
                if release {
                    rx.release();
                }
            }
        }
    }
}

fn endpoint(room: &Room, trust: bool) -> ShmTransport {
    // SAFETY: all ends are of this test, and write to frames that were sent only in tests of that.
    let trust = trust.then(|| unsafe { Trust::in_peers() });
    ShmTransport::bind(&ShmConfig { trust, ..room.cfg() }).unwrap()
}

#[test]
fn frames_are_read_in_place_only_when_both_sides_trust() {
    let room = Room::new();
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut t, mut peer) = (endpoint(&room, ours), endpoint(&room, theirs));
        let path = peer.path_open(t.local, None).unwrap().id;
        reaches(&mut peer, path, &mut t);
        assert_eq!((t.inbound.len(), t.inbound.trusted()), (1, usize::from(ours && theirs)));
    }
}

/// Frames of a burst stay unchanged, however much is sent meanwhile.
#[test]
fn a_burst_is_not_overwritten() {
    let room = Room::new();
    let (mut t, mut peer) = (endpoint(&room, true), endpoint(&room, true));
    let path = peer.path_open(t.local, None).unwrap().id;
    reaches(&mut peer, path, &mut t);
    for round in 0..20_usize {
        let first = bytes(100 + round);
        (0..50).for_each(|_| send(&mut peer, path, &first));
        let mut out = RxBurst::new();
        t.rx_burst(&mut out);
        assert!(out.len() >= 50);
        for n in 0..3 * room.cfg().slots {
            let mut other = bytes(n % 700);
            other.iter_mut().for_each(|b| *b = !*b);
            send(&mut peer, path, &other);
        }
        assert!(out.iter().take(50).all(|f| f.data == &first[..]));
        drop(out);
        while !poll(&mut t).is_empty() {}
    }
    assert!(peer.stats().tx_dropped > 0, "the ring was full");
}

#[test]
fn frames_of_a_ring_that_broke_stay() {
    let room = Room::new();
    let mut t = endpoint(&room, true);
    let (socket, memory) = impostor(&t, Hello { trust: true, ..hello(7) });
    until(&mut t, |t, _| t.inbound.trusted() == 1);
    memory.write(PAGE + 16, b"before it broke");
    memory.word(PAGE + 256).store(2 << 32 | 1025, Ordering::Release);
    memory.word(PAGE).store(1 << 32 | 15, Ordering::Release);
    let mut out = RxBurst::new();
    t.rx_burst(&mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].data, b"before it broke");
    drop(out);
    assert_eq!((t.stats().rx_dropped, t.inbound.len()), (1, 0));
    until(&mut t, |_, _| match msg::receive(socket.as_fd()) {
        Received::Message(..) | Received::Nothing => false,
        Received::Ended => true,
    });
}
