//! The table: for each change and codec the outcome of an old client at a new server, and of a new client
//! at an old server.

use self::Expected::{Absent, Decode, NotNoticed, Shape, Unknown, Value};
use super::Got;

/// Codecs, in the order of the columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    Named,
    Postcard,
    Prost,
    Rkyv,
}

impl Codec {
    pub const ALL: [Codec; 4] = [Codec::Named, Codec::Postcard, Codec::Prost, Codec::Rkyv];
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// This value, as text.
    Value(&'static str),
    Unknown,
    Shape,
    Decode,
    /// The documentation of the codec says that such a change is not noticed.
    NotNoticed,
    /// The client does not have the method.
    Absent,
}

impl Expected {
    pub fn is(self, got: Option<&Got>) -> bool {
        match self {
            Value(text) => matches!(got, Some(Got::Value(value)) if value == text),
            Unknown => got == Some(&Got::Unknown),
            Shape => got == Some(&Got::Shape),
            Decode => got == Some(&Got::Decode),
            NotNoticed => matches!(got, Some(Got::Value(_) | Got::Decode)),
            Absent => got.is_none(),
        }
    }

    /// Returns what both are, if one of them is not there or they are alike.
    fn and(self, other: Expected) -> Expected {
        match (self, other) {
            (Absent, other) => other,
            (Value(_), Value(_)) => self,
            (one, Absent) => one,
            (one, other) if one == other => one,
            (one, other) => panic!("{one:?} and {other:?} are two rows"),
        }
    }
}

/// An old client at a new server, and a new client at an old one.
type Outcomes = [Expected; 2];

/// A method, and its outcomes with each codec, where it is tested with this one.
type Method = (&'static str, [Option<Outcomes>; 4]);

pub struct Row {
    /// The change, as in the guide.
    pub change: &'static str,
    methods: Vec<Method>,
}

impl Row {
    /// The methods that are tested with a codec.
    pub fn of(&self, codec: Codec) -> impl Iterator<Item = (&'static str, Outcomes)> {
        let outcomes = move |(name, all): &Method| all[codec as usize].map(|both| (*name, both));
        self.methods.iter().filter_map(outcomes)
    }

    /// The beginning of the guide's text.
    pub fn text(&self, codec: Codec) -> &'static str {
        let all = self.of(codec).map(|(_, outcomes)| outcomes);
        match all.reduce(|a, b| [a[0].and(b[0]), a[1].and(b[1])]) {
            None => "-",
            Some([NotNoticed, _] | [_, NotNoticed]) => "**not noticed**",
            Some([Decode, _] | [_, Decode]) => "an error of decoding",
            Some([Unknown, Unknown]) => "`UnknownMethod`",
            Some([Unknown, _]) => "`UnknownMethod` for old clients",
            Some([_, Unknown]) => "`UnknownMethod` at old servers",
            Some([Shape, Shape]) => "refused",
            Some([Shape, _]) => "old clients are refused",
            Some([_, Shape]) => "new clients are refused",
            Some(_) => "works",
        }
    }
}

const REFUSED: Option<Outcomes> = Some([Shape, Shape]);
const ADDED: Option<Outcomes> = Some([Absent, Unknown]);
const REMOVED: Option<Outcomes> = Some([Unknown, Absent]);
const UNNOTICED: Option<Outcomes> = Some([NotNoticed, NotNoticed]);

fn works(old: &'static str, new: &'static str) -> Option<Outcomes> {
    Some([Value(old), Value(new)])
}

/// Old clients work, at new servers.
fn old(value: &'static str) -> Option<Outcomes> {
    Some([Value(value), Shape])
}

/// New clients work, at old servers.
fn new(value: &'static str) -> Option<Outcomes> {
    Some([Shape, Value(value)])
}

fn row(change: &'static str, methods: &[Method]) -> Row {
    Row { change, methods: methods.to_vec() }
}

/// The rows, in the order of the guide.
pub fn rows() -> Vec<Row> {
    vec![
        row("a method is added", &[("added", [ADDED; 4])]),
        row("a method is removed", &[("removed", [REMOVED; 4])]),
        row("a method is renamed", &[("old_name", [REMOVED; 4]), ("new_name", [ADDED; 4])]),
        row(
            "`#[idempotent]` or `#[deadline]` is added or removed",
            &[("attributes", [works("8", "8"); 4])],
        ),
        row(
            "a type is renamed",
            &[("renamed_type", {
                let works = works("Row { a: 1 }", "Line { a: 1 }");
                [works, works, works, REFUSED]
            })],
        ),
        row("a parameter is renamed", &[("renamed_parameter", [works("4", "4"); 4])]),
        row("parameters change places", &[("swapped", [REFUSED; 4])]),
        row("a second parameter is added", &[("parameter", [REFUSED; 4])]),
        row("a result gets another type", &[("result", [REFUSED, REFUSED, REFUSED, None])]),
        row("an application error is added to a method without one", &[("error", [REFUSED; 4])]),
        row(
            "a method becomes a stream, or one-way",
            &[("streamed", [REFUSED; 4]), ("one_way", [REFUSED, REFUSED, REFUSED, None])],
        ),
        row(
            "fields are moved",
            &[
                ("moved", {
                    let works = works("Moved { a: 1, b: 2 }", "Moved { b: 2, a: 1 }");
                    [works, REFUSED, works, UNNOTICED]
                }),
                ("moved_in", [works("12", "12"), REFUSED, works("12", "12"), UNNOTICED]),
            ],
        ),
        row(
            "a field with a default is added (`#[serde(default)]`, `Option`)",
            &[
                ("defaulted", {
                    let works = works("Defaulted { a: 1 }", "Defaulted { a: 1, b: None }");
                    [works, REFUSED, works, None]
                }),
                ("defaulted_in", [works("15", "10"), REFUSED, works("15", "10"), None]),
            ],
        ),
        row(
            "the same in items of streams and one-way messages",
            &[
                ("defaulted_down", {
                    let works = works("Defaulted { a: 1 }", "Defaulted { a: 1, b: None }");
                    [works, REFUSED, works, None]
                }),
                ("defaulted_up", [works("15", "10"), REFUSED, works("15", "10"), None]),
                ("defaulted_both", {
                    let works = works("Defaulted { a: 1 }", "Defaulted { a: 1, b: None }");
                    [works, REFUSED, works, None]
                }),
                ("defaulted_told", [works("15", "10"), REFUSED, works("15", "10"), None]),
            ],
        ),
        row(
            "a field without a default is added to a result, an error or a server's item",
            &[
                ("required", {
                    let works = works("Required { a: 1 }", "Required { b: 0, a: 1 }");
                    [old("Required { a: 1 }"), REFUSED, works, REFUSED]
                }),
                ("required_error", {
                    let works = works("Err(Required { a: 1 })", "Err(Required { b: 0, a: 1 })");
                    [old("Err(Required { a: 1 })"), REFUSED, works, None]
                }),
                ("required_down", {
                    let works = works("Required { a: 1 }", "Required { b: 0, a: 1 }");
                    [old("Required { a: 1 }"), REFUSED, works, None]
                }),
            ],
        ),
        row(
            "a field without a default is added to a parameter, a message or a client's item",
            &[
                ("required_in", [new("10"), REFUSED, works("10", "10"), REFUSED]),
                ("required_up", [new("10"), REFUSED, works("10", "10"), None]),
                ("required_told", [new("10"), REFUSED, works("10", "10"), None]),
            ],
        ),
        row(
            "a field without a default is added to items that go both ways",
            &[("required_both", {
                let works = works("Required { a: 1 }", "Required { b: 0, a: 1 }");
                [REFUSED, REFUSED, works, None]
            })],
        ),
        row(
            "a field without a default is removed from a result",
            &[("shortened", {
                let works = works("Shortened { a: 1, b: 0 }", "Shortened { a: 1 }");
                [new("Shortened { a: 1 }"), REFUSED, works, None]
            })],
        ),
        row(
            "a field without a default is removed from a parameter",
            &[("shortened_in", [old("10"), REFUSED, works("10", "10"), None])],
        ),
        row(
            "a field without a default is renamed",
            &[
                ("renamed", {
                    let works = works("Renamed { a: 1, b: 3 }", "Renamed { a: 1, c: 2 }");
                    [REFUSED, REFUSED, works, None]
                }),
                ("renamed_in", [REFUSED, REFUSED, works("12", "13"), None]),
            ],
        ),
        row(
            "the type of a field is changed (`u32` to `i32`)",
            &[
                ("retyped", [REFUSED, REFUSED, UNNOTICED, None]),
                ("retyped_in", [REFUSED, REFUSED, UNNOTICED, None]),
                ("retyped_down", [REFUSED, REFUSED, UNNOTICED, None]),
                ("retyped_up", [REFUSED, REFUSED, UNNOTICED, None]),
                ("retyped_both", [REFUSED, REFUSED, UNNOTICED, None]),
                ("retyped_told", [REFUSED, REFUSED, UNNOTICED, None]),
            ],
        ),
        row(
            "an integer of a result becomes wider (`u32` to `u64`)",
            &[("wider", {
                let prost = Some([NotNoticed, Value("Wider { a: 1 }")]);
                [new("Wider { a: 1 }"), REFUSED, prost, REFUSED]
            })],
        ),
        row(
            "an integer of a parameter becomes wider",
            &[("wider_in", [old("10"), REFUSED, Some([Value("10"), NotNoticed]), None])],
        ),
        row(
            "a variant is added to or removed from an enum, or an error; values that both have",
            &[
                ("variant", [works("B(2)", "B(2)"), REFUSED, None, None]),
                ("variant_kept", [works("B(2)", "B(2)"), REFUSED, None, None]),
                ("variant_in", [works("1", "1"), REFUSED, None, None]),
                ("error_variant", [works("Err(B(2))", "Err(B(2))"), REFUSED, None, None]),
            ],
        ),
        row(
            "a value whose variant the client does not have, as a result or an error",
            &[
                ("variant_added", [Some([Decode, Value("A")]), REFUSED, None, None]),
                ("error_variant_added", [Some([Decode, Value("Err(A)")]), REFUSED, None, None]),
            ],
        ),
        row(
            "the same where the variant was removed from the client",
            &[("variant_removed", [Some([Value("A"), Decode]), REFUSED, None, None])],
        ),
        row(
            "a value whose variant the server does not have, as a parameter",
            &[("variant_added_in", [Some([Value("0"), Decode]), REFUSED, None, None])],
        ),
    ]
}
