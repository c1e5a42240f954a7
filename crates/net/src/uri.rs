//! Addresses: `scheme://host:port/endpoint?option=value&...`, read by one parser for nexuses,
//! sessions and transports.

mod host;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

pub use host::{Host, ZoneError, host_of};

/// Longest address in bytes, as it is read and as it is written, which may be longer by the scheme and
/// by the `=` of options without a value. The limit bounds the work on text from outside.
const MAX_TEXT: usize = 1024;
/// The error of a longer one.
const TOO_LONG: &str = "it is longer than 1024 bytes, with its scheme and a `=` for each option";

/// Where a nexus listens or a session connects to.
///
/// | text | meaning |
/// | --- | --- |
/// | `udp://db1:31850` | the nexus of a server, which chooses one of its endpoints |
/// | `udp://db1:31850/2` | endpoint number 2 of that nexus |
/// | `udp://[::1]:31850` | IPv6 addresses are written in brackets |
/// | `udp://[fe80::1%eth0]:31850` | a link-local address has the name or number of its interface as zone |
/// | `shm://127.0.0.1:31850` | a nexus of this machine, reached through shared memory |
/// | `udp://[::]:31850?gso=off` | a nexus that listens on all addresses, with an option of its transport |
/// | `db1:31850` | the scheme is `udp` when it is absent |
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Uri {
    /// The transport: `udp`, `shm`, `mem`, or the scheme of a registered one; in lower case.
    pub scheme: String,
    /// A name or an IP address, without brackets; a link-local address with its zone (`fe80::1%eth0`).
    pub host: String,
    /// The control port of a nexus. Its endpoint `N` has datapath port `port + N` unless that is
    /// taken.
    pub port: u16,
    /// One endpoint of the nexus.
    pub endpoint: Option<u16>,
    /// Options of the transport, name and value, in the order in which they are written.
    pub options: Vec<(String, String)>,
}

/// Why text is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{text}` is not an address: {why}; write one like udp://db1:31850, udp://[::1]:31850 or \
     shm://127.0.0.1:31850"
)]
pub struct UriError {
    text: String,
    why: &'static str,
}

impl UriError {
    fn new(text: &str, why: &'static str) -> Self {
        UriError { text: text.chars().take(200).collect(), why }
    }
}

impl Uri {
    /// The address of a server to connect to, which has no options: those of the transport belong
    /// to the address that the client's own nexus is bound to.
    ///
    /// # Errors
    /// The address has options.
    pub fn without_options(self) -> Result<Uri, UriError> {
        if self.options.is_empty() {
            return Ok(self);
        }
        let why = "options belong to the address that a nexus is bound to, not to its server's";
        Err(UriError::new(&self.to_string(), why))
    }

    /// The IP address of the host, without its zone; `None` for a name.
    pub fn ip(&self) -> Option<IpAddr> {
        Host::read(&self.host).ok()?.ip()
    }

    /// The socket address of host and port; `None` for a name. The interface of a zone is looked up in
    /// the network namespace of the calling thread.
    ///
    /// # Errors
    /// There is no interface of the zone's name, or the system cannot look it up.
    pub fn socket_addr(&self) -> Result<Option<SocketAddr>, ZoneError> {
        Host::read(&self.host).map_or(Ok(None), |host| host.socket_addr(self.port))
    }

    /// The address to bind a client's nexus to, for sessions with this server: any port of the wildcard of
    /// the server's address family, or of the server's host over transports within a machine.
    #[must_use]
    pub fn bind_for_client(&self) -> Uri {
        let host = match self.ip() {
            _ if self.scheme != "udp" => self.host.clone(),
            Some(IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.to_string(),
            // A name may have addresses of both families; the IPv6 wildcard takes both.
            _ => Ipv6Addr::UNSPECIFIED.to_string(),
        };
        Uri { scheme: self.scheme.clone(), host, port: 0, endpoint: None, options: Vec::new() }
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let parsed = parse(text).and_then(|uri| {
            // Each address that is read must be readable again once it is written.
            if uri.to_string().len() > MAX_TEXT { Err(TOO_LONG) } else { Ok(uri) }
        });
        parsed.map_err(|why| UriError::new(text, why))
    }
}

fn parse(text: &str) -> Result<Uri, &'static str> {
    if text.len() > MAX_TEXT {
        return Err(TOO_LONG);
    }
    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    let (scheme, rest) = place.split_once("://").unwrap_or(("udp", place));
    if !is_scheme(&scheme.to_ascii_lowercase()) {
        return Err("the scheme must be letters and digits");
    }
    let (authority, endpoint) = match rest.split_once('/') {
        Some((authority, "")) => (authority, None),
        Some((authority, number)) => {
            let bad = |_| "the endpoint must be a number, 0 to 65535";
            (authority, Some(number.parse().map_err(bad)?))
        }
        None => (rest, None),
    };
    let (host, port) = split_port(authority)?;
    let scheme = scheme.to_ascii_lowercase();
    // Hosts of other transports have a form of their own.
    let is_ip = ["udp", "shm"].contains(&scheme.as_str());
    if is_ip {
        Host::read(host)?;
    }
    if is_ip && is_odd_number(host) {
        return Err("an IPv4 address has four numbers without leading zeros");
    }
    Ok(Uri {
        scheme,
        host: host.to_owned(),
        port: port.parse().map_err(|_| "the port must be a number, 0 to 65535")?,
        endpoint,
        options: query
            .split('&')
            .filter(|o| !o.is_empty())
            .map(option)
            .collect::<Result<_, _>>()?,
    })
}

