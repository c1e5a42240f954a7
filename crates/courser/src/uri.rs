//! Addresses: `udp://host:port` or `shm://localhost:port`, with `/N` to name one endpoint of a
//! server.

use std::fmt;
use std::str::FromStr;

/// Where a nexus listens or connects to.
///
/// `udp://db1:31850` is the nexus of a server; it chooses one of its endpoints. `udp://db1:31850/2`
/// is its endpoint number 2. IPv6 addresses stand in brackets: `udp://[::1]:31850`.
/// `shm://127.0.0.1:31850` is a nexus of this machine, reached through shared memory; its control
/// port is one of TCP all the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Uri {
    /// The transport: `udp`, `shm`.
    pub scheme: String,
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The control port; endpoint `N` has datapath port `port + N` unless that is taken.
    pub port: u16,
    /// One endpoint of the nexus.
    pub endpoint: Option<u16>,
}

/// Why text is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{text}` is no address: {why}; addresses look like udp://host:port or udp://[::1]:port")]
pub struct UriError {
    text: String,
    why: &'static str,
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let err = |why| UriError { text: text.chars().take(200).collect(), why };
        let (scheme, rest) = match text.split_once("://") {
            Some((s, r)) => (s, r),
            None => ("udp", text),
        };
        let scheme_ok = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric());
        if !scheme_ok {
            return Err(err("the scheme must be letters and digits"));
        }
        let (authority, endpoint) = match rest.split_once('/') {
            Some((a, "")) => (a, None),
            Some((a, n)) => {
                (a, Some(n.parse().map_err(|_| err("the endpoint must be a number, 0 to 65535"))?))
            }
            None => (rest, None),
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, port) = v6.split_once("]:").ok_or_else(|| err("`]:port` is missing"))?;
                host.parse::<std::net::Ipv6Addr>()
                    .map_err(|_| err("what stands in brackets must be an IPv6 address"))?;
                (host, port)
            }
            None => authority.rsplit_once(':').ok_or_else(|| err("the port is missing"))?,
        };
        if host.is_empty() {
            return Err(err("the host is missing"));
        }
        if host.contains(':') && !authority.starts_with('[') {
            return Err(err("an IPv6 address must stand in brackets"));
        }
        if host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(err("the host has a blank in it"));
        }
        let port = port.parse().map_err(|_| err("the port must be a number, 0 to 65535"))?;
        Ok(Uri { scheme: scheme.to_ascii_lowercase(), host: host.to_owned(), port, endpoint })
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "{}://[{}]:{}", self.scheme, self.host, self.port)?;
        } else {
            write!(f, "{}://{}:{}", self.scheme, self.host, self.port)?;
        }
        match self.endpoint {
            Some(n) => write!(f, "/{n}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_addresses_come_back() {
        for text in ["udp://db1:31850", "udp://[::1]:0", "mem://7:1", "udp://10.0.0.1:9/3"] {
            let uri: Uri = text.parse().unwrap();
            assert_eq!(uri.to_string(), text);
        }
        let bare: Uri = "db1:31850".parse().unwrap();
        assert_eq!(bare.to_string(), "udp://db1:31850");
    }

    #[test]
    fn bad_ones_say_why() {
        for (text, why) in [
            ("udp://db1", "port is missing"),
            ("udp://:1", "host is missing"),
            ("udp://db1:70000", "0 to 65535"),
            ("udp://db1:1/x", "endpoint must be"),
            ("udp://::1:5", "in brackets"),
            ("udp://[::1]", "`]:port`"),
            ("udp://[db1]:5", "IPv6 address"),
            ("u d://a:1", "letters and digits"),
            ("udp://a b:1", "blank"),
            ("", "port is missing"),
        ] {
            let e = text.parse::<Uri>().unwrap_err().to_string();
            assert!(e.contains(why), "{text}: {e}");
        }
    }
}
