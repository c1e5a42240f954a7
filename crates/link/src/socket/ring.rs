//! Receives packets of an interface by a packet socket, with a ring of frames that the kernel fills.
//!
//! The ring is TPACKET_V2: the kernel hands over each frame as it arrives. TPACKET_V3 collects frames
//! in blocks, which it hands over when a block is full or after a timeout, so that a single packet
//! waits: 0.8 ms in the median with the shortest timeout, where V2 takes 0.05 ms. A frame of V2 costs
//! no system call either.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use courser_buf::stats;
use libc::{sock_filter, sockaddr_ll, tpacket_req, tpacket2_hdr};

use super::{VLAN_ID, sys};
use crate::netlink::Link;

/// Packets between those that [`Ring::burst`] shows and those that it passes: in the time for which
/// they are processed, memory answers.
pub const AHEAD: usize = 4;

/// Frames of a ring, about: a few milliseconds of small packets, during which the thread may do
/// something else. With an MTU of 1,500 bytes they take 8 MiB.
const FRAMES: usize = 4096;
/// The unit in which the kernel allocates a ring. Frames do not cross its boundaries.
const BLOCK: usize = 1 << 16;
/// Bytes of a frame before the IP packet: the kernel's header, the link-layer header, alignment.
const BEFORE_PACKET: usize = 96;

/// The place of a frame's link-layer address, from the kernel's header.
const ADDRESS: usize = size_of::<tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

stats! {
    /// Counters of a ring, since its start.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct PortCounters: "port" {
        /// Packets that the kernel dropped because the thread did not take them in time.
        pub kernel_drops: u64 = counter(packets),
        /// Packets longer than the interface's MTU: the kernel or the peer aggregates packets.
        pub too_long: u64 = counter(packets),
        /// Frames without a packet.
        pub ignored: u64 = counter(frames),
        /// Frames with the tag of a VLAN. Those with a priority only (VLAN 0) are packets as others.
        pub tagged: u64 = counter(frames),
    }
}

/// A packet that was received.
#[derive(Debug)]
pub struct Received<'a> {
    /// An IP packet, perhaps followed by padding of the link.
    pub packet: &'a mut [u8],
    /// The sender left the transport's checksum to hardware that the link does not have, as senders
    /// on the same machine do. It has to be completed before the packet leaves this machine.
    pub lacks_checksum: bool,
}

/// The receiving half of an interface: IP packets that are addressed to this host by the link layer,
/// without those of VLANs.
///
/// Its descriptor ([`AsFd`]) is readable when packets have arrived. It needs `CAP_NET_RAW`.
#[derive(Debug)]
pub struct Ring {
    // Unmapped before the socket is closed.
    memory: sys::Shared,
    socket: OwnedFd,
    layout: Layout,
    /// The next frame.
    at: usize,
    mtu: usize,
    /// Counters since the start; [`update`](Self::update) adds the kernel's.
    pub counters: PortCounters,
}

