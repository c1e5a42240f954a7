//! Processes of the soak test, from their parent: start, observe, stop, kill.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{self, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use courser::{Rpc, Transport};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::ledger::now_ns;
use courser_kit::Failure;

/// Interval at which a process prints its [`Level`].
pub(super) const LEVEL_EVERY: Duration = Duration::from_millis(200);

/// Time limit for the start of a process, and for its end on request.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// Memory, sessions and calls of a process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Level {
    /// Time on the machine's monotonic clock.
    pub(super) at_ns: u64,
    /// Message memory in use, and mapped from the system.
    pub(super) in_use: u64,
    pub(super) mapped: u64,
    /// Sessions in any state, both roles.
    pub(super) sessions: usize,
    /// Requests or calls so far.
    pub(super) done: u64,
    /// Open calls, or remaining connects.
    pub(super) open: u64,
}

impl Level {
    pub(super) fn of<T: Transport>(rpc: &Rpc<T>, done: u64, open: u64) -> Self {
        let memory = rpc.memory();
        Self {
            at_ns: now_ns(),
            in_use: memory.in_use_bytes as u64,
            mapped: memory.mapped_bytes as u64,
            sessions: rpc.sessions(),
            done,
            open,
        }
    }

    /// The line for standard output.
    pub(super) fn line(&self) -> String {
        format!("level {}", serde_json::to_string(self).unwrap_or_default())
    }
}

/// The output of a process.
#[derive(Default)]
struct Output {
    ready: bool,
    ended: bool,
    level: Option<Level>,
    /// Errors for the report.
    complaints: Vec<String>,
}

/// Most complaints that are kept for one process.
const COMPLAINTS: usize = 10;

/// A child process; killed when dropped.
pub(super) struct Process {
    child: process::Child,
    output: Arc<Mutex<Output>>,
    /// Name in reports.
    pub(super) name: String,
    /// Resident memory, bytes, with its time.
    pub(super) rss: Vec<(u64, u64)>,
}

