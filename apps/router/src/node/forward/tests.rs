use std::net::IpAddr;
use std::time::Duration;

use etherparse::{IpNumber, Ipv4Header, Ipv6Header};

use crate::config::Config;
use crate::counters::{Counters, PacketDrop};
use crate::line::{Ended, Outlet, Sent};
use crate::local::Local;
use crate::route::PortId;

/// Ports that keep what leaves by them.
struct Ports {
    left: Vec<(PortId, IpAddr, Vec<u8>)>,
    /// Of the second port.
    mtu: usize,
    /// What became of packets that wait, if they do.
    ended: Option<Ended>,
}

impl Outlet for Ports {
    fn send(&mut self, port: PortId, neighbour: IpAddr, packet: &[u8]) -> Result<(), PacketDrop> {
        if packet.len() > self.mtu(port) {
            return Err(PacketDrop::TooBig);
        }
        self.left.push((port, neighbour, packet.to_vec()));
        Ok(())
    }

    fn flush(&mut self) {}

    fn is_up(&self, _: PortId) -> bool {
        true
    }

    fn is_queue(&self) -> bool {
        self.ended.is_some()
    }

    fn take_ended(&mut self) -> Ended {
        std::mem::take(self.ended.as_mut().expect("it is one"))
    }

    fn mtu(&self, port: PortId) -> usize {
        if port == 1 { self.mtu } else { usize::MAX }
    }
}

/// One node with three ports.
struct Router(Local<Ports>);

impl Router {
    fn start() -> Router {
        let text = "[cluster]\nname='x'\ntopology='switch'\n\
                    [[node]]\nname='a'\naddress='udp://127.0.0.1:31850'\n\
                    [[node.port]]\ninterface='lan0'\n\
                    addresses=['10.1.0.1/24', '2001:db8:1::1/64']\n\
                    [[node.port]]\ninterface='lan1'\n\
                    addresses=['10.2.0.1/24', '10.3.0.5/30', '10.3.0.8/31', '2001:db8:2::1/64']\n\
                    [[node.port]]\ninterface='lan2'\nmtu=300\naddresses=['10.4.0.1/24']\n";
        let config = Config::parse(text, "").expect("valid");
        Router(
            Local::new(&config, |_| Ports { left: vec![], mtu: 9_000, ended: None })
                .expect("starts"),
        )
    }

    fn ports<R>(&mut self, f: impl FnOnce(&mut Ports) -> R) -> R {
        f(self.0.node_mut(0).expect("it runs").outlet_mut())
    }

    /// A packet arrives at the first port. Returns what left.
    fn forward(&mut self, packet: &[u8]) -> Vec<(PortId, IpAddr, Vec<u8>)> {
        self.0.inject(0, 0, &mut packet.to_vec());
        self.0.run_for(Duration::ZERO);
        self.ports(|ports| std::mem::take(&mut ports.left))
    }

