//! Races that the papers describe, each produced on purpose.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{CallError, Nexus, Rpc, SessionState};
use courser_sim::fabric::Topology;
use courser_sim::{DropReason, HostId, World, WorldConfig};

const ECHO: u16 = 1;
const MS: Duration = Duration::from_millis(1);
const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);

fn echo(nexus: &Nexus) -> Result<Rpc, courser::BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(ECHO, |cx, req| cx.reply(req));
    Ok(rpc)
}

/// A call that has ended: its result, and whether its buffer was still referenced.
type Ends = Rc<RefCell<Vec<(Result<usize, CallError>, bool)>>>;

/// Two connected hosts, and calls of the client of `bytes` bytes.
fn calls(cfg: WorldConfig, bytes: usize, count: usize) -> (World, Ends) {
    let mut w = World::new(cfg).unwrap();
    w.start(SERVER, echo).unwrap();
    w.start(CLIENT, echo).unwrap();
    let uri = w.uri(SERVER);
    let s = w.rpc(CLIENT).connect(&uri).unwrap();
    let stands = |w: &mut World| w.rpc(CLIENT).session_state(s) == SessionState::Connected;
    assert!(w.run_until(MS * 10, stands));
    let ends = Ends::default();
    for n in 0..count {
        let rpc = w.rpc(CLIENT);
        let mut m = rpc.alloc(bytes).unwrap();
        m.fill(n as u8);
        let to = ends.clone();
        rpc.call(s, ECHO, m, move |_, done| {
            let result = done.result.map(|r| {
                assert!(r.iter().all(|&b| b == n as u8), "the answer of another call");
                r.len()
            });
            to.borrow_mut().push((result, done.request.is_shared()));
        })
        .unwrap();
    }
    (w, ends)
}

fn all_ended_well(ends: &Ends, count: usize, bytes: usize) {
    assert_eq!(ends.borrow().len(), count);
    for end in ends.borrow().iter() {
        assert_eq!(*end, (Ok(bytes), false), "the buffer is the application's again");
    }
}

/// [eRPC §4.2.2] An unnecessary retransmission is in the transmit queue when the response to the
/// first copy arrives (E24, E25, E26).
#[test]
fn the_response_overtakes_a_false_retransmission_in_the_queue() {
    let mut cfg = WorldConfig::new(1, Topology::two_hosts());
    // Frames stay in the transmit queue for a millisecond, so that the timeout of 100 us is always
    // wrong, and a copy is always queued when the response arrives.
    cfg.nic.tx_latency_ns = 1_000_000;
    cfg.nexus.rto = (Duration::from_micros(100), Duration::from_micros(100));
    let (mut w, ends) = calls(cfg, 1000, 8);
    w.run_for(MS * 50);
    all_ended_well(&ends, 8, 1000);
    let stats = w.peek(CLIENT, 0).unwrap().stats();
    assert!(stats.completions_parked > 0, "no completion was delayed by the queue");
    assert_eq!(w.counts().executed, 8);
}

/// [eRPC §5.3] A false positive overruns the credits: the receive queue, which has one descriptor
/// for each credit, is full when the copies arrive, and packets that are really lost then are
/// recovered (E60).
#[test]
fn an_overrun_receive_queue_loses_packets_that_are_recovered() {
    let mut cfg = WorldConfig::new(2, Topology::two_hosts());
    cfg.nexus.credits = Some(16);
    cfg.nexus.rto = (Duration::from_micros(100), Duration::from_micros(200));
    let (mut w, ends) = calls(cfg, 100_000, 1);
    w.set_rx_queue(SERVER, 16);
    // The server is late: the client considers its packets lost and sends them again.
    w.pause(SERVER, MS);
    w.run_for(MS * 100);
    all_ended_well(&ends, 1, 100_000);
    assert!(w.counts().dropped[DropReason::NoDescriptor as usize] > 0, "nothing was overrun");
    assert_eq!(w.counts().executed, 1);
}

/// The same without a false positive: as many credits as descriptors never overrun them [eRPC
/// §4.3.1], although the server's thread is paused meanwhile.
#[test]
fn as_many_credits_as_descriptors_lose_nothing() {
    let mut cfg = WorldConfig::new(3, Topology::two_hosts());
    cfg.nexus.credits = Some(16);
    let (mut w, ends) = calls(cfg, 100_000, 8);
    w.set_rx_queue(SERVER, 16);
    w.pause(SERVER, Duration::from_micros(500));
    w.run_for(MS * 20);
    all_ended_well(&ends, 8, 100_000);
    assert_eq!(w.counts().dropped[DropReason::NoDescriptor as usize], 0);
}
