//! `raft-kv status`, `stat` and `member`.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use courser_kit::table::Table;
use courser_kit::{Failure, out};
use courser_raft_kv::client::{Client, Net};
use courser_raft_kv::core::{MemberChange, Status};
use serde_json::json;

use super::reach::{Reach, at_endpoint, failure, with_client};

#[derive(Debug, Args)]
#[command(after_help = "\
`applied`, `log` and `snapshot` are indexes of the log: of the last entry in the state, of the first and \
last entry that the node keeps, and of the last entry in its last snapshot. A node has caught up when its \
`applied` is that of the leader. Roles: leader, follower, learner (does not vote), candidate (there is no \
leader), stalled (its disk is behind, and it takes no part), stopped.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A node joins in four steps: start it with --join and an empty directory, `member add`, wait until \
`raft-kv status` shows that it has caught up, `member promote`. A node that lost its directory is \
removed, and added again under a number that was never used.")]
pub(crate) struct MemberArgs {
    #[command(subcommand)]
    change: ChangeArgs,
}

#[derive(Debug, Subcommand)]
enum ChangeArgs {
    /// Add a node, which receives the log and does not vote yet
    Add {
        /// Its number, which no node had before
        id: u64,
        /// Its address
        uri: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Make a node that has caught up a voter
    Promote {
        /// Its number
        id: u64,
        #[command(flatten)]
        reach: Reach,
    },
    /// Remove a node
    Remove {
        /// Its number
        id: u64,
        /// Also if the other voters that answer are no majority: the cluster stops until more run
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        reach: Reach,
    },
}

/// Longest time to connect with a node.
const CONNECT: Duration = Duration::from_secs(1);

/// The states of the nodes, and of the members that they name.
pub(crate) fn states(reach: &Reach) -> Result<Vec<(String, Option<Status>)>, Failure> {
    let first = reach.nodes.first().cloned().unwrap_or_default();
    at_endpoint(&first, async |local| {
        let mut states: Vec<(String, Option<Status>)> = Vec::new();
        let mut uris = reach.nodes.clone();
        while let Some(uri) = uris.pop() {
            let state = match Net::connect(&local, &uri, reach.timeout.min(CONNECT)).await {
                Some(kv) => kv.status().deadline(reach.timeout).await.ok(),
                None => None,
            };
            let members = state.iter().flat_map(|status| &status.members);
            for member in members.filter(|member| !member.uri.is_empty()) {
                let is_known = uris.contains(&member.uri)
                    || member.uri == uri
                    || states.iter().any(|(uri, _)| *uri == member.uri);
                if !is_known {
                    uris.push(member.uri.clone());
                }
            }
            states.push((uri, state));
        }
        Ok(states)
    })
    .map(|mut states| {
        states.sort_by_key(|(uri, state)| (state.as_ref().map_or(u64::MAX, |s| s.id), uri.clone()));
        // An address in another notation.
        states.dedup_by(|a, b| {
            a.1.is_some() && a.1.as_ref().map(|s| s.id) == b.1.as_ref().map(|s| s.id)
        });
        states
    })
}

fn as_json(states: &[(String, Option<Status>)]) -> Result<(), Failure> {
    let nodes: Vec<_> =
        states.iter().map(|(uri, state)| json!({ "uri": uri, "status": state })).collect();
    let mut out = out::stdout();
    writeln!(out, "{}", json!({ "nodes": nodes }))?;
    Ok(out.flush()?)
}

fn reachable(states: &[(String, Option<Status>)]) -> Result<(), Failure> {
    if states.iter().any(|(_, state)| state.is_some()) {
        return Ok(());
    }
    Err(Failure::Runtime("no node answers; see that one of --nodes runs".to_owned()))
}

pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let states = states(&args.reach)?;
    if args.reach.json {
        as_json(&states)?;
        return reachable(&states);
    }
    let mut table =
        Table::ruled(["node", "role", "term", "applied", "log", "snapshot", "keys", "address"]);
    table.align_right([0, 2, 3, 5, 6]);
    for (uri, state) in &states {
        let Some(s) = state else {
            table.add_row(["", "no answer", "", "", "", "", "", uri]);
            continue;
        };
        let log = format!("{} to {}", s.log.0, s.log.1);
        let numbers = [s.id, s.term, s.applied, s.snapshot, s.keys].map(|n| n.to_string());
        let [id, term, applied, snapshot, keys] = numbers;
        table.add_row([id, s.role.clone(), term, applied, log, snapshot, keys, uri.clone()]);
    }
    let mut out = out::stdout();
    for line in table.lines() {
        writeln!(out, "{line}")?;
    }
    for (uri, state) in &states {
        if let Some(note) = state.as_ref().and_then(|state| state.note.as_ref()) {
            writeln!(out, "{uri}: {note}")?;
        }
    }
    out.flush()?;
    reachable(&states)
}

pub(crate) fn stat(args: &StatusArgs) -> Result<(), Failure> {
    let states = states(&args.reach)?;
    if args.reach.json {
        as_json(&states)?;
        return reachable(&states);
    }
    let mut out = out::stdout();
    for state in states.iter().filter_map(|(_, state)| state.as_ref()) {
        let counters = serde_json::to_value(&state.counters).unwrap_or_default();
        writeln!(out, "node {} ({})", state.id, state.role)?;
        if let Some(note) = &state.note {
            writeln!(out, "  {note}")?;
        }
        for (name, value) in [("disk_wait_ms", state.disk_wait_ms()), ("stalls", state.stalls())] {
            writeln!(out, "  {name:<20} {value:>12}")?;
        }
        for (name, value) in counters.as_object().into_iter().flatten() {
            writeln!(out, "  {name:<20} {value:>12}")?;
        }
    }
    out.flush()?;
    reachable(&states)
}

/// The state that a change would make, as a sentence.
fn so_already(change: &MemberChange) -> String {
    match change {
        MemberChange::Add { id, uri } => format!("node {id} is a member at {uri}"),
        MemberChange::Promote { id } => format!("node {id} is a voter"),
        MemberChange::Remove { id, .. } => format!("node {id} is no member"),
    }
}

pub(crate) fn member(args: &MemberArgs) -> Result<(), Failure> {
    let (change, reach) = match &args.change {
        ChangeArgs::Add { id, uri, reach } => {
            (MemberChange::Add { id: *id, uri: uri.clone() }, reach)
        }
        ChangeArgs::Promote { id, reach } => (MemberChange::Promote { id: *id }, reach),
        ChangeArgs::Remove { id, force, reach } => {
            (MemberChange::Remove { id: *id, force: *force }, reach)
        }
    };
    let changed =
        with_client(reach, async |kv: Client<_>| kv.change(&change).await.map_err(failure))?;
    let mut out = out::stdout();
    if reach.json {
        writeln!(out, "{}", json!({ "changed": changed }))?;
    } else if !changed {
        writeln!(out, "{}; nothing was changed", so_already(&change))?;
    }
    Ok(out.flush()?)
}
