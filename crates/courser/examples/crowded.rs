//! Client, server and a busy loop on one CPU: calls per second with the default time of spinning, and
//! without spinning. Windows of both alternate.
//!
//! `cargo run --release -p courser --example crowded [udp|shm] [alone]`; with `alone` there is no busy
//! loop.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use courser::{Config, EndpointHandle, Nexus};
use rustix::thread::{CpuSet, sched_setaffinity};

const ECHO: u16 = 1;
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(wrong) = args.iter().find(|arg| !["udp", "shm", "alone"].contains(&arg.as_str())) {
        return Err(format!("unknown argument {wrong}; usage: crowded [udp|shm] [alone]").into());
    }
    let scheme = if args.iter().any(|arg| arg == "shm") { "shm" } else { "udp" };
    let mut cpu = CpuSet::new();
    cpu.set(0);
    sched_setaffinity(None, &cpu)?; // inherited by all threads
    if !args.iter().any(|arg| arg == "alone") {
        thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    let (mut all, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..WINDOWS {
        let with = window(scheme, Config::default())?;
        let without = window(scheme, Config { spin: Some(Duration::ZERO), ..Config::default() })?;
        ratios.push(with / without);
        all[0].push(with);
        all[1].push(without);
    }
    for (name, mut rates) in ["default", "spin = 0"].into_iter().zip(all) {
        println!(
            "{name}: {:.0} calls/s [{:.0}, {:.0}]",
            median(&mut rates),
            rates[0],
            last(&rates)
        );
    }
    println!("ratio {:.2} [{:.2}, {:.2}]", median(&mut ratios), ratios[0], last(&ratios));
    Ok(())
}

/// Sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn last(values: &[f64]) -> f64 {
    values[values.len() - 1]
}

/// Calls per second of one client, one call after the other.
fn window(scheme: &str, config: Config) -> Result<f64, Box<dyn std::error::Error>> {
    let nexus = Nexus::bind_with(&format!("{scheme}://127.0.0.1:0"), config.clone())?;
    let uri = nexus.local_uri();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = thread::spawn(move || serve(&nexus, &ready));
    let waker = is_ready.recv()?;
    let mut rpc = Nexus::bind_with(&format!("{scheme}://127.0.0.1:0"), config)?.endpoint()?;
    let session = rpc.connect(&uri)?;
    let mut request = rpc.alloc(32)?;
    let (mut calls, mut begin) = (0_u32, None::<Instant>);
    let elapsed = loop {
        request = rpc.call_wait(session, ECHO, request, Duration::from_secs(5))?.request;
        let elapsed = begin.get_or_insert_with(Instant::now).elapsed(); // after the connect
        if elapsed >= WINDOW {
            break elapsed;
        }
        calls += 1;
    };
    let rate = f64::from(calls) / elapsed.as_secs_f64();
    waker.stop();
    server.join().map_err(|_| "the server panicked")??;
    Ok(rate)
}

fn serve(nexus: &Nexus, ready: &Sender<EndpointHandle>) -> Result<(), String> {
    let mut rpc = nexus.endpoint().map_err(|e| e.to_string())?;
    rpc.on(ECHO, |cx, req| cx.reply(req));
    ready.send(rpc.handle()).map_err(|e| e.to_string())?;
    rpc.run().map_err(|e| e.to_string())
}
