//! The registry: opens a transport by the scheme of its address.
//!
//! `udp`, `shm` and `mem` are registered from the start; a transport of another crate is added by
//! [`register`]. Calls through [`AnyTransport`] are virtual once per burst, never per frame.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::options::{self, CommonOptions, ControlSockets, OptionSet, TransportOptions};
use crate::uri::is_scheme;
use crate::{
    MemError, MemNetwork, MemOptions, OpenError, ShmOptions, ShmTransport, Transport, UdpOptions,
    UdpTransport, Uri,
};

/// A transport whose kind is known at run time only.
pub type AnyTransport = Box<dyn Transport + Send>;

/// Where an endpoint is opened, and how: what [`open`] passes to a transport.
#[derive(Clone, Debug)]
pub struct BindSpec {
    /// The address: host and port in the transport's own terms (port 0: any), and its options.
    pub uri: Uri,
    /// Settings for every transport.
    pub common: CommonOptions,
    /// Options given in code; those in the address go before them.
    pub options: OptionSet,
}

impl BindSpec {
    /// The options of one transport: those in the address, then those given in code.
    ///
    /// # Errors
    /// [`OpenError::UnknownOption`] or [`OpenError::BadOption`]: of the address.
    pub fn options<O: TransportOptions>(&self) -> Result<O, OpenError> {
        let mut merged = self.options.get();
        options::apply(&mut merged, &self.uri.options)?;
        Ok(merged)
    }

    /// The socket address of host and port; a name is resolved, and may block for that.
    ///
    /// # Errors
    /// [`OpenError::Host`]: the host is no address and no known name. [`OpenError::Zone`]: there is no
    /// such interface.
    pub fn socket_addr(&self) -> Result<SocketAddr, OpenError> {
        let (host, port) = (self.uri.host.as_str(), self.uri.port);
        if let Some(addr) = self.uri.socket_addr()? {
            return Ok(addr);
        }
        let unknown = |e| OpenError::Host(host.to_owned(), e);
        let first = (host, port).to_socket_addrs().map_err(unknown)?.next();
        first.ok_or_else(|| unknown(std::io::ErrorKind::NotFound.into()))
    }
}

impl From<Uri> for BindSpec {
    fn from(uri: Uri) -> Self {
        BindSpec { uri, common: CommonOptions::default(), options: OptionSet::new() }
    }
}

impl FromStr for BindSpec {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        Ok(text.parse::<Uri>()?.into())
    }
}

/// A scheme that cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "scheme {0:?} is taken, or not made of lower-case letters and digits; register another one"
)]
pub struct RegisterError(pub String);

type Open = dyn Fn(&BindSpec) -> Result<AnyTransport, OpenError> + Send + Sync;

/// A registered transport.
#[derive(Clone)]
struct Registered {
    open: Arc<Open>,
    check_options: fn(&BindSpec) -> Result<(), OpenError>,
    check_host: fn(IpAddr) -> Result<(), OpenError>,
    control: fn(&BindSpec) -> Result<ControlSockets, OpenError>,
}

impl Registered {
    fn new<O: TransportOptions>(
        open: impl Fn(&BindSpec, O) -> Result<AnyTransport, OpenError> + Send + Sync + 'static,
    ) -> Self {
        Registered {
            open: Arc::new(move |spec| open(spec, spec.options()?)),
            check_options: |spec| spec.options::<O>().map(drop),
            check_host: O::check_host,
            control: |spec| Ok(spec.options::<O>()?.control()),
        }
    }
}

static REGISTRY: LazyLock<RwLock<BTreeMap<&'static str, Registered>>> = LazyLock::new(|| {
    RwLock::new(BTreeMap::from([
        (UdpOptions::SCHEME, Registered::new(open_udp)),
        (ShmOptions::SCHEME, Registered::new(open_shm)),
        (MemOptions::SCHEME, Registered::new(open_mem)),
    ]))
});

