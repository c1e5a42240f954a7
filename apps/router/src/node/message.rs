//! The messages of links: a header, and a packet.
//!
//! ```text
//! number, 4 bytes | kind, 1 | last node, 1 | port, 1 | nodes passed, 1 | gateway: 0, 4 or 16 | packet
//! ```
//!
//! The number counts the messages of a session, from 0 (`order`). Numbers are little-endian. The first
//! message of a session is a heartbeat (`members`), which names its sender.

use std::net::IpAddr;

use crate::route::{Exit, NextHop};

/// Type of the messages.
pub(super) const MESSAGE: u16 = 1;

/// Bytes of the shortest header.
pub const HEADER_MIN: usize = 8;
/// Bytes of the longest header: with an IPv6 gateway.
pub const HEADER_MAX: usize = HEADER_MIN + 16;

/// Nodes that a packet may pass, its first one not counted: one between, and the last. A link that
/// fails on the way may cost one more.
pub(super) const MOST_PASSED: u8 = 3;

pub(super) const HEARTBEAT: u8 = 0;
const CONNECTED: u8 = 1;
const GATEWAY4: u8 = 2;
const GATEWAY6: u8 = 3;
const LOCAL: u8 = 4;

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) hop: NextHop,
    /// Nodes that the packet has passed when it arrives.
    pub(super) passed: u8,
}

impl Head {
    pub(super) fn len(&self) -> usize {
        HEADER_MIN
            + match self.hop.exit {
                Exit::Gateway(_, IpAddr::V4(_)) => 4,
                Exit::Gateway(_, IpAddr::V6(_)) => 16,
                Exit::Local | Exit::Connected(_) => 0,
            }
    }

    /// Writes the header without the number.
    pub(super) fn write(&self, out: &mut [u8]) {
        let (kind, port) = match self.hop.exit {
            Exit::Local => (LOCAL, 0),
            Exit::Connected(port) => (CONNECTED, port),
            Exit::Gateway(port, IpAddr::V4(gateway)) => {
                out[8..12].copy_from_slice(&gateway.octets());
                (GATEWAY4, port)
            }
            Exit::Gateway(port, IpAddr::V6(gateway)) => {
                out[8..24].copy_from_slice(&gateway.octets());
                (GATEWAY6, port)
            }
        };
        out[4..8].copy_from_slice(&[kind, self.hop.node, port, self.passed]);
    }

    /// Reads a header, and returns it with the packet.
    pub(super) fn read(message: &[u8]) -> Option<(Head, &[u8])> {
        let (head, rest) = message.split_first_chunk::<HEADER_MIN>()?;
        let [_, _, _, _, kind, node, port, passed] = *head;
        let (exit, packet) = match kind {
            LOCAL => (Exit::Local, rest),
            CONNECTED => (Exit::Connected(port), rest),
            GATEWAY4 => {
                let (gateway, rest) = rest.split_first_chunk::<4>()?;
                (Exit::Gateway(port, IpAddr::from(*gateway)), rest)
            }
            GATEWAY6 => {
                let (gateway, rest) = rest.split_first_chunk::<16>()?;
                (Exit::Gateway(port, IpAddr::from(*gateway)), rest)
            }
            _ => return None,
        };
        Some((Head { hop: NextHop { node, exit }, passed }, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        let exits = [
            Exit::Local,
            Exit::Connected(3),
            Exit::Gateway(31, IpAddr::from([10, 0, 0, 1])),
            Exit::Gateway(0, IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 9])),
        ];
        for exit in exits {
            let head = Head { hop: NextHop { node: 63, exit }, passed: 2 };
            let mut message = vec![0; head.len() + 5];
            head.write(&mut message);
            message[head.len()..].copy_from_slice(b"hello");
            assert_eq!(Head::read(&message), Some((head, &b"hello"[..])));
            for cut in 0..head.len() {
                assert_eq!(Head::read(&message[..cut]), None, "{exit:?} cut to {cut}");
            }
        }
        assert_eq!(Head::read(&[0, 0, 0, 0, 9, 0, 0, 0]), None, "no such kind");
    }
}
