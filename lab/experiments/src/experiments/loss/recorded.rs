//! Recorded points of one flow, and the papers' values.

use courser::{Control, Recovery};
use courser_bench::report::Unit;

use super::{Goodput, Loss, Reorder};
use crate::declare::Recorded;
use crate::declare::points::{Axis, Paper, Stated};
use crate::scenario::path::DATA;

pub(super) const ALL: &[Recorded<Loss, Goodput>] =
    &[REORDERING, RECOVERY_TIME, NIC, LOSS, CONTROLS];

/// Credits of one bandwidth-delay product only, so that no packets wait in the sender's NIC. It is
/// measured for its goodput alone.
pub(super) fn is_narrow(settings: &Loss) -> bool {
    settings.window_permille == 1_000
}

const LOSS_AXIS: Axis =
    Axis { label: "chance that a packet is lost", unit: Unit::Plain, log: true };

const ONE_FLOW: &str = "MELO's fabric, two hosts under one leaf: 40 Gbit/s, 1,024 data bytes a \
    packet, a round trip of 16 us, credits of three bandwidth-delay products, requests of 64 MiB \
    one after the other. The leaf loses data and credit returns alike. CPUs cost nothing. \
    Go-back-N, with and without NACKs, and MELO use a recovery time of 262 us, with which \
    go-back-N without NACKs has the paper's 45.6 % at 1e-3. Goodput is a share of the same \
    scheme's without loss; a lost packet has used the link, so 1 - p is the bound.";

const UNDER_DCQCN: &str = "MELO's fabric, two hosts under one leaf: 40 Gbit/s, 1,024 data bytes a \
    packet, a round trip of 16 us, credits of three bandwidth-delay products, requests of 64 MiB \
    one after the other, DCQCN. The leaf loses data and credit returns alike, and marks by RED \
    from 100 to 400 kB, up to 20 %; one flow fills no queue there, so that nothing is marked. CPUs \
    cost nothing. go-back-n goes back on timeouts only, go-back-n-nack on NACKs, as NICs do; its \
    series \"one BDP\" has credits of one bandwidth-delay product, so that no packets wait in the \
    sender's NIC. The recovery time is 262 us, with which go-back-n has the paper's 45.6 % at \
    1e-3. The paper contradicts itself at 1e-3: close to zero in figure 1 (a NIC), 45.6 % in \
    figure 5a (its simulation). Goodput is a share of the same scheme's without loss; a lost \
    packet has used the link, so 1 - p is the bound.";

const NACK_COSTS_A_ROUND_TRIP: &str = "A NACK costs what is in flight and in the sender's NIC: 213 \
    packets with these credits, 71 with credits of one bandwidth-delay product, so that 82 % and \
    93 % remain at 1e-3. Figure 5a is as if each loss cost 1,190 packets, at 1e-2 as well: the \
    paper does not state why. Figure 1 is its measurement of a NIC, close to zero from 1e-3 on.";

/// The paper's value at a loss rate.
const fn paper_goodput(series: &'static str, loss: f64, share: f64, reason: &'static str) -> Paper {
    Paper { quantity: "goodput", series, x: Some(loss), value: Stated::Value(share), reason }
}

/// The paper's values of go-back-N on NACKs: figure 1, and figure 5a.
const fn paper_nack(series: &'static str, loss: f64, value: Stated) -> Paper {
    let reason = NACK_COSTS_A_ROUND_TRIP;
    Paper { quantity: "goodput", series, x: Some(loss), value, reason }
}

