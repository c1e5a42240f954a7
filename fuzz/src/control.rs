//! The decoder of control streams: the messages and the end are the same however the stream is
//! divided; buffered bytes are bounded; decoded messages survive encoding and decoding.
//! The first byte of the input chooses how the rest is cut.

use courser_proto::{CONTROL_GREETING, CONTROL_MAX, ControlDecoder, ControlError, ControlMsg};

use crate::support::Rng;

pub fn run(bytes: &[u8]) {
    let Some((&cut, stream)) = bytes.split_first() else { return };
    let whole = decode(stream, |_| usize::MAX);
    let mut rng = Rng(cut.into());
    let most = [1, 3, 16, 300][usize::from(cut % 4)];
    let pieces = decode(stream, |_| 1 + rng.below(most) as usize);
    assert_eq!(whole, pieces, "cutting a stream differently changed what it says");
    let mut written = CONTROL_GREETING.to_vec();
    for msg in &whole.0 {
        written.extend(msg.encode());
    }
    assert_eq!(decode(&written, |_| usize::MAX), (whole.0, None));
}

type Decoded = (Vec<ControlMsg>, Option<ControlError>);

fn decode(mut stream: &[u8], mut piece: impl FnMut(&[u8]) -> usize) -> Decoded {
    let (mut decoder, mut out) = (ControlDecoder::default(), Vec::new());
    loop {
        assert!(decoder.room() <= 4 + CONTROL_MAX);
        let n = piece(stream).min(stream.len());
        let taken = decoder.push(&stream[..n]);
        stream = &stream[taken..];
        loop {
            match decoder.next_msg() {
                Ok(Some(msg)) => out.push(msg),
                Ok(None) => break,
                Err(e) => return (out, Some(e)),
            }
        }
        assert!(decoder.room() > 0, "an unfinished message leaves no room to finish it");
        if stream.is_empty() {
            return (out, None);
        }
    }
}
