//! The ends of calls: middleware sees the outcome that the statistics of the method count.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use courser::service::{
    BlockingChannel, CallEnd, CallOutcome, Denied, Incoming, IncomingCall, MethodStats,
    ServerMiddleware, Stream,
};
use courser::{Client, Nexus, Rpc, Server, Session, SessionState};
use futures::StreamExt;

use crate::running::Running;
use crate::world::until;

// In the order of the request types.
#[courser::service]
trait Desk {
    fn count(&self, to: u64) -> impl Stream<Item = u64>;
    async fn crash(&self, after_a_wait: bool);
    async fn echo(&self, text: String) -> String;
    async fn fail(&self) -> Result<u32, u32>;
    /// A stream without an item.
    fn hang(&self) -> impl Stream<Item = u64>;
    #[oneway]
    async fn note(&self, after: After);
    async fn stay(&self);
    async fn sum(&self, numbers: Incoming<u64>) -> u64;
}

const ECHO: u16 = 0x4002;
const NOTE: u16 = 0x4005;
const METHODS: [&str; 8] = ["count", "crash", "echo", "fail", "hang", "note", "stay", "sum"];

/// The end of the handler of a message.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
enum After {
    Nothing,
    Panic,
    AWaitPanic,
    Never,
}

struct Clerk;

impl Desk for Clerk {
    fn count(&self, to: u64) -> impl Stream<Item = u64> {
        futures::stream::iter(0..to)
    }
    async fn crash(&self, after_a_wait: bool) {
        if after_a_wait {
            crate::kv::yields().await;
        }
        panic!("a panic on purpose");
    }
    async fn echo(&self, text: String) -> String {
        text
    }
    async fn fail(&self) -> Result<u32, u32> {
        Err(7)
    }
    fn hang(&self) -> impl Stream<Item = u64> {
        futures::stream::pending()
    }
    async fn note(&self, after: After) {
        match after {
            After::Nothing => {}
            After::Panic => panic!("a panic on purpose"),
            After::AWaitPanic => {
                crate::kv::yields().await;
                panic!("a panic on purpose");
            }
            After::Never => std::future::pending().await,
        }
    }
    async fn stay(&self) {
        std::future::pending().await
    }
    async fn sum(&self, numbers: Incoming<u64>) -> u64 {
        numbers.filter_map(|n| std::future::ready(n.ok())).fold(0, async |sum, n| sum + n).await
    }
}

/// Keeps the ends of calls.
#[derive(Clone, Default)]
struct Ends {
    begun: Arc<AtomicUsize>,
    ends: Arc<Mutex<Vec<(String, CallOutcome)>>>,
}

impl Ends {
    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// All ends.
    fn all(&self) -> Vec<(String, CallOutcome)> {
        self.ends.lock().unwrap().clone()
    }
}

impl ServerMiddleware for Ends {
    fn before(&self, _: &mut IncomingCall<'_>) -> Result<(), Denied> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn after(&self, end: &CallEnd<'_>) {
        self.ends.lock().unwrap().push((end.method.to_owned(), end.outcome));
    }
}

/// Refuses calls with this key.
struct Refuses;

impl ServerMiddleware for Refuses {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        match call.metadata().text("refuse") {
            Some("denied") => Err(Denied::new("no")),
            Some("too many") => Err(Denied::too_many("too many", Duration::from_secs(1))),
            _ => Ok(()),
        }
    }
}

/// One whose handlers are tasks of other threads, or run in place.
fn tasks(ends: &Ends, in_place: bool) -> (String, Running) {
    let server = Server::bind("udp://127.0.0.1:0").unwrap().in_place(in_place);
    let server = server.middleware(ends.clone()).middleware(Refuses);
    Running::tasks(server.add_service(DeskServer::new(Clerk)).unwrap())
}

/// An endpoint on its own thread.
fn thread(ends: Ends) -> (String, Running) {
    Running::thread(|rpc| {
        rpc.add_service(DeskServer::local(Clerk)).unwrap();
        rpc.middleware(ends);
        rpc.middleware(Refuses);
    })
}

/// A client that sends a call and is not polled from when the server has it, so that it does not cancel it.
fn send_only<F>(uri: &str, ends: &Ends, call: impl FnOnce(DeskClient<Session>) -> F) -> Rpc
where
    F: Future<Output = ()> + 'static,
{
    let mut rpc = Nexus::bind("udp://127.0.0.1:0").unwrap().endpoint().unwrap();
    let session = rpc.connect(uri).unwrap();
    until(|| {
        rpc.poll();
        rpc.session_state(session) == SessionState::Connected
    });
    let desk = DeskClient::unchecked(rpc.local().session(session));
    drop(rpc.local().spawn(call(desk)));
    let before = ends.begun();
    until(|| {
        rpc.poll();
        ends.begun() > before
    });
    rpc
}

/// Polls a call until the server has it, and drops it.
fn give_up<R>(ends: &Ends, call: impl Future<Output = R>) {
    let (before, mut call) = (ends.begun(), Box::pin(call));
    let mut cx = Context::from_waker(Waker::noop());
    until(|| {
        assert!(Pin::new(&mut call).poll(&mut cx).is_pending());
        ends.begun() > before
    });
}

/// Long enough for a stream to be opened before.
const SOON: Duration = Duration::from_millis(400);

