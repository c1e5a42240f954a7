//! The window of a path before and after a call whose handler is slow: the time of the handler is no
//! congestion.
//!
//! The client first fills its window by large requests, then makes one call to the slow handler
//! while nothing else is under way.

use std::time::Duration;

use courser::{Nexus, Rpc};
use courser_bench::report::Unit;
use courser_kit::units::{show_bytes, show_ns};
use courser_sim::fabric::{Node, Topology};
use courser_sim::{HostId, SetupError, World};
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{Named, Nested, bytes, name, named, parameters, time};
use crate::declare::points::{self, SHARE, Tolerance};
use crate::declare::seeds::Row;
use crate::declare::special::Special;
use crate::declare::{Experiment, Recorded, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::{Hosts, ScenarioError, app};

pub(crate) const EXPERIMENT: Experiment<SlowHandler, Windows> = Experiment {
    name: "slow-handler",
    aliases: &[],
    about: "Window of a path before and after a call to a slow handler",
    run: Simulation::One(|settings, _| simulate(settings)),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        let (handler, hosts) = (show_ns(s.handler_ns as f64), s.hosts.caption());
        format!(
            "A call to a handler of {handler} between large calls of 1 MiB; window in packets; {hosts}"
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "slow-handler",
        results: include_str!("../../recorded/slow-handler.json"),
        title: "Window of a path around a slow handler",
        source: "Courser ADR 5",
        model: "Two hosts at a switch, with 25 Gbit/s for the client and 10 for the server: the \
            queue is in the switch. Eight calls of 1 MiB, a call to a handler of \
            20 ms, another call of 1 MiB. The handler runs on the thread of its endpoint, on a \
            worker, or replies by a timer.",
        axis: points::Axis { label: "request of the slow call", unit: Unit::Bytes, log: true },
        x: |s, _| s.request_bytes as f64,
        series: |s, _| s.handler.name().to_owned(),
        only: &[],
        runs: |size| {
            let sizes = size.pick(&[32][..], &[32, 64_000]);
            let of = |handler, &request_bytes: &usize| SlowHandler {
                handler,
                request_bytes,
                ..SlowHandler::default()
            };
            Handler::ALL.iter().flat_map(|&h| sizes.iter().map(move |b| of(h, b))).collect()
        },
        more: |_, _| {},
        paper: &[],
    }],
    special: Special::NONE,
};

type Col = Column<SlowHandler, Windows>;

const COLUMNS: &[Col] = &[
    Col::text("control, recovery", |s, _| s.hosts.names()),
    Col::text("handler", |s, _| s.handler.name().to_owned()),
    Col::text("request", |s, _| show_bytes(s.request_bytes as u64)),
    Col::figure("window before", Unit::Count, |_, o| o.window_before.map(f64::from))
        .or("none")
        .recorded("window before, packets", Tolerance { relative: 0.1, absolute: 1.0 }),
    Col::figure("after", Unit::Count, |_, o| o.window_after.map(f64::from)).or("none"),
    Col::quantity("window after / before", Unit::Plain, SHARE, |_, o| {
        Some(f64::from(o.window_after?) / f64::from(o.window_before?))
    }),
    Col::figure("1 MiB before", Unit::Time, |_, o| Some(o.large_before_ns as f64)),
    Col::figure("after ", Unit::Time, |_, o| Some(o.large_after_ns as f64)),
    Col::quantity("1 MiB after / before", Unit::Plain, SHARE, |_, o| {
        Some(o.large_after_ns as f64 / o.large_before_ns as f64)
    }),
    Col::figure("slow call", Unit::Time, |_, o| Some(o.slow_ns as f64)),
    Col::figure("resent", Unit::Count, |_, o| Some(o.retransmitted as f64)),
];

/// The window before and after a call to a slow handler, with the controls that have one.
fn picture(rows: &[Row<SlowHandler, Windows>]) -> Chart {
    let window = Axis::linear("window, packets", Unit::Count);
    let Some((first, _)) = rows.first() else { return Chart::bars("", window) };
    let time = show_ns(first.handler_ns as f64);
    let title = format!("Window around a call to a handler of {time}, by control and recovery");
    let mut chart = Chart::bars(title, window);
    for (s, o) in rows {
        let (handler, request) = (s.handler.name(), show_bytes(s.request_bytes as u64));
        let row = format!("{}, {handler}, {request}", s.hosts.names());
        let windows =
            [(Style::Second, "before", o.window_before), (Style::Main, "after", o.window_after)];
        for (style, name, packets) in windows {
            if let Some(packets) = packets {
                chart.bar(style, name, &row, packets.into());
            }
        }
    }
    chart
}

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);

/// Rate of the server's link, bit/s.
const SERVER_RATE_BPS: u64 = 10_000_000_000;

/// Large requests before the slow call.
const LARGE_CALLS: usize = 8;

/// Bytes of each.
const LARGE_BYTES: usize = 1 << 20;

/// Request type of the slow handler.
const SLOW: u16 = 9;

/// How the handler takes its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handler {
    /// On the thread of the endpoint, which receives nothing meanwhile.
    Inline,
    /// On a worker thread.
    Worker,
    /// It keeps the handle of the request and answers by a timer.
    Deferred,
}

