//! The event loop. One iteration is [`Rpc::poll`], a table of contents of the endpoint's work
//! (`[eRPC §3.1]`, E7).

mod passes;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use courser_buf::{RxBurst, TxBurst};
use courser_net::Transport;

use crate::core::Core;
use crate::error::RunError;
use crate::run::dispatch;
use crate::run::endpoint::{Events, Rpc};
use crate::run::spin::Rest;

pub(crate) use passes::Loop;

/// The outcome of one iteration of a thread that drives an endpoint for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Worked,
    /// There was no work.
    Idle,
    /// There was no work for the spin time.
    Tired,
}

/// A receive burst with fewer frames has emptied the receive queue; packets that are still missing
/// then may be lost.
const DRAINED: usize = 64;

impl<T: Transport, A: Events> Rpc<T, A> {
    /// One iteration: receives a burst and runs its handlers and continuations, runs timers, sends
    /// the packets that are ready. Never blocks. Returns whether there was work. Does nothing in a
    /// process forked from that of the endpoint.
    #[inline]
    pub fn poll(&mut self) -> bool {
        if self.core.process.was_forked() {
            return false;
        }
        self.event_loop.force_full_pass();
        self.iterate(false)
    }

    /// [`Rpc::poll`], which ends early without frames and mail while it spins.
    ///
    /// Steps 9 to 13 of a packet's path, then 4 to 8 for the packets that they caused. Work that can
    /// be delayed runs after the response has left. `again`: the next iteration follows at once.
    fn iterate(&mut self, again: bool) -> bool {
        if self.event_loop.holds_frames {
            self.transport.tx_reclaim();
        }
        let virtual_ns = self.core.virtual_now_ns();
        for _ in 0..self.event_loop.rx_polls {
            let mut frames = RxBurst::new();
            self.transport.rx_burst(&mut frames);
            if frames.is_empty() {
                continue;
            }
            let mut burst_ns = virtual_ns;
            if !self.event_loop.clock_is_fresh || virtual_ns.is_some() {
                let now_ns = virtual_ns.unwrap_or_else(|| self.core.now_ns());
                self.core.proto.advance(now_ns);
                burst_ns = Some(now_ns);
            }
            let (core, handlers) = (&mut self.core, &mut self.handlers);
            let batched = self.event_loop.batched_timestamps;
            dispatch::receive(core, handlers, batched, burst_ns, &frames);
            let received = frames.len();
            drop(frames);
            self.after_frames(received, again);
            return true;
        }
        self.core.proto.on_empty_queue();
        self.without_frames(virtual_ns)
    }

    /// The rest of an iteration that has received frames.
    #[inline]
    fn after_frames(&mut self, received: usize, again: bool) {
        let then_ns = self.core.proto.now_ns();
        A::after_burst(&mut self.core);
        let read =
            if self.sends_lone() { self.send_lone_here(None) } else { self.transmit_any(None).1 };
        let mut busy = false;
        if received < DRAINED || self.event_loop.scans_anyway(then_ns) {
            // At the time of the frames: an iteration may take longer than a round trip, and packets
            // that arrived during it are not counted yet.
            busy = self.scan(then_ns);
        }
        // Read in advance, when no response waits for it, if frames that arrive next count as received
        // then.
        let now_ns = if read || !again { self.core.last_ns() } else { self.core.now_ns() };
        self.core.proto.advance(now_ns);
        self.event_loop.pass_ns = now_ns;
        if self.mailbox.has_mail() {
            self.on_mail();
            busy = true;
        }
        busy |= self.chores(now_ns);
        if busy {
            self.transmit(None);
        }
        // Packets above the budget of this batch, and those of timers, leave in the next iteration.
        // Sent here, they would make client and server run in lockstep (`Endpoint::batch_calls`).
        if self.event_loop.idle.only_polls() && self.core.proto.wants_transmit() {
            self.event_loop.idle.poll_no_more();
        }
        self.event_loop.clock_is_fresh = !(self.finish() | busy);
        // The caller's condition may have changed: it is tested before the loop sleeps.
        self.event_loop.idle.after(true);
    }

    /// An iteration, or a spin poll, that has received nothing.
    #[inline(never)] // keeps the burst off its stack frame
    fn without_frames(&mut self, virtual_ns: Option<u64>) -> bool {
        let mail = self.mailbox.has_mail();
        if !mail && self.event_loop.idle.take_poll() {
            return false;
        }
        let now_ns = virtual_ns.unwrap_or_else(|| self.core.now_ns());
        self.event_loop.pass_ns = now_ns;
        self.core.proto.advance(now_ns);
        if mail {
            self.on_mail();
        }
        let mut busy = mail | self.scan(now_ns) | self.chores(now_ns);
        busy |= self.transmit((!busy).then_some(now_ns)).0;
        busy |= self.finish();
        self.event_loop.clock_is_fresh = !busy;
        self.event_loop.idle.after(busy);
        if !busy {
            self.event_loop.trim_later(now_ns, || self.core.proto.arena().has_large());
        }
        busy
    }

