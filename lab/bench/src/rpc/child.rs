//! Starts the other side ([`peer`]), reads its output, and ends it.
//!
//! The other side is a process of the same program, or a thread for a transport within a process.

use std::io::{BufRead, BufReader, Read};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use courser_buf::Addr;
use serde_json::Value;

use super::error::{BenchError, Said};
use super::peer;
use super::side::{Over, Ready, Setup};
use crate::line::Line;

/// Time limit for its addresses; usually 0.3 s, mainly for the calibration of its clock.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for its end on request.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Time limit for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Most characters that are kept of its last line on standard error.
const MAX_SAID: usize = 300;

/// The running other side; ended when dropped.
#[derive(Debug)]
pub struct Child {
    runs: Runs,
    lines: Receiver<String>,
    said: Arc<Mutex<Option<String>>>,
    /// Addresses of its endpoints.
    pub uris: Vec<String>,
    /// Address of its raw socket.
    pub raw: Addr,
}

/// The process or thread of the other side.
#[derive(Debug)]
enum Runs {
    Process(process::Child),
    Thread { stop: Arc<AtomicBool>, handle: Option<JoinHandle<()>> },
}

impl Child {
    /// Starts the other side and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started, ends, or is not ready in time.
    pub fn start(setup: &Setup, line: &Line) -> Result<Self, BenchError> {
        let mut child = match setup.over {
            Over::Udp | Over::Shm => Self::process(setup)?,
            Over::Mem => Self::thread(setup, line)?,
        };
        let ready = child.ready()?;
        (child.uris, child.raw) = ready;
        Ok(child)
    }

