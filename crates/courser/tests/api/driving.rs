//! The event loop: run, stop, timers, wake-ups, external event loops.

use std::cell::{Cell, RefCell};
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::*;
use courser::{Completion, Config, Context, Nexus, SessionId, TimerId, Tuning};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

const ECHO: u16 = 1;

/// Sleeps without spinning, so that a lost wake-up blocks the test.
fn sleepy() -> Config {
    Config { spin: Some(Duration::ZERO), ..Config::default() }
}

/// Runs `f` on a thread; panics when it does not return.
fn must_end(f: impl FnOnce() + Send + 'static) {
    let (ended, wait) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        f();
        let _ = ended.send(());
    });
    match wait.recv_timeout(PATIENCE) {
        Ok(()) => thread.join().unwrap(),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => thread.join().unwrap(),
        Err(_) => panic!("the event loop does not wake up"),
    }
}

/// Starts timers that append their names to `order`. Returns them, and how long that took, ns.
fn start_timers(cx: &mut Context<'_>, order: &Rc<RefCell<Vec<u32>>>) -> ([TimerId; 4], u64) {
    let start_ns = cx.now_ns();
    let timers = [(30, 3), (10, 1), (20, 2), (0, 0)].map(|(ms, name)| {
        let order = order.clone();
        cx.after(Duration::from_millis(ms), move |cx| {
            order.borrow_mut().push(name);
            if name == 3 {
                cx.stop();
            }
        })
    });
    (timers, cx.now_ns() - start_ns)
}

#[test]
fn timers_run_in_order_and_end_the_loop() {
    must_end(|| {
        let mut rpc = client(sleepy());
        let order: Rc<RefCell<Vec<u32>>> = Rc::default();
        let start_ns = rpc.context().now_ns();
        loop {
            let (timers, took_ns) = start_timers(&mut rpc.context(), &order);
            if took_ns < 10_000_000 {
                break;
            }
            // The thread was paused between two of them, which may change their order.
            timers.into_iter().for_each(|t| assert!(rpc.context().cancel_timer(t)));
        }
        rpc.run().unwrap();
        assert!(rpc.context().now_ns() - start_ns >= 30_000_000);
        assert_eq!(*order.borrow(), [0, 1, 2, 3]);
        assert_eq!(rpc.next_deadline_ns(), None);
        // A timer may start a timer, and the longest duration does not overflow.
        rpc.context().after(Duration::MAX, |_| panic!("the timer must not expire"));
        rpc.context().after(Duration::from_millis(1), |cx| {
            cx.after(Duration::from_millis(1), |cx| cx.stop());
        });
        rpc.run().unwrap();
    });
}

#[test]
fn a_repeated_timer_runs_until_it_cancels_itself() {
    must_end(|| {
        let mut rpc = client(sleepy());
        let own: Rc<Cell<Option<TimerId>>> = Rc::default();
        let (timer, mut runs) = (own.clone(), 0);
        let start_ns = rpc.context().now_ns();
        own.set(Some(rpc.context().every(Duration::from_millis(2), move |cx| {
            runs += 1;
            assert!(cx.now_ns() - start_ns >= runs * 2_000_000);
            if runs == 5 {
                assert!(cx.cancel_timer(timer.get().unwrap()));
                assert!(!cx.cancel_timer(timer.get().unwrap()), "it is cancelled");
                cx.stop();
            }
        })));
        rpc.run().unwrap();
        assert_eq!(rpc.next_deadline_ns(), None);
        assert_eq!(Rc::strong_count(&own), 1, "the closure is dropped");
    });
}

#[test]
fn a_cancelled_timer_does_not_run_and_its_closure_is_dropped() {
    must_end(|| {
        let mut rpc = client(sleepy());
        let alive = Rc::new(());
        let held = alive.clone();
        let never = rpc.context().after(Duration::ZERO, move |_| panic!("cancelled: {held:?}"));
        assert!(rpc.context().cancel_timer(never));
        assert_eq!(Rc::strong_count(&alive), 1);
        assert_eq!(rpc.next_deadline_ns(), None);
        // Of two timers that expire in one pass, the first cancels the second.
        let second: Rc<Cell<Option<TimerId>>> = Rc::default();
        let victim = second.clone();
        let first = rpc.context().after(Duration::ZERO, move |cx| {
            assert!(cx.cancel_timer(victim.get().unwrap()));
        });
        second.set(Some(rpc.context().after(Duration::ZERO, |_| panic!("cancelled"))));
        rpc.context().after(Duration::ZERO, |cx| cx.stop());
        rpc.run().unwrap();
        assert!(!rpc.context().cancel_timer(first), "it has expired already");
        assert_eq!(rpc.next_deadline_ns(), None);
    });
}

