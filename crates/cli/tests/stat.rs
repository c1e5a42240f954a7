//! `courser stat` with running servers, without a server, and with other programs.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::common::{Server, courser, json_of, refused, run, signal, stderr, stdout};
use courser::Nexus;
use courser::introspection::Introspect;
use courser::service::BlockingChannel;
use serde_json::Value;

fn results(report: &Value) -> &Vec<Value> {
    let object = report.as_object().expect("an object");
    for key in ["bench", "transport", "config", "results", "environment"] {
        assert!(object.contains_key(key), "{key}: {report}");
    }
    assert_eq!((report["bench"].as_str(), object.len()), (Some("stat"), 5), "{report}");
    report["results"].as_array().expect("a list")
}

fn pinged(server: &Server, count: u32) {
    let line = format!("ping {} --count {count} --interval 0ms --timeout 20s --quiet", server.uri);
    assert!(run(&line).status.success());
}

#[test]
fn one_refresh_as_json_has_what_the_server_counted() {
    let server = Server::local();
    pinged(&server, 7);
    let report = json_of(&format!("stat {} --once --json -", server.uri));
    let result = &results(&report)[0];
    // The request for statistics is counted and has no reply yet.
    assert_eq!(result["counters"]["requests"], 8, "{result}");
    assert_eq!(result["counters"]["replies"], 7, "{result}");
    assert_eq!((&result["endpoint"], &result["rates"]), (&0.into(), &Value::Null));
    assert!(result["counters"]["rx_bytes"].as_u64() > Some(7 * 32), "{result}");
    assert!(result["memory"]["sessions_bytes"].as_u64() > Some(100), "{result}");
    assert!(result["memory"]["limit_bytes"].as_u64() > Some(0), "{result}");
    assert!(result["now_ns"].as_u64() > Some(0), "{result}");

    // The session of `stat` at the server.
    let own = result["sessions"].as_array().expect("sessions").iter();
    let own: Vec<_> = own.filter(|s| s["session"] == result["asked_by"]).collect();
    assert_eq!(own.len(), 1, "{result}");
    assert_eq!((&own[0]["role"], &own[0]["state"]), (&"server".into(), &"connected".into()));
    assert_eq!((&own[0]["requests"], &own[0]["in_flight"]), (&1.into(), &1.into()));
    assert!(own[0]["peer"].as_str().expect("a peer").starts_with("127.0.0.1:"), "{result}");
    let granted = result["credits_granted"].as_u64();
    assert!(granted >= own[0]["credit_limit"].as_u64() && granted > Some(0), "{result}");
}

/// Names of numbers that programs read. Others may follow.
const COUNTERS: &str = "calls responses errors expired cancelled requests replies requests_expired \
    requests_cancelled rollbacks retransmitted lost probes spurious gaps melo_bits_peak melo_refused \
    responses_resent in_progress_sent pool_waits paced completions_parked tx_copied max_in_flight \
    tx_packets rx_packets tx_frames tx_bytes tx_dropped tx_full rx_frames rx_bytes rx_dropped \
    rx_overflow";
const MEMORY: &str = "in_use_bytes peak_in_use_bytes mapped_bytes limit_bytes in_use_buffers \
    sessions_bytes";
const SESSION: &str = "requests credit_limit in_flight slots queued quarantined rollbacks \
    retransmitted tx_frames rx_frames ecn_marked window_decreases data_per_packet";
/// Keys of a session that may be `null`.
const NULLABLE: &str = "credits rtt_ns srtt_ns rtt_min_ns rto_ns window_packets pacing_gap_ns";
const ENDPOINT: &str = "rates sessions format process endpoint port now_ns control counters drops \
    handlers credits_granted outstanding_calls memory session_count next_session asked_by";

