//! Addresses as people write them, between two network namespaces: zones, wildcards, further addresses
//! of a host, hosts without IPv6.
//!
//! Needs root and ip(8). Without them each test is skipped and prints the reason.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use courser::{Nexus, Uri};
use courser_bench::netns::{self, DEVICE, Host};

const TYPE: u16 = 1;

/// The hosts, or the printed reason why there are none.
fn hosts() -> Option<[Host; 2]> {
    let hosts = netns::pair().map_err(|e| e.to_string());
    hosts.map_err(|e| println!("skipped: {e}")).ok()
}

/// Runs `client` on a host, with the port of a server that is bound to `bind` on another.
fn with_server<R: Send>(
    [at, server]: [&Host; 2],
    bind: &str,
    client: impl FnOnce(u16) -> R + Send,
) -> R {
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let server = scope.spawn(move || {
            server.enter().expect("enters");
            let nexus = Nexus::bind(bind).expect("binds");
            let mut rpc = nexus.endpoint().expect("opens");
            rpc.on(TYPE, |cx, request| cx.reply(request.len().to_le_bytes().to_vec()));
            sender.send((nexus.port(), rpc.handle())).expect("sent");
            rpc.run().expect("runs");
        });
        let (port, handle) = receiver.recv().expect("ready");
        let client = scope.spawn(move || {
            at.enter().expect("enters");
            client(port)
        });
        let result = client.join();
        handle.stop();
        server.join().expect("ends");
        result.expect("calls")
    })
}

/// Calls a server with a request of many packets, from a nexus that is bound to `bind`, or as clients are.
fn call(bind: Option<&str>, server: &str) -> Result<(), String> {
    let uri: Uri = server.parse().map_err(|e| format!("{e}"))?;
    let bind = bind.map_or_else(|| uri.bind_for_client().to_string(), str::to_owned);
    let nexus = Nexus::bind(&bind).map_err(|e| e.to_string())?;
    let mut rpc = nexus.endpoint().map_err(|e| e.to_string())?;
    let session = rpc.connect(server).map_err(|e| e.to_string())?;
    rpc.wait_connected(session).map_err(|e| e.to_string())?;
    let request = rpc.alloc(100_000).expect("memory");
    let called = rpc.call_wait(session, TYPE, request, None);
    called.map(drop).map_err(|e| e.reason.to_string())
}

#[test]
fn link_local_addresses_are_called_with_their_zone() {
    let Some([client, server]) = &hosts() else { return };
    for (host, ip) in [(client, "fe80::a1"), (server, "fe80::a2")] {
        host.run(&format!("ip -6 address add {ip}/64 dev {DEVICE} nodad")).expect("adds it");
    }
    let own = format!("udp://[fe80::a1%{DEVICE}]:0");
    with_server([client, server], "udp://[::]:0", |port| {
        let named = format!("udp://[fe80::a2%{DEVICE}]:{port}");
        assert_eq!(call(None, &named), Ok(()));
        assert_eq!(call(Some(&own), &named), Ok(()), "from a link-local address");
        assert_eq!(call(Some("udp://[fd99::1]:0"), &named), Ok(()), "from another address");
        // Socket addresses have the number of the interface.
        let addr = named.parse::<Uri>().expect("an address").socket_addr().expect("an interface");
        assert_eq!(call(None, &format!("udp://{}", addr.expect("no name"))), Ok(()));
        let error = |server: &str| call(None, server).expect_err(server);
        let plain = error(&format!("udp://[fe80::a2]:{port}"));
        assert!(plain.contains("write the interface") && plain.contains("%eth0"), "{plain}");
        let absent = error(&format!("udp://[fe80::a2%absent]:{port}"));
        assert!(absent.contains("no interface \"absent\""), "{absent}");
    });
    let bind = format!("udp://[fe80::a2%{DEVICE}]:0");
    with_server([client, server], &bind, |port| {
        assert_eq!(call(None, &format!("udp://[fe80::a2%{DEVICE}]:{port}")), Ok(()));
    });
    with_server([server, server], &bind, |port| {
        // A host that calls itself.
        let named = format!("udp://[fe80::a2%{DEVICE}]:{port}");
        assert_eq!(call(None, &named), Ok(()));
        let nexus = Nexus::bind(&bind).expect("binds");
        let uri = nexus.local_uri().parse::<Uri>().expect("parses");
        assert_eq!(
            uri.socket_addr().expect("an interface").map(|at| at.port()),
            Some(nexus.port())
        );
        let error = Nexus::bind("udp://[fe80::a2]:0").expect_err("no zone").to_string();
        assert!(error.contains("write its interface"), "{error}");
    });
}

