//! The file of a node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use courser_kit::{Failure, units};
use serde::Deserialize;

/// Settings of a node; flags replace them.
#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeFile {
    pub(super) id: Option<u64>,
    pub(super) cluster: Option<String>,
    pub(super) listen: Option<String>,
    pub(super) advertise: Option<String>,
    pub(super) data: Option<PathBuf>,
    pub(super) memory: Option<bool>,
    pub(super) join: Option<bool>,
    #[serde(default)]
    pub(super) peers: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "time")]
    pub(super) election: Option<Duration>,
    pub(super) lease_reads: Option<bool>,
    #[serde(default, deserialize_with = "max_snapshot")]
    pub(super) max_snapshot: Option<u64>,
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    units::nonzero_time(&text).map(Some).map_err(serde::de::Error::custom)
}

fn max_snapshot<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    super::node::max_snapshot(&text).map(Some).map_err(serde::de::Error::custom)
}

/// Largest file, bytes.
const MAX_FILE: u64 = 1 << 20;

/// Reads a file.
pub(super) fn load(path: &Path) -> Result<NodeFile, Failure> {
    let wrong = |text: String| Failure::Usage(format!("{}: {text}", path.display()));
    let len = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if len > MAX_FILE {
        return Err(wrong("the file is too large; name the file of a node".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    toml::from_str(&text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))
}

impl NodeFile {
    /// The members by number.
    pub(super) fn members(&self) -> Result<BTreeMap<u64, String>, Failure> {
        let parse = |(id, uri): (&String, &String)| {
            let number = id.parse().map_err(|_| {
                Failure::Usage(format!(
                    "{id} in [peers] is no number of a node; write 1 = \"udp://...\""
                ))
            })?;
            Ok((number, uri.clone()))
        };
        let peers = self.peers.iter().map(parse).collect::<Result<Vec<_>, Failure>>()?;
        super::node::distinct(&peers)
    }
}