impl Process {
    /// Starts this program again and waits until it is ready.
    ///
    /// # Errors
    /// The process cannot be started, or is not ready in time.
    pub(super) fn start(name: &str, args: &[String]) -> Result<Self, Failure> {
        let failed = |why: String| Failure::Runtime(format!("{name}: {why}"));
        let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let out = child.stdout.take();
        let output = Arc::new(Mutex::new(Output::default()));
        let process =
            Self { child, output: output.clone(), name: name.to_owned(), rss: Vec::new() };
        let out = out.ok_or_else(|| failed("has no output".to_owned()))?;
        std::thread::Builder::new()
            .name("soak-child".to_owned())
            .spawn(move || listen(BufReader::new(out), &output))
            .map_err(|e| failed(e.to_string()))?;
        let end = Instant::now() + READY_LIMIT;
        while !process.read(|output| output.ready) {
            if process.read(|output| output.ended) || Instant::now() > end {
                return Err(failed("did not start".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(process)
    }

    fn read<R>(&self, of: impl FnOnce(&Output) -> R) -> R {
        of(&self.output.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The newest level.
    pub(super) fn level(&self) -> Option<Level> {
        self.read(|output| output.level)
    }

    /// The errors that the process printed.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.read(|output| output.complaints.clone())
    }

    /// Whether the process has ended: its output is closed.
    pub(super) fn has_ended(&self) -> bool {
        self.read(|output| output.ended)
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }

    /// Sends a signal and returns the time before it.
    pub(super) fn signal(&self, signal: Signal) -> u64 {
        let at_ns = now_ns();
        if let Some(pid) = self.pid() {
            // `Cluster::tick` reports a process that has ended by itself.
            let _ = kill_process(pid, signal);
        }
        at_ns
    }

    /// Kills the process and returns the time before the kill.
    pub(super) fn kill(&mut self) -> u64 {
        let at_ns = self.signal(Signal::KILL);
        let _ = self.child.wait();
        at_ns
    }

    /// Asks the process to end by closing its standard input.
    pub(super) fn ask_to_end(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for the end of the process; false if it does not end in time or fails.
    pub(super) fn wait_for_end(&mut self) -> bool {
        let end = Instant::now() + READY_LIMIT;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Samples the resident memory.
    pub(super) fn sample(&mut self) {
        if let Some(rss) = resident(self.child.id()) {
            self.rss.push((now_ns(), rss));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(out: impl BufRead, output: &Mutex<Output>) {
    let note = |change: &mut dyn FnMut(&mut Output)| {
        change(&mut output.lock().unwrap_or_else(PoisonError::into_inner));
    };
    for line in out.lines().map_while(Result::ok) {
        if let Some(level) = line.strip_prefix("level ") {
            let level = serde_json::from_str(level).ok();
            note(&mut |output| output.level = level.or(output.level));
        } else if line.starts_with("ready") {
            note(&mut |output| output.ready = true);
        } else if let Some(complaint) = line.strip_prefix("complaint ") {
            note(&mut |output| {
                if output.complaints.len() < COMPLAINTS {
                    output.complaints.push(complaint.to_owned());
                }
            });
        }
    }
    note(&mut |output| output.ended = true);
}

/// Resident memory of a process, bytes.
fn resident(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Resident memory of a process over a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Memory {
    pub(super) start_bytes: u64,
    pub(super) end_bytes: u64,
    pub(super) max_bytes: u64,
    /// Slope of a least-squares line through the second half, bytes per minute.
    pub(super) slope_bytes_per_min: f64,
    /// Time from the first sample to the last, s.
    pub(super) lived_s: f64,
}

impl Memory {
    /// Evaluates samples (time, bytes) in order. The start value is the sample after the first tenth,
    /// in which a process warms up.
    pub(super) fn of(samples: &[(u64, u64)]) -> Option<Self> {
        let start = samples.get(samples.len() / 10)?;
        let (_, half) = samples.split_at(samples.len() / 2);
        Some(Self {
            start_bytes: start.1,
            end_bytes: samples.last()?.1,
            max_bytes: samples.iter().map(|s| s.1).max()?,
            slope_bytes_per_min: slope(half) * 60e9,
            lived_s: (samples.last()?.0 - samples.first()?.0) as f64 / 1e9,
        })
    }
}

/// Slope of a least-squares line, bytes per ns.
fn slope(samples: &[(u64, u64)]) -> f64 {
    let Some(&(t0, _)) = samples.first() else { return 0.0 };
    let n = samples.len() as f64;
    let points = || samples.iter().map(|&(t, v)| ((t - t0) as f64, v as f64));
    let (mean_t, mean_v) =
        (points().map(|p| p.0).sum::<f64>() / n, points().map(|p| p.1).sum::<f64>() / n);
    let over: f64 = points().map(|(t, v)| (t - mean_t) * (v - mean_v)).sum();
    let under: f64 = points().map(|(t, _)| (t - mean_t).powi(2)).sum();
    if under > 0.0 { over / under } else { 0.0 }
}

/// Free ports below `ip_local_port_range`. The system does not assign them to other sockets, so a
/// server can bind its port again after a kill.
pub(super) fn free_ports(count: usize, mut random: impl FnMut(u64) -> u64) -> Vec<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|r| r.split_whitespace().next()?.parse::<u64>().ok());
    let end = first.unwrap_or(32_768).max(12_000);
    let mut found = BTreeMap::new();
    for _ in 0..10_000 {
        if found.len() == count {
            break;
        }
        let port = (10_000 + random(end - 10_000)) as u16;
        let here = ("127.0.0.1", port);
        if let (Ok(tcp), Ok(udp)) =
            (std::net::TcpListener::bind(here), std::net::UdpSocket::bind(here))
        {
            // The sockets stay open until all ports are found, so that no port is found twice.
            found.insert(port, (tcp, udp));
        }
    }
    found.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_evaluated_over_time() {
        let samples: Vec<_> = (0..100u64).map(|s| (s * 1_000_000_000, 1000 + 2 * s)).collect();
        let memory = Memory::of(&samples).expect("samples");
        assert_eq!((memory.start_bytes, memory.end_bytes, memory.max_bytes), (1020, 1198, 1198));
        assert!((memory.slope_bytes_per_min - 120.0).abs() < 1e-6, "{memory:?}");
        assert_eq!(Memory::of(&[]), None);
        assert!(resident(std::process::id()) > Some(100_000));
    }

    #[test]
    fn ports_are_not_below_10000() {
        let mut rng = super::super::message::Rng::new(std::process::id().into());
        let ports = free_ports(3, |n| rng.below(n));
        assert_eq!(ports.len(), 3);
        assert!(ports.iter().all(|&p| p >= 10_000));
    }
}
