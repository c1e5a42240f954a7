//! `raft-kv get`, `put`, `delete`, `cas`, `scan` and `watch`.

use std::io::Write;

use clap::Args;
use courser_kit::{Failure, out};
use courser_raft_kv::api::Page;
use courser_raft_kv::command::Written;
use courser_raft_kv::store::{Change, Kind};
use serde_json::{Value, json};

use super::reach::{Reach, failure, with_client};

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    reach: Reach,
    /// The key
    key: String,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    reach: Reach,
    /// The key
    key: String,
    /// The value
    value: String,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    reach: Reach,
    /// The key
    key: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status 1 if the key had another value. Without --expect the key must be absent, without a \
value it is removed.

Examples:
  raft-kv cas lock --expect free taken
  raft-kv cas lock mine              only if there is no such key")]
pub(crate) struct CasArgs {
    #[command(flatten)]
    reach: Reach,
    /// The key
    key: String,
    /// The value that the key must have
    #[arg(long, value_name = "VALUE")]
    expect: Option<String>,
    /// The new value
    value: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    reach: Reach,
    /// First key
    #[arg(default_value = "")]
    from: String,
    /// Key before which the scan ends
    end: Option<String>,
    /// Most entries
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
When the node of the watch ends, another one sends the changes after the last one; the command fails \
if none answers within --timeout. A node keeps the last 4,096 changes (4 MiB): a watch that begins \
before them, or is slower, prints the index up to which changes are missed.")]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    reach: Reach,
    /// Prefix of the keys
    #[arg(default_value = "")]
    prefix: String,
    /// Begin after this index of the log, if the node has the changes since
    #[arg(long, value_name = "INDEX")]
    after: Option<u64>,
    /// End after this number of changes, from 1; without it the watch has no end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Bytes as text; others are shown as U+FFFD.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn print(line: &str) -> Result<(), Failure> {
    let mut out = out::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn print_json(value: &Value) -> Result<(), Failure> {
    print(&value.to_string())
}

pub(crate) fn get(args: &GetArgs) -> Result<(), Failure> {
    let key = args.key.as_bytes();
    let value = with_client(&args.reach, async |kv| kv.get(key).await.map_err(failure))?;
    if args.reach.json {
        return print_json(&json!({ "key": args.key, "value": value.map(|value| text(&value)) }));
    }
    match value {
        Some(value) => print(&text(&value)),
        None => Err(Failure::Runtime(format!("there is no key {}", args.key))),
    }
}

fn written(reach: &Reach, written: Written) -> Result<(), Failure> {
    if reach.json {
        return print_json(&json!({ "index": written.index, "changed": written.changed }));
    }
    Ok(())
}

pub(crate) fn put(args: &PutArgs) -> Result<(), Failure> {
    let result = with_client(&args.reach, async |kv| {
        let result = kv.put(args.key.as_bytes(), args.value.as_bytes()).await.map_err(failure)?;
        kv.close().await.map_err(failure)?;
        Ok(result)
    })?;
    written(&args.reach, result)
}

pub(crate) fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let result = with_client(&args.reach, async |kv| {
        let result = kv.delete(args.key.as_bytes()).await.map_err(failure)?;
        kv.close().await.map_err(failure)?;
        Ok(result)
    })?;
    if !result.changed && !args.reach.json {
        return print(&format!("there is no key {}", args.key));
    }
    written(&args.reach, result)
}

pub(crate) fn cas(args: &CasArgs) -> Result<(), Failure> {
    let bytes = |text: &'_ Option<String>| text.clone().map(String::into_bytes);
    let (expected, value) = (bytes(&args.expect), bytes(&args.value));
    let result = with_client(&args.reach, async |kv| {
        let key = args.key.as_bytes();
        let result = kv.cas(key, expected.as_deref(), value.as_deref()).await.map_err(failure)?;
        kv.close().await.map_err(failure)?;
        Ok(result)
    })?;
    written(&args.reach, result)?;
    if result.changed {
        return Ok(());
    }
    Err(Failure::Runtime(format!("{} has another value; read it with `raft-kv get`", args.key)))
}

pub(crate) fn scan(args: &ScanArgs) -> Result<(), Failure> {
    with_client(&args.reach, async |kv| {
        let mut from = args.from.clone().into_bytes();
        let end = args.end.as_ref().map(|end| end.as_bytes());
        let mut left = args.limit;
        while left > 0 {
            let limit = u32::try_from(left).unwrap_or(u32::MAX);
            let Page { entries, more } = kv.scan(&from, end, limit).await.map_err(failure)?;
            left -= entries.len() as u64;
            for (key, value) in &entries {
                if args.reach.json {
                    print_json(&json!({ "key": text(key), "value": text(value) }))?;
                } else {
                    print(&format!("{} {}", text(key), text(value)))?;
                }
            }
            let Some((last, _)) = entries.last().filter(|_| more) else { break };
            from = [&last[..], &[0]].concat();
        }
        Ok(())
    })
}

pub(crate) fn watch(args: &WatchArgs) -> Result<(), Failure> {
    with_client(&args.reach, async |kv| {
        let mut watch = kv.watch(args.prefix.as_bytes(), args.after);
        let mut left = args.count.unwrap_or(u64::MAX);
        while left > 0 {
            let change = watch.next().await.map_err(failure)?;
            show(args.reach.json, &change)?;
            left -= u64::from(change.kind != Kind::Missed);
        }
        Ok(())
    })
}

fn show(as_json: bool, change: &Change) -> Result<(), Failure> {
    let (key, value) = (text(&change.key), change.value.as_ref().map(|value| text(value)));
    if as_json {
        let kind = format!("{:?}", change.kind).to_lowercase();
        return print_json(&json!({
            "index": change.index, "kind": kind, "key": key, "value": value,
        }));
    }
    match change.kind {
        Kind::Put => print(&format!("{} {key} {}", change.index, value.unwrap_or_default())),
        Kind::Deleted => print(&format!("{} {key} was deleted", change.index)),
        Kind::Missed => print(&format!(
            "{} changes up to this index are missed; read the keys with `raft-kv scan`",
            change.index
        )),
        Kind::Reached => Ok(()),
    }
}
