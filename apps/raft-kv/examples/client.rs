//! A program that uses the client library of `raft-kv`. With the addresses of nodes that run:
//!
//! ```sh
//! cargo run -p courser-raft-kv --example client -- \
//!     udp://10.0.0.1:31850 udp://10.0.0.2:31850 udp://10.0.0.3:31850
//! ```
//!
//! One address of a node that runs is enough; with all of them the program works while any majority
//! does.

#![forbid(unsafe_code)]

use std::time::Duration;

use courser::{Executed, Local, Nexus};
use courser_raft_kv::client::{Client, ClientError};
use courser_raft_kv::command::Written;
use courser_raft_kv::store::Kind;

type Failure = Box<dyn std::error::Error>;

/// Longest time of a call, with the election of another leader in it.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Failure> {
    let nodes: Vec<String> = std::env::args().skip(1).collect();
    if nodes.is_empty() {
        return Err("usage: client URI...; the addresses of nodes, as udp://10.0.0.1:31850".into());
    }
    run(nodes)?.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Opens a client, and returns what it has read.
pub(crate) fn run(nodes: Vec<String>) -> Result<Vec<String>, Failure> {
    // The endpoint has any free port; its thread runs the calls.
    let mut rpc = Nexus::bind("udp://0.0.0.0:0")?.endpoint()?;
    let kv = Client::new(rpc.local(), nodes, PATIENCE);
    rpc.block_on(calls(&kv))?
}

async fn calls(kv: &Client<Local>) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    let first = put(kv, b"fruit/apple", b"green").await?;
    put(kv, b"fruit/pear", b"yellow").await?;

    // Reads are linearizable: this is the last value, whichever client has written it.
    let apple = kv.get(b"fruit/apple").await?;
    lines.push(format!("get: fruit/apple is {}", text(&apple.unwrap_or_default())));

    let count = increment(kv, b"count").await?;
    lines.push(format!("cas: count is {count}"));

    // A page has the entries of one point in time. The next one begins behind the last key.
    let (mut from, end) = (b"fruit/".to_vec(), b"fruit0");
    loop {
        let page = kv.scan(&from, Some(end), 100).await?;
        for (key, value) in &page.entries {
            lines.push(format!("scan: {} is {}", text(key), text(value)));
        }
        let Some((last, _)) = page.entries.last().filter(|_| page.more) else { break };
        from = [&last[..], &[0]].concat();
    }

    // From the first write on. Without an index a watch begins with the present, and never ends by
    // itself.
    let mut watch = kv.watch(b"fruit/", Some(first.index - 1));
    for _ in 0..2 {
        let change = watch.next().await?;
        match (change.kind, change.value) {
            // The node no longer has all changes since this index: read the keys again.
            (Kind::Missed, _) => lines.push(format!("watch: changes to {} missed", change.index)),
            (_, Some(value)) => {
                lines.push(format!("watch: {} became {}", text(&change.key), text(&value)));
            }
            (_, None) => lines.push(format!("watch: {} was deleted", text(&change.key))),
        }
    }
    // A session that is not closed ends after ten minutes.
    kv.close().await?;
    Ok(lines)
}

/// Stores a value. The client itself repeats a write whose answer is lost, and it is applied once.
/// If no node answers for the whole time, the outcome is unknown: here the same value is stored
/// again, over what others have written meanwhile. A program for which that is wrong uses `cas` with
/// a value that carries its own mark, as its name and a counter, and repeats that until it has a
/// result: if the value was not changed and has the mark, an earlier attempt was applied. A read
/// alone does not settle the outcome, as the attempt may be applied after it.
async fn put(kv: &Client<Local>, key: &[u8], value: &[u8]) -> Result<Written, ClientError> {
    match kv.put(key, value).await {
        Err(ClientError::Unknown | ClientError::TimedOut { executed: Executed::Maybe }) => {
            kv.put(key, value).await
        }
        result => result,
    }
}

/// Adds 1 to a number, whatever other clients do meanwhile. An absent one counts as 0.
async fn increment(kv: &Client<Local>, key: &[u8]) -> Result<u64, Failure> {
    loop {
        let old = kv.get(key).await?;
        let number = old.as_ref().map_or(Some(0), |old| text(old).parse::<u64>().ok());
        let next = number.and_then(|number| number.checked_add(1)).ok_or_else(|| {
            let value = text(old.as_deref().unwrap_or_default());
            format!("the value {value:?} of {} is no number to add 1 to", text(key))
        })?;
        let new = next.to_string();
        if kv.cas(key, old.as_deref(), Some(new.as_bytes())).await?.changed {
            return Ok(next);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
