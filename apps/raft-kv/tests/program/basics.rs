//! Calls, the end of the leader, moves, members, quickstart.

use std::process::Command;

use serde_json::Value;

use crate::processes::{Cluster, Process, free_uri};

#[test]
fn a_client_reads_what_was_written_scans_and_watches() {
    let cluster = Cluster::start();
    let nodes = cluster.uris.join(",");
    let mut watch = Process::start(&["watch", "--nodes", &nodes, "--after", "1", "--count", "4"]);
    for (key, value) in [("cherry", "red"), ("apple", "green"), ("banana", "yellow")] {
        assert_eq!(cluster.call(&["put", key, value]), "");
    }
    assert_eq!(cluster.call(&["get", "banana"]), "yellow\n");
    assert_eq!(cluster.call(&["scan", "b"]), "banana yellow\ncherry red\n");
    assert_eq!(cluster.call(&["scan", "a", "c", "--limit", "1"]), "apple green\n");
    assert_eq!(cluster.call(&["delete", "banana"]), "");
    assert_eq!(cluster.call(&["delete", "banana"]), "there is no key banana\n");
    assert!(!cluster.output(&["get", "banana"]).status.success());
    assert_eq!(cluster.call(&["cas", "apple", "--expect", "green", "red"]), "");
    let refused = cluster.output(&["cas", "apple", "--expect", "green", "blue"]);
    assert_eq!(refused.status.code(), Some(1));
    let json: Value = serde_json::from_str(&cluster.call(&["get", "apple", "--json"])).unwrap();
    assert_eq!((&json["key"], &json["value"]), (&"apple".into(), &"red".into()));
    for change in ["cherry red", "apple green", "banana yellow", "banana was deleted"] {
        assert!(watch.line_with(change).ends_with(change));
    }
    assert_eq!(watch.end().0, Some(0));
}

#[test]
fn the_example_of_the_client_library_reads_what_it_has_written() {
    let cluster = Cluster::start();
    for count in 1..=2 {
        let lines = crate::example::run(cluster.uris.clone()).unwrap();
        let expected = [
            "get: fruit/apple is green",
            &format!("cas: count is {count}"),
            "scan: fruit/apple is green",
            "scan: fruit/pear is yellow",
            "watch: fruit/apple became green",
            "watch: fruit/pear became yellow",
        ];
        assert_eq!(lines, expected);
    }
    for other in ["some", "18446744073709551615"] {
        cluster.call(&["put", "count", other]);
        let error = crate::example::run(cluster.uris.clone()).unwrap_err().to_string();
        assert_eq!(error, format!("the value {other:?} of count is no number to add 1 to"));
        assert_eq!(cluster.call(&["get", "count"]), format!("{other}\n"));
    }
}

#[test]
#[should_panic(expected = "printed no line with \"something else\"")]
fn a_line_that_does_not_come_is_waited_for_with_a_limit() {
    let uri = free_uri();
    let peers = format!("1={uri}");
    let mut node =
        Process::start(&["node", "--id", "1", "--listen", &uri, "--peers", &peers, "--memory"]);
    node.line_with(" leads in term ");
    node.line_within("something else", std::time::Duration::from_millis(100));
}

#[test]
fn a_malformed_address_is_refused_at_once_and_stat_names_the_state_of_each_node() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raft-kv"));
    let output = command.args(["get", "--nodes", "somewhere", "a"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the port is missing; write one like"), "{errors}");
    assert_eq!(output.status.code(), Some(2));
    let cluster = Cluster::start();
    let leader = cluster.leader();
    let text = cluster.call(&["stat"]);
    assert!(text.contains(&format!("node {leader} (leader)\n  disk_wait_ms ")), "{text}");
    assert_eq!(text.matches("  stalls                          0\n").count(), 3, "{text}");
}

#[test]
fn writes_go_on_after_the_leader_is_killed_and_it_catches_up() {
    let mut cluster = Cluster::start();
    cluster.call(&["put", "before", "1"]);
    let old = cluster.leader();
    cluster.kill(old);
    cluster.call(&["put", "after", "2"]);
    assert_eq!(cluster.call(&["get", "before"]), "1\n");
    assert_ne!(cluster.leader(), old);
    cluster.run(old, &[]);
    cluster.wait("it does not catch up", |states| {
        let applied: Vec<_> = states.iter().map(|state| &state["applied"]).collect();
        applied.len() == 3 && applied.iter().all(|index| *index == applied[0])
    });
    // A majority without the new leader has everything.
    let new = cluster.leader();
    cluster.kill(new);
    assert_eq!(cluster.call(&["get", "after"]), "2\n");
}

#[test]
fn all_nodes_are_killed_and_nothing_is_lost() {
    let mut cluster = Cluster::start();
    for n in 0..20 {
        cluster.call(&["put", &format!("k{n:02}"), &n.to_string()]);
    }
    (1..=3).for_each(|id| cluster.kill(id));
    (1..=3).for_each(|id| cluster.run(id, &[]));
    let expected: String = (0..20).map(|n| format!("k{n:02} {n}\n")).collect();
    assert_eq!(cluster.call(&["scan"]), expected);
}

#[test]
fn a_node_is_started_again_at_another_address() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let moved = if leader == 1 { 2 } else { 1 };
    cluster.kill(moved);
    let uri = free_uri();
    cluster.uris[moved - 1].clone_from(&uri);
    cluster.run(moved, &[]);
    cluster.wait("its address is not known", |states| {
        let known = |state: &Value| {
            let members = state["members"].as_array().cloned().unwrap_or_default();
            members.iter().any(|member| member["id"] == moved && member["uri"] == uri[..])
        };
        states.len() == 3 && states.iter().all(known)
    });
    // It counts for the quorum.
    let third = 6 - leader - moved;
    cluster.kill(third);
    cluster.call(&["put", "a", "1"]);
    assert_eq!(cluster.call(&["get", "a"]), "1\n");
}

