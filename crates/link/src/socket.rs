//! Packets of an interface by packet sockets (AF_PACKET).
//!
//! [`Ring`] receives IP packets that are addressed to this host by the link layer, [`Sender`] sends
//! them to a link-layer address. Packets have no link-layer header on this side. A [`FrameSocket`] sends
//! and receives any frames.

mod frames;
mod ring;
mod sender;
mod sys;

pub use frames::FrameSocket;
pub use ring::{AHEAD, PortCounters, Received, Ring};
pub use sender::{Ended, Refusal, Sender, Sent};

pub(crate) use sys::set_receive_buffer;

/// The bits of an IEEE 802.1Q tag that are the VLAN. With 0 the frame has a priority and no VLAN.
pub const VLAN_ID: u16 = 0x0fff;
