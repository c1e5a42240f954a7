//! The standard services, and the text of statistics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use courser::health::{Health, HealthCheckClient, HealthStatus};
use courser::introspection::{Introspect, IntrospectionClient};
use courser::metrics::Metrics;
use courser::service::{BlockingChannel, CallOutcome, Incoming, RpcError, Stream};
use courser::{CallError, CallFailure, Client, Nexus, Server, ServerHandle, Status};
use futures::StreamExt;
use futures::channel::oneshot;
use serde_json::Value;

use crate::world::until;

#[courser::service]
trait Sum {
    async fn add(&self, a: u64, b: u64) -> Result<u64, String>;
}

/// A method of each kind.
#[courser::service]
trait Kinds {
    async fn ask(&self, number: u64) -> u64;
    fn follow(&self) -> impl Stream<Item = u64>;
    #[oneway]
    async fn note(&self, number: u64);
    async fn sum(&self, numbers: Incoming<u64>) -> u64;
    fn talk(&self, numbers: Incoming<u64>) -> impl Stream<Item = u64>;
}

struct Adder;

impl Kinds for Adder {
    async fn ask(&self, number: u64) -> u64 {
        number
    }
    fn follow(&self) -> impl Stream<Item = u64> {
        futures::stream::empty()
    }
    async fn note(&self, _: u64) {}
    async fn sum(&self, _: Incoming<u64>) -> u64 {
        0
    }
    fn talk(&self, _: Incoming<u64>) -> impl Stream<Item = u64> {
        futures::stream::empty()
    }
}

impl Sum for Adder {
    async fn add(&self, a: u64, b: u64) -> Result<u64, String> {
        a.checked_add(b).ok_or_else(|| "too large".to_owned())
    }
}

fn server() -> Server {
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    server.add_service(SumServer::new(Adder)).unwrap()
}

/// Uses a server with a sum and an error.
fn used(uri: &str) {
    let client = Client::connect(uri).wait().unwrap();
    let sum = client.wait(SumClient::new(client.clone())).unwrap();
    assert_eq!(sum.add(1, 2).wait(), Ok(3));
    assert!(sum.add(u64::MAX, 1).wait().is_err());
}

fn introspection(uri: &str) -> IntrospectionClient {
    let client = Client::connect(uri).wait().unwrap();
    client.wait(IntrospectionClient::new(client.clone())).unwrap()
}

/// Runs an endpoint with services on a thread of its own, and passes its address.
fn with_endpoint(check: impl FnOnce(&str)) {
    let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
    let uri = nexus.local_uri();
    let (started, has_started) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut rpc = nexus.endpoint().unwrap();
        rpc.add_service(SumServer::local(Adder)).unwrap();
        rpc.add_introspection(Introspect::new()).unwrap();
        rpc.add_health(&Health::new()).unwrap();
        started.send(rpc.handle()).unwrap();
        rpc.run().unwrap();
    });
    let handle = has_started.recv().unwrap();
    check(&uri);
    handle.stop();
    thread.join().unwrap();
}

fn check_stat(text: &str, endpoints: u64) {
    let stat: Value = serde_json::from_str(text).unwrap();
    assert_eq!((&stat["format"], &stat["endpoints"]), (&1.into(), &endpoints.into()));
    let methods = stat["methods"].as_array().unwrap();
    let add = methods.iter().find(|method| method["method"] == "add").unwrap();
    assert_eq!(
        (&add["service"], &add["started"], &add["in_progress"]),
        (&"Sum".into(), &2.into(), &0.into())
    );
    assert_eq!(add["outcomes"], serde_json::json!({ "ok": 1, "failed": 1 }));
    assert_eq!(add["latency"]["count"], 2);
    assert!(add["latency"]["p99_ns"].as_u64() > Some(0));
    assert!(stat["protocol"]["requests"].as_u64() > Some(2), "{stat}");
}

#[test]
fn statistics_of_a_server_are_read_by_one_line_in_it() {
    let server = server().endpoints(2).add_introspection(Introspect::new()).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    used(&uri);
    check_stat(&introspection(&uri).stat().wait().unwrap(), 2);
    let requests: u64 = serving.endpoint_stats().iter().map(|stats| stats.requests).sum();
    assert!(requests > 3);
    let handle = serving.handle();
    handle.stop();
    serving.wait().unwrap();
    let last: u64 = handle.endpoint_stats().iter().map(|stats| stats.requests).sum();
    assert!(last >= requests, "{last} after {requests}");
}

#[test]
fn statistics_of_an_endpoint_are_read_by_one_line_in_it() {
    with_endpoint(|uri| {
        used(uri);
        check_stat(&introspection(uri).stat().wait().unwrap(), 1);
        let text = introspection(uri).metrics().wait().unwrap();
        assert_eq!(parse(&text)["courser_method_started_calls"].value(&[("method", "add")]), 2.0);
    });
}

