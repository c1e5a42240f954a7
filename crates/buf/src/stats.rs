//! Statistics that are declared once: [`stats!`](macro@crate::stats) makes a struct of plain fields from
//! declarations of name, kind, unit and help, and lets programs iterate over them.
//!
//! ```
//! use courser_buf::stats::{Kind, Stats};
//!
//! courser_buf::stats! {
//!     /// Counters of a door.
//!     #[derive(Clone, Default)]
//!     pub struct DoorStats: "door" {
//!         /// People who came in.
//!         pub entered: u64 = counter(people),
//!         /// Most people inside at a time.
//!         pub inside_peak: u32 = peak(people),
//!     }
//! }
//!
//! let mut door = DoorStats::default();
//! door.entered += 3;
//! let mut lines = Vec::new();
//! door.visit(&mut |s| lines.push(format!("{} {:?} {}", s.field.name, s.value, s.field.unit)));
//! assert_eq!(lines, ["entered Some(3) people", "inside_peak Some(0) people"]);
//! assert_eq!(DoorStats::GROUP.fields[1].kind, Kind::Peak);
//! assert_eq!(DoorStats::GROUP.fields[1].help, "Most people inside at a time.");
//! ```

use std::fmt::Write;

/// The behaviour of a field over time, and so the way in which those of several endpoints combine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A number of events, which only grows. Combined, it is the sum.
    Counter,
    /// An amount at this moment. Combined, it is the sum.
    Gauge,
    /// The largest amount so far. Combined, it is the largest.
    Peak,
    /// Not a number: an address, a role, or statistics of their own. It is not visited.
    State,
}

impl Kind {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Peak => "peak",
            Kind::State => "state",
        }
    }
}

/// The declaration of a field.
#[derive(Debug)]
pub struct Field {
    /// The name in reports, which is that of the field with few exceptions.
    pub name: &'static str,
    /// The behaviour over time.
    pub kind: Kind,
    /// The unit of the value, in the plural; empty for a state.
    pub unit: &'static str,
    /// The documentation of the field, in one line.
    pub help: &'static str,
    /// The names of an array's elements; empty for a single number.
    pub labels: &'static [Label],
}

/// The declaration of an element of an array of counters, made by [`labels!`](crate::labels).
#[derive(Debug)]
pub struct Label {
    /// The name in reports.
    pub name: &'static str,
    /// The documentation, in one line.
    pub help: &'static str,
}

/// The declaration of a struct.
#[derive(Debug)]
pub struct Group {
    /// The name in reports.
    pub name: &'static str,
    /// The name of the type.
    pub type_name: &'static str,
    /// The fields, in the order of their declaration.
    pub fields: &'static [Field],
}

impl Group {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The fields as a Markdown table, followed by one for each array.
    pub fn markdown(&self) -> String {
        let mut text = format!("## {}: `{}`\n\n", self.name, self.type_name);
        text += "| name | kind | unit | |\n| --- | --- | --- | --- |\n";
        for field in self.fields {
            let Field { name, kind, unit, help, .. } = field;
            let _ = writeln!(text, "| `{name}` | {} | {unit} | {} |", kind.name(), plain(help));
        }
        for field in self.fields.iter().filter(|field| !field.labels.is_empty()) {
            let _ = write!(text, "\n| `{}` | |\n| --- | --- |\n", field.name);
            for Label { name, help } in field.labels {
                let _ = writeln!(text, "| `{name}` | {} |", plain(help));
            }
        }
        text
    }
}

/// The text without links to items of Rust and without characters that end a cell.
fn plain(help: &str) -> String {
    let text = help.replace("[`", "`").replace("`]", "`").replace("`crate::", "`");
    text.replace('|', "\\|")
}

/// One number of a struct.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The declaration of its field.
    pub field: &'static Field,
    /// The element, where the field is an array.
    pub label: Option<&'static Label>,
    /// The number; `None` where there is none yet, as a round trip before the first answer.
    pub value: Option<u64>,
}

/// A struct whose fields are declared by [`stats!`](macro@crate::stats).
pub trait Stats {
    /// The declaration.
    const GROUP: &'static Group;

    /// Calls `visitor` with each number, in the order of declaration. Allocates nothing.
    fn visit(&self, visitor: &mut dyn FnMut(Sample));

    /// Adds the numbers of another endpoint, as [`Kind`] states. A state, and a number that may be
    /// missing, stays as it is.
    fn merge(&mut self, other: &Self);
}

