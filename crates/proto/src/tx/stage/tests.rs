use super::*;
use crate::wire::{SHORT_RESPONSE, short_header};

#[test]
fn what_was_written_for_a_peer_that_is_gone_goes_nowhere() {
    let (cfg, arena) = (Config::default(), Arena::heap());
    let mut stage = TxStage::new(1_500, &cfg);
    let mut peers: Vec<_> = (0..2).map(|_| Some(Peer::tentative(1, &cfg))).collect();
    let mut out = TxBurst::new();
    for round in 1..4 {
        stage.open_writing(cfg.tx_items, cfg.tx_items);
        for (no, peer) in (0..).zip(peers.iter_mut().flatten()) {
            peer.path = PathId(no);
            let header = short_header(SHORT_RESPONSE, 7, 8, 0, 4);
            assert!(stage.may_write() && stage.append_short(no, peer, &arena, header, b"data"));
            stage.wrote();
        }
        // The first one goes, and another peer takes its number.
        stage.forget_peer(0);
        peers[0] = Some(Peer::tentative(round, &cfg));
        stage.begin(cfg.tx_frames);
        stage.finish(&mut peers, 0, cfg.tx_frames, &mut out);
        assert!(stage.is_empty() && !stage.may_write() && stage.staging.len() <= 2);
        let left: Vec<_> = out.drain(..).map(|f| f.path).collect();
        assert_eq!(left, [PathId(1)]);
        assert!(peers.iter().flatten().all(|p| p.open_frame == NO_FRAME));
    }
}

fn stage() -> TxStage {
    let mut stage = TxStage::new(1_500, &Config::default());
    stage.begin(8);
    stage
}

fn request(slot: u8) -> TxItem {
    TxItem::Client { session: 0, slot, req_num: slot.into() }
}

#[test]
fn what_is_written_leaves_room_for_what_waits() {
    let mut stage = stage();
    stage.push(request(0));
    stage.push(TxItem::Ack { session: 0, req_num: 7 });
    // Five packets, of which four may be requests.
    stage.open_writing(5, 4);
    let mut requests = 0;
    while stage.may_write_request() {
        stage.wrote_request(Written { session: 1, slot: requests, req_num: 0 });
        requests += 1;
    }
    assert_eq!(requests, 2, "each that waits may be a request");
    assert!(stage.may_write());
    stage.wrote();
    assert!(!stage.may_write(), "three that are written, two that wait");
    // Another one that waits takes the place of one to come.
    stage.open_writing(7, 4);
    assert!(stage.may_write());
    stage.push(request(1));
    assert!(stage.may_write());
    stage.push(request(2));
    assert!(!stage.may_write());
}

#[test]
fn no_request_passes_one_that_waited_for_credits() {
    let mut stage = stage();
    stage.open_writing(8, 8);
    assert!(stage.may_write_request());
    stage.push_woken(request(0));
    assert!(stage.may_write() && !stage.may_write_request(), "a reply takes no credit");
    // Nor in the frames after, as long as it is there.
    stage.rest(8);
    stage.open_writing(8, 8);
    assert!(!stage.may_write_request());
    stage.pop();
    stage.rest(8);
    stage.open_writing(8, 8);
    assert!(stage.may_write_request());
}

#[test]
fn nothing_passes_what_found_no_room() {
    let mut stage = stage();
    stage.push(request(0));
    let item = stage.pop().expect("it waits");
    // It has its turn in the next stage: that is no lack of room.
    stage.put_off(item);
    stage.open_writing(8, 8);
    assert!(stage.may_write());
    let item = stage.pop().expect("it is first");
    stage.found_no_room(item);
    stage.open_writing(8, 8);
    assert!(!stage.may_write() && !stage.may_write_request());
    // Until a stage had room.
    stage.begin(8);
    stage.open_writing(8, 8);
    assert!(stage.may_write_request());
}

#[test]
fn after_a_lone_frame_its_peer_has_no_open_one() {
    let (cfg, arena) = (Config::default(), Arena::heap());
    let mut stage = TxStage::new(1_500, &cfg);
    let mut peers: Vec<_> = (0..2).map(|_| Some(Peer::tentative(1, &cfg))).collect();
    let mut out = TxBurst::new();
    let write = |stage: &mut TxStage, peers: &mut [Option<Peer>], no: u32| {
        let peer = peers[no as usize].as_mut().unwrap();
        (peer.path, peer.data_per_packet) = (PathId(no), 1_000);
        let header = short_header(SHORT_RESPONSE, 7, 8, 0, 4);
        assert!(stage.append_short(no, peer, &arena, header, b"data"));
        stage.wrote();
    };
    for copies in [true, false] {
        write(&mut stage, &mut peers, 0);
        assert_eq!(stage.only_packet(), Some(0));
        stage.finish_lone(&mut peers, cfg.tx_frames, &mut out, |path, _| {
            path == PathId(0) && copies
        });
        assert_eq!(out.len(), usize::from(!copies));
        out.clear();
        write(&mut stage, &mut peers, 1);
        write(&mut stage, &mut peers, 0);
        stage.finish(&mut peers, 0, cfg.tx_frames, &mut out);
        let left: Vec<_> = out.drain(..).map(|f| f.path).collect();
        assert_eq!(left, [PathId(0), PathId(1)]);
    }
}
