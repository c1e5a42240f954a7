//! Links of a Linux host, for programs that send and receive packets below the kernel's sockets.
//!
//! The kernel keeps the tables, and this crate follows them:
//!
//! * [`netlink`]: interfaces, neighbours and addresses of the kernel, and requests to resolve a
//!   neighbour. The kernel does the work of ARP and neighbour discovery (RFC 826, RFC 4861).
//! * [`neighbours`]: link-layer addresses by IP address, and packets that wait for one. It does no
//!   I/O, so that any means of sending can use it.
//! * [`addresses`]: the kernel's own addresses.
//! * [`routes`]: routes of a table of the kernel, as a routing daemon fills it.
//! * [`socket`]: packets of an interface by packet sockets (AF_PACKET), received from a ring in shared
//!   memory, sent by one system call for many. Another means, such as AF_XDP, takes this module's
//!   place and uses the others as they are.
//!
//! Everything belongs to the network namespace of the thread that opens it, needs Linux, and the
//! capability `CAP_NET_RAW` for packet sockets. Nothing waits, except [`netlink::Netlink::read_all`].
//! Every buffer and table has a limit.
//!
//! All of the crate's `unsafe` is in [`socket`].

#![deny(unsafe_code)]

pub mod addresses;
pub mod neighbours;
pub mod netlink;
pub mod routes;
#[allow(unsafe_code)]
pub mod socket;
