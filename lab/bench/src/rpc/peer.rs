//! The other side of a benchmark: the hidden command `courser bench-peer`, or a thread.
//!
//! A pinned thread with endpoints and a raw socket polls the one that its [role](super::role)
//! selects; between polls it answers probes. It prints its addresses in the line `ready <json>`, and at
//! the end its counters in the line `figures <json>`. The process ends when its standard input is
//! closed, which also happens when its parent dies, or after `IDLE_LIMIT` without activity.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use courser::{Nexus, Rpc};
use courser_net::AnyTransport;
use serde_json::json;

use super::caller::{Caller, Loaded};
use super::error::BenchError;
use super::raw::{Other, RawPeer};
use super::role::Role;
use super::side::{Ready, Seed, Setup, Side, open_raw};
use super::{figures, service};
use crate::clock::Clock;
use crate::line::Line;
use crate::probe::Responder;
use courser_kit::affinity;
use courser_kit::parent::{say, stop_with_stdin};

/// Arguments from the parent process.
#[derive(Debug, clap::Args)]
pub struct PeerArgs {
    /// The setup as JSON
    #[arg(long)]
    setup: String,
}

/// Longest time without a packet, a probe or a change of role; connecting many sessions has none of
/// these.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// Polls between two checks of [`IDLE_LIMIT`].
const POLLS: u32 = 4096;

/// Runs until standard input is closed.
///
/// # Errors
/// The other side cannot be opened.
pub fn main(args: &PeerArgs) -> Result<(), BenchError> {
    // Standard input is also closed when the parent dies; the signal ends a process that hangs. If the
    // parent has died before this call, standard input is closed already.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let setup: Setup = serde_json::from_str(&args.setup).map_err(|e| BenchError::Spec {
        what: "--setup",
        limits: format!("what `courser bench` writes: {e}"),
    })?;
    let line = Line::open(&setup.line)?;
    let stop = stop_with_stdin().map_err(BenchError::Spawn)?;
    serve(&setup, line, &stop, &|text| say(text))
}

/// Opens the endpoints and the socket and polls until `stop`; passes output lines to `say`.
///
/// # Errors
/// The other side cannot be opened, or a load of its own failed.
pub fn serve(
    setup: &Setup,
    line: Line,
    stop: &AtomicBool,
    say: &dyn Fn(&str),
) -> Result<(), BenchError> {
    let clock = Clock::new();
    let sides: Vec<Side> = setup
        .variants
        .iter()
        .map(|variant| Side::open(setup.over, (&setup.network, &setup.host), variant, Seed::Server))
        .collect::<Result<_, _>>()?;
    let socket = RawPeer::new(open_raw(setup.over, &setup.network, setup.raw_frame)?)?;
    // Only this thread is pinned, not the control threads started above.
    affinity::pin_current_thread(setup.cpu)?;
    let other = Other { line: None, yields: setup.yields };
    let uris = sides.iter().map(|side| side.nexus.local_uri()).collect();
    let (host, port) = (socket.addr().host, socket.addr().port);
    let ready = Ready { uris, raw: (format!("{host:x}"), port) };
    let mut peer = Peer::new(setup, sides, socket, &line, clock, other);
    say(&format!("ready {}", json!(ready)));
    peer.run(stop, say)?;
    say(&format!("figures {}", peer.figures()));
    Ok(())
}

/// State of the other side.
struct Peer<'a> {
    setup: &'a Setup,
    callers: Vec<Caller>,
    /// Keeps the endpoints reachable.
    _nexuses: Vec<Nexus>,
    loads: Vec<Option<Loaded>>,
    socket: RawPeer,
    line: &'a Line,
    clock: Clock,
    other: Other,
    role: Role,
    /// Calls before the current load, and its start time.
    begun: (u64, u64),
}

