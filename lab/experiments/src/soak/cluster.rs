//! The processes of the soak test: two servers that call each other, their clients, and the ledgers of
//! all.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use courser::Recovery;
use rustix::process::Signal;

use super::SoakArgs;
use super::check::Checker;
use super::ledger::{Tail, now_ns};
use super::message::Rng;
use super::process::{Level, Process, free_ports};
use super::server::config;
use courser_kit::Failure;
use courser_kit::interrupt::Interrupt;

/// Time between two reads of the ledgers.
const TICK: Duration = Duration::from_millis(50);

/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Time between two samples of resident memory.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// A call that takes longer counts as hung. The limit is far above the time that faults add.
const HANG: Duration = Duration::from_secs(15);

/// Time that a call may take beyond failure detection: one retransmission timeout, and scheduling
/// delays of a loaded machine.
pub(super) const SLACK: Duration = Duration::from_millis(1700);

/// Time limit for the detection of a failed peer.
pub(super) fn detection() -> Duration {
    config(Recovery::default()).failure_timeout
}

/// A server address and the process that serves it; a killed process is replaced.
pub(super) struct Server {
    pub(super) process: Process,
    pub(super) incarnation: u64,
    uri: String,
    nested: String,
}

/// A client process.
pub(super) struct Client {
    pub(super) process: Process,
    number: u16,
}

/// All processes of a run.
pub(super) struct Cluster<'a> {
    args: &'a SoakArgs,
    directory: PathBuf,
    pub(super) rng: Rng,
    pub(super) servers: Vec<Server>,
    pub(super) clients: Vec<Client>,
    pub(super) checker: Checker,
    tails: Vec<Tail>,
    next_incarnation: u64,
    next_client: u16,
    sample_due: Instant,
    pub(super) kills: u64,
    pub(super) stops: u64,
    interrupt: Interrupt,
    started: Instant,
    progress_due: Instant,
    /// Calls at the last progress line, and its time.
    reported: (u64, Instant),
}

impl<'a> Cluster<'a> {
    /// Starts the servers.
    ///
    /// # Errors
    /// A process cannot be started.
    pub(super) fn start(args: &'a SoakArgs, seed: u64, directory: &Path) -> Result<Self, Failure> {
        let mut rng = Rng::new(seed);
        let mut ports = Rng::new(u64::from(std::process::id()) ^ now_ns());
        let ports = free_ports(2, |n| ports.below(n));
        let uris: Vec<_> = ports.iter().map(|port| format!("udp://127.0.0.1:{port}")).collect();
        let [a, b] = &uris[..] else {
            return Err(Failure::Runtime("no two ports are free".to_owned()));
        };
        rng.next();
        let limit = u64::try_from((detection() + SLACK).as_nanos()).unwrap_or(u64::MAX);
        let mut cluster = Self {
            args,
            directory: directory.to_owned(),
            rng,
            servers: Vec::new(),
            clients: Vec::new(),
            checker: Checker::new(limit),
            tails: Vec::new(),
            next_incarnation: 1,
            next_client: 1,
            sample_due: Instant::now(),
            kills: 0,
            stops: 0,
            interrupt: Interrupt::stop(Vec::new())?,
            started: Instant::now(),
            progress_due: Instant::now() + PROGRESS_EVERY,
            reported: (0, Instant::now()),
        };
        for (uri, nested) in [(a, b), (b, a)] {
            let server = cluster.new_server(uri, nested)?;
            cluster.servers.push(server);
        }
        Ok(cluster)
    }

    fn new_server(&mut self, uri: &str, nested: &str) -> Result<Server, Failure> {
        let incarnation = self.next_incarnation;
        self.next_incarnation += 1;
        let ledger = self.open_ledger(&format!("server-{incarnation}"))?;
        let name = format!("server {incarnation}");
        let args = [
            "soak-server",
            "--bind",
            uri,
            "--incarnation",
            &incarnation.to_string(),
            "--ledger",
            &ledger,
            "--nested",
            nested,
            "--recovery",
            self.args.recovery.name(),
        ];
        let process = Process::start(&name, &args.map(str::to_owned))?;
        Ok(Server { process, incarnation, uri: uri.to_owned(), nested: nested.to_owned() })
    }

