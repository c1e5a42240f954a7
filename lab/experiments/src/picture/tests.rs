//! Tests of the drawn SVG.

use courser_bench::report::Unit;

use super::*;

fn chart() -> Chart {
    let mut chart = Chart::lines(
        "Round trips & more",
        Axis::log("senders", Unit::Count),
        Axis::linear("round trip", Unit::Time),
    );
    chart.line(Style::Main, "p99").points.extend([(50.0, 600e3), (20.0, 250e3)]);
    chart
}

#[test]
fn a_chart_has_its_title_its_axes_and_the_name_of_each_line() {
    let mut chart = chart();
    chart.line(Style::Calculated, "calculated").points.extend([(20.0, 240e3), (50.0, 590e3)]);
    let svg = chart.svg().expect("drawn");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for text in ["Round trips &amp; more", "senders", "round trip", "p99", "calculated", "600 µs"]
    {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    // A dot for each simulated point, and none for calculated ones.
    assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
}

#[test]
fn a_line_is_drawn_from_left_to_right() {
    let svg = chart().svg().expect("drawn");
    let circles = svg.split("<circle cx=\"").skip(1);
    let xs: Vec<u32> = circles.map(|c| c.split('"').next().unwrap().parse().unwrap()).collect();
    assert!(xs.is_sorted(), "{xs:?}");
}

#[test]
fn values_of_the_paper_are_rings_with_one_entry_for_each_name() {
    let mut chart = chart();
    chart.line(Style::Main, "p99").add_paper("the paper", [(20.0, 204e3), (50.0, 524e3)]);
    chart.line(Style::Main, "p50").add_paper("the paper", [(20.0, 202e3)]);
    let svg = chart.svg().expect("drawn");
    assert_eq!(svg.matches("the paper").count(), 1, "{svg}");
    // Two dots, three rings and the ring of the legend. A line without points has no entry.
    assert_eq!(svg.matches("<circle").count(), 6, "{svg}");
    assert!(!svg.contains("p50"), "{svg}");
}

#[test]
fn a_second_line_has_the_colour_of_the_line_before_it() {
    let mut chart = chart();
    chart.line(Style::Second, "p50").points.push((20.0, 200e3));
    chart.line(Style::Main, "other").points.push((20.0, 100e3));
    let svg = chart.svg().expect("drawn");
    let circles = svg.split("<circle").skip(1);
    let fill = |c: &str| c.split("fill=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let colors: Vec<String> = circles.map(fill).collect();
    assert_eq!(colors[0], colors[2], "{colors:?}");
    assert_ne!(colors[0], colors[3], "{colors:?}");
}

#[test]
fn points_that_a_logarithmic_axis_cannot_show_are_omitted() {
    let mut chart = chart();
    let line = chart.line(Style::Main, "p99");
    line.points.extend([(0.0, 1e3), (10.0, f64::NAN)]);
    line.add_paper("the paper", [(0.0, 1e3)]);
    let svg = chart.svg().expect("drawn");
    assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
    assert!(!svg.contains("the paper") && !svg.contains("NaN"), "{svg}");
}

#[test]
fn bars_have_names_and_values() {
    let mut chart = Chart::bars("", Axis::linear("time", Unit::Time));
    for (row, with, without) in [("none", 1.3e6, 0.3e6), ("default", 0.4e6, 0.3e6)] {
        chart.bar(Style::Main, "with the incast", row, with);
        chart.bar(Style::Second, "without", row, without);
    }
    chart.line(Style::Main, "with the incast").add_paper("the paper", [(1.0, 274e3)]);
    let svg = chart.svg().expect("drawn");
    for text in ["none", "default", "with the incast", "without", "1.3 ms", "300 µs", "the paper"]
    {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    assert!(svg.contains("the paper: 274 µs"), "{svg}");
    // The background, four bars and two entries of the legend.
    assert_eq!(svg.matches("<rect").count(), 7, "{svg}");
    assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
}

#[test]
fn the_value_of_a_bar_is_beside_a_ring_near_its_end() {
    let mut chart = Chart::bars("", Axis::linear("time", Unit::Time));
    chart.bar(Style::Main, "simulated", "p99", 252e3);
    let without_ring = chart_text_x(chart, "252 µs");
    let mut chart = Chart::bars("", Axis::linear("time", Unit::Time));
    chart.bar(Style::Main, "simulated", "p99", 252e3);
    // The scale is that of the chart without the ring.
    chart.line(Style::Main, "simulated").add_paper("the paper", [(0.0, 250e3)]);
    assert!(chart_text_x(chart, "252 µs") > without_ring);
}

/// The horizontal position of a text.
fn chart_text_x(chart: Chart, text: &str) -> u32 {
    let svg = chart.svg().expect("drawn");
    let tag = svg[..svg.find(text).expect(text)].rsplit("<text x=\"").next().unwrap();
    tag.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn a_chart_without_points_is_drawn() {
    let empty = Chart::lines("", Axis::log("x", Unit::Plain), Axis::log("y", Unit::Plain));
    assert!(empty.svg().expect("drawn").contains("</svg>"));
    let empty = Chart::bars("", Axis::linear("y", Unit::Plain));
    assert!(empty.svg().expect("drawn").contains("</svg>"));
}

#[test]
fn a_long_legend_makes_the_picture_higher() {
    let height = |lines: usize| {
        let mut chart = chart();
        for at in 0..lines {
            chart.line(Style::Main, format!("line {at} of many, {at} senders, long name"));
            chart.lines[at + 1].points.push((20.0, 1e3 * at as f64));
        }
        let svg = chart.svg().expect("drawn");
        let height = svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap();
        height.parse::<u32>().unwrap()
    };
    assert_eq!(height(3), height(1));
    assert!(height(100) > 100 * 20, "{}", height(100));
}

#[test]
fn a_picture_needs_a_file() {
    let refused = check_target(Some("-".as_ref()));
    assert!(matches!(refused, Err(Failure::Usage(text)) if text.contains("--svg needs a file")));
    assert!(check_target(Some("/absent/a.svg".as_ref())).is_err());
    assert!(check_target(None).is_ok());
}

#[test]
fn charts_of_several_seeds_are_one_with_medians_and_ranges() {
    let of = |value: f64| {
        let mut chart = chart();
        chart.line(Style::Main, "p50").points.extend([(20.0, value), (50.0, 7.0)]);
        chart
    };
    let one = of(3.0).over_seeds(Vec::new().into_iter());
    assert!(one.lines.iter().all(|line| line.ranges.is_empty()));
    let all = of(3.0).over_seeds(vec![of(1.0), of(2.0)].into_iter());
    let line = all.lines.iter().find(|line| line.name == "p50").expect("a line");
    assert_eq!(line.points, [(20.0, 2.0), (50.0, 7.0)]);
    let ranges = [Range { x: 20.0, low: 1.0, high: 3.0 }, Range { x: 50.0, low: 7.0, high: 7.0 }];
    assert_eq!(line.ranges, ranges);
}

#[test]
fn bars_of_several_seeds_have_their_range_in_the_row_of_their_name() {
    let of = |rows: &[(&str, f64)]| {
        let mut chart = Chart::bars("", Axis::linear("latency", Unit::Time));
        rows.iter().for_each(|&(row, value)| chart.bar(Style::Main, "p99", row, value));
        chart
    };
    let first = of(&[("large", 40e3), ("small", 3e3)]);
    let before = first.lines[0].ranges.len();
    let all = first.over_seeds(vec![of(&[("small", 5e3)]), of(&[("small", 4e3)])].into_iter());
    let large = Range { x: 0.0, low: 40e3, high: 40e3 };
    assert_eq!(all.lines[0].ranges, [large, Range { x: 1.0, low: 3e3, high: 5e3 }]);
    assert_eq!((before, &all.lines[0].points[1]), (0, &(1.0, 4e3)));
    let lines = |chart: Chart| chart.svg().expect("drawn").matches("<polyline").count();
    let single = of(&[("large", 40e3), ("small", 4e3)]);
    assert_eq!(lines(all), lines(single) + 2, "a line for each range");
}
