//! Settings that are declared once: the macro [`settings!`] makes a struct of settings with their
//! documentation and defaults, checks their ranges, and passes them to the protocol.

use std::time::Duration;

use courser_net::OptionSet;
use courser_proto::{
    Admission, Control, DcqcnConstants, Factors, Integrity, Packing, Recovery, TimelyConstants,
};

/// Times, ns.
pub(super) const US: u128 = 1_000;
pub(super) const MS: u128 = 1_000 * US;
pub(super) const SECOND: u128 = 1_000 * MS;
pub(super) const MINUTE: u128 = 60 * SECOND;
pub(super) const HOUR: u128 = 60 * MINUTE;
pub(super) const DAY: u128 = 24 * HOUR;

pub(super) const MILLION: u128 = 1 << 20;

/// Ranges of several settings.
pub(super) const MS_TO_DAY: Allowed = range(MS, DAY, "from 1 ms to 24 h");
pub(super) const TO_SECOND: Allowed = range(0, SECOND, "from 0 to 1 s");
pub(super) const TO_MILLION: Allowed = range(1, MILLION, "from 1 to 1,048,576");
pub(super) const AT_LEAST_1: Allowed = range(1, u128::MAX, "to at least 1");

/// The range of a setting: of a time in ns, of anything else as a plain number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// The least value.
    pub from: u128,
    /// The largest value.
    pub to: u128,
    /// Only powers of two are allowed.
    pub powers_of_two: bool,
    /// The range in words, after "set it".
    pub text: &'static str,
}

pub(super) const fn range(from: u128, to: u128, text: &'static str) -> Allowed {
    Allowed { from, to, powers_of_two: false, text }
}

impl Allowed {
    /// Returns whether a value is in the range.
    pub fn contains(&self, value: u128) -> bool {
        (self.from..=self.to).contains(&value) && (!self.powers_of_two || value.is_power_of_two())
    }
}

/// The declaration of a setting of `C`.
#[derive(Debug)]
pub struct Setting<C> {
    /// The name of the field, with its path in the settings of a nexus.
    pub name: &'static str,
    /// The name of its type.
    pub type_name: &'static str,
    /// The documentation, in one line.
    pub help: &'static str,
    /// The field of the protocol's settings that has it; empty where the protocol does not need it.
    pub protocol: &'static str,
    /// The range, which may depend on other settings; `None`: any value is allowed.
    pub allowed: Option<fn(&C) -> Allowed>,
    /// It is a time.
    pub is_time: bool,
    /// The default as text; it may depend on the machine.
    pub default: fn() -> String,
    /// The value; `None` where it is not set, or is no number.
    pub get: fn(&C) -> Option<u128>,
    /// Sets it to the nearest value that its type has.
    pub set: fn(&mut C, u128),
}

impl<C> Setting<C> {
    /// The value and its range, if it is out of it.
    pub(super) fn out_of_range(&self, all: &C) -> Option<(u128, Allowed)> {
        let (allowed, value) = (self.allowed?(all), (self.get)(all)?);
        (!allowed.contains(value)).then_some((value, allowed))
    }
}

/// A number of ns as a time, or the longest one.
pub(super) fn time(ns: u128) -> Duration {
    let seconds = u64::try_from(ns / SECOND).unwrap_or(u64::MAX);
    Duration::new(seconds, (ns % SECOND) as u32)
}

/// A type of settings.
pub(super) trait Value {
    const IS_TIME: bool = false;
    fn get(&self) -> Option<u128> {
        None
    }
    fn set(&mut self, _: u128) {}
}

/// A type of settings that the protocol has as `P`.
pub(super) trait Pass<P> {
    fn pass(&self) -> P;
}

macro_rules! numbers {
    ($($ty:ty)*) => { $(
        impl Value for $ty {
            fn get(&self) -> Option<u128> {
                Some(*self as u128)
            }
            fn set(&mut self, value: u128) {
                *self = <$ty>::try_from(value).unwrap_or(<$ty>::MAX);
            }
        }
    )* };
}