/// Returns whether a name can be the scheme of addresses.
pub(crate) fn is_scheme(name: &str) -> bool {
    let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !name.is_empty() && name.bytes().all(valid)
}

/// Returns whether a host is a number or numbers with dots, and no IPv4 address. The system's resolver
/// takes 010.9.0.1 for 8.9.0.1, 10.9 for 10.0.0.9, and 0x7f000001 for 127.0.0.1.
fn is_odd_number(host: &str) -> bool {
    let is_number = |part: &str| match part.strip_prefix("0x").or(part.strip_prefix("0X")) {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()),
    };
    host.parse::<Ipv4Addr>().is_err() && host.split('.').all(is_number)
}

fn split_port(authority: &str) -> Result<(&str, &str), &'static str> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once("]:").ok_or("`]:port` is missing")?;
        return match Host::read(host)? {
            Host::Ip(IpAddr::V6(_)) | Host::Zoned(..) => Ok((host, port)),
            Host::Ip(_) | Host::Name(_) => Err("brackets enclose IPv6 addresses only"),
        };
    }
    let (host, port) = authority.rsplit_once(':').ok_or("the port is missing")?;
    if host.is_empty() {
        return Err("the host is missing (write [::] to listen on all addresses)");
    }
    if host.contains([':', '[', ']']) {
        return Err("an IPv6 address must be written in brackets");
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("the host contains a blank");
    }
    Ok((host, port))
}

