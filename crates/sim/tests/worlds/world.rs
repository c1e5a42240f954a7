//! Whole worlds: the public API of a simulation, with real endpoints.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use courser::{CallError, Nexus, Rpc, SessionId, SessionState};
use courser_sim::fabric::Topology;
use courser_sim::{CpuCosts, HostId, World, WorldConfig};

const ECHO: u16 = 1;
const MS: Duration = Duration::from_millis(1);

fn echo(nexus: &Nexus) -> Result<Rpc, courser::BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(ECHO, |cx, req| cx.reply(req));
    Ok(rpc)
}

/// Host 0 serves, all others are clients.
fn world(seed: u64, hosts: u32) -> World {
    let mut world = World::new(WorldConfig::new(seed, Topology::one_switch(hosts))).unwrap();
    for host in world.hosts() {
        world.start(host, echo).unwrap();
    }
    world
}

fn connect(world: &mut World, client: HostId, server: HostId) -> SessionId {
    let uri = world.uri(server);
    let s = world.rpc(client).connect(&uri).unwrap();
    let ready =
        world.run_until(MS * 10, |w| w.rpc(client).session_state(s) != SessionState::Connecting);
    assert!(ready, "no session after 10 ms");
    assert_eq!(world.rpc(client).session_error(s).map(|e| e.to_string()), None);
    s
}

type Results = Rc<RefCell<Vec<(u64, Result<Vec<u8>, CallError>)>>>;

fn call(world: &mut World, client: HostId, s: SessionId, body: &[u8], to: &Results) {
    let rpc = world.rpc(client);
    let mut m = rpc.alloc(body.len()).unwrap();
    m.copy_from_slice(body);
    let to = to.clone();
    rpc.call(s, ECHO, m, move |cx, done| {
        let result = done.result.map(|r| r.to_vec());
        to.borrow_mut().push((cx.now_ns(), result));
    })
    .unwrap();
}

#[test]
fn calls_are_answered_in_virtual_time() {
    let mut w = world(1, 2);
    let s = connect(&mut w, HostId(1), HostId(0));
    let results = Results::default();
    let large: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    call(&mut w, HostId(1), s, b"hello", &results);
    call(&mut w, HostId(1), s, &large, &results);
    w.run_for(MS);
    let results = results.borrow();
    assert_eq!(results.len(), 2);
    assert_eq!(results[0].1.as_deref(), Ok(&b"hello"[..]));
    assert_eq!(results[1].1.as_deref(), Ok(&large[..]));
    assert_eq!(w.counts().executed, 2);
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let run = |seed| {
        let mut w = world(seed, 3);
        let results = Results::default();
        for client in [HostId(1), HostId(2)] {
            let s = connect(&mut w, client, HostId(0));
            for n in 0..50 {
                call(&mut w, client, s, &[n; 3000], &results);
            }
        }
        w.run_for(MS * 5);
        let times: Vec<u64> = results.borrow().iter().map(|r| r.0).collect();
        (times, w.digest())
    };
    let first = run(7);
    assert_eq!(first.0.len(), 100);
    assert_eq!(first, run(7));
    assert_ne!(first.1, run(8).1);
}

#[test]
fn a_killed_server_is_noticed_and_can_restart() {
    let mut w = world(2, 2);
    let s = connect(&mut w, HostId(1), HostId(0));
    w.kill(HostId(0));
    let results = Results::default();
    call(&mut w, HostId(1), s, b"lost", &results);
    w.run_for(MS);
    assert!(matches!(results.borrow()[0].1, Err(CallError::PeerFailed { .. })), "{results:?}");
    w.restart(HostId(0)).unwrap();
    let s = connect(&mut w, HostId(1), HostId(0));
    call(&mut w, HostId(1), s, b"again", &results);
    w.run_for(MS);
    assert_eq!(results.borrow()[1].1.as_deref(), Ok(&b"again"[..]));
}

#[test]
fn a_crashed_machine_is_found_by_heartbeats() {
    let mut w = world(3, 2);
    let s = connect(&mut w, HostId(1), HostId(0));
    let results = Results::default();
    w.crash(HostId(0));
    let begin_ns = w.now_ns();
    call(&mut w, HostId(1), s, b"lost", &results);
    assert!(w.run_until(MS * 2000, |_| !results.borrow().is_empty()));
    let took_ms = (w.now_ns() - begin_ns) / 1_000_000;
    assert!((600..=1000).contains(&took_ms), "{took_ms} ms, of 800 ms after the last message");
    assert!(matches!(results.borrow()[0].1, Err(CallError::PeerFailed { .. })), "{results:?}");
}

#[test]
fn a_partition_delays_calls_until_it_heals() {
    let mut w = world(4, 3);
    let s = connect(&mut w, HostId(1), HostId(0));
    let t = connect(&mut w, HostId(2), HostId(0));
    w.partition(&[&[HostId(1)]]);
    let (cut, whole) = (Results::default(), Results::default());
    call(&mut w, HostId(1), s, b"cut", &cut);
    call(&mut w, HostId(2), t, b"whole", &whole);
    w.run_for(MS * 100);
    assert_eq!((cut.borrow().len(), whole.borrow().len()), (0, 1));
    w.heal();
    assert!(w.run_until(MS * 1000, |_| cut.borrow().len() == 1));
    assert_eq!(cut.borrow()[0].1.as_deref(), Ok(&b"cut"[..]));
    assert_eq!(w.counts().executed, 2);
}

