//! A transport that is no part of Courser, registered by its scheme and chosen by address.

use std::sync::Arc;

use courser::parts::net::{AnyTransport, BindSpec, MemConfig, MemNetwork, OpenError, any};
use courser::{Nexus, Transport};

/// The error of a transport that Courser does not know.
#[derive(Debug)]
struct Occupied(u32);

impl std::fmt::Display for Occupied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "port {} of the lab is occupied", self.0)
    }
}

impl std::error::Error for Occupied {}

fn register(scheme: &str) -> MemNetwork {
    let network = MemNetwork::new();
    let lab = network.clone();
    let open = move |spec: &BindSpec| -> Result<AnyTransport, OpenError> {
        let endpoint = lab.endpoint(config(spec.port));
        Ok(Box::new(endpoint.map_err(|_| OpenError::in_use(Occupied(spec.port)))?))
    };
    any::register(scheme, Arc::new(open)).unwrap();
    network
}

fn config(port: u32) -> MemConfig {
    let host = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().into();
    MemConfig { host, port, ..MemConfig::default() }
}

#[test]
fn a_nexus_on_port_0_takes_another_datapath_port_when_its_own_is_in_use() {
    let lab = register("lab0");
    let nexus = Nexus::bind("lab0://127.0.0.1:0").unwrap();
    let taken = u32::from(nexus.port());
    let _other = lab.endpoint(config(taken)).unwrap();
    let rpc = nexus.endpoint().unwrap();
    assert_ne!(rpc.transport().local_addr().port, taken);
}

#[test]
fn a_nexus_on_a_fixed_port_fails_with_the_error_of_the_transport() {
    let lab = register("lab1");
    let port = Nexus::bind("lab1://127.0.0.1:0").unwrap().port();
    let nexus = Nexus::bind(&format!("lab1://127.0.0.1:{port}")).unwrap();
    let _other = lab.endpoint(config(port.into())).unwrap();
    let error = nexus.endpoint().err().unwrap();
    assert_eq!(error.to_string(), format!("port {port} of the lab is occupied"));
}
