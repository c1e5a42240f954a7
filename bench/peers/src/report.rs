//! From windows to figures: medians, ranges, ratios, and the report as JSON.

use std::cmp::Reverse;

use courser_bench::placement::{Placement, Tag};
use courser_bench::stats::Summary;
use serde_json::{Map, Value, json};

use crate::contestants::{self, Contestant, Role};
use crate::rounds::{CASES, Case, Measured, Window};
use crate::work::{Kind, RECEIPT, Sample};

/// Something that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Median latency.
    P50,
    /// 99th percentile.
    P99,
    /// Calls per second.
    Rate,
    /// Payload of requests per second.
    Goodput,
}

impl Metric {
    /// What a case is judged by.
    pub fn of(case: &Case) -> &'static [Metric] {
        match case.kind {
            Kind::Echo => &[Metric::P50, Metric::P99, Metric::Rate],
            Kind::Sink => &[Metric::Goodput],
        }
    }

    fn get(self, sample: &Sample, case: &Case) -> f64 {
        match self {
            Metric::P50 => sample.p50_ns as f64,
            Metric::P99 => sample.p99_ns as f64,
            Metric::Rate => sample.rate_rps,
            Metric::Goodput => sample.rate_rps * case.size as f64 * 8.0,
        }
    }

    /// Key in reports, with its unit.
    pub fn key(self) -> &'static str {
        match self {
            Metric::P50 => "latency_p50_ns",
            Metric::P99 => "latency_p99_ns",
            Metric::Rate => "rate_rps",
            Metric::Goodput => "goodput_bps",
        }
    }

    /// Name and unit for people, and what the figure is divided by for it.
    pub fn shown(self) -> (&'static str, &'static str, f64) {
        match self {
            Metric::P50 => ("p50", "µs", 1e3),
            Metric::P99 => ("p99", "µs", 1e3),
            Metric::Rate => ("rate", "K/s", 1e3),
            Metric::Goodput => ("goodput", "Gbit/s", 1e9),
        }
    }

    /// Whether `ratio`, Courser's figure over another's, says that the other one is ahead.
    pub fn other_is_ahead(self, ratio: f64) -> bool {
        match self {
            Metric::P50 | Metric::P99 => ratio > 1.0,
            Metric::Rate | Metric::Goodput => ratio < 1.0,
        }
    }
}

/// The name of a placement in reports.
pub fn name(placement: Tag) -> &'static str {
    match placement {
        Tag::At(Placement::Near) => "near",
        Tag::At(Placement::Far) => "far",
        Tag::Mixed | Tag::Unprobed => "unprobed",
    }
}

/// The windows of one placement.
pub struct At<'m> {
    /// Which.
    pub placement: Tag,
    windows: Vec<&'m Window>,
}

impl<'m> At<'m> {
    /// One for each placement that was seen, that with the most windows first.
    pub fn all(measured: &'m Measured) -> Vec<Self> {
        let mut all: Vec<At<'m>> = Vec::new();
        for window in &measured.windows {
            match all.iter_mut().find(|at| at.placement == window.placement) {
                Some(at) => at.windows.push(window),
                None => all.push(At { placement: window.placement, windows: vec![window] }),
            }
        }
        all.sort_by_key(|at| (Reverse(at.windows.len()), name(at.placement) != "near"));
        all
    }

