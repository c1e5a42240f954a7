//! Parts of both sides of a benchmark: the transport, endpoints and raw sockets, and the setup that the
//! measuring side passes to the other side.

use std::path::PathBuf;

use clap::ValueEnum;
use courser::{Config, Control, Integrity, MemOptions, Nexus, OptionSet, Packing, Recovery, Rpc};
use courser_net::{AnyTransport, BindSpec, FaultConfig, FaultPlan, FaultTransport, OpenError, any};
use serde::{Deserialize, Serialize};

use super::error::BenchError;

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

    /// Returns whether calls over it have congestion control: with shared memory each peer has a receive
    /// queue of its own, which the credits limit.
    pub fn has_congestion_control(self) -> bool {
        self != Self::Shm
    }
}

/// The address of both sides, unless they are on different hosts.
pub const LOOPBACK: &str = "127.0.0.1";

/// Settings of a pair of endpoints, one on each side, that differ from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Largest message, if it is above the default.
    pub size: usize,
    /// Packets that a session may have in flight.
    pub credits: Option<u32>,
    /// Calls that a session may have in flight.
    pub slots: Option<u8>,
    /// Largest frame, bytes.
    pub frame: Option<usize>,
    /// Sessions, if they exceed the default limit.
    pub sessions: usize,
    /// Endpoints of the other side in addition to the first, over which sessions are spread. One thread
    /// polls them all.
    pub more_peers: usize,
    /// Packets that a transmit burst may hold.
    pub burst: Option<usize>,
    /// Optimizations that are switched off.
    pub off: Vec<super::switch::Switch>,
    /// Loss recovery.
    pub recovery: Recovery,
    /// Congestion control.
    pub control: Control,
    /// How small packets share frames; `None`: the default of the transport.
    pub packing: Option<Packing>,
    /// Data bytes of the smallest and of the largest packet that shares a frame; `None`: the
    /// defaults.
    pub packs: Option<(usize, usize)>,
    /// Protection of frames; `None`: the default.
    pub integrity: Option<Integrity>,
    /// Message memory of the other side, bytes, which one client may use up; `None`: the default.
    pub server_memory: Option<usize>,
    /// Faults of the frames that each side sends, as a [`FaultPlan`]. The text `none` keeps the
    /// middleware without faults; `None` is without the middleware.
    pub fault: Option<String>,
}

/// Seeds of faults. The sides have different faults; each side has the same faults, frame by frame, in
/// every run and for every variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// The side that measures.
    Client = 1,
    /// The other.
    Server = 2,
}

impl Variant {
    /// The configuration of the endpoint.
    pub fn config(&self) -> Config {
        let defaults = Config::default();
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        let sessions = self.sessions + SPARE_SESSIONS;
        let mut config = Config {
            credits: self.credits,
            slots: self.slots.unwrap_or(defaults.slots),
            max_frame: self.frame,
            max_msg_size: defaults.max_msg_size.max(size),
            // A side that measures may have all sessions.
            max_sessions: defaults.max_sessions.max(sessions),
            max_sessions_per_peer: defaults.max_sessions_per_peer.max(sessions),
            max_sessions_per_address: defaults.max_sessions_per_address.max(sessions),
            reserved_sessions: 0,
            max_held_per_peer: defaults.max_held_per_peer.max(self.size.saturating_mul(4)),
            failure_timeout: PATIENCE,
            connect_timeout: PATIENCE,
            datapath_timeout: PATIENCE,
            recovery: self.recovery,
            control: self.control,
            packing: self.packing,
            integrity: self.integrity,
            ..defaults
        };
        if let Some(burst) = self.burst {
            (config.tuning.tx_frames, config.tuning.tx_items) = (burst, burst);
        }
        if let Some((from, to)) = self.packs {
            (config.inline_max, config.tuning.gather_from, config.tuning.gather_to) =
                (to, from, to);
        }
        self.off.iter().for_each(|switch| switch.turn_off(&mut config));
        config
    }
}

