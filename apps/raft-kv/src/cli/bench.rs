//! `raft-kv bench`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use courser::Local;
use courser_kit::units::{show_ns, show_per_second};
use courser_kit::{Failure, ResultArgs, json, units};
use courser_raft_kv::client::Client;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::local::{Kind, Nodes};
use super::reach::{at_endpoint, failure, node};

#[derive(Debug, Args)]
#[command(after_help = "\
Without --nodes, three nodes are started on this machine, and ended after it.

Examples:
  raft-kv bench                          puts and gets, 1 and 64 in flight
  raft-kv bench --memory --transport shm
  raft-kv bench --nodes udp://10.0.0.1:31850 --in-flight 64 --json result.json")]
pub(crate) struct BenchArgs {
    /// Addresses of nodes that run; without them three are started here
    #[arg(long, env = "RAFT_KV_NODES", value_delimiter = ',', value_name = "URI", value_parser = node)]
    nodes: Vec<String>,
    /// Calls in flight
    #[arg(long, value_delimiter = ',', default_value = "1,64", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    in_flight: Vec<u32>,
    /// Time of each measurement
    #[arg(long, default_value = "3s", value_parser = units::nonzero_time)]
    time: Duration,
    /// Bytes of a key: 8 to 65,536
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    key_bytes: u32,
    /// Bytes of a value: up to 2 MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=2_097_152))]
    value_bytes: u32,
    /// Number of keys
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// Transport of nodes that are started here
    #[arg(long, value_enum, default_value = "udp")]
    transport: Transport,
    /// Nodes that are started here keep their logs in memory
    #[arg(long)]
    memory: bool,
    /// Nodes that are started here answer reads by leases
    #[arg(long)]
    lease_reads: bool,
    /// Nodes that are started here send each entry in a message of its own
    #[arg(long)]
    no_batching: bool,
    #[command(flatten)]
    result: ResultArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// UDP on the loopback
    Udp,
    /// Shared memory
    Shm,
}

#[derive(Clone, Copy, PartialEq)]
enum Call {
    Put,
    Get,
}

/// Longest time of a call: many large values in flight take some time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time of calls before a measurement.
const WARM_UP: Duration = Duration::from_millis(300);

struct Shared {
    histogram: RefCell<Histogram<u64>>,
    is_counted: Cell<bool>,
    end_ns: Cell<u64>,
    running: Cell<usize>,
    error: RefCell<Option<Failure>>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    args.result.check()?;
    let scheme = match args.transport {
        Transport::Udp => "udp",
        Transport::Shm => "shm",
    };
    let mut flags = Vec::new();
    flags.extend(args.lease_reads.then(|| "--lease-reads".to_owned()));
    flags.extend(args.no_batching.then(|| "--no-batching".to_owned()));
    let election = Duration::from_millis(500);
    let kind = Kind { scheme, memory: args.memory, election, flags: &flags, is_apart: false };
    let started = args.nodes.is_empty().then(|| Nodes::start(3, kind)).transpose()?;
    let uris = started.as_ref().map_or(args.nodes.clone(), |nodes| nodes.uris().to_vec());
    let first = uris.first().cloned().unwrap_or_default();
    let results = at_endpoint(&first, async |local| {
        let kv = Rc::new(Client::new(local.clone(), uris.clone(), PATIENCE));
        let mut results = Vec::new();
        for &in_flight in &args.in_flight {
            for call in [Call::Put, Call::Get] {
                results.push(measure(args, &local, &kv, call, in_flight).await?);
            }
        }
        kv.close().await.map_err(failure)?;
        Ok(results)
    })?;
    let report = json!({
        "bench": "raft-kv", "transport": scheme,
        "config": {
            "nodes": uris.len(), "started_here": started.is_some(), "memory": args.memory,
            "lease_reads": args.lease_reads, "batching": !args.no_batching, "keys": args.keys,
            "key_bytes": args.key_bytes, "value_bytes": args.value_bytes,
            "time_ns": args.time.as_nanos() as u64,
        },
        "results": results,
        "environment": json::environment(None),
    });
    args.result.show(&report, || text(&report))
}

fn text(report: &Value) -> String {
    let mut lines = String::new();
    for result in report["results"].as_array().into_iter().flatten() {
        let number = |key: &str| result[key].as_f64().unwrap_or_default();
        lines += &format!(
            "{:<4} {:>4} in flight  p50 {:>8}  p99 {:>8}  {}\n",
            result["call"].as_str().unwrap_or_default(),
            result["in_flight"],
            show_ns(number("latency_p50_ns")),
            show_ns(number("latency_p99_ns")),
            show_per_second(number("rate_rps"), "/s"),
        );
    }
    lines
}

async fn measure(
    args: &BenchArgs,
    local: &Local,
    kv: &Rc<Client<Local>>,
    call: Call,
    in_flight: u32,
) -> Result<Value, Failure> {
    let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds");
    let shared = Rc::new(Shared {
        histogram: RefCell::new(histogram),
        is_counted: Cell::new(false),
        end_ns: Cell::new(u64::MAX),
        running: Cell::new(in_flight as usize),
        error: RefCell::default(),
    });
    for worker in 0..in_flight {
        let (kv, local, shared) = (kv.clone(), local.clone(), shared.clone());
        let (keys, sizes) = (args.keys, (args.key_bytes as usize, args.value_bytes as usize));
        let of_local = local.clone();
        drop(of_local.spawn(async move {
            work(&kv, &local, &shared, call, worker, keys, sizes).await;
            shared.running.set(shared.running.get() - 1);
        }));
    }
    local.sleep(WARM_UP).await;
    let began_ns = local.now_ns();
    shared.is_counted.set(true);
    shared.end_ns.set(began_ns + args.time.as_nanos() as u64);
    local.sleep(args.time).await;
    let took = (local.now_ns() - began_ns) as f64 / 1e9;
    let (count, p50, p99) = {
        let histogram = shared.histogram.borrow();
        let at = |quantile| histogram.value_at_quantile(quantile);
        (histogram.len(), at(0.5), at(0.99))
    };
    while shared.running.get() > 0 {
        local.sleep(Duration::from_millis(1)).await;
    }
    if let Some(error) = shared.error.borrow_mut().take() {
        return Err(error);
    }
    let name = if call == Call::Put { "put" } else { "get" };
    Ok(json!({
        "call": name, "in_flight": in_flight, "calls": count, "rate_rps": count as f64 / took,
        "latency_p50_ns": p50, "latency_p99_ns": p99,
    }))
}

async fn work(
    kv: &Client<Local>,
    local: &Local,
    shared: &Shared,
    call: Call,
    worker: u32,
    keys: u64,
    sizes: (usize, usize),
) {
    let value = vec![worker as u8; sizes.1];
    let mut key = vec![0; sizes.0];
    while local.now_ns() < shared.end_ns.get() {
        let number = local.random() % keys;
        key[..8].copy_from_slice(&number.to_be_bytes());
        let began_ns = local.now_ns();
        let done = match call {
            Call::Put => kv.put(&key, &value).await.map(|_| ()),
            Call::Get => kv.get(&key).await.map(|_| ()),
        };
        if let Err(error) = done {
            *shared.error.borrow_mut() = Some(failure(error));
            return;
        }
        if shared.is_counted.get() && local.now_ns() < shared.end_ns.get() {
            shared.histogram.borrow_mut().saturating_record(local.now_ns() - began_ns);
        }
    }
}