impl Handler {
    /// All of them.
    pub const ALL: [Handler; 3] = [Handler::Inline, Handler::Worker, Handler::Deferred];

    /// Its name in options and results.
    pub fn name(self) -> &'static str {
        self.named()
    }
}

named!(Handler {
    Handler::Inline => "inline", "On the thread of the endpoint";
    Handler::Worker => "worker", "On a worker thread";
    Handler::Deferred => "deferred", "It answers by a timer";
});

parameters! {
    /// Settings of the experiment.
    #[derive(Copy, Eq)]
    pub struct SlowHandler {
        /// All hosts
        hosts: Hosts = Hosts::default(), Nested;
        /// Kinds of handler
        handler: Handler = Handler::Inline,
            name::<Handler>().option("handler").each("inline,worker,deferred");
        /// Bytes of its request, with commas
        request_bytes: usize = 32, bytes(1..=1 << 20).option("size").each("32,64000");
        /// Time of the handler
        handler_ns: u64 = 20_000_000, time(0..=1_000_000_000).option("time");
    }
}

/// Results of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Windows {
    /// The window before the slow call, packets; `None`: no control.
    pub window_before: Option<u32>,
    /// The window after it.
    pub window_after: Option<u32>,
    /// The time of a large call before it, ns.
    pub large_before_ns: u64,
    /// The time of a large call after it, ns.
    pub large_after_ns: u64,
    /// The time of the slow call, ns.
    pub slow_ns: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
}

fn server(nexus: &Nexus, settings: &SlowHandler) -> Result<Rpc, SetupError> {
    let mut rpc = nexus.endpoint()?;
    app::answer(&mut rpc);
    let time = Duration::from_nanos(settings.handler_ns);
    match settings.handler {
        // Their time is in the table of costs.
        Handler::Inline => rpc.on(SLOW, |cx, _| cx.reply(&b"done"[..])),
        Handler::Worker => rpc.on_worker(SLOW, |work| work.reply(&b"done"[..]))?,
        Handler::Deferred => rpc.on(SLOW, move |cx, _| {
            let Some(handle) = cx.defer() else { return };
            cx.after(time, move |cx| {
                // An error means that the client has left, which its call reports.
                let _ = cx.reply_to(handle, &b"done"[..]);
            });
        }),
    }
    Ok(rpc)
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, the session was not connected, or a call has failed.
pub fn run(settings: &SlowHandler) -> Result<Windows, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

/// The link to the server is slower than that of the client. Otherwise the only queue is that of the
/// client's own port, which is no congestion.
fn network() -> Topology {
    Topology::one_switch(2).each_cable(|cable| {
        if [cable.a, cable.b].contains(&Node::Host(SERVER)) {
            cable.spec.rate_bps = SERVER_RATE_BPS;
        }
    })
}

fn simulate(settings: &SlowHandler) -> Result<Windows, ScenarioError> {
    let mut config = settings.hosts.config(network(), 2);
    if settings.handler != Handler::Deferred {
        config.costs.handlers.insert(SLOW, settings.handler_ns);
    }
    let mut world = World::new(config)?;
    let of = *settings;
    world.start(SERVER, move |nexus| server(nexus, &of))?;
    world.start(CLIENT, Nexus::endpoint)?;
    let uri = world.uri(SERVER);
    let failed = |first: String| ScenarioError::Calls { count: 1, first };
    let session = world.rpc(CLIENT).connect(&uri).map_err(|e| failed(e.to_string()))?;
    app::connect_all(&mut world)?;
    let (large, slow) = (vec![0xa5; LARGE_BYTES], vec![0xa5; settings.request_bytes]);
    let mut large_before_ns = 0;
    for _ in 0..LARGE_CALLS {
        large_before_ns = app::one_call(&mut world, CLIENT, session, app::SINK, &large)?;
    }
    let window = |world: &World| {
        let stats = world.peek(CLIENT, 0).and_then(|rpc| rpc.session_stats(session));
        stats.and_then(|stats| stats.window)
    };
    let window_before = window(&world);
    let slow_ns = app::one_call(&mut world, CLIENT, session, SLOW, &slow)?;
    let window_after = window(&world);
    let large_after_ns = app::one_call(&mut world, CLIENT, session, app::SINK, &large)?;
    let retransmitted = world.peek(CLIENT, 0).map_or(0, |rpc| rpc.stats().retransmitted);
    Ok(Windows {
        window_before,
        window_after,
        large_before_ns,
        large_after_ns,
        slow_ns,
        retransmitted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_handler_takes_its_time() {
        for handler in Handler::ALL {
            let settings = SlowHandler { handler, ..SlowHandler::default() };
            let seen = run(&settings).expect("runs");
            assert!(seen.window_before.is_some() && seen.window_after.is_some(), "{seen:?}");
            assert!((20_000_000..21_000_000).contains(&seen.slow_ns), "{handler:?} {seen:?}");
            assert_eq!(run(&settings).expect("runs"), seen);
            let hosts = Hosts { control: courser::Control::None, ..settings.hosts };
            let seen = run(&SlowHandler { hosts, ..settings }).expect("runs");
            assert_eq!((seen.window_before, seen.window_after), (None, None));
        }
    }
}
