//! The timers of an endpoint, at a cost that does not depend on their number.
//!
//! Three queues, because nearly every call ends before its retransmission timeout:
//! - *First timers*, a FIFO queue. A slot that gets a call is checked once, `Config::rto_min_ns`
//!   later; no timeout is shorter. All delays are equal, so the queue is in order without sorting,
//!   and a call costs one entry at its end, or none while its slot's previous first timer is set.
//! - *Quiet timers*, a FIFO queue with a longer delay, for slots that are rarely used and have not
//!   acknowledged their last response: one entry per slot, as long as it is used.
//! - *Later timers*, for slots that were not done at their first timer, with exact times: a radix
//!   heap. Entries are in buckets by the highest bit in which their time differs from the last
//!   expired time. When the first entry of the lowest used bucket is due, the bucket is distributed
//!   over those below it. An entry moves at most once per bit of its delay: no logarithm of the
//!   number of timers, and no walk over them.
//!
//! Timers are not removed early. On expiry the owner checks its state and re-arms if needed.
//! Entries may be obsolete; [`Timers::overgrown`] limits their number. A first timer whose expiry
//! would do nothing can be cancelled, which avoids the check but keeps the entry.

use std::collections::VecDeque;

use crate::config::SESSIONS_LIMIT;
use crate::pause::Pause;
use crate::wire::MAX_SESSION;

/// A timer entry: a place and a time. The generation distinguishes a session from its successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimerEntry {
    pub(crate) due_ns: u64,
    pub(crate) session: u32,
    pub(crate) generation: u32,
    pub(crate) kind: TimerKind,
}

/// The owner of a timer. Those of the endpoint have no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerKind {
    /// A slot of the session, by its number.
    Slot(u8),
    /// The session's queue of waiting calls.
    Queue,
    /// The session, when it has been idle for long.
    Idle,
    /// The one-way messages of the session.
    Messages,
    /// The endpoint's unfinished requests.
    Sweep,
    /// The endpoint's calls that are held back.
    Held,
    /// The endpoint's messages that wait for the host's transmit queue.
    Host,
}

/// The rest of the work when the flow of a session has handled its timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// Nothing.
    Done,
    /// Nothing. The number of waiting calls that were looked at.
    Walked(usize),
    /// The session is idle: its slots are to be dropped.
    Idle,
    /// The peer does not answer: all sessions with it have failed.
    Silent,
}

impl TimerKind {
    /// As a byte. Sessions have at most 32 slots.
    #[inline]
    fn byte(self) -> u8 {
        match self {
            TimerKind::Slot(slot) => slot,
            TimerKind::Host => 250,
            TimerKind::Queue => 251,
            TimerKind::Idle => 252,
            TimerKind::Messages => 253,
            TimerKind::Sweep => 254,
            TimerKind::Held => 255,
        }
    }

    #[inline]
    fn of(byte: u8) -> Self {
        match byte {
            250 => TimerKind::Host,
            251 => TimerKind::Queue,
            252 => TimerKind::Idle,
            253 => TimerKind::Messages,
            254 => TimerKind::Sweep,
            255 => TimerKind::Held,
            slot => TimerKind::Slot(slot),
        }
    }
}

/// No session has this number: session numbers have 24 bits, as on the wire, and an endpoint has at
/// most 2^20 sessions (`Config::max_sessions`).
const NO_SESSION: u32 = MAX_SESSION;
const _: () = assert!(SESSIONS_LIMIT <= NO_SESSION as usize);

/// An entry as stored in queues: two words, stored from registers. More parts would be assembled in
/// memory, which causes a store-forwarding stall.
#[derive(Clone, Copy, Debug)]
struct Queued {
    due_ns: u64,
    /// Session, kind and generation, from the lowest bit on.
    place: u64,
}

impl Queued {
    #[inline]
    fn new(entry: TimerEntry) -> Self {
        let TimerEntry { due_ns, session, generation, kind } = entry;
        debug_assert!(session < NO_SESSION);
        let place = u64::from(session) | u64::from(kind.byte()) << 24 | u64::from(generation) << 32;
        Queued { due_ns, place }
    }

    /// A cancelled entry.
    #[inline]
    fn cancelled(due_ns: u64) -> Self {
        Queued { due_ns, place: u64::from(NO_SESSION) }
    }

    #[inline]
    fn session(self) -> u32 {
        self.place as u32 & 0xff_ffff
    }

