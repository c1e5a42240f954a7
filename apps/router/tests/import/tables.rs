//! Routes that `ip` puts into the table.

use std::fmt::Write as _;

use super::*;

#[test]
fn routes_of_the_kernels_table_are_announced_and_follow_its_changes() {
    let Some(running) = Running::start(2, None) else { return };
    running.ip("route add 20.1.0.0/16 via 10.0.1.2 table 100\n\
         route add 20.2.0.0/16 dev lan0 table 100\n\
         route add 20.3.0.0/16 table 100 nexthop via 10.0.1.2 weight 2 nexthop via 10.0.1.3\n\
         route add blackhole 20.4.0.0/16 table 100\n\
         route add unreachable 20.5.0.0/16 table 100\n\
         route add 20.6.0.0/16 via 10.0.1.3 metric 20 table 100\n\
         route add 20.6.0.0/16 via 10.0.1.2 metric 10 table 100\n\
         route add 20.7.0.0/16 via 10.0.1.2\n\
         route add 20.8.0.0/16 via 10.9.0.2 table 100\n\
         route add 2001:db8::/32 via fd00:1::2 table 100\n\
         route add 2001:db9::/32 table 100 nexthop via fd00:1::2 nexthop via fd00:1::3\n");
    for (address, route) in [
        ("20.1.0.1", "20.1.0.0/16 via a:lan0@10.0.1.2"),
        ("20.2.0.1", "20.2.0.0/16 via a:lan0"),
        ("20.3.0.1", "20.3.0.0/16 via a:lan0@10.0.1.2*2 a:lan0@10.0.1.3"),
        ("20.4.0.1", "20.4.0.0/16 unreachable"),
        ("20.5.0.1", "20.5.0.0/16 unreachable"),
        ("20.6.0.1", "20.6.0.0/16 via a:lan0@10.0.1.2"),
        ("2001:db8::1", "2001:db8::/32 via a:lan0@fd00:1::2"),
        ("2001:db9::1", "2001:db9::/32 via a:lan0@fd00:1::2 a:lan0@fd00:1::3"),
        // These are in the main table, or leave by an interface that is no port.
        ("20.7.0.1", "no route to 20.7.0.1"),
        ("20.8.0.1", "no route to 20.8.0.1"),
    ] {
        running.expect(address, route);
    }
    running.ip("route replace 20.1.0.0/16 via 10.0.1.3 table 100\n\
         route del 20.6.0.0/16 metric 10 table 100\n\
         route del 20.4.0.0/16 table 100\n\
         route append 2001:db8::/32 via fd00:1::3 table 100\n\
         route del 2001:db9::/32 via fd00:1::2 table 100\n");
    for (address, route) in [
        ("20.1.0.1", "20.1.0.0/16 via a:lan0@10.0.1.3"),
        ("20.6.0.1", "20.6.0.0/16 via a:lan0@10.0.1.3"),
        ("20.4.0.1", "no route to 20.4.0.1"),
        ("2001:db8::1", "2001:db8::/32 via a:lan0@fd00:1::2 a:lan0@fd00:1::3"),
        ("2001:db9::1", "2001:db9::/32 via a:lan0@fd00:1::3"),
    ] {
        running.expect(address, route);
    }
    let all = running.routes(0);
    running.until("the other node has them", || running.routes(1) == all);
    assert_eq!(running.find(1, "20.1.0.1"), "20.1.0.0/16 via a:lan0@10.0.1.3");
    let refused = running.ask(0, "route del 20.1.0.0/16").expect_err("refused");
    assert!(refused.contains("20.1.0.0/16 is imported from the kernel's table"), "{refused}");
    for family in ["-4", "-6"] {
        let flush = format!("ip {family} route flush table 100");
        running.cluster.node(0).run(&flush).expect("ip does it");
    }
    running.until("they are gone", || running.imported() == 0);
}

#[test]
fn routes_that_the_kernel_removes_without_a_report_are_withdrawn() {
    let Some(running) = Running::start(1, None) else { return };
    running.ip("nexthop add id 5 via 10.0.1.2 dev lan0\n\
         route add 20.1.0.0/16 nhid 5 table 100\n\
         route add 20.2.0.0/16 via 10.0.1.2 table 100\n");
    for net in 1..=2 {
        running.expect(&format!("20.{net}.0.1"), &format!("20.{net}.0.0/16 via a:lan0@10.0.1.2"));
    }
    running.ip("nexthop del id 5\n");
    running.expect("20.1.0.1", "no route to 20.1.0.1");
    running.ip("nexthop add id 6 via 10.0.1.2 dev lan0\n\
         nexthop add id 7 via 10.0.1.3 dev lan0\n\
         nexthop add id 8 group 6/7\n\
         route add 20.3.0.0/16 nhid 8 table 100\n");
    running.expect("20.3.0.1", "20.3.0.0/16 via a:lan0@10.0.1.2 a:lan0@10.0.1.3");
    running.ip("nexthop del id 7\n");
    running.expect("20.3.0.1", "20.3.0.0/16 via a:lan0@10.0.1.2");
    let again = "route add 20.2.0.0/16 via 10.0.1.2 table 100\n";
    for (removes, restores) in [
        ("address del 10.0.1.1/24 dev lan0\n", "address add 10.0.1.1/24 dev lan0\n"),
        ("link set lan0 down\n", "link set lan0 up\n"),
    ] {
        running.ip(removes);
        running.expect("20.2.0.1", "no route to 20.2.0.1");
        running.ip(&format!("{restores}{again}"));
        running.expect("20.2.0.1", "20.2.0.0/16 via a:lan0@10.0.1.2");
    }
}

#[test]
fn a_node_that_missed_changes_reads_the_table_again() {
    let Some(running) = Running::start(1, None) else { return };
    let net = |n: u32| format!("20.{}.{}.0/24", n / 256, n % 256);
    let mut script = String::new();
    for n in 0..30_000 {
        let _ = writeln!(script, "route add {} via 10.0.1.2 table 100", net(n));
    }
    // More than the kernel keeps for the node, which does not run.
    let process = rustix::process::Pid::from_child(&running.nodes[0].0);
    rustix::process::kill_process(process, rustix::process::Signal::STOP).expect("stops");
    running.ip(&script);
    running.ip(&format!("route del {} table 100\n", net(7)));
    rustix::process::kill_process(process, rustix::process::Signal::CONT).expect("goes on");
    let taken = running.until("they are imported", || running.imported() == 29_999);
    running.expect("20.0.7.1", "no route to 20.0.7.1");
    let import = running.stats(0)["import"].clone();
    println!("29,999 routes after an overflow in {taken:?}: {import}");
    assert!(import["overflows"].as_u64() > Some(0), "{import}");
}
