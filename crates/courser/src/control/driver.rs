//! The control thread's loop: events, connections, deadlines.
//!
//! One pass: readiness, commands, work left over from the last pass, deadlines, writes.
//! Readiness is edge-triggered: a connection that stops before `WouldBlock` is put on the list of
//! left-over work. No connection gets more than [`READS_PER_PASS`] reads before the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use courser_proto::ControlMsg;

use super::conn::{Conn, Phase, Step};
use super::dial::{Dialing, Target};
use super::network::{Network, Ready, Stream};
use super::route::Endpoint;
use super::tcp::Tcp;
use super::{Command, Counters, Event, Limits, LostReason, Mail, count, is_exhausted};
use crate::platform::Clock;

/// The first number of a connection; numbers double as tokens, of which networks have their own.
const FIRST_NUMBER: u64 = 2;
/// Commands per pass.
const COMMANDS: usize = 1024;
/// Connections accepted per pass.
const ACCEPTS_PER_PASS: usize = 64;
/// Reads of one connection per pass, each of one message's length at most: 4 KiB, or 800 of the
/// shortest messages. Thousands of connections that all talk without end then hold up the others
/// for less than a heartbeat.
const READS_PER_PASS: usize = 4;
/// A connection with no more than this waiting stays open, whatever waits for others.
const PENDING_EACH: usize = 8 << 10;
/// How long nothing is accepted after descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the thread starts with.
pub(super) struct Parts {
    pub(super) queue: Receiver<Event>,
    pub(super) limits: Limits,
    pub(super) counters: Arc<Counters>,
    pub(super) clock: Clock,
}

/// What is due at some time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// A connection that has to be open, or whose heartbeat is due.
    Conn(u64),
    /// A dial that has to be over.
    Dial(u64),
    /// Accepting again, after descriptors had run out.
    Accept,
}

/// The control thread. What is done in which order depends on the network, the clock and the
/// commands alone: tables are walked in the order of their keys (F17).
///
/// Invariants: a connection has one timer, at its `deadline`; a dial that is not over has its
/// timer; `inbound` counts the connections without a dial, and `hosts` those of each remote host,
/// which is there while it has any; `ready` and `dirty` name a living connection once at most, as
/// its flags say.
pub(super) struct Driver<N: Network> {
    pub(super) net: N,
    pub(super) parts: Parts,
    pub(super) conns: BTreeMap<u64, Conn<N::Stream>>,
    pub(super) inbound: usize,
    /// Inbound connections of each remote host.
    pub(super) hosts: BTreeMap<IpAddr, usize>,
    pub(super) endpoints: BTreeMap<u16, Endpoint>,
    /// Where the search for an endpoint for the next client starts.
    pub(super) next_endpoint: u16,
    pub(super) dials: BTreeMap<u64, Dialing>,
    pub(super) targets: BTreeMap<(String, u16), Target>,
    /// Dials that wait for a resolver thread.
    pub(super) unresolved: VecDeque<u64>,
    /// Resolver threads.
    pub(super) resolving: usize,
    pub(super) timers: BTreeSet<(Instant, Timer)>,
    /// More commands may wait than were taken.
    more_commands: bool,
    /// Connections that may have more to read.
    ready: Vec<u64>,
    /// Whether more connections may wait to be accepted.
    accept_ready: bool,
    /// Descriptors have run out: nothing is accepted until [`Timer::Accept`].
    accept_paused: bool,
    /// Connections with something to write.
    dirty: Vec<u64>,
    /// Bytes that wait to be written, over all connections.
    pending: usize,
    next_number: u64,
    /// What the times of heartbeats are counted from.
    pub(super) epoch: Instant,
    pub(super) stopping: bool,
}

