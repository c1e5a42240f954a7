//! The routes of the benchmark, and packets to random destinations of them.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use etherparse::{IpNumber, Ipv4Header, UdpHeader};
use ipnet::{IpNet, Ipv4Net};
use prefix_trie::PrefixMap;

use super::sink::{self, PORTS};
use crate::packet;
use crate::route::{Exit, NextHop};
use crate::routes::{Origin, RouteError, Routes, SnapshotError};

/// The Internet's IPv4 routes of May 2014, of Debian's package `python3-pyasn`.
const SNAPSHOT: &str = "/usr/lib/python3/dist-packages/data/ipasn_20140513.dat.gz";

/// Shares of lengths of the Internet's prefixes, in percent.
const LENGTHS: [(u8, u64); 12] = [
    (24, 54),
    (23, 9),
    (22, 11),
    (21, 6),
    (20, 7),
    (19, 5),
    (18, 3),
    (17, 1),
    (16, 2),
    (15, 1),
    (14, 1),
    (12, 0),
];

/// Packets until they repeat.
const PACKETS: usize = 1 << 18;
/// Frames of the ring, and their bytes.
const FRAMES: usize = 256;
const FRAME: usize = 2_048;
/// Packets between the two functions of [`Arrivals::take`], as of a port.
const AHEAD: usize = 4;

/// Bytes before the data of a packet.
const HEADERS: usize = Ipv4Header::MIN_LEN + UdpHeader::LEN;

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file cannot be opened.
    #[error("{path}: {error}; install python3-pyasn, or use a random table", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is no table.
    #[error("{path}: {error}", path = path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: SnapshotError,
    },
    /// A route was refused.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// The routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Table {
    /// Those of a file: see [`Routes::announce_snapshot`].
    Snapshot(PathBuf),
    /// This many random IPv4 prefixes, with lengths as on the Internet.
    Random(usize),
}

impl Table {
    /// The Internet's table, if it is installed.
    pub fn installed() -> Option<Table> {
        Path::new(SNAPSHOT).exists().then(|| Table::Snapshot(SNAPSHOT.into()))
    }

    /// What it is.
    pub fn name(&self) -> String {
        match self {
            Table::Snapshot(path) => path.display().to_string(),
            Table::Random(routes) => format!("{routes} random prefixes"),
        }
    }

    /// Adds the routes.
    pub(super) fn announce(&self, routes: &mut Routes) -> Result<(), TableError> {
        let hops: Vec<NextHop> = (0..PORTS).map(hop).collect();
        match self {
            Table::Snapshot(path) => {
                let opened = File::open(path);
                let file =
                    opened.map_err(|error| TableError::Open { path: path.clone(), error })?;
                let read = routes.announce_snapshot(Origin::File, file, &hops, &[]);
                read.map_err(|error| TableError::Snapshot { path: path.clone(), error })?;
            }
            Table::Random(count) => {
                let mut random = Random(0x7ab1e);
                let before = routes.len();
                while routes.len() < before + count {
                    let prefix = random.prefix();
                    let hop = hops[random.below(hops.len())];
                    routes.announce(Origin::File, prefix.into(), &[(hop, 1)])?;
                }
            }
        }
        Ok(())
    }
}

/// The way out by a port of the second node.
fn hop(port: u8) -> NextHop {
    NextHop { node: 1, exit: Exit::Gateway(port, gateway(port)) }
}

/// The router on the network of a port of the second node.
pub(super) fn gateway(port: u8) -> IpAddr {
    [10, 2, port, 2].into()
}

/// A generator of numbers (xorshift64*, Marsaglia and Vigna).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end.max(1)
    }

    fn prefix(&mut self) -> Ipv4Net {
        let mut at = self.next() % 100;
        let mut length = 24;
        for (of, share) in LENGTHS {
            if at < share {
                length = of;
                break;
            }
            at -= share;
        }
        loop {
            let [first, ..] = ((self.next() as u32) & 0xff).to_le_bytes();
            if !matches!(first, 0 | 10 | 127 | 169 | 224..) {
                let [_, b, c, d] = (self.next() as u32).to_be_bytes();
                return Ipv4Net::new_assert(Ipv4Addr::new(first, b, c, d), length).trunc();
            }
        }
    }
}

/// Packets that arrive, without an end: their headers in turn in frames of a ring, where their data
/// already is, as a network card would put them into the cache of the CPU.
pub(super) struct Arrivals {
    heads: Vec<Head>,
    next: usize,
    bytes: usize,
    ring: Box<[[u8; FRAME]]>,
}

/// The headers of a packet, its number, and the port by which it has to leave.
type Head = [u8; HEADERS + sink::MARK_BYTES];

