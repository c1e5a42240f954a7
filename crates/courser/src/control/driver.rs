//! The control thread's event loop: readiness, commands, timers, writes.
//!
//! One pass handles readiness, commands, connections left over from the last pass, timers, and
//! writes. Readiness is edge-triggered: a connection whose reads stop before `WouldBlock` is queued
//! for the next pass. A connection gets at most [`READS_PER_PASS`] reads per pass.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use courser_net::is_exhausted;
use courser_proto::{ControlError, ControlMsg, ControlRefusal, HostIdentity};

use super::conn::{Conn, Phase, Step};
use super::event::{Command, Event};
use super::limits::{Counters, Limits};
use super::mail::Mail;
use super::network::{Network, Ready, Stream};
use super::tables::{Dialing, Endpoint, Idle, Inbound};
use crate::counters::count;
use crate::error::control::LostReason;
use crate::platform::Clock;

/// First connection number. Numbers are also poll tokens; the network reserves the lower ones.
const FIRST_NUMBER: u64 = 2;
/// Commands per pass.
const COMMANDS: usize = 1024;
/// Connections accepted per pass.
const ACCEPTS_PER_PASS: usize = 256;
/// Reads of one connection per pass. Each reads at most one message's length: 4 KiB, or 800 of the
/// shortest messages. With this limit, thousands of connections that send without pause delay the
/// others by less than a heartbeat.
const READS_PER_PASS: usize = 4;
/// A connection with no more unsent bytes than this stays open, whatever the sum is.
const PENDING_EACH: usize = 8 << 10;
/// Pause of accepting after descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A timer that is late by this part of its time shows that this thread did not run.
const LATE_PART: u32 = 32;

/// The new deadline of a peer that has not answered within `limit`, once: this thread did not run for
/// some time, and neither asked nor read meanwhile. `None`: the deadline stands.
pub(super) fn more_time(
    deadline: Instant,
    now: Instant,
    limit: Duration,
    excused: &mut bool,
) -> Option<Instant> {
    let is_late = now.saturating_duration_since(deadline) > limit / LATE_PART;
    (is_late && !std::mem::replace(excused, true)).then(|| now + limit / 4)
}

/// The arguments of the thread.
pub(super) struct Parts {
    pub(super) queue: Receiver<Event>,
    pub(super) limits: Limits,
    pub(super) counters: Arc<Counters>,
    pub(super) clock: Clock,
}

/// A timer of the control thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// The timeout of a connect or a greeting, or the heartbeat of an open connection.
    Conn(u64),
    /// The timeout of a dial.
    Dial(u64),
    /// Starts the next attempt of a dial.
    Next(u64),
    /// Resumes accepting after descriptors had run out.
    Accept,
}

/// The control thread. The order of its work depends only on the network, the clock and the
/// commands, as tables are iterated in key order (ADR 17).
///
/// Invariants: a connection has one timer, at its `deadline`; a dial in progress has one timer, and one
/// more before its next attempt; `open` and `names` contain open outbound connections only;
/// `inbound` counts the connections without a dial; `hosts` has the non-zero counts per remote
/// host; `idle` contains the inbound connections without a session; `ready` and `dirty` contain an existing connection at most once, namely when its flag is
/// set.
pub(super) struct Driver<N: Network> {
    pub(super) net: N,
    /// The host of the network.
    host: HostIdentity,
    pub(super) parts: Parts,
    pub(super) conns: BTreeMap<u64, Conn<N::Stream>>,
    pub(super) inbound: usize,
    /// Inbound connections of each remote host, by [`Conn::host`].
    pub(super) hosts: BTreeMap<u128, Inbound>,
    /// Time of the last [`super::mail::Mail::Scarce`] for the connections of all hosts.
    pub(super) asked_all: Option<Instant>,
    pub(super) idle: Idle,
    pub(super) endpoints: BTreeMap<u16, Endpoint>,
    /// Start of the search for an endpoint for the next client, round robin.
    pub(super) next_endpoint: u16,
    pub(super) dials: BTreeMap<u64, Dialing>,
    /// The dial of a host and a port.
    pub(super) targets: BTreeMap<(String, u16), u64>,
    /// The open connection to an address.
    pub(super) open: BTreeMap<SocketAddr, u64>,
    /// The open connection that a name and a port led to last.
    pub(super) names: BTreeMap<(String, u16), u64>,
    /// Dials that wait for a resolver thread.
    pub(super) unresolved: VecDeque<u64>,
    /// Running resolver threads.
    pub(super) resolving: usize,
    pub(super) timers: BTreeSet<(Instant, Timer)>,
    /// The command queue may not be empty.
    more_commands: bool,
    /// Connections that may have more to read.
    ready: Vec<u64>,
    /// More connections may be ready to accept.
    accept_ready: bool,
    /// Descriptors have run out: no accepts until [`Timer::Accept`].
    accept_paused: bool,
    /// Connections with unsent bytes.
    dirty: Vec<u64>,
    /// Unsent bytes of all connections.
    pending: usize,
    next_number: u64,
    /// Time 0 of the heartbeats' clock.
    pub(super) epoch: Instant,
    pub(super) stopping: bool,
}

