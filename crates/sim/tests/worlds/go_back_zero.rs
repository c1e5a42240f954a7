//! Requests with go-back-0, whose server begins again when a duplicate of the first packet arrives
//! (M21): each call ends.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Recovery, Rpc, SessionState};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, World, WorldConfig};

const STORE: u16 = 1;
const SERVER: HostId = HostId(0);
const CLIENTS: u32 = 3;

/// Calls of a client, each with a request of up to 60 packets.
const CALLS: usize = 16;

fn request_bytes(call: usize) -> usize {
    [64_000, 20_000, 3_000, 8][call % 4]
}

fn run(seed: u64, faults: LinkFaults) {
    let mut config = WorldConfig::new(seed, Topology::one_switch(CLIENTS + 1));
    config.nexus.recovery = Recovery::GoBackZero;
    let mut world = World::new(config).unwrap();
    let start = |nexus: &Nexus| -> Result<Rpc, courser::BindError> {
        let mut rpc = nexus.endpoint()?;
        rpc.on(STORE, |cx, request| {
            assert!(request.iter().all(|&byte| byte == 7), "the request arrived changed");
            cx.reply((request.len() as u32).to_le_bytes());
        });
        Ok(rpc)
    };
    world.start(SERVER, start).unwrap();
    let uri = world.uri(SERVER);
    let clients = (1..=CLIENTS).map(HostId);
    let mut sessions = Vec::new();
    for host in clients.clone() {
        world.start(host, |nexus: &Nexus| nexus.endpoint()).unwrap();
        let session = world.rpc(host).connect(&uri).unwrap();
        let ready = world.run_until(Duration::from_millis(10), |w| {
            w.rpc(host).session_state(session) == SessionState::Connected
        });
        assert!(ready, "not connected");
        sessions.push(session);
    }
    for link in 0..world.fabric().links() {
        world.set_link_faults(LinkId(link), faults);
    }
    let ended = Rc::new(Cell::new(0));
    for (host, session) in clients.zip(sessions) {
        for call in 0..CALLS {
            let (ended, bytes) = (ended.clone(), request_bytes(call));
            let rpc = world.rpc(host);
            let mut request = rpc.alloc(bytes).unwrap();
            request.fill(7);
            rpc.call(session, STORE, request, move |_, done| {
                let response = done.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert_eq!(response[..], (bytes as u32).to_le_bytes());
                ended.set(ended.get() + 1);
            })
            .unwrap();
        }
    }
    let all = CLIENTS as usize * CALLS;
    world.run_until(Duration::from_secs(3), |_| ended.get() == all);
    assert_eq!(ended.get(), all, "calls of seed {seed} do not end");
}

#[test]
fn calls_end_whatever_is_lost_repeated_and_reordered() {
    for seed in 0..40 {
        let (loss_ppm, duplicate_ppm, reorder_ppm) = match seed % 4 {
            0 => (0, 50_000, 0),
            1 => (2_000, 20_000, 0),
            2 => (0, 5_000, 2_000),
            _ => (2_000, 50_000, 1_000),
        };
        let reorder_max_ns = 20_000;
        let faults = LinkFaults {
            loss_ppm,
            duplicate_ppm,
            reorder_ppm,
            reorder_max_ns,
            ..LinkFaults::default()
        };
        run(seed, faults);
    }
}