    /// The end of an iteration: queued completions and pending commands. Returns whether there were
    /// any.
    #[inline]
    fn finish(&mut self) -> bool {
        let completed = self.core.proto.has_completions() && self.completions();
        let commands = !self.core.pending_commands.is_empty();
        if commands {
            self.run_pending_commands();
        }
        completed | commands
    }

    /// Loss timeouts, after all received packets were handled. Returns whether sessions changed.
    #[inline]
    fn scan(&mut self, now_ns: u64) -> bool {
        self.event_loop.scan_ns = now_ns;
        self.core.proto.on_deadline(now_ns);
        self.core.proto.has_session_news() && self.session_news()
    }

    /// Timers and rare work. Most iterations have none, and this is a handful of comparisons.
    #[inline]
    fn chores(&mut self, now_ns: u64) -> bool {
        let has_some = A::has_upkeep(self, now_ns)
            || self.event_loop.trims(now_ns)
            || self.connections.is_dialing()
            || self.core.proto.has_notices();
        has_some && self.upkeep(now_ns)
    }

    /// Sessions that have failed or have nothing to do.
    #[cold]
    fn session_news(&mut self) -> bool {
        let mut worked = self.follow_moves();
        while let Some(silent) = self.core.proto.poll_failed() {
            self.on_silent(silent);
            worked = true;
        }
        while let Some(idle) = self.core.proto.poll_idle() {
            self.on_idle(idle);
        }
        self.watch_flood(self.event_loop.scan_ns);
        worked
    }

    /// Passes the notices of the protocol to those that wait for them. Returns whether there were any.
    fn notices(&mut self) -> bool {
        let mut any = false;
        while let Some(notice) = self.core.proto.poll_notice() {
            any |= A::on_notice(self, notice);
        }
        any
    }

    /// Application timers, notices of the protocol, dropped reply handles, slow connects, cancelled worker
    /// requests, unused memory.
    #[cold]
    fn upkeep(&mut self, now_ns: u64) -> bool {
        let mut worked = A::run_timers(&mut self.core, now_ns);
        if self.connections.is_dialing() {
            worked |= self.check_dialing();
        }
        worked |= self.notices();
        worked |= A::upkeep(self, now_ns);
        if self.event_loop.trims(now_ns) {
            self.trim();
        }
        worked
    }

    /// Returns unused memory of large messages to the system.
    fn trim(&mut self) {
        self.core.proto.arena().trim();
        self.watch_flood(self.event_loop.pass_ns);
        self.event_loop.trimmed(self.flood.ends_ns());
    }

    /// Steps 4 to 8 of a packet's path, if there are packets. `then_ns` is the time, or `None` when
    /// handlers have run since the clock was read: it is read again, so that round trips do not
    /// contain them (ADR 5). Returns whether a frame left, and whether the clock was read.
    #[inline(always)] // the test, into iterations without packets
    fn transmit(&mut self, then_ns: Option<u64>) -> (bool, bool) {
        if self.sends_lone() {
            return (true, self.send_lone(then_ns));
        }
        self.transmit_any(then_ns)
    }

    /// Returns whether all that is to be sent is one small packet.
    #[inline(always)]
    fn sends_lone(&self) -> bool {
        self.core.proto.is_lone() && self.burst.is_empty() && self.event_loop.batched_timestamps
    }

    /// [`Rpc::transmit`] of anything.
    #[inline(always)]
    fn transmit_any(&mut self, then_ns: Option<u64>) -> (bool, bool) {
        let any = self.core.proto.wants_transmit() || !self.burst.is_empty();
        if any { self.transmit_some(then_ns) } else { (false, false) }
    }

    /// [`Rpc::send_lone_here`], except after received frames.
    #[inline(never)] // called from several places
    fn send_lone(&mut self, then_ns: Option<u64>) -> bool {
        self.send_lone_here(then_ns)
    }

    /// [`Rpc::transmit`] of one small packet: the straight line of a lone call. Returns whether the
    /// clock was read.
    #[inline(always)]
    fn send_lone_here(&mut self, then_ns: Option<u64>) -> bool {
        let Rpc { core, transport, burst, .. } = self;
        let read =
            core.make_lone_frame(then_ns, burst, |path, frame| transport.tx_copy(path, frame));
        if !burst.is_empty() {
            transport.tx_burst(burst);
        }
        read
    }

