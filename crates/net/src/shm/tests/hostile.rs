//! Peers that overwrite all memory they can write, send invalid handshakes, flood, and end at any
//! point. They must cause no panic, no endless loop, no access outside, and no effect on the
//! traffic of others.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::thread::scope;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::*;

/// The port that an attacker claims.
const ATTACKER: u32 = 7;

fn noise(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state ^ *state >> 29
}

fn set(memory: &Mapping, at: usize, value: u64) {
    memory.word(at).store(value, Ordering::Relaxed);
}

/// Writes a valid header for a record.
fn header(memory: &Mapping, record: u64, len: u64) {
    set(memory, PAGE + (record % 16) as usize * 256, (record + 1) << 32 | len);
}

/// A scripted peer that sends and receives, and writes to all memory that it can write.
struct Attacker {
    listener: Listener,
    target: Addr,
    socket: Option<OwnedFd>,
    /// The ring to the target, and the target's hints once it has been welcomed.
    ring: Option<Mapping>,
    hints: Option<Mapping>,
    /// The target's ring to the attacker.
    taken: Option<Mapping>,
    callers: Vec<OwnedFd>,
    /// The attacker's own doorbell; of the target's it can write only the hints.
    state: Mapping,
    own_hints: Mapping,
    fds: [OwnedFd; 2],
}

impl Attacker {
    fn new(room: &Room, target: &ShmTransport) -> Attacker {
        let (state_fd, state) = map::create("test", PAGE, true).unwrap();
        let (hints_fd, own_hints) = map::create("test", PAGE, false).unwrap();
        let listener = Listener::bind(&room.cfg()).unwrap();
        Attacker {
            listener,
            target: target.local,
            socket: None,
            ring: None,
            hints: None,
            taken: None,
            callers: Vec::new(),
            state,
            own_hints,
            fds: [state_fd, hints_fd],
        }
    }

    fn addr(&self) -> Addr {
        Addr { port: self.listener.port.into(), ..self.target }
    }

    /// Maintains both connections, as a correct endpoint does.
    fn connect_both(&mut self) {
        match self.socket.as_ref().map(|s| msg::receive(s.as_fd())) {
            Some(Received::Nothing) => {}
            Some(Received::Message(bytes, fds)) => {
                assert!(Welcome::parse(&bytes).is_some());
                assert!(
                    map::adopt(fds[0].as_fd(), PAGE, true).is_err(),
                    "the state page is read-only"
                );
                assert!(
                    rustix::io::pwrite(&fds[0], b"x", 0).is_err(),
                    "the state file is read-only"
                );
                self.hints = Some(map::adopt(fds[1].as_fd(), PAGE, true).unwrap());
            }
            Some(Received::Ended) | None => self.connect(),
        }
        if let Ok(caller) = dir::accept(&self.listener) {
            self.callers.push(caller);
        }
        let [state, hints] = &self.fds;
        self.callers.retain(|caller| match msg::receive(caller.as_fd()) {
            Received::Message(bytes, fds) if bytes.len() == msg::HELLO => {
                let shape = Hello::parse(&bytes).unwrap().shape;
                self.taken = Some(map::adopt(fds[0].as_fd(), shape.bytes(), true).unwrap());
                let welcome = Welcome { ring: 0 }.to_bytes();
                msg::send(caller.as_fd(), &welcome, &[state.as_fd(), hints.as_fd()]).is_ok()
            }
            Received::Ended => false,
            _ => true,
        });
    }

    fn connect(&mut self) {
        let Ok(socket) = dir::connect(&self.listener.dir, self.target.port as u16) else { return };
        let (fd, ring) = map::create("test", SHAPE.bytes(), false).unwrap();
        // The target must not trust a peer only because that peer sets `trust`.
        let hello = Hello { trust: true, ..hello(ATTACKER) };
        if msg::send(socket.as_fd(), &hello.to_bytes(), &[fd.as_fd()]).is_ok() {
            (self.socket, self.ring, self.hints) = (Some(socket), Some(ring), None);
        }
    }

    /// All memory that it can write.
    fn areas(&self) -> [Option<(&Mapping, usize)>; 5] {
        let taken = ShmConfig::default().shape().unwrap().bytes();
        [
            self.ring.as_ref().map(|m| (m, SHAPE.bytes())),
            self.taken.as_ref().map(|m| (m, taken)),
            self.hints.as_ref().map(|m| (m, PAGE)),
            Some((&self.state, PAGE)),
            Some((&self.own_hints, PAGE)),
        ]
    }
}

