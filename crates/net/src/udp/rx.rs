//! Receiving: one system call; trains become frames again (step 9 of a packet's path).

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::{SystemTime, UNIX_EPOCH};

use courser_buf::{Addr, Ecn, RX_BURST, RxBurst, RxFrame};

use super::cmsg;
use crate::TransportStats;

/// Size of a buffer for trains: any train fits.
const TRAIN_BUF: usize = 65_536;
/// Buffers for trains. 1 MiB, of which a quiet endpoint uses only the first 64 KiB.
const TRAIN_BUFS: usize = 16;
/// Buffers when each holds one frame.
const FRAME_BUFS: usize = 32;
/// With this many frames in a call, requesting more messages would only delay them.
const FULL: usize = RX_BURST / 2;

/// Room for segment size, traffic class, drop count and time of arrival, and twice that for what future
/// kernels may add.
const CTRL: usize =
    6 * cmsg::space(size_of::<libc::c_int>()) + 2 * cmsg::space(size_of::<libc::timespec>());

/// A datagram or train in a buffer.
#[derive(Clone, Copy)]
struct Arrived {
    src: Addr,
    ecn: Ecn,
    /// Bytes in the buffer, and those already delivered.
    len: u32,
    done: u32,
    /// Bytes of each frame but the last; not 0.
    segment: u32,
    /// When the kernel has received it, in the time of the system's clock, ns; 0: not known. Of a train,
    /// at the latest when it was passed on.
    at_ns: u64,
}

/// The receive side.
pub(super) struct Rx {
    memory: Box<[u8]>,
    buf_size: usize,
    messages: Box<[libc::mmsghdr]>,
    iovecs: Box<[libc::iovec]>,
    names: Box<[libc::sockaddr_in6]>,
    ctrl: Box<[cmsg::Buf<CTRL>]>,
    /// By buffer; `None` for a datagram that is dropped.
    arrived: Box<[Option<Arrived>]>,
    /// Buffers to deliver: from `next` up to `end`.
    next: usize,
    end: usize,
    /// Messages to request with the next call.
    batch: usize,
    /// The kernel's last drop count.
    overflow: u32,
}

// SAFETY: the raw pointers are written by `prepare` before each use and not read after the call.
// Test: `a_transport_moves_between_threads`.
unsafe impl Send for Rx {}

impl Rx {
    /// Without `gro`, datagrams larger than `max_frame` are dropped.
    pub(super) fn new(gro: bool, max_frame: usize) -> Self {
        let (buf_size, count) = if gro {
            (TRAIN_BUF, TRAIN_BUFS)
        } else {
            (max_frame.next_multiple_of(64), FRAME_BUFS)
        };
        // SAFETY: all-zero `mmsghdr`, `iovec` and `sockaddr_in6` are valid: null pointers, zero
        // lengths, plain integers. Test: `conformance` over UDP.
        let (message, iovec, name): (libc::mmsghdr, libc::iovec, libc::sockaddr_in6) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
        Rx {
            memory: vec![0; buf_size * count].into(),
            buf_size,
            messages: vec![message; count].into(),
            iovecs: vec![iovec; count].into(),
            names: vec![name; count].into(),
            ctrl: vec![cmsg::Buf([0; CTRL]); count].into(),
            arrived: vec![None; count].into(),
            next: 0,
            end: 0,
            batch: 1,
            overflow: 0,
        }
    }

    /// Returns whether received frames wait for delivery.
    pub(super) fn pending(&self) -> bool {
        self.next < self.end
    }

