//! Readings of the clock by one iteration (E52).

use std::cell::Cell;
use std::rc::Rc;

use courser_proto::SessionId;

use crate::tests::in_memory::{Memory, connect, endpoints};
use crate::{Config, Nexus};

/// Calls of a batch, each with a request and a response of one packet.
const CALLS: u64 = 16;

/// A client and its server.
struct Pair {
    client: Memory,
    server: Memory,
    session: SessionId,
}

impl Pair {
    fn connect(config: Config) -> Pair {
        let nexus = Nexus::bind_with("mem://127.0.0.1:0", config).unwrap();
        let [mut server, mut client] = endpoints(&nexus);
        server.on(1, |cx, request| cx.reply(request));
        let session = connect(&mut client, &mut server, &nexus.local_uri());
        Pair { client, server, session }
    }

    /// Makes the calls. Returns the most readings of the clock in one iteration of either side.
    fn most_readings(&mut self) -> u64 {
        let ended = Rc::new(Cell::new(0));
        for _ in 0..CALLS {
            let (request, ended) = (self.client.alloc(32).unwrap(), ended.clone());
            let then = move |_: &mut crate::Context<'_>, done: crate::Completion<'_>| {
                assert!(done.result.is_ok());
                ended.set(ended.get() + 1);
            };
            self.client.call(self.session, 1, request, then).unwrap();
        }
        let mut most = 0;
        while ended.get() < CALLS {
            for rpc in [&mut self.client, &mut self.server] {
                let before = rpc.core.clock_readings();
                rpc.poll();
                most = most.max(rpc.core.clock_readings() - before);
            }
        }
        most
    }
}

/// Readings of the clock in the batch with the fewest: timers may add some to others.
fn readings(batched_timestamps: bool) -> u64 {
    let mut config = Config::default();
    config.tuning.factors.batched_timestamps = batched_timestamps;
    let mut pair = Pair::connect(config);
    (0..20).map(|_| pair.most_readings()).min().unwrap()
}

#[test]
fn an_iteration_reads_the_clock_a_few_times_whatever_the_number_of_its_packets() {
    let (batched, for_each_packet) = (readings(true), readings(false));
    assert!(batched <= 3, "{batched} readings for {CALLS} packets");
    assert!(for_each_packet >= CALLS / 2, "{for_each_packet}: readings are not counted");
}