/// Calls whose handlers are dropped at their deadline: by a server itself, by an endpoint when the client,
/// which `polls`, has cancelled them then.
fn calls_with_deadlines(
    (uri, polls): (&str, bool),
    ends: &Ends,
    expect: &dyn Fn(&str, CallOutcome),
) {
    let late = |method: &str, mut sent: Rpc| {
        let before = ends.all().len();
        until(|| {
            let _ = polls && sent.poll();
            ends.all().len() > before
        });
        expect(method, CallOutcome::Deadline);
    };
    late(
        "stay",
        send_only(uri, ends, |desk| async move { drop(desk.stay().deadline(SOON).await) }),
    );
}

fn ends_agree((uri, server): (String, Running), ends: &Ends) {
    let client = Client::connect(&uri).wait().unwrap();
    let desk = client.wait(DeskClient::new(client.clone())).unwrap();
    let seen = AtomicUsize::new(0);
    let expect = |method: &str, outcome| {
        let at = seen.fetch_add(1, Ordering::SeqCst);
        until(|| ends.all().len() > at);
        assert_eq!(ends.all()[at..], [(method.to_owned(), outcome)]);
    };
    desk.echo("text".to_owned()).wait().unwrap();
    expect("echo", CallOutcome::Ok);
    desk.fail().wait().unwrap_err();
    expect("fail", CallOutcome::Failed);
    for after_a_wait in [false, true] {
        desk.crash(after_a_wait).wait().unwrap_err();
        expect("crash", CallOutcome::Panicked);
    }
    for (refusal, outcome) in [("denied", CallOutcome::Denied), ("too many", CallOutcome::Overload)]
    {
        desk.echo("text".to_owned()).metadata("refuse", refusal).wait().unwrap_err();
        expect("echo", outcome);
    }
    client.call(ECHO, client.alloc(0).unwrap()).wait().unwrap();
    expect("echo", CallOutcome::Undecoded);
    assert_eq!(client.wait(async { desk.count(3).await.unwrap().count().await }), 3);
    expect("count", CallOutcome::Ok);
    for (after, outcome) in [
        (After::Nothing, CallOutcome::Ok),
        (After::Panic, CallOutcome::Panicked),
        (After::AWaitPanic, CallOutcome::Panicked),
    ] {
        desk.note(after).wait().unwrap();
        expect("note", outcome);
    }
    client.send(NOTE, client.alloc(0).unwrap()).wait().unwrap();
    expect("note", CallOutcome::Undecoded);
    give_up(ends, async { desk.stay().await });
    expect("stay", CallOutcome::Cancelled);
    give_up(ends, async { desk.hang().await.unwrap().next().await });
    expect("hang", CallOutcome::Cancelled);
    drop(send_only(&uri, ends, |desk| async move { drop(desk.stay().await) }));
    expect("stay", CallOutcome::Cancelled);
    let is_endpoint = matches!(server, Running::Thread { .. });
    calls_with_deadlines((&uri, is_endpoint), ends, &expect);
    for method in ["hang", "sum"] {
        let at = ends.all().len();
        client.wait(async {
            if method == "hang" {
                drop(desk.hang().deadline(SOON).await.unwrap().next().await);
            } else {
                let mut sum = desk.sum().deadline(SOON).await.unwrap();
                while sum.send(&1).await.is_ok() && sum.flush().await.is_ok() {}
            }
        });
        // Their client may be the first to end them.
        until(|| ends.all().len() > at);
        let outcome = ends.all()[at].1;
        assert!(matches!(outcome, CallOutcome::Deadline | CallOutcome::Cancelled), "{outcome:?}");
        expect(method, outcome);
    }
    if !is_endpoint {
        // An endpoint does not drop the future of a message at its deadline.
        desk.note(After::Never).deadline(SOON).wait().unwrap();
        expect("note", CallOutcome::Deadline);
        // Dropped with the server.
        let before = ends.begun();
        let mut stays = Box::pin(async { desk.stay().await });
        let mut cx = Context::from_waker(Waker::noop());
        until(|| stays.as_mut().poll(&mut cx).is_pending() && ends.begun() > before);
        let stats = server.end();
        expect("stay", CallOutcome::Cancelled);
        return agrees(&stats, ends);
    }
    agrees(&server.end(), ends);
}

/// Asserts that the statistics have the ends that middleware has seen.
fn agrees(stats: &[MethodStats], ends: &Ends) {
    let all = ends.all();
    for method in METHODS {
        let stats = stats.iter().find(|stats| stats.method == method).unwrap();
        for outcome in CallOutcome::ALL {
            let seen = all.iter().filter(|(m, o)| (m.as_str(), *o) == (method, outcome)).count();
            assert_eq!(stats.ended(outcome), seen as u64, "{method} {outcome:?} of {all:?}");
        }
    }
}

#[test]
fn middleware_sees_the_outcomes_that_statistics_count_on_a_server() {
    for in_place in [false, true] {
        let ends = Ends::default();
        ends_agree(tasks(&ends, in_place), &ends);
    }
}

#[test]
fn middleware_sees_the_outcomes_that_statistics_count_on_an_endpoint() {
    let ends = Ends::default();
    ends_agree(thread(ends.clone()), &ends);
}
