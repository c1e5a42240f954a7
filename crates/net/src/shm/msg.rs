//! Handshake over the Unix socket of two endpoints: two messages with descriptors.
//!
//! The sender of frames connects and sends [`Hello`] with the ring's memory. The receiver answers
//! with [`Welcome`] and the pages of its doorbell, or closes the connection. Afterwards the sender
//! sends single bytes to wake a sleeping receiver. Integers are in native byte order, as both sides
//! are on the same machine.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::ring::Shape;

/// "courser", and the version of these messages and of the ring.
const MAGIC: u64 = u64::from_le_bytes(*b"courser\x01");
/// In `flags`: frames may be read in place.
const TRUST: u32 = 1;

/// Maximum number of descriptors per message.
const FDS: usize = 2;

/// Sent by the sender of frames, with the ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The sender's own port.
    pub(super) port: u32,
    pub(super) shape: Shape,
    pub(super) trust: bool,
}

/// Sent by the receiver, with the pages of state and hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    /// The ring's number at the receiver.
    pub(super) ring: u32,
}

pub(super) const HELLO: usize = 28;
pub(super) const WELCOME: usize = 12;

fn bytes<const N: usize>(words: &[u32]) -> [u8; N] {
    let mut out = [0; N];
    out[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    for (to, word) in out[8..].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    out
}

/// The words of a message that has exactly `N`.
fn words<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (words, []) = rest.as_chunks::<4>() else { return None };
    let words: &[[u8; 4]; N] = words.try_into().ok()?;
    (*magic == MAGIC.to_ne_bytes()).then(|| words.map(u32::from_ne_bytes))
}

impl Hello {
    pub(super) fn to_bytes(self) -> [u8; HELLO] {
        let Hello { port, shape, trust } = self;
        bytes(&[port, shape.slots, shape.data, shape.max_frame, u32::from(trust) * TRUST])
    }

    /// `None` unless it is well-formed and within bounds. Unknown flags are ignored.
    pub(super) fn parse(bytes: &[u8]) -> Option<Hello> {
        let [port, slots, data, max_frame, flags] = words(bytes)?;
        let shape = Shape { slots, data, max_frame };
        let valid = shape.is_valid() && (1..=65_535).contains(&port);
        valid.then_some(Hello { port, shape, trust: flags & TRUST != 0 })
    }
}

impl Welcome {
    pub(super) fn to_bytes(self) -> [u8; WELCOME] {
        bytes(&[self.ring])
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Welcome> {
        words(bytes).map(|[ring]| Welcome { ring })
    }
}

/// Sends a message with descriptors; does not block.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
}

/// The result of a receive.
#[derive(Debug)]
pub(super) enum Received {
    /// A message and its descriptors.
    Message(ArrayVec<u8, 64>, ArrayVec<OwnedFd, FDS>),
    /// Nothing yet.
    Nothing,
    /// The other side has ended, or the message is malformed.
    Ended,
}

/// Receives a message; does not block. The kernel closes descriptors beyond the two.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Received {
    let mut buf = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut buf)], &mut control, flags);
    let got = match got {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::Ended,
    };
    let mut fds = ArrayVec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            // Excess descriptors are dropped, which closes them.
            rights.for_each(|fd| drop(fds.try_push(fd)));
        }
    }
    let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    match buf.get(..got.bytes) {
        Some(bytes) if !bytes.is_empty() && !cut => {
            Received::Message(bytes.iter().copied().collect(), fds)
        }
        _ => Received::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed_as_written_and_others_are_refused() {
        let shape = Shape { slots: 64, data: 65_536, max_frame: 4096 };
        let hello = Hello { port: 7, shape, trust: true };
        assert_eq!(Hello::parse(&hello.to_bytes()), Some(hello));
        let welcome = Welcome { ring: 3 };
        assert_eq!(Welcome::parse(&welcome.to_bytes()), Some(welcome));
        for at in 0..8 {
            let mut wrong = hello.to_bytes();
            wrong[at] ^= 1;
            assert_eq!(Hello::parse(&wrong), None, "byte {at} of the magic number");
        }
        for len in 0..HELLO {
            assert_eq!(Hello::parse(&hello.to_bytes()[..len]), None);
        }
        assert_eq!(Hello::parse(&[hello.to_bytes().as_slice(), &[0; 4]].concat()), None);
        assert_eq!(Welcome::parse(&hello.to_bytes()), None);
    }

    #[test]
    fn shapes_out_of_bounds_are_refused() {
        let good = Shape { slots: 64, data: 65_536, max_frame: 4096 };
        for bad in [
            Shape { slots: 0, ..good },
            Shape { slots: 63, ..good },
            Shape { slots: 8, ..good },
            Shape { slots: 1 << 17, ..good },
            Shape { slots: u32::MAX, ..good },
            Shape { data: 0, ..good },
            Shape { data: 65_535, ..good },
            Shape { data: 2048, ..good },
            Shape { data: 1 << 31, ..good },
            Shape { max_frame: 0, ..good },
            Shape { max_frame: 65_537, data: 1 << 20, ..good },
            Shape { max_frame: 16_385, ..good },
        ] {
            let hello = Hello { port: 7, shape: bad, trust: false };
            assert_eq!(Hello::parse(&hello.to_bytes()), None, "{bad:?}");
        }
        for port in [0, 65_536, u32::MAX] {
            let hello = Hello { port, shape: good, trust: false };
            assert_eq!(Hello::parse(&hello.to_bytes()), None, "port {port}");
        }
    }
}
