use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::*;

/// Two cores to probe between, or a printed reason for skipping the test.
fn two_cores() -> Option<(usize, usize)> {
    let cores = affinity::choose().expect("cores");
    if !cores.distinct() {
        println!("skipped: a probe needs two cores, one is usable");
        return None;
    }
    Some((cores.client, cores.server))
}

/// Repeats a probe for at most ten seconds, because it may fail on a busy machine.
fn measure_patiently(prober: &mut Prober) -> Result<u64, ProbeError> {
    let mut result = prober.measure();
    // Each probe waits 5 ms for the other side, which on a busy machine may have no core
    // for a second.
    for _ in 0..2_000 {
        if result.is_ok() {
            break;
        }
        result = prober.measure();
    }
    result
}

#[test]
fn one_core_has_no_round_trip() {
    let error = between(0, 0).expect_err("one core");
    assert!(matches!(error, BetweenError::Probe(ProbeError::OneCpu)));
    assert!(error.to_string().starts_with("none"));
    let mut prober = Between::new(0, 0).expect("no error of the cores");
    assert_eq!(prober.measure(), Err(ProbeError::OneCpu));
}

/// Needs every line of the page: sides that change lines differently would not meet.
#[test]
fn a_probe_between_two_threads() {
    let Some((client, server)) = two_cores() else {
        return;
    };
    let mut result = between(client, server);
    // Each probe waits 5 ms for the other side, which on a busy machine may have no core
    // for a second.
    for _ in 0..2_000 {
        if result.is_ok() {
            break;
        }
        result = between(client, server);
    }
    let ns = result.expect("a round trip");
    println!("round trip between cores {client} and {server}: {ns} ns");
    assert!(ns > 0);
}

#[test]
fn a_core_that_does_not_exist_is_an_error() {
    let absent = rustix::thread::CpuSet::MAX_CPU - 1;
    for (client, server) in [(absent, 0), (0, absent)] {
        assert!(matches!(
            between(client, server),
            Err(BetweenError::Affinity(AffinityError::Pin { cpu, .. })) if cpu == absent
        ));
        assert!(Between::new(client, server).is_err());
    }
}

#[test]
fn a_missing_responder_is_an_error_and_leaves_no_probe_behind() {
    let line = Line::create().expect("page");
    let mut prober = Prober::new(line.clone(), Clock::new());
    assert_eq!(prober.measure(), Err(ProbeError::NotAnswered));
    assert_eq!(line.requested(), 0);
}

#[test]
fn a_peer_that_joins_and_dies_is_an_error() {
    let line = Line::create().expect("page");
    let mut prober = Prober::new(line.clone(), Clock::new());
    // As if the other side had joined the first probe and then stopped for ever.
    let next = prober.last_ask + 1;
    line.ready().store(next, Release);
    assert_eq!(prober.measure(), Err(ProbeError::Stopped));
}

#[test]
fn an_idle_responder_does_nothing() {
    let line = Line::create().expect("page");
    let mut responder = Responder::new(line.clone(), Clock::new());
    assert!(!responder.serve_if_asked());
    assert_eq!(line.ready().load(Acquire), 0);
}

#[test]
fn a_dead_prober_is_served_once() {
    let line = Line::create().expect("page");
    let mut responder = Responder::new(line.clone(), Clock::new());
    line.request().store(41, Release);
    assert!(responder.serve_if_asked(), "returns at its limit");
    assert!(!responder.serve_if_asked(), "and does not fall for it twice");
    // The next prober of this line is recognised as new.
    assert_eq!(Prober::new(line, Clock::new()).last_ask, 41);
}

#[test]
fn garbage_in_the_page_neither_hangs_nor_panics() {
    let line = Line::create().expect("page");
    let clock = Clock::new();
    let mut prober = Prober::new(line.clone(), clock.clone());
    let mut responder = Responder::new(line.clone(), clock);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let vandal = scope.spawn(|| {
            let mut x = u64::MAX;
            while !stop.load(Relaxed) {
                for word in [line.request(), line.ready(), line.ball(0), line.ball(1)] {
                    word.store(x, Release);
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                }
            }
        });
        // The test is that these loops end; their results are arbitrary.
        for _ in 0..20 {
            let _ = prober.measure();
            let _ = responder.serve_if_asked();
        }
        stop.store(true, Relaxed);
        vandal.join().expect("no panic");
    });
    // Extreme values must not overflow.
    line.ready().store(u64::MAX, Release);
    let mut prober = Prober::new(line.clone(), Clock::new());
    assert_eq!(prober.measure(), Err(ProbeError::NotAnswered));
    assert_ne!(prober.last_ask, 0);
}

const LINE_VARIABLE: &str = "COURSER_TEST_LINE";
const ROLE_STOP: u32 = 7;

/// Not a test by itself: the other process of `a_probe_between_two_processes`.
#[test]
fn other_process() {
    let Some(path) = std::env::var_os(LINE_VARIABLE) else {
        return;
    };
    let line = Line::open(path.as_ref()).expect("the parent's page");
    let cores = affinity::choose().expect("cores");
    affinity::pin_current_thread(cores.server).expect("pin");
    let mut responder = Responder::new(line.clone(), Clock::new());
    // The limit only matters if the parent dies.
    let start = Instant::now();
    line.take_role(ROLE_POLL);
    while line.role() != ROLE_STOP && start.elapsed() < Duration::from_secs(60) {
        responder.serve_if_asked();
    }
    line.take_role(ROLE_STOP);
}

#[test]
fn a_probe_between_two_processes() {
    let Some((client, _)) = two_cores() else {
        return;
    };
    let line = Line::create().expect("page");
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "probe::tests::other_process"])
        .env(LINE_VARIABLE, line.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("start");
    let inner = line.clone();
    let result = std::thread::spawn(move || {
        affinity::pin_current_thread(client).expect("pin");
        inner.ask_role(ROLE_POLL, Duration::from_secs(60)).expect("the other process answers");
        let mut prober = Prober::new(inner.clone(), Clock::new());
        let result = measure_patiently(&mut prober);
        inner.ask_role(ROLE_STOP, Duration::from_secs(60)).expect("the other process stops");
        result
    })
    .join();
    assert!(child.wait().expect("wait").success());
    let ns = result.expect("no panic").expect("a round trip");
    println!("round trip between two processes: {ns} ns");
    assert!(ns > 0);
}
