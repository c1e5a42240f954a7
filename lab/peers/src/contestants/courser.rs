//! Courser, default settings, over the transport that the address names.
//!
//! A window with one request in flight uses one session. One with more uses eight, each of
//! which executes sixteen requests at a time by default; all of them share one endpoint and one
//! datapath.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use anyhow::{Context as _, Result, anyhow};
use courser::{Completion, Context, MsgBuf, Nexus, Rpc, SessionId, SessionState};
use courser_bench::clock::Clock;
use courser_bench::rpc::service::{ECHO, SINK};
use courser_bench::window::Sample;

use super::{Client, Contestant, Ready, Role};
use crate::work::{Kind, MAX_REQUEST, Meter, RECEIPT, Work, receipt, request};

pub(super) const SHM: Contestant = Contestant {
    name: "courser-shm",
    about: "Courser over shared memory",
    transport: "shm",
    role: Role::Courser,
    max_request: MAX_REQUEST,
    serve: |ready| serve("shm://127.0.0.1:0", ready),
    connect: |address| connect("shm://127.0.0.1:0", address),
};

pub(super) const UDP: Contestant = Contestant {
    name: "courser-udp",
    about: "Courser over UDP",
    transport: "udp",
    role: Role::Courser,
    max_request: MAX_REQUEST,
    serve: |ready| serve("udp://127.0.0.1:0", ready),
    connect: |address| connect("udp://127.0.0.1:0", address),
};

/// Sessions of a client.
const SESSIONS: usize = 8;

fn serve(own: &str, ready: Ready<'_>) -> Result<()> {
    let nexus = Nexus::bind(own)?;
    let mut rpc = nexus.endpoint()?;
    rpc.on(ECHO, |cx, request| cx.reply(request));
    rpc.on(SINK, |cx, request| {
        let answer = receipt(&request);
        // A failure reaches the client as the call's error.
        let _ = cx.reply_with(RECEIPT, |bytes| bytes.copy_from_slice(&answer));
    });
    ready(&nexus.local_uri());
    rpc.run()?;
    Err(anyhow!("the server ended"))
}

fn connect(own: &str, address: &str) -> Result<Box<dyn Client>> {
    let mut rpc = Nexus::bind(own)?.endpoint()?;
    let mut sessions = Vec::with_capacity(SESSIONS);
    for _ in 0..SESSIONS {
        let session = rpc.connect(address)?;
        while rpc.session_state(session) == SessionState::Connecting {
            rpc.poll();
        }
        if let Some(error) = rpc.session_error(session) {
            return Err(error).context("cannot connect");
        }
        sessions.push(session);
    }
    let state = Rc::new(Loop { sessions, window: RefCell::default(), open: Cell::new(0) });
    let hears = Rc::clone(&state);
    rpc.on_completion(move |cx, tag, done| hears.ended(cx, tag, done));
    Ok(Box::new(Courser { rpc, state, clock: Clock::new() }))
}

struct Courser {
    rpc: Rpc,
    state: Rc<Loop>,
    clock: Clock,
}

/// What the completion function knows.
struct Loop {
    sessions: Vec<SessionId>,
    window: RefCell<Option<Window>>,
    /// Calls that are unanswered.
    open: Cell<usize>,
}

struct Window {
    kind: Kind,
    /// Its requests are numbered by tag.
    meter: Meter,
    failed: Option<anyhow::Error>,
}

impl Loop {
    fn issue(&self, cx: &mut Context<'_>, kind: Kind, tag: u64, request: MsgBuf) -> Result<()> {
        let session = self.sessions[tag as usize % self.sessions.len()];
        let req_type = if kind == Kind::Echo { ECHO } else { SINK };
        cx.request(session, req_type, request)
            .tag(tag)
            .send()
            .map_err(|refused| anyhow!("a call was refused: {}", refused.reason))?;
        self.open.set(self.open.get() + 1);
        Ok(())
    }

    fn ended(&self, cx: &mut Context<'_>, tag: u64, done: Completion<'_>) {
        self.open.set(self.open.get() - 1);
        let mut window = self.window.borrow_mut();
        let Some(window) = window.as_mut() else { return };
        let index = tag as usize;
        let right = match &done.result {
            Ok(answer) => window.meter.check(index, &done.request, answer),
            Err(error) => Err(anyhow!("a call failed: {error}")),
        };
        if let Err(error) = right {
            window.failed.get_or_insert(error);
        }
        if window.failed.is_none() && window.meter.ended(index) {
            window.failed = self.issue(cx, window.kind, tag, done.request).err();
        }
    }
}

impl Client for Courser {
    fn run(&mut self, work: &Work) -> Result<Sample> {
        let mut requests = Vec::with_capacity(work.in_flight);
        for index in 0..work.in_flight {
            let mut buffer = self.rpc.alloc(work.size)?;
            buffer.copy_from_slice(&request(index, work.size));
            requests.push(buffer);
        }
        *self.state.window.borrow_mut() =
            Some(Window { kind: work.kind, meter: Meter::start(&self.clock, work), failed: None });
        for (tag, request) in (0..).zip(requests) {
            self.state.issue(&mut self.rpc.context(), work.kind, tag, request)?;
        }
        // A call that is not answered fails by the endpoint's own limits.
        let state = Rc::clone(&self.state);
        self.rpc.run_until(|| state.open.get() == 0)?;
        let mut window = self.state.window.take().context("no window")?;
        window.failed.map_or_else(|| Ok(window.meter.sample()), Err)
    }
}
