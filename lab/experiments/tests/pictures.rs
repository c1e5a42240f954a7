//! Small runs of each simulated experiment with `--svg`.

use crate::common::{refused, run, stderr, stdout};

/// The small run of each experiment, and texts of its picture: axes, lines, rows and values of papers.
const PICTURES: &[(&str, &[&str])] = &[
    (
        "run e76 --nodes 5 --warm-up 50us --time 100us",
        &["latency", "simulated, erpc CPUs", "p50", "p99.99", "the paper"],
    ),
    (
        "run incast --senders 2,20 --control none,default --size 64KiB --warm-up 100us --time 200us",
        &[
            "senders",
            "round trip",
            "none, go-back-n: p99",
            "none, go-back-n: p50",
            "default, go-back-n: p99",
            "calculated, without control",
            "the paper, without control: p99",
        ],
    ),
    (
        "run fan-in --servers 2,5 --rounds 1",
        &["servers", "none, default: longest", "default, default: p50", "completion / calculated"],
    ),
    (
        "run fan-in --servers 2,5 --rounds 1 --control default --seeds 3",
        &["servers", "default, default: longest", "completion / calculated"],
    ),
    (
        "run buffers --senders 4 --static-bytes 20000 --time 1ms --recovery go-back-n",
        &["largest queue", "loss", "none, go-back-n, 4 senders", "default, go-back-n, 4 senders"],
    ),
    (
        "run credits --max-credits 3",
        &["credits", "share of the line", "simulated", "calculated", "the paper"],
    ),
    (
        "run bandwidth --sizes 512,1KiB --time 1ms",
        &["request", "goodput", "calls, simulated", "writes, calculated"],
    ),
    (
        "run response-rtt --max-packets 2",
        &["packets of the response", "simulated", "calculated, without RFRs"],
    ),
    (
        "run background --senders 3 --warm-up 100us --time 100us",
        &["none, default: 64000 B", "default, default: 32 B to the victim", "with the incast"],
    ),
    ("run join-leave --senders 2 --every 200us", &["none, default", "default, default"]),
    (
        "run first-burst --senders 3 --rounds 1",
        &["request", "none, default, 480 kB: longest", "default, default, 480 kB: p50"],
    ),
    (
        "run uplink --flows 2 --time 100us --control default --buffer-bytes 0 --mark-bytes 65000",
        &["default, default, 12 MB, marks: 65 kB", "s index", "innocent flow"],
    ),
    ("run reroute --senders 1 --control none", &["Gbit/s", "none, default, 1 sender"]),
    (
        "run slow-handler --handler worker --size 32",
        &["window, packets", "default, default, worker, 32 B", "before", "after"],
    ),
    (
        "run uncongested --nodes 3 --large 20% --time 100us",
        &["32 B: p50", "64000 B: p99", "none, default", "default, default"],
    ),
    (
        "run operating-range --gbps 10 --rtt 1us,5us --frames 1072 --senders 2 --rtts 1",
        &["base round trip", "none, default, 10 Gbit/s, 1072 B, jitter 0"],
    ),
    (
        "bits-pool --connections 1,4 --loss 1% --time 1ms",
        &["connections", "share of the pool", "loss 1 %", "the paper"],
    ),
    (
        "lost-call --calls 200 --loss 1% --scheme go-back-n,default",
        &["latency", "go-back-n", "lost one packet: p99", "p99 without loss and 3"],
    ),
];

#[test]
fn every_experiment_draws_its_lines() {
    let path = std::env::temp_dir().join(format!("courser-pictures-{}.svg", std::process::id()));
    for (line, texts) in PICTURES {
        let output = run(&format!("sim {line} --svg {}", path.display()));
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(!stdout(&output).is_empty(), "{line}: no table");
        let svg = std::fs::read_to_string(&path).expect("a picture");
        std::fs::remove_file(&path).expect("clean up");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{line}: {svg}");
        for text in *texts {
            assert!(svg.contains(text), "{line}: {text}: {svg}");
        }
    }
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_the_run() {
    for (line, _) in PICTURES {
        refused(&format!("sim {line} --svg /absent/a.svg"), "cannot write");
        refused(&format!("sim {line} --svg -"), "--svg needs a file");
    }
    refused("bench sweep --svg -", "--svg needs a file");
    refused("sim run speed --svg a.svg", "unexpected argument '--svg'");
}

#[test]
fn the_help_of_every_experiment_has_its_picture() {
    for (line, _) in PICTURES {
        let end = line.find(" --").unwrap_or(line.len());
        let help = stdout(&run(&format!("sim {} --help", &line[..end])));
        assert!(help.contains("--svg <PATH>"), "{line}: {help}");
    }
}