/// Adds a transport for the whole process: addresses with the scheme of `O` are opened by `open`.
///
/// # Errors
/// When the scheme is taken or is not made of lower-case ASCII letters and digits.
pub fn register<O: TransportOptions>(
    open: impl Fn(&BindSpec, O) -> Result<AnyTransport, OpenError> + Send + Sync + 'static,
) -> Result<(), RegisterError> {
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    if !is_scheme(O::SCHEME) || registry.contains_key(O::SCHEME) {
        return Err(RegisterError(O::SCHEME.to_owned()));
    }
    registry.insert(O::SCHEME, Registered::new(open));
    Ok(())
}

/// The registered schemes, in order.
pub fn schemes() -> Vec<String> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    registry.keys().map(|&scheme| scheme.to_owned()).collect()
}

fn find(scheme: &str) -> Option<Registered> {
    REGISTRY.read().unwrap_or_else(PoisonError::into_inner).get(scheme).cloned()
}

/// Opens an endpoint.
///
/// # Errors
/// [`OpenError`]: the scheme is unknown, an option wrong, or the transport cannot be opened.
pub fn open(spec: &BindSpec) -> Result<AnyTransport, OpenError> {
    let scheme = &spec.uri.scheme;
    let unknown = || OpenError::UnknownScheme { scheme: scheme.clone(), known: schemes() };
    let found = find(scheme).ok_or_else(unknown)?;
    (found.open)(spec)
}

/// Checks the options of an address; opens nothing. An address without options may have a scheme
/// that is registered later, or never.
///
/// # Errors
/// [`OpenError::UnknownOption`], [`OpenError::BadOption`] or [`OpenError::UnknownScheme`].
pub fn check_options(spec: &BindSpec) -> Result<(), OpenError> {
    match find(&spec.uri.scheme) {
        Some(found) => (found.check_options)(spec),
        None if spec.uri.options.is_empty() => Ok(()),
        None => open(spec).map(drop),
    }
}

/// Checks that a transport can be bound to, or reach, an IP address at all; opens nothing. Schemes
/// that are not registered pass.
///
/// # Errors
/// [`OpenError::Transport`]: `shm`, for one, stays on this machine.
pub fn check_host(scheme: &str, host: IpAddr) -> Result<(), OpenError> {
    find(scheme).map_or(Ok(()), |found| (found.check_host)(host))
}

/// The sockets that the control connections of a nexus at an address use; opens nothing. TCP for
/// schemes that are not registered.
///
/// # Errors
/// [`OpenError::UnknownOption`] or [`OpenError::BadOption`]: of the address.
pub fn control_sockets(spec: &BindSpec) -> Result<ControlSockets, OpenError> {
    find(&spec.uri.scheme).map_or(Ok(ControlSockets::Tcp), |found| (found.control)(spec))
}

/// `udp://host:port`.
fn open_udp(spec: &BindSpec, options: UdpOptions) -> Result<AnyTransport, OpenError> {
    let config = options.config(spec.socket_addr()?, &spec.common);
    Ok(Box::new(UdpTransport::bind(config)?))
}

/// `shm://127.0.0.1:port`, `shm://[::1]:port`, `shm://localhost:port`.
fn open_shm(spec: &BindSpec, options: ShmOptions) -> Result<AnyTransport, OpenError> {
    let is_localhost = spec.uri.host.eq_ignore_ascii_case("localhost");
    let at = match is_localhost {
        true => SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), spec.uri.port),
        false => spec.socket_addr()?,
    };
    Ok(Box::new(ShmTransport::bind(&options.config(at, &spec.common))?))
}

/// The networks in memory that were opened by name, of this process. They stay, a few hundred
/// bytes each, so their number is limited.
static NETWORKS: LazyLock<RwLock<BTreeMap<String, MemNetwork>>> = LazyLock::new(RwLock::default);

/// Most networks opened by name.
const MAX_NETWORKS: usize = 1024;

