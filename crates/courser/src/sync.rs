//! The locks and atomics with which one thread hands something to another and wakes it: those of the
//! standard library, or in the models loom's, with optional faults (`scripts/loom.sh`).

#[cfg(not(all(loom, test)))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicUsize},
    },
    thread::{Thread, current, park},
    thread_local as thread_locals,
};

#[cfg(all(loom, test))]
pub(crate) use self::{
    model::{AtomicBool, AtomicU8, Condvar, Thread, current, park, thread_locals},
    modelled::*,
};

#[cfg(all(loom, test))]
mod modelled {
    pub(crate) use loom::sync::atomic::AtomicUsize;
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

#[cfg(all(loom, test))]
pub(crate) mod model;
