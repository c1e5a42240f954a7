//! Netlink messages about routes, interfaces and next hops.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_APPEND, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLM_F_REPLACE, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NlasIterator,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

/// Messages about next hop objects, which the crate does not know.
const NEW_NEXT_HOP: u16 = 104;
const DELETE_NEXT_HOP: u16 = 105;
/// Bytes of a message's header, and of the fixed part of one about a next hop object.
const HEADER: usize = 16;
const NEXT_HOP_HEADER: usize = 8;
/// The attribute with the number of a next hop object.
const NEXT_HOP_ID: u16 = 1;

/// A next hop of a route of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelHop {
    /// The index of the interface.
    pub interface: u32,
    /// The gateway, of either IP version; `None`: the destination is a neighbour.
    pub gateway: Option<IpAddr>,
    /// The share of flows among the next hops of the route, 1 to 256.
    pub weight: u16,
}

/// The action of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// They take one of these next hops.
    Hops(Vec<KernelHop>),
    /// They are rejected or discarded.
    Reject,
    /// Something that this router does not do, as tunnels and lookups in other tables.
    Unsupported,
}

/// A route of the kernel. Several may have one prefix; that of the lowest metric is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelRoute {
    /// The destinations, without bits after the prefix.
    pub prefix: IpNet,
    /// The lowest of several routes for a prefix is used.
    pub metric: u32,
    /// The action.
    pub target: Target,
    /// The next hop object of the route, or 0.
    pub object: u32,
}

/// The kind of a message about a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A part of a table that is being read, by its number.
    Dumped(u32),
    /// A new route, beside others or in the place of one.
    Added,
    /// A route in the place of the first one of its prefix and metric.
    Replaced,
    /// A route after others of its prefix and metric, or a next hop after others.
    Appended,
    /// A route was removed.
    Deleted,
}

/// The contents of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A route of the table.
    Route(Kind, KernelRoute),
    /// An interface exists.
    Interface {
        /// Its index.
        index: u32,
        /// Its name.
        name: String,
        /// The administrator has enabled it.
        is_up: bool,
    },
    /// An interface is gone, by its index.
    InterfaceGone(u32),
    /// An interface has lost an address, with which the kernel may remove routes without a report.
    AddressGone,
    /// A next hop object was made, removed or changed, and with it perhaps routes, without a report.
    Object(u32),
    /// The end of a table, by the number of its reading, with an error or 0.
    Done(u32, i32),
    /// A reading was refused, by its number.
    Refused(u32),
    /// Changes were lost.
    Overrun,
    /// It says nothing about the table.
    Other,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The contents.
    pub content: Content,
    /// The table changed while it was read, so that entries may be missing.
    pub is_interrupted: bool,
}

/// Interprets the message at the beginning of `bytes`, about a table of the kernel. Returns the
/// number of its bytes, too; `None` for the message if it is malformed.
pub fn parse(bytes: &[u8], table: u32) -> (usize, Option<Message>) {
    let Some(length) = bytes.first_chunk::<4>().map(|length| u32::from_ne_bytes(*length) as usize)
    else {
        return (bytes.len(), None);
    };
    if length < HEADER || length > bytes.len() {
        return (bytes.len(), None);
    }
    (length.next_multiple_of(4).min(bytes.len()), message(&bytes[..length], table))
}

fn message(bytes: &[u8], table: u32) -> Option<Message> {
    // A group that has lost a member is reported as a new one is, without a flag.
    if let NEW_NEXT_HOP | DELETE_NEXT_HOP = u16::from_ne_bytes([bytes[4], bytes[5]]) {
        return Some(Message { content: Content::Object(object(bytes)?), is_interrupted: false });
    }
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes).ok()?;
    let header = message.header;
    let number = header.sequence_number;
    let content = match message.payload {
        NetlinkPayload::Done(done) => Content::Done(number, done.code),
        NetlinkPayload::Error(error) if error.code.is_some() => Content::Refused(number),
        NetlinkPayload::Overrun(_) => Content::Overrun,
        NetlinkPayload::InnerMessage(inner) => inner_content(&header, inner, table)?,
        _ => Content::Other,
    };
    Some(Message { content, is_interrupted: header.flags & NLM_F_DUMP_INTR != 0 })
}

