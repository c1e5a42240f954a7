//! The main functions of a contestant's two processes. Each is pinned before it starts a thread and
//! ends with its parent, or at a time limit.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use courser_bench::affinity::pin_current_thread;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::contestants;
use crate::work::Work;

/// What both sides are told by the process that starts them.
#[derive(Clone, Debug, clap::Args)]
pub struct ChildArgs {
    /// Contestant
    pub name: String,
    /// Core to stay on
    #[arg(long)]
    pub cpu: usize,
    /// Seconds after which the process ends whatever it is doing
    #[arg(long)]
    pub limit: u64,
    /// Process that started this one
    #[arg(long)]
    pub parent: i32,
}

/// Before the first line of a contestant's own.
fn begin(args: &ChildArgs) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot bind to the parent")?;
    // It may have died before that call.
    ensure!(getppid() == Pid::from_raw(args.parent), "the process that started this one is gone");
    let limit = Duration::from_secs(args.limit);
    // Also a thread that is not pinned: a process all of whose threads are pinned to one CPU looks
    // to Courser like one that must share it with its peer, and it would yield all the time.
    std::thread::Builder::new().name("limit".to_owned()).spawn(move || {
        std::thread::sleep(limit);
        eprintln!("peers: a process of a contestant ran for {limit:?}: ended");
        std::process::exit(3);
    })?;
    Ok(pin_current_thread(args.cpu)?)
}

fn say(line: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// Says why a child ends, in one line: `failed` and the reason.
fn fail(error: &anyhow::Error) -> Result<()> {
    say(&format!("failed {}", format!("{error:#}").replace('\n', " ")))
}

/// The server's process.
///
/// # Errors
/// The parent cannot be told of a failure.
pub fn serve(args: &ChildArgs) -> Result<()> {
    let served = begin(args).and_then(|()| {
        let contestant = contestants::named(&args.name)?;
        (contestant.serve)(&mut |address| say(&format!("ready {address}")))
    });
    served.or_else(|error| fail(&error))
}

/// The client's process: one line of work in, one line with a sample out.
///
/// # Errors
/// The parent cannot be told of a failure.
pub fn call(args: &ChildArgs, address: &str) -> Result<()> {
    let called = begin(args).and_then(|()| {
        let mut client = (contestants::named(&args.name)?.connect)(address)?;
        say("ready")?;
        for line in stdin().lock().lines() {
            let work: Work = serde_json::from_str(&line?)?;
            work.validate()?;
            let sample = client.run(&work)?;
            say(&format!("sample {}", serde_json::to_string(&sample)?))?;
        }
        Ok(())
    });
    called.or_else(|error| fail(&error))
}
