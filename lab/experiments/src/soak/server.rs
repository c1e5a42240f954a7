//! A server process of the soak test: the hidden command `courser-lab soak-server`.
//!
//! Each handler first checks every byte of its request and appends a record to the
//! [ledger](super::ledger), then answers. The process prints `ready <address>` once, then its
//! [`Level`] several times per second. It ends when its standard input is closed or its parent dies.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use courser::{
    AllocError, Config, Context, MsgBuf, Nexus, Recovery, Request, Rpc, SessionId, SessionState,
    Work,
};

use super::ledger::{Event, Ledger, Record, now_ns};
use super::message::{self, ECHO, HELLO, Header, LEAF, NESTED, TINY, WORK};
use super::process::{LEVEL_EVERY, Level};
use courser_kit::Failure;
use courser_kit::parent::{say, stop_with_stdin};

/// Arguments from the parent process.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    #[arg(long)]
    bind: String,
    /// Number of this incarnation
    #[arg(long)]
    incarnation: u64,
    #[arg(long)]
    ledger: PathBuf,
    /// The server that nested calls go to
    #[arg(long)]
    nested: String,
    #[arg(long, default_value_t)]
    recovery: Recovery,
}

/// Time between two attempts to connect to the other server.
const RETRY: Duration = Duration::from_millis(100);

/// Settings of both sides: the defaults without spinning, so that the machine stays usable.
pub(super) fn config(recovery: Recovery) -> Config {
    Config { spin: Some(Duration::ZERO), recovery, ..Config::default() }
}

/// Runs until standard input is closed.
///
/// # Errors
/// The process cannot start, or its event loop fails.
pub(crate) fn main(args: &ServerArgs) -> Result<(), Failure> {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let stop = stop_with_stdin()?;
    let nexus = Nexus::bind_with(&args.bind, config(args.recovery))?;
    let mut rpc = nexus.endpoint()?;
    let other = Rc::new(Cell::new(None));
    let book =
        Book { ledger: Arc::new(Ledger::create(&args.ledger)?), incarnation: args.incarnation };
    register(&mut rpc, &book, &other)?;
    say(&format!("ready {}", nexus.local_uri()));
    let (mut retry, mut level_due) = (Instant::now(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let ran = rpc.run_for(Duration::from_millis(20));
        ran.map_err(|error| Failure::Runtime(error.to_string()))?;
        let now = Instant::now();
        let up = other.get().is_some_and(|s: SessionId| rpc.session_state(s) != SessionState::Gone);
        if !up && now >= retry {
            retry = now + RETRY;
            // An immediate failure is retried in the same way as a later one.
            other.set(rpc.connect(&args.nested).ok());
        }
        if now >= level_due {
            level_due = now + LEVEL_EVERY;
            say(&Level::of(&rpc, rpc.stats().requests, 0).line());
        }
    }
    Ok(())
}

/// The ledger of this server, shared by its handlers.
#[derive(Clone)]
struct Book {
    ledger: Arc<Ledger>,
    incarnation: u64,
}

impl Book {
    fn note(&self, event: Event, id: u64, req_type: u16) {
        let Self { incarnation, .. } = *self;
        let at_ns = now_ns();
        let record =
            Record { event, req_type, error: 0, id, incarnation, at_ns, took_us: 0, bytes: 0 };
        if let Err(error) = self.ledger.append(record) {
            // A missing record would be reported as a violation by the library.
            courser_kit::out::error(&format!("cannot write the ledger: {error}"));
            std::process::abort();
        }
    }

    /// Records and checks a request; `None` if one of its bytes is wrong.
    fn open(&self, request: &[u8], req_type: u16) -> Option<Header> {
        let Some(header) = Header::check_request(request) else {
            self.note(Event::CorruptRequest, 0, req_type);
            return None;
        };
        self.note(Event::Executed, header.id, req_type);
        Some(header)
    }
}

fn register(
    rpc: &mut Rpc,
    book: &Book,
    other: &Rc<Cell<Option<SessionId>>>,
) -> Result<(), Failure> {
    let incarnation = book.incarnation;
    rpc.on(HELLO, move |cx, _| cx.reply(incarnation.to_le_bytes()));
    rpc.on(TINY, |cx, request| {
        let (response, len) = message::tiny_response(&request);
        cx.reply(&response[..len]);
    });
    for req_type in [ECHO, LEAF] {
        let book = book.clone();
        rpc.on(req_type, move |cx, request| match book.open(&request, req_type) {
            Some(header) => match response(&header, incarnation, |len| cx.alloc(len)) {
                Some(response) => cx.reply(response),
                None => cx.reject(),
            },
            None => cx.reject(),
        });
    }
    let (nested, other) = (book.clone(), other.clone());
    rpc.on(NESTED, move |cx, request| call_other(cx, &request, &nested, other.get()));
    slow(rpc, book)
}

/// Registers the worker handler.
fn slow(rpc: &mut Rpc, book: &Book) -> Result<(), Failure> {
    let book = book.clone();
    let handler = move |work: Work| {
        let Some(header) = book.open(&work, WORK) else { return work.reject() };
        std::thread::sleep(Duration::from_micros(header.work_us.into()));
        match response(&header, book.incarnation, |len| work.alloc(len)) {
            Some(response) => work.reply(response),
            None => work.reject(),
        }
    };
    rpc.on_worker(WORK, handler).map_err(|error| Failure::Runtime(error.to_string()))
}

/// The response to a request; `None` without memory.
fn response(
    header: &Header,
    incarnation: u64,
    alloc: impl FnOnce(usize) -> Result<MsgBuf, AllocError>,
) -> Option<MsgBuf> {
    let mut response = alloc(header.resp_len as usize).ok()?;
    message::fill_response(header.id, incarnation, response.get_mut()?);
    Some(response)
}

/// Calls the other server and answers when its response has arrived.
fn call_other(cx: &mut Context<'_>, request: &Request<'_>, book: &Book, to: Option<SessionId>) {
    let Some(header) = book.open(request, NESTED) else { return cx.reject() };
    let Some(session) = to else { return cx.reject() };
    let Header { id, .. } = header;
    let time_left = request.time_left(cx);
    // Long enough for the number and the incarnation.
    let leaf = Header { id, resp_len: 16 + (id % 3000) as u32, work_us: 0 };
    let Ok(mut ask) = cx.alloc(message::HEADER + (id % 2000) as usize) else { return cx.reject() };
    match ask.get_mut() {
        Some(bytes) => leaf.fill_request(bytes),
        None => return cx.reject(),
    }
    let Some(handle) = cx.defer() else { return };
    let book = book.clone();
    // The nested call inherits the deadline.
    let called = cx.request(session, LEAF, ask).deadline(time_left).then(move |cx, done| {
        // Dropping the handle ends the call with "executed, no reply".
        let Ok(answer) = done.result else { return };
        let from = message::incarnation_of(&answer).unwrap_or(0);
        if !message::is_response(id, from, leaf.resp_len as usize, &answer) {
            book.note(Event::CorruptResponse, id, LEAF);
            return;
        }
        if let Some(response) = response(&header, book.incarnation, |len| cx.alloc(len)) {
            let _ = cx.reply_to(handle, response);
        }
    });
    // A rejected call drops its closure and the handle.
    drop(called);
}
