//! Invariants of every simulation, whatever the application: checked during the run.
//!
//! The invariants are numbered. Each is broken by at least one planted bug
//! (`courser_proto::mutant`), so that a check without effect is detected.

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::panic::{AssertUnwindSafe, catch_unwind};

use courser_proto::RequestId;

use crate::host::hash::Mix;
use crate::host::life::Life;
use crate::host::machine::{Run, SimMachine};
use crate::host::process::Endpoint;
use crate::observe::DropReason;
use crate::packet::{HostId, Packet};
use crate::streams::Sent;

/// Selection of checks, and the reaction to a violation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checks {
    /// True if handlers' requests are recorded: about 50 bytes each.
    pub at_most_once: bool,
    /// Number of passes of an endpoint between checks of its protocol state; 0: never.
    pub every_passes: u64,
    /// Treat a panic of a handler as a violation although its request is answered, since a failed
    /// assertion would pass unnoticed otherwise. Default true.
    pub handler_panics: bool,
    /// Violations are recorded and end the run, instead of panicking.
    pub record: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Checks { at_most_once: true, every_passes: 16, handler_panics: true, record: false }
    }
}

/// The invariants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Invariant {
    /// I1: a request is executed at most once.
    AtMostOnce,
    /// I2: each call ends exactly once.
    ExactlyOneEnd,
    /// I3: the response belongs to its request, byte for byte.
    ResponseMatches,
    /// I4: 0 <= packets in flight <= C for each session, and all credits have returned at rest.
    Credits,
    /// I5: no transmit queue references a request buffer that was returned to the application, and
    /// no frame changes while it is in the queue (E24-E27, E69).
    Ownership,
    /// I6: no buffer is leaked.
    Leak,
    /// I7: the state of a session is freed when its peer has failed or left.
    FreedState,
    /// I8: with a connected network every call ends within a stated time after faults stop.
    Liveness,
    /// I9: a process does not accept a frame that was sent before it started.
    Incarnation,
    /// I10: the protocol's own invariants, and no panic.
    Internal,
    /// I11: the application's own rules for responses (order, deadlines).
    Application,
    /// I12: a lost packet costs few timeouts and few additional packets, and packets that were not lost
    /// are not sent again.
    Recovery,
    /// I13: senders with the same work have similar shares of a link, which is in use.
    Starvation,
    /// I14: congestion control keeps queues short.
    Queue,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Invariant; 14] = [
        Invariant::AtMostOnce,
        Invariant::ExactlyOneEnd,
        Invariant::ResponseMatches,
        Invariant::Credits,
        Invariant::Ownership,
        Invariant::Leak,
        Invariant::FreedState,
        Invariant::Liveness,
        Invariant::Incarnation,
        Invariant::Internal,
        Invariant::Application,
        Invariant::Recovery,
        Invariant::Starvation,
        Invariant::Queue,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Invariant::AtMostOnce => "at-most-once",
            Invariant::ExactlyOneEnd => "exactly-one-end",
            Invariant::ResponseMatches => "response-matches",
            Invariant::Credits => "credits",
            Invariant::Ownership => "ownership",
            Invariant::Leak => "leak",
            Invariant::FreedState => "freed-state",
            Invariant::Liveness => "liveness",
            Invariant::Incarnation => "incarnation",
            Invariant::Internal => "internal",
            Invariant::Application => "application",
            Invariant::Recovery => "recovery",
            Invariant::Starvation => "starvation",
            Invariant::Queue => "queue",
        }
    }
}

/// A violated invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The invariant that was violated.
    pub invariant: Invariant,
    /// The time of the violation, ns.
    pub at_ns: u64,
    /// Description of the violation.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violated at {} ns: {}", self.invariant.name(), self.at_ns, self.detail)
    }
}

