//! From windows to figures: medians, ranges, ratios, and the report as JSON.

use std::cmp::Reverse;

use courser_bench::placement::{Placement, Tag};
use courser_bench::report::{self, Metric, insert};
use courser_bench::stats::Summary;
use courser_bench::window::{Compared, Outcome, Pair, Seen};
use serde_json::{Map, Value, json};

use crate::contestants::{Contestant, Role};
use crate::rounds::{Case, Measured};
use crate::work::{Kind, RECEIPT, VALUE};

/// What a case is judged by.
pub fn metrics(case: &Case) -> &'static [Metric] {
    match case.kind {
        Kind::Echo => &[Metric::Latency, Metric::LatencyP99, Metric::Rate],
        Kind::Get => &[Metric::Latency, Metric::LatencyP99, Metric::Rate, Metric::CpuTime],
        Kind::Sink => &[Metric::Goodput],
    }
}

/// Name and unit for people, and what the figure is divided by for it.
pub fn shown(metric: Metric) -> (&'static str, &'static str, f64) {
    match metric {
        Metric::Latency => ("p50", "µs", 1e3),
        Metric::LatencyP99 => ("p99", "µs", 1e3),
        Metric::Rate => ("rate", "K/s", 1e3),
        Metric::Goodput => ("goodput", "Gbit/s", 1e9),
        Metric::CpuTime => ("processor time per call", "µs", 1e3),
    }
}

/// Whether `ratio`, Courser's figure over another's, says that the other one is ahead.
pub fn other_is_ahead(metric: Metric, ratio: f64) -> bool {
    match metric {
        Metric::Latency | Metric::LatencyP99 | Metric::CpuTime => ratio > 1.0,
        Metric::Rate | Metric::Goodput => ratio < 1.0,
    }
}

/// The windows of one placement.
pub struct At<'m> {
    measured: &'m Measured,
    /// Which; none if both sides have one core.
    pub placement: Option<Placement>,
}

impl<'m> At<'m> {
    /// One for each placement that was seen, that with the most windows first.
    pub fn all(measured: &'m Measured) -> Vec<Self> {
        let all = [Some(Placement::Near), Some(Placement::Far), None];
        let mut all: Vec<_> = all.map(|placement| Self { measured, placement }).into();
        all.retain(|at| at.seen().next().is_some());
        all.sort_by_key(|at| Reverse(at.seen().count()));
        all
    }

    fn seen(&self) -> impl Iterator<Item = &'m Seen> {
        let tag = self.placement.map_or(Tag::Unprobed, Tag::At);
        self.measured.rounds.iter().flatten().filter(move |seen| seen.tag == tag)
    }

    /// The loads.
    pub fn cases(&self) -> &'static [Case] {
        self.measured.suite.cases
    }

    /// Whether each side had a core of its own.
    pub fn pinned(&self) -> bool {
        self.measured.pinned
    }

    /// The name of the placement in reports.
    pub fn name(&self) -> &'static str {
        match self.placement {
            Some(Placement::Near) => "near",
            Some(Placement::Far) => "far",
            None => "unprobed",
        }
    }

    fn outcome(&self, compared: Compared) -> Outcome {
        compared.outcome(&self.measured.rounds)
    }

    /// Contestants that have windows here, in their usual order.
    pub fn contestants(&self) -> Vec<&'static Contestant> {
        let has = |c: &&Contestant| {
            (0..self.cases().len()).any(|case| self.figure(case, c, Metric::Rate).is_some())
        };
        self.measured.suite.contestants.iter().filter(has).collect()
    }

    /// Those of them that are Courser.
    pub fn coursers(&self) -> Vec<&'static Contestant> {
        self.contestants().into_iter().filter(|c| c.role == Role::Courser).collect()
    }

    /// The probes around the windows, ns.
    pub fn probe(&self) -> Option<Summary> {
        let mean = |seen: &Seen| seen.probes.map(|p| u64::midpoint(p.min_ns, p.max_ns) as f64);
        Summary::of(self.seen().filter_map(mean))
    }

    /// Of one contestant in one case.
    pub fn figure(&self, case: usize, of: &Contestant, metric: Metric) -> Option<Summary> {
        let alone = Compared { measured: self.measured.suite.place(case, of), baseline: None };
        let value = |pair: &Pair| metric.value(&pair.measured);
        report::over_pairs(&self.outcome(alone), self.placement, value)
    }

    /// The case, of those that are one load with different numbers in flight, in which the
    /// contestant does best.
    pub fn best(&self, of: &Contestant) -> Option<usize> {
        let median = |case| Some((self.figure(case, of, Metric::Goodput)?.median, case));
        (0..self.cases().len())
            .filter(|&case| self.cases()[case].kind == Kind::Sink)
            .filter_map(median)
            .max_by(|a, b| f64::total_cmp(&a.0, &b.0))
            .map(|(_, case)| case)
    }

    /// The case in which a contestant is compared: for goodput its best.
    pub fn compared(&self, case: usize, metric: Metric, of: &Contestant) -> Option<usize> {
        if metric == Metric::Goodput { self.best(of) } else { Some(case) }
    }

    /// `courser`'s figure over `other`'s, round by round. For goodput each in its best case.
    pub fn ratio(
        &self,
        case: usize,
        metric: Metric,
        courser: &Contestant,
        other: &Contestant,
    ) -> Option<Summary> {
        let of = |c| Some(self.measured.suite.place(self.compared(case, metric, c)?, c));
        let compared = Compared { measured: of(courser)?, baseline: Some(of(other)?) };
        report::ratio(&self.outcome(compared), metric, self.placement)
    }
}

