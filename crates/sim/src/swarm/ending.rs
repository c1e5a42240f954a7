//! Phases of a seed: faults under load, then none, and the checks at the end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Role, SessionError, SessionId, SessionState, TaskStats};

use super::client::{BACKOFF_NS, Client};
use super::coverage::MessageCounts;
use super::coverage::{Harvest, forbidden};
use super::dice::{MS, US};
use super::draw::Scenario;
use super::edges::Cost;
use super::faults::{FaultKind, Planned, Weather};
use super::oracle::Who;
use super::workload::Shared;
use crate::host::port::lock;
use crate::{DropReason, HostId, Invariant, World};

/// Interval at which sessions are checked.
const SUPERVISE_NS: u64 = 400 * US;

/// Longest delay before a session is connected again.
const MAX_BACKOFF_NS: u64 = 6 * MS;

/// Calls that prove at the end that a session works: no more than the shortest queue accepts.
const PROOFS: usize = 4;

/// A control connection whose other side has crashed in the middle of the greeting is given up
/// after this time, and another one dialed.
const DIAL_NS: u64 = 5_000 * MS;

/// Unused control connections are closed after 30 s. Simulating that costs more than the rest of a
/// seed: one in this number of seeds does, if it has few hosts.
const CONTROL_SEEDS: u64 = 20;
const CONTROL_HOSTS: usize = 4;
const CONTROL_NS: u64 = 31_000 * MS;

/// A running seed.
pub(super) struct Play<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) shared: Rc<Shared>,
    pub(super) weather: Rc<Weather>,
    pub(super) harvest: Rc<RefCell<Harvest>>,
}

