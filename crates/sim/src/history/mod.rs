//! Histories of calls, and a check that they are linearizable.
//!
//! A history is linearizable if each call takes effect at one moment between its begin and its end, so
//! that all answers are those of a sequential [`Model`] (Herlihy and Wing, TOPLAS '90). The check is
//! that of Wing and Gong (JPDC '93) with Lowe's memory of visited states (Concurrency and Computation
//! '17): a depth-first search of the orders. Linearizability is local, so the calls of each key are
//! checked alone.
//!
//! * A call without an answer may have taken effect at any time after its begin, or not at all.
//! * The search is exponential in the number of concurrent calls. [`Limits`] end it with
//!   [`Verdict::Unknown`].
//! * A call that ends at the time at which another one begins counts as concurrent with it.
//!
//! ```
//! use courser_sim::history::{History, KvAnswer, KvModel, KvOp, Limits, Verdict};
//!
//! let mut history = History::default();
//! let put = history.begin(10, KvOp::Put("a", 1));
//! let get = history.begin(20, KvOp::Get("a"));
//! history.end(get, 30, KvAnswer::Value(Some(1)));
//! // The put has no answer: it has taken effect here.
//! assert_eq!(history.check(&KvModel::default(), Limits::default()), Verdict::Linearizable);
//! let get = history.begin(40, KvOp::Get("a"));
//! history.end(get, 50, KvAnswer::Value(None));
//! let verdict = history.check(&KvModel::default(), Limits::default());
//! assert!(matches!(verdict, Verdict::Violation { call, .. } if call == get), "{verdict:?}");
//! # let _ = put;
//! ```

mod bits;
mod check;
mod kv;
mod order;
mod recorder;
mod seeds;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;

pub use kv::{KvAnswer, KvModel, KvOp};
pub use recorder::{Recorder, Recording};
pub use seeds::Seeds;

/// The sequential behaviour of a service.
pub trait Model {
    /// The state of one key.
    type State: Clone + Eq + Hash;
    /// An operation.
    type Op;
    /// Its answer.
    type Answer;
    /// The key of an operation. Operations of different keys have nothing to do with each other; a
    /// model of operations on several keys has one key for all.
    type Key: Ord + Clone + fmt::Debug;

    /// The key of an operation.
    fn key(&self, op: &Self::Op) -> Self::Key;

    /// The state of a key before the first operation.
    fn initial(&self, key: &Self::Key) -> Self::State;

    /// The state after an operation; `None` if it cannot have this answer. Without an answer it is the
    /// state after an operation that took effect.
    fn step(
        &self,
        state: &Self::State,
        op: &Self::Op,
        answer: Option<&Self::Answer>,
    ) -> Option<Self::State>;

    /// Returns whether an operation never changes the state. Such calls without an answer are left out,
    /// which saves time.
    fn is_read(&self, _: &Self::Op) -> bool {
        false
    }
}

/// A call of a history.
#[derive(Clone, Debug)]
pub struct Call<O, A> {
    /// When it began, ns.
    pub begin_ns: u64,
    /// When it ended, ns, and its answer. `None`: the outcome is unknown.
    pub end: Option<(u64, A)>,
    /// The operation.
    pub op: O,
    /// It certainly had no effect.
    is_void: bool,
}

/// Calls with the times of their begins and ends, in the time of one clock: in the simulator that of
/// the world ([`crate::thread_now_ns`]), not those of the hosts.
#[derive(Clone, Debug)]
pub struct History<O, A> {
    calls: Vec<Call<O, A>>,
}

impl<O, A> Default for History<O, A> {
    fn default() -> Self {
        History { calls: Vec::new() }
    }
}

/// Ends of a search that takes too long, for each key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most steps. Default 10 million, a few seconds.
    pub steps: u64,
    /// Most visited states in memory, of some hundred bytes each. Default 1 million.
    pub states: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { steps: 10_000_000, states: 1_000_000 }
    }
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict<K> {
    /// There is an order that explains all answers.
    Linearizable,
    /// There is none for a key.
    Violation {
        /// The key.
        key: K,
        /// The first call whose answer no order explains that explains the ends before it.
        call: usize,
        /// Calls of the key that were concurrent with it, and the last ones that ended before it.
        around: Vec<usize>,
    },
    /// A limit ended the search for a key. No violation was found.
    Unknown {
        /// The key.
        key: K,
        /// Steps of the search.
        steps: u64,
    },
}

impl<O, A> History<O, A> {
    /// A call begins. Returns its number.
    pub fn begin(&mut self, at_ns: u64, op: O) -> usize {
        self.calls.push(Call { begin_ns: at_ns, end: None, op, is_void: false });
        self.calls.len() - 1
    }

