//! Observation of a simulation during the run, and its reports afterwards.
//!
//! The fabric and the world report packets to a [`Tap`]. [`Observer`] is the tap that records what
//! its [`Settings`] select:
//!
//! | | what | cost |
//! | --- | --- | --- |
//! | always | digest of all events, counts of packets, kinds and drops, distributions of times | 15 ns a hop, 30 ns a delivery and 0.1 ns for each of its bytes, 750 KiB |
//! | [`TraceSettings`] | a line for each event, written or the last ones kept | written 0.6 us, kept 20 to 50 ns |
//! | [`CaptureSettings`] | pcapng files of links | 0.1 to 0.5 us a packet and hop, and the file |
//! | [`SeriesSettings`] | bytes, packets, drops, marks and queues over time | a few ns a packet and hop |
//! | [`Settings::log`] | the events that the digest is of, as text | 0.1 us an event |
//!
//! Costs are of a small datagram, as measured on one machine; a large one is nearer to the upper end.
//! Nothing here has an effect on the simulation, and all that is written is the same in every run
//! of the same seed.

pub mod decode;
mod hist;
mod log;
mod names;
mod observer;
mod pcapng;
mod report;
mod series;
mod sink;
mod tap;
mod trace;

pub use decode::Kind;
pub use hist::Times;
pub use log::{Digest, Entry, EventLog};
pub use names::Names;
pub use observer::{Observer, Settings};
pub use pcapng::{CaptureSettings, Links};
pub use report::{Drops, Report};
pub use series::{Point, Series, SeriesSettings};
pub use sink::Sink;
pub use tap::{DropReason, LinkId, Place, Tap, ended_round_trip_ns};
pub use trace::{Event, TraceFilter, TraceSettings};

/// A place as numbers: which sort, which one.
fn place_ids(place: &Place) -> (u64, u64) {
    match *place {
        Place::Host(h) => (0, h.0.into()),
        Place::Switch(s) => (1, s.into()),
        Place::Link(l) => (2, l.0.into()),
    }
}
