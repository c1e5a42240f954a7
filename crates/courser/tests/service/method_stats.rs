//! Statistics of methods, at servers of both kinds and at their clients.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use courser::service::{
    BlockingChannel, CallOutcome, Denied, Incoming, IncomingCall, MethodStats, Peer, RpcError,
    ServerMiddleware, Stream, Target,
};
use courser::tower::{AnswerFuture, BoxError, LayeredClient, Next, Request, Response, layered};
use courser::{Client, Config, HandlerFuture, Nexus, Server, ServerHandle};
use futures::StreamExt;

use crate::running::Running;
use crate::world::until;

#[courser::service]
trait Desk {
    async fn echo(&self, text: String) -> String;
    async fn fail(&self, code: u32) -> Result<u32, u32>;
    /// Ends never.
    async fn stay(&self);
    async fn crash(&self, after_a_wait: bool);
    #[oneway]
    async fn note(&self, text: String);
    fn count(&self, to: u64) -> impl Stream<Item = u64>;
    async fn sum(&self, numbers: Incoming<u64>) -> u64;
    /// Twice each number.
    fn twice(&self, numbers: Incoming<u64>) -> impl Stream<Item = u64>;
}

struct Clerk;

impl Desk for Clerk {
    async fn echo(&self, text: String) -> String {
        text
    }
    async fn fail(&self, code: u32) -> Result<u32, u32> {
        if code == 0 { Ok(0) } else { Err(code) }
    }
    async fn stay(&self) {
        std::future::pending().await
    }
    async fn crash(&self, after_a_wait: bool) {
        if after_a_wait {
            crate::kv::yields().await;
        }
        panic!("a panic on purpose");
    }
    async fn note(&self, _: String) {}
    fn count(&self, to: u64) -> impl Stream<Item = u64> {
        futures::stream::iter(0..to)
    }
    async fn sum(&self, mut numbers: Incoming<u64>) -> u64 {
        let mut sum = 0;
        while let Some(Ok(number)) = numbers.next().await {
            sum += number;
        }
        sum
    }
    fn twice(&self, numbers: Incoming<u64>) -> impl Stream<Item = u64> {
        numbers.filter_map(|number| std::future::ready(number.ok().map(|number| number * 2)))
    }
}

/// Starts servers of both kinds.
fn both() -> [(String, Running); 2] {
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let tasks = Running::tasks(server.add_service(DeskServer::new(Clerk)).unwrap());
    let thread = Running::thread(|rpc| {
        rpc.add_service(DeskServer::local(Clerk)).unwrap();
    });
    [tasks, thread]
}

fn of<'a>(all: &'a [MethodStats], method: &str) -> &'a MethodStats {
    let found = all.iter().find(|stats| (stats.service, stats.method) == ("Desk", method));
    found.expect("a method that is counted")
}

/// Asserts the calls that have ended, by outcome, of a method without others.
fn assert_ended(all: &[MethodStats], method: &str, expected: &[(CallOutcome, u64)]) {
    let stats = of(all, method);
    for outcome in CallOutcome::ALL {
        let known = expected.iter().find(|(known, _)| *known == outcome).map_or(0, |(_, n)| *n);
        assert_eq!(stats.ended(outcome), known, "{outcome:?} of {stats:?}");
    }
    let total: u64 = expected.iter().map(|(_, n)| n).sum();
    assert_eq!((stats.started, stats.in_progress), (total, 0), "{stats:?}");
}

fn client_of(uri: &str) -> (Client, DeskClient) {
    let client = Client::connect(uri).wait().unwrap();
    let desk = client.wait(DeskClient::new(client.clone())).unwrap();
    (client, desk)
}

