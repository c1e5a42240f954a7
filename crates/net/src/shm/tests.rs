//! The ring alone, and endpoints over shared memory whose peers end and restart. `hostile`: peers
//! that send invalid messages and write to shared memory. `trusted`: frames that are read in place.
//! `large`: frames with a tail. `control`: sockets of control connections.

mod control;
mod hostile;
mod large;
mod trusted;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use courser_buf::{Arena, MsgBuf, PacketAccess, TxFrame};
use proptest::prelude::*;

use super::map::{Mapping, PAGE};
use super::msg::{Received, Welcome};
use super::ring::{Broken, Consumer, Lent, Producer, Refused, Shape};
use super::*;
use crate::OpenError;

const PATIENCE: Duration = Duration::from_secs(30);

/// A directory for one test.
fn fresh_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("courser-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(name)
}

/// Endpoints in one directory, which is removed at the end.
struct Room(PathBuf);

impl Room {
    fn new() -> Room {
        Room(fresh_dir())
    }
    fn cfg(&self) -> ShmConfig {
        ShmConfig { dir: Some(self.0.clone()), ..ShmConfig::default() }
    }
    fn endpoint(&self) -> ShmTransport {
        ShmTransport::bind(&self.cfg()).unwrap()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

thread_local! {
    static ARENA: Arena = Arena::heap();
}

fn bytes(len: usize) -> MsgBuf {
    let mut buf = ARENA.with(|arena| arena.alloc(len)).unwrap();
    buf.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    buf
}

fn send(t: &mut ShmTransport, path: PathId, buf: &MsgBuf) {
    let frame = TxFrame::one(path, buf.data_seg(0..buf.len()).unwrap());
    t.tx_burst(&mut TxBurst::from([frame]));
}

/// Sender ports of the frames of one burst.
fn poll(t: &mut ShmTransport) -> Vec<u32> {
    let mut out = RxBurst::new();
    t.rx_burst(&mut out);
    out.iter().map(|f| f.src.port).collect()
}

/// Polls until a condition on the transport and the sender ports of a burst holds.
fn until(t: &mut ShmTransport, mut holds: impl FnMut(&mut ShmTransport, Vec<u32>) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let from = poll(t);
        if holds(t, from) {
            return;
        }
        assert!(Instant::now() < end, "the condition did not become true");
    }
}

/// Sends from `a` until a frame arrives at `b`: the end of an earlier peer must be detected first.
fn reaches(a: &mut ShmTransport, path: PathId, b: &mut ShmTransport) {
    let end = Instant::now() + PATIENCE;
    loop {
        send(a, path, &bytes(20));
        if poll(b).contains(&a.local.port) {
            return;
        }
        poll(a);
        assert!(Instant::now() < end, "nothing arrives");
    }
}

const SHAPE: Shape = Shape { slots: 16, data: 4096, max_frame: 1024 };

/// A scripted peer: its socket and its ring's memory.
fn impostor(to: &ShmTransport, hello: Hello) -> (OwnedFd, Mapping) {
    let socket = dir::connect(&to.listener.dir, to.listener.port).unwrap();
    let (fd, mapping) = map::create("test", hello.shape.bytes(), false).unwrap();
    msg::send(socket.as_fd(), &hello.to_bytes(), &[fd.as_fd()]).unwrap();
    (socket, mapping)
}

fn hello(port: u32) -> Hello {
    Hello { port, shape: SHAPE, trust: false }
}

/// Polls `t` until it has closed the connection.
fn await_close(t: &mut ShmTransport, socket: &OwnedFd) {
    until(t, |_, _| matches!(msg::receive(socket.as_fd()), Received::Ended));
}

// ---- the ring alone -------------------------------------------------------------------------

fn ring(shape: Shape) -> (Producer<Mapping>, Consumer<Mapping>, Mapping) {
    let (fd, mapping) = map::create("test", shape.bytes(), false).unwrap();
    let again = || map::adopt(fd.as_fd(), shape.bytes(), true).unwrap();
    (Producer::new(again(), shape), Consumer::new(again(), shape), mapping)
}

fn pop(ring: &mut Consumer<Mapping>) -> Result<Option<Vec<u8>>, Broken> {
    let Some(len) = ring.peek()? else { return Ok(None) };
    let mut frame = vec![0; len.next_multiple_of(16)];
    ring.pop(len, &mut frame);
    frame.truncate(len);
    Ok(Some(frame))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Against a queue as the model: pushed frames are popped in order; full only when not empty.
    #[test]
    fn a_ring_is_a_queue(
        ops in proptest::collection::vec((any::<bool>(), 0..1025usize, 0..1025usize), 0..2000),
    ) {
        let (mut tx, mut rx, _) = ring(SHAPE);
        let mut model = std::collections::VecDeque::new();
        for (n, (is_push, len, cut)) in ops.into_iter().enumerate() {
            if is_push {
                let frame: Vec<u8> = (0..len).map(|i| (i * 3 + n) as u8).collect();
                let (a, b) = frame.split_at(cut.min(len));
                let pieces: &[&[u8]] = if cut % 3 == 0 { &[&frame] } else { &[a, b] };
                match tx.push(pieces, len) {
                    Ok(()) => model.push_back(frame),
                    Err(Refused::Full) => prop_assert!(model.len() > 1, "{} frames", model.len()),
                    Err(Refused::Broken) => panic!("the ring is intact"),
                }
            } else {
                prop_assert_eq!(pop(&mut rx), Ok(model.pop_front()));
            }
        }
        for frame in model {
            prop_assert_eq!(pop(&mut rx), Ok(Some(frame)));
        }
        prop_assert_eq!(pop(&mut rx), Ok(None));
    }

    /// The promised number of frames always fits.
    #[test]
    fn promised_frames_fit(
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
            prop_assert!(pop(&mut rx).unwrap().is_some());
        }
        for n in 0..shape.frames(Lent::Nothing) {
            let pushed = tx.push(&[&frame], frame.len());
            prop_assert_eq!(pushed, Ok(()), "frame {} of {}", n, shape.frames(Lent::Nothing));
        }
    }

