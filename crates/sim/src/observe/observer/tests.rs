//! One run, recorded by all recorders at once.

use std::io;

use courser_proto::wire::Packet as Wire;
use serde_json::json;

use super::super::decode::made::{datagram, frame_of, request};
use super::super::sink::tests::Shared;
use super::*;
use crate::event::EventQueue;
use crate::fabric::{Fabric, FabricEvent, LinkFaults, Outcome, Schedule, Topology};
use crate::observe::TraceFilter;

/// Two packets leave on a link; one reaches its host, the other is marked and lost.
fn run(tap: &mut impl Tap) {
    let good = datagram(1, frame_of(&[request(8, b"hello"), Wire::Ack { session: 5, req_num: 7 }]));
    let lost = datagram(2, vec![0; 30]);
    tap.sent(1_000, LinkId(0), &good);
    tap.queue(1_500, LinkId(3), 900);
    tap.marked(1_500, LinkId(3), &lost);
    tap.sent(2_000, LinkId(3), &lost);
    tap.queue(2_100, LinkId(3), 0);
    tap.dropped(2_500, &Place::Link(LinkId(3)), DropReason::Loss, &lost);
    tap.delivered(3_000, HostId(1), &good);
}

fn everything(out: &[Shared; 3]) -> Settings {
    let [trace, capture, log] = out.each_ref().map(|o| Sink::new(o.clone()));
    Settings {
        trace: Some(TraceSettings { to: Some(trace), keep: 2, filter: TraceFilter::default() }),
        captures: vec![CaptureSettings { to: capture, links: super::super::Links::All }],
        series: Some(SeriesSettings::default()),
        log: Some(log),
    }
}

#[test]
fn every_part_sees_every_event() {
    let out: [Shared; 3] = Default::default();
    let observer = Rc::new(RefCell::new(Observer::new(everything(&out), Names::default())));
    run(&mut observer.clone());
    let mut observer = Rc::into_inner(observer).unwrap().into_inner();
    observer.completed(3_500, HostId(1), 2_500, 1_000);
    observer.round_trip(1_800);
    observer.note(3_600, &[1], "crash n1");
    let r = observer.into_report(4_000);
    assert_eq!(r.errors, [""; 0]);
    assert_eq!((r.sent, r.delivered, r.delivered_bytes, r.marked), (2, 1, 28 + 21 + 16, 1));
    assert_eq!((r.drops.total(), r.drops.because(DropReason::Loss)), (1, 1));
    assert_eq!(r.drops.at(Place::Link(LinkId(3)), DropReason::Loss), 1);
    assert_eq!(r.kinds[Kind::Request as usize] + r.kinds[Kind::Ack as usize], 2);
    assert_eq!(r.kinds.iter().sum::<u64>(), 2);
    assert_eq!((r.one_way.extremes_ns(), r.events), (Some((2_000, 2_000)), 7));
    let point = r.series.as_ref().unwrap().points(LinkId(3))[0];
    assert_eq!((point.packets, point.drops, point.marks, point.queue_max_bytes), (1, 1, 1, 900));
    let trace = out[0].text();
    let lines: Vec<&str> = trace.lines().collect();
    assert_eq!(lines.len(), 5, "{trace}");
    assert_eq!(r.last_lines, lines[3..]);
    let capture = out[1].bytes();
    let has = |text: &str| capture.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(has("marked before link 3") && has("dropped at link 3: loss"));
    assert_eq!(out[2].text().lines().count(), 7);
}

#[test]
fn json_has_units_and_rates() {
    let out: [Shared; 3] = Default::default();
    let mut observer = Observer::new(everything(&out), Names::default());
    run(&mut observer);
    observer.completed(3_500, HostId(1), 2_500, 1_000);
    let digest = format!("{:016x}", observer.digest());
    let j = observer.into_report(4_000).to_json();
    for (key, want) in [
        ("log_digest", json!(digest)),
        ("latency_p50_ns", json!(2_500)),
        ("rtt_p50_ns", json!(null)),
        ("one_way_max_ns", json!(2_000)),
        ("goodput_bps", json!(2_000_000_000)),
        ("rate_rps", json!(250_000)),
        ("queue_max_bytes", json!(900)),
    ] {
        assert_eq!(j[key], want, "{key}");
    }
    assert_eq!(j["drops"]["by_reason"]["loss"], 1);
    assert_eq!(j["drops"]["by_reason"]["burst"], 0, "no kind is left out");
    let loss = json!([{ "place": "link 3", "reason": "loss", "packets": 1 }]);
    assert_eq!(j["drops"]["by_place"], loss);
    assert_eq!(j["kinds"]["ack"], 1);
    assert_eq!(j["series"]["links"][1]["queue_max_bytes"], json!([900]));
    assert_eq!(j["last_lines"].as_array().unwrap().len(), 2);
    let idle = Observer::new(Settings::default(), Names::default()).into_report(0).to_json();
    assert_eq!(idle["goodput_bps"], json!(null));
}

