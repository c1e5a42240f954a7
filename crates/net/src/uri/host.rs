//! The host of an address: a name, an IP address, or a link-local address with its zone
//! [RFC 4007 section 11].

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::is_exhausted;

/// Longest name of an interface, bytes (`IFNAMSIZ` less its zero).
const MAX_ZONE: usize = 15;

/// The host of an address, as it is written there without brackets.
///
/// ```
/// use courser_net::Host;
///
/// assert_eq!(Host::read("db1"), Ok(Host::Name("db1")));
/// assert!(matches!(Host::read("fe80::1%eth0"), Ok(Host::Zoned(_, "eth0"))));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Host<'a> {
    /// A name, which is resolved.
    Name(&'a str),
    /// An IP address.
    Ip(IpAddr),
    /// A link-local IPv6 address and the interface that it belongs to, by name or by number.
    Zoned(Ipv6Addr, &'a str),
}

/// A zone that names no interface of this machine, or the system cannot tell.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct ZoneError {
    address: Ipv6Addr,
    zone: String,
    /// The system's error, unless that is the absence of the interface.
    errno: Option<i32>,
}

impl ZoneError {
    /// Returns whether the machine has no such interface, which may come up later. If not, the system
    /// could not look it up, as without free descriptors.
    pub fn is_absent(&self) -> bool {
        self.errno.is_none()
    }

    fn text(&self) -> String {
        let ZoneError { address, zone, errno } = self;
        match errno {
            None => format!(
                "this machine has no interface {zone:?} for {address}; write a name or a number that `ip \
                 addr` shows, as in [{address}%eth0]{}",
                encoded(zone)
            ),
            Some(errno) => {
                let cause = io::Error::from_raw_os_error(*errno);
                let advice = match is_exhausted(&cause) {
                    true => "; raise the limit of open files (`ulimit -n`) or free memory",
                    false => "",
                };
                format!("cannot look up the interface {zone:?} of {address}: {cause}{advice}")
            }
        }
    }
}

/// Advice for the form of zones in URIs that RFC 6874 had and RFC 9844 withdraws.
fn encoded(zone: &str) -> &'static str {
    if zone.starts_with("25") { ", with a plain % and not %25" } else { "" }
}

impl<'a> Host<'a> {
    /// Reads the host of an address.
    ///
    /// # Errors
    /// The text has a colon or a `%` and is no IPv6 address. The error is the reason, for a sentence.
    pub fn read(text: &'a str) -> Result<Self, &'static str> {
        if let Ok(ip) = text.parse() {
            return Ok(Host::Ip(ip));
        }
        let Some((address, zone)) = text.split_once('%') else {
            let is_name = !text.contains(':');
            return if is_name { Ok(Host::Name(text)) } else { Err("the IPv6 address is wrong") };
        };
        let Ok(ip) = address.parse::<Ipv6Addr>() else {
            return Err("a zone (%) stands behind an IPv6 address only, in brackets");
        };
        if !ip.is_unicast_link_local() {
            return Err("only link-local addresses (fe80::1) have a zone (%)");
        }
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || "%/:[]".contains(c);
        if !(1..=MAX_ZONE).contains(&zone.len()) || zone.contains(is_odd) || zone == "0" {
            return Err("the zone behind % is the name or number of an interface (`ip addr`)");
        }
        Ok(Host::Zoned(ip, zone))
    }

    /// The socket address of this host and a port; `None` for a name. The interface of a zone is
    /// looked up in the network namespace of the calling thread.
    ///
    /// # Errors
    /// There is no such interface, or the system cannot look it up.
    pub fn socket_addr(self, port: u16) -> Result<Option<SocketAddr>, ZoneError> {
        match self {
            Host::Name(_) => Ok(None),
            Host::Ip(ip) => Ok(Some(SocketAddr::new(ip, port))),
            Host::Zoned(ip, zone) => {
                let unknown =
                    |e| ZoneError { address: ip, zone: zone.to_owned(), errno: errno(&e) };
                let zone = interface(zone).map_err(unknown)?;
                Ok(Some(SocketAddrV6::new(ip, port, 0, zone).into()))
            }
        }
    }

    /// The IP address, without its zone; `None` for a name.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Host::Name(_) => None,
            Host::Ip(ip) => Some(ip),
            Host::Zoned(ip, _) => Some(ip.into()),
        }
    }
}

/// Writes the host of a socket address for [`Uri::host`](crate::Uri::host): the zone is the number of
/// the interface.
pub fn host_of(addr: SocketAddr) -> String {
    match addr {
        SocketAddr::V6(v6) if v6.scope_id() != 0 && v6.ip().is_unicast_link_local() => {
            format!("{}%{}", v6.ip(), v6.scope_id())
        }
        _ => addr.ip().to_string(),
    }
}

