//! A datagram in the simulated network.

use courser_buf::Addr;
use courser_buf::Ecn;

/// Number of a host, from 0 in the order in which the topology names them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u32);

/// Bytes of a datagram on the wire besides its payload: preamble 8, Ethernet header 14, IPv4 header
/// 20, UDP header 8, frame check sequence 4, interframe gap 12.
pub const WIRE_OVERHEAD: u32 = 66;

/// The part of [`WIRE_OVERHEAD`] that a switch stores: all but preamble and gap.
pub const STORED_OVERHEAD: u32 = 46;

/// Smallest payload of an Ethernet frame of 64 bytes; shorter ones are padded.
pub const MIN_PAYLOAD: u32 = 18;

/// One datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Number in the world, in the order in which packets were sent. A duplicate has the number of
    /// its original.
    pub id: u64,
    /// The sending host.
    pub src: HostId,
    /// The receiving host.
    pub dst: HostId,
    /// Datapath address of the sender.
    pub src_addr: Addr,
    /// Datapath port of the receiver.
    pub dst_port: u32,
    /// Hash of its flow (both addresses and ports): all packets of a flow take one path.
    pub flow: u32,
    /// The payload of the datagram: a Courser frame.
    pub bytes: Vec<u8>,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// A fault has flipped a bit, which the check of the receiving NIC finds.
    pub corrupt: bool,
    /// When the NIC began to send it, ns.
    pub sent_ns: u64,
    /// Time for which the receiving host delays it behind its NIC, ns.
    pub host_delay_ns: u64,
    /// When its endpoint handed it to the NIC, ns.
    pub queued_ns: u64,
}

impl Packet {
    /// Bytes on a link.
    pub fn wire_bytes(&self) -> u32 {
        (self.bytes.len() as u32).max(MIN_PAYLOAD) + WIRE_OVERHEAD
    }

    /// Bytes in the buffer of a switch.
    pub fn stored_bytes(&self) -> u32 {
        (self.bytes.len() as u32).max(MIN_PAYLOAD) + STORED_OVERHEAD
    }
}