#[test]
fn a_panic_ends_a_repeated_timer_and_no_other() {
    must_end(|| {
        let mut rpc = client(sleepy());
        let broken = rpc.context().every(Duration::from_nanos(1), |_| panic!("a timer"));
        let run = std::panic::AssertUnwindSafe(|| rpc.run());
        assert!(std::panic::catch_unwind(run).is_err());
        rpc.context().after(Duration::from_millis(1), |cx| cx.stop());
        rpc.run().unwrap();
        assert!(!rpc.context().cancel_timer(broken));
        assert_eq!(rpc.next_deadline_ns(), None);
    });
}

#[test]
fn run_for_returns_in_time_on_an_idle_endpoint() {
    must_end(|| {
        let mut rpc = client(sleepy());
        let start = Instant::now();
        rpc.run_for(Duration::from_millis(20)).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
        rpc.context().after(Duration::from_millis(1), |cx| cx.stop());
        rpc.run_for(Duration::MAX).unwrap();
    });
}

#[test]
fn a_stop_from_another_thread_is_never_lost() {
    must_end(|| {
        let mut rpc = client(sleepy());
        let handle = rpc.handle();
        // Before the loop starts and while it falls asleep, repeatedly.
        handle.stop();
        rpc.run().unwrap();
        for _ in 0..500 {
            let handle = handle.clone();
            let stopper = std::thread::spawn(move || handle.stop());
            rpc.run().unwrap();
            stopper.join().unwrap();
        }
    });
}

#[test]
fn a_wake_up_makes_run_until_check_its_condition() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    must_end(|| {
        let mut rpc = client(sleepy());
        let rounds = Arc::new(AtomicU32::new(0));
        for round in 1..=200 {
            let (handle, other) = (rpc.handle(), rounds.clone());
            let thread = std::thread::spawn(move || {
                other.store(round, Ordering::Release);
                handle.wake();
            });
            rpc.run_until(|| rounds.load(Ordering::Acquire) == round).unwrap();
            thread.join().unwrap();
        }
    });
}

#[test]
fn two_sleeping_endpoints_wake_each_other() {
    must_end(|| {
        let server = Server::start(sleepy(), |rpc| rpc.on(ECHO, |cx, req| cx.reply(req)));
        let mut client = client(sleepy());
        let session = client.connect(&server.uri).unwrap();
        client.wait_connected(session).unwrap();
        for seed in 0..300 {
            let done = Rc::new(Cell::new(false));
            let flag = done.clone();
            let request = message(&client, seed, (seed as usize % 5) * 4000);
            client.call(session, ECHO, request, move |_, d| flag.set(d.result.is_ok())).unwrap();
            client.run_until(|| done.get()).unwrap();
        }
    });
}

fn readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() > 0
}

