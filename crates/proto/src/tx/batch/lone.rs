//! A frame of a single small packet that leaves alone: the straight line of a lone call. It takes none
//! of the steps that a batch of frames needs, and its buffer is used again at once.

use courser_buf::{PacketAccess, PathId, TxBurst};

use super::{NO_PEER, OpenFrame, TxBatch, protect, push_frame, seal};
use crate::config::Config;
use crate::peer::{Peer, Peers};
use crate::wire::{DEADLINE_REQUEST, FRAME_HEADER};

impl TxBatch {
    /// Returns whether the batch is one frame with one appended packet, and nothing is queued.
    #[inline]
    pub(crate) fn is_lone(&self) -> bool {
        self.first_is_plain && self.appended == self.lone && self.queue.is_empty()
    }

    /// Completes such a frame. If `copy` does not send it, it is in `out`. `now_ns` is the last reading
    /// of the clock; `now` reads it, unless the peer was told a time not long before and the packet
    /// does not depend on it. Returns the number of frames, which is 0 if the peer is gone, and the
    /// reading of the clock.
    #[inline(always)]
    pub(crate) fn complete_lone(
        &mut self,
        peers: &mut Peers,
        cfg: &Config,
        (now_ns, now): (u64, impl FnOnce() -> u64),
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) -> (u64, Option<u64>) {
        let Some(f) = self.open.first_mut() else { return (0, None) };
        self.kept = true; // also if its peer is gone
        let front = f.buf.first_chunk_mut::<{ FRAME_HEADER + 1 }>();
        let Some((peer, front)) = peers.at_mut(f.peer).zip(front) else {
            self.end_lone(cfg.tx_frames);
            return (0, None);
        };
        // The remaining time of a call is that at the send time of its frame.
        let has_deadline = front[FRAME_HEADER] == DEADLINE_REQUEST;
        let Some(header) = front.first_chunk_mut() else { return (0, None) };
        let mut time_ns = None;
        if has_deadline || !peer.path.was_told(now_ns, cfg.timestamp_interval_ns) {
            time_ns = Some(now());
            seal_timed(peer, time_ns, f.opened_ns, header);
        } else {
            seal(peer, None, 0, header);
        }
        if self.requests > 0 {
            self.late.leaves(f.opened_ns, time_ns); // only requests depend on it
        }
        protect(peer, &mut f.buf, f.len as usize);
        let path = peer.path_id;
        let sent = f.buf.get(..f.len as usize).is_some_and(|frame| copy(path, frame));
        self.end_lone(cfg.tx_frames);
        if !sent {
            self.send_kept(path, out);
        }
        (1, time_ns)
    }

    /// Ends the batch of a lone frame.
    #[inline(always)]
    fn end_lone(&mut self, frames: usize) {
        (self.appended, self.requests) = (0, 0);
        self.number = self.number.wrapping_add(1);
        self.first_open += 1;
        self.last_peer = NO_PEER;
        self.frames_left = frames;
        (self.has_granted, self.full, self.retry_ns) = (false, false, 0);
        (self.first_is_plain, self.buffers.starved) = (false, false);
        self.close_append();
    }

    /// The lone frame leaves by reference.
    fn send_kept(&mut self, path: PathId, out: &mut TxBurst) {
        self.kept = false;
        let Some(OpenFrame { at, buf, len, .. }) = self.open.pop() else { return };
        let buf = self.buffers.put_back(at as usize, buf);
        push_frame(out, path, buf.first_seg(0, len as usize));
        self.frames_left = self.frames_left.saturating_sub(1);
        self.buffers.rest();
    }
}

/// [`seal`] with a send time, which a lone frame rarely has.
fn seal_timed(peer: &mut Peer, time_ns: Option<u64>, opened_ns: u64, out: &mut [u8; FRAME_HEADER]) {
    seal(peer, time_ns, opened_ns, out);
}
