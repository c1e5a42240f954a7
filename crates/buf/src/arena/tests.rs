use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use super::*;
use crate::{
    HugePages, MapCause, PacketAccess, PathId, Region, TxBurst, TxFrame, TxSeg, drop_frames,
};

mod model;

const PLAIN: Heap = Heap { huge: HugePages::Never };

fn small_arena(limit_bytes: usize) -> Arena {
    let cfg = ArenaConfig { limit_bytes, ..ArenaConfig::default() };
    Arena::new(Arc::new(PLAIN), cfg).unwrap()
}

/// Owned memory of the allocator.
struct Memory(NonNull<u8>, Layout);

// SAFETY: exclusively owned bytes without a type. Test: `buffers_come_back_from_other_threads`.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `Pool::map`. Test: miri's leak check.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

/// A source with a fixed amount of memory that counts the mapped regions, like a transport's.
#[derive(Debug, Default)]
struct Pool {
    left: AtomicUsize,
    out: Arc<AtomicUsize>,
}

impl MemorySource for Pool {
    fn map(&self, bytes: usize) -> Result<Region, MapError> {
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if taken.is_err() {
            return Err(MapError { bytes, cause: MapCause::Refused("the pool is empty") });
        }
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        let out = Arc::clone(&self.out);
        out.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the memory is zeroed, `bytes` long, and owned by the closure.
        // Test: miri's leak check.
        unsafe {
            let ptr = NonNull::new(alloc_zeroed(layout)).unwrap();
            let memory = Memory(ptr, layout);
            let release = Box::new(move || {
                drop(memory);
                out.fetch_sub(1, Ordering::Relaxed);
            });
            Ok(Region::from_raw(ptr, bytes, release))
        }
    }

    fn name(&self) -> &'static str {
        "pool"
    }
}

#[test]
fn classes_are_dense_and_tight() {
    for class in 0..=class_of(MAX_CAPACITY) {
        let capacity = capacity_of(class);
        assert_eq!(class_of(capacity), class, "capacity {capacity}");
        assert_eq!(capacity % 64, 0);
        if class > 0 {
            let below = capacity_of(class - 1);
            assert_eq!(class_of(below + 1), class);
            assert!(capacity * 4 <= below * 5, "{below} to {capacity} is more than a quarter");
        }
    }
    assert_eq!(capacity_of(class_of(MAX_CAPACITY)), MAX_CAPACITY);
    assert_eq!(class_of(0), 0);
}

#[test]
fn a_buffer_has_room_for_all_its_headers() {
    for data_per_packet in [64, 100, 1024, 4096, MAX_CAPACITY] {
        let cfg = ArenaConfig { data_per_packet, headroom: 66, ..ArenaConfig::default() };
        for class in 0..=class_of(MAX_CAPACITY) {
            let g = geometry(class, &cfg);
            let packets = g.slots as usize + 1;
            assert!(packets * data_per_packet >= g.capacity as usize);
            assert!((packets - 1) * data_per_packet < g.capacity as usize);
            let used = FRONT + g.capacity as usize + g.slots as usize * g.slot_size as usize;
            assert!(g.footprint >= used && g.footprint < used + 64);
            assert!(g.slot_size as usize >= HEADER_ROOM + 66);
        }
    }
}

/// The table at the top of the crate.
#[test]
fn buffers_cost_what_the_documentation_says() {
    let cfg = ArenaConfig::default();
    let cost = |len: usize| {
        let g = geometry(class_of(len), &cfg);
        (g.capacity as usize, g.footprint, g.slots)
    };
    assert_eq!(cost(32), (256, 384, 0));
    assert_eq!(cost(1024), (1024, 1152, 0));
    assert_eq!(cost(4000), (4096, 4416, 3));
    assert_eq!(cost(64 << 10), (64 << 10, 68_736, 63));
    let large = geometry(class_of(8_000_000), &cfg);
    assert_eq!((large.capacity, grow::region_bytes(&large)), (8 << 20, 10 << 20));
}