/// `mem://network:port`: an endpoint in the network of that name, which is made when it is first
/// opened. An IP address is the name of a network and the number of the endpoint's node.
fn open_mem(spec: &BindSpec, options: MemOptions) -> Result<AnyTransport, OpenError> {
    let Uri { host, port, .. } = &spec.uri;
    let mut networks = NETWORKS.write().unwrap_or_else(PoisonError::into_inner);
    if networks.len() >= MAX_NETWORKS && !networks.contains_key(host) {
        return Err(MemError::Networks(MAX_NETWORKS).into());
    }
    let network = networks.entry(host.clone()).or_default().clone();
    drop(networks);
    let config = options.config(spec.uri.ip(), *port, &spec.common);
    Ok(Box::new(network.endpoint(config)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemConfig;
    use crate::options::NamedOption;

    fn spec(text: &str) -> BindSpec {
        text.parse().unwrap()
    }

    fn fails(text: &str) -> OpenError {
        open(&spec(text)).err().unwrap()
    }

    #[test]
    fn an_unknown_scheme_lists_the_known_ones() {
        let err = fails("smoke://hill:1").to_string();
        assert!(err.contains("smoke") && err.contains("mem") && err.contains("udp"), "{err}");
    }

    #[test]
    fn options_are_checked() {
        assert!(matches!(fails("udp://127.0.0.1:0?mtu=9"), OpenError::UnknownOption { .. }));
        assert!(matches!(fails("udp://127.0.0.1:0?gso=on"), OpenError::BadOption { .. }));
        assert!(matches!(fails("udp://127.0.0.1:0?max_frame=9"), OpenError::Transport(_)));
        assert!(matches!(fails("mem://options:0?depth=x"), OpenError::BadOption { .. }));
        let t = open(&spec("udp://127.0.0.1:0?max_frame=4000&gso=off")).unwrap();
        assert_eq!((t.caps().max_frame, t.caps().train_frames), (4000, 1));
    }

    #[test]
    fn shared_memory_is_opened_on_this_machine_only() {
        let t = open(&spec("shm://localhost:0?max_frame=4000")).unwrap();
        assert_eq!((t.caps().scheme, t.caps().max_frame), ("shm", 4000));
        let again = format!("shm://127.0.0.1:{}", t.local_addr().port);
        assert!(fails(&again).is_in_use());
        assert!(!fails("shm://0.0.0.0:0").is_in_use());
        assert!(matches!(fails("shm://127.0.0.1:0?mtu=9"), OpenError::UnknownOption { .. }));
        // Safe code must not be able to trust other processes.
        assert!(matches!(fails("shm://127.0.0.1:0?trust=1"), OpenError::UnknownOption { .. }));
        let hosts = ["127.0.0.1", "::1", "10.0.0.1", "::"].map(|h| h.parse().unwrap());
        assert_eq!(hosts.map(|h| check_host("shm", h).is_ok()), [true, true, false, false]);
        assert!(hosts.iter().all(|&h| check_host("udp", h).is_ok()));
    }

    #[derive(Clone, Debug, Default)]
    struct PigeonOptions {
        pigeons: Option<usize>,
    }

    impl TransportOptions for PigeonOptions {
        const SCHEME: &'static str = "pigeon";
        const NAMED: &'static [NamedOption<Self>] =
            &[("pigeons", |options, text| options::set(&mut options.pigeons, text))];

        fn control(&self) -> ControlSockets {
            ControlSockets::Unix(format!("/loft/{}", self.pigeons.unwrap_or(7)).into())
        }
    }

    fn open_pigeon(_: &BindSpec, options: PigeonOptions) -> Result<AnyTransport, OpenError> {
        let depth = options.pigeons.unwrap_or(7);
        Ok(Box::new(MemNetwork::new().endpoint(MemConfig { depth, ..MemConfig::default() })?))
    }

    #[test]
    fn others_register_their_schemes_once_with_options_from_code_or_address() {
        register(open_pigeon).unwrap();
        assert_eq!(register(open_pigeon), Err(RegisterError("pigeon".into())));
        let depth = |spec: &BindSpec| open(spec).unwrap().caps().rx_queue_frames;
        let mut plain = spec("pigeon://roof:1");
        assert_eq!(depth(&plain), 7);
        plain.options = OptionSet::new().with(PigeonOptions { pigeons: Some(8) });
        assert_eq!(depth(&plain), 8);
        plain.uri.options = vec![("pigeons".into(), "9".into())];
        assert_eq!(depth(&plain), 9);
        assert!(fails("pigeon://roof:1?owls=1").to_string().ends_with("use one of pigeons"));
        assert!(schemes().contains(&"pigeon".to_owned()));
        let control = control_sockets(&plain).unwrap();
        assert_eq!(control, ControlSockets::Unix("/loft/9".into()));
    }

    #[test]
    fn schemes_are_lower_case_letters_and_digits() {
        #[derive(Clone, Debug, Default)]
        struct Upper;
        impl TransportOptions for Upper {
            const SCHEME: &'static str = "Upper";
            const NAMED: &'static [NamedOption<Self>] = &[];
        }
        let open = |_: &BindSpec, _: Upper| Err(std::io::Error::other("never opened").into());
        assert_eq!(register(open), Err(RegisterError("Upper".into())));
    }

    #[test]
    fn options_are_checked_without_opening() {
        assert!(check_options(&spec("udp://127.0.0.1:1?gso=off")).is_ok());
        assert!(check_options(&spec("udp://127.0.0.1:1?depth=7")).is_err());
        assert!(check_options(&spec("later://127.0.0.1:1")).is_ok());
        assert!(check_options(&spec("later://127.0.0.1:1?gso=off")).is_err());
    }

    #[test]
    fn common_settings_apply_where_a_transport_has_no_option_of_its_own() {
        let common = CommonOptions { max_frame: Some(4000), queue_bytes: Some(64_000) };
        for (text, max_frame) in [
            ("udp://127.0.0.1:0", 4000),
            ("udp://127.0.0.1:0?max_frame=5000", 5000),
            ("shm://127.0.0.1:0", 4000),
            ("mem://common:0", 4000),
        ] {
            let t = open(&BindSpec { common, ..spec(text) }).unwrap();
            assert_eq!(t.caps().max_frame, max_frame, "{text}");
        }
        let mem = open(&BindSpec { common, ..spec("mem://common:0") }).unwrap();
        assert_eq!(mem.caps().rx_queue_frames, 16);
    }

    #[test]
    fn each_transport_selects_the_sockets_of_control_connections() {
        let control = |text: &str| control_sockets(&spec(text)).unwrap();
        for tcp in ["udp://127.0.0.1:1", "mem://127.0.0.1:1", "later://127.0.0.1:1"] {
            assert_eq!(control(tcp), ControlSockets::Tcp, "{tcp}");
        }
        let unix = ControlSockets::Unix("/run/mine".into());
        assert_eq!(control("shm://127.0.0.1:1?dir=/run/mine"), unix);
        let code = ShmOptions { dir: Some("/run/mine".into()), ..ShmOptions::default() };
        let options = OptionSet::new().with(code);
        assert_eq!(control_sockets(&BindSpec { options, ..spec("shm://[::1]:1") }).unwrap(), unix);
        assert!(control_sockets(&spec("shm://127.0.0.1:1?mtu=9")).is_err());
    }

    #[test]
    fn a_taken_port_is_told_apart() {
        let taken = open(&spec("udp://127.0.0.1:0")).unwrap();
        let again = format!("udp://127.0.0.1:{}", taken.local_addr().port);
        assert!(fails(&again).is_in_use());
        let _taken = open(&spec("mem://taken:5")).unwrap();
        assert!(fails("mem://taken:5").is_in_use());
        // No host has this address (RFC 5737), so no other port can succeed.
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
