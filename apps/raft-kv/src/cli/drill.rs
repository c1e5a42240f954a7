//! `raft-kv drill`: the leader is killed or cut off again and again under load.

use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use clap::{Args, ValueEnum};
use courser::Local;
use courser_kit::{Failure, ResultArgs, json, units};
use serde_json::{Value, json};

use super::load::{Callers, Load};
use super::local::{Kind, Nodes, ended};
use super::reach::at_endpoint;

#[derive(Debug, Args)]
#[command(after_help = "\
The command starts three nodes with logs on disk. Writers replace the value of their key by the next \
number, if they find their last one; readers compare with the last acknowledged number. The command \
fails if an acknowledged write is lost, a write is applied twice, a read is stale, or no write is \
acknowledged for longer than three of the longest election timeouts, which are twice --election.

A node that was killed is started again, and one that was cut off is joined again, at half of --every.

Examples:
  raft-kv drill                kill -9 every 2 s, for 60 s
  raft-kv drill --by cut       cut the network of the leader (needs root)
  raft-kv drill --by peers     cut it to other nodes only (needs root)")]
pub(crate) struct DrillArgs {
    /// Event that happens to the leader
    #[arg(long, value_enum, default_value = "kill")]
    by: By,
    /// Time with events
    #[arg(long = "for", default_value = "60s", value_parser = units::nonzero_time, value_name = "TIME")]
    time: Duration,
    /// Time from one event to the next
    #[arg(long, default_value = "2s", value_parser = units::nonzero_time)]
    every: Duration,
    /// Shortest election timeout of the nodes; the longest is twice that
    #[arg(long, default_value = "250ms", value_parser = units::nonzero_time)]
    election: Duration,
    /// Writers, each with a key of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    writers: u32,
    /// Readers, each with a connection of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=100))]
    readers: u32,
    /// The nodes answer reads by leases
    #[arg(long)]
    lease_reads: bool,
    #[command(flatten)]
    result: ResultArgs,
}

/// An event of the leader.
#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
pub(super) enum By {
    /// kill -9
    Kill,
    /// Its network is cut
    Cut,
    /// It is cut off from the other nodes, but not from clients
    Peers,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Kill => "kill",
            By::Cut => "cut",
            By::Peers => "peers",
        }
    }

    fn begin(self, nodes: &mut Nodes, at: usize) -> Result<(), Failure> {
        match self {
            By::Kill => {
                nodes.kill(at);
                Ok(())
            }
            By::Cut => nodes.apart()?.set_link(at, false),
            By::Peers => nodes.apart()?.set_peers(at, false),
        }
    }

    /// Ends the event. Calls go on while a node starts.
    async fn end(self, local: &Local, nodes: &mut Nodes, at: usize) -> Result<(), Failure> {
        match self {
            By::Kill => {
                let ready = nodes.launch(at)?;
                while let Err(error) = ready.try_recv() {
                    if error == TryRecvError::Disconnected {
                        return Err(ended(at));
                    }
                    local.sleep(POLL).await;
                }
                Ok(())
            }
            By::Cut => nodes.apart()?.set_link(at, true),
            By::Peers => nodes.apart()?.set_peers(at, true),
        }
    }
}

/// Interval at which something is looked at again.
const POLL: Duration = Duration::from_millis(1);

/// An event, and the longest time without an acknowledged write until the next one.
struct Event {
    node: usize,
    silent: Duration,
}

pub(crate) fn run(args: &DrillArgs) -> Result<(), Failure> {
    args.result.check()?;
    let flags: Vec<String> =
        args.lease_reads.then(|| "--lease-reads".to_owned()).into_iter().collect();
    let is_apart = args.by != By::Kill;
    let kind =
        Kind { scheme: "udp", memory: false, election: args.election, flags: &flags, is_apart };
    let mut nodes = Nodes::start(3, kind)?;
    let uris = nodes.uris().to_vec();
    let callers = Callers {
        writers: args.writers as usize,
        readers: args.readers as usize,
        attempt: args.election,
    };
    let (load, events) = at_endpoint(&uris[0], async |local| {
        let load = Load::start(&local, &uris, &callers);
        let mut events = Vec::new();
        local.sleep(args.every).await;
        let end_ns = local.now_ns() + args.time.as_nanos() as u64;
        while local.now_ns() < end_ns {
            events.push(event(args, &local, &load, &mut nodes).await?);
        }
        load.stop(&local).await?;
        Ok((load, events))
    })?;
    report(args, &load, &events)
}

