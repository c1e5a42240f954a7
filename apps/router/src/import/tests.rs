//! An import of constructed messages, from a kernel of this module.

mod readings;
mod routes;

use std::cell::RefCell;
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::rc::Rc;

use netlink_packet_core::{
    DoneMessage, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLM_F_REPLACE,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteNextHop, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::*;
use crate::config::Config;

const TABLE: u32 = 1_000;
const MS: u64 = 1_000_000;
const CONFIG: &str = "
[cluster]
name='x'
topology='switch'
[[node]]
name='b'
address='h:2'
[[node]]
name='a'
address='h:1'
[node.import]
table=1000
limit=1000
[[node.port]]
interface='lan0'
addresses=['10.0.1.1/24','fd00:1::1/64']
[[node.port]]
interface='lan1'
addresses=['10.0.3.1/24']
mtu=1200
";
/// The indexes of the interfaces of the ports, and of one that is none.
const LAN0: u32 = 7;
const LAN1: u32 = 8;
const OTHER: u32 = 9;

/// A route of the kernel: prefix, metric, and `reject` or next hops with their weights.
#[derive(Clone, PartialEq, Debug)]
struct Spec {
    prefix: IpNet,
    metric: u32,
    hops: Vec<(u32, Option<IpAddr>, u8)>,
}

/// `PREFIX [metric N] INTERFACE[@GATEWAY][*WEIGHT] ...`
fn spec(text: &str) -> Spec {
    let mut words = text.split_whitespace().peekable();
    let prefix = words.next().expect("a prefix").parse().expect("a prefix");
    let mut metric = 0;
    if words.next_if_eq(&"metric").is_some() {
        metric = words.next().expect("a number").parse().expect("a number");
    }
    let hops = words.map(|word| {
        let (place, weight) = word.split_once('*').unwrap_or((word, "1"));
        let (interface, gateway) = place.split_once('@').unwrap_or((place, ""));
        let interface = match interface {
            "lan0" => LAN0,
            "lan1" => LAN1,
            _ => OTHER,
        };
        (interface, gateway.parse().ok(), weight.parse().expect("a number"))
    });
    Spec { prefix, metric, hops: hops.collect() }
}

fn gateway(prefix: &IpNet, gateway: IpAddr) -> RouteAttribute {
    match gateway {
        IpAddr::V6(gateway) if prefix.addr().is_ipv4() => {
            RouteAttribute::Via(RouteVia::Inet6(gateway))
        }
        gateway => RouteAttribute::Gateway(gateway.into()),
    }
}

impl Spec {
    /// As the kernel writes it.
    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        let is_v4 = self.prefix.addr().is_ipv4();
        message.header = RouteHeader {
            address_family: if is_v4 { AddressFamily::Inet } else { AddressFamily::Inet6 },
            destination_prefix_length: self.prefix.prefix_len(),
            table: 252,
            kind: if self.hops.is_empty() { RouteType::BlackHole } else { RouteType::Unicast },
            ..RouteHeader::default()
        };
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Table(TABLE));
        if self.prefix.prefix_len() > 0 {
            attributes.push(RouteAttribute::Destination(self.prefix.addr().into()));
        }
        attributes.push(RouteAttribute::Priority(self.metric));
        let of = |hop: &(u32, Option<IpAddr>, u8)| hop.1.map(|to| gateway(&self.prefix, to));
        match &self.hops[..] {
            [] => {}
            [hop] => {
                attributes.push(RouteAttribute::Oif(hop.0));
                attributes.extend(of(hop));
            }
            hops => {
                let hop = |hop: &(u32, Option<IpAddr>, u8)| {
                    let mut next = RouteNextHop::default();
                    (next.interface_index, next.hops) = (hop.0, hop.2 - 1);
                    next.attributes.extend(of(hop));
                    next
                };
                attributes.push(RouteAttribute::MultiPath(hops.iter().map(hop).collect()));
            }
        }
        message
    }
}

fn bytes(payload: NetlinkPayload<RouteNetlinkMessage>, flags: u16, number: u32) -> Vec<u8> {
    let mut message = NetlinkMessage::new(Default::default(), payload);
    message.header.flags = flags;
    message.header.sequence_number = number;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
    message.serialize(&mut bytes);
    bytes
}

fn added(text: &str, flags: u16) -> Vec<u8> {
    bytes(RouteNetlinkMessage::NewRoute(spec(text).message()).into(), flags, 0)
}

fn deleted(text: &str) -> Vec<u8> {
    bytes(RouteNetlinkMessage::DelRoute(spec(text).message()).into(), 0, 0)
}

fn link(index: u32, name: &str, is_up: bool) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = if is_up { LinkFlags::Up } else { LinkFlags::empty() };
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    RouteNetlinkMessage::NewLink(link)
}

