//! State of one RPC on either side: counters and buffers, no I/O (`[eRPC §4.3]`, E30).
//!
//! A session has a fixed number of slots, a power of two. Request numbers of slot `s` are `first +
//! s, first + s + slots, ...` modulo 2^32, so a number determines its slot, and a slot's numbers
//! repeat only after 2^32 / slots requests.

mod client;
mod gap_nack;
mod gaps;
mod server;

pub(crate) use client::{ClientSlot, Ending, NextPacket};
use gap_nack::GapNack;
pub(crate) use gaps::Gaps;
pub(crate) use server::{Position, SHORT, ServerPhase, ServerSlot, Stored};
