//! Congestion control of the path to a peer (E47, E48).
//!
//! A controller belongs to the client side of a path: it limits what a client sends and requests,
//! which also bounds what servers send. It does no I/O, takes its signals as arguments and computes
//! in integers, so that its results are the same on every machine. Its output is a window of packets
//! in flight, a rate, or both ([`Allowance`]); [`crate::credits::CreditPool`] enforces the window and
//! [`crate::pace`] the rate.
//!
//! | control | signal | output | source |
//! | --- | --- | --- | --- |
//! | [`Control::Timely`] | gradient of the round trip | rate | as eRPC ships it `[eRPC section 5.2]` |
//! | [`Control::TimelyPatched`] | the round trip too | rate | ECN or Delay, CoNEXT '16 |
//! | [`Control::Dcqcn`] | congestion marks | rate | DCQCN, SIGCOMM '15 |
//! | [`Control::Swift`] | delay against a target | window | Swift, SIGCOMM '20 |
//! | [`Control::TwoWindow`] | marks, or delay | window | ADR 35 |

pub(crate) mod constants;
pub(crate) mod control;
mod papers;
mod path_control;
mod signal;
mod swift;
mod two_window;

pub use constants::{DcqcnConstants, TimelyConstants};
pub use control::{Control, UnknownControl};
use papers::{Constants, Dcqcn, Timely};
pub(crate) use path_control::PathControl;
pub(crate) use signal::{Allowance, HostLink, PART, Signal, packet_wire_bytes};
use swift::Swift;
use two_window::TwoWindow;

/// The controller of a path.
#[derive(Debug)]
pub(crate) enum Controller {
    Timely(Timely),
    Dcqcn(Dcqcn),
    Swift(Swift),
    TwoWindow(TwoWindow),
}

impl Controller {
    /// The controller of a path with a window of at most `limit` packets, with the constants of its
    /// source; `None`: none.
    #[cfg(test)]
    pub(crate) fn new(control: Control, line: HostLink, limit: u32) -> Option<Self> {
        Self::with(Constants::default(), control, line, limit)
    }

    /// The controller of a path with a window of at most `limit` packets; `None`: none.
    fn with(constants: Constants, control: Control, line: HostLink, limit: u32) -> Option<Self> {
        let timely = |patched| Timely::new(line, patched, constants.timely(patched));
        Some(match control {
            Control::None => return None,
            Control::Timely => Controller::Timely(timely(false)),
            Control::TimelyPatched => Controller::Timely(timely(true)),
            Control::Dcqcn => Controller::Dcqcn(Dcqcn::new(line, constants.dcqcn())),
            Control::Swift => Controller::Swift(Swift::new(line, limit)),
            Control::TwoWindow => Controller::TwoWindow(TwoWindow::new(line, limit)),
        })
    }

    /// Takes the signals of a frame.
    pub(crate) fn on_signal(&mut self, s: &Signal) {
        match self {
            Controller::Timely(c) => c.on_signal(s),
            Controller::Dcqcn(c) => c.on_signal(s),
            Controller::Swift(c) => {
                c.on_signal(s);
            }
            Controller::TwoWindow(c) => c.on_signal(s),
        }
    }

    /// Packets were lost. Timely and DCQCN take no notice.
    pub(crate) fn on_loss(&mut self, now_ns: u64, rtt_ns: u64) {
        match self {
            Controller::Timely(_) | Controller::Dcqcn(_) => {}
            Controller::Swift(c) => c.on_loss(now_ns, rtt_ns),
            Controller::TwoWindow(c) => c.on_loss(now_ns, rtt_ns),
        }
    }

    /// The smallest round trip of a route that turns out to be longer than before.
    pub(crate) fn take_longer_route(&mut self) -> Option<u64> {
        match self {
            Controller::TwoWindow(c) => c.take_longer_route(),
            _ => None,
        }
    }

    /// A retransmission was spurious: the loss that it answered was none.
    pub(crate) fn on_spurious(&mut self) {
        match self {
            Controller::Timely(_) | Controller::Dcqcn(_) => {}
            Controller::Swift(c) => c.on_spurious(),
            Controller::TwoWindow(c) => c.on_spurious(),
        }
    }

    /// The largest window, in parts of a packet; `u64::MAX`: it has a rate, not a window.
    pub(crate) fn limit(&self) -> u64 {
        match self {
            Controller::Timely(_) | Controller::Dcqcn(_) => u64::MAX,
            Controller::Swift(c) => c.limit(),
            Controller::TwoWindow(c) => c.limit(),
        }
    }

    /// The limit of the window has changed.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        match self {
            Controller::Timely(_) | Controller::Dcqcn(_) => {}
            Controller::Swift(c) => c.set_limit(limit),
            Controller::TwoWindow(c) => c.set_limit(limit),
        }
    }

    /// The present allowance. `base_ns` is the smallest round trip, `noise_ns` the noise.
    pub(crate) fn allowance(&self, base_ns: u64, rtt_ns: u64, noise_ns: u64) -> Allowance {
        match self {
            Controller::Timely(c) => c.allowance(),
            Controller::Dcqcn(c) => c.allowance(),
            Controller::Swift(c) => c.allowance(base_ns, rtt_ns, noise_ns),
            Controller::TwoWindow(c) => c.allowance(base_ns, rtt_ns, noise_ns),
        }
    }
}

#[cfg(test)]
mod tests;