impl<N: Network> Driver<N> {
    pub(super) fn new(net: N, parts: Parts) -> Self {
        let epoch = parts.clock.now();
        Driver {
            host: net.host(),
            net,
            parts,
            conns: BTreeMap::new(),
            inbound: 0,
            hosts: BTreeMap::new(),
            asked_all: None,
            idle: Idle::default(),
            endpoints: BTreeMap::new(),
            next_endpoint: 0,
            dials: BTreeMap::new(),
            targets: BTreeMap::new(),
            open: BTreeMap::new(),
            names: BTreeMap::new(),
            unresolved: VecDeque::new(),
            resolving: 0,
            timers: BTreeSet::new(),
            more_commands: false,
            ready: Vec::new(),
            accept_ready: false,
            accept_paused: false,
            dirty: Vec::new(),
            pending: 0,
            next_number: FIRST_NUMBER,
            epoch,
            stopping: false,
        }
    }

    /// The thread's clock.
    pub(super) fn now(&self) -> Instant {
        self.parts.clock.now()
    }

    /// Runs one pass with the readiness events in `ready`.
    pub(super) fn pass(&mut self, ready: &mut Vec<Ready>) {
        if ready.contains(&Ready::Listener) {
            self.accept_ready = !self.accept_paused;
        }
        // New connections first: their dials wait, and their greetings are read in this pass.
        if std::mem::take(&mut self.accept_ready) {
            self.accept();
        }
        for r in ready.drain(..) {
            if let Ready::Conn { n, writable } = r {
                self.on_ready(n, writable);
            }
        }
        self.run_commands();
        self.resume_ready();
        self.run_timers();
        self.flush_dirty();
    }

    /// The time of the next pass; `None`: no pass until an event arrives.
    pub(super) fn due(&self) -> Option<Instant> {
        if !self.ready.is_empty() || self.accept_ready || self.more_commands {
            return Some(self.now());
        }
        self.timers.first().map(|(at, _)| *at)
    }

    /// Allocates a number for a connection or a dial.
    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Executes commands, with a limit so that a busy endpoint cannot block the thread.
    fn run_commands(&mut self) {
        self.more_commands = false;
        for _ in 0..COMMANDS {
            match self.parts.queue.try_recv() {
                Ok(Event::Command(Command::Stop)) => self.stopping = true,
                Ok(Event::Command(c)) => self.on_command(c),
                Ok(Event::Resolved { dial, result }) => self.on_resolved(dial, result),
                Err(_) => return,
            }
        }
        // The wake-up of the remaining commands may have been consumed already.
        self.more_commands = true;
    }

    fn resume_ready(&mut self) {
        for n in std::mem::take(&mut self.ready) {
            if let Some(conn) = self.conns.get_mut(&n) {
                conn.ready = false;
                self.read(n);
            }
        }
    }

