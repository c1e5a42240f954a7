//! `courser bench`: what a call costs, beside what the bare packets cost.
//!
//! Two sides, each a thread on a core of its own: this one is the client and measures; the other,
//! a process started from the same program or a thread of this one ([`peer`]), is the server.
//! Windows of RPCs and of raw packets take turns under the [harness](courser_bench); for a raw
//! window the server runs a fixed program on a bare transport instead of its endpoint ([`role`]).
//! Raw and RPC use the same transport with the same settings, through the same `tx_burst` and
//! `rx_burst`; but lone frames of RPCs leave by `tx_copy` where there is that, and raw ones do so with
//! `--raw-copy` only.
//!
//! | bench | RPC | beside it |
//! | --- | --- | --- |
//! | latency | 32-byte echo, one in flight | 32-byte datagram there and back |
//! | rate | 32-byte echoes: 128 in flight on 16 sessions, or batches on 8 | trains of 32 frames of 48 bytes, echoed |
//! | bandwidth | requests of a size, 32-byte answers | trains of full frames, counted on arrival; `memcpy` |
//! | [`factors`] | rate with one optimization after another off | the step before |
//! | [`faults`] | any of the first three under loss and other faults, by scheme of recovery | the same without |
//! | [`sessions`] | rate on more and more sessions; memory of idle ones | rate on eight |
//! | [`credits`] | latency, rate and bandwidth with C credits | |
//! | [`sweep`] | rate by calls in flight and frame size | the best with fewer in flight |
//! | [`txqueue`] | rate with bounded transmit bursts | the longest |
//! | [`threads`] | rate of one, two, four... threads | that of one |
//!
//! The raw programs do what a program without a protocol would do at its best: they answer
//! from a buffer that lies ready and look at no byte. How many trains they keep in flight is
//! tried out first ([`raw::best_window`]).
//!
//! [`spec`] says what to run; [`side`] opens endpoints and sockets, [`ground`] both sides;
//! [`caller`] makes calls, [`calls`] are windows of them, [`raw`] the raw ones, [`copy`] copies;
//! [`series`] puts windows in turn, [`steps`] does so with settings that differ; [`service`] has
//! the request types, [`child`] the other side as it is seen from here, [`figures`] the counters
//! that explain a result, [`run`](self::run()) the report.

mod caller;
mod calls;
mod child;
mod copy;
pub(crate) mod credits;
pub(crate) mod factors;
pub(crate) mod faults;
mod figures;
mod ground;
pub(crate) mod overload;
pub(crate) mod peer;
mod raw;
mod role;
mod run;
mod series;
pub(crate) mod service;
pub(crate) mod sessions;
mod side;
mod spec;
mod steps;
pub(crate) mod sweep;
pub(crate) mod threads;
pub(crate) mod txqueue;
pub(crate) mod workers;

pub(crate) use faults::Faults;
pub(crate) use raw::shared_memory;
pub(crate) use run::run;
pub(crate) use side::Over;
#[cfg(test)]
pub(crate) use spec::PAPER_BATCHES;
pub(crate) use spec::{BenchSpec, Kind, RATE_IN_FLIGHT, SERIES_SIZES};
