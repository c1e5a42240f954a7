//! Units of parameters: how options are written and read.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use courser_kit::units;
use serde_json::{Value, json};

/// The unit of a parameter: how its option is written and read. Values are numbers: ns, bytes, bit/s,
/// parts per million, 1 for a flag that is set, or the index of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    Count,
    Time,
    Bytes,
    Rate,
    Chance,
    Flag,
    Name(&'static [Name]),
    Own(&'static Notation),
}

/// How an option with a notation of its own is written and read.
#[derive(Debug)]
pub(crate) struct Notation {
    pub(crate) value_name: &'static str,
    pub(crate) parse: fn(&str) -> Result<u64, String>,
    pub(crate) show: fn(u64) -> String,
    pub(crate) json: fn(u64) -> Value,
}

/// A value that has a name, and its help.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
}

impl Measure {
    pub(super) fn value_name(self) -> &'static str {
        match self {
            Measure::Count | Measure::Rate => "N",
            Measure::Time => "TIME",
            Measure::Bytes => "SIZE",
            Measure::Chance => "SHARE",
            Measure::Flag | Measure::Name(_) => "NAME",
            Measure::Own(notation) => notation.value_name,
        }
    }

    pub(super) fn parser(self) -> ValueParser {
        let ns =
            |text: &str| units::time(text).map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
        match self {
            Measure::Count | Measure::Flag => clap::value_parser!(u64).into(),
            Measure::Time => ValueParser::new(ns),
            Measure::Bytes => ValueParser::new(units::bytes),
            Measure::Rate => {
                let rates = clap::value_parser!(u64).range(1..=1_600);
                rates.map(|gbps| gbps * GIGABIT).into()
            }
            Measure::Own(notation) => ValueParser::new(notation.parse),
            Measure::Chance => ValueParser::new(|text: &str| units::chance(text).map(u64::from)),
            Measure::Name(names) => {
                let values = names.iter().map(|n| PossibleValue::new(n.name).help(n.help));
                let at = move |text: String| names.iter().position(|n| n.name == text);
                let parser = PossibleValuesParser::new(values);
                parser.map(move |text| at(text).unwrap_or(names.len()) as u64).into()
            }
        }
    }

    /// A value as its option is written.
    pub(super) fn show(self, value: u64) -> String {
        match self {
            Measure::Count | Measure::Flag => value.to_string(),
            Measure::Time => scaled(value, 1_000, &["ns", "us", "ms", "s"]),
            Measure::Bytes => scaled(value, 1_024, &["", "KiB", "MiB", "GiB"]),
            Measure::Rate => (value / GIGABIT).to_string(),
            Measure::Chance => format!("{}%", value as f64 / 1e4),
            Measure::Own(notation) => (notation.show)(value),
            Measure::Name(names) => {
                names.get(value as usize).map_or_else(String::new, |n| n.name.to_owned())
            }
        }
    }

    pub(super) fn json(self, value: u64) -> Value {
        match self {
            Measure::Flag => json!(value != 0),
            Measure::Name(_) => json!(self.show(value)),
            Measure::Own(notation) => (notation.json)(value),
            _ => json!(value),
        }
    }
}

const GIGABIT: u64 = 1_000_000_000;

/// A number in the largest unit that divides it.
fn scaled(mut value: u64, scale: u64, units: &[&str]) -> String {
    let mut at = 0;
    while value > 0 && value.is_multiple_of(scale) && at + 1 < units.len() {
        value /= scale;
        at += 1;
    }
    format!("{value}{}", units[at])
}
