//! The server process of a benchmark: the hidden command `courser bench-peer`.
//!
//! One thread, pinned, that has an endpoint and a bare socket and polls the one that its
//! [role] calls for; between polls it answers probes. It says its addresses in one line,
//! `ready <control address> <raw address>`, and at the end its counters in another,
//! `figures <json>`. It ends when its standard input does, which also happens when the
//! process that started it dies in whatever way, or when nobody has used it for
//! [`IDLE_LIMIT`].

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use courser::parts::buf::{Addr, PathId, RX_BURST, RxBurst, TxBurst};
use courser::parts::net::{UdpConfig, UdpTransport};
use courser::{MsgBuf, Nexus, Transport};
use serde_json::json;

use super::raw::{self, Other, QUERY, RECEIPT_TRAINS, Receipt};
use super::run::RATE_TRAIN;
use super::spec::{BenchError, endpoint_config};
use super::{figures, role, service};
use crate::harness::affinity;
use crate::harness::clock::Clock;
use crate::harness::line::Line;
use crate::harness::probe::Responder;

/// What the process that starts it says.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// Path of the page shared with the measuring process
    #[arg(long)]
    line: PathBuf,
    /// Core to stay on
    #[arg(long)]
    cpu: usize,
    /// Give the core up after each poll that found nothing
    #[arg(long)]
    yields: bool,
    /// Largest request, bytes
    #[arg(long, default_value_t = 0)]
    size: usize,
    /// Packets a session may have outstanding
    #[arg(long)]
    credits: Option<u32>,
    /// Largest frame, bytes
    #[arg(long)]
    frame: Option<usize>,
}

/// Longest time without a packet, a probe or a change of role.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Polls between two looks at the clock for [`IDLE_LIMIT`].
const POLLS: u32 = 4096;

/// Runs until it is no longer wanted.
///
/// # Errors
/// What kept it from starting, in one line.
pub(crate) fn main(args: &PeerArgs) -> Result<(), BenchError> {
    // Standard input ends with the parent too; this also ends a process that hangs. The
    // parent may have died before: then its end of the pipe is closed already.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let line = Line::open(&args.line)?;
    let stop = stop_with_stdin()?;
    let config = endpoint_config(args.size, args.credits, args.frame);
    let nexus = Nexus::bind_with("udp://127.0.0.1:0", config)?;
    let mut rpc = nexus.endpoint()?;
    service::register(&mut rpc);
    let mut socket = RawPeer::bind(args.frame)?;
    // Only this thread: the control thread started above goes where there is room.
    affinity::pin_current_thread(args.cpu)?;
    say(&format!("ready {} {}", nexus.local_uri(), socket.transport.local_addr()));

    let clock = Clock::new();
    let mut responder = Responder::new(line.clone(), clock.clone());
    let other = Other { line: None, yields: args.yields };
    let (mut role, mut polls, mut active_ns) = (u32::MAX, 0, clock.now_ns());
    let mut active = true;
    while !stop.load(Ordering::Relaxed) {
        let asked = line.role();
        if asked != role {
            role = asked;
            line.take_role(role);
            active = true;
        }
        active |= responder.serve_if_asked();
        let busy = match role {
            role::ECHO => socket.echo(),
            role::SINK => socket.sink(),
            _ => rpc.poll(),
        };
        if busy {
            active = true;
        } else {
            other.idle();
        }
        polls += 1;
        if polls == POLLS {
            let now_ns = clock.now_ns();
            if std::mem::take(&mut active) {
                active_ns = now_ns;
            } else if u128::from(now_ns - active_ns) > IDLE_LIMIT.as_nanos() {
                break;
            }
            polls = 0;
        }
    }
    let raw = figures::of_transport(&socket.transport.stats());
    say(&format!("figures {}", json!({ "rpc": figures::of_endpoint(&rpc), "raw": raw })));
    Ok(())
}

/// Says a line to the process that started this one, which may be gone.
pub(crate) fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A flag that is raised when standard input ends, by a thread that sleeps until then.
pub(crate) fn stop_with_stdin() -> Result<Arc<AtomicBool>, BenchError> {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    let watch = move || {
        let mut byte = [0];
        while !matches!(io::stdin().read(&mut byte), Ok(0) | Err(_)) {}
        raised.store(true, Ordering::Relaxed);
    };
    let named = std::thread::Builder::new().name("stdin".to_owned());
    named.spawn(watch).map_err(BenchError::Spawn)?;
    Ok(stop)
}

