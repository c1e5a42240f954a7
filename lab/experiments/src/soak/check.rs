//! Compares the executions that servers recorded with the outcomes that clients recorded.
//!
//! Invariants, also when processes are killed or stopped:
//! 1. A server executes a request at most once.
//! 2. A request was executed if its call succeeded or ended with the verdict "executed". It was not
//!    and will not be executed if the call ended with the verdict "never executed".
//! 3. Every byte of every message is correct. A response belongs to its call and to the incarnation
//!    that the session was connected to.
//! 4. Each call ends exactly once.
//! 5. A call with a deadline ends soon after it. After a server is killed or stopped, its open calls
//!    end within a time limit.
//! 6. Every executed request was sent by a client.
//!
//! The checker keeps a call until both sides have recorded it and [`KEEP_NS`] have passed, which
//! bounds the memory of a long run. A later record of that call violates invariant 6.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::client::ERRORS;
use super::ledger::{Event, Record};
use super::message::{LEAF, TINY};

/// Time for which the checker keeps a call that both sides have recorded.
const KEEP_NS: u64 = 30_000_000_000;

/// Violations with a description in the report; all are counted.
const DESCRIBED: usize = 50;

/// The records of one call at one incarnation of a server.
#[derive(Clone, Copy, Default)]
struct Call {
    executed: u32,
    /// Outcome reported by the client.
    end: Option<Event>,
    /// A nested call, whose outcome no client records.
    leaf: bool,
    /// The request is too short for the number of the call, so servers do not record it.
    tiny: bool,
    newest_ns: u64,
}

/// A fault: a server was killed or stopped.
#[derive(Clone, Copy)]
struct Fault {
    at_ns: u64,
    /// End of the stop; `u64::MAX` after a kill.
    until_ns: u64,
}

/// Totals over a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) calls: u64,
    pub(super) succeeded: u64,
    pub(super) bytes: u64,
    pub(super) executions: u64,
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) longest_us: u32,
    /// Longest time from a fault to the end of a call that was open at that server, ns.
    pub(super) max_end_after_fault_ns: u64,
    /// Calls that were open at a server with a fault.
    pub(super) hit: u64,
}

/// See the module's documentation.
pub(super) struct Checker {
    calls: HashMap<(u64, u64), Call>,
    /// Faults by incarnation.
    faults: HashMap<u64, Vec<Fault>>,
    /// Upper 16 bits of the calls of killed clients, which record no outcomes.
    killed_clients: BTreeSet<u64>,
    end_limit_ns: u64,
    pub(super) totals: Totals,
    pub(super) violations: u64,
    pub(super) described: Vec<String>,
}

impl Checker {
    pub(super) fn new(end_limit_ns: u64) -> Self {
        Self {
            calls: HashMap::new(),
            faults: HashMap::new(),
            killed_clients: BTreeSet::new(),
            end_limit_ns,
            totals: Totals::default(),
            violations: 0,
            described: Vec::new(),
        }
    }

    pub(super) fn violation(&mut self, text: String) {
        self.violations += 1;
        if self.described.len() < DESCRIBED {
            self.described.push(text);
        }
    }

    /// Records that a server was killed or stopped.
    pub(super) fn fault_began(&mut self, incarnation: u64, at_ns: u64) {
        self.faults.entry(incarnation).or_default().push(Fault { at_ns, until_ns: u64::MAX });
    }

    /// Records that a stopped server continues.
    pub(super) fn fault_ended(&mut self, incarnation: u64, at_ns: u64) {
        if let Some(fault) = self.faults.get_mut(&incarnation).and_then(|faults| faults.last_mut())
        {
            fault.until_ns = at_ns;
        }
    }

    /// Records that a client was killed.
    pub(super) fn killed_client(&mut self, number: u16) {
        self.killed_clients.insert(number.into());
    }

    /// Processes a record from the ledger of a server or a client.
    pub(super) fn take(&mut self, r: Record) {
        match r.event {
            Event::Executed => self.executed(r),
            Event::CorruptRequest => self.violation(format!("{}: a corrupt request", name(&r))),
            Event::CorruptResponse => self.violation(format!("{}: a corrupt response", name(&r))),
            Event::Hung => self.violation(format!("{}: no end after {} us", name(&r), r.took_us)),
            Event::Late => self.violation(format!("{}: long after its deadline", name(&r))),
            Event::EndedTwice => self.violation(format!("{}: ended twice", name(&r))),
            Event::Succeeded | Event::Never | Event::Maybe | Event::Ran => {}
        }
        let ended = match r.event {
            Event::Executed | Event::CorruptRequest | Event::EndedTwice | Event::Late => return,
            Event::CorruptResponse if r.req_type == LEAF => return,
            ended => ended,
        };
        self.count(&r);
        self.check_faults(&r);
        let call = self.calls.entry((r.incarnation, r.id)).or_default();
        if call.end.replace(ended).is_some() {
            self.violation(format!("{}: two outcomes recorded", name(&r)));
        } else {
            call.newest_ns = call.newest_ns.max(r.at_ns);
            call.tiny = r.req_type == TINY;
        }
    }

