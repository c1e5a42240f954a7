//! The latency of calls in the simulated network, beside that of a plain RPC. The processor time of the
//! Raft library is not in it.

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Local, Nexus};
use courser_sim::HostId;

use crate::world::Cluster;

const ECHO: u16 = 1;
const CALLS: usize = 200;

fn echo(nexus: &Nexus) -> Result<courser::Rpc, courser::BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(ECHO, |cx, request| cx.reply(request));
    Ok(rpc)
}

fn median(times: &RefCell<Vec<u64>>) -> u64 {
    let mut times = times.borrow_mut();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Median times of plain RPCs, of writes and of reads, ns.
fn medians(change: fn(&mut courser_raft_kv::core::Settings)) -> [u64; 3] {
    let mut cluster = Cluster::new(1, 3, 2, change);
    cluster.leader();
    let server = HostId(4);
    cluster.world.start(server, echo).unwrap();
    let uri = cluster.world.uri(server);
    let times: [Rc<RefCell<Vec<u64>>>; 3] = Default::default();
    let [plain, puts, gets] = times.clone();
    let ended = cluster.spawn(0, |kv, local: Local| async move {
        let session = local.connect(&uri).await.unwrap();
        let took =
            |times: &RefCell<Vec<u64>>, since| times.borrow_mut().push(local.now_ns() - since);
        kv.put(&[0; 16], &[0; 64]).await.unwrap();
        for n in 0..CALLS {
            let began_ns = local.now_ns();
            session.call(ECHO, local.alloc(80).unwrap()).await.unwrap();
            took(&plain, began_ns);
            let began_ns = local.now_ns();
            kv.put(&[n as u8; 16], &[n as u8; 64]).await.unwrap();
            took(&puts, began_ns);
            let began_ns = local.now_ns();
            kv.get(&[n as u8; 16]).await.unwrap();
            took(&gets, began_ns);
        }
    });
    cluster.finish(&ended);
    times.map(|times| median(&times))
}

#[test]
fn a_write_takes_the_plain_rpcs_of_the_paper_and_a_read_hardly_more() {
    let [plain, put, get] = medians(|settings| settings.durable = false);
    println!("plain RPC {plain} ns, PUT {put} ns, GET {get} ns");
    // The paper has 5.5 us for 2.3 us [eRPC section 7.1].
    assert!(put * 10 <= plain * 24, "PUT {put} ns, RPC {plain} ns");
    assert!(get * 10 <= plain * 25, "GET {get} ns, RPC {plain} ns");
}

#[test]
fn a_read_by_lease_takes_little_more_than_a_plain_rpc() {
    let [plain, _, get] = medians(|settings| {
        settings.durable = false;
        settings.reads = courser_raft_kv::core::ReadMode::Lease { drift_ppm: 0 };
    });
    println!("plain RPC {plain} ns, GET {get} ns");
    assert!(get * 100 <= plain * 125, "GET {get} ns, RPC {plain} ns");
}