#[test]
fn calls_are_counted_by_outcome_at_both_ends() {
    for (uri, server) in both() {
        let (_, desk) = client_of(&uri);
        for _ in 0..5 {
            desk.echo("text".into()).wait().unwrap();
        }
        desk.fail(0).wait().unwrap();
        assert_eq!(desk.fail(9).wait(), Err(RpcError::Service(9)));
        for after_a_wait in [false, true] {
            desk.crash(after_a_wait).wait().unwrap_err();
        }
        // With metadata, and with that of its answer.
        desk.echo("text".into()).metadata("key", "value").wait().unwrap();
        desk.echo("text".into()).with_response_metadata().wait().0.unwrap();
        let ours = desk.method_stats();
        for all in [ours, server.end()] {
            assert_ended(&all, "echo", &[(CallOutcome::Ok, 7)]);
            assert_ended(&all, "fail", &[(CallOutcome::Ok, 1), (CallOutcome::Failed, 1)]);
            assert_ended(&all, "crash", &[(CallOutcome::Panicked, 2)]);
            assert_eq!(of(&all, "fail").errors(), 1);
            let latency = &of(&all, "echo").latency;
            assert_eq!(latency.count(), 7);
            let [median, longest] =
                [latency.quantile_ns(0.5), latency.max_ns()].map(Option::unwrap);
            assert!(0 < median && median <= longest && longest < 60_000_000_000, "{latency:?}");
        }
    }
}

#[test]
fn calls_that_are_given_up_are_in_progress_before_and_have_their_outcome_then() {
    for (uri, server) in both() {
        let (client, desk) = client_of(&uri);
        let mut stays = Box::pin(async { desk.stay().await });
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        until(|| {
            assert!(stays.as_mut().poll(&mut cx).is_pending());
            match &server {
                Running::Tasks(serving) => of(&serving.method_stats(), "stay").in_progress == 1,
                // Another thread has them.
                Running::Thread { .. } => desk.echo(String::new()).wait().is_ok(),
            }
        });
        assert_eq!(of(&client.method_stats(), "stay").in_progress, 1);
        drop(stays);
        assert_ended(&client.method_stats(), "stay", &[(CallOutcome::Cancelled, 1)]);
        let late = desk.stay().deadline(Duration::from_millis(20)).wait();
        late.unwrap_err();
        let given_up = [(CallOutcome::Cancelled, 1), (CallOutcome::Deadline, 1)];
        assert_ended(&client.method_stats(), "stay", &given_up);
        if let Running::Tasks(serving) = &server {
            until(|| of(&serving.method_stats(), "stay").in_progress == 0);
        } else {
            std::thread::sleep(Duration::from_millis(20));
            until(|| desk.echo(String::new()).wait().is_ok());
        }
        let all = server.end();
        let stats = of(&all, "stay");
        // Its client may be the first to end a call at its deadline.
        assert_eq!((stats.started, stats.in_progress), (2, 0), "{stats:?}");
        let ended = [CallOutcome::Cancelled, CallOutcome::Deadline].map(|o| stats.ended(o));
        assert_eq!(ended.iter().sum::<u64>(), 2, "{stats:?}");
        assert!(ended[0] >= 1);
    }
}

#[test]
fn messages_are_counted_and_those_that_cannot_be_decoded_are_errors() {
    for (uri, server) in both() {
        let (client, desk) = client_of(&uri);
        desk.note("text".into()).wait().unwrap();
        desk.note("text".into()).metadata("key", "value").wait().unwrap();
        // Methods have the types in the order of their names, from the first one of services on.
        let number = |name: &str| {
            let methods = DeskClient::SERVICE.methods;
            0x4000 + methods.iter().position(|method| method.name == name).unwrap() as u16
        };
        client.send(number("note"), client.alloc(0).unwrap()).wait().unwrap();
        client.call(number("echo"), client.alloc(0).unwrap()).wait().unwrap();
        desk.echo("after".into()).wait().unwrap();
        let undecoded = [(CallOutcome::Ok, 2), (CallOutcome::Undecoded, 1)];
        if let Running::Tasks(serving) = &server {
            until(|| of(&serving.method_stats(), "note").ended(CallOutcome::Ok) == 2);
            until(|| of(&serving.method_stats(), "note").ended(CallOutcome::Undecoded) == 1);
        }
        assert_ended(&client.method_stats(), "note", &[(CallOutcome::Ok, 2)]);
        let all = server.end();
        assert_ended(&all, "note", &undecoded);
        assert_ended(&all, "echo", &[(CallOutcome::Ok, 1), (CallOutcome::Undecoded, 1)]);
    }
}

