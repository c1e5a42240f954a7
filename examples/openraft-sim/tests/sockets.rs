//! The same nodes over sockets.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use courser::{Local, Nexus};
use courser_example_openraft_sim::network::NodeClient;
use courser_example_openraft_sim::store::Disk;
use courser_example_openraft_sim::{Command, node};

const NODES: u64 = 3;
/// Only a defect takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// Writes at the node that leads, and reads there.
async fn write_and_read(local: Local, uris: Vec<String>) {
    let command = Command { key: "apple".to_owned(), value: "green".to_owned() };
    for uri in uris.iter().cycle() {
        let session = local.connect(uri).await.unwrap();
        let client = NodeClient::new(session).await.unwrap();
        if client.write(command.clone()).deadline(LIMIT).await.is_ok() {
            let read = client.read("apple".to_owned()).await;
            assert_eq!(read.unwrap(), Some("green".to_owned()));
            return;
        }
        local.sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn the_same_nodes_run_over_sockets() {
    let (send_uri, uris) = mpsc::channel();
    let mut nodes = Vec::new();
    for id in 1..=NODES {
        let (send_members, members) = mpsc::channel();
        let (send_handle, handle) = mpsc::channel();
        let send_uri = send_uri.clone();
        let thread = thread::spawn(move || {
            let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
            send_uri.send((id, nexus.local_uri())).unwrap();
            let members = members.recv().unwrap();
            let mut rpc = node(&nexus, id, &Disk::default(), members, |_, _| {}).unwrap();
            send_handle.send(rpc.handle()).unwrap();
            rpc.run().unwrap();
        });
        nodes.push((send_members, handle, thread));
    }
    let members: BTreeMap<_, _> = uris.iter().take(NODES as usize).collect();
    for (send_members, ..) in &nodes {
        send_members.send(members.clone()).unwrap();
    }
    let handles: Vec<_> = nodes.iter().map(|(_, handle, _)| handle.recv().unwrap()).collect();
    let mut rpc = Nexus::bind("udp://127.0.0.1:0").unwrap().endpoint().unwrap();
    let local = rpc.local();
    let calls = write_and_read(local.clone(), members.into_values().collect());
    rpc.block_on(local.timeout(LIMIT, calls)).unwrap().unwrap();
    for (handle, (.., thread)) in handles.iter().zip(nodes) {
        handle.stop();
        thread.join().unwrap();
    }
}
