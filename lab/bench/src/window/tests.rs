use std::cell::RefCell;
use std::rc::Rc;

use super::super::probe::ProbeError;
use super::*;

const NEAR: Result<u64, ProbeError> = Ok(110);
const FAR: Result<u64, ProbeError> = Ok(450);
const GONE: Result<u64, ProbeError> = Err(ProbeError::NotAnswered);

/// Returns a list of probe results cyclically.
struct Script {
    results: Vec<Result<u64, ProbeError>>,
    next: usize,
    log: Log,
}

type Log = Rc<RefCell<Vec<String>>>;

impl Probe for Script {
    fn measure(&mut self) -> Result<u64, ProbeError> {
        self.log.borrow_mut().push("probe".to_owned());
        let result = self.results[self.next % self.results.len()];
        self.next += 1;
        result
    }
}

/// A workload that reports `operations` without work.
struct Fake {
    name: &'static str,
    operations: u64,
    fail_at: u64,
    runs: u64,
    log: Log,
}

impl Workload for Fake {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&mut self) -> Result<(), WorkloadError> {
        self.log.borrow_mut().push(format!("prepare {}", self.name));
        Ok(())
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        self.runs += 1;
        if self.runs == self.fail_at {
            return Err("the cable fell out".into());
        }
        self.log.borrow_mut().push(format!("run {}", self.name));
        Ok(Sample {
            operations: self.operations,
            bytes: self.operations * 32,
            elapsed_ns: u64::try_from(duration.as_nanos())?,
            ..Sample::default()
        })
    }
}

fn fake(name: &'static str, log: &Log) -> Fake {
    Fake { name, operations: 1_000, fail_at: 0, runs: 0, log: Rc::clone(log) }
}

fn plan(pairs: u32) -> Plan {
    Plan {
        window: Duration::from_millis(20),
        pairs,
        max_time: Duration::from_secs(3_600),
        warmup: 0,
    }
}

fn run_script(plan: Plan, results: &[Result<u64, ProbeError>]) -> Outcome {
    let log = Log::default();
    let script = Script { results: results.to_vec(), next: 0, log: Rc::clone(&log) };
    let mut runner = Runner::new(plan, Some(script)).expect("valid plan");
    runner
        .run(&mut fake("rpc", &log), Some(&mut fake("raw", &log)), &mut |_| {
            ControlFlow::Continue(())
        })
        .expect("no failure")
}

fn tags(outcome: &Outcome) -> Vec<Tag> {
    outcome.pairs.iter().map(|pair| pair.tag).collect()
}

#[test]
fn raw_and_rpc_alternate_between_probes() {
    let log = Log::default();
    let script = Script { results: vec![NEAR], next: 0, log: Rc::clone(&log) };
    let mut runner = Runner::new(plan(2), Some(script)).expect("valid plan");
    runner
        .run(&mut fake("rpc", &log), Some(&mut fake("raw", &log)), &mut |_| {
            ControlFlow::Continue(())
        })
        .expect("no failure");
    let one = ["prepare raw", "probe", "run raw", "probe"];
    let two = ["prepare rpc", "probe", "run rpc", "probe"];
    assert_eq!(*log.borrow(), [one, two, one, two].concat());
}

#[test]
fn a_pair_counts_only_if_all_four_probes_agree() {
    // Each row of four is one pair.
    let script = [
        [NEAR, NEAR, NEAR, NEAR],
        [NEAR, FAR, NEAR, NEAR],
        [NEAR, NEAR, FAR, FAR],
        [FAR, FAR, FAR, FAR],
        [FAR, FAR, FAR, Ok(260)],
        [NEAR, NEAR, NEAR, GONE],
    ]
    .concat();
    let outcome = run_script(plan(1), &script[..16]);
    // One near pair is enough: nothing else had been seen by then.
    assert_eq!(tags(&outcome), [Tag::At(Placement::Near)]);

    let outcome = run_script(plan(2), &script);
    let mixed = Tag::Mixed;
    let (near, far) = (Tag::At(Placement::Near), Tag::At(Placement::Far));
    assert_eq!(tags(&outcome), [near, mixed, mixed, far, mixed, mixed, near, mixed, mixed, far]);
    assert_eq!(outcome.at(Placement::Near).count(), 2);
    assert_eq!(outcome.at(Placement::Far).count(), 2);
}

#[test]
fn a_pair_has_the_range_of_its_probes() {
    let outcome = run_script(plan(1), &[Ok(110), Ok(200), Ok(90), Ok(120)]);
    let range = ProbeRange { min_ns: 90, max_ns: 200 };
    assert_eq!(outcome.pairs[0].probes, Some(range));
    let outcome = run_script(plan(1), &[GONE]);
    assert_eq!(outcome.pairs[0].probes, None);
}