/// A kernel.
#[derive(Default)]
struct Model {
    routes: Vec<Spec>,
    /// Results of the next calls of `receive`.
    queue: VecDeque<io::Result<Vec<u8>>>,
    readings: usize,
    /// The index of `lan0` if it was made again.
    lan0: Option<u32>,
    /// The next reading of IPv4 routes has this flag, and lacks some routes.
    interrupt: bool,
    /// A message before this part of the next reading.
    meanwhile: Option<(Part, Vec<u8>)>,
    /// The next reading of IPv6 routes lacks some, without a flag.
    omits: usize,
}

/// The model as the import has it.
struct Shared(Rc<RefCell<Model>>);

impl Kernel for Shared {
    fn request(&mut self, part: Part, table: u32, number: u32) -> io::Result<()> {
        assert_eq!(table, TABLE);
        let mut model = self.0.borrow_mut();
        let interrupt = part == Part::V4 && std::mem::take(&mut model.interrupt);
        let omits = if part == Part::V6 { std::mem::take(&mut model.omits) } else { 0 };
        let flags = NLM_F_MULTIPART | if interrupt { NLM_F_DUMP_INTR } else { 0 };
        let messages: Vec<RouteNetlinkMessage> = match part {
            Part::Interfaces => {
                model.readings += 1;
                let lan0 = model.lan0.unwrap_or(LAN0);
                vec![link(OTHER, "x", true), link(LAN1, "lan1", true), link(lan0, "lan0", true)]
            }
            _ => {
                let all = model.routes.iter();
                let family = all.filter(|r| r.prefix.addr().is_ipv4() == (part == Part::V4));
                let some = family.skip(usize::from(interrupt) + omits);
                some.map(|route| RouteNetlinkMessage::NewRoute(route.message())).collect()
            }
        };
        let meanwhile = model.meanwhile.take_if(|(before, _)| *before == part);
        model.queue.extend(meanwhile.map(|(_, message)| Ok(message)));
        for some in messages.chunks(50) {
            let some = some.iter().flat_map(|m| bytes(m.clone().into(), flags, number));
            let some = some.collect();
            model.queue.push_back(Ok(some));
        }
        let done = NetlinkPayload::Done(DoneMessage::default());
        model.queue.push_back(Ok(bytes(done, NLM_F_MULTIPART, number)));
        Ok(())
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        let next = self.0.borrow_mut().queue.pop_front();
        let bytes = next.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))?;
        buffer.extend(bytes);
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A node's routes with an import, and its kernel.
struct World {
    config: Config,
    import: Import,
    routes: Routes,
    model: Rc<RefCell<Model>>,
    now_ns: u64,
    /// Changes so far.
    changes: Vec<String>,
    most_changes: usize,
}

impl World {
    fn new(routes: &[&str]) -> World {
        World::with(routes, |_| {})
    }

    fn with(routes: &[&str], edit: impl Fn(&mut config::Import)) -> World {
        let config = Config::parse(CONFIG, ".").expect("a cluster");
        let own = &config.nodes[1];
        let mut import = own.import.clone().expect("an import");
        edit(&mut import);
        let model = Rc::new(RefCell::new(Model::default()));
        model.borrow_mut().routes = routes.iter().map(|text| spec(text)).collect();
        let kernel = Box::new(Shared(Rc::clone(&model)));
        let import = Import::new(&import, 1, &own.ports, kernel);
        let routes = config.routes().expect("routes");
        let (changes, now_ns, most_changes) = (Vec::new(), 1_000 * MS, 0);
        World { config, import, routes, model, now_ns, changes, most_changes }
    }

    /// A pass, as [`Import::pass`].
    fn pass(&mut self) {
        let changes = self.import.next_changes(self.now_ns, &self.routes);
        self.most_changes = self.most_changes.max(changes.len());
        for change in changes {
            self.changes.push(match &change {
                Change::Add(prefix, members) | Change::Replace(prefix, members) => {
                    self.config.route_text(*prefix, members)
                }
                Change::Delete(prefix) => format!("{prefix} gone"),
            });
            let done = self.routes.apply(Origin::Node(1), std::slice::from_ref(&change));
            if let Err(error) = done {
                self.import.refuse(change.prefix(), &error);
                let _ = self.routes.apply(Origin::Node(1), &[Change::Delete(change.prefix())]);
            }
        }
    }

    /// Passes of this time, with more of them while the import is busy.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.pass();
            while self.import.is_busy() {
                self.pass();
            }
            self.now_ns += MS;
        }
    }

    /// Waits until all is taken over. Returns the changes since the last time.
    fn settle(&mut self) -> Vec<String> {
        self.run(400);
        std::mem::take(&mut self.changes)
    }

    /// The kernel reports a change.
    fn report(&mut self, message: Vec<u8>) {
        self.model.borrow_mut().queue.push_back(Ok(message));
    }

    /// The route that is used for an address.
    fn find(&self, address: &str) -> String {
        let route = self.routes.find(address.parse().expect("an address"));
        route.map_or_else(String::new, |r| self.config.route_text(r.prefix, r.members))
    }

    fn announced(&self) -> usize {
        self.routes.announced(Origin::Node(1), None).count()
    }
}

fn many(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("20.{}.{}.0/24 lan0@10.0.1.9", n / 256, n % 256)).collect()
}
