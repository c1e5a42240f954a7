//! Directories that are damaged or used twice.

use crate::processes::{Cluster, free_uri};

/// The log of a node.
fn log(cluster: &Cluster, id: usize) -> std::path::PathBuf {
    cluster.data(id).join("log-0000000000000001")
}

#[test]
fn a_torn_tail_is_cut_off_and_reported_in_one_line() {
    let mut cluster = Cluster::start();
    cluster.call(&["put", "a", "1"]);
    let node = if cluster.leader() == 1 { 2 } else { 1 };
    cluster.kill(node);
    let mut bytes = std::fs::read(log(&cluster, node)).unwrap();
    bytes.extend_from_slice(b"rkv1 the begin of a frame");
    std::fs::write(log(&cluster, node), bytes).unwrap();
    let uri = cluster.uris[node - 1].clone();
    let mut started = cluster.launch(node, &uri, &[]);
    let line = started.line_with("cut off 25 bytes of a frame that a crash interrupted");
    assert!(line.starts_with(&format!("node {node} ")), "{line}");
    started.line_with(" is ready at ");
    cluster.nodes[node - 1] = Some(started);
    let leader = cluster.leader();
    cluster.kill(6 - node - leader);
    cluster.call(&["put", "b", "2"]);
    assert_eq!(cluster.call(&["scan"]), "a 1\nb 2\n");
}

#[test]
fn a_corrupt_frame_is_reported_in_one_line_and_the_node_does_not_start() {
    let mut cluster = Cluster::start();
    cluster.call(&["put", "a", "1"]);
    cluster.kill(1);
    let mut bytes = std::fs::read(log(&cluster, 1)).unwrap();
    bytes[40] ^= 1;
    std::fs::write(log(&cluster, 1), bytes).unwrap();
    let uri = cluster.uris[0].clone();
    let (code, errors) = cluster.launch(1, &uri, &[]).end();
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("log-0000000000000001 is damaged at byte 0"), "{errors}");
    // The others go on.
    cluster.call(&["put", "b", "2"]);
}

#[test]
fn a_directory_is_used_by_one_process() {
    let cluster = Cluster::start();
    let (code, errors) = cluster.launch(1, &free_uri(), &[]).end();
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("is used by another process"), "{errors}");
}
