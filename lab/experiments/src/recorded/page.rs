//! `courser-lab report`: the recorded results and the papers' on one HTML page.

use std::io::Write;

use courser_bench::report::Unit;
use courser_bench::table::show;
use courser_kit::{Failure, VERSION, json, out};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::args::ReportArgs;
use super::markdown;
use super::result::{Point, Results, show_x};
use super::store::Store;
use super::{SEEDS, all, figure};
use crate::declare::points::{Better, Experiment, Figure, Paper, Size, Stated};

/// Largest deviation from the paper without a stated reason.
const SMALL: f64 = 0.05;

// A table or a picture that is wider than the screen scrolls by itself; on small screens it bleeds to
// the edges, with smaller text.
const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em;
  color: #1a1a1a; background: #fff; overflow-wrap: break-word }
h1 { font-size: 1.6em } h2 { font-size: 1.25em; margin-top: 2.5em; border-top: 1px solid #ccc;
  padding-top: 1em } h3 { font-size: 1em; margin: 1.2em 0 .3em }
.wide { overflow-x: auto; margin: .5em 0 1em } table { border-collapse: collapse }
th, td { padding: .15em .8em .15em 0; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #888; font-weight: 600 } td.n, th.n { text-align: right }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap }
tr.off td.deviation { font-weight: 600 } .source { color: #555 } figure { margin: 1em 0 }
svg { max-width: 100%; height: auto } pre { font-size: 12px; overflow-x: auto; background: #f5f5f5;
  padding: .6em } summary { cursor: pointer }
@media (max-width: 40em) {
  body { margin: 1em auto; padding: 0 .6em } h1 { font-size: 1.35em }
  table { font-size: 13px } th, td { padding-right: .6em }
  .wide svg { max-width: none; width: 38em }
}
";

/// Requirements that are measured on real machines, and the location of their results.
const ON_MACHINES: &[(&str, &str, &str)] = &[
    ("E72", "latency of 32 B calls", "courser bench latency"),
    ("E75", "factor analysis", "courser-lab bench factors"),
    (
        "E77, E78",
        "bandwidth of large requests, with and without the copy",
        "courser bench bandwidth",
    ),
    ("E80", "throughput under loss, over UDP and shared memory", "courser bench bandwidth --fault"),
    ("E85", "other RPC libraries", "lab/peers"),
    ("M25", "CPU time of reorder copies", "lab/experiments/examples/reorder_cpu.rs"),
];

/// An experiment with its recorded results.
pub(super) struct Section {
    pub(super) experiment: &'static Experiment,
    pub(super) size: Size,
    pub(super) results: Results,
}

/// Writes the page.
///
/// # Errors
/// There are no recorded results, or the page could not be drawn or written.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    json::check_target(Some(&args.out))?;
    let store = Store::of(args.recorded.as_deref());
    let sections = sections(store)?;
    if let (Store::Directory(directory), []) = (store, &sections[..]) {
        let text = format!("no recorded results in {}", directory.display());
        let next = "name another directory, or leave out --recorded for those in this program";
        return Err(Failure::Usage(format!("{text}; {next}")));
    }
    let text = match args.out.extension() {
        Some(extension) if extension == "md" => markdown::document(&sections),
        _ => page(&sections).map_err(Failure::Runtime)?.into_string(),
    };
    json::write_text(&args.out, &text)?;
    if !json::only(Some(&args.out)) {
        let (shown, count) = (args.out.display(), sections.len());
        writeln!(out::stdout(), "{shown}: {count} of {} experiments", all().len())?;
    }
    Ok(())
}

/// The experiments with recorded results.
fn sections(store: Store<'_>) -> Result<Vec<Section>, Failure> {
    let mut sections = Vec::new();
    for experiment in all() {
        let Some(recorded) = store.read(experiment)? else { continue };
        let of = |size| recorded.of(size).cloned().map(|results| (size, results));
        // Without recorded full runs, the short ones are shown.
        if let Some((size, results)) = of(Size::Full).or_else(|| of(Size::Short)) {
            sections.push(Section { experiment, size, results });
        }
    }
    Ok(sections)
}

fn page(sections: &[Section]) -> Result<Markup, String> {
    let bodies: Vec<Markup> = sections.iter().map(section).collect::<Result<_, _>>()?;
    Ok(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Courser: the papers' experiments" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "The papers' experiments, repeated" }
                p {
                    "Endpoints, sessions and handlers are Courser's own; hosts, NICs and network \
                     are simulated. Values are medians over " (SEEDS.len()) " seeds, with their \
                     range; where all seeds have the same value it is one run, and the range \
                     states nothing about other arrivals. A result follows from code and settings to the last bit: "
                    code { "courser-lab verify" } " runs all of it again and compares. eRPC is \
                     Kalia, Kaminsky, Andersen, NSDI 2019; MELO is Lu et al., APNet 2017. Page \
                     of courser " (VERSION) "."
                }
                (contents(sections))
                @for body in &bodies { (body) }
                h2 { "Measured on machines" }
                p { "These depend on the machine; docs/results has them with machine and command." }
                (wide(&html! {
                    table {
                        tr { th { "id" } th { "measured" } th { "by" } }
                        @for (id, what, command) in ON_MACHINES {
                            tr { td { (id) } td { (what) } td { code { (command) } } }
                        }
                    }
                }))
            }
        }
    })
}