#[test]
fn a_fourth_node_joins_and_a_member_is_removed() {
    let mut cluster = Cluster::start();
    cluster.call(&["put", "a", "1"]);
    let uri = free_uri();
    let mut fourth = cluster.launch(4, &uri, &["--join"]);
    fourth.line_with(" is ready at ");
    assert_eq!(cluster.call(&["member", "add", "4", &uri]), "");
    let again = cluster.call(&["member", "add", "4", &uri]);
    assert_eq!(again, format!("node 4 is a member at {uri}; nothing was changed\n"));
    cluster.wait("it does not catch up", |states| {
        states.iter().any(|state| state["role"] == "learner" && state["keys"] == 1)
    });
    let wrong = cluster.output(&["member", "add", "5", "udp://0.0.0.0:31850"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("cannot connect to it"), "{wrong:?}");
    cluster.call(&["member", "promote", "4"]);
    let leader = cluster.leader();
    let refused = cluster.output(&["member", "remove", &leader.to_string()]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("stop it first"), "{refused:?}");
    let gone = if leader == 1 { 2 } else { 1 };
    assert_eq!(cluster.call(&["member", "remove", &gone.to_string()]), "");
    let again = cluster.call(&["member", "remove", &gone.to_string()]);
    assert_eq!(again, format!("node {gone} is no member; nothing was changed\n"));
    cluster.kill(gone);
    // The fourth one is needed for a quorum.
    cluster.kill(6 - leader - gone);
    let survivors = format!("{},{uri}", cluster.uris[leader - 1]);
    cluster.uris = vec![survivors];
    cluster.call(&["put", "b", "2"]);
    assert_eq!(cluster.call(&["scan"]), "a 1\nb 2\n");
}

#[test]
fn an_interrupted_node_ends_and_a_wrong_one_says_what_to_do() {
    let mut cluster = Cluster::start();
    let node = cluster.nodes[0].as_mut().unwrap();
    node.interrupt();
    assert_eq!(node.end().0, Some(0));
    let uri = free_uri();
    let data = cluster.data(9).display().to_string();
    let peers = format!("1={uri}");
    let cases: [(&[&str], &str); 6] = [
        (&["watch", "--nodes", &uri, "--count", "0"], "--count"),
        (
            &["node", "--id", "1", "--listen", "udp://0.0.0.0:0", "--peers", &peers, "--memory"],
            "others cannot connect to it; name one of them",
        ),
        (&["node", "--listen", &uri, "--memory"], "--id is missing"),
        (&["node", "--id", "1", "--listen", &uri], "--data is missing"),
        (&["node", "--id", "1", "--listen", &uri, "--data", &data], "add its number and address"),
        (&["node", "--id", "4", "--join", "--listen", &uri, "--memory"], "add --peers"),
    ];
    for (args, text) in cases {
        let (code, errors) = Process::start(args).end();
        assert_eq!(code, Some(2), "{args:?}: {errors}");
        assert!(errors.contains(text), "{args:?}: {errors}");
    }
}

#[test]
fn the_file_of_a_node_takes_the_place_of_flags() {
    let folder = tempfile::tempdir().unwrap();
    let uri = free_uri();
    let path = folder.path().join("node.toml");
    let text = format!("id = 1\nlisten = \"{uri}\"\nmemory = true\n[peers]\n1 = \"{uri}\"\n");
    std::fs::write(&path, text).unwrap();
    let mut node = Process::start(&["node", "--config", &path.display().to_string()]);
    node.line_with(" leads in term ");
    std::fs::write(&path, "id = 1\nlisten_on = 1\n").unwrap();
    let (code, errors) = Process::start(&["node", "--config", &path.display().to_string()]).end();
    assert_eq!(code, Some(2));
    assert!(errors.contains("listen_on"), "{errors}");
}

#[test]
fn quickstart_kills_the_leader_and_loses_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raft-kv"));
    let output = command.args(["quickstart", "--every", "1s", "--json", "-"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let result = &report["results"][0];
    assert_eq!((&result["lost"], &result["applied_twice"]), (&0.into(), &0.into()));
    assert!(result["acknowledged"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(result["kills"].as_array().unwrap().len(), 1);
}

#[test]
fn a_short_bench_reports_rates_and_percentiles() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raft-kv"));
    let args = ["bench", "--time", "200ms", "--in-flight", "8", "--memory", "--json", "-"];
    command.env_remove("RAFT_KV_NODES");
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let calls: Vec<_> = report["results"].as_array().unwrap().iter().collect();
    assert_eq!(calls.len(), 2);
    for call in calls {
        assert!(call["latency_p99_ns"].as_u64() >= call["latency_p50_ns"].as_u64(), "{report}");
    }
}
