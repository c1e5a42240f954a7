//! Frames at the transport boundary (steps 8 and 9 of a packet's path).
//!
//! A frame is one datagram. The protocol passes [`TxFrame`]s to the transport; they own counted
//! references to their bytes ([`TxSeg`]), so a transport may keep them until its hardware has sent
//! them. The transport lends [`RxFrame`]s, which borrow its receive memory until the next burst.

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use arrayvec::ArrayVec;

use crate::msgbuf::drop_segs;
use crate::tail::TailStart;
use crate::{Tail, TxSeg, prefetch_copy};

/// Prefetch distance of code that copies frames one after another: the data of the frame that is
/// this many places behind is prefetched ([`TxFrame::prefetch_data`]).
pub const COPY_AHEAD: usize = 2;

/// Maximum gather entries of a [`TxFrame`]: the headers and data of 32 packets. The kernel takes 1024
/// for a message, hardware of 2015 took 32 (S19); a transport reports what it takes.
pub const TX_GATHER: usize = 64;

/// Pieces that a frame holds in place: a packet of a large message has two. The list of a frame with
/// more is on the heap, so that other frames are no larger for it.
const IN_PLACE: usize = 2;

/// Maximum frames of one receive burst: two full trains of 64 segments.
pub const RX_BURST: usize = 128;

/// The frames of one receive burst, borrowed from the transport.
pub type RxBurst<'a> = ArrayVec<RxFrame<'a>, RX_BURST>;

/// Frames to send, oldest first. A transport takes frames from the front and leaves those that it
/// cannot send for the next burst.
pub type TxBurst = VecDeque<TxFrame>;

/// Source or destination of a datagram, comparable in a few instructions.
///
/// For IP transports `host` is the address in its IPv6 form (IPv4 is mapped, `::ffff:a.b.c.d`)
/// and `port` the UDP port. A link-local address (fe80::/10), which may exist on several links, has the
/// number of its interface in bits 64 to 95, where such addresses have zeros [RFC 4291 section 2.5.6].
/// Other transports number their endpoints in `host` as they like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Addr {
    /// The node: an IPv6 (or mapped IPv4) address as a number, or a transport's own number.
    pub host: u128,
    /// The endpoint on that node: a UDP port, or a transport's own number.
    pub port: u32,
}

impl Addr {
    /// The address of an IP socket; the flow label is not part of it, and the scope only of a
    /// link-local address.
    pub fn from_socket(addr: SocketAddr) -> Self {
        let port = u32::from(addr.port());
        match addr {
            SocketAddr::V4(v4) => Addr { host: u128::from(v4.ip().to_ipv6_mapped()), port },
            SocketAddr::V6(v6) => {
                Addr { host: u128::from(*v6.ip()), port }.with_zone(v6.scope_id())
            }
        }
    }

    /// The same address with the number of its interface, if it is link-local and the number is not 0.
    #[must_use]
    pub fn with_zone(self, zone: u32) -> Self {
        if zone == 0 || !is_link_local(self.host) {
            return self;
        }
        let zone = u128::from(zone) << ZONE_SHIFT;
        Addr { host: (self.host & !ZONE_BITS) | zone, ..self }
    }

    /// The IP socket that this address names; mapped IPv4 addresses are returned as IPv4.
    /// Only meaningful for addresses of IP transports. `None` for a port above 65,535.
    pub fn to_socket(self) -> Option<SocketAddr> {
        let port = u16::try_from(self.port).ok()?;
        let zone = (self.host & ZONE_BITS) >> ZONE_SHIFT;
        if zone != 0 && is_link_local(self.host) {
            let ip = Ipv6Addr::from(self.host & !ZONE_BITS);
            return Some(SocketAddrV6::new(ip, port, 0, zone as u32).into());
        }
        Some(SocketAddr::new(Ipv6Addr::from(self.host).to_canonical(), port))
    }
}

/// Bits of a link-local address that have the number of its interface.
const ZONE_BITS: u128 = 0xffff_ffff << ZONE_SHIFT;
const ZONE_SHIFT: u32 = 64;

