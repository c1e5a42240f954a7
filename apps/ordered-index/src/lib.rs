//! An ordered index in memory, served by Courser `[eRPC section 7.2]`.
//!
//! * [`index`] is the map, [`message`] the bytes of requests and responses.
//! * [`service`] registers its handlers: point operations where requests arrive, scans in workers.
//! * [`client`] makes calls as futures, [`driver`] keeps calls outstanding, [`load`] fills an index.
//! * [`bench`](mod@bench) measures over sockets and shared memory, [`sim`] in the simulated datacenter: the same
//!   server and the same driver.

#![forbid(unsafe_code)]

pub mod bench;
pub mod client;
pub mod driver;
pub mod index;
pub mod load;
pub mod message;
pub mod mix;
pub mod service;
pub mod sim;
