//! The experiments of the eRPC paper as pictures.

use crate::scenario::{Cpu, bandwidth, buffers, credits, incast, response_rtt, sessions};
use courser::Control;
use courser_bench::report::Unit;

use crate::declare::text::{bps, counted};
use crate::experiment;
use crate::experiments::composed::TIMELY_CX4;
use crate::picture::{Axis, Chart, Style};

const PER_MILLION: f64 = 1e6;

/// The latency at four percentiles.
pub(super) fn e76(settings: &sessions::Settings, seen: &sessions::Outcome) -> Chart {
    let threads = counted(settings.threads, "thread");
    let title = format!("Calls between {} nodes with {threads} each", settings.nodes);
    let mut chart = Chart::bars(title, Axis::linear("latency", Unit::Time));
    let l = &seen.latency;
    let percentiles =
        [("p50", l.p50_ns), ("p99", l.p99_ns), ("p99.9", l.p99_9_ns), ("p99.99", l.p99_99_ns)];
    let name = format!("simulated, {} CPUs", settings.cpu.name());
    for (row, ns) in percentiles {
        chart.bar(Style::Main, &name, row, ns as f64);
    }
    if settings.cpu == Cpu::Erpc {
        let stated = experiment::stated("E76", "latency p50", "CPU erpc");
        let same =
            stated.into_iter().filter(|(threads, _)| *threads == f64::from(settings.threads));
        let row = chart.row("p50");
        chart.line(Style::Main, name).add_paper("the paper", same.map(|(_, ns)| (row, ns)));
    }
    chart
}

/// Round trips by senders.
pub(super) fn incast(runs: &[(incast::Settings, incast::Outcome)]) -> Chart {
    let mut chart = Chart::lines(
        "Round trip of an incast, by control and recovery",
        Axis::log("senders", Unit::Count),
        Axis::log("round trip", Unit::Time),
    );
    let senders: Vec<f64> = runs.iter().map(|(s, _)| s.senders.into()).collect();
    for (s, o) in runs {
        let x = f64::from(s.senders);
        let name = format!("{}, {}", s.control.name(), s.recovery);
        let stated = |percentile: &str| {
            let quantity = format!("round trip {percentile}");
            let all = match s.control {
                Control::None => experiment::stated("E81", &quantity, "simulated"),
                Control::Timely => experiment::stated("E82", &quantity, TIMELY_CX4),
                _ => Vec::new(),
            };
            all.into_iter().filter(|(x, _)| senders.contains(x))
        };
        let paper = match s.control {
            Control::None => "the paper, without control",
            _ => "the paper, with its control",
        };
        for (style, percentile, ns) in
            [(Style::Main, "p99", o.rtt.p99_ns), (Style::Second, "p50", o.rtt.p50_ns)]
        {
            let line = chart.line(style, format!("{name}: {percentile}"));
            line.points.push((x, ns as f64));
            if line.paper.is_none() {
                line.add_paper(format!("{paper}: {percentile}"), stated(percentile));
            }
        }
    }
    for (s, o) in runs.iter().filter(|(s, _)| s.control == Control::None) {
        let line = chart.line(Style::Calculated, "calculated, without control");
        line.points.push((s.senders.into(), o.expected_rtt_ns as f64));
    }
    chart
}

/// Loss by the limit of the queue: a line for each control, recovery and number of senders.
pub(super) fn buffers(points: &[buffers::Point]) -> Chart {
    let mut chart = Chart::lines(
        "Loss of an incast, by control and recovery",
        Axis::log("largest queue", Unit::Bytes),
        Axis::linear("loss", Unit::Percent),
    );
    for p in points {
        let senders = counted(p.senders, "sender");
        let name = format!("{}, {}, {senders}", p.control.name(), p.recovery);
        let point = (p.buffer_bytes as f64, p.loss_ppm as f64 / PER_MILLION);
        chart.line(Style::Main, name).points.push(point);
    }
    chart
}

/// Use of the line by credits.
pub(super) fn credits(settings: &credits::Settings, seen: &credits::Outcome) -> Chart {
    let mut chart = Chart::lines(
        format!("Use of a line of {} by the credits of a session", bps(settings.rate_bps)),
        Axis::linear("credits", Unit::Count),
        Axis::linear("share of the line", Unit::Percent),
    );
    let share = |ppm: u64| ppm as f64 / PER_MILLION;
    for p in &seen.points {
        let x = f64::from(p.credits);
        chart.line(Style::Main, "simulated").points.push((x, share(p.line_ppm)));
        chart.line(Style::Calculated, "calculated").points.push((x, share(p.expected_ppm)));
    }
    let series = format!("{} Gbit/s", settings.rate_bps / 1_000_000_000);
    let stated = experiment::stated("E35", "share of the line", &series);
    chart.line(Style::Main, "simulated").add_paper("the paper", stated);
    chart
}

/// Goodput by request, and that of writes.
pub(super) fn bandwidth(settings: &bandwidth::Settings, rows: &[bandwidth::Row]) -> Chart {
    let mut chart = Chart::lines(
        format!("Goodput of one request in flight over {}", bps(settings.rate_bps)),
        Axis::log("request", Unit::Bytes),
        Axis::linear("goodput", Unit::Bits),
    );
    for row in rows {
        let x = row.request_bytes as f64;
        chart.line(Style::Main, "calls, simulated").points.push((x, row.goodput_bps as f64));
        let writes = chart.line(Style::Calculated, "writes, calculated");
        writes.points.push((x, row.write_bps as f64));
    }
    chart
}

/// Latency by the packets of the response.
pub(super) fn response_rtt(
    settings: &response_rtt::Settings,
    seen: &response_rtt::Outcome,
) -> Chart {
    let racks = if settings.two_racks { "two racks" } else { "one rack" };
    let mut chart = Chart::lines(
        format!("Calls with large responses, {}, {racks}", bps(settings.rate_bps)),
        Axis::linear("packets of the response", Unit::Count),
        Axis::linear("latency", Unit::Time),
    );
    for p in &seen.points {
        let x = f64::from(p.packets);
        chart.line(Style::Main, "simulated").points.push((x, p.latency_ns as f64));
        let without = chart.line(Style::Calculated, "calculated, without RFRs");
        without.points.push((x, p.without_rfr_ns as f64));
    }
    chart
}
