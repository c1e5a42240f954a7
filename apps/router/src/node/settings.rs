//! Settings of a node, and the ports that all nodes know.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};

use crate::packet::Version;
use crate::route::NodeId;

/// Credits that Courser gives a session by default, at least.
const LEAST_CREDITS: usize = 32;

/// How packets go from their first node to their last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Directly: for nodes at a switch.
    Direct,
    /// By a node that each burst of a flow selects, for a full mesh: no cable carries more than two
    /// shares of a node's traffic, whatever the destinations are (Valiant load balancing).
    Valiant,
}

/// A port, as all nodes know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Addresses of the node there, with their networks.
    pub addresses: Vec<IpNet>,
    /// Largest IP packet that leaves by it, bytes.
    pub mtu: u16,
}

impl Port {
    /// An address of this version, the source of ICMP messages.
    pub(super) fn address(&self, version: Version) -> Option<IpAddr> {
        let addresses = self.addresses.iter().map(IpNet::addr);
        let mut matching = addresses.filter(|a| a.is_ipv4() == (version == Version::V4));
        matching.next()
    }
}

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node.
    pub node: NodeId,
    /// The ports of all nodes, by node: at most [`MAX_NODES`](crate::route::MAX_NODES).
    pub ports: Vec<Vec<Port>>,
    /// Courser addresses of all nodes, as this one reaches them.
    pub addresses: Vec<String>,
    /// By node: addresses of IP from which its sessions may come besides its address above. Nodes
    /// without any here have one address. Not used where addresses are none of `udp`.
    pub origins: Vec<Vec<IpAddr>>,
    /// How packets go from node to node.
    pub spread: Spread,
    /// Within this time of the death of a node its routes are withdrawn.
    pub failure_timeout: Duration,
    /// Seed of the hash of flows, the same in all nodes.
    pub seed: u64,
    /// A hash of the settings in which all nodes have to agree. Nodes with another one are refused.
    pub fingerprint: u64,
    /// ICMP errors for each second, and at once; the same for echo replies.
    pub icmp: (u32, u32),
}

impl Settings {
    /// The Courser settings that this node needs, on top of `base`: heartbeats that notice a dead
    /// node in time, and a credit for each message that a link takes, for a short queue as many as by
    /// default: calls and parts of packets take them, too.
    ///
    /// A message costs a credit however small it is. The default is a few dozens, which suits calls
    /// and large packets: at 100,000 packets a second a node that the system runs half a millisecond
    /// late would stop its peers.
    pub fn courser(&self, base: courser::Config) -> courser::Config {
        let failure_timeout = silence(self.failure_timeout);
        let failure_timeout = failure_timeout.max(Duration::from_millis(10));
        let credits = base.message_queue.clamp(LEAST_CREDITS, u16::MAX.into()) as u32;
        courser::Config { failure_timeout, credits: Some(credits), ..base }
    }
}

/// Silence after which a node counts as dead: half of the promised time, as others that still
/// receive it may pass packets on for as long as their own silence, heartbeat and timer take.
pub(super) fn silence(failure_timeout: Duration) -> Duration {
    failure_timeout / 2
}

/// IPv4 networks of ports of which two addresses are no hosts.
pub(super) fn networks<'a>(
    ports: impl Iterator<Item = &'a Port>,
) -> impl Iterator<Item = &'a Ipv4Net> {
    ports.flat_map(|port| &port.addresses).filter_map(|net| match net {
        IpNet::V4(net) if net.prefix_len() <= 30 => Some(net),
        _ => None,
    })
}

/// The bits for hosts of the smallest of these networks.
pub(super) fn host_mask<'a>(ports: impl Iterator<Item = &'a Port>) -> u32 {
    networks(ports).map(|net| net.hostmask().to_bits()).min().unwrap_or(u32::MAX)
}
