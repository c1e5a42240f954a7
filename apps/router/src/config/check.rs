//! Checks of the file.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use courser::Uri;
use ipnet::IpNet;
use toml::Spanned;

use super::route::{MTU_V6, parse_net};
use super::{Config, ConfigError, FileRoute, IcmpRate, Interconnect, Node, Port, raw, read_bytes};
use crate::route::{MAX_NODES, MAX_PORTS, NodeId};
use crate::routes::Routes;

/// Largest [`Interconnect::batch_budget`]: a quarter of Courser's shortest retransmission timeout.
const BATCH_BUDGET: Duration = Duration::from_micros(250);

/// Bytes of the name of an interface of Linux at most.
const INTERFACE: usize = 15;
/// Bytes of the names of clusters and nodes at most.
const NAME: usize = 32;
/// Bytes of the path of a Unix socket at most.
const SOCKET_PATH: usize = 107;
const PORT_ADDRESSES: usize = 16;
pub(crate) const FAILURE_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(60);

/// The text of the file, to name lines of it.
pub(super) struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

/// Reads and checks a configuration.
pub(super) fn config(file: &Path, text: &str, base: &Path) -> Result<Config> {
    let source = Source { file, text };
    let raw: raw::Raw = toml::from_str(text)
        .map_err(|error| source.error(error.span().unwrap_or(0..0), error.message().to_owned()))?;
    let mut config = Config {
        name: source.name("name", &raw.cluster.name)?,
        topology: raw.cluster.topology,
        failure_timeout: source.failure_timeout(&raw.cluster)?,
        seed: source.number("seed", &raw.cluster.seed, 0..=i64::MAX, 1)? as u64,
        interconnect: source.interconnect(&raw.interconnect)?,
        icmp: source.icmp(&raw.icmp)?,
        nodes: source.nodes(&raw.node)?,
        route_files: raw.routes.files.iter().map(|name| base.join(name.get_ref())).collect(),
        routes: Vec::new(),
    };
    source.networks(&config, &raw.node)?;
    config.routes = routes(&config, &config.route_files)?;
    Ok(config)
}