    pub(super) fn burst<'a>(
        &'a mut self,
        fd: BorrowedFd<'_>,
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
    ) {
        if out.is_full() {
            return;
        }
        if !self.pending() {
            // Start with the first buffer, which is most likely cached.
            (self.next, self.end) = (0, self.receive(fd, stats));
        }
        self.deliver(out, stats);
    }

    /// One receive call into the first buffers; returns how many were filled.
    fn receive(&mut self, fd: BorrowedFd<'_>, stats: &mut TransportStats) -> usize {
        let asked = self.batch;
        let got = self.call(fd, asked);
        if got == 0 {
            self.batch = 1;
            return 0;
        }
        stats.rx_calls += 1;
        let mut frames = 0;
        for index in 0..got {
            self.arrived[index] = self.parse(index, stats);
            frames += self.arrived[index].map_or(1, |a| a.len.div_ceil(a.segment).max(1) as usize);
        }
        // One message per call at low load, for latency; more while calls return full.
        self.batch = if frames >= FULL {
            (asked / 2).max(1)
        } else if got == asked {
            (asked * 2).min(self.messages.len())
        } else {
            got
        };
        got
    }

    fn call(&mut self, fd: BorrowedFd<'_>, count: usize) -> usize {
        self.prepare(count);
        let fd = fd.as_raw_fd();
        loop {
            let rc = if count == 1 {
                let message = &mut self.messages[0];
                // SAFETY: `prepare` has written the header: its pointers are to `names`, `ctrl`
                // and `memory` of `self`, which is borrowed exclusively; lengths are the true
                // ones. Nothing lent from `memory` is alive: that would borrow `self`.
                // Test: `conformance` over UDP.
                let n = unsafe { libc::recvmsg(fd, &raw mut message.msg_hdr, libc::MSG_DONTWAIT) };
                message.msg_len = n.max(0) as u32;
                if n < 0 { -1 } else { 1 }
            } else {
                let vector = self.messages[..count].as_mut_ptr();
                // SAFETY: as above, for `count` messages. No timeout is given.
                // Test: `conformance` over UDP.
                unsafe {
                    libc::recvmmsg(fd, vector, count as _, libc::MSG_DONTWAIT as _, ptr::null_mut())
                }
            };
            if rc >= 0 {
                return rc as usize;
            }
            // Any error but EINTR counts as empty: mostly EAGAIN, else the ICMP error of an earlier
            // datagram, which this call has cleared.
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return 0;
            }
        }
    }

    /// Points the first `count` headers at their buffers; the kernel changes lengths in a call.
    #[inline]
    fn prepare(&mut self, count: usize) {
        for i in 0..count {
            let start = i * self.buf_size;
            let buf = &mut self.memory[start..start + self.buf_size];
            self.iovecs[i] =
                libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: self.buf_size };
            let hdr = &mut self.messages[i].msg_hdr;
            hdr.msg_name = (&raw mut self.names[i]).cast();
            hdr.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
            hdr.msg_iov = &raw mut self.iovecs[i];
            hdr.msg_iovlen = 1;
            hdr.msg_control = self.ctrl[i].0.as_mut_ptr().cast();
            hdr.msg_controllen = CTRL as _;
            hdr.msg_flags = 0;
        }
    }

    /// Reads the control messages of the datagram in buffer `index`; `None` drops it.
    fn parse(&mut self, index: usize, stats: &mut TransportStats) -> Option<Arrived> {
        let message = &self.messages[index];
        let (hdr, len) = (&message.msg_hdr, message.msg_len);
        #[allow(clippy::unnecessary_cast, reason = "32 bits wide with musl")]
        let ctrl_len = (hdr.msg_controllen as usize).min(CTRL);
        let mut ecn = Ecn::NotEct;
        let (mut segment, mut at_ns) = (0, 0);
        for msg in cmsg::Walk(&self.ctrl[index].0[..ctrl_len]) {
            let Some(value) = msg.int() else { continue };
            match (msg.level, msg.kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => segment = u32::try_from(value).unwrap_or(0),
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    ecn = Ecn::from_tos(value as u8);
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => at_ns = msg.time_ns().unwrap_or(0),
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    let count = value as u32;
                    stats.rx_overflow += u64::from(count.wrapping_sub(self.overflow));
                    self.overflow = count;
                }
                _ => {}
            }
        }
        // With truncated control data the segment size may be missing, and a train without it looks
        // like one datagram.
        let cut = hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        let src = source(&self.names[index], hdr.msg_namelen);
        let (false, Some(src)) = (cut, src) else {
            stats.rx_dropped += 1;
            return None;
        };
        if segment == 0 || segment > len {
            segment = len.max(1);
        }
        Some(Arrived { src, ecn, len, done: 0, segment, at_ns })
    }

    fn deliver<'a>(&'a mut self, out: &mut RxBurst<'a>, stats: &mut TransportStats) {
        let memory: &'a [u8] = &self.memory;
        let mut now_ns = None;
        while self.next < self.end {
            let index = self.next;
            if let Some(a) = &mut self.arrived[index] {
                let buf = &memory[index * self.buf_size..][..a.len as usize];
                let wait_ns = (a.at_ns > 0)
                    .then(|| now_ns.get_or_insert_with(system_ns).saturating_sub(a.at_ns));
                loop {
                    if out.is_full() {
                        return;
                    }
                    let end = (a.done + a.segment).min(a.len);
                    let data = &buf[a.done as usize..end as usize];
                    let frame = RxFrame::new(a.src, data, a.ecn);
                    out.push(wait_ns.map_or(frame, |ns| frame.with_wait(ns)));
                    stats.rx_frames += 1;
                    stats.rx_bytes += data.len() as u64;
                    a.done = end;
                    if end >= a.len {
                        break;
                    }
                }
            }
            self.next += 1;
        }
    }
}

/// The system's clock, in which the kernel states when it has received a datagram, ns. It may be set
/// meanwhile, and then a frame seems to have waited for too long, or not at all.
fn system_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The sender, IPv4 in its mapped form. `None` for other families.
#[inline]
fn source(name: &libc::sockaddr_in6, len: libc::socklen_t) -> Option<Addr> {
    match libc::c_int::from(name.sin6_family) {
        libc::AF_INET6 if len as usize >= size_of::<libc::sockaddr_in6>() => {
            let src = Addr {
                host: u128::from_be_bytes(name.sin6_addr.s6_addr),
                port: u32::from(u16::from_be(name.sin6_port)),
            };
            // Set for link-local addresses only.
            Some(if name.sin6_scope_id == 0 { src } else { src.with_zone(name.sin6_scope_id) })
        }
        libc::AF_INET if len as usize >= size_of::<libc::sockaddr_in>() => {
            // `sockaddr_in` has its port at the offset of `sockaddr_in6`, and its address at that
            // of the flow label.
            const {
                assert!(
                    std::mem::offset_of!(libc::sockaddr_in, sin_port)
                        == std::mem::offset_of!(libc::sockaddr_in6, sin6_port)
                        && std::mem::offset_of!(libc::sockaddr_in, sin_addr)
                            == std::mem::offset_of!(libc::sockaddr_in6, sin6_flowinfo)
                );
            }
            let ip = Ipv4Addr::from(name.sin6_flowinfo.to_ne_bytes());
            Some(Addr {
                host: u128::from(ip.to_ipv6_mapped()),
                port: u32::from(u16::from_be(name.sin6_port)),
            })
        }
        _ => None,
    }
}
