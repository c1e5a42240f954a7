//! The benchmark harness, which measures all figures of this project.
//!
//! # How to read a number
//!
//! On a virtual machine, the hypervisor may move two virtual cores from one shared cache to different
//! dies at any time, and the guest is not informed. The round trip of a cache line then changes by a
//! factor of four, and all results over shared memory change with it. The harness therefore measures
//! the placement of the cores together with the workload:
//!
//! 1. A measurement consists of short **windows** ([`window`]). Right before and right after each
//!    window, a probe measures the cache-line round trip between the two cores in use
//!    ([`probe`]).
//! 2. Each probe is classified **near**, **far** or **mixed** ([`placement`]). A window
//!    whose two probes disagree is dropped, because the placement changed during it.
//! 3. The workload (the RPC) and its baseline (the **raw** transport) alternate,
//!    raw, RPC, raw, RPC, so that slow drifts affect both equally. Two neighbouring windows
//!    of one placement make a **pair**.
//! 4. Near and far are two results, never averaged. Each value is the **median over
//!    windows**, with the range and a 95 % confidence interval that assumes no
//!    distribution ([`stats`]).
//! 5. `ratio` is the median over all pairs of the quotient RPC / raw **within the pair**. The ratio
//!    is comparable between machines; absolute numbers are not.
//!
//! Near and far are ranges. `probe_ns` with its minimum and maximum shows the part of the range that a
//! result comes from. Compare two runs only if these values agree; a wide range means that a result
//! mixes several states of the machine.
//!
//! The placement of memory matters as well. On machines with several NUMA nodes, the node of a shared
//! page influences its round trip as much as the cores do, and a run keeps its pages. Runs can
//! therefore differ by more than their intervals. The probe uses several pages. Raw and RPC windows
//! should use the same memory, and a claim should hold over several starts of the program.
//!
//! An interval covers the spread between windows of one run on one machine. Neighbouring windows are
//! not fully independent, so it is a lower bound of the uncertainty. Percentiles above p99 of single
//! windows are not reported: on a shared host, gaps of 0.3-2 ms are caused by the host.
//!
//! If no window has a placement (one usable core, a peer that does not answer probes, round trips
//! between the classes), the medians over all windows are reported under the placement `untagged`.
//! Such a number is an indication, not a claim.
//!
//! # The parts
//!
//! [`courser_kit::affinity`] chooses and pins cores; [`clock`] and [`latency`] time single operations;
//! [`line`](mod@line) is the shared page that probes use, also between processes;
//! [`probe`], [`placement`] and [`window`] measure; [`stats`], [`report`], [`table`] and
//! [`courser_kit::environment`] describe results.

pub mod clock;
pub mod contention;
pub mod latency;
pub mod line;
pub mod netns;
pub mod placement;
pub mod plan;
pub mod probe;
pub mod progress;
pub mod report;
pub mod rpc;
pub mod stats;
pub mod table;
pub mod window;

#[cfg(test)]
mod demo;
