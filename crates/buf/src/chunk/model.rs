//! The free stack and the reference count under loom: every order in which threads can run, and
//! every value that a weakly ordered machine may return (`scripts/loom.sh`).
//!
//! [`Stack`] and [`Chunk`] run on loom's atomics. The bytes of a buffer are a cell of the model,
//! which fails on two unordered accesses. Each rule is broken once ([`Fault`]), and the model must
//! then fail.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::tests::{id, record};
use super::*;
use crate::atomics::{Fault, fault};

const RECORDS: usize = 3;

/// A stack of all records of a table, record 0 on top, and the bytes of their buffers.
struct Free {
    table: Table,
    stack: Stack,
    bytes: Vec<UnsafeCell<u32>>,
}

impl Free {
    fn new() -> Free {
        let (table, stack) = (Table::new(), Stack::new());
        let records: Vec<_> = (0..RECORDS).map(|_| table.push(record()).unwrap()).collect();
        for &chunk in records.iter().rev() {
            // SAFETY: a new record of this table. Test: this module.
            unsafe { stack.push(&table, chunk) };
        }
        Free { table, stack, bytes: (0..RECORDS).map(|_| UnsafeCell::new(0)).collect() }
    }

    /// Takes a buffer and writes its bytes.
    fn pop(&self) -> Option<NonNull<Chunk>> {
        let chunk = self.stack.pop(&self.table)?;
        self.write(chunk);
        Some(chunk)
    }

    /// Writes the bytes of a buffer and frees it.
    fn push(&self, chunk: NonNull<Chunk>) {
        self.write(chunk);
        // SAFETY: taken from this stack, and not used afterwards. Test: this module.
        unsafe { self.stack.push(&self.table, chunk) };
    }

    /// Marks a buffer as owned. A second owner finds the mark.
    fn own(&self, chunk: NonNull<Chunk>) {
        // SAFETY: the records live as long as the table. Test: this module.
        let refs = unsafe { &chunk.as_ref().refs };
        assert_eq!(refs.fetch_add(1, Ordering::Relaxed), 0, "two owners");
    }

    fn disown(&self, chunk: NonNull<Chunk>) {
        // SAFETY: as in `own`.
        unsafe { &chunk.as_ref().refs }.fetch_sub(1, Ordering::Relaxed);
    }

    fn write(&self, chunk: NonNull<Chunk>) {
        self.bytes[id(chunk) as usize].with_mut(|bytes| {
            // SAFETY: the model ends the test when another thread accesses it. Test: the faults.
            unsafe { *bytes += 1 };
        });
    }
}

/// One thread takes a buffer and frees it, while another takes two and frees the first: without a
/// tag, this order mistakes a new head for the one read before.
fn stack() {
    model(|| {
        let free = Arc::new(Free::new());
        let other = free.clone();
        let thread = thread::spawn(move || {
            let first = other.pop().unwrap();
            other.own(first);
            let second = other.pop();
            second.inspect(|&chunk| other.own(chunk));
            other.disown(first);
            other.push(first);
            second
        });
        let mine = free.pop().unwrap();
        free.own(mine);
        // The buffer below. The other thread must not own it.
        let below = free.pop();
        below.inspect(|&chunk| free.own(chunk));
        free.disown(mine);
        free.push(mine);
        let theirs = thread.join().unwrap();
        for chunk in [below, theirs].into_iter().flatten() {
            free.disown(chunk);
            free.push(chunk);
        }
        assert_eq!(free.stack.len(&free.table), RECORDS, "the depth is wrong");
        let mut left: Vec<_> = std::iter::from_fn(|| free.pop().map(id)).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2], "a buffer is lost");
    });
}

/// One buffer: its record, its bytes, and how often its last reference was released.
struct Buffer {
    chunk: Chunk,
    bytes: UnsafeCell<u32>,
    recycled: AtomicU32,
}

