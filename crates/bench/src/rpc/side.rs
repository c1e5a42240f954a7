//! What both sides of a benchmark are made of: the transport, endpoints and raw sockets on it, and
//! the description that the measuring side hands to the other.

use std::path::PathBuf;

use clap::ValueEnum;
use courser::{Config, MemOptions, Nexus, OptionSet, Recovery, Rpc};
use courser_net::{AnyTransport, BindSpec, FaultConfig, FaultPlan, FaultTransport, OpenError, any};
use serde::{Deserialize, Serialize};

use super::spec::BenchError;

/// The transport that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Over {
    /// The kernel's UDP over the loopback, two processes.
    Udp,
    /// Shared memory, two processes.
    Shm,
    /// Queues in memory, two threads of one process.
    Mem,
}

impl Over {
    /// Its scheme.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
            Self::Mem => "mem",
        }
    }
}

/// Settings of a pair of endpoints, one on each side, where they differ from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Largest message, if that is more than the default.
    pub size: usize,
    /// Packets that a session may have outstanding.
    pub credits: Option<u32>,
    /// Calls that a session may have under way.
    pub slots: Option<u8>,
    /// Largest frame, bytes.
    pub frame: Option<usize>,
    /// Sessions, if they are more than the default limit allows.
    pub sessions: usize,
    /// Packets that a transmit burst may hold.
    pub burst: Option<usize>,
    /// Optimizations that are switched off.
    pub off: Vec<super::switch::Switch>,
    /// How lost packets are found and sent again.
    pub recovery: Recovery,
    /// Faults of the frames that each side sends, as [`FaultPlan`] reads them; `none` passes them
    /// through the same layer untouched, `None` is without it.
    pub fault: Option<String>,
}

/// The two sides, as far as chance is concerned: they draw different faults, each the same ones in
/// every run and, frame by frame, for every variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// The side that measures.
    Client = 1,
    /// The other.
    Server = 2,
}

impl Variant {
    /// As the endpoint takes it.
    pub fn config(&self) -> Config {
        let defaults = Config::default();
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        let mut config = Config {
            credits: self.credits,
            slots: self.slots.unwrap_or(defaults.slots),
            max_frame: self.frame,
            max_msg_size: defaults.max_msg_size.max(size),
            max_sessions: defaults.max_sessions.max(self.sessions + SPARE_SESSIONS),
            max_sessions_per_peer: defaults
                .max_sessions_per_peer
                .max(self.sessions + SPARE_SESSIONS),
            max_held_per_peer: defaults.max_held_per_peer.max(self.size.saturating_mul(4)),
            failure_timeout: PATIENCE,
            connect_timeout: PATIENCE,
            datapath_timeout: PATIENCE,
            recovery: self.recovery,
            ..defaults
        };
        if let Some(burst) = self.burst {
            (config.tuning.tx_frames, config.tuning.tx_items) = (burst, burst);
        }
        self.off.iter().for_each(|switch| switch.turn_off(&mut config));
        config
    }
}

/// After how long without a call a session gives back what only a busy one needs.
pub fn idle_after() -> std::time::Duration {
    Config::default().idle_after
}

/// How long a side may be silent. Both spin, so on a machine with other work each may wait long for a
/// core, the threads that answer heartbeats too. A side that ends is noticed at once all the same.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Sessions besides those that are counted.
const SPARE_SESSIONS: usize = 64;

/// What the other side is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The transport.
    pub over: Over,
    /// The network in memory, if it is that.
    pub network: String,
    /// The shared page; of no meaning to a thread of the same process.
    pub line: PathBuf,
    /// The core to stay on.
    pub cpu: usize,
    /// Whether to give the core up after each poll that found nothing.
    pub yields: bool,
    /// Its endpoints.
    pub variants: Vec<Variant>,
    /// Largest frame of the raw socket.
    pub raw_frame: Option<usize>,
    /// The calls that it makes itself when it is asked to.
    pub back: Vec<Back>,
}

/// Calls that the other side makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Back {
    /// From which of its endpoints.
    pub variant: usize,
    /// To where.
    pub uri: String,
    /// What.
    pub load: super::caller::Load,
}

/// What the other side says when it is ready: where it can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Its endpoints.
    pub uris: Vec<String>,
    /// Its raw socket: node, in hexadecimal, and port.
    pub raw: (String, u32),
}

