//! The server side of raw workloads.

use courser::{MsgBuf, Transport};
use courser_buf::{Addr, PathId, RX_BURST, RxBurst, TxBurst};
use courser_net::AnyTransport;

use super::{QUERY, RATE_TRAIN, RECEIPT_TRAINS, Receipt, copy_out, payload, queue, train_of};
use crate::rpc::error::BenchError;
use crate::rpc::figures;

/// A raw socket that echoes or counts datagrams.
pub struct RawPeer {
    transport: AnyTransport,
    /// The last sender, which gets the responses.
    client: Option<(Addr, PathId)>,
    payload: MsgBuf,
    burst: TxBurst,
    /// Destination of received frames.
    room: Vec<u8>,
    /// Lengths of the frames of one receive burst.
    lens: Vec<usize>,
    seen: Receipt,
    /// Frames since the last receipt, and the number after which the next one is sent.
    unconfirmed: u64,
    due: u64,
}

impl RawPeer {
    /// Serves a socket.
    ///
    /// # Errors
    /// No memory.
    pub fn new(transport: AnyTransport) -> Result<Self, BenchError> {
        let caps = transport.caps();
        let train = train_of(caps, caps.max_frame);
        let payload = payload(caps.max_frame).map_err(|e| BenchError::Raw(e.to_string()))?;
        Ok(Self {
            client: None,
            payload,
            burst: TxBurst::with_capacity(RX_BURST),
            room: Vec::new(),
            lens: Vec::with_capacity(RX_BURST),
            seen: Receipt::default(),
            unconfirmed: 0,
            due: (RECEIPT_TRAINS * train) as u64,
            transport,
        })
    }

    /// The address of the socket.
    pub fn addr(&self) -> Addr {
        self.transport.local_addr()
    }

    /// The counters of the socket.
    pub fn figures(&self) -> serde_json::Value {
        figures::of_transport(&self.transport.stats())
    }

    /// Echoes one receive burst in trains no longer than those of the client. A train has frames of
    /// equal size. With `copy` a single frame is sent by a copy.
    pub fn echo(&mut self, copy: bool) -> bool {
        let mut arrived = RxBurst::new();
        self.transport.rx_burst(&mut arrived);
        let Some(src) = arrived.last().map(|frame| frame.src) else { return false };
        self.lens.clear();
        self.lens.extend(arrived.iter().map(|frame| frame.len()));
        copy_out(&arrived, &mut self.room);
        drop(arrived);
        if let Some(path) = self.path(src) {
            if let ([len], true) = (&self.lens[..], copy)
                && self.transport.tx_copy(path, &self.payload[..(*len).min(self.payload.len())])
            {
                return true;
            }
            for train in self.lens.chunks(RATE_TRAIN) {
                for &len in train {
                    queue(&mut self.burst, path, &self.payload, 1, len);
                }
                self.transport.tx_burst(&mut self.burst);
                self.burst.clear();
            }
        }
        true
    }

    /// Counts one receive burst; sends a receipt when one is due or requested.
    pub fn sink(&mut self) -> bool {
        let mut arrived = RxBurst::new();
        self.transport.rx_burst(&mut arrived);
        let Some(src) = arrived.last().map(|frame| frame.src) else { return false };
        let mut asked = false;
        copy_out(&arrived, &mut self.room);
        for frame in &arrived {
            match <[u8; QUERY]>::try_from(frame.data) {
                Ok(number) => {
                    self.seen.query = u64::from_le_bytes(number);
                    asked = true;
                }
                Err(_) => {
                    self.seen.bytes += frame.len() as u64;
                    self.seen.frames += 1;
                    self.unconfirmed += 1;
                }
            }
        }
        drop(arrived);
        if asked || self.unconfirmed >= self.due {
            self.unconfirmed = 0;
            self.confirm(src);
        }
        true
    }

    fn confirm(&mut self, to: Addr) {
        let Some(path) = self.path(to) else { return };
        let receipt = self.seen.to_bytes();
        // The payload cannot be written while the transport holds references to it.
        self.transport.tx_flush();
        let Some(room) = self.payload.get_mut() else { return };
        room[..receipt.len()].copy_from_slice(&receipt);
        queue(&mut self.burst, path, &self.payload, 1, receipt.len());
        self.transport.tx_burst(&mut self.burst);
        self.burst.clear();
    }

    /// The path to a client, opened when the client changes.
    fn path(&mut self, to: Addr) -> Option<PathId> {
        match self.client {
            Some((known, path)) if known == to => Some(path),
            old => {
                if let Some((_, path)) = old {
                    self.transport.path_close(path);
                }
                self.client = self.transport.path_open(to, None).ok().map(|path| (to, path.id));
                self.client.map(|(_, path)| path)
            }
        }
    }
}