#[test]
fn numbers_keep_their_names() {
    let server = Server::local();
    pinged(&server, 1);
    let report = json_of(&format!("stat {} --once --json -", server.uri));
    let result = &results(&report)[0];
    let all = |value: &Value, names: &str, is_right: fn(&Value) -> bool| {
        for name in names.split_whitespace() {
            assert!(value.get(name).is_some_and(is_right), "{name}: {value}");
        }
    };
    all(result, ENDPOINT, |_| true);
    all(&result["counters"], COUNTERS, Value::is_u64);
    all(&result["memory"], MEMORY, Value::is_u64);
    let session = &result["sessions"][0];
    all(session, SESSION, Value::is_u64);
    all(session, NULLABLE, |value| value.is_u64() || value.is_null());
    all(session, "role state peer recovery", Value::is_string);
    assert_eq!(session["credits"], Value::Null, "only the client knows them");
    all(&result["process"], "version endpoints control workers", |_| true);
}

#[test]
fn congestion_control_is_in_json_and_text() {
    for (bind, given, used) in [
        ("udp://127.0.0.1:0", "", "default"),
        ("udp://127.0.0.1:0", "--control swift", "swift"),
        ("shm://127.0.0.1:0", "", "none"),
    ] {
        let server = Server::start(&format!("serve --bind {bind} {given}"));
        pinged(&server, 1);
        let report = json_of(&format!("stat {} --once --json -", server.uri));
        let result = &results(&report)[0];
        assert_eq!(result["control"], used, "{result}");
        assert_eq!(result["counters"]["paced"], 0, "{result}");
        let session = &result["sessions"][0];
        assert_eq!(session["window_packets"], Value::Null, "{result}");
        assert_eq!(session["pacing_gap_ns"], Value::Null, "{result}");
        assert_eq!(session["window_decreases"], 0, "{result}");
        let text = stdout(&run(&format!("stat {} --once", server.uri)));
        assert!(text.contains("pacing gap") && text.contains(used), "{text}");
    }
    let server = Server::local();
    let line = format!("ping {} --control dcqcn --count 1 --timeout 20s --json -", server.uri);
    assert_eq!(json_of(&line)["config"]["control"], "dcqcn");
}

#[test]
fn rates_are_between_refreshes() {
    let server = Server::local();
    let mut ping = courser(&format!("ping {} --count 0 --interval 1ms --quiet", server.uri));
    let mut ping = ping.stdout(Stdio::null()).spawn().expect("starts");
    let options = "--count 3 --interval 200ms --json -";
    let report = json_of(&format!("stat {} {options}", server.uri));
    signal(ping.id(), "INT");
    ping.wait().expect("ends");
    let result = &results(&report)[0];
    assert!(result["rates"]["requests_per_s"].as_f64() > Some(0.0), "{result}");
    assert!(result["rates"]["rx_bytes_per_s"].as_f64() > Some(0.0), "{result}");
    let busiest = &result["sessions"][0];
    assert_ne!(busiest["session"], result["asked_by"], "the ping comes first: {result}");
    assert!(busiest["requests_per_s"].as_f64() > Some(0.0), "{result}");
}

#[test]
fn every_endpoint_has_a_row_and_one_can_be_named() {
    let server = Server::start("serve --bind udp://127.0.0.1:0 --threads 3");
    let report = json_of(&format!("stat {} --once --json -", server.uri));
    let seen: Vec<_> = results(&report).iter().map(|r| r["endpoint"].as_u64()).collect();
    assert_eq!(seen, [Some(0), Some(1), Some(2)]);

    let report = json_of(&format!("stat {}/2 --once --json -", server.uri));
    let seen: Vec<_> = results(&report).iter().map(|r| r["endpoint"].as_u64()).collect();
    assert_eq!(seen, [Some(2)]);
}

