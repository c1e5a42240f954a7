//! The interface that has an address, and the rate of its link.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::c_int;

/// Directory in which the kernel describes its interfaces.
const INTERFACES: &str = "/sys/class/net";
/// Interfaces below one another that are looked at: a VLAN on a bond of ports has two.
const MOST_LEVELS: u32 = 4;

/// The rate of the link that frames from `local` leave on, bits per second: that of the hardware, also
/// below VLANs and bridges; of all hardware the highest for a wildcard address. `None`: the kernel does
/// not state it, as for the loopback, for pairs of virtual interfaces, and for most NICs of virtual
/// machines.
pub(super) fn line_rate_bps(local: SocketAddr) -> Option<u64> {
    let interfaces = Path::new(INTERFACES);
    if local.ip().is_unspecified() {
        return names(interfaces).filter_map(|name| rate_bps(interfaces, &name, MOST_LEVELS)).max();
    }
    let scope = match local {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(local) => local.scope_id(),
    };
    let name = of_address(local.ip(), scope)?;
    rate_bps(interfaces, without_label(&name), MOST_LEVELS)
}

/// The rate of an interface, or of the fastest below it. Virtual interfaces may state a rate that nothing
/// keeps (a `veth` always 10 Gbit/s), so only hardware counts, and bonds, which state that of their ports.
fn rate_bps(interfaces: &Path, name: &OsStr, levels: u32) -> Option<u64> {
    let interface = interfaces.join(name);
    if interface.join("device").exists() || interface.join("bonding").exists() {
        let text = fs::read_to_string(interface.join("speed")).ok()?;
        let mbit_per_s = text.trim().parse::<i64>().ok()?; // -1: unknown
        return u64::try_from(mbit_per_s).ok()?.checked_mul(1_000_000).filter(|rate| *rate > 0);
    }
    let levels = levels.checked_sub(1)?;
    let below = names(&interface).filter_map(|entry| {
        let below = entry.as_bytes().strip_prefix(b"lower_")?;
        rate_bps(interfaces, OsStr::from_bytes(below), levels)
    });
    below.max()
}

/// The interface of an address that has a label, as in `eth0:1`.
fn without_label(name: &CStr) -> &OsStr {
    let name = name.to_bytes().split(|byte| *byte == b':').next();
    OsStr::from_bytes(name.unwrap_or_default())
}

fn names(dir: &Path) -> impl Iterator<Item = std::ffi::OsString> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// The name of the interface that has an address. `scope`: its number, since interfaces may have the same
/// link-local address; 0: the first one that has the address.
pub(super) fn of_address(address: IpAddr, scope: u32) -> Option<CString> {
    let mut first = std::ptr::null_mut();
    // SAFETY: on success `first` is a list that is freed below.
    // Test: `addresses_have_interfaces`.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return None;
    }
    let mut at = first;
    let mut name = None;
    while name.is_none() && !at.is_null() {
        // SAFETY: an entry of the list, which is not freed before the end of this function.
        // Test: `addresses_have_interfaces`.
        let entry = unsafe { &*at };
        // SAFETY: null or an address of the family that it states; the name is a C string.
        // Test: `addresses_have_interfaces`.
        unsafe {
            let found = ip_of(entry.ifa_addr).filter(|&(ip, _)| ip == address);
            if found.is_some_and(|(_, at)| scope == 0 || scope == at) {
                name = Some(CStr::from_ptr(entry.ifa_name).to_owned());
            }
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list of above, no part of which is used any more.
    // Test: `addresses_have_interfaces`.
    unsafe { libc::freeifaddrs(first) };
    name
}

/// The number of the first interface that has an address.
pub(super) fn number(address: IpAddr) -> Option<u32> {
    let name = of_address(address, 0)?;
    // SAFETY: the name is a C string. Test: `addresses_have_interfaces`.
    let number = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (number != 0).then_some(number)
}

/// The address, and the number of its interface if it is link-local and of IPv6, else 0.
///
/// # Safety
/// `address` is null, or points to a socket address as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and as long as its family says. Test: `addresses_have_interfaces`.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some((IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()), 0))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some((IpAddr::from(v6.sin6_addr.s6_addr), v6.sin6_scope_id))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_interfaces() {
        let loopback = of_address([127, 0, 0, 1].into(), 0).unwrap();
        assert!(number([127, 0, 0, 1].into()).is_some());
        // Documentation addresses belong to no interface [RFC 5737].
        assert_eq!(of_address([192, 0, 2, 1].into(), 0), None);
        assert_eq!(number([192, 0, 2, 1].into()), None);
        assert_eq!(of_address([127, 0, 0, 1].into(), 7), None, "it is that of no interface 7");
        if !Path::new(INTERFACES).exists() {
            return println!("skipped: {INTERFACES} is not mounted, which names the interfaces");
        }
        assert!(Path::new(INTERFACES).join(OsStr::from_bytes(loopback.to_bytes())).exists());
    }

    #[test]
    fn labels_of_addresses_are_no_interfaces() {
        assert_eq!(without_label(c"eth0:1"), "eth0");
        assert_eq!(without_label(c"eth0"), "eth0");
    }

    #[test]
    fn the_loopback_has_no_rate() {
        assert_eq!(line_rate_bps(([127, 0, 0, 1], 0).into()), None);
        assert_eq!(line_rate_bps((std::net::Ipv6Addr::LOCALHOST, 0).into()), None);
    }

    #[test]
    fn the_rate_is_that_of_the_hardware_below_an_interface() {
        let dir = tempfile::tempdir().unwrap();
        let interface = |name: &str, kind: &str, speed: &str, below: &[&str]| {
            let interface = dir.path().join(name);
            fs::create_dir_all(interface.join(kind)).unwrap();
            fs::write(interface.join("speed"), format!("{speed}\n")).unwrap();
            for below in below {
                fs::create_dir(interface.join(format!("lower_{below}"))).unwrap();
            }
        };
        interface("eth0", "device", "100000", &[]);
        interface("eth1", "device", "25000", &[]);
        interface("eth2", "device", "-1", &[]);
        interface("eth3", "device", "no number", &[]);
        interface("bond0", "bonding", "50000", &["eth1"]);
        interface("vlan7", "", "10000", &["bond0"]);
        interface("veth1", "", "10000", &[]);
        interface("br0", "", "10000", &["veth1", "eth1", "eth2"]);
        interface("macvlan", "", "10000", &["gone"]);
        interface("circle", "", "10000", &["circle"]);
        let rate = |name: &str| rate_bps(dir.path(), OsStr::new(name), MOST_LEVELS);
        let gbit = |n: u64| Some(n * 1_000_000_000);
        assert_eq!((rate("eth0"), rate("eth1")), (gbit(100), gbit(25)));
        assert_eq!((rate("bond0"), rate("vlan7"), rate("br0")), (gbit(50), gbit(50), gbit(25)));
        for unknown in ["eth2", "eth3", "veth1", "macvlan", "circle", "absent"] {
            assert_eq!(rate(unknown), None, "{unknown}");
        }
        let highest = names(dir.path()).filter_map(|name| rate_bps(dir.path(), &name, 4)).max();
        assert_eq!(highest, gbit(100));
    }
}