impl Driver<Tcp> {
    /// The thread.
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

impl<N: Network> Driver<N> {
    pub(super) fn new(net: N, parts: Parts) -> Self {
        let epoch = parts.clock.now();
        Driver {
            net,
            parts,
            conns: BTreeMap::new(),
            inbound: 0,
            hosts: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            next_endpoint: 0,
            dials: BTreeMap::new(),
            targets: BTreeMap::new(),
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

    /// One pass. Takes what has become ready.
    pub(super) fn pass(&mut self, ready: &mut Vec<Ready>) {
        for r in ready.drain(..) {
            match r {
                Ready::Listener => self.accept_ready = !self.accept_paused,
                Ready::Conn { n, writable } => self.on_ready(n, writable),
            }
        }
        self.take_commands();
        self.left_over();
        self.on_time();
        self.flush_dirty();
    }

    /// When the next pass has something to do by itself; `None`: not until something happens.
    pub(super) fn due(&self) -> Option<Instant> {
        if !self.ready.is_empty() || self.accept_ready || self.more_commands {
            return Some(self.now());
        }
        self.timers.first().map(|(at, _)| *at)
    }

    /// A number for a connection or a dial.
    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Does what endpoints ask, within a limit, so that a busy one cannot hold the thread.
    fn take_commands(&mut self) {
        self.more_commands = false;
        for _ in 0..COMMANDS {
            match self.parts.queue.try_recv() {
                Ok(Event::Command(Command::Stop)) => self.stopping = true,
                Ok(Event::Command(c)) => self.on_command(c),
                Ok(Event::Resolved { dial, result }) => self.on_resolved(dial, result),
                Err(_) => return,
            }
        }
        // The wake-up that announced the rest may be taken already.
        self.more_commands = true;
    }

    fn left_over(&mut self) {
        if std::mem::take(&mut self.accept_ready) {
            self.accept();
        }
        for n in std::mem::take(&mut self.ready) {
            if let Some(conn) = self.conns.get_mut(&n) {
                conn.ready = false;
                self.read(n);
            }
        }
    }

    fn on_time(&mut self) {
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
                Timer::Conn(n) => self.conn_is_due(n),
            }
        }
    }

