//! Commands to the control thread, and its queue.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use courser_proto::ControlMsg;

use super::mailbox::Mailbox;
use crate::machine::{Machine, Thread};

/// A command of an endpoint to the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Adds an endpoint. An endpoint with the same index is unregistered first.
    Register {
        /// Its number in this nexus.
        index: u16,
        /// Its random number.
        id: u64,
        /// Its mailbox.
        mailbox: Mailbox,
        /// True if it accepts sessions from clients.
        accepts: bool,
    },
    /// Changes whether an endpoint accepts sessions from clients.
    SetAccepts {
        /// The endpoint.
        index: u16,
        /// The new value.
        accepts: bool,
    },
    /// Removes an endpoint and notifies every nexus that exchanged messages with it.
    Unregister {
        /// The endpoint.
        index: u16,
    },
    /// Connects to another nexus, or reuses the connection to it. Answered by [`Mail::Dialed`].
    Dial {
        /// The endpoint.
        index: u16,
        /// Identifies the answer.
        ticket: u64,
        /// Name or address.
        host: String,
        /// Control port.
        port: u16,
    },
    /// Sends a message. It is dropped when the connection is gone; [`Mail::Lost`] reports that.
    Send {
        /// The connection.
        control: u64,
        /// The message.
        msg: ControlMsg,
    },
    /// The answer to [`Mail::Unanswered`].
    SignOfLife {
        /// The connection.
        control: u64,
        /// When the last frame of its other side arrived.
        at: Instant,
    },
    /// Ends the thread and all connections.
    Stop,
    /// Returns the sizes of the tables.
    #[cfg(test)]
    Inspect(Sender<Tables>),
}

/// Entries of the control thread's tables.
#[cfg(test)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tables {
    pub(super) conns: usize,
    pub(super) inbound: usize,
    pub(super) hosts: usize,
    pub(super) idle: usize,
    pub(super) dials: usize,
    pub(super) targets: usize,
    pub(super) timers: usize,
    pub(super) queued: usize,
    /// Size of the largest write buffer, bytes.
    pub(super) pending: usize,
}

/// An input of the control thread.
#[derive(Debug)]
pub(super) enum Event {
    Command(Command),
    /// A resolver thread has ended.
    Resolved {
        dial: u64,
        result: io::Result<Vec<SocketAddr>>,
    },
}

/// The sending side of the control thread's queue, with its wake-up.
#[derive(Clone, Debug)]
pub(super) struct Inlet {
    pub(super) events: Sender<Event>,
    pub(super) wake: Wake,
}

/// The wake-up of the control thread.
#[derive(Clone, Debug)]
pub(super) enum Wake {
    Poll(Arc<mio::Waker>),
    Machine(Arc<dyn Machine>),
}

impl Inlet {
    /// Returns false when the control thread has ended.
    pub(super) fn send(&self, e: Event) -> bool {
        let sent = self.events.send(e).is_ok();
        match &self.wake {
            // A wake-up fails only when another one is pending.
            Wake::Poll(waker) => drop(waker.wake()),
            Wake::Machine(machine) => machine.wake(Thread::Control),
        }
        sent
    }
}