impl Play<'_> {
    /// All phases, until the end or the first violation.
    pub(super) fn run(&self, world: &mut World) {
        let steps: [fn(&Self, &mut World); 7] = [
            Self::storm,
            Self::calm,
            Self::reckon,
            Self::prove,
            Self::rest,
            Self::part,
            Self::last_look,
        ];
        for step in steps {
            step(self, world);
            self.look(world);
            if !world.violations().is_empty() {
                break;
            }
        }
        self.shared.stopped.set(true);
        let hosts: Vec<HostId> = world.hosts().collect();
        for host in hosts {
            self.harvest.borrow_mut().take(world, host, &self.shared);
        }
        let delivered = lock(&self.shared.oracle).messages.delivered();
        if let Some(detail) = self.harvest.borrow().messages.differ(delivered) {
            world.violate(Invariant::Application, detail);
        }
        let digest = lock(&self.shared.oracle).digest();
        world.note(digest);
    }

    /// Reports the findings of the ledger.
    fn look(&self, world: &mut World) {
        let found = lock(&self.shared.oracle).take_found();
        if let Some((invariant, detail)) = found {
            world.violate(invariant, detail);
        }
    }

    fn is_over(&self, world: &World) -> bool {
        !world.violations().is_empty() || lock(&self.shared.oracle).has_found()
    }

    /// Advances time until a condition holds or a check fails.
    fn wait(&self, world: &mut World, ns: u64, done: impl Fn(&mut World) -> bool) -> bool {
        world.run_until(Duration::from_nanos(ns), |world| self.is_over(world) || done(world))
    }

    /// Load under faults; then without, until all calls are made.
    fn storm(&self, world: &mut World) {
        self.wait(world, self.scenario.edges.idle_first_ns, |_| false);
        let begin_ns = world.now_ns();
        supervise(&self.shared, world);
        for Planned { at_ns, until_ns, fault } in self.scenario.faults.iter().cloned() {
            let (at_ns, until_ns) = (begin_ns + at_ns, begin_ns + until_ns);
            self.weather.plan(world, Planned { at_ns, until_ns, fault });
        }
        let stormy_ns = self.scenario.stormy_ns;
        self.wait(world, stormy_ns, |_| false);
        self.weather.clear(world);
        let left = &self.shared.left;
        self.wait(world, stormy_ns + 20 * MS, |_| left.get() == 0);
        self.shared.stopped.set(true);
    }

    /// Every call ends (I8).
    fn calm(&self, world: &mut World) {
        let open = || lock(&self.shared.oracle).open();
        let messages = |world: &mut World| unacknowledged(&self.shared, world);
        let bound_ns = self.scenario.bound_ns(open() + messages(world));
        let ended = |world: &mut World| open() == 0 && messages(world) == 0;
        if !self.wait(world, bound_ns, ended) && !self.is_over(world) {
            if open() == 0 {
                let (count, ms) = (messages(world), bound_ns / MS);
                let detail = format!("{count} messages have no end {ms} ms after all faults");
                return world.violate(Invariant::Liveness, detail);
            }
            let (count, some) = (open(), lock(&self.shared.oracle).describe_open());
            let ms = bound_ns / MS;
            let detail = format!("{count} calls have not ended {ms} ms after all faults: {some}");
            world.violate(Invariant::Liveness, detail);
        }
    }

    /// Where losses were the only fault, recovery was cheap (I12). Where there was none and the
    /// receive queues have room by bytes, they did not overflow (I4).
    fn reckon(&self, world: &mut World) {
        let dropped = world.counts().dropped[DropReason::NoDescriptor as usize];
        if self.scenario.edges.by_bytes && dropped > 0 {
            let detail = format!("receive queues had no room for {dropped} frames within credits");
            world.violate(Invariant::Credits, detail);
        }
        if !self.scenario.edges.only_loses {
            return;
        }
        let drops = world.fabric().drops().into_iter().chain(world.counts().dropped);
        let lost = drops.sum();
        let mut cost = Cost::default();
        for (host, endpoint) in endpoints(&self.shared, world) {
            if let Some(rpc) = world.endpoint(host, endpoint) {
                cost.add(rpc.stats());
            }
        }
        if let Some(detail) = cost.too_dear(lost, self.scenario.world.nexus.credits) {
            world.violate(Invariant::Recovery, detail);
        }
    }

    /// Every session can be connected, and works (I8).
    fn prove(&self, world: &mut World) {
        if self.scenario.allowed.peers_fail {
            // Sessions with processes that have ended remain until that is noticed.
            let noticed_ns = 2 * self.scenario.world.nexus.failure_timeout.as_nanos() as u64;
            self.wait(world, noticed_ns, |_| false);
        }
        let dial_ns = if self.scenario.allowed.crashes { DIAL_NS } else { 0 };
        let bound_ns = self.scenario.bound_ns(0) + dial_ns;
        let strict = self.scenario.allowed.refusals;
        let all_stand = |world: &mut World| sessions(&self.shared, world).iter().all(|s| s.2);
        if !self.wait(world, bound_ns, all_stand) && !strict && !self.is_over(world) {
            let down = sessions(&self.shared, world).into_iter().find(|s| !s.2);
            let (host, to) = down.map_or((HostId(0), 0), |(host, to, _)| (host, to));
            let why = self.shared.why_down.borrow();
            let detail = format!("n{} cannot connect a session with n{to}: {why}", host.0);
            return world.violate(Invariant::Liveness, detail);
        }
        let hosts: Vec<HostId> = world.hosts().collect();
        for client in hosts.iter().flat_map(|h| clients(&self.shared, *h)) {
            prove_all(&client, world);
        }
        self.calm(world);
    }

    /// At rest: credits have returned (I4), no message is stored (I6).
    fn rest(&self, world: &mut World) {
        let c = &self.scenario.world.nexus;
        let idle_ns = c.idle_after.as_nanos() as u64;
        let rto_ns = c.rto.1.as_nanos() as u64;
        // Handlers of calls that were given up answer; then slots are freed, then sessions become
        // idle.
        let rest_ns = self.scenario.mix.later_ns + 20 * rto_ns + 3 * idle_ns + 25 * MS;
        self.wait(world, rest_ns, |_| false);
        for (host, endpoint) in endpoints(&self.shared, world) {
            if let Some((invariant, detail)) = rests(world, host, endpoint) {
                world.violate(invariant, format!("n{}/{endpoint}: {detail}", host.0));
            }
        }
        self.tally(world);
    }

    /// Messages of the sessions that live were delivered, where nothing was lost in order, and
    /// sessions that had no room for one have reported it.
    fn tally(&self, world: &mut World) {
        let live: Vec<_> = connected(&self.shared, world);
        let lives = |of: &(Who, usize, SessionId)| live.contains(of);
        let oracle = lock(&self.shared.oracle);
        let (missing, some) = oracle.messages.missing(lives);
        let overtaken = oracle.messages.overtaken().map(str::to_owned);
        drop(oracle);
        let mut lost = 0;
        if self.scenario.allowed.no_memory {
            let mut counts = MessageCounts::default();
            for (host, endpoint) in endpoints(&self.shared, world) {
                if let Some(rpc) = world.endpoint(host, endpoint) {
                    counts.add(rpc);
                }
            }
            let ended = &self.harvest.borrow().messages;
            lost = counts.refused + counts.failed + ended.refused + ended.failed;
        }
        if missing > lost {
            let detail = format!("{missing} messages were acknowledged, not delivered: {some}");
            world.violate(Invariant::Liveness, detail);
        }
        if let Some(detail) = overtaken.filter(|_| self.keeps_order(world)) {
            world.violate(Invariant::Application, detail);
        }
        for (who, endpoint, session) in live {
            let Some(client) = self.shared.client(who.host, endpoint) else { continue };
            if client.messages.refused.borrow().contains(&session) {
                let detail = format!("n{}/{endpoint} was not told of room", who.host);
                world.violate(Invariant::Liveness, detail);
            }
        }
    }

    /// Returns whether no frame was lost, duplicated or delayed so far. Those that a transmit queue
    /// has no room for may be dropped by their sender.
    fn keeps_order(&self, world: &mut World) -> bool {
        use FaultKind::{Corrupt, Duplicate, Reorder, UnequalPaths};
        let disorder = [Corrupt, Duplicate, Reorder, UnequalPaths];
        let planned = self.scenario.faults.iter().any(|f| disorder.contains(&f.fault.kind()));
        let mut drops = world.fabric().drops().into_iter().chain(world.counts().dropped);
        if planned || drops.any(|n| n > 0) || self.harvest.borrow().tx_full > 0 {
            return false;
        }
        endpoints(&self.shared, world).into_iter().all(|(host, at)| {
            world.endpoint(host, at).is_none_or(|rpc| rpc.transport_stats().tx_full == 0)
        })
    }

    /// All sessions end: closed by their clients, or with a machine that crashes silently, which
    /// the others have to notice (I7).
    fn part(&self, world: &mut World) {
        self.shared.parted.set(true);
        let gone = HostId((self.scenario.seed % self.shared.lives.len() as u64) as u32);
        if self.scenario.vanishes {
            self.weather.ends(world, gone);
            world.crash(gone);
            let noticed_ns = 2 * self.scenario.world.nexus.failure_timeout.as_nanos() as u64;
            self.wait(world, noticed_ns + 5 * MS, |_| false);
            for (host, at, session) in client_sessions(&self.shared, world) {
                let Some(rpc) = world.endpoint(host, at) else { continue };
                let lane = session.1;
                if lane == gone && rpc.session_state(session.0) != SessionState::Gone {
                    let detail = format!("n{}/{at} has not noticed the end of n{}", host.0, gone.0);
                    world.violate(Invariant::FreedState, detail);
                }
            }
        }
        for (host, at, (session, _)) in client_sessions(&self.shared, world) {
            if let Some(rpc) = world.endpoint(host, at) {
                rpc.close(session);
            }
        }
        self.wait(world, 10 * MS, |_| false);
    }

    /// Nothing is left: no session, no buffer (I6, I7).
    fn last_look(&self, world: &mut World) {
        let hosts: Vec<HostId> = world.hosts().collect();
        for client in hosts.iter().flat_map(|h| clients(&self.shared, *h)) {
            client.pool.borrow_mut().clear();
        }
        for (host, endpoint) in endpoints(&self.shared, world) {
            let Some(rpc) = world.endpoint(host, endpoint) else { continue };
            let (sessions, memory) = (rpc.sessions(), rpc.memory());
            let used = memory.classes.iter().map(|c| c.data_capacity * (c.buffers - c.free));
            let left = used.sum::<usize>().saturating_sub(rpc.session_memory().staging_bytes);
            let name = format!("n{}/{endpoint}", host.0);
            if sessions > 0 {
                let detail = format!("{name} still has {sessions} sessions");
                world.violate(Invariant::FreedState, detail);
            } else if left > 0 {
                world.violate(Invariant::Leak, format!("{name} still has {left} bytes in buffers"));
            }
        }
        if self.scenario.seed.is_multiple_of(CONTROL_SEEDS) && hosts.len() <= CONTROL_HOSTS {
            self.wait(world, CONTROL_NS, |_| false);
            let open = world.control_connections();
            if open > 0 {
                let detail = format!("{open} unused control connections are open");
                world.violate(Invariant::FreedState, detail);
            }
        }
    }
}

