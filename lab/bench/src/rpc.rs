//! Benchmarks of calls between two sides, compared with raw packets.
//!
//! Each side is a thread on its own core. This side is the client and measures. The other side, the
//! server, is a process of the same program or a thread of this one ([`peer`]). Windows of RPCs
//! and of raw packets alternate; in a raw window the server runs a fixed loop on a bare transport
//! instead of its endpoint ([`role`]). Raw and RPC windows use the same transport with the same
//! settings and the same `tx_burst` and `rx_burst`. Single packets of RPCs are sent by `tx_copy` if
//! the transport supports it, raw packets only with [`BenchSpec::raw_copy`].
//!
//! | bench | RPC | compared with |
//! | --- | --- | --- |
//! | latency | 32-byte echo, one in flight | 32-byte datagram, echoed |
//! | rate | 32-byte echoes: 128 in flight on 16 sessions, or batches on 8 | trains of 32 frames of 48 bytes, echoed |
//! | bandwidth | requests of a size, 32-byte responses | trains of full frames, counted on arrival; `memcpy` |
//! | [`faults`] | one of these under loss and other faults, by recovery scheme | the same without faults |
//!
//! The raw loops are an upper bound for a program without a protocol: they answer from one prepared
//! buffer and read no data. Trials determine the number of trains in flight
//! ([`raw::best_window`]).
//!
//! A program that runs these benchmarks must have a hidden command `bench-peer` that calls
//! [`peer::main`]: the client side starts its own executable as the server.
//!
//! # The parts
//!
//! [`spec`] describes a benchmark, [`load`] its calls, [`side`] opens endpoints and sockets, [`ground`] both sides.
//! [`caller`] makes calls, also as futures, and sends one-way messages; [`calls`], [`raw`] and [`copy`] are workloads of calls, raw packets and
//! copies. [`series`] runs workloads in turn, [`steps`] does so for several settings, [`switch`]
//! lists optimizations to switch off. [`service`] has the request types, [`child`] the server
//! process as seen from here, [`figures`] the counters in reports, [`run`](self::run()) the report.

pub mod caller;
pub mod calls;
pub mod child;
pub mod copy;
pub mod error;
pub mod faults;
pub mod figures;
pub mod ground;
pub mod load;
pub mod peer;
pub mod raw;
pub mod role;
pub mod run;
mod sender;
pub mod series;
pub mod service;
pub mod side;
pub mod spec;
pub mod steps;
pub mod switch;
mod tasks;

pub use error::BenchError;
pub use faults::Faults;
pub use raw::shared_memory;
pub use run::run;
pub use side::Over;
pub use spec::{BenchSpec, Kind, PAPER_BATCHES, RATE_IN_FLIGHT, SERIES_SIZES};
