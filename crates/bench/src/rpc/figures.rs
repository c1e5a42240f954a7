//! Counters of both sides as JSON for reports.

use courser::{DROP_NAMES, EndpointStats, Rpc, Transport, TransportStats};
use serde_json::{Map, Value, json};

/// Counters of an endpoint: packets, transport, and events that do not occur on a healthy machine.
pub fn of_endpoint<T: Transport>(rpc: &Rpc<T>) -> Value {
    endpoint(rpc.stats(), &rpc.transport_stats())
}

fn endpoint(protocol: &EndpointStats, transport: &TransportStats) -> Value {
    let drops: Map<String, Value> = DROP_NAMES
        .iter()
        .zip(&protocol.drops)
        .filter(|&(_, &count)| count > 0)
        .map(|(&name, &count)| (name.to_owned(), count.into()))
        .collect();
    json!({
        "tx_packets": protocol.tx_packets,
        "rx_packets": protocol.rx_packets,
        "rollbacks": protocol.rollbacks,
        "retransmitted": protocol.retransmitted,
        "lost": protocol.lost,
        "probes": protocol.probes,
        "spurious": protocol.spurious,
        "gaps": protocol.gaps,
        "melo_bits_peak": protocol.melo_bits_peak,
        "melo_refused": protocol.melo_refused,
        "responses_resent": protocol.responses_resent,
        "pool_waits": protocol.pool_waits,
        "completions_parked": protocol.completions_parked,
        "max_in_flight": protocol.max_in_flight,
        "drops": drops,
        "transport": of_transport(transport),
    })
}

/// Counters of a transport.
pub fn of_transport(stats: &TransportStats) -> Value {
    json!({
        "tx_frames": stats.tx_frames,
        "tx_calls": stats.tx_calls,
        "tx_frames_per_call": per_call(stats.tx_frames, stats.tx_calls),
        "tx_bytes": stats.tx_bytes,
        "tx_dropped": stats.tx_dropped,
        "tx_full": stats.tx_full,
        "rx_frames": stats.rx_frames,
        "rx_calls": stats.rx_calls,
        "rx_frames_per_call": per_call(stats.rx_frames, stats.rx_calls),
        "rx_bytes": stats.rx_bytes,
        "rx_dropped": stats.rx_dropped,
        "rx_overflow": stats.rx_overflow,
    })
}

fn per_call(frames: u64, calls: u64) -> Option<f64> {
    (calls > 0).then(|| (frames as f64 / calls as f64 * 100.0).round() / 100.0)
}

/// Memory of an endpoint's sessions by component, bytes; without memory that does not depend on
/// sessions.
pub fn of_memory<T: Transport>(rpc: &Rpc<T>) -> Value {
    let memory = rpc.session_memory();
    json!({
        "sessions": rpc.sessions(),
        "sessions_bytes": memory.sessions_bytes,
        "peers_bytes": memory.peers_bytes,
        "slots_bytes": memory.slots_bytes,
        "queues_bytes": memory.queues_bytes,
        "timers_bytes": memory.timers_bytes,
        "prealloc_bytes": memory.prealloc_bytes,
        "held_bytes": memory.held_bytes,
        "total_bytes": memory.total_bytes(),
        "process_bytes": resident_bytes(),
    })
}

/// Resident memory of this process, bytes.
pub fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Size of the socket receive buffer in the kernel's accounting; `None` without a socket.
pub fn receive_buffer<T: Transport + ?Sized>(transport: &T) -> Option<usize> {
    rustix::net::sockopt::socket_recv_buffer_size(transport.event_fd()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_that_occurred_are_listed_by_name() {
        let mut protocol = EndpointStats::default();
        protocol.drops[1] = 3;
        let value = endpoint(&protocol, &TransportStats::default());
        assert_eq!(value["drops"], json!({ DROP_NAMES[1]: 3 }));
    }

    #[test]
    fn frames_per_call_is_null_without_calls() {
        let stats = TransportStats { tx_frames: 64, tx_calls: 3, ..TransportStats::default() };
        let value = of_transport(&stats);
        assert_eq!(value["tx_frames_per_call"], json!(21.33));
        assert_eq!(value["rx_frames_per_call"], Value::Null);
    }
}