/// Frames that must arrive intact and in order: each contains its number.
#[derive(Default)]
struct Numbered {
    sent: u64,
    got: u64,
}

impl Numbered {
    fn send(&mut self, t: &mut ShmTransport, path: PathId) {
        let mut buf = bytes(8 + (self.sent as usize * 37) % 1200);
        buf[..8].copy_from_slice(&self.sent.to_ne_bytes());
        send(t, path, &buf);
        self.sent += 1;
    }

    /// One burst at `t`, of which the frames from `from` are checked.
    fn poll(&mut self, t: &mut ShmTransport, from: Addr) {
        let mut out = RxBurst::new();
        t.rx_burst(&mut out);
        for frame in &out {
            if frame.src != from {
                assert!(frame.data.len() <= SHAPE.max_frame as usize, "longer than agreed");
                continue;
            }
            let len = 8 + (self.got as usize * 37) % 1200;
            assert_eq!(frame.data[..8], self.got.to_ne_bytes());
            assert!(frame.data[8..] == bytes(len)[8..], "frame {} was changed", self.got);
            self.got += 1;
        }
    }

    fn arrive(&mut self, t: &mut ShmTransport, from: Addr) {
        let end = Instant::now() + PATIENCE;
        while self.got < self.sent {
            self.poll(t, from);
            assert!(Instant::now() < end, "{} of {} frames arrived", self.got, self.sent);
        }
    }
}

/// An endpoint with a correct peer, and paths: to that, to the attacker, and from the correct one.
struct Pair {
    t: ShmTransport,
    honest: ShmTransport,
    paths: [PathId; 3],
    there: Numbered,
    back: Numbered,
}

impl Pair {
    /// A frame in each direction, and one to the attacker.
    fn exchange(&mut self) {
        self.there.send(&mut self.t, self.paths[0]);
        send(&mut self.t, self.paths[1], &bytes(700));
        self.back.send(&mut self.honest, self.paths[2]);
        self.there.poll(&mut self.honest, self.t.local);
        self.back.poll(&mut self.t, self.honest.local);
    }

    fn all_arrive(&mut self) {
        self.there.arrive(&mut self.honest, self.t.local);
        self.back.arrive(&mut self.t, self.honest.local);
    }
}

struct Scene {
    pair: Pair,
    attacker: Attacker,
    _room: Room,
}

impl Scene {
    fn new() -> Scene {
        let room = Room::new();
        let (mut t, mut honest) = (room.endpoint(), room.endpoint());
        let mut attacker = Attacker::new(&room, &t);
        let open = |t: &mut ShmTransport, to| t.path_open(to, None).unwrap().id;
        let paths =
            [open(&mut t, honest.local), open(&mut t, attacker.addr()), open(&mut honest, t.local)];
        send(&mut t, paths[1], &bytes(10));
        until(&mut t, |_, _| {
            attacker.connect_both();
            attacker.taken.is_some() && attacker.hints.is_some()
        });
        let (there, back) = Default::default();
        Scene { pair: Pair { t, honest, paths, there, back }, attacker, _room: room }
    }

