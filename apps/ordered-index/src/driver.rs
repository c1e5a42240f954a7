//! Keeps operations outstanding: each session has a number of slots, and a slot that has ended begins
//! again.
//!
//! The same code runs over sockets and in the simulator: its time is that of the endpoint, which is read
//! once or twice a pass, and its random numbers are its own.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use courser::{CallError, Completion, Context, Rpc, SessionId, Transport};
use courser_kit::latency::{Latency, Percentiles};
use courser_sim::Rng;

use crate::message::{
    DELETE, ECHO, GET, PUT, entry_bytes, key, nth_key, number_and_count_bytes, sum,
};
use crate::mix::{Kind, Mix};

/// Keys of a scan, as in the paper.
pub const SCANNED: u32 = 128;

/// The operations of sessions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// Shares of the kinds.
    pub mix: Mix,
    /// Operations are on the first keys of [`nth_key`], at random.
    pub keys: u64,
    /// Outstanding operations of a session.
    pub outstanding: usize,
}

/// Where operations go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To the index, with this request type for scans.
    Index {
        /// [`crate::message::SCAN`] or [`crate::message::SCAN_AT_ONCE`].
        scan: u16,
    },
    /// Nowhere: plain RPCs with requests of the same sizes.
    Plain,
}

/// Ended operations of one or several drivers.
pub struct Tally {
    latency: [Latency; 4],
    operations: [u64; 4],
    /// Operations that failed, and the last error.
    failed: u64,
    error: Option<CallError>,
    /// Answers that no index gives.
    wrong: u64,
}

/// The counts and percentiles of a time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counted {
    /// Ended operations by kind.
    pub operations: [u64; 4],
    /// Latency by kind; `None` without operations.
    pub latency: [Option<Percentiles>; 4],
    /// Operations that failed.
    pub failed: u64,
    /// The last error.
    pub error: Option<CallError>,
    /// Answers that no index gives.
    pub wrong: u64,
}

/// A tally that several drivers share.
pub type SharedTally = Rc<RefCell<Tally>>;

impl Default for Tally {
    fn default() -> Self {
        let latency = std::array::from_fn(|_| Latency::new());
        Tally { latency, operations: [0; 4], failed: 0, error: None, wrong: 0 }
    }
}

impl Tally {
    /// Returns and clears the counts.
    pub fn take(&mut self) -> Counted {
        Counted {
            operations: std::mem::take(&mut self.operations),
            latency: std::array::from_fn(|kind| self.latency[kind].take()),
            failed: std::mem::take(&mut self.failed),
            error: self.error.take(),
            wrong: std::mem::take(&mut self.wrong),
        }
    }
}

/// The driver of the sessions of an endpoint. It is the endpoint's completion function.
#[derive(Clone)]
pub struct Driver(Rc<RefCell<Inner>>);

struct Inner {
    load: Load,
    target: Target,
    slots: Vec<Slot>,
    tally: SharedTally,
    rng: Rng,
    runs: bool,
    in_flight: usize,
}

#[derive(Clone, Copy)]
struct Slot {
    session: SessionId,
    kind: Kind,
    began_ns: u64,
}

impl Driver {
    /// A driver that stands still, for the sessions of an endpoint.
    pub fn new<T: Transport>(
        rpc: &mut Rpc<T>,
        sessions: &[SessionId],
        load: Load,
        seed: u64,
        tally: SharedTally,
    ) -> Driver {
        let slot = |session: &SessionId| Slot { session: *session, kind: Kind::Get, began_ns: 0 };
        let slots: Vec<_> =
            sessions.iter().flat_map(|s| std::iter::repeat_n(slot(s), load.outstanding)).collect();
        let target = Target::Plain;
        let rng = Rng::new(seed);
        let inner = Inner { load, target, slots, tally, rng, runs: false, in_flight: 0 };
        let driver = Driver(Rc::new(RefCell::new(inner)));
        let of = driver.clone();
        rpc.on_completion(move |cx, tag, done| of.0.borrow_mut().ended(cx, tag as usize, &done));
        driver
    }

