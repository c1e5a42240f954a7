//! The ring and the doorbell on a model of memory that tries every order in which two threads can
//! run, and every value that a weakly ordered machine may let them see (`scripts/loom.sh`).
//!
//! What runs is the code of `ring` and `doorbell`; only the memory under them is the model's. Its
//! bytes are cells that no two threads may touch unless the words order them. So a record that is
//! read before it is published, or written while it is read, is found even where the bytes would
//! happen to be right.
//!
//! A model that finds nothing shows nothing, so each rule is broken once ([`Mutant`]) and must be
//! found.

use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::doorbell::{Doorbell, Page, RemoteDoorbell};
use super::map::{PAGE, Word, Words};
use super::ring::{Consumer, Memory, Producer, Refused, Shape};

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// Records are published by a store that orders nothing.
    RelaxedPublish,
    /// Headers are peeked at by a load that orders nothing.
    RelaxedPeek,
    /// The receiver's count orders nothing where it is stored.
    RelaxedReport,
    /// Nor where it is loaded.
    RelaxedRefresh,
    /// The receiver counts before it has read.
    ReportFirst,
    /// The sender does not wait between publishing and looking whether somebody sleeps.
    NoLightBarrier,
    /// The receiver does not wait between saying that it sleeps and its last look.
    NoHeavyBarrier,
    /// The sender looks whether somebody sleeps before it publishes.
    RingFirst,
    /// The receiver's last look comes before it says that it sleeps.
    PeekFirst,
    /// The receiver looks at a ring before it says welcome to its sender.
    PeekBeforeWelcome,
    /// The sender does not look once it has been welcomed.
    SilentAfterWelcome,
}

const MUTANTS: [Mutant; 11] = [
    Mutant::RelaxedPublish,
    Mutant::RelaxedPeek,
    Mutant::RelaxedReport,
    Mutant::RelaxedRefresh,
    Mutant::ReportFirst,
    Mutant::NoLightBarrier,
    Mutant::NoHeavyBarrier,
    Mutant::RingFirst,
    Mutant::PeekFirst,
    Mutant::PeekBeforeWelcome,
    Mutant::SilentAfterWelcome,
];

// ---- memory ---------------------------------------------------------------------------------

const LINE: usize = 64;
/// Where the receiver's count lies.
const CONSUMED: usize = 128;
const SHAPE: Shape = Shape { slots: 16, data: 4096, max_frame: 1024 };

/// A word of the model, weakened by some mutants.
#[derive(Debug)]
struct ModelWord {
    word: AtomicU64,
    /// Orders of loads and stores that the mutant takes away.
    lost: [bool; 2],
}

impl ModelWord {
    fn new(at: usize, mutant: Mutant) -> Self {
        let lost = match (mutant, at == CONSUMED) {
            (Mutant::RelaxedPeek, false) | (Mutant::RelaxedRefresh, true) => [true, false],
            (Mutant::RelaxedPublish, false) | (Mutant::RelaxedReport, true) => [false, true],
            _ => [false, false],
        };
        ModelWord { word: AtomicU64::new(0), lost }
    }
}

impl Word for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(if self.lost[0] { Relaxed } else { order })
    }
    fn store(&self, value: u64, order: Ordering) {
        self.word.store(value, if self.lost[1] { Relaxed } else { order });
    }
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.word.fetch_or(bits, order)
    }
    fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        self.word.fetch_and(bits, order)
    }
}

/// A ring's memory: a word for the count and at the head of each slot, a cell for each line.
#[derive(Clone, Debug)]
struct RingMemory(Arc<(Vec<ModelWord>, Vec<UnsafeCell<[u8; LINE]>>)>);

impl RingMemory {
    fn new(mutant: Mutant) -> Self {
        let word = |at| ModelWord::new(at, mutant);
        let words = [word(CONSUMED)].into_iter().chain((0..16).map(|_| word(0))).collect();
        let lines = (0..SHAPE.bytes() / LINE).map(|_| UnsafeCell::new([0; LINE])).collect();
        RingMemory(Arc::new((words, lines)))
    }

