//! The report for people: Markdown, what is against Courser first.

use std::fmt::Write;

use courser_bench::report::Metric;
use courser_bench::stats::Summary;

use crate::contestants::{Contestant, Role};
use crate::report::{At, metrics, other_is_ahead, shown};
use crate::rounds::Measured;
use crate::work::Kind;

/// All of it.
pub fn render(measured: &Measured) -> String {
    let mut text = String::new();
    for (name, reason) in &measured.failed {
        let _ = writeln!(text, "**{name} failed and is left out:** {reason}\n");
    }
    for at in At::all(measured) {
        render_placement(&mut text, &at);
    }
    if measured.dropped > 0 {
        let _ = writeln!(
            text,
            "{} windows are left out: the cores moved during each attempt.\n",
            measured.dropped
        );
    }
    text
}

fn render_placement(text: &mut String, at: &At<'_>) {
    let place = match at.probe() {
        None if at.pinned() => "one core for both sides".to_owned(),
        None => "that the kernel chooses".to_owned(),
        Some(probe) => {
            format!("{}: a round trip of a cache line takes {:.0} ns", at.name(), probe.median)
        }
    };
    let _ = writeln!(text, "## Cores {place}\n");
    ahead(text, at);
    let _ = writeln!(
        text,
        "Median over rounds [lowest, highest]. Ratios are Courser's figure over that line's in the \
         same round: latency and processor time are better below 1, rate and goodput above.\n"
    );
    for (index, case) in at.cases().iter().enumerate() {
        if case.kind != Kind::Sink {
            let _ = writeln!(text, "### {}\n", case.title);
            table(text, at, |_| Some(index), metrics(case));
        }
    }
    if at.cases().iter().any(|case| case.kind == Kind::Sink) {
        let _ = writeln!(text, "### 1 MiB requests, 32 B answers, best of the numbers in flight\n");
        table(text, at, |contestant| at.best(contestant), &[Metric::Goodput]);
    }
}

/// Every metric in which a peer is ahead of Courser, or in how many there is none: where a window is
/// missing nothing can be said.
fn ahead(text: &mut String, at: &At<'_>) {
    let (mut compared, mut lines) = (0, Vec::new());
    for courser in at.coursers() {
        for peer in at.contestants().into_iter().filter(|c| c.role == Role::Peer) {
            for (index, case) in at.cases().iter().enumerate() {
                if case.kind == Kind::Sink && at.best(peer) != Some(index) {
                    continue;
                }
                for &metric in metrics(case) {
                    let figure = |c| at.figure(at.compared(index, metric, c)?, c, metric);
                    let Some(ratio) = at.ratio(index, metric, courser, peer) else { continue };
                    let (Some(ours), Some(theirs)) = (figure(courser), figure(peer)) else {
                        continue;
                    };
                    compared += 1;
                    if other_is_ahead(metric, ratio.median) {
                        let (name, unit, scale) = shown(metric);
                        let what = if case.kind == Kind::Sink { "1 MiB" } else { case.title };
                        lines.push(format!(
                            "- {} is ahead of {}: {what}: {name} {} {unit} against {} {unit}, \
                             ratio {}",
                            peer.name,
                            courser.name,
                            short(theirs.median / scale),
                            short(ours.median / scale),
                            short(ratio.median),
                        ));
                    }
                }
            }
        }
    }
    let _ = match (compared, lines.len()) {
        (0, _) => writeln!(text, "There are no windows of Courser and of a peer to compare.\n"),
        (_, 0) => writeln!(text, "No peer is ahead of Courser in any of {compared} comparisons.\n"),
        (_, ahead) => writeln!(
            text,
            "**Peers are ahead of Courser in {ahead} of {compared} comparisons:**\n\n{}\n",
            lines.join("\n")
        ),
    };
}

