//! `--bind`: the local address of ping, bench and stat.

use std::process::Stdio;

use crate::common::bench::alone;
use crate::common::{Server, courser, json_of, refused, wait_for};

/// Runs a client until the server has a session with `host`.
fn reaches_from(server: &Server, client: &str, host: &str) {
    let mut client =
        courser(client).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    wait_for(host, || {
        let stat = format!("stat {} --once --sessions all --json -", server.uri);
        json_of(&stat).to_string().contains(&format!("{host}:"))
    });
    client.kill().expect("killed");
    client.wait().expect("ended");
}

#[test]
fn clients_call_from_the_address_that_is_given() {
    let _alone = alone();
    let server = Server::local();
    let ping = format!("ping {} --count 0 --bind udp://127.0.0.9:0", server.uri);
    reaches_from(&server, &ping, "127.0.0.9");
    let bench = "bench latency --pairs 400 --bind udp://127.0.0.8:0 --connect";
    reaches_from(&server, &format!("{bench} {}", server.uri), "127.0.0.8");
    // Its own session is in the list.
    let stat = "--once --sessions all --bind udp://127.0.0.7:0 --json -";
    let shown = json_of(&format!("stat {} {stat}", server.uri)).to_string();
    assert!(shown.contains("127.0.0.7:"), "{shown}");
}

#[test]
fn local_addresses_of_other_machines_and_transports_are_refused() {
    let server = Server::local();
    let ping = |bind: &str| format!("ping {} --count 1 --bind {bind}", server.uri);
    refused(&ping("udp://192.0.2.1:0"), "use an address of this machine");
    refused(&ping("udp://127.0.0.1"), "port");
    refused(&ping("shm://127.0.0.1:0"), "bind a nexus to udp");
    let bench = format!("bench latency --connect {} --bind udp://192.0.2.1:0", server.uri);
    refused(&bench, "use an address of this machine");
    let stat = |bind: &str| format!("stat {} --once --bind {bind}", server.uri);
    refused(&stat("udp://192.0.2.1:0"), "use an address of this machine");
    refused(&stat("shm://127.0.0.1:0"), "bind a nexus to udp");
}
