//! The file as it is written.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::Topology;

type Text = Spanned<String>;
/// Any number of TOML, so that the check of its range names the key.
type Number = Option<Spanned<i64>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) cluster: Cluster,
    #[serde(default)]
    pub(super) interconnect: Interconnect,
    #[serde(default)]
    pub(super) icmp: Icmp,
    pub(super) node: Vec<Node>,
    #[serde(default)]
    pub(super) routes: Routes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    pub(super) name: Text,
    pub(super) topology: Topology,
    pub(super) failure_timeout: Option<Text>,
    pub(super) seed: Number,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Interconnect {
    pub(super) mtu: Number,
    pub(super) batching: Option<bool>,
    pub(super) batch_budget: Option<Text>,
    pub(super) queue: Number,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Icmp {
    pub(super) per_second: Number,
    pub(super) burst: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) name: Text,
    pub(super) address: Text,
    #[serde(default)]
    pub(super) peers: BTreeMap<Text, Text>,
    pub(super) control: Option<Text>,
    pub(super) import: Option<Import>,
    #[serde(default)]
    pub(super) port: Vec<Port>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Import {
    pub(super) table: Spanned<i64>,
    pub(super) daemon: Option<Text>,
    pub(super) grace: Option<Text>,
    pub(super) limit: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Port {
    pub(super) interface: Text,
    pub(super) addresses: Spanned<Vec<Text>>,
    pub(super) mtu: Number,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Routes {
    #[serde(default)]
    pub(super) files: Vec<Text>,
}
