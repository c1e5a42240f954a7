//! Addresses that a node names to others.

use courser::Uri;

use crate::command::MAX_URI;

/// Why others cannot connect to an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// It is no address.
    #[error("{0}")]
    Malformed(String),
    /// It stands for all addresses of a machine.
    #[error("{0} stands for all addresses of a machine, and others cannot connect to it; {FIX}")]
    Wildcard(String),
    /// It has port 0.
    #[error("{0} has port 0, and others cannot connect to it; write the port of the node")]
    NoPort(String),
    /// It is too long.
    #[error("an address has at most {MAX_URI} bytes; use a shorter one")]
    TooLong,
}

/// Advice for a wildcard.
const FIX: &str =
    "name one of them, as udp://10.0.0.1:31850 (for a node's own address: --advertise)";

fn is_wildcard(uri: &Uri) -> bool {
    uri.ip().is_some_and(|ip| ip.to_canonical().is_unspecified())
}

/// Checks that others can connect to an address, as far as its text shows that.
///
/// # Errors
/// See [`AddressError`].
pub fn check(text: &str) -> Result<(), AddressError> {
    if text.len() > MAX_URI {
        return Err(AddressError::TooLong);
    }
    let parsed: Result<Uri, _> = text.parse();
    let uri = parsed.map_err(|error| AddressError::Malformed(error.to_string()))?;
    if is_wildcard(&uri) {
        return Err(AddressError::Wildcard(text.to_owned()));
    }
    if uri.port == 0 {
        return Err(AddressError::NoPort(text.to_owned()));
    }
    Ok(())
}

/// The address of a node for others: the advertised one, or else the one that it is bound to, unless that
/// is a wildcard.
///
/// # Errors
/// Others could not connect to it.
pub fn for_others(
    listen: &str,
    bound: &str,
    advertised: Option<&str>,
) -> Result<String, AddressError> {
    // A wildcard is bound to the loopback for programs of the same machine, so the text counts.
    if advertised.is_none() && listen.parse::<Uri>().is_ok_and(|uri| is_wildcard(&uri)) {
        return Err(AddressError::Wildcard(listen.to_owned()));
    }
    let uri = advertised.unwrap_or(bound);
    check(uri)?;
    Ok(uri.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_and_port_0_are_no_addresses_for_others() {
        for good in ["udp://10.0.0.1:31850", "udp://[::1]:1", "db1:7", "shm://127.0.0.1:9"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for wild in ["udp://0.0.0.0:1", "udp://[::]:1", "0.0.0.0:1", "udp://[::ffff:0.0.0.0]:1"] {
            assert!(matches!(check(wild), Err(AddressError::Wildcard(_))), "{wild}");
        }
        assert!(matches!(check("udp://10.0.0.1:0"), Err(AddressError::NoPort(_))));
        assert!(matches!(check("nothing"), Err(AddressError::Malformed(_))));
        assert_eq!(check(&format!("udp://{}:1", "a".repeat(MAX_URI))), Err(AddressError::TooLong));
    }

    #[test]
    fn a_node_on_all_addresses_has_to_advertise_one() {
        let bound = "udp://127.0.0.1:31850";
        let wild = "udp://0.0.0.0:31850";
        assert!(matches!(for_others(wild, bound, None), Err(AddressError::Wildcard(_))));
        let advertised = Some("udp://10.0.0.1:31850");
        assert_eq!(for_others(wild, bound, advertised).as_deref(), Ok("udp://10.0.0.1:31850"));
        assert!(for_others(wild, bound, Some(wild)).is_err());
        assert_eq!(for_others("udp://localhost:31850", bound, None).as_deref(), Ok(bound));
    }
}