impl Ring {
    /// Opens an interface. A ring has 4,096 frames, with an MTU of 1,500 bytes 8 MiB.
    ///
    /// # Errors
    /// The system refused; `PermissionDenied` without the capability.
    pub fn open(link: &Link) -> io::Result<Self> {
        let socket = sys::packet_socket()?;
        let fd = socket.as_fd();
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        sys::set(fd, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        // Packets that this host sends do not pass the filter, and do not reach it either.
        sys::set(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        sys::attach_filter(fd, &mut only_ip_to_this_host())?;
        let layout = Layout::new(link.mtu);
        sys::set(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &layout.request())?;
        let memory = sys::Shared::map(&socket, layout.blocks * BLOCK)?;
        // Last, so that no frame arrives before the filter is there.
        sys::bind(fd, link.index, libc::ETH_P_ALL)?;
        let counters = PortCounters::default();
        Ok(Self { memory, socket, layout, at: 0, mtu: link.mtu, counters })
    }

    /// Takes at most `most` frames, passes their IP packets, and returns the number passed. `ahead`
    /// gets packets some time before, so that it can prefetch. No system call.
    pub fn burst(
        &mut self,
        most: usize,
        ahead: &mut dyn FnMut(&[u8]),
        each: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        let mut passed = 0;
        for _ in 0..most {
            self.show((self.at + AHEAD) % self.layout.frames, ahead);
            let frame = self.memory.at(self.layout.offset(self.at), self.layout.frame);
            // SAFETY: frames are aligned to 16 bytes and within the mapping (`Shared::at`), and the
            // status is their first field. The kernel and this thread access it atomically.
            let status = unsafe { AtomicU32::from_ptr(frame.as_ptr().cast()) };
            let state = status.load(Ordering::Acquire);
            if state & libc::TP_STATUS_USER == 0 {
                break;
            }
            // SAFETY: the kernel wrote the header before the status that was read, and writes no
            // frame that has this status. The header is plain integers.
            let header = unsafe { frame.cast::<tpacket2_hdr>().read() };
            // SAFETY: the kernel puts the address, which is plain integers, after the header.
            let from = unsafe { frame.add(ADDRESS).cast::<sockaddr_ll>().read() };
            if let Some((start, len)) = self.packet(&header, state, u16::from_be(from.sll_protocol))
            {
                // SAFETY: `place` checked that the range is within the frame, which belongs to this
                // thread until the status is written below. Tests that compare all bytes of a
                // burst would catch a frame that the kernel overwrites.
                let packet =
                    unsafe { std::slice::from_raw_parts_mut(frame.as_ptr().add(start), len) };
                let lacks_checksum = state & libc::TP_STATUS_CSUMNOTREADY != 0;
                each(Received { packet, lacks_checksum });
                passed += 1;
            }
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.at = if self.at + 1 == self.layout.frames { 0 } else { self.at + 1 };
        }
        passed
    }

    /// Passes the packet of a frame that will be taken later, if it has arrived.
    #[inline]
    fn show(&self, at: usize, ahead: &mut dyn FnMut(&[u8])) {
        let frame = self.memory.at(self.layout.offset(at), self.layout.frame);
        // SAFETY: as in `burst`.
        let status = unsafe { AtomicU32::from_ptr(frame.as_ptr().cast()) };
        let state = status.load(Ordering::Acquire);
        if state & libc::TP_STATUS_USER == 0 {
            return;
        }
        // SAFETY: as in `burst`.
        let header = unsafe { frame.cast::<tpacket2_hdr>().read() };
        if let Ok((start, len)) = place(&header, state, self.mtu, self.layout.frame) {
            // SAFETY: as in `burst`; nothing writes to the frame before this function returns.
            ahead(unsafe { std::slice::from_raw_parts(frame.as_ptr().add(start), len) });
        }
    }

    /// The place of a frame's IP packet, unless it is not passed, which is counted.
    fn packet(&mut self, header: &tpacket2_hdr, state: u32, kind: u16) -> Option<(usize, usize)> {
        let is_ip = matches!(i32::from(kind), libc::ETH_P_IP | libc::ETH_P_IPV6);
        match place(header, state, self.mtu, self.layout.frame) {
            Ok(place) if is_ip => Some(place),
            // The kernel has removed one tag, and another one follows.
            Ok(_) => {
                self.counters.tagged += 1;
                None
            }
            Err(Refused::TooLong) => {
                self.counters.too_long += 1;
                None
            }
            Err(Refused::Ignored) => {
                self.counters.ignored += 1;
                None
            }
            Err(Refused::Tagged) => {
                self.counters.tagged += 1;
                None
            }
        }
    }

    /// Adds the kernel's count of drops to the counters.
    pub fn update(&mut self) {
        if let Ok(drops) = sys::take_drops(self.socket.as_fd()) {
            self.counters.kernel_drops += u64::from(drops);
        }
    }

    /// Clears the error that an interface leaves when it goes down.
    pub fn clear_error(&self) {
        let _ = sys::take_error(self.socket.as_fd());
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Why a frame's packet is not passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    TooLong,
    Ignored,
    Tagged,
}

/// The start and length of the IP packet in a frame of the ring.
fn place(
    header: &tpacket2_hdr,
    state: u32,
    mtu: usize,
    frame: usize,
) -> Result<(usize, usize), Refused> {
    let start = usize::from(header.tp_net);
    let link_header = start.checked_sub(usize::from(header.tp_mac)).ok_or(Refused::Ignored)?;
    let len = (header.tp_len as usize).saturating_sub(link_header);
    let taken = (header.tp_snaplen as usize).saturating_sub(link_header);
    if state & libc::TP_STATUS_VLAN_VALID != 0 && header.tp_vlan_tci & VLAN_ID != 0 {
        return Err(Refused::Tagged);
    }
    if len == 0 {
        return Err(Refused::Ignored);
    }
    // The second and third condition hold for an MTU that is larger than a frame of the ring.
    if len > mtu || taken < len || start + taken > frame {
        return Err(Refused::TooLong);
    }
    Ok((start, taken))
}

/// Frames in blocks.
#[derive(Clone, Copy, Debug)]
struct Layout {
    frame: usize,
    frames_of_block: usize,
    blocks: usize,
    frames: usize,
}

impl Layout {
    fn new(mtu: usize) -> Self {
        // An MTU is at most 65,535 on Ethernet, but the kernel's field is larger.
        let frame = (BEFORE_PACKET + mtu).next_multiple_of(256).clamp(2048, BLOCK);
        let frames_of_block = BLOCK / frame;
        let blocks = FRAMES.div_ceil(frames_of_block).min(FRAMES / 4);
        Self { frame, frames_of_block, blocks, frames: blocks * frames_of_block }
    }

    fn offset(&self, frame: usize) -> usize {
        frame / self.frames_of_block * BLOCK + frame % self.frames_of_block * self.frame
    }

    fn request(&self) -> tpacket_req {
        tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: self.blocks as u32,
            tp_frame_size: self.frame as u32,
            tp_frame_nr: self.frames as u32,
        }
    }
}

/// Accepts IP packets that are addressed to this host by the link layer, and to be counted, frames
/// with two tags. ARP, multicast, broadcast and frames for other hosts are the operating system's.
fn only_ip_to_this_host() -> [sock_filter; 9] {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let of = |field: i32| (libc::SKF_AD_OFF + field) as u32;
    [
        step(LOAD, of(libc::SKF_AD_PKTTYPE), 0, 0),
        step(IF_EQUAL, u32::from(libc::PACKET_HOST), 0, 6),
        step(LOAD_HALF, of(libc::SKF_AD_PROTOCOL), 0, 0),
        step(IF_EQUAL, libc::ETH_P_IP as u32, 3, 0),
        step(IF_EQUAL, libc::ETH_P_8021Q as u32, 2, 0),
        step(IF_EQUAL, libc::ETH_P_8021AD as u32, 1, 0),
        step(IF_EQUAL, libc::ETH_P_IPV6 as u32, 0, 1),
        step(RETURN, u32::MAX, 0, 0),
        step(RETURN, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_mtu_hold_a_packet_and_do_not_cross_blocks() {
        for mtu in [68, 576, 1280, 1500, 1952, 1953, 4000, 9000, 16_000, 65_000, 65_535] {
            let layout = Layout::new(mtu);
            assert!(layout.frame >= (BEFORE_PACKET + mtu).min(BLOCK), "{mtu}");
            assert_eq!(layout.frame % libc::TPACKET_ALIGNMENT, 0);
            assert!(layout.blocks * BLOCK <= FRAMES * 16_384, "{mtu}: {} blocks", layout.blocks);
            let mut end = 0;
            for frame in 0..layout.frames {
                let start = layout.offset(frame);
                assert!(start >= end, "{mtu}: frame {frame} overlaps");
                end = start + layout.frame;
                assert_eq!(start / BLOCK, (end - 1) / BLOCK, "{mtu}: frame {frame} crosses");
            }
            assert!(end <= layout.blocks * BLOCK);
        }
    }

    #[test]
    fn the_place_of_a_packet_is_within_its_frame() {
        // SAFETY: the header is plain integers.
        let mut header: tpacket2_hdr = unsafe { std::mem::zeroed() };
        (header.tp_mac, header.tp_net, header.tp_len, header.tp_snaplen) = (66, 80, 1514, 1514);
        let find = |header: &tpacket2_hdr, mtu, frame| place(header, 1, mtu, frame);
        assert_eq!(find(&header, 1500, 1580), Ok((80, 1500)));
        assert_eq!(find(&header, 1499, 1580), Err(Refused::TooLong));
        assert_eq!(find(&header, 1500, 1579), Err(Refused::TooLong));
        let vlan = libc::TP_STATUS_VLAN_VALID;
        assert_eq!(place(&header, vlan, 1500, 1580), Ok((80, 1500)), "a priority");
        header.tp_vlan_tci = 0xe000;
        assert_eq!(place(&header, vlan, 1500, 1580), Ok((80, 1500)), "another priority");
        header.tp_vlan_tci = 0xe001;
        assert_eq!(place(&header, vlan, 1500, 1580), Err(Refused::Tagged));
        header.tp_vlan_tci = 0;
        header.tp_snaplen = 1513;
        assert_eq!(find(&header, 1500, 1580), Err(Refused::TooLong));
        (header.tp_len, header.tp_snaplen) = (14, 14);
        assert_eq!(find(&header, 1500, 1580), Err(Refused::Ignored));
        (header.tp_mac, header.tp_len) = (81, 1514);
        assert_eq!(find(&header, 1500, 1580), Err(Refused::Ignored));
    }
}