/// Counts requests of its server in its handlers, whatever their order.
struct Counter(ServerHandle);

impl Sum for Counter {
    async fn add(&self, a: u64, _: u64) -> Result<u64, String> {
        let all = self.0.fresh_endpoint_stats().await;
        let requests: u64 = all.iter().map(|stats| stats.requests).sum();
        if requests >= a { Ok(requests) } else { Err(format!("{requests} of {a}")) }
    }
}

/// Handlers of this server read its counters, each of which has the request of its handler.
fn handlers_read_their_own_requests(server: Server) {
    let counter = Counter(server.handle());
    let server = server.add_service(SumServer::new(counter)).unwrap();
    let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
    let client = Client::connect(&uri).wait().unwrap();
    let sum = client.wait(SumClient::new(client.clone())).unwrap();
    for call in 1..100 {
        sum.add(call, 0).wait().unwrap();
    }
}

#[test]
fn a_handler_reads_counters_that_have_its_own_request() {
    handlers_read_their_own_requests(Server::bind("udp://127.0.0.1:0").unwrap().endpoints(2));
}

#[cfg(feature = "tokio")]
#[test]
fn a_handler_on_tokio_reads_counters_that_have_its_own_request() {
    // With one thread, which a reader that blocked would stop.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    handlers_read_their_own_requests(server.on_tokio(runtime.handle().clone()));
}

#[test]
fn other_machines_are_refused_unless_they_are_allowed() {
    let client_of = |access: Introspect| {
        let server = server().add_introspection(access).unwrap();
        let (uri, serving) = (server.local_uri(), server.serve().unwrap());
        (introspection(&uri), serving)
    };
    let (denied, _serving) = client_of(Introspect::new().allow(|_| false));
    for text in [denied.stat().wait(), denied.metrics().wait(), denied.list().wait()] {
        let Err(RpcError::Service(text)) = text else { panic!("{text:?}") };
        assert!(text.contains("only clients of the same machine"), "{text}");
    }
    let (allowed, _serving) = client_of(Introspect::new().allow(|_| true));
    allowed.stat().wait().unwrap();
}

