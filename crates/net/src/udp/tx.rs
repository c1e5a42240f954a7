//! Sending: frames become trains, trains one system call (step 8 of a packet's path).
//!
//! The kernel's cost is per message, not per frame: about 2 us for a frame or for a train of 64. So
//! adjacent frames for one path with equal lengths become one message with `UDP_SEGMENT`, gathered
//! in place or from the buffer of `linearize`, and several messages leave with one `sendmmsg`.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use courser_buf::{COPY_AHEAD, TX_GATHER, TxBurst, TxFrame, drop_frames};

use super::config::MAX_DATAGRAM;
use super::linearize::Linearizer;
use super::path::{Entry, SOURCE_SPACE, Table};
use super::{TRAIN_FRAMES, cmsg};
use crate::TransportStats;

/// Most gather entries of one system call. The kernel's limit for one message is 1024.
const IOVECS: usize = 1024;

/// Most messages of one system call.
const MESSAGES: usize = 64;

/// Room for the source address and the segment size.
const CTRL: usize = SOURCE_SPACE + cmsg::space(size_of::<u16>());

const _: () = assert!(TX_GATHER <= IOVECS && IOVECS <= libc::UIO_MAXIOV as usize);

/// The send side: arrays that are filled for each call.
pub(super) struct Tx {
    iovecs: Box<[libc::iovec]>,
    linearizer: Linearizer,
    messages: Box<[libc::mmsghdr]>,
    ctrl: Box<[cmsg::Buf<CTRL>]>,
    /// Frames in each message.
    frames: Box<[u32]>,
    /// The last call found the send queue full. The next one offers one message, so that retries do
    /// not linearize all frames each time.
    full: bool,
    /// Trains are sent; cleared for ever when the system refuses them.
    pub(super) gso: bool,
}

// SAFETY: the pointers in `iovecs` and `messages` are written by `fill` before each use and never
// read after the burst that they were written for. Test: `a_transport_moves_between_threads`.
unsafe impl Send for Tx {}

/// The result of one call.
enum SendResult {
    /// The first `n` were taken.
    Sent(usize),
    /// The send queue is full.
    Full,
    /// The first message was refused.
    Refused(io::Error),
}

impl Tx {
    pub(super) fn new(gso: bool) -> Self {
        let iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        // SAFETY: an all-zero `mmsghdr` is valid: null pointers with zero lengths.
        // Test: `conformance` over UDP.
        let message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        Tx {
            iovecs: vec![iovec; IOVECS].into(),
            linearizer: Linearizer::default(),
            messages: vec![message; MESSAGES].into(),
            ctrl: vec![cmsg::Buf([0; CTRL]); MESSAGES].into(),
            frames: vec![0; MESSAGES].into(),
            full: false,
            gso,
        }
    }