#[test]
fn tables_are_printed_until_ctrl_c() {
    let server = Server::local();
    let mut stat = courser(&format!("stat {} --interval 20ms", server.uri));
    let mut stat = stat.stdout(Stdio::piped()).spawn().expect("starts");
    let mut out = BufReader::new(stat.stdout.take().expect("a pipe"));
    let (mut text, mut refreshes) = (String::new(), 0);
    while refreshes < 3 {
        let at = text.len();
        assert_ne!(out.read_line(&mut text).expect("reads"), 0, "ended early: {text}");
        refreshes += u32::from(text[at..].contains(": courser "));
    }
    signal(stat.id(), "INT");
    out.read_to_string(&mut text).expect("ends by itself");
    assert!(stat.wait().expect("ends").success());
    for phrase in ["endpoint", "requests", "credits", "rollbacks", "memory", "RTO", "*0/", "server"]
    {
        assert!(text.contains(phrase), "{phrase}: {text}");
    }
    assert!(!text.contains('\x1b') && !text.contains('\r'), "plain in a pipe: {text}");
}

#[test]
fn dropped_frames_are_counted_by_reason() {
    let server = Server::local();
    let port = server.uri.rsplit_once(':').expect("a port").1;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.send_to(b"nonsense", format!("127.0.0.1:{port}")).expect("sent");
    let mut tcp = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).expect("connects");
    tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut text = String::new();
    crate::common::wait_for("both to be counted", || {
        text = stdout(&run(&format!("stat {} --once", server.uri)));
        text.contains("discarded: truncated 1") && text.contains("turned away: ")
    });
    assert!(text.contains("failed_greetings") || text.contains("protocol_errors"), "{text}");
}

#[test]
fn sessions_beyond_one_page_are_read() {
    let server = Server::local();
    let mut rpc = Nexus::bind("udp://127.0.0.1:0").expect("binds").endpoint().expect("opens");
    let sessions: Vec<_> = (0..600).map(|_| rpc.connect(&server.uri).expect("a session")).collect();
    for session in sessions {
        rpc.wait_connected(session).expect("connected");
    }
    let report = json_of(&format!("stat {} --once --sessions all --json -", server.uri));
    let result = &results(&report)[0];
    assert_eq!(result["session_count"], 601);
    let mut seen: Vec<_> = result["sessions"].as_array().expect("a list").iter().collect();
    seen.sort_by_key(|s| s["session"].as_u64());
    seen.dedup_by_key(|s| s["session"].as_u64());
    assert_eq!(seen.len(), 601);
    let report = json_of(&format!("stat {} --once --sessions 5 --json -", server.uri));
    assert_eq!(results(&report)[0]["sessions"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_missing_server_and_other_programs_are_errors() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("its number").port();
    drop(free);
    refused(
        &format!("stat udp://127.0.0.1:{port}"),
        "start the server there, or check the address",
    );

    // An application without statistics, then one with statistics of another format.
    for (types, hint) in [(&[1][..], "it is not `courser serve`"), (&[1, 1023], "another version")]
    {
        let (sender, receiver) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let nexus = Nexus::bind("udp://127.0.0.1:0").expect("binds");
            let mut rpc = nexus.endpoint().expect("opens");
            types.iter().for_each(|&t| rpc.on(t, |cx, request| cx.reply(request)));
            sender.send((nexus.local_uri(), rpc.handle())).expect("sent");
            rpc.run().expect("runs");
        });
        let (uri, handle) = receiver.recv().expect("ready");
        refused(&format!("stat {uri} --once"), hint);
        handle.stop();
        server.join().expect("ends");
    }
}

