//! The process on a host: a nexus, its endpoints, its control loop and its workers, each with the
//! time of its next run.

use std::sync::Arc;

use courser::parts::machine::{ControlLoop, Thread, VirtualClock, VirtualJob, VirtualWorkers};
use courser::{Nexus, Rpc, Transport};
use courser_buf::Addr;
use courser_proto::OverduePackets;

use super::life::Life;
use super::machine::SimMachine;
use super::port::SharedPort;

/// Any error of an application's set-up.
pub type SetupError = Box<dyn std::error::Error>;

/// Result of a set-up function: one endpoint, or several, each a thread with a CPU of its own.
pub trait Endpoints {
    /// The endpoints.
    fn endpoints(self) -> Vec<Rpc>;
}

impl Endpoints for Rpc {
    fn endpoints(self) -> Vec<Rpc> {
        vec![self]
    }
}

impl Endpoints for Vec<Rpc> {
    fn endpoints(self) -> Vec<Rpc> {
        self
    }
}

/// An application: set-up plus callbacks (ADR 12). Runs again whenever its process is restarted.
pub(crate) type Setup = Box<dyn FnMut(&Nexus) -> Result<Vec<Rpc>, SetupError>>;

/// One endpoint and its thread.
pub(crate) struct Endpoint {
    pub(crate) rpc: Rpc,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) port: SharedPort,
    pub(crate) addr: Addr,
    /// The host's clock at time 0 of the endpoint.
    pub(crate) epoch_ns: u64,
    /// End of the thread's current work.
    pub(crate) busy_until_ns: u64,
    /// Time of the scheduled pass.
    pub(crate) pass_at_ns: Option<u64>,
    /// Time of the earliest scheduled check of deadlines.
    pub(crate) look_at_ns: Option<u64>,
    /// The transmit queue was full, and frames are left.
    pub(crate) starved: bool,
    /// Passes so far, for checks that run in some of them only.
    pub(crate) passes: u64,
    /// Rejected and stale frames as of the last pass.
    pub(crate) rejected: u64,
    pub(crate) stale: u64,
    /// Panicked handlers as of the last pass.
    pub(crate) panics: u64,
    /// Overdue packets of the receiver's budget as of the last check.
    pub(crate) overdue: OverduePackets,
    /// Work of its thread besides the event loop.
    pub(crate) beside: Option<Beside>,
}

/// Work of a thread besides the event loop of its endpoint, before each pass. Returns whether there
/// was any.
pub(crate) type Beside = Box<dyn FnMut(&mut Rpc) -> bool>;

/// The workers of a process, as CPUs of their own.
pub(crate) struct Workers {
    pub(crate) source: VirtualWorkers,
    pub(crate) idle: usize,
    /// Running jobs; each ends by an event.
    pub(crate) running: Vec<Working>,
    pub(crate) next: u64,
}

/// A running job.
pub(crate) struct Working {
    pub(crate) number: u64,
    /// When it started, in the world's time.
    pub(crate) began_ns: u64,
    pub(crate) job: VirtualJob,
}

/// A control loop that has not ended after this number of turns is dropped.
const LAST_TURNS: usize = 100;

/// One process. Fields are dropped in this order: endpoints before their nexus, as in a program
/// that ends.
pub(crate) struct Process {
    pub(crate) life: Life,
    pub(crate) started_ns: u64,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) workers: Option<Workers>,
    pub(crate) nexus: Nexus,
    pub(crate) control: Option<ControlLoop>,
    pub(crate) control_clock: Arc<VirtualClock>,
    pub(crate) control_at_ns: Option<u64>,
    pub(crate) machine: Arc<SimMachine>,
}

impl Process {
    /// Fetches what the machine received since the last call.
    pub(crate) fn collect(&mut self) {
        if let Some(control) = self.machine.take_control() {
            self.control = Some(control);
        }
        if let Some((source, threads)) = self.machine.take_workers() {
            self.workers = Some(Workers { source, idle: threads, running: Vec::new(), next: 0 });
        }
    }

    /// Creates threads for the endpoints of the application.
    ///
    /// # Errors
    /// An endpoint has no queues here.
    pub(crate) fn adopt(&mut self, rpcs: Vec<Rpc>) -> Result<(), String> {
        let opened = self.machine.take_opened();
        for mut rpc in rpcs {
            let found = opened.iter().find(|(number, _)| *number == rpc.port());
            let Some((_, port)) = found else {
                let text = "an endpoint was not made by Nexus::endpoint of this nexus";
                return Err(text.to_owned());
            };
            let clock = self.machine.clock_of(Thread::Endpoint(rpc.index()));
            let epoch_ns = clock.now_ns() - rpc.context().now_ns();
            self.endpoints.push(Endpoint {
                addr: rpc.transport().local_addr(),
                rpc,
                clock,
                port: port.clone(),
                epoch_ns,
                busy_until_ns: 0,
                pass_at_ns: None,
                look_at_ns: None,
                starved: false,
                passes: 0,
                rejected: 0,
                stale: 0,
                panics: 0,
                overdue: OverduePackets::default(),
                beside: None,
            });
        }
        Ok(())
    }

    /// Ends gracefully: the control loop still sends the goodbyes of the endpoints.
    pub(crate) fn leave(mut self) {
        self.collect();
        let Process { endpoints, workers, nexus, control, .. } = self;
        drop((endpoints, workers, nexus));
        let Some(mut control) = control else { return };
        // It ends after processing the queued commands, some in each turn.
        for _ in 0..LAST_TURNS {
            if control.turn().ended {
                return;
            }
        }
    }

    /// The endpoint that has a datapath port.
    pub(crate) fn at_port(&mut self, port: u32) -> Option<usize> {
        self.endpoints.iter().position(|e| e.addr.port == port)
    }
}
