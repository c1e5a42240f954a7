//! Start, stop, pause and restart of processes; a restart has empty memory.

use std::sync::Arc;
use std::time::Duration;

use courser::Nexus;
use courser::parts::machine::Thread;

use super::{CONTROL_PORT, World, WorldError, purpose};
use crate::event::nanos;
use crate::host::costs::CpuCosts;
use crate::host::ip_of;
use crate::host::life::Life;
use crate::host::machine::SimMachine;
use crate::host::port::lock;
use crate::host::process::{Endpoints, Process, SetupError};
use crate::packet::HostId;
use crate::rng::Rng;

/// Longest time in which clients are informed of the end of streams and requests, ns; as in
/// [`courser::Rpc::shutdown`].
const NOTICE_NS: u64 = 100_000_000;

/// Interval of the checks whether a process that stops has finished.
const LOOK_EVERY: Duration = Duration::from_micros(200);

impl World {
    /// Starts a process on a host: `setup` creates its endpoints and registers handlers; everything
    /// else happens in callbacks. It is kept and runs again when the process is restarted: state
    /// that it captures by reference counting survives a crash; a disk that loses what was not synced
    /// is [`World::disk`]. A process that runs
    /// there is killed first.
    ///
    /// # Errors
    /// The set-up failed.
    pub fn start<E, X>(
        &mut self,
        host: HostId,
        mut setup: impl FnMut(&Nexus) -> Result<E, X> + 'static,
    ) -> Result<(), WorldError>
    where
        E: Endpoints,
        SetupError: From<X>,
    {
        self.kill(host);
        self.host(host).setup = Some(Box::new(move |nexus| Ok(setup(nexus)?.endpoints())));
        self.restart(host)
    }

    /// Starts the host's process again, and its machine if that was down: with the same set-up,
    /// at the same address, and nothing in memory.
    ///
    /// # Errors
    /// The set-up failed; nothing runs on the host then.
    pub fn restart(&mut self, host: HostId) -> Result<(), WorldError> {
        self.kill(host);
        let now_ns = self.now_ns;
        let hosts = self.hosts.len();
        let (wakes, streams) = (self.wakes.clone(), self.streams.clone());
        let (seed, numbers, mut config) = (self.cfg.seed, self.cfg.numbers, self.cfg.nexus.clone());
        if let Some(at) = (host.0 as usize).checked_rem(self.cfg.recovery.len()) {
            config.recovery = self.cfg.recovery[at];
        }
        if let Some(at) = (host.0 as usize).checked_rem(self.cfg.control.len()) {
            config.control = self.cfg.control[at];
        }
        if let Some(at) = (host.0 as usize).checked_rem(self.cfg.packing.len()) {
            config.packing = Some(self.cfg.packing[at]);
        }
        let h = self.host(host);
        h.up = true;
        let Some(mut setup) = h.setup.take() else { return Ok(()) };
        h.paused_until_ns = 0;
        h.life += 1;
        let life = Life { host, number: h.life };
        let draws = purpose::PROCESS + (u64::from(host.0) << 32) + u64::from(life.number);
        let rng = (Rng::stream(seed, draws), numbers);
        let local_ns = h.oscillator.shows(now_ns);
        let (nic, costs) = (h.nic.clone(), h.costs.clone());
        let machine = SimMachine::new(life, hosts, nic, costs, wakes, streams, rng, local_ns);
        let machine = Arc::new(machine);
        let uri = format!("sim://{}:{CONTROL_PORT}", ip_of(host));
        let made = Nexus::bind_in(machine.clone(), &uri, config)
            .map_err(SetupError::from)
            .and_then(|nexus| setup(&nexus).map(|rpcs| (nexus, rpcs)));
        self.host(host).setup = Some(setup);
        let (nexus, rpcs) = made.map_err(|cause| {
            lock(&self.streams).process_ends(life, false);
            WorldError::Setup { host: host.0, at_ns: now_ns, cause: cause.to_string() }
        })?;
        let mut process = Process {
            life,
            started_ns: now_ns,
            endpoints: Vec::new(),
            workers: None,
            nexus,
            control: None,
            control_clock: machine.clock_of(Thread::Control),
            control_at_ns: None,
            machine,
        };
        process.collect();
        let adopted = process.adopt(rpcs);
        adopted.map_err(|cause| WorldError::Setup { host: host.0, at_ns: now_ns, cause })?;
        let count = process.endpoints.len();
        self.checker.started(now_ns, life);
        self.host(host).process = Some(process);
        self.answer_unanswered(host);
        for endpoint in 0..count {
            self.wake_endpoint(life, endpoint, 0);
        }
        self.settle();
        Ok(())
    }

    /// Kills the host's process: memory is lost, its kernel closes its control connections, packets
    /// to it are dropped. Its disk keeps what was written.
    pub fn kill(&mut self, host: HostId) {
        self.end_process(host, false);
    }

