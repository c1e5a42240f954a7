//! The other side of a benchmark: the hidden command `courser bench-peer`, or a thread.
//!
//! One pinned thread with endpoints and a bare socket polls the one that its [role](super::role)
//! selects; between polls it answers probes. It prints its addresses in one line, `ready <json>`,
//! and at the end its counters in another, `figures <json>`. A process ends when its standard input
//! ends, which also happens when its parent dies, or after `IDLE_LIMIT` without use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use courser::{Nexus, Rpc};
use courser_net::AnyTransport;
use serde_json::json;

use super::caller::{Caller, Loaded};
use super::raw::{Other, RawPeer};
use super::role::Role;
use super::side::{Ready, Seed, Setup, Side, open_raw};
use super::spec::BenchError;
use super::{figures, service};
use crate::affinity;
use crate::clock::Clock;
use crate::line::Line;
use crate::probe::Responder;
use crate::program::parent::{say, stop_with_stdin};

/// What the process that starts it says.
#[derive(Debug, clap::Args)]
pub struct PeerArgs {
    /// What to be, as JSON
    #[arg(long)]
    setup: String,
}

/// Longest time without a packet, a probe or a change of role; while many sessions are being
/// connected there is none.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// Polls between two looks at the clock for [`IDLE_LIMIT`].
const POLLS: u32 = 4096;

/// Runs until it is no longer wanted.
///
/// # Errors
/// What kept it from starting, in one line.
pub fn main(args: &PeerArgs) -> Result<(), BenchError> {
    // Standard input ends with the parent too; this also ends a process that hangs. The
    // parent may have died before: then its end of the pipe is closed already.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let setup: Setup = serde_json::from_str(&args.setup).map_err(|e| BenchError::Spec {
        what: "--setup",
        limits: format!("what `courser bench` writes: {e}"),
    })?;
    let line = Line::open(&setup.line)?;
    let stop = stop_with_stdin().map_err(BenchError::Spawn)?;
    serve(&setup, line, &stop, &|text| say(text))
}

/// Opens everything and polls until `stop`; what it has to say goes to `say`, by lines.
///
/// # Errors
/// What kept it from starting, or a load of its own that failed.
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
        .map(|variant| Side::open(setup.over, &setup.network, variant, Seed::Server))
        .collect::<Result<_, _>>()?;
    let socket = RawPeer::new(open_raw(setup.over, &setup.network, setup.raw_frame)?)?;
    // Only this thread: the control threads started above go where there is room.
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

/// The other side at work.
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
    /// Of the load under way: calls before it, and its start.
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
        let (nexuses, rpcs): (Vec<Nexus>, Vec<Rpc<AnyTransport>>) =
            sides.into_iter().map(|side| (side.nexus, side.rpc)).unzip();
        let caller = |mut rpc: Rpc| {
            service::register(&mut rpc);
            Caller::new(rpc, clock.clone(), other.clone())
        };
        let callers = rpcs.into_iter().map(caller).collect();
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

    /// One poll of what the role calls for.
    #[inline]
    fn pass(&mut self) -> bool {
        match self.role {
            Role::Echo { copy } => self.socket.echo(copy),
            Role::Sink => self.socket.sink(),
            Role::Serve(at) | Role::Memory(at) => self.callers[at].poll(),
            Role::Call(load) => self.callers[self.setup.back[load].variant].poll(),
        }
    }

    /// Ends what the role began.
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

    /// Takes up a role; a number that stands for nothing is the role at start.
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

    /// Begins a load of this side; connects its sessions first, if it has not yet.
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

    /// Counters, as the report carries them.
    fn figures(&self) -> serde_json::Value {
        let mut all = self.callers.iter().map(|caller| figures::of_endpoint(caller.rpc()));
        let mut value = json!({ "rpc": all.next(), "raw": self.socket.figures() });
        if self.callers.len() > 1 {
            value["further"] = all.collect();
        }
        value
    }
}
