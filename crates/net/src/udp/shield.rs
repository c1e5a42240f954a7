//! A filter of the kernel against floods: classic BPF, which needs no privileges.
//!
//! The program sees the UDP header, the payload behind it, and at [`NETWORK`] the IP header. It
//! accepts payloads with the right first byte from known addresses. Addresses are compared by a hash
//! of 32 bits of address and port: a stranger passes by chance once in four billion addresses for each
//! path, and is then dropped by the protocol as before.

use std::net::{IpAddr, SocketAddr};

use libc::sock_filter;
use socket2::SockFilter;

/// Most addresses that are compared. With more, only the first byte of the payload is.
pub(super) const SOURCES: usize = 1000;

/// A filter that is installed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shield {
    /// It accepts all addresses, because there are more than [`SOURCES`].
    pub(super) takes_all: bool,
    /// Paths were opened since.
    pub(super) is_old: bool,
}

/// Offset of the IP header (`SKF_NET_OFF`).
const NETWORK: u32 = 0xfff0_0000;
/// Multiplier of the hash: a prime near 2^32 divided by the golden ratio.
const PRIME: u32 = 0x9e37_79b1;
/// Hashes that are compared one after the other; above it the range is halved.
const LEAF: usize = 8;

// Instructions.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const MULTIPLY: u16 = 0x24;
const SHIFT_RIGHT: u16 = 0x74;
const ADD_X: u16 = 0x0c;
const TO_X: u16 = 0x07;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const ACCEPT: sock_filter = op(RETURN, u32::MAX);
const DROP: sock_filter = op(RETURN, 0);

const fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Skips `yes` instructions if the condition holds, else `no`.
const fn branch(code: u16, k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code, jt: yes, jf: no, k }
}

/// The words of an address that are hashed.
fn words(ip: IpAddr) -> Vec<u32> {
    match ip.to_canonical() {
        IpAddr::V4(ip) => vec![u32::from(ip)],
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            octets.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
        }
    }
}

/// The hash of an address, as the program computes it.
fn hash(addr: SocketAddr) -> u32 {
    let hash = words(addr.ip())
        .into_iter()
        .fold(0_u32, |hash, word| hash.wrapping_add(word).wrapping_mul(PRIME));
    hash.wrapping_add(addr.port().into())
}

/// Instructions that load the hash of the source; the address is at `from` of the IP header.
fn load_hash(from: u32, words: u32) -> Vec<sock_filter> {
    let mut all = vec![op(LOAD_WORD, NETWORK + from), op(MULTIPLY, PRIME), op(TO_X, 0)];
    for word in 1..words {
        let next = [op(LOAD_WORD, NETWORK + from + 4 * word), op(ADD_X, 0)];
        all.extend(next);
        all.extend([op(MULTIPLY, PRIME), op(TO_X, 0)]);
    }
    // The source port is the first field of the UDP header.
    all.extend([op(LOAD_HALF, 0), op(ADD_X, 0)]);
    all
}

/// A program that accepts payloads that begin with `first_byte` from `sources`; from all addresses if
/// these are more than [`SOURCES`].
pub(super) fn program(first_byte: u8, sources: &[SocketAddr]) -> Vec<SockFilter> {
    let program = instructions(first_byte, sources).into_iter();
    program.map(|op| SockFilter::new(op.code, op.jt, op.jf, op.k)).collect()
}

fn instructions(first_byte: u8, sources: &[SocketAddr]) -> Vec<sock_filter> {
    let mut all = vec![op(LOAD_BYTE, 8), branch(IF_EQUAL, first_byte.into(), 1, 0), DROP];
    if sources.len() > SOURCES {
        all.push(ACCEPT);
        return all;
    }
    let mut hashes: Vec<u32> = sources.iter().map(|&source| hash(source)).collect();
    hashes.sort_unstable();
    hashes.dedup();
    let (v4, v6) = (load_hash(12, 1), load_hash(8, 4));
    all.extend([op(LOAD_BYTE, NETWORK), op(SHIFT_RIGHT, 4)]);
    all.push(branch(IF_EQUAL, 4, 0, v4.len() as u8 + 1));
    all.extend(v4);
    all.push(op(JUMP, v6.len() as u32));
    all.extend(v6);
    search(&hashes, &mut all);
    all
}

