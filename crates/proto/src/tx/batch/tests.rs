use super::*;
use crate::wire::{single_request, single_response};

#[test]
fn packets_for_a_removed_peer_are_discarded() {
    let (cfg, arena) = (Config::default(), Arena::heap());
    let mut batch = TxBatch::new(1_500.into(), &cfg);
    let mut peers = Peers::default();
    (0..2).for_each(|_| _ = peers.add(Peer::tentative(1, &cfg)));
    let mut out = TxBurst::new();
    for round in 1..4 {
        batch.open_append(cfg.tx_items, u32::MAX, 0);
        for (no, peer) in (0..).zip(peers.iter_mut().flatten()) {
            (peer.path_id, peer.data_per_packet) = (PathId(no), 1_000);
            let header = single_response(7, 8, 4);
            assert!(batch.may_append() && batch.append(peer, &arena, header, b"data"));
            batch.appended();
        }
        // The peer is removed, and another one gets its number.
        batch.remove_peer(0);
        peers[0] = Some(Peer::tentative(round, &cfg));
        batch.begin(cfg.tx_frames, 0, 0);
        batch.complete(&mut peers, 0, cfg.tx_frames, &mut out, |_, _| false);
        assert!(batch.is_empty() && !batch.may_append() && batch.buffers.len() <= 2);
        let left: Vec<_> = out.drain(..).map(|f| f.path).collect();
        assert_eq!(left, [PathId(1)]);
        assert!(!peers.iter().flatten().any(|p| batch.has_open(p)));
    }
}

fn batch() -> TxBatch {
    let mut batch = TxBatch::new(1_500.into(), &Config::default());
    batch.begin(8, 0, 0);
    batch
}

fn request(slot: u8) -> TxItem {
    TxItem::Client { session: 0, slot, req_num: slot.into() }
}

#[test]
fn appended_packets_leave_room_for_queued_ones() {
    let mut batch = batch();
    batch.push(request(0));
    batch.push(TxItem::Ack { session: 0, req_num: 7 });
    batch.open_append(5, 4, 0);
    let mut requests = 0;
    while batch.may_append_request() {
        batch.appended_request(|| 4);
        requests += 1;
    }
    assert_eq!(requests, 3, "and two that wait");
    assert!(!batch.may_append());
    // Another queued packet reduces the room for appending.
    batch.open_append(7, 4, 0);
    assert!(batch.may_append());
    batch.push(request(1));
    assert!(batch.may_append());
    batch.push(request(2));
    assert!(!batch.may_append());
}

#[test]
fn no_request_overtakes_one_that_waited_for_credits() {
    let mut batch = batch();
    batch.open_append(8, 8, 0);
    assert!(batch.may_append_request());
    batch.push_granted(request(0));
    assert!(batch.may_append() && !batch.may_append_request(), "a reply takes no credit");
    // Nor into later frames, while it is queued.
    batch.end(8);
    batch.open_append(8, 8, 0);
    assert!(!batch.may_append_request());
    batch.pop();
    batch.end(8);
    batch.open_append(8, 8, 0);
    assert!(batch.may_append_request());
}

#[test]
fn nothing_overtakes_a_requeued_rest() {
    let mut batch = batch();
    batch.push(request(0));
    let item = batch.pop().expect("it waits");
    // It is requeued for the next batch, which is not a lack of room.
    batch.postpone(item);
    batch.open_append(8, 8, 0);
    assert!(batch.may_append());
    let item = batch.pop().expect("it is first");
    batch.requeue_rest(item);
    batch.open_append(8, 8, 0);
    assert!(!batch.may_append() && !batch.may_append_request());
    // Until a batch had room.
    batch.begin(8, 0, 0);
    batch.open_append(8, 8, 0);
    assert!(batch.may_append_request());
}

