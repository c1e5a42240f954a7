//! The request types of benchmarks, served by `courser serve` and by the server process of
//! benchmarks.

use courser::{Rpc, Transport};

/// Answers with the request.
pub const ECHO: u16 = 1;

/// Answers a request with [`RECEIPT`] bytes.
pub const SINK: u16 = 2;

/// Length of the response of [`SINK`]: the length of the request in 8 bytes, little-endian, then
/// zeros.
pub const RECEIPT: usize = 32;

/// Registers both handlers.
pub fn register<T: Transport>(rpc: &mut Rpc<T>) {
    rpc.on(ECHO, |cx, request| cx.reply(request));
    rpc.on(SINK, |cx, request| {
        let len = request.len() as u64;
        // The client gets a failure as the error of its call.
        let _ = cx.reply_with(RECEIPT, |receipt| {
            receipt.fill(0);
            receipt[..8].copy_from_slice(&len.to_le_bytes());
        });
    });
}

/// The request length in a receipt; `None` for any other response.
pub fn receipt_len(receipt: &[u8]) -> Option<u64> {
    let len = receipt.first_chunk().filter(|_| receipt.len() == RECEIPT)?;
    Some(u64::from_le_bytes(*len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_are_read_by_length() {
        let mut receipt = [0; RECEIPT];
        receipt[..8].copy_from_slice(&(8_u64 << 20).to_le_bytes());
        assert_eq!(receipt_len(&receipt), Some(8 << 20));
        assert_eq!(receipt_len(&receipt[1..]), None);
        assert_eq!(receipt_len(&[]), None);
    }
}
