//! Threads in virtual time: when an endpoint's event loop makes a pass, when a control loop runs,
//! when a worker's job ends.

use std::sync::Arc;
use std::time::Duration;

use courser::parts::machine::{Thread, VirtualClock};

use super::check::NicSeen;
use super::thread::{handler_begins, on_clock};
use super::{Event, World};
use crate::host::life::Life;
use crate::host::machine::Run;
use crate::host::port::lock;
use crate::host::process::Working;
use crate::packet::HostId;

/// Interval at which an endpoint whose transmit queue is full checks its deadlines.
const STARVED_LOOK_NS: u64 = 10_000;

impl World {
    /// Schedules a pass of an endpoint for when its CPU is free.
    pub(super) fn wake_endpoint(&mut self, life: Life, endpoint: usize, after_ns: u64) {
        let now_ns = self.now_ns;
        let Some(h) = self.hosts.get_mut(life.host.0 as usize) else { return };
        let paused_ns = h.paused_until_ns;
        let Some(p) = h.process.as_mut().filter(|p| p.life == life) else { return };
        let Some(e) = p.endpoints.get_mut(endpoint) else { return };
        let at_ns = (now_ns + after_ns).max(e.busy_until_ns).max(paused_ns);
        if e.pass_at_ns.is_none_or(|pass| at_ns < pass) {
            e.pass_at_ns = Some(at_ns);
            self.events.push(at_ns, Event::Pass(life, endpoint as u32));
        }
    }

    /// One pass of an endpoint's event loop.
    pub(super) fn pass(&mut self, life: Life, endpoint: usize) {
        let now_ns = self.now_ns;
        let Some(h) = self.hosts.get_mut(life.host.0 as usize) else { return };
        let paused_ns = h.paused_until_ns;
        let pass_ns = h.costs.get().pass_ns.max(1);
        let local_ns = h.oscillator.shows(now_ns);
        let Some(p) = h.process.as_mut().filter(|p| p.life == life) else { return };
        let (endpoints, machine) = (&mut p.endpoints, &p.machine);
        let Some(e) = endpoints.get_mut(endpoint) else { return };
        if e.pass_at_ns != Some(now_ns) {
            return; // It was moved to an earlier time.
        }
        e.pass_at_ns = None;
        if now_ns < paused_ns {
            return self.wake_endpoint(life, endpoint, 0);
        }
        // A thread's clock may be ahead by the time spent on a call from outside of a pass.
        let begin_ns = local_ns.max(e.clock.now_ns());
        e.clock.set(begin_ns);
        let busy = on_clock(&e.clock, local_ns, now_ns, || {
            let beside = e.beside.as_mut().is_some_and(|work| work(&mut e.rpc));
            e.rpc.poll() | beside
        });
        let spent_ns = e.clock.now_ns() - begin_ns + if busy { pass_ns } else { 0 };
        e.busy_until_ns = now_ns + spent_ns;
        e.passes += 1;
        let wakes = std::mem::take(&mut *lock(&self.wakes));
        let port = lock(&e.port);
        e.starved = !port.has_room();
        let more = !(port.rx.is_empty() && port.plain.is_empty());
        let sends = !port.tx.is_empty();
        let nic = NicSeen { stale: port.stale_taken, changed: port.changed };
        drop(port);
        self.checker.after_pass(now_ns, life, e, machine, nic);
        // Work that it passed to other threads was passed by its end.
        for (life, thread) in wakes {
            self.woken(life, thread, spent_ns);
        }
        if sends {
            self.kick(life.host);
        }
        if busy || more {
            self.wake_endpoint(life, endpoint, 0);
        } else {
            self.schedule_look(life, endpoint);
        }
    }

    /// Schedules the check of an endpoint's next deadline.
    fn schedule_look(&mut self, life: Life, endpoint: usize) {
        let now_ns = self.now_ns;
        let Some(h) = self.hosts.get_mut(life.host.0 as usize) else { return };
        let oscillator = h.oscillator;
        let Some(p) = h.process.as_mut().filter(|p| p.life == life) else { return };
        let Some(e) = p.endpoints.get_mut(endpoint) else { return };
        let Some(due_ns) = e.rpc.next_deadline_ns() else { return };
        // A pass without work is not repeated at the same time. Room in the transmit queue wakes an
        // endpoint that needs it; its other deadlines are checked meanwhile.
        let starved = e.starved && due_ns == 0;
        let soonest_ns = now_ns + if starved { STARVED_LOOK_NS } else { 1 };
        let at_ns = oscillator.when(due_ns.saturating_add(e.epoch_ns)).max(soonest_ns);
        if e.look_at_ns.is_none_or(|look| at_ns < look || look <= now_ns) {
            e.look_at_ns = Some(at_ns);
            self.events.push(at_ns, Event::Look(life, endpoint as u32));
        }
    }

