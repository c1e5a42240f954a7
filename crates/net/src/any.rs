//! Choosing a transport by its address (F0): `udp://[::]:31850`, `mem://lab:7`.
//!
//! A transport registers its scheme; whoever links it in can then be asked for it by address.
//! Known from the start are `udp`, `shm` and `mem`. Calls through [`AnyTransport`] are virtual once per
//! burst, never per frame.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::{
    MemConfig, MemError, MemNetwork, Offload, ShmConfig, ShmError, ShmTransport, Transport,
    UdpConfig, UdpError, UdpTransport, mem, shm, udp,
};

/// A transport whose kind is known at run time only.
pub type AnyTransport = Box<dyn Transport + Send>;

/// Makes an endpoint from a description.
pub type Factory = Arc<dyn Fn(&BindSpec) -> Result<AnyTransport, OpenError> + Send + Sync>;

/// Most bytes of an address in text, and most options in it.
const MAX_TEXT: usize = 1024;

/// Where an endpoint shall be: `scheme://host:port?option=value&...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindSpec {
    /// Which transport.
    pub scheme: String,
    /// The host in the transport's own terms: an address, a name; without brackets.
    pub host: String,
    /// The endpoint on that host; 0: any.
    pub port: u32,
    /// Settings of the transport, in order.
    pub options: Vec<(String, String)>,
}

/// Why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No transport has this scheme.
    #[error("no transport is called {scheme:?}; known are {}", known.join(", "))]
    UnknownScheme {
        /// What was asked for.
        scheme: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The text is no address.
    #[error("{0:?} is not an address: {1}; write scheme://host:port, as in udp://[::]:31850")]
    Syntax(String, &'static str),
    /// The transport has no such option.
    #[error("{0} has no option {1:?}; it has {2}")]
    UnknownOption(&'static str, String, &'static str),
    /// The value of an option does not fit.
    #[error("option {0}={1:?}: expected {2}")]
    BadOption(String, String, &'static str),
    /// The host is unknown.
    #[error("{0:?} is no address and no known name: {1}")]
    Host(String, #[source] std::io::Error),
    /// Another endpoint has the port; a nexus that was bound to port 0 tries another one.
    #[error(transparent)]
    InUse(Box<dyn std::error::Error + Send + Sync>),
    /// The transport cannot be opened for another reason.
    #[error(transparent)]
    Transport(Box<dyn std::error::Error + Send + Sync>),
}

impl OpenError {
    /// [`OpenError::InUse`], with the transport's own error.
    pub fn in_use(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        OpenError::InUse(Box::new(cause))
    }

    /// [`OpenError::Transport`], with the transport's own error.
    pub fn transport(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        OpenError::Transport(Box::new(cause))
    }

    /// Whether another port can succeed.
    pub fn is_in_use(&self) -> bool {
        matches!(self, OpenError::InUse(_))
    }
}

impl From<UdpError> for OpenError {
    fn from(e: UdpError) -> Self {
        match e {
            UdpError::InUse(_) => OpenError::in_use(e),
            _ => OpenError::transport(e),
        }
    }
}

impl From<ShmError> for OpenError {
    fn from(e: ShmError) -> Self {
        match e {
            ShmError::InUse(_) => OpenError::in_use(e),
            _ => OpenError::transport(e),
        }
    }
}

impl From<MemError> for OpenError {
    fn from(e: MemError) -> Self {
        match e {
            MemError::InUse(..) => OpenError::in_use(e),
            _ => OpenError::transport(e),
        }
    }
}

/// For transports over the system's sockets: `EADDRINUSE` is [`OpenError::InUse`].
impl From<std::io::Error> for OpenError {
    fn from(e: std::io::Error) -> Self {
        match e.kind() {
            std::io::ErrorKind::AddrInUse => OpenError::in_use(e),
            _ => OpenError::transport(e),
        }
    }
}

/// A scheme that is taken, or is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scheme {0:?} cannot be registered: it is taken or not made of letters and digits")]
pub struct RegisterError(pub String);

impl FromStr for BindSpec {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let shown: String = text.chars().take(80).collect();
        let wrong = |why| OpenError::Syntax(shown.clone(), why);
        if text.len() > MAX_TEXT {
            return Err(wrong("it is longer than 1024 bytes"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("there is no ://"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, port) = place.rsplit_once(':').ok_or_else(|| wrong("there is no port"))?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(|| wrong("a ] is missing"))?,
            None if host.contains(':') => return Err(wrong("IPv6 addresses stand in []")),
            None => host,
        };
        let port = port.parse().map_err(|_| wrong("the port is no number"))?;
        let options = query.split('&').filter(|o| !o.is_empty()).map(|option| {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            (name.to_owned(), value.to_owned())
        });
        Ok(BindSpec {
            scheme: scheme.to_owned(),
            host: host.to_owned(),
            port,
            options: options.collect(),
        })
    }
}

impl fmt::Display for BindSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BindSpec { scheme, host, port, options } = self;
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}")?,
            false => write!(f, "{scheme}://{host}:{port}")?,
        }
        for (i, (name, value)) in options.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

static FACTORIES: LazyLock<RwLock<BTreeMap<String, Factory>>> = LazyLock::new(|| {
    let udp: Factory = Arc::new(open_udp);
    let mem: Factory = Arc::new(open_mem);
    let shm: Factory = Arc::new(open_shm);
    let all = [(udp::SCHEME, udp), (mem::SCHEME, mem), (shm::SCHEME, shm)];
    RwLock::new(all.into_iter().map(|(scheme, factory)| (scheme.to_owned(), factory)).collect())
});

/// Makes a transport known by its scheme, in the whole process.
///
/// # Errors
/// When the scheme is taken or is not made of ASCII letters and digits.
pub fn register(scheme: &str, factory: Factory) -> Result<(), RegisterError> {
    let valid = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric());
    let mut factories = FACTORIES.write().unwrap_or_else(PoisonError::into_inner);
    if !valid || factories.contains_key(scheme) {
        return Err(RegisterError(scheme.to_owned()));
    }
    factories.insert(scheme.to_owned(), factory);
    Ok(())
}

/// The schemes that are known, in order.
pub fn schemes() -> Vec<String> {
    FACTORIES.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
}

/// Opens an endpoint.
///
/// # Errors
/// [`OpenError`]: the scheme is unknown, an option wrong, or the transport says no.
pub fn open(spec: &BindSpec) -> Result<AnyTransport, OpenError> {
    let factories = FACTORIES.read().unwrap_or_else(PoisonError::into_inner);
    let factory = factories.get(&spec.scheme).cloned();
    drop(factories);
    match factory {
        Some(factory) => factory(spec),
        None => Err(OpenError::UnknownScheme { scheme: spec.scheme.clone(), known: schemes() }),
    }
}

/// A number in an option.
fn number(name: &str, value: &str) -> Result<usize, OpenError> {
    let bad = |_| OpenError::BadOption(name.to_owned(), value.to_owned(), "a number");
    value.parse().map_err(bad)
}

fn flag(name: &str, value: &str) -> Result<bool, OpenError> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(OpenError::BadOption(name.to_owned(), value.to_owned(), "0 or 1")),
    }
}

