//! A quantity of an experiment as a figure: lines with the range over all seeds, and rings at the values
//! of the paper.

use super::result::Point;
use crate::declare::points::{Experiment, Figure, Quantity, Stated};
use crate::picture::{Axis, Chart, Paper, Range, Style};

/// Draws a quantity as SVG.
///
/// # Errors
/// An error of the plotting library.
pub(super) fn draw(
    experiment: &Experiment,
    quantity: &Quantity,
    points: &[Point],
) -> Result<String, String> {
    let svg = chart(experiment, quantity, points).svg()?;
    // The label is for screen readers.
    let label = format!("<svg role=\"img\" aria-label=\"{}: {}\" ", experiment.id, quantity.name);
    let start = svg.find("<svg ").ok_or("no picture was drawn")?;
    Ok(svg[start..].replacen("<svg ", &label, 1))
}

fn chart(experiment: &Experiment, quantity: &Quantity, points: &[Point]) -> Chart {
    let x = match experiment.axis {
        crate::declare::points::Axis { label, unit, log: true } => Axis::log(label, unit),
        crate::declare::points::Axis { label, unit, .. } => Axis::linear(label, unit),
    };
    let y = match quantity.figure {
        Figure::Log => Axis::log(quantity.name, quantity.unit),
        _ => Axis::linear(quantity.name, quantity.unit),
    };
    let mut chart = Chart::lines("", x, y);
    for p in points.iter().filter(|p| p.quantity == quantity.name) {
        let calculated = p.series.starts_with("arithmetic") || p.series.starts_with("bound");
        let style = if calculated { Style::Calculated } else { Style::Main };
        let line = chart.line(style, p.series.as_str());
        line.points.push((p.x, p.median));
        line.ranges.push(Range { x: p.x, low: p.min, high: p.max });
        if let Some(paper) = experiment.paper(quantity.name, &p.series, p.x) {
            let (name, low, high) = match paper.value {
                Stated::Value(v) | Stated::AtMost(v) | Stated::AtLeast(v) => ("the paper", v, v),
                Stated::Range(low, high) => ("the paper's range", low, high),
            };
            let new = || Paper { name: name.to_owned(), values: Vec::new() };
            line.paper.get_or_insert_with(new).values.push(Range { x: p.x, low, high });
        }
    }
    chart
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::points::Run;
    use crate::recorded::of_id;
    use crate::recorded::result::merge;

    #[test]
    fn a_figure_has_its_axes_and_the_papers_marks() {
        let mut run = Run::default();
        for (x, us) in [(20.0, 231.0), (50.0, 579.0)] {
            run.add("round trip p50", "simulated", x, us * 1e3);
        }
        let points = merge(of_id("E81"), vec![run]).points;
        let quantity = of_id("E81").quantity("round trip p50").expect("there is one");
        let svg = draw(of_id("E81"), quantity, &points).expect("drawn");
        assert!(svg.starts_with("<svg role=\"img\" aria-label=\"E81: round trip p50\" "), "{svg}");
        for text in ["senders", "simulated", "the paper"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        // Two dots and two rings, and the ring of the legend.
        assert_eq!(svg.matches("<circle").count(), 5, "{svg}");
    }

    #[test]
    fn a_figure_without_points_has_no_lines() {
        let svg = draw(of_id("E35"), &of_id("E35").quantities[0], &[]).expect("drawn");
        assert!(!svg.contains("<circle"));
    }
}