const LOSS: Recorded<Loss, Goodput> = Recorded {
    id: "M23",
    results: include_str!("../../../recorded/M23.json"),
    title: "Goodput of one flow against loss",
    source: "MELO sections 2.2 and 4.1.1, figures 1 and 5a",
    model: UNDER_DCQCN,
    axis: LOSS_AXIS,
    x: |_, o| o.loss,
    series: |s, o| format!("{}{}", o.scheme, if is_narrow(s) { ", one BDP" } else { "" }),
    only: &[],
    runs: |size| {
        let wide = Loss {
            loss_ppm: size.pick(vec![1_000, 10_000], vec![10, 100, 1_000, 10_000, 50_000]),
            warm_up_ns: size.pick(Some(5_000_000), None),
            time_ns: size.pick(20_000_000, 200_000_000),
            ..Loss::default()
        };
        let schemes = vec![Recovery::GoBackNNack];
        let narrow = Loss { schemes, window_permille: 1_000, ..wide.clone() };
        vec![wide, narrow]
    },
    more: |rows, run| {
        for (_, o) in rows.iter().filter(|(_, o)| o.scheme == Recovery::Selective) {
            run.add("goodput", "bound, 1 - p", o.loss, 1.0 - o.loss);
        }
    },
    paper: &[
        paper_goodput("go-back-n", 1e-3, 0.456, ""),
        paper_goodput(
            "go-back-n",
            1e-2,
            0.071,
            "The recovery time is fitted at 1e-3; with 263 us 7.4 % follow here.",
        ),
        paper_nack("go-back-n-nack", 1e-3, Stated::Range(0.0, 0.456)),
        paper_nack("go-back-n-nack", 1e-2, Stated::Range(0.0, 0.071)),
        paper_nack("go-back-n-nack, one BDP", 1e-3, Stated::Range(0.0, 0.456)),
        paper_nack("go-back-n-nack, one BDP", 1e-2, Stated::Range(0.0, 0.071)),
        paper_goodput("melo", 1e-3, 0.999, ""),
        paper_goodput(
            "melo",
            1e-2,
            0.99,
            "Packets that are lost twice wait for the recovery time. With 50 us MELO has 98.9 % \
             (experiment M15); the paper does not state its own.",
        ),
    ],
};

const NIC: Recorded<Loss, Goodput> = Recorded {
    id: "M21",
    results: include_str!("../../../recorded/M21.json"),
    title: "Goodput of one flow against loss, as of a NIC",
    source: "MELO section 2.2, figure 1: RDMA writes of a ConnectX-3 Pro",
    model: "As experiment M23, without congestion control, with messages of 4 MiB (figure 1 does not state \
        its own) and credits of one bandwidth-delay product. go-back-0 begins a message again at its \
        first packet when one is lost, and its receiver discards what had arrived, as NICs of that \
        time did; go-back-n-nack goes back to the lost packet. A message of n packets of which each \
        is lost with p takes ((1-p)^-n - 1) / p packets with go-back-0: the series \"expected\".",
    axis: LOSS_AXIS,
    x: |_, o| o.loss,
    series: |_, o| o.scheme.to_string(),
    only: &["goodput"],
    runs: |size| {
        vec![Loss {
            controls: vec![Control::None],
            schemes: size.pick(&NIC_SCHEMES[..2], &NIC_SCHEMES[..]).to_vec(),
            // A short run at 1e-3 ends before the first message does.
            loss_ppm: size.pick(vec![100, 300], vec![10, 30, 100, 300, 1_000, 10_000]),
            window_permille: 1_000,
            request_bytes: NIC_MESSAGE,
            warm_up_ns: Some(2_000_000),
            time_ns: size.pick(12_000_000, 40_000_000),
            ..Loss::default()
        }]
    },
    more: |rows, run| {
        for (_, o) in rows.iter().filter(|(_, o)| o.scheme == Recovery::GoBackZero) {
            run.add("goodput", "expected", o.loss, go_back_0(o.loss));
        }
    },
    paper: &[paper_nic("go-back-0", 1e-3, 0.0, 0.1), paper_nic("go-back-0", 1e-2, 0.0, 0.01)],
};

const NIC_SCHEMES: [Recovery; 3] = [Recovery::GoBackZero, Recovery::GoBackNNack, Recovery::Melo];

/// Bytes of a message, 4,096 packets.
const NIC_MESSAGE: usize = 4 << 20;

/// Share of the goodput with go-back-0: packets of a message over those that are sent until all of one
/// try arrive.
fn go_back_0(loss: f64) -> f64 {
    let packets = (NIC_MESSAGE / DATA) as f64;
    packets * loss / ((1.0 - loss).powf(-packets) - 1.0)
}

/// Figure 1: the throughput falls past 1e-4 and is close to zero at 1e-3.
const fn paper_nic(series: &'static str, loss: f64, from: f64, to: f64) -> Paper {
    let (quantity, x, value) = ("goodput", Some(loss), Stated::Range(from, to));
    Paper { quantity, series, x, value, reason: "" }
}