#[test]
fn settings_are_checked() {
    let ok = ArenaConfig::default();
    assert_eq!(ok.validate(), Ok(()));
    for limit_bytes in [0, MIN_LIMIT - 1, usize::MAX] {
        let err = ArenaConfig { limit_bytes, ..ok }.validate().unwrap_err();
        assert_eq!(err, ConfigError::Limit(limit_bytes));
    }
    for data_per_packet in [0, 63, MAX_CAPACITY + 1, usize::MAX] {
        let err = ArenaConfig { data_per_packet, ..ok }.validate().unwrap_err();
        assert_eq!(err, ConfigError::DataPerPacket(data_per_packet));
    }
    for headroom in [67, usize::MAX] {
        let bad = ArenaConfig { headroom, ..ok };
        assert_eq!(Arena::new(Arc::new(PLAIN), bad).unwrap_err(), ConfigError::Headroom(headroom));
    }
    let edge = ArenaConfig { limit_bytes: MIN_LIMIT, data_per_packet: 64, headroom: 66 };
    assert!(Arena::new(Arc::new(PLAIN), edge).unwrap().alloc(1).is_ok());
}

#[test]
fn absurd_lengths_are_too_large() {
    for limit_bytes in [MIN_LIMIT, 1 << 30, isize::MAX as usize] {
        let arena = small_arena(limit_bytes);
        let limit = arena.max_len();
        for asked in [limit + 1, isize::MAX as usize, usize::MAX - 127, usize::MAX] {
            assert_eq!(arena.alloc(asked).unwrap_err(), AllocError::TooLarge { asked, limit });
        }
        assert_eq!(arena.stats().mapped_bytes, 0);
    }
    let text = small_arena(MIN_LIMIT).alloc(usize::MAX).unwrap_err().to_string();
    assert!(text.contains("raise ArenaConfig::limit_bytes"), "{text}");
}

#[test]
fn the_largest_buffer_can_be_allocated() {
    for limit_bytes in [MIN_LIMIT, MIN_LIMIT + 1, 300_000, 1 << 20, 9 << 20] {
        let arena = small_arena(limit_bytes);
        let mut buf = arena.alloc(arena.max_len()).unwrap();
        assert!(buf.len() * 2 > limit_bytes, "{} of {limit_bytes}", buf.len());
        buf[0] = 1;
        *buf.last_mut().unwrap() = 1;
        assert!(arena.stats().mapped_bytes <= limit_bytes);
    }
}

#[test]
fn exhaustion_is_an_error_until_memory_is_freed() {
    let arena = small_arena(1 << 20);
    let mut held = Vec::new();
    let err = loop {
        match arena.alloc(4000) {
            Ok(buf) => held.push(buf),
            Err(err) => break err,
        }
    };
    let in_use = arena.stats().in_use_bytes;
    assert_eq!(err, AllocError::Exhausted { asked: 4000, in_use, limit: 1 << 20 });
    assert!(err.to_string().contains("drop buffers"), "{err}");
    assert!(in_use > (1 << 20) * 9 / 10, "only {in_use} bytes were usable");
    assert!(arena.alloc(1).is_err() || arena.stats().mapped_bytes <= 1 << 20);
    held.pop();
    let again = arena.alloc(4096).unwrap();
    assert!(arena.alloc(4096).is_err());
    drop((again, held));
    let stats = arena.stats();
    assert_eq!((stats.in_use_bytes, stats.in_use_buffers), (0, 0));
    assert!(stats.peak_in_use_bytes >= in_use && stats.mapped_bytes <= 1 << 20);
}