#[test]
fn observation_is_repeatable_and_changes_no_digest() {
    let seen = || {
        let out: [Shared; 3] = Default::default();
        let mut observer = Observer::new(everything(&out), Names::default());
        run(&mut observer);
        let json = observer.into_report(4_000).to_json().to_string();
        (json, out.map(|o| o.bytes()))
    };
    assert_eq!(seen(), seen());
    let mut silent = Observer::new(Settings::default(), Names::default());
    run(&mut silent);
    assert!(seen().0.contains(&format!("{:016x}", silent.digest())));
}

#[test]
fn a_changed_payload_alone_changes_the_digest() {
    let digest = |byte| {
        let mut observer = Observer::new(Settings::default(), Names::default());
        observer.delivered(3_000, HostId(1), &datagram(1, vec![byte; 30]));
        observer.digest()
    };
    assert_ne!(digest(0), digest(1));
}

struct Broken;

impl io::Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("disk full"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn write_errors_are_reported_and_disturb_nothing() {
    let mut settings = everything(&Default::default());
    settings.captures[0].to = Sink::new(Broken);
    let mut observer = Observer::new(settings, Names::default());
    run(&mut observer);
    let r = observer.into_report(4_000);
    assert_eq!((r.errors, r.sent), (vec!["capture: disk full".to_string()], 2));
}

impl Schedule for EventQueue<FabricEvent> {
    fn at(&mut self, at_ns: u64, event: FabricEvent) {
        self.push(at_ns, event);
    }
}

#[test]
fn a_fabric_reports_every_hop_of_a_packet() {
    let out: [Shared; 3] = Default::default();
    let topology = Topology::one_switch(2);
    let observer = Rc::new(RefCell::new(Observer::new(everything(&out), Names::of(&topology))));
    let mut fabric = Fabric::new(&topology, 1).unwrap();
    fabric.tap = Some(Box::new(observer.clone()));
    let twice = LinkFaults { duplicate_ppm: 1_000_000, ..LinkFaults::default() };
    fabric.set_faults(0, LinkId(0), twice);
    let mut queue = EventQueue::default();
    let packet = Box::new(datagram(1, frame_of(&[request(8, b"hello")])));
    fabric.transmit(HostId(0), 1_000, packet, &mut queue);
    while let Some((now_ns, event)) = queue.pop_until(u64::MAX) {
        if let Outcome::Deliver(host, packet) = fabric.on_event(now_ns, event, &mut queue) {
            observer.borrow_mut().delivered(now_ns, host, &packet);
        }
    }
    drop(fabric);
    let r = Rc::into_inner(observer).unwrap().into_inner().into_report(10_000);
    assert_eq!((r.sent, r.delivered, r.kinds[Kind::Request as usize]), (3, 2, 2));
    let trace = out[0].text();
    // Behind the time: where and what.
    let story: Vec<&str> = trace.lines().map(|l| l[13..].split(" n0:").next().unwrap()).collect();
    let want = [
        "n0>s0      send",
        "s0>n1      send",
        "s0>n1      send dup",
        "n1         recv",
        "n1         recv dup",
    ];
    let (mut story, mut want) = (story, want);
    story.sort_unstable();
    want.sort_unstable();
    assert_eq!(story, want, "{trace}");
    let series = r.series.unwrap();
    let sum = |link| series.points(LinkId(link)).iter().map(|p| p.packets).sum::<u64>();
    assert_eq!([sum(0), sum(1), sum(2), sum(3)], [1, 0, 0, 2]);
    assert!(series.points(LinkId(3)).iter().any(|p| p.queue_max_bytes > 0));
}
