//! Common parts of the models of hand-overs (`scripts/loom.sh`): loom tries every order of the
//! threads, and every value that a weakly ordered machine may return.
//!
//! A model ends when each of its sleepers was woken; loom reports the others as a deadlock. Each model
//! also runs with rules that are broken on purpose, and must fail then.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use std::task::{Context, Poll, Wake, Waker};

/// A rule that the locks and atomics break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An update that sets bits is a load, and then a store.
    SplitUpdate,
    /// Condition variables notify nothing.
    NoNotify,
}

std::thread_local! {
    // Per operating system thread: loom runs all threads of a model on one.
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

fn is(fault: Fault) -> bool {
    FAULT.get() == Some(fault)
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// loom's, which may break rules.
        #[derive(Debug)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "each atomic is used with some of these")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                $name(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order);
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.update(|_| value, || self.0.swap(value, order))
            }

            pub(crate) fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                self.update(|before| before | bits, || self.0.fetch_or(bits, order))
            }

            pub(crate) fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                self.0.fetch_and(bits, order)
            }

            fn update(
                &self,
                change: impl FnOnce($value) -> $value,
                update: impl FnOnce() -> $value,
            ) -> $value {
                if !is(Fault::SplitUpdate) {
                    return update();
                }
                let before = self.0.load(SeqCst);
                self.0.store(change(before), SeqCst);
                before
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name::new(Default::default())
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU8, u8);

impl AtomicU8 {
    pub(crate) fn fetch_max(&self, value: u8, order: Ordering) -> u8 {
        self.0.fetch_max(value, order)
    }

    pub(crate) fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        change: impl FnMut(u8) -> Option<u8>,
    ) -> Result<u8, u8> {
        self.0.fetch_update(set, fetch, change)
    }
}

/// loom's, which may break rules.
#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar::default()
    }

    pub(crate) fn wait<'a, T>(
        &self,
        guard: loom::sync::MutexGuard<'a, T>,
    ) -> loom::sync::LockResult<loom::sync::MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub(crate) fn notify_one(&self) {
        if !is(Fault::NoNotify) {
            self.0.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        if !is(Fault::NoNotify) {
            self.0.notify_all();
        }
    }
}

/// loom's `thread_local`, which does not know `const`.
macro_rules! thread_locals {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $(loom::thread_local! { $(#[$attribute])* static $name: $type = $value; })*
    };
}
pub(crate) use thread_locals;

/// Something that another thread sets before it wakes this one. Nothing but the wake-up orders it.
#[derive(Debug, Default)]
pub(crate) struct News(loom::sync::atomic::AtomicBool);

impl News {
    pub(crate) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// A thread of a model. That of loom forgets that it was unparked when it waits for a lock.
#[derive(Clone, Default)]
pub(crate) struct Thread(Arc<Parker>);

#[derive(Default)]
struct Parker {
    unparked: loom::sync::Mutex<bool>,
    wake: loom::sync::Condvar,
}

thread_locals! {
    static THIS: Thread = Thread::default();
}

pub(crate) fn current() -> Thread {
    THIS.with(Thread::clone)
}

pub(crate) fn park() {
    let Thread(this) = current();
    let mut unparked = this.unparked.lock().unwrap();
    while !*unparked {
        unparked = this.wake.wait(unparked).unwrap();
    }
    *unparked = false;
}

impl Thread {
    pub(crate) fn unpark(&self) {
        *self.0.unparked.lock().unwrap() = true;
        self.0.wake.notify_one();
    }
}

impl Wake for Thread {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }
}

/// Polls a future on this thread, which parks meanwhile, until it ends.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(current()));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        park();
    }
}

/// Runs a model in all orders that interrupt threads at most twice, besides those where they wait. It
/// takes one interruption to lose a wake-up between two steps.
pub(crate) fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// Runs a model with a broken rule.
pub(crate) fn with(fault: Fault, model: impl Fn() + Sync + Send + 'static) {
    FAULT.set(Some(fault));
    check(model);
}

/// How a lost wake-up is reported.
pub(crate) const LOST: &str = "deadlock";

const BROKEN: &str = "COURSER_LOOM_BROKEN";

/// Each of the models must fail with the text. A failing model may end its process, so each runs in
/// another one, which calls `test` again.
pub(crate) fn must_fail(module: &str, test: &str, how: &str, models: &[(&str, fn())]) {
    if let Ok(name) = std::env::var(BROKEN) {
        // A name that no list has does not fail.
        return models.iter().filter(|(known, _)| *known == name).for_each(|(_, model)| model());
    }
    let (_, module) = module.split_once("::").expect("a module of this crate");
    for (name, _) in models {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", &format!("{module}::{test}")])
            .env(BROKEN, name)
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{name}: the model did not detect the fault");
        assert!(stderr.contains(how), "{name}: the model failed differently:\n{stderr}");
    }
}