/// The report's `results`: an object for each placement, contestant and case, and one for each
/// contestant that failed.
pub fn results(measured: &Measured) -> Vec<Value> {
    let mut results = Vec::new();
    for at in At::all(measured) {
        for contestant in at.contestants() {
            results.extend((0..at.cases().len()).filter_map(|case| result(&at, contestant, case)));
        }
    }
    for (name, reason) in &measured.failed {
        results.push(json!({ "contestant": name, "failed": reason }));
    }
    results
}

fn result(at: &At<'_>, contestant: &Contestant, index: usize) -> Option<Value> {
    let case = &at.cases()[index];
    let mut value = json!({
        "contestant": contestant.name,
        "role": contestant.role,
        "transport": contestant.transport,
        "placement": at.name(),
        "case": case.key,
        "request_bytes": case.size,
        "answer_bytes": match case.kind {
            Kind::Echo => case.size,
            Kind::Sink => RECEIPT,
            Kind::Get => VALUE,
        },
        "in_flight": case.in_flight,
        "rounds": at.figure(index, contestant, Metric::Rate)?.count,
    });
    let object = value.as_object_mut()?;
    for metric in [Metric::Latency, Metric::LatencyP99, Metric::Rate, Metric::Goodput] {
        insert(object, metric.key(), at.figure(index, contestant, metric)?);
    }
    if let Some(cpu) = at.figure(index, contestant, Metric::CpuTime) {
        insert(object, Metric::CpuTime.key(), cpu);
    }
    if case.kind == Kind::Sink {
        value["best_in_flight"] = json!(at.best(contestant) == Some(index));
    }
    if contestant.role != Role::Courser {
        let mut ratios = Map::new();
        for courser in at.coursers() {
            let mut of_one = Map::new();
            for &metric in metrics(case) {
                if let Some(ratio) = at.ratio(index, metric, courser, contestant) {
                    insert(&mut of_one, metric.key(), ratio);
                }
            }
            ratios.insert(courser.name.to_owned(), of_one.into());
        }
        value["ratio_of"] = ratios.into();
    }
    Some(value)
}

#[cfg(test)]
pub(crate) mod tests {
    use courser_bench::window::{ProbeRange, Sample};
    use courser_kit::latency::Percentiles;

    use super::*;
    use crate::contestants;
    use crate::rounds::PEERS;