fn offload(name: &str, value: &str) -> Result<Offload, OpenError> {
    match value {
        "auto" => Ok(Offload::Auto),
        "off" => Ok(Offload::Off),
        _ => Err(OpenError::BadOption(name.to_owned(), value.to_owned(), "auto or off")),
    }
}

/// `udp://host:port`; an empty host is the wildcard.
fn open_udp(spec: &BindSpec) -> Result<AnyTransport, OpenError> {
    let mut cfg = UdpConfig::default();
    let port = u16::try_from(spec.port)
        .map_err(|_| OpenError::Syntax(spec.to_string(), "UDP ports end at 65535"))?;
    cfg.bind.set_port(port);
    if !spec.host.is_empty() {
        cfg.bind = resolve(&spec.host, port)?;
    }
    for (name, value) in &spec.options {
        match name.as_str() {
            "max_frame" => cfg.max_frame = Some(number(name, value)?),
            "rcvbuf" => cfg.rcvbuf_bytes = number(name, value)?,
            "sndbuf" => cfg.sndbuf_bytes = number(name, value)?,
            "max_paths" => cfg.max_paths = number(name, value)?,
            "gso" => cfg.gso = offload(name, value)?,
            "gro" => cfg.gro = offload(name, value)?,
            _ => {
                let has = "max_frame, rcvbuf, sndbuf, max_paths, gso, gro";
                return Err(OpenError::UnknownOption(udp::SCHEME, name.clone(), has));
            }
        }
    }
    Ok(Box::new(UdpTransport::bind(cfg)?))
}

