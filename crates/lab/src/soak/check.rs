//! Compares what servers did with what clients were told.
//!
//! What must hold, whatever is killed or stopped:
//! 1. A request runs at most once at its server.
//! 2. A call that succeeded ran; one whose error says "executed" ran; one whose error says
//!    "never executed" did not, and does not later.
//! 3. Every byte of every message is right, and each response is that of its call and of the
//!    incarnation that its session was connected to.
//! 4. Each call ends, and once.
//! 5. A call with a deadline has ended soon after it. After a server is killed or stopped, the calls that it had end within a time.
//! 6. What ran was called.
//!
//! A call is remembered until both sides have told of it and [`KEEP_NS`] have passed, so that
//! the memory of a long run is bounded; a later report of it counts as a call without a caller.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::client::ERRORS;
use super::ledger::{Event, Record};
use super::message::{LEAF, TINY};

/// How long a settled call is remembered.
const KEEP_NS: u64 = 30_000_000_000;

/// Violations that are described; all are counted.
const DESCRIBED: usize = 50;

/// What is known of one call at one incarnation.
#[derive(Clone, Copy, Default)]
struct Call {
    executed: u32,
    /// How it ended, if its client has told.
    end: Option<Event>,
    /// It is a nested call, of which its caller does not tell.
    leaf: bool,
    /// Its request has no room for its number: servers do not tell of it.
    tiny: bool,
    newest_ns: u64,
}

/// A server that was killed or stopped.
#[derive(Clone, Copy)]
struct Blow {
    at_ns: u64,
    /// When it went on, if it was stopped only.
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
    /// Longest time from a blow to the end of a call that it hit, ns.
    pub(super) max_end_after_blow_ns: u64,
    /// Calls that a blow hit.
    pub(super) hit: u64,
}

/// See the module's documentation.
pub(super) struct Checker {
    calls: HashMap<(u64, u64), Call>,
    /// By incarnation.
    blows: HashMap<u64, Vec<Blow>>,
    /// Upper 16 bits of the calls of clients that were killed: their ends are not told.
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
            blows: HashMap::new(),
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

    /// A server was killed, or stopped.
    pub(super) fn struck(&mut self, incarnation: u64, at_ns: u64) {
        self.blows.entry(incarnation).or_default().push(Blow { at_ns, until_ns: u64::MAX });
    }

    /// A server that was stopped goes on.
    pub(super) fn woken(&mut self, incarnation: u64, at_ns: u64) {
        if let Some(blow) = self.blows.get_mut(&incarnation).and_then(|blows| blows.last_mut()) {
            blow.until_ns = at_ns;
        }
    }

    /// A client was killed.
    pub(super) fn killed_client(&mut self, number: u16) {
        self.killed_clients.insert(number.into());
    }