    /// For any content of the memory the receiver terminates, stays inside, and returns frames of
    /// at most the agreed length.
    #[test]
    fn any_bytes_are_received(
        seed in any::<u64>(),
        words in proptest::collection::vec((0..SHAPE.bytes() / 8, any::<u64>()), 0..200),
        lens in proptest::collection::vec((0..64u64, 0..1100u64), 0..200),
    ) {
        let (_tx, mut rx, memory) = ring(SHAPE);
        let mut noise = seed | 1;
        for word in 0..SHAPE.bytes() / 8 {
            noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            memory.word(word * 8).store(noise, Ordering::Relaxed);
        }
        for (word, value) in words {
            memory.word(word * 8).store(value, Ordering::Relaxed);
        }
        // Valid headers with lengths that may be wrong.
        for (record, len) in lens {
            let at = PAGE + (record % 16) as usize * 256;
            memory.word(at).store((record + 1) << 32 | len, Ordering::Relaxed);
        }
        for _ in 0..200 {
            match pop(&mut rx) {
                Ok(Some(frame)) => prop_assert!(frame.len() <= 1024),
                Ok(None) | Err(Broken) => break,
            }
        }
    }

    /// For any count of the receiver the sender stays inside, and stops when the count is invalid.
    #[test]
    fn any_reported_count_stays_inside(counts in proptest::collection::vec(any::<u64>(), 1..50)) {
        let (mut tx, _rx, memory) = ring(SHAPE);
        let frame = [7; 900];
        for count in counts {
            memory.word(128).store(count, Ordering::Relaxed);
            for _ in 0..40 {
                if let Err(e) = tx.push(&[&frame], frame.len()) {
                    prop_assert!(e == Refused::Broken || count <= 40 * 50);
                    break;
                }
            }
        }
    }
}

// ---- whole endpoints ------------------------------------------------------------------------