#[test]
fn after_a_single_frame_its_peer_has_no_open_frame() {
    let (cfg, arena) = (Config::default(), Arena::heap());
    let mut batch = TxBatch::new(1_500.into(), &cfg);
    let mut peers = Peers::default();
    (0..2).for_each(|_| _ = peers.add(Peer::tentative(1, &cfg)));
    let mut out = TxBurst::new();
    let write = |batch: &mut TxBatch, peers: &mut [Option<Peer>], no: u32| {
        let peer = peers[no as usize].as_mut().unwrap();
        (peer.path_id, peer.data_per_packet) = (PathId(no), 1_000);
        let header = single_response(7, 8, 4);
        assert!(batch.append(peer, &arena, header, b"data"));
        batch.appended();
    };
    for copies in [true, false] {
        write(&mut batch, &mut peers, 0);
        assert!(batch.is_lone());
        let copy = |path, _: &[u8]| path == PathId(0) && copies;
        let sent = batch.complete_lone(&mut peers, &cfg, (7, || 7), &mut out, copy);
        // The peer is told the time once.
        assert_eq!(sent, (1, copies.then_some(7)));
        assert!(batch.is_empty() && !batch.has_open(peers[0].as_ref().unwrap()));
        assert_eq!(out.len(), usize::from(!copies));
        out.clear();
        write(&mut batch, &mut peers, 1);
        write(&mut batch, &mut peers, 0);
        batch.complete(&mut peers, 0, cfg.tx_frames, &mut out, |_, _| false);
        let left: Vec<_> = out.drain(..).map(|f| f.path).collect();
        assert_eq!(left, [PathId(0), PathId(1)]);
    }
}

#[test]
fn the_buffer_of_a_lone_frame_takes_frames_of_the_next_peer_up_to_its_size() {
    let (cfg, arena) = (Config::default(), Arena::heap());
    let mut batch = TxBatch::new(1_500.into(), &cfg);
    let mut peers = Peers::default();
    (0..2).for_each(|_| _ = peers.add(Peer::tentative(1, &cfg)));
    for (peer, size) in peers.iter_mut().flatten().zip([100, 1_000]) {
        peer.data_per_packet = size;
    }
    let mut out = TxBurst::new();
    for no in [0, 1, 0, 0, 1, 1] {
        let peer = peers[no].as_mut().unwrap();
        let (most, data) = (usize::from(peer.data_per_packet), vec![no as u8; 1_001]);
        let header = |len: usize| single_response(7, 8, len as u32);
        assert!(!batch.append(peer, &arena, header(most + 1), &data[..=most]), "{no}");
        assert!(batch.append(peer, &arena, header(most), &data[..most]), "{no}");
        batch.appended();
        let mut sent = Vec::new();
        let copy = |_, frame: &[u8]| {
            sent = frame.to_vec();
            true
        };
        assert_eq!(batch.complete_lone(&mut peers, &cfg, (7, || 7), &mut out, copy).0, 1);
        assert_eq!(sent[FRAME_HEADER + PACKET_HEADER..], data[..most]);
        assert!(batch.is_empty() && batch.buffers.len() == 1, "one buffer is used for all");
    }
}

/// A batch and its peers, numbers 0 and 1.
struct Fixture {
    batch: TxBatch,
    peers: Peers,
    arena: Arena,
    out: TxBurst,
}

impl Fixture {
    fn new() -> Self {
        let cfg = Config::default();
        let mut peers = Peers::default();
        (0..2).for_each(|_| _ = peers.add(Peer::tentative(1, &cfg)));
        for (no, peer) in (0..).zip(peers.iter_mut().flatten()) {
            (peer.path_id, peer.data_per_packet) = (PathId(no), 1_000);
        }
        Fixture { batch: batch(), peers, arena: Arena::heap(), out: TxBurst::new() }
    }

    fn write(&mut self, no: u32) {
        let peer = self.peers[no as usize].as_mut().expect("a peer");
        let header = single_request(7, 8, 1, 4, None);
        assert!(self.batch.append(peer, &self.arena, header, b"data"));
    }

    fn request(&mut self, no: u32) {
        assert!(self.batch.may_append_request());
        self.write(no);
        let most = self.batch.check_requests as usize;
        self.batch.appended_request(|| most);
    }

    /// Ends the batch.
    fn end(&mut self) {
        self.batch.begin(8, self.out.len(), 0);
        self.batch.complete(&mut self.peers, 0, 8, &mut self.out, |_, _| false);
    }