/// An endpoint of one variant, with its nexus.
pub struct Side {
    /// Lives as long as the endpoint.
    pub nexus: Nexus,
    /// The endpoint.
    pub rpc: Rpc,
}

impl Side {
    /// Opens it on the loopback.
    ///
    /// # Errors
    /// A setting is out of range, or the transport cannot be opened.
    pub fn open(
        over: Over,
        network: &str,
        variant: &Variant,
        seed: Seed,
    ) -> Result<Self, BenchError> {
        let uri = format!("{}://127.0.0.1:0", over.name());
        let nexus = Nexus::bind_with(&uri, variant.config())?;
        let Some(fault) = &variant.fault else {
            let rpc = open_on(over, network, &nexus, variant.frame)?;
            return Ok(Self { nexus, rpc });
        };
        let tx: FaultPlan = fault.parse().map_err(|e| BenchError::Raw(format!("{e}")))?;
        let faults = FaultConfig { seed: seed as u64, tx, rx: FaultPlan::default() };
        let wrap = |transport| Box::new(FaultTransport::new(transport, faults)) as AnyTransport;
        let rpc = match over {
            Over::Udp | Over::Shm => nexus.endpoint_with(wrap)?,
            Over::Mem => nexus.endpoint_on(wrap(open_mem(network, variant.frame)?))?,
        };
        Ok(Self { nexus, rpc })
    }
}

/// An endpoint of a nexus, with frames of a given size.
///
/// # Errors
/// The transport cannot be opened.
pub fn open_on(
    over: Over,
    network: &str,
    nexus: &Nexus,
    frame: Option<usize>,
) -> Result<Rpc, BenchError> {
    match over {
        Over::Udp | Over::Shm => Ok(nexus.endpoint()?),
        // Threads meet in a network of their own. The node's number is that of the control
        // connection's address.
        Over::Mem => Ok(nexus.endpoint_on(open_mem(network, frame)?)?),
    }
}

/// A raw socket on the loopback, for either side.
///
/// # Errors
/// [`BenchError::Raw`].
pub fn open_raw(
    over: Over,
    network: &str,
    frame: Option<usize>,
) -> Result<AnyTransport, BenchError> {
    if over == Over::Mem {
        return open_mem(network, frame);
    }
    open(&format!("{}://127.0.0.1:0", over.name()), frame, OptionSet::new())
}

fn open_mem(network: &str, frame: Option<usize>) -> Result<AnyTransport, BenchError> {
    let host = u128::from(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    let options = MemOptions { host: Some(host), ..MemOptions::default() };
    open(&format!("mem://{network}:0"), frame, OptionSet::new().with(options))
}

fn open(
    address: &str,
    frame: Option<usize>,
    options: OptionSet,
) -> Result<AnyTransport, BenchError> {
    let raw = |e: OpenError| BenchError::Raw(e.to_string());
    let mut spec = BindSpec { options, ..address.parse().map_err(raw)? };
    spec.common.max_frame = frame;
    any::open(&spec).map_err(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_messages_raise_the_endpoints_limit_and_small_ones_do_not() {
        let of = |size| Variant { size, ..Variant::default() }.config();
        let defaults = Config::default();
        assert_eq!(of(32).max_msg_size, defaults.max_msg_size);
        assert_eq!(of(64 << 20).max_msg_size, 64 << 20);
        assert_eq!(of(32).max_sessions, defaults.max_sessions);
        let many = Variant { sessions: 100_000, ..Variant::default() }.config();
        assert!(many.max_sessions > 100_000 && many.max_sessions_per_peer > 100_000);
    }

    #[test]
    fn a_network_in_memory_joins_sides_and_sockets() {
        let open = |seed| Side::open(Over::Mem, "side-test", &Variant::default(), seed);
        let (a, b) = (open(Seed::Client).expect("opens"), open(Seed::Server).expect("opens"));
        assert_eq!(a.rpc.transport().local_addr().host, b.rpc.transport().local_addr().host);
        let mut raw = open_raw(Over::Mem, "side-test", Some(4096)).expect("opens");
        assert_eq!(raw.caps().max_frame, 4096);
        assert!(raw.path_open(a.rpc.transport().local_addr(), None).is_ok());
    }
}
