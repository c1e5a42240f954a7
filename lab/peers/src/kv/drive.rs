//! Drives a library's asynchronous client: tokio tasks that share one handle, on a runtime with
//! several threads, which is what `#[tokio::main]` makes.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use courser_bench::clock::Clock;
use courser_bench::window::Sample;
use courser_kit::latency::Latency;
use futures::channel::oneshot;
use futures::future::{Either, select};
use tokio::runtime::{Builder, Runtime};

use super::check;
use crate::contestants::{Client, Contestant, Ready, Role};
use crate::work::{MIN_CALLS, Work, value};

/// Entries of the store that is measured.
pub const ENTRIES: usize = 1024;

/// What a window may take beyond its own length.
const SLACK: Duration = Duration::from_secs(8);

/// Why a method of the service has no result.
#[derive(Debug)]
pub enum Failure {
    NotFound,
    TooLarge,
    Other(anyhow::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("not found"),
            Self::TooLarge => f.write_str("too large"),
            Self::Other(error) => write!(f, "{error:#}"),
        }
    }
}

impl Failure {
    /// Of a library, not of the service.
    pub fn other(error: impl Into<anyhow::Error>) -> Self {
        Self::Other(error.into())
    }
}

/// A library's server, and the handle of its client, which tasks share.
pub trait Library: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    /// What it is, for people.
    const ABOUT: &'static str;
    const TRANSPORT: &'static str;
    const ROLE: Role;
    /// What the server is told to listen to.
    const LISTEN: &'static str = "127.0.0.1:0";

    /// Serves until an error; calls `ready` with an address for `connect`.
    fn serve(listen: &str, ready: impl FnOnce(String)) -> impl Future<Output = Result<()>>;
    fn connect(address: &str) -> impl Future<Output = Result<Self>>;
    /// The client of the library's program.
    fn program(address: &str) -> impl Future<Output = Result<()>>;

    fn get(&self, key: &str) -> impl Future<Output = Result<Vec<u8>, Failure>> + Send;
    fn put(&self, key: &str, value: Vec<u8>) -> impl Future<Output = Result<(), Failure>> + Send;
    fn scan(
        &self,
        from: &str,
    ) -> impl Future<Output = Result<Vec<(String, Vec<u8>)>, Failure>> + Send;
}

/// Its contestant.
pub const fn contestant<L: Library>() -> Contestant {
    Contestant {
        name: L::NAME,
        about: L::ABOUT,
        transport: L::TRANSPORT,
        role: L::ROLE,
        max_request: super::KEY,
        serve: serve::<L>,
        connect: connect::<L>,
    }
}

/// As `#[tokio::main]` makes it: a thread for each core that this process may use.
pub(super) fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("cannot make a tokio runtime")
}

fn serve<L: Library>(ready: Ready<'_>) -> Result<()> {
    runtime()?.block_on(L::serve(L::LISTEN, |address| ready(&address)))?;
    bail!("the server ended")
}

fn connect<L: Library>(address: &str) -> Result<Box<dyn Client>> {
    let runtime = runtime()?;
    let library = runtime.block_on(async {
        let library = L::connect(address).await.context("cannot connect")?;
        for index in 0..ENTRIES {
            let key = key(index);
            let put = library.put(&key, value(key.as_bytes()).to_vec()).await;
            put.map_err(|failure| anyhow::anyhow!("cannot fill the store: {failure}"))?;
        }
        anyhow::Ok(library)
    })?;
    Ok(Box::new(Tasks { runtime, library, clock: Clock::new() }))
}

/// Runs the server until the program's client has ended.
pub fn demonstrate<L: Library>() -> Result<()> {
    let (ready, address) = oneshot::channel();
    let server = L::serve(L::LISTEN, |address| drop(ready.send(address)));
    let client = async { L::program(&address.await.context("the server does not listen")?).await };
    runtime()?.block_on(async {
        match select(std::pin::pin!(server), std::pin::pin!(client)).await {
            Either::Left((served, _)) => served.and_then(|()| bail!("the server ended")),
            Either::Right((outcome, _)) => outcome,
        }
    })
}

/// The key of that entry: 16 bytes.
pub fn key(index: usize) -> String {
    format!("key-{index:012}")
}

struct Tasks<L> {
    runtime: Runtime,
    library: L,
    clock: Clock,
}

/// The calls of one task that ended within the window.
#[derive(Default)]
struct Calls {
    latencies_ns: Vec<u64>,
    /// End of the window: later if the task was too slow.
    until_ns: u64,
}

impl<L: Library> Client for Tasks<L> {
    fn run(&mut self, work: &Work) -> Result<Sample> {
        if work.check_all {
            self.runtime.block_on(check::all(&self.library))?;
        }
        let limit = Duration::from_millis(work.warm_ms + work.window_ms) + SLACK;
        let from_ns = self.clock.now_ns() + work.warm_ms * 1_000_000;
        let until_ns = from_ns + work.window_ms * 1_000_000;
        let tasks: Vec<_> = (0..work.in_flight)
            .map(|task| {
                let (library, clock) = (self.library.clone(), self.clock.clone());
                self.runtime.spawn(repeat(library, clock, task, work.in_flight, from_ns, until_ns))
            })
            .collect();
        let (mut latency, mut calls, mut end_ns) = (Latency::new(), 0, until_ns);
        self.runtime.block_on(async {
            let all = async {
                for task in tasks {
                    let done = task.await.context("a task ended early")??;
                    done.latencies_ns.iter().for_each(|&ns| latency.record(ns));
                    calls += done.latencies_ns.len() as u64;
                    end_ns = end_ns.max(done.until_ns);
                }
                anyhow::Ok(())
            };
            let ended = tokio::time::timeout(limit, all).await;
            ended.with_context(|| format!("calls hang: a window was not over after {limit:?}"))?
        })?;
        Ok(Sample {
            operations: calls,
            bytes: calls * work.size as u64,
            elapsed_ns: (end_ns - from_ns).max(1),
            latency: latency.take(),
            cpu_ns: None,
        })
    }
}

/// `get` of one entry after another until the window is over. Every value is compared.
async fn repeat<L: Library>(
    library: L,
    clock: Clock,
    task: usize,
    tasks: usize,
    from_ns: u64,
    until_ns: u64,
) -> Result<Calls> {
    let fewest = MIN_CALLS.div_ceil(tasks as u64) as usize;
    // The entries of tasks differ, so that an answer to another task's call is noticed.
    let entries: Vec<_> = (task % ENTRIES..ENTRIES).step_by(tasks).map(key).collect();
    let mut calls = Calls { latencies_ns: Vec::with_capacity(1 << 16), until_ns };
    let mut began_ns = clock.now_ns();
    for key in entries.iter().cycle() {
        match library.get(key).await {
            Ok(answer) if answer == value(key.as_bytes()) => {}
            Ok(answer) => bail!("a wrong answer to get of {key}: {} bytes", answer.len()),
            Err(failure) => bail!("get of {key} failed: {failure}"),
        }
        let now_ns = clock.now_ns();
        if now_ns >= until_ns && calls.latencies_ns.len() >= fewest {
            return Ok(calls);
        }
        if now_ns >= from_ns {
            calls.latencies_ns.push(now_ns - began_ns);
            calls.until_ns = calls.until_ns.max(now_ns);
        }
        began_ns = now_ns;
    }
    bail!("a task without entries")
}