/// The number of the next hop object that a message is about.
fn object(bytes: &[u8]) -> Option<u32> {
    let attributes = NlasIterator::new(bytes.get(HEADER + NEXT_HOP_HEADER..)?);
    let mut valid = attributes.map_while(Result::ok);
    let id = valid.find(|attribute| attribute.kind() == NEXT_HOP_ID)?;
    id.value().try_into().ok().map(u32::from_ne_bytes)
}

fn inner_content(
    header: &NetlinkHeader,
    message: RouteNetlinkMessage,
    table: u32,
) -> Option<Content> {
    let flag = |flag| header.flags & flag != 0;
    let (kind, route) = match message {
        // A bridge reports its ports by messages of its own family.
        RouteNetlinkMessage::NewLink(link) => return Some(interface(link)),
        RouteNetlinkMessage::DelLink(link) => {
            let is_interface = link.header.interface_family == AddressFamily::Unspec;
            let gone = Content::InterfaceGone(link.header.index);
            return Some(if is_interface { gone } else { Content::Other });
        }
        RouteNetlinkMessage::DelAddress(_) => return Some(Content::AddressGone),
        RouteNetlinkMessage::NewRoute(route) if flag(NLM_F_MULTIPART) => {
            (Kind::Dumped(header.sequence_number), route)
        }
        RouteNetlinkMessage::NewRoute(route) if flag(NLM_F_REPLACE) => (Kind::Replaced, route),
        RouteNetlinkMessage::NewRoute(route) if flag(NLM_F_APPEND) => (Kind::Appended, route),
        RouteNetlinkMessage::NewRoute(route) => (Kind::Added, route),
        RouteNetlinkMessage::DelRoute(route) => (Kind::Deleted, route),
        _ => return Some(Content::Other),
    };
    let is_other = table_of(&route) != table
        || route.header.flags.contains(RouteFlags::Cloned)
        // Routes for some sources or types of service only have no place in the tables.
        || route.header.source_prefix_length != 0
        || route.header.tos != 0;
    Some(if is_other { Content::Other } else { Content::Route(kind, kernel_route(&route)?) })
}

fn interface(message: LinkMessage) -> Content {
    if message.header.interface_family != AddressFamily::Unspec {
        return Content::Other;
    }
    let name = message.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    });
    Content::Interface {
        index: message.header.index,
        name: name.unwrap_or_default(),
        is_up: message.header.flags.contains(LinkFlags::Up),
    }
}

fn table_of(route: &RouteMessage) -> u32 {
    let mut attributes = route.attributes.iter();
    let table = attributes.find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or_else(|| route.header.table.into())
}

/// `None`: it is malformed, or of another family.
fn kernel_route(message: &RouteMessage) -> Option<KernelRoute> {
    let any: IpAddr = match message.header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    let (mut destination, mut metric, mut object) = (any, 0, 0);
    let (mut is_tunnel, mut many) = (false, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::NhId(id) => object = *id,
            RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => is_tunnel = true,
            RouteAttribute::MultiPath(hops) => many = Some(hops),
            _ => {}
        }
    }
    let prefix = IpNet::new(destination, message.header.destination_prefix_length).ok()?.trunc();
    let hops = match many {
        Some(hops) => hops.iter().map(next_hop).collect(),
        None => hop(None, &message.attributes).map(|hop| vec![hop]),
    };
    let target = match (message.header.kind, hops) {
        (RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit, _) => Target::Reject,
        (RouteType::Unicast, Some(hops)) if !is_tunnel => Target::Hops(hops),
        _ => Target::Unsupported,
    };
    Some(KernelRoute { prefix, metric, target, object })
}

/// A next hop of several.
fn next_hop(next: &RouteNextHop) -> Option<KernelHop> {
    let one = hop(Some(next.interface_index), &next.attributes)?;
    Some(KernelHop { weight: u16::from(next.hops) + 1, ..one })
}

/// The next hop of attributes. `None`: it has no interface, or a tunnel.
fn hop(mut interface: Option<u32>, attributes: &[RouteAttribute]) -> Option<KernelHop> {
    let mut gateway = None;
    for attribute in attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(address) => gateway = Some(ip(address)?),
            RouteAttribute::Via(RouteVia::Inet(address)) => gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => gateway = Some((*address).into()),
            RouteAttribute::Via(_) | RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => {
                return None;
            }
            _ => {}
        }
    }
    Some(KernelHop { interface: interface?, gateway, weight: 1 })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