/// Returns whether an address is in fe80::/10.
fn is_link_local(host: u128) -> bool {
    host >> 118 == 0xfe80 >> 6
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_socket() {
            Some(s) => write!(f, "{s}"),
            None => write!(f, "{:x}/{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Explicit congestion notification, as in the two low bits of the IP traffic class (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not support ECN.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, code point 1.
    Ect1 = 1,
    /// ECN-capable transport, code point 0, which Courser sends.
    Ect0 = 2,
    /// Congestion experienced: a switch on the path marked the frame.
    Ce = 3,
}

impl Ecn {
    /// Reads the two low bits of an IP traffic class; the others are ignored.
    pub fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

/// A destination that a transport has prepared: socket address, route, later an address handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PathId(pub u32);

/// One datagram to send: up to [`TX_GATHER`] pieces, in order.
///
/// The frame owns references to its memory and releases them when dropped. Its length is always that
/// of its pieces: transports reserve memory by it.
#[derive(Clone, Debug)]
pub struct TxFrame {
    /// The destination.
    pub path: PathId,
    few: ArrayVec<TxSeg, IN_PLACE>,
    /// All pieces, when they are more than `few` has room for; else empty.
    many: Vec<TxSeg>,
    len: u32,
}

const _: () = assert!(size_of::<TxFrame>() == 88 || size_of::<usize>() != 8);

impl TxFrame {
    /// A frame without pieces and destination, to be filled.
    pub const EMPTY: TxFrame =
        TxFrame { path: PathId(u32::MAX), few: ArrayVec::new_const(), many: Vec::new(), len: 0 };

    /// The pieces, in wire order.
    #[inline]
    pub fn segs(&self) -> &[TxSeg] {
        if self.many.is_empty() { &self.few } else { &self.many }
    }

    /// Makes room for `pieces` pieces in total, so that adding them allocates nothing more.
    pub fn reserve(&mut self, pieces: usize) {
        if pieces > IN_PLACE {
            self.many.reserve_exact(pieces.min(TX_GATHER).saturating_sub(self.many.len()));
        }
    }

    /// Length of all pieces together, in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// The frame has [`TX_GATHER`] pieces, or would be longer than 4 GiB; the piece is returned.
    #[inline(always)]
    pub fn push(&mut self, seg: TxSeg) -> Result<(), TxSeg> {
        let added = u32::try_from(seg.len()).ok().and_then(|len| self.len.checked_add(len));
        let Some(len) = added else { return Err(seg) };
        if self.many.is_empty() {
            if let Err(full) = self.few.try_push(seg) {
                self.many.extend(self.few.drain(..));
                self.many.push(full.element());
            }
        } else if self.many.len() < TX_GATHER {
            self.many.push(seg);
        } else {
            return Err(seg);
        }
        self.len = len;
        Ok(())
    }

    /// A frame of one piece.
    pub fn one(path: PathId, seg: TxSeg) -> Self {
        let len = seg.len() as u32;
        let mut few = ArrayVec::new();
        few.push(seg);
        TxFrame { path, few, many: Vec::new(), len }
    }

    /// Prefetches the data of a frame in pieces, which is to be copied soon: a packet of a large
    /// message may have been evicted from the caches since it was written.
    #[inline]
    pub fn prefetch_data(&self) {
        if let [_, data] = &self.few[..] {
            prefetch_copy(data);
        }
    }

    /// A frame of a header and the data behind it.
    pub fn two(path: PathId, header: TxSeg, data: TxSeg) -> Self {
        let len = (header.len() + data.len()) as u32;
        let mut few = ArrayVec::new();
        few.push(header);
        few.push(data);
        TxFrame { path, few, many: Vec::new(), len }
    }

    /// Copies the frame's bytes to the end of `out` (for transports and middleware that copy).
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        let segs = if self.many.is_empty() { &self.few[..] } else { &self.many };
        for seg in segs {
            out.extend_from_slice(seg);
        }
    }
}

/// Drops the first `count` frames of a burst, or all when there are fewer, after they were sent.
/// Releasing the packets of one large message together costs two locked instructions, instead of
/// two for each.
pub fn drop_frames(burst: &mut TxBurst, count: usize) {
    let count = count.min(burst.len());
    drop_segs(burst.drain(..count).flat_map(|frame| frame.few.into_iter().chain(frame.many)));
}

/// One datagram that arrived, borrowed from the transport until its next receive burst.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The sender, as reported by the transport.
    pub src: Addr,
    /// The datagram's bytes, or its first ones: at least [`RX_HEAD`] if there is a tail.
    pub data: &'a [u8],
    /// Its congestion mark.
    pub ecn: Ecn,
    /// Time for which it has waited in the host, in units of [`WAIT_UNIT_NS`]; 0: it has not waited, or
    /// that is not known.
    waited: u16,
    /// The two parts of a [`Tail`].
    tail_at: TailStart<'a>,
    tail_len: u32,
}

/// Bytes at the front of a frame that are never in its tail: room for the headers of a frame and
/// of its first packet.
pub const RX_HEAD: usize = 256;

/// Unit of a frame's wait in the host, ns.
const WAIT_UNIT_NS: u32 = 64;

const _: () = assert!(size_of::<RxFrame<'_>>() == 64, "a cache line");

impl<'a> RxFrame<'a> {
    /// A frame without a tail.
    #[inline]
    pub fn new(src: Addr, data: &'a [u8], ecn: Ecn) -> Self {
        let Tail { at: tail_at, len: tail_len } = Tail::NONE;
        RxFrame { src, data, ecn, waited: 0, tail_at, tail_len }
    }

    /// The same frame, which has waited for this time between its arrival at the host and the receive
    /// burst, ns: in the kernel, in the socket. Those below 64 ns count as none, those of 4.2 ms and more as
    /// not known: the clocks may have been set meanwhile.
    #[inline]
    pub fn with_wait(self, wait_ns: u64) -> Self {
        let units = wait_ns / u64::from(WAIT_UNIT_NS);
        RxFrame { waited: u16::try_from(units).unwrap_or(0), ..self }
    }

    /// Time between the arrival at the host and the receive burst, ns; `None`: none, or the transport
    /// does not know it.
    #[inline]
    pub fn waited_ns(&self) -> Option<u32> {
        (self.waited > 0).then(|| u32::from(self.waited) * WAIT_UNIT_NS)
    }

    /// The same frame with a tail.
    #[inline]
    pub fn with_tail(self, tail: Tail<'a>) -> Self {
        RxFrame { tail_at: tail.at, tail_len: tail.len, ..self }
    }

    /// The rest of the datagram behind `data`. Empty, unless a transport leaves the end of a large
    /// frame in memory that its sender can still write, so that it is copied only once, to its
    /// destination.
    #[inline]
    pub fn tail(&self) -> Tail<'a> {
        Tail { at: self.tail_at, len: self.tail_len }
    }

    /// Length of the datagram, bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.data.len() + self.tail_len as usize
    }

    /// Returns whether the datagram is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.tail_len == 0
    }

    /// Copies the datagram to the end of `out`.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        out.extend_from_slice(self.data);
        self.tail().append_to(out);
    }

    /// The datagram in one piece. If it has a tail, both parts are copied to `room`, which is
    /// overwritten.
    pub fn join<'b>(&self, room: &'b mut Vec<u8>) -> RxFrame<'b> {
        room.clear();
        room.reserve_exact(self.len());
        self.copy_to(room);
        RxFrame { waited: self.waited, ..RxFrame::new(self.src, room, self.ecn) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Arena, MsgBuf, PacketAccess};

    #[test]
    fn link_local_addresses_differ_by_their_zone_and_others_have_none() {
        let addr = |text: &str| Addr::from_socket(text.parse().unwrap());
        for text in ["[fe80::1%3]:9", "[fe80::1%4294967295]:9", "[fe80::1]:9", "[::1]:9"] {
            assert_eq!(addr(text).to_socket(), Some(text.parse().unwrap()));
            assert_eq!(addr(text).to_string(), text);
        }
        assert_ne!(addr("[fe80::1%3]:9"), addr("[fe80::1%4]:9"));
        for (plain, scoped) in [("[fd00::1]:9", "[fd00::1%3]:9"), ("[febf::1]:9", "[febf::1%0]:9")]
        {
            assert_eq!(addr(plain), addr(scoped));
        }
        assert_ne!(addr("[febf::1%3]:9"), addr("[febf::1]:9"));
        assert_eq!(addr("[fec0::1%3]:9"), addr("[fec0::1]:9"));
        let v4 = addr("10.0.0.1:9");
        assert_eq!(v4.with_zone(3), v4);
        let forged = addr("[fe80:0:7:7::1%3]:9");
        assert_eq!(forged, addr("[fe80::1%3]:9"), "its zone is that of the interface");
    }

    #[test]
    fn a_wait_is_known_or_not_and_has_a_limit() {
        let frame = RxFrame::new(Addr { host: 0, port: 0 }, b"head", Ecn::Ce);
        assert_eq!(frame.waited_ns(), None);
        for (ns, seen) in [
            (0, None),
            (63, None),
            (20_000, Some(19_968)),
            (4_194_303, Some(4_194_240)),
            (u64::MAX, None),
        ] {
            assert_eq!(frame.with_wait(ns).waited_ns(), seen, "{ns}");
            assert_eq!(frame.with_wait(ns).join(&mut Vec::new()).waited_ns(), seen);
        }
    }

    #[test]
    fn frames_are_dropped_from_the_front_and_release_their_references() {
        for (pieces, kept) in [(2, true), (2, false), (1, true), (1, false)] {
            let arena = Arena::heap();
            let mut messages: Vec<_> = (0..3).map(|_| arena.alloc(8_000).unwrap()).collect();
            // Frames of one message, of two alternately, and of a third that has further references.
            let order = [0, 0, 0, 0, 1, 0, 1, 1, 2, 2];
            let mut burst = TxBurst::new();
            for (index, message) in (1..).zip(order) {
                let message = &mut messages[message];
                burst.push_back(if pieces == 2 {
                    let (header, data) = message.packet_segs(index % 4, 24, 10..500).unwrap();
                    TxFrame::two(PathId(index), header, data)
                } else {
                    TxFrame::one(PathId(index), message.data_seg(10..500).unwrap())
                });
            }
            let elsewhere = burst[8].segs()[0].clone();
            let shared = |messages: &[MsgBuf]| messages.iter().map(MsgBuf::is_shared).collect();
            let mut seen: Vec<Vec<bool>> = Vec::new();
            if !kept {
                messages.clear();
            }
            for count in [0, 3, 3, 2, 2] {
                drop_frames(&mut burst, count);
                seen.push(shared(&messages));
                let held: BTreeSet<_> = order[10 - burst.len()..].iter().chain([&2]).collect();
                let want = if kept { 3 } else { held.len() };
                assert_eq!(arena.stats().in_use_buffers, want, "{pieces} pieces, {count}");
            }
            assert!(burst.is_empty());
            if kept {
                let (yes, no) = (true, false);
                let rows = [[yes; 3], [yes; 3], [no, yes, yes], [no, no, yes], [no, no, yes]];
                assert_eq!(seen, rows);
            }
            drop((elsewhere, messages));
            assert_eq!(arena.stats().in_use_buffers, 0);
        }
    }

    #[test]
    fn a_frame_of_many_pieces_keeps_their_order_and_releases_them() {
        let arena = Arena::heap();
        let message = arena.alloc(TX_GATHER + 1).unwrap();
        for pieces in 0..=TX_GATHER {
            let mut frame = TxFrame::EMPTY;
            if pieces % 2 == 0 {
                frame.reserve(pieces);
            }
            for at in 0..pieces {
                frame.push(message.data_seg(at..at + 1).unwrap()).unwrap();
            }
            assert_eq!((frame.segs().len(), frame.len() as usize), (pieces, pieces));
            let places = frame.segs().iter().map(|seg| seg.as_ptr());
            assert!(places.eq((0..pieces).map(|at| message[at..].as_ptr())));
            let again = frame.clone();
            let mut burst = TxBurst::from([frame, again]);
            drop_frames(&mut burst, 1);
            assert_eq!(message.is_shared(), pieces > 0);
            if pieces == TX_GATHER {
                let more = message.data_seg(0..1).unwrap();
                assert!(burst[0].push(more).is_err(), "one piece too many");
                assert_eq!(burst[0].len() as usize, pieces);
            }
            drop(burst);
            assert!(!message.is_shared());
        }
    }

    #[test]
    fn a_frame_in_two_pieces_is_joined() {
        let src = Addr { host: 1, port: 2 };
        let tail = Tail::from(&b" and the rest"[..]);
        let whole = RxFrame::new(src, b"head", Ecn::Ce);
        let frame = whole.with_tail(tail);
        let mut room = b"something else".to_vec();
        for (frame, want) in [(frame, &b"head and the rest"[..]), (whole, b"head")] {
            assert_eq!((frame.len(), frame.is_empty()), (want.len(), false));
            let joined = frame.join(&mut room);
            assert_eq!((joined.src, joined.data, joined.ecn), (src, want, Ecn::Ce));
            assert!(joined.tail().is_empty());
            let mut out = b">".to_vec();
            frame.copy_to(&mut out);
            assert_eq!(out, [b">", want].concat());
        }
        assert!(RxFrame::new(src, b"", Ecn::Ce).is_empty());
    }
}