#[test]
fn a_dead_peer_is_removed_and_its_successor_is_found() {
    let room = Room::new();
    let mut a = room.endpoint();
    let mut b = room.endpoint();
    let (path, at) = (a.path_open(b.local, None).unwrap().id, b.listener.port);
    let back = b.path_open(a.local, None).unwrap().id;
    for _ in 0..3 {
        reaches(&mut a, path, &mut b);
        reaches(&mut b, back, &mut a);
        drop(b);
        until(&mut a, |a, _| a.inbound.is_empty());
        b = ShmTransport::bind(&ShmConfig { port: at, ..room.cfg() }).unwrap();
        b.path_open(a.local, None).unwrap();
    }
    // Frames sent before the sender's end arrive.
    reaches(&mut a, path, &mut b);
    while !poll(&mut b).is_empty() {}
    (0..10).for_each(|_| send(&mut a, path, &bytes(300)));
    drop(a);
    let mut got = 0;
    until(&mut b, |b, from| {
        got += from.len();
        b.inbound.is_empty()
    });
    assert_eq!(got, 10);
}

#[test]
fn no_more_peers_than_allowed() {
    let room = Room::new();
    let few = ShmConfig { max_peers: 2, ..room.cfg() };
    let mut t = ShmTransport::bind(&few).unwrap();
    let others: Vec<_> = (0..3).map(|_| room.endpoint()).collect();
    let open: Vec<_> = others.iter().map(|o| t.path_open(o.local, None)).collect();
    assert!(matches!(open[..], [Ok(_), Ok(_), Err(PathError::TooMany(2))]), "{open:?}");
    t.path_open(others[0].local, None).expect("another path to the same peer");

    let impostors: Vec<_> = (1..4).map(|port| impostor(&t, hello(port))).collect();
    await_close(&mut t, &impostors[2].0);
    assert_eq!(t.inbound.len(), 2);
}

/// More peers than are always polled: idle rings become active by their hint or, when the hint is
/// lost, by the polls of upkeep.
#[test]
fn frames_of_idle_peers_are_received() {
    let room = Room::new();
    let mut t = room.endpoint();
    let mut peers: Vec<_> = (0..20).map(|_| room.endpoint()).collect();
    let paths: Vec<_> = peers.iter_mut().map(|p| p.path_open(t.local, None).unwrap().id).collect();
    for (peer, &path) in peers.iter_mut().zip(&paths) {
        reaches(peer, path, &mut t);
        until(peer, |p, _| p.outbound.is_welcome(0));
    }
    for round in 0..4 {
        until(&mut t, |t, _| t.inbound.active() <= 4);
        for (peer, &path) in peers.iter_mut().zip(&paths) {
            send(peer, path, &bytes(50));
        }
        if round % 2 == 1 {
            t.inbound.doorbell().lose_hints();
        }
        let mut seen = std::collections::BTreeSet::new();
        until(&mut t, |_, from| {
            seen.extend(from);
            seen.len() == 20
        });
    }
}

// ---- the directory --------------------------------------------------------------------------

#[test]
fn a_port_has_one_owner_and_a_dead_one_has_none() {
    let room = Room::new();
    let first = ShmTransport::bind(&ShmConfig { port: 77, ..room.cfg() }).unwrap();
    let again = || ShmTransport::bind(&ShmConfig { port: 77, ..room.cfg() });
    let refused = again().err().unwrap();
    assert!(matches!(refused, ShmError::InUse(77)), "{refused:?}");
    assert!(OpenError::from(refused).is_in_use());
    drop(first);
    assert!(!room.0.join("77").exists(), "the socket was removed");
    // The socket of a killed process remains.
    let dead = std::os::unix::net::UnixListener::bind(room.0.join("77")).unwrap();
    drop(dead);
    assert!(room.0.join("77").exists());
    assert_eq!(again().unwrap().local.port, 77);
}