/// A raw socket on the loopback, for either side.
pub(super) fn bind_raw(frame: Option<usize>) -> Result<UdpTransport, BenchError> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = UdpConfig { max_frame: frame, ..UdpConfig::new(any) };
    UdpTransport::bind(config).map_err(|e| BenchError::Raw(e.to_string()))
}

/// The fixed programs of the raw side.
struct RawPeer {
    transport: UdpTransport,
    /// Who sent last; answers go there.
    client: Option<(Addr, PathId)>,
    payload: MsgBuf,
    burst: TxBurst,
    /// Lengths of the frames of one receive burst.
    lens: Vec<usize>,
    seen: Receipt,
    /// Frames since the last receipt, and after how many the next is due.
    unconfirmed: u64,
    due: u64,
}

impl RawPeer {
    fn bind(frame: Option<usize>) -> Result<Self, BenchError> {
        let transport = bind_raw(frame)?;
        let caps = transport.caps();
        let train = caps.train_frames.min(caps.train_bytes / caps.max_frame).max(1);
        let payload = raw::payload(caps.max_frame).map_err(|e| BenchError::Raw(e.to_string()))?;
        Ok(Self {
            client: None,
            payload,
            burst: TxBurst::with_capacity(RX_BURST),
            lens: Vec::with_capacity(RX_BURST),
            seen: Receipt::default(),
            unconfirmed: 0,
            due: (RECEIPT_TRAINS * train) as u64,
            transport,
        })
    }

    /// One receive burst, sent back in trains no longer than those of the client. Equal
    /// frames only stand together in one train.
    fn echo(&mut self) -> bool {
        let mut arrived = RxBurst::new();
        self.transport.rx_burst(&mut arrived);
        let Some(src) = arrived.last().map(|frame| frame.src) else { return false };
        self.lens.clear();
        self.lens.extend(arrived.iter().map(|frame| frame.data.len()));
        drop(arrived);
        if let Some(path) = self.path(src) {
            for train in self.lens.chunks(RATE_TRAIN) {
                for &len in train {
                    raw::queue(&mut self.burst, path, &self.payload, 1, len);
                }
                self.transport.tx_burst(&mut self.burst);
                self.burst.clear();
            }
        }
        true
    }

    /// One receive burst, counted; a receipt when one is due or was asked for.
    fn sink(&mut self) -> bool {
        let mut arrived = RxBurst::new();
        self.transport.rx_burst(&mut arrived);
        let Some(src) = arrived.last().map(|frame| frame.src) else { return false };
        let mut asked = false;
        for frame in &arrived {
            match <[u8; QUERY]>::try_from(frame.data) {
                Ok(number) => {
                    self.seen.query = u64::from_le_bytes(number);
                    asked = true;
                }
                Err(_) => {
                    self.seen.bytes += frame.data.len() as u64;
                    self.seen.frames += 1;
                    self.unconfirmed += 1;
                }
            }
        }
        drop(arrived);
        if asked || self.unconfirmed >= self.due {
            self.unconfirmed = 0;
            self.confirm(src);
        }
        true
    }

    fn confirm(&mut self, to: Addr) {
        let Some(path) = self.path(to) else { return };
        let receipt = self.seen.to_bytes();
        let Some(room) = self.payload.get_mut() else { return };
        room[..receipt.len()].copy_from_slice(&receipt);
        raw::queue(&mut self.burst, path, &self.payload, 1, receipt.len());
        self.transport.tx_burst(&mut self.burst);
        self.burst.clear();
    }

    /// The way to a client, opened when it is another than before.
    fn path(&mut self, to: Addr) -> Option<PathId> {
        match self.client {
            Some((known, path)) if known == to => Some(path),
            old => {
                if let Some((_, path)) = old {
                    self.transport.path_close(path);
                }
                self.client = self.transport.path_open(to, None).ok().map(|path| (to, path.id));
                self.client.map(|(_, path)| path)
            }
        }
    }
}
