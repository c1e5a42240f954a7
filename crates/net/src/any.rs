//! Choosing a transport by its scheme (F0): one virtual call per burst, never per packet.
//!
//! `udp` is always there. Other transports register themselves in the program that links them;
//! nothing here names them.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::transport::Transport;
use crate::udp::{Offload, UdpConfig, UdpError, UdpTransport};

/// A transport whose kind is known at run time only.
pub type AnyTransport = Box<dyn Transport>;

/// What a transport is opened with; each takes what concerns it.
#[derive(Clone, Debug)]
pub struct BindSpec {
    /// Which transport.
    pub scheme: String,
    /// Where to bind; port 0: any.
    pub addr: SocketAddr,
    /// Largest frame, bytes; `None`: the transport's default.
    pub max_frame: Option<usize>,
    /// Socket buffers to ask for, bytes.
    pub buffer_bytes: usize,
    /// Whether to send and receive trains where the system can.
    pub offloads: bool,
}

/// Why a transport could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing of that name is registered.
    #[error("unknown transport `{scheme}`; this program has: {known}")]
    UnknownScheme {
        /// What was asked.
        scheme: String,
        /// What there is.
        known: String,
    },
    /// A UDP socket could not be set up.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// A registered transport failed.
    #[error("{0}")]
    Other(String),
}

impl OpenError {
    /// Whether another port would do.
    pub fn is_in_use(&self) -> bool {
        matches!(self, OpenError::Udp(UdpError::InUse(_)))
    }
}

/// Opens a transport.
pub type Factory = Arc<dyn Fn(&BindSpec) -> Result<AnyTransport, OpenError> + Send + Sync>;

fn registry() -> &'static RwLock<Vec<(String, Factory)>> {
    static REGISTRY: OnceLock<RwLock<Vec<(String, Factory)>>> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let udp: Factory = Arc::new(open_udp);
        RwLock::new(vec![("udp".to_owned(), udp)])
    })
}

/// Makes a transport known under a scheme; an earlier one of that name is replaced.
pub fn register(scheme: &str, factory: Factory) {
    let mut known = registry().write().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(name, _)| name != scheme);
    known.push((scheme.to_owned(), factory));
}

/// Opens the transport that a specification names.
///
/// # Errors
/// The scheme is unknown, or the transport refuses.
pub fn open(spec: &BindSpec) -> Result<AnyTransport, OpenError> {
    let known = registry().read().unwrap_or_else(PoisonError::into_inner);
    let factory = known.iter().find(|(name, _)| *name == spec.scheme).map(|(_, f)| f.clone());
    let Some(factory) = factory else {
        let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
        let (scheme, known) = (spec.scheme.clone(), names.join(", "));
        return Err(OpenError::UnknownScheme { scheme, known });
    };
    drop(known);
    factory(spec)
}

fn open_udp(spec: &BindSpec) -> Result<AnyTransport, OpenError> {
    let offload = if spec.offloads { Offload::Auto } else { Offload::Off };
    let cfg = UdpConfig {
        max_frame: spec.max_frame,
        rcvbuf_bytes: spec.buffer_bytes,
        sndbuf_bytes: spec.buffer_bytes,
        gso: offload,
        gro: offload,
        ..UdpConfig::new(spec.addr)
    };
    Ok(Box::new(UdpTransport::bind(cfg)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scheme: &str) -> BindSpec {
        BindSpec {
            scheme: scheme.into(),
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            max_frame: None,
            buffer_bytes: 1 << 20,
            offloads: true,
        }
    }

    #[test]
    fn udp_is_always_there() {
        assert_eq!(open(&spec("udp")).unwrap().caps().scheme, "udp");
    }

    #[test]
    fn an_unknown_scheme_names_the_known_ones() {
        let e = open(&spec("carrier-pigeon")).err().unwrap().to_string();
        assert!(e.contains("carrier-pigeon") && e.contains("udp"), "{e}");
    }

    #[test]
    fn a_program_adds_its_own() {
        register("refusing", Arc::new(|_| Err(OpenError::Other("not today".into()))));
        assert_eq!(open(&spec("refusing")).err().unwrap().to_string(), "not today");
    }

    #[test]
    fn a_taken_port_is_told_apart() {
        let taken = open(&spec("udp")).unwrap();
        let addr = taken.local_addr().to_socket().unwrap();
        let e = open(&BindSpec { addr, ..spec("udp") }).err().unwrap();
        assert!(e.is_in_use(), "{e}");
    }
}
