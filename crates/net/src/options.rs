//! Options of transports: typed in code, by name in an address.
//!
//! `udp://[::]:0?gso=off` and `UdpOptions { gso: Some(Offload::Off), .. }` mean the same. An option
//! of the address replaces one that is given in code; that one replaces [`CommonOptions`]; what is
//! set nowhere has the transport's default.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::OpenError;

/// The options of one kind of transport.
///
/// ```
/// use courser_net::options::{NamedOption, TransportOptions, set};
///
/// #[derive(Clone, Debug, Default)]
/// struct PigeonOptions {
///     /// Pigeons in flight.
///     pigeons: Option<u32>,
/// }
///
/// impl TransportOptions for PigeonOptions {
///     const SCHEME: &'static str = "pigeon";
///     const NAMED: &'static [NamedOption<Self>] =
///         &[("pigeons", |options, text| set(&mut options.pigeons, text))];
/// }
/// ```
pub trait TransportOptions: Clone + fmt::Debug + Default + Send + Sync + 'static {
    /// The scheme of the transport's addresses: lower-case ASCII letters and digits.
    const SCHEME: &'static str;

    /// The options that an address can set. Their names are part of the error for any other name.
    const NAMED: &'static [NamedOption<Self>];

    /// Checks that the transport can be bound to, or reach, an IP address at all; opens nothing.
    ///
    /// # Errors
    /// It cannot, and why.
    fn check_host(host: IpAddr) -> Result<(), OpenError> {
        let _ = host;
        Ok(())
    }

    /// The sockets that the control connections of a nexus on this transport use: TCP by default.
    fn control(&self) -> ControlSockets {
        ControlSockets::Tcp
    }
}

/// The sockets of a nexus's control connections. Both sides of a transport must use the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlSockets {
    /// TCP: any host that reaches the address can connect.
    Tcp,
    /// Unix sockets in this directory, named by the address. Both processes must belong to the user
    /// of the directory, which must be closed to all others (mode 0700; created when absent). See
    /// [`ControlListener`](crate::shm::ControlListener).
    Unix(PathBuf),
}

/// An option's name in an address, and the function that sets it from its text.
pub type NamedOption<O> = (&'static str, fn(&mut O, &str) -> Result<(), Expected>);

/// The values that an option takes, as in "a number"; the error for any other value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected(pub &'static str);

/// A value that an address can contain.
pub trait OptionValue: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// The text is no such value.
    fn read(text: &str) -> Result<Self, Expected>;
}

/// Sets an option from text.
///
/// # Errors
/// The text is no such value.
pub fn set<T: OptionValue>(field: &mut Option<T>, text: &str) -> Result<(), Expected> {
    *field = Some(T::read(text)?);
    Ok(())
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl OptionValue for $type {
            fn read(text: &str) -> Result<Self, Expected> {
                text.parse().map_err(|_| Expected("a number"))
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, u128, usize);

impl OptionValue for bool {
    fn read(text: &str) -> Result<Self, Expected> {
        match text {
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err(Expected("0 or 1")),
        }
    }
}

impl OptionValue for String {
    fn read(text: &str) -> Result<Self, Expected> {
        Ok(text.to_owned())
    }
}

impl OptionValue for PathBuf {
    fn read(text: &str) -> Result<Self, Expected> {
        if text.is_empty() { Err(Expected("a path")) } else { Ok(text.into()) }
    }
}

/// Settings that every transport can use and that no address names. A transport for which one has
/// no meaning ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommonOptions {
    /// Largest frame in bytes.
    pub max_frame: Option<usize>,
    /// Bytes that wait in the receive queue, and in the send queue, before the transport drops.
    pub queue_bytes: Option<usize>,
}

/// Options of any number of transports, at most one value for each. The transport that is opened
/// takes its own.
#[derive(Clone, Default)]
pub struct OptionSet(Vec<(&'static str, Arc<dyn Stored>)>);

/// Options of a transport whose type is known to its own crate.
trait Stored: Any + fmt::Debug + Send + Sync {}

impl<O: TransportOptions> Stored for O {}

impl OptionSet {
    /// No options: every transport has its defaults.
    pub fn new() -> Self {
        OptionSet::default()
    }

    /// Adds the options of a transport, in place of those that were there for it.
    #[must_use]
    pub fn with<O: TransportOptions>(mut self, options: O) -> Self {
        self.0.retain(|(scheme, _)| *scheme != O::SCHEME);
        self.0.push((O::SCHEME, Arc::new(options)));
        self
    }

    /// The options of a transport; its defaults when there are none.
    pub fn get<O: TransportOptions>(&self) -> O {
        let stored = self.0.iter().find(|(scheme, _)| *scheme == O::SCHEME);
        let options = stored.and_then(|(_, options)| {
            let options: &dyn Any = &**options;
            options.downcast_ref::<O>()
        });
        options.cloned().unwrap_or_default()
    }
}

impl fmt::Debug for OptionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(scheme, options)| (scheme, options))).finish()
    }
}

/// Applies the options of an address.
///
/// # Errors
/// [`OpenError::UnknownOption`], [`OpenError::BadOption`].
pub(crate) fn apply<O: TransportOptions>(
    options: &mut O,
    named: &[(String, String)],
) -> Result<(), OpenError> {
    for (name, value) in named {
        let Some((_, set)) = O::NAMED.iter().find(|(known, _)| known == name) else {
            let known: Vec<_> = O::NAMED.iter().map(|(known, _)| *known).collect();
            return Err(OpenError::UnknownOption {
                scheme: O::SCHEME,
                name: name.clone(),
                known: known.join(", "),
            });
        };
        set(options, value).map_err(|Expected(expected)| OpenError::BadOption {
            name: name.clone(),
            value: value.clone(),
            expected,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemOptions, Offload, UdpOptions};

    #[test]
    fn a_transport_takes_its_own_options_of_a_set() {
        let udp = UdpOptions { gso: Some(Offload::Off), ..UdpOptions::default() };
        let set = OptionSet::new().with(UdpOptions::default()).with(udp.clone());
        assert_eq!(set.get::<UdpOptions>(), udp);
        assert_eq!(set.get::<MemOptions>(), MemOptions::default());
        assert!(format!("{set:?}").contains("udp"), "{set:?}");
    }

    #[test]
    fn an_unknown_option_lists_those_of_its_transport() {
        let named = [("rcvbuf".to_owned(), "7".to_owned())];
        assert!(apply(&mut UdpOptions::default(), &named).is_ok());
        let error = apply(&mut MemOptions::default(), &named).unwrap_err().to_string();
        assert_eq!(error, "mem:// has no option \"rcvbuf\"; use one of max_frame, depth, host");
    }

    #[test]
    fn a_bad_value_says_what_is_expected() {
        let error = |name: &str, value: &str| {
            let named = [(name.to_owned(), value.to_owned())];
            apply(&mut UdpOptions::default(), &named).unwrap_err().to_string()
        };
        assert_eq!(error("gso", "on"), "option gso=\"on\" has a wrong value; write auto or off");
        assert_eq!(error("rcvbuf", "-1"), "option rcvbuf=\"-1\" has a wrong value; write a number");
    }
}