    fn process(setup: &Setup) -> Result<Self, BenchError> {
        let mut process = command(setup).spawn().map_err(BenchError::Spawn)?;
        let said = Arc::default();
        let lines = match (process.stdout.take(), process.stderr.take()) {
            (Some(out), Some(err)) => {
                read_lines(out).and_then(|lines| keep_last(err, Arc::clone(&said)).map(|()| lines))
            }
            _ => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        // From here on dropping `child` ends the process, also after an error.
        let (lines, failed) = match lines {
            Ok(lines) => (lines, None),
            Err(error) => (mpsc::channel().1, Some(error)),
        };
        let child = Self::new(Runs::Process(process), lines, said);
        match failed {
            Some(error) => Err(BenchError::Spawn(error)),
            None => Ok(child),
        }
    }

    fn thread(setup: &Setup, line: &Line) -> Result<Self, BenchError> {
        let (send, lines) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let said: Arc<Mutex<Option<String>>> = Arc::default();
        let (setup, line) = (setup.clone(), line.clone());
        let (stopped, failed) = (Arc::clone(&stop), Arc::clone(&said));
        let body = move || {
            let say = |text: &str| {
                // The receiver is dropped if the side was stopped already.
                let _ = send.send(text.to_owned());
            };
            if let Err(error) = peer::serve(&setup, line, &stopped, &say) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        };
        let named = std::thread::Builder::new().name("server".to_owned());
        let handle = Some(named.spawn(body).map_err(BenchError::Spawn)?);
        Ok(Self::new(Runs::Thread { stop, handle }, lines, said))
    }

    fn new(runs: Runs, lines: Receiver<String>, said: Arc<Mutex<Option<String>>>) -> Self {
        Self { runs, lines, said, uris: Vec::new(), raw: Addr { host: 0, port: 0 } }
    }

    fn ready(&mut self) -> Result<(Vec<String>, Addr), BenchError> {
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

    /// Returns `error`, or, if the other side has ended, that as its cause.
    pub fn explain(&mut self, error: BenchError) -> BenchError {
        // A process that has closed its socket may end a little later.
        std::thread::sleep(Duration::from_millis(20));
        match self.has_ended() {
            Some(_) => self.ended(Duration::ZERO),
            None => error,
        }
    }

    fn ended(&mut self, limit: Duration) -> BenchError {
        let status = self.wait(limit);
        let status = status.unwrap_or_else(|| "it closed its output but did not end".to_owned());
        // Its last line may still be in the pipe.
        std::thread::sleep(Duration::from_millis(20));
        BenchError::Ended { status, said: self.said() }
    }

    fn said(&self) -> Said {
        Said(self.said.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Its exit status, if it has ended.
    fn has_ended(&mut self) -> Option<String> {
        match &mut self.runs {
            Runs::Process(process) => match process.try_wait() {
                Ok(status) => status.map(|status| status.to_string()),
                Err(_) => None,
            },
            Runs::Thread { handle, .. } => {
                let ended = handle.as_ref().is_none_or(JoinHandle::is_finished);
                ended.then(|| "its thread returned".to_owned())
            }
        }
    }

    /// Waits for its end, at most `limit`.
    fn wait(&mut self, limit: Duration) -> Option<String> {
        let start = Instant::now();
        loop {
            match self.has_ended() {
                None if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(1)),
                ended => return ended,
            }
        }
    }

    /// The JSON of the next line that begins with `word`; lines before it are skipped.
    fn next(&self, word: &str, limit: Duration) -> Option<Value> {
        let end = Instant::now() + limit;
        loop {
            let line =
                self.lines.recv_timeout(end.saturating_duration_since(Instant::now())).ok()?;
            if let Some(json) = line.strip_prefix(word) {
                return serde_json::from_str(json).ok();
            }
        }
    }

    /// The memory that it reports after the role [`super::role::memory`].
    pub fn memory(&self) -> Option<Value> {
        self.next("memory ", ANSWER_LIMIT)
    }

    /// Ends it and returns its counters; `None` if it prints none.
    pub fn finish(mut self) -> Option<Value> {
        match &mut self.runs {
            Runs::Process(process) => drop(process.stdin.take()),
            Runs::Thread { stop, .. } => stop.store(true, Ordering::Relaxed),
        }
        let figures = self.next("figures ", END_LIMIT);
        self.wait(END_LIMIT);
        figures
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        match &mut self.runs {
            // Both fail if the process has ended already.
            Runs::Process(process) => {
                let _ = process.kill();
                let _ = process.wait();
            }
            // The thread checks the flag after every poll. A panic has printed its message already.
            Runs::Thread { stop, handle } => {
                stop.store(true, Ordering::Relaxed);
                let _ = handle.take().map(JoinHandle::join);
            }
        }
    }
}

fn command(setup: &Setup) -> Command {
    // Not `current_exe`: if the file is replaced during the run, that would start the new program.
    let mut command = Command::new("/proc/self/exe");
    let setup = serde_json::to_string(setup).unwrap_or_default();
    command.arg("bench-peer").arg("--setup").arg(setup);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Lines of `from`, read by a thread; the channel closes at the end of the stream.
///
/// # Errors
/// The thread could not be started.
pub fn read_lines(from: impl Read + Send + 'static) -> std::io::Result<Receiver<String>> {
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

/// The addresses in `ready <json>`; `None` for any other line.
fn parse_ready(line: &str) -> Option<(Vec<String>, Addr)> {
    let ready: Ready = serde_json::from_str(line.strip_prefix("ready ")?).ok()?;
    let valid =
        !ready.uris.is_empty() && ready.uris.iter().all(|u| u.parse::<courser::Uri>().is_ok());
    let (host, port) = ready.raw;
    let host = u128::from_str_radix(&host, 16).ok()?;
    valid.then_some((ready.uris, Addr { host, port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_parsed() {
        let line = r#"ready {"uris":["udp://127.0.0.1:4000"],"raw":["ffff7f000001",4001]}"#;
        let (uris, raw) = parse_ready(line).expect("valid");
        assert_eq!(uris, ["udp://127.0.0.1:4000"]);
        assert_eq!(raw.to_socket(), Some("127.0.0.1:4001".parse().expect("a socket address")));
        for line in [
            "",
            "ready",
            "ready {}",
            r#"ready {"uris":[],"raw":["0",1]}"#,
            r#"ready {"uris":["udp://127.0.0.1"],"raw":["0",1]}"#,
            r#"ready {"uris":["udp://127.0.0.1:1"],"raw":["host",1]}"#,
            "figures {}",
        ] {
            assert_eq!(parse_ready(line), None, "{line}");
        }
    }

    #[test]
    fn the_last_line_that_is_not_empty_is_kept() {
        let last = Arc::default();
        keep_last("first\nlast\n\n".as_bytes(), Arc::clone(&last)).expect("a thread");
        // The thread holds the other reference until it has read everything.
        while Arc::strong_count(&last) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(last.lock().expect("not poisoned").as_deref(), Some("last"));
    }
}