fn option(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=').unwrap_or((text, "")) {
        ("", _) => Err("an option has no name"),
        (name, value) => Ok((name.to_owned(), value.to_owned())),
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Uri { scheme, host, port, endpoint, options } = self;
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}")?,
            false => write!(f, "{scheme}://{host}:{port}")?,
        }
        if let Some(number) = endpoint {
            write!(f, "/{number}")?;
        }
        for (i, (name, value)) in options.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn why(text: &str) -> String {
        text.parse::<Uri>().unwrap_err().to_string()
    }

    #[test]
    fn good_addresses_are_written_as_they_were_read() {
        for text in [
            "udp://db1:31850",
            "udp://[::1]:0",
            "udp://[fe80::1%eth0]:9/3?gso=off",
            "udp://[fe80::1%7]:9",
            "mem://7:1",
            "rdma://node%7:1/2",
            "udp://10.0.0.1:9/3",
            "udp://7.db:9",
            "udp://0xcafe.db:9",
            "mem://lab:7/1?depth=8&max_frame=100",
            "shm://127.0.0.1:1?dir=/run/user/7/a?b",
        ] {
            let uri: Uri = text.parse().unwrap();
            assert_eq!(uri.to_string(), text);
        }
        let short: Uri = "db1:31850".parse().unwrap();
        assert_eq!(short.to_string(), "udp://db1:31850");
        let options = "x://h:1?a&b=c=d".parse::<Uri>().unwrap().options;
        assert_eq!(options, [("a".into(), "".into()), ("b".into(), "c=d".into())]);
        assert_eq!("udp://[::1]:7".parse::<Uri>().unwrap().host, "::1");
    }

    #[test]
    fn a_client_is_bound_in_the_family_of_its_server() {
        for (server, bind) in [
            ("udp://10.0.0.1:5", "udp://0.0.0.0:0"),
            ("udp://[::1]:5", "udp://[::]:0"),
            ("udp://[fe80::1%eth0]:5", "udp://[::]:0"),
            ("udp://db1:5/2", "udp://[::]:0"),
            ("shm://127.0.0.1:5/2", "shm://127.0.0.1:0"),
            ("shm://[::1]:5", "shm://[::1]:0"),
            ("shm://127.0.0.1:5?dir=/run", "shm://127.0.0.1:0"),
        ] {
            let server: Uri = server.parse().expect("an address");
            assert_eq!(server.bind_for_client().to_string(), bind);
        }
    }

    #[test]
    fn errors_say_what_is_wrong_and_show_an_example() {
        let long = format!("udp://{}:1", "x".repeat(MAX_TEXT));
        for (text, expected) in [
            ("udp://db1", "port is missing"),
            ("udp", "port is missing"),
            ("", "port is missing"),
            ("udp://:1", "host is missing"),
            ("udp://db1:70000", "0 to 65535"),
            ("udp://h:x", "0 to 65535"),
            ("udp://db1:1/x", "endpoint must be"),
            ("udp://::1:5", "in brackets"),
            ("udp://[::1]", "`]:port`"),
            ("udp://[::1:7", "`]:port`"),
            ("udp://[db1]:5", "IPv6 address"),
            ("udp://[fe80::1%]:5", "name or number of an interface"),
            ("udp://[::1%lo]:5", "only link-local"),
            ("udp://[db1%eth0]:5", "IPv6 address only"),
            ("udp://db1%eth0:5", "in brackets"),
            ("udp://fe80::1%eth0:5", "in brackets"),
            ("u d://a:1", "letters and digits"),
            ("udp://a b:1", "blank"),
            ("udp://010.9.0.1:1", "four numbers"),
            ("udp://10.9:1", "four numbers"),
            ("udp://1.2.3.256:1", "four numbers"),
            ("udp://0x7f.0.0.1:1", "four numbers"),
            ("shm://127:1", "four numbers"),
            ("udp://a:1?=7", "no name"),
            (&long, "1024 bytes"),
        ] {
            let error = why(text);
            assert!(error.contains(expected) && error.contains("udp://db1:31850"), "{error}");
            assert!(error.len() < 500, "{error}");
        }
    }

    /// Written addresses have a scheme, and options a `=`. The fuzzer found the second case.
    #[test]
    fn an_address_that_would_be_too_long_when_written_is_an_error() {
        for (text, kept) in [
            (format!("{}:1", "x".repeat(MAX_TEXT - 2)), MAX_TEXT - 8),
            (format!("udp://h:1?{}", "a&".repeat(507)), 338),
        ] {
            assert_eq!(text.len(), MAX_TEXT);
            assert!(why(&text).contains("1024 bytes"), "{text}");
            let most = match text.strip_prefix("udp://h:1?") {
                None => format!("{}:1", &text[..kept]),
                Some(options) => format!("udp://h:1?{}", &options[..2 * kept]),
            };
            let uri: Uri = most.parse().expect("it fits");
            assert!(uri.to_string().len() > MAX_TEXT - 3);
            assert_eq!(uri.to_string().parse(), Ok(uri));
        }
    }

    #[test]
    fn an_address_to_connect_to_has_no_options() {
        let uri = |text: &str| text.parse::<Uri>().unwrap().without_options();
        assert!(uri("udp://db1:1/2").is_ok());
        assert!(uri("udp://db1:1?gso=off").unwrap_err().to_string().contains("is bound to"));
    }

    prop_compose! {
        fn uris()(
            scheme in "[a-z0-9]{1,8}",
            host in prop_oneof![
                "[a-z0-9.-]{1,30}",
                any::<Ipv6Addr>().prop_map(|ip| ip.to_string()),
                (any::<u64>(), "[a-zA-Z1-9@.-]{1,15}").prop_map(|(ip, zone)| {
                    format!("{}%{zone}", Ipv6Addr::from(0xfe80 << 112 | u128::from(ip)))
                }),
            ],
            port: u16,
            endpoint: Option<u16>,
            options in prop::collection::vec(("[a-z_]{1,9}", "[^&]{0,12}"), 0..4),
        ) -> Uri {
            Uri { scheme, host, port, endpoint, options }
        }
    }

    proptest! {
        #[test]
        fn every_address_is_read_as_it_was_written(uri in uris()) {
            prop_assert_eq!(uri.to_string().parse::<Uri>(), Ok(uri));
        }

        #[test]
        fn any_text_is_an_address_that_can_be_written_or_an_error(
            text in prop_oneof!["[a-z:/?&=\\[\\]. 0-9]{0,40}", ".{0,60}"],
        ) {
            if let Ok(uri) = text.parse::<Uri>() {
                prop_assert_eq!(uri.to_string().parse::<Uri>(), Ok(uri));
            }
        }
    }
}