#[test]
fn an_external_event_loop_wakes_for_frames_and_mail_and_sleeps_when_idle() {
    let server = Server::start(Config::default(), |rpc| rpc.on(ECHO, |cx, req| cx.reply(req)));
    let mut client = client(Config::default());
    let ours = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let fd = client.event_fd().unwrap();
    epoll::add(&ours, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();

    let session = client.connect(&server.uri).unwrap();
    let log = Log::default();
    let request = message(&client, 1, 100_000);
    call(&mut client, session, ECHO, request, &log, 0);
    let end = Instant::now() + PATIENCE;
    while log.borrow().is_empty() {
        assert!(Instant::now() < end, "no wake-up");
        if client.poll() {
            continue;
        }
        let now_ns = client.context().now_ns();
        let left = client.next_deadline_ns().map(|due| due.saturating_sub(now_ns));
        let timeout = left.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as _,
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        let mut events = Vec::with_capacity(4);
        epoll::wait(&ours, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()).unwrap();
    }
    assert!(log.borrow()[0].1.result == Ok(expected(1, 100_000)));
    // Idle: after all deadlines there is no next one, and the descriptor is not readable.
    drive_until(&mut [&mut client], |all| all[0].next_deadline_ns().is_none() && !all[0].poll());
    assert!(!readable(client.event_fd().unwrap(), Duration::from_millis(50)));

    // Any frame, even of a stranger.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"hello", ("127.0.0.1", client.port() as u16)).unwrap();
    assert!(readable(client.event_fd().unwrap(), PATIENCE));
    drive_until(&mut [&mut client], |all| !all[0].poll());
    assert!(!readable(client.event_fd().unwrap(), Duration::ZERO));

    // A wake-up of another thread, also while earlier ones are consumed.
    let handle = client.handle();
    let thread = std::thread::spawn(move || (0..10_000).for_each(|_| handle.wake()));
    while !thread.is_finished() {
        client.poll();
    }
    thread.join().unwrap();
    client.handle().wake();
    assert!(readable(client.event_fd().unwrap(), PATIENCE));
    drive_until(&mut [&mut client], |all| !all[0].poll());
    assert!(!readable(client.event_fd().unwrap(), Duration::ZERO), "the wake-up was consumed");
}

#[test]
fn endpoints_of_one_nexus_accept_clients_round_robin() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let uri = nexus.local_uri();
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for _ in 0..3 {
            let (ready, is_ready) = std::sync::mpsc::channel();
            let nexus = &nexus;
            scope.spawn(move || {
                let mut rpc = nexus.endpoint().unwrap();
                let index = rpc.index();
                rpc.on(ECHO, move |cx, _| cx.reply(index.to_le_bytes()));
                ready.send(rpc.handle()).unwrap();
                rpc.run().unwrap();
            });
            handles.push(is_ready.recv().unwrap());
        }
        let mut client = client(Config::default());
        let ask = |client: &mut courser::Rpc, uri: &str| {
            let session = client.connect(uri).unwrap();
            client.wait_connected(session).unwrap();
            let request = client.alloc(1).unwrap();
            let answer = call_and_wait(client, &mut [], session, ECHO, request).result.unwrap();
            u16::from_le_bytes(*answer.first_chunk().unwrap())
        };
        let mut seen: Vec<u16> = (0..3).map(|_| ask(&mut client, &uri)).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        for index in [2, 0, 1] {
            assert_eq!(ask(&mut client, &format!("{uri}/{index}")), index);
        }
        handles.iter().for_each(|w| w.stop());
    });
}

#[test]
fn a_paused_thread_does_not_declare_peers_failed() {
    // A single-packet response has no timestamp and counts as received at the last clock reading,
    // long ago, while another call is probed. That must not look like a silent peer.
    const HOLD: u16 = 2;
    const AWAY: Duration = Duration::from_millis(300);
    let tuning = Tuning { timestamp_interval: Duration::from_micros(100), ..Tuning::default() };
    // Probe often, so that the pending call does not look unreachable.
    let rto = (Duration::from_millis(1), Duration::from_millis(10));
    let config = Config { datapath_timeout: AWAY * 2 / 3, rto, tuning, ..Config::default() };
    let [server_nexus, client_nexus] =
        [0, 1].map(|_| Nexus::bind_with("shm://127.0.0.1:0", config.clone()).unwrap());
    let (mut server, mut client) =
        (server_nexus.endpoint().unwrap(), client_nexus.endpoint().unwrap());
    server.on(ECHO, |cx, req| cx.reply(req));
    let held = Rc::new(RefCell::new(Vec::new()));
    let holds = held.clone();
    server.on(HOLD, move |cx, _| holds.borrow_mut().push(cx.defer().unwrap()));
    let session = connect(&mut client, &mut [&mut server], &server_nexus.local_uri());
    let log = Log::default();
    let request = message(&client, 1, 16);
    call(&mut client, session, HOLD, request, &log, 1);
    let start = Instant::now();
    drive(&mut [&mut client, &mut server], || start.elapsed() > AWAY / 3);
    for round in 0..3 {
        let left = Rc::new(Cell::new(60 + round));
        let replies = server.stats().replies + u64::from(left.get());
        chain(&mut client.context(), session, left.clone());
        drive(&mut [&mut client, &mut server], || left.get() == 1);
        while server.stats().replies < replies {
            server.poll();
        }
        std::thread::sleep(AWAY);
        drive(&mut [&mut client, &mut server], || left.get() == 0);
        let back = Instant::now();
        drive(&mut [&mut client, &mut server], || back.elapsed() > AWAY / 10);
    }
    assert_eq!(client.session_error(session).map(|e| e.to_string()), None);
    assert!(log.borrow().is_empty());
    held.borrow_mut().clear();
}