#[test]
fn requests_and_messages_with_malformed_metadata_are_counted_for_their_methods() {
    const METADATA: u16 = 0x03F4;
    for (uri, server) in both() {
        let (client, desk) = client_of(&uri);
        let malformed = |name: &str| {
            let methods = DeskClient::SERVICE.methods;
            let at = methods.iter().position(|method| method.name == name).unwrap() as u8;
            // A key has no capital letters.
            let bytes = [1, b'K', 1, 0, b'v', at, 0x40, 0, 5, 0];
            let mut message = client.alloc(bytes.len()).unwrap();
            message.copy_from_slice(&bytes);
            message
        };
        client.call(METADATA, malformed("echo")).wait().unwrap();
        client.send(METADATA, malformed("note")).wait().unwrap();
        desk.echo("behind the message".into()).wait().unwrap();
        let all = server.end();
        assert_ended(&all, "echo", &[(CallOutcome::Ok, 1), (CallOutcome::Undecoded, 1)]);
        assert_ended(&all, "note", &[(CallOutcome::Undecoded, 1)]);
    }
}

#[test]
fn streams_and_their_items_are_counted_at_both_ends() {
    for (uri, server) in both() {
        let (client, desk) = client_of(&uri);
        client.wait(async {
            let counted: Vec<_> = desk.count(20_000).await.unwrap().collect().await;
            assert_eq!(counted.len(), 20_000);
            let mut sum = desk.sum().await.unwrap();
            for number in 0..10_000 {
                sum.send(&number).await.unwrap();
            }
            assert_eq!(sum.finish().await.unwrap(), 49_995_000);
            let open = desk.count(u64::MAX).await.unwrap();
            assert_eq!(of(&desk.method_stats(), "count").in_progress, 1);
            drop(open);
        });
        let ended = [(CallOutcome::Ok, 1), (CallOutcome::Cancelled, 1)];
        assert_ended(&client.method_stats(), "count", &ended);
        assert_ended(&client.method_stats(), "sum", &[(CallOutcome::Ok, 1)]);
        assert_eq!(of(&client.method_stats(), "count").items, 20_000);
        assert_eq!(of(&client.method_stats(), "sum").items, 10_000);
        if let Running::Tasks(serving) = &server {
            until(|| of(&serving.method_stats(), "count").in_progress == 0);
        }
        let all = server.end();
        // An endpoint may be stopped before the cancellation arrives.
        let count = of(&all, "count");
        assert_eq!(
            (count.started, count.ended(CallOutcome::Ok), count.errors() + count.in_progress),
            (2, 1, 1)
        );
        assert_ended(&all, "sum", &[(CallOutcome::Ok, 1)]);
        assert!(of(&all, "count").items >= 20_000);
        assert_eq!(of(&all, "sum").items, 10_000);
    }
}

#[test]
fn requests_that_end_before_their_handlers_begin_are_counted() {
    let (queue, holds) = (Arc::new(Mutex::new(VecDeque::new())), Arc::new(AtomicBool::new(false)));
    let (spawned, held) = (queue.clone(), holds.clone());
    let server =
        Server::bind("udp://127.0.0.1:0").unwrap().spawn_with(move |handler: HandlerFuture| {
            match held.load(Ordering::Relaxed) {
                true => spawned.lock().unwrap().push_back(handler),
                false => drop(std::thread::spawn(|| futures::executor::block_on(handler))),
            }
        });
    let server = server.add_service(DeskServer::new(Clerk)).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let (_client, desk) = client_of(&uri);
    let queued = |number: usize| until(|| queue.lock().unwrap().len() == number);
    let mut cx = Context::from_waker(std::task::Waker::noop());
    holds.store(true, Ordering::Relaxed);
    desk.stay().deadline(Duration::from_millis(20)).wait().unwrap_err();
    queued(1);
    let mut cancelled = Box::pin(async { desk.stay().await });
    assert!(cancelled.as_mut().poll(&mut cx).is_pending());
    queued(2);
    drop(cancelled);
    holds.store(false, Ordering::Relaxed);
    desk.echo("behind the cancellation".into()).wait().unwrap();
    holds.store(true, Ordering::Relaxed);
    let mut dropped = Box::pin(async { desk.stay().await });
    assert!(dropped.as_mut().poll(&mut cx).is_pending());
    queued(3);
    let last = queue.lock().unwrap().pop_back();
    queue.lock().unwrap().drain(..).for_each(futures::executor::block_on);
    drop(last);
    let given_up = [(CallOutcome::Deadline, 1), (CallOutcome::Cancelled, 2)];
    assert_ended(&serving.method_stats(), "stay", &given_up);
}