async fn event(
    args: &DrillArgs,
    local: &Local,
    load: &Load,
    nodes: &mut Nodes,
) -> Result<Event, Failure> {
    // The next event waits for a leader to have it.
    let node = loop {
        load.check()?;
        if let Some(node) = load.leader().and_then(|uri| nodes.at(&uri)) {
            break node;
        }
        local.sleep(POLL).await;
    };
    let began_ns = local.now_ns();
    load.watch_gap(began_ns);
    args.by.begin(nodes, node)?;
    local.sleep(args.every / 2).await;
    args.by.end(local, nodes, node).await?;
    let taken = Duration::from_nanos(local.now_ns() - began_ns);
    local.sleep(args.every.saturating_sub(taken)).await;
    // A service that is silent is measured to the end of that.
    while load.open_gap(local.now_ns()) > args.every / 2 {
        load.check()?;
        local.sleep(POLL).await;
    }
    nodes.take_lines();
    Ok(Event { node, silent: load.longest_gap(local.now_ns()) })
}

fn report(args: &DrillArgs, load: &Load, events: &[Event]) -> Result<(), Failure> {
    let limit = args.election * 2 * 3;
    let faults = load.faults();
    let mut silent: Vec<_> = events.iter().map(|event| event.silent.as_nanos() as u64).collect();
    silent.sort_unstable();
    let median = silent.get(silent.len() / 2).copied().unwrap_or(0);
    let longest = silent.last().copied().unwrap_or(0);
    let late = events.iter().filter(|event| event.silent > limit).count();
    let each: Vec<_> = events
        .iter()
        .map(|event| json!({"node": event.node + 1, "silent_ns": event.silent.as_nanos() as u64}))
        .collect();
    let report = json!({
        "bench": "raft-kv drill", "transport": "udp",
        "config": {
            "nodes": 3, "by": args.by.name(), "every_ns": args.every.as_nanos() as u64,
            "time_ns": args.time.as_nanos() as u64, "writers": args.writers,
            "readers": args.readers, "lease_reads": args.lease_reads,
            "election_timeout_min_ns": args.election.as_nanos() as u64,
            "election_timeout_max_ns": args.election.as_nanos() as u64 * 2,
        },
        "results": [{
            "acknowledged": load.acknowledged(), "reads": load.reads(), "lost": faults.lost,
            "applied_twice": faults.twice, "stale_reads": faults.stale, "late": late,
            "limit_ns": limit.as_nanos() as u64, "silent_p50_ns": median, "silent_max_ns": longest,
            "events": each,
        }],
        "environment": json::environment(None),
    });
    args.result.show(&report, || text(&report))?;
    if faults.lost + faults.twice + faults.stale > 0 {
        let text = "writes were lost or applied twice, or reads were stale; report this";
        return Err(Failure::Runtime(text.to_owned()));
    }
    if late > 0 {
        return Err(Failure::Runtime(format!(
            "the service was back late in {late} cases; repeat this on a machine without other load"
        )));
    }
    Ok(())
}

fn text(report: &Value) -> String {
    let result = &report["results"][0];
    let ms = |key: &str| result[key].as_u64().unwrap_or(0) / 1_000_000;
    format!(
        "{} events ({}), {} acknowledged writes, {} reads\n\
         {} lost, {} applied twice, {} stale reads\n\
         no write was acknowledged for {} ms (median), {} ms (longest); late after {} ms: {}\n",
        result["events"].as_array().map_or(0, Vec::len),
        report["config"]["by"].as_str().unwrap_or_default(),
        result["acknowledged"],
        result["reads"],
        result["lost"],
        result["applied_twice"],
        result["stale_reads"],
        ms("silent_p50_ns"),
        ms("silent_max_ns"),
        ms("limit_ns"),
        result["late"],
    )
}