/// Time without calls after which a session becomes idle and frees memory.
pub fn idle_after() -> std::time::Duration {
    Config::default().idle_after
}

/// Failure timeouts of both sides. Both sides poll, so on a busy machine their threads, including those
/// that answer heartbeats, may wait long for a core. The end of a side is detected immediately.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Sessions in addition to those of the benchmark.
const SPARE_SESSIONS: usize = 64;

/// The setup of the other side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The transport.
    pub over: Over,
    /// Name of the in-memory network, for that transport.
    pub network: String,
    /// Address of its endpoints.
    pub host: String,
    /// Path of the shared memory, for another process.
    pub line: PathBuf,
    /// The core to pin to.
    pub cpu: usize,
    /// True if the side yields the core after each empty poll.
    pub yields: bool,
    /// Its endpoints.
    pub variants: Vec<Variant>,
    /// Largest frame of the raw socket.
    pub raw_frame: Option<usize>,
    /// The loads of its own calls.
    pub back: Vec<Back>,
}

/// Calls that the other side makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Back {
    /// Index of the calling endpoint.
    pub variant: usize,
    /// Address of the server.
    pub uri: String,
    /// The calls.
    pub load: super::load::Load,
}

/// Addresses that the other side prints when it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Its endpoints.
    pub uris: Vec<String>,
    /// Its raw socket: node, in hexadecimal, and port.
    pub raw: (String, u32),
}

/// An endpoint of one variant, with its nexus.
pub struct Side {
    /// The nexus of the endpoint.
    pub nexus: Nexus,
    /// The endpoint.
    pub rpc: Rpc,
    /// Further endpoints of the nexus, on the other side: [`Variant::more_peers`].
    pub more: Vec<Rpc>,
}

impl Side {
    /// Opens an endpoint at an address of this host, such as [`LOOPBACK`].
    ///
    /// # Errors
    /// A setting is out of range, or the transport cannot be opened.
    pub fn open(
        over: Over,
        (network, host): (&str, &str),
        variant: &Variant,
        seed: Seed,
    ) -> Result<Self, BenchError> {
        let uri = format!("{}://{host}:0", over.name());
        let mut config = variant.config();
        if let Some(bytes) = variant.server_memory.filter(|_| seed == Seed::Server) {
            (config.memory_limit, config.max_held_per_peer) = (bytes, bytes);
        }
        let nexus = Nexus::bind_with(&uri, config)?;
        let Some(fault) = &variant.fault else {
            let open = || open_on(over, network, &nexus, variant.frame);
            let rpc = open()?;
            let more = if seed == Seed::Server { variant.more_peers } else { 0 };
            let more = (0..more).map(|_| open()).collect::<Result<_, _>>()?;
            return Ok(Self { nexus, rpc, more });
        };
        let tx: FaultPlan = fault.parse().map_err(|e| BenchError::Raw(format!("{e}")))?;
        let faults = FaultConfig { seed: seed as u64, tx, rx: FaultPlan::default() };
        let wrap = |transport| Box::new(FaultTransport::new(transport, faults)) as AnyTransport;
        let rpc = match over {
            Over::Udp | Over::Shm => nexus.endpoint_with(wrap)?,
            Over::Mem => nexus.endpoint_on(wrap(open_mem(network, variant.frame)?))?,
        };
        Ok(Self { nexus, rpc, more: Vec::new() })
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
        // Threads have an in-memory network, whose node number is the address of the control
        // connection.
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
    fn an_in_memory_network_connects_sides_and_sockets() {
        let open = |seed| Side::open(Over::Mem, ("side-test", LOOPBACK), &Variant::default(), seed);
        let (a, b) = (open(Seed::Client).expect("opens"), open(Seed::Server).expect("opens"));
        assert_eq!(a.rpc.transport().local_addr().host, b.rpc.transport().local_addr().host);
        let mut raw = open_raw(Over::Mem, "side-test", Some(4096)).expect("opens");
        assert_eq!(raw.caps().max_frame, 4096);
        assert!(raw.path_open(a.rpc.transport().local_addr(), None).is_ok());
    }
}