/// Whether a transport can be bound to, or reach, an IP address at all; nothing is opened. Schemes
/// that are not known here decide when they are opened.
///
/// # Errors
/// [`OpenError::Transport`]: `shm` stays on this machine.
pub fn check_host(scheme: &str, host: IpAddr) -> Result<(), OpenError> {
    if scheme == shm::SCHEME { Ok(shm::check_host(host)?) } else { Ok(()) }
}

/// `shm://127.0.0.1:port`, `shm://[::1]:port`, `shm://localhost:port`.
fn open_shm(spec: &BindSpec) -> Result<AnyTransport, OpenError> {
    let port = u16::try_from(spec.port)
        .map_err(|_| OpenError::Syntax(spec.to_string(), "ports end at 65535"))?;
    let mut cfg = ShmConfig { port, ..ShmConfig::default() };
    if !spec.host.is_empty() && spec.host != "localhost" {
        cfg.host = resolve(&spec.host, 0)?.ip();
    }
    for (name, value) in &spec.options {
        match name.as_str() {
            "max_frame" => cfg.max_frame = number(name, value)?,
            "slots" => cfg.slots = number(name, value)?,
            "data_bytes" => cfg.data_bytes = number(name, value)?,
            "max_peers" => cfg.max_peers = number(name, value)?,
            "trust" => cfg.trust = flag(name, value)?,
            "dir" => cfg.dir = Some(value.into()),
            // What is said of sockets to every transport: there are none on a frame's way.
            "rcvbuf" | "sndbuf" | "gso" | "gro" => {}
            _ => {
                let has = "max_frame, slots, data_bytes, max_peers, trust, dir";
                return Err(OpenError::UnknownOption(shm::SCHEME, name.clone(), has));
            }
        }
    }
    Ok(Box::new(ShmTransport::bind(&cfg)?))
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, OpenError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let unknown = |e| OpenError::Host(host.to_owned(), e);
    let first = (host, port).to_socket_addrs().map_err(unknown)?.next();
    first.ok_or_else(|| unknown(std::io::ErrorKind::NotFound.into()))
}

/// The networks in memory that were opened by name, of this process. They stay, a few hundred
/// bytes each, so their number is limited.
static NETWORKS: LazyLock<RwLock<BTreeMap<String, MemNetwork>>> = LazyLock::new(RwLock::default);

/// Most networks opened by name.
const MAX_NETWORKS: usize = 1024;