#[test]
fn a_server_on_all_addresses_answers_from_the_one_that_was_dialled() {
    let Some([client, server]) = &hosts() else { return };
    for line in [
        &format!("ip address add 10.99.0.77/24 dev {DEVICE}"),
        &format!("ip -6 address add fd99::77/64 dev {DEVICE} nodad"),
        "ip address add 10.98.0.1/32 dev lo",
    ] {
        server.run(line).expect("adds it");
    }
    client.run(&format!("ip route add 10.98.0.1 via {}", server.address(false))).expect("routes");
    for bind in ["udp://0.0.0.0:0", "udp://[::]:0"] {
        with_server([client, server], bind, |port| {
            for host in ["10.99.0.77", "10.98.0.1"] {
                assert_eq!(call(None, &format!("udp://{host}:{port}")), Ok(()), "{host} {bind}");
            }
            if bind.contains('[') {
                assert_eq!(call(None, &format!("udp://[fd99::77]:{port}")), Ok(()));
            }
        });
        with_server([server, server], bind, |port| {
            assert_eq!(call(None, &format!("udp://127.0.0.2:{port}")), Ok(()));
            assert_eq!(call(None, &format!("udp://10.98.0.1:{port}")), Ok(()));
        });
    }
}

#[test]
fn a_session_keeps_its_source_address_when_the_system_would_choose_another() {
    let Some([client, server]) = &hosts() else { return };
    with_server([client, server], "udp://[::]:0", |port| {
        let nexus = Nexus::bind("udp://[::]:0").expect("binds");
        let mut rpc = nexus.endpoint().expect("opens");
        let session =
            rpc.connect(&format!("udp://[{}]:{port}", server.address(true))).expect("a session");
        rpc.wait_connected(session).expect("connected");
        let mut call = || {
            let request = rpc.alloc(100_000).expect("memory");
            rpc.call_wait(session, TYPE, request, None).map(drop).map_err(|e| e.reason.to_string())
        };
        assert_eq!(call(), Ok(()));
        // Its prefix is longer, so that it is preferred from now on [RFC 6724 section 5, rule 8].
        let add = format!("ip -6 address add fd99::3/127 dev {DEVICE} nodad");
        client.run(&add).expect("adds it");
        assert_eq!(call(), Ok(()));
    });
}

#[test]
fn a_wildcard_stands_for_the_own_host() {
    let Some([_, host]) = &hosts() else { return };
    for (bind, targets) in [
        ("udp://0.0.0.0:0", &["0.0.0.0", "[::]", "[::ffff:0.0.0.0]", "localhost"][..]),
        ("udp://[::]:0", &["0.0.0.0", "[::]", "localhost"]),
        ("udp://127.0.0.1:0", &["0.0.0.0", "[::]", "localhost"]),
        ("udp://[::1]:0", &["[::]", "localhost"]),
    ] {
        with_server([host, host], bind, |port| {
            for target in targets {
                let begin = Instant::now();
                assert_eq!(
                    call(None, &format!("udp://{target}:{port}")),
                    Ok(()),
                    "{target} {bind}"
                );
                // Connecting to an address that is not this host's takes a second or more.
                assert!(begin.elapsed() < Duration::from_secs(4), "{target}");
            }
        });
    }
}