    /// Contestants that have windows here, in their usual order.
    pub fn contestants(&self) -> Vec<&'static Contestant> {
        let seen = |c: &&Contestant| self.windows.iter().any(|w| w.contestant == c.name);
        contestants::ALL.iter().filter(seen).collect()
    }

    /// Those of them that are Courser.
    pub fn coursers(&self) -> Vec<&'static Contestant> {
        self.contestants().into_iter().filter(|c| c.role == Role::Courser).collect()
    }

    fn windows_of(&self, case: usize, name: &str) -> impl Iterator<Item = &'m Window> {
        self.windows.iter().copied().filter(move |w| w.case == case && w.contestant == name)
    }

    /// The probes around the windows, ns.
    pub fn probe(&self) -> Option<Summary> {
        Summary::of(self.windows.iter().map(|w| w.probe_ns as f64))
    }

    /// Of one contestant in one case.
    pub fn figure(&self, case: usize, name: &str, metric: Metric) -> Option<Summary> {
        let value = |w: &Window| metric.get(&w.sample, &CASES[case]);
        Summary::of(self.windows_of(case, name).map(value))
    }

    /// The case, of those that are one load with different numbers in flight, in which the
    /// contestant does best.
    pub fn best(&self, name: &str) -> Option<usize> {
        let median = |case: &usize| self.figure(*case, name, Metric::Goodput).map(|f| f.median);
        (0..CASES.len())
            .filter(|&case| CASES[case].kind == Kind::Sink && median(&case).is_some())
            .max_by(|a, b| f64::total_cmp(&median(a).unwrap_or(0.0), &median(b).unwrap_or(0.0)))
    }

    /// `courser`'s figure over `other`'s, round by round. For goodput each in its best case.
    pub fn ratio(
        &self,
        case: usize,
        metric: Metric,
        courser: &str,
        other: &str,
    ) -> Option<Summary> {
        let of = |name| match metric {
            Metric::Goodput => self.best(name),
            _ => Some(case),
        };
        let (own, others) = (of(courser)?, of(other)?);
        let ratios = self.windows_of(own, courser).filter_map(|mine| {
            let same_round = |w: &&Window| w.round == mine.round;
            let theirs = self.windows_of(others, other).find(same_round)?;
            let below = metric.get(&theirs.sample, &CASES[others]);
            (below > 0.0).then(|| metric.get(&mine.sample, &CASES[own]) / below)
        });
        Summary::of(ratios)
    }
}

/// The report's `results`: an object for each placement, contestant and case, and one for each
/// contestant that failed.
pub fn results(measured: &Measured) -> Vec<Value> {
    let mut results = Vec::new();
    for at in At::all(measured) {
        let coursers = at.coursers();
        for contestant in at.contestants() {
            for (index, case) in CASES.iter().enumerate() {
                results.extend(result(&at, contestant, &coursers, index, case));
            }
        }
    }
    for (name, reason) in &measured.failed {
        results.push(json!({ "contestant": name, "failed": reason }));
    }
    results
}