/// Content that scrolls sideways where the screen is narrower.
fn wide(content: &Markup) -> Markup {
    html! { div.wide { (content) } }
}

fn contents(sections: &[Section]) -> Markup {
    wide(&html! {
        table {
            tr {
                th { "id" } th { "experiment" } th { "in the paper" }
                th.n { "points" } th.n { "paper's" } th.n { "farthest from the paper" }
            }
            @for s in sections {
                @let beside: Vec<_> = beside(s).collect();
                @let farthest = beside.iter().max_by(|(p, paper), (q, other)| {
                    let size = |p: &Point, paper: &Paper| paper.value.deviation(p.median).abs();
                    size(p, paper).total_cmp(&size(q, other))
                });
                tr {
                    td { a href={ "#" (s.experiment.id) } { (s.experiment.id) } }
                    td { (s.experiment.title) }
                    td { (s.experiment.source) }
                    td.n { (s.results.points.len()) }
                    td.n { (beside.len()) }
                    td.n {
                        @if let Some((p, paper)) = farthest { (deviation(s.experiment, p, paper)) }
                    }
                }
            }
        }
    })
}

/// The points for which the paper has a value.
pub(super) fn beside(section: &Section) -> impl Iterator<Item = (&Point, &'static Paper)> {
    let of = |p| Some((p, paper_of(section.experiment, p)?));
    section.results.points.iter().filter_map(of)
}

pub(super) fn paper_of(experiment: &Experiment, p: &Point) -> Option<&'static Paper> {
    experiment.paper(&p.quantity, &p.series, p.x)
}

fn section(section: &Section) -> Result<Markup, String> {
    let Section { experiment, size, results } = section;
    let figures = experiment.quantities.iter().filter(|q| q.figure != Figure::None);
    let drawn: Vec<(&str, String)> = figures
        .map(|q| Ok::<_, String>((q.name, figure::draw(experiment, q, &results.points)?)))
        .collect::<Result<_, _>>()?;
    let beside: Vec<_> = beside(section).collect();
    let rows = beside.iter().map(|&(p, paper)| row(experiment, p, Some(paper)));
    let all = results.points.iter().map(|p| row(experiment, p, paper_of(experiment, p)));
    Ok(html! {
        h2 id=(experiment.id) { (experiment.id) ". " (experiment.title) }
        p.source { (experiment.source) }
        p { (experiment.model) }
        @if *size == Size::Short { p { strong { "Short runs only: fewer points and less time." } } }
        @for (name, svg) in &drawn {
            figure { figcaption { (name) } (wide(&html! { (PreEscaped(svg)) })) }
        }
        @if !beside.is_empty() {
            h3 { "Beside the paper" }
            (table(section, rows))
            @for reason in reasons(&beside) { p { "Deviation: " (reason) } }
        }
        details {
            summary { "All " (results.points.len()) " points" }
            (table(section, all))
        }
        details {
            summary { "Settings" }
            p {
                "Recorded by courser " (results.version) ": "
                code { "courser-lab record --" (size.name()) " --only " (experiment.id) }
            }
            @for settings in &results.settings { pre { (settings) } }
        }
    })
}

