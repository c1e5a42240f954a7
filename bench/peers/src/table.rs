//! The report for people: Markdown, what is against Courser first.

use std::fmt::Write;

use courser_bench::placement::Tag;
use courser_bench::stats::Summary;

use crate::contestants::{Contestant, Role};
use crate::report::{At, Metric, name};
use crate::rounds::{CASES, Measured};
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
    let place = match (at.placement, at.probe()) {
        (Tag::Mixed | Tag::Unprobed, _) | (_, None) => "one core for both sides".to_owned(),
        (place, Some(probe)) => {
            format!("{}: a round trip of a cache line takes {:.0} ns", name(place), probe.median)
        }
    };
    let _ = writeln!(text, "## Cores {place}\n");
    ahead(text, at);
    let _ = writeln!(
        text,
        "Median over rounds [lowest, highest]. Ratios are Courser's figure over that line's in the \
         same round: latency is better below 1, rate and goodput above.\n"
    );
    for (index, case) in CASES.iter().enumerate() {
        if case.kind == Kind::Echo {
            let _ = writeln!(text, "### {}\n", case.title);
            table(text, at, |_| Some(index), Metric::of(case));
        }
    }
    let _ = writeln!(text, "### 1 MiB requests, 32 B answers, best of the numbers in flight\n");
    table(text, at, |contestant| at.best(contestant.name), &[Metric::Goodput]);
}

/// Every metric in which a peer is ahead of Courser, or in how many there is none: where a window is
/// missing nothing can be said.
fn ahead(text: &mut String, at: &At<'_>) {
    let (mut compared, mut lines) = (0, Vec::new());
    for courser in at.coursers() {
        for peer in at.contestants().into_iter().filter(|c| c.role == Role::Peer) {
            let best = (at.best(courser.name), at.best(peer.name));
            for (index, case) in CASES.iter().enumerate() {
                if case.kind == Kind::Sink && best.1 != Some(index) {
                    continue;
                }
                for &metric in Metric::of(case) {
                    let own = if metric == Metric::Goodput { best.0 } else { Some(index) };
                    let ratio = at.ratio(index, metric, courser.name, peer.name);
                    let theirs = at.figure(index, peer.name, metric);
                    let ours = own.and_then(|own| at.figure(own, courser.name, metric));
                    let (Some(ratio), Some(theirs), Some(ours)) = (ratio, theirs, ours) else {
                        continue;
                    };
                    compared += 1;
                    if metric.other_is_ahead(ratio.median) {
                        let (name, unit, scale) = metric.shown();
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
    let mut head = "| | over |".to_owned();
    let mut rule = "| --- | --- |".to_owned();
    let mut column = |name: &str| {
        let _ = write!(head, " {name} |");
        rule.push_str(" ---: |");
    };
    for metric in metrics {
        let (name, unit, _) = metric.shown();
        column(&format!("{name}, {unit}"));
    }
    if bulk {
        column("in flight");
    }
    column("rounds");
    for courser in &coursers {
        for metric in metrics {
            column(&format!("{} / it: {}", courser.name, metric.shown().0));
        }
    }
    let _ = writeln!(text, "{head}\n{rule}");
    // A case whose windows were all left out has a table without rows, which shows just that.
    for contestant in at.contestants() {
        let Some(case) = case_of(contestant) else { continue };
        let Some(first) = at.figure(case, contestant.name, metrics[0]) else { continue };
        let limit = if contestant.role == Role::Limit { " (limit)" } else { "" };
        let _ = write!(text, "| {}{limit} | {} |", contestant.about, contestant.transport);
        for &metric in metrics {
            let figure = at.figure(case, contestant.name, metric);
            let _ = write!(text, " {} |", figure.map_or("-".to_owned(), |f| range(f, metric)));
        }
        if bulk {
            let _ = write!(text, " {} |", CASES[case].in_flight);
        }
        let _ = write!(text, " {} |", first.count);
        for courser in &coursers {
            for &metric in metrics {
                let ratio = at.ratio(case, metric, courser.name, contestant.name);
                let itself = courser.name == contestant.name;
                let shown = ratio.filter(|_| !itself).map(|ratio| short(ratio.median));
                let _ = write!(text, " {} |", shown.unwrap_or_default());
            }
        }
        text.push('\n');
    }
    text.push('\n');
}

fn range(figure: Summary, metric: Metric) -> String {
    let scale = metric.shown().2;
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
    use crate::report::tests::measured;

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
        let (mut alone, mut won) = (measured(), measured());
        alone.windows.retain(|window| window.contestant != "courser-udp");
        assert!(render(&alone).contains("There are no windows"));
        alone = measured();
        // Courser in one round, the peer in the other.
        alone.windows.retain(|w| (w.contestant == "tarpc") == (w.round == 0));
        assert!(render(&alone).contains("There are no windows"), "{}", render(&alone));
        won.windows.retain(|window| window.case == 0);
        assert!(render(&won).contains("No peer is ahead of Courser in any of 3 comparisons"));
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
