//! The picture: three panels of bars, latency, rate and goodput, as SVG.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use courser_bench::report::Metric;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::contestants::{Contestant, Role};
use crate::report::{At, shown};
use crate::rounds::Measured;

const WIDTH: u32 = 900;
const BAR: i32 = 24;
const LABELS: i32 = 280;
const VALUES: i32 = 110;
const HEAD: i32 = 44;
const FOOT: i32 = 30;
/// What the shades of the bars mean.
const CAPTION: &str = "grey: RPC libraries; light: bare sockets, which are limits and no peers";
const FONT: &str = "sans-serif";

/// One bar.
struct Bar {
    label: &'static str,
    role: Role,
    value: f64,
}

/// One panel: shorter is better, or longer.
struct Panel {
    title: String,
    unit: &'static str,
    bars: Vec<Bar>,
    /// Bars show orders of magnitude.
    log: bool,
}

/// Writes the picture of the placement with the most windows.
///
/// # Errors
/// Nothing was measured, or the file cannot be written.
pub fn write(measured: &Measured, path: &Path) -> Result<()> {
    let all = At::all(measured);
    let at = all.first().ok_or_else(|| anyhow!("nothing was measured"))?;
    let case = |key| at.cases().iter().position(|case| case.key == key).unwrap_or_default();
    let place = at.placement.map_or_else(String::new, |_| format!(", cores {}", at.name()));
    let panels = [
        Panel {
            title: format!(
                "32 B echo, 1 in flight: median latency{place} (logarithmic; shorter is better)"
            ),
            unit: "µs",
            bars: bars(at, Metric::Latency, |_| Some(case("echo_32b_1"))),
            log: true,
        },
        Panel {
            title: format!(
                "32 B echo, 64 in flight: calls per second{place} (logarithmic; longer is better)"
            ),
            unit: "K/s",
            bars: bars(at, Metric::Rate, |_| Some(case("echo_32b_64"))),
            log: true,
        },
        Panel {
            title: format!("1 MiB requests: goodput{place} (longer is better)"),
            unit: "Gbit/s",
            bars: bars(at, Metric::Goodput, |contestant| at.best(contestant)),
            log: false,
        },
    ];
    let heights = panels.each_ref().map(|panel| HEAD + BAR * panel.bars.len() as i32);
    let height = heights.iter().sum::<i32>() + FOOT;
    let draw_all = || -> Result<()> {
        let root = SVGBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut top = 0;
        for (panel, height) in panels.iter().zip(heights) {
            draw(&root, panel, top)?;
            top += height;
        }
        root.draw(&Text::new(CAPTION, (12, top + 6), (FONT, 14).into_font()))?;
        Ok(root.present()?)
    };
    draw_all().with_context(|| format!("cannot draw {}", path.display()))
}

fn bars(at: &At<'_>, metric: Metric, case: impl Fn(&Contestant) -> Option<usize>) -> Vec<Bar> {
    let bar = |contestant: &Contestant| {
        let figure = at.figure(case(contestant)?, contestant, metric)?;
        let value = figure.median / shown(metric).2;
        Some(Bar { label: contestant.about, role: contestant.role, value })
    };
    at.contestants().into_iter().filter_map(bar).collect()
}

fn draw(canvas: &DrawingArea<SVGBackend<'_>, Shift>, panel: &Panel, top: i32) -> Result<()> {
    let title = (FONT, 16).into_font().style(FontStyle::Bold);
    canvas.draw(&Text::new(panel.title.clone(), (12, top + 16), title))?;
    for (row, bar) in (0..).zip(&panel.bars) {
        let y = top + HEAD + BAR * row;
        let right = LABELS + length(bar.value, panel);
        let color = match bar.role {
            Role::Courser => RGBColor(0, 90, 181),
            Role::Peer => RGBColor(120, 130, 140),
            Role::Limit => RGBColor(205, 210, 215),
        };
        let font = (FONT, 14).into_font();
        canvas.draw(&Text::new(bar.label, (12, y + 3), font.clone()))?;
        canvas.draw(&Rectangle::new([(LABELS, y), (right, y + BAR - 6)], color.filled()))?;
        let value = format!("{} {}", crate::table::short(bar.value), panel.unit);
        canvas.draw(&Text::new(value, (right + 6, y + 3), font))?;
    }
    Ok(())
}

/// Of a bar, in pixels. Logarithmic ones begin at half the smallest value.
fn length(value: f64, panel: &Panel) -> i32 {
    let values = panel.bars.iter().map(|bar| bar.value);
    let (least, most) = values.fold((f64::MAX, 0.0), |(l, m), v| (l.min(v), f64::max(m, v)));
    let share = match panel.log {
        true => (value / least * 2.0).log2() / (most / least * 2.0).log2(),
        false => value / most,
    };
    let room = f64::from(WIDTH as i32 - LABELS - VALUES);
    // A value that is none, such as a rate of 0, has no length.
    (share.clamp(0.0, 1.0) * room) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::measured;
    use crate::rounds::PEERS;

    #[test]
    fn a_picture_has_all_bars_and_stays_within_its_frame() {
        let path = std::env::temp_dir().join(format!("peers-{}.svg", std::process::id()));
        write(&measured(), &path).expect("a picture");
        let text = std::fs::read_to_string(&path).expect("the file");
        std::fs::remove_file(&path).expect("clean up");
        assert!(text.starts_with("<svg") && text.contains("</svg>"));
        assert_eq!(text.matches("tarpc 0.38").count(), 3);
        assert_eq!(text.matches("Gbit/s").count(), 3);
        assert_eq!(text.matches("bare sockets").count(), 1);
    }

    #[test]
    fn nothing_measured_is_an_error() {
        let error =
            write(&Measured::new(&PEERS, true), Path::new("unused.svg")).expect_err("nothing");
        assert!(error.to_string().contains("nothing was measured"));
    }

    #[test]
    fn lengths_grow_with_values() {
        let bar = |value| Bar { label: "", role: Role::Peer, value };
        for log in [false, true] {
            let bars = vec![bar(1.0), bar(2.0), bar(100.0)];
            let panel = Panel { title: String::new(), unit: "", bars, log };
            let lengths: Vec<_> = panel.bars.iter().map(|b| length(b.value, &panel)).collect();
            assert!(lengths[0] > 0 && lengths[0] < lengths[1] && lengths[1] < lengths[2]);
            assert_eq!(length(0.0, &panel), 0);
        }
    }
}
