//! The search for an order of the calls of one key.
//!
//! Answered calls are tried before those without an answer. A state is not visited again if it was
//! visited with the same answered calls, and of the others with some of the present ones at most: these
//! can still take effect then, so that every order from here is one from there, too. Without this rule
//! each call without an answer doubles the time of the search.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::bits::{Bits, Key};
use super::order::{Event, HEAD, Order};
use super::{Call, Limits, Model};

/// The result of a search.
#[derive(Debug)]
pub(super) enum Outcome {
    Linearizable,
    /// The call whose end the search could not pass.
    Violation {
        call: usize,
    },
    Unknown {
        steps: u64,
    },
}

/// A call that has taken effect in the order that is tried.
enum Effect<S> {
    /// An answered one: the node of its begin, and the state before.
    Answered(usize, usize, S),
    /// One of the others: its number, the node of the end before which it took effect, and the state
    /// before.
    Unanswered(usize, usize, S),
}

/// The next thing to try.
enum Next {
    /// The event of an answered call.
    Node(usize),
    /// A call without an answer, before the end at a node.
    Unanswered(usize, usize),
    /// All was tried: undo the last effect.
    Back,
}

/// The states that were visited, each with the smallest sets of unanswered calls.
struct Visited<S> {
    seen: HashMap<(Key, S), Vec<Bits>>,
    count: usize,
}

impl<S: Eq + std::hash::Hash + Clone> Visited<S> {
    /// Adds a state, unless one from which more orders are possible was visited.
    fn insert(&mut self, answered: &Bits, unanswered: &Bits, state: &S) -> bool {
        match self.seen.entry((answered.key(), state.clone())) {
            Entry::Vacant(entry) => {
                entry.insert(vec![unanswered.clone()]);
            }
            Entry::Occupied(mut entry) => {
                if entry.get().iter().any(|smaller| smaller.is_subset(unanswered)) {
                    return false;
                }
                let before = entry.get().len();
                entry.get_mut().retain(|larger| !unanswered.is_subset(larger));
                self.count -= before - entry.get().len();
                entry.get_mut().push(unanswered.clone());
            }
        }
        self.count += 1;
        true
    }
}

/// The calls of a key, in two lists, each by the time of the begin.
struct Calls<'a, O, A> {
    answered: Vec<(usize, &'a Call<O, A>)>,
    unanswered: Vec<(usize, &'a Call<O, A>)>,
}

impl<'a, O, A> Calls<'a, O, A> {
    fn new(all: &'a [Call<O, A>], of_key: &[usize]) -> Self {
        let mut calls: Vec<_> = of_key.iter().map(|&number| (number, &all[number])).collect();
        calls.sort_by_key(|(_, call)| call.begin_ns);
        let (answered, unanswered) = calls.into_iter().partition(|(_, call)| call.end.is_some());
        Calls { answered, unanswered }
    }

    fn order(&self) -> Order {
        let times = self.answered.iter().filter_map(|(_, call)| {
            let (end_ns, _) = call.end.as_ref()?;
            Some((call.begin_ns, *end_ns))
        });
        Order::new(times)
    }

    fn end_ns(&self, call: usize) -> u64 {
        self.answered[call].1.end.as_ref().map_or(u64::MAX, |(end_ns, _)| *end_ns)
    }
}

struct Search<'a, M: Model> {
    model: &'a M,
    calls: Calls<'a, M::Op, M::Answer>,
    order: Order,
    answered: Bits,
    unanswered: Bits,
    state: M::State,
    effects: Vec<Effect<M::State>>,
    visited: Visited<M::State>,
    /// Answered calls without an effect.
    left: usize,
    /// Fewest that were left at an end that could not be passed, and its call.
    furthest: (usize, Option<usize>),
}