fn table(section: &Section, rows: impl Iterator<Item = Markup>) -> Markup {
    wide(&html! {
        table {
            tr {
                @for (at, heading) in headings(section).iter().enumerate() {
                    th.n[at > 1] { (heading) }
                }
            }
            @for row in rows { (row) }
        }
    })
}

fn row(experiment: &Experiment, p: &Point, paper: Option<&Paper>) -> Markup {
    let deviation = paper.map(|paper| paper.value.deviation(p.median));
    let class = if deviation.is_some_and(|d| d.abs() > SMALL) { "off" } else { "" };
    let [quantity, series, x, ours, range, tolerance, stated, deviation] =
        cells(experiment, p, paper);
    html! {
        tr class=(class) {
            td { (quantity) } td { (series) } td.n { (x) } td.n { (ours) } td.n { (range) }
            td.n { (tolerance) } td.n { (stated) } td.n.deviation { (deviation) }
        }
    }
}

/// Headings of the columns of a table of points. They state how many runs the values are of.
pub(super) fn headings(section: &Section) -> [&'static str; 8] {
    let points = &section.results.points;
    let (ours, range) = match points.iter().filter(|p| p.is_one_run()).count() {
        0 => ("ours, median over seeds", "range over seeds"),
        same if same == points.len() => ("ours, one run", "range: all seeds are the same run"),
        _ => ("ours, median over seeds", "range over seeds, or one run"),
    };
    let x = section.experiment.axis.label;
    ["quantity", "series", x, ours, range, "tolerance", "paper", "deviation"]
}

/// A point in the columns of a table.
pub(super) fn cells(experiment: &Experiment, p: &Point, paper: Option<&Paper>) -> [String; 8] {
    let unit = experiment.quantity(&p.quantity).map_or(Unit::Plain, |q| q.unit);
    let shown = |value| show(unit, value);
    let range = match p.is_one_run() {
        true => "one run".to_owned(),
        false => format!("{} to {}", shown(p.min), shown(p.max)),
    };
    [
        p.quantity.clone(),
        p.series.clone(),
        show_x(experiment, p.x),
        shown(p.median),
        range,
        format!("± {}", shown(p.tolerance.of(p.median))),
        paper.map(|paper| stated(unit, paper.value)).unwrap_or_default(),
        paper.map(|paper| deviation(experiment, p, paper)).unwrap_or_default(),
    ]
}

/// The deviation of a point from the paper, and whether it is better or worse.
fn deviation(experiment: &Experiment, p: &Point, paper: &Paper) -> String {
    let deviation = paper.value.deviation(p.median);
    let better = experiment.quantity(&p.quantity).map_or(Better::Neither, |q| q.better);
    let shown = percent(deviation);
    match (shown.as_str(), better.name(deviation)) {
        ("none", _) | (_, "") => shown,
        (_, direction) => format!("{shown}, {direction}"),
    }
}

fn stated(unit: Unit, value: Stated) -> String {
    match value {
        Stated::Value(value) => show(unit, value),
        Stated::Range(low, high) => format!("{} to {}", show(unit, low), show(unit, high)),
        Stated::AtMost(value) => format!("≤ {}", show(unit, value)),
        Stated::AtLeast(value) => format!("≥ {}", show(unit, value)),
    }
}

/// A deviation in per cent, or `none` if it is rounded to zero.
fn percent(deviation: f64) -> String {
    match format!("{:+.1} %", deviation * 100.0) {
        zero if zero.ends_with("0.0 %") && deviation.abs() < 0.001 => "none".to_owned(),
        shown => shown,
    }
}