    #[inline]
    fn entry(self) -> TimerEntry {
        let (kind, generation) = ((self.place >> 24) as u8, (self.place >> 32) as u32);
        let kind = TimerKind::of(kind);
        TimerEntry { due_ns: self.due_ns, session: self.session(), generation, kind }
    }
}

impl TimerEntry {
    /// Returns whether the timer was cancelled.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.session == NO_SESSION
    }
}

/// The queue of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    First,
    Later,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Timers {
    /// When the next entry of any queue is due; `u64::MAX`: none.
    next_ns: u64,
    first: VecDeque<Queued>,
    /// First timers removed so far, modulo 2^32.
    taken: u32,
    quiet: VecDeque<Queued>,
    later: RadixHeap,
    /// Obsolete later entries are removed when there are this many.
    sift_at: usize,
    /// Pauses of this endpoint, as late timers show them.
    pub(crate) pause: Pause,
}

/// With more first timers, none is cancelled: 1 MB, which calls fill within a `Config::rto_min_ns`
/// only if that is tens of milliseconds.
const CANCELLED_MAX: usize = 1 << 16;

/// With this many sessions, of which many are in use, first timers are cancelled on completion:
/// expiring one would cost two cache misses. With fewer, expiry is cheaper, because one timer serves
/// all calls of its slot until then.
pub(crate) const CANCEL_FROM: usize = 2048;

/// Fewer later entries are not sifted.
const SIFT_MIN: usize = 1024;

impl Timers {
    pub(crate) fn new() -> Self {
        Timers {
            next_ns: u64::MAX,
            first: VecDeque::new(),
            taken: 0,
            quiet: VecDeque::new(),
            later: RadixHeap::new(),
            sift_at: SIFT_MIN,
            pause: Pause::default(),
        }
    }

    /// Adds a first timer, with the same delay as all others; returns its position.
    #[inline]
    pub(crate) fn arm_first(&mut self, entry: TimerEntry) -> u32 {
        self.next_ns = self.next_ns.min(entry.due_ns);
        let place = self.taken.wrapping_add(self.first.len() as u32);
        self.first.push_back(Queued::new(entry));
        place
    }

    /// Cancels the first timer at this position, which belongs to this session: it
    /// [`TimerEntry::is_cancelled`] from now on. `false`: it stays, because there are many already, and
    /// the slot's next call would add another.
    #[inline]
    pub(crate) fn cancel_first(&mut self, place: u32, session: u32) -> bool {
        let at = place.wrapping_sub(self.taken) as usize;
        let few = self.first.len() <= CANCELLED_MAX;
        match self.first.get_mut(at) {
            Some(entry) if few && entry.session() == session => {
                *entry = Queued::cancelled(entry.due_ns);
                true
            }
            _ => false,
        }
    }

    /// Adds a quiet timer, with the same delay as all others.
    pub(crate) fn arm_quiet(&mut self, entry: TimerEntry) {
        self.next_ns = self.next_ns.min(entry.due_ns);
        self.quiet.push_back(Queued::new(entry));
    }

    /// Adds a later timer; returns its time, which is not before the last expired one.
    pub(crate) fn arm_later(&mut self, entry: TimerEntry) -> u64 {
        let due_ns = self.later.push(entry);
        self.next_ns = self.next_ns.min(due_ns);
        due_ns
    }

    #[inline]
    fn find_next(&mut self) {
        let due_ns = |queue: &VecDeque<Queued>| queue.front().map_or(u64::MAX, |e| e.due_ns);
        self.next_ns = due_ns(&self.first).min(due_ns(&self.quiet)).min(self.later.next_ns);
    }

    /// When the next timer is due; `u64::MAX`: none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// The next first timer, if it is due.
    #[inline]
    pub(crate) fn first_due(&self, now_ns: u64) -> Option<TimerEntry> {
        self.first.front().filter(|queued| queued.due_ns <= now_ns).map(|queued| queued.entry())
    }

    /// The first timers, newest first.
    pub(crate) fn newest_first(&self, at: usize) -> Option<TimerEntry> {
        let last = self.first.len().checked_sub(1)?;
        self.first.get(last.checked_sub(at)?).map(|queued| queued.entry())
    }

    /// The quiet timer `n` places after the next one.
    #[inline]
    pub(crate) fn quiet_ahead(&self, at: usize) -> Option<TimerEntry> {
        self.quiet.get(at).map(|queued| queued.entry())
    }