#[test]
fn services_are_listed_with_their_methods_and_shapes() {
    let server = server().add_introspection(Introspect::new()).unwrap();
    let server = server.add_service(KindsServer::new(Adder)).unwrap();
    let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
    let list = introspection(&uri).list().wait().unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let services = list["services"].as_array().unwrap();
    let names: Vec<_> = services.iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Sum", "courser.Introspection", "Kinds"]);
    let fingerprint = format!("{:016x}", SumClient::SERVICE.fingerprint());
    assert_eq!(services[0]["fingerprint"], fingerprint);
    let add = &services[0]["methods"][0];
    assert_eq!((&add["name"], &add["kind"]), (&"add".into(), &"unary".into()));
    let shape = &SumClient::SERVICE.shapes()[0];
    assert_eq!(add["arguments"], shape.arguments().to_string());
    assert_eq!(add["fingerprint"], format!("{:016x}", shape.fingerprint()));
    let kinds = services[2]["methods"].as_array().unwrap().iter().map(|method| {
        let text = |key: &str| method[key].as_str().unwrap();
        (text("name"), text("kind"))
    });
    let expected = [
        ("ask", "unary"),
        ("follow", "server-stream"),
        ("note", "one-way"),
        ("sum", "client-stream"),
        ("talk", "both-streams"),
    ];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn health_is_what_the_application_has_set_until_the_server_drains() {
    let health = Health::new();
    let server = server().add_health(&health).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = Client::connect(&uri).wait().unwrap();
    let checks = client.wait(HealthCheckClient::new(client.clone())).unwrap();
    let check = |service: &str| checks.check(service.into()).wait().unwrap();
    assert_eq!((check(""), check("Sum")), (HealthStatus::Serving, HealthStatus::Unknown));
    health.set("Sum", HealthStatus::Serving);
    assert_eq!(check("Sum"), HealthStatus::Serving);
    let mut watched = client.wait(async { checks.watch("Sum".into()).await }).unwrap();
    let next = |watched: &mut courser::service::Streaming<_, _, _, _>| {
        client.wait(watched.next()).unwrap().unwrap()
    };
    assert_eq!(next(&mut watched), HealthStatus::Serving);
    health.set("Sum", HealthStatus::NotServing);
    assert_eq!(next(&mut watched), HealthStatus::NotServing);
    health.set("Other", HealthStatus::Serving); // does not concern it
    health.set("Sum", HealthStatus::Serving);
    assert_eq!(next(&mut watched), HealthStatus::Serving);
    let unknown = client.wait(async { checks.watch("x".repeat(1_000)).await }).unwrap();
    assert_eq!(client.wait(unknown.take(1).collect::<Vec<_>>()), [Ok(HealthStatus::Unknown)]);
    serving.handle().shutdown(Duration::from_secs(10));
    assert_eq!(next(&mut watched), HealthStatus::NotServing);
    assert_eq!(client.wait(watched.next()), None, "it ends, and the server need not wait for it");
    serving.wait().unwrap();
}

/// Waits in its handler until it is told to end.
struct Slow(Mutex<Option<oneshot::Receiver<()>>>);

impl Sum for Slow {
    async fn add(&self, a: u64, b: u64) -> Result<u64, String> {
        let ends = self.0.lock().unwrap().take();
        ends.unwrap().await.unwrap();
        Ok(a + b)
    }
}

#[test]
fn a_server_that_drains_answers_checks_of_health_alone() {
    let (ends, slow) = oneshot::channel();
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_health(&Health::new()).unwrap();
    let server = server.add_service(SumServer::new(Slow(Mutex::new(Some(slow))))).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = Client::connect(&uri).wait().unwrap();
    let checks = client.wait(HealthCheckClient::new(client.clone())).unwrap();
    let sum = client.wait(SumClient::new(client.clone())).unwrap();
    let (in_progress, caller) = (sum.clone(), client.clone());
    let slow = std::thread::spawn(move || caller.wait(async { in_progress.add(1, 2).await }));
    until(|| serving.stats().in_progress == 1);
    serving.handle().shutdown(Duration::from_secs(60));
    until(|| checks.check(String::new()).wait() == Ok(HealthStatus::NotServing));
    let marked = || checks.check(String::new()).metadata("tenant", "blue").wait();
    assert_eq!(marked(), Ok(HealthStatus::NotServing));
    let another = HealthCheckClient::unchecked(client.clone());
    assert_eq!(another.check("Sum".into()).wait(), Ok(HealthStatus::Unknown));
    let refused = CallFailure::Failed(CallError::Server(Status::ShuttingDown));
    assert_eq!(sum.add(1, 2).wait(), Err(RpcError::Call(refused.clone())));
    let marked = sum.add(1, 2).metadata("tenant", "blue").wait();
    assert_eq!(marked, Err(RpcError::Call(refused)));
    ends.send(()).unwrap();
    assert_eq!(slow.join().unwrap(), Ok(3));
    serving.wait().unwrap();
}

/// One-way messages, and a call that keeps the server draining.
#[courser::service]
trait Notes {
    #[oneway]
    async fn note(&self, bytes: Vec<u8>);
    async fn stay(&self);
}

/// Counts the messages. The call ends when it is told to.
struct Desk {
    notes: Arc<AtomicUsize>,
    stays: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Notes for Desk {
    async fn note(&self, _: Vec<u8>) {
        self.notes.fetch_add(1, Ordering::Relaxed);
    }
    async fn stay(&self) {
        let ends = self.stays.lock().unwrap().take();
        ends.unwrap().await.unwrap();
    }
}

#[test]
fn messages_with_metadata_do_not_run_while_a_server_with_health_drains() {
    let (ends, stays) = oneshot::channel();
    let notes = Arc::new(AtomicUsize::new(0));
    let desk = Desk { notes: notes.clone(), stays: Mutex::new(Some(stays)) };
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_health(&Health::new()).unwrap();
    let server = server.add_service(NotesServer::new(desk)).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = Client::connect(&uri).wait().unwrap();
    let checks = client.wait(HealthCheckClient::new(client.clone())).unwrap();
    let desk = client.wait(NotesClient::new(client.clone())).unwrap();
    let (in_progress, caller) = (desk.clone(), client.clone());
    let stay = std::thread::spawn(move || caller.wait(async { in_progress.stay().await }));
    let send = |len: usize| desk.note(vec![7; len]).metadata("tenant", "blue").wait();
    for len in [10, 100_000] {
        send(len).unwrap();
    }
    until(|| serving.stats().in_progress == 1 && notes.load(Ordering::Relaxed) == 2);
    serving.handle().shutdown(Duration::from_secs(60));
    until(|| checks.check(String::new()).wait() == Ok(HealthStatus::NotServing));
    for len in [10, 100_000] {
        let _ = send(len); // it may have arrived
    }
    let refused = || {
        let methods = serving.method_stats();
        let note = methods.iter().find(|method| method.method == "note").unwrap();
        note.ended(CallOutcome::ShuttingDown)
    };
    until(|| refused() == 1 || notes.load(Ordering::Relaxed) > 2);
    until(|| serving.stats().messages_refused == 1 || notes.load(Ordering::Relaxed) > 2);
    ends.send(()).unwrap();
    assert_eq!(stay.join().unwrap(), Ok(()));
    serving.wait().unwrap();
    assert_eq!(notes.load(Ordering::Relaxed), 2);
}

#[test]
fn health_of_an_endpoint_is_checked_too() {
    with_endpoint(|uri| {
        let client = Client::connect(uri).wait().unwrap();
        let checks = client.wait(HealthCheckClient::new(client.clone())).unwrap();
        assert_eq!(checks.check(String::new()).wait(), Ok(HealthStatus::Serving));
    });
}

/// The samples of a name.
#[derive(Default, Debug)]
struct Family {
    kind: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Family {
    /// The only sample with these labels, of any suffix but buckets.
    fn value(&self, labels: &[(&str, &str)]) -> f64 {
        let fits = |found: &BTreeMap<String, String>| {
            labels.iter().all(|(name, value)| found.get(*name).is_some_and(|known| known == value))
        };
        let mut found = self.samples.iter().filter(|(_, labels, _)| fits(labels));
        let first = found.next().unwrap_or_else(|| panic!("{labels:?} of {self:?}"));
        assert!(found.next().is_none(), "{labels:?} of {self:?}");
        first.2
    }
}

/// Reads the labels between braces.
fn labels(mut text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").unwrap();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{name}");
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => match chars.next().unwrap().1 {
                    'n' => value.push('\n'),
                    c @ ('"' | '\\') => value.push(c),
                    c => panic!("\\{c}"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(all.insert(name.to_owned(), value).is_none(), "{name} twice");
        text = rest[end + 1..].strip_prefix(',').unwrap_or(&rest[end + 1..]);
    }
    all
}

/// Reads text of the OpenMetrics format, by its rules: metadata before the samples, families whole, no
/// sample twice, an end.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let text = text.strip_suffix("# EOF\n").expect("an end");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} twice");
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(rest.strip_prefix(&current).is_some_and(|help| help.len() > 5), "{line}");
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let value = value.parse::<f64>().unwrap();
            let (name, of) = match name.split_once('{') {
                Some((name, of)) => (name, labels(of.strip_suffix('}').unwrap())),
                None => (name, BTreeMap::new()),
            };
            let family = families.get_mut(&current).unwrap();
            let suffix = name.strip_prefix(&current).expect("a sample of its family");
            let allowed: &[&str] = match family.kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                _ => &["_bucket", "_count", "_sum"],
            };
            assert!(allowed.contains(&suffix), "{line}");
            let is_known = family.samples.iter().any(|(s, l, _)| (s.as_str(), l) == (suffix, &of));
            assert!(!is_known, "{line} twice");
            family.samples.push((suffix.to_owned(), of, value));
        }
    }
    families
}

