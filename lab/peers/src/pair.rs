//! The two processes of a contestant, from without.

use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use courser_bench::rpc::child::read_lines;
use courser_bench::window::Sample;
use courser_kit::affinity::Cores;

use crate::contestants::Contestant;
use crate::rounds::Suite;
use crate::work::Work;

/// How long a process may take until it is ready.
const READY: Duration = Duration::from_secs(15);

/// What a window may take beyond its own length: more than the contestants' own limits, whose
/// errors say more.
const SLACK: Duration = Duration::from_secs(15);

/// A process of ours that writes lines. Killed when dropped.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    fn start(
        mode: &str,
        name: &str,
        cpu: Option<usize>,
        limit: Duration,
        more: &[&str],
    ) -> Result<Self> {
        // Not `current_exe`: a program that is replaced while it runs would start its successor.
        let mut command = Command::new("/proc/self/exe");
        command
            .args([mode, name, &format!("--limit={}", limit.as_secs())])
            .args(cpu.map(|cpu| format!("--cpu={cpu}")))
            .arg(format!("--parent={}", std::process::id()))
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a process")?;
        let (stdin, out) = (child.stdin.take(), child.stdout.take());
        // From here on the process is ended by drop, whatever happens.
        let mut process = Self { child, stdin, lines: channel().1 };
        process.lines = read_lines(out.context("a process without output")?)?;
        Ok(process)
    }

    /// The rest of the next line, which begins with `word`.
    fn expect(&mut self, word: &str, limit: Duration) -> Result<String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => match line.split_once(' ').unwrap_or((&line, "")) {
                (first, rest) if first == word => Ok(rest.to_owned()),
                ("failed", reason) => bail!("{reason}"),
                _ => bail!("it said `{line}` instead of `{word}`"),
            },
            Err(RecvTimeoutError::Timeout) => bail!("it said nothing for {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                // It closes its output a moment before it can be waited for.
                thread::sleep(Duration::from_millis(50));
                match self.child.try_wait() {
                    Ok(Some(status)) => bail!("it ended early: {status}"),
                    _ => bail!("it closed its output"),
                }
            }
        }
    }

    /// Processor time of its threads, user and system, ns. A thread that runs counts as far as its last
    /// clock tick.
    fn cpu_ns(&self) -> Result<u64> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let of_thread = |dir: fs::DirEntry| -> Option<u64> {
            // None: it has ended meanwhile.
            let text = fs::read_to_string(dir.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        let threads = fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))?;
        Ok(threads.flatten().filter_map(of_thread).sum())
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("a process without input")?;
        writeln!(stdin, "{line}").context("it cannot be told what to do")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail when it is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running contestant. Both processes end when it is dropped, the client first.
pub struct Pair {
    /// Which.
    pub contestant: &'static Contestant,
    client: Process,
    server: Process,
}

impl Pair {
    /// Starts both and connects them. They live at most for `limit`. Without cores they are not
    /// pinned.
    ///
    /// # Errors
    /// Which side failed, and why.
    pub fn start(
        suite: &Suite,
        contestant: &'static Contestant,
        cores: Option<&Cores>,
        limit: Duration,
    ) -> Result<Self> {
        let name = &format!("{}/{}", suite.name, contestant.name);
        let cpu = |of: fn(&Cores) -> usize| cores.map(of);
        let (address, mut server) = Process::start("serve", name, cpu(|c| c.server), limit, &[])
            .and_then(|mut server| Ok((server.expect("ready", READY)?, server)))
            .context("server")?;
        let client = Process::start("call", name, cpu(|c| c.client), limit, &[&address])
            .and_then(|mut client| client.expect("ready", READY).map(|_| client))
            .map_err(|error| explain(&mut server, &error))?;
        Ok(Self { contestant, client, server })
    }

    /// Runs one window.
    ///
    /// # Errors
    /// Which side failed, and why. The pair is of no use then.
    pub fn run(&mut self, work: &Work) -> Result<Sample> {
        self.window(work).map_err(|error| explain(&mut self.server, &error))
    }

    /// A window, with the processor time of both processes from the end of its warm-up.
    fn window(&mut self, work: &Work) -> Result<Sample> {
        let (warm, length) =
            (Duration::from_millis(work.warm_ms), Duration::from_millis(work.window_ms));
        self.client.tell(&serde_json::to_string(work)?)?;
        thread::sleep(warm);
        let (began, before_ns) = (Instant::now(), self.cpu_ns()?);
        let sample = self.client.expect("sample", length + SLACK)?;
        let (took, after_ns) = (began.elapsed(), self.cpu_ns()?);
        let sample: Sample = serde_json::from_str(&sample)?;
        // The calls of the window, as if they had lasted for as long as the processes were seen.
        let seen = took.as_nanos() as f64 / sample.elapsed_ns as f64;
        let cpu_ns = after_ns.saturating_sub(before_ns) as f64 / seen;
        Ok(Sample { cpu_ns: Some(cpu_ns as u64), ..sample })
    }

    fn cpu_ns(&self) -> Result<u64> {
        Ok(self.client.cpu_ns()? + self.server.cpu_ns()?)
    }
}

/// The client's error, and the server's if there is one: it is the cause then.
fn explain(server: &mut Process, error: &anyhow::Error) -> anyhow::Error {
    match server.expect("nothing", Duration::from_millis(50)) {
        Err(cause) if !format!("{cause}").starts_with("it said nothing") => {
            anyhow!("server: {cause:#}; client: {error:#}")
        }
        _ => anyhow!("client: {error:#}"),
    }
}