    /// An endpoint's deadline may be due.
    pub(super) fn look(&mut self, life: Life, endpoint: usize) {
        let now_ns = self.now_ns;
        let Some(h) = self.hosts.get_mut(life.host.0 as usize) else { return };
        let local_ns = h.oscillator.shows(now_ns);
        let Some(p) = h.process.as_mut().filter(|p| p.life == life) else { return };
        let Some(e) = p.endpoints.get_mut(endpoint) else { return };
        if e.look_at_ns.is_some_and(|look| look <= now_ns) {
            e.look_at_ns = None;
        }
        e.clock.set(local_ns.max(e.clock.now_ns()));
        // After a full transmit queue, do not retry at the same time.
        let in_vain = e.starved && e.busy_until_ns >= now_ns;
        match e.rpc.next_deadline_ns() {
            Some(0) if in_vain => self.schedule_look(life, endpoint),
            Some(due_ns) if due_ns.saturating_add(e.epoch_ns) <= local_ns => {
                self.wake_endpoint(life, endpoint, 0);
            }
            Some(_) => self.schedule_look(life, endpoint),
            None => {}
        }
    }

    /// Processes the remains of the last event: woken threads, sent segments, processes whose
    /// streams are ready.
    pub(super) fn settle(&mut self) {
        loop {
            self.schedule_disks();
            if lock(&self.wakes).is_empty() && lock(&self.streams).is_quiet() {
                return;
            }
            let wakes = std::mem::take(&mut *lock(&self.wakes));
            for (life, thread) in &wakes {
                self.woken(*life, *thread, 0);
            }
            let (sent, stirred) = {
                let mut streams = lock(&self.streams);
                (std::mem::take(&mut streams.sent), std::mem::take(&mut streams.stirred))
            };
            for sent in sent {
                self.send_segment(sent);
            }
            for &life in &stirred {
                self.wake_control(life, 0);
            }
        }
    }

    /// Schedules the ends of operations of disks that have begun.
    fn schedule_disks(&mut self) {
        let begun = std::mem::take(&mut *lock(&self.begun));
        for begin in begun {
            let at_ns = begin.at_ns.unwrap_or(self.now_ns);
            let disk = self.host(begin.host).disk.as_ref();
            if let Some(end_ns) = disk.and_then(|disk| disk.schedule(begin.number, at_ns)) {
                self.events.push(end_ns, Event::Disk(begin.host, begin.number));
            }
        }
    }

    /// Ends an operation of a disk.
    pub(super) fn disk_ended(&mut self, host: HostId, operation: u64) {
        self.checker.note(self.now_ns, u64::from(host.0) << 32 ^ operation);
        if let Some(disk) = &self.host(host).disk {
            disk.carry_out(operation);
        }
    }

    /// Wakes a thread `after_ns` from now.
    fn woken(&mut self, life: Life, thread: Thread, after_ns: u64) {
        match thread {
            Thread::Control => self.wake_control(life, after_ns),
            Thread::Workers if after_ns == 0 => self.start_jobs(life),
            Thread::Workers => {
                self.after(Duration::from_nanos(after_ns), move |world| world.start_jobs(life));
            }
            Thread::Endpoint(index) => {
                let wakeup_ns = self.host(life.host).costs.get().wakeup_ns;
                let found = self
                    .process(life)
                    .and_then(|p| p.endpoints.iter().position(|e| e.rpc.index() == index));
                if let Some(endpoint) = found {
                    self.wake_endpoint(life, endpoint, after_ns + wakeup_ns);
                }
            }
        }
    }

    // ---- control ------------------------------------------------------------------------------

    fn wake_control(&mut self, life: Life, after_ns: u64) {
        let now_ns = self.now_ns;
        let paused_ns = self.host(life.host).paused_until_ns;
        let Some(p) = self.process(life) else { return };
        let at_ns = (now_ns + after_ns).max(paused_ns);
        if p.control_at_ns.is_none_or(|turn| at_ns < turn) {
            p.control_at_ns = Some(at_ns);
            self.events.push(at_ns, Event::Control(life));
        }
    }