    fn executed(&mut self, r: Record) {
        self.totals.executions += 1;
        let call = self.calls.entry((r.incarnation, r.id)).or_default();
        call.executed += 1;
        call.leaf |= r.req_type == LEAF;
        call.newest_ns = call.newest_ns.max(r.at_ns);
        if call.executed > 1 {
            let times = call.executed;
            self.violation(format!("{}: executed {times} times", name(&r)));
        }
    }

    fn count(&mut self, r: &Record) {
        let t = &mut self.totals;
        t.calls += 1;
        t.longest_us = t.longest_us.max(r.took_us);
        if r.event == Event::Succeeded {
            t.succeeded += 1;
            t.bytes += u64::from(r.bytes);
            return;
        }
        let error = ERRORS.get(usize::from(r.error)).copied().unwrap_or("?");
        let executed = match r.event {
            Event::Never => " (never executed)",
            Event::Maybe => " (may have executed)",
            Event::Ran => " (executed)",
            _ => "",
        };
        *t.errors.entry(format!("{error}{executed}")).or_default() += 1;
    }

    /// Invariant 5. Of a stopped server, calls count that began before it continued.
    fn check_faults(&mut self, r: &Record) {
        let began_ns = r.at_ns.saturating_sub(u64::from(r.took_us) * 1000);
        for fault in self.faults.get(&r.incarnation).into_iter().flatten() {
            if r.at_ns <= fault.at_ns || began_ns > fault.until_ns {
                continue;
            }
            let after_ns = r.at_ns - began_ns.max(fault.at_ns);
            self.totals.hit += 1;
            self.totals.max_end_after_fault_ns = self.totals.max_end_after_fault_ns.max(after_ns);
            if after_ns > self.end_limit_ns {
                let text = format!(
                    "{}: ended {} ms after the fault of its server",
                    name(r),
                    after_ns / 1_000_000
                );
                return self.violation(text);
            }
        }
    }

    /// Checks and forgets calls that both sides recorded long ago, or, at the end, all calls. A call
    /// without a record of one side is kept, because that record may still arrive.
    pub(super) fn settle(&mut self, now_ns: u64, at_end: bool) {
        let mut wrong = Vec::new();
        self.calls.retain(|&(incarnation, id), call| {
            let recorded = (call.executed > 0 && (call.leaf || call.end.is_some())) || call.tiny;
            let old = recorded && now_ns.saturating_sub(call.newest_ns) > KEEP_NS;
            if !at_end && !old {
                return true;
            }
            if let Some(why) = call.wrong(self.killed_clients.contains(&(id >> 48))) {
                wrong.push(format!("call {id:#x} at server {incarnation}: {why}"));
            }
            false
        });
        wrong.into_iter().for_each(|text| self.violation(text));
    }
}

impl Call {
    /// Invariants 2 and 6. Second executions are found when their records are read.
    fn wrong(&self, client_killed: bool) -> Option<&'static str> {
        match (self.end, self.executed > 0) {
            (Some(Event::Succeeded), false) if !self.tiny => Some("succeeded, but never executed"),
            (Some(Event::Ran), false) if !self.tiny => {
                Some("reported as executed, but never executed")
            }
            (Some(Event::Never), true) => Some("reported as never executed, but executed"),
            (None, true) if !self.leaf && !client_killed => Some("executed, but no client called"),
            _ => None,
        }
    }
}

