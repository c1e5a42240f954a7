//! Axes: limits, ticks and the text of values.

use std::ops::Range;

use courser_bench::report::Unit;
use courser_kit::units::{show_ns, show_per_second};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Most ticks of a linear axis.
const TICKS: f64 = 8.0;

/// An axis of numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(super) label: &'static str,
    pub(super) unit: Unit,
    pub(super) log: bool,
}

impl Axis {
    /// An axis from 0 on.
    pub(crate) const fn linear(label: &'static str, unit: Unit) -> Axis {
        Axis { label, unit, log: false }
    }

    pub(crate) const fn log(label: &'static str, unit: Unit) -> Axis {
        Axis { label, unit, log: true }
    }

    /// True if it has a place for a value.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.is_finite() && if self.log { value > 0.0 } else { value >= 0.0 }
    }

    /// The part of the axis that has these values, with a margin on both sides, as a factor.
    pub(super) fn span(&self, values: impl Iterator<Item = f64>, margin: f64) -> Span {
        let (low, high) = values.fold((f64::MAX, 0.0_f64), |(l, h), v| (v.min(l), v.max(h)));
        let (low, high) = if low > high || high == 0.0 { (0.5, 1.0) } else { (low, high) };
        let (low, high) = if self.log {
            // Four times the lower limit, so that there are ticks.
            let wider = (4.0 * low / high).max(1.0).sqrt();
            (low / wider / margin, high * wider * margin)
        } else {
            (0.0, high * margin)
        };
        let ticks = if self.log { log_ticks(low, high) } else { linear_ticks(high) };
        let ticks = ticks.into_iter().map(|v| (v, show(self.unit, v))).collect();
        Span { low, high, log: self.log, ticks }
    }
}

/// The part of an axis that is shown.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Span {
    pub(super) low: f64,
    high: f64,
    log: bool,
    ticks: Vec<(f64, String)>,
}

impl Span {
    /// A row for each name, the first on top.
    pub(super) fn rows(names: &[String]) -> Span {
        let low = names.len().max(1) as f64 - 0.5;
        let ticks = names.iter().enumerate().map(|(at, name)| (at as f64, name.clone())).collect();
        Span { low, high: -0.5, log: false, ticks }
    }
}

impl Ranged for Span {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let place = |v: f64| if self.log { v.ln() } else { v };
        let share = (place(*value) - place(self.low)) / (place(self.high) - place(self.low));
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // No lines between the ticks.
        let is_tick = !hint.weight().allow_light_points();
        self.ticks.iter().filter(|_| is_tick).map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Span {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks.iter().find(|tick| tick.0 == *value).map_or_else(String::new, |t| t.1.clone())
    }
}

/// Multiples of 1, 2 or 5 times a power of ten, from 0 on.
fn linear_ticks(high: f64) -> Vec<f64> {
    let power = 10_f64.powf((high / TICKS).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|s| high / s <= TICKS);
    let step = step.unwrap_or(high);
    (0..).map(|n| f64::from(n) * step).take_while(|v| *v <= high).collect()
}

/// Powers of ten; 2 and 5 times them too if there are few.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let times = if high / low < 2e3 { &[1.0, 2.0, 5.0][..] } else { &[1.0] };
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let ticks = powers.flat_map(|power| times.iter().map(move |n| n * 10_f64.powi(power)));
    ticks.filter(|v| (low..=high).contains(v)).collect()
}

/// A value with its unit, in three digits or its shortest form.
pub(super) fn show(unit: Unit, value: f64) -> String {
    let text = match unit {
        _ if value == 0.0 => "0".to_owned(),
        Unit::Time | Unit::Difference => show_ns(value),
        Unit::PerSecond => show_per_second(value, "/s"),
        Unit::Bits => show_per_second(value, "bit/s"),
        Unit::Bytes => show_per_second(value, "B"),
        Unit::Percent => format!("{} %", digits(value * 100.0)),
        Unit::Plain | Unit::Count => digits(value),
    };
    // `1.50 ms` is `1.5 ms`.
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// At most three digits after the decimal point, and an exponent for small numbers.
fn digits(value: f64) -> String {
    if value.abs() < 0.01 {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    format!("{}", (value * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(span: &Span) -> Vec<&str> {
        span.ticks.iter().map(|tick| tick.1.as_str()).collect()
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_ticks() {
        let span = Axis::linear("", Unit::Time).span([230e3, 980e3].into_iter(), 1.1);
        let expected = ["0", "200 µs", "400 µs", "600 µs", "800 µs", "1 ms"];
        assert_eq!(ticks(&span), expected);
        let share = Axis::linear("", Unit::Percent).span([0.97].into_iter(), 1.05);
        assert_eq!(ticks(&share), ["0", "20 %", "40 %", "60 %", "80 %", "100 %"]);
        let least = Axis::linear("", Unit::Count).span([3.0].into_iter(), 1.0);
        assert_eq!(ticks(&least), ["0", "0.5", "1", "1.5", "2", "2.5", "3"]);
    }

    #[test]
    fn a_logarithmic_axis_has_ticks_even_for_one_value() {
        let axis = Axis::log("", Unit::Count);
        assert_eq!(ticks(&axis.span([20.0, 100.0].into_iter(), 1.1)), ["20", "50", "100"]);
        assert_eq!(ticks(&axis.span([30.0].into_iter(), 1.1)), ["20", "50"]);
        let wide = axis.span([1e-6, 1e-2].into_iter(), 1.1);
        assert_eq!(ticks(&wide), ["1e-6", "1e-5", "1e-4", "1e-3", "0.01"]);
        assert!(axis.shows(1e-9) && !axis.shows(0.0) && !axis.shows(f64::NAN));
    }

    #[test]
    fn an_axis_without_values_has_a_range() {
        for axis in [Axis::linear("", Unit::Plain), Axis::log("", Unit::Plain)] {
            for values in [&[][..], &[0.0]] {
                let span = axis.span(values.iter().copied(), 1.1);
                assert!(span.low < span.high && span.high.is_finite(), "{span:?}");
                assert!(!span.ticks.is_empty(), "{span:?}");
            }
        }
    }

    #[test]
    fn values_map_to_pixels_in_both_directions() {
        let linear = Axis::linear("", Unit::Plain).span([10.0].into_iter(), 1.0);
        assert_eq!((linear.map(&5.0, (0, 100)), linear.map(&5.0, (300, 100))), (50, 200));
        let log = Axis::log("", Unit::Plain).span([1.0, 100.0].into_iter(), 1.0);
        assert_eq!(log.map(&10.0, (0, 100)), 50);
        let rows = Span::rows(&["a".to_owned(), "b".to_owned()]);
        assert_eq!((rows.map(&0.0, (100, 0)), rows.map(&1.0, (100, 0))), (25, 75));
    }

    #[test]
    fn values_are_short() {
        for (unit, value, text) in [
            (Unit::Time, 1.5e6, "1.5 ms"),
            (Unit::Time, 20.0, "20 ns"),
            (Unit::Bits, 23.1e9, "23.1 Gbit/s"),
            (Unit::Bytes, 480e3, "480 kB"),
            (Unit::Percent, 0.123_456, "12.346 %"),
            (Unit::Plain, 0.1 + 0.2, "0.3"),
            (Unit::Plain, 0.001_23, "1.2e-3"),
        ] {
            assert_eq!(show(unit, value), text);
        }
    }
}