// SAFETY: the cells of `chunk` are not used here; the rest is the model's. Test: this module.
unsafe impl Send for Buffer {}
// SAFETY: as above. Test: this module.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new() -> Arc<Buffer> {
        let (chunk, bytes, recycled) = (record(), UnsafeCell::new(0), AtomicU32::new(0));
        chunk.claim();
        Arc::new(Buffer { chunk, bytes, recycled })
    }

    fn write(&self) {
        self.bytes.with_mut(|bytes| {
            // SAFETY: the model ends the test when another thread accesses it. Test: the faults.
            unsafe { *bytes += 1 };
        });
    }

    fn read(&self) {
        self.bytes.with(|bytes| {
            // SAFETY: as in `write`.
            unsafe { *bytes }
        });
    }

    /// Releases a reference; after the last one the next user writes the bytes.
    fn release(&self) {
        if self.chunk.release() {
            self.recycled.fetch_add(1, Ordering::Relaxed);
            self.write();
        }
    }

    fn finish(&self) {
        assert_eq!(self.recycled.load(Ordering::Relaxed), 1, "not recycled once");
    }
}

/// The owner of a message sends two pieces in succession, each to its own queue, and writes the
/// data whenever no piece is left.
fn owner_writes() {
    model(|| {
        let buffer = Buffer::new();
        let mut queues = Vec::new();
        for _ in 0..2 {
            if !buffer.chunk.is_shared() {
                buffer.write();
            }
            buffer.chunk.retain_mut(1);
            let queue = buffer.clone();
            queues.push(thread::spawn(move || {
                queue.read();
                queue.release();
            }));
        }
        buffer.release();
        queues.into_iter().for_each(|queue| queue.join().unwrap());
        buffer.finish();
    });
}

/// A queue releases the pieces of a packet together and clones another one, while the owner adds
/// references.
fn pieces_are_cloned() {
    model(|| {
        let buffer = Buffer::new();
        buffer.chunk.retain_mut(2);
        let queue = buffer.clone();
        let thread = thread::spawn(move || {
            queue.read();
            queue.chunk.release_some(1);
            queue.chunk.retain(1);
            queue.release();
            queue.read();
            queue.release();
        });
        buffer.chunk.retain_mut(1);
        buffer.read();
        buffer.release();
        buffer.release();
        thread.join().unwrap();
        buffer.finish();
    });
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(f);
}

const BROKEN: &str = "COURSER_LOOM_BROKEN";
const MODELS: [(&str, fn()); 3] =
    [("stack", stack), ("owner", owner_writes), ("clones", pieces_are_cloned)];

/// One broken rule in a separate process, as a failing model may end the process. Does nothing when
/// no rule is set.
#[test]
fn broken_rule() {
    let Ok(name) = std::env::var(BROKEN) else { return };
    for (model, run) in MODELS {
        for rule in Fault::ALL {
            if name == format!("{model} {rule:?}") {
                fault(Some(rule));
                run();
            }
        }
    }
}

/// The model must fail with the error text of the rule.
fn found(model: &str, rule: Fault, how: &str) {
    let name = format!("{model} {rule:?}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "chunk::model::broken_rule"])
        .env(BROKEN, &name)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{name}: the model did not detect the fault");
    assert!(stderr.contains(how), "{name}: the model failed differently:\n{stderr}");
}

const RACE: &str = "Causality violation";

#[test]
fn a_free_buffer_has_one_owner_in_every_order() {
    stack();
}

#[test]
fn a_stack_with_a_broken_rule_is_found() {
    found("stack", Fault::NoTag, "two owners");
    found("stack", Fault::RelaxedPop, RACE);
    found("stack", Fault::RelaxedPush, RACE);
}

#[test]
fn a_buffer_is_recycled_once_after_all_accesses() {
    owner_writes();
    pieces_are_cloned();
}

#[test]
fn a_count_with_a_broken_rule_is_found() {
    for rule in [Fault::RelaxedLoad, Fault::RelaxedRelease, Fault::AlwaysStore, Fault::NoFence] {
        found("owner", rule, RACE);
    }
}
