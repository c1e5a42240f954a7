//! The control plane: one control thread per nexus that exchanges control messages over TCP, or over
//! Unix sockets where the transport stays on the machine (E66, ADR 13).
//!
//! The handshake's state machines are in `courser-proto`; this module transports their messages. It
//! handles connections and endpoints, not sessions, and no packet of the datapath.
//!
//! ```text
//! endpoint threads                 control thread "courser-control"            other nexuses
//! Control::send(Command) --------> driver  --- conn: greeting, framing ------> sockets
//! Mailbox::take_all(..)    <------ route   <-- conn -------------------------- sockets
//!                                  dial    --- resolver threads, attempts
//! ```
//! The event loop of an endpoint pays one load per pass for the control plane
//! ([`Mailbox::has_mail`]).
//!
//! Everything has a limit ([`Limits`]): inbound and outbound connections, connections per host, the
//! duration of a greeting and of a dial, the silence of an open connection, unread bytes per peer,
//! and messages in an endpoint's mailbox. Invalid input ends at most the connection that it arrived
//! on.
//!
//! The driver is generic over its network and its clock: on a simulated machine, which calls
//! [`virtual_time`], the same code runs in virtual time.
//!
//! Failed peers (E66): when a process ends, for whatever reason, its kernel closes or resets the
//! connection, and the failure is detected at once. Heartbeats (`courser_proto::Heartbeat`) in both
//! directions detect a stopped process, a dead machine and a broken network.

mod conn;
mod dial;
mod driver;
mod event;
mod limits;
mod mail;
pub(crate) mod mailbox;
mod network;
mod route;
mod scarce;
mod sockets;
mod tables;
#[cfg(test)]
mod tests;
mod upkeep;
mod usage;
mod virtual_time;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use courser_net::{ControlSockets, ThisProcess};

use crate::error::BindError;
use crate::machine::{ControlLoop, Thread};
use crate::platform::Platform;
use driver::{Driver, Parts};
use event::{Event, Inlet, Wake};
use limits::Counters;
use sockets::{ListenError, Sockets};
use virtual_time::{SimDriver, Streams};

pub(crate) use event::Command;
#[cfg(test)]
pub(crate) use event::Tables;
pub use limits::ControlStats;
pub(crate) use limits::{DEFAULT_CONNECTIONS, DEFAULT_FAILURE_TIMEOUT, Limits};
pub(crate) use mail::{Dialed, Mail};

impl Driver<Sockets> {
    /// The main function of the thread.
    pub(super) fn run(mut self) {
        let mut ready = Vec::new();
        while !self.stopping {
            let sleep = self.due().map(|at| at.saturating_duration_since(self.now()));
            if let Err(e) = self.net.wait(sleep, &mut ready) {
                tracing::error!("the control thread cannot wait for events: {e}");
                break;
            }
            self.pass(&mut ready);
        }
        self.stop();
    }
}

/// A nexus's control plane. The thread ends when the last clone is dropped; on a simulated machine
/// the loop ends at its next turn.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    process: ThisProcess,
    inlet: Inlet,
    counters: Arc<Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Listens on `bind` (port 0: any; `[::]` becomes `0.0.0.0` on a host without IPv6) and starts
    /// the thread, or passes its loop to the machine. Returns the bound address.
    ///
    /// # Errors
    /// The address cannot be bound, or descriptors or threads have run out.
    pub(crate) fn start(
        platform: &Platform,
        sockets: &ControlSockets,
        bind: SocketAddr,
        limits: Limits,
    ) -> Result<(Control, SocketAddr), BindError> {
        let cannot = |source| BindError::Control { addr: bind.to_string(), source };
        let counters = Arc::new(Counters::default());
        let (events, queue) = mpsc::channel();
        let clock = platform.clock(Thread::Control);
        let shared = Parts { queue, limits, counters: counters.clone(), clock };
        let (inlet, thread, bound) = match platform {
            Platform::System => {
                let listening = Sockets::listen(sockets, bind, events);
                let (sockets, bound) = listening.map_err(|e| match e {
                    ListenError::Tcp(source) => cannot(source),
                    ListenError::Unix(e) => e.into(),
                    ListenError::Poll(e) => e.into(),
                })?;
                let inlet = sockets.inlet();
                let driver = Driver::new(sockets, shared);
                let thread = std::thread::Builder::new().name("courser-control".into());
                (inlet, Some(thread.spawn(move || driver.run())?), bound)
            }
            Platform::Virtual(machine) => {
                let (streams, bound) = Streams::listen(machine, bind).map_err(cannot)?;
                let driver = SimDriver::new(Driver::new(streams, shared));
                machine.start_control(ControlLoop::new(driver));
                (Inlet { events, wake: Wake::Machine(machine.clone()) }, None, bound)
            }
        };
        let thread = Mutex::new(thread);
        let process = ThisProcess::new();
        Ok((Control { shared: Arc::new(Shared { process, inlet, counters, thread }) }, bound))
    }

    /// Sends a command to the thread. Returns false when the thread has ended.
    pub(crate) fn send(&self, c: Command) -> bool {
        self.shared.inlet.send(Event::Command(c))
    }

    /// The counters.
    pub(crate) fn stats(&self) -> ControlStats {
        self.shared.counters.read()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.process.was_forked() {
            // A forked process has no such thread: a join would never end.
            return std::mem::forget(thread);
        }
        self.inlet.send(Event::Command(Command::Stop));
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the control thread had panicked");
        }
    }
}