    /// One pass of a control loop.
    pub(super) fn turn_control(&mut self, life: Life) {
        let now_ns = self.now_ns;
        let h = self.host(life.host);
        let (paused_ns, oscillator) = (h.paused_until_ns, h.oscillator);
        let Some(p) = self.process(life) else { return };
        if p.control_at_ns != Some(now_ns) {
            return;
        }
        p.control_at_ns = None;
        if now_ns < paused_ns {
            return self.wake_control(life, 0);
        }
        p.collect();
        p.control_clock.set(oscillator.shows(now_ns));
        let Some(control) = &mut p.control else { return };
        let turn = control.turn();
        if turn.ended {
            p.control = None;
            return;
        }
        if let Some(due_ns) = turn.due {
            let at_ns = oscillator.when(due_ns);
            // Further work runs at once, but not without limit at the same instant.
            self.wake_control(life, at_ns.saturating_sub(now_ns).max(1));
        }
    }

    // ---- workers ------------------------------------------------------------------------------

    /// Assigns queued jobs to idle workers. A job's handler runs at the end of its time, so that
    /// its response is sent then.
    fn start_jobs(&mut self, life: Life) {
        let now_ns = self.now_ns;
        let h = self.host(life.host);
        let (local_ns, paused_ns) = (h.oscillator.shows(now_ns), h.paused_until_ns);
        let costs = h.costs.get();
        let Some(p) = self.process(life) else { return };
        p.collect();
        let clock = p.machine.clock_of(Thread::Workers);
        clock.set(local_ns.max(clock.now_ns()));
        let Some(workers) = &mut p.workers else { return };
        let mut ends = Vec::new();
        while workers.idle > 0 {
            let Some(job) = workers.source.next() else { break };
            workers.idle -= 1;
            let number = workers.next;
            workers.next += 1;
            let cost_ns = costs.handler(job.req_type());
            workers.running.push(Working { number, began_ns: now_ns, job });
            ends.push((now_ns.max(paused_ns) + cost_ns.max(1), number));
        }
        for (at_ns, number) in ends {
            self.events.push(at_ns, Event::WorkerDone(life, number));
        }
    }

    pub(super) fn worker_done(&mut self, life: Life, job: u64) {
        let now_ns = self.now_ns;
        let h = self.host(life.host);
        let (local_ns, paused_ns) = (h.oscillator.shows(now_ns), h.paused_until_ns);
        let Some(p) = self.process(life) else { return };
        if now_ns < paused_ns {
            self.events.push(paused_ns, Event::WorkerDone(life, job));
            return;
        }
        let clock = p.machine.clock_of(Thread::Workers);
        let Some(workers) = &mut p.workers else { return };
        let Some(at) = workers.running.iter().position(|w| w.number == job) else { return };
        let Working { began_ns, job, .. } = workers.running.swap_remove(at);
        clock.set(local_ns.max(clock.now_ns()));
        let (endpoint, req_type) = (job.endpoint(), job.req_type());
        let run = job.request().map(|request| Run { endpoint, req_type, request });
        // The workers share one clock; time spent by one of them is counted separately.
        let own = Arc::new(VirtualClock::default());
        handler_begins(Some(began_ns));
        on_clock(&own, 0, now_ns, || job.run());
        let spent_ns = own.now_ns();
        workers.idle += 1;
        if let Some(run) = run {
            self.checker.ran(now_ns, life, run);
        }
        // Its response wakes the endpoint when the handler has spent its reported time.
        let wakes = std::mem::take(&mut *lock(&self.wakes));
        for (life, thread) in wakes {
            self.woken(life, thread, spent_ns);
        }
        if spent_ns > 0 {
            // Time that the handler reports keeps its worker busy, too.
            if let Some(workers) = self.process(life).and_then(|p| p.workers.as_mut()) {
                workers.idle -= 1;
            }
            self.after(Duration::from_nanos(spent_ns), move |world| world.worker_idle(life));
        }
        self.start_jobs(life);
    }

    fn worker_idle(&mut self, life: Life) {
        if let Some(workers) = self.process(life).and_then(|p| p.workers.as_mut()) {
            workers.idle += 1;
        }
        self.start_jobs(life);
    }

    /// Resumes a host after a pause.
    pub(super) fn resume(&mut self, host: HostId) {
        let h = self.host(host);
        let Some(p) = &h.process else { return };
        let (life, count) = (p.life, p.endpoints.len());
        for endpoint in 0..count {
            self.wake_endpoint(life, endpoint, 0);
        }
        self.wake_control(life, 0);
        self.start_jobs(life);
    }
}
