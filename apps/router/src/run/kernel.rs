//! Settings of the kernel with which packets are lost or forwarded twice.

use std::path::Path;

use super::NodeError;
use crate::config::Port;
use crate::line::{Outlet, SystemPorts};

/// Other nodes send packets of the file's MTU, which the interface has to take.
pub(super) fn check_mtus(file: &[Port], ports: &SystemPorts) -> Result<(), NodeError> {
    let smaller = (0..).zip(file).find(|(at, port)| ports.mtu(*at) < usize::from(port.mtu));
    let Some((at, port)) = smaller else { return Ok(()) };
    let (interface, link) = (port.interface.clone(), ports.mtu(at));
    Err(NodeError::Mtu { interface, file: port.mtu, link })
}

/// What is wrong with the settings of ports, with what corrects it.
pub(super) fn warnings(file: &[Port], ports: &SystemPorts) -> Vec<String> {
    let mut warnings = Vec::new();
    let of_port = |port: &Port| {
        // The second one overrides that of all interfaces, since Linux 6.17.
        ["ipv4/conf/IF/forwarding", "ipv6/conf/IF/force_forwarding"]
            .map(|setting| format!("net/{}", setting.replace("IF", &port.interface)))
    };
    let mut settings: Vec<String> = file.iter().flat_map(of_port).collect();
    settings.push("net/ipv6/conf/all/forwarding".to_owned());
    for setting in settings.iter().filter(|setting| is_set(setting)) {
        warnings.push(format!(
            "the kernel forwards packets too, which then arrive twice; run `sysctl -w {setting}=0`"
        ));
    }
    for (at, port) in (0..).zip(file) {
        let interface = &port.interface;
        for address in port.addresses.iter().filter(|a| !ports.has_address(at, a.addr())) {
            warnings.push(format!(
                "interface {interface} does not have the address {address} of the file, so that \
                 packets to it are lost; run `ip address add {address} dev {interface}`"
            ));
        }
    }
    warnings
}

/// Whether a setting is neither 0 nor absent. Names have slashes, as interfaces may have dots.
fn is_set(setting: &str) -> bool {
    let value = std::fs::read_to_string(Path::new("/proc/sys").join(setting));
    value.is_ok_and(|value| value.trim() != "0")
}
