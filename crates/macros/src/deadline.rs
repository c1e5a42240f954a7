//! The default deadline of a method.

use syn::{Attribute, LitStr};

/// Longest deadline, ns: an hour.
const MOST_NS: u64 = 3_600_000_000_000;

/// Reads `#[deadline("50 ms")]`, as nanoseconds.
pub(crate) fn read(attribute: &Attribute) -> syn::Result<u64> {
    let text: LitStr = attribute.parse_args()?;
    parse(&text.value()).ok_or_else(|| {
        let why = "a deadline is a whole number and a unit (`us`, `ms`, `s`), from \"1 us\" to \"3600 s\"";
        syn::Error::new(text.span(), why)
    })
}

fn parse(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let unit_ns = match unit.trim_start() {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let ns = number.parse::<u64>().ok()?.checked_mul(unit_ns)?;
    (1..=MOST_NS).contains(&ns).then_some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_has_a_number_and_a_unit() {
        let known =
            [("50 ms", 50_000_000), ("1us", 1_000), ("3600 s", MOST_NS), ("02  s", 2_000_000_000)];
        for (text, ns) in known {
            assert_eq!(parse(text), Some(ns), "{text}");
        }
        for text in [
            "",
            "50",
            "ms",
            "-1 s",
            "1.5 s",
            "0 ms",
            "3601 s",
            "1 h",
            "1 s ",
            "99999999999999999999 s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