    /// Accepts what has arrived, within a limit per pass.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_PASS {
            match self.net.accept() {
                Ok((stream, remote)) => self.on_accepted(stream, remote),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if is_exhausted(&e) => {
                    // Trying again at once would fail again, for ever.
                    count(&self.parts.counters.exhausted);
                    tracing::warn!("cannot accept control connections: {e}");
                    self.accept_paused = true;
                    self.timers.insert((self.now() + ACCEPT_PAUSE, Timer::Accept));
                    return;
                }
                // The client has gone meanwhile, or its network has.
                Err(_) => {}
            }
        }
        self.accept_ready = true;
    }

    fn on_accepted(&mut self, stream: N::Stream, remote: SocketAddr) {
        let limits = &self.parts.limits;
        let now = self.now();
        let deadline = now + limits.greeting;
        let mut conn = Conn::new(stream, Phase::Greeting, remote, None, now, deadline);
        let host = conn.remote.ip();
        let of_host = self.hosts.get(&host).copied().unwrap_or(0);
        if self.inbound >= limits.inbound || of_host >= limits.inbound_per_host {
            count(&self.parts.counters.excess_connections);
            return;
        }
        // What fails here concerns this client only: it has closed already, or there is no room.
        if conn.connected().is_ok() && self.adopt(conn).is_ok() {
            self.inbound += 1;
            *self.hosts.entry(host).or_default() += 1;
        }
    }

    /// An inbound connection less.
    fn release_inbound(&mut self, host: IpAddr) {
        self.inbound -= 1;
        if let Some(of_host) = self.hosts.get_mut(&host) {
            *of_host -= 1;
            if *of_host == 0 {
                self.hosts.remove(&host);
            }
        }
    }

    /// Takes a connection into the loop; gives its number, if it lives.
    pub(super) fn adopt(&mut self, mut conn: Conn<N::Stream>) -> io::Result<u64> {
        let n = self.number();
        self.net.register(&mut conn.stream, n)?;
        self.timers.insert((conn.deadline, Timer::Conn(n)));
        self.conns.insert(n, conn);
        Ok(n)
    }

    /// A socket can be read or written, or has failed.
    fn on_ready(&mut self, n: u64, writable: bool) {
        let Some(conn) = self.conns.get_mut(&n) else { return };
        if conn.phase == Phase::Connecting {
            match conn.stream.connected().and_then(|c| c.map(|()| conn.connected()).transpose()) {
                Ok(Some(())) => {}
                Ok(None) => return,
                Err(e) => return self.close(n, e.into()),
            }
        }
        // Reading comes first: a peer that refuses says why before it closes, and a failed write
        // would hide that.
        self.read(n);
        if writable {
            self.flush(n);
        }
    }

    /// Reads and handles messages, within a limit per pass.
    pub(super) fn read(&mut self, n: u64) {
        for _ in 0..READS_PER_PASS {
            loop {
                let Some(conn) = self.conns.get_mut(&n) else { return };
                match conn.step() {
                    Ok(Some(Step::Greeted)) => self.on_open(n),
                    Ok(Some(Step::Msg(msg))) => self.route(n, msg),
                    Ok(None) => break,
                    Err(reason) => return self.close(n, reason),
                }
            }
            let Some(conn) = self.conns.get_mut(&n) else { return };
            match conn.fill() {
                Ok(true) => {
                    self.on_heard(n);
                    // Commands that endpoints sent before the peer wrote this come first, so that
                    // a registered endpoint is found.
                    self.take_commands();
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

    /// The greeting has arrived.
    fn on_open(&mut self, n: u64) {
        self.start_heartbeat(n);
        if let Some(dial) = self.conns.get(&n).and_then(|conn| conn.dial) {
            self.dial_done(dial, n);
        }
    }

    /// Queues a message; it leaves at the end of the pass.
    pub(super) fn send(&mut self, n: u64, msg: &ControlMsg) {
        let (each, total) = (self.parts.limits.pending_write, self.parts.limits.pending_total);
        let Some(conn) = self.conns.get_mut(&n) else { return };
        conn.queue(msg);
        conn.count_pending(&mut self.pending);
        let is_over = |pending, sum| pending > each || (sum > total && pending > PENDING_EACH);
        if is_over(conn.pending(), self.pending) && conn.phase != Phase::Connecting {
            // What the socket has not been offered yet is not left unread by anybody.
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
            self.close(n, reason);
        }
    }

    /// Ends a connection and tells everybody whom it concerns.
    pub(super) fn close(&mut self, n: u64, reason: LostReason) {
        let Some(mut conn) = self.conns.remove(&n) else { return };
        conn.forget_pending(&mut self.pending);
        if matches!(reason, LostReason::Silent { .. } | LostReason::NotReading { .. }) {
            conn.stream.abort_on_close();
        } else if conn.phase != Phase::Connecting {
            // A last message says why: a greeting to a peer of another version, an
            // endpoint's leave. A peer that does not read it loses it.
            let _ = conn.flush();
        }
        // Dropping the stream closes it.
        self.net.deregister(&mut conn.stream);
        self.timers.remove(&(conn.deadline, Timer::Conn(n)));
        match reason {
            LostReason::Protocol(_) => count(&self.parts.counters.protocol_errors),
            LostReason::Silent { .. } => count(&self.parts.counters.silent_peers),
            _ => {}
        }
        tracing::debug!(control = n, remote = %conn.remote, %reason, "control connection ended");
        match conn.dial {
            None => {
                self.release_inbound(conn.remote.ip());
                if conn.phase != Phase::Open {
                    count(&self.parts.counters.failed_greetings);
                }
            }
            Some(_) if conn.phase == Phase::Open => self.forget_target(n),
            Some(dial) => return self.attempt_failed(dial, conn.remote, reason),
        }
        for index in conn.used {
            if let Some(e) = self.endpoints.get(&index) {
                e.mailbox.post(Mail::Lost { control: n, reason: reason.clone() });
            }
        }
    }

    /// For tests.
    #[cfg(test)]
    pub(super) fn tables(&self) -> super::Tables {
        super::Tables {
            conns: self.conns.len(),
            inbound: self.inbound,
            hosts: self.hosts.len(),
            dials: self.dials.len(),
            targets: self.targets.len(),
            timers: self.timers.len(),
            queued: self.ready.len() + self.dirty.len() + self.unresolved.len(),
            pending: self.conns.values().map(Conn::pending).max().unwrap_or(0),
        }
    }

    /// Ends all connections and dials; no answers follow.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.flush_dirty();
        self.stop_dials();
        let numbers: Vec<u64> = self.conns.keys().copied().collect();
        for n in numbers {
            self.close(n, LostReason::Stopped);
        }
        // Dials that were handed over too late are answered.
        while let Ok(e) = self.parts.queue.try_recv() {
            if let Event::Command(c @ Command::Dial { .. }) = e {
                self.on_command(c);
            }
        }
    }
}