/// Counters of a world.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Packets that hosts began to send.
    pub sent: u64,
    /// Packets that reached a receive queue.
    pub delivered: u64,
    /// Packets dropped at hosts, by [`DropReason`]; those of the network are in the fabric.
    pub dropped: [u64; DropReason::COUNT],
    /// Handlers that ran, of either kind.
    pub executed: u64,
    /// Passes of event loops.
    pub passes: u64,
    /// Processes that were started.
    pub started: u64,
    /// Processes that were killed or whose machine crashed.
    pub ended: u64,
}

type Seen = HashSet<(Life, u16, RequestId), BuildHasherDefault<Mix>>;

/// Counters of an endpoint's queues.
#[derive(Clone, Copy)]
pub(super) struct NicSeen {
    /// Received frames that were sent to an earlier process.
    pub(super) stale: u64,
    /// Frames that changed while the NIC held them.
    pub(super) changed: u64,
}

pub(super) struct Checker {
    checks: Checks,
    seed: u64,
    counts: Counts,
    log: Mix,
    seen: Seen,
    runs: Vec<Run>,
    violations: Vec<Violation>,
}

/// Kinds of entries of the event log.
mod entry {
    pub(super) const SENT: u64 = 1;
    pub(super) const DELIVERED: u64 = 2;
    pub(super) const DROPPED: u64 = 3;
    pub(super) const EXECUTED: u64 = 4;
    pub(super) const PASS: u64 = 5;
    pub(super) const CONTROL: u64 = 6;
    pub(super) const STARTED: u64 = 7;
    pub(super) const ENDED: u64 = 8;
    pub(super) const NOTE: u64 = 9;
}