/// The endpoints of running processes.
fn endpoints(shared: &Shared, world: &World) -> Vec<(HostId, usize)> {
    let running = world.hosts().filter(|h| world.is_running(*h));
    running.flat_map(|h| (0..shared.endpoints).map(move |e| (h, e))).collect()
}

fn clients(shared: &Shared, host: HostId) -> Vec<Rc<Client>> {
    shared.clients.borrow()[host.0 as usize].clone()
}

/// Sessions of running clients: endpoint, session, peer.
fn client_sessions(
    shared: &Shared,
    world: &World,
) -> Vec<(HostId, usize, (courser::SessionId, HostId))> {
    let mut all = Vec::new();
    for (host, at) in endpoints(shared, world) {
        let Some(client) = shared.client(host.0, at) else { continue };
        for lane in client.lanes.borrow().iter() {
            if let Some(session) = lane.session {
                all.push((host, at, (session, HostId(lane.plan.to))));
            }
        }
    }
    all
}

/// The connected sessions of running clients.
fn connected(shared: &Shared, world: &mut World) -> Vec<(Who, usize, SessionId)> {
    let mut all = Vec::new();
    for (host, at, (session, _)) in client_sessions(shared, world) {
        let Some(rpc) = world.endpoint(host, at) else { continue };
        if rpc.session_state(session) == SessionState::Connected {
            all.push((shared.who(host.0), at, session));
        }
    }
    all
}