#[test]
fn a_freed_buffer_is_the_next_one() {
    let arena = small_arena(1 << 20);
    let address = |buf: &MsgBuf| buf.as_ptr() as usize;
    let (a, b) = (arena.alloc(1000).unwrap(), arena.alloc(1000).unwrap());
    let (at_a, at_b) = (address(&a), address(&b));
    assert!(at_b > at_a, "fresh buffers come in the order of their addresses");
    drop(a);
    assert_eq!(address(&arena.alloc(900).unwrap()), at_a);
    drop(b);
    assert_eq!(address(&arena.alloc(1000).unwrap()), at_b);
}

#[test]
fn large_buffers_are_reused() {
    let arena = small_arena(64 << 20);
    let mut buf = arena.alloc(1_000_000).unwrap();
    buf.fill(7);
    let at = buf.as_ptr() as usize;
    let seg = buf.data_seg(10..20).unwrap();
    drop(buf);
    assert_eq!(*seg, [7; 10]);
    assert_ne!(arena.alloc(1_000_000).unwrap().as_ptr() as usize, at, "still referenced");
    drop(seg);
    assert_eq!(arena.alloc(1_000_000).unwrap().as_ptr() as usize, at);
    let class = arena.stats().classes[0];
    assert_eq!(class, ClassStats { data_capacity: 1 << 20, buffers: 2, free: 2 });
}

#[test]
fn idle_large_buffers_are_unmapped_by_trim() {
    let arena = small_arena(64 << 20);
    let (kept, small) = (arena.alloc(1 << 20).unwrap(), arena.alloc(1_000).unwrap());
    let two = (arena.alloc(1 << 20).unwrap(), arena.alloc(3 << 20).unwrap());
    let all = arena.stats().mapped_bytes;
    assert!(arena.has_large() && !arena.trim(), "none is idle");
    drop(two);
    assert!(arena.trim(), "two are idle, but only since this call");
    assert_eq!(arena.stats().mapped_bytes, all);
    // One is used in between, so its idle time starts again.
    drop(arena.alloc(3 << 20).unwrap());
    assert!(arena.trim());
    let left = arena.stats().mapped_bytes;
    assert!(left <= all - (1 << 20) && left >= 4 << 20, "{left} of {all}");
    assert!(!arena.trim());
    assert!(arena.stats().mapped_bytes <= left - (3 << 20));
    drop((kept, small));
    assert!(arena.trim());
    assert!(!arena.trim());
    assert!(!arena.has_large());
    // Only the blocks of small buffers are left, and the source can map more.
    assert!(arena.stats().mapped_bytes < 4 << 20);
    assert_eq!(arena.alloc(3 << 20).unwrap().len(), 3 << 20);
}

#[test]
fn idle_large_buffers_are_unmapped_at_the_limit() {
    let out = Arc::new(AtomicUsize::new(0));
    let pool = Pool { left: AtomicUsize::new(usize::MAX), out: Arc::clone(&out) };
    let cfg = ArenaConfig { limit_bytes: 4_100_000, ..ArenaConfig::default() };
    let arena = Arena::new(Arc::new(pool), cfg).unwrap();
    let held = arena.alloc(1 << 20).unwrap();
    drop((arena.alloc(1 << 20).unwrap(), arena.alloc(300_000).unwrap()));
    assert_eq!(out.load(Ordering::Relaxed), 3);

    // Needs more than the limit has left and than one idle buffer frees.
    drop(arena.alloc(2_500_000).unwrap());
    assert_eq!(out.load(Ordering::Relaxed), 2, "both idle regions were unmapped");
    let _small = arena.alloc(100).unwrap();
    let stats = arena.stats();
    assert!(stats.mapped_bytes <= 4_100_000);
    assert_eq!(stats.in_use_buffers, 2);
    let err = arena.alloc(3 << 20).unwrap_err();
    assert!(matches!(err, AllocError::Exhausted { asked, .. } if asked == 3 << 20), "{err}");
    drop((held, arena, _small));
    assert_eq!(out.load(Ordering::Relaxed), 0);
}