    /// The attacker sends invalid records and reports an impossible count. Both rings must be
    /// closed and counted.
    fn end(&mut self) {
        let (t, attacker, to_attacker) = (&mut self.pair.t, &mut self.attacker, self.pair.paths[1]);
        let before = t.stats();
        let mut first = 0;
        until(t, |t, _| {
            if t.stats().rx_dropped > before.rx_dropped {
                return true;
            }
            attacker.connect_both();
            let ring = attacker.ring.as_ref().unwrap();
            (first..first + 16).for_each(|record| header(ring, record, 1025));
            first = (first + 8) % 4096;
            false
        });
        await_close(t, attacker.socket.as_ref().unwrap());
        until(t, |t, _| {
            attacker.connect_both();
            attacker.taken.iter().for_each(|taken| set(taken, 128, u64::MAX));
            (0..1100).for_each(|_| send(t, to_attacker, &bytes(10)));
            t.outbound.links() == 1
        });
        assert!(t.stats().tx_dropped > before.tx_dropped);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The bodies of the fuzz targets with random inputs.
    #[test]
    fn fuzz_targets_run(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        fuzz::ring(&bytes);
        // An empty input is a silent connection, which takes a second to time out.
        if !bytes.is_empty() {
            fuzz::meeting(&bytes);
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    /// A word anywhere in writable memory.
    Word(usize, usize, u64),
    /// A valid header, perhaps with a wrong length.
    Header(u64, u64),
    /// A report of received records, perhaps right.
    Count(u64),
    /// Connects again after a disconnect.
    Reconnect,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        6 => (0..5usize, any::<u16>(), any::<u64>()).prop_map(|(a, at, v)| Action::Word(a, at.into(), v)),
        6 => (0..64u64, 0..1030u64).prop_map(|(record, len)| Action::Header(record, len)),
        1 => (0..400u64).prop_map(Action::Count),
        1 => Just(Action::Reconnect),
    ];
    proptest::collection::vec(action, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// For any writes of a peer, as sender and as receiver, all frames of others arrive intact and
    /// in order, and finally its rings are closed.
    #[test]
    fn writes_of_a_peer_do_not_affect_others(actions in actions()) {
        let mut scene = Scene::new();
        for action in actions {
            let attacker = &mut scene.attacker;
            match action {
                Action::Word(area, at, value) => {
                    if let Some((memory, len)) = attacker.areas()[area] {
                        set(memory, at * 8 % len, value);
                    }
                }
                Action::Header(record, len) => header(attacker.ring.as_ref().unwrap(), record, len),
                Action::Count(n) => attacker.taken.iter().for_each(|m| set(m, 128, n)),
                Action::Reconnect => attacker.connect_both(),
            }
            scene.pair.exchange();
        }
        scene.pair.all_arrive();
        scene.end();
    }
}

/// The same concurrently: the attacker writes noise and valid headers to both rings and all pages
/// while frames pass.
#[test]
fn a_peer_that_overwrites_memory_damages_its_own_traffic_only() {
    for seed in 1..6u64 {
        let mut scene = Scene::new();
        let (pair, attacker) = (&mut scene.pair, &mut scene.attacker);
        let stop = AtomicBool::new(false);
        scope(|s| {
            s.spawn(|| {
                let mut state = seed;
                while !stop.load(Ordering::Relaxed) {
                    let x = noise(&mut state);
                    for (memory, len) in attacker.areas().into_iter().flatten() {
                        set(memory, (x >> 30) as usize % (len / 8) * 8, x);
                    }
                    attacker.ring.iter().for_each(|m| header(m, x >> 33 & 0x1ff, x >> 20 & 0x7ff));
                    attacker.taken.iter().for_each(|m| set(m, 128, x >> 40 & 0xfff));
                    if x.is_multiple_of(1024) {
                        attacker.connect_both();
                    }
                }
            });
            (0..1500).for_each(|_| pair.exchange());
            pair.all_arrive();
            stop.store(true, Ordering::Relaxed);
        });
        scene.end();
    }
}

#[test]
fn a_length_beyond_the_agreed_ends_the_ring() {
    let room = Room::new();
    let mut t = room.endpoint();
    let (socket, memory) = impostor(&t, hello(7));
    memory.word(PAGE).store(1 << 32 | 1025, Ordering::Relaxed);
    hangs_up_after_welcome(&mut t, &socket);
    assert_eq!(t.stats().rx_dropped, 1);
    assert_eq!(t.inbound.len(), 0);
}

fn hangs_up_after_welcome(t: &mut ShmTransport, socket: &OwnedFd) {
    let mut welcomed = false;
    until(t, |_, _| match msg::receive(socket.as_fd()) {
        Received::Message(bytes, _) => {
            welcomed = Welcome::parse(&bytes).is_some();
            false
        }
        Received::Ended => true,
        Received::Nothing => false,
    });
    assert!(welcomed);
}

/// Sends a message with any number of descriptors.
fn send_with(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
}

/// A memory file of a ring's size with these seals.
fn sealed(seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, SHAPE.bytes() as u64).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn invalid_handshakes_are_disconnected() {
    let room = Room::new();
    let (mut t, mut honest) = (room.endpoint(), room.endpoint());
    let path = honest.path_open(t.local, None).unwrap().id;
    let file = |len| map::create("test", len, false).unwrap().0;
    let (good, small, large) = (file(SHAPE.bytes()), file(PAGE), file(SHAPE.bytes() + PAGE));
    let unwritable = map::create("test", SHAPE.bytes(), true).unwrap().0;
    let shrinks = sealed(SealFlags::GROW | SealFlags::SEAL);
    let may_be_sealed = sealed(SealFlags::GROW | SealFlags::SHRINK);
    let lasting = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let no_writing = sealed(lasting | SealFlags::WRITE);
    let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
    let (null, directory) = (open("/dev/null"), open("/"));
    let (pipe, _end) = std::io::pipe().unwrap();
    let hello = hello(ATTACKER).to_bytes();
    let zero_port = Hello { port: 0, ..self::hello(ATTACKER) }.to_bytes();
    let [mut magic, long] = [[0; 64]; 2];
    magic[..msg::HELLO].copy_from_slice(&hello);
    let many = vec![&good; 200];
    let lies: [(&[u8], &[&OwnedFd]); 20] = [
        (b"x", &[]),
        (&[0; 64], &[&good]),
        (&long, &[&good]),
        (&[7; 5000], &[&good]),
        (&magic, &[&good]),
        (&hello[..27], &[&good]),
        (&zero_port, &[&good]),
        (&Welcome { ring: 0 }.to_bytes(), &[&good, &good]),
        (&hello, &[]),
        (&hello, &[&good, &good]),
        (&hello, &[&good, &good, &good]),
        (&hello, &many),
        (&hello, &[&small]),
        (&hello, &[&large]),
        (&hello, &[&unwritable]),
        (&hello, &[&shrinks]),
        (&hello, &[&may_be_sealed]),
        (&hello, &[&no_writing]),
        (&hello, &[&null]),
        (&hello, &[&directory]),
    ];
    for (n, (bytes, fds)) in lies.into_iter().enumerate() {
        let socket = dir::connect(&t.listener.dir, t.listener.port).unwrap();
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        send_with(&socket, bytes, &fds);
        await_close(&mut t, &socket);
        assert_eq!(t.inbound.len(), 0, "lie {n}");
    }
    for fd in
        [pipe.as_fd(), t.listener.socket.as_fd(), t.epoll.fd()].map(|f| f.try_clone_to_owned())
    {
        let socket = dir::connect(&t.listener.dir, t.listener.port).unwrap();
        send_with(&socket, &hello, &[fd.unwrap().as_fd()]);
        await_close(&mut t, &socket);
    }
    reaches(&mut honest, path, &mut t);
    assert_eq!(t.inbound.len(), 1);
}

/// Files of huge pages are rejected: an access fails when no huge page is free.
#[test]
fn huge_pages_are_refused() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(fd) = rustix::fs::memfd_create("test", flags) else {
        println!("skipped: this system has no memory files of huge pages");
        return;
    };
    rustix::fs::ftruncate(&fd, 2 << 20).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .unwrap();
    assert!(map::adopt(fd.as_fd(), 2 << 20, true).is_err());
}

/// Peers that end at every point of the handshake, many times, leave no state.
#[test]
fn peers_that_leave_during_the_handshake_leave_no_state() {
    let room = Room::new();
    let (mut t, mut honest) = (room.endpoint(), room.endpoint());
    let path = honest.path_open(t.local, None).unwrap().id;
    for n in 0..600 {
        let socket = dir::connect(&t.listener.dir, t.listener.port).unwrap();
        let (fd, memory) = map::create("test", SHAPE.bytes(), false).unwrap();
        if n % 3 == 0 {
            poll(&mut t);
        }
        if n % 4 != 0 {
            msg::send(socket.as_fd(), &hello(ATTACKER).to_bytes(), &[fd.as_fd()]).unwrap();
        }
        if n % 4 == 2 {
            header(&memory, 0, 100);
        }
        if n % 4 == 3 {
            until(&mut t, |_, _| matches!(msg::receive(socket.as_fd()), Received::Message(..)));
        }
        assert!(t.inbound.pending() <= 16);
    }
    until(&mut t, |t, _| t.inbound.is_empty() && t.inbound.pending() == 0);
    reaches(&mut honest, path, &mut t);
}

/// A receiver that accepts the ring and never answers, and one that does not accept it.
#[test]
fn a_receiver_that_never_answers_loses_its_own_frames_only() {
    let room = Room::new();
    let (mut t, mut honest) = (room.endpoint(), room.endpoint());
    let there = t.path_open(honest.local, None).unwrap().id;
    let silent = Listener::bind(&room.cfg()).unwrap();
    let port = silent.port.into();
    let path = t.path_open(Addr { port, ..t.local }, None).unwrap().id;
    let mut taken = None;
    let slots = ShmConfig::default().slots as u64;
    for n in 0..3 * slots {
        send(&mut t, path, &bytes(100));
        if n == slots {
            taken = dir::accept(&silent).ok();
        }
        send(&mut t, there, &bytes(100));
        until(&mut honest, |_, from| from.contains(&t.local.port));
    }
    assert_eq!(t.stats().tx_dropped, 2 * slots, "frames that do not fit the ring");
    drop(taken);
    until(&mut t, |t, _| t.outbound.links() == 1);
}

/// Senders choose the size of their rings within a limit for all rings.
#[test]
fn all_rings_together_are_bounded() {
    let room = Room::new();
    let few = ShmConfig { max_peers: 4, slots: 16, data_bytes: 1 << 16, ..room.cfg() };
    let mut t = ShmTransport::bind(&few).unwrap();
    let half = Shape { slots: 16, data: 1 << 17, max_frame: 8192 };
    let whole = Shape { data: 1 << 18, ..half };
    let enormous = Shape { slots: 1 << 16, data: 64 << 20, ..half };
    let offer = |t: &ShmTransport, shape| impostor(t, Hello { shape, ..hello(ATTACKER) });
    let refused = offer(&t, enormous);
    await_close(&mut t, &refused.0);
    let first = offer(&t, half);
    until(&mut t, |t, _| t.inbound.len() == 1);
    let refused = offer(&t, whole);
    await_close(&mut t, &refused.0);
    drop(first);
    until(&mut t, |t, _| t.inbound.is_empty());
    let _second = offer(&t, whole);
    until(&mut t, |t, _| t.inbound.len() == 1);
}

#[test]
fn silent_connections_are_limited_and_time_out() {
    let room = Room::new();
    let mut t = room.endpoint();
    let sockets: Vec<_> =
        (0..40).map(|_| dir::connect(&t.listener.dir, t.listener.port).unwrap()).collect();
    for socket in &sockets {
        await_close(&mut t, socket);
    }
    // A `Hello` shortly before the timeout is accepted.
    let socket = dir::connect(&t.listener.dir, t.listener.port).unwrap();
    (0..100).for_each(|_| drop(poll(&mut t)));
    let (fd, _map) = map::create("test", SHAPE.bytes(), false).unwrap();
    msg::send(socket.as_fd(), &hello(7).to_bytes(), &[fd.as_fd()]).unwrap();
    until(&mut t, |t, _| t.inbound.len() == 1);
}

#[test]
fn a_flood_of_signals_is_cut_off() {
    let room = Room::new();
    let mut t = room.endpoint();
    let (socket, _memory) = impostor(&t, hello(7));
    until(&mut t, |t, _| t.inbound.len() == 1);
    while msg::send(socket.as_fd(), &[0], &[]).is_ok() {}
    until(&mut t, |t, _| t.inbound.is_empty());
}

/// A process binds a port and answers with invalid welcomes: only the frames to it are lost.
#[test]
fn a_receiver_with_an_invalid_welcome_is_disconnected() {
    let room = Room::new();
    let mut a = room.endpoint();
    let false_one = Listener::bind(&room.cfg()).unwrap();
    let to = Addr { port: false_one.port.into(), ..a.local };
    let path = a.path_open(to, None).unwrap().id;
    let (_bell, pages) = doorbell::Doorbell::new().unwrap();
    let wrong = Welcome { ring: 512 }.to_bytes();
    let right = Welcome { ring: 0 }.to_bytes();
    let (large, _map) = map::create("test", 2 * PAGE, false).unwrap();
    let [state, hints] = pages.each_ref().map(AsFd::as_fd);
    let answers: [(&[u8], &[_]); 5] = [
        (b"no", &[]),
        (&wrong, &[state, hints]),
        (&right, &[state]),
        (&right, &[hints, state]),
        (&right, &[state, large.as_fd()]),
    ];
    for (bytes, fds) in answers {
        let mut socket = None;
        until(&mut a, |a, _| {
            send(a, path, &self::bytes(30));
            socket = dir::accept(&false_one).ok();
            socket.is_some()
        });
        let socket = socket.unwrap();
        msg::send(socket.as_fd(), bytes, fds).unwrap();
        // The connection is closed once the `Hello` has been read.
        until(&mut a, |a, _| {
            send(a, path, &self::bytes(30));
            matches!(msg::receive(socket.as_fd()), Received::Ended)
        });
    }
}

/// Continuous hints for rings that do not exist: bursts continue.
#[test]
fn hints_for_absent_rings_are_ignored() {
    let room = Room::new();
    let (mut t, mut peer) = (room.endpoint(), room.endpoint());
    let path = peer.path_open(t.local, None).unwrap().id;
    let impostors: Vec<_> = (1..9).map(|port| impostor(&t, hello(port))).collect();
    until(&mut t, |t, _| t.inbound.len() == 8);
    until(&mut t, |t, _| t.inbound.active() == 0);
    for _ in 0..100 {
        t.inbound.doorbell().invent_hints();
        poll(&mut t);
    }
    reaches(&mut peer, path, &mut t);
    drop(impostors);
}