    #[inline(never)]
    fn transmit_some(&mut self, then_ns: Option<u64>) -> (bool, bool) {
        let Rpc { core, transport, burst, .. } = self;
        if core.proto.asks_for_backlog() {
            report_backlog(core, transport, burst);
        }
        let waiting = burst.len() as u64;
        let before = core.proto.stats().tx_frames;
        let packets = core.proto.stats().tx_packets;
        let read = core.make_frames(then_ns, burst, |path, frame| transport.tx_copy(path, frame));
        if !self.event_loop.batched_timestamps {
            core.read_clock_for(core.proto.stats().tx_packets - packets);
        }
        if !burst.is_empty() {
            transport.tx_burst(burst);
        }
        let made = core.proto.stats().tx_frames - before;
        (waiting + made > burst.len() as u64, read)
    }

    /// Queued completions: of timeouts, failures, and calls whose buffer was in use (E24).
    #[inline(never)]
    fn completions(&mut self) -> bool {
        let mut any = false;
        loop {
            while let Some(done) = self.core.proto.poll_completion() {
                A::complete(&mut self.core, &mut self.handlers, done);
                any = true;
            }
            if !self.core.proto.needs_flush() {
                return any;
            }
            self.burst_flush();
        }
    }

    /// Makes the transport release every frame. Frames that it had not taken are lost, and recovered
    /// like any loss.
    fn burst_flush(&mut self) {
        self.burst.clear();
        self.transport.tx_flush();
    }

    // ---- driving ------------------------------------------------------------------------------

    /// Runs the event loop until [`crate::Context::stop`] or [`crate::EndpointHandle::stop`].
    /// Spins for `Config::spin` after the last packet, then sleeps until a packet, a wake-up, or the
    /// next deadline.
    ///
    /// # Errors
    /// The system's poll failed, or time is virtual ([`crate::Nexus::bind_in`]).
    #[doc(alias = "run_event_loop")]
    pub fn run(&mut self) -> Result<(), RunError> {
        self.may_block()?;
        while !self.take_stop() {
            self.pass()?;
        }
        Ok(())
    }

    /// [`Rpc::run`] that also ends when `until` returns true. It runs after every iteration and should
    /// take no longer than a handler.
    ///
    /// # Errors
    /// The system's poll failed, or time is virtual ([`crate::Nexus::bind_in`]).
    pub fn run_until(&mut self, mut until: impl FnMut() -> bool) -> Result<(), RunError> {
        self.may_block()?;
        while !until() && !self.take_stop() {
            self.pass()?;
        }
        Ok(())
    }

    /// [`Rpc::run`] that ends after `time`.
    ///
    /// # Errors
    /// The system's poll failed, or time is virtual ([`crate::Nexus::bind_in`]).
    pub fn run_for(&mut self, time: Duration) -> Result<(), RunError> {
        self.may_block()?;
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.event_loop.pass_ns = self.core.now_ns();
        let end_ns = self.event_loop.pass_ns.saturating_add(time_ns);
        while self.event_loop.pass_ns < end_ns && !self.take_stop() {
            self.pass_until(Some(end_ns))?;
        }
        Ok(())
    }

    /// Fails in virtual time, which stands still while a function blocks, and in a forked process.
    pub(crate) fn may_block(&mut self) -> Result<(), RunError> {
        self.event_loop.clock_is_fresh = false; // unknown time has passed since the last iteration
        if self.core.process.was_forked() {
            return Err(RunError::Forked);
        }
        if self.core.platform.is_virtual() { Err(RunError::VirtualTime) } else { Ok(()) }
    }

    fn take_stop(&mut self) -> bool {
        std::mem::take(&mut self.core.stop) || self.event_loop.take_stop()
    }

    /// One iteration, and a sleep after the spin time without work.
    #[inline]
    pub(crate) fn pass(&mut self) -> Result<(), RunError> {
        self.pass_until(None)
    }

    /// [`Rpc::pass`] that does not sleep beyond `end_ns`.
    #[inline]
    pub(crate) fn pass_until(&mut self, end_ns: Option<u64>) -> Result<(), RunError> {
        if self.step() { Ok(()) } else { self.rest(end_ns) }
    }

    /// One iteration. Returns whether the next one follows at once; otherwise [`Rpc::rest`] comes first.
    #[inline]
    pub(crate) fn step(&mut self) -> bool {
        let only_polls = self.event_loop.idle.only_polls();
        self.iterate(true) || only_polls
    }

    /// After an iteration without work: polls again, yields the CPU, or sleeps, at most until `end_ns`.
    #[inline]
    pub(crate) fn rest(&mut self, end_ns: Option<u64>) -> Result<(), RunError> {
        if self.core.process.was_forked() {
            return Err(RunError::Forked); // by a handler
        }
        let expects = self.core.proto.outstanding_calls() > 0;
        if self.spin(expects) { Ok(()) } else { self.sleep(self.event_loop.pass_ns, end_ns) }
    }

