//! Setup of a benchmark: both sides opened, pinned and connected by shared memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use courser::Nexus;
use courser_net::AnyTransport;
use serde_json::{Value, json};

use super::caller::Caller;
use super::calls::SharedCaller;
use super::child::Child;
use super::error::BenchError;
use super::raw::Other;
use super::run::Pinned;
use super::side::{Back, LOOPBACK, Over, Seed, Setup, Side, Variant, open_raw};
use super::{figures, role, service};
use crate::clock::Clock;
use crate::line::Line;
use crate::netns::{Home, Host, Unavailable};
use crate::probe::Prober;
use crate::window::{Plan, Runner};
use courser_kit::affinity::Cores;

/// Both sides. This side makes the calls, the other serves them until this is dropped.
pub struct Ground {
    /// The clock of all windows.
    pub clock: Clock,
    /// The interface of workloads to the other side.
    pub other: Other,
    /// The process or thread of the other side.
    pub child: Child,
    /// This side's endpoints, one for each variant.
    pub callers: Vec<SharedCaller>,
    /// This side's raw socket, until it is taken.
    pub raw: Option<AnyTransport>,
    prober: Option<Prober>,
    /// Endpoints of the other side, for each variant.
    peers: Vec<usize>,
    _nexuses: Vec<Nexus>,
    _pinned: Pinned,
    _home: Option<Home>,
}

impl Ground {
    /// Opens an endpoint of each variant on both sides, and the raw sockets. `back` returns the loads
    /// of the other side, given the addresses of this side.
    ///
    /// # Errors
    /// An endpoint or socket cannot be opened, or the other side cannot be started.
    pub fn open(
        over: Over,
        variants: &[Variant],
        back: &dyn Fn(&[String]) -> Vec<Back>,
        clock: &Clock,
        cores: &Cores,
    ) -> Result<Self, BenchError> {
        Self::open_on(None, over, variants, back, clock, cores)
    }

    /// [`Ground::open`] with the sides on two hosts: this thread moves to the first one until this is
    /// dropped. Without hosts both sides have the loopback.
    ///
    /// # Errors
    /// As [`Ground::open`], or a host cannot be entered.
    pub fn open_on(
        hosts: Option<&[Host; 2]>,
        over: Over,
        variants: &[Variant],
        back: &dyn Fn(&[String]) -> Vec<Back>,
        clock: &Clock,
        cores: &Cores,
    ) -> Result<Self, BenchError> {
        let network = network();
        let home = hosts.map(|_| Home::of_this_thread()).transpose()?;
        let enter = |at: usize| hosts.map_or(Ok(()), |hosts| hosts[at].enter());
        let address = |at: usize| {
            hosts.map_or(LOOPBACK.to_owned(), |hosts| hosts[at].address(false).to_string())
        };
        enter(0).map_err(Unavailable::from)?;
        // This side is opened first, so that an error of the settings is reported directly.
        let sides = variants
            .iter()
            .map(|variant| Side::open(over, (&network, &address(0)), variant, Seed::Client))
            .collect::<Result<Vec<_>, _>>()?;
        let raw_frame = variants.first().and_then(|variant| variant.frame);
        let raw = open_raw(over, &network, raw_frame)?;
        let line = Line::create()?;
        let uris: Vec<String> = sides.iter().map(|side| side.nexus.local_uri()).collect();
        let yields = !cores.distinct();
        let setup = Setup {
            over,
            network,
            host: address(1),
            line: line.path(),
            cpu: cores.server,
            yields,
            variants: variants.to_vec(),
            raw_frame,
            back: back(&uris),
        };
        // Processes and threads inherit the host.
        enter(1).map_err(Unavailable::from)?;
        let child = Child::start(&setup, &line)?;
        enter(0).map_err(Unavailable::from)?;
        let pinned = Pinned::to(cores.client)?;
        let other = Other { line: Some(line.clone()), yields };
        let prober = cores.distinct().then(|| Prober::new(line, clock.clone()));
        let (mut nexuses, mut callers) = (Vec::new(), Vec::new());
        for mut side in sides {
            service::register(&mut side.rpc);
            service::register_timed(&mut side.rpc, clock.clone());
            let caller = Caller::new(side.rpc, clock.clone(), other.clone());
            callers.push(Rc::new(RefCell::new(caller)));
            nexuses.push(side.nexus);
        }
        Ok(Self {
            clock: clock.clone(),
            other,
            child,
            callers,
            raw: Some(raw),
            prober,
            peers: variants.iter().map(|variant| 1 + variant.more_peers).collect(),
            _nexuses: nexuses,
            _pinned: pinned,
            _home: home,
        })
    }

    /// A runner, with probes if there are two cores. Only the first call returns one with probes.
    ///
    /// # Errors
    /// The plan is out of range.
    pub fn runner(&mut self, plan: Plan) -> Result<Runner<Prober>, BenchError> {
        Ok(Runner::new(plan, self.prober.take())?)
    }

    /// Connects an endpoint to that of the same variant at the other side until it has `count`
    /// sessions.
    ///
    /// # Errors
    /// A session cannot be connected, or the other side does not answer.
    pub fn connect(&mut self, variant: u16, count: usize) -> Result<(), BenchError> {
        self.other.request(role::serve(variant)).map_err(|e| BenchError::Raw(e.to_string()))?;
        let at = usize::from(variant);
        let uri = &self.child.uris[at];
        self.callers[at].borrow_mut().connect_to(uri, self.peers[at], count)
    }

    /// Memory of the sessions of a variant at the other side; `None` without an answer.
    pub fn server_memory(&self, variant: u16) -> Option<Value> {
        self.other.request(role::memory(variant)).ok()?;
        self.child.memory()
    }

    /// Ends the other side and returns the counters of both sides.
    pub fn diagnostics(self) -> Value {
        let mut all = self.callers.iter().map(|c| figures::of_endpoint(c.borrow().rpc()));
        let mut client = json!({ "rpc": all.next() });
        if self.callers.len() > 1 {
            client["further"] = all.collect();
        }
        let Self { child, callers, .. } = self;
        let server = child.finish();
        drop(callers);
        json!({ "client": client, "server": server })
    }
}

/// A name that is unique in this process.
fn network() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("bench-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