impl Arrivals {
    /// Packets of a size to random addresses of random prefixes of the table. The port is that of the
    /// longest prefix, as another implementation finds it.
    pub(super) fn new(routes: &Routes, bytes: usize) -> Arrivals {
        let mut map = PrefixMap::new();
        let mut prefixes = Vec::new();
        for route in routes.routes() {
            if let (IpNet::V4(prefix), [(hop, _), ..]) = (route.prefix, route.members) {
                map.insert(prefix, *hop);
                if route.origin == Origin::File {
                    prefixes.push(prefix);
                }
            }
        }
        let mut random = Random(0xbe9c4);
        let mut heads = Vec::with_capacity(PACKETS);
        while heads.len() < PACKETS && !prefixes.is_empty() {
            let prefix = prefixes[random.below(prefixes.len())];
            let host = random.next() as u32 & prefix.hostmask().to_bits();
            let destination = Ipv4Addr::from(prefix.network().to_bits() | host);
            let Some((_, hop)) = map.get_lpm(&Ipv4Net::from(destination)) else { continue };
            let Some(port) = hop.port().filter(|_| hop.node == 1) else { continue };
            let sender = random.next() as u16;
            let packet = packet(destination, sender, heads.len() as u32, port, bytes);
            if let (Ok(_), Some(head)) = (packet::parse(&packet), packet.first_chunk()) {
                heads.push(*head);
            }
        }
        let ring = vec![[0x5a; FRAME]; FRAMES].into_boxed_slice();
        Arrivals { heads, next: 0, bytes, ring }
    }

    /// Packets until they repeat.
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Bytes of a packet.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of the next packet.
    pub(super) fn next(&self) -> u32 {
        self.next as u32
    }

    /// Passes packets. `ahead` gets the headers of later ones.
    #[inline]
    pub(super) fn take(
        &mut self,
        count: usize,
        ahead: &mut dyn FnMut(&[u8]),
        each: &mut dyn FnMut(&mut [u8]),
    ) -> usize {
        for _ in 0..count {
            if let Some(head) = self.heads.get(self.next + AHEAD) {
                ahead(head);
            }
            let frame = &mut self.ring[self.next % FRAMES][..self.bytes];
            frame[..size_of::<Head>()].copy_from_slice(&self.heads[self.next]);
            each(frame);
            self.next = if self.next + 1 == self.heads.len() { 0 } else { self.next + 1 };
        }
        count
    }
}

/// A UDP datagram without a checksum.
fn packet(to: Ipv4Addr, sender: u16, number: u32, port: u8, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0x5a; bytes.saturating_sub(HEADERS)];
    sink::mark(&mut payload, number, port);
    let udp = UdpHeader {
        source_port: sender,
        destination_port: 9,
        length: (UdpHeader::LEN + payload.len()) as u16,
        checksum: 0,
    };
    let mut ip = Ipv4Header {
        total_len: (HEADERS + payload.len()) as u16,
        time_to_live: 64,
        protocol: IpNumber::UDP,
        source: [10, 1, 0, 9],
        destination: to.octets(),
        ..Ipv4Header::default()
    };
    ip.header_checksum = ip.calc_header_checksum();
    [&ip.to_bytes()[..], &udp.to_bytes(), &payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tables_have_the_size_and_lengths_wanted() {
        let mut routes = Routes::new();
        Table::Random(2_000).announce(&mut routes).expect("fits");
        assert_eq!(routes.len(), 2_000);
        let long = routes.routes().filter(|route| route.prefix.prefix_len() == 24).count();
        assert!((900..1_300).contains(&long), "{long}");
    }

    #[test]
    fn packets_have_their_size_and_a_route_by_their_port() {
        let mut routes = Routes::new();
        Table::Random(500).announce(&mut routes).expect("fits");
        for bytes in [super::super::SMALLEST, 64, 1_500] {
            let mut arrivals = Arrivals::new(&routes, bytes);
            assert_eq!(arrivals.len(), PACKETS);
            let mut expected = 0;
            let taken = arrivals.take(PACKETS + 3, &mut |_| {}, &mut |packet| {
                assert_eq!(packet.len(), bytes);
                let (marked, port) = sink::marks(packet).expect("marked");
                let header = packet::parse(packet).expect("good");
                let found = routes.find(header.dst).expect("a route");
                assert_eq!((marked, &found.members[0].0), (expected, &hop(port)));
                packet::decrement_ttl(packet, &header);
                expected = (expected + 1) % PACKETS as u32;
            });
            assert_eq!((taken, arrivals.next()), (PACKETS + 3, 3));
        }
    }
}