    pub(super) fn burst(
        &mut self,
        fd: BorrowedFd<'_>,
        paths: &Table,
        burst: &mut TxBurst,
        stats: &mut TransportStats,
    ) {
        let mut retried = false;
        while let Some(front) = burst.front() {
            if paths.accept(front).is_none() {
                burst.pop_front();
                stats.tx_dropped += 1;
                continue;
            }
            let train = if self.gso { TRAIN_FRAMES } else { 1 };
            let limit = if self.full { 1 } else { MESSAGES };
            let count = self.fill(paths, burst, train, limit);
            match self.send(fd, count, stats) {
                SendResult::Sent(n) => {
                    (retried, self.full) = (false, false);
                    self.take(burst, n, stats);
                }
                SendResult::Full => {
                    self.full = true;
                    stats.tx_full += 1;
                    return;
                }
                SendResult::Refused(e) => {
                    let unable = matches!(
                        e.raw_os_error(),
                        Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP)
                    );
                    if unable && self.frames[0] > 1 {
                        if !self.suspect(fd, paths, burst, stats, &e) {
                            return;
                        }
                    } else if retried || e.raw_os_error() == Some(libc::EMSGSIZE) {
                        // A frame above a path MTU that has shrunk fails every time.
                        tracing::debug!(error = %e, "datagram refused");
                        self.refuse(burst, stats);
                        retried = false;
                    } else {
                        // It may have been an ICMP error of an earlier datagram: reporting it
                        // cleared it.
                        retried = true;
                    }
                }
            }
        }
    }

    /// A train was refused with the error of a device without trains. Sends its first frame alone:
    /// if that succeeds, trains are disabled, else the destination is the cause. False: full.
    fn suspect(
        &mut self,
        fd: BorrowedFd<'_>,
        paths: &Table,
        burst: &mut TxBurst,
        stats: &mut TransportStats,
        cause: &io::Error,
    ) -> bool {
        let train = self.frames[0];
        self.fill(paths, burst, 1, 1);
        match self.send(fd, 1, stats) {
            SendResult::Sent(n) => {
                self.take(burst, n, stats);
                self.gso = false;
                tracing::warn!(%cause, "sending trains (UDP_SEGMENT) failed; frames leave singly");
            }
            SendResult::Full => {
                stats.tx_full += 1;
                return false;
            }
            SendResult::Refused(_) => {
                self.frames[0] = train;
                self.refuse(burst, stats);
            }
        }
        true
    }

    /// Builds at most `limit` messages of at most `train` frames each from the front of the burst;
    /// ends before the first frame that cannot be sent. Returns the number of messages.
    fn fill(&mut self, paths: &Table, burst: &TxBurst, train: usize, limit: usize) -> usize {
        self.linearizer.clear();
        let (mut at, mut iovecs, mut count) = (0, 0, 0);
        while count < limit {
            let Some(first) = burst.get(at) else { break };
            let Some(path) = paths.accept(first) else { break };
            if iovecs + first.segs().len() > IOVECS {
                break; // in the next call
            }
            let start = iovecs;
            iovecs = self.gather(start..iovecs, first, burst.get(at + COPY_AHEAD));
            let (mut members, mut total) = (1, first.len() as usize);
            // A train cannot contain empty datagrams.
            while members < train && !first.is_empty() {
                let Some(next) = burst.get(at + members) else { break };
                let len = next.len() as usize;
                let joins = next.path == first.path
                    && (1..=first.len() as usize).contains(&len)
                    && total + len <= MAX_DATAGRAM
                    && iovecs + next.segs().len() <= IOVECS;
                if !joins {
                    break;
                }
                iovecs = self.gather(start..iovecs, next, burst.get(at + members + COPY_AHEAD));
                (members, total) = (members + 1, total + len);
                if len < first.len() as usize {
                    break;
                }
            }
            at += members;
            let segment = (members > 1).then_some(first.len() as u16);
            self.message(count, path, start..iovecs, segment);
            self.frames[count] = members as u32;
            count += 1;
        }
        count
    }

    /// Adds a frame to a message with the entries `of`; returns their new end.
    #[inline]
    fn gather(&mut self, of: Range<usize>, frame: &TxFrame, later: Option<&TxFrame>) -> usize {
        let end = of.end;
        if let Some(piece) = self.linearizer.linearize(frame, later) {
            if let Some(last) = self.iovecs[of].last_mut()
                && last.iov_base.wrapping_byte_add(last.iov_len) == piece.iov_base
            {
                last.iov_len += piece.iov_len;
                return end;
            }
            self.iovecs[end] = piece;
            return end + 1;
        }
        for (iovec, seg) in self.iovecs[end..].iter_mut().zip(frame.segs()) {
            *iovec = libc::iovec { iov_base: seg.as_ptr().cast_mut().cast(), iov_len: seg.len() };
        }
        end + frame.segs().len()
    }

    #[inline]
    fn message(&mut self, index: usize, path: &Entry, iovecs: Range<usize>, segment: Option<u16>) {
        let hdr = &mut self.messages[index].msg_hdr;
        hdr.msg_name = path.name_ptr().cast_mut().cast();
        hdr.msg_namelen = path.name_len;
        hdr.msg_iovlen = iovecs.len() as _;
        hdr.msg_iov = self.iovecs[iovecs].as_mut_ptr();
        hdr.msg_control = ptr::null_mut();
        hdr.msg_controllen = 0;
        if segment.is_none() && path.source.is_none() {
            return;
        }
        let ctrl = &mut self.ctrl[index].0;
        let mut end = path.write_source(ctrl, 0);
        if let Some(size) = segment {
            let size = size.to_ne_bytes();
            end = cmsg::write(ctrl, end, libc::SOL_UDP, libc::UDP_SEGMENT, &size);
        }
        hdr.msg_control = ctrl.as_mut_ptr().cast();
        hdr.msg_controllen = end as _;
    }

    /// Sends the first `count` messages.
    fn send(&mut self, fd: BorrowedFd<'_>, count: usize, stats: &mut TransportStats) -> SendResult {
        let fd = fd.as_raw_fd();
        loop {
            stats.tx_calls += 1;
            let rc = if count == 1 {
                // SAFETY: `fill` has just written message 0: its pointers are to the path table, to
                // `ctrl`, to the buffer of `linearizer`, which does not move, and to frames of the
                // burst, all borrowed by the caller until after this call; the kernel only reads
                // them. Test: `conformance` over UDP.
                let rc = unsafe {
                    libc::sendmsg(fd, &raw const self.messages[0].msg_hdr, libc::MSG_DONTWAIT)
                };
                if rc < 0 { -1 } else { 1 }
            } else {
                let vector = self.messages[..count].as_mut_ptr();
                // SAFETY: as above, for `count` messages; the kernel writes `msg_len` only.
                // Test: `conformance` over UDP.
                unsafe { libc::sendmmsg(fd, vector, count as _, libc::MSG_DONTWAIT as _) }
            };
            if rc > 0 {
                return SendResult::Sent(rc as usize);
            }
            let e = io::Error::last_os_error();
            match e.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return SendResult::Full,
                _ => return SendResult::Refused(e),
            }
        }
    }

    /// Pieces of the first message of the last call.
    #[cfg(test)]
    pub(super) fn pieces(&self) -> usize {
        self.messages[0].msg_hdr.msg_iovlen as _
    }

    /// Removes the frames of the first `n` messages, which the kernel has copied.
    fn take(&self, burst: &mut TxBurst, n: usize, stats: &mut TransportStats) {
        let count: u32 = self.frames[..n].iter().sum();
        let sent = burst.iter().take(count as usize);
        stats.tx_bytes += sent.map(|frame| u64::from(frame.len())).sum::<u64>();
        drop_frames(burst, count as usize);
        stats.tx_frames += u64::from(count);
    }

    /// Drops the frames of the first message.
    fn refuse(&self, burst: &mut TxBurst, stats: &mut TransportStats) {
        burst.drain(..self.frames[0] as usize);
        stats.tx_dropped += u64::from(self.frames[0]);
    }
}
