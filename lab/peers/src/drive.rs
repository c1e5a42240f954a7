//! Drives a contestant whose calls are futures: one task per request in flight, all on one
//! thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use courser_bench::clock::Clock;
use courser_bench::window::Sample;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::contestants::Client;
use crate::work::{Kind, Meter, Work, request};

/// What a window may take beyond its own length.
const SLACK: Duration = Duration::from_secs(8);

/// One RPC of a library.
pub trait Caller: 'static {
    /// Calls, and gives the answer to `check` where the library has it, without another copy.
    fn call(
        &self,
        kind: Kind,
        request: &Bytes,
        check: &dyn Fn(&[u8]) -> Result<()>,
    ) -> impl Future<Output = Result<()>>;
}

/// A runtime on the present thread.
///
/// # Errors
/// The system has no resources for one.
pub fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot make a tokio runtime")
}

/// A [`Client`] out of a [`Caller`].
pub struct AsyncClient<C> {
    runtime: Runtime,
    tasks: LocalSet,
    caller: Rc<C>,
    clock: Clock,
}

impl<C: Caller> AsyncClient<C> {
    /// Connects within a new runtime of this thread.
    ///
    /// # Errors
    /// `connect` failed.
    pub fn connect(connect: impl Future<Output = Result<C>>) -> Result<Box<dyn Client>> {
        let (runtime, tasks) = (runtime()?, LocalSet::new());
        let caller = Rc::new(tasks.block_on(&runtime, connect)?);
        Ok(Box::new(Self { runtime, tasks, caller, clock: Clock::new() }))
    }
}

impl<C: Caller> Client for AsyncClient<C> {
    fn run(&mut self, work: &Work) -> Result<Sample> {
        let limit = Duration::from_millis(work.warm_ms + work.window_ms) + SLACK;
        let meter = Rc::new(RefCell::new(Meter::start(&self.clock, work)));
        let all = async {
            let mut tasks = Vec::with_capacity(work.in_flight);
            for index in 0..work.in_flight {
                let (caller, meter) = (Rc::clone(&self.caller), Rc::clone(&meter));
                tasks.push(tokio::task::spawn_local(repeat(caller, meter, *work, index)));
            }
            for task in tasks {
                task.await.context("a task ended early")??;
            }
            anyhow::Ok(())
        };
        let limited = async { tokio::time::timeout(limit, all).await };
        match self.tasks.block_on(&self.runtime, limited) {
            Ok(outcome) => outcome?,
            Err(_) => bail!("calls hang: a window was not over after {limit:?}"),
        }
        let sample = meter.borrow_mut().sample();
        Ok(sample)
    }
}

/// One request in flight, again and again until the window is over.
async fn repeat<C: Caller>(
    caller: Rc<C>,
    meter: Rc<RefCell<Meter>>,
    work: Work,
    index: usize,
) -> Result<()> {
    let request = Bytes::from(request(index, work.size));
    let check = |answer: &[u8]| meter.borrow_mut().check(index, &request, answer);
    loop {
        caller.call(work.kind, &request, &check).await?;
        if !meter.borrow_mut().ended(index) {
            return Ok(());
        }
    }
}