/// Makes `left` calls, each from the continuation of the previous one.
fn chain(cx: &mut Context<'_>, session: SessionId, left: Rc<Cell<u32>>) {
    let request = cx.alloc(16).unwrap();
    let next = move |cx: &mut Context<'_>, done: Completion<'_>| {
        done.result.unwrap();
        left.set(left.get() - 1);
        if left.get() > 0 {
            chain(cx, session, left);
        }
    };
    cx.call(session, ECHO, request, next).unwrap();
}

/// Pins the calling thread to one CPU of the process.
fn share_one_cpu() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

/// Calls in 300 ms, and retransmitted packets, of a client and a server that share a CPU with a thread that never sleeps.
fn calls_on_a_shared_cpu(spin: Duration) -> (u32, u64) {
    let config = Config { spin: Some(spin), ..Config::default() };
    let done = &std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let servers = config.clone();
        scope.spawn(move || {
            share_one_cpu();
            let nexus = Nexus::bind_with(LOOPBACK, servers).unwrap();
            let mut rpc = nexus.endpoint().unwrap();
            rpc.on(ECHO, |cx, req| cx.reply(req));
            tell.send((nexus.local_uri(), rpc.handle())).unwrap();
            rpc.run().unwrap();
        });
        let (uri, server) = told.recv().unwrap();
        let counted = scope.spawn(move || {
            share_one_cpu();
            let mut client = client(config);
            let session = client.connect(&uri).unwrap();
            client.wait_connected(session).unwrap();
            scope.spawn(move || {
                share_one_cpu();
                while !is_done() {
                    std::hint::spin_loop();
                }
            });
            let (mut calls, begin) = (0, Instant::now());
            while begin.elapsed() < Duration::from_millis(300) {
                let request = message(&client, 1, 32);
                client.call_wait(session, ECHO, request, None).unwrap();
                calls += 1;
            }
            (calls, client.stats().retransmitted)
        });
        let calls = counted.join();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        server.stop();
        calls.unwrap()
    })
}

/// A thread that yields to one that never sleeps runs once in some milliseconds: a twentieth of the
/// calls.
#[test]
fn endpoints_that_spin_on_a_shared_cpu_are_nearly_as_fast_as_ones_that_sleep() {
    let (mut sums, mut again) = ((0, 0), 0);
    for _ in 0..3 {
        let spinning = calls_on_a_shared_cpu(Duration::from_micros(100));
        let sleeping = calls_on_a_shared_cpu(Duration::ZERO);
        sums = (sums.0 + spinning.0, sums.1 + sleeping.0);
        again += spinning.1 + sleeping.1;
    }
    println!("{} calls with spinning, {} without, {again} packets twice", sums.0, sums.1);
    assert!(sums.0 * 3 > sums.1, "{} calls with spinning, {} without", sums.0, sums.1);
    // A thread that does not run for some milliseconds is no loss.
    assert!(again * 20 < u64::from(sums.0 + sums.1), "{again} packets were sent twice");
}

/// A frame may arrive between the last `poll` and the first use of the descriptor, when senders need
/// not signal it.
#[test]
fn the_descriptor_is_readable_until_the_first_poll_after_it_was_given_out() {
    for bind in [LOOPBACK, "shm://127.0.0.1:0"] {
        let mut rpc = Nexus::bind(bind).unwrap().endpoint().unwrap();
        while rpc.poll() {}
        assert!(readable(rpc.event_fd().unwrap(), Duration::ZERO), "{bind}");
        while rpc.poll() {}
        assert!(!readable(rpc.event_fd().unwrap(), Duration::ZERO), "{bind}");
    }
}
