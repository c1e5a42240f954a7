//! The state of an event loop between its passes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use courser_net::Transport;

use crate::config::Config;
use crate::control::mailbox::Mailbox;
use crate::platform::Platform;
use crate::run::spin::Idle;

/// Polls of the receive queue of one iteration on transports that poll memory: a packet that arrives
/// between two of them does not wait for the other work of the iteration.
const RX_POLLS: u32 = 4;

/// Longest time between two scans of loss timeouts under a load that never drains the receive
/// queue, ns.
const SCAN_ANYWAY_NS: u64 = 10_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(super) idle: Idle,
    /// The clock was read in the previous pass, and nothing else ran since: frames without a time
    /// count as received at that reading.
    pub(super) clock_is_fresh: bool,
    /// The time of the last whole pass, ns.
    pub(super) pass_ns: u64,
    /// When loss timeouts were scanned last, ns.
    pub(super) scan_ns: u64,
    /// Time of the next check for idle message memory, ns; `u64::MAX`: none is mapped.
    trim_ns: u64,
    /// [`crate::Tuning::trim_after`], ns.
    trim_after_ns: u64,
    /// Polls of the receive queue in a pass before it counts as empty.
    pub(super) rx_polls: u32,
    /// Copy of [`courser_net::Caps::holds_frames`].
    pub(super) holds_frames: bool,
    /// See [`courser_proto::Factors::batched_timestamps`].
    pub(super) batched_timestamps: bool,
    poller: Option<OwnedFd>,
    stop: Arc<AtomicBool>,
}

impl Loop {
    /// # Errors
    /// There are no descriptors.
    pub(crate) fn new<T: Transport>(
        config: &Config,
        platform: &Platform,
        transport: &T,
        mailbox: &Mailbox,
    ) -> std::io::Result<Loop> {
        let caps = transport.caps();
        let polls_memory = caps.polls_memory && !platform.is_virtual();
        Ok(Loop {
            idle: Idle::on(platform, config.spin),
            clock_is_fresh: false,
            pass_ns: 0,
            scan_ns: 0,
            trim_ns: u64::MAX,
            trim_after_ns: u64::try_from(config.tuning.trim_after.as_nanos()).unwrap_or(u64::MAX),
            rx_polls: if polls_memory { RX_POLLS } else { 1 },
            holds_frames: caps.holds_frames,
            batched_timestamps: config.tuning.factors.batched_timestamps,
            poller: poller(transport, mailbox)?,
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    /// The next pass reads the clock and looks for all kinds of work.
    #[inline]
    pub(crate) fn force_full_pass(&mut self) {
        self.idle.poll_no_more();
        self.clock_is_fresh = false;
    }

    /// From now on it yields the CPU while it spins, or does so only where it must.
    #[inline]
    pub(crate) fn set_yields(&mut self, yields: bool) {
        self.idle.set_yields(yields);
    }

    /// For how long an endpoint without calls spins, ns.
    pub(crate) fn spin_ns(&self) -> u64 {
        self.idle.spin_ns()
    }

    /// The time of the last whole pass, ns.
    #[inline]
    pub(crate) fn pass_ns(&self) -> u64 {
        self.pass_ns
    }

    /// Returns whether loss timeouts are to be scanned at this time although the receive queue is not
    /// drained.
    #[inline]
    pub(super) fn scans_anyway(&self, now_ns: u64) -> bool {
        now_ns - self.scan_ns > SCAN_ANYWAY_NS
    }

    // ---- trimming of memory -------------------------------------------------------------------

    #[inline]
    pub(super) fn trims(&self, now_ns: u64) -> bool {
        self.trim_ns <= now_ns
    }

    /// When memory is trimmed next, ns; `None`: it is not.
    pub(super) fn trim_due_ns(&self) -> Option<u64> {
        (self.trim_ns != u64::MAX).then_some(self.trim_ns)
    }

    /// After an idle iteration: memory is trimmed later if large messages have some.
    #[inline]
    pub(super) fn trim_later(&mut self, now_ns: u64, has_large: impl FnOnce() -> bool) {
        if self.trim_ns == u64::MAX && has_large() {
            self.trim_ns = now_ns.saturating_add(self.trim_after_ns);
        }
    }

    /// Memory was trimmed. The next time is this one, or [`Loop::trim_later`] sets it.
    pub(super) fn trimmed(&mut self, next_ns: Option<u64>) {
        self.trim_ns = next_ns.unwrap_or(u64::MAX);
    }

    /// Memory is trimmed at this time at the latest.
    pub(crate) fn trim_by(&mut self, ns: u64) {
        self.trim_ns = self.trim_ns.min(ns);
    }

    // ---- other threads ------------------------------------------------------------------------

    /// Ends [`crate::Rpc::run`] when it is set.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    pub(super) fn take_stop(&self) -> bool {
        self.stop.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.poller.as_ref().map(AsFd::as_fd)
    }
}

/// One descriptor over the transport's and the mailbox's.
fn poller<T: Transport>(transport: &T, mailbox: &Mailbox) -> std::io::Result<Option<OwnedFd>> {
    use rustix::event::epoll;
    let (Some(fd), Some(mail)) = (transport.event_fd(), mailbox.fd()) else { return Ok(None) };
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poller, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    epoll::add(&poller, mail, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    Ok(Some(poller))
}