impl Checker {
    pub(super) fn new(checks: Checks, seed: u64) -> Self {
        Checker {
            checks,
            seed,
            counts: Counts::default(),
            log: Mix::new(seed),
            seen: Seen::default(),
            runs: Vec::new(),
            violations: Vec::new(),
        }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn digest(&self, drops: &[u64]) -> u64 {
        let mut log = self.log.clone();
        drops.iter().for_each(|&n| log.mix(n));
        log.finish()
    }

    pub(super) fn has_stopped(&self) -> bool {
        !self.violations.is_empty()
    }

    pub(super) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    fn entry(&mut self, now_ns: u64, kind: u64, a: u64, b: u64) {
        self.log.mix(now_ns << 4 | kind);
        self.log.mix(a);
        self.log.mix(b);
    }

    pub(super) fn note(&mut self, now_ns: u64, what: u64) {
        self.entry(now_ns, entry::NOTE, what, 0);
    }

    pub(super) fn violate(&mut self, v: Violation) {
        assert!(self.checks.record, "seed {}: {v}", self.seed);
        self.violations.push(v);
    }

    pub(super) fn sent(&mut self, now_ns: u64, src: HostId, id: u64, hash: u64) {
        self.counts.sent += 1;
        self.entry(now_ns, entry::SENT, u64::from(src.0) << 40 | id, hash);
    }

    pub(super) fn delivered(&mut self, now_ns: u64, host: HostId, packet: &Packet) {
        self.counts.delivered += 1;
        let place = u64::from(host.0) << 40 | packet.id;
        self.entry(now_ns, entry::DELIVERED, place, packet.ecn as u64);
    }

    pub(super) fn dropped(&mut self, now_ns: u64, why: DropReason, packet: &Packet) {
        self.counts.dropped[why as usize] += 1;
        self.entry(now_ns, entry::DROPPED, packet.id, why as u64);
    }

    pub(super) fn control(&mut self, now_ns: u64, sent: &Sent, bytes: &[u8]) {
        self.entry(now_ns, entry::CONTROL, sent.conn << 1 | sent.side as u64, bytes.len() as u64);
        self.log.mix(crate::host::hash::payload_hash(std::iter::once(bytes)));
    }

    pub(super) fn started(&mut self, now_ns: u64, life: Life) {
        self.counts.started += 1;
        self.entry(now_ns, entry::STARTED, u64::from(life.host.0), u64::from(life.number));
    }

    pub(super) fn ended(&mut self, now_ns: u64, life: Life) {
        self.counts.ended += 1;
        self.entry(now_ns, entry::ENDED, u64::from(life.host.0), u64::from(life.number));
        self.seen.retain(|(of, ..)| *of != life);
    }

    /// After each pass of an endpoint.
    pub(super) fn after_pass(
        &mut self,
        now_ns: u64,
        life: Life,
        e: &mut Endpoint,
        machine: &SimMachine,
        nic: NicSeen,
    ) {
        self.counts.passes += 1;
        let stats = e.rpc.stats();
        let ended = stats.responses + stats.errors;
        let rejected = stats.rx_frames - stats.rx_frames_accepted;
        let thread = u64::from(life.host.0) << 16 | u64::from(e.rpc.index());
        self.entry(now_ns, entry::PASS, thread, ended);
        self.executed(now_ns, life, machine);
        let NicSeen { stale, changed } = nic;
        if stale - e.stale > rejected - e.rejected {
            let detail = format!("n{} has accepted a frame for an earlier process", life.host.0);
            self.violate(Violation { invariant: Invariant::Incarnation, at_ns: now_ns, detail });
        }
        (e.stale, e.rejected) = (stale, rejected);
        if changed > 0 {
            let detail = format!("n{}: a frame changed while the NIC held it", life.host.0);
            self.violate(Violation { invariant: Invariant::Ownership, at_ns: now_ns, detail });
        }
        let panics = e.rpc.handler_stats().panics;
        if panics > e.panics && self.checks.handler_panics {
            let detail = format!("n{}: a handler has panicked", life.host.0);
            self.violate(Violation { invariant: Invariant::Internal, at_ns: now_ns, detail });
        }
        e.panics = panics;
        let every = self.checks.every_passes;
        if every > 0 && e.passes.is_multiple_of(every) {
            self.internal(now_ns, life, e);
        }
    }

    fn executed(&mut self, now_ns: u64, life: Life, machine: &SimMachine) {
        let mut runs = std::mem::take(&mut self.runs);
        machine.take_runs(&mut runs);
        for run in runs.drain(..) {
            self.ran(now_ns, life, run);
        }
        self.runs = runs;
    }

    /// A handler of either kind has run, or starts.
    pub(super) fn ran(&mut self, now_ns: u64, life: Life, run: Run) {
        self.counts.executed += 1;
        let id = run.request;
        let request = u64::from(id.slot()) << 32 | u64::from(id.req_num());
        let session = u64::from(id.session().index());
        self.entry(now_ns, entry::EXECUTED, session << 16 | u64::from(run.req_type), request);
        if self.checks.at_most_once && !self.seen.insert((life, run.endpoint, id)) {
            let detail = format!("n{} has executed {id:?} twice", life.host.0);
            self.violate(Violation { invariant: Invariant::AtMostOnce, at_ns: now_ns, detail });
        }
    }

    /// The protocol's own checks, and the sum of all calls.
    pub(super) fn internal(&mut self, now_ns: u64, life: Life, e: &mut Endpoint) {
        let checked = catch_unwind(AssertUnwindSafe(|| {
            e.rpc.check();
            e.rpc.check_overdue(&mut e.overdue);
        }));
        if let Err(panic) = checked {
            let text = panic_text(&*panic);
            let detail = format!("n{}: {text}", life.host.0);
            self.violate(Violation { invariant: Invariant::Internal, at_ns: now_ns, detail });
        }
        let stats = e.rpc.stats();
        let (ended, open) = (stats.responses + stats.errors, e.rpc.outstanding_calls());
        if stats.calls != ended + open {
            let calls = stats.calls;
            let host = life.host.0;
            let detail = format!("n{host}: {calls} calls, {ended} ended, {open} under way");
            let invariant = Invariant::ExactlyOneEnd;
            self.violate(Violation { invariant, at_ns: now_ns, detail });
        }
    }
}

/// The text of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}