fn name(r: &Record) -> String {
    format!("call {:#x} of type {} at server {}", r.id, r.req_type, r.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::message::ECHO;

    const S: u64 = 1_000_000_000;

    fn record(event: Event, id: u64) -> Record {
        Record {
            event,
            req_type: ECHO,
            error: 0,
            id,
            incarnation: 1,
            at_ns: S,
            took_us: 100,
            bytes: 8,
        }
    }

    /// The violations that the checker finds in these records.
    fn violations_of(records: &[Record]) -> Vec<String> {
        let mut checker = Checker::new(S);
        records.iter().for_each(|&r| checker.take(r));
        checker.settle(2 * S, true);
        assert_eq!(checker.violations, checker.described.len() as u64);
        checker.described
    }

    #[test]
    fn permitted_orders_of_records_are_no_violations() {
        use Event::*;
        for records in [
            &[Executed, Succeeded][..],
            // The ledgers are read one after the other.
            &[Succeeded, Executed],
            &[Never],
            &[Maybe],
            &[Maybe, Executed],
            &[Executed, Ran],
        ] {
            let records: Vec<_> = records.iter().map(|&e| record(e, 7)).collect();
            assert_eq!(violations_of(&records), [""; 0], "{records:?}");
        }
        // Only the server records nested calls, only the client records tiny calls.
        assert_eq!(violations_of(&[Record { req_type: LEAF, ..record(Executed, 1) }]), [""; 0]);
        assert_eq!(violations_of(&[Record { req_type: TINY, ..record(Succeeded, 1) }]), [""; 0]);
    }

    #[test]
    fn violations_are_described() {
        use Event::*;
        for (records, why) in [
            (&[Executed, Executed, Succeeded][..], "executed 2 times"),
            (&[Succeeded], "succeeded, but never executed"),
            (&[Never, Executed], "reported as never executed, but executed"),
            (&[Ran], "reported as executed, but never executed"),
            (&[Executed], "no client called"),
            (&[Executed, CorruptResponse], "a corrupt response"),
            (&[CorruptRequest], "a corrupt request"),
            (&[Executed, Hung], "no end after 100 us"),
            (&[Executed, Succeeded, Maybe], "two outcomes recorded"),
            (&[Executed, Succeeded, EndedTwice], "ended twice"),
            (&[Late, Maybe], "long after its deadline"),
        ] {
            let records: Vec<_> = records.iter().map(|&e| record(e, 7)).collect();
            let found = violations_of(&records);
            assert!(found.len() == 1 && found[0].contains(why), "{records:?}: {found:?}");
        }
    }

    #[test]
    fn calls_of_a_killed_client_need_no_outcome() {
        let mut checker = Checker::new(S);
        checker.killed_client(3);
        checker.take(record(Event::Executed, 3 << 48 | 5));
        checker.take(record(Event::Executed, 4 << 48 | 5));
        checker.settle(0, true);
        assert_eq!(checker.violations, 1);
    }

    #[test]
    fn calls_must_end_soon_after_a_fault_of_their_server() {
        let end = |incarnation, at_ns, took_us| {
            let error = Record { incarnation, at_ns, took_us, ..record(Event::Maybe, at_ns) };
            Record { error: 2, ..error }
        };
        for (woken, record, violations, hit) in [
            (None, end(1, 11 * S - 1, 1_500_000), 0, 1),
            (None, end(1, 11 * S + 1, 1_500_000), 1, 1),
            (None, end(2, 20 * S, 15_000_000), 0, 0),
            (None, end(1, 9 * S, 1_500_000), 0, 0),
            // Begun after the fault, and open until long after it.
            (None, end(1, 20 * S, 1_500_000), 1, 1),
            (Some(12 * S), end(1, 20 * S, 1_500_000), 0, 0),
            (Some(12 * S), end(1, 12 * S, 100_000), 0, 1),
            (Some(12 * S), end(1, 20 * S, 15_000_000), 1, 1),
        ] {
            let mut checker = Checker::new(S);
            checker.fault_began(1, 10 * S);
            woken.into_iter().for_each(|at_ns| checker.fault_ended(1, at_ns));
            checker.take(record);
            assert_eq!((checker.violations, checker.totals.hit), (violations, hit), "{record:?}");
        }
    }

    #[test]
    fn settled_calls_are_forgotten_and_later_records_of_them_are_violations() {
        let mut checker = Checker::new(S);
        for id in 0..10 {
            checker.take(record(Event::Executed, id));
            checker.take(record(Event::Succeeded, id));
        }
        checker.take(record(Event::Never, 10));
        checker.settle(KEEP_NS, false);
        assert_eq!(checker.calls.len(), 11);
        checker.settle(KEEP_NS + 2 * S, false);
        assert_eq!(checker.calls.len(), 1, "a call without an execution is kept");
        checker.take(record(Event::Executed, 3));
        checker.take(record(Event::Executed, 10));
        checker.settle(KEEP_NS + 2 * S, true);
        assert_eq!(checker.violations, 2, "{:?}", checker.described);
    }
}
