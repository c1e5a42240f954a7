//! A path that becomes longer: senders of large requests, and from one moment on every packet to
//! the server arrives later, as after a change of routes.
//!
//! A controller that takes the longer path for a queue holds the senders back for as long as it
//! remembers the shorter one.

use std::rc::Rc;

use serde::Serialize;

use super::app::{self, SharedTally};
use super::hosts::Hosts;
use super::{ScenarioError, check, check_warm_up, data_per_packet, per_second, wire_bytes};
use courser_sim::fabric::{HOST_RATE_BPS, LinkFaults, Topology};
use courser_sim::{HostId, World, WorldConfig};

/// The server's host.
const SERVER: HostId = HostId(0);

/// Goodput of the longer path as a share of that before, at which it has recovered, per million.
const RECOVERED_PPM: u64 = 950_000;

/// Settings of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// All hosts. Default 64 credits: more than the longer path holds.
    #[serde(flatten)]
    pub hosts: Hosts,
    /// Senders: 1 to 100. Default 1.
    pub senders: u32,
    /// Additional time of a packet to the server, ns: at most 1 ms. Default 10 us.
    pub longer_ns: u64,
    /// Time before the change, ns. Default 50 ms.
    pub warm_up_ns: u64,
    /// Length of a measured slice, ns: 100 us to 100 ms. Default 1 ms.
    pub slice_ns: u64,
    /// Slices after the change: 1 to 1,000. Default 100.
    pub slices: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            hosts: Hosts { credits: 64, ..Hosts::default() },
            senders: 1,
            longer_ns: 10_000,
            warm_up_ns: 50_000_000,
            slice_ns: 1_000_000,
            slices: 100,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        self.hosts.check()?;
        check((1..=100).contains(&self.senders), "senders", self.senders, "1 to 100")?;
        check(self.longer_ns <= 1_000_000, "longer_ns", self.longer_ns, "at most 1 ms")?;
        let range = "100 us to 100 ms";
        let slices = 100_000..=100_000_000;
        check(slices.contains(&self.slice_ns), "slice_ns", self.slice_ns, range)?;
        check((1..=1_000).contains(&self.slices), "slices", self.slices, "1 to 1,000")?;
        check_warm_up(self.warm_up_ns)
    }

    fn config(&self) -> WorldConfig {
        let topology = Topology::one_switch(self.senders + 1);
        let mut config = self.hosts.config(topology, self.senders);
        config.nexus.line_rate_bps = HOST_RATE_BPS;
        config
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Goodput before the change, bit/s.
    pub before_bps: u64,
    /// Its share of that of a link that is never idle.
    pub before_share: f64,
    /// Goodput of each slice after it, bit/s.
    pub after_bps: Vec<u64>,
    /// The end of the last slice with less than 0.95 of the goodput before, ns after the change;
    /// `None`: the last slice is one.
    pub recovered_after_ns: Option<u64>,
    /// The lowest slice as a share of the goodput before.
    pub lowest_share: f64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "super::hex")]
    pub digest: u64,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Settings) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let mut world = World::new(settings.config())?;
    let tally = start(&mut world, settings)?;
    app::connect_all(&mut world)?;
    let begin_ns = world.now_ns();
    let measured_ns = settings.warm_up_ns / 2;
    let accepted = |world: &World| world.peek(SERVER, 0).map_or(0, |rpc| rpc.stats().rx_kinds[0]);
    let data = data_per_packet(settings.hosts.max_frame) as u64;
    let bps = |packets: u64, time_ns| per_second(packets * data * 8, time_ns);
    world.run_to(begin_ns + settings.warm_up_ns - measured_ns);
    let mut packets = accepted(&world);
    world.run_to(begin_ns + settings.warm_up_ns);
    let before_bps = bps(accepted(&world) - packets, measured_ns);
    let faults = LinkFaults { extra_delay_ns: settings.longer_ns, ..LinkFaults::default() };
    for host in world.hosts().filter(|&h| h != SERVER) {
        let link = world.fabric().uplink(host);
        world.set_link_faults(link, faults);
    }
    let change_ns = world.now_ns();
    let mut after_bps = Vec::new();
    for slice in 1..=u64::from(settings.slices) {
        packets = accepted(&world);
        world.run_to(change_ns + slice * settings.slice_ns);
        after_bps.push(bps(accepted(&world) - packets, settings.slice_ns));
    }
    tally.borrow().check()?;
    let slow = |bps: &u64| bps * 1_000_000 < before_bps * RECOVERED_PPM;
    let low = after_bps.iter().rposition(slow).map_or(0, |at| at + 1);
    let lowest = after_bps.iter().min().copied().unwrap_or(0);
    let full_bps = HOST_RATE_BPS as f64 * data as f64 / wire_bytes(data as usize) as f64;
    Ok(Outcome {
        before_bps,
        before_share: before_bps as f64 / full_bps,
        recovered_after_ns: (low < after_bps.len()).then(|| low as u64 * settings.slice_ns),
        lowest_share: lowest as f64 / before_bps as f64,
        after_bps,
        digest: world.digest(),
    })
}

fn start(world: &mut World, settings: &Settings) -> Result<SharedTally, ScenarioError> {
    let tally = SharedTally::default();
    world.start(SERVER, app::server)?;
    let uri = world.uri(SERVER);
    let data = data_per_packet(settings.hosts.max_frame);
    let bytes = (8 << 20) / data * data;
    for host in world.hosts().filter(|&h| h != SERVER) {
        let (uri, tally) = (uri.clone(), Rc::clone(&tally));
        world.start(host, move |nexus| {
            app::closed_loop(nexus, &uri, app::SINK, bytes, 1, tally.clone())
        })?;
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Spoilt, assert_refused};

    fn short() -> Settings {
        Settings { warm_up_ns: 2_000_000, slices: 3, ..Settings::default() }
    }

    #[test]
    fn credits_alone_fill_the_longer_path() {
        let hosts = Hosts { control: courser::Control::None, ..short().hosts };
        let settings = Settings { hosts, ..short() };
        let seen = run(&settings).expect("runs");
        assert!(seen.before_share > 0.98, "{seen:?}");
        assert_eq!((seen.recovered_after_ns, seen.after_bps.len()), (Some(0), 3), "{seen:?}");
        assert_eq!(run(&settings).expect("runs"), seen);
    }

    #[test]
    fn a_path_that_holds_more_than_the_credits_does_not_recover() {
        let hosts = Hosts { control: courser::Control::None, credits: 16, ..short().hosts };
        let seen = run(&Settings { hosts, ..short() }).expect("runs");
        assert_eq!(seen.recovered_after_ns, None, "{seen:?}");
        assert!(seen.lowest_share < 0.7, "{seen:?}");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("senders", |s| s.senders = 0),
            ("longer_ns", |s| s.longer_ns = u64::MAX),
            ("slice_ns", |s| s.slice_ns = 1),
            ("slices", |s| s.slices = 0),
            ("warm_up_ns", |s| s.warm_up_ns = u64::MAX),
        ];
        assert_refused(bad, Settings::default, run);
    }
}
