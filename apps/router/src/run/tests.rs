use super::*;
use crate::netns::{Cluster, Shape, Unavailable};
use crate::route::Exit;

/// One node, or the reason why this machine has none.
fn cluster() -> Option<Cluster> {
    match Cluster::build(Shape::Switch, 1) {
        Ok(cluster) => Some(cluster),
        Err(reason @ (Unavailable::NotAllowed(_) | Unavailable::Program { .. })) => {
            // Not by a macro, whose output the test harness hides when a test passes.
            let text = format_args!("SKIPPED: {reason}\n");
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), text);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Starts the node.
fn start(cluster: &Cluster) -> Result<Running, NodeError> {
    let directory = tempfile::tempdir().expect("a directory");
    let config = Config::parse(&cluster.config(directory.path(), &[]), ".").expect("a cluster");
    let _inside = cluster.node(0).enter().expect("enters");
    Running::start(config, 0)
}

#[test]
fn frames_that_are_shorter_than_a_packet_are_warned_of_at_the_start() {
    let text = "[cluster]\nname='x'\ntopology='switch'\n[[node]]\nname='a'\naddress='h:1'\n\
                [[node.port]]\ninterface='lan0'\naddresses=['10.0.1.1/24']\n";
    let config = Config::parse(text, ".").expect("a cluster");
    let warning = small_frames(&config, 1_452).expect("too short");
    assert!(warning.contains("1500 bytes needs 1568"), "{warning}");
    assert_eq!(small_frames(&config, 1_568), None);
    let settings = settings(&config, 0);
    assert_eq!(courser_settings(&config, &settings).max_frame, Some(1_500 - 48));
}

#[test]
fn an_interface_with_a_smaller_mtu_than_in_the_file_is_refused() {
    let Some(cluster) = cluster() else { return };
    cluster.node(0).run("ip link set lan0 mtu 1400").expect("sets");
    let error = start(&cluster).expect_err("refused").to_string();
    let expected = "port lan0 has an MTU of 1500 bytes in the file, and its interface one of 1400: \
                    write `mtu = 1400` for the port, in the files of all nodes, or run \
                    `ip link set lan0 mtu 1500`";
    assert_eq!(error, expected);
    cluster.node(0).run("ip link set lan0 mtu 1600").expect("sets");
    start(&cluster).expect("a larger one is no error");
}

#[test]
fn packets_for_addresses_of_the_kernel_are_its_own_from_the_start_and_after_changes() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.node(0);
    node.run("ip address add 172.20.0.1/24 dev lan0").expect("adds");
    let mut running = start(&cluster).expect("starts");
    let is_local = |running: &Running, address: [u8; 4]| {
        let node = running.node.borrow();
        let route = node.routes().find(address.into());
        route.is_some_and(|route| route.members.iter().any(|(hop, _)| hop.exit == Exit::Local))
    };
    assert!(is_local(&running, [10, 0, 1, 1]), "of the file");
    assert!(is_local(&running, [172, 20, 0, 1]), "at a port");
    assert!(is_local(&running, [10, 9, 0, 1]), "of the interconnect");
    node.run("ip address del 172.20.0.1/24 dev lan0").expect("removes");
    node.run("ip address add 172.20.0.2/24 dev lo").expect("adds");
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    let done = std::cell::Cell::new(false);
    let stop = || done.replace(true) || std::time::Instant::now() > limit;
    while !is_local(&running, [172, 20, 0, 2]) {
        done.set(false);
        running.run(&stop, &mut |text| panic!("{text}")).expect("runs");
        assert!(std::time::Instant::now() < limit, "not in time");
    }
    assert!(!is_local(&running, [172, 20, 0, 1]));
}

#[test]
fn settings_of_the_kernel_that_lose_packets_or_forward_them_twice_are_warned_of() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.node(0);
    assert_eq!(start(&cluster).expect("starts").take_warnings(), [""; 0]);
    node.run("ip address del 10.0.1.1/24 dev lan0").expect("removes");
    node.run("ip address add 10.0.1.1/24 dev core0").expect("adds");
    let missing = "interface lan0 does not have the address 10.0.1.1/24 of the file, so that packets \
                   to it are lost; run `ip address add 10.0.1.1/24 dev lan0`";
    assert_eq!(start(&cluster).expect("starts").take_warnings(), [missing]);
    node.run("ip address del 10.0.1.1/24 dev core0").expect("removes");
    node.run("ip address add 10.0.1.1/24 dev lan0").expect("adds");
    let twice = |setting| {
        format!(
            "the kernel forwards packets too, which then arrive twice; run `sysctl -w {setting}=0`"
        )
    };
    // Not of a port.
    node.set_kernel("ipv4/conf/core0/forwarding", "1").expect("sets");
    node.set_kernel("ipv4/conf/lan0/forwarding", "1").expect("sets");
    let forwards = twice("net/ipv4/conf/lan0/forwarding");
    assert_eq!(start(&cluster).expect("starts").take_warnings(), [&forwards[..]]);
    node.set_kernel("ipv6/conf/all/forwarding", "1").expect("sets");
    let also = twice("net/ipv6/conf/all/forwarding");
    assert_eq!(start(&cluster).expect("starts").take_warnings(), [forwards, also]);
    node.set_kernel("ipv4/conf/lan0/forwarding", "0").expect("sets");
    node.set_kernel("ipv6/conf/all/forwarding", "0").expect("sets");
    // Kernels before 6.17 do not have it.
    if node.set_kernel("ipv6/conf/lan0/force_forwarding", "1").is_ok() {
        let forwards = twice("net/ipv6/conf/lan0/force_forwarding");
        assert_eq!(start(&cluster).expect("starts").take_warnings(), [forwards]);
    }
}

#[test]
fn a_node_goes_on_and_warns_when_the_interface_of_a_port_is_gone_and_when_it_is_there_again() {
    let Some(cluster) = cluster() else { return };
    let mut running = start(&cluster).expect("starts");
    let _inside = cluster.node(0).enter().expect("enters");
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    let wait_for = |running: &mut Running, text: &str| {
        let found = std::cell::Cell::new(false);
        let stop = || found.get() || std::time::Instant::now() > limit;
        let result = running.run(&stop, &mut |warning| {
            found.set(found.get() || warning.contains(text));
        });
        result.expect("runs");
        assert!(found.get(), "not in time: {text}");
    };
    cluster.node(0).run("ip link delete lan0").expect("deletes");
    wait_for(&mut running, "interface lan0 is gone");
    cluster.renew_lan(0, 2_000, 1_500).expect("makes it");
    wait_for(&mut running, "interface lan0 is there again, with index 2000 and an MTU of 1500");
}

#[test]
fn a_link_has_a_credit_for_each_message_of_its_queue_and_no_fewer_than_by_default() {
    let credits = |queue: usize| {
        let text = format!(
            "[cluster]\nname = \"c\"\ntopology = \"mesh\"\n[interconnect]\nqueue = {queue}\n\
             [[node]]\nname = \"a\"\naddress = \"udp://127.0.0.1:31850\"\n\
             [[node.port]]\ninterface = \"lan0\"\naddresses = [\"10.0.1.1/24\"]\nmtu = 1500\n"
        );
        let config = Config::parse(&text, "").expect("a valid configuration");
        let courser = courser_settings(&config, &settings(&config, 0));
        assert_eq!(courser.message_queue, queue);
        courser.credits.expect("they are set")
    };
    assert_eq!([1, 64, 1_024, 65_536].map(credits), [32, 64, 1_024, 65_535]);
}
