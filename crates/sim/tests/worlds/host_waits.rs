//! Frames that wait in their host are no queue of the network (ADR 58).

use std::time::Duration;

use courser::{BindError, Context, EndpointStats, MsgBuf, Nexus, Rpc, SessionId, SessionState};
use courser_sim::fabric::{Topology, delay_in_order};
use courser_sim::{HostId, Rng, World, WorldConfig};

const SINK: u16 = 1;
const SERVER: HostId = HostId(0);
const MS: Duration = Duration::from_millis(1);
const LARGE: usize = 4 << 20;

fn server(nexus: &Nexus) -> Result<Rpc, BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(SINK, |cx, _| cx.reply([]));
    Ok(rpc)
}

/// Calls one after the other.
fn repeat(cx: &mut Context<'_>, session: SessionId, req: MsgBuf) {
    let next = move |cx: &mut Context<'_>, done: courser::Completion<'_>| {
        done.result.expect("an answer");
        repeat(cx, session, done.request);
    };
    cx.call(session, SINK, req, next).unwrap();
}

fn stats_of(w: &World, host: HostId) -> EndpointStats {
    w.peek(host, 0).expect("an endpoint").stats().clone()
}

/// Packets of large requests that a server receives in 10 ms, and packets that its clients have sent again.
/// Each frame to each host waits there for up to 20 us, drawn from a sequence, and in order.
fn packets(clients: u32, stamps: bool) -> (u64, u64) {
    let mut config = WorldConfig::new(7, Topology::one_switch(1 + clients));
    config.nic.stamps_arrivals = stamps;
    config.nexus.credits = Some(256);
    let mut w = World::new(config).unwrap();
    for host in w.hosts() {
        w.start(host, server).unwrap();
    }
    for (client, host) in (1..=clients).map(|client| (client, HostId(client))) {
        let uri = w.uri(SERVER);
        let session = w.rpc(host).connect(&uri).unwrap();
        let is_up = |w: &mut World| w.rpc(host).session_state(session) == SessionState::Connected;
        assert!(w.run_until(MS * 10, is_up), "client {client}");
        let mut cx = w.rpc(host).context();
        let request = cx.alloc(LARGE).unwrap();
        repeat(&mut cx, session, request);
    }
    for host in w.hosts() {
        let link = w.fabric().uplink(host).reverse();
        let mut rng = Rng::stream(7, host.0.into());
        w.set_link_rule(link, Some(delay_in_order(move || rng.below(20_000), |_| 0)));
    }
    w.run_for(10 * MS);
    let again =
        |w: &World| (1..=clients).map(|c| stats_of(w, HostId(c)).retransmitted).sum::<u64>();
    let before = (stats_of(&w, SERVER).rx_packets, again(&w));
    w.run_for(10 * MS);
    assert!(w.violations().is_empty(), "{:?}", w.violations());
    (stats_of(&w, SERVER).rx_packets - before.0, again(&w) - before.1)
}

#[test]
fn jitter_of_hosts_costs_little_if_arrivals_have_times() {
    // A link of 25 Gbit/s carries 20,400 packets in 10 ms.
    for clients in [1, 2, 8] {
        let (received, again) = packets(clients, true);
        assert!(received > 18_400 && again == 0, "{clients}: {received}, {again} again");
    }
    let (received, _) = packets(2, false);
    assert!(received < 14_000, "{received} without times of arrival");
}
