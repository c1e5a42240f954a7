//! Counters of hosts and network, and their difference over a time.

use std::collections::BTreeMap;

use serde::Serialize;

use courser_sim::World;
use courser_sim::observe::DropReason;

/// Sums over all hosts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Traffic {
    /// Calls that ended with a response.
    pub responses: u64,
    /// Requests passed to handlers.
    pub requests: u64,
    /// Datagrams that hosts began to send.
    pub datagrams_sent: u64,
    /// Datagrams that reached a receive queue.
    pub datagrams_delivered: u64,
    /// Bytes sent by hosts on the wire.
    pub wire_bytes_sent: u64,
    /// Packets sent by endpoints; a datagram has one or more.
    pub packets_made: u64,
    /// Accepted packets with data of requests, in order and for the first time.
    pub request_packets: u64,
    /// Retransmission timeouts.
    pub rollbacks: u64,
    /// Packets retransmitted by clients after them.
    pub retransmitted: u64,
    /// Stored responses that servers retransmitted.
    pub responses_resent: u64,
    /// Dropped datagrams by reason; reasons without any are omitted.
    pub drops: BTreeMap<&'static str, u64>,
}

impl Traffic {
    /// All since the start of the world.
    pub(crate) fn of(world: &mut World) -> Traffic {
        let mut t = Traffic {
            datagrams_sent: world.counts().sent,
            datagrams_delivered: world.counts().delivered,
            ..Traffic::default()
        };
        let at_hosts = world.counts().dropped;
        let in_network = world.fabric().drops();
        for (at, why) in DropReason::ALL.into_iter().enumerate() {
            let count = at_hosts[at] + in_network[at];
            if count > 0 {
                t.drops.insert(why.name(), count);
            }
        }
        for host in world.hosts() {
            let links = world.fabric().uplinks(host);
            let bytes = links.map(|link| world.fabric().link_counters(link).bytes);
            t.wire_bytes_sent += bytes.sum::<u64>();
            for endpoint in 0.. {
                let Some(rpc) = world.peek(host, endpoint) else { break };
                let stats = rpc.stats();
                t.responses += stats.responses;
                t.requests += stats.requests;
                t.packets_made += stats.tx_packets;
                t.request_packets += stats.rx_kinds[0];
                t.rollbacks += stats.rollbacks;
                t.retransmitted += stats.retransmitted;
                t.responses_resent += stats.responses_resent;
            }
        }
        t
    }

    /// The difference to `before`.
    pub(crate) fn since(&self, before: &Traffic) -> Traffic {
        let drops = self.drops.iter().map(|(&why, &n)| {
            let earlier = before.drops.get(why).copied().unwrap_or(0);
            (why, n - earlier)
        });
        Traffic {
            responses: self.responses - before.responses,
            requests: self.requests - before.requests,
            datagrams_sent: self.datagrams_sent - before.datagrams_sent,
            datagrams_delivered: self.datagrams_delivered - before.datagrams_delivered,
            wire_bytes_sent: self.wire_bytes_sent - before.wire_bytes_sent,
            packets_made: self.packets_made - before.packets_made,
            request_packets: self.request_packets - before.request_packets,
            rollbacks: self.rollbacks - before.rollbacks,
            retransmitted: self.retransmitted - before.retransmitted,
            responses_resent: self.responses_resent - before.responses_resent,
            drops: drops.filter(|&(_, n)| n > 0).collect(),
        }
    }

    /// Datagrams dropped for a reason.
    pub fn dropped(&self, why: DropReason) -> u64 {
        self.drops.get(why.name()).copied().unwrap_or(0)
    }

    /// All dropped datagrams.
    pub fn drops_total(&self) -> u64 {
        self.drops.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_omit_reasons_without_drops() {
        let drops = |n| BTreeMap::from([("loss", 3), ("burst", n)]);
        let before = Traffic { requests: 5, drops: drops(1), ..Traffic::default() };
        let after = Traffic { requests: 9, drops: drops(4), ..Traffic::default() };
        let between = after.since(&before);
        assert_eq!((between.requests, between.drops_total()), (4, 3));
        assert_eq!(between.drops, BTreeMap::from([("burst", 3)]));
        assert_eq!((between.dropped(DropReason::Burst), between.dropped(DropReason::Loss)), (3, 0));
    }
}