    /// Calls `f` with each part of a range that lies in one line: line, place in it, and place in
    /// the range.
    fn by_lines(at: usize, len: usize, mut f: impl FnMut(usize, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let (line, place) = ((at + done) / LINE, (at + done) % LINE);
            let part = (LINE - place).min(len - done);
            f(line, place, done..done + part);
            done += part;
        }
    }
}

impl Words for RingMemory {
    type Word = ModelWord;
    fn word(&self, at: usize) -> &ModelWord {
        if at == CONSUMED { &self.0.0[0] } else { &self.0.0[1 + (at - PAGE) / 256] }
    }
}

impl Memory for RingMemory {
    fn write(&self, at: usize, src: &[u8]) {
        Self::by_lines(at, src.len(), |line, place, range| {
            self.0.1[line].with_mut(|bytes| {
                // SAFETY: the model ends the test when another thread could be there.
                // Test: the mutants.
                unsafe { (&mut *bytes)[place..place + range.len()].copy_from_slice(&src[range]) };
            });
        });
    }
    fn write_bulk(&self, at: usize, src: &[u8]) {
        self.write(at, src);
    }
    fn read(&self, at: usize, dst: &mut [u8]) {
        Self::by_lines(at, dst.len(), |line, place, range| {
            self.0.1[line].with(|bytes| {
                // SAFETY: as in `write`. Test: the mutants.
                let bytes = unsafe { &*bytes };
                dst[range.clone()].copy_from_slice(&bytes[place..place + range.len()]);
            });
        });
    }
    fn prefetch(&self, _at: usize) {}
}

// ---- the ring alone -------------------------------------------------------------------------

/// Frame `n`: its number, at a length that lies in the slot or in the data area.
fn frame(n: u64, bulk: bool) -> Vec<u8> {
    let mut frame = vec![n as u8; if bulk { 500 } else { 20 }];
    frame[..8].copy_from_slice(&n.to_ne_bytes());
    frame
}

/// The next frame is the one expected; false: there is none yet.
fn pop(rx: &mut Consumer<RingMemory>, number: u64, bulk: bool, mutant: Mutant) -> bool {
    let Some(len) = rx.peek().expect("nobody breaks the rules") else { return false };
    let mut got = vec![0; len.next_multiple_of(16)];
    if mutant == Mutant::ReportFirst {
        rx.release();
        let at = rx.lend(len).expect("nothing is lent");
        rx.release();
        rx.memory().clone().read(at, &mut got);
    } else {
        rx.pop(len, &mut got);
    }
    assert_eq!(got[..len], frame(number, bulk));
    true
}

/// How a ring stands when the two begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// One record: the receiver waits for what is being published.
    Low,
    /// Full: the sender waits for what is being read.
    Full,
}

/// A ring near one of its ends, and a sender and a receiver who both try a few times: then what
/// is left.
fn ring(bulk: bool, start: Start, mutant: Mutant) {
    model(move || {
        let memory = RingMemory::new(mutant);
        let mut tx = Producer::new(memory.clone(), SHAPE);
        let mut rx = Consumer::new(memory, SHAPE);
        let (filled, emptied) = match (start, bulk) {
            (Start::Low, _) => (6, 5),
            (Start::Full, false) => (16, 0),
            (Start::Full, true) => (8, 0),
        };
        (0..filled).for_each(|n| tx.push(&[&frame(n, bulk)], frame(n, bulk).len()).unwrap());
        (0..emptied).for_each(|n| assert!(pop(&mut rx, n, bulk, Mutant::None)));
        let sender = thread::spawn(move || {
            let mut head = filled;
            for _ in 0..3 {
                match tx.push(&[&frame(head, bulk)], frame(head, bulk).len()) {
                    Ok(()) => head += 1,
                    Err(Refused::Full) => {}
                    Err(Refused::Broken) => panic!("nobody breaks the rules"),
                }
            }
            head
        });
        let mut tail = emptied;
        for _ in 0..4 {
            tail += u64::from(pop(&mut rx, tail, bulk, mutant));
        }
        let head = sender.join().unwrap();
        while tail < head {
            assert!(pop(&mut rx, tail, bulk, mutant), "record {tail} of {head} is lost");
            tail += 1;
        }
        assert!(!pop(&mut rx, tail, bulk, mutant), "a record was invented");
    });
}

