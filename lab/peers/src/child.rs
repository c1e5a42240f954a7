//! The main functions of a contestant's two processes. Each is pinned before it starts a thread and
//! ends with its parent, or at a time limit.

use std::io::{BufRead, stdin};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use courser_kit::affinity::pin_current_thread;
use courser_kit::parent::say;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::contestants::{self, Contestant};
use crate::kv;
use crate::work::Work;

/// What both sides are told by the process that starts them.
#[derive(Clone, clap::Args)]
pub struct ChildArgs {
    /// Suite and contestant: `kv/tarpc`
    #[arg(value_parser = in_suite)]
    contestant: &'static Contestant,
    /// Core to stay on; none: the kernel chooses
    #[arg(long)]
    cpu: Option<usize>,
    /// Seconds after which the process ends whatever it is doing
    #[arg(long)]
    limit: u64,
    /// Process that started this one
    #[arg(long)]
    parent: i32,
}

fn in_suite(name: &str) -> Result<&'static Contestant> {
    match name.split_once('/') {
        Some(("peers", name)) => contestants::named(name),
        Some(("kv", name)) => kv::named(name),
        _ => bail!("no suite has a contestant `{name}`"),
    }
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
    Ok(args.cpu.map_or(Ok(()), pin_current_thread)?)
}

/// The end of a side: its status, and one line, `failed` and the reason, if it failed.
fn end(outcome: Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    say(&format!("failed {}", format!("{error:#}").replace('\n', " ")));
    ExitCode::FAILURE
}

/// The server's process.
pub fn serve(args: &ChildArgs) -> ExitCode {
    let ready = |address: &str| say(&format!("ready {address}"));
    end(begin(args).and_then(|()| (args.contestant.serve)(&ready)))
}

/// The client's process: one line of work in, one line with a sample out.
pub fn call(args: &ChildArgs, address: &str) -> ExitCode {
    end(begin(args).and_then(|()| calls(args, address)))
}

fn calls(args: &ChildArgs, address: &str) -> Result<()> {
    let mut client = (args.contestant.connect)(address)?;
    say("ready");
    for line in stdin().lock().lines() {
        let work: Work = serde_json::from_str(&line?)?;
        let sample = client.run(&work)?;
        say(&format!("sample {}", serde_json::to_string(&sample)?));
    }
    Ok(())
}
