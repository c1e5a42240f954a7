//! Memory of this process per silent control connection. The only test of its process, as others
//! would distort the measurement.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use courser::{Config, Nexus};
use courser_proto::{CONTROL_GREETING, CONTROL_MAX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PEERS: usize = 1000;
/// Limit per connection, bytes.
const LIMIT: usize = 4096;

/// Whether this process may open `wanted` descriptors. Raises its limit where that is allowed.
fn descriptors(wanted: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|c| c >= wanted) {
        return true;
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    limit.maximum.is_none_or(|m| m >= wanted) && setrlimit(Resource::Nofile, raised).is_ok()
}

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_silent_peer_costs_less_than_four_kibibytes() {
    if !descriptors(2 * PEERS as u64 + 100) {
        println!("skipped: 2,100 descriptors are needed, and the hard limit is lower");
        return;
    }
    let config = Config { failure_timeout: Duration::from_secs(60), ..Config::default() };
    let nexus = Nexus::bind_with("udp://127.0.0.1:0", config).unwrap();
    let mut peers: Vec<TcpStream> = Vec::with_capacity(PEERS);
    let before = resident();
    let each = || resident().saturating_sub(before) / PEERS;
    for _ in 0..PEERS {
        peers.push(TcpStream::connect((Ipv4Addr::LOCALHOST, nexus.port())).unwrap());
    }
    for peer in &mut peers {
        peer.read_exact(&mut [0; 8]).unwrap();
    }
    let silent = each();
    // The maximum that a peer can make the nexus hold: the longest message without its last byte.
    let length = (CONTROL_MAX as u32).to_le_bytes();
    let bytes = [&CONTROL_GREETING[..], &length, &[0; CONTROL_MAX - 1]].concat();
    for peer in &mut peers {
        peer.write_all(&bytes).unwrap();
    }
    // Time for reading everything. If it is too short, the measured value is too low.
    std::thread::sleep(Duration::from_millis(500));
    let talking = each();
    println!("silent: {silent} bytes each; with an unfinished message: {talking} bytes each");
    assert!(silent < LIMIT && talking < LIMIT, "{silent}, {talking} bytes");
    let stats = nexus.control_stats();
    assert_eq!((stats.excess_connections, stats.protocol_errors), (0, 0));
}
