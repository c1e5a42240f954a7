//! The window of a path before and after a call whose handler is slow: the time of the handler is no
//! congestion.
//!
//! The client first fills its window by large requests, then makes one call to the slow handler
//! while nothing else is under way.

use std::time::Duration;

use courser::{Nexus, Rpc};
use serde::Serialize;

use super::app;
use super::hosts::Hosts;
use super::{ScenarioError, check};
use courser_sim::SetupError;
use courser_sim::fabric::{HOST_RATE_BPS, Topology};
use courser_sim::{HostId, World};

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);

/// Large requests before the slow call.
const LARGE_CALLS: usize = 8;

/// Bytes of each.
const LARGE_BYTES: usize = 1 << 20;

/// Request type of the slow handler.
const SLOW: u16 = 9;

/// How the handler takes its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
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
    pub const fn name(self) -> &'static str {
        match self {
            Handler::Inline => "inline",
            Handler::Worker => "worker",
            Handler::Deferred => "deferred",
        }
    }
}

/// Settings of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// All hosts.
    #[serde(flatten)]
    pub hosts: Hosts,
    /// How the handler takes its time.
    pub handler: Handler,
    /// Its time, ns: at most 1 s. Default 20 ms.
    pub handler_ns: u64,
    /// Bytes of its request: at most 1 MiB. Default 32.
    pub request_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            hosts: Hosts::default(),
            handler: Handler::Inline,
            handler_ns: 20_000_000,
            request_bytes: 32,
        }
    }
}

/// Results of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
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

fn server(nexus: &Nexus, settings: &Settings) -> Result<Rpc, SetupError> {
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
pub fn run(settings: &Settings) -> Result<Outcome, ScenarioError> {
    settings.hosts.check()?;
    let time_ns = settings.handler_ns;
    check(time_ns <= 1_000_000_000, "handler_ns", time_ns, "at most 1 s")?;
    let bytes = settings.request_bytes;
    check((1..=1 << 20).contains(&bytes), "request_bytes", bytes as u64, "1 byte to 1 MiB")?;
    let mut config = settings.hosts.config(Topology::one_switch(2), 2);
    config.nexus.line_rate_bps = HOST_RATE_BPS;
    if settings.handler != Handler::Deferred {
        config.costs.handlers.insert(SLOW, time_ns);
    }
    let mut world = World::new(config)?;
    let of = *settings;
    world.start(SERVER, move |nexus| server(nexus, &of))?;
    world.start(CLIENT, Nexus::endpoint)?;
    let uri = world.uri(SERVER);
    let failed = |first: String| ScenarioError::Calls { count: 1, first };
    let session = world.rpc(CLIENT).connect(&uri).map_err(|e| failed(e.to_string()))?;
    app::connect_all(&mut world)?;
    let (large, slow) = (vec![0xa5; LARGE_BYTES], vec![0xa5; bytes]);
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
    Ok(Outcome {
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
    use crate::scenario::{Spoilt, assert_refused};

    #[test]
    fn each_kind_of_handler_takes_its_time() {
        for handler in Handler::ALL {
            let settings = Settings { handler, ..Settings::default() };
            let seen = run(&settings).expect("runs");
            assert!((20_000_000..21_000_000).contains(&seen.slow_ns), "{handler:?} {seen:?}");
            assert_eq!(run(&settings).expect("runs"), seen);
            let hosts = Hosts { control: courser::Control::None, ..settings.hosts };
            let seen = run(&Settings { hosts, ..settings }).expect("runs");
            assert_eq!((seen.window_before, seen.window_after), (None, None));
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("handler_ns", |s| s.handler_ns = u64::MAX),
            ("request_bytes", |s| s.request_bytes = 0),
            ("credits", |s| s.hosts.credits = 0),
        ];
        assert_refused(bad, Settings::default, run);
    }
}