    /// Crashes the host's whole machine without a notice to its peers. Its disk loses a part of what
    /// was not synced ([`crate::Unsynced`]). [`World::restart`] starts it again.
    pub fn crash(&mut self, host: HostId) {
        self.end_process(host, true);
        let h = self.host(host);
        h.up = false;
        if let Some(disk) = &h.disk {
            disk.crash();
        }
        // Segments that its kernel would have repeated are lost with it.
        self.held.retain(|sent| sent.from != host);
    }

    /// Stops the host's process gracefully, as [`courser::Rpc::shutdown`] does: it takes no new
    /// calls, waits up to `grace` until the running ones have ended, notifies its peers, and ends.
    pub fn stop(&mut self, host: HostId, grace: Duration) {
        let Some(p) = &mut self.host(host).process else { return };
        let life = p.life;
        p.endpoints.iter_mut().for_each(|e| e.rpc.begin_shutdown());
        let grace_ns = nanos(grace);
        let end_ns = self.now_ns.saturating_add(grace_ns);
        let notice_ns = NOTICE_NS.min(grace_ns / 2);
        self.resume(host);
        self.after(LOOK_EVERY, move |world| world.stopping(life, end_ns, Some(notice_ns)));
        let streams_end_ns = end_ns.saturating_sub(notice_ns);
        self.at(streams_end_ns, move |world| {
            if let Some(p) = world.process(life) {
                p.endpoints.iter_mut().for_each(|e| e.rpc.end_streams());
                world.resume(life.host);
            }
        });
    }

    /// Ends a process that stops when it has finished. `notice_ns`: time for its clients to learn that their
    /// requests have ended, before these have.
    fn stopping(&mut self, life: Life, end_ns: u64, notice_ns: Option<u64>) {
        let now_ns = self.now_ns;
        let Some(p) = self.process(life) else { return };
        if now_ns < end_ns && !p.endpoints.iter().all(|e| e.rpc.is_drained()) {
            return self.after(LOOK_EVERY, move |world| world.stopping(life, end_ns, notice_ns));
        }
        if let Some(notice_ns) = notice_ns
            && p.endpoints.iter().any(|e| e.rpc.left_behind().executing > 0)
        {
            p.endpoints.iter_mut().for_each(|e| e.rpc.end_requests());
            self.resume(life.host);
            let end_ns = now_ns.saturating_add(notice_ns);
            return self.after(LOOK_EVERY, move |world| world.stopping(life, end_ns, None));
        }
        if let Some(process) = self.host(life.host).process.take() {
            self.checker.ended(now_ns, life);
            process.leave();
            if let Some(disk) = &self.host(life.host).disk {
                disk.process_ends();
            }
            lock(&self.streams).process_ends(life, false);
            self.bury(life);
        }
    }

    fn end_process(&mut self, host: HostId, silently: bool) {
        let Some(process) = self.host(host).process.take() else { return };
        self.checker.ended(self.now_ns, process.life);
        // First, so that nothing that the process sends while it is torn down leaves.
        let life = process.life;
        lock(&self.streams).process_ends(life, silently);
        drop(process);
        if let Some(disk) = &self.host(host).disk {
            disk.process_ends();
        }
        self.bury(life);
    }

    /// Removes the state of a process whose connections have ended, except for frames in flight.
    fn bury(&mut self, life: Life) {
        let sent = std::mem::take(&mut lock(&self.streams).sent);
        for sent in sent {
            self.send_segment(sent);
        }
        lock(&self.wakes).retain(|(of, _)| *of != life);
    }

    /// Pauses a host: its threads do not run, its NIC does, as far as descriptors allow.
    pub fn pause(&mut self, host: HostId, time: Duration) {
        let time_ns = nanos(time);
        let now_ns = self.now_ns;
        let until_ns = now_ns.saturating_add(time_ns);
        let h = self.host(host);
        h.paused_until_ns = h.paused_until_ns.max(until_ns);
        // Current work of a thread takes as much longer.
        for e in h.process.iter_mut().flat_map(|p| &mut p.endpoints) {
            if e.busy_until_ns > now_ns {
                e.busy_until_ns = e.busy_until_ns.saturating_add(time_ns);
            }
        }
        self.at(until_ns, move |world| world.resume(host));
    }

    /// From now on a host's clock runs fast by `ppm` parts per million; slow when negative.
    pub fn set_drift(&mut self, host: HostId, ppm: i32) {
        let now_ns = self.now_ns;
        self.host(host).oscillator.set_drift(now_ns, ppm);
        // Deadlines have moved in world time.
        self.resume(host);
    }

    /// Replaces the CPU costs of a host.
    pub fn set_costs(&mut self, host: HostId, costs: CpuCosts) {
        self.host(host).costs.set(costs);
    }

    /// Changes the number of receive descriptors of a host's endpoints; a small number makes
    /// packets drop (E60).
    pub fn set_rx_queue(&mut self, host: HostId, descriptors: usize) {
        let h = self.host(host);
        h.nic.rx_queue = descriptors;
        for e in h.process.iter().flat_map(|p| &p.endpoints) {
            lock(&e.port).set_descriptors(descriptors);
        }
    }
}
