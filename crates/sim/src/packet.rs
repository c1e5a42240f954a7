//! A datagram on its way through the simulated network.

use courser::Addr;
use courser::parts::buf::Ecn;

/// Number of a host, from 0 in the order in which the topology names them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u32);

/// Bytes that every datagram takes on the wire besides its payload: preamble 8, Ethernet header
/// 14, IPv4 header 20, UDP header 8, frame check sequence 4, gap between frames 12.
pub const WIRE_OVERHEAD: u32 = 66;

/// Of those, the bytes that a switch stores: without preamble and gap.
pub const STORED_OVERHEAD: u32 = 46;

/// The least payload that an Ethernet frame of 64 bytes has room for; shorter ones are padded.
pub const MIN_PAYLOAD: u32 = 18;

/// One datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Its number in the world: the order in which packets were sent. A duplicate has its
    /// original's.
    pub id: u64,
    /// The host that sent it.
    pub src: HostId,
    /// The host it goes to.
    pub dst: HostId,
    /// Datapath address of the sender.
    pub src_addr: Addr,
    /// Datapath port of the receiver.
    pub dst_port: u32,
    /// Hash of its flow (both addresses and ports): all packets of a flow take one path.
    pub flow: u32,
    /// The payload of the datagram: a Courser frame.
    pub bytes: Vec<u8>,
    /// Congestion mark.
    pub ecn: Ecn,
    /// A fault has flipped one of its bits, which the receiving NIC's check will find.
    pub corrupt: bool,
    /// When the NIC began to send it, ns.
    pub sent_ns: u64,
    /// When its endpoint handed it to the NIC, ns.
    pub queued_ns: u64,
}

impl Packet {
    /// Bytes that it takes on a link.
    pub fn wire_bytes(&self) -> u32 {
        (self.bytes.len() as u32).max(MIN_PAYLOAD) + WIRE_OVERHEAD
    }

    /// Bytes that it takes in a switch's buffer.
    pub fn stored_bytes(&self) -> u32 {
        (self.bytes.len() as u32).max(MIN_PAYLOAD) + STORED_OVERHEAD
    }
}