    /// Removes the next first timer. Called directly when its check needed no action, so the order
    /// relative to later timers does not matter.
    #[inline]
    pub(crate) fn drop_first(&mut self) {
        self.first.pop_front();
        self.taken = self.taken.wrapping_add(1);
        self.find_next();
    }

    /// Removes the next timer if it is due: the earlier one of the first timers and the others, so
    /// that neither queue starves the other.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<(Due, TimerEntry)> {
        if let Some(&entry) = self.first.front()
            && entry.due_ns <= now_ns
            && entry.due_ns <= self.later.next_ns
            && self.quiet.front().is_none_or(|quiet| entry.due_ns <= quiet.due_ns)
        {
            self.drop_first();
            return Some((Due::First, entry.entry()));
        }
        let entry = match self.quiet.front() {
            Some(&entry) if entry.due_ns <= now_ns && entry.due_ns <= self.later.next_ns => {
                self.quiet.pop_front();
                entry.entry()
            }
            _ => self.later.pop(now_ns)?,
        };
        self.find_next();
        Some((Due::Later, entry))
    }

    /// Returns whether later and quiet timers have doubled since the last [`Timers::sift`], whose
    /// cost the new ones have paid for.
    pub(crate) fn overgrown(&self) -> bool {
        self.later.len() + self.quiet.len() >= self.sift_at
    }

    /// Removes obsolete later and quiet timers.
    pub(crate) fn sift(&mut self, mut is_needed: impl FnMut(&TimerEntry) -> bool) {
        self.later.retain(&mut is_needed);
        self.quiet.retain(|queued| is_needed(&queued.entry()));
        self.find_next();
        self.sift_at = SIFT_MIN.max(2 * (self.later.len() + self.quiet.len()));
    }

    /// Frees memory while no timer is set.
    pub(crate) fn trim(&mut self) {
        for queue in [&mut self.first, &mut self.quiet] {
            if queue.is_empty() && queue.capacity() > SIFT_MIN {
                *queue = VecDeque::new();
            }
        }
        self.later.trim();
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let queued = self.first.capacity() + self.quiet.capacity();
        queued * size_of::<Queued>() + self.later.nodes.capacity() * size_of::<Node>()
    }
}

/// End of a bucket's list.
const NONE: u32 = u32::MAX;
/// Times are below 2^63 ns: 292 years.
const LAST_NS: u64 = (1 << 63) - 1;

#[derive(Clone, Copy, Debug)]
struct Node {
    entry: TimerEntry,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    head: u32,
    /// The earliest time in it; `u64::MAX`: empty.
    first_ns: u64,
}

/// A monotone priority queue: a pushed entry is never due before the last popped one.
///
/// Invariants: 1. an entry due at `t` is in bucket `bits(t ^ last_ns)`, where `bits` is the number
/// of binary digits; 2. so all entries of a bucket are due before all of the next one.
#[derive(Debug)]
struct RadixHeap {
    nodes: Vec<Node>,
    free: u32,
    used: usize,
    buckets: [Bucket; 64],
    /// Bit mask of non-empty buckets.
    occupied: u64,
    /// Time of the last popped entry: none is due before.
    last_ns: u64,
    /// Time of the next entry; `u64::MAX`: none.
    next_ns: u64,
}

impl RadixHeap {
    fn new() -> Self {
        RadixHeap {
            nodes: Vec::new(),
            free: NONE,
            used: 0,
            buckets: [Bucket { head: NONE, first_ns: u64::MAX }; 64],
            occupied: 0,
            last_ns: 0,
            next_ns: u64::MAX,
        }
    }

    fn len(&self) -> usize {
        self.used
    }

