//! Frames that wait in their host are no queue of the network (ADR 58).

use std::time::Duration;

use courser::{BindError, Context, EndpointStats, MsgBuf, Nexus, Rpc, SessionId, SessionState};
use courser_sim::fabric::{Topology, delay_in_order};
use courser_sim::{CpuCosts, HostId, Rng, World, WorldConfig};

const SINK: u16 = 1;
const EVENT: u16 = 2;
const SERVER: HostId = HostId(0);
const MS: Duration = Duration::from_millis(1);
const LARGE: usize = 4 << 20;

fn server(nexus: &Nexus) -> Result<Rpc, BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(SINK, |cx, _| cx.reply([]));
    rpc.on_message(EVENT, |_, _| {});
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

/// Hosts whose requests of [`LARGE`] bytes never pause, and the server of all.
struct Load {
    w: World,
    clients: u32,
}

impl Load {
    fn begin(seed: u64, clients: u32, others: u32, stamps: bool) -> Load {
        let mut config = WorldConfig::new(seed, Topology::one_switch(1 + clients + others));
        config.nic.stamps_arrivals = stamps;
        config.nexus.credits = Some(256);
        let mut w = World::new(config).unwrap();
        for host in w.hosts() {
            w.start(host, server).unwrap();
        }
        let mut load = Load { w, clients };
        for host in (1..=clients).map(HostId) {
            let session = load.connect(host);
            let mut cx = load.w.rpc(host).context();
            let request = cx.alloc(LARGE).unwrap();
            repeat(&mut cx, session, request);
        }
        load
    }

    fn connect(&mut self, host: HostId) -> SessionId {
        let uri = self.w.uri(SERVER);
        let session = self.w.rpc(host).connect(&uri).unwrap();
        let is_up = |w: &mut World| w.rpc(host).session_state(session) == SessionState::Connected;
        assert!(self.w.run_until(MS * 10, is_up), "{host:?}");
        session
    }

    /// Each frame to one of these hosts waits there for up to `most_ns`, drawn from a sequence, in order.
    fn delay(&mut self, hosts: impl IntoIterator<Item = HostId>, most_ns: u64) {
        for host in hosts {
            let link = self.w.fabric().uplink(host).reverse();
            let mut rng = Rng::stream(7, host.0.into());
            let wait_ns = move || rng.below(most_ns);
            self.w.set_link_rule(link, Some(delay_in_order(wait_ns, |_| 0)));
        }
    }

    fn stats(&self, host: u32) -> EndpointStats {
        self.w.peek(HostId(host), 0).expect("an endpoint").stats().clone()
    }

    /// Packets that each client sends in this time, those that the server receives, and those that clients
    /// send again.
    fn measure(&mut self, time: Duration) -> (Vec<u64>, u64, u64) {
        let count = |load: &Load| {
            let of_clients = |f: fn(&EndpointStats) -> u64| {
                (1..=load.clients).map(|host| f(&load.stats(host))).collect::<Vec<_>>()
            };
            let again = of_clients(|stats| stats.retransmitted).iter().sum::<u64>();
            (of_clients(|stats| stats.tx_packets), load.stats(0).rx_packets, again)
        };
        let before = count(self);
        self.w.run_for(time);
        assert!(self.w.violations().is_empty(), "{:?}", self.w.violations());
        let after = count(self);
        let sent = after.0.iter().zip(&before.0).map(|(after, before)| after - before).collect();
        (sent, after.1 - before.1, after.2 - before.2)
    }
}

/// Packets that the server receives in 10 ms, and those sent again, with jitter of 20 us.
fn packets(clients: u32, stamps: bool) -> (u64, u64) {
    let mut load = Load::begin(7, clients, 0, stamps);
    load.delay((0..=clients).map(HostId), 20_000);
    load.w.run_for(10 * MS);
    let (_, received, again) = load.measure(10 * MS);
    (received, again)
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

#[test]
fn senders_to_a_host_with_jitter_have_similar_shares_for_long() {
    for (seed, clients) in [(1, 4), (2, 8), (7, 8)] {
        let mut load = Load::begin(seed, clients, 0, true);
        load.delay((0..=clients).map(HostId), 20_000);
        load.w.run_for(60 * MS);
        let (sent, received, _) = load.measure(20 * MS);
        assert!(received > 36_800, "{clients}, seed {seed}: {received}");
        let (mean, least) = (sent.iter().sum::<u64>() / u64::from(clients), sent.iter().min());
        assert!(least.is_some_and(|&n| n * 10 >= mean * 7), "{clients}, seed {seed}: {sent:?}");
    }
}

/// Sends a one-way message each 30 us.
fn tell(cx: &mut Context<'_>, session: SessionId) {
    let message = cx.alloc(32).unwrap();
    cx.send(session, EVENT, message).expect("room for a message");
    cx.after(Duration::from_micros(30), move |cx: &mut Context<'_>| tell(cx, session));
}

/// Peers of small messages are not told times without the waits of a host that receives large ones.
#[test]
fn messages_beside_large_ones_are_not_sent_again_because_a_host_waits() {
    let mut load = Load::begin(7, 4, 4, true);
    for host in (5..=8).map(HostId) {
        let session = load.connect(host);
        tell(&mut load.w.rpc(host).context(), session);
    }
    load.delay([SERVER], 32_000);
    load.w.run_for(10 * MS);
    let counts = |load: &Load| {
        let of_senders = |f: fn(&EndpointStats) -> u64| (5..=8).map(|h| f(&load.stats(h))).sum();
        (of_senders(|stats| stats.messages_sent), of_senders(|stats| stats.retransmitted))
    };
    let before: (u64, u64) = counts(&load);
    load.w.run_for(20 * MS);
    let after: (u64, u64) = counts(&load);
    let (sent, again) = (after.0 - before.0, after.1 - before.1);
    assert!(sent > 2_000 && again * 100 < sent, "{again} of {sent}");
}

/// A receiver that takes 650 ns for a packet, and the link carries one in 490, has a queue of its own.
#[test]
fn small_calls_wait_little_behind_large_ones_at_a_slow_receiver() {
    let mut load = Load::begin(7, 20, 1, true);
    let costs = CpuCosts { rx_packet_ns: 650, ..CpuCosts::default() };
    load.w.set_costs(SERVER, costs);
    let session = load.connect(HostId(21));
    load.w.run_for(20 * MS);
    let mut cx = load.w.rpc(HostId(21)).context();
    let request = cx.alloc(32).unwrap();
    repeat(&mut cx, session, request);
    let before = load.stats(21).responses;
    let (_, received, again) = load.measure(20 * MS);
    let calls = load.stats(21).responses - before;
    assert!(calls >= 20_000 / 80, "{} us a call", 20_000 / calls.max(1));
    assert!(received > 2 * 11_500 && again < 100, "{received}, {again} again");
}