/// Searches an order of some calls that explains their answers.
pub(super) fn check<M: Model>(
    model: &M,
    initial: M::State,
    all: &[Call<M::Op, M::Answer>],
    of_key: &[usize],
    limits: Limits,
) -> Outcome {
    let calls = Calls::new(all, of_key);
    let mut search = Search {
        model,
        order: calls.order(),
        answered: Bits::new(calls.answered.len()),
        unanswered: Bits::new(calls.unanswered.len()),
        state: initial,
        effects: Vec::new(),
        visited: Visited { seen: HashMap::new(), count: 0 },
        left: calls.answered.len(),
        furthest: (usize::MAX, None),
        calls,
    };
    let (mut next, mut steps) = (Next::Node(search.order.next(HEAD)), 0);
    while search.left > 0 {
        steps += 1;
        if steps > limits.steps || search.visited.count >= limits.states {
            return Outcome::Unknown { steps };
        }
        next = match next {
            // Answered calls are left, so the end of the list is not reached.
            Next::Node(node) => match search.order.event(node) {
                Event::Begin(call) => search.try_answered(node, call),
                Event::End(call) => search.at_end(node, call),
            },
            Next::Unanswered(call, end) => search.try_unanswered(call, end),
            Next::Back => match search.undo() {
                Some(next) => next,
                None => {
                    // The first end is met before the first effect is undone.
                    let call = search.furthest.1.unwrap_or(0);
                    return Outcome::Violation { call: search.calls.answered[call].0 };
                }
            },
        };
    }
    Outcome::Linearizable
}

impl<M: Model> Search<'_, M> {
    fn try_answered(&mut self, node: usize, call: usize) -> Next {
        let other = Next::Node(self.order.next(node));
        let Call { op, end, .. } = self.calls.answered[call].1;
        let answer = end.as_ref().map(|(_, answer)| answer);
        let Some(after) = self.model.step(&self.state, op, answer) else { return other };
        self.answered.set(call);
        if !self.visited.insert(&self.answered, &self.unanswered, &after) {
            self.answered.clear(call);
            return other;
        }
        let before = std::mem::replace(&mut self.state, after);
        self.effects.push(Effect::Answered(node, call, before));
        self.left -= 1;
        self.order.take(node, call);
        Next::Node(self.order.next(HEAD))
    }

    /// A call ends whose effect was not yet: no answered call can be next.
    fn at_end(&mut self, node: usize, call: usize) -> Next {
        if self.left < self.furthest.0 {
            self.furthest = (self.left, Some(call));
        }
        Next::Unanswered(0, node)
    }

    fn try_unanswered(&mut self, call: usize, end: usize) -> Next {
        let Event::End(ended) = self.order.event(end) else { return Next::Back };
        let Some((_, this)) = self.calls.unanswered.get(call) else { return Next::Back };
        if this.begin_ns > self.calls.end_ns(ended) {
            return Next::Back;
        }
        let other = Next::Unanswered(call + 1, end);
        if self.unanswered.contains(call) {
            return other;
        }
        let Some(after) = self.model.step(&self.state, &this.op, None) else { return other };
        if let Some(Effect::Unanswered(_, _, before)) = self.effects.last()
            && self.model.step(before, &this.op, None).as_ref() == Some(&after)
        {
            // The one before it made no difference: this one alone is tried after it.
            return other;
        }
        self.unanswered.set(call);
        if !self.visited.insert(&self.answered, &self.unanswered, &after) {
            self.unanswered.clear(call);
            return other;
        }
        let before = std::mem::replace(&mut self.state, after);
        self.effects.push(Effect::Unanswered(call, end, before));
        Next::Node(self.order.next(HEAD))
    }

    /// Undoes the last effect, and returns what comes after it; `None`: all orders were tried.
    fn undo(&mut self) -> Option<Next> {
        Some(match self.effects.pop()? {
            Effect::Answered(node, call, before) => {
                self.state = before;
                self.answered.clear(call);
                self.left += 1;
                self.order.put_back(node, call);
                Next::Node(self.order.next(node))
            }
            Effect::Unanswered(call, end, before) => {
                self.state = before;
                self.unanswered.clear(call);
                Next::Unanswered(call + 1, end)
            }
        })
    }
}