/// The same with frames that are lent: two at a time, read after both were taken. `release`:
/// [`Consumer::release`] or [`Consumer::release_tails`].
fn lending(release_first: bool, release: fn(&mut Consumer<RingMemory>)) {
    model(move || {
        let memory = RingMemory::new(Mutant::None);
        let mut tx = Producer::new(memory.clone(), SHAPE);
        let mut rx = Consumer::new(memory.clone(), SHAPE);
        (0..16).for_each(|n| tx.push(&[&frame(n, false)], 20).unwrap());
        let sender = thread::spawn(move || {
            // Nothing fits before the two are given back.
            (16..19).filter(|&n| tx.push(&[&frame(n, false)], 20).is_ok()).count()
        });
        let lent: Vec<_> = (0..2).map(|_| rx.lend(rx.peek().unwrap().unwrap()).unwrap()).collect();
        if release_first {
            release(&mut rx);
        }
        for (at, n) in lent.into_iter().zip(0..) {
            let mut got = [0; 32];
            memory.read(at, &mut got);
            assert_eq!(got[..20], frame(n, false));
        }
        release(&mut rx);
        assert!(sender.join().unwrap() <= 2);
    });
}

// ---- the doorbell -------------------------------------------------------------------------------

/// The two pages. `membarrier` is a lock: whatever a sender does before or after its place in the
/// program is before or after the barrier for both, and that is all that it is.
#[derive(Clone, Debug)]
struct ModelPage {
    words: Arc<Vec<ModelWord>>,
    barrier: Arc<Mutex<()>>,
    /// Whether there is `membarrier`.
    heavy: bool,
    mutant: Mutant,
}

impl ModelPage {
    fn new(heavy: bool, mutant: Mutant) -> Self {
        let words = (0..9).map(|_| ModelWord::new(0, Mutant::None)).collect();
        ModelPage { words: Arc::new(words), barrier: Arc::new(Mutex::new(())), heavy, mutant }
    }
}

impl Words for ModelPage {
    type Word = ModelWord;
    fn word(&self, at: usize) -> &ModelWord {
        &self.words[at / 8]
    }
}

impl Page for ModelPage {
    fn heavy_barrier(&self) -> bool {
        if self.mutant != Mutant::NoHeavyBarrier {
            fence(Ordering::SeqCst);
            if self.heavy {
                drop(self.barrier.lock().unwrap());
            }
        }
        self.heavy
    }

    fn light_barrier(&self, fenced: bool) {
        if self.mutant == Mutant::NoLightBarrier {
        } else if fenced {
            fence(Ordering::SeqCst);
        } else {
            drop(self.barrier.lock().unwrap());
        }
    }
}

/// The socket between the two: signals, and the welcome.
#[derive(Debug, Default)]
struct Socket {
    signals: Mutex<u32>,
    came: Condvar,
    welcome: Mutex<bool>,
}

impl Socket {
    fn signal(&self) {
        *self.signals.lock().unwrap() += 1;
        self.came.notify_one();
    }

    /// Sleeps until a signal comes, and takes it.
    fn sleep(&self) {
        let mut signals = self.signals.lock().unwrap();
        while *signals == 0 {
            signals = self.came.wait(signals).unwrap();
        }
        *signals -= 1;
    }
}

/// A receiver that sleeps when it finds nothing, as `ShmTransport::wait` does, until it has `count`
/// records. The model ends the test when it sleeps for ever.
fn receive(
    rx: &mut Consumer<RingMemory>,
    doorbell: &Doorbell<ModelPage>,
    socket: &Socket,
    count: u64,
    mutant: Mutant,
) {
    let mut got = 0;
    while got < count {
        let peeked = mutant == Mutant::PeekFirst && rx.peek() == Ok(None);
        doorbell.arm();
        if peeked || mutant != Mutant::PeekFirst && rx.peek() == Ok(None) {
            socket.sleep();
        }
        doorbell.disarm();
        while pop(rx, got, false, Mutant::None) {
            got += 1;
        }
    }
}

