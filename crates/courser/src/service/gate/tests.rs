//! Gates of an endpoint in memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::service::{CallContext, Denied, IncomingCall, Peer, ServerMiddleware, Target};
use crate::tests::in_memory::{Memory, connect, drive_until, endpoints};
use crate::{Nexus, Session};

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The request type of the first method of a server.
const FIRST: u16 = 0x4000;
const PLAIN: u16 = 1;

#[courser_macros::service(codec = Bytes, name = "Gated", crate = crate)]
trait Gated {
    async fn echo(&self, text: String) -> String;
    /// The tenant in the metadata of the request.
    async fn tenant(&self, cx: CallContext) -> String;
    #[oneway]
    async fn note(&self, text: String);
}

struct Texts;

impl LocalGated for Texts {
    async fn echo(&self, text: String) -> String {
        text
    }
    async fn tenant(&self, cx: CallContext) -> String {
        cx.metadata().text("tenant").unwrap_or_default().to_owned()
    }
    async fn note(&self, _: String) {}
}

struct LetsPass;

impl ServerMiddleware for LetsPass {
    fn before(&self, _: &mut IncomingCall<'_>) -> Result<(), Denied> {
        Ok(())
    }
}

fn all_may(_: &Peer, _: &Target<'_>) -> Result<(), Denied> {
    Ok(())
}

fn pair() -> (Memory, Memory, String) {
    let nexus = Nexus::bind("mem://127.0.0.1:0").unwrap();
    let [mut server, client] = endpoints(&nexus);
    server.add_service(GatedServer::local(Texts)).unwrap();
    server.on(PLAIN, |cx, request| cx.reply(request));
    (server, client, nexus.local_uri())
}

/// Runs a future of the client to its end.
fn run<F, R>(client: &mut Memory, server: &mut Memory, future: F) -> R
where
    F: Future<Output = R> + 'static,
    R: 'static,
{
    let result = Rc::<RefCell<Option<R>>>::default();
    let place = result.clone();
    drop(client.local().spawn(async move { *place.borrow_mut() = Some(future.await) }));
    drive_until(client, server, |_, _| result.borrow().is_some());
    result.take().unwrap()
}

async fn calls(gated: GatedClient<Session>) {
    assert_eq!(gated.echo("a".to_owned()).await.unwrap(), "a");
    assert_eq!(gated.echo("b".to_owned()).metadata("tenant", "blue").await.unwrap(), "b");
    assert_eq!(gated.tenant().await.unwrap(), "");
    assert_eq!(gated.tenant().metadata("tenant", "blue").await.unwrap(), "blue");
    gated.note("c".to_owned()).await.unwrap();
    gated.note("d".to_owned()).metadata("tenant", "blue").await.unwrap();
    // Behind the messages.
    assert_eq!(gated.echo("e".to_owned()).await.unwrap(), "e");
}

#[test]
fn requests_pass_gates_while_everything_that_threads_share_is_locked() {
    let (done, is_done) = channel();
    let thread = thread::spawn(move || {
        let (mut server, mut client, uri) = pair();
        server.authorize(all_may);
        server.middleware(LetsPass);
        let session = client.local().session(connect(&mut client, &mut server, &uri));
        let gated = run(&mut client, &mut server, GatedClient::new(session)).unwrap();
        let services = server.handlers.services.clone();
        let locked = services.lock_all();
        run(&mut client, &mut server, calls(gated));
        drop(locked);
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => panic!("a request waits for a lock"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => thread.join().unwrap(),
    }
}

#[test]
fn a_handler_has_a_gate_if_something_is_checked_before_it() {
    let (mut server, ..) = pair();
    let has_gate = |server: &mut Memory, number: u16| {
        server.handlers.by_type[usize::from(number)].as_mut().unwrap().renew()
    };
    assert_eq!([PLAIN, FIRST].map(|number| has_gate(&mut server, number)), [false, false]);
    server.middleware(LetsPass);
    assert_eq!([PLAIN, FIRST].map(|number| has_gate(&mut server, number)), [false, true]);
    server.on(PLAIN + 1, |cx, request| cx.reply(request));
    assert!(!has_gate(&mut server, PLAIN + 1));
    server.authorize(all_may);
    assert_eq!([PLAIN, PLAIN + 1, FIRST].map(|number| has_gate(&mut server, number)), [true; 3]);
    server.on(PLAIN + 2, |cx, request| cx.reply(request));
    assert!(has_gate(&mut server, PLAIN + 2));
}