#[test]
fn handlers_that_spend_time_delay_others() {
    let mut cfg = WorldConfig::new(5, Topology::two_hosts());
    cfg.costs = CpuCosts::none();
    let mut w = World::new(cfg).unwrap();
    w.start(HostId(0), |nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.on(ECHO, |cx, req| {
            courser_sim::spend(Duration::from_micros(100));
            cx.reply(req);
        });
        Ok::<_, courser::BindError>(rpc)
    })
    .unwrap();
    w.start(HostId(1), echo).unwrap();
    let s = connect(&mut w, HostId(1), HostId(0));
    let results = Results::default();
    let begin_ns = w.now_ns();
    for _ in 0..8 {
        call(&mut w, HostId(1), s, b"x", &results);
    }
    assert!(w.run_until(MS * 10, |_| results.borrow().len() == 8));
    let took_us = (w.now_ns() - begin_ns) / 1000;
    assert!((800..820).contains(&took_us), "{took_us} us for eight handlers of 100 us");
}

#[test]
fn handlers_of_one_way_messages_take_the_time_of_their_type() {
    const NOTE: u16 = 7;
    let mut cfg = WorldConfig::new(5, Topology::two_hosts());
    cfg.costs = CpuCosts { handlers: [(NOTE, 100_000)].into(), ..CpuCosts::none() };
    let mut w = World::new(cfg).unwrap();
    w.start(HostId(0), |nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.on_message(NOTE, |_, _| ());
        rpc.on(ECHO, |cx, request| cx.reply(request));
        Ok::<_, courser::BindError>(rpc)
    })
    .unwrap();
    w.start(HostId(1), echo).unwrap();
    let s = connect(&mut w, HostId(1), HostId(0));
    let begin_ns = w.now_ns();
    for _ in 0..8 {
        let rpc = w.rpc(HostId(1));
        let message = rpc.alloc(10).unwrap();
        rpc.send(s, NOTE, message).unwrap();
    }
    let results = Results::default();
    call(&mut w, HostId(1), s, b"x", &results);
    assert!(w.run_until(MS * 10, |_| results.borrow().len() == 1));
    let took_us = (w.now_ns() - begin_ns) / 1000;
    assert!((800..820).contains(&took_us), "{took_us} us behind eight handlers of 100 us");
}

#[test]
fn timers_workers_and_pauses_use_virtual_time() {
    let mut w = World::new(WorldConfig::new(6, Topology::two_hosts())).unwrap();
    let fired = Rc::new(Cell::new(0));
    let seen = fired.clone();
    w.start(HostId(0), move |nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.on_worker(ECHO, |work| {
            courser_sim::spend(Duration::from_micros(1));
            let bytes = work.to_vec();
            work.reply(&bytes[..]);
        })?;
        let seen = seen.clone();
        rpc.context().after(MS * 3, move |_| seen.set(seen.get() + 1));
        Ok::<_, Box<dyn std::error::Error>>(rpc)
    })
    .unwrap();
    w.start(HostId(1), echo).unwrap();
    let s = connect(&mut w, HostId(1), HostId(0));
    let results = Results::default();
    call(&mut w, HostId(1), s, b"to a worker", &results);
    w.run_to(2_999_999);
    assert_eq!(results.borrow()[0].1.as_deref(), Ok(&b"to a worker"[..]));
    assert_eq!(fired.get(), 0);
    w.pause(HostId(0), MS * 2);
    w.run_to(4_900_000);
    assert_eq!(fired.get(), 0, "timers ran during a pause");
    w.run_to(5_100_000);
    assert_eq!(fired.get(), 1);
}

#[test]
fn blocking_calls_panic_with_advice_instead_of_hanging() {
    let mut w = world(9, 2);
    let said = w.rpc(HostId(0)).run().unwrap_err().to_string();
    assert!(said.contains("virtual time"), "{said}");
}

#[test]
fn a_server_that_stops_gracefully_finishes_running_calls() {
    let mut w = World::new(WorldConfig::new(10, Topology::two_hosts())).unwrap();
    w.start(HostId(0), |nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.on(ECHO, |cx, _| {
            let handle = cx.defer().unwrap();
            cx.after(MS * 5, move |cx| cx.reply_to(handle, &b"late"[..]).unwrap());
        });
        Ok::<_, courser::BindError>(rpc)
    })
    .unwrap();
    w.start(HostId(1), echo).unwrap();
    let s = connect(&mut w, HostId(1), HostId(0));
    let results = Results::default();
    call(&mut w, HostId(1), s, b"begun", &results);
    w.run_for(MS);
    w.stop(HostId(0), MS * 1000);
    w.run_for(MS);
    call(&mut w, HostId(1), s, b"too late", &results);
    assert!(w.run_until(MS * 20, |w| !w.is_running(HostId(0))));
    w.run_for(MS);
    let refused = CallError::Server(courser::Status::ShuttingDown);
    let answers: Vec<_> = results.borrow().iter().map(|r| r.1.clone()).collect();
    assert_eq!(answers, [Err(refused), Ok(b"late".to_vec())]);
    assert_eq!(w.peek(HostId(1), 0).unwrap().session_state(s), SessionState::Gone);
    assert_eq!(w.control_connections(), 0);
}