#[test]
fn hosts_without_ipv6_serve_and_call() {
    let Some([client, server]) = &hosts() else { return };
    let disable = |host: &Host| {
        thread::scope(|scope| {
            let write = || {
                host.enter().expect("enters");
                std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")
            };
            scope.spawn(write).join().expect("no panic")
        })
    };
    for without in [&[server][..], &[server, client]] {
        for host in without {
            if let Err(e) = disable(host) {
                return println!("skipped: IPv6 cannot be disabled: {e}");
            }
        }
        with_server([client, server], "udp://[::]:0", |port| {
            let target = format!("udp://{}:{port}", server.address(false));
            assert_eq!(call(None, &target), Ok(()));
            assert_eq!(call(Some("udp://[::]:0"), &target), Ok(()));
        });
    }
    with_server([server, server], "udp://[::]:0", |port| {
        for target in ["localhost", "[::]", "0.0.0.0", "127.0.0.1"] {
            assert_eq!(call(None, &format!("udp://{target}:{port}")), Ok(()), "{target}");
        }
    });
    with_server([client, server], "udp://[::]:0", |port| {
        let error = call(None, &format!("udp://[fd99::2]:{port}")).expect_err("no IPv6");
        assert!(error.contains("fd99::2") && error.contains("; check"), "{error}");
    });
}

/// The program on a host, with arguments that blanks separate.
fn program(host: &Host, line: &str) -> Child {
    thread::scope(|scope| {
        let start = || {
            host.enter().expect("enters");
            let mut command = Command::new(env!("CARGO_BIN_EXE_courser"));
            command.args(line.split_whitespace()).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts")
        };
        scope.spawn(start).join().expect("no panic")
    })
}

/// The peers of the sessions that `stat` on a host shows, each with whether its session is that of `stat`.
fn peers(host: &Host, server: &str) -> Vec<(bool, Option<String>)> {
    let stat = program(host, &format!("stat {server} --once --sessions all --json -"));
    let output = stat.wait_with_output().expect("ends").stdout;
    let report: serde_json::Value = serde_json::from_slice(&output).expect("a report");
    let result = &report["results"][0];
    let sessions = result["sessions"].as_array().expect("sessions").iter();
    let peer = |session: &serde_json::Value| session["peer"].as_str().map(str::to_owned);
    sessions.map(|one| (one["session"] == result["asked_by"], peer(one))).collect()
}

#[test]
fn addresses_of_peers_are_shown_to_programs_of_the_servers_machine() {
    let Some([client, server]) = &hosts() else { return };
    let away = format!("udp://{}:31850", server.address(false));
    shows_peers(client, server, "udp://0.0.0.0:31850", "udp://127.0.0.1:31850");
    // A server that the loopback does not reach.
    shows_peers(client, server, &away, &away);
}

/// Asks a server that is bound to `bind` from another host and, at `own`, from its own.
fn shows_peers(client: &Host, server: &Host, bind: &str, own: &str) {
    let mut serve = program(server, &format!("serve --bind {bind}"));
    let mut said = BufReader::new(serve.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("trusted networks") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("reads"), 0, "it serves");
    }
    let away = format!("udp://{}:31850", server.address(false));
    let mut ping = program(client, &format!("ping {away} --count 0 --interval 100ms"));
    let mut said = BufReader::new(ping.stdout.take().expect("a pipe"));
    while !line.contains("seq=") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("reads"), 0, "it pings");
    }
    let there = peers(client, &away);
    let here = peers(server, own);
    for mut program in [ping, serve] {
        program.kill().expect("killed");
        program.wait().expect("ended");
    }
    let host = format!("{}:", client.address(false));
    let is_known =
        |(_, peer): &(bool, Option<String>)| peer.as_ref().is_some_and(|p| p.contains(&host));
    assert_eq!(there.len(), 2, "{there:?}");
    assert!(there.iter().all(|one| is_known(one) == one.0), "its own address only: {there:?}");
    assert!(here.iter().any(is_known), "{here:?}");
}
