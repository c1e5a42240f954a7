//! The queue of an endpoint in memory: many senders, one receiver. Frames are written to the places
//! of the queue and read there, so sending and receiving are one copy and a few words.
//!
//! A sender takes the next position with a swap of `tail`, writes its frame to that position's place,
//! and publishes the place. The receiver reads published places in order. It counts frames as taken
//! when it lends them, and they stay in their places until it takes more.
//!
//! # Invariants
//! 1. There are at least `depth` places more than the receiver lends at a time. So a position that is
//!    less than `depth` ahead of the taken frames has a place that is not lent.
//! 2. A place is written by the sender of its position, between the swap and the publication, and
//!    read only after that, by the receiver.

#[cfg(all(loom, test))]
mod model;
mod order;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[cfg(all(loom, test))]
use loom::sync::atomic::AtomicU64;
#[cfg(not(all(loom, test)))]
use std::sync::atomic::AtomicU64;

use courser_buf::Addr;

use cell::Cell;
use order::{Fault, unless};

/// A frame in a queue.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) src: Addr,
    pub(super) data: Vec<u8>,
}

/// A word in a cache line of its own: senders write one, the receiver the other.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

#[derive(Debug)]
struct Place {
    /// Position of the frame in it plus one, once it is complete.
    published: AtomicU64,
    packet: Cell<Packet>,
}

impl Place {
    /// Returns whether the frame of this position is complete.
    #[inline]
    fn has(&self, position: u64) -> bool {
        self.published.load(unless(Fault::Peek, Acquire)) == position + 1
    }
}

/// The queue, as its senders see it.
#[derive(Debug)]
pub(super) struct Queue {
    /// A power of two.
    places: Box<[Place]>,
    depth: u64,
    /// Position of the next frame.
    tail: Line,
    /// Frames that the receiver has taken.
    taken: Line,
}

/// The receiver of a queue; there is one.
#[derive(Debug)]
pub(super) struct Receiver {
    queue: Arc<Queue>,
    /// Frames taken.
    head: u64,
    /// Most frames that are lent at a time.
    lends: usize,
}

impl Queue {
    /// A queue that holds `depth` frames, besides up to `lends` that its receiver reads.
    pub(super) fn new(depth: usize, lends: usize) -> (Arc<Queue>, Receiver) {
        let place = |_| Place {
            published: AtomicU64::new(0),
            packet: Cell::new(Packet { src: Addr { host: 0, port: 0 }, data: Vec::new() }),
        };
        let queue = Arc::new(Queue {
            places: (0..(depth + lends).next_power_of_two()).map(place).collect(),
            depth: depth as u64,
            tail: Line(AtomicU64::new(0)),
            taken: Line(AtomicU64::new(0)),
        });
        (queue.clone(), Receiver { queue, head: 0, lends })
    }

    #[inline]
    fn place(&self, position: u64) -> &Place {
        &self.places[position as usize & (self.places.len() - 1)]
    }

    /// Adds a frame, whose bytes `write` appends to an empty buffer. `false`: the queue is full.
    #[inline]
    pub(super) fn push(&self, src: Addr, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut tail = self.tail.0.load(Relaxed);
        loop {
            // Acquire: the receiver has read what was in the place. A `tail` that is behind `taken` is
            // old, and the swap fails.
            let taken = self.taken.0.load(unless(Fault::Taken, Acquire));
            if tail.wrapping_sub(taken) as i64 >= self.depth as i64 {
                return false;
            }
            match self.tail.0.compare_exchange_weak(tail, tail + 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(newer) => tail = newer,
            }
        }
        let place = self.place(tail);
        // SAFETY: invariants 1 and 2: the position is this sender's, and its place is not lent.
        // Test: `queue::model`.
        unsafe {
            place.packet.write(|packet| {
                packet.src = src;
                packet.data.clear();
                write(&mut packet.data);
            });
        }
        place.published.store(tail + 1, unless(Fault::Publish, Release));
        true
    }
}

impl Receiver {
    /// Returns whether the next frame is not there. Senders whose frames are incomplete wake the
    /// receiver later.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.queue.place(self.head).has(self.head)
    }

    /// Passes at most `most` frames to `each`, in order. Their places can be written again after the
    /// next call.
    #[inline]
    pub(super) fn take<'a>(&'a mut self, most: usize, mut each: impl FnMut(&'a Packet)) {
        let Receiver { queue, head: taken, lends } = self;
        let (queue, from) = (&**queue, *taken);
        let (mut head, end) = (from, from + most.min(*lends) as u64);
        while head < end {
            let place = queue.place(head);
            if !place.has(head) {
                break;
            }
            head += 1;
            // SAFETY: invariant 2: the place is published. Its next sender needs `taken` to be more
            // than `lends` further (invariant 1), and this function counts at most `lends` frames
            // before `self`, and with it the frame, can be used again. Test: `queue::model`.
            each(unsafe { place.packet.read() });
        }
        if head != from {
            *taken = head;
            queue.taken.0.store(head, unless(Fault::Report, Release));
        }
    }
}

#[cfg(not(all(loom, test)))]
mod cell {
    use std::cell::UnsafeCell;

    /// A value that several threads use in turn.
    #[derive(Debug)]
    pub(super) struct Cell<T>(UnsafeCell<T>);

    // SAFETY: `read` and `write` leave the order of all accesses to their callers. Test: `queue::model`.
    unsafe impl<T: Send> Sync for Cell<T> {}

    impl<T> Cell<T> {
        pub(super) fn new(value: T) -> Self {
            Cell(UnsafeCell::new(value))
        }

        /// # Safety
        /// No other access until the value that is returned is no longer used.
        #[inline]
        pub(super) unsafe fn read(&self) -> &T {
            // SAFETY: by the contract of this function. Test: `queue::model`.
            unsafe { &*self.0.get() }
        }

        /// # Safety
        /// No other access meanwhile.
        #[inline]
        pub(super) unsafe fn write(&self, write: impl FnOnce(&mut T)) {
            // SAFETY: by the contract of this function. Test: `queue::model`.
            write(unsafe { &mut *self.0.get() });
        }
    }
}

#[cfg(all(loom, test))]
mod cell {
    use loom::cell::UnsafeCell;

    #[derive(Debug)]
    pub(super) struct Cell<T>(UnsafeCell<T>);

    // SAFETY: as of the cell without a model, which detects accesses without an order.
    unsafe impl<T: Send> Sync for Cell<T> {}

    impl<T> Cell<T> {
        pub(super) fn new(value: T) -> Self {
            Cell(UnsafeCell::new(value))
        }

        pub(super) unsafe fn read(&self) -> &T {
            // SAFETY: by the contract of this function.
            self.0.with(|value| unsafe { &*value })
        }

        pub(super) unsafe fn write(&self, write: impl FnOnce(&mut T)) {
            // SAFETY: by the contract of this function.
            self.0.with_mut(|value| write(unsafe { &mut *value }));
        }
    }
}
