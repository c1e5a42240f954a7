//! Starts the server process, talks to it, and makes sure that it goes away.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::spec::{BenchError, BenchSpec, Said};
use crate::harness::affinity::Cores;
use crate::harness::line::Line;

/// How long it may take to say its addresses; usually 0.3 s, most of it for its clock.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// How long it may take to end when asked to.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Longest line kept of what it says to its standard error.
const MAX_SAID: usize = 300;

/// The running server process; killed when dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: process::Child,
    lines: Receiver<String>,
    said: Arc<Mutex<Option<String>>>,
    /// Where its endpoint can be reached.
    pub(super) uri: String,
    /// Where its raw socket can be reached.
    pub(super) raw: SocketAddr,
}

impl Child {
    /// Starts this program again as the server and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started, ends, or is not ready in time.
    pub(super) fn start(spec: &BenchSpec, line: &Line, cores: &Cores) -> Result<Self, BenchError> {
        let mut process = command(spec, line, cores).spawn().map_err(BenchError::Spawn)?;
        let said = Arc::default();
        let lines = match (process.stdout.take(), process.stderr.take()) {
            (Some(out), Some(err)) => {
                read_lines(out).and_then(|lines| keep_last(err, Arc::clone(&said)).map(|()| lines))
            }
            _ => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        // From here on the process is ended by drop, whatever happens.
        let unknown = SocketAddr::from(([0; 4], 0));
        let (lines, failed) = match lines {
            Ok(lines) => (lines, None),
            Err(error) => (mpsc::channel().1, Some(error)),
        };
        let mut child = Self { process, lines, said, uri: String::new(), raw: unknown };
        if let Some(error) = failed {
            return Err(BenchError::Spawn(error));
        }
        (child.uri, child.raw) = child.ready()?;
        Ok(child)
    }

    fn ready(&mut self) -> Result<(String, SocketAddr), BenchError> {
        let end = Instant::now() + READY_LIMIT;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(ready) = parse_ready(&line) {
                        return Ok(ready);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(BenchError::NotReady(READY_LIMIT, self.said()));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(END_LIMIT)),
            }
        }
    }

    /// `error`, or, if the process has ended, that: it is the cause then.
    pub(super) fn explain(&mut self, error: BenchError) -> BenchError {
        // A process that has just closed its socket may need a moment to be gone.
        std::thread::sleep(Duration::from_millis(20));
        match self.process.try_wait() {
            Ok(Some(_)) => self.ended(Duration::ZERO),
            _ => error,
        }
    }

    fn ended(&mut self, limit: Duration) -> BenchError {
        let status = match self.wait(limit) {
            Some(status) => status.to_string(),
            None => "it closed its output and hangs".to_owned(),
        };
        // Its last line may still be on the way through the pipe.
        std::thread::sleep(Duration::from_millis(20));
        BenchError::Ended { status, said: self.said() }
    }

    fn said(&self) -> Said {
        Said(self.said.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Waits at most `limit` for its end.
    fn wait(&mut self, limit: Duration) -> Option<process::ExitStatus> {
        let start = Instant::now();
        loop {
            match self.process.try_wait() {
                Ok(None) if start.elapsed() < limit => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    /// Asks it to end, and returns the counters that it leaves; `None` if it leaves none.
    pub(super) fn finish(mut self) -> Option<Value> {
        drop(self.process.stdin.take());
        let end = Instant::now() + END_LIMIT;
        loop {
            let line =
                self.lines.recv_timeout(end.saturating_duration_since(Instant::now())).ok()?;
            if let Some(json) = line.strip_prefix("figures ") {
                self.wait(END_LIMIT);
                return serde_json::from_str(json).ok();
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail when it is gone already, which is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(spec: &BenchSpec, line: &Line, cores: &Cores) -> Command {
    // Not `current_exe`: a program that is replaced while it runs would start its successor.
    let mut command = Command::new("/proc/self/exe");
    command.arg("bench-peer").arg("--line").arg(line.path());
    command.arg(format!("--cpu={}", cores.server)).arg(format!("--size={}", spec.size));
    if !cores.distinct() {
        command.arg("--yields");
    }
    if let Some(credits) = spec.credits {
        command.arg(format!("--credits={credits}"));
    }
    if let Some(frame) = spec.frame {
        command.arg(format!("--frame={frame}"));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Lines of `from`, read by a thread; the channel closes when the stream does.
fn read_lines(from: impl Read + Send + 'static) -> std::io::Result<Receiver<String>> {
    let (send, lines) = mpsc::channel();
    std::thread::Builder::new().name("server out".to_owned()).spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

/// Keeps the last line of `from` that is not empty.
fn keep_last(
    from: impl Read + Send + 'static,
    last: Arc<Mutex<Option<String>>>,
) -> std::io::Result<()> {
    std::thread::Builder::new().name("server err".to_owned()).spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if !line.trim().is_empty() {
                let line = line.trim().chars().take(MAX_SAID).collect();
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
            }
        }
    })?;
    Ok(())
}

/// The addresses in `ready <control address> <raw address>`; `None` for any other line.
fn parse_ready(line: &str) -> Option<(String, SocketAddr)> {
    let (uri, raw) = line.strip_prefix("ready ")?.split_once(' ')?;
    let uri: courser::Uri = uri.parse().ok()?;
    Some((uri.to_string(), raw.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line() {
        let (uri, raw) = parse_ready("ready udp://127.0.0.1:4000 127.0.0.1:4001").expect("valid");
        assert_eq!(uri, "udp://127.0.0.1:4000");
        assert_eq!(raw, SocketAddr::from(([127, 0, 0, 1], 4001)));
        for line in [
            "",
            "ready",
            "ready udp://127.0.0.1:4000",
            "ready udp://127.0.0.1 127.0.0.1:1",
            "ready udp://127.0.0.1:1 host:1",
            "figures {}",
        ] {
            assert_eq!(parse_ready(line), None, "{line}");
        }
    }

    #[test]
    fn the_last_line_that_says_something_is_kept() {
        let last = Arc::default();
        keep_last("first\nlast\n\n".as_bytes(), Arc::clone(&last)).expect("a thread");
        // The thread holds the other reference until it has read everything.
        while Arc::strong_count(&last) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(last.lock().expect("not poisoned").as_deref(), Some("last"));
    }
}
