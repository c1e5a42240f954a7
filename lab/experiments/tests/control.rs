//! Targets of the default congestion control beyond one incast, each in its shortest form.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Control, Nexus, Recovery, Rpc};
use courser_lab::experiments::buffers::{self, Buffers};
use courser_lab::experiments::{
    background, fan_in, first_burst, join_leave, operating_range, reroute, slow_handler,
    uncongested, uplink,
};
use courser_lab::scenario::Hosts;
use courser_sim::fabric::{Buffer, Topology};
use courser_sim::{CpuCosts, HostId, World, WorldConfig};

/// Small calls to the victim of an incast take at most three times as long as without, and calls of
/// 64 kB between others at most 1.15 times (E83).
#[test]
fn calls_beside_an_incast_stay_short() {
    let settings = background::Background {
        senders: 20,
        warm_up_ns: 2_000_000,
        time_ns: 2_000_000,
        ..background::Background::default()
    };
    let seen = background::run(&settings).expect("runs");
    assert!(seen.to_victim_ratio() <= 3.0, "{seen:?}");
    assert!(seen.background_ratio() <= 1.15, "{seen:?}");
    assert_eq!(seen.incast.overflows, 0, "{seen:?}");
    assert!(seen.incast.goodput_bps > 20_000_000_000, "{seen:?}");
}

/// With 480 kB for each port an incast loses nothing after the first round trip (E84).
#[test]
fn small_static_buffers_lose_nothing_after_the_first_round_trip() {
    let settings = Buffers { warm_up_ns: 3_000_000, time_ns: 3_000_000, ..Buffers::default() };
    let scheme = buffers::Scheme { control: Control::default(), recovery: Recovery::default() };
    let buffer = Buffer::PerPort { bytes: 480_000 };
    for senders in [20, 50, 100] {
        let seen = buffers::point(&settings, scheme, senders, buffer).expect("runs");
        assert_eq!(seen.overflows_after_first_rtt, 0, "{senders}: {seen:?}");
        assert!(seen.goodput_bps > 22_000_000_000, "{senders}: {seen:?}");
    }
}

/// A sender that joins has its share within ten milliseconds: Jain's index of those ten is at least
/// 0.95.
#[test]
fn senders_that_join_and_leave_share_the_link() {
    let settings = join_leave::JoinLeave { senders: 4, ..join_leave::JoinLeave::default() };
    assert_eq!(settings.every_ns, 10_000_000);
    let seen = join_leave::run(&settings).expect("runs");
    for join in seen.windows.iter().filter(|window| window.joined) {
        assert!(join.jain >= 0.95 && join.fair_after_ns.is_some(), "{join:?}");
    }
    assert!(seen.jain_after_join >= 0.95 && seen.jain_after_leave >= 0.95, "{seen:?}");
    assert!(seen.goodput_share >= 0.95, "{seen:?}");
}

/// A first burst of idle senders takes little more than its bytes.
#[test]
fn the_first_burst_of_idle_senders_takes_the_time_of_its_bytes() {
    for request_bytes in [1_000, 4_000, 64_000] {
        let settings = first_burst::FirstBurst {
            request_bytes,
            rounds: 2,
            ..first_burst::FirstBurst::default()
        };
        let seen = first_burst::run(&settings).expect("runs");
        assert!(seen.ratio <= 1.15, "{request_bytes}: {seen:?}");
        assert_eq!(seen.overflows, 0, "{request_bytes}: {seen:?}");
    }
}

/// Flows fill an oversubscribed uplink, and one beside it keeps its rate.
#[test]
fn a_flow_beside_an_oversubscribed_uplink_keeps_its_rate() {
    let (warm_up_ns, time_ns) = (5_000_000, 5_000_000);
    let settings = uplink::Uplink { flows: 4, warm_up_ns, time_ns, ..uplink::Uplink::default() };
    let seen = uplink::run(&settings).expect("runs");
    assert!(seen.innocent_share() >= 0.95 && seen.goodput_share >= 0.95, "{seen:?}");
    assert_eq!(seen.overflows, 0, "{seen:?}");
}

/// After a change of routes that makes the path 10 us longer, one and two senders have 0.95 of their
/// goodput again within 50 ms.
#[test]
fn goodput_is_back_within_50_ms_of_a_reroute() {
    for senders in [1, 2] {
        let (warm_up_ns, slices) = (10_000_000, 60);
        let settings =
            reroute::Reroute { senders, warm_up_ns, slices, ..reroute::Reroute::default() };
        let seen = reroute::run(&settings).expect("runs");
        let after = seen.recovered_after_ns;
        assert!(after.is_some_and(|ns| ns <= 50_000_000), "{senders}: {seen:?}");
        assert!(seen.before_share >= 0.95, "{senders}: {seen:?}");
    }
}

/// Responses of 20 servers at once take at most 1.1 times the time of their bytes. The switch has
/// room for the first packets, which are not requested, and none is lost.
#[test]
fn responses_of_many_servers_take_the_time_of_their_bytes() {
    let settings = fan_in::FanIn { servers: 20, rounds: 5, ..fan_in::FanIn::default() };
    let seen = fan_in::run(&settings).expect("runs");
    assert!(seen.completion.max_ns * 10 <= seen.expected_ns * 11, "{seen:?}");
    assert_eq!(seen.drops, 0, "{seen:?}");
}