    /// Takes a line of a ledger, a server's or a client's.
    pub(super) fn take(&mut self, r: Record) {
        match r.event {
            Event::Executed => self.executed(r),
            Event::CorruptRequest => self.violation(format!("{}: a wrong request", name(&r))),
            Event::CorruptResponse => self.violation(format!("{}: a wrong response", name(&r))),
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
        self.check_blows(&r);
        let call = self.calls.entry((r.incarnation, r.id)).or_default();
        if call.end.replace(ended).is_some() {
            self.violation(format!("{}: its end was told twice", name(&r)));
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

    /// Rule 5. Of a server that was stopped, calls count that began before it went on.
    fn check_blows(&mut self, r: &Record) {
        let began_ns = r.at_ns.saturating_sub(u64::from(r.took_us) * 1000);
        for blow in self.blows.get(&r.incarnation).into_iter().flatten() {
            if r.at_ns <= blow.at_ns || began_ns > blow.until_ns {
                continue;
            }
            let after_ns = r.at_ns - began_ns.max(blow.at_ns);
            self.totals.hit += 1;
            self.totals.max_end_after_blow_ns = self.totals.max_end_after_blow_ns.max(after_ns);
            if after_ns > self.end_limit_ns {
                let text =
                    format!("{}: ended {} ms after its server died", name(r), after_ns / 1_000_000);
                return self.violation(text);
            }
        }
    }

    /// Settles calls that have been over for long, or, at the end, all. Until then one that
    /// never ran may run yet, and one that ran be told of.
    pub(super) fn settle(&mut self, now_ns: u64, at_end: bool) {
        let mut wrong = Vec::new();
        self.calls.retain(|&(incarnation, id), call| {
            let told = (call.executed > 0 && (call.leaf || call.end.is_some())) || call.tiny;
            let old = told && now_ns.saturating_sub(call.newest_ns) > KEEP_NS;
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
    /// Rules 2 and 6; executions beyond the first are noticed as they come.
    fn wrong(&self, client_killed: bool) -> Option<&'static str> {
        match (self.end, self.executed > 0) {
            (Some(Event::Succeeded), false) if !self.tiny => {
                Some("succeeded but was never executed")
            }
            (Some(Event::Ran), false) if !self.tiny => Some("reported as executed but never was"),
            (Some(Event::Never), true) => Some("reported as never executed but was"),
            (None, true) if !self.leaf && !client_killed => Some("executed but nobody called"),
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

    /// What the checker says of these records.
    fn said(records: &[Record]) -> Vec<String> {
        let mut checker = Checker::new(S);
        records.iter().for_each(|&r| checker.take(r));
        checker.settle(2 * S, true);
        assert_eq!(checker.violations, checker.described.len() as u64);
        checker.described
    }

    #[test]
    fn what_may_happen_is_no_violation() {
        use Event::*;
        for records in [
            &[Executed, Succeeded][..],
            // The two ledgers are read one after the other.
            &[Succeeded, Executed],
            &[Never],
            &[Maybe],
            &[Maybe, Executed],
            &[Executed, Ran],
        ] {
            let records: Vec<_> = records.iter().map(|&e| record(e, 7)).collect();
            assert_eq!(said(&records), [""; 0], "{records:?}");
        }
        // Nested calls are told of by the server alone, tiny ones by the client alone.
        assert_eq!(said(&[Record { req_type: LEAF, ..record(Executed, 1) }]), [""; 0]);
        assert_eq!(said(&[Record { req_type: TINY, ..record(Succeeded, 1) }]), [""; 0]);
    }

    #[test]
    fn what_must_not_happen_is_told() {
        use Event::*;
        for (records, why) in [
            (&[Executed, Executed, Succeeded][..], "executed 2 times"),
            (&[Succeeded], "succeeded but was never executed"),
            (&[Never, Executed], "reported as never executed but was"),
            (&[Ran], "reported as executed but never was"),
            (&[Executed], "nobody called"),
            (&[Executed, CorruptResponse], "a wrong response"),
            (&[CorruptRequest], "a wrong request"),
            (&[Executed, Hung], "no end after 100 us"),
            (&[Executed, Succeeded, Maybe], "told twice"),
            (&[Executed, Succeeded, EndedTwice], "ended twice"),
            (&[Late, Maybe], "long after its deadline"),
        ] {
            let records: Vec<_> = records.iter().map(|&e| record(e, 7)).collect();
            let said = said(&records);
            assert!(said.len() == 1 && said[0].contains(why), "{records:?}: {said:?}");
        }
    }

    #[test]
    fn a_killed_client_tells_of_nothing_more() {
        let mut checker = Checker::new(S);
        checker.killed_client(3);
        checker.take(record(Event::Executed, 3 << 48 | 5));
        checker.take(record(Event::Executed, 4 << 48 | 5));
        checker.settle(0, true);
        assert_eq!(checker.violations, 1);
    }

    #[test]
    fn calls_must_end_soon_after_their_server_has_died() {
        let end = |incarnation, at_ns, took_us| {
            let error = Record { incarnation, at_ns, took_us, ..record(Event::Maybe, at_ns) };
            Record { error: 2, ..error }
        };
        for (woken, record, violations, hit) in [
            (None, end(1, 11 * S - 1, 1_500_000), 0, 1),
            (None, end(1, 11 * S + 1, 1_500_000), 1, 1),
            (None, end(2, 20 * S, 15_000_000), 0, 0),
            (None, end(1, 9 * S, 1_500_000), 0, 0),
            // Begun after the blow, and never told that the server is dead.
            (None, end(1, 20 * S, 1_500_000), 1, 1),
            (Some(12 * S), end(1, 20 * S, 1_500_000), 0, 0),
            (Some(12 * S), end(1, 12 * S, 100_000), 0, 1),
            (Some(12 * S), end(1, 20 * S, 15_000_000), 1, 1),
        ] {
            let mut checker = Checker::new(S);
            checker.struck(1, 10 * S);
            woken.into_iter().for_each(|at_ns| checker.woken(1, at_ns));
            checker.take(record);
            assert_eq!((checker.violations, checker.totals.hit), (violations, hit), "{record:?}");
        }
    }

    #[test]
    fn settled_calls_are_forgotten_and_later_news_of_them_noticed() {
        let mut checker = Checker::new(S);
        for id in 0..10 {
            checker.take(record(Event::Executed, id));
            checker.take(record(Event::Succeeded, id));
        }
        checker.take(record(Event::Never, 10));
        checker.settle(KEEP_NS, false);
        assert_eq!(checker.calls.len(), 11);
        checker.settle(KEEP_NS + 2 * S, false);
        assert_eq!(checker.calls.len(), 1, "what never ran must never run");
        checker.take(record(Event::Executed, 3));
        checker.take(record(Event::Executed, 10));
        checker.settle(KEEP_NS + 2 * S, true);
        assert_eq!(checker.violations, 2, "{:?}", checker.described);
    }
}