/// `mem://network:port`: the endpoint of that number in the network of that name, which is made
/// when it is first named.
fn open_mem(spec: &BindSpec) -> Result<AnyTransport, OpenError> {
    let mut cfg = MemConfig { port: spec.port, ..MemConfig::default() };
    for (name, value) in &spec.options {
        match name.as_str() {
            "max_frame" => cfg.max_frame = number(name, value)?,
            "depth" => cfg.depth = number(name, value)?,
            "host" => cfg.host = number(name, value)? as u128,
            _ => {
                let has = "max_frame, depth, host";
                return Err(OpenError::UnknownOption(mem::SCHEME, name.clone(), has));
            }
        }
    }
    let mut networks = NETWORKS.write().unwrap_or_else(PoisonError::into_inner);
    if networks.len() >= MAX_NETWORKS && !networks.contains_key(&spec.host) {
        return Err(OpenError::Syntax(spec.to_string(), "1024 networks are open already"));
    }
    let network = networks.entry(spec.host.clone()).or_default().clone();
    drop(networks);
    Ok(Box::new(network.endpoint(cfg)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> BindSpec {
        text.parse().unwrap()
    }

    fn fails(text: &str) -> OpenError {
        open(&spec(text)).err().unwrap()
    }

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["udp://[::1]:7", "udp://:0", "mem://lab:70000?depth=8&max_frame=100"] {
            assert_eq!(spec(text).to_string(), text);
        }
        assert_eq!(spec("udp://[::1]:7").host, "::1");
        assert_eq!(
            spec("x://h:1?a&b=c").options,
            [("a".into(), "".into()), ("b".into(), "c".into())]
        );
    }

    #[test]
    fn bad_addresses_are_refused() {
        let long = format!("udp://{}:1", "x".repeat(MAX_TEXT));
        for text in
            ["", "udp", "udp://", "udp://h", "udp://h:x", "udp://[::1:7", "udp://::1:7", &long]
        {
            assert!(matches!(text.parse::<BindSpec>(), Err(OpenError::Syntax(..))), "{text}");
        }
        assert!(matches!(fails("udp://127.0.0.1:65536"), OpenError::Syntax(..)));
    }

    #[test]
    fn an_unknown_scheme_lists_the_known_ones() {
        let err = fails("smoke://hill:1").to_string();
        assert!(err.contains("smoke") && err.contains("mem") && err.contains("udp"), "{err}");
    }

    #[test]
    fn options_are_checked() {
        assert!(matches!(fails("udp://127.0.0.1:0?mtu=9"), OpenError::UnknownOption(..)));
        assert!(matches!(fails("udp://127.0.0.1:0?gso=on"), OpenError::BadOption(..)));
        assert!(matches!(fails("udp://127.0.0.1:0?max_frame=9"), OpenError::Transport(_)));
        assert!(matches!(fails("mem://options:0?depth=x"), OpenError::BadOption(..)));
        let t = open(&spec("udp://127.0.0.1:0?max_frame=4000&gso=off")).unwrap();
        assert_eq!((t.caps().max_frame, t.caps().train_frames), (4000, 1));
    }

    #[test]
    fn shared_memory_is_opened_on_this_machine_only() {
        let t = open(&spec("shm://localhost:0?max_frame=4000&rcvbuf=7")).unwrap();
        assert_eq!((t.caps().scheme, t.caps().max_frame), ("shm", 4000));
        let again = format!("shm://127.0.0.1:{}", t.local_addr().port);
        assert!(fails(&again).is_in_use());
        assert!(!fails("shm://0.0.0.0:0").is_in_use());
        assert!(matches!(fails("shm://127.0.0.1:0?mtu=9"), OpenError::UnknownOption(..)));
        assert!(matches!(fails("shm://127.0.0.1:0?trust=yes"), OpenError::BadOption(..)));
        let [trusting, not] = ["1", "0"].map(|value| {
            open(&spec(&format!("shm://localhost:0?trust={value}"))).unwrap().caps().rx_queue_frames
        });
        assert!(trusting < not);
        assert!(matches!(fails("shm://127.0.0.1:70000"), OpenError::Syntax(..)));
        let hosts = ["127.0.0.1", "::1", "10.0.0.1", "::"].map(|h| h.parse().unwrap());
        assert_eq!(hosts.map(|h| check_host("shm", h).is_ok()), [true, true, false, false]);
        assert!(hosts.iter().all(|&h| check_host("udp", h).is_ok()));
    }

    #[test]
    fn others_register_their_schemes_once() {
        let lab = MemNetwork::new();
        let factory: Factory = Arc::new(move |_| Ok(Box::new(lab.endpoint(MemConfig::default())?)));
        register("pigeon", factory.clone()).unwrap();
        assert_eq!(open(&spec("pigeon://roof:1")).unwrap().local_addr().port, 1);
        for taken in ["pigeon", "udp", "", "a b"] {
            assert_eq!(register(taken, factory.clone()), Err(RegisterError(taken.into())));
        }
        assert!(schemes().contains(&"pigeon".to_owned()));
    }

    #[test]
    fn a_taken_port_is_told_apart() {
        let taken = open(&spec("udp://127.0.0.1:0")).unwrap();
        let again = format!("udp://127.0.0.1:{}", taken.local_addr().port);
        assert!(fails(&again).is_in_use());
        let _taken = open(&spec("mem://taken:5")).unwrap();
        assert!(fails("mem://taken:5").is_in_use());
        // Nobody's address (RFC 5737): no port of it would do.
        assert!(!fails("udp://192.0.2.1:0").is_in_use());
    }

    #[test]
    fn endpoints_in_memory_meet_by_name() {
        let mut a = open(&spec("mem://meet:1")).unwrap();
        let b = open(&spec("mem://meet:2")).unwrap();
        assert_eq!(a.local_addr().host, b.local_addr().host);
        assert!(matches!(fails("mem://meet:2"), OpenError::InUse(_)));
        assert!(a.path_open(b.local_addr(), None).is_ok());
    }
}
