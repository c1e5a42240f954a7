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
