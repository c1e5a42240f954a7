//! Statistics as OpenMetrics text, which Prometheus and others scrape.

use std::collections::BTreeMap;
use std::fmt::Write;

use courser_buf::stats::{Field, Kind, Sample, Stats};

use crate::counts::MethodStats;

/// Bounds of the buckets of latencies, ns: three for each power of ten.
const BOUNDS_NS: [u64; 22] = {
    let mut bounds = [0; 22];
    let (mut at, mut ten) = (0, 1_000);
    while at + 2 < 22 {
        (bounds[at], bounds[at + 1], bounds[at + 2]) = (ten, 5 * ten / 2, 5 * ten);
        (at, ten) = (at + 3, 10 * ten);
    }
    bounds[21] = ten;
    bounds
};

/// Statistics as text in the OpenMetrics format. Its content type is [`Metrics::CONTENT_TYPE`].
///
/// The names are `courser_GROUP_NAME_UNIT`, as docs/statistics.md lists them, with the unit left out
/// where the name has it, and `_total` behind counters. An element of an array is the label `kind`.
/// Methods have the labels `side`, `service`, `method`, and `outcome` where it applies. Their latencies
/// are histograms in seconds.
///
/// ```
/// use courser::metrics::Metrics;
///
/// let mut metrics = Metrics::new();
/// metrics.add(&[("site", "a \"b\"")], &courser::HandlerStats::default());
/// let text = metrics.text();
/// assert!(text.contains("# TYPE courser_handlers_panics counter\n"));
/// assert!(text.contains("courser_handlers_panics_total{site=\"a \\\"b\\\"\"} 0\n"));
/// assert!(text.ends_with("# EOF\n"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// By name.
    families: BTreeMap<String, Family>,
}

/// The samples of one name, which have to be together.
#[derive(Clone, Debug)]
struct Family {
    kind: &'static str,
    help: String,
    samples: String,
}

/// A label's value, in which the format escapes three characters.
fn escaped(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

fn labels(labels: &[(&str, &str)], out: &mut String) {
    for (at, (name, value)) in labels.iter().enumerate() {
        out.push_str(if at == 0 { "{" } else { "," });
        let _ = write!(out, "{name}=\"");
        escaped(value, out);
        out.push('"');
    }
    if !labels.is_empty() {
        out.push('}');
    }
}

/// The name of a field, with its unit unless it ends in it.
fn name(group: &str, field: &Field) -> String {
    let (name, unit) = (field.name, field.unit);
    let clean = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let has_unit = unit.is_empty() || name.ends_with(unit) || name.contains(&format!("{unit}_"));
    let unit = if has_unit { String::new() } else { format!("_{unit}") };
    format!("courser_{}_{}{}", clean(group), clean(name), clean(&unit))
}

impl Metrics {
    /// The content type of the text, for HTTP.
    pub const CONTENT_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// No statistics.
    pub fn new() -> Self {
        Metrics::default()
    }

    fn sample(
        &mut self,
        name: &str,
        (kind, help): (&'static str, &str),
        suffix: &str,
        of: &[(&str, &str)],
        value: &str,
    ) {
        let family = self.families.entry(name.to_owned()).or_insert_with(|| Family {
            kind,
            help: help.to_owned(),
            samples: String::new(),
        });
        let out = &mut family.samples;
        let _ = write!(out, "{name}{suffix}");
        labels(of, out);
        let _ = writeln!(out, " {value}");
    }

    /// Adds the numbers of a struct, with these labels. Label names are those of the format: letters,
    /// digits and `_`.
    pub fn add(&mut self, of: &[(&str, &str)], stats: &impl Stats) {
        self.add_as(of, stats, "kind");
    }

    /// [`Metrics::add`] with another name of the label for elements of arrays.
    fn add_as<S: Stats>(&mut self, of: &[(&str, &str)], stats: &S, element: &str) {
        stats.visit(&mut |Sample { field, label, value }| {
            let Some(value) = value else { return };
            let (kind, suffix) = match field.kind {
                Kind::Counter => ("counter", "_total"),
                _ => ("gauge", ""),
            };
            let mut of = of.to_vec();
            of.extend(label.map(|label| (element, label.name)));
            let name = name(S::GROUP.name, field);
            self.sample(&name, (kind, field.help), suffix, &of, &value.to_string());
        });
    }

    /// Adds the numbers of methods, and histograms of their latencies. `side` is `server` or `client`.
    /// Methods of one name, as of two versions of a service, or of several clients in one list, are added up,
    /// since no sample may be there twice: call it once for each side.
    pub fn add_methods(&mut self, side: &str, methods: &[MethodStats]) {
        let mut merged: BTreeMap<_, MethodStats> = BTreeMap::new();
        for stats in methods {
            let of = (stats.service, stats.method);
            merged.entry(of).and_modify(|all| all.merge(stats)).or_insert_with(|| stats.clone());
        }
        for stats in merged.values() {
            let of = [("side", side), ("service", stats.service), ("method", stats.method)];
            self.add_as(&of, stats, "outcome");
            self.add_latency(&of, stats);
        }
    }

    fn add_latency(&mut self, of: &[(&str, &str)], stats: &MethodStats) {
        const NAME: &str = "courser_method_latency_seconds";
        const ABOUT: (&str, &str) = ("histogram", "Latencies of calls that have ended.");
        let latency = &stats.latency;
        let mut bucket = |bound: &str, calls: u64| {
            let of = [of, &[("le", bound)]].concat();
            self.sample(NAME, ABOUT, "_bucket", &of, &calls.to_string());
        };
        for bound_ns in BOUNDS_NS {
            bucket(&seconds(bound_ns), latency.count_up_to(bound_ns));
        }
        let count = latency.count();
        bucket("+Inf", count);
        self.sample(NAME, ABOUT, "_count", of, &count.to_string());
        self.sample(NAME, ABOUT, "_sum", of, &seconds(latency.sum_ns()));
    }

    /// The text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, samples }) in &self.families {
            let _ = write!(text, "# TYPE {name} {kind}\n# HELP {name} ");
            escaped(help, &mut text);
            let _ = write!(text, "\n{samples}");
        }
        text + "# EOF\n"
    }
}

/// Nanoseconds as seconds, without an exponent.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_one_name_have_one_sample() {
        let of = |method: &'static str, started: u64| MethodStats {
            service: "Kv",
            method,
            started,
            ..MethodStats::default()
        };
        let mut metrics = Metrics::new();
        metrics.add_methods("client", &[of("get", 3), of("put", 1), of("get", 4)]);
        let text = metrics.text();
        let started: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("courser_method_started_calls_total"))
            .collect();
        let labels =
            |method: &str| format!("{{side=\"client\",service=\"Kv\",method=\"{method}\"}}");
        let name = "courser_method_started_calls_total";
        let expected = [("get", 7), ("put", 1)].map(|(m, n)| format!("{name}{} {n}", labels(m)));
        assert_eq!(started, expected);
    }
}