/// Two records, each of which may have to wake the receiver.
fn sleeping(heavy: bool, mutant: Mutant) {
    model(move || {
        let memory = RingMemory::new(Mutant::None);
        let (state, hints) = (ModelPage::new(heavy, mutant), ModelPage::new(heavy, mutant));
        let doorbell = Doorbell::on(state.clone(), hints.clone());
        let mut tx = Producer::new(memory.clone(), SHAPE);
        let mut rx = Consumer::new(memory, SHAPE);
        let socket = Arc::new(Socket::default());
        let to = socket.clone();
        thread::spawn(move || {
            let mut remote = RemoteDoorbell::on(state, hints, 0);
            for n in 0..2 {
                let early = mutant == Mutant::RingFirst && remote.ring();
                tx.push(&[&frame(n, false)], 20).unwrap();
                if early || mutant != Mutant::RingFirst && remote.ring() {
                    to.signal();
                }
            }
        });
        receive(&mut rx, &doorbell, &socket, 2, mutant);
    });
}

/// A ring that is being taken over while its first record is sent, as `outbound::Link` does.
fn meeting(mutant: Mutant) {
    model(move || {
        let memory = RingMemory::new(Mutant::None);
        let (state, hints) = (ModelPage::new(true, mutant), ModelPage::new(true, mutant));
        let doorbell = Doorbell::on(state.clone(), hints.clone());
        let mut tx = Producer::new(memory.clone(), SHAPE);
        let mut rx = Consumer::new(memory, SHAPE);
        let socket = Arc::new(Socket::default());
        let to = socket.clone();
        thread::spawn(move || {
            let mut remote = None;
            for n in 0..2 {
                tx.push(&[&frame(n, false)], 20).unwrap();
                let new = remote.is_none() && *to.welcome.lock().unwrap();
                if new {
                    remote = Some(RemoteDoorbell::on(state.clone(), hints.clone(), 0));
                }
                if new && mutant == Mutant::SilentAfterWelcome {
                    continue;
                }
                if remote.as_mut().is_some_and(RemoteDoorbell::ring) {
                    to.signal();
                }
            }
        });
        let welcome = || *socket.welcome.lock().unwrap() = true;
        if mutant == Mutant::PeekBeforeWelcome {
            doorbell.arm();
            let nothing = rx.peek() == Ok(None);
            welcome();
            if nothing {
                socket.sleep();
            }
            doorbell.disarm();
        } else {
            welcome();
        }
        receive(&mut rx, &doorbell, &socket, 2, mutant);
    });
}

/// A ring that rests: what is sent is seen by the look after it was laid to rest, or there is a
/// hint. It rests twice, so that the first hint may come late.
fn idling(heavy: bool, mutant: Mutant) {
    model(move || {
        let memory = RingMemory::new(Mutant::None);
        let (state, hints) = (ModelPage::new(heavy, mutant), ModelPage::new(heavy, mutant));
        let mut doorbell = Doorbell::on(state.clone(), hints.clone());
        let mut tx = Producer::new(memory.clone(), SHAPE);
        let mut rx = Consumer::new(memory, SHAPE);
        let sender = thread::spawn(move || {
            let mut remote = RemoteDoorbell::on(state, hints, 0);
            for n in 0..2 {
                if mutant == Mutant::RingFirst {
                    remote.ring();
                }
                tx.push(&[&frame(n, false)], 20).unwrap();
                if mutant != Mutant::RingFirst {
                    remote.ring();
                }
            }
        });
        let mut got = 0;
        for _ in 0..2 {
            let peeked = mutant == Mutant::PeekFirst && rx.peek() == Ok(None);
            doorbell.mark_idle(0);
            doorbell.idle_barrier();
            if peeked || mutant != Mutant::PeekFirst && rx.peek() == Ok(None) {
                // Not peeked at any more until a hint comes.
                if doorbell.hinted().is_none() {
                    break;
                }
            }
            doorbell.mark_active(0);
            while pop(&mut rx, got, false, Mutant::None) {
                got += 1;
            }
        }
        sender.join().unwrap();
        let has_idle_rings = doorbell.has_idle_rings();
        if rx.peek() != Ok(None) {
            assert!(
                !has_idle_rings || doorbell.hinted() == Some(0),
                "no poll will find record {got}"
            );
        }
    });
}