/// The time of a handler is no congestion, wherever it runs: the window stays.
#[test]
fn a_slow_handler_leaves_the_window_alone() {
    for handler in slow_handler::Handler::ALL {
        for (request_bytes, handler_ns) in [(32, 20_000_000), (64_000, 20_000_000), (32, 3_000_000)]
        {
            let settings = slow_handler::SlowHandler {
                handler,
                handler_ns,
                request_bytes,
                ..slow_handler::SlowHandler::default()
            };
            let seen = slow_handler::run(&settings).expect("runs");
            assert!(seen.window_before.is_some(), "{seen:?}");
            // The packets of the slow call may move it, the time of its handler does not.
            let fast = slow_handler::SlowHandler { handler_ns: 0, ..settings };
            let fast = slow_handler::run(&fast).expect("runs");
            assert_eq!(seen.window_after, fast.window_after, "{handler:?} {request_bytes}");
            if request_bytes == 32 {
                assert_eq!(seen.window_after, seen.window_before, "{handler:?}");
            }
        }
    }
}

/// On links with little load the control neither paces nor delays small calls (E55).
#[test]
fn small_calls_of_an_uncongested_network_take_as_long_as_without_control() {
    let seen = [Control::None, Control::default()].map(|control| {
        let hosts = Hosts { control, ..uncongested::Uncongested::default().hosts };
        let (nodes, time_ns) = (10, 3_000_000);
        let settings = uncongested::Uncongested {
            hosts,
            nodes,
            time_ns,
            ..uncongested::Uncongested::default()
        };
        uncongested::run(&settings).expect("runs")
    });
    let [without, with] = &seen;
    assert!(
        with.small.p50_ns.abs_diff(without.small.p50_ns) * 50 <= without.small.p50_ns,
        "{seen:?}"
    );
    assert!(with.small.p99_ns * 20 <= without.small.p99_ns * 21, "{seen:?}");
    assert_eq!(with.paced, 0, "{seen:?}");
    // Slightly more calls end with it: they do not wait behind large ones in their host's own queue.
    let least_and_most = [999, 1_002].map(|parts| without.calls_rps * parts);
    assert!(
        (least_and_most[0]..=least_and_most[1]).contains(&(with.calls_rps * 1_000)),
        "{seen:?}"
    );
}

/// Other rates, lengths and frames need no other settings.
#[test]
fn other_networks_need_no_other_settings() {
    for (gbps, base_rtt_ns, max_frame) in
        [(10, 1_000, 1_072), (10, 25_000, 8_192), (100, 5_000, 8_192)]
    {
        let settings = operating_range::OperatingRange {
            max_frame,
            senders: 5,
            rate_bps: gbps * 1_000_000_000,
            base_rtt_ns,
            ..operating_range::OperatingRange::default()
        };
        let seen = operating_range::run(&settings).expect("runs");
        assert!(seen.goodput_share >= 0.95, "{gbps} {base_rtt_ns} {max_frame}: {seen:?}");
    }
}

/// A client that always has `outstanding` requests of `bytes` under way; `answered` counts.
fn caller(
    nexus: &Nexus,
    server: &str,
    (bytes, outstanding): (usize, usize),
    answered: Rc<Cell<u32>>,
) -> Result<Rpc, Box<dyn std::error::Error>> {
    let mut rpc = nexus.endpoint()?;
    let session = rpc.connect(server)?;
    rpc.on_completion(move |cx, _, done| {
        assert!(done.result.is_ok(), "a call has failed");
        answered.set(answered.get() + 1);
        assert!(cx.request(session, 1, done.request).send().is_ok());
    });
    for _ in 0..outstanding {
        let request = rpc.alloc(bytes)?;
        assert!(rpc.request(session, 1, request).send().is_ok());
    }
    Ok(rpc)
}

/// Messages of as many packets as may be sent before a grant use up the budget, and more. A long one
/// has a share of the link nevertheless.
#[test]
fn short_messages_of_many_senders_do_not_starve_a_long_one() {
    const SHORT: u32 = 40;
    let mut config = WorldConfig::new(1, Topology::one_switch(SHORT + 2));
    config.costs = CpuCosts::none();
    config.nic.max_frame = 1_072;
    config.nic.rx_queue = 8_192;
    config.nexus.credits = Some(32);
    let mut world = World::new(config).unwrap();
    world
        .start(HostId(0), |nexus| {
            let mut rpc = nexus.endpoint()?;
            rpc.on(1, |cx, _| cx.reply(&b"done"[..]));
            Ok::<_, courser::BindError>(rpc)
        })
        .unwrap();
    let uri = world.uri(HostId(0));
    let (short, long) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for host in 1..=SHORT + 1 {
        let is_long = host > SHORT;
        let calls = if is_long { (100_000, 1) } else { (4_096, 2) };
        let (uri, answered) = (uri.clone(), Rc::clone(if is_long { &long } else { &short }));
        world
            .start(HostId(host), move |nexus| caller(nexus, &uri, calls, Rc::clone(&answered)))
            .unwrap();
    }
    world.run_for(Duration::from_millis(40));
    let packets = [4 * short.get(), 98 * long.get()];
    assert!(
        packets[1] * 100 > packets[0],
        "packets of short messages and of the long: {packets:?}"
    );
}
