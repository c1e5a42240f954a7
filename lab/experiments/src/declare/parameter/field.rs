//! Types of parameters: numbers, flags, lists of them, and values with names.

use courser::{Control, Recovery};

use super::measure::Name;

/// A type whose values have names.
pub(crate) trait Named: Copy + PartialEq + 'static {
    /// The names, in the order of [`Named::VALUES`].
    const NAMES: &'static [Name];
    const VALUES: &'static [Self];

    /// The name of a value.
    fn named(self) -> &'static str {
        let at = Self::VALUES.iter().position(|value| *value == self);
        at.and_then(|at| Self::NAMES.get(at)).map_or("", |n| n.name)
    }
}

macro_rules! named {
    ($type:ty { $($value:expr => $name:literal, $help:literal;)+ }) => {
        impl $crate::declare::parameter::field::Named for $type {
            const NAMES: &'static [$crate::declare::parameter::measure::Name] =
                &[$($crate::declare::parameter::measure::Name { name: $name, help: $help }),+];
            const VALUES: &'static [Self] = &[$($value),+];
        }
        $crate::declare::parameter::field::field_of_name!($type);
    };
}
pub(crate) use named;

macro_rules! field_of_name {
    ($type:ty) => {
        impl $crate::declare::parameter::field::Field for $type {
            fn read(&self) -> Vec<u64> {
                use $crate::declare::parameter::field::Named;
                let at = Self::VALUES.iter().position(|value| value == self);
                vec![at.unwrap_or(Self::VALUES.len()) as u64]
            }
            fn write(&mut self, values: &[u64]) {
                use $crate::declare::parameter::field::Named;
                if let Some(value) = values.first().and_then(|&at| Self::VALUES.get(at as usize)) {
                    *self = *value;
                }
            }
        }
    };
}
pub(crate) use field_of_name;

named!(Control {
    Control::None => "none", "Credits alone";
    Control::Timely => "timely", "As C++ eRPC ships it, not patched";
    Control::TimelyPatched => "timely-patched", "With the correction of \"ECN or Delay\"";
    Control::Dcqcn => "dcqcn", "A rate from congestion marks";
    Control::Swift => "swift", "A window from the delay";
    Control::TwoWindow => "default", "Courser's own: the receiver's budget and the sender's window";
});

named!(Recovery {
    Recovery::GoBackN => "go-back-n", "Resends all packets from the lost one on, after a timeout";
    Recovery::GoBackNNack => "go-back-n-nack", "The same, at once at the first NACK";
    Recovery::Melo => "melo", "The receiver reports each lost packet";
    Recovery::Selective => "default", "Courser's own: a packet that was overtaken is resent";
    Recovery::GoBackZero => "go-back-0", "On NACKs, but the whole message from its first packet on";
});

/// A type of fields: one number or a list of them.
pub(crate) trait Field {
    const IS_LIST: bool = false;
    fn read(&self) -> Vec<u64>;
    fn write(&mut self, values: &[u64]);
}

macro_rules! numbers {
    ($($type:ty)*) => { $(
        impl Field for $type {
            fn read(&self) -> Vec<u64> {
                vec![*self as u64]
            }
            fn write(&mut self, values: &[u64]) {
                if let Some(&value) = values.first() {
                    *self = <$type>::try_from(value).unwrap_or(<$type>::MAX);
                }
            }
        }
    )* };
}
numbers!(u32 u64 usize);

impl Field for bool {
    fn read(&self) -> Vec<u64> {
        vec![u64::from(*self)]
    }
    fn write(&mut self, values: &[u64]) {
        *self = values.first().is_some_and(|&value| value != 0);
    }
}

impl<T: Field + Default> Field for Option<T> {
    fn read(&self) -> Vec<u64> {
        self.as_ref().map_or_else(Vec::new, T::read)
    }
    fn write(&mut self, values: &[u64]) {
        *self = (!values.is_empty()).then(|| {
            let mut value = T::default();
            value.write(values);
            value
        });
    }
}

impl<T: Field + Clone + Default> Field for Vec<T> {
    const IS_LIST: bool = true;
    fn read(&self) -> Vec<u64> {
        self.iter().flat_map(T::read).collect()
    }
    fn write(&mut self, values: &[u64]) {
        let of = |value: &u64| {
            let mut field = T::default();
            field.write(&[*value]);
            field
        };
        *self = values.iter().map(of).collect();
    }
}