/// A type of field that holds numbers.
#[doc(hidden)]
pub trait Measure {
    fn measure(&self, field: &'static Field, visitor: &mut dyn FnMut(Sample));
    fn add(&mut self, other: &Self);
    fn raise(&mut self, other: &Self);
}

macro_rules! integers {
    ($($ty:ty)*) => { $(
        impl Measure for $ty {
            fn measure(&self, field: &'static Field, visitor: &mut dyn FnMut(Sample)) {
                visitor(Sample { field, label: None, value: Some(*self as u64) });
            }
            fn add(&mut self, other: &Self) {
                *self = self.saturating_add(*other);
            }
            fn raise(&mut self, other: &Self) {
                *self = (*self).max(*other);
            }
        }

        impl Measure for Option<$ty> {
            fn measure(&self, field: &'static Field, visitor: &mut dyn FnMut(Sample)) {
                visitor(Sample { field, label: None, value: self.map(|n| n as u64) });
            }
            fn add(&mut self, _: &Self) {}
            fn raise(&mut self, _: &Self) {}
        }
    )* };
}

integers!(u16 u32 u64 usize);

impl<const N: usize> Measure for [u64; N] {
    fn measure(&self, field: &'static Field, visitor: &mut dyn FnMut(Sample)) {
        for (label, value) in field.labels.iter().zip(self) {
            visitor(Sample { field, label: Some(label), value: Some(*value) });
        }
    }
    fn add(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(all, n)| all.add(n));
    }
    fn raise(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(all, n)| all.raise(n));
    }
}

