use super::*;

/// A cluster, or the reason why this machine has none.
fn cluster(shape: Shape, nodes: usize) -> Option<Cluster> {
    match Cluster::build(shape, nodes) {
        Ok(cluster) => Some(cluster),
        Err(reason @ (Unavailable::NotAllowed(_) | Unavailable::Program { .. })) => {
            // Not by a macro, whose output the test harness hides when a test passes.
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIPPED: network namespaces: {reason}\n"),
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn nodes_reach_each_other_and_their_hosts_in_every_shape() {
    for shape in [Shape::Mesh, Shape::Switch, Shape::Mixed] {
        let Some(cluster) = cluster(shape, 3) else { return };
        for node in 0..3 {
            for other in (0..3).filter(|other| *other != node) {
                let ping = format!("ping -c1 -W2 -M do -s 8000 {}", core_v4(other));
                cluster.node(node).run(&ping).unwrap_or_else(|error| panic!("{shape:?}: {error}"));
            }
            for address in [lan_v4(node).to_string(), lan_v6(node).to_string()] {
                let ping = format!("ping -c1 -W2 {address}");
                cluster.host(node).run(&ping).unwrap_or_else(|error| panic!("{shape:?}: {error}"));
            }
        }
    }
}

#[test]
fn processes_run_in_their_namespace_and_nothing_of_a_cluster_remains() {
    let Some(cluster) = cluster(Shape::Mesh, 2) else { return };
    let name = || std::fs::read_link("/proc/thread-self/ns/net").expect("reads");
    let before = name();
    let inside = cluster.node(0).enter().expect("enters");
    let in_node = name();
    assert_ne!(in_node, before);
    drop(inside);
    assert_eq!(name(), before);
    let mut command = std::process::Command::new("sleep");
    command.arg("1000");
    let process = cluster.node(0).spawn(command).expect("starts");
    let namespace = format!("/proc/{}/ns/net", process.0.id());
    assert_eq!(std::fs::read_link(&namespace).expect("reads"), in_node);
    let links = cluster.node(0).run("ip -brief link").expect("runs");
    assert!(links.contains("lan0") && links.contains("to_b"), "{links}");
    drop(process);
    assert!(!Path::new(&namespace).exists());
    let descriptor = cluster.node(0).path();
    assert!(Path::new(&descriptor).exists());
    drop(cluster);
    // Another test may have opened a file with the same number.
    let target = std::fs::read_link(descriptor).ok();
    assert!(target.is_none_or(|target| !target.ends_with(in_node)), "the namespace is closed");
}

#[test]
fn errors_are_one_line_with_the_command() {
    let Some(cluster) = cluster(Shape::Mesh, 1) else { return };
    let node = cluster.node(0);
    let text = node.run("ip link set nothing up").expect_err("no such device").to_string();
    assert!(text.starts_with("ip link set nothing up: Cannot find device"), "{text}");
    let text = node.batch("link set lo up\nlink set nothing up").expect_err("fails").to_string();
    assert!(text.contains("Cannot find device") && text.lines().count() == 1, "{text}");
    let text = node.run("no-such-program x").expect_err("no program").to_string();
    assert!(text.starts_with("no-such-program cannot be started: No such file"), "{text}");
    let text = node.set_kernel("ipv4/nothing", "1").expect_err("no setting").to_string();
    assert!(text.starts_with("ipv4/nothing = 1: No such file"), "{text}");
    let text = Offloads::OFF.set(node, "nothing").expect_err("no device").to_string();
    assert!(text.starts_with("offloads of nothing: No such device"), "{text}");
    let long = "a-name-of-sixteen";
    assert!(Offloads::OFF.set(node, long).is_err());
    for nodes in [0, 17] {
        assert!(matches!(Cluster::build(Shape::Mesh, nodes), Err(Unavailable::Nodes(_))));
    }
}

#[test]
fn a_link_of_a_mesh_goes_down_alone() {
    let Some(cluster) = cluster(Shape::Mesh, 3) else { return };
    let ping = |from: usize, to: usize| {
        cluster.node(from).run(&format!("ping -c1 -W0.2 {}", core_v4(to))).is_ok()
    };
    cluster.set_link(0, 1, false).expect("sets");
    assert_eq!((ping(0, 1), ping(1, 0), ping(0, 2), ping(1, 2)), (false, false, true, true));
    cluster.set_link(0, 1, true).expect("sets");
    for (from, to) in [(0, 1), (1, 0)] {
        assert!((0..50).any(|_| ping(from, to)), "{from} to {to}");
    }
}

#[test]
fn the_clusters_file_is_valid() {
    for shape in [Shape::Mesh, Shape::Switch, Shape::Mixed] {
        let Some(cluster) = cluster(shape, 2) else { return };
        let directory = std::env::temp_dir();
        let text = cluster.config(&directory, &[]);
        let config = crate::config::Config::parse(&text, &directory);
        let config = config.unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(config.nodes.len(), 2);
        let addresses: Vec<String> =
            config.addresses().map(|(_, _, address)| address.addr().to_string()).collect();
        let expected = (0..2).flat_map(|n| [lan_v4(n).to_string(), lan_v6(n).to_string()]);
        assert_eq!(addresses, expected.collect::<Vec<_>>());
    }
}
