//! Sizes and times on the command line.

use std::time::Duration;

/// Largest message of the commands: the default limit of a server.
pub const MAX_MESSAGE: u64 = 8 << 20;

/// Longest interval or timeout; a longer one is probably a typing error.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// Parses `4096`, `32B`, `64KiB`, `64k`, `8MiB`. All units are powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err("write a size as 32, 64KiB or 8MiB".to_owned()),
    };
    if digits.is_empty() {
        return Err("write a size as 32, 64KiB or 8MiB".to_owned());
    }
    let count: Option<u64> = digits.parse().ok();
    count
        .and_then(|count| count.checked_mul(1 << scale))
        .ok_or_else(|| "the size is above 64 bits; write a smaller one".to_owned())
}

/// [`bytes`] that fit into a message.
pub fn message_size(text: &str) -> Result<usize, String> {
    message_len(bytes(text)?)
}

/// A size that fits into a message.
pub fn message_len(size: u64) -> Result<usize, String> {
    if size > MAX_MESSAGE {
        return Err(format!(
            "a message has at most {}; choose a smaller size",
            show_bytes(MAX_MESSAGE)
        ));
    }
    Ok(size as usize)
}

/// Parses `100ms`, `2s`, `1m 30s`; at most an hour.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "write a time with its unit: 500us, 100ms, 2s".to_owned())?;
    if time > MAX_TIME {
        return Err("at most 1h".to_owned());
    }
    Ok(time)
}

/// A [`time`] that is not zero.
pub fn nonzero_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("it must be more than zero".to_owned()),
        time => Ok(time),
    }
}

/// Parses a probability, `1e-3`, `0.001` or `0.1%`, as parts per million.
pub fn chance(text: &str) -> Result<u32, String> {
    let (digits, scale) = match text.trim().strip_suffix('%') {
        Some(digits) => (digits, 1e4),
        None => (text.trim(), 1e6),
    };
    let wrong = || "write a probability from 0 to 1, in millionths: 1e-3, 0.001 or 0.1%".to_owned();
    let ppm = digits.trim_end().parse::<f64>().map_err(|_| wrong())? * scale;
    let whole = ppm.round();
    // The product has a rounding error.
    let is_whole = (ppm - whole).abs() <= 1e-6 * whole.max(1.0);
    if is_whole && (0.0..=1e6).contains(&whole) { Ok(whole as u32) } else { Err(wrong()) }
}

/// Parses calls per second.
pub fn load(text: &str) -> Result<f64, String> {
    let load: Option<f64> = text.parse().ok();
    load.filter(|load| (1.0..=1e6).contains(load))
        .ok_or_else(|| "write calls per second, 1 to 1000000".to_owned())
}

/// Parses a count, or `all`.
pub fn count_or_all(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(usize::MAX),
        text => text.parse().map_err(|_| "write a number, or all".to_owned()),
    }
}

/// Parses the slots of a session.
pub fn slots(text: &str) -> Result<u8, String> {
    let slots: Option<u8> = text.parse().ok();
    slots
        .filter(|n| n.is_power_of_two() && *n <= 32)
        .ok_or_else(|| "write 1, 2, 4, 8, 16 or 32".to_owned())
}

/// Formats bytes exactly, in the largest unit that divides them: `32 B`, `64 KiB`, `8 MiB`.
pub fn show_bytes(bytes: u64) -> String {
    for (scale, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes.trailing_zeros() >= scale {
            return format!("{} {unit}", bytes >> scale);
        }
    }
    format!("{bytes} B")
}

/// Formats nanoseconds with three significant digits.
pub fn show_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns >= 1e9 => (ns / 1e9, "s"),
        ns if ns >= 1e6 => (ns / 1e6, "ms"),
        ns if ns >= 1e3 => (ns / 1e3, "µs"),
        ns => return format!("{ns:.0} ns"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Formats a count or bits per second: `1.53 M/s`, `27.4 Gbit/s`.
pub fn show_per_second(value: f64, unit: &str) -> String {
    let (value, prefix) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    format!("{} {prefix}{unit}", three_digits(value))
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, size) in [
            ("0", 0),
            ("32", 32),
            ("32B", 32),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("64k", 65_536),
            ("8MiB", 8 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5k", "8 MiBs", "0x10", "18446744073709551615k"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn slots_are_powers_of_two() {
        assert_eq!(["1", "16", "32"].map(slots), [Ok(1), Ok(16), Ok(32)]);
        for text in ["0", "3", "64", "-8", "256", "many"] {
            assert!(slots(text).is_err(), "{text}");
        }
    }

    #[test]
    fn probabilities_are_parsed_in_every_notation() {
        for (text, ppm) in [
            ("0", 0),
            ("1e-6", 1),
            ("1e-5", 10),
            ("0.001", 1_000),
            ("0.1%", 1_000),
            ("5 %", 50_000),
            ("5e-2", 50_000),
            ("0.3", 300_000),
            ("100%", 1_000_000),
        ] {
            assert_eq!(chance(text), Ok(ppm), "{text}");
        }
        for text in ["", "%", "1e-7", "1.5e-6", "1.1", "-0.1", "nan", "inf", "101%"] {
            assert!(chance(text).is_err(), "{text}");
        }
    }

    #[test]
    fn message_sizes_have_a_limit_that_the_error_names() {
        assert_eq!(message_size("8MiB"), Ok(8 << 20));
        assert!(message_size("8388609").is_err_and(|e| e.contains("at most 8 MiB")));
    }

    #[test]
    fn times_need_a_unit_and_have_a_limit() {
        assert_eq!(time("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(time("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(time("100").is_err_and(|e| e.contains("unit")));
        assert!(time("2h").is_err_and(|e| e.contains("1h")));
        assert!(nonzero_time("0s").is_err());
    }

    #[test]
    fn counts_are_numbers_or_all() {
        assert_eq!(count_or_all("12"), Ok(12));
        assert_eq!(count_or_all("all"), Ok(usize::MAX));
        assert!(count_or_all("-1").is_err_and(|e| e.contains("all")));
    }

    #[test]
    fn values_are_shown_with_three_digits() {
        assert_eq!(show_bytes(8 << 20), "8 MiB");
        assert_eq!(show_bytes(1500), "1500 B");
        assert_eq!(show_bytes(0), "0 B");
        assert_eq!(show_ns(181.4), "181 ns");
        assert_eq!(show_ns(5_350.0), "5.35 µs");
        assert_eq!(show_ns(35_000.0), "35.0 µs");
        assert_eq!(show_ns(2.5e8), "250 ms");
        assert_eq!(show_per_second(1.534e6, "/s"), "1.53 M/s");
        assert_eq!(show_per_second(38e9, "bit/s"), "38.0 Gbit/s");
        assert_eq!(show_per_second(12.0, "/s"), "12.0 /s");
    }
}
