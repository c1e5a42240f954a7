//! Lines of a file of routes, and of the control socket.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use super::{Node, Port, check};
use crate::group::{self, Groups};
use crate::route::{Exit, Members, NextHop, NodeId, PortId};
use crate::routes::RouteError;

/// Why a line is no route.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RouteTextError {
    /// It has another form.
    #[error(
        "{line:?} is no route: write PREFIX via NODE:INTERFACE[@GATEWAY[,onlink]][*WEIGHT] ... or \
         PREFIX unreachable"
    )]
    Form {
        /// Its beginning.
        line: String,
    },
    /// The prefix is none.
    #[error("{text:?} is no prefix: write an address and a length, like 10.0.0.0/8")]
    Prefix {
        /// The prefix.
        text: String,
    },
    /// A next hop that does not exist.
    #[error("next hop {text:?}: {why}")]
    Hop {
        /// The next hop.
        text: String,
        /// The part that is wrong, and what is allowed.
        why: String,
    },
    /// The prefix and its next hops do not fit each other.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// The smallest MTU of a port for IPv6.
pub(crate) const MTU_V6: u16 = 1_280;

/// Follows a gateway that is on the port's link although it is outside of the port's networks.
const ONLINK: &str = ",onlink";

/// The beginning of a text from outside, for errors.
fn start(text: &str) -> String {
    text.chars().take(80).collect()
}

pub(super) fn parse(nodes: &[Node], line: &str) -> Result<(IpNet, Members), RouteTextError> {
    let content = line.split('#').next().unwrap_or_default();
    let mut words = content.split_ascii_whitespace();
    let form = || RouteTextError::Form { line: start(content.trim()) };
    let (prefix, kind) = words.next().zip(words.next()).ok_or_else(form)?;
    let prefix = parse_prefix(prefix)?;
    let members: Members = match kind {
        // One more than allowed, so that the check of the list refuses it.
        "via" => {
            let hops = words.take(Groups::MEMBERS + 1);
            let hops: Result<Members, _> = hops.map(|word| parse_hop(nodes, word)).collect();
            Some(hops?).filter(|hops| !hops.is_empty()).ok_or_else(form)?
        }
        "unreachable" if words.next().is_none() => Members::new(),
        _ => return Err(form()),
    };
    crate::routes::check(prefix, &members)?;
    check_mtus(nodes, prefix, &members)?;
    let members = group::checked(&members).map_err(RouteError::from)?;
    Ok((prefix, members.into()))
}

/// Each link of IPv6 takes packets of 1,280 bytes (RFC 8200 section 5), and the system resolves no
/// IPv6 gateway on another one. Ports with IPv4 addresses only may have a smaller MTU.
fn check_mtus(
    nodes: &[Node],
    prefix: IpNet,
    members: &[(NextHop, u16)],
) -> Result<(), RouteTextError> {
    let is_v6 = |hop: &NextHop| {
        prefix.addr().is_ipv6() || matches!(hop.exit, Exit::Gateway(_, IpAddr::V6(_)))
    };
    let mtu = |hop: &NextHop| {
        let port = nodes.get(usize::from(hop.node))?.ports.get(usize::from(hop.port()?))?;
        Some(port.mtu)
    };
    let mut hops = members.iter().map(|(hop, _)| hop).filter(|hop| is_v6(hop));
    let small = hops.find_map(|hop| Some((hop, mtu(hop)?)).filter(|m| m.1 < MTU_V6));
    small.map_or(Ok(()), |(hop, mtu)| {
        let why = format!("its port has an MTU of {mtu}: IPv6 needs at least {MTU_V6}");
        Err(RouteTextError::Hop { text: hop_text(nodes, hop), why })
    })
}

/// A prefix without host bits. An address alone is a prefix of its full length.
pub(crate) fn parse_prefix(text: &str) -> Result<IpNet, RouteTextError> {
    let prefix = parse_net(text).or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let prefix = prefix.ok_or_else(|| RouteTextError::Prefix { text: start(text) })?;
    crate::routes::check(prefix, &[])?;
    Ok(prefix)
}

/// An address and a length. Octets and lengths with leading zeros are refused: some programs read
/// such numbers as octal ones.
pub(super) fn parse_net(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let is_number = length.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || (length.starts_with('0') && length != "0") {
        return None;
    }
    IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()
}