// ---- the tests ------------------------------------------------------------------------------

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // More switches between two threads than a race of two words needs.
    builder.preemption_bound = Some(4);
    builder.check(f);
}

/// A thing that is tried, by name: several models end the whole process when they have found
/// something, because destructors fail then that nobody can catch. So each broken rule is tried
/// in a process of its own, by this test.
#[test]
#[ignore = "the other process of the tests here"]
fn broken_rule() {
    let Ok(name) = std::env::var(BROKEN) else { return };
    for mutant in MUTANTS {
        let named = |kind: &str| name == format!("{kind} {mutant:?}");
        match () {
            () if named("low ring") => ring(false, Start::Low, mutant),
            () if named("low bulk ring") => ring(true, Start::Low, mutant),
            () if named("full ring") => ring(false, Start::Full, mutant),
            () if named("full bulk ring") => ring(true, Start::Full, mutant),
            () if named("lending") => lending(true, Consumer::release),
            () if named("sleeping") => sleeping(true, mutant),
            () if named("sleeping, fenced") => sleeping(false, mutant),
            () if named("idling") => idling(true, mutant),
            () if named("idling, fenced") => idling(false, mutant),
            () if named("meeting") => meeting(mutant),
            () => {}
        }
    }
}

const BROKEN: &str = "COURSER_LOOM_BROKEN";

/// The model must end with the failure that belongs to the rule.
fn found(kind: &str, mutant: Mutant, how: &str) {
    let name = format!("{kind} {mutant:?}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "shm::model::broken_rule"])
        .env(BROKEN, &name)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{name}: the model did not find it");
    assert!(said.contains(how), "{name}: the model found something else:\n{said}");
}

const RACE: &str = "Causality violation";
const DEADLOCK: &str = "deadlock";

#[test]
fn records_are_published_whole_and_never_overwritten() {
    for start in [Start::Low, Start::Full] {
        ring(false, start, Mutant::None);
        ring(true, start, Mutant::None);
    }
}

#[test]
fn a_ring_with_a_broken_rule_is_found() {
    for kind in ["low ring", "low bulk ring"] {
        found(kind, Mutant::RelaxedPublish, RACE);
        found(kind, Mutant::RelaxedPeek, RACE);
    }
    for kind in ["full ring", "full bulk ring"] {
        for mutant in [Mutant::RelaxedReport, Mutant::RelaxedRefresh, Mutant::ReportFirst] {
            found(kind, mutant, RACE);
        }
    }
}

#[test]
fn lent_records_are_not_overwritten() {
    lending(false, Consumer::release);
    lending(false, Consumer::release_tails);
    found("lending", Mutant::ReportFirst, RACE);
}

#[test]
fn every_sleeping_receiver_is_woken() {
    sleeping(true, Mutant::None);
    sleeping(false, Mutant::None);
    meeting(Mutant::None);
}

#[test]
fn a_doorbell_with_a_broken_rule_is_found() {
    for kind in ["sleeping", "sleeping, fenced"] {
        for mutant in
            [Mutant::NoLightBarrier, Mutant::NoHeavyBarrier, Mutant::RingFirst, Mutant::PeekFirst]
        {
            found(kind, mutant, DEADLOCK);
        }
    }
    found("meeting", Mutant::PeekBeforeWelcome, DEADLOCK);
    found("meeting", Mutant::SilentAfterWelcome, DEADLOCK);
}

#[test]
fn every_idle_ring_with_a_record_is_found() {
    idling(true, Mutant::None);
    idling(false, Mutant::None);
}

#[test]
fn an_idle_mark_with_a_broken_rule_is_found() {
    for kind in ["idling", "idling, fenced"] {
        for mutant in
            [Mutant::NoLightBarrier, Mutant::NoHeavyBarrier, Mutant::RingFirst, Mutant::PeekFirst]
        {
            found(kind, mutant, "no poll will find record");
        }
    }
}