const CONTROLS: Recorded<Loss, Goodput> = Recorded {
    id: "M28",
    results: include_str!("../../../recorded/M28.json"),
    title: "Goodput of one flow by loss and control",
    source: "MELO section 4: recovery does not depend on the congestion control",
    model: "As experiment M23, with each of none, Timely, DCQCN, Swift and Courser's own control. \
        Timely and DCQCN take no notice of losses, the other two do. Goodput is a share of that \
        without loss under the same control.",
    axis: LOSS_AXIS,
    x: |_, o| o.loss,
    series: |_, o| format!("{}, {}", o.scheme, o.control.name()),
    only: &["goodput"],
    runs: |size| {
        let all =
            [Control::None, Control::Timely, Control::Dcqcn, Control::Swift, Control::TwoWindow];
        vec![Loss {
            controls: size.pick(&all[..3], &all[..]).to_vec(),
            schemes: size.pick(
                vec![Recovery::Melo],
                vec![Recovery::GoBackNNack, Recovery::Melo, Recovery::Selective],
            ),
            loss_ppm: size.pick(vec![10_000], vec![1_000, 10_000]),
            warm_up_ns: size.pick(Some(5_000_000), None),
            time_ns: size.pick(10_000_000, 100_000_000),
            ..Loss::default()
        }]
    },
    more: |_, _| {},
    paper: &[
        paper_goodput("melo, dcqcn", 1e-3, 0.999, ""),
        paper_goodput(
            "melo, dcqcn",
            1e-2,
            0.99,
            "Packets that are lost twice wait for the recovery time: see experiment M15.",
        ),
    ],
};

const RECOVERY_TIME: Recorded<Loss, Goodput> = Recorded {
    id: "M15",
    results: include_str!("../../../recorded/M15.json"),
    title: "Recovery time of lost retransmissions",
    source: "MELO section 3.2.3",
    model: ONE_FLOW,
    axis: Axis { label: "recovery time", unit: Unit::Time, log: true },
    x: |_, o| o.rto_ns.unwrap_or_default() as f64,
    series: |_, _| "melo, loss 1e-2".to_owned(),
    only: &["goodput"],
    runs: |size| {
        vec![Loss {
            schemes: vec![Recovery::Melo],
            controls: vec![Control::None],
            loss_ppm: vec![10_000],
            rto_ns: size.pick(
                vec![50_000, 250_000],
                vec![30_000, 40_000, 50_000, 60_000, 75_000, 100_000, 250_000],
            ),
            warm_up_ns: size.pick(Some(5_000_000), None),
            time_ns: size.pick(20_000_000, 200_000_000),
            ..Loss::default()
        }]
    },
    more: |_, _| {},
    paper: &[Paper {
        quantity: "goodput",
        series: "melo, loss 1e-2",
        x: Some(50_000.0),
        value: Stated::Value(0.99),
        reason: "",
    }],
};

const REORDERING: Recorded<Loss, Goodput> = Recorded {
    id: "E58",
    results: include_str!("../../../recorded/E58.json"),
    title: "Goodput of one flow against reordering",
    source: "eRPC section 5.3 (which takes reordered packets for lost)",
    model: "As experiment M23, without loss and congestion control; packets with data come up to three round trips late, \
        with Courser's default recovery. Counted after 100 ms, in which the reorder window has \
        adapted (short runs: 20 ms).",
    axis: Axis { label: "share of packets that come late", unit: Unit::Plain, log: true },
    x: |_, o| o.reorder,
    series: |_, o| o.scheme.name().to_owned(),
    only: &[],
    runs: |size| {
        let late = |&ppm: &u32| Reorder { ppm, max_ns: 48_000 };
        let shares = size.pick(&[10_000][..], &[1_000, 10_000, 50_000, 100_000]);
        vec![Loss {
            schemes: vec![Recovery::Selective],
            controls: vec![Control::None],
            loss_ppm: vec![0],
            reorder: shares.iter().map(late).collect(),
            warm_up_ns: size.pick(Some(20_000_000), None),
            time_ns: size.pick(20_000_000, 200_000_000),
            ..Loss::default()
        }]
    },
    more: |_, _| {},
    paper: &[],
};
