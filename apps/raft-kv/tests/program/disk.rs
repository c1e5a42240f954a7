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
fn a_node_whose_directory_is_lost_founds_nothing_and_is_refused() {
    let mut cluster = Cluster::start();
    cluster.call(&["put", "a", "1"]);
    let node = if cluster.leader() == 1 { 2 } else { 1 };
    cluster.kill(node);
    std::fs::remove_dir_all(cluster.data(node)).unwrap();
    let uri = cluster.uris[node - 1].clone();
    let (code, errors) = cluster.launch(node, &uri, &["--old"]).end();
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("if this node had data, it is lost"), "{errors}");
    // With --new it starts, but the others know that it had data.
    let mut started = cluster.launch(node, &uri, &[]);
    started.line_with(&format!("node {node} had data, and this one has none: "));
    cluster.call(&["put", "b", "2"]);
    let states = cluster.states();
    let lost = states.iter().find(|state| state["id"] == node).unwrap();
    assert_eq!(lost["keys"], 0, "{lost}");
}

#[test]
fn a_copy_of_a_directory_is_refused_while_its_node_runs() {
    let mut cluster = Cluster::start();
    cluster.call(&["put", "a", "1"]);
    cluster.kill(3);
    let copy = cluster.folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(cluster.data(3)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    cluster.run(3, &[]);
    let (known, other) = (cluster.uris[2].clone(), free_uri());
    let copy = copy.display().to_string();
    let mut second = cluster.launch(3, &other, &["--data", &copy]);
    let line = second.line_with(": node 3 runs twice: ");
    assert!(line.contains(&format!("one process answers at {known}, ")), "{line}");
    assert!(line.contains(&format!("the address {other}, ")), "{line}");
    assert!(line.ends_with("stop the copy, and do not start it again"), "{line}");
    cluster.call(&["put", "b", "2"]);
    let has_both = |states: &[serde_json::Value]| {
        states.iter().any(|state| state["id"] == 3 && state["keys"] == 2)
    };
    cluster.wait("node 3 lacks a write", has_both);
    // Without the first one it is a node that has moved.
    cluster.kill(3);
    cluster.wait("the copy is refused although it is alone", has_both);
}

#[test]
fn a_directory_of_another_node_or_founder_is_refused_in_one_line() {
    let mut cluster = Cluster::start();
    cluster.kill(1);
    cluster.kill(2);
    std::fs::rename(cluster.data(1), cluster.data(4)).unwrap();
    std::fs::rename(cluster.data(2), cluster.data(1)).unwrap();
    let uri = cluster.uris[0].clone();
    let (code, errors) = cluster.launch(1, &uri, &[]).end();
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("the directory is that of node 2"), "{errors}");
    cluster.kill(3);
    let uri = cluster.uris[2].clone();
    let (code, errors) = cluster.launch(3, &uri, &["--cluster", "other"]).end();
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("that of node 3 in the cluster \"\""), "{errors}");
    let (code, errors) = cluster.launch(3, &uri, &["--peers", "4=udp://127.0.0.1:1"]).end();
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("was founded with other --peers"), "{errors}");
}

#[test]
fn nodes_with_data_of_two_clusters_do_not_mix() {
    let mut cluster = Cluster::start();
    cluster.call(&["put", "a", "old"]);
    cluster.wait("not all have it", |states| {
        states.len() == 3 && states.iter().all(|state| state["keys"] == 1)
    });
    (1..=3).for_each(|id| cluster.kill(id));
    // Two of them found another cluster with the same name and the same members.
    for id in [1, 2] {
        std::fs::remove_dir_all(cluster.data(id)).unwrap();
        cluster.run(id, &[]);
    }
    cluster.call(&["put", "b", "new"]);
    let uri = cluster.uris[2].clone();
    let mut third = cluster.launch(3, &uri, &[]);
    third.line_with("the nodes have data of different clusters");
    cluster.nodes[2] = Some(third);
    assert_eq!(cluster.call(&["scan"]), "b new\n");
    let third = cluster.states().into_iter().find(|state| state["id"] == 3).unwrap();
    // No leader has committed or replaced its entries.
    assert!(
        third["leader"].is_null() && third["applied"].as_u64() < third["log"][1].as_u64(),
        "{third}"
    );
}

#[test]
fn a_directory_is_used_by_one_process() {
    let cluster = Cluster::start();
    let (code, errors) = cluster.launch(1, &free_uri(), &[]).end();
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("is used by another process"), "{errors}");
}
