//! Lines of requests.

use std::net::IpAddr;

use thiserror::Error;

use super::{BATCH_CHANGES, BATCH_HOPS, BATCH_WORK, Request};
use crate::config::{Config, RouteTextError, parse_prefix};
use crate::fib::Fib;
use crate::routes::Change;

pub(super) const HELP: &str = "\
route add PREFIX via NODE:INTERFACE[@GATEWAY[,onlink]][*WEIGHT] ...
route add PREFIX unreachable
route replace PREFIX via NODE:INTERFACE[@GATEWAY[,onlink]][*WEIGHT] ...
route replace PREFIX unreachable
route del PREFIX
route get ADDRESS [FLOW]
routes [PREFIX]
batch begin | batch commit | batch abort
nodes
stats
help
";

/// What a line is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Line {
    Change(Change),
    Request(Request),
    Begin,
    Commit,
    Abort,
    Help,
    /// Nothing, or a comment.
    Empty,
}

/// Why a line is no request.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum LineError {
    #[error("{0:?} is no request: `help` lists them")]
    Unknown(String),
    #[error("{0:?} is no IP address")]
    Address(String),
    #[error("{0:?} is no hash of a flow: a number, 0 to 4294967295")]
    Flow(String),
    #[error(transparent)]
    Route(#[from] RouteTextError),
}

fn start(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A line without its comment.
pub(super) fn content(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// Reads a line.
pub(super) fn line(config: &Config, text: &str) -> Result<Line, LineError> {
    let text = content(text);
    let unknown = || LineError::Unknown(start(text));
    let (command, rest) = split(text);
    let (word, arguments) = split(rest);
    match (command, word) {
        ("", _) => Ok(Line::Empty),
        ("help", "") => Ok(Line::Help),
        ("stats", "") => Ok(Line::Request(Request::Stats)),
        ("nodes", "") => Ok(Line::Request(Request::Nodes)),
        ("batch", "begin") if arguments.is_empty() => Ok(Line::Begin),
        ("batch", "commit") if arguments.is_empty() => Ok(Line::Commit),
        ("batch", "abort") if arguments.is_empty() => Ok(Line::Abort),
        ("routes", prefix) if arguments.is_empty() => {
            let prefix = (!prefix.is_empty()).then(|| parse_prefix(prefix)).transpose()?;
            Ok(Line::Request(Request::Routes { within: prefix, after: None }))
        }
        ("route", "get") => find(arguments),
        ("route", "del") => Ok(Line::Change(Change::Delete(parse_prefix(arguments)?))),
        ("route", "add") => {
            let (prefix, members) = config.parse_route(arguments)?;
            Ok(Line::Change(Change::Add(prefix, members)))
        }
        ("route", "replace") => {
            let (prefix, members) = config.parse_route(arguments)?;
            Ok(Line::Change(Change::Replace(prefix, members)))
        }
        _ => Err(unknown()),
    }
}

fn find(arguments: &str) -> Result<Line, LineError> {
    let (address, flow) = split(arguments);
    let address: IpAddr = address.parse().map_err(|_| LineError::Address(start(address)))?;
    let flow = if flow.is_empty() { "0" } else { flow };
    let flow = flow.parse().map_err(|_| LineError::Flow(start(flow)))?;
    Ok(Line::Request(Request::Find(address, flow)))
}

/// The first word and the rest.
fn split(text: &str) -> (&str, &str) {
    match text.split_once(|c: char| c.is_ascii_whitespace()) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}

/// The changes between `batch begin` and `batch commit`.
#[derive(Debug, Default)]
pub(super) struct Batch {
    changes: Vec<Change>,
    hops: usize,
    work: usize,
    lines: usize,
    /// The first wrong line and its error.
    wrong: Option<(usize, String)>,
}

impl Batch {
    /// Adds the change of a line, or the error of one. An error is kept, so that the batch fails.
    pub(super) fn add(&mut self, change: Result<Change, String>) -> Result<(), String> {
        self.lines += 1;
        let change = change.and_then(|change| self.fits(change)).inspect_err(|error| {
            self.wrong.get_or_insert((self.lines, error.clone()));
        })?;
        if self.wrong.is_none() {
            self.changes.push(change);
        }
        Ok(())
    }

    fn fits(&mut self, change: Change) -> Result<Change, String> {
        if let Change::Add(_, members) | Change::Replace(_, members) = &change {
            self.hops += members.len();
        }
        self.work += Fib::work(&change.prefix());
        if self.work > BATCH_WORK {
            let most = "a batch has at most two prefixes of length 1, or 264 of length 8";
            return Err(format!("{most}: commit more often"));
        }
        if self.changes.len() >= BATCH_CHANGES {
            return Err(format!("a batch has at most {BATCH_CHANGES} changes: commit more often"));
        }
        if self.hops > BATCH_HOPS {
            return Err(format!("a batch has at most {BATCH_HOPS} next hops: commit more often"));
        }
        Ok(change)
    }

    /// The changes, if all lines were right.
    pub(super) fn commit(self) -> Result<Vec<Change>, String> {
        match self.wrong {
            None => Ok(self.changes),
            Some((line, error)) => {
                Err(format!("nothing is changed: line {line} of the batch: {error}"))
            }
        }
    }
}