    fn push(&mut self, mut entry: TimerEntry) -> u64 {
        entry.due_ns = entry.due_ns.clamp(self.last_ns, LAST_NS);
        let node = Node { entry, next: NONE };
        let at = match self.nodes.get_mut(self.free as usize) {
            Some(vacant) => {
                let at = std::mem::replace(&mut self.free, vacant.next);
                *vacant = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.used += 1;
        self.next_ns = self.next_ns.min(entry.due_ns);
        self.link(at, entry.due_ns);
        entry.due_ns
    }

    /// Links a node into the bucket of its time.
    fn link(&mut self, at: u32, due_ns: u64) {
        let i = u64::BITS - (due_ns ^ self.last_ns).leading_zeros();
        let bucket = &mut self.buckets[i as usize];
        self.nodes[at as usize].next = std::mem::replace(&mut bucket.head, at);
        bucket.first_ns = bucket.first_ns.min(due_ns);
        self.occupied |= 1 << i;
    }

    /// Empties a bucket; returns the first node of its list.
    fn take(&mut self, i: u32) -> u32 {
        self.occupied &= !(1 << i);
        let bucket = &mut self.buckets[i as usize];
        bucket.first_ns = u64::MAX;
        std::mem::replace(&mut bucket.head, NONE)
    }

    /// Removes the next entry if it is due.
    fn pop(&mut self, now_ns: u64) -> Option<TimerEntry> {
        if self.next_ns > now_ns || self.used == 0 {
            return None;
        }
        if self.occupied & 1 == 0 {
            // The bucket's first entry moves to bucket 0, the others to buckets below this one.
            let lowest = self.occupied.trailing_zeros();
            self.last_ns = self.next_ns;
            let mut at = self.take(lowest);
            while let Some(&Node { entry, next }) = self.nodes.get(at as usize) {
                self.link(at, entry.due_ns);
                at = next;
            }
        }
        let at = self.buckets[0].head;
        let node = self.nodes.get_mut(at as usize)?;
        let entry = node.entry;
        let next = std::mem::replace(&mut node.next, self.free);
        self.free = at;
        self.used -= 1;
        self.buckets[0].head = next;
        if next == NONE {
            self.take(0);
            self.next_ns = match self.occupied {
                0 => u64::MAX,
                some => self.buckets[some.trailing_zeros() as usize].first_ns,
            };
        }
        Some(entry)
    }

    fn retain(&mut self, mut is_needed: impl FnMut(&TimerEntry) -> bool) {
        let last_ns = self.last_ns;
        let old = std::mem::replace(self, RadixHeap { last_ns, ..RadixHeap::new() });
        for bucket in old.buckets {
            let mut at = bucket.head;
            while let Some(Node { entry, next }) = old.nodes.get(at as usize) {
                if is_needed(entry) {
                    self.push(*entry);
                }
                at = *next;
            }
        }
    }

    fn trim(&mut self) {
        if self.used == 0 && self.nodes.capacity() > SIFT_MIN {
            (self.nodes, self.free) = (Vec::new(), NONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn any_entry_is_encoded_in_two_words() {
        for session in [0, 7, SESSIONS_LIMIT as u32 - 1] {
            let kinds = [
                (TimerKind::Slot(0), 1),
                (TimerKind::Slot(31), u32::MAX),
                (TimerKind::Queue, 0),
                (TimerKind::Idle, 0),
                (TimerKind::Messages, 0),
                (TimerKind::Sweep, 0),
                (TimerKind::Held, 1 << 31),
            ];
            for (kind, generation) in kinds {
                let entry = TimerEntry { due_ns: u64::MAX - 1, session, generation, kind };
                assert_eq!(Queued::new(entry).entry(), entry);
                assert!(!entry.is_cancelled());
            }
        }
        let gone = Queued::cancelled(5).entry();
        assert!(gone.is_cancelled() && gone.due_ns == 5);
    }

    fn entry(due_ns: u64, session: u32) -> TimerEntry {
        TimerEntry { due_ns, session, generation: 0, kind: TimerKind::Slot(0) }
    }

    proptest! {
        /// Compared with a sorted map: pushes at any distance, pops as time advances.
        #[test]
        fn entries_expire_in_order_of_their_times(
            steps in prop::collection::vec((0_u32..40, 0_u64..u64::MAX, 0_u32..36), 1..300),
        ) {
            let mut heap = RadixHeap::new();
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            let mut now = 0_u64;
            for (number, (bits, random, advance)) in (0..).zip(steps) {
                let due = now + (random & ((1 << bits) - 1));
                heap.push(entry(due, number));
                *model.entry(due).or_default() += 1;
                prop_assert_eq!(heap.next_ns, *model.first_key_value().unwrap().0);
                now += (random >> 7) & ((1 << advance) - 1);
                while let Some(e) = heap.pop(now) {
                    let mut first = model.first_entry().unwrap();
                    prop_assert_eq!(e.due_ns, *first.key());
                    prop_assert!(e.due_ns <= now);
                    *first.get_mut() -= 1;
                    if *first.get() == 0 {
                        first.remove();
                    }
                }
                let next = model.first_key_value().map_or(u64::MAX, |(&t, _)| t);
                prop_assert!(heap.next_ns == next && next > now);
                prop_assert_eq!(heap.len(), model.values().sum::<u32>() as usize);
            }
        }
    }

    #[test]
    fn memory_is_reused_and_freed() {
        let mut t = Timers::new();
        for round in 0..100_u64 {
            for i in 0..2_000 {
                t.arm_later(entry(round * 1_000_000 + u64::from(i), i));
                t.arm_first(entry(round * 1_000_000, i));
                t.arm_quiet(entry(round * 1_000_000, i));
            }
            let popped = std::iter::from_fn(|| t.pop((round + 1) * 1_000_000)).count();
            assert_eq!(popped, 6_000);
            assert!(t.heap_bytes() <= 4096 * (size_of::<Node>() + 2 * size_of::<TimerEntry>()));
        }
        t.trim();
        assert_eq!((t.heap_bytes(), t.next_ns()), (0, u64::MAX));
    }

    #[test]
    fn obsolete_entries_are_sifted_out() {
        let mut t = Timers::new();
        let mut sifted = 0;
        for i in 0..100_000_u32 {
            match i % 3 {
                0 => t.arm_quiet(entry(1 << 40, i)),
                _ => drop(t.arm_later(entry(1 << 40, i))),
            }
            if t.overgrown() {
                t.sift(|e| e.session.is_multiple_of(100));
                sifted += 1;
            }
        }
        let len = t.later.len() + t.quiet.len();
        assert!(sifted >= 10 && len <= 2 * 1_000 + SIFT_MIN, "{sifted}");
        t.sift(|e| e.session.is_multiple_of(100));
        let left = std::iter::from_fn(|| t.pop(1 << 40)).map(|(_, e)| e.session);
        assert_eq!(left.filter(|s| s.is_multiple_of(100)).count(), 1_000);
    }

    #[test]
    fn removing_a_first_timer_updates_the_next_time() {
        let mut t = Timers::new();
        t.arm_first(entry(10, 0));
        t.arm_later(entry(15, 1));
        assert_eq!((t.first_due(9), t.first_due(10)), (None, Some(entry(10, 0))));
        t.drop_first();
        assert_eq!((t.first_due(10), t.next_ns()), (None, 15));
        assert_eq!(t.pop(15).map(|(queue, _)| queue), Some(Due::Later));
        t.arm_first(entry(30, 2));
        t.drop_first();
        assert_eq!(t.next_ns(), u64::MAX);
    }

    #[test]
    fn cancelled_timers_are_limited() {
        let mut t = Timers::new();
        let calls = (0..100_000).filter(|&i| {
            let place = t.arm_first(entry(1 << 40, i));
            t.cancel_first(place, i)
        });
        assert_eq!(calls.count(), CANCELLED_MAX);
    }

    #[test]
    fn a_first_timer_is_cancelled_at_any_queue_position() {
        let mut t = Timers::new();
        t.taken = u32::MAX - 1; // positions wrap
        let places: Vec<u32> = (0..4).map(|i| t.arm_first(entry(10, i))).collect();
        t.drop_first();
        assert!(!t.cancel_first(places[0], 0), "it was removed");
        assert!(!t.cancel_first(places[1], 3), "somebody else's");
        assert!(t.cancel_first(places[2], 2));
        assert!(!t.cancel_first(places[3].wrapping_add(1), 3), "not there yet");
        let left: Vec<bool> =
            std::iter::from_fn(|| t.pop(10)).map(|e| e.1.is_cancelled()).collect();
        assert_eq!(left, [false, true, false]);
    }

    #[test]
    fn the_earliest_of_all_queues_expires_first() {
        let mut t = Timers::new();
        t.arm_first(entry(10, 0));
        t.arm_quiet(entry(12, 3));
        t.arm_first(entry(20, 1));
        t.arm_later(entry(15, 2));
        t.arm_quiet(entry(17, 4));
        assert_eq!((t.next_ns(), t.pop(9)), (10, None));
        let order: Vec<_> = std::iter::from_fn(|| t.pop(30)).map(|(l, e)| (l, e.session)).collect();
        let (first, later) = (Due::First, Due::Later);
        assert_eq!(order, [(first, 0), (later, 3), (later, 2), (later, 4), (first, 1)]);
        assert_eq!(t.next_ns(), u64::MAX);
    }
}
