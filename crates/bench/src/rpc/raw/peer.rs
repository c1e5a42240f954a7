//! The other side of the raw programs.

use courser::{MsgBuf, Transport};
use courser_buf::{Addr, PathId, RX_BURST, RxBurst, TxBurst};
use courser_net::AnyTransport;

use super::{QUERY, RATE_TRAIN, RECEIPT_TRAINS, Receipt, copy_out, payload, queue, train_of};
use crate::rpc::figures;
use crate::rpc::spec::BenchError;

/// A bare socket that answers.
pub struct RawPeer {
    transport: AnyTransport,
    /// Who sent last; answers go there.
    client: Option<(Addr, PathId)>,
    payload: MsgBuf,
    burst: TxBurst,
    /// Where received frames end up.
    room: Vec<u8>,
    /// Lengths of the frames of one receive burst.
    lens: Vec<usize>,
    seen: Receipt,
    /// Frames since the last receipt, and after how many the next is due.
    unconfirmed: u64,
    due: u64,
}

impl RawPeer {
    /// Takes a socket.
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

    /// Where it can be reached.
    pub fn addr(&self) -> Addr {
        self.transport.local_addr()
    }

    /// What it counted.
    pub fn figures(&self) -> serde_json::Value {
        figures::of_transport(&self.transport.stats())
    }

    /// One receive burst, sent back in trains no longer than those of the client. Equal
    /// frames only stand together in one train. With `copy` a lone frame leaves by a copy.
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

    /// One receive burst, counted; a receipt when one is due or was asked for.
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
        // What the transport still holds of the payload cannot be written.
        self.transport.tx_flush();
        let Some(room) = self.payload.get_mut() else { return };
        room[..receipt.len()].copy_from_slice(&receipt);
        queue(&mut self.burst, path, &self.payload, 1, receipt.len());
        self.transport.tx_burst(&mut self.burst);
        self.burst.clear();
    }

    /// The way to a client, opened when it is another than before.
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