impl Source<'_> {
    pub(super) fn error(&self, span: Range<usize>, what: String) -> ConfigError {
        let before = self.text.as_bytes().iter().take(span.start);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        ConfigError::Line { file: self.file.to_owned(), line, what }
    }

    /// An error of a key, its value and what is allowed.
    pub(super) fn wrong<T>(&self, key: &str, value: &Spanned<String>, allowed: &str) -> Result<T> {
        Err(self.error(value.span(), format!("{key} = {:?}: {allowed}", value.get_ref())))
    }

    pub(super) fn number(
        &self,
        key: &str,
        value: &Option<Spanned<i64>>,
        range: RangeInclusive<i64>,
        default: i64,
    ) -> Result<i64> {
        let Some(value) = value else { return Ok(default) };
        let number = *value.get_ref();
        if range.contains(&number) {
            return Ok(number);
        }
        let what = format!("{key} = {number}: {} to {} are allowed", range.start(), range.end());
        Err(self.error(value.span(), what))
    }

    fn name(&self, key: &str, name: &Spanned<String>) -> Result<String> {
        let valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let text = name.get_ref();
        if text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(valid)
            && text.len() <= NAME
        {
            return Ok(text.clone());
        }
        let allowed = "1 to 32 letters, digits, `-`, `_` and `.`, the first a letter or digit";
        self.wrong(key, name, allowed)
    }

    fn failure_timeout(&self, cluster: &raw::Cluster) -> Result<Duration> {
        let Some(text) = &cluster.failure_timeout else { return Ok(Duration::from_millis(800)) };
        match humantime::parse_duration(text.get_ref()) {
            Ok(time) if FAILURE_TIMEOUT.contains(&time) => Ok(time),
            _ => self.wrong("failure_timeout", text, "10ms to 60s, with a unit"),
        }
    }

    fn interconnect(&self, raw: &raw::Interconnect) -> Result<Interconnect> {
        Ok(Interconnect {
            mtu: self.number("interconnect.mtu", &raw.mtu, 1_280..=9_216, 1_500)? as u16,
            batching: raw.batching.unwrap_or(true),
            batch_budget: self.batch_budget(raw)?,
            queue: self.number("interconnect.queue", &raw.queue, 1..=65_536, 1_024)? as usize,
        })
    }

    fn batch_budget(&self, raw: &raw::Interconnect) -> Result<Duration> {
        let Some(text) = &raw.batch_budget else { return Ok(Duration::ZERO) };
        match humantime::parse_duration(text.get_ref()) {
            Ok(time) if time <= BATCH_BUDGET => Ok(time),
            _ => self.wrong("interconnect.batch_budget", text, "0us to 250us, with a unit"),
        }
    }

    fn icmp(&self, raw: &raw::Icmp) -> Result<IcmpRate> {
        let most = 1_000_000;
        Ok(IcmpRate {
            per_second: self.number("icmp.per_second", &raw.per_second, 0..=most, 1_000)? as u32,
            burst: self.number("icmp.burst", &raw.burst, 1..=most, 100)? as u32,
        })
    }

    fn nodes(&self, raw: &[raw::Node]) -> Result<Vec<Node>> {
        let numbers = self.numbers(raw)?;
        let mut nodes: Vec<Node> = Vec::new();
        for raw in raw {
            let node = self.node(raw, &numbers)?;
            let same = |other: &Node| {
                (&other.address.host, other.address.port) == (&node.address.host, node.address.port)
            };
            if nodes.iter().any(same) {
                return self.wrong("node.address", &raw.address, "another node has this address");
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// The numbers of nodes by their names.
    fn numbers<'a>(&self, raw: &'a [raw::Node]) -> Result<BTreeMap<&'a str, NodeId>> {
        let mut numbers = BTreeMap::new();
        for (number, node) in raw.iter().enumerate() {
            if number >= MAX_NODES {
                return self.wrong("node.name", &node.name, "a cluster has at most 64 nodes");
            }
            self.name("node.name", &node.name)?;
            if numbers.insert(node.name.get_ref().as_str(), number as NodeId).is_some() {
                return self.wrong("node.name", &node.name, "another node has this name");
            }
        }
        if numbers.is_empty() {
            return Err(self.error(0..0, "node = []: a cluster has 1 to 64 nodes".to_owned()));
        }
        Ok(numbers)
    }

    fn node(&self, raw: &raw::Node, numbers: &BTreeMap<&str, NodeId>) -> Result<Node> {
        let name = raw.name.get_ref();
        let mut peers = BTreeMap::new();
        for (peer, address) in &raw.peers {
            match numbers.get(peer.get_ref().as_str()) {
                Some(number) if peer.get_ref() != name => {
                    let uri = self.uri("node.peers", address)?.without_options();
                    let error = |e| self.error(address.span(), format!("node.peers: {e}"));
                    peers.insert(*number, uri.map_err(error)?);
                }
                _ => return self.wrong("node.peers", peer, "the names of other nodes are allowed"),
            }
        }
        Ok(Node {
            name: name.clone(),
            address: self.uri("node.address", &raw.address)?,
            peers,
            control: raw
                .control
                .as_ref()
                .map(|path| self.socket("node.control", path))
                .transpose()?,
            import: raw.import.as_ref().map(|import| self.import(import)).transpose()?,
            ports: self.ports(&raw.port)?,
        })
    }

    fn uri(&self, key: &str, text: &Spanned<String>) -> Result<Uri> {
        let error = |error| self.error(text.span(), format!("{key}: {error}"));
        text.get_ref().parse().map_err(error)
    }

    /// The path of a Unix socket.
    pub(super) fn socket(&self, key: &str, path: &Spanned<String>) -> Result<PathBuf> {
        let length = path.get_ref().len();
        if !(1..=SOCKET_PATH).contains(&length) || path.get_ref().contains('\0') {
            return self.wrong(key, path, "a path of 1 to 107 bytes");
        }
        Ok(path.get_ref().into())
    }

    fn ports(&self, raw: &[raw::Port]) -> Result<Vec<Port>> {
        let mut ports: Vec<Port> = Vec::new();
        for port in raw {
            let key = "node.port.interface";
            let interface = port.interface.get_ref();
            if ports.len() >= MAX_PORTS {
                return self.wrong(key, &port.interface, "a node has at most 32 ports");
            }
            let valid = |c: char| c.is_ascii_graphic() && !"/:@*#".contains(c);
            if !(1..=INTERFACE).contains(&interface.len())
                || !interface.chars().all(valid)
                || [".", ".."].contains(&interface.as_str())
            {
                let allowed = "the name of an interface, 1 to 15 characters without / : @ * #";
                return self.wrong(key, &port.interface, allowed);
            }
            if ports.iter().any(|other| other.interface == *interface) {
                return self.wrong(key, &port.interface, "another port of the node has it");
            }
            ports.push(self.port(port)?);
        }
        Ok(ports)
    }

    fn port(&self, raw: &raw::Port) -> Result<Port> {
        let texts = raw.addresses.get_ref();
        if !(1..=PORT_ADDRESSES).contains(&texts.len()) {
            let what = format!("node.port.addresses has {}: 1 to 16 are allowed", texts.len());
            return Err(self.error(raw.addresses.span(), what));
        }
        let addresses: Vec<IpNet> =
            texts.iter().map(|text| self.address(text)).collect::<Result<_>>()?;
        let least =
            if addresses.iter().any(|net| net.addr().is_ipv6()) { MTU_V6.into() } else { 68 };
        let mtu = self.number("node.port.mtu", &raw.mtu, least..=9_000, 1_500)? as u16;
        Ok(Port { interface: raw.interface.get_ref().clone(), addresses, mtu })
    }

    /// An address of a port with the length of its network.
    fn address(&self, text: &Spanned<String>) -> Result<IpNet> {
        let key = "node.port.addresses";
        let Some(net) = parse_net(text.get_ref()) else {
            return self.wrong(key, text, "an address and the length of its network: 10.0.1.1/24");
        };
        match unusable(net.addr()) {
            Some(kind) => self.wrong(key, text, &format!("ports have no {kind} address")),
            None if net.prefix_len() == 0 => self.wrong(key, text, "a length of at least 1"),
            None if !is_host(&net, net.addr()) => {
                self.wrong(key, text, "the first and last address of a network are no hosts")
            }
            None => Ok(net),
        }
    }

    /// Refuses addresses that occur twice and networks that overlap, except those of one port that
    /// are the same.
    fn networks(&self, config: &Config, raw: &[raw::Node]) -> Result<()> {
        let mut seen: BTreeMap<IpNet, (NodeId, usize)> = BTreeMap::new();
        let mut hosts = BTreeMap::new();
        for (id, node) in raw.iter().enumerate() {
            for (number, port) in node.port.iter().enumerate() {
                let place = (id as NodeId, number);
                let addresses = &config.nodes[id].ports[number].addresses;
                for (net, text) in addresses.iter().zip(port.addresses.get_ref()) {
                    let other = neighbours(&seen, &net.trunc())
                        .find(|(other, at)| *at != place || *other != net.trunc());
                    let other = other.or(hosts.insert(net.addr(), place).map(|at| (*net, at)));
                    if let Some((other, (node, port))) = other {
                        let node = &config.nodes[usize::from(node)];
                        let interface = &node.ports[port].interface;
                        let what = format!("overlaps {other} of {}:{interface}", node.name);
                        return self.wrong("node.port.addresses", text, &what);
                    }
                    seen.insert(net.trunc(), place);
                }
            }
        }
        Ok(())
    }
}