#[test]
fn a_server_that_dies_ends_it_with_status_1() {
    let mut server = Server::local();
    let mut stat = courser(&format!("stat {} --interval 5ms", server.uri));
    let mut stat = stat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut out = BufReader::new(stat.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("a line");
    server.child.kill().expect("killed");
    out.read_to_string(&mut String::new()).expect("ends by itself");
    let output = stat.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(crate::common::error_line(&output).contains("is gone"), "{}", stderr(&output));
}

#[courser::service]
trait Sum {
    async fn add(&self, a: u64, b: u64) -> u64;
}

struct Adder;

impl Sum for Adder {
    async fn add(&self, a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }
}

/// A server of an application, which has been called once.
fn application(access: Option<Introspect>) -> (String, courser::Serving) {
    let server = courser::Server::bind("udp://127.0.0.1:0").expect("a free port");
    let server = server.add_service(SumServer::new(Adder)).expect("a new service");
    let server = match access {
        Some(access) => server.add_introspection(access).expect("a new service"),
        None => server,
    };
    let (uri, serving) = (server.local_uri(), server.serve().expect("it serves"));
    let client = courser::Client::connect(&uri).wait().expect("a server");
    let sum = client.wait(SumClient::new(client.clone())).expect("the service");
    assert_eq!(sum.add(1, 2).wait(), Ok(3));
    (uri, serving)
}

#[test]
fn methods_of_any_server_are_shown_by_one_line_in_it() {
    let (uri, _serving) = application(Some(Introspect::new()));
    let shown = run(&format!("stat {uri} --count 2 --interval 10ms"));
    assert!(shown.status.success(), "{}", stderr(&shown));
    let text = stdout(&shown);
    let row = text.lines().rfind(|line| line.contains("Sum.add")).expect("the method");
    assert_eq!(row.split_whitespace().nth(1), Some("1"), "{text}");

    let report = json_of(&format!("stat {uri} --once --json -"));
    let result = &results(&report)[0];
    let methods = result["methods"].as_array().expect("methods");
    let add = methods.iter().find(|method| method["method"] == "add").expect("the method");
    assert_eq!((&add["service"], &add["started"]), (&"Sum".into(), &1.into()));
    assert_eq!((&add["outcomes"]["ok"], &add["rates"]), (&1.into(), &Value::Null));
    for name in ["count", "sum_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"] {
        assert!(add["latency"][name].as_u64() > Some(0), "{name}: {add}");
    }
    for group in ["server", "handlers", "services", "protocol"] {
        assert!(result[group].is_object(), "{group}: {result}");
    }
}

#[test]
fn services_of_a_server_are_listed() {
    let (uri, _serving) = application(Some(Introspect::new()));
    let shown = run(&format!("list {uri}"));
    assert!(shown.status.success(), "{}", stderr(&shown));
    let text = stdout(&shown);
    assert!(text.contains("Sum  codec") && text.contains("  add  unary\n"), "{text}");
    let list = json_of(&format!("list {uri} --json -"));
    assert_eq!(list["services"][0]["name"], "Sum");
    assert_eq!(list["services"][0]["methods"][0]["kind"], "unary");
}

#[test]
fn servers_without_the_line_or_that_do_not_allow_it_say_so() {
    let (uri, _serving) = application(None);
    let (denying, _denying) = application(Some(Introspect::new().allow(|_| false)));
    for command in ["stat", "list"] {
        let without = run(&format!("{command} {uri}"));
        assert!(!without.status.success());
        assert!(stderr(&without).contains("add_introspection"), "{}", stderr(&without));
        let denied = run(&format!("{command} {denying}"));
        assert!(!denied.status.success());
        assert!(stderr(&denied).contains("same machine"), "{}", stderr(&denied));
    }
}

#[test]
fn one_endpoint_of_a_program_without_a_server_can_be_named() {
    let nexus = Nexus::bind("udp://127.0.0.1:0").expect("a free port");
    let uri = nexus.local_uri();
    // The second endpoint alone has a method.
    let mut endpoints = [(); 2].map(|()| nexus.endpoint().expect("an endpoint"));
    endpoints[1].add_service(SumServer::local(Adder)).expect("a new service");
    for endpoint in &mut endpoints {
        endpoint.add_introspection(Introspect::new()).expect("a new service");
    }
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            [0, 1].map(|number| {
                let methods = json_of(&format!("stat {uri}/{number} --once --json -"));
                let list = json_of(&format!("list {uri}/{number} --json -"));
                (results(&methods)[0]["methods"].to_string(), list.to_string())
            })
        });
        while !asking.is_finished() {
            endpoints.iter_mut().for_each(|endpoint| _ = endpoint.poll());
        }
        let [first, second] = asking.join().expect("answers");
        assert!(!first.0.contains("Sum") && !first.1.contains("Sum"), "{first:?}");
        assert!(second.0.contains("Sum") && second.1.contains("Sum"), "{second:?}");
    });
}
