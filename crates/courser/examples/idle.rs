//! Cost of idle endpoints: the CPU time of a connected pair without calls, and the latency of the
//! first RPC after a second without traffic.
//!
//! `cargo run --release -p courser --example idle [-- --json PATH]`; takes about half a minute.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use courser::{EndpointHandle, Nexus, Rpc, SessionId};
use rustix::time::{ClockId, clock_gettime};

const ECHO: u16 = 1;
const IDLE: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(1);
const SAMPLES: usize = 20;

type Error = Box<dyn std::error::Error>;

/// CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn serve(ready: &mpsc::Sender<(EndpointHandle, String)>) -> Result<(), Error> {
    let nexus = Nexus::bind("udp://127.0.0.1:0")?;
    let mut rpc = nexus.endpoint()?;
    rpc.on(ECHO, |cx, req| cx.reply(req));
    ready.send((rpc.handle(), nexus.local_uri()))?;
    Ok(rpc.run()?)
}

/// Time of one RPC of 32 bytes, from call to continuation.
fn round_trip(rpc: &mut Rpc, session: SessionId) -> Result<Duration, Error> {
    let mut request = rpc.alloc(32)?;
    request.fill(1);
    let answered = Rc::new(Cell::new(None));
    let seen = answered.clone();
    let start = Instant::now();
    rpc.call(session, ECHO, request, move |_, done| {
        seen.set(Some((start.elapsed(), done.result.map(|r| r.len()))));
    })?;
    rpc.run_until(|| answered.get().is_some())?;
    let (took, result) = answered.get().ok_or("stopped")?;
    result?;
    Ok(took)
}

/// The CPU share over [`IDLE`] and the sorted latencies.
fn measure(uri: &str) -> Result<(f64, Vec<Duration>), Error> {
    let nexus = Nexus::bind("udp://127.0.0.1:0")?;
    let mut rpc = nexus.endpoint()?;
    let session = rpc.connect(uri)?;
    rpc.wait_connected(session)?;
    for _ in 0..1000 {
        round_trip(&mut rpc, session)?;
    }
    let (before, start) = (cpu_time(), Instant::now());
    rpc.run_for(IDLE)?;
    let share = (cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    let mut latencies = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        rpc.run_for(SILENCE)?;
        latencies.push(round_trip(&mut rpc, session)?);
    }
    latencies.sort_unstable();
    Ok((share, latencies))
}

fn json(share: f64, latencies: &[Duration]) -> serde_json::Value {
    let ns = |at: usize| latencies[at].as_nanos() as u64;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    serde_json::json!({
        "bench": "idle",
        "transport": "udp",
        "config": {
            "idle_s": IDLE.as_secs(), "silence_s": SILENCE.as_secs(), "samples": SAMPLES,
            "message_bytes": 32, "endpoints": 2,
        },
        "results": [{
            "placement": "mixed",
            "windows": SAMPLES,
            "cpu_share": share,
            "latency_p50_ns": ns(SAMPLES / 2),
            "latency_max_ns": ns(SAMPLES - 1),
        }],
        "environment": {
            "kernel": kernel.trim(),
            "cpus": std::thread::available_parallelism().map_or(1, usize::from),
        },
    })
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = match &args[..] {
        [] => None,
        [flag, path] if flag == "--json" => Some(path),
        _ => return Err("usage: idle [--json PATH]".into()),
    };
    let (ready, is_ready) = mpsc::channel();
    let server = std::thread::spawn(move || serve(&ready).map_err(|e| e.to_string()));
    let (handle, uri) = is_ready.recv()?;
    let (share, latencies) = measure(&uri)?;
    handle.stop();
    server.join().map_err(|_| "the server panicked")??;

    println!("idle pair of endpoints, {} s     {:6.3} % of a core", IDLE.as_secs(), share * 100.0);
    for (name, at) in [("min", 0), ("p50", SAMPLES / 2), ("max", SAMPLES - 1)] {
        println!(
            "first RPC after 1 s idle, {name}   {:6.1} us",
            latencies[at].as_nanos() as f64 / 1e3
        );
    }
    if let Some(path) = path {
        std::fs::write(path, serde_json::to_string_pretty(&json(share, &latencies))? + "\n")?;
    }
    Ok(())
}
