//! Statistics of a server that has the standard service for them (`Server::add_introspection`).
//!
//! Its texts are not trusted: control characters are removed from names before they are printed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write;
use std::time::Instant;

use courser::introspection::IntrospectionClient;
use courser::service::{BlockingChannel, HelloError, RpcError};
use courser::{Client, Config, Endpoints, Uri};
use courser_kit::Failure;
use courser_kit::counters::number;
use courser_kit::interrupt::Interrupt;
use courser_kit::table::Table;
use courser_kit::units::show_ns;
use courser_kit::{json, out};
use serde_json::{Value, json};

use super::client::clean;
use super::snapshot::Numbers;
use crate::args::StatArgs;

/// Most methods that are shown.
const MOST_METHODS: usize = 1_000;

/// The standard service of a server.
pub(crate) struct Introspected {
    uri: String,
    client: IntrospectionClient,
}

impl Introspected {
    /// Connects to a server, or to the endpoint that the address names. `bind` is the local address.
    ///
    /// # Errors
    /// The server cannot be reached, or does not have the service.
    pub(crate) fn connect(uri: &str, bind: Option<&str>) -> Result<Self, Failure> {
        let parsed: Uri = uri.parse().map_err(|e| Failure::Usage(format!("{e}")))?;
        let mut builder = Client::builder();
        if let Some(bind) = bind {
            let endpoints = Endpoints::bind(bind, 1, Config::default());
            builder = builder.endpoints(&endpoints.map_err(|e| runtime(uri, &e))?);
        }
        let connection =
            builder.connect(&parsed.to_string()).wait().map_err(|e| runtime(uri, &e))?;
        match connection.wait(IntrospectionClient::new(connection.clone())) {
            Ok(client) => Ok(Introspected { uri: uri.to_owned(), client }),
            Err(HelloError::Call(e)) => Err(runtime(uri, &e)),
            Err(_) => Err(Failure::Usage(format!(
                "{uri} has no statistics: it is not `courser serve`, and its program does not call \
                 Server::add_introspection"
            ))),
        }
    }

    /// The list of services.
    ///
    /// # Errors
    /// The server does not answer, or does not allow it.
    pub(crate) fn list(&self) -> Result<Numbers, Failure> {
        self.read(self.client.list().wait())
    }

    fn stat(&self) -> Result<Numbers, Failure> {
        self.read(self.client.stat().wait())
    }

    fn read(&self, answer: Result<String, RpcError<String>>) -> Result<Numbers, Failure> {
        let text = match answer {
            Ok(text) => text,
            Err(RpcError::Service(text)) => {
                let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
                return Err(Failure::Usage(format!("{}: {text}", self.uri)));
            }
            Err(e) => return Err(runtime(&self.uri, &e)),
        };
        let read: Option<Numbers> = serde_json::from_str(&text).ok();
        let known = read.filter(|all| number(all, "format") == 1);
        known.ok_or_else(|| {
            Failure::Usage(format!("{} answers in a form of another version", self.uri))
        })
    }
}

fn runtime(uri: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::Runtime(format!("{uri}: {error}"))
}

/// Shows the statistics until a signal, or the given number of times. `waits` waits between them.
///
/// # Errors
/// As of [`super::run`].
pub(super) fn run(
    args: &StatArgs,
    wanted: u64,
    waits: &mut super::client::Client,
    interrupt: &Interrupt,
) -> Result<Value, Failure> {
    let server = Introspected::connect(&args.uri, args.bind.as_deref())?;
    let to_stdout = args.json.as_deref().is_some_and(json::is_stdout);
    let (mut before, mut last, mut shown) = (Totals::default(), Value::Null, 0);
    let mut out = out::stdout();
    while (wanted == 0 || shown < wanted) && !interrupt.is_set() {
        let mut all = server.stat()?;
        before = before.rate(&mut all);
        if !to_stdout {
            let gap = if shown > 0 { "\n" } else { "" };
            write!(out, "{gap}{}", render(&args.uri, &all))?;
            out.flush()?;
        }
        last = all.into();
        shown += 1;
        if wanted == 0 || shown < wanted {
            waits.rest(Instant::now() + args.interval, interrupt)?;
        }
    }
    Ok(json!([last]))
}

/// The totals of the refresh before, by service and method.
#[derive(Default)]
struct Totals {
    at: Option<Instant>,
    calls: HashMap<(String, String), [u64; 3]>,
}

/// The totals whose rates are shown, with their keys.
const RATES: [&str; 3] = ["calls_per_s", "errors_per_s", "items_per_s"];

impl Totals {
    /// Adds the rates since the refresh before to each method, under `rates`; `null` in the first one.
    fn rate(self, all: &mut Numbers) -> Totals {
        let now = Instant::now();
        let seconds = self.at.map(|at| now.duration_since(at).as_secs_f64().max(1e-6));
        let mut totals = Totals { at: Some(now), calls: HashMap::new() };
        for method in methods(all) {
            let key = (text(method, "service"), text(method, "method"));
            let new = [number(method, "started"), errors(method), number(method, "items")];
            let old = self.calls.get(&key).copied().unwrap_or_default();
            let rates = seconds.map(|seconds| {
                let rate = |n: usize| new[n].saturating_sub(old[n]) as f64 / seconds;
                json!({ RATES[0]: rate(0), RATES[1]: rate(1), RATES[2]: rate(2) })
            });
            method.insert("rates".to_owned(), rates.unwrap_or(Value::Null));
            totals.calls.insert(key, new);
        }
        totals
    }
}