#[test]
fn streams_each_way_and_the_items_of_both_ends_are_counted() {
    for (uri, server) in both() {
        let (client, desk) = client_of(&uri);
        client.wait(async {
            let mut twice = desk.twice().await.unwrap();
            for number in 0..100 {
                twice.send(&number).await.unwrap();
            }
            assert_eq!(twice.finish().collect::<Vec<_>>().await.len(), 100);
        });
        for all in [client.method_stats(), server.end()] {
            assert_ended(&all, "twice", &[(CallOutcome::Ok, 1)]);
            assert_eq!(of(&all, "twice").items, 200);
        }
    }
}

/// Middleware that refuses two methods.
struct Refuses;

impl ServerMiddleware for Refuses {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        match call.method() {
            "fail" => Err(Denied::new("by middleware")),
            "stay" => Err(Denied::too_many("by middleware", Duration::ZERO)),
            _ => Ok(()),
        }
    }
}

#[test]
fn requests_that_middleware_refuses_are_counted_by_the_reason() {
    let server = Server::bind("udp://127.0.0.1:0").unwrap().middleware(Refuses);
    let server = server.add_service(DeskServer::new(Clerk)).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let (client, desk) = client_of(&uri);
    desk.echo("text".into()).wait().unwrap();
    desk.fail(0).wait().unwrap_err();
    desk.stay().wait().unwrap_err();
    for all in [client.method_stats(), Running::Tasks(serving).end()] {
        assert_ended(&all, "echo", &[(CallOutcome::Ok, 1)]);
        assert_ended(&all, "fail", &[(CallOutcome::Denied, 1)]);
        assert_ended(&all, "stay", &[(CallOutcome::Overload, 1)]);
    }
}

/// A layer that refuses calls by their metadata.
#[derive(Clone)]
struct Refusing(Next);

impl tower::Service<Request> for Refusing {
    type Response = Response;
    type Error = BoxError;
    type Future = AnswerFuture;
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }
    fn call(&mut self, request: Request) -> AnswerFuture {
        match request.metadata().text("refuse") {
            Some("full") => {
                Box::pin(async { Err(Denied::too_many("full", Duration::ZERO).into()) })
            }
            Some(_) => Box::pin(async { Err("refused by a layer".into()) }),
            None => self.0.call(request),
        }
    }
}

#[test]
fn calls_of_services_and_clients_with_layers_are_counted_by_outcome() {
    let desk = layered(DeskServer::new(Clerk), tower::layer::layer_fn(Refusing));
    let server = Server::bind("udp://127.0.0.1:0").unwrap().add_service(desk).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = Client::connect(&uri).wait().unwrap();
    let layers = LayeredClient::new(client.clone(), tower::layer::util::Identity::new());
    let desk = client.wait(DeskClient::new(layers)).unwrap();
    for _ in 0..3 {
        desk.echo("text".into()).wait().unwrap();
    }
    desk.echo("text".into()).metadata("refuse", "full").wait().unwrap_err();
    desk.echo("text".into()).metadata("refuse", "yes").wait().unwrap_err();
    desk.echo("text".into()).with_response_metadata().wait().0.unwrap();
    desk.fail(0).wait().unwrap();
    desk.fail(9).wait().unwrap_err();
    desk.crash(true).wait().unwrap_err();
    let counted = client.wait(async { desk.count(10).await.unwrap().collect::<Vec<_>>().await });
    assert_eq!(counted.len(), 10);
    assert_eq!(desk.method_stats(), client.method_stats());
    for all in [client.method_stats(), Running::Tasks(serving).end()] {
        let refused = [(CallOutcome::Overload, 1), (CallOutcome::Denied, 1)];
        assert_ended(&all, "echo", &[&[(CallOutcome::Ok, 4)], &refused[..]].concat());
        assert_ended(&all, "fail", &[(CallOutcome::Ok, 1), (CallOutcome::Failed, 1)]);
        assert_ended(&all, "crash", &[(CallOutcome::Panicked, 1)]);
        assert_ended(&all, "count", &[(CallOutcome::Ok, 1)]);
        assert_eq!(of(&all, "count").items, 10);
    }
}