/// Messages of running processes that have not ended.
fn unacknowledged(shared: &Shared, world: &mut World) -> u64 {
    let mut sum = 0;
    for (host, at) in endpoints(shared, world) {
        sum += world.endpoint(host, at).map_or(0, |rpc| rpc.outstanding_messages());
    }
    sum
}

/// All lanes, and whether their sessions are connected.
fn sessions(shared: &Shared, world: &mut World) -> Vec<(HostId, u32, bool)> {
    let mut all = Vec::new();
    for (host, at) in endpoints(shared, world) {
        let Some(client) = shared.client(host.0, at) else { continue };
        for lane in client.lanes.borrow().iter() {
            let stands = lane.session.is_some_and(|s| {
                let rpc = world.endpoint(host, at);
                rpc.is_some_and(|rpc| rpc.session_state(s) == SessionState::Connected)
            });
            all.push((host, lane.plan.to, stands));
        }
    }
    all
}

fn prove_all(client: &Rc<Client>, world: &mut World) {
    let Who { host, .. } = client.who;
    let at = client.lanes.borrow().first().map(|l| l.plan.endpoint);
    let sessions: Vec<_> = client.lanes.borrow().iter().filter_map(|l| l.session).collect();
    let Some(rpc) = at.and_then(|at| world.endpoint(HostId(host), at)) else { return };
    for session in sessions {
        if rpc.session_state(session) == SessionState::Connected {
            for _ in 0..PROOFS {
                client.prove(&mut rpc.context(), session);
            }
            client.prove_messages(&mut rpc.context(), session);
        }
    }
}

