//! Counters of a queueing discipline, read over netlink: `tc -s qdisc` without a process for each
//! sample.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

/// Numbers of `linux/rtnetlink.h`, `linux/netlink.h` and `linux/gen_stats.h`.
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const TCA_KIND: u16 = 1;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
/// Bytes of a message header and of its fixed part.
const HEADER: usize = 16;
const FIXED: usize = 20;

/// The content of a queue, and its drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) backlog_bytes: u32,
    pub(super) dropped: u32,
}

/// The queueing disciplines of the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Reader {
    socket: OwnedFd,
}

impl Reader {
    pub(super) fn open() -> io::Result<Self> {
        // Protocol 0 is that of routes, devices and queues.
        Ok(Self { socket: socket(AddressFamily::NETLINK, SocketType::RAW, None)? })
    }

    /// The counters of the first discipline of a kind.
    ///
    /// # Errors
    /// The system refused, or there is none.
    pub(super) fn read(&self, kind: &str) -> io::Result<Queue> {
        let mut request = [0; HEADER + FIXED];
        request[..4].copy_from_slice(&((HEADER + FIXED) as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&RTM_GETQDISC.to_ne_bytes());
        request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
        send(&self.socket, &request, SendFlags::empty())?;
        let (mut found, mut buffer) = (None, [0; 1 << 15]);
        loop {
            let (len, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let (queue, done) = scan(&buffer[..len], kind);
            found = found.or(queue);
            if done {
                break;
            }
        }
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no {kind} queue")))
    }
}

/// The counters in a datagram of messages, and whether the answer ends with it.
fn scan(mut bytes: &[u8], kind: &str) -> (Option<Queue>, bool) {
    let mut found = None;
    while let Some(len) = u32_at(bytes, 0).map(|len| len as usize) {
        let message = bytes.get(..len).filter(|m| m.len() >= HEADER);
        let Some(message) = message else { return (found, true) };
        match u16_at(message, 4) {
            Some(RTM_NEWQDISC) => {
                found = found.or_else(|| queue(message.get(HEADER + FIXED..)?, kind));
            }
            Some(NLMSG_DONE) => return (found, true),
            // An error, or another message.
            _ => return (found, true),
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    (found, false)
}

/// The counters in the attributes of a discipline, if it is of this kind.
fn queue(attributes: &[u8], kind: &str) -> Option<Queue> {
    let name = attribute(attributes, TCA_KIND)?;
    if name.strip_suffix(b"\0")? != kind.as_bytes() {
        return None;
    }
    let queue = attribute(attribute(attributes, TCA_STATS2)?, TCA_STATS_QUEUE)?;
    Some(Queue { backlog_bytes: u32_at(queue, 4)?, dropped: u32_at(queue, 8)? })
}

/// The value of an attribute.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(4..len)?;
        if u16_at(bytes, 2)? == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = 4 + value.len();
        let mut bytes = [(len as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(len.next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, attributes: &[u8]) -> Vec<u8> {
        let len = HEADER + FIXED + attributes.len();
        let mut bytes = (len as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER + FIXED, 0);
        bytes.extend(attributes);
        bytes
    }

    #[test]
    fn counters_are_those_of_the_named_kind() {
        let numbers: Vec<u8> =
            [3_u32, 70_000, 9, 0, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let stats = put(TCA_STATS2, &put(TCA_STATS_QUEUE, &numbers));
        let tbf = [put(TCA_KIND, b"tbf\0"), stats.clone()].concat();
        let other = [put(TCA_KIND, b"noqueue\0"), stats].concat();
        let mut answer = message(RTM_NEWQDISC, &other);
        answer.extend(message(RTM_NEWQDISC, &tbf));
        let wanted = Queue { backlog_bytes: 70_000, dropped: 9 };
        assert_eq!(scan(&answer, "tbf"), (Some(wanted), false));
        assert_eq!(scan(&answer, "htb"), (None, false));
        answer.extend(message(NLMSG_DONE, &[]));
        assert_eq!(scan(&answer, "tbf"), (Some(wanted), true));
        // Cut anywhere, it ends.
        (0..answer.len()).for_each(|len| _ = scan(&answer[..len], "tbf"));
    }

    #[test]
    fn the_answer_of_the_system_ends() {
        let reader = Reader::open().expect("opens");
        let error = reader.read("no-such-kind").expect_err("no such discipline");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