fn waits_for(handle: &ServerHandle, is_so: impl Fn(&MethodStats) -> bool) {
    until(|| is_so(of(&handle.method_stats(), "stay")));
}

#[test]
fn requests_that_do_not_reach_their_handlers_are_counted_by_the_reason() {
    let only_stay = |_: &Peer, target: &Target<'_>| match target.method {
        Some((_, "stay")) => Ok(()),
        _ => Err(Denied::new("for nothing else")),
    };
    let server = Server::bind("udp://127.0.0.1:0").unwrap().max_in_progress(1);
    let server = server.add_service(DeskServer::new(Clerk)).unwrap().authorize(only_stay);
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let (client, desk) = client_of(&uri);
    desk.echo("text".into()).wait().unwrap_err();
    let mut stays = Box::pin(async { desk.stay().await });
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(stays.as_mut().poll(&mut cx).is_pending());
    waits_for(&serving.handle(), |stats| stats.in_progress == 1);
    desk.stay().wait().unwrap_err();
    let all = serving.method_stats();
    assert_ended(&all, "echo", &[(CallOutcome::Denied, 1)]);
    assert_eq!(of(&all, "stay").ended(CallOutcome::Overload), 1);
    assert_eq!((of(&all, "stay").started, of(&all, "stay").in_progress), (2, 1));
    let ours = client.method_stats();
    assert_ended(&ours, "echo", &[(CallOutcome::Denied, 1)]);
    assert_eq!(of(&ours, "stay").ended(CallOutcome::Overload), 1);
    // The server ends during the call, and there is none for the next one.
    serving.handle().stop();
    serving.wait().unwrap();
    client.wait(stays).unwrap_err();
    desk.fail(0).deadline(Duration::from_secs(5)).wait().unwrap_err();
    let ours = client.method_stats();
    assert_eq!(of(&ours, "stay").ended(CallOutcome::Lost), 1, "{ours:?}");
    assert_eq!(of(&ours, "fail").errors(), 1);
}

#[test]
fn calls_of_many_threads_are_counted_exactly() {
    for (uri, server) in both() {
        let (client, desk) = client_of(&uri);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let desk = desk.clone();
                scope.spawn(move || {
                    for n in 0..250 {
                        assert_eq!(desk.fail(n % 2).wait().is_ok(), n % 2 == 0);
                    }
                });
            }
        });
        let halves = [(CallOutcome::Ok, 500), (CallOutcome::Failed, 500)];
        assert_ended(&client.method_stats(), "fail", &halves);
        assert_ended(&server.end(), "fail", &halves);
    }
}

#[test]
fn clients_of_one_service_share_the_counters_of_their_connection() {
    let [(uri, _server), _] = both();
    let (client, first) = client_of(&uri);
    let second = DeskClient::unchecked(client.clone());
    first.echo("text".into()).wait().unwrap();
    second.echo("text".into()).wait().unwrap();
    for all in [client.method_stats(), first.method_stats(), second.method_stats()] {
        assert_ended(&all, "echo", &[(CallOutcome::Ok, 2)]);
    }
    let (another, third) = client_of(&uri);
    third.echo("text".into()).wait().unwrap();
    assert_ended(&another.method_stats(), "echo", &[(CallOutcome::Ok, 1)]);
}

#[test]
fn methods_are_not_counted_where_that_is_switched_off() {
    let config = || Config { count_methods: false, ..Config::default() };
    let server = Server::bind_with("udp://127.0.0.1:0", config()).unwrap();
    let server = server.add_service(DeskServer::new(Clerk)).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = Client::connect_with(&uri, config()).wait().unwrap();
    let desk = DeskClient::unchecked(client.clone());
    desk.echo("text".into()).wait().unwrap();
    client.wait(async { desk.count(3).await.unwrap().collect::<Vec<_>>().await });
    assert!(serving.method_stats().is_empty() && client.method_stats().is_empty());
    let mut rpc = Nexus::bind_with("udp://127.0.0.1:0", config()).unwrap().endpoint().unwrap();
    rpc.add_service(DeskServer::shared(std::rc::Rc::new(Clerk))).unwrap();
    assert!(rpc.method_stats().is_empty());
}