fn result(
    at: &At<'_>,
    contestant: &Contestant,
    coursers: &[&'static Contestant],
    index: usize,
    case: &Case,
) -> Option<Value> {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("contestant", json!(contestant.name));
    put("role", json!(contestant.role));
    put("transport", json!(contestant.transport));
    put("placement", json!(name(at.placement)));
    put("case", json!(case.key));
    put("request_bytes", json!(case.size));
    put("answer_bytes", json!(if case.kind == Kind::Echo { case.size } else { RECEIPT }));
    put("in_flight", json!(case.in_flight));
    let rounds = at.figure(index, contestant.name, Metric::P50)?.count;
    put("rounds", json!(rounds));
    for metric in [Metric::P50, Metric::P99, Metric::Rate, Metric::Goodput] {
        let figure = at.figure(index, contestant.name, metric)?;
        put(metric.key(), json!(figure.median));
        put(&format!("{}_min", metric.key()), json!(figure.min));
        put(&format!("{}_max", metric.key()), json!(figure.max));
    }
    if case.kind == Kind::Sink {
        put("best_in_flight", json!(at.best(contestant.name) == Some(index)));
    }
    if contestant.role != Role::Courser {
        let mut ratios = Map::new();
        for courser in coursers {
            let mut of_one = Map::new();
            for &metric in Metric::of(case) {
                if let Some(ratio) = at.ratio(index, metric, courser.name, contestant.name) {
                    of_one.insert(metric.key().to_owned(), json!(ratio.median));
                    of_one.insert(format!("{}_min", metric.key()), json!(ratio.min));
                    of_one.insert(format!("{}_max", metric.key()), json!(ratio.max));
                }
            }
            ratios.insert(courser.name.to_owned(), Value::Object(of_one));
        }
        put("ratio_of", Value::Object(ratios));
    }
    Some(Value::Object(object))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Windows of three contestants in all cases and two rounds: tarpc ten times as slow as
    /// Courser, but for 1 KiB with one in flight, where it is twice as fast.
    pub(crate) fn measured() -> Measured {
        let mut measured = Measured::default();
        for round in 0..2 {
            for (case, shape) in CASES.iter().enumerate() {
                let grown = 1.0 + round as f64;
                for (contestant, slower) in
                    [("courser-udp", 1.0), ("tarpc", 10.0), ("raw-tcp", 0.5)]
                {
                    let slower = match (contestant, shape.key) {
                        ("tarpc", "echo_1kib_1") => 0.5,
                        // With more in flight the goodput is larger.
                        (_, "sink_1mib_4") => slower / 2.0,
                        _ => slower,
                    };
                    let sample = Sample {
                        calls: 100,
                        p50_ns: (5_000.0 * slower * grown) as u64,
                        p99_ns: (9_000.0 * slower * grown) as u64,
                        rate_rps: 1e5 / slower / grown,
                    };
                    let placement = Tag::At(Placement::Near);
                    let (probe_ns, windows) = (150, &mut measured.windows);
                    windows.push(Window { round, case, contestant, placement, probe_ns, sample });
                }
            }
        }
        measured
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let measured = measured();
        let all = At::all(&measured);
        assert_eq!(all.len(), 1);
        let ratio = all[0].ratio(0, Metric::P50, "courser-udp", "tarpc").expect("both ran");
        assert_eq!((ratio.median, ratio.min, ratio.max), (0.1, 0.1, 0.1));
        assert_eq!(all[0].ratio(0, Metric::P50, "courser-shm", "tarpc"), None);
    }

    #[test]
    fn goodput_is_that_of_the_best_number_in_flight() {
        let measured = measured();
        let at = &At::all(&measured)[0];
        let best = at.best("tarpc").expect("it ran");
        assert_eq!(CASES[best].in_flight, 4);
        let figure = at.figure(best, "tarpc", Metric::Goodput).expect("it ran");
        assert_eq!(figure.max, 1e5 / 5.0 * 8.0 * 1_048_576.0);
    }

    #[test]
    fn who_is_ahead() {
        assert!(Metric::P99.other_is_ahead(1.1) && !Metric::P50.other_is_ahead(0.9));
        assert!(Metric::Rate.other_is_ahead(0.9) && !Metric::Goodput.other_is_ahead(1.1));
    }

    #[test]
    fn keys_are_stable() {
        let mut measured = measured();
        measured.failed.push(("quinn", "why".to_owned()));
        let results = results(&measured);
        assert_eq!(results.len(), 3 * CASES.len() + 1);
        let of = |name: &str, case: &str| {
            results.iter().find(|r| r["contestant"] == name && r["case"] == case).expect("there")
        };
        let keys: Vec<_> = of("tarpc", "sink_1mib_4").as_object().expect("one").keys().collect();
        let mut expected = vec!["contestant", "role", "transport", "placement", "case", "rounds"];
        expected.extend([
            "request_bytes",
            "answer_bytes",
            "in_flight",
            "best_in_flight",
            "ratio_of",
        ]);
        let metrics = ["latency_p50_ns", "latency_p99_ns", "rate_rps", "goodput_bps"];
        let all: Vec<String> = expected
            .iter()
            .map(|key| (*key).to_owned())
            .chain(
                metrics
                    .iter()
                    .flat_map(|m| [(*m).to_owned(), format!("{m}_min"), format!("{m}_max")]),
            )
            .collect();
        assert_eq!(keys.len(), all.len());
        assert!(all.iter().all(|key| keys.contains(&key)), "{keys:?}");
        assert_eq!(of("tarpc", "echo_32b_1")["ratio_of"]["courser-udp"]["rate_rps"], json!(10.0));
    }
}