/// State of an endpoint that must not exist at rest.
fn rests(world: &mut World, host: HostId, endpoint: usize) -> Option<(Invariant, String)> {
    let most = world.config().nexus.credits;
    let rpc = world.endpoint(host, endpoint)?;
    let open = rpc.outstanding_calls();
    if open > 0 {
        return Some((
            Invariant::ExactlyOneEnd,
            format!("{open} calls are open that were not made"),
        ));
    }
    let high = rpc.stats().max_in_flight;
    if most.is_some_and(|most| high > most) {
        return Some((Invariant::Credits, format!("{high} packets were in flight")));
    }
    let held = rpc.session_memory().held_bytes;
    if held > 0 {
        return Some((Invariant::Leak, format!("{held} bytes of messages are stored")));
    }
    let tasks = rpc.task_stats();
    if tasks != TaskStats::default() {
        return Some((Invariant::Leak, format!("futures have ended, and left {tasks:?}")));
    }
    let messages = rpc.outstanding_messages();
    if messages > 0 {
        return Some((Invariant::Liveness, format!("{messages} messages are not acknowledged")));
    }
    for session in rpc.sessions_from(0).collect::<Vec<_>>() {
        let Some(s) = rpc.session_stats(session) else { continue };
        let client = s.role == Role::Client;
        let busy = s.in_flight > 0 || s.queued > 0 || s.quarantined > 0 || s.messages > 0;
        if busy || (client && s.credits != s.credit_limit) {
            return Some((Invariant::Credits, format!("at rest, a session has {s:?}")));
        }
    }
    None
}

/// Connects failed sessions again and again, as an application does.
fn supervise(shared: &Rc<Shared>, world: &mut World) {
    let now_ns = world.now_ns();
    for (host, at) in endpoints(shared, world) {
        let stats = world.endpoint(host, at).map(|rpc| rpc.stats().drops);
        if let Some(detail) = stats.and_then(|drops| forbidden(host, &drops, shared)) {
            world.violate(Invariant::Internal, detail);
        }
        if now_ns < shared.paused_until_ns[host.0 as usize].get() {
            continue;
        }
        let Some(client) = shared.client(host.0, at) else { continue };
        let Some(rpc) = world.endpoint(host, at) else { continue };
        for lane in client.lanes.borrow_mut().iter_mut() {
            let state = lane.session.map_or(SessionState::Gone, |s| rpc.session_state(s));
            match state {
                SessionState::Connected => lane.backoff_ns = BACKOFF_NS,
                SessionState::Gone if lane.session.is_some() => {
                    if let Some(e) = lane.session.and_then(|s| rpc.session_error(s)) {
                        if let SessionError::DatapathSilent { .. } = e {
                            lock(&shared.oracle).silent(host.0);
                        }
                        *shared.why_down.borrow_mut() = e.to_string();
                    }
                    lane.session = None;
                    shared.ended.set(true);
                    lane.retry_at_ns = now_ns + lane.backoff_ns;
                    lane.backoff_ns = (2 * lane.backoff_ns).min(MAX_BACKOFF_NS);
                }
                SessionState::Gone if now_ns < lane.retry_at_ns => {}
                SessionState::Gone => {
                    let slash = lane.plan.to_endpoint.map_or(String::new(), |e| format!("/{e}"));
                    let uri = format!("sim://n{}:31850{slash}", lane.plan.to);
                    lane.session = rpc.connect(&uri).ok();
                }
                _ => {}
            }
        }
    }
    let again = shared.clone();
    world.after(Duration::from_nanos(SUPERVISE_NS), move |world| {
        // After all have closed, no session is connected again.
        if !again.parted.get() {
            supervise(&again, world);
        }
    });
}