    /// A call ends with an answer. A call that never ends has an unknown outcome.
    ///
    /// # Panics
    /// There is no such call.
    pub fn end(&mut self, call: usize, at_ns: u64, answer: A) {
        let call = &mut self.calls[call];
        call.end = Some((at_ns.max(call.begin_ns), answer));
    }

    /// A call ends that certainly had no effect, and never will have one: it is left out.
    ///
    /// # Panics
    /// There is no such call.
    pub fn end_without_effect(&mut self, call: usize) {
        self.calls[call].is_void = true;
    }

    /// The calls, by number.
    pub fn calls(&self) -> &[Call<O, A>] {
        &self.calls
    }

    /// Checks it. The first key with a violation ends the check; a key without a verdict does not.
    pub fn check<M: Model<Op = O, Answer = A>>(
        &self,
        model: &M,
        limits: Limits,
    ) -> Verdict<M::Key> {
        let mut keys: BTreeMap<M::Key, Vec<usize>> = BTreeMap::new();
        for (number, call) in self.calls.iter().enumerate() {
            let matters = call.end.is_some() || !model.is_read(&call.op);
            if matters && !call.is_void {
                keys.entry(model.key(&call.op)).or_default().push(number);
            }
        }
        let mut verdict = Verdict::Linearizable;
        for (key, calls) in keys {
            match check::check(model, model.initial(&key), &self.calls, &calls, limits) {
                check::Outcome::Linearizable => {}
                check::Outcome::Unknown { steps } => {
                    if verdict == Verdict::Linearizable {
                        verdict = Verdict::Unknown { key, steps };
                    }
                }
                check::Outcome::Violation { call } => {
                    let around = self.around(&calls, call);
                    return Verdict::Violation { key, call, around };
                }
            }
        }
        verdict
    }

    /// The calls around one, for reports.
    fn around(&self, of_key: &[usize], call: usize) -> Vec<usize> {
        /// Most earlier calls.
        const BEFORE: usize = 4;
        let (begin_ns, end_ns) = (self.calls[call].begin_ns, self.ended_ns(call));
        let other = of_key.iter().copied().filter(|&number| number != call);
        let (mut before, mut around): (Vec<_>, Vec<_>) = other
            .filter(|&number| self.calls[number].begin_ns <= end_ns)
            .partition(|&number| self.ended_ns(number) < begin_ns);
        before.sort_by_key(|&number| self.ended_ns(number));
        let skipped = before.len().saturating_sub(BEFORE);
        around.extend_from_slice(&before[skipped..]);
        around.sort_by_key(|&number| (self.calls[number].begin_ns, number));
        around
    }

    fn ended_ns(&self, call: usize) -> u64 {
        self.calls[call].end.as_ref().map_or(u64::MAX, |(end_ns, _)| *end_ns)
    }
}

impl<O: fmt::Debug, A: fmt::Debug> History<O, A> {
    /// A line for each call, for reports.
    pub fn lines(&self, calls: impl IntoIterator<Item = usize>) -> String {
        let mut text = String::new();
        for number in calls {
            let Some(Call { begin_ns, end, op, .. }) = self.calls.get(number) else { continue };
            text += &match end {
                Some((end_ns, answer)) => {
                    format!("{number}: {op:?} -> {answer:?}, {begin_ns} to {end_ns} ns\n")
                }
                None => format!("{number}: {op:?} -> unknown, from {begin_ns} ns\n"),
            };
        }
        text
    }

    /// Checks it, and fails with the calls around a violation.
    ///
    /// # Panics
    /// It is not linearizable, or a limit was reached.
    pub fn assert_linearizable<M: Model<Op = O, Answer = A>>(&self, model: &M, limits: Limits) {
        let verdict = self.check(model, limits);
        assert!(matches!(verdict, Verdict::Linearizable), "{}", self.explain(&verdict));
    }

    /// A verdict in words, with the calls around a violation.
    pub fn explain<K: fmt::Debug>(&self, verdict: &Verdict<K>) -> String {
        match verdict {
            Verdict::Linearizable => "linearizable".to_owned(),
            Verdict::Unknown { key, steps } => {
                format!("no verdict for key {key:?} after {steps} steps; record shorter histories")
            }
            Verdict::Violation { key, call, around } => {
                let (this, others) = (self.lines([*call]), self.lines(around.iter().copied()));
                format!(
                    "key {key:?} is not linearizable:\n{this}no order explains it among\n{others}"
                )
            }
        }
    }
}