/// Instructions that accept the hashes of a sorted list and drop others.
fn search(hashes: &[u32], all: &mut Vec<sock_filter>) {
    if hashes.len() <= LEAF {
        let count = hashes.len() as u8;
        all.extend((1..).zip(hashes).map(|(at, &hash)| branch(IF_EQUAL, hash, count + 1 - at, 0)));
        all.extend([DROP, ACCEPT]);
        return;
    }
    let (low, high) = hashes.split_at(hashes.len() / 2);
    all.push(branch(IF_AT_LEAST, high[0], 0, 1));
    let jump = all.len();
    all.push(op(JUMP, 0));
    search(low, all);
    all[jump].k = (all.len() - jump - 1) as u32;
    search(high, all);
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    fn accepts(socket: &UdpSocket, from: &UdpSocket, payload: &[u8]) -> bool {
        let mut buf = [0; 64];
        from.send_to(payload, socket.local_addr().unwrap()).unwrap();
        let received = socket.recv_from(&mut buf);
        received.is_ok_and(|(len, _)| buf[..len] == *payload)
    }

    fn receiver(bind: &str) -> UdpSocket {
        let socket = UdpSocket::bind(bind).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
        socket
    }

    #[test]
    fn known_addresses_pass_and_others_do_not() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(probe) = UdpSocket::bind(bind) else {
                println!("skipped: {bind} cannot be bound");
                continue;
            };
            drop(probe);
            let (socket, known, stranger) = (receiver(bind), receiver(bind), receiver(bind));
            for others in [0, 1, 7, 8, 9, 500, SOURCES - 1] {
                let ip = known.local_addr().unwrap().ip();
                let mut sources: Vec<SocketAddr> = (0..others)
                    .map(|n| SocketAddr::new([10, 0, (n >> 8) as u8, n as u8].into(), 9))
                    .collect();
                sources.push(known.local_addr().unwrap());
                let filter = program(7, &sources);
                assert!(filter.len() < 4096, "the kernel's limit: {}", filter.len());
                socket2::SockRef::from(&socket).attach_filter(&filter).unwrap();
                assert!(accepts(&socket, &known, &[7, 1, 2]), "{ip} among {others}");
                assert!(!accepts(&socket, &known, &[8, 1, 2]), "{ip} among {others}: first byte");
                assert!(!accepts(&socket, &known, &[]), "{ip} among {others}: empty");
                assert!(!accepts(&socket, &stranger, &[7, 1, 2]), "{ip} among {others}: stranger");
            }
            // Too many addresses: only the first byte.
            let sources = vec![known.local_addr().unwrap(); SOURCES + 1];
            socket2::SockRef::from(&socket).attach_filter(&program(7, &sources)).unwrap();
            assert!(accepts(&socket, &stranger, &[7, 1, 2]));
            assert!(!accepts(&socket, &stranger, &[8, 1, 2]));
        }
    }

    /// A socket of both families sees mapped addresses.
    #[test]
    fn a_socket_of_both_families_accepts_both() {
        let Ok(socket) = UdpSocket::bind("[::]:0") else {
            return println!("skipped: this system has no IPv6");
        };
        socket.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
        let (v4, v6) = (receiver("127.0.0.1:0"), receiver("[::1]:0"));
        let sources = [v4.local_addr().unwrap(), v6.local_addr().unwrap()];
        socket2::SockRef::from(&socket).attach_filter(&program(7, &sources)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let mut buf = [0; 8];
        for (from, to) in [(&v4, format!("127.0.0.1:{port}")), (&v6, format!("[::1]:{port}"))] {
            from.send_to(&[7, 9], &to).unwrap();
            assert_eq!(socket.recv_from(&mut buf).unwrap().0, 2, "{to}");
        }
        let stranger = receiver("127.0.0.1:0");
        stranger.send_to(&[7, 9], format!("127.0.0.1:{port}")).unwrap();
        assert!(socket.recv_from(&mut buf).is_err());
    }
}
