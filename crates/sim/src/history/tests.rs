use super::*;
use crate::rng::Rng;

type Op = KvOp<u8, u8>;
type Answer = KvAnswer<u8>;
type Kv = History<Op, Answer>;

const DONE: Answer = KvAnswer::Done;

/// A history of one register: begin, end (0: none), operation, answer.
fn history(calls: &[(u64, u64, Op, Answer)]) -> Kv {
    let mut history = Kv::default();
    for (begin_ns, end_ns, op, answer) in calls {
        let call = history.begin(*begin_ns, op.clone());
        if *end_ns > 0 {
            history.end(call, *end_ns, answer.clone());
        }
    }
    history
}

fn verdict(calls: &[(u64, u64, Op, Answer)]) -> Verdict<u8> {
    history(calls).check(&KvModel::default(), Limits::default())
}

fn is_violation(verdict: &Verdict<u8>) -> bool {
    matches!(verdict, Verdict::Violation { .. })
}

fn put(v: u8) -> Op {
    KvOp::Put(0, v)
}

fn get() -> Op {
    KvOp::Get(0)
}

fn cas(expected: u8, new: u8) -> Op {
    KvOp::Cas { key: 0, expected: (expected > 0).then_some(expected), new }
}

fn value(v: u8) -> Answer {
    KvAnswer::Value((v > 0).then_some(v))
}

#[test]
fn histories_that_are_linearizable() {
    let histories: [&[_]; 9] = [
        &[],
        &[(1, 2, put(1), KvAnswer::Replaced(false)), (3, 4, put(2), KvAnswer::Replaced(true))],
        &[(1, 2, get(), value(0)), (3, 4, put(1), DONE), (5, 6, get(), value(1))],
        // A read during a write returns the old or the new value.
        &[(1, 9, put(1), DONE), (2, 3, get(), value(0)), (4, 5, get(), value(1))],
        // Two writes at once, in the order that the reads show.
        &[(1, 9, put(1), DONE), (1, 9, put(2), DONE), (10, 11, get(), value(1))],
        // A write without an answer takes effect late, or never.
        &[(1, 0, put(1), DONE), (2, 3, get(), value(0)), (4, 5, get(), value(1))],
        &[(1, 0, put(1), DONE), (2, 3, put(2), DONE), (4, 5, get(), value(2))],
        // An end and a begin at one time are concurrent.
        &[(1, 5, put(1), DONE), (5, 6, get(), value(0))],
        &[
            (1, 2, cas(0, 1), KvAnswer::Swapped(true)),
            (3, 4, cas(0, 2), KvAnswer::Swapped(false)),
            (5, 6, KvOp::Delete(0), KvAnswer::Removed(true)),
            (7, 8, KvOp::Delete(0), KvAnswer::Removed(false)),
            (9, 10, KvOp::Delete(0), DONE),
            (11, 12, cas(0, 2), KvAnswer::Swapped(true)),
        ],
    ];
    for calls in histories {
        assert_eq!(verdict(calls), Verdict::Linearizable, "{calls:?}");
    }
}

#[test]
fn histories_that_are_not() {
    let histories: [&[_]; 11] = [
        // A stale read.
        &[(1, 2, put(1), DONE), (3, 4, get(), value(0))],
        // A value from nowhere.
        &[(1, 2, get(), value(7))],
        // Two reads during a write, the new value first.
        &[(1, 9, put(1), DONE), (2, 3, get(), value(1)), (4, 5, get(), value(0))],
        // A lost update.
        &[(1, 2, put(1), DONE), (3, 4, put(2), DONE), (5, 6, get(), value(1))],
        // An effect before its begin.
        &[(1, 2, get(), value(1)), (3, 0, put(1), DONE)],
        // A write without an answer that takes effect twice.
        &[
            (1, 0, put(1), DONE),
            (2, 3, get(), value(1)),
            (4, 5, put(2), DONE),
            (6, 7, get(), value(1)),
        ],
        // Two swaps of one value.
        &[(1, 9, cas(0, 1), KvAnswer::Swapped(true)), (1, 9, cas(0, 2), KvAnswer::Swapped(true))],
        // A removed value is there.
        &[
            (1, 2, put(1), DONE),
            (3, 4, KvOp::Delete(0), KvAnswer::Removed(true)),
            (5, 6, get(), value(1)),
        ],
        // A write states the wrong presence of a value.
        &[(1, 2, put(1), DONE), (3, 4, put(2), KvAnswer::Replaced(false))],
        &[(1, 2, put(1), KvAnswer::Replaced(true))],
        // An answer of another operation.
        &[(1, 2, put(1), value(1))],
    ];
    for calls in histories {
        assert!(is_violation(&verdict(calls)), "{calls:?}");
    }
}

#[test]
fn keys_are_checked_alone_and_a_violation_names_its_call() {
    let mut history = Kv::default();
    for key in 0..3 {
        let call = history.begin(1, KvOp::Put(key, key + 1));
        history.end(call, 2, DONE);
    }
    let call = history.begin(3, KvOp::Get(1));
    history.end(call, 4, value(1));
    let later = history.begin(5, KvOp::Get(1));
    history.end(later, 6, value(2));
    let verdict = history.check(&KvModel::default(), Limits::default());
    assert_eq!(verdict, Verdict::Violation { key: 1, call, around: vec![1] });
    let text = history.lines([1, call]);
    assert_eq!(text, "1: Put(1, 2) -> Done, 1 to 2 ns\n3: Get(1) -> Value(Some(1)), 3 to 4 ns\n");
    // It had no effect, and its answer is not counted.
    history.end_without_effect(call);
    history.assert_linearizable(&KvModel::default(), Limits::default());
}