/// The number of an interface by its name, or by its number, which can be the name of another one.
fn interface(zone: &str) -> io::Result<u32> {
    let name = CString::new(zone)?;
    // SAFETY: the name is a C string. Test: `zones_are_interfaces_by_name_or_number`.
    let number = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if number != 0 {
        return Ok(number);
    }
    let error = io::Error::last_os_error();
    zone.parse().ok().filter(|number| *number != 0).ok_or(error)
}

/// The number of the system's error, unless that is the absence of an interface.
fn errno(error: &io::Error) -> Option<i32> {
    error.raw_os_error().filter(|errno| ![libc::ENODEV, libc::ENXIO].contains(errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_addresses_or_link_local_addresses_with_a_zone() {
        let zoned = |text: &str, zone| Host::Zoned(text.parse().unwrap(), zone);
        for (text, host) in [
            ("db1.example", Host::Name("db1.example")),
            ("localhost", Host::Name("localhost")),
            ("10.0.0.1", Host::Ip([10, 0, 0, 1].into())),
            ("::1", Host::Ip(Ipv6Addr::LOCALHOST.into())),
            ("fe80::1", Host::Ip("fe80::1".parse().unwrap())),
            ("fe80::1%eth0", zoned("fe80::1", "eth0")),
            ("FE80::1%enp3s0.17", zoned("fe80::1", "enp3s0.17")),
            ("fe80::1%3", zoned("fe80::1", "3")),
        ] {
            assert_eq!(Host::read(text), Ok(host), "{text}");
        }
    }

    #[test]
    fn zones_are_short_names_behind_link_local_addresses() {
        for (text, why) in [
            ("fe80::1%", "name or number"),
            ("fe80::1%0", "name or number"),
            ("fe80::1%a b", "name or number"),
            ("fe80::1%a%b", "name or number"),
            ("fe80::1%sixteen-bytes-xx", "name or number"),
            ("::1%lo", "only link-local"),
            ("fd00::1%eth0", "only link-local"),
            ("ff02::1%eth0", "only link-local"),
            ("10.0.0.1%eth0", "IPv6 address only"),
            ("db1%eth0", "IPv6 address only"),
            ("fe80:::1", "is wrong"),
        ] {
            let error = Host::read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn zones_are_interfaces_by_name_or_number() {
        let at = |text: &str| Host::read(text).unwrap().socket_addr(9);
        let lo = interface("lo").expect("the loopback");
        assert_eq!(at("fe80::1%lo"), at(&format!("fe80::1%{lo}")));
        let addr = at("fe80::1%lo").unwrap().unwrap();
        assert_eq!(host_of(addr), format!("fe80::1%{lo}"));
        assert_eq!(at(&host_of(addr)), Ok(Some(addr)));
        let error = at("fe80::1%absent").unwrap_err().to_string();
        assert!(error.contains("\"absent\"") && error.contains("[fe80::1%eth0]"), "{error}");
        assert!(!error.contains("%25"), "{error}");
        let error = at("fe80::1%25eth0").unwrap_err().to_string();
        assert!(error.ends_with("not %25"), "{error}");
        assert_eq!(at("db1"), Ok(None));
    }

    #[test]
    fn an_interface_that_is_absent_differs_from_an_error_of_the_system() {
        let error = |number| {
            let cause = io::Error::from_raw_os_error(number);
            ZoneError {
                address: Ipv6Addr::LOCALHOST,
                zone: "eth0".to_owned(),
                errno: errno(&cause),
            }
        };
        assert!(error(libc::ENODEV).is_absent() && error(libc::ENXIO).is_absent());
        let no_files = error(libc::EMFILE);
        assert!(!no_files.is_absent());
        let text = no_files.to_string();
        assert!(text.contains("ulimit") && !text.contains("has no interface"), "{text}");
        let absent = Host::read("fe80::1%absent").unwrap().socket_addr(9).unwrap_err();
        assert!(absent.is_absent());
    }

    #[test]
    fn hosts_of_socket_addresses_are_read_again() {
        for text in ["10.0.0.1:9", "[::1]:9", "[fe80::1%7]:9", "[fe80::1]:9", "[fd00::1]:9"] {
            let addr: SocketAddr = text.parse().unwrap();
            let host = host_of(addr);
            assert_eq!(Host::read(&host).unwrap().socket_addr(9), Ok(Some(addr)), "{host}");
        }
    }
}