    fn counters(&self) -> Counters {
        let counters = self.0.counters();
        assert_eq!(counters.unaccounted(), 0, "{counters:?}");
        counters
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A UDP packet without checksum, with data of some length, from a host at the first port.
fn packet(to: &str, len: usize, dont_fragment: bool) -> Vec<u8> {
    let udp_len = 8 + len as u16;
    let mut packet = match ip(to) {
        IpAddr::V4(to) => {
            let header = Ipv4Header::new(udp_len, 9, IpNumber::UDP, [10, 1, 0, 9], to.octets());
            let mut header = header.expect("short");
            header.dont_fragment = dont_fragment;
            header.header_checksum = header.calc_header_checksum();
            header.to_bytes().to_vec()
        }
        IpAddr::V6(to) => Ipv6Header {
            payload_length: udp_len,
            next_header: IpNumber::UDP,
            hop_limit: 9,
            source: [0x20, 1, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
            destination: to.octets(),
            ..Ipv6Header::default()
        }
        .to_bytes()
        .to_vec(),
    };
    packet.extend([&[0, 5, 0, 6], &udp_len.to_be_bytes()[..], &[0, 0], &vec![7; len]].concat());
    packet
}

/// Writes the checksum of an IPv4 header without options.
fn fix(packet: &mut [u8]) {
    let header = Ipv4Header::from_slice(packet).expect("long enough").0;
    packet[10..12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
}

fn set_ttl(packet: &mut [u8], ttl: u8) {
    let header = crate::packet::parse(packet).expect("good");
    for _ in ttl..packet[8] {
        crate::packet::decrement_ttl(packet, &header);
    }
}

#[test]
fn a_packet_that_is_larger_than_the_mtu_of_its_port_now_is_reported_or_fragmented() {
    let mut router = Router::start();
    router.ports(|ports| ports.mtu = 1_000);
    for (to, host, at, kind) in
        [("10.2.0.9", "10.1.0.9", 20, [3, 4]), ("2001:db8:2::9", "2001:db8:1::9", 40, [2, 0])]
    {
        let left = router.forward(&packet(to, 1_200, true));
        let [(0, neighbour, message)] = &left[..] else {
            panic!("{left:02x?} {:?}", router.counters())
        };
        assert_eq!((*neighbour, &message[at..at + 2]), (ip(host), &kind[..]));
        assert_eq!(message[at + 6..at + 8], 1_000_u16.to_be_bytes(), "the MTU");
    }
    let counters = router.counters();
    assert_eq!(
        (counters.dropped(PacketDrop::TooBig), counters.icmp_sent, counters.sent),
        (2, 2, 2)
    );
    let left = router.forward(&packet("10.2.0.9", 1_200, false));
    let lens: Vec<_> = left.iter().map(|(port, to, p)| (*port, *to, p.len())).collect();
    assert_eq!(lens, [(1, ip("10.2.0.9"), 996), (1, ip("10.2.0.9"), 252)]);
    let counters = router.counters();
    assert_eq!((counters.fragmented, counters.fragments), (1, 2));
    assert_eq!(counters.all_dropped(), 2);
}

#[test]
fn packets_for_other_addresses_of_the_system_are_not_forwarded() {
    let mut router = Router::start();
    let set = |router: &Router, all: &[&str]| {
        let all = all.iter().map(|text| ip(text)).collect();
        router.0.node_mut(0).expect("it runs").set_system_addresses(&all).expect("room");
    };
    let ports = ["10.1.0.1", "10.2.0.1", "2001:db8:1::1", "2001:db8:2::1", "127.0.0.1", "fe80::1"];
    let others = ["10.2.0.77", "2001:db8:2::77"];
    set(&router, &[&ports[..], &others].concat());
    let routes = |router: &Router| router.0.node(0).expect("it runs").routes().len();
    assert_eq!(routes(&router), 16, "networks, addresses of ports, and the others");
    for to in others {
        assert_eq!(router.forward(&packet(to, 5, false)), []);
    }
    assert_eq!(router.counters().to_system, 2);
    // Without addresses, those of the ports remain.
    set(&router, &[]);
    assert_eq!(routes(&router), 14);
    for to in others {
        assert_eq!(router.forward(&packet(to, 5, false)).len(), 1, "forwarded");
    }
    assert_eq!(router.forward(&packet("10.2.0.1", 5, false)), []);
    assert_eq!(router.counters().to_system, 3);
}

#[test]
fn packets_are_counted_when_they_have_left_or_are_lost() {
    let mut router = Router::start();
    router.ports(|ports| ports.ended = Some(Ended::default()));
    for _ in 0..5 {
        router.forward(&packet("10.2.0.9", 5, true));
    }
    let counters = router.0.counters();
    assert_eq!((counters.sent, counters.unaccounted()), (0, 5), "they wait");
    let sent = Sent { packets: 2, bytes: 66 };
    let dropped = vec![(PacketDrop::Refused, 1), (PacketDrop::PortDown, 2)];
    router.ports(|ports| ports.ended = Some(Ended { sent, dropped: dropped.clone() }));
    router.0.pass();
    router.0.pass();
    let counters = router.counters();
    assert_eq!((counters.sent, counters.sent_bytes), (2, 66));
    assert_eq!(counters.drops().collect::<Vec<_>>(), [dropped[1], dropped[0]]);
}

#[test]
fn broadcasts_to_the_network_of_a_port_are_dropped_without_a_report() {
    let mut router = Router::start();
    for (n, to) in (1..).zip(["10.2.0.255", "10.2.0.0", "10.3.0.4", "10.3.0.7"]) {
        let mut expires = packet(to, 5, true);
        for ttl in [9, 1] {
            set_ttl(&mut expires, ttl);
            assert_eq!(router.forward(&expires), [], "{to}");
        }
        let counters = router.counters();
        assert_eq!(counters.dropped(PacketDrop::Destination), 2 * n, "{to}");
        assert_eq!((counters.icmp_sent, counters.all_dropped()), (0, 2 * n));
    }
    // Hosts: with such a last byte, on networks of two addresses, and of IPv6.
    for to in ["10.2.0.3", "10.2.0.252", "10.3.0.9", "2001:db8:2::"] {
        let left = router.forward(&packet(to, 5, true));
        assert_eq!(left.iter().map(|(port, _, _)| *port).collect::<Vec<_>>(), [1], "{to}");
    }
}

#[test]
fn reports_reach_hosts_on_a_port_with_a_small_mtu() {
    let mut router = Router::start();
    let mut lost = packet("192.0.2.1", 272, true);
    assert_eq!(lost.len(), 300);
    lost[12..16].copy_from_slice(&[10, 4, 0, 9]);
    fix(&mut lost);
    let left = router.forward(&lost);
    let lens: Vec<_> = left.iter().map(|(port, to, p)| (*port, *to, p.len())).collect();
    assert_eq!(lens, [(2, ip("10.4.0.9"), 300), (2, ip("10.4.0.9"), 48)]);
    let counters = router.counters();
    assert_eq!((counters.icmp_sent, counters.dropped(PacketDrop::TooBig)), (1, 0));
}
