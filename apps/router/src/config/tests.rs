use std::collections::BTreeSet;

use super::*;
use crate::routes::Lookup;

const DEMO: &str = r#"
[cluster]
name = "demo"
topology = "mesh"
failure_timeout = "500ms"
seed = 7
[interconnect]
mtu = 9000
batching = false
queue = 64
[icmp]
per_second = 10
burst = 5
[[node]]
name = "a"
address = "udp://10.9.0.1:31850?gso=off"
peers = { b = "udp://10.9.1.2:31850" }
control = "/run/a.sock"
[[node.port]]
interface = "lan0"
addresses = ["10.0.1.1/24", "fd00:1::1/64"]
[[node.port]]
interface = "lan1"
addresses = ["10.0.3.1/32"]
mtu = 1200
[[node]]
name = "b"
address = "udp://10.9.0.2:31850"
[[node.port]]
interface = "lan0"
addresses = ["10.0.2.1/24", "10.0.2.2/24"]
"#;

fn demo() -> Config {
    Config::parse(DEMO, ".").unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The error of the demo with a part replaced.
fn error(old: &str, new: &str) -> String {
    assert!(DEMO.contains(old), "{old}");
    Config::parse(&DEMO.replacen(old, new, 1), ".").unwrap_err().to_string()
}

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let name = format!("courser-router-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn interconnect(mtu: u16, batching: bool, budget_us: u64, queue: usize) -> Interconnect {
    Interconnect { mtu, batching, batch_budget: Duration::from_micros(budget_us), queue }
}

#[test]
fn all_keys_are_read() {
    let config = demo();
    assert_eq!((config.name.as_str(), config.topology), ("demo", Topology::Mesh));
    assert_eq!((config.failure_timeout, config.seed), (Duration::from_millis(500), 7));
    assert_eq!(config.interconnect, interconnect(9000, false, 0, 64));
    assert_eq!(config.icmp, IcmpRate { per_second: 10, burst: 5 });
    assert_eq!((config.node("b"), config.node("c")), (Some(1), None));
    assert_eq!(config.nodes[0].control, Some("/run/a.sock".into()));
    assert_eq!(config.nodes[0].address.to_string(), "udp://10.9.0.1:31850?gso=off");
    let peer = |from, to| config.peer(from, to).map(|uri| uri.to_string());
    assert_eq!(peer(0, 1).as_deref(), Some("udp://10.9.1.2:31850"));
    assert_eq!(peer(1, 0).as_deref(), Some("udp://10.9.0.1:31850"), "without options");
    assert_eq!((peer(2, 0), peer(0, 2)), (None, None));
    let ports: Vec<_> = config.ports().map(|(n, p, port)| (n, p, port.mtu)).collect();
    assert_eq!(ports, [(0, 0, 1500), (0, 1, 1200), (1, 0, 1500)]);
    assert_eq!(config.port_of("10.0.2.9".parse().unwrap()), Some((1, 0)));
    assert_eq!(config.port_of("10.0.9.9".parse().unwrap()), None);
}

#[test]
fn absent_keys_have_defaults() {
    let text = "[cluster]\nname='x'\ntopology='mixed'\n[[node]]\nname='a'\naddress='h:1'\n";
    let patient = format!("{text}[interconnect]\nbatch_budget = '20us'\n");
    let patient = Config::parse(&patient, ".").unwrap().interconnect;
    assert_eq!(patient, interconnect(1500, true, 20, 1024));
    let config = Config::parse(text, ".").unwrap();
    assert_eq!(config.failure_timeout, Duration::from_millis(800));
    assert_eq!(config.interconnect, interconnect(1500, true, 0, 1024));
    assert_eq!(config.icmp, IcmpRate { per_second: 1000, burst: 100 });
    assert_eq!((config.seed, config.nodes[0].ports.len()), (1, 0));
    assert!(config.routes().unwrap().is_empty());
}

#[test]
fn each_error_names_the_line_the_value_and_what_is_allowed() {
    for (old, new, expected) in [
        ("seed = 7", "seed = -1", "6: seed = -1: 0 to 9223372036854775807 are allowed"),
        ("seed = 7", "seeds = 7", "6: unknown field `seeds`, expected one of `name`"),
        ("\"mesh\"", "\"ring\"", "4: unknown variant `ring`, expected one of `mesh`, `switch`"),
        ("\"demo\"", "\"\"", "3: name = \"\": 1 to 32 letters"),
        ("500ms", "500", "5: failure_timeout = \"500\": 10ms to 60s"),
        ("500ms", "5ms", "5: failure_timeout = \"5ms\": 10ms to 60s"),
        ("500ms", "61s", "5: failure_timeout = \"61s\": 10ms to 60s"),
        ("mtu = 9000", "mtu = 1279", "8: interconnect.mtu = 1279: 1280 to 9216 are"),
        ("mtu = 9000", "mtu = 9217", "8: interconnect.mtu = 9217: 1280 to 9216 are"),
        ("mtu = 9000", "mtu = \"x\"", "8: invalid type: string \"x\", expected"),
        ("queue = 64", "queue = 0", "10: interconnect.queue = 0: 1 to 65536 are allowed"),
        (
            "queue = 64",
            "batch_budget = \"20\"",
            "10: interconnect.batch_budget = \"20\": 0us to 250us, with a unit",
        ),
        (
            "queue = 64",
            "batch_budget = \"251us\"",
            "10: interconnect.batch_budget = \"251us\": 0us to 250us",
        ),
        ("burst = 5", "burst = 0", "13: icmp.burst = 0: 1 to 1000000 are allowed"),
        ("per_second = 10", "per_second = -1", "12: icmp.per_second = -1: 0 to 1000000"),
        ("name = \"a\"", "name = \"a b\"", "15: node.name = \"a b\": 1 to 32 letters"),
        ("name = \"a\"", "name = \"b\"", "27: node.name = \"b\": another node has"),
        ("udp://10.9.0.1", "udp:10.9.0.1", "16: node.address: `udp:10.9.0.1:31850?gso=off` is"),
        ("10.9.0.2", "10.9.0.1", "28: node.address = \"udp://10.9.0.1:31850\": another node"),
        ("{ b =", "{ c =", "17: node.peers = \"c\": the names of other nodes"),
        ("{ b =", "{ a =", "17: node.peers = \"a\": the names of other nodes"),
        ("10.9.1.2:31850", "10.9.1.2:31850?gso=off", "17: node.peers: `udp://10.9.1.2:31850?gso"),
        ("\"/run/a.sock\"", "\"\"", "18: node.control = \"\": a path of 1 to 107 bytes"),
        ("\"lan1\"", "\"lan0\"", "23: node.port.interface = \"lan0\": another port"),
        ("\"lan0\"", "\"a:b\"", "20: node.port.interface = \"a:b\": the name of an interface"),
        ("\"lan0\"", "\"abcdefghijklmnop\"", "20: node.port.interface = \"abcdefghijklmnop\""),
        ("[\"10.0.3.1/32\"]", "[]", "24: node.port.addresses has 0: 1 to 16 are allowed"),
        ("10.0.3.1/32", "10.0.3.1", "24: node.port.addresses = \"10.0.3.1\": an address and"),
        ("10.0.3.1/32", "10.0.3.0/24", "24: node.port.addresses = \"10.0.3.0/24\": the first"),
        ("10.0.3.1/32", "127.0.0.1/8", "24: node.port.addresses = \"127.0.0.1/8\": ports have no"),
        ("10.0.3.1/32", "fe80::1/64", "24: node.port.addresses = \"fe80::1/64\": ports have no"),
        ("10.0.3.1/32", "10.0.3.1/0", "24: node.port.addresses = \"10.0.3.1/0\": a length"),
        ("10.0.2.2/24", "10.0.1.9/24", "31: node.port.addresses = \"10.0.1.9/24\": overlaps"),
        (
            "10.0.2.2/24",
            "10.0.2.1/24",
            "31: node.port.addresses = \"10.0.2.1/24\": overlaps 10.0.2.1/24 of b:lan0",
        ),
        ("10.0.2.2/24", "10.0.2.2/25", "31: node.port.addresses = \"10.0.2.2/25\": overlaps"),
        (
            "10.0.3.1/32",
            "10.0.0.1/16",
            "24: node.port.addresses = \"10.0.0.1/16\": overlaps 10.0.1.0/24 of a:lan0",
        ),
        ("mtu = 1200", "mtu = 67", "25: node.port.mtu = 67: 68 to 9000 are allowed"),
        ("10.0.3.1/32", "fd::1/64", "25: node.port.mtu = 1200: 1280 to 9000 are allowed"),
        ("[icmp]", "[icmp", "11: "),
    ] {
        let error = error(old, new);
        let expected = format!("configuration:{expected}");
        assert!(
            error.starts_with(&expected),
            "{error}
{expected}"
        );
    }
    let none = Config::parse("node = []\n[cluster]\nname='x'\ntopology='mesh'", ".").unwrap_err();
    assert_eq!(none.to_string(), "configuration:1: node = []: a cluster has 1 to 64 nodes");
}

#[test]
fn the_most_nodes_and_ports_are_accepted_and_no_more() {
    let cluster = |nodes: usize, ports: usize| {
        let mut text = "[cluster]\nname='x'\ntopology='switch'\n".to_owned();
        for node in 0..nodes {
            text += &format!("[[node]]\nname='n{node}'\naddress='h{node}:1'\n");
            for port in 0..ports {
                let address = format!("10.{node}.{port}.1/24");
                text += &format!("[[node.port]]\ninterface='p{port}'\naddresses=['{address}']\n");
            }
        }
        Config::parse(&text, ".")
    };
    let config = cluster(64, 32).unwrap();
    assert_eq!(config.routes().unwrap().len(), 2 * 64 * 32);
    let nodes = cluster(65, 0).unwrap_err().to_string();
    assert!(nodes.ends_with("node.name = \"n64\": a cluster has at most 64 nodes"), "{nodes}");
    let ports = cluster(1, 33).unwrap_err().to_string();
    assert!(ports.ends_with("interface = \"p32\": a node has at most 32 ports"), "{ports}");
}

#[test]
fn ports_are_routes() {
    let routes = demo().routes().unwrap();
    let lookup = |address: &str| routes.lookup(address.parse().unwrap(), 0);
    let via = |node, exit| Lookup::Via(NextHop { node, exit });
    assert_eq!(lookup("10.0.1.7"), via(0, Exit::Connected(0)));
    assert_eq!(lookup("fd00:1::7"), via(0, Exit::Connected(0)));
    assert_eq!(lookup("10.0.2.7"), via(1, Exit::Connected(0)));
    for (address, node) in
        [("10.0.1.1", 0), ("fd00:1::1", 0), ("10.0.3.1", 0), ("10.0.2.1", 1), ("10.0.2.2", 1)]
    {
        assert_eq!(lookup(address), via(node, Exit::Local));
    }
    assert_eq!(lookup("10.0.3.2"), Lookup::NoRoute);
    assert!(routes.routes().all(|route| route.origin == Origin::Connected));
}

#[test]
fn lines_of_routes_are_read_and_written() {
    let config = demo();
    for (line, text) in [
        ("192.0.2.0/24 via a:lan0@10.0.1.254", ""),
        ("0.0.0.0/0  via\ta:lan1   b:lan0*3 # comment", "0.0.0.0/0 via a:lan1 b:lan0*3"),
        ("::/0 via a:lan0@fd00:1::2*65535", ""),
        ("2001:db8::/32 unreachable", ""),
        ("192.0.2.1 via b:lan0@10.0.2.9", "192.0.2.1/32 via b:lan0@10.0.2.9"),
        ("192.0.2.0/24 via b:lan0 a:lan0", "192.0.2.0/24 via a:lan0 b:lan0"),
    ] {
        let (prefix, members) = config.parse_route(line).unwrap();
        let expected = if text.is_empty() { line } else { text };
        assert_eq!(config.route_text(prefix, &members), expected);
        assert_eq!(config.parse_route(expected).unwrap(), (prefix, members));
    }
    let local = NextHop { node: 1, exit: Exit::Local };
    assert_eq!(config.route_text(net("10.0.2.1/32"), &[(local, 1)]), "10.0.2.1/32 local b");
}

#[test]
fn wrong_lines_of_routes_say_what_is_wrong() {
    let config = demo();
    let many = format!("10.0.0.0/8 via{}", " a:lan0".repeat(10_000));
    for (line, expected) in [
        ("", "\"\" is no route: write PREFIX via"),
        ("192.0.2.0/24", "\"192.0.2.0/24\" is no route: write PREFIX via"),
        ("192.0.2.0/24 via", "\"192.0.2.0/24 via\" is no route"),
        ("192.0.2.0/24 to a:lan0", "\"192.0.2.0/24 to a:lan0\" is no route"),
        ("192.0.2.0/24 unreachable a:lan0", "\"192.0.2.0/24 unreachable a:lan0\" is no route"),
        ("192.0.2.0/33 via a:lan0", "\"192.0.2.0/33\" is no prefix"),
        (
            "192.0.2.1/24 via a:lan0",
            "192.0.2.1/24 has bits beyond its length: its network is 192.0.2.0/24",
        ),
        ("192.0.2.0/24 via a", "next hop \"a\": write NODE:INTERFACE"),
        ("192.0.2.0/24 via c:lan0", "next hop \"c:lan0\": there is no such node; there are a, b"),
        (
            "192.0.2.0/24 via a:lan2",
            "next hop \"a:lan2\": the node has no such port; it has lan0, lan1",
        ),
        ("192.0.2.0/24 via a:lan0*0", "next hop \"a:lan0*0\": the weight must be 1 to 65535"),
        ("192.0.2.0/24 via a:lan0*65536", "next hop \"a:lan0*65536\": the weight must be"),
        ("192.0.2.0/24 via a:lan0@x", "next hop \"a:lan0@x\": the gateway is no IP address"),
        (
            "192.0.2.0/24 via a:lan0@10.0.1.1",
            "next hop \"a:lan0@10.0.1.1\": the gateway is the port itself",
        ),
        (
            "192.0.2.0/24 via a:lan0@10.0.1.255",
            "next hop \"a:lan0@10.0.1.255\": 10.0.1.255 is no host of 10.0.1.0/24",
        ),
        (
            "192.0.2.0/24 via a:lan0@10.0.2.9",
            "next hop \"a:lan0@10.0.2.9\": the gateway is outside of the port's networks, 10.0.1.0/24, fd00:1::/64: write 10.0.2.9,onlink",
        ),
        (
            "192.0.2.0/24 via a:lan0@10.0.2.9,on",
            "next hop \"a:lan0@10.0.2.9,on\": the gateway is no IP address",
        ),
        (
            "192.0.2.0/24 via a:lan0@ff02::1,onlink",
            "next hop \"a:lan0@ff02::1,onlink\": no gateway has an address that is multicast",
        ),
        ("2001:db8::/32 via a:lan0@10.0.1.2", "10.0.1.2 is no gateway of 2001:db8::/32"),
        (
            "192.0.2.0/24 via a:lan1@fe80::1",
            "next hop \"a:lan1@fe80::1\": its port has an MTU of 1200: IPv6 needs at least 1280",
        ),
        ("010.0.0.0/8 unreachable", "\"010.0.0.0/8\" is no prefix"),
        ("10.0.0.01 unreachable", "\"10.0.0.01\" is no prefix"),
        ("10.0.0.0/08 unreachable", "\"10.0.0.0/08\" is no prefix"),
        ("10.0.0.0/+8 unreachable", "\"10.0.0.0/+8\" is no prefix"),
        (
            "192.0.2.0/24 via a:lan0@10.0.1.02",
            "next hop \"a:lan0@10.0.1.02\": the gateway is no IP address",
        ),
        (
            "2001:db8::/32 via b:lan0 a:lan1*2",
            "next hop \"a:lan1\": its port has an MTU of 1200: IPv6 needs at least 1280",
        ),
        ("192.0.2.0/24 via a:lan0 a:lan0*2", "node 0 port 0 occurs twice"),
        (&many, "65 next hops: a route has at most 64"),
    ] {
        let error = config.parse_route(line).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
    let long = config.parse_route(&"x".repeat(100_000)).unwrap_err().to_string();
    assert!(long.len() < 300, "{long}");
}

#[test]
fn gateways_may_be_link_local_outside_of_the_networks_and_ipv6_ones_of_ipv4_routes() {
    let config = demo();
    for (line, gateway) in [
        ("192.0.2.0/24 via a:lan0@fe80::9", "fe80::9"),
        ("192.0.2.0/24 via a:lan0@fd00:1::9*3", "fd00:1::9"),
        ("192.0.2.0/24 via a:lan0@169.254.1.1", "169.254.1.1"),
        ("192.0.2.0/24 via a:lan0@172.16.0.1,onlink", "172.16.0.1"),
        ("192.0.2.0/24 via a:lan0@2001:db8:9::1,onlink*2", "2001:db8:9::1"),
        ("2001:db8::/32 via a:lan0@fe80::9", "fe80::9"),
    ] {
        let (prefix, members) = config.parse_route(line).expect(line);
        let gateway: IpAddr = gateway.parse().expect("an address");
        assert!(
            matches!(members[..], [(NextHop { exit: Exit::Gateway(0, g), .. }, _)] if g == gateway)
        );
        assert_eq!(config.route_text(prefix, &members), line, "the text is read again");
    }
    // The word is not kept where it says nothing.
    let (prefix, members) = config.parse_route("192.0.2.0/24 via a:lan0@fe80::9,onlink").unwrap();
    assert_eq!(config.route_text(prefix, &members), "192.0.2.0/24 via a:lan0@fe80::9");
}

#[test]
fn addresses_with_leading_zeros_are_refused_everywhere_in_the_file() {
    for (old, new, expected) in [
        ("\"10.0.1.1/24", "\"010.0.1.1/24", "an address and the length of its network"),
        ("10.9.0.1:", "010.9.0.1:", "four numbers without leading zeros"),
        ("10.9.1.2:", "10.9.258:", "four numbers without leading zeros"),
    ] {
        assert!(DEMO.contains(old), "{old}");
        let error = Config::parse(&DEMO.replacen(old, new, 1), ".").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_route_of_a_file_for_which_the_tables_have_no_room_is_named_with_its_line() {
    let directory = Directory::new("room");
    let path = directory.write("demo.toml", format!("{DEMO}[routes]\nfiles = ['r1', 'r2']\n"));
    directory.write("r1", "192.0.2.0/24 unreachable\n");
    directory.write("r2", "# comment\n198.51.100.0/24 unreachable\n203.0.113.0/24 unreachable\n");
    let config = Config::load(&path).unwrap();
    let all = config.routes().unwrap().len();
    let full = Routes::with_limits(all - 1, crate::fib::Fib::new(), crate::group::Groups::new());
    let error = config.fill(full).unwrap_err().to_string();
    assert!(error.contains("/r2:3: there are ") && error.contains("routes already"), "{error}");
    directory.write("r2", b"# comment\n198.51.100.0/24 unreach\xffable\n");
    let error = Config::load(&path).unwrap_err().to_string();
    assert!(error.ends_with("/r2:2: no UTF-8 text"), "{error}");
}

#[test]
fn files_of_routes_are_relative_to_the_file_and_their_errors_name_a_line() {
    let directory = Directory::new("files");
    let config = format!("{DEMO}[routes]\nfiles = ['r1', 'r2']\n");
    let path = directory.write("demo.toml", &config);
    let missing = Config::load(&path).unwrap_err().to_string();
    assert!(missing.contains("/r1: No such file"), "{missing}");

    directory.write("r1", "# comment\n\n192.0.2.0/24 via a:lan0@10.0.1.254\n");
    directory.write("r2", "::/0 unreachable\n  # another\n");
    let routes = Config::load(&path).unwrap().routes().unwrap();
    assert_eq!(routes.announced(Origin::File, None).count(), 2);
    assert_eq!(routes.lookup("2001::1".parse().unwrap(), 0), Lookup::Unreachable);

    for (line, expected) in [
        ("10.0.0.1/8 unreachable", "/r2:2: 10.0.0.1/8 has bits beyond its length"),
        ("192.0.2.0/24 unreachable", "/r2:2: 192.0.2.0/24 has a route already, in "),
        ("10.0.1.0/24 via b:lan0", "/r2:2: 10.0.1.0/24 is that of a:lan0: leave the line out"),
        ("10.0.2.1/32 via a:lan0", "/r2:2: 10.0.2.1/32 is that of local b: leave the line out"),
    ] {
        directory.write("r2", format!("\n{line}"));
        let error = Config::load(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    let absent = Config::load(directory.0.join("x.toml")).unwrap_err().to_string();
    assert!(absent.contains("/x.toml: No such file"), "{absent}");
}

#[test]
fn the_fingerprint_depends_on_what_all_nodes_must_agree_on_only() {
    let base = demo().fingerprint();
    assert_eq!(base, 4_064_675_927_778_325_725, "the same on every machine and in every version");
    let with = |old: &str, new: &str| {
        assert!(DEMO.contains(old));
        Config::parse(&DEMO.replacen(old, new, 1), ".").unwrap().fingerprint()
    };
    for (old, new) in [
        ("500ms", "600ms"),
        ("queue = 64", "queue = 65"),
        ("/run/a.sock", "/run/x.sock"),
        ("10.9.1.2", "10.9.1.3"),
        ("per_second = 10", "per_second = 11"),
    ] {
        assert_eq!(with(old, new), base, "{new}");
    }
    let others = [
        ("\"demo\"", "\"demos\""),
        ("mesh", "switch"),
        ("seed = 7", "seed = 8"),
        ("name = \"b\"", "name = \"c\"\n#"),
        ("\"lan1\"", "\"lan2\""),
        ("10.0.3.1", "10.0.3.2"),
        ("mtu = 1200", "mtu = 1201"),
    ];
    let others = others.map(|(old, new)| match new {
        "name = \"c\"\n#" => {
            let text = DEMO.replacen(old, "name = \"c\"", 1).replacen("{ b =", "{ c =", 1);
            Config::parse(&text, ".").unwrap().fingerprint()
        }
        _ => with(old, new),
    });
    let different: BTreeSet<u64> = others.into_iter().chain([base]).collect();
    assert_eq!(different.len(), 8);
}

#[test]
fn an_import_has_a_table_of_its_own_and_its_errors_name_the_key() {
    let with = |import: &str| {
        let control = "control = \"/run/a.sock\"";
        let text = DEMO.replacen(control, &format!("{control}\n[node.import]\n{import}"), 1);
        Config::parse(&text, ".").map_err(|error| error.to_string())
    };
    let import = |text: &str| with(text).unwrap().nodes[0].import.clone().unwrap();
    let daemon = Some("/run/bird.ctl".into());
    let grace = Duration::from_secs(5);
    let all = Import { table: 100, daemon: None, grace, limit: Routes::ROUTES };
    assert_eq!(import("table = 100"), all);
    let full = "table = 4294967295\ndaemon = '/run/bird.ctl'\ngrace = '0s'\nlimit = 7";
    let expected = Import { table: u32::MAX, daemon, grace: Duration::ZERO, limit: 7 };
    assert_eq!(import(full), expected);
    assert_eq!(demo().nodes[0].import, None);
    assert_eq!(with("table = 100").unwrap().fingerprint(), demo().fingerprint());
    for (text, expected) in [
        ("table = 0", "20: node.import.table = 0: 1 to 252 and 256 to 4294967295 are allowed"),
        ("table = 4294967296", "20: node.import.table = 4294967296: 1 to 252 and"),
        ("table = -1", "20: node.import.table = -1: 1 to 252 and"),
        ("table = 253", "20: node.import.table = 253: tables 253 to 255 (default, main, local)"),
        ("table = 254", "20: node.import.table = 254: tables 253 to 255 (default, main, local)"),
        ("table = 255", "20: node.import.table = 255: tables 253 to 255 (default, main, local)"),
        ("limit = 5", "19: missing field `table`"),
        ("table = 9\nlimit = 0", "21: node.import.limit = 0: 1 to 2097152 are allowed"),
        ("table = 9\ngrace = '1s'", "21: node.import.grace = \"1s\": only beside `daemon`"),
        ("table = 9\ndaemon = ''", "21: node.import.daemon = \"\": a path of 1 to 107 bytes"),
        ("table = 9\ndaemon = 'x'\ngrace = '2h'", "22: node.import.grace = \"2h\": 0s to 1h"),
        ("table = 9\nlimits = 5", "21: unknown field `limits`"),
    ] {
        let error = with(text).unwrap_err();
        assert!(error.starts_with(&format!("configuration:{expected}")), "{error}\n{expected}");
    }
}