    /// Ends the batch; returns paths and packet counts of all frames that are not sent yet.
    fn complete(&mut self) -> Vec<(u32, usize)> {
        self.end();
        let packet = PACKET_HEADER + 4;
        let frame = |f: TxFrame| (f.path.0, (f.len() as usize - FRAME_HEADER) / packet);
        self.out.drain(..).map(frame).collect()
    }

    fn has_open(&self, no: usize) -> bool {
        self.peers[no].as_ref().is_some_and(|p| self.batch.has_open(p))
    }
}

#[test]
fn unsent_frames_are_not_overtaken_by_frames_of_other_paths() {
    let mut f = Fixture::new();
    for _ in 0..3 {
        f.write(1);
        f.write(0);
        f.end();
    }
    f.write(0);
    assert_eq!(f.complete(), [0, 1, 0, 1, 0, 1, 0].map(|path| (path, 1)));
}

#[test]
fn requests_beyond_those_of_one_batch_leave_in_the_next() {
    let mut f = Fixture::new();
    f.batch.open_append(20, 3, 0);
    for no in [0, 1, 0, 1, 1] {
        f.request(no);
    }
    assert!(!f.has_open(0) && f.has_open(1));
    let number = f.batch.number();
    assert_eq!(f.complete(), [(0, 2), (1, 1)]);
    assert_eq!(f.batch.number(), number, "of the open frames, as before");
    assert!(!f.batch.is_empty() && !f.batch.may_append() && f.has_open(1));
    assert!(!f.batch.is_lone(), "two packets");
    // Room was counted from the first packet that is still in the batch.
    f.batch.open_append(3, 5, 0);
    f.request(0);
    assert!(!f.batch.may_append());
    assert_eq!(f.complete(), [(0, 1), (1, 2)]);
    assert!(f.batch.is_empty() && !f.has_open(0) && !f.has_open(1));
}

#[test]
fn a_batch_that_fills_before_the_last_one_left_leaves_separately() {
    let mut f = Fixture::new();
    f.batch.open_append(20, 2, 0);
    (0..6).for_each(|_| f.request(0));
    assert_eq!(f.complete(), [(0, 2)]);
    f.batch.open_append(20, 2, 0);
    f.request(1);
    assert_eq!(f.complete(), [(0, 4)], "what came while the first waited");
    assert_eq!(f.complete(), [(1, 1)]);
    assert!(f.batch.is_empty());
}

#[test]
fn a_frame_with_a_queued_packet_does_not_count_as_a_single_frame() {
    let mut f = Fixture::new();
    f.batch.open_append(20, 2, 0);
    (0..2).for_each(|_| f.request(0));
    f.batch.begin(8, 0, 0);
    f.write(0); // queued for the next batch
    f.batch.added(1, 1);
    assert_eq!(f.complete(), [(0, 2)]);
    f.batch.open_append(20, 2, 0);
    f.write(0);
    f.batch.appended();
    assert!(!f.batch.is_lone());
    assert_eq!(f.complete(), [(0, 2)]);
}

#[test]
fn full_frames_of_a_removed_peer_are_discarded() {
    let mut f = Fixture::new();
    f.batch.open_append(20, 2, 0);
    [0, 1, 1].into_iter().for_each(|no| f.request(no));
    f.batch.remove_peer(1);
    f.peers[1] = None;
    assert_eq!(f.complete(), [(0, 1)]);
    assert_eq!(f.complete(), []);
    assert!(f.batch.is_empty());
}

#[test]
fn a_lone_packet_for_a_removed_peer_is_discarded_and_its_buffer_used_again() {
    let cfg = Config::default();
    let mut f = Fixture::new();
    for _ in 0..3 {
        f.write(0);
        f.batch.appended();
        f.batch.remove_peer(0);
        assert!(f.batch.is_lone());
        let (peers, out) = (&mut f.peers, &mut f.out);
        let sent = f.batch.complete_lone(peers, &cfg, (0, || 0), out, |_, _| unreachable!());
        assert_eq!((sent, f.batch.buffers.len()), ((0, None), 1));
        assert!(!f.has_open(0), "another one has its number");
    }
    let before = f.batch.buffer_bytes();
    f.write(1);
    assert_eq!((f.batch.buffer_bytes(), f.complete()), (before, vec![(1, 1)]));
}