/// A full transmit queue, while the endpoint is inspected after every event.
#[test]
fn a_full_transmit_queue_does_not_stop_the_clock() {
    let mut cfg = WorldConfig::new(11, Topology::two_hosts());
    cfg.nic.tx_queue = 2;
    let mut w = World::new(cfg).unwrap();
    for host in w.hosts() {
        w.start(host, echo).unwrap();
    }
    let s = connect(&mut w, HostId(1), HostId(0));
    let results = Results::default();
    call(&mut w, HostId(1), s, &[7; 100_000], &results);
    let ended = |w: &mut World| {
        w.rpc(HostId(1));
        !results.borrow().is_empty()
    };
    assert!(w.run_until(MS * 10, ended));
    assert_eq!(results.borrow()[0].1.as_deref(), Ok(&[7; 100_000][..]));
}

/// A request through a context outside of callbacks wakes the endpoint as well.
#[test]
fn a_session_is_connected_through_a_context_from_outside() {
    let mut w = world(12, 2);
    w.run_for(MS);
    let uri = w.uri(HostId(0));
    let s = w.rpc(HostId(1)).context().connect(&uri).unwrap();
    w.run_for(MS);
    assert_eq!(w.peek(HostId(1), 0).unwrap().session_state(s), SessionState::Connected);
    w.rpc(HostId(1)).context().close(s);
    w.run_for(MS);
    assert_eq!(w.peek(HostId(0), 0).unwrap().sessions(), 0);
}

#[test]
#[should_panic(expected = "a handler has panicked")]
fn a_failed_assertion_in_a_handler_is_not_lost() {
    let mut w = world(13, 2);
    w.start(HostId(0), |nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.on(ECHO, |_, req| assert_eq!(req.len(), 4, "this is only logged"));
        Ok::<_, courser::BindError>(rpc)
    })
    .unwrap();
    let s = connect(&mut w, HostId(1), HostId(0));
    call(&mut w, HostId(1), s, b"five!", &Results::default());
    w.run_for(MS);
}

/// A host that calls itself, a host that becomes slow.
#[test]
fn hosts_call_themselves_and_become_slow() {
    let mut w = world(14, 2);
    let s = connect(&mut w, HostId(0), HostId(0));
    let results = Results::default();
    let mut took = Vec::new();
    for pass_ns in [1, 50_000] {
        let mut costs = CpuCosts::none();
        costs.pass_ns = pass_ns;
        w.set_costs(HostId(0), costs);
        let begin_ns = w.now_ns();
        call(&mut w, HostId(0), s, b"me", &results);
        let count = results.borrow().len();
        assert!(w.run_until(MS * 10, |_| results.borrow().len() > count));
        took.push(w.now_ns() - begin_ns);
    }
    assert!(took[0] < 5_000 && took[1] > 50_000, "{took:?} ns");
}

/// The network of a machine that has crashed and restarted resets connections of peers that still
/// use them.
#[test]
fn a_restarted_machine_resets_old_connections() {
    let mut w = world(15, 2);
    let s = connect(&mut w, HostId(1), HostId(0));
    w.crash(HostId(0));
    // Long enough for a heartbeat, not for its silence.
    w.run_for(MS * 500);
    let begin_ns = w.now_ns();
    w.restart(HostId(0)).unwrap();
    assert_eq!(w.peek(HostId(1), 0).unwrap().session_state(s), SessionState::Connected);
    let gone = |w: &mut World| w.peek(HostId(1), 0).unwrap().session_state(s) == SessionState::Gone;
    assert!(w.run_until(MS, gone), "not at {} ns", w.now_ns() - begin_ns);
}

/// Time that a worker's handler spends delays its response.
#[test]
fn a_worker_handler_that_spends_time_answers_later() {
    let mut w = World::new(WorldConfig::new(16, Topology::two_hosts())).unwrap();
    w.start(HostId(0), |nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.on_worker(ECHO, |work| {
            courser_sim::spend(Duration::from_micros(100));
            work.reply(&b"done"[..]);
        })?;
        Ok::<_, Box<dyn std::error::Error>>(rpc)
    })
    .unwrap();
    w.start(HostId(1), echo).unwrap();
    let s = connect(&mut w, HostId(1), HostId(0));
    let results = Results::default();
    let begin_ns = w.now_ns();
    call(&mut w, HostId(1), s, b"work", &results);
    assert!(w.run_until(MS * 10, |_| !results.borrow().is_empty()));
    let took_us = (w.now_ns() - begin_ns) / 1000;
    assert!((100..110).contains(&took_us), "{took_us} us");
}