    /// Starts a client of all servers with this share of the load.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(super) fn add_client(&mut self, share: f64, connects: u64) -> Result<(), Failure> {
        let number = self.next_client;
        self.next_client += 1;
        let ledger = self.open_ledger(&format!("client-{number}"))?;
        let uris: Vec<_> = self.servers.iter().map(|s| s.uri.clone()).collect();
        let args = [
            "soak-client",
            "--servers",
            &uris.join(","),
            "--number",
            &number.to_string(),
            "--seed",
            &self.rng.next().to_string(),
            "--ledger",
            &ledger,
            "--load",
            &(self.args.load * share).to_string(),
            "--max-size",
            &self.args.max_size.to_string(),
            "--hang-ms",
            &HANG.as_millis().to_string(),
            "--connects",
            &connects.to_string(),
            "--recovery",
            self.args.recovery.name(),
        ];
        let process = Process::start(&format!("client {number}"), &args.map(str::to_owned))?;
        self.clients.push(Client { process, number });
        Ok(())
    }

    fn open_ledger(&mut self, name: &str) -> Result<String, Failure> {
        let path = self.directory.join(name);
        self.tails.push(Tail::open(&path)?);
        Ok(path.display().to_string())
    }

    // ---- time ---------------------------------------------------------------------------------

    /// Reads the ledgers for `time`; false if the user has interrupted the run.
    ///
    /// # Errors
    /// A ledger cannot be read.
    pub(super) fn watch(&mut self, time: Duration) -> Result<bool, Failure> {
        let end = Instant::now() + time;
        loop {
            let go_on = self.tick()?;
            let left = end.saturating_duration_since(Instant::now());
            if !go_on || left.is_zero() {
                return Ok(go_on);
            }
            std::thread::sleep(left.min(TICK));
        }
    }

    /// Reads the ledgers until `done`, at most for `limit`; returns whether it is done.
    ///
    /// # Errors
    /// A ledger cannot be read.
    pub(super) fn watch_until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<bool, Failure> {
        let end = Instant::now() + limit;
        while !done(self) {
            if Instant::now() >= end || !self.watch(TICK)? {
                return Ok(done(self));
            }
        }
        Ok(true)
    }

    fn tick(&mut self) -> Result<bool, Failure> {
        for tail in &mut self.tails {
            tail.read(|record| self.checker.take(record))?;
        }
        if Instant::now() >= self.sample_due {
            self.sample_due = Instant::now() + SAMPLE_EVERY;
            self.checker.settle(now_ns(), false);
            self.processes().for_each(Process::sample);
            let ended: Vec<_> =
                self.processes().filter(|p| p.has_ended()).map(|p| p.name.clone()).collect();
            if let Some(name) = ended.first() {
                return Err(Failure::Runtime(format!("{name} ended by itself")));
            }
        }
        if Instant::now() >= self.progress_due {
            self.progress_due = Instant::now() + PROGRESS_EVERY;
            self.print_progress();
        }
        Ok(!self.interrupt.is_set())
    }

    /// Prints a line of progress to standard error.
    fn print_progress(&mut self) {
        let t = &self.checker.totals;
        let (before, at) = std::mem::replace(&mut self.reported, (t.calls, Instant::now()));
        let rate = (t.calls - before) as f64 / at.elapsed().as_secs_f64().max(1e-3);
        let errors: u64 = t.errors.values().sum();
        let mib = |bytes: u64| bytes >> 20;
        let levels = self.servers.iter().filter_map(|s| Some((s.process.level()?, &s.process)));
        let levels: Vec<_> = levels
            .map(|(level, process)| {
                let rss = process.rss.last().map_or(0, |r| r.1);
                format!("{} {} MiB", process.name, mib(rss.max(level.mapped)))
            })
            .collect();
        let mut err = courser_kit::out::stderr();
        let _ = writeln!(
            err,
            "[{:>4} s] {} calls ({rate:.0} /s), {} MiB checked, {errors} errors, {} kills, {} \
             stops, {} violations; {}",
            self.started.elapsed().as_secs(),
            t.calls,
            mib(t.bytes),
            self.kills,
            self.stops,
            self.checker.violations,
            levels.join(", "),
        );
    }

    // ---- faults -------------------------------------------------------------------------------

    /// Kills a server under load and starts its successor after `pause`.
    ///
    /// # Errors
    /// The successor cannot be started.
    pub(super) fn kill_server(&mut self, at: usize, pause: Duration) -> Result<bool, Failure> {
        self.kills += 1;
        let server = &mut self.servers[at];
        let killed_ns = server.process.kill();
        let (uri, nested) = (server.uri.clone(), server.nested.clone());
        self.checker.fault_began(server.incarnation, killed_ns);
        let go_on = self.pause_without(at, pause)?;
        self.servers[at] = self.new_server(&uri, &nested)?;
        Ok(go_on)
    }

    /// [`Cluster::watch`] while one server is dead, which is no error here.
    fn pause_without(&mut self, at: usize, pause: Duration) -> Result<bool, Failure> {
        let dead = self.servers.remove(at);
        let watched = self.watch(pause);
        self.servers.insert(at, dead);
        watched
    }

    /// Stops a server for `time`, as a debugger does.
    ///
    /// # Errors
    /// A ledger cannot be read.
    pub(super) fn stop_server(&mut self, at: usize, time: Duration) -> Result<bool, Failure> {
        self.stops += 1;
        let stopped_ns = self.servers[at].process.signal(Signal::STOP);
        let incarnation = self.servers[at].incarnation;
        self.checker.fault_began(incarnation, stopped_ns);
        let watched = self.watch(time);
        let woken_ns = self.servers[at].process.signal(Signal::CONT);
        self.checker.fault_ended(incarnation, woken_ns);
        watched
    }

    /// Kills a client and returns the time before the kill.
    pub(super) fn kill_client(&mut self, at: usize) -> u64 {
        self.kills += 1;
        let mut client = self.clients.remove(at);
        self.checker.killed_client(client.number);
        client.process.kill()
    }

    /// Waits until the clients have finished their calls and ended.
    ///
    /// # Errors
    /// A ledger cannot be read.
    pub(super) fn end_clients(&mut self) -> Result<Vec<Process>, Failure> {
        let mut ended: Vec<_> = std::mem::take(&mut self.clients);
        ended.iter_mut().for_each(|client| client.process.ask_to_end());
        for client in &mut ended {
            if !client.process.wait_for_end() {
                let text = format!("{} did not end cleanly", client.process.name);
                self.checker.violation(text);
            }
        }
        self.tick()?;
        Ok(ended.into_iter().map(|client| client.process).collect())
    }

    /// Ends the servers, reads the rest of the ledgers and checks all calls.
    ///
    /// # Errors
    /// A ledger cannot be read.
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        self.servers.iter_mut().for_each(|server| server.process.ask_to_end());
        for server in &mut self.servers {
            if !server.process.wait_for_end() {
                let text = format!("{} did not end cleanly", server.process.name);
                self.checker.violation(text);
            }
        }
        for tail in &mut self.tails {
            tail.read(|record| self.checker.take(record))?;
        }
        self.checker.settle(now_ns(), true);
        Ok(())
    }

    /// Levels that all servers printed after `since_ns`; `None` if one is missing.
    pub(super) fn levels(&self, since_ns: u64) -> Option<Vec<Level>> {
        let newer = |s: &Server| s.process.level().filter(|level| level.at_ns > since_ns);
        self.servers.iter().map(newer).collect()
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        let servers = self.servers.iter_mut().map(|s| &mut s.process);
        servers.chain(self.clients.iter_mut().map(|c| &mut c.process))
    }
}