macro_rules! choices {
    ($($ty:ty),*) => { $( impl Value for $ty {} )* };
}

macro_rules! pass_as_they_are {
    ($($ty:ty)*) => { $(
        impl Pass<$ty> for $ty {
            fn pass(&self) -> $ty {
                *self
            }
        }
    )* };
}

numbers!(u8 u32 u64 usize);
choices!(bool, Admission, Control, Recovery, Integrity, Packing, OptionSet, Factors);
choices!((Duration, Duration), Option<DcqcnConstants>, Option<TimelyConstants>);
pass_as_they_are!(u8 u32 u64 usize bool Admission Control Recovery Factors);
pass_as_they_are!(Option<DcqcnConstants> Option<TimelyConstants>);

impl Value for Duration {
    const IS_TIME: bool = true;
    fn get(&self) -> Option<u128> {
        Some(self.as_nanos())
    }
    fn set(&mut self, value: u128) {
        *self = time(value);
    }
}

impl Pass<u64> for Duration {
    fn pass(&self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl<T: Value + Default> Value for Option<T> {
    const IS_TIME: bool = T::IS_TIME;
    fn get(&self) -> Option<u128> {
        self.as_ref().and_then(T::get)
    }
    fn set(&mut self, value: u128) {
        self.get_or_insert_default().set(value);
    }
}

/// Makes a struct of settings. Its name is followed by a prefix of the settings' names, and by a name
/// for the default settings of the protocol, which defaults may use. A field is its documentation and
///
/// ```text
/// pub NAME: TYPE = DEFAULT, in RANGE => FIELD OF THE PROTOCOL'S SETTINGS;
/// ```
///
/// The range is an [`Allowed`], or after `given NAME` one that depends on other settings. Range and
/// destination may be left out.
macro_rules! settings {
    (@text = $text:literal) => { $text };
    (@text (hidden)) => { "" };
    (@allowed) => { None };
    (@allowed given $config:ident $allowed:expr) => { Some(|$config| $allowed) };
    (@allowed $allowed:expr) => { Some(|_| $allowed) };
    (
        $(#[$meta:meta])*
        pub struct $struct:ident: $prefix:literal, $protocol:ident {
            $(
                $(#[doc $($doc:tt)+])+
                pub $field:ident: $ty:ty = $default:expr
                    $(, in $allowed:expr)? $(, given $config:ident $given:expr)? $(=> $to:ident)?;
            )*
        }
    ) => {
        $(#[$meta])*
        pub struct $struct {
            $( $(#[doc $($doc)+])+ pub $field: $ty, )*
        }

        impl Default for $struct {
            fn default() -> Self {
                let $protocol = courser_proto::Config::default();
                $struct { $( $field: $default, )* }
            }
        }

        impl $struct {
            /// The declarations.
            #[doc(hidden)]
            pub const SETTINGS: &'static [$crate::config::declare::Setting<Self>] = &[ $(
                $crate::config::declare::Setting {
                    name: concat!($prefix, stringify!($field)),
                    type_name: stringify!($ty),
                    help: concat!($( $crate::config::declare::settings!(@text $($doc)+) ),+)
                        .trim_ascii(),
                    protocol: concat!($(stringify!($to))?),
                    allowed: $crate::config::declare::settings!(
                        @allowed $($allowed)? $(given $config $given)?
                    ),
                    is_time: <$ty as $crate::config::declare::Value>::IS_TIME,
                    default: || format!("{:?}", $struct::default().$field),
                    get: |all| $crate::config::declare::Value::get(&all.$field),
                    set: |all, value| {
                        $crate::config::declare::Value::set(&mut all.$field, value)
                    },
                }
            ),* ];

            /// Passes settings to those of the protocol.
            pub(crate) fn pass(&self, to: &mut courser_proto::Config) {
                $( $( to.$to = $crate::config::declare::Pass::pass(&self.$field); )? )*
            }
        }
    };
}

pub(super) use settings;