    fn run_timers(&mut self) {
        let now = self.now();
        while let Some(&(at, timer)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Accept => {
                    self.accept_paused = false;
                    self.accept_ready = true;
                }
                Timer::Dial(dial) => self.dial_timed_out(dial),
                Timer::Next(dial) => self.next_is_due(dial),
                Timer::Conn(n) => self.on_conn_timer(n),
            }
        }
    }

    /// Accepts connections, with a limit per pass.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_PASS {
            match self.net.accept() {
                Ok((stream, remote)) => self.on_accepted(stream, remote),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if is_exhausted(&e) => {
                    count(&self.parts.counters.exhausted);
                    if self.close_idle(None) {
                        continue;
                    }
                    match self.net.refuse(&ControlRefusal::Exhausted.to_bytes()) {
                        Ok(()) => tracing::debug!("a control connection was refused: {e}"),
                        // Without a descriptor `accept` does not see that none is ready.
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                        Err(_) => return self.pause_accepts(&e),
                    }
                }
                // The client or its network failed before the accept.
                Err(_) => {}
            }
        }
        self.accept_ready = true;
    }

    /// Accepts nothing for a while: an immediate retry would fail again.
    fn pause_accepts(&mut self, e: &io::Error) {
        tracing::warn!("cannot accept control connections: {e}");
        self.accept_paused = true;
        self.timers.insert((self.now() + ACCEPT_PAUSE, Timer::Accept));
    }

    fn on_accepted(&mut self, stream: N::Stream, remote: SocketAddr) {
        let now = self.now();
        let deadline = now + self.parts.limits.greeting;
        let mut conn = Conn::new(stream, Phase::Greeting, remote, None, now, deadline);
        let host = conn.host();
        if !self.make_room(host) {
            count(&self.parts.counters.excess_connections);
            // The buffer of a new stream has room.
            let _ = conn.stream.write(&ControlRefusal::Connections.to_bytes());
            return;
        }
        // A failure here concerns this client only: it has already closed, or a resource has run
        // out.
        if conn.connected().is_ok()
            && let Ok(n) = self.adopt(conn)
        {
            self.inbound += 1;
            self.hosts.entry(host).or_default().conns += 1;
            self.note_use(n);
        }
    }

    /// Decrements the counts of inbound connections.
    fn release_inbound(&mut self, host: u128) {
        self.inbound -= 1;
        if let Some(from_host) = self.hosts.get_mut(&host) {
            from_host.conns -= 1;
            if from_host.conns == 0 {
                self.hosts.remove(&host);
            }
        }
    }

    /// Registers a connection and returns its number.
    pub(super) fn adopt(&mut self, mut conn: Conn<N::Stream>) -> io::Result<u64> {
        let n = self.number();
        self.net.register(&mut conn.stream, n)?;
        self.timers.insert((conn.deadline, Timer::Conn(n)));
        self.conns.insert(n, conn);
        Ok(n)
    }

    /// Handles readiness or failure of a socket.
    fn on_ready(&mut self, n: u64, writable: bool) {
        let Some(conn) = self.conns.get_mut(&n) else { return };
        if conn.phase == Phase::Connecting {
            match conn.stream.connected().and_then(|c| c.map(|()| conn.connected()).transpose()) {
                Ok(Some(())) => {}
                Ok(None) => return,
                Err(e) => return self.close(n, e.into()),
            }
        }
        // Read first: a peer that refuses sends the reason before it closes, and a failed write
        // would hide it.
        self.read(n);
        if writable {
            self.flush(n);
        }
    }

    /// Reads and handles messages, with a limit per pass.
    pub(super) fn read(&mut self, n: u64) {
        for _ in 0..READS_PER_PASS {
            loop {
                let Some(conn) = self.conns.get_mut(&n) else { return };
                match conn.step(self.host) {
                    Ok(Some(Step::Greeted)) => self.on_open(n),
                    Ok(Some(Step::Msg(msg))) => self.route(n, msg),
                    Ok(None) => break,
                    Err(reason) => return self.close(n, reason),
                }
            }
            let Some(conn) = self.conns.get_mut(&n) else { return };
            if conn.pending() > 0 && !conn.dirty {
                conn.dirty = true; // the rest of the greeting
                self.dirty.push(n);
            }
            match conn.fill() {
                Ok(true) => {
                    self.on_bytes_received(n);
                    // Handle the commands that endpoints sent before the peer wrote this, so that a
                    // newly registered endpoint is found.
                    self.run_commands();
                }
                Ok(false) => return,
                Err(reason) => return self.close(n, reason),
            }
        }
        if let Some(conn) = self.conns.get_mut(&n)
            && !conn.ready
        {
            conn.ready = true;
            self.ready.push(n);
        }
    }

    /// Handles the end of the greeting.
    fn on_open(&mut self, n: u64) {
        if let Some(conn) = self.conns.get_mut(&n) {
            conn.same_host |= self.net.is_within_host();
        }
        self.start_heartbeat(n);
        if let Some(dial) = self.conns.get(&n).and_then(|conn| conn.dial) {
            self.dial_done(dial, n);
        }
    }

    /// Queues a message; it is written at the end of the pass.
    pub(super) fn send(&mut self, n: u64, msg: &ControlMsg) {
        let (each, total) = (self.parts.limits.pending_write, self.parts.limits.pending_total);
        let Some(conn) = self.conns.get_mut(&n) else { return };
        conn.queue(msg);
        conn.count_pending(&mut self.pending);
        let is_over = |pending, sum| pending > each || (sum > total && pending > PENDING_EACH);
        if is_over(conn.pending(), self.pending) && conn.phase != Phase::Connecting {
            // Try to write first: only bytes that the socket did not accept count as unread.
            let flushed = conn.flush();
            conn.count_pending(&mut self.pending);
            let pending = conn.pending();
            if let Err(reason) = flushed {
                return self.close(n, reason);
            }
            if is_over(pending, self.pending) {
                return self.close(n, LostReason::NotReading { pending });
            }
        }
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(n);
        }
    }

    fn flush_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for n in dirty.drain(..) {
            self.flush(n);
        }
        self.dirty = dirty;
    }

    fn flush(&mut self, n: u64) {
        let Some(conn) = self.conns.get_mut(&n) else { return };
        conn.dirty = false;
        if conn.phase == Phase::Connecting {
            return;
        }
        let flushed = conn.flush();
        conn.count_pending(&mut self.pending);
        if let Err(reason) = flushed {
            self.read(n); // the peer may have refused the connection since the last read
            self.close(n, reason);
        }
    }

    /// Closes a connection and notifies its users.
    pub(super) fn close(&mut self, n: u64, reason: LostReason) {
        let Some(mut conn) = self.conns.remove(&n) else { return };
        conn.forget_pending(&mut self.pending);
        if matches!(reason, LostReason::Silent { .. } | LostReason::NotReading { .. }) {
            conn.stream.abort_on_close();
        } else if conn.phase != Phase::Connecting {
            // Write the last message: a greeting to a peer of another version, or the notice of a
            // dropped endpoint. It is lost when the peer does not read it.
            let _ = conn.flush();
        }
        // Dropping the stream closes it.
        self.net.deregister(&mut conn.stream);
        self.timers.remove(&(conn.deadline, Timer::Conn(n)));
        self.forget_idle(conn.host(), conn.idle_since, n);
        match reason {
            LostReason::Protocol(ControlError::Refused(_)) => {}
            LostReason::Protocol(_) => count(&self.parts.counters.protocol_errors),
            LostReason::Silent { .. } => count(&self.parts.counters.silent_peers),
            _ => {}
        }
        tracing::debug!(control = n, remote = %conn.remote, %reason, "control connection ended");
        match conn.dial {
            None => {
                self.release_inbound(conn.host());
                if conn.phase != Phase::Open {
                    count(&self.parts.counters.failed_greetings);
                }
            }
            Some(_) if conn.phase == Phase::Open => self.forget_target(n),
            Some(dial) => return self.attempt_failed((dial, n), conn.remote, conn.phase, reason),
        }
        for index in conn.used {
            if let Some(e) = self.endpoints.get(&index) {
                e.mailbox.post(Mail::Lost { control: n, reason: reason.clone() });
            }
        }
    }

    /// Sizes of the tables.
    #[cfg(test)]
    pub(super) fn tables(&self) -> super::event::Tables {
        super::event::Tables {
            conns: self.conns.len(),
            inbound: self.inbound,
            hosts: self.hosts.len(),
            idle: self.idle.len(),
            dials: self.dials.len(),
            targets: self.targets.len() + self.open.len() + self.names.len(),
            timers: self.timers.len(),
            queued: self.ready.len() + self.dirty.len() + self.unresolved.len(),
            pending: self.conns.values().map(Conn::pending).max().unwrap_or(0),
        }
    }

    /// Closes all connections and fails all dials.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.flush_dirty();
        self.stop_dials();
        let numbers: Vec<u64> = self.conns.keys().copied().collect();
        for n in numbers {
            self.close(n, LostReason::Stopped);
        }
        // Answer dials that were queued too late.
        while let Ok(e) = self.parts.queue.try_recv() {
            if let Event::Command(c @ Command::Dial { .. }) = e {
                self.on_command(c);
            }
        }
    }
}
