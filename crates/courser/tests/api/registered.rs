//! A transport from outside Courser, registered by its scheme and selected by address.

use courser::{AnyTransport, Config, Nexus, OptionSet, Transport, TransportOptions};
use courser_net::options::{NamedOption, set};
use courser_net::{BindSpec, MemConfig, MemNetwork, OpenError, any};

/// An error type that Courser does not define.
#[derive(Debug)]
struct Occupied(u32);

impl std::fmt::Display for Occupied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "port {} of the lab is occupied", self.0)
    }
}

impl std::error::Error for Occupied {}

fn config(port: u32) -> MemConfig {
    let host = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().into();
    MemConfig { host, port, ..MemConfig::default() }
}

/// Registers a transport with its own options type.
macro_rules! lab {
    ($name:ident, $scheme:literal) => {
        #[derive(Clone, Debug, Default)]
        struct $name {
            rooms: Option<usize>,
        }

        impl TransportOptions for $name {
            const SCHEME: &'static str = $scheme;
            const NAMED: &'static [NamedOption<Self>] =
                &[("rooms", |options, text| set(&mut options.rooms, text))];
        }

        impl $name {
            fn register() -> MemNetwork {
                let network = MemNetwork::new();
                let lab = network.clone();
                let open = move |spec: &BindSpec, options: $name| {
                    let port = u32::from(spec.uri.port);
                    let depth = options.rooms.unwrap_or(512);
                    let endpoint = lab.endpoint(MemConfig { depth, ..config(port) });
                    let endpoint = endpoint.map_err(|_| OpenError::in_use(Occupied(port)))?;
                    Ok(Box::new(endpoint) as AnyTransport)
                };
                any::register(open).unwrap();
                network
            }
        }
    };
}

#[test]
fn a_nexus_on_port_0_takes_another_datapath_port_when_its_own_is_in_use() {
    lab!(Lab0, "lab0");
    let lab = Lab0::register();
    let nexus = Nexus::bind("lab0://127.0.0.1:0").unwrap();
    let taken = u32::from(nexus.port());
    let _other = lab.endpoint(config(taken)).unwrap();
    let rpc = nexus.endpoint().unwrap();
    assert_ne!(rpc.transport().local_addr().port, taken);
}

#[test]
fn a_nexus_on_a_fixed_port_fails_with_the_error_of_the_transport() {
    lab!(Lab1, "lab1");
    let lab = Lab1::register();
    let port = Nexus::bind("lab1://127.0.0.1:0").unwrap().port();
    let nexus = Nexus::bind(&format!("lab1://127.0.0.1:{port}")).unwrap();
    let _other = lab.endpoint(config(port.into())).unwrap();
    let error = nexus.endpoint().err().unwrap();
    assert_eq!(error.to_string(), format!("port {port} of the lab is occupied"));
}

#[test]
fn options_come_from_code_or_from_the_address_and_unknown_ones_fail_at_bind() {
    lab!(Lab2, "lab2");
    Lab2::register();
    let depth = |nexus: Nexus| nexus.endpoint().unwrap().transport().caps().rx_queue_frames;
    let in_code = || Config {
        transport: OptionSet::new().with(Lab2 { rooms: Some(64) }),
        ..Config::default()
    };
    assert_eq!(depth(Nexus::bind("lab2://127.0.0.1:0").unwrap()), 512);
    assert_eq!(depth(Nexus::bind_with("lab2://127.0.0.1:0", in_code()).unwrap()), 64);
    let both = Nexus::bind_with("lab2://127.0.0.1:0?rooms=128", in_code()).unwrap();
    assert!(!both.local_uri().contains('?'), "clients connect without options");
    assert_eq!(depth(both), 128);
    let error = Nexus::bind("lab2://127.0.0.1:0?doors=1").unwrap_err().to_string();
    assert_eq!(error, "lab2:// has no option \"doors\"; use one of rooms");
}