/// The methods in the statistics; others are dropped if there are too many.
fn methods(all: &mut Numbers) -> impl Iterator<Item = &mut Numbers> {
    let list = all.get_mut("methods").and_then(Value::as_array_mut);
    let list = list.map(|list| {
        list.truncate(MOST_METHODS);
        list.iter_mut().filter_map(Value::as_object_mut)
    });
    list.into_iter().flatten()
}

/// A text of the server, to be printed.
fn text(of: &Numbers, name: &str) -> String {
    clean(of.get(name).and_then(Value::as_str).unwrap_or_default())
}

/// Calls that have not ended well.
fn errors(method: &Numbers) -> u64 {
    let outcomes = method.get("outcomes").and_then(Value::as_object).into_iter().flatten();
    let bad = outcomes.filter(|(name, _)| *name != "ok").filter_map(|(_, calls)| calls.as_u64());
    bad.fold(0, u64::saturating_add)
}

fn render(uri: &str, all: &Numbers) -> String {
    let of = |name: &str| all.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
    let (server, protocol) = (of("server"), of("protocol"));
    let mut text_ = format!(
        "{uri}  courser {}  endpoints {}  handlers in progress {}\n",
        text(all, "version"),
        number(all, "endpoints"),
        number(&server, "in_progress"),
    );
    let _ = writeln!(
        text_,
        "requests {}  retransmitted {}  lost {}  refused {}\n",
        number(&protocol, "requests"),
        number(&protocol, "retransmitted"),
        number(&protocol, "lost"),
        number(&of("handlers"), "workers_busy"),
    );
    let header = ["method", "calls", "calls/s", "open", "errors", "err/s", "p50", "p99", "max"];
    let mut table = Table::ruled(header);
    table.align_right(1..header.len());
    let list = all.get("methods").and_then(Value::as_array).into_iter().flatten();
    for method in list.filter_map(Value::as_object) {
        let rates = method.get("rates").and_then(Value::as_object).cloned().unwrap_or_default();
        let rate = |name: &str| {
            let rate = rates.get(name).and_then(Value::as_f64);
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"))
        };
        let latency = method.get("latency").and_then(Value::as_object).cloned().unwrap_or_default();
        let time = |name: &str| {
            let ns = latency.get(name).and_then(Value::as_u64);
            ns.map_or_else(|| "-".to_owned(), |ns| show_ns(ns as f64))
        };
        table.add_row([
            short(&format!("{}.{}", text(method, "service"), text(method, "method"))),
            number(method, "started").to_string(),
            rate(RATES[0]),
            number(method, "in_progress").to_string(),
            errors(method).to_string(),
            rate(RATES[1]),
            time("p50_ns"),
            time("p99_ns"),
            time("max_ns"),
        ]);
    }
    for line in table.lines() {
        let _ = writeln!(text_, "{line}");
    }
    text_
}

/// A name that fits the table; its end is the method.
fn short(name: &str) -> String {
    const MOST: usize = 28;
    match name.chars().count() {
        len if len > MOST => format!("…{}", name.chars().skip(len - MOST + 1).collect::<String>()),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(started: u64, failed: u64) -> Numbers {
        let value = json!({
            "format": 1, "version": "1\u{1b}[31m", "endpoints": 2,
            "methods": [{
                "service": "a\u{7}", "method": "b", "started": started, "in_progress": 1, "items": 0,
                "outcomes": { "ok": 3, "failed": failed }, "latency": { "p50_ns": 1_500, "p99_ns": null },
            }],
        });
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn rates_are_since_the_last_refresh() {
        let (mut first, mut second) = (stat(10, 1), stat(20, 3));
        let mut totals = Totals::default().rate(&mut first);
        assert_eq!(first["methods"][0]["rates"], Value::Null);
        totals.at = totals.at.and_then(|at| at.checked_sub(std::time::Duration::from_secs(2)));
        totals.rate(&mut second);
        let rates = &second["methods"][0]["rates"];
        let rate = |name: &str| rates[name].as_f64().expect("a rate");
        assert!((4.0..5.01).contains(&rate("calls_per_s")), "{rates}");
        assert!((0.8..1.01).contains(&rate("errors_per_s")), "{rates}");
    }

    #[test]
    fn tables_fit_a_terminal_whatever_a_server_answers() {
        let mut all = stat(u64::MAX, u64::MAX);
        all["methods"][0]["service"] = "s".repeat(1_000).into();
        Totals::default().rate(&mut all);
        let shown = render("udp://x:1", &all);
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{shown:?}");
        assert!(shown.lines().all(|line| line.chars().count() <= 130), "{shown}");
        assert!(shown.contains("1.50"), "{shown}");
        for odd in [json!({}), json!({ "methods": 3 }), json!({ "methods": [1, {}] })] {
            render("udp://x:1", odd.as_object().expect("an object"));
        }
    }
}