/// Returns whether some order of the calls explains the answers, by trying all of them.
fn some_order(history: &Kv, state: Option<u8>, done: u32) -> bool {
    let calls = history.calls();
    let is_left = |at: &usize| done & 1 << at == 0;
    let left = || (0..calls.len()).filter(is_left);
    if left().all(|at| calls[at].end.is_none()) {
        return true;
    }
    let first_end_ns = left().filter_map(|at| Some(calls[at].end.as_ref()?.0)).min();
    left().any(|at| {
        let call = &calls[at];
        let may_be_next = first_end_ns.is_none_or(|end_ns| call.begin_ns <= end_ns);
        let answer = call.end.as_ref().map(|(_, answer)| answer);
        let after = KvModel::default().step(&state, &call.op, answer);
        may_be_next && after.is_some_and(|after| some_order(history, after, done | 1 << at))
    })
}

/// A small history of one register: half of the answers are those of some execution, the others are
/// drawn.
fn random(rng: &mut Rng) -> Kv {
    let mut history = Kv::default();
    let mut state = None;
    let count = rng.between(1, 7);
    for number in 0..count {
        let v = rng.between(1, 2) as u8;
        let op = match rng.below(5) {
            0 | 1 => get(),
            2 => put(v),
            3 => KvOp::Delete(0),
            _ => cas(rng.below(3) as u8, v),
        };
        let (before, after) = (state, KvModel::default().step(&state, &op, None).unwrap());
        state = after;
        let answer = match op {
            KvOp::Get(_) if rng.chance_ppm(300_000) => value(rng.below(3) as u8),
            KvOp::Get(_) => KvAnswer::Value(before),
            KvOp::Put(..) => DONE,
            KvOp::Delete(_) if rng.chance_ppm(200_000) => KvAnswer::Removed(rng.below(2) == 1),
            KvOp::Delete(_) => KvAnswer::Removed(before.is_some()),
            KvOp::Cas { .. } if rng.chance_ppm(200_000) => KvAnswer::Swapped(rng.below(2) == 1),
            KvOp::Cas { expected, .. } => KvAnswer::Swapped(before == expected),
        };
        // Around the moment of its effect, some in the middle of others.
        let at_ns = 10 + 4 * number;
        let call = history.begin(at_ns - rng.below(10), op);
        if rng.chance_ppm(800_000) {
            history.end(call, at_ns + rng.below(10), answer);
        }
    }
    history
}

#[test]
fn the_verdict_is_that_of_all_orders() {
    let mut violations = 0;
    for seed in 0..30_000 {
        let history = random(&mut Rng::new(seed));
        let expected = some_order(&history, None, 0);
        let verdict = history.check(&KvModel::default(), Limits::default());
        let lines = || history.lines(0..history.calls().len());
        assert_eq!(
            verdict == Verdict::Linearizable,
            expected,
            "seed {seed}: {verdict:?}\n{}",
            lines()
        );
        if let Verdict::Violation { call, .. } = verdict {
            violations += 1;
            assert!(history.calls()[call].end.is_some(), "seed {seed}");
        }
    }
    assert!((5_000..25_000).contains(&violations), "{violations} violations");
}

/// A history of many concurrent clients, each of whose calls has an effect in the middle.
fn concurrent(rng: &mut Rng, clients: u64, calls: u64) -> (Kv, usize) {
    let mut events = Vec::new();
    for _ in 0..clients {
        let mut now_ns = 0;
        for _ in 0..calls {
            let begin_ns = now_ns + rng.between(1, 50);
            let effect_ns = begin_ns + rng.between(1, 100);
            now_ns = effect_ns + rng.between(1, 100);
            events.push((effect_ns, begin_ns, now_ns));
        }
    }
    events.sort_unstable();
    let (mut history, mut state, mut last) = (Kv::default(), None, 0);
    for (_, begin_ns, end_ns) in events {
        let op = if rng.below(2) == 0 { get() } else { put(rng.between(1, 200) as u8) };
        let read = matches!(op, KvOp::Get(_));
        let answer = if read { KvAnswer::Value(state) } else { DONE };
        state = KvModel::default().step(&state, &op, None).unwrap();
        let call = history.begin(begin_ns, op);
        if rng.chance_ppm(990_000) {
            history.end(call, end_ns, answer);
            last = if read { call } else { last };
        }
    }
    (history, last)
}

#[test]
fn long_histories_of_some_clients_are_checked_within_the_limits() {
    for seed in 0..5 {
        let (mut history, last) = concurrent(&mut Rng::new(seed), 5, 400);
        let model = KvModel::default();
        history.assert_linearizable(&model, Limits::default());
        let end_ns = history.calls()[last].end.as_ref().unwrap().0;
        history.end(last, end_ns, value(255));
        let verdict = history.check(&model, Limits::default());
        assert!(matches!(verdict, Verdict::Violation { call, .. } if call == last), "{verdict:?}");
    }
}

#[test]
fn a_limit_ends_the_search_without_a_verdict() {
    let mut history = Kv::default();
    for v in 1..=20 {
        let call = history.begin(1, put(v));
        history.end(call, 1_000, DONE);
    }
    // No order explains it, and there are very many.
    let call = history.begin(2_000, get());
    history.end(call, 3_000, value(99));
    for limits in [
        Limits { steps: 10_000, ..Limits::default() },
        Limits { states: 10_000, ..Limits::default() },
    ] {
        let verdict = history.check(&KvModel::default(), limits);
        assert!(matches!(verdict, Verdict::Unknown { key: 0, steps } if steps >= 10_000));
    }
    // A violation of another key is still found.
    let call = history.begin(1, KvOp::Get(1));
    history.end(call, 2, value(1));
    let limits = Limits { steps: 10_000, ..Limits::default() };
    assert!(is_violation(&history.check(&KvModel::default(), limits)));
}
