//! BIRD and FRR with 20,000 routes of BGP.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

const ROUTES: u32 = 20_000;
/// The part of them that is withdrawn.
const DROPPED: u64 = ROUTES as u64 / 4;
const BIRD: &str = "/usr/sbin/bird";
const ZEBRA: &str = "/usr/lib/frr/zebra";
const BGPD: &str = "/usr/lib/frr/bgpd";

/// A BGP session of BIRD.
const SESSION: &str = "connect delay time 1; connect retry time 1; error wait time 1, 2;";

/// The directory is readable by the users of daemons.
fn open_directory(running: &Running) {
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(running.directory.path(), mode).expect("own directory");
}

fn write(running: &Running, file: &str, text: &str) {
    std::fs::write(running.path(file), text).expect("writable");
}

/// BIRD in a namespace, with the socket `NAME.ctl`.
fn bird(running: &Running, at: &courser_router::netns::Namespace, name: &str) -> Process {
    let mut command = Command::new(BIRD);
    command.arg("-f").arg("-c").arg(running.path(&format!("{name}.conf")));
    command.arg("-s").arg(running.path(&format!("{name}.ctl")));
    command.arg("-P").arg(running.path(&format!("{name}.pid"))).stdin(Stdio::null());
    at.spawn(command).expect("BIRD starts")
}

/// A router at the first host that announces 20,000 routes by BGP.
fn neighbour(running: &Running) -> Process {
    let mut kept = String::new();
    let mut dropped = String::new();
    for n in 0..ROUTES {
        let list = if n % 4 == 0 { &mut dropped } else { &mut kept };
        let _ = writeln!(list, "route 20.{}.{}.0/24 blackhole;", n / 256, n % 256);
    }
    let config = format!(
        "router id 10.0.1.2;\nprotocol device {{}}\n\
         protocol static kept {{ ipv4;\n{kept}}}\nprotocol static dropped {{ ipv4;\n{dropped}}}\n\
         protocol bgp node {{ local 10.0.1.2 as 65002; neighbor 10.0.1.1 as 65001; {SESSION} \
         ipv4 {{ import none; export all; next hop self; }}; }}\n"
    );
    write(running, "neighbour.conf", &config);
    bird(running, running.cluster.host(0), "neighbour")
}

/// BIRD at the node.
fn bird_at_node(running: &Running) -> Vec<Process> {
    let config = format!(
        "router id 10.0.1.1;\nprotocol device {{}}\n\
         protocol kernel {{ kernel table 100; ipv4 {{ import none; export all; }}; }}\n\
         protocol bgp host {{ local 10.0.1.1 as 65001; neighbor 10.0.1.2 as 65002; {SESSION} \
         ipv4 {{ import all; export none; }}; }}\n"
    );
    write(running, "node.conf", &config);
    vec![bird(running, running.cluster.node(0), "node")]
}

