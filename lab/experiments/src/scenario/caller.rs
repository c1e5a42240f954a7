//! A client that keeps one request outstanding, each to a session drawn at random.

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Completion, Context, MsgBuf, Nexus, Rpc, SessionId};

use super::app::{self, SharedTally};
use courser_sim::Rng;
use courser_sim::SetupError;

/// The state of the client. It begins with the first [`Caller::issue`].
pub(crate) struct Caller {
    sessions: Vec<SessionId>,
    req_type: u16,
    request: Option<MsgBuf>,
    start_ns: u64,
    stopped: bool,
    rng: Rng,
    tally: SharedTally,
}

/// The client and the handle by which it is started.
pub(crate) type SharedCaller = Rc<RefCell<Caller>>;

impl Caller {
    /// Makes the endpoint such a client, with requests of `bytes` bytes.
    pub(crate) fn attach(
        rpc: &mut Rpc,
        sessions: Vec<SessionId>,
        (req_type, bytes): (u16, usize),
        rng: Rng,
        tally: SharedTally,
    ) -> Result<SharedCaller, SetupError> {
        let request = Some(app::message(rpc, bytes)?);
        let caller =
            Caller { sessions, req_type, request, start_ns: 0, stopped: false, rng, tally };
        let caller = Rc::new(RefCell::new(caller));
        let own = Rc::clone(&caller);
        rpc.on_completion(move |cx, _, done| own.borrow_mut().ended(cx, done));
        Ok(caller)
    }

    /// An endpoint with such a client of one server.
    pub(crate) fn of_server(
        nexus: &Nexus,
        server: &str,
        call: (u16, usize),
        rng: Rng,
        tally: SharedTally,
    ) -> Result<(Rpc, SharedCaller), SetupError> {
        let mut rpc = nexus.endpoint()?;
        let sessions = vec![rpc.connect(server)?];
        let caller = Caller::attach(&mut rpc, sessions, call, rng, tally)?;
        Ok((rpc, caller))
    }

    /// Sends the next request, if none is outstanding.
    pub(crate) fn issue(&mut self, cx: &mut Context<'_>) {
        let Some(&session) = self.rng.pick(&self.sessions) else { return };
        let Some(request) = self.request.take() else { return };
        self.start_ns = cx.now_ns();
        if let Err(rejected) = cx.request(session, self.req_type, request).send() {
            self.tally.borrow_mut().failed(&rejected.reason);
        }
    }

    /// Sends no further request.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    fn ended(&mut self, cx: &mut Context<'_>, done: Completion<'_>) {
        self.tally.borrow_mut().ended(&done.result, cx.now_ns() - self.start_ns);
        self.request = Some(done.request);
        if !self.stopped {
            self.issue(cx);
        }
    }
}
