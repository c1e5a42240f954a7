//! The benchmark harness: how every number of this project is measured.
//!
//! # How to read a number
//!
//! On a virtual machine two cores may at one moment share a cache and a moment later
//! sit on different dies; the guest cannot detect it. The round trip of one cache
//! line then moves by a factor of four, and every result that lives on shared memory
//! moves with it. A benchmark that ignores this measures the hypervisor's scheduler.
//! So the harness works like this:
//!
//! 1. A measurement is cut into short **windows** ([`window`]). Right before and right
//!    after each, the cache-line round trip between the two cores in use is measured
//!    ([`probe`]).
//! 2. Each probe is classified **near**, **far** or **mixed** ([`placement`]). A window
//!    whose two probes disagree is dropped: the placement changed under it.
//! 3. The workload (the RPC) and its baseline (the **raw** transport) alternate,
//!    raw, RPC, raw, RPC, so that slow drifts hit both alike. Two neighbouring windows
//!    of one placement make a **pair**.
//! 4. Near and far are two results, never averaged. Each value is the **median over
//!    windows**, with the range and a 95 % confidence interval that assumes no
//!    distribution ([`stats`]).
//! 5. `ratio` is the median over pairs of RPC over raw **within the pair**; that is the
//!    number which carries over to other machines. Absolute numbers do not.
//!
//! A class is a range. `probe_ns` with its minimum and maximum tells which part of it a
//! result comes from: compare two runs only where these agree, and look twice at a
//! result whose own range is wide.
//!
//! Memory has a place as well. On some machines the page that two cores share decides
//! about its round trip as much as they do, and a run keeps its pages from start to end:
//! runs then differ by more than their intervals say. The probe evens this out over
//! several pages; a workload should run raw and RPC over the same memory, and a claim
//! should hold over several starts of the program.
//!
//! What an interval covers: the spread between windows of this run on this machine.
//! Neighbouring windows are not fully independent, so read it as a lower bound of the
//! uncertainty. Percentiles beyond p99 are not reported: on a shared host, gaps of
//! 0.3-2 ms belong to the host.
//!
//! When no window could be tagged (one usable core, a peer that does not answer probes,
//! round trips between the classes), the medians over all windows are reported once,
//! under the placement `untagged`. Such a number is a hint, not a claim.
//!
//! # The parts
//!
//! [`affinity`] picks and pins cores; [`clock`] and [`latency`] time single operations;
//! [`line`](mod@line) is the shared page that probes use, also between processes;
//! [`probe`], [`placement`] and [`window`] measure; [`stats`], [`report`], [`table`] and
//! [`environment`] describe results.

pub mod affinity;
pub mod clock;
pub mod contention;
pub mod environment;
pub mod latency;
pub mod line;
pub mod placement;
pub mod probe;
pub mod program;
pub mod report;
pub mod rpc;
pub mod stats;
pub mod table;
pub mod window;

#[cfg(test)]
mod demo;
