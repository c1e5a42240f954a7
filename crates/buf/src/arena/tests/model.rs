//! Random use of an arena against a model that keeps its own copy of every byte.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Alloc { len: usize },
    Drop { pick: usize },
    Truncate { pick: usize, len: usize },
    SetLen { pick: usize, len: usize },
    Write { pick: usize },
    WriteHeader { pick: usize, index: u32 },
    First { pick: usize, header: usize, data: usize },
    Packet { pick: usize, index: u32, header: usize, start: usize, len: usize },
    Data { pick: usize, start: usize, len: usize },
    CloneSeg { pick: usize },
    DropSeg { pick: usize },
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..3000usize, 2 => 3000..70_000usize, 1 => 250_000..400_000usize]
}

fn op() -> impl Strategy<Value = Op> {
    let pick = || any::<usize>();
    prop_oneof![
        4 => len().prop_map(|len| Op::Alloc { len }),
        2 => pick().prop_map(|pick| Op::Drop { pick }),
        1 => (pick(), len()).prop_map(|(pick, len)| Op::Truncate { pick, len }),
        1 => (pick(), len()).prop_map(|(pick, len)| Op::SetLen { pick, len }),
        2 => pick().prop_map(|pick| Op::Write { pick }),
        2 => (pick(), 0..6u32).prop_map(|(pick, index)| Op::WriteHeader { pick, index }),
        2 => (pick(), 0..=HEADER_ROOM, len())
            .prop_map(|(pick, header, data)| Op::First { pick, header, data }),
        2 => (pick(), 0..6u32, 0..=HEADER_ROOM + 1, len(), len()).prop_map(
            |(pick, index, header, start, len)| Op::Packet { pick, index, header, start, len }
        ),
        2 => (pick(), len(), len()).prop_map(|(pick, start, len)| Op::Data { pick, start, len }),
        1 => pick().prop_map(|pick| Op::CloneSeg { pick }),
        3 => pick().prop_map(|pick| Op::DropSeg { pick }),
    ]
}

/// A live buffer and its expected contents.
struct Live {
    id: u64,
    buf: MsgBuf,
    data: Vec<u8>,
    headers: BTreeMap<u32, [u8; HEADER_ROOM]>,
}

/// A live piece of buffer `of`, and its expected contents.
struct Sent {
    of: u64,
    seg: TxSeg,
    bytes: Vec<u8>,
    /// Header that it covers.
    header: Option<u32>,
}

struct Model {
    arena: Arena,
    bufs: Vec<Live>,
    segs: Vec<Sent>,
    /// Memory of every buffer that is alive or sent: start, end, and bytes counted.
    held: BTreeMap<u64, (usize, usize)>,
    next: u64,
}

impl Model {
    fn stamp(&mut self) -> u8 {
        self.next += 1;
        (self.next % 251) as u8 + 1
    }