impl<'a> Peer<'a> {
    fn new(
        setup: &'a Setup,
        sides: Vec<Side>,
        socket: RawPeer,
        line: &'a Line,
        clock: Clock,
        other: Other,
    ) -> Self {
        let serving = |mut rpc: Rpc<AnyTransport>| {
            service::register(&mut rpc);
            service::register_timed(&mut rpc, clock.clone());
            rpc
        };
        let (mut nexuses, mut callers) = (Vec::new(), Vec::new());
        for Side { nexus, rpc, more } in sides {
            let mut caller = Caller::new(serving(rpc), clock.clone(), other.clone());
            more.into_iter().for_each(|rpc| caller.poll_besides(serving(rpc)));
            callers.push(caller);
            nexuses.push(nexus);
        }
        let loads = setup.back.iter().map(|_| None).collect();
        let (role, begun) = (Role::Serve(0), (0, 0));
        Self { setup, callers, _nexuses: nexuses, loads, socket, line, clock, other, role, begun }
    }

    fn run(&mut self, stop: &AtomicBool, say: &dyn Fn(&str)) -> Result<(), BenchError> {
        let mut responder = Responder::new(self.line.clone(), self.clock.clone());
        let (mut word, mut polls, mut active_ns) = (u32::MAX, 0, self.clock.now_ns());
        let mut active = true;
        while !stop.load(Ordering::Relaxed) {
            let asked = self.line.role();
            if asked != word {
                word = asked;
                self.leave()?;
                self.enter(Role::of(word), say)?;
                self.line.take_role(word);
                active = true;
            }
            active |= responder.serve_if_asked();
            if self.pass() {
                active = true;
            } else {
                self.other.idle();
            }
            polls += 1;
            if polls < POLLS {
                continue;
            }
            let now_ns = self.clock.now_ns();
            if std::mem::take(&mut active) {
                active_ns = now_ns;
            } else if u128::from(now_ns - active_ns) > IDLE_LIMIT.as_nanos() {
                break;
            }
            polls = 0;
        }
        Ok(())
    }

    /// One poll of the endpoint or socket of the role.
    #[inline]
    fn pass(&mut self) -> bool {
        match self.role {
            Role::Echo { copy } => self.socket.echo(copy),
            Role::Sink => self.socket.sink(),
            Role::Serve(at) | Role::Memory(at) => self.callers[at].poll_all(),
            Role::Call(load) => self.callers[self.setup.back[load].variant].poll(),
        }
    }

    /// Ends the current role.
    fn leave(&mut self) -> Result<(), BenchError> {
        let Role::Call(at) = self.role else { return Ok(()) };
        let (before, start_ns) = self.begun;
        let caller = &mut self.callers[self.setup.back[at].variant];
        caller.stop();
        if let Some(loaded) = &mut self.loads[at] {
            caller.finish(0, loaded).map_err(|e| BenchError::Raw(e.to_string()))?;
        }
        self.line.report(caller.completed() - before, self.clock.now_ns() - start_ns);
        Ok(())
    }

    /// Begins a role; an unknown number is the initial role.
    fn enter(&mut self, role: Role, say: &dyn Fn(&str)) -> Result<(), BenchError> {
        let known = match role {
            Role::Echo { .. } | Role::Sink => true,
            Role::Serve(at) | Role::Memory(at) => at < self.callers.len(),
            Role::Call(at) => at < self.setup.back.len(),
        };
        self.role = if known { role } else { Role::Serve(0) };
        match self.role {
            Role::Memory(at) => {
                let memory = figures::of_memory(self.callers[at].rpc());
                say(&format!("memory {memory}"));
            }
            Role::Call(at) => self.begin(at)?,
            Role::Echo { .. } | Role::Sink | Role::Serve(_) => {}
        }
        Ok(())
    }

    /// Begins a load of this side; connects its sessions the first time.
    fn begin(&mut self, at: usize) -> Result<(), BenchError> {
        let back = &self.setup.back[at];
        let caller = &mut self.callers[back.variant];
        caller.connect(&back.uri, back.load.sessions)?;
        if self.loads[at].is_none() {
            self.loads[at] = Some(Loaded::new(back.load.clone(), caller.rpc())?);
        }
        self.begun = (caller.completed(), self.clock.now_ns());
        if let Some(loaded) = &mut self.loads[at] {
            caller.begin(loaded);
        }
        Ok(())
    }

    /// Counters for the report.
    fn figures(&self) -> serde_json::Value {
        let mut all = self.callers.iter().map(|caller| figures::of_endpoint(caller.rpc()));
        let mut value = json!({ "rpc": all.next(), "raw": self.socket.figures() });
        if self.callers.len() > 1 {
            value["further"] = all.collect();
        }
        value
    }
}
