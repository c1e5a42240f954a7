//! The contestants: for each a server, a client, and what a reader must know about it.

use anyhow::{Context, Result};
use courser_bench::window::Sample;

use crate::work::{Kind, Work};

mod capnp;
mod courser;
mod quinn;
mod raw;
mod tarpc;
mod tonic;

/// What a contestant is in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Courser over one of its transports.
    Courser,
    /// Another RPC library.
    Peer,
    /// Bare sockets: what the kernel allows, not a peer.
    Limit,
}

/// The side that calls. It lives on the thread that made it.
pub trait Client {
    /// Runs one window.
    ///
    /// # Errors
    /// A call failed, was answered wrongly, or not in time.
    fn run(&mut self, work: &Work) -> Result<Sample>;
}

/// Says where the server can be reached: one word without blanks, which the client's `connect`
/// understands.
pub type Ready<'a> = &'a dyn Fn(&str);

/// One library over one transport.
#[derive(Debug)]
pub struct Contestant {
    /// As `--only` knows it.
    pub name: &'static str,
    /// What it is, for people.
    pub about: &'static str,
    /// What its bytes travel over.
    pub transport: &'static str,
    /// Courser, peer or limit.
    pub role: Role,
    /// Largest request it can be asked to carry.
    pub max_request: usize,
    /// Serves until the process is ended; returns on errors only.
    pub serve: fn(Ready<'_>) -> Result<()>,
    /// Connects to what `serve` said.
    pub connect: fn(&str) -> Result<Box<dyn Client>>,
}

impl Contestant {
    /// Whether it can do such work.
    pub fn can(&self, work: &Work) -> bool {
        work.size <= self.max_request
    }
}

/// All of them, in the order of the tables and of the rounds.
pub const ALL: &[Contestant] = &[
    courser::SHM,
    courser::UDP,
    tonic::TONIC,
    tarpc::TARPC,
    capnp::CAPNP,
    quinn::QUINN,
    raw::udp::UDP,
    raw::tcp::TCP,
];

/// The contestant of that name.
///
/// # Errors
/// There is none; says which there are.
pub fn named(name: &str) -> Result<&'static Contestant> {
    find(ALL, name)
}

/// The contestant of that name among `all`.
///
/// # Errors
/// There is none; says which there are.
pub fn find(all: &'static [Contestant], name: &str) -> Result<&'static Contestant> {
    all.iter().find(|c| c.name == name).with_context(|| {
        let names: Vec<_> = all.iter().map(|c| c.name).collect();
        format!("no contestant is called `{name}`; there are {}", names.join(", "))
    })
}

/// What a server answers, for libraries whose server gives bytes and takes bytes.
fn answer(kind: Kind, request: bytes::Bytes) -> bytes::Bytes {
    match kind {
        Kind::Echo => request,
        Kind::Sink => bytes::Bytes::copy_from_slice(&crate::work::receipt(&request)),
        Kind::Get => bytes::Bytes::copy_from_slice(&crate::work::value(&request)),
    }
}