    pub(crate) fn named(name: &str) -> &'static Contestant {
        contestants::named(name).expect("a contestant")
    }

    /// Windows of three contestants in all cases and two rounds: tarpc ten times as slow as
    /// Courser, but for 1 KiB with one in flight, where it is twice as fast.
    pub(crate) fn measured() -> Measured {
        let mut measured = Measured::new(&PEERS, true);
        for grown in [1, 2] {
            let mut round = PEERS.round();
            for (case, shape) in PEERS.cases.iter().enumerate() {
                // Tenths of Courser's time.
                for (contestant, slower) in [("courser-udp", 10), ("tarpc", 100), ("raw-tcp", 5)] {
                    let slower = match (contestant, shape.key) {
                        ("tarpc", "echo_1kib_1") => 5,
                        // With more in flight the goodput is larger.
                        (_, "sink_1mib_4") => slower / 2,
                        _ => slower,
                    };
                    let time_ns = 500 * slower * grown;
                    let sample = Sample {
                        operations: 100,
                        bytes: 100 * shape.size as u64,
                        elapsed_ns: 100 * 2 * time_ns,
                        latency: Some(Percentiles {
                            p50_ns: time_ns,
                            p99_ns: 2 * time_ns,
                            samples: 100,
                        }),
                        cpu_ns: Some(100 * time_ns),
                    };
                    let probes = Some(ProbeRange { min_ns: 140, max_ns: 160 });
                    let tag = Tag::At(Placement::Near);
                    round[PEERS.place(case, named(contestant))] = Seen { tag, probes, sample };
                }
            }
            measured.rounds.push(round);
        }
        measured
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let measured = measured();
        let all = At::all(&measured);
        assert_eq!(all.len(), 1);
        let ratio = |courser| all[0].ratio(0, Metric::Latency, named(courser), named("tarpc"));
        let of_udp = ratio("courser-udp").expect("both ran");
        assert_eq!((of_udp.median, of_udp.min, of_udp.max), (0.1, 0.1, 0.1));
        assert_eq!(ratio("courser-shm"), None);
    }

    #[test]
    fn goodput_is_that_of_the_best_number_in_flight() {
        let measured = measured();
        let at = &At::all(&measured)[0];
        let best = at.best(named("tarpc")).expect("it ran");
        assert_eq!(PEERS.cases[best].in_flight, 4);
        let figure = at.figure(best, named("tarpc"), Metric::Goodput).expect("it ran");
        assert_eq!(figure.max, 1e5 / 5.0 * 8.0 * 1_048_576.0);
    }

    #[test]
    fn who_is_ahead() {
        assert!(other_is_ahead(Metric::LatencyP99, 1.1) && !other_is_ahead(Metric::Latency, 0.9));
        assert!(other_is_ahead(Metric::CpuTime, 1.1) && !other_is_ahead(Metric::CpuTime, 0.9));
        assert!(other_is_ahead(Metric::Rate, 0.9) && !other_is_ahead(Metric::Goodput, 1.1));
    }

    #[test]
    fn keys_are_stable() {
        let mut measured = measured();
        measured.failed.push(("quinn", "why".to_owned()));
        let results = results(&measured);
        assert_eq!(results.len(), 3 * PEERS.cases.len() + 1);
        let of = |name: &str, case: &str| {
            results.iter().find(|r| r["contestant"] == name && r["case"] == case).expect("there")
        };
        let mut expected: Vec<String> = "contestant role transport placement case rounds \
            request_bytes answer_bytes in_flight best_in_flight ratio_of"
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let metrics =
            ["latency_p50_ns", "latency_p99_ns", "rate_rps", "goodput_bps", "cpu_per_call_ns"];
        for metric in metrics {
            let suffixes = ["", "_min", "_max", "_ci_low", "_ci_high"];
            expected.extend(suffixes.map(|suffix| format!("{metric}{suffix}")));
        }
        expected.sort();
        let keys: Vec<_> = of("tarpc", "sink_1mib_4").as_object().expect("one").keys().collect();
        assert_eq!(keys, expected.iter().collect::<Vec<_>>());
        assert_eq!(of("tarpc", "echo_32b_1")["ratio_of"]["courser-udp"]["rate_rps"], json!(10.0));
    }
}
