//! Counters of both sides as JSON for reports.

use courser::{EndpointStats, Rpc, Transport, TransportStats};
use courser_kit::counters;
use serde_json::Value;

/// Counters of an endpoint: packets, transport, and events that do not occur on a healthy machine.
pub fn of_endpoint<T: Transport>(rpc: &Rpc<T>) -> Value {
    endpoint(rpc.stats(), &rpc.transport_stats())
}

fn endpoint(protocol: &EndpointStats, transport: &TransportStats) -> Value {
    let mut all = counters::object(protocol);
    all.insert("transport".to_owned(), of_transport(transport));
    all.into()
}

/// Counters of a transport.
pub fn of_transport(stats: &TransportStats) -> Value {
    let mut all = counters::object(stats);
    let tx = per_call(stats.tx_frames, stats.tx_calls);
    let rx = per_call(stats.rx_frames, stats.rx_calls);
    all.insert("tx_frames_per_call".to_owned(), tx.into());
    all.insert("rx_frames_per_call".to_owned(), rx.into());
    all.into()
}

fn per_call(frames: u64, calls: u64) -> Option<f64> {
    (calls > 0).then(|| (frames as f64 / calls as f64 * 100.0).round() / 100.0)
}

/// Memory of an endpoint's sessions by component, bytes, and of the process.
pub fn of_memory<T: Transport>(rpc: &Rpc<T>) -> Value {
    let memory = rpc.session_memory();
    let mut all = counters::object(&memory);
    all.insert("sessions".to_owned(), rpc.sessions().into());
    all.insert("total_bytes".to_owned(), memory.total_bytes().into());
    all.insert("process_bytes".to_owned(), resident_bytes().into());
    all.into()
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
    use courser::DROP_NAMES;
    use serde_json::json;

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
