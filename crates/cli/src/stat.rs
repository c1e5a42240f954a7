//! `courser stat`: shows the statistics of a running server periodically.
//!
//! For `courser serve`, [`snapshot`] has the messages, [`service`] the server side, [`client`] the client
//! side; [`view`] computes rates and tables. [`typed`] does the same for any server with the standard
//! service.

pub(crate) mod client;
pub(crate) mod service;
pub(crate) mod snapshot;
pub(crate) mod typed;
mod view;

use std::io::Write;
use std::time::Instant;

use serde_json::{Value, json};

use crate::args::StatArgs;
use courser::Uri;
use courser_bench::clock::Clock;
use courser_kit::Failure;
use courser_kit::interrupt::Interrupt;
use courser_kit::{json, out};

use client::Client;
use view::Before;

/// Shows the statistics until a signal, or the given number of times.
///
/// # Errors
/// There is no `courser serve` at the address, or the connection to it failed.
pub(crate) fn run(args: &StatArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let clock = Clock::new();
    let mut client = Client::connect(&args.uri, args.bind.as_deref())?;
    let interrupt = Interrupt::stop(vec![client.rpc().handle()])?;
    let mut out = out::stdout();
    let to_stdout = args.json.as_deref().is_some_and(json::is_stdout);
    let wanted = match args.count {
        _ if args.once => 1,
        // With JSON the default is one refresh.
        None if args.json.is_some() => 1,
        count => count.unwrap_or(0),
    };
    let (mut before, mut last, mut shown) = (Before::default(), Vec::new(), 0);
    let mut due = Instant::now();
    while wanted == 0 || shown < wanted {
        client.rest(due, &interrupt)?;
        due = Instant::now() + args.interval;
        let snapshots = match client.snapshots(args.sessions > 0, &interrupt) {
            Ok(Some(snapshots)) if !interrupt.is_set() => snapshots,
            Ok(_) => break,
            // Another server may have the standard service.
            Err(_) if client.knows_no_statistics() => {
                let results = typed::run(args, wanted, &mut client, &interrupt)?;
                return finish(args, results, &clock);
            }
            Err(e) => return Err(e),
        };
        last = before.rate(snapshots, args.sessions);
        if !to_stdout {
            let gap = if shown > 0 { "\n" } else { "" };
            write!(out, "{gap}{}", view::render(&args.uri, &last))?;
            out.flush()?;
        }
        shown += 1;
    }
    finish(args, json!(last), &clock)
}

/// Writes the last refresh, if that is wanted.
fn finish(args: &StatArgs, results: Value, clock: &Clock) -> Result<(), Failure> {
    match &args.json {
        Some(target) => json::write(target, &report(args, results, clock)),
        None => Ok(()),
    }
}

/// The last refresh in the format of benchmark reports, with one result for each endpoint, or one for a
/// server with the standard service.
fn report(args: &StatArgs, results: Value, clock: &Clock) -> Value {
    json!({
        "bench": "stat",
        "transport": args.uri.parse().map_or_else(|_| "udp".to_owned(), |uri: Uri| uri.scheme),
        "config": {
            "uri": args.uri,
            "interval_ns": args.interval.as_nanos() as u64,
            "count": if args.once { Some(1) } else { args.count },
            "sessions": args.sessions,
        },
        "results": results,
        "environment": json::environment(clock.error_ppm()),
    })
}