#[test]
fn the_text_of_statistics_has_the_form_that_scrapers_read() {
    let server = server();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    used(&uri);
    until(|| serving.method_stats()[0].in_progress == 0);
    let families = parse(&serving.metrics().text());
    let add = [("side", "server"), ("service", "Sum"), ("method", "add")];
    assert_eq!(families["courser_method_started_calls"].value(&add), 2.0);
    let outcomes = &families["courser_method_outcomes_calls"];
    for (outcome, calls) in [("ok", 1.0), ("failed", 1.0), ("denied", 0.0)] {
        assert_eq!(outcomes.value(&[&add[..], &[("outcome", outcome)]].concat()), calls);
    }
    assert!(families["courser_endpoint_requests"].value(&[]) >= 2.0);
    assert_eq!(families["courser_server_in_progress_handlers"].kind, "gauge");
    // Buckets grow up to the number of calls.
    let latency = &families["courser_method_latency_seconds"];
    let buckets = latency.samples.iter().filter(|(suffix, ..)| suffix == "_bucket");
    let bounds: Vec<_> = buckets.map(|(_, of, calls)| (of["le"].clone(), *calls)).collect();
    assert!(bounds.is_sorted_by(|a, b| a.1 <= b.1), "{bounds:?}");
    let finite = bounds.iter().filter_map(|(bound, _)| bound.parse::<f64>().ok());
    assert!(finite.is_sorted_by(|a, b| a < b), "{bounds:?}");
    assert_eq!(bounds.last().unwrap(), &("+Inf".to_owned(), 2.0));
    let of = |wanted: &str| {
        let found = latency.samples.iter().find(|(suffix, ..)| suffix == wanted);
        found.unwrap().2
    };
    assert!(of("_count") == 2.0 && of("_sum") > 0.0 && of("_sum") < 10.0);
}

#[test]
fn labels_are_escaped() {
    let mut metrics = Metrics::new();
    let odd = "a \"text\" with \\ and\nlines, {braces}";
    metrics.add(&[("site", odd), ("other", "")], &courser::HandlerStats::default());
    let families = parse(&metrics.text());
    assert_eq!(families["courser_handlers_panics"].value(&[("site", odd), ("other", "")]), 0.0);
}