    /// Begins an operation in every slot.
    pub fn start(&self, cx: &mut Context<'_>, target: Target) {
        let mut inner = self.0.borrow_mut();
        (inner.target, inner.runs) = (target, true);
        (0..inner.slots.len()).for_each(|slot| inner.begin(cx, slot));
    }

    /// Begins no more operations.
    pub fn stop(&self) {
        self.0.borrow_mut().runs = false;
    }

    /// Operations that have not ended.
    pub fn in_flight(&self) -> usize {
        self.0.borrow().in_flight
    }
}

impl Inner {
    fn begin(&mut self, cx: &mut Context<'_>, at: usize) {
        let kind = self.load.mix.pick(self.rng.next_u64());
        let key = nth_key(self.rng.below(self.load.keys));
        let request = match kind {
            Kind::Get => cx.alloc_recycled(8).map(|mut m| {
                m.copy_from_slice(&key.to_le_bytes());
                (GET, m)
            }),
            Kind::Delete => cx.alloc_recycled(8).map(|mut m| {
                m.copy_from_slice(&key.to_le_bytes());
                (DELETE, m)
            }),
            Kind::Put => cx.alloc_recycled(16).map(|mut m| {
                m.copy_from_slice(&entry_bytes(key, self.rng.next_u64()));
                (PUT, m)
            }),
            Kind::Scan => cx.alloc_recycled(12).map(|mut m| {
                m.copy_from_slice(&number_and_count_bytes(key, SCANNED));
                (self.scan_type(), m)
            }),
        };
        // The memory limit of an endpoint is far above what its slots need.
        let Ok((req_type, request)) = request else {
            self.tally.borrow_mut().failed += 1;
            return;
        };
        let req_type = if self.target == Target::Plain { ECHO } else { req_type };
        let slot = &mut self.slots[at];
        (slot.kind, slot.began_ns) = (kind, cx.now_ns());
        match cx.request(slot.session, req_type, request).tag(at as u64).send() {
            Ok(_) => self.in_flight += 1,
            Err(_) => self.tally.borrow_mut().failed += 1,
        }
    }

    fn scan_type(&self) -> u16 {
        match self.target {
            Target::Index { scan } => scan,
            Target::Plain => ECHO,
        }
    }

    fn ended(&mut self, cx: &mut Context<'_>, at: usize, done: &Completion<'_>) {
        self.in_flight -= 1;
        let Slot { kind, began_ns, .. } = self.slots[at];
        let mut tally = self.tally.borrow_mut();
        match &done.result {
            Ok(response) => {
                tally.operations[kind as usize] += 1;
                tally.latency[kind as usize].record(cx.now_ns().saturating_sub(began_ns));
                tally.wrong += u64::from(self.is_wrong(kind, response));
            }
            Err(error) => {
                tally.failed += 1;
                tally.error = Some(*error);
            }
        }
        drop(tally);
        if self.runs {
            self.begin(cx, at);
        }
    }

    /// Returns whether an answer is none of an index that was loaded.
    fn is_wrong(&self, kind: Kind, response: &[u8]) -> bool {
        if self.target == Target::Plain {
            return false;
        }
        // Without writes the loaded values are there.
        let is_fixed = self.load.mix.share(Kind::Put) + self.load.mix.share(Kind::Delete) == 0.0;
        match kind {
            Kind::Get if is_fixed => {
                !key(response).is_some_and(|value| (1..=self.load.keys).contains(&value))
            }
            Kind::Get => !response.is_empty() && key(response).is_none(),
            Kind::Scan => sum(response).is_none_or(|sum| sum.count > SCANNED),
            Kind::Put | Kind::Delete => response.len() != 1,
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").field("operations", &self.operations).finish_non_exhaustive()
    }
}