/// Networks of a list without overlaps that overlap this one.
fn neighbours<T: Copy>(seen: &BTreeMap<IpNet, T>, net: &IpNet) -> impl Iterator<Item = (IpNet, T)> {
    seen.iter()
        .filter(move |(other, _)| other.contains(net) || net.contains(*other))
        .map(|(other, at)| (*other, *at))
}

/// Whether an address can be that of a host on its network.
pub(super) fn is_host(net: &IpNet, address: IpAddr) -> bool {
    match net {
        IpNet::V4(net) if net.prefix_len() < 31 => {
            address != IpAddr::from(net.network()) && address != IpAddr::from(net.broadcast())
        }
        _ => true,
    }
}

/// The kind of an address that no port has, and apart from link-local ones no gateway.
pub(super) fn unusable(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    match address {
        _ if address.is_unspecified() => Some("unspecified"),
        _ if address.is_loopback() => Some("loopback"),
        _ if address.is_multicast() => Some("multicast"),
        _ if link_local => Some("link-local"),
        IpAddr::V4(address) if address.is_broadcast() => Some("broadcast"),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => Some("IPv4-mapped"),
        _ => None,
    }
}

/// The routes of files. A prefix occurs once, and is not that of a port.
fn routes(config: &Config, files: &[PathBuf]) -> Result<Vec<FileRoute>> {
    let connected: BTreeMap<IpNet, String> =
        config.connected().map(|(net, hop)| (net, config.hop_text(&hop))).collect();
    let mut places: BTreeMap<IpNet, (usize, usize)> = BTreeMap::new();
    let mut routes = Vec::new();
    for (number, file) in files.iter().enumerate() {
        for (line, text) in (1..).zip(read_bytes(file)?.split(|byte| *byte == b'\n')) {
            let wrong = |what| ConfigError::Line { file: file.clone(), line, what };
            let text = std::str::from_utf8(text).map_err(|_| wrong("no UTF-8 text".to_owned()))?;
            if text.split('#').next().unwrap_or_default().trim().is_empty() {
                continue;
            }
            let (prefix, members) =
                config.parse_route(text).map_err(|error| wrong(error.to_string()))?;
            if let Some(hop) = connected.get(&prefix) {
                return Err(wrong(format!("{prefix} is that of {hop}: leave the line out")));
            }
            if let Some((other, line)) = places.insert(prefix, (number, line)) {
                let other = files[other].display();
                return Err(wrong(format!("{prefix} has a route already, in {other}:{line}")));
            }
            if routes.len() >= Routes::ROUTES {
                return Err(wrong(format!("more than {} routes", Routes::ROUTES)));
            }
            routes.push(FileRoute { prefix, members, file: number, line });
        }
    }
    Ok(routes)
}