/// Makes a struct of statistics from its declaration, and implements
/// [`Stats`](crate::stats::Stats) for it.
///
/// The struct's name is followed by the group's name in reports. Each field has a documentation, which
/// is its help text, and after its type one of
/// * `counter(UNIT)`, `gauge(UNIT)`, `peak(UNIT)`: a number. An array has the names of its elements
///   too: `counter(UNIT, LABELS)`;
/// * `state`: not a number;
/// * `part`: other statistics. They are merged with the struct, and visited by themselves.
///
/// `as "NAME"` after that changes the name in reports.
#[macro_export]
macro_rules! stats {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    (@kind counter) => { $crate::stats::Kind::Counter };
    (@kind gauge) => { $crate::stats::Kind::Gauge };
    (@kind peak) => { $crate::stats::Kind::Peak };
    (@kind state) => { $crate::stats::Kind::State };
    (@kind part) => { $crate::stats::Kind::State };
    (@labels) => { &[] };
    (@labels $labels:expr) => { &$labels };
    (@visit state $of:expr, $field:expr, $visitor:expr) => { let _ = $field; };
    (@visit part $of:expr, $field:expr, $visitor:expr) => { let _ = $field; };
    (@visit $kind:ident $of:expr, $field:expr, $visitor:expr) => {
        $crate::stats::Measure::measure(&$of, $field, $visitor)
    };
    (@merge state $into:expr, $from:expr) => {};
    (@merge part $into:expr, $from:expr) => { $crate::stats::Stats::merge(&mut $into, &$from) };
    (@merge peak $into:expr, $from:expr) => { $crate::stats::Measure::raise(&mut $into, &$from) };
    (@merge $kind:ident $into:expr, $from:expr) => {
        $crate::stats::Measure::add(&mut $into, &$from)
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $struct:ident: $group:literal {
            $(
                $(#[doc = $help:literal])+
                $fvis:vis $field:ident: $ty:ty =
                    $kind:ident $(($unit:ident $(, $labels:expr)?))? $(as $name:literal)?
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis struct $struct {
            $( $(#[doc = $help])+ $fvis $field: $ty, )*
        }

        impl $crate::stats::Stats for $struct {
            const GROUP: &'static $crate::stats::Group = &$crate::stats::Group {
                name: $group,
                type_name: stringify!($struct),
                fields: &[ $( $crate::stats::Field {
                    name: $crate::stats!(@name $field $($name)?),
                    kind: $crate::stats!(@kind $kind),
                    unit: concat!($(stringify!($unit))?),
                    help: concat!($($help),+).trim_ascii(),
                    labels: $crate::stats!(@labels $($($labels)?)?),
                } ),* ],
            };

            fn visit(&self, visitor: &mut dyn FnMut($crate::stats::Sample)) {
                let mut fields = Self::GROUP.fields.iter();
                $( if let Some(field) = fields.next() {
                    $crate::stats!(@visit $kind self.$field, field, visitor);
                } )*
            }

            fn merge(&mut self, other: &Self) {
                $( $crate::stats!(@merge $kind self.$field, other.$field); )*
            }
        }
    };
}

/// Makes an enum that indexes an array of counters, from the name and the documentation of each
/// element: `ALL` has the elements, `NAMES` their names, and `LABELS` both for
/// [`stats!`](macro@crate::stats).
#[macro_export]
macro_rules! labels {
    (
        $(#[$meta:meta])*
        $vis:vis enum $enum:ident {
            $( $(#[doc = $help:literal])+ $element:ident = $name:literal ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis enum $enum {
            $( $(#[doc = $help])+ $element, )*
        }

        impl $enum {
            /// All of them, in the order of their counters.
            $vis const ALL: [Self; [$($name),*].len()] = [$(Self::$element),*];

            /// The names in reports, in the same order.
            $vis const NAMES: [&'static str; Self::ALL.len()] = [$($name),*];

            /// The names with their documentation, in the same order.
            $vis const LABELS: [$crate::stats::Label; Self::ALL.len()] = [$(
                $crate::stats::Label { name: $name, help: concat!($($help),+).trim_ascii() }
            ),*];

            /// The name in reports.
            $vis const fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    labels! {
        /// Rooms.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum Room {
            /// The one with a [`Vec`].
            Small = "small",
            /// The
            /// other.
            Large = "large",
        }
    }

    stats! {
        /// A house.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        struct House: "house" {
            /// Visits so far.
            visits: u64 = counter(people),
            /// Visits by room.
            by_room: [u64; 2] = counter(people, Room::LABELS),
            /// People inside.
            inside: usize = gauge(people),
            /// Most people inside.
            most: u32 = peak(people),
            /// Age of the roof, once it is known.
            roof: Option<u64> = gauge(years) as "roof_age",
            /// The street.
            street: Option<&'static str> = state,
            /// The cellar.
            cellar: Cellar = part,
        }
    }

    stats! {
        /// A cellar.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        struct Cellar: "cellar" {
            /// Bottles.
            bottles: u16 = gauge(bottles),
        }
    }

    fn house(n: u64) -> House {
        House {
            visits: n,
            by_room: [n, 1],
            inside: n as usize,
            most: n as u32,
            roof: None,
            street: None,
            cellar: Cellar { bottles: n as u16 },
        }
    }

    #[test]
    fn each_number_is_visited_once_with_its_declaration() {
        let mut seen = Vec::new();
        let house = house(5);
        house.visit(&mut |s| seen.push((s.field.name, s.label.map(|l| l.name), s.value)));
        let rooms = [("by_room", Some("small"), Some(5)), ("by_room", Some("large"), Some(1))];
        assert_eq!(seen[0], ("visits", None, Some(5)));
        assert_eq!(seen[1..3], rooms);
        assert_eq!(seen[3..5], [("inside", None, Some(5)), ("most", None, Some(5))]);
        assert_eq!(seen[5..], [("roof_age", None, None)], "neither the state nor the part");
        let field = House::GROUP.field("by_room").expect("it is declared");
        assert_eq!(
            (field.kind, field.unit, field.help),
            (Kind::Counter, "people", "Visits by room.")
        );
    }

    #[test]
    fn merged_counters_add_up_and_peaks_stay_peaks() {
        let mut all = House { street: Some("here"), roof: Some(9), ..house(2) };
        all.merge(&house(3));
        let merged = House {
            visits: 5,
            by_room: [5, 2],
            inside: 5,
            most: 3,
            roof: Some(9),
            street: Some("here"),
            cellar: Cellar { bottles: 5 },
        };
        assert_eq!(all, merged);
        all.visits = u64::MAX;
        all.merge(&house(3));
        assert_eq!(all.visits, u64::MAX, "a sum that has no room is the largest number");
    }

    #[test]
    fn labels_are_in_the_order_of_their_elements() {
        for (at, room) in Room::ALL.into_iter().enumerate() {
            assert_eq!((room as usize, room.name()), (at, Room::LABELS[at].name));
        }
        assert_eq!(Room::LABELS[1].help, "The other.");
    }

    #[test]
    fn a_table_documents_each_field_and_each_element() {
        let text = House::GROUP.markdown();
        assert!(text.starts_with("## house: `House`\n\n| name | kind | unit | |\n"), "{text}");
        assert!(text.contains("\n| `roof_age` | gauge | years | Age of the roof, once"), "{text}");
        assert!(text.contains("\n| `street` | state |  | The street. |\n"), "{text}");
        let elements = "\n| `by_room` | |\n| --- | --- |\n| `small` | The one with a `Vec`. |\n";
        assert!(text.contains(elements), "{text}");
    }
}
