//! `raft-kv node`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use courser::{Config, Nexus};
use courser_disk::{Directory, Storage};
use courser_kit::interrupt::Interrupt;
use courser_kit::{Failure, parent, units};
use courser_raft_kv::address;
use courser_raft_kv::core::{ReadMode, Settings};
use courser_raft_kv::node::{Node, Options, StartError};
use futures::future::{Either, select};

use super::file::{self, NodeFile};

/// The file of a node.
const FILE: &str = r#"id = 1
cluster = "demo"                         # the same for all nodes
listen = "udp://10.0.0.1:31850"
data = "/var/lib/raft-kv"
election = "250ms"                       # shortest election timeout
max_snapshot = "4GiB"                    # the largest that is received
[peers]                                  # the first members
1 = "udp://10.0.0.1:31850"
2 = "udp://10.0.0.2:31850"
3 = "udp://10.0.0.3:31850"
"#;

fn help() -> String {
    format!(
        "\
The first start of the first of three nodes, the others alike with --id 2 and --id 3:
  raft-kv node --new --id 1 --data /var/lib/raft-kv --listen udp://10.0.0.1:31850 \\
    --peers 1=udp://10.0.0.1:31850,2=udp://10.0.0.2:31850,3=udp://10.0.0.3:31850

A node keeps its log and snapshots in --data, and syncs each write before it counts. With --memory \
it keeps them in memory: it must not be started again under its number.

The first members found the cluster: they have the same --peers, and --new, which is left out later: \
without it a node does not start from a directory that has lost its data. Nodes with data of different \
clusters refuse each other. A further node is started with --join, and \
added by `raft-kv member add`. A node may be started again with another --listen: it announces its \
address to the others.

A node that lacks entries which the leader's log no longer has is sent the whole state as a snapshot. The \
node takes memory for the snapshot and the state in it, and refuses one above --max-snapshot, which both \
nodes report; the leader tries again every 10 s, and when the node is started again.

With --lease-reads a leader answers reads without messages for most of an election timeout after a \
majority has confirmed it. The others need not have the flag, but have to have the same --election: \
nodes with another one are refused. Assumption: within an election timeout the clocks of two nodes differ \
by less than 10 %, and no clock stands still. Do not use it on machines that are suspended, or virtual \
machines that are paused or moved while they run: reads may be stale then.

--config FILE has the same settings, which flags replace:
  {}
",
        FILE.replace('\n', "\n  ").trim_end()
    )
}

#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct NodeArgs {
    /// File with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node's number, from 1
    #[arg(long)]
    id: Option<u64>,
    /// Name of the cluster, the same for all nodes; empty by default
    #[arg(long)]
    cluster: Option<String>,
    /// Address to listen on
    #[arg(long, value_name = "URI")]
    listen: Option<String>,
    /// Address for the others, if it is another one; needed if --listen is a wildcard
    #[arg(long, value_name = "URI")]
    advertise: Option<String>,
    /// Numbers and addresses of the first members, as 1=udp://host:port,2=...
    #[arg(long, value_delimiter = ',', value_name = "ID=URI", value_parser = peer)]
    peers: Vec<(u64, String)>,
    /// Directory of the log and the snapshots
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep the log in memory
    #[arg(long, conflicts_with = "data")]
    memory: bool,
    /// Found a cluster if the directory is empty
    #[arg(long, conflicts_with = "join")]
    new: bool,
    /// Wait until the node is added to a cluster
    #[arg(long)]
    join: bool,
    /// Shortest election timeout; the longest is twice that [default: 250ms]
    #[arg(long, value_parser = units::nonzero_time)]
    election: Option<Duration>,
    /// Answer reads by leases; see below
    #[arg(long)]
    lease_reads: bool,
    /// Send each entry in a message of its own
    #[arg(long)]
    no_batching: bool,
    /// Entries between snapshots [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    snapshot_entries: Option<u64>,
    /// Largest snapshot that is received from another node, in bytes or as 512MiB [default: 4GiB]; a
    /// larger one is refused
    #[arg(long, value_name = "BYTES", value_parser = max_snapshot)]
    max_snapshot: Option<u64>,
    /// End with the program that has started this one
    #[arg(long, hide = true)]
    with_parent: bool,
}

