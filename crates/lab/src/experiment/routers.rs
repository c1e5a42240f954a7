//! The three topologies of scaled-out software routers, with the times of each hop.

use courser_bench::report::Unit;
use courser_sim::scenario::routers::{self, Settings, Shape};

use super::control::{SHARE, TIME, quantity};
use super::{Axis, Better, Experiment, Figure, Quantity, Tolerance};

/// Tolerance of latencies, which grow without limit at the load that a router carries.
const LATENCY: Tolerance = Tolerance::relative(0.25).or_absolute(200.0);

pub(super) const ROUTERS: Experiment = Experiment {
    id: "S1",
    title: "Router of several nodes, by topology",
    source: "Scatter-gather batching section II-A, Fig. 1",
    model: "Four nodes with four threads and a line each; packets arrive at random, and go to any \
        other line. Mesh: a cable between every two nodes, and Valiant load balancing. Switch: all \
        nodes at one switch. Mixed: the lines, too, and nodes with twice the rate of a line. A \
        packet goes from node to node as a one-way message, in frames of up to 9,000 bytes; \
        packed: messages that are ready together share a frame. CPU costs as measured, without \
        those of a NIC's driver. Latency from the first bit at one line to the last at the other; \
        hops between nodes from thread to thread, first and second. Packets that pile up at a load \
        beyond what the router carries are not lost within the measured time, but wait.",
    axis: Axis { label: "load", unit: Unit::Percent, log: false },
    quantities: &[
        Quantity {
            name: "throughput, share of the lines",
            unit: Unit::Percent,
            better: Better::Higher,
            tolerance: SHARE,
            figure: Figure::Linear,
        },
        Quantity {
            name: "latency p50",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: LATENCY,
            figure: Figure::Log,
        },
        quantity("latency p99", Unit::Time, LATENCY),
        quantity("first hop p50", Unit::Time, LATENCY),
        quantity("first hop p99", Unit::Time, LATENCY),
        quantity("second hop p50", Unit::Time, LATENCY),
        quantity("second hop p99", Unit::Time, LATENCY),
        quantity("packets dropped", Unit::Count, TIME),
    ],
    paper: &[],
    run: |size, seed, run| {
        let short = (&[(10, 64)][..], &[300_000][..], 50_000);
        let full =
            (&[(10, 64), (40, 64), (40, 1_500)][..], &[100_000, 500_000, 900_000][..], 200_000);
        let (lines, loads, time_ns) = size.pick(short, full);
        for &(gbps, packet_bytes) in lines {
            for topology in Shape::ALL {
                for (batching, packed) in [(true, "packed"), (false, "not packed")] {
                    let name = topology.name();
                    let series = format!("{name}, {packed}, {gbps} Gbit/s, {packet_bytes} B");
                    for &load_ppm in loads {
                        let mut settings = Settings {
                            topology,
                            batching,
                            line_rate_bps: gbps * 1_000_000_000,
                            packet_bytes,
                            load_ppm,
                            time_ns,
                            ..Settings::default()
                        };
                        settings.hosts.seed = seed;
                        point(&settings, &series, run)?;
                    }
                }
            }
        }
        Ok(())
    },
};

fn point(
    settings: &Settings,
    series: &str,
    run: &mut super::Run,
) -> Result<(), courser_sim::scenario::ScenarioError> {
    run.settings(settings);
    let seen = routers::run(settings)?;
    let x = f64::from(settings.load_ppm) / 1e6;
    run.add("throughput, share of the lines", series, x, seen.throughput_share);
    run.add("latency p50", series, x, seen.end_to_end.p50_ns as f64);
    run.add("latency p99", series, x, seen.end_to_end.p99_ns as f64);
    for hop in &seen.hops {
        let (p50, p99) = match hop.hop {
            "first" => ("first hop p50", "first hop p99"),
            "second" => ("second hop p50", "second hop p99"),
            _ => continue,
        };
        run.add(p50, series, x, hop.latency.p50_ns as f64);
        run.add(p99, series, x, hop.latency.p99_ns as f64);
    }
    run.add("packets dropped", series, x, seen.packets_dropped as f64);
    Ok(())
}