#[test]
fn directories_open_to_others_are_refused() {
    let refused = |dir: PathBuf, what: &str| {
        let e = ShmTransport::bind(&ShmConfig { dir: Some(dir), ..ShmConfig::default() });
        let e = e.err().unwrap().to_string();
        assert!(e.contains(what), "{e}");
        // A command on another name than that of an own directory could follow a link.
        assert_eq!(e.contains("chmod"), what == "open to other users", "{e}");
    };
    let room = Room::new();
    drop(room.endpoint());
    let mode = |m| std::fs::set_permissions(&room.0, PermissionsExt::from_mode(m)).unwrap();
    for open in [0o755, 0o710, 0o701, 0o777] {
        mode(open);
        refused(room.0.clone(), "open to other users");
    }
    mode(0o700);
    drop(room.endpoint());
    let link = fresh_dir();
    symlink(&room.0, &link).unwrap();
    refused(link.clone(), "no directory");
    std::fs::remove_file(link).unwrap();
    refused(PathBuf::from("/nowhere/at/all"), "cannot make");
    let long = Room(fresh_dir().with_file_name("x".repeat(100)));
    refused(long.0.clone(), "too long");
}

#[test]
fn settings_are_checked() {
    let with = |change: fn(&mut ShmConfig)| {
        let mut cfg = ShmConfig::default();
        change(&mut cfg);
        ShmTransport::bind(&cfg).err().unwrap()
    };
    assert!(matches!(with(|c| c.max_frame = 0), ShmError::MaxFrame(0)));
    assert!(matches!(with(|c| c.max_frame = 65_537), ShmError::MaxFrame(65_537)));
    assert!(matches!(with(|c| c.max_peers = 513), ShmError::MaxPeers(513)));
    assert!(matches!(with(|c| c.slots = 1000), ShmError::Ring { slots: 1000, .. }));
    assert!(matches!(with(|c| c.data_bytes = 1 << 40), ShmError::Ring { .. }));
    let elsewhere = with(|c| c.host = [192, 0, 2, 1].into());
    assert!(matches!(elsewhere, ShmError::NotThisMachine(_)), "{elsewhere}");
}

#[test]
fn other_hosts_cannot_be_reached() {
    let room = Room::new();
    let mut t = room.endpoint();
    let v6 = Addr::from_socket("[::1]:7".parse().unwrap());
    let none = Addr { port: 0, ..t.local };
    let large = Addr { port: 65_536, ..t.local };
    for addr in [v6, none, large] {
        assert!(matches!(t.path_open(addr, None), Err(PathError::Unsupported(..))), "{addr}");
    }
}

#[test]
fn a_transport_moves_between_threads() {
    let room = Room::new();
    let (mut a, mut b) = (room.endpoint(), room.endpoint());
    let path = a.path_open(b.local, None).unwrap().id;
    reaches(&mut a, path, &mut b);
    std::thread::spawn(move || reaches(&mut a, path, &mut b)).join().unwrap();
}

/// A sender signals once for each time that the receiver asks for it. A signal without a frame, as after
/// a welcome, must not use up that of the next frame.
#[test]
fn the_frame_after_an_empty_signal_is_signalled_to_an_external_event_loop() {
    let room = Room::new();
    let (mut receiver, mut sender) = (room.endpoint(), room.endpoint());
    receiver.signal_always();
    let path = sender.path_open(receiver.local, None).unwrap().id;
    send(&mut sender, path, &bytes(20));
    let from = sender.local.port;
    until(&mut receiver, |_, ports| ports.contains(&from));
    // It sleeps after a burst without a frame and without a signal.
    let sleeps = |receiver: &mut ShmTransport| while !poll(receiver).is_empty() {};
    sleeps(&mut receiver);
    // The sender reads the welcome, and signals: frames may have been published before.
    sender.upkeep(Instant::now());
    assert!(sender.outbound.is_welcome(0));
    let is_readable = |receiver: &ShmTransport| {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::from_borrowed_fd(receiver.event_fd().unwrap(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(is_readable(&receiver), "the signal after the welcome");
    sleeps(&mut receiver);
    send(&mut sender, path, &bytes(20));
    assert!(is_readable(&receiver), "a frame");
    until(&mut receiver, |_, ports| ports.contains(&from));
}