#[test]
fn an_exhausted_source_is_an_error() {
    let pool = Pool { left: AtomicUsize::new(100_000), out: Arc::default() };
    let arena = Arena::new(Arc::new(pool), ArenaConfig::default()).unwrap();
    // A block cannot be mapped, but a region for one buffer can.
    let first = arena.alloc(50_000).unwrap();
    let err = arena.alloc(50_000).unwrap_err();
    let AllocError::Source(MapError { cause, .. }) = err else { panic!("{err}") };
    assert_eq!(cause, MapCause::Refused("the pool is empty"));
    drop(first);
    assert!(arena.alloc(50_000).is_ok());
}

/// Implementing a source is safe, so no result of it may break memory safety.
#[test]
fn unsuitable_regions_are_refused() {
    #[derive(Debug)]
    struct Odd {
        skip: usize,
        len: usize,
    }
    impl MemorySource for Odd {
        fn map(&self, bytes: usize) -> Result<Region, MapError> {
            let whole = PLAIN.map(bytes + 4096)?;
            let skip = self.skip;
            let len = if self.len == 0 { bytes } else { self.len };
            // SAFETY: within `whole`, which lives until the release. Test: this one.
            unsafe { Ok(Region::from_raw(whole.as_ptr().add(skip), len, Box::new(|| drop(whole)))) }
        }

        fn name(&self) -> &'static str {
            "odd"
        }
    }
    for (odd, good) in [
        (Odd { skip: 0, len: 1024 }, false),
        (Odd { skip: 8, len: 0 }, false),
        (Odd { skip: 64, len: 0 }, true),
    ] {
        let arena = Arena::new(Arc::new(odd), ArenaConfig::default()).unwrap();
        for asked in [1000, 1 << 20] {
            match arena.alloc(asked) {
                Ok(_) => assert!(good),
                Err(AllocError::Source(MapError { cause: MapCause::Unsuitable, .. })) => {
                    assert!(!good);
                    assert_eq!(arena.stats().mapped_bytes, 0);
                }
                Err(err) => panic!("{err}"),
            }
        }
    }
}