/// Default and least value of the largest snapshot, bytes.
const MAX_SNAPSHOT: u64 = 4 << 30;
const LEAST_SNAPSHOT: u64 = 1 << 20;
/// Drift of clocks that leases allow for.
const DRIFT_PPM: u32 = 100_000;
/// Default of the shortest election timeout.
const ELECTION: Duration = Duration::from_millis(250);
/// Ticks of the shortest election timeout.
const TICKS: usize = 10;
/// Time for calls in progress at the end.
const GRACE: Duration = Duration::from_secs(2);

/// Parses the size of the largest snapshot, at least 1 MiB.
pub(super) fn max_snapshot(text: &str) -> Result<u64, String> {
    match units::bytes(text)? {
        ..LEAST_SNAPSHOT => {
            Err("write at least 1MiB, as a snapshot has the whole state".to_owned())
        }
        bytes => Ok(bytes),
    }
}

fn peer(text: &str) -> Result<(u64, String), String> {
    let wrong =
        || "write the number and the address of a node, as 1=udp://10.0.0.1:31850".to_owned();
    let (id, uri) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.parse().map_err(|_| wrong())?, uri.to_owned()))
}

/// Members by number, each of them with an address of its own.
pub(super) fn distinct(peers: &[(u64, String)]) -> Result<BTreeMap<u64, String>, Failure> {
    let mut members = BTreeMap::new();
    for (id, uri) in peers {
        if members.values().any(|other| other == uri) || members.insert(*id, uri.clone()).is_some()
        {
            return Err(Failure::Usage(format!(
                "the members have node {id} or the address {uri} twice; give each node a number and an \
                 address of its own"
            )));
        }
    }
    Ok(members)
}

fn missing(flag: &str) -> Failure {
    Failure::Usage(format!(
        "{flag} is missing; give it, or `{}` in --config",
        flag.trim_start_matches('-')
    ))
}

impl From<StartError> for Start {
    fn from(error: StartError) -> Self {
        Start(match error {
            StartError::Options(_) => Failure::Usage(error.to_string()),
            _ => Failure::Runtime(error.to_string()),
        })
    }
}

struct Start(Failure);

impl NodeArgs {
    fn settings(&self, file: &NodeFile) -> Result<Settings, Failure> {
        let id = self.id.or(file.id).ok_or_else(|| missing("--id"))?;
        let mut settings = Settings::new(id);
        let election = self.election.or(file.election).unwrap_or(ELECTION);
        settings.tick = (election / TICKS as u32).max(Duration::from_millis(1));
        (settings.silent_ticks, settings.election_ticks) = (TICKS, TICKS..2 * TICKS);
        settings.batching = !self.no_batching;
        if self.lease_reads || file.lease_reads == Some(true) {
            settings.reads = ReadMode::Lease { drift_ppm: DRIFT_PPM };
        }
        settings.snapshot_entries = self.snapshot_entries.unwrap_or(settings.snapshot_entries);
        settings.kept_entries = settings.kept_entries.min(settings.snapshot_entries);
        Ok(settings)
    }

    fn storage(&self, file: &NodeFile) -> Result<Option<Arc<dyn Storage>>, Failure> {
        if self.memory || (self.data.is_none() && file.memory == Some(true)) {
            return Ok(None);
        }
        let path = self.data.clone().or_else(|| file.data.clone()).ok_or_else(|| {
            Failure::Usage("--data is missing; name a directory, or add --memory".to_owned())
        })?;
        match Directory::create(&path) {
            Ok(directory) => Ok(Some(Arc::new(directory))),
            Err(error) => Err(Failure::Usage(format!("--data {}: {error}", path.display()))),
        }
    }