#[test]
fn without_probes_the_pairs_are_untagged_and_still_end() {
    assert_eq!(tags(&run_script(plan(3), &[GONE])), [Tag::Unprobed; 3]);
    let log = Log::default();
    let outcome = Runner::<Script>::new(plan(3), None)
        .expect("valid plan")
        .run(&mut fake("rpc", &log), None, &mut |_| ControlFlow::Continue(()))
        .expect("no failure");
    assert_eq!(tags(&outcome), [Tag::Unprobed; 3]);
    assert!(outcome.pairs.iter().all(|pair| pair.raw.is_none()));
}

#[test]
fn the_time_limit_ends_a_run_that_never_qualifies() {
    let mut limited = plan(1_000);
    limited.max_time = Duration::ZERO;
    assert_eq!(tags(&run_script(limited, &[NEAR, FAR])), [Tag::Mixed]);
}

#[test]
fn progress_is_reported_and_can_end_a_run() {
    let log = Log::default();
    let mut seen = Vec::new();
    let outcome = Runner::<Script>::new(plan(100), None)
        .expect("valid plan")
        .run(&mut fake("rpc", &log), None, &mut |progress| {
            seen.push(progress.unprobed);
            if progress.unprobed == 4 {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
        .expect("no failure");
    assert_eq!(seen, [1, 2, 3, 4]);
    assert_eq!(outcome.pairs.len(), 4);
}

#[test]
fn warm_up_windows_are_not_counted() {
    let log = Log::default();
    let mut warm = plan(1);
    warm.warmup = 2;
    let (mut rpc, mut raw) = (fake("rpc", &log), fake("raw", &log));
    let outcome = Runner::<Script>::new(warm, None)
        .expect("valid plan")
        .run(&mut rpc, Some(&mut raw), &mut |_| ControlFlow::Continue(()))
        .expect("no failure");
    assert_eq!((rpc.runs, raw.runs, outcome.pairs.len()), (3, 3, 1));
}

#[test]
fn a_failing_workload_ends_the_run_with_its_name() {
    let log = Log::default();
    let mut rpc = fake("rpc", &log);
    rpc.fail_at = 2;
    let error = Runner::<Script>::new(plan(5), None)
        .expect("valid plan")
        .run(&mut rpc, None, &mut |_| ControlFlow::Continue(()))
        .expect_err("fails");
    assert_eq!(error.to_string(), "rpc: the cable fell out");
}

#[test]
fn plans_outside_their_limits_are_refused() {
    let refused = |change: fn(&mut Plan)| {
        let mut plan = plan(1);
        change(&mut plan);
        Runner::<Script>::new(plan, None).is_err()
    };
    assert!(!refused(|_| ()));
    assert!(refused(|p| p.window = Duration::ZERO));
    assert!(refused(|p| p.window = Duration::MAX));
    assert!(refused(|p| p.pairs = 0));
    assert!(refused(|p| p.pairs = u32::MAX));
    assert!(refused(|p| p.warmup = u32::MAX));
    assert!(Plan::full().check().is_ok() && Plan::quick().check().is_ok());
}

#[test]
fn rates_of_a_sample() {
    let sample =
        Sample { operations: 500, bytes: 1_000, elapsed_ns: 1_000_000, ..Sample::default() };
    assert_eq!(sample.rate(), 500_000.0);
    assert_eq!(sample.goodput_bps(), 8_000_000.0);
    assert!(!Sample::default().rate().is_finite());
    assert_eq!(sample.cpu_per_operation_ns(), None);
    let measured = Sample { cpu_ns: Some(2_000), ..sample };
    assert_eq!(measured.cpu_per_operation_ns(), Some(4.0));
    assert_eq!(Sample { operations: 0, ..measured }.cpu_per_operation_ns(), None);
}

#[test]
fn a_window_beside_a_point_does_not_influence_its_tag() {
    let seen = |tag, operations| Seen {
        tag,
        probes: None,
        sample: Sample { operations, elapsed_ns: 1, ..Sample::default() },
    };
    let (near, far) = (Tag::At(Placement::Near), Tag::At(Placement::Far));
    let rounds = [
        vec![seen(far, 1), seen(near, 2), seen(near, 3)],
        vec![seen(near, 4), seen(near, 5), seen(far, 6)],
    ];
    let point = Compared { measured: 2, baseline: Some(1) };
    let outcome = point.beside(0, &rounds);
    assert_eq!(tags(&outcome), [near, Tag::Mixed]);
    let operations: Vec<_> = outcome
        .pairs
        .iter()
        .map(|p| (p.measured.operations, p.raw.map(|r| r.operations)))
        .collect();
    assert_eq!(operations, [(3, Some(1)), (6, Some(4))]);
}
