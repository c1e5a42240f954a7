use super::*;
use crate::wire::single_response;

#[test]
fn what_was_written_for_a_peer_that_is_gone_goes_nowhere() {
    let (cfg, arena) = (Config::default(), Arena::heap());
    let mut batch = TxBatch::new(1_500.into(), &cfg);
    let mut peers = Peers::default();
    (0..2).for_each(|_| _ = peers.add(Peer::tentative(1, &cfg)));
    let mut out = TxBurst::new();
    for round in 1..4 {
        batch.open_append(cfg.tx_items, cfg.tx_items, 0);
        for (no, peer) in (0..).zip(peers.iter_mut().flatten()) {
            (peer.path_id, peer.data_per_packet) = (PathId(no), 1_000);
            let header = single_response(7, 8, 4);
            assert!(batch.may_append() && batch.append(no, peer, &arena, header, b"data"));
            batch.appended(false);
        }
        // The first one goes, and another peer takes its number.
        batch.forget_peer(0);
        peers[0] = Some(Peer::tentative(round, &cfg));
        batch.begin(cfg.tx_frames, 0);
        batch.complete(&mut peers, Some(0), cfg.tx_frames, &mut out, |_, _| false);
        assert!(batch.is_empty() && !batch.may_append() && batch.buffers.len() <= 2);
        let left: Vec<_> = out.drain(..).map(|f| f.path).collect();
        assert_eq!(left, [PathId(1)]);
        assert!(peers.iter().flatten().all(|p| p.open_frame == NO_FRAME));
    }
}

fn batch() -> TxBatch {
    let mut batch = TxBatch::new(1_500.into(), &Config::default());
    batch.begin(8, 0);
    batch
}

fn request(slot: u8) -> TxItem {
    TxItem::Client { session: 0, slot, req_num: slot.into() }
}

#[test]
fn what_is_written_leaves_room_for_what_waits() {
    let mut batch = batch();
    batch.push(request(0));
    batch.push(TxItem::Ack { session: 0, req_num: 7 });
    // Five packets, of which four may be requests.
    batch.open_append(5, 4, 0);
    let mut requests = 0;
    while batch.may_append_request() {
        batch.appended(true);
        requests += 1;
    }
    assert_eq!(requests, 2, "each that waits may be a request");
    assert!(batch.may_append());
    batch.appended(false);
    assert!(!batch.may_append(), "three that are written, two that wait");
    // Another one that waits takes the place of one to come.
    batch.open_append(7, 4, 0);
    assert!(batch.may_append());
    batch.push(request(1));
    assert!(batch.may_append());
    batch.push(request(2));
    assert!(!batch.may_append());
}

#[test]
fn no_request_passes_one_that_waited_for_credits() {
    let mut batch = batch();
    batch.open_append(8, 8, 0);
    assert!(batch.may_append_request());
    batch.push_woken(request(0));
    assert!(batch.may_append() && !batch.may_append_request(), "a reply takes no credit");
    // Nor in the frames after, as long as it is there.
    batch.end(8);
    batch.open_append(8, 8, 0);
    assert!(!batch.may_append_request());
    batch.pop();
    batch.end(8);
    batch.open_append(8, 8, 0);
    assert!(batch.may_append_request());
}

#[test]
fn nothing_passes_what_put_rest() {
    let mut batch = batch();
    batch.push(request(0));
    let item = batch.pop().expect("it waits");
    // It has its turn in the next batch: that is no lack of room.
    batch.put_off(item);
    batch.open_append(8, 8, 0);
    assert!(batch.may_append());
    let item = batch.pop().expect("it is first");
    batch.put_rest(item);
    batch.open_append(8, 8, 0);
    assert!(!batch.may_append() && !batch.may_append_request());
    // Until a batch had room.
    batch.begin(8, 0);
    batch.open_append(8, 8, 0);
    assert!(batch.may_append_request());
}

#[test]
fn after_a_lone_frame_its_peer_has_no_open_one() {
    let (cfg, arena) = (Config::default(), Arena::heap());
    let mut batch = TxBatch::new(1_500.into(), &cfg);
    let mut peers = Peers::default();
    (0..2).for_each(|_| _ = peers.add(Peer::tentative(1, &cfg)));
    let mut out = TxBurst::new();
    let write = |batch: &mut TxBatch, peers: &mut [Option<Peer>], no: u32| {
        let peer = peers[no as usize].as_mut().unwrap();
        (peer.path_id, peer.data_per_packet) = (PathId(no), 1_000);
        let header = single_response(7, 8, 4);
        assert!(batch.append(no, peer, &arena, header, b"data"));
        batch.appended(false);
    };
    for copies in [true, false] {
        write(&mut batch, &mut peers, 0);
        assert_eq!(batch.lone_packet(), Some(0));
        batch.complete(&mut peers, None, cfg.tx_frames, &mut out, |path, _| {
            path == PathId(0) && copies
        });
        assert_eq!(out.len(), usize::from(!copies));
        out.clear();
        write(&mut batch, &mut peers, 1);
        write(&mut batch, &mut peers, 0);
        batch.complete(&mut peers, Some(0), cfg.tx_frames, &mut out, |_, _| false);
        let left: Vec<_> = out.drain(..).map(|f| f.path).collect();
        assert_eq!(left, [PathId(0), PathId(1)]);
    }
}
