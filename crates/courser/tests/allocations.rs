//! Heap allocations per packet in steady state: none (M20). Messages, frames and MELO's bits use
//! preallocated memory. With MELO, a message of several packets costs at most one allocation at its
//! sender and one at its receiver, however many packets are lost.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use courser::{Config, Control, Nexus, Recovery, Rpc, SessionState};
use courser_net::{FaultConfig, FaultPlan, FaultTransport, MemConfig, MemNetwork, Transport};

const ECHO: u16 = 1;
const ROUNDS: u64 = 10;
/// Time limit of a hanging test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two connected endpoints and a closed loop of echoes.
struct Pair<T: Transport> {
    server: Rpc<T>,
    client: Rpc<T>,
    /// Calls that have ended.
    ended: Rc<Cell<u64>>,
    _nexuses: [Nexus; 2],
}

impl<T: Transport> Pair<T> {
    /// Starts `in_flight` calls of `bytes` bytes, and repeats each.
    fn new(config: Config, transport: impl Fn() -> T, in_flight: u64, bytes: usize) -> Self {
        let nexuses = [(); 2]
            .map(|()| Nexus::bind_with("mem://127.0.0.1:0", config.clone()).expect("a nexus"));
        let [mut server, mut client] =
            [0, 1].map(|at: usize| nexuses[at].endpoint_on(transport()).expect("an endpoint"));
        server.on(ECHO, |cx, req| cx.reply(req));
        let session = client.connect(&nexuses[0].local_uri()).expect("a session");
        let end = Instant::now() + PATIENCE;
        while client.session_state(session) == SessionState::Connecting {
            client.poll();
            server.poll();
            assert!(Instant::now() < end, "the session is not connected");
        }
        let ended = Rc::new(Cell::new(0));
        let count = ended.clone();
        client.on_completion(move |cx, tag, done| {
            assert_eq!(done.result.map(|r| r.len()), Ok(bytes));
            count.set(count.get() + 1);
            cx.request(session, ECHO, done.request).tag(tag).send().expect("a call");
        });
        for tag in 0..in_flight {
            let request = client.alloc(bytes).expect("a buffer");
            client.request(session, ECHO, request).tag(tag).send().expect("a call");
        }
        Pair { server, client, ended, _nexuses: nexuses }
    }

    /// Waits until `calls` more have ended.
    fn run(&mut self, calls: u64) {
        let (until, end) = (self.ended.get() + calls, Instant::now() + PATIENCE);
        while self.ended.get() < until {
            self.client.poll();
            self.server.poll();
            assert!(Instant::now() < end, "{} of {until} calls have ended", self.ended.get());
        }
    }

    /// Allocations of both event loops for `calls` calls: the minimum of several rounds, as slots,
    /// queues and frame memory grow in the first ones.
    fn least(&mut self, calls: u64) -> u64 {
        let mut least = u64::MAX;
        for _ in 0..ROUNDS {
            least = least.min(measure(|| self.run(calls)).count_total);
            if least == 0 {
                break;
            }
        }
        least
    }
}

fn mem(network: &MemNetwork) -> courser_net::MemTransport {
    let host = u128::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    network.endpoint(MemConfig { host, ..MemConfig::default() }).expect("a transport")
}

#[test]
fn the_allocation_counter_works() {
    assert_eq!(measure(|| drop(std::hint::black_box(Box::new(7)))).count_total, 1);
}

#[test]
fn packets_allocate_nothing_in_steady_state() {
    for (bytes, calls) in [(32, 20_000), (100_000, 300)] {
        let network = MemNetwork::new();
        let mut pair = Pair::new(Config::default(), || mem(&network), 8, bytes);
        let least = pair.least(calls);
        assert_eq!(least, 0, "for {calls} calls of {bytes} bytes");
    }
}

#[test]
fn lost_packets_cost_at_most_one_allocation_per_message_and_side() {
    // One at each sender and each receiver of request and response. With congestion control a few
    // more: messages take longer, and a slot that is idle for a millisecond acknowledges its response
    // and frees its state.
    let controls = [(Control::None, 4), (Control::TwoWindow, 5)];
    for (bytes, (control, most)) in
        [50_000, 500_000].into_iter().flat_map(|bytes| controls.map(|control| (bytes, control)))
    {
        let network = MemNetwork::new();
        let lossy =
            |seed| FaultConfig { seed, tx: FaultPlan::loss(10_000), ..FaultConfig::default() };
        let seed = Cell::new(0);
        let transport = || {
            seed.set(seed.get() + 1);
            FaultTransport::new(mem(&network), lossy(seed.get()))
        };
        let config = Config { recovery: Recovery::Melo, control, ..Config::default() };
        let mut pair = Pair::new(config, transport, 1, bytes);
        let calls = 100;
        let least = pair.least(calls);
        let lost = pair.client.transport().tx_faults();
        assert!(lost.lost > 10, "{lost:?}");
        assert!(least <= most * calls, "{least} for {calls} calls of {bytes} bytes");
    }
}