    /// The next step of a thread that has no work: it polls again, or yields the CPU before. False: it
    /// has spun for long enough.
    #[inline]
    fn spin(&mut self, expects: bool) -> bool {
        let now_ns = self.event_loop.pass_ns;
        match self.event_loop.idle.next(now_ns, expects) {
            Rest::Sleep => return false,
            Rest::Yield => {
                self.event_loop.clock_is_fresh = false;
                std::thread::yield_now();
                self.event_loop.idle.yielded(now_ns, self.core.now_ns());
            }
            // No pause instruction: it takes as long as ten polls.
            Rest::Poll if self.burst.is_empty() => self.event_loop.idle.only_poll(),
            Rest::Poll => {}
        }
        true
    }

    // ---- threads that take turns --------------------------------------------------------------

    /// A thread begins to drive the endpoint after another one.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        self.event_loop.force_full_pass();
        self.event_loop.idle.after(true);
        let now_ns = self.core.now_ns();
        self.core.proto.advance(now_ns);
        self.event_loop.pass_ns = now_ns;
    }

    /// One iteration, which never sleeps.
    #[inline]
    pub(crate) fn turn(&mut self) -> Turn {
        let only_polls = self.event_loop.idle.only_polls();
        if self.iterate(false) {
            return Turn::Worked;
        }
        if only_polls || self.spin(false) { Turn::Idle } else { Turn::Tired }
    }

    /// After iterations without work: no thread drives the endpoint from now on, until one calls
    /// [`Rpc::end_rest`]. Returns until when threads may sleep on its descriptor, or `None` if there
    /// is work.
    pub(crate) fn begin_rest(&mut self) -> Option<u64> {
        let due_ns = self.next_deadline_ns().unwrap_or(u64::MAX);
        if due_ns <= self.core.now_ns() || !self.mailbox.fall_asleep() {
            return None;
        }
        if !self.transport.fall_asleep() {
            self.end_rest();
            return None;
        }
        Some(due_ns)
    }

    /// A thread drives the endpoint again.
    pub(crate) fn end_rest(&mut self) {
        self.mailbox.wake_up();
        self.transport.wake_up();
        self.event_loop.clock_is_fresh = false;
    }

    /// Sleeps until a frame, a wake-up, or the next deadline.
    fn sleep(&mut self, now_ns: u64, end_ns: Option<u64>) -> Result<(), RunError> {
        let due = [self.next_deadline_ns(), end_ns].into_iter().flatten().min();
        let timeout_ns = due.map(|due| due.saturating_sub(now_ns));
        if timeout_ns == Some(0) || !self.mailbox.fall_asleep() {
            return Ok(());
        }
        let wake = self.mailbox.raw_fd().ok_or(RunError::VirtualTime);
        let waited = wake.map(|wake| self.transport.wait(wake, timeout_ns));
        self.mailbox.wake_up();
        self.event_loop.clock_is_fresh = false;
        Ok(waited??)
    }

    /// The time of the next work without a packet or wake-up, on the clock of
    /// [`crate::Context::now_ns`]; `None`: there is none. For foreign event loops.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let dialing = self.connections.next_deadline_ns();
        // Commands from outside of an iteration run in the next one.
        let commands = !self.core.pending_commands.is_empty() || self.core.proto.has_notices();
        let waiting = (commands || !self.burst.is_empty()).then_some(0);
        let trim = self.event_loop.trim_due_ns();
        let all =
            [self.core.proto.next_deadline(), A::next_deadline_ns(self), dialing, waiting, trim];
        all.into_iter().flatten().min()
    }

    /// A descriptor for foreign event loops (epoll, mio, tokio's `AsyncFd`): it polls readable
    /// when there is a packet or a wake-up for [`Rpc::poll`]. Before each sleep `poll` must have
    /// returned false: a burst may hold more than one iteration takes. `poll` must also run at
    /// [`Rpc::next_deadline_ns`]. `None` for transports without a descriptor, and in virtual time.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        // The sleeps of a foreign loop are not visible to peers: signal always.
        let is_first = self.mailbox.always_signal();
        self.transport.signal_always();
        if is_first {
            // A frame may have arrived since the last `poll`, without a signal.
            self.mailbox.wake();
        }
        self.event_loop.event_fd()
    }
}

/// Reports the bytes that the host has not sent: those that the transport holds, and frames that it has
/// not taken.
#[inline(never)] // outlined: it is rare, and has a loop over frames
fn report_backlog<T: Transport, A: Events>(core: &mut Core<A>, transport: &T, burst: &TxBurst) {
    let left: u64 = burst.iter().map(|frame| u64::from(frame.len())).sum();
    core.proto.set_backlog(transport.tx_backlog().map(|bytes| bytes + left));
}

#[cfg(test)]
mod tests;
