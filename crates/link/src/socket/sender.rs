//! Sends packets of an interface by a packet socket, many with one system call.
//!
//! A ring of frames, as for receiving, saves a copy with hardware. A virtual link would copy each
//! frame to new pages, because frames are in use until the receiver has taken them.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::sys;
use crate::netlink::{Link, Mac};

/// Packets that wait for the system, at most.
const QUEUE: usize = 512;
/// An Ethernet header: destination, source, type.
const ETHERNET: usize = 14;
/// Bytes that the socket may have in the kernel, as far as the system allows it.
const IN_KERNEL: i32 = 4 << 20;

/// Packets and bytes that left.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sent {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The fate of packets that a [`Sender`] had taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ended {
    /// Packets that the system took.
    pub sent: Sent,
    /// Packets that the system refused.
    pub refused: u64,
    /// Packets that waited when the interface went down.
    pub cleared: u64,
}

/// Why a [`Sender`] did not take a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is no IP packet.
    Version,
    /// It is larger than the MTU.
    TooBig,
    /// The queue is full, and the system has no room.
    Full,
}

/// The sending half of an interface: a queue of 512 packets.
pub struct Sender {
    socket: OwnedFd,
    mac: Mac,
    /// Bytes of the largest packet.
    mtu: usize,
    /// Frames of the queue, each in a slot of its own.
    slots: Vec<u8>,
    /// Bytes of a slot.
    slot: usize,
    lens: [u32; QUEUE],
    first: usize,
    queued: usize,
    /// Packets that the system refused, and those that waited when the interface went down.
    pub refused: u64,
    /// The fate of packets, since it was taken.
    pub ended: Ended,
}

impl Sender {
    /// Opens an interface.
    ///
    /// # Errors
    /// The system refused; `PermissionDenied` without the capability.
    pub fn open(link: &Link) -> io::Result<Self> {
        let socket = sys::packet_socket()?;
        let fd = socket.as_fd();
        sys::bind(fd, link.index, 0)?;
        // Without the privilege the default remains, which is only slower.
        let _ = sys::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &IN_KERNEL);
        Ok(Self {
            socket,
            mac: link.mac.unwrap_or(Mac([0; 6])),
            mtu: link.mtu,
            slots: vec![0; QUEUE * (ETHERNET + link.mtu)],
            slot: ETHERNET + link.mtu,
            lens: [0; QUEUE],
            first: 0,
            queued: 0,
            refused: 0,
            ended: Ended::default(),
        })
    }

    /// Returns true while the socket is that of an interface. It loses one that is deleted.
    pub fn is_bound(&self, interface: u32) -> bool {
        sys::bound(self.socket.as_fd()).is_ok_and(|bound| bound == interface)
    }

    /// Takes over a new link-layer address of the interface.
    pub fn set_mac(&mut self, mac: Mac) {
        self.mac = mac;
    }

    /// Bytes of the largest packet for which there is memory.
    pub fn largest(&self) -> usize {
        self.slot - ETHERNET
    }

    /// Takes over a new MTU of the interface, at most [`largest`](Self::largest).
    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu.min(self.largest());
    }

    /// Bytes of the largest packet.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns true while packets wait for the system.
    pub fn is_waiting(&self) -> bool {
        self.queued > 0
    }

    /// Queues an IP packet for a link-layer address. It leaves with [`flush`](Self::flush).
    ///
    /// # Errors
    /// The reason why the packet was not taken.
    pub fn push(&mut self, to: Mac, packet: &[u8]) -> Result<(), Refusal> {
        let kind = match packet.first().map(|byte| byte >> 4) {
            Some(4) => libc::ETH_P_IP as u16,
            Some(6) => libc::ETH_P_IPV6 as u16,
            _ => return Err(Refusal::Version),
        };
        if packet.len() > self.mtu {
            return Err(Refusal::TooBig);
        }
        if self.queued == QUEUE {
            self.flush();
            if self.queued == QUEUE {
                return Err(Refusal::Full);
            }
        }
        let slot = (self.first + self.queued) % QUEUE;
        let len = ETHERNET + packet.len();
        let start = slot * self.slot;
        let frame = &mut self.slots[start..start + len];
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&self.mac.0);
        frame[12..ETHERNET].copy_from_slice(&kind.to_be_bytes());
        frame[ETHERNET..].copy_from_slice(packet);
        self.lens[slot] = len as u32;
        self.queued += 1;
        Ok(())
    }

    /// Hands queued packets to the system. They stay in the queue while it has no room.
    pub fn flush(&mut self) {
        while self.queued > 0 {
            let (size, first) = (self.slot, self.first);
            let frames = (0..self.queued.min(sys::SEND_BURST)).map(|i| {
                let slot = (first + i) % QUEUE;
                &self.slots[slot * size..slot * size + self.lens[slot] as usize]
            });
            match sys::send(self.socket.as_fd(), frames) {
                Ok(0) => return,
                Ok(sent) => {
                    let lens = (0..sent).map(|i| self.lens[(first + i) % QUEUE] as usize);
                    self.ended.sent.bytes += lens.map(|len| (len - ETHERNET) as u64).sum::<u64>();
                    self.ended.sent.packets += sent as u64;
                    self.take(sent);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    // A full queue of the device, an interface that is down or gone.
                    _ => {
                        self.refused += 1;
                        self.ended.refused += 1;
                        self.take(1);
                    }
                },
            }
        }
    }

    /// Drops all queued packets.
    pub fn clear(&mut self) {
        self.refused += self.queued as u64;
        self.ended.cleared += self.queued as u64;
        self.take(self.queued);
    }

    fn take(&mut self, count: usize) {
        self.first = (self.first + count) % QUEUE;
        self.queued -= count;
    }
}

impl fmt::Debug for Sender {
    /// Without the frames.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("queued", &self.queued).finish_non_exhaustive()
    }
}
