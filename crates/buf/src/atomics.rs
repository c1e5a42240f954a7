//! The atomics of the free stack and of the reference count: those of the standard library, or in
//! the models of `chunk::model` those of loom, with optional faults.

#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

#[cfg(all(loom, test))]
pub(crate) use weakened::{AtomicU32, AtomicU64, Fault, fault, fence};

#[cfg(all(loom, test))]
mod weakened {
    use std::cell::Cell;
    use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

    /// A rule that the atomics break. A model must detect each one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fault {
        /// Head of the stack: the tag stays 0.
        NoTag,
        /// Head of the stack: loads and swaps do not acquire.
        RelaxedPop,
        /// Head of the stack: swaps do not release.
        RelaxedPush,
        /// Reference count: loads do not acquire.
        RelaxedLoad,
        /// Reference count: subtractions do not release.
        RelaxedRelease,
        /// Reference count: every load returns 1, so that `retain_mut` always stores.
        AlwaysStore,
        /// The fence after the last subtraction is absent.
        NoFence,
    }

    impl Fault {
        pub(crate) const ALL: [Fault; 7] = [
            Fault::NoTag,
            Fault::RelaxedPop,
            Fault::RelaxedPush,
            Fault::RelaxedLoad,
            Fault::RelaxedRelease,
            Fault::AlwaysStore,
            Fault::NoFence,
        ];
    }

    thread_local! {
        // Per operating system thread: loom runs all threads of a model on one.
        static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Sets the rule to break in the models of this thread.
    pub(crate) fn fault(fault: Option<Fault>) {
        FAULT.set(fault);
    }

    fn is(fault: Fault) -> bool {
        FAULT.get() == Some(fault)
    }

    fn unless(fault: Fault, order: Ordering) -> Ordering {
        if is(fault) { Relaxed } else { order }
    }

    /// 32-bit atomics. Only the reference count depends on the memory order.
    pub(crate) struct AtomicU32(loom::sync::atomic::AtomicU32);

    impl AtomicU32 {
        pub(crate) fn new(value: u32) -> Self {
            AtomicU32(loom::sync::atomic::AtomicU32::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            if order != Acquire {
                return self.0.load(order);
            }
            let value = self.0.load(unless(Fault::RelaxedLoad, order));
            if is(Fault::AlwaysStore) { 1 } else { value }
        }

        pub(crate) fn store(&self, value: u32, order: Ordering) {
            self.0.store(value, order);
        }

        pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            self.0.fetch_add(value, order)
        }

        pub(crate) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
            self.0.fetch_sub(value, unless(Fault::RelaxedRelease, order))
        }
    }

    /// The head of a stack.
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            AtomicU64(loom::sync::atomic::AtomicU64::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.0.load(unless(Fault::RelaxedPop, order))
        }

        pub(crate) fn compare_exchange_weak(
            &self,
            old: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            let new = if is(Fault::NoTag) { u64::from(new as u32) } else { new };
            let fault = if success == Release { Fault::RelaxedPush } else { Fault::RelaxedPop };
            let failure = unless(Fault::RelaxedPop, failure);
            self.0.compare_exchange_weak(old, new, unless(fault, success), failure)
        }
    }

    pub(crate) fn fence(order: Ordering) {
        if !is(Fault::NoFence) {
            loom::sync::atomic::fence(order);
        }
    }
}
