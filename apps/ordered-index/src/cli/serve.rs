//! `ordered-index serve`.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Args;
use courser::{Config, EndpointHandle, Nexus, Rpc};
use courser_kit::interrupt::Interrupt;
use courser_kit::{Failure, VERSION, out};
use courser_ordered_index::index::{DEFAULT_MOST, Index};
use courser_ordered_index::load::fill;
use courser_ordered_index::service::{self, Scans};

/// Time for requests in progress when the server is interrupted.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "\
Keys and values have 8 bytes. Reads, writes and removals run on the threads of the endpoints; \
scans, which take some microseconds, on worker threads. An index of a million keys takes some \
75 MB.

Examples:
  ordered-index serve
  ordered-index serve --bind shm://127.0.0.1:31860 --keys 1000000
  ordered-index serve --threads 14 --workers 2")]
pub(crate) struct ServeArgs {
    /// Address to serve: udp:// for all machines, shm:// for this one
    #[arg(long, value_name = "URI", default_value = "udp://127.0.0.1:31860")]
    bind: String,
    /// Keys to begin with, those of `client load`
    #[arg(long, default_value_t = 0, value_parser = super::keys(0))]
    keys: u64,
    /// Most keys; a put of a further one is refused. 10 million take some 750 MB
    #[arg(long, default_value_t = DEFAULT_MOST, value_parser = super::keys(1))]
    max_keys: u64,
    /// Endpoints, each with a thread, 1 to 64; sessions are spread over them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Worker threads for scans, 1 to 64
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Where scans run
    #[arg(long, value_enum, default_value = "workers")]
    scans: super::ScansArg,
}

/// Serves until a signal arrives.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = Config { workers: args.workers.into(), ..Config::default() };
    // First: a wrong address is reported before the keys are loaded.
    let nexus = Arc::new(Nexus::bind_with(&args.bind, config)?);
    if args.keys > args.max_keys {
        let text = "--keys is more than --max-keys; raise --max-keys, for some 75 bytes a key";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut index = Arc::new(Index::with_limit(args.max_keys));
    if args.keys > 0 {
        let mut loading = super::Loading::begin(args.keys)?;
        index = fill(Index::with_limit(args.max_keys), args.keys, |done| loading.show(done));
    }
    let (mut handles, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..args.threads {
        // Endpoints start one after the other, so that endpoint N has the N-th port.
        let (sender, started) = mpsc::channel();
        threads.push(start(nexus.clone(), index.clone(), args.scans.into(), sender)?);
        let ended = |_| Failure::Runtime("an endpoint's thread ended early".to_owned());
        handles.push(started.recv().map_err(ended)??);
    }
    let interrupt = Interrupt::stop(handles)?;
    let uri = nexus.local_uri();
    let mut out = out::stdout();
    writeln!(out, "ordered-index {VERSION} serves {} keys on\n{uri}; Ctrl-C ends it\n", args.keys)?;
    writeln!(out, "  ordered-index client get {uri} 0")?;
    writeln!(out, "  ordered-index client load {uri} --keys 1000000")?;
    out.flush()?;
    let mut requests = 0;
    for thread in threads {
        let ended = thread.join();
        let panicked = |_| Failure::Runtime("an endpoint's thread panicked".to_owned());
        requests += ended.map_err(panicked)??;
    }
    drop(interrupt);
    writeln!(out, "served {requests} requests; {} keys at the end", index.count())?;
    Ok(())
}

/// Starts the thread of an endpoint. Its result is the number of its requests.
fn start(
    nexus: Arc<Nexus>,
    index: Arc<Index>,
    scans: Scans,
    sender: Sender<Result<EndpointHandle, Failure>>,
) -> Result<JoinHandle<Result<u64, Failure>>, Failure> {
    let thread = thread::Builder::new().name("index-endpoint".to_owned());
    Ok(thread.spawn(move || {
        let mut rpc = match endpoint(&nexus, &index, scans) {
            Ok(rpc) => rpc,
            Err(error) => {
                let _ = sender.send(Err(error));
                return Ok(0);
            }
        };
        let _ = sender.send(Ok(rpc.handle()));
        let failed = |error: courser::RunError| Failure::Runtime(error.to_string());
        rpc.run().map_err(failed)?;
        let requests = rpc.stats().requests;
        rpc.shutdown(GRACE).map_err(failed)?;
        Ok(requests)
    })?)
}

fn endpoint(nexus: &Nexus, index: &Arc<Index>, scans: Scans) -> Result<Rpc, Failure> {
    let mut rpc = nexus.endpoint()?;
    let registered = service::register(&mut rpc, index, scans);
    registered.map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(rpc)
}
