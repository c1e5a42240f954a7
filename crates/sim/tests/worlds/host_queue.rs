//! A host with large messages to or for many others keeps its own transmit queue short (ADR 57).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{BindError, Context, MsgBuf, Nexus, Rpc, SessionId, SessionState};
use courser_sim::fabric::{HOST_RATE_BPS, Topology};
use courser_sim::{HostId, NicConfig, World, WorldConfig};

const SINK: u16 = 1;
const FETCH: u16 = 2;
const MS: Duration = Duration::from_millis(1);

/// Other hosts than host 0.
const PEERS: u32 = 60;
const LARGE: usize = 2 << 20;
const SMALL: usize = 32;

fn server(nexus: &Nexus) -> Result<Rpc, BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(SINK, |cx, _| cx.reply([]));
    rpc.on(FETCH, |cx, _| cx.reply(vec![7; LARGE]));
    Ok(rpc)
}

fn world(nic: NicConfig) -> World {
    let config = WorldConfig::new(5, Topology::one_switch(1 + PEERS));
    let mut w = World::new(WorldConfig { nic, ..config }).unwrap();
    for host in w.hosts() {
        w.start(host, server).unwrap();
    }
    w
}

fn connect(w: &mut World, client: HostId, server: HostId) -> SessionId {
    let uri = w.uri(server);
    let s = w.rpc(client).connect(&uri).unwrap();
    let is_up = |w: &mut World| w.rpc(client).session_state(s) == SessionState::Connected;
    assert!(w.run_until(MS * 10, is_up), "no session after 10 ms");
    s
}

type Times = Rc<RefCell<Vec<u64>>>;

/// Makes calls one after the other, and records how long each takes, ns.
fn repeat(cx: &mut Context<'_>, session: SessionId, req_type: u16, req: MsgBuf, times: &Times) {
    let (times, begin_ns) = (times.clone(), cx.now_ns());
    cx.call(session, req_type, req, move |cx, done| {
        done.result.expect("an answer");
        times.borrow_mut().push(cx.now_ns() - begin_ns);
        repeat(cx, session, req_type, done.request, &times);
    })
    .unwrap();
}

fn start(w: &mut World, host: HostId, session: SessionId, (req_type, len): (u16, usize)) -> Times {
    let times = Times::default();
    let mut cx = w.rpc(host).context();
    let request = cx.alloc(len).unwrap();
    repeat(&mut cx, session, req_type, request, &times);
    times
}

/// Runs for 20 ms. Returns the packets that each peer has received in the last 10.
fn packets(w: &mut World) -> Vec<u64> {
    w.run_for(10 * MS);
    let peers = || (1..=PEERS).map(HostId);
    let before: Vec<u64> = peers().map(|peer| w.rpc(peer).stats().rx_packets).collect();
    w.run_for(10 * MS);
    assert!(w.violations().is_empty(), "{:?}", w.violations());
    peers().zip(before).map(|(peer, before)| w.rpc(peer).stats().rx_packets - before).collect()
}

/// Large packets that the link of host 0 sends in 10 ms.
const MOST: f64 = (HOST_RATE_BPS / 100) as f64 / (1_530 * 8) as f64;

/// The link of host 0 is busy with packets of large messages, of which all peers have their share.
fn assert_shared(packets: &[u64]) {
    let sum = packets.iter().sum::<u64>() as f64;
    assert!(sum > 0.95 * MOST, "{sum} packets of {MOST}");
    let least = *packets.iter().min().unwrap() as f64;
    assert!(least > 0.8 * sum / f64::from(PEERS), "{packets:?}");
}

fn p99_ns(times: &Times) -> u64 {
    let mut all = times.take();
    all.sort_unstable();
    assert!(all.len() > 200, "{}", all.len());
    all[all.len() * 99 / 100]
}

#[test]
fn small_calls_of_a_host_that_sends_to_many_are_short_and_its_paths_share_the_link() {
    let mut w = world(NicConfig::default());
    let me = HostId(0);
    let sessions: Vec<_> = (1..=PEERS).map(|peer| connect(&mut w, me, HostId(peer))).collect();
    for &session in &sessions {
        start(&mut w, me, session, (SINK, LARGE));
    }
    let small = start(&mut w, me, sessions[9], (SINK, SMALL));
    assert_shared(&packets(&mut w));
    let took_ns = p99_ns(&small);
    assert!(took_ns <= 20_000, "{took_ns}");
    // An idle network's round trip with a full packet is 3 us; the queue of the host has 1.5 to 3.
    for session in sessions {
        let least_ns = w.rpc(me).session_stats(session).unwrap().rtt_min_ns.unwrap();
        assert!(least_ns <= 5_500, "{least_ns}");
    }
    assert_eq!(w.rpc(me).stats().retransmitted, 0);
}

#[test]
fn small_calls_to_a_server_of_large_responses_are_short_and_its_clients_share_the_link() {
    let mut w = world(NicConfig::default());
    let server = HostId(0);
    for client in (1..=PEERS).map(HostId) {
        let session = connect(&mut w, client, server);
        start(&mut w, client, session, (FETCH, SMALL));
    }
    // With a session of its own: the response that its client fetches has all credits of the other.
    let session = connect(&mut w, HostId(10), server);
    let small = start(&mut w, HostId(10), session, (SINK, SMALL));
    assert_shared(&packets(&mut w));
    let took_ns = p99_ns(&small);
    // The queue of the host holds up to 20 us for small packets; an idle round trip takes 2.8 us.
    assert!(took_ns <= 22_800, "{took_ns}");
    let again: u64 = (1..=PEERS).map(|c| w.rpc(HostId(c)).stats().retransmitted).sum();
    let rollbacks: u64 = (1..=PEERS).map(|c| w.rpc(HostId(c)).stats().rollbacks).sum();
    assert!(again < 600 && rollbacks == 0, "{again} requested again, {rollbacks} timeouts");
}

#[test]
fn large_messages_have_the_link_beside_small_calls_of_a_nic_that_reports_every_50_us() {
    let late = NicConfig { completes_ns: 50_000, least_counted: 768, ..NicConfig::default() };
    let mut w = world(late);
    let me = HostId(0);
    let sessions: Vec<_> = (1..=PEERS).map(|peer| connect(&mut w, me, HostId(peer))).collect();
    let (large, small) = sessions.split_at(40);
    for &session in large {
        start(&mut w, me, session, (SINK, LARGE));
    }
    let small: Vec<_> = small.iter().map(|&s| start(&mut w, me, s, (SINK, SMALL))).collect();
    let packets = packets(&mut w);
    let sum = packets[..large.len()].iter().sum::<u64>() as f64;
    // Small packets have the rest.
    assert!(sum > 0.85 * MOST, "{sum} large packets of {MOST}");
    let took_ns = small.iter().map(p99_ns).max();
    assert!(took_ns < Some(250_000), "{took_ns:?}");
}