/// The reasons of points that deviate, each once.
pub(super) fn reasons(beside: &[(&Point, &'static Paper)]) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    for (p, paper) in beside {
        let deviates = paper.value.deviation(p.median) != 0.0;
        if deviates && !paper.reason.is_empty() && !reasons.contains(&paper.reason) {
            reasons.push(paper.reason);
        }
    }
    reasons
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The recorded results of this repository.
    pub(in super::super) fn recorded() -> Vec<Section> {
        sections(Store::BuiltIn).expect("readable")
    }

    #[test]
    fn every_experiment_is_recorded_and_every_deviation_has_its_reason() {
        let sections = recorded();
        assert_eq!(sections.len(), all().len());
        for section in &sections {
            for (p, paper) in beside(section) {
                let deviation = paper.value.deviation(p.median);
                let is_explained = deviation.abs() <= SMALL || !paper.reason.is_empty();
                assert!(is_explained, "{}: {deviation}", p.name(section.experiment));
            }
        }
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = page(&recorded()).expect("drawn").into_string();
        for experiment in all() {
            assert!(page.contains(&format!("<h2 id=\"{}\">", experiment.id)), "{}", experiment.id);
        }
        for outside in ["<script", "<link", "<img", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!addresses.contains("://"), "no address but the name of SVG");
    }

    #[test]
    fn a_deviation_is_better_or_worse_by_its_quantity() {
        let sections = recorded();
        let of = |id: &str, quantity: &str| {
            let section = sections.iter().find(|s| s.experiment.id == id).expect("recorded");
            let mut all = beside(section).filter(|(p, _)| p.quantity == quantity);
            let (p, paper) = all.next().expect("a point beside the paper");
            (section.experiment, p.clone(), paper)
        };
        let at = |id, quantity, times: f64| {
            let (experiment, mut p, paper) = of(id, quantity);
            let Stated::Value(value) = paper.value else { panic!("{id}: not a single value") };
            p.median = value * times;
            deviation(experiment, &p, paper)
        };
        assert_eq!(at("E77", "goodput", 1.25), "+25.0 %, better");
        assert_eq!(at("E77", "goodput", 0.75), "-25.0 %, worse");
        assert_eq!(at("E81", "round trip p99", 1.25), "+25.0 %, worse");
        assert_eq!(at("E81", "round trip p99", 0.75), "-25.0 %, better");
        assert_eq!(at("E81", "round trip p99", 0.999_9), "none");
    }

    #[test]
    fn the_header_states_when_the_seeds_are_one_run() {
        let mut section = recorded().into_iter().find(|s| s.experiment.id == "E81").expect("E81");
        for p in &mut section.results.points {
            (p.min, p.max) = (p.median, p.median);
        }
        let headings_of = |section: &Section| headings(section)[3..5].to_vec();
        assert_eq!(headings_of(&section), ["ours, one run", "range: all seeds are the same run"]);
        section.results.points[0].max += 1.0;
        assert_eq!(headings_of(&section)[1], "range over seeds, or one run");
        for p in &mut section.results.points {
            p.max += 1.0;
        }
        assert_eq!(headings_of(&section), ["ours, median over seeds", "range over seeds"]);
        let page = page(&recorded()).expect("drawn").into_string();
        assert!(page.contains("all seeds are the same run") && !page.contains(">the same<"));
    }

    #[test]
    fn on_a_narrow_screen_tables_and_pictures_scroll_by_themselves() {
        let page = page(&recorded()).expect("drawn").into_string();
        assert!(page.contains("<meta name=\"viewport\" content=\"width=device-width,"));
        assert!(STYLE.contains(".wide { overflow-x: auto") && STYLE.contains("@media (max-width:"));
        for part in ["<table", "<svg "] {
            let all = page.matches(part).count();
            let scrolling = page.matches(&format!("<div class=\"wide\">{part}")).count();
            assert!(all > 1 && scrolling == all, "{part}: {scrolling} of {all}");
        }
        // Nothing else is wider than a narrow screen.
        assert!(
            page.matches("<pre").count() > 0
                && STYLE.contains("pre { font-size: 12px; overflow-x: auto")
        );
    }
}
