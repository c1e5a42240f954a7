//! `raft-kv quickstart`: three nodes and a client, and the end of the leader under load.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use courser::Local;
use courser_kit::out::{self, BOLD};
use courser_kit::text::{WIDTH, wrap};
use courser_kit::units::show_per_second;
use courser_kit::{Failure, json, units};
use serde_json::json;

use super::load::{Callers, Faults, Load};
use super::local::{Kind, Nodes};
use super::reach::at_endpoint;

#[derive(Debug, Args)]
pub(crate) struct QuickstartArgs {
    /// Keep the logs in memory
    #[arg(long)]
    memory: bool,
    /// Shortest election timeout of the nodes
    #[arg(long, default_value = "250ms", value_parser = units::nonzero_time)]
    election: Duration,
    /// Number of times that the leader is killed
    #[arg(long, default_value_t = 1)]
    kills: u32,
    /// Time between kills
    #[arg(long, default_value = "2s", value_parser = units::nonzero_time)]
    every: Duration,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    json: Option<std::path::PathBuf>,
}

/// Writers of the client, each with a key of its own.
const WRITERS: usize = 8;
/// Longest time of an attempt of a call.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Interval of the live line.
const LINE: Duration = Duration::from_millis(200);

/// Text on standard output, with a line that is redrawn on a terminal.
struct Screen {
    is_silent: bool,
    is_live: bool,
}

impl Screen {
    fn say(&self, text: &str) -> Result<(), Failure> {
        if self.is_silent {
            return Ok(());
        }
        let mut out = out::stdout();
        if self.is_live {
            write!(out, "\r\x1b[K")?;
        }
        for line in wrap(text, WIDTH) {
            writeln!(out, "{line}")?;
        }
        Ok(out.flush()?)
    }

    fn live(&self, text: &str) -> Result<(), Failure> {
        if self.is_live {
            let mut out = out::stdout();
            write!(out, "\r\x1b[K{text}")?;
            out.flush()?;
        }
        Ok(())
    }
}

/// One end of a leader.
struct Kill {
    node: usize,
    next: Option<usize>,
    silent: Duration,
}

pub(crate) fn run(args: &QuickstartArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let is_silent = json::only(args.json.as_deref());
    let is_live = !is_silent && std::io::stdout().is_terminal();
    let screen = Screen { is_silent, is_live };
    screen.say(&format!("{BOLD}Three nodes{BOLD:#}"))?;
    let kind = Kind {
        scheme: "udp",
        memory: args.memory,
        election: args.election,
        flags: &[],
        is_apart: false,
    };
    let mut nodes = Nodes::start(3, kind)?;
    for (at, uri) in nodes.uris().iter().enumerate() {
        let log = if args.memory { "log in memory" } else { "log on disk, synced" };
        screen.say(&format!("  node {} at {uri}, {log}", at + 1))?;
    }
    let first = nodes.uris()[0].clone();
    let (load, kills) = at_endpoint(&first, async |local| {
        let callers = Callers { writers: WRITERS, readers: 0, attempt: ATTEMPT };
        let load = Load::start(&local, nodes.uris(), &callers);
        let mut kills = Vec::new();
        screen.say(&format!(
            "{BOLD}A client{BOLD:#} with {WRITERS} writers: each replaces the value of its key by the \
             next number, if it finds the last one"
        ))?;
        watch(&screen, &local, &load, args.every).await?;
        for _ in 0..args.kills {
            kills.push(kill(&screen, &local, &load, &mut nodes, args).await?);
        }
        load.stop(&local).await?;
        Ok((load, kills))
    })?;
    report(args, &screen, &load, &kills)
}

/// Shows the live line for some time.
async fn watch(screen: &Screen, local: &Local, load: &Load, time: Duration) -> Result<(), Failure> {
    let end_ns = local.now_ns() + time.as_nanos() as u64;
    let mut before = (local.now_ns(), load.acknowledged());
    while local.now_ns() < end_ns {
        local.sleep(LINE).await;
        let now = (local.now_ns(), load.acknowledged());
        let rate = (now.1 - before.1) as f64 * 1e9 / (now.0 - before.0).max(1) as f64;
        before = now;
        let leader = load.leader().map_or("no leader".to_owned(), |uri| format!("leader {uri}"));
        screen.live(&format!(
            "  {leader}  {} writes  {}",
            load.acknowledged(),
            show_per_second(rate, "/s")
        ))?;
    }
    Ok(())
}

async fn kill(
    screen: &Screen,
    local: &Local,
    load: &Load,
    nodes: &mut Nodes,
    args: &QuickstartArgs,
) -> Result<Kill, Failure> {
    let uri =
        load.leader().ok_or_else(|| Failure::Runtime("no node leads; repeat this".to_owned()))?;
    let node = nodes.at(&uri).unwrap_or(0);
    let before = load.acknowledged();
    load.watch_gap(local.now_ns());
    nodes.kill(node);
    screen
        .say(&format!("node {} leads, and is killed (kill -9) after {before} writes", node + 1))?;
    watch(screen, local, load, args.every).await?;
    let silent = load.longest_gap(local.now_ns());
    let next = load.leader().and_then(|uri| nodes.at(&uri));
    let text = match next {
        Some(next) => format!(
            "node {} leads now: no write was acknowledged for {} ms, {} since",
            next + 1,
            silent.as_millis(),
            load.acknowledged() - before
        ),
        None => "no node leads yet".to_owned(),
    };
    screen.say(&text)?;
    if nodes.is_memory() {
        // Its vote and its log are lost, so it must not come back under its number.
        return Ok(Kill { node, next, silent });
    }
    nodes.run(node)?;
    screen.say(&format!("node {} is started again, and catches up", node + 1))?;
    watch(screen, local, load, args.every / 2).await?;
    nodes.take_lines();
    Ok(Kill { node, next, silent })
}

fn report(
    args: &QuickstartArgs,
    screen: &Screen,
    load: &Load,
    kills: &[Kill],
) -> Result<(), Failure> {
    let Faults { lost, twice, .. } = load.faults();
    screen.say(&format!(
        "{BOLD}Result:{BOLD:#} {} acknowledged writes, {lost} lost, {twice} applied twice",
        load.acknowledged()
    ))?;
    let limit = args.election * 2 * 3;
    let late = kills.iter().filter(|kill| kill.silent > limit).count();
    screen.say(&format!(
        "The service was back within three election timeouts ({} ms each at most) in {} of {} cases.",
        (args.election * 2).as_millis(),
        kills.len() - late,
        kills.len()
    ))?;
    if let Some(target) = &args.json {
        let ends: Vec<_> = kills
            .iter()
            .map(|kill| {
                json!({
                    "node": kill.node + 1, "next": kill.next.map(|next| next + 1),
                    "silent_ns": kill.silent.as_nanos() as u64,
                })
            })
            .collect();
        let report = json!({
            "bench": "raft-kv quickstart", "transport": "udp",
            "config": {
                "nodes": 3, "writers": WRITERS, "memory": args.memory,
                "election_timeout_ns": args.election.as_nanos() as u64,
            },
            "results": [{
                "acknowledged": load.acknowledged(), "lost": lost, "applied_twice": twice,
                "late": late, "kills": ends,
            }],
            "environment": json::environment(None),
        });
        json::write(target, &report)?;
    }
    if lost + twice > 0 {
        return Err(Failure::Runtime("writes were lost or applied twice; report this".to_owned()));
    }
    Ok(())
}