/// FRR at the node. Its daemons run as their own user. The first one has the kernel's routes.
fn frr_at_node(running: &Running) -> Vec<Process> {
    write(running, "zebra.conf", "hostname node\n");
    let config = "bgp route-map delay-timer 0\nroute-map TABLE permit 10\n set table 100\n\
                  router bgp 65001\n bgp router-id 10.0.1.1\n no bgp ebgp-requires-policy\n \
                  neighbor 10.0.1.2 remote-as 65002\n neighbor 10.0.1.2 timers connect 1\n \
                  address-family ipv4 unicast\n  neighbor 10.0.1.2 route-map TABLE in\n \
                  exit-address-family\n";
    write(running, "bgpd.conf", config);
    let daemon = |program: &str, name: &str| {
        let mut command = Command::new(program);
        command.arg("-f").arg(running.path(&format!("{name}.conf")));
        command.arg("-i").arg(running.path(&format!("{name}.pid")));
        command.arg("-z").arg(running.path("zserv.api"));
        command.arg("--vty_socket").arg(running.directory.path()).args(["-P", "0"]);
        command
            .arg("--log")
            .arg(format!("file:{}", running.path(&format!("{name}.log")).display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        running.cluster.node(0).spawn(command).expect("FRR starts")
    };
    let zebra = daemon(ZEBRA, "zebra");
    running.until("zebra listens", || running.path("zserv.api").exists());
    vec![zebra, daemon(BGPD, "bgpd")]
}

/// Routes in the kernel's table.
fn in_kernel(running: &Running) -> u64 {
    let table = running.cluster.node(0).run("ip route show table 100").unwrap_or_default();
    table.lines().count() as u64
}

/// Imports, withdrawals under load, and the death of the daemon.
fn leg(daemon: &str, programs: &[&str], socket: &str, start: fn(&Running) -> Vec<Process>) {
    if let Some(missing) = programs.iter().find(|program| !Path::new(program).exists()) {
        return skip(&format!("{missing} is not installed (apt-get install bird2 frr)"));
    }
    let Some(running) = Running::start(3, Some(socket)) else { return };
    open_directory(&running);
    let _neighbour = neighbour(&running);
    let mut daemons = start(&running);
    let begin = Instant::now();
    running.until("routes arrive", || running.imported() > 0);
    let session = begin.elapsed();
    let all = u64::from(ROUTES);
    running.until("all routes are imported", || running.imported() == all);
    let import = begin.elapsed() - session;
    running.until("other nodes have them", || (1..3).all(|node| running.routes(node) >= all));
    running.expect("20.1.2.3", "20.1.2.0/24 via a:lan0@10.0.1.2");
    assert_eq!(running.find(1, "20.78.31.1"), "20.78.31.0/24 via a:lan0@10.0.1.2");

    // The withdrawn routes have a shorter route to the third host.
    running.ask(2, "route add 20.0.0.0/8 via c:lan0@10.0.3.2").expect("adds");
    let fallback = "20.0.0.0/8 via c:lan0@10.0.3.2";
    running.until("the second node has it", || running.find(1, "20.200.0.1") == fallback);
    for (host, address) in [(0, "10.0.1.1"), (1, "10.0.2.1"), (2, "10.0.3.1")] {
        let _ = running.cluster.host(host).run(&format!("ping -c 1 {address}"));
    }
    let outcome = datagrams::send(&running, ROUTES, || {
        std::thread::sleep(Duration::from_millis(200));
        let birdc = format!("birdc -s {} disable dropped", running.path("neighbour.ctl").display());
        running.cluster.host(0).run(&birdc).expect("birdc does it");
        running.until("they are withdrawn", || running.imported() == all - DROPPED);
        running.until("at the second node too", || running.routes(1) < all - 1_000);
        running.until("all of them", || running.routes(1) == running.routes(0));
    });
    let [first, third] = &outcome.arrived;
    assert_eq!(outcome.sent, outcome.received(), "all have a route{}", running.log());
    assert_eq!((third.kept(), first.after()), (0, 0), "each takes its route");
    assert!(first.kept() > 1_000 && third.after() > 500, "{}", outcome.sent);

    let kernel = in_kernel(&running);
    let death = Instant::now();
    drop(daemons.remove(0));
    running.until("the dead daemon's routes are withdrawn", || running.imported() == 0);
    let withdrawn = death.elapsed();
    assert_eq!(running.find(0, "20.1.2.3"), fallback);
    assert_eq!((kernel, in_kernel(&running)), (all - DROPPED, all - DROPPED), "they stay there");
    assert!(withdrawn >= Duration::from_millis(900), "within the grace time: {withdrawn:?}");
    println!(
        "{daemon}: first of {ROUTES} routes after {session:?}, all {import:?} later; {} datagrams; \
         withdrawn {withdrawn:?} after the death; {}",
        outcome.sent,
        running.stats(0)["import"]
    );
}

#[test]
fn routes_of_bird_are_imported_changed_under_load_and_withdrawn_when_it_is_killed() {
    leg("BIRD", &[BIRD, "/usr/sbin/birdc"], "node.ctl", bird_at_node);
}

#[test]
fn routes_of_frr_are_imported_changed_under_load_and_withdrawn_when_it_is_killed() {
    leg("FRR", &[ZEBRA, BGPD, BIRD, "/usr/sbin/birdc"], "zebra.vty", frr_at_node);
}
