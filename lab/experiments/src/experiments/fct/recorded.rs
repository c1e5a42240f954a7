//! Recorded points of web-search flows, and the paper's range.

use courser::Recovery;
use courser_bench::report::Unit;

use super::{BETTER, FlowTimes, LOSSLESS, PAPER, SLOW, WebSearch};
use crate::declare::Recorded;
use crate::declare::points::{self, Paper, Run, Stated};
use crate::declare::seeds::Row;

pub(super) const ALL: &[Recorded<WebSearch, FlowTimes>] = &[FABRIC, STEADY];

const OTHER_LOADS: &str = "The paper has a range over its loads; its sizes of buffers, RED limits and \
    number of flows are not stated. A NACK repairs a loss in a round trip here, which leaves less \
    to gain than in the paper, whose go-back-N loses more by each loss (experiment M23). Where the \
    slowest flows wait for others at the link of their sender, with or without loss, no recovery \
    could be faster: the bound.";

const LOAD: points::Axis = points::Axis { label: "load", unit: Unit::Percent, log: false };

const IN_THE_PAPER: &[Paper] = &[Paper {
    quantity: BETTER[1],
    series: "melo",
    x: None,
    value: Stated::Range(PAPER.0, PAPER.1),
    reason: OTHER_LOADS,
}];

/// The schemes beside each other, and the default without loss.
fn with_bound(lossy: WebSearch) -> Vec<WebSearch> {
    let schemes = vec![Recovery::Selective];
    let lossless = WebSearch { schemes, loss_ppm: 0, ..lossy.clone() };
    vec![lossy, lossless]
}

fn series(s: &WebSearch, o: &FlowTimes) -> String {
    match s.loss_ppm {
        0 => LOSSLESS.to_owned(),
        _ => o.scheme.to_string(),
    }
}

const FABRIC: Recorded<WebSearch, FlowTimes> = Recorded {
    id: "M24",
    results: include_str!("../../../recorded/M24.json"),
    title: "Web-search flows over a lossy spine",
    source: "MELO section 4.1.2, figure 5b",
    model: "MELO's fabric of 320 hosts, 32 leaves and four spines (short runs: 20 hosts in two \
        leaves), web-search flow sizes, Poisson arrivals, 300 flows at each load (short runs: 60), \
        the same for every scheme, credits of one bandwidth-delay product, DCQCN with marking by RED \
        from 100 to 400 kB, up to 20 %; spine 0 loses 1 % of what crosses it. go-back-n goes back \
        on timeouts only, go-back-n-nack on NACKs, as in the paper. The bound is the time of either \
        over that of the default without loss.",
    axis: LOAD,
    x: |_, o| o.load,
    series,
    only: &[],
    runs: |size| {
        with_bound(WebSearch {
            load_ppm: size.pick(vec![300_000, 800_000], vec![100_000, 500_000, 900_000]),
            hosts: size.pick(20, 320),
            flows: size.pick(60, 300),
            ..WebSearch::default()
        })
    },
    more: bounds,
    paper: IN_THE_PAPER,
};

/// Counted flows of a seed, of which the second longest is the 99th percentile: it is above the true
/// one with a chance of one half.
pub(super) const STEADY_FLOWS: u32 = 169;

const STEADY: Recorded<WebSearch, FlowTimes> = Recorded {
    id: "M24-p99",
    results: include_str!("../../../recorded/M24-p99.json"),
    title: "Web-search flows over a lossy spine: a 99th percentile with its confidence",
    source: "MELO section 4.1.2, figure 5b",
    model: "As experiment M24, with 20 hosts in two leaves, so that each of ten senders has 18 flows at \
        each load, where 300 flows of 160 senders meet an almost idle network. 169 flows are counted \
        (short runs: 69): the 99th percentile of a seed is above that of all such flows with a chance of \
        one half, so that the range of five seeds contains it with 94 % if flows were independent \
        (short runs as well, in a wider range).",
    axis: LOAD,
    x: |_, o| o.load,
    series,
    only: &[],
    runs: |size| {
        with_bound(WebSearch {
            load_ppm: size.pick(vec![500_000], vec![300_000, 800_000]),
            schemes: size.pick(vec![Recovery::GoBackNNack, Recovery::Melo], Recovery::ALL.to_vec()),
            hosts: 20,
            flows: size.pick(69, STEADY_FLOWS),
            ..WebSearch::default()
        })
    },
    more: bounds,
    paper: IN_THE_PAPER,
};

/// How much better any scheme could be: the times of the slow ones over those without loss.
fn bounds(rows: &[Row<WebSearch, FlowTimes>], run: &mut Run) {
    let (lossless, lossy): (Vec<_>, Vec<_>) = rows.iter().partition(|(s, _)| s.loss_ppm == 0);
    let lossy: Vec<&FlowTimes> = lossy.into_iter().map(|(_, o)| o).collect();
    for (_, o) in lossless {
        for (quantity, than) in BETTER.into_iter().zip(SLOW) {
            if let Some(times) = o.better(than, lossy.iter().copied()) {
                run.add(quantity, "bound", o.load, times);
            }
        }
    }
}