/// `NODE:INTERFACE[@GATEWAY[,onlink]][*WEIGHT]`
fn parse_hop(nodes: &[Node], text: &str) -> Result<(NextHop, u16), RouteTextError> {
    let wrong = |why: String| RouteTextError::Hop { text: start(text), why };
    let (place, weight) = match text.rsplit_once('*') {
        None => (text, 1),
        Some((place, weight)) => {
            let number = weight.parse().ok().filter(|number| *number > 0);
            (place, number.ok_or_else(|| wrong("the weight must be 1 to 65535".to_owned()))?)
        }
    };
    let (place, gateway) = match place.split_once('@') {
        None => (place, None),
        Some((place, gateway)) => {
            let (address, is_onlink) = match gateway.strip_suffix(ONLINK) {
                Some(address) => (address, true),
                None => (gateway, false),
            };
            let address = address.parse::<IpAddr>();
            let address = address.map_err(|_| wrong("the gateway is no IP address".to_owned()))?;
            (place, Some((address, is_onlink)))
        }
    };
    let (name, interface) = place
        .split_once(':')
        .ok_or_else(|| wrong("write NODE:INTERFACE, then @GATEWAY if there is one".to_owned()))?;
    let node = nodes.iter().position(|node| node.name == name).ok_or_else(|| {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        wrong(format!("there is no such node; there are {}", names.join(", ")))
    })?;
    let ports = &nodes[node].ports;
    let port = ports.iter().position(|port| port.interface == interface).ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|port| port.interface.as_str()).collect();
        wrong(format!("the node has no such port; it has {}", names.join(", ")))
    })?;
    let exit = match gateway {
        None => Exit::Connected(port as PortId),
        Some((gateway, is_onlink)) => {
            check_gateway(&ports[port].addresses, gateway, is_onlink).map_err(wrong)?;
            Exit::Gateway(port as PortId, gateway)
        }
    };
    Ok((NextHop { node: node as NodeId, exit }, weight))
}

/// A gateway is another host on a network of its port, or an address that is on each link, or one
/// that is declared to be on this link.
fn check_gateway(addresses: &[IpNet], gateway: IpAddr, is_onlink: bool) -> Result<(), String> {
    if addresses.iter().any(|net| net.addr() == gateway) {
        return Err("the gateway is the port itself".to_owned());
    }
    if let Some(kind) = check::unusable(gateway).filter(|_| !is_link_local(gateway)) {
        return Err(format!("no gateway has an address that is {kind}"));
    }
    let network = addresses.iter().find(|net| net.contains(&gateway));
    match network {
        Some(net) if check::is_host(net, gateway) => Ok(()),
        Some(net) => Err(format!("{gateway} is no host of {}", net.trunc())),
        None if is_onlink || is_link_local(gateway) => Ok(()),
        None => {
            let networks: Vec<String> =
                addresses.iter().map(|net| net.trunc().to_string()).collect();
            Err(format!(
                "the gateway is outside of the port's networks, {}: write {gateway}{ONLINK} if it is \
                 on the link nevertheless",
                networks.join(", ")
            ))
        }
    }
}

/// Returns true for an address that is valid on a link only, and on any (RFC 3927, RFC 4291).
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns true for a gateway that needs the word `onlink`.
fn needs_onlink(port: &Port, gateway: IpAddr) -> bool {
    !is_link_local(gateway) && !port.addresses.iter().any(|net| net.contains(&gateway))
}

pub(super) fn text(nodes: &[Node], prefix: IpNet, members: &[(NextHop, u16)]) -> String {
    match members {
        [] => format!("{prefix} unreachable"),
        [(hop @ NextHop { exit: Exit::Local, .. }, _)] => {
            format!("{prefix} {}", hop_text(nodes, hop))
        }
        _ => members.iter().fold(format!("{prefix} via"), |line, (hop, weight)| {
            let hop = hop_text(nodes, hop);
            if *weight == 1 { format!("{line} {hop}") } else { format!("{line} {hop}*{weight}") }
        }),
    }
}

pub(super) fn hop_text(nodes: &[Node], hop: &NextHop) -> String {
    let name = nodes.get(usize::from(hop.node)).map_or("?", |node| &node.name);
    let port = |port: PortId| nodes.get(usize::from(hop.node))?.ports.get(usize::from(port));
    let interface = |number: PortId| port(number).map_or("?", |port| &port.interface);
    match hop.exit {
        Exit::Local => format!("local {name}"),
        Exit::Connected(port) => format!("{name}:{}", interface(port)),
        Exit::Gateway(number, gateway) => {
            let is_outside = port(number).is_some_and(|port| needs_onlink(port, gateway));
            let onlink = if is_outside { ONLINK } else { "" };
            format!("{name}:{}@{gateway}{onlink}", interface(number))
        }
    }
}