    fn options(
        &self,
        file: &NodeFile,
        settings: Settings,
        uri: String,
    ) -> Result<Options, Failure> {
        let members = match self.peers.is_empty() {
            true => file.members()?,
            false => distinct(&self.peers)?,
        };
        Ok(Options {
            cluster: self.cluster.clone().or_else(|| file.cluster.clone()).unwrap_or_default(),
            uri,
            members,
            join: self.join || file.join == Some(true),
            new: self.new,
            max_snapshot: self.max_snapshot.or(file.max_snapshot).unwrap_or(MAX_SNAPSHOT),
            report: Rc::new({
                let id = settings.id;
                move |text| parent::say(&format!("node {id} {text}"))
            }),
            settings,
        })
    }
}

/// Packets to a node whose network was away are sent again soon after it is back: the node may be needed
/// for the next vote.
fn config(settings: &Settings) -> Config {
    let mut config = Config::default();
    config.rto.1 = config.rto.1.min(settings.election() / 2).max(config.rto.0);
    config
}

pub(crate) fn run(args: &NodeArgs) -> Result<(), Failure> {
    let file = args.config.as_deref().map_or_else(|| Ok(NodeFile::default()), file::load)?;
    let settings = args.settings(&file)?;
    let listen =
        args.listen.clone().or_else(|| file.listen.clone()).ok_or_else(|| missing("--listen"))?;
    let storage = args.storage(&file)?;
    let interrupt = Interrupt::stop(Vec::new())?;
    let stop = if args.with_parent { Some(parent::stop_with_stdin()?) } else { None };
    let nexus = Nexus::bind_with(&listen, config(&settings))?;
    let mut rpc = nexus.endpoint()?;
    let advertised = args.advertise.as_deref().or(file.advertise.as_deref());
    let uri = address::for_others(&listen, &nexus.local_uri(), advertised)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let id = settings.id;
    let options = args.options(&file, settings, uri.clone())?;
    let node = Node::start(&mut rpc, options, storage).map_err(|error| Start::from(error).0)?;
    parent::say(&format!("node {id} is ready at {uri}; Ctrl-C ends it"));
    let local = rpc.local();
    let is_stopped = || {
        let by_parent =
            stop.as_ref().is_some_and(|stop| stop.load(std::sync::atomic::Ordering::Relaxed));
        interrupt.is_set() || by_parent
    };
    let ended = rpc.block_on(async {
        let stopped = pin!(node.stopped());
        let interrupted = pin!(async {
            while !is_stopped() {
                local.sleep(Duration::from_millis(50)).await;
            }
        });
        match select(stopped, interrupted).await {
            Either::Left((reason, _)) => Some(reason),
            Either::Right(_) => None,
        }
    });
    let reason = ended.map_err(|error| Failure::Runtime(error.to_string()))?;
    let grace = if reason.is_some() { Duration::ZERO } else { GRACE };
    rpc.shutdown(grace).map_err(|error| Failure::Runtime(error.to_string()))?;
    reason.map_or(Ok(()), |reason| Err(Failure::Runtime(reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_help_is_valid() {
        let file: NodeFile = toml::from_str(FILE).expect("valid");
        assert_eq!((file.id, file.members().expect("numbers").len()), (Some(1), 3));
        assert_eq!(file.election, Some(ELECTION));
        assert_eq!(file.max_snapshot, Some(MAX_SNAPSHOT));
    }

    #[test]
    fn members_have_numbers_and_addresses_of_their_own() {
        let peers = |texts: &[&str]| {
            let peers: Vec<_> = texts.iter().map(|text| peer(text).unwrap()).collect();
            distinct(&peers).map(|members| members.len()).ok()
        };
        assert_eq!(peers(&["1=udp://a:1", "2=udp://a:2"]), Some(2));
        assert_eq!(peers(&["1=udp://a:1", "1=udp://a:2"]), None);
        assert_eq!(peers(&["1=udp://a:1", "2=udp://a:1"]), None);
    }

    #[test]
    fn the_largest_snapshot_has_a_unit_and_a_least_value() {
        assert_eq!(max_snapshot("512MiB"), Ok(512 << 20));
        assert_eq!(max_snapshot("1048576"), Ok(1 << 20));
        assert!(max_snapshot("1048575").is_err_and(|text| text.contains("at least 1MiB")));
        assert!(max_snapshot("some").is_err());
    }
}
