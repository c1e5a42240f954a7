//! The key-value service as it is in production, with several libraries: each call has a token, a
//! trace and a deadline, and is repeated when that is safe and may help.
//!
//! The program with a library is `production/NAME.rs`. They share what does not depend on a library: the
//! store, with faults, and the settings.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::drive::runtime;

mod courser;
mod store;
mod tarpc;
mod tonic;

use store::Store;

/// The token of clients that may use the service.
const TOKEN: &str = "blue-42";
/// How often a call is made at most.
const ATTEMPTS: u32 = 3;
/// The pause before the second attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const MOST_PAUSE: Duration = Duration::from_millis(50);
/// Calls that the store refuses at first: a client needs all its attempts.
const REFUSALS: u32 = ATTEMPTS - 1;
/// The trace of the client that is shown.
const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
/// A server is replaced within this time.
const RESTART: Duration = Duration::from_secs(20);

/// The deadline of calls that have none of their own.
static DEADLINE: OnceLock<Duration> = OnceLock::new();

tokio::task_local! {
    /// The trace that a task works for.
    static TRACE_ID: u128;
}

/// The default deadline.
fn deadline() -> Duration {
    *DEADLINE.get_or_init(|| Duration::from_millis(100))
}

/// The trace of this task; 0: it has none.
fn trace_id() -> u128 {
    TRACE_ID.try_with(|trace_id| *trace_id).unwrap_or_default()
}

/// The same as a text.
fn trace() -> String {
    format!("{:032x}", trace_id())
}

/// The server and the client of a library.
trait Program: 'static {
    /// The address that the server is told to listen to.
    const LISTEN: &'static str = "127.0.0.1:0";

    /// Serves the store until an error; calls `ready` with an address for clients.
    fn serve(
        listen: &str,
        store: Arc<Store>,
        ready: impl FnOnce(String),
    ) -> impl Future<Output = Result<()>>;
    /// Makes calls and prints their outcomes. `restart` replaces the server.
    fn client(
        address: &str,
        restart: impl FnOnce() -> Result<()>,
    ) -> impl Future<Output = Result<()>>;
}

struct Courser;
struct Tonic;
struct Tarpc;

impl Program for Courser {
    const LISTEN: &'static str = "udp://127.0.0.1:0";

    async fn serve(listen: &str, store: Arc<Store>, ready: impl FnOnce(String)) -> Result<()> {
        courser::serve(listen, store, ready).await
    }

    async fn client(address: &str, restart: impl FnOnce() -> Result<()>) -> Result<()> {
        courser::client(address, restart).await
    }
}

impl Program for Tonic {
    async fn serve(listen: &str, store: Arc<Store>, ready: impl FnOnce(String)) -> Result<()> {
        tonic::serve(listen, store, |address| ready(address.to_string())).await
    }

    async fn client(address: &str, restart: impl FnOnce() -> Result<()>) -> Result<()> {
        tonic::client(address, restart).await
    }
}

impl Program for Tarpc {
    async fn serve(listen: &str, store: Arc<Store>, ready: impl FnOnce(String)) -> Result<()> {
        tarpc::serve(listen, store, |address| ready(address.to_string())).await
    }

    async fn client(address: &str, restart: impl FnOnce() -> Result<()>) -> Result<()> {
        tarpc::client(address, restart).await
    }
}

/// The programs by name.
pub(super) const PROGRAMS: &[(&str, super::Program)] = &[
    ("courser-production", demonstrate::<Courser>),
    ("tonic-production", demonstrate::<Tonic>),
    ("tarpc-production", demonstrate::<Tarpc>),
];

/// Sets the deadline of calls, before the first one.
///
/// # Errors
/// There was one.
pub fn set_deadline(after: Duration) -> Result<()> {
    DEADLINE.set(after).map_err(|set| anyhow!("calls have a deadline already: {set:?}"))
}

/// A server in a thread of its own. All of it ends with the thread.
struct Running {
    address: String,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Running {
    fn start<P: Program>(listen: &str, store: &Arc<Store>) -> Result<Self> {
        let (listen, store) = (listen.to_owned(), store.clone());
        let ((ready, address), (stop, stopped)) = (mpsc::channel(), oneshot::channel());
        let thread = thread::spawn(move || {
            runtime()?.block_on(async {
                let server = P::serve(&listen, store, |address| drop(ready.send(address)));
                match select(pin!(server), stopped).await {
                    Either::Left((served, _)) => served.and_then(|()| bail!("the server ended")),
                    Either::Right(_) => Ok(()),
                }
            })
        });
        match address.recv() {
            Ok(address) => Ok(Running { address, stop, thread }),
            Err(_) => Err(ended(thread).err().unwrap_or_else(|| anyhow!("it does not listen"))),
        }
    }

    fn stop(self) -> Result<()> {
        drop(self.stop);
        ended(self.thread)
    }

    /// Another server of the same store, with the same address.
    fn replace<P: Program>(self, store: &Arc<Store>) -> Result<Self> {
        let (address, limit) = (self.address.clone(), Instant::now() + RESTART);
        self.stop()?;
        loop {
            match Running::start::<P>(&address, store) {
                // The address may be in use until the last thread of the first one has ended.
                Err(_) if Instant::now() < limit => thread::sleep(Duration::from_millis(5)),
                outcome => return outcome.context("the server was not replaced"),
            }
        }
    }
}

fn ended(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("the server has panicked")))
}

/// Runs a server and the client, and prints what the server has logged.
fn demonstrate<P: Program>() -> Result<()> {
    let store = Arc::new(Store::refusing(REFUSALS));
    let first = Running::start::<P>(P::LISTEN, &store)?;
    let (address, mut second) = (first.address.clone(), None);
    let restart = || {
        second = Some(first.replace::<P>(&store)?);
        Ok(())
    };
    runtime()?.block_on(TRACE_ID.scope(TRACE, P::client(&address, restart)))?;
    second.context("the client does not replace the server")?.stop()?;
    println!("{} attempts were refused as the store was busy", store.refused());
    for call in store.calls() {
        println!("{}", report(&call)?);
    }
    Ok(())
}

/// The line of a call, without times and ports.
fn report(call: &store::Call) -> Result<String> {
    let store::Call { method, trace, peer, left } = call;
    let peer: SocketAddr = peer.with_context(|| format!("{method} has no peer"))?;
    let left = left.with_context(|| format!("{method} has no deadline"))?;
    ensure!(left > Duration::ZERO && left <= deadline(), "{method} has {left:?} left");
    Ok(format!("log: {method} of {} in trace {}", peer.ip(), trace.as_deref().unwrap_or("none")))
}