    fn pick<T>(of: &[T], pick: usize) -> Option<usize> {
        (!of.is_empty()).then(|| pick % of.len())
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc { len } => self.alloc(len),
            Op::CloneSeg { pick } => {
                if let Some(i) = Self::pick(&self.segs, pick) {
                    let Sent { of, ref seg, ref bytes, header } = self.segs[i];
                    let copy = Sent { of, seg: seg.clone(), bytes: bytes.clone(), header };
                    self.segs.push(copy);
                }
            }
            Op::DropSeg { pick } => {
                if let Some(i) = Self::pick(&self.segs, pick) {
                    self.segs.swap_remove(i);
                }
            }
            Op::Drop { pick }
            | Op::Truncate { pick, .. }
            | Op::SetLen { pick, .. }
            | Op::Write { pick }
            | Op::WriteHeader { pick, .. }
            | Op::First { pick, .. }
            | Op::Packet { pick, .. }
            | Op::Data { pick, .. } => {
                if let Some(i) = Self::pick(&self.bufs, pick) {
                    self.apply_to(i, op);
                }
            }
        }
        let alive = |id: &u64| {
            self.bufs.iter().any(|b| b.id == *id) || self.segs.iter().any(|s| s.of == *id)
        };
        self.held.retain(|id, _| alive(id));
    }

    fn alloc(&mut self, len: usize) {
        let stamp = self.stamp();
        match self.arena.alloc(len) {
            Ok(mut buf) => {
                assert_eq!(buf.len(), len);
                assert!(buf.capacity() >= len && !buf.is_shared());
                let geometry = geometry(class_of(len), self.arena.config());
                let start = buf.as_ptr() as usize - FRONT;
                let end = start + geometry.footprint;
                for &(s, e) in self.held.values() {
                    assert!(end <= s || e <= start, "buffers overlap");
                }
                buf.fill(stamp);
                let live =
                    Live { id: self.next, buf, data: vec![stamp; len], headers: BTreeMap::new() };
                self.held.insert(self.next, (start, end));
                self.bufs.push(live);
            }
            Err(AllocError::Exhausted { asked, in_use, limit }) => {
                assert_eq!((asked, limit), (len, self.arena.config().limit_bytes));
                assert_eq!(in_use, self.held_bytes());
            }
            Err(err) => panic!("{err}"),
        }
    }

    fn held_bytes(&self) -> usize {
        self.held.values().map(|(start, end)| end - start).sum()
    }

    fn apply_to(&mut self, i: usize, op: Op) {
        let stamp = self.stamp();
        let live = &mut self.bufs[i];
        let of = live.id;
        let shared = self.segs.iter().any(|seg| seg.of == of);
        let sent_header = |index| self.segs.iter().any(|s| s.of == of && s.header == Some(index));
        let mut made = None;
        match op {
            Op::Drop { .. } => drop(self.bufs.swap_remove(i)),
            Op::Truncate { len, .. } => {
                live.buf.truncate(len);
                live.data.truncate(len);
            }
            Op::SetLen { len, .. } => {
                let fits = len <= live.buf.capacity();
                let grows = len > live.buf.len();
                let fits = fits && !(grows && live.buf.is_shared());
                assert_eq!(live.buf.set_len(len).is_ok(), fits);
                if fits {
                    let new = live.buf.get(live.data.len()..).unwrap_or_default();
                    assert!(new.iter().all(|&byte| byte == 0));
                    let known = live.data.len().min(len);
                    assert_eq!(live.buf[..known], live.data[..known]);
                    live.data = live.buf.to_vec();
                }
            }
            Op::Write { .. } => {
                assert_eq!(live.buf.is_shared(), shared);
                match live.buf.get_mut() {
                    Some(data) => {
                        assert!(!shared);
                        data.fill(stamp);
                        live.data.fill(stamp);
                    }
                    None => assert!(shared),
                }
            }
            Op::WriteHeader { index, .. } => match live.buf.header_mut(index) {
                Some(header) => {
                    assert!(!sent_header(index), "a header was lent for writing while it is sent");
                    header.fill(stamp);
                    live.headers.insert(index, [stamp; HEADER_ROOM]);
                }
                None => {
                    let packets = live.buf.capacity().div_ceil(self.arena.config().data_per_packet);
                    assert!(shared || index as usize >= packets, "header {index} was refused");
                }
            },
            Op::First { header, data, .. } => {
                let data = data.min(live.data.len());
                let seg = live.buf.first_seg(header, data);
                assert_eq!(seg[header..], live.data[..data]);
                assert_eq!(seg.len(), header + data);
                if let Some(written) = live.headers.get(&0) {
                    assert_eq!(seg[..header], written[HEADER_ROOM - header..]);
                }
                made = Some((seg, Some(0)));
            }
            Op::Packet { index, header, start, len, .. } => {
                let range = start..start + len;
                let expected = live.data.get(range.clone());
                if let Some((seg, data)) = live.buf.packet_segs(index, header, range) {
                    if let Some(written) = live.headers.get(&index) {
                        assert_eq!(*seg, written[HEADER_ROOM - header..]);
                    }
                    assert_eq!(Some(&*data), expected);
                    let bytes = data.to_vec();
                    self.segs.push(Sent { of, seg: data, bytes, header: None });
                    made = Some((seg, Some(index)));
                }
            }
            Op::Data { start, len, .. } => {
                let range = start..start + len;
                let expected = live.data.get(range.clone());
                let seg = live.buf.data_seg(range);
                assert_eq!(seg.as_deref(), expected);
                made = seg.map(|seg| (seg, None));
            }
            Op::Alloc { .. } | Op::CloneSeg { .. } | Op::DropSeg { .. } => {
                unreachable!("not of a buffer")
            }
        }
        if let Some((seg, header)) = made {
            let bytes = seg.to_vec();
            self.segs.push(Sent { of, seg, bytes, header });
        }
    }

    fn check(&self) {
        for live in &self.bufs {
            assert_eq!(*live.buf, live.data[..], "data of a live buffer changed");
        }
        for sent in &self.segs {
            assert_eq!(*sent.seg, sent.bytes[..], "bytes changed while they are sent");
        }
        let stats = self.arena.stats();
        assert_eq!(stats.in_use_bytes, self.held_bytes());
        assert_eq!(stats.in_use_buffers, self.held.len());
        assert!(stats.mapped_bytes <= stats.limit_bytes);
        assert!(stats.in_use_bytes <= stats.peak_in_use_bytes);
        assert!(stats.peak_in_use_bytes <= stats.mapped_bytes.max(stats.limit_bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_use_agrees_with_the_model(
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 40 } else { 120 }),
        limit_bytes in (MIN_LIMIT * 8)..(4usize << 20),
        data_per_packet in 64usize..4096,
        headroom in 0..=MAX_HEADROOM,
    ) {
        let cfg = ArenaConfig { limit_bytes, data_per_packet, headroom };
        let arena = Arena::new(Arc::new(PLAIN), cfg).unwrap();
        let max_len = arena.max_len();
        let mut model =
            Model { arena, bufs: Vec::new(), segs: Vec::new(), held: BTreeMap::new(), next: 0 };
        for op in ops {
            match op {
                Op::Alloc { len } if len > max_len => {
                    assert!(matches!(model.arena.alloc(len), Err(AllocError::TooLarge { .. })));
                }
                op => model.apply(op),
            }
            model.check();
        }
        let Model { arena, bufs, segs, .. } = model;
        drop((bufs, segs));
        assert_eq!(arena.stats().in_use_bytes, 0);
        assert!(arena.stats().classes.iter().all(|class| class.free == class.buffers));
    }
}
