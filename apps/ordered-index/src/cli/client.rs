//! `ordered-index client`.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use courser::{Local, Nexus, Uri};
use courser_kit::{Failure, out, units};
use courser_ordered_index::client::Client;
use courser_ordered_index::message::MOST_SCANNED;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ordered-index client put udp://127.0.0.1:31860 7 42
  ordered-index client get udp://127.0.0.1:31860 7
  ordered-index client scan udp://127.0.0.1:31860 0 --count 128
  ordered-index client load udp://127.0.0.1:31860 --keys 1000000")]
pub(crate) struct ClientArgs {
    #[command(subcommand)]
    operation: Operation,
    /// Longest time of a call
    #[arg(long, global = true, default_value = "2s", value_parser = units::nonzero_time)]
    deadline: Duration,
}

#[derive(Debug, Subcommand)]
enum Operation {
    /// Print the value of a key
    Get {
        /// Address of the server
        uri: String,
        /// The key, a number of 64 bits
        key: u64,
    },
    /// Store a value
    Put {
        /// Address of the server
        uri: String,
        /// The key
        key: u64,
        /// The value, a number of 64 bits
        value: u64,
    },
    /// Remove a key
    Delete {
        /// Address of the server
        uri: String,
        /// The key
        key: u64,
    },
    /// Print the sum of the values of a key and its successors, modulo 2^64
    Scan {
        /// Address of the server
        uri: String,
        /// The first key
        from: u64,
        /// Number of keys, at most 16384
        #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(..=i64::from(MOST_SCANNED)))]
        count: u32,
    },
    /// Store keys that are spread over all numbers
    Load {
        /// Address of the server
        uri: String,
        /// Number of keys
        #[arg(long, default_value_t = 1_000_000, value_parser = super::keys(1))]
        keys: u64,
    },
}

impl Operation {
    fn uri(&self) -> &str {
        match self {
            Operation::Get { uri, .. }
            | Operation::Put { uri, .. }
            | Operation::Delete { uri, .. }
            | Operation::Scan { uri, .. }
            | Operation::Load { uri, .. } => uri,
        }
    }
}

fn failed(error: impl std::error::Error) -> Failure {
    Failure::Runtime(error.to_string())
}

/// Sends one operation.
pub(crate) fn run(args: &ClientArgs) -> Result<(), Failure> {
    let server: Uri =
        args.operation.uri().parse().map_err(|error| Failure::Usage(format!("{error}")))?;
    let mut rpc = Nexus::bind(&server.bind_for_client().to_string())?.endpoint()?;
    let local = rpc.local();
    rpc.block_on(operate(args, &local)).map_err(failed)?
}

async fn operate(args: &ClientArgs, local: &Local) -> Result<(), Failure> {
    let connected = Client::connect(local, args.operation.uri(), args.deadline).await;
    let client = connected.map_err(failed)?;
    let mut out = out::stdout();
    match args.operation {
        Operation::Get { key, .. } => match client.get(key).await.map_err(failed)? {
            Some(value) => writeln!(out, "{value}")?,
            None => {
                let text = format!("there is no key {key}; put it first");
                return Err(Failure::Runtime(text));
            }
        },
        Operation::Put { key, value, .. } => {
            let replaced = client.put(key, value).await.map_err(failed)?;
            writeln!(out, "{}", if replaced { "replaced" } else { "stored" })?;
        }
        Operation::Delete { key, .. } => {
            let removed = client.delete(key).await.map_err(failed)?;
            writeln!(out, "{}", if removed { "removed" } else { "there was none" })?;
        }
        Operation::Scan { from, count, .. } => {
            let sum = client.scan(from, count).await.map_err(failed)?;
            writeln!(out, "{} of {} values", sum.sum, sum.count)?;
        }
        Operation::Load { keys, .. } => {
            let mut loading = super::Loading::begin(keys)?;
            let loaded = client.load(keys, |done| loading.show(done)).await;
            drop(loading);
            loaded.map_err(failed)?;
            writeln!(out, "loaded {keys} keys")?;
        }
    }
    out.flush()?;
    Ok(())
}
