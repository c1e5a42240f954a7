//! The ring and the doorbell on a model of memory that tests every order in which two threads can
//! run, and every value that a weakly ordered machine can return (`scripts/loom.sh`).
//! The code of `ring` and `doorbell` runs on a model of memory. Bytes are cells that two threads
//! may access only when atomic words order the accesses. So reading a record before it is
//! published, or overwriting it while it is read, is an error even when the bytes are correct by
//! chance.
//!
//! To test the model, each rule is broken once ([`Mutant`]) and the model must fail.

use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::doorbell::{Doorbell, Page, RemoteDoorbell};
use super::map::{PAGE, Word, Words};
use super::ring::{Consumer, Memory, Producer, Refused, Shape};

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// The store that publishes a record is relaxed.
    RelaxedPublish,
    /// The load of a header is relaxed.
    RelaxedPeek,
    /// The store of the receiver's count is relaxed.
    RelaxedReport,
    /// The load of the receiver's count is relaxed.
    RelaxedRefresh,
    /// The receiver reports before it reads.
    ReportFirst,
    /// The sender has no barrier between publishing and reading the state.
    NoLightBarrier,
    /// The receiver has no barrier between arming the doorbell and its last poll.
    NoHeavyBarrier,
    /// The sender reads the state before it publishes.
    RingFirst,
    /// The receiver polls before it arms the doorbell, and not after.
    PeekFirst,
    /// The receiver polls a ring before it sends the welcome.
    PeekBeforeWelcome,
    /// The sender does not ring after the welcome.
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
/// Offset of the receiver's count.
const CONSUMED: usize = 128;
const SHAPE: Shape = Shape { slots: 16, data: 4096, max_frame: 1024 };

/// A word of the model, weakened by some mutants.
#[derive(Debug)]
struct ModelWord {
    word: AtomicU64,
    /// True if the mutant relaxes loads and stores.
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

    /// Calls `f` for the part of a range in each line: line, offset in it, and part of the range.
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

/// Frame `n`: its number, with a length for the slot or for the data area.
fn frame(n: u64, bulk: bool) -> Vec<u8> {
    let mut frame = vec![n as u8; if bulk { 500 } else { 20 }];
    frame[..8].copy_from_slice(&n.to_ne_bytes());
    frame
}

/// Pops and checks the next frame; false: there is none yet.
fn pop(rx: &mut Consumer<RingMemory>, number: u64, bulk: bool, mutant: Mutant) -> bool {
    let Some(len) = rx.peek().expect("an intact ring") else { return false };
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

/// State of a ring when the threads start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// One record: the receiver waits for the next one.
    Low,
    /// Full: the sender waits for room.
    Full,
}

/// A ring that is almost empty or full; sender and receiver try a few times, then the receiver
/// drains it.
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
                    Err(Refused::Broken) => panic!("an intact ring"),
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
            // No record fits before the two are released.
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

/// The two pages. `membarrier` is modelled by a lock: it orders the sender's accesses before and
/// after its barrier against the receiver's, and nothing else.
#[derive(Clone, Debug)]
struct ModelPage {
    words: Arc<Vec<ModelWord>>,
    barrier: Arc<Mutex<()>>,
    /// True if there is `membarrier`.
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

    /// Sleeps until a signal arrives, and consumes it.
    fn sleep(&self) {
        let mut signals = self.signals.lock().unwrap();
        while *signals == 0 {
            signals = self.came.wait(signals).unwrap();
        }
        *signals -= 1;
    }
}

/// A receiver that sleeps when the ring is empty, as `ShmTransport::wait` does, until it has
/// `count` records. The model fails when it is not woken.
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

/// Two records, each of which may wake the receiver.
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

/// A ring that is accepted while its first record is sent, as in `outbound::Link`.
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

/// An idle ring: the poll after the idle mark finds a record, or there is a hint. The ring becomes
/// idle twice, so that the first hint may be late.
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
                // Not polled again without a hint.
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
    // More context switches than a race of two words needs.
    builder.preemption_bound = Some(4);
    builder.check(f);
}

/// Runs one model by name. A failing model can end the whole process, because destructors panic
/// during unwinding. So each broken rule runs in a separate process, with this test.
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

/// The model must fail with the error of the broken rule.
fn found(kind: &str, mutant: Mutant, how: &str) {
    let name = format!("{kind} {mutant:?}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "shm::model::broken_rule"])
        .env(BROKEN, &name)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{name}: the model did not detect the fault");
    assert!(stderr.contains(how), "{name}: the model failed differently:\n{stderr}");
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
