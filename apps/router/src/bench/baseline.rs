//! The baseline: frames filled with packets, each with its length before it, over the transport that
//! the nodes use, without their protocol.

use courser::parts::transport::{Addr, AnyTransport, PathId, RxBurst, Transport, TxBurst, TxFrame};
use courser_bench::rpc::side;
use courser_buf::{Arena, MsgBuf, PacketAccess};

use super::sink::Sink;
use super::{BenchError, Over};

/// Bytes of a length.
const LENGTH: usize = 2;
/// Frames whose memory the transport may hold.
const POOL: usize = 256;

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Transport(error.to_string())
}

/// Two transports that reach each other: the sender's, and the receiver's.
pub(super) fn pair(
    over: Over,
    max_frame: usize,
) -> Result<(AnyTransport, AnyTransport), BenchError> {
    let over = match over {
        Over::Udp => side::Over::Udp,
        Over::Shm => side::Over::Shm,
        Over::Mem => side::Over::Mem,
    };
    let open = || side::open_raw(over, "router-bench", Some(max_frame)).map_err(failed);
    Ok((open()?, open()?))
}

/// Fills frames with packets, and sends them.
pub(super) struct Sender {
    transport: AnyTransport,
    path: PathId,
    max_frame: usize,
    pool: Vec<MsgBuf>,
    /// The frame that is filled, and its bytes so far.
    at: usize,
    filled: usize,
    burst: TxBurst,
}

impl Sender {
    pub(super) fn new(
        mut transport: AnyTransport,
        receiver: &AnyTransport,
    ) -> Result<Sender, BenchError> {
        let path = transport.path_open(receiver.local_addr(), None).map_err(failed)?;
        let arena = Arena::heap();
        let pool = (0..POOL).map(|_| arena.alloc(path.max_frame).map_err(failed));
        Ok(Sender {
            path: path.id,
            max_frame: path.max_frame,
            pool: pool.collect::<Result<_, _>>()?,
            at: 0,
            filled: 0,
            burst: TxBurst::new(),
            transport,
        })
    }

    /// Packets of a size in flight that the receive queue has room for.
    pub(super) fn room(&self, bytes: usize) -> u64 {
        let in_frame = (self.max_frame / (LENGTH + bytes)).max(1);
        (self.transport.caps().rx_queue_frames / 2 * in_frame) as u64
    }

    /// Adds a packet to the frame, which is complete when the next one does not fit.
    #[inline]
    pub(super) fn push(&mut self, packet: &[u8]) {
        if self.filled + LENGTH + packet.len() > self.max_frame {
            self.seal();
        }
        while self.pool[self.at].get_mut().is_none() {
            // The transport still holds it, from the last time that it was used.
            self.send();
            self.transport.tx_flush();
        }
        let Some(frame) = self.pool[self.at].get_mut() else { return };
        let (length, data) = frame[self.filled..].split_at_mut(LENGTH);
        length.copy_from_slice(&(packet.len() as u16).to_le_bytes());
        data[..packet.len()].copy_from_slice(packet);
        self.filled += LENGTH + packet.len();
    }

    fn seal(&mut self) {
        if let Some(piece) = self.pool[self.at].data_seg(0..self.filled)
            && self.filled > 0
        {
            self.burst.push_back(TxFrame::one(self.path, piece));
            self.at = (self.at + 1) % POOL;
            self.filled = 0;
        }
    }

    fn send(&mut self) {
        while !self.burst.is_empty() {
            self.transport.tx_burst(&mut self.burst);
        }
    }

    /// Sends all frames, the last one as it is.
    pub(super) fn flush(&mut self) {
        self.seal();
        self.send();
        self.transport.tx_reclaim();
    }

    /// Frames and bytes sent.
    pub(super) fn sent(&self) -> (u64, u64) {
        let stats = self.transport.stats();
        (stats.tx_frames, stats.tx_bytes)
    }
}

/// Takes packets out of frames, and counts them.
pub(super) struct Receiver {
    transport: AnyTransport,
    pub(super) sink: Sink,
    room: Vec<u8>,
}

impl Receiver {
    pub(super) fn new(
        mut transport: AnyTransport,
        sender: Addr,
        sink: Sink,
    ) -> Result<Receiver, BenchError> {
        transport.path_open(sender, None).map_err(failed)?;
        Ok(Receiver { transport, sink, room: Vec::new() })
    }

    /// Takes the frames that have arrived. Returns whether there were any.
    pub(super) fn poll(&mut self) -> bool {
        let mut arrived = RxBurst::new();
        self.transport.rx_burst(&mut arrived);
        for frame in &arrived {
            let whole = if frame.tail().is_empty() { *frame } else { frame.join(&mut self.room) };
            let mut rest = whole.data;
            while let Some((length, after)) = rest.split_first_chunk::<LENGTH>() {
                let length = usize::from(u16::from_le_bytes(*length));
                let Some((packet, after)) = after.split_at_checked(length) else { break };
                self.sink.take(None, packet);
                rest = after;
            }
        }
        !arrived.is_empty()
    }
}