fn table(
    text: &mut String,
    at: &At<'_>,
    case_of: impl Fn(&Contestant) -> Option<usize>,
    metrics: &[Metric],
) {
    let (coursers, bulk) = (at.coursers(), metrics == [Metric::Goodput]);
    let mut head: Vec<String> = metrics
        .iter()
        .map(|&metric| format!("{}, {}", shown(metric).0, shown(metric).1))
        .chain(bulk.then(|| "in flight".to_owned()))
        .chain(["rounds".to_owned()])
        .collect();
    for courser in &coursers {
        let ratio = |&metric: &Metric| format!("{} / it: {}", courser.name, shown(metric).0);
        head.extend(metrics.iter().map(ratio));
    }
    let rule = " ---: |".repeat(head.len());
    let _ = writeln!(text, "| | over | {} |\n| --- | --- |{rule}", head.join(" | "));
    // A case whose windows were all left out has a table without rows, which shows just that.
    for contestant in at.contestants() {
        let Some(case) = case_of(contestant) else { continue };
        let figure = |&metric| Some((at.figure(case, contestant, metric)?, metric));
        let figures: Vec<_> = metrics.iter().filter_map(figure).collect();
        let Some((first, _)) = figures.first() else { continue };
        let mut row: Vec<String> = figures.iter().map(|&(f, metric)| range(f, metric)).collect();
        row.extend(bulk.then(|| at.cases()[case].in_flight.to_string()));
        row.push(first.count.to_string());
        for courser in &coursers {
            let itself = courser.name == contestant.name;
            let ratio = |&metric| at.ratio(case, metric, courser, contestant);
            let cell = |metric| ratio(metric).filter(|_| !itself).map(|r| short(r.median));
            row.extend(metrics.iter().map(|metric| cell(metric).unwrap_or_default()));
        }
        let limit = if contestant.role == Role::Limit { " (limit)" } else { "" };
        let (about, over) = (contestant.about, contestant.transport);
        let _ = writeln!(text, "| {about}{limit} | {over} | {} |", row.join(" | "));
    }
    text.push('\n');
}

fn range(figure: Summary, metric: Metric) -> String {
    let scale = shown(metric).2;
    format!(
        "{} [{}, {}]",
        short(figure.median / scale),
        short(figure.min / scale),
        short(figure.max / scale)
    )
}

/// Three digits that mean something; four and more where there are that many before the point.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0..0.01 => 4,
        0.01..1.0 => 3,
        1.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{measured, named};
    use crate::rounds::PEERS;
    use courser_bench::window::Seen;

    #[test]
    fn what_is_against_courser_comes_first() {
        let text = render(&measured());
        let ahead = text.find("- tarpc is ahead of courser-udp").expect("a line");
        assert!(ahead < text.find("| |").expect("a table"));
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("- ")).collect();
        // p50, p99 and rate of one case; the limit's lead is none.
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[0].contains("1 KiB echo, 1 in flight: p50 3.75 µs against 7.50 µs, ratio 2.00")
        );
    }

    #[test]
    fn what_was_not_compared_is_not_claimed() {
        let without = |left_out: &dyn Fn(usize, usize, &str) -> bool| {
            let mut measured = measured();
            for (number, round) in measured.rounds.iter_mut().enumerate() {
                for case in 0..PEERS.cases.len() {
                    for name in ["courser-udp", "tarpc"] {
                        if left_out(number, case, name) {
                            round[PEERS.place(case, named(name))] = Seen::MISSING;
                        }
                    }
                }
            }
            render(&measured)
        };
        assert!(without(&|_, _, name| name == "courser-udp").contains("There are no windows"));
        // Courser in one round, the peer in the other.
        let apart = without(&|round, _, name| (name == "tarpc") == (round == 0));
        assert!(apart.contains("There are no windows"), "{apart}");
        let won = without(&|_, case, _| case > 0);
        assert!(won.contains("No peer is ahead of Courser in any of 3 comparisons"), "{won}");
    }

    #[test]
    fn rows_have_as_many_columns_as_their_head() {
        let text = render(&measured());
        for block in text.split("\n\n").filter(|block| block.starts_with('|')) {
            let columns: Vec<_> = block.lines().map(|line| line.matches('|').count()).collect();
            assert_eq!(columns.len(), 5, "{block}");
            assert!(columns.iter().all(|count| *count == columns[0]), "{block}");
        }
        assert!(text.contains("| bare TCP socket, spinning (limit) | tcp |"), "{text}");
    }

    #[test]
    fn figures_are_short() {
        for (value, shown) in
            [(0.0012, "0.0012"), (0.5, "0.500"), (2.0, "2.00"), (55.55, "55.5"), (1234.5, "1234")]
        {
            assert_eq!(short(value), shown);
        }
    }
}