#[test]
fn every_drop_order() {
    enum Part {
        Arena(#[expect(dead_code)] Arena),
        Buf(#[expect(dead_code)] MsgBuf),
        Seg(TxSeg),
    }
    for len in [100, 300_000] {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let out = Arc::new(AtomicUsize::new(0));
            let pool = Pool { left: AtomicUsize::new(8 << 20), out: Arc::clone(&out) };
            let arena = Arena::new(Arc::new(pool), ArenaConfig::default()).unwrap();
            let mut buf = arena.alloc(len).unwrap();
            buf.fill(5);
            let seg = buf.first_seg(0, 10);
            let mut parts = [Some(Part::Arena(arena)), Some(Part::Buf(buf)), Some(Part::Seg(seg))];
            for (dropped, part) in order.into_iter().enumerate() {
                assert_eq!(out.load(Ordering::Relaxed), 1, "freed after {dropped} of {order:?}");
                drop(parts[part].take());
                if let Some(Part::Seg(seg)) = &parts[2] {
                    assert_eq!(**seg, [5; 10]);
                }
            }
            assert_eq!(out.load(Ordering::Relaxed), 0, "kept after {order:?}");
        }
    }
}

#[test]
fn buffers_come_back_from_other_threads() {
    let rounds = if cfg!(miri) { 40 } else { 3000 };
    let arena = small_arena(4 << 20);
    let (buf_tx, buf_rx) = mpsc::channel::<MsgBuf>();
    let (seg_tx, seg_rx) = mpsc::channel::<(u8, TxSeg)>();
    std::thread::scope(|scope| {
        scope.spawn(move || buf_rx.into_iter().for_each(drop));
        scope.spawn(move || {
            for (stamp, seg) in seg_rx {
                assert!(seg.iter().all(|&b| b == stamp));
            }
        });
        for thread in 0..2u8 {
            let (arena, buf_tx, seg_tx) = (arena.clone(), buf_tx.clone(), seg_tx.clone());
            scope.spawn(move || {
                for round in 0..rounds {
                    let stamp = thread << 7 | (round % 128) as u8;
                    let len = if round % 50 == 0 { 270_000 } else { 200 };
                    // The limit may be reached while the receivers lag.
                    let Ok(mut buf) = arena.alloc(len) else {
                        continue;
                    };
                    buf.truncate(500);
                    buf.fill(stamp);
                    seg_tx.send((stamp, buf.data_seg(0..200).unwrap())).unwrap();
                    buf_tx.send(buf).unwrap();
                }
            });
        }
        drop((buf_tx, seg_tx));
    });
    let stats = arena.stats();
    assert_eq!((stats.in_use_bytes, stats.in_use_buffers), (0, 0));
    assert!(stats.classes.iter().all(|class| class.free == class.buffers));
    assert!(stats.peak_in_use_bytes > 0 && stats.mapped_bytes <= 4 << 20);
}

/// The owner adds references while other threads release theirs, and writes as soon as it is alone.
/// All reads of the other threads must be complete by then.
#[test]
fn pieces_are_released_by_other_threads() {
    let rounds = if cfg!(miri) { 40 } else { 5000 };
    let arena = small_arena(1 << 20);
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            let (tx, rx) = mpsc::channel::<(u8, TxBurst)>();
            scope.spawn(move || {
                for (stamp, mut burst) in rx {
                    let mut pieces = burst.iter().flat_map(|frame| frame.segs());
                    assert!(pieces.all(|seg| seg.iter().all(|&b| b == stamp)));
                    drop_frames(&mut burst, usize::MAX);
                }
            });
            tx
        });
        let mut buf = arena.alloc(64).unwrap();
        for round in 0..rounds {
            let stamp = round as u8;
            let data = loop {
                match buf.get_mut() {
                    Some(data) => break data,
                    None => std::thread::yield_now(),
                }
            };
            data.fill(stamp);
            // The first reader may or may not have released its references before the second one
            // starts.
            for reader in &readers {
                let mut burst = TxBurst::from([TxFrame::one(PathId(0), buf.first_seg(0, 64))]);
                for _ in 0..round % 4 {
                    let (header, data) = buf.packet_segs(0, 0, 3..60).unwrap();
                    burst.push_back(TxFrame::two(PathId(0), header, data));
                }
                reader.send((stamp, burst)).unwrap();
            }
        }
    });
    assert_eq!(arena.stats().in_use_buffers, 0);
}

#[test]
fn statistics_add_up() {
    let arena = small_arena(16 << 20);
    let empty = ArenaStats { limit_bytes: 16 << 20, ..ArenaStats::default() };
    assert_eq!(arena.stats(), empty);
    let bufs = [arena.alloc(0), arena.alloc(2000), arena.alloc(1 << 20)].map(Result::unwrap);
    let stats = arena.stats();
    // 128 before each; 2048 bytes are two packets of 1024, 1 MiB are 1024 of them.
    let expected = (128 + 256) + (128 + 2048 + 64) + (128 + (1 << 20) + 1023 * 48 + 48);
    assert_eq!(stats.in_use_bytes, expected);
    assert_eq!(stats.in_use_buffers, 3);
    assert_eq!(stats.mapped_bytes, (2 << 20) + (1 << 20) + 49152 + 4096);
    assert_eq!(stats.huge_bytes, 0);
    let capacities: Vec<_> = stats.classes.iter().map(|class| class.data_capacity).collect();
    assert_eq!(capacities, [256, 2048, 1 << 20]);
    assert!(stats.classes.iter().all(|class| class.buffers - class.free == 1));
    drop(bufs);
    assert_eq!(arena.stats().peak_in_use_bytes, expected);
    assert_eq!(arena.stats().in_use_bytes, 0);
    assert!(format!("{arena:?}").contains("heap"));
}
