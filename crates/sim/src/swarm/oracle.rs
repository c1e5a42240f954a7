//! The ledger: every call that the swarm's application made, each execution of it, and how it
//! ended, with the checks on them.

use std::sync::{Arc, Mutex};

use courser::{CallError, Executed, MsgBuf, Status};

use super::bytes::{first_wrong, first_wrong_in_request, spread};
use super::kinds::{ENDS, Kind, end_index};
use super::message_ledger::MessageLedger;
use crate::Invariant;
use crate::host::hash::Mix;
use crate::host::port::lock;
use crate::world::handler_began_ns;

/// One process: host and life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Who {
    pub(super) host: u32,
    pub(super) life: u32,
}

/// A call of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) client: Who,
    pub(super) kind: Kind,
    pub(super) request_len: u32,
    pub(super) response_len: u32,
    /// In the client's time.
    pub(super) deadline_ns: Option<u64>,
    /// The same in the world's time, if the server has an estimate of the one-way delay: no handler
    /// starts later.
    pub(super) due_ns: Option<u64>,
    /// Time that the server takes, for kinds that take time.
    pub(super) takes_ns: u64,
    /// Address of its request buffer.
    pub(super) at: usize,
    /// It must succeed: faults are over, and its kind does not fail.
    pub(super) must_succeed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Ended,
    /// Its client refused it, or has ended.
    Void,
}

#[derive(Debug)]
struct Call {
    made: Made,
    state: State,
    cancelled: bool,
    runs: u32,
    run_by: Who,
    /// Its client was informed that it never ran.
    never: bool,
}

/// End of a call, as seen by its client.
pub(super) struct Ending<'a> {
    pub(super) now_ns: u64,
    pub(super) result: Result<&'a [u8], CallError>,
    /// The buffer that came back; that of a future does not.
    pub(super) request: Option<&'a MsgBuf>,
}

/// Task of a handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) response_len: usize,
    pub(super) takes_ns: u64,
    /// The bytes of the response.
    pub(super) answer: u64,
}

/// Possible consequences of the seed's faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Allowed {
    /// Peers are lost: processes are killed, or the control plane is cut off.
    pub(super) peers_fail: bool,
    /// The datapath may be silent for as long as its timeout.
    pub(super) silence: bool,
    /// Sessions are closed, perhaps before they are connected, and their numbers used again.
    pub(super) closes: bool,
    /// Machines crash, perhaps in the middle of a greeting.
    pub(super) crashes: bool,
    /// Servers may refuse sessions.
    pub(super) refusals: bool,
    /// Memory limits are so tight that they are reached.
    pub(super) no_memory: bool,
    /// A call may end this long after its deadline, in its client's time.
    pub(super) late_ns: u64,
    /// Clocks run at different rates: a server may compute a later deadline than the client's.
    pub(super) drift: bool,
}

/// The ledger of one world.
pub(super) struct Oracle {
    calls: Vec<Call>,
    /// Open calls of running clients.
    open: u64,
    allowed: Allowed,
    /// Total pause of each host.
    pub(super) paused_ns: Vec<u64>,
    pub(super) answered: u64,
    pub(super) failed: u64,
    log: Mix,
    found: Option<(Invariant, String)>,
    /// How calls ended, by [`end_index`].
    pub(super) ends: [u64; ENDS.len()],
    pub(super) messages: MessageLedger,
}

/// Shared by all endpoints and workers of a world, which are on one thread: the lock only satisfies
/// the compiler.
pub(super) type SharedOracle = Arc<Mutex<Oracle>>;

impl Oracle {
    pub(super) fn new(seed: u64, hosts: usize, allowed: Allowed) -> SharedOracle {
        Arc::new(Mutex::new(Oracle {
            calls: Vec::new(),
            open: 0,
            allowed,
            paused_ns: vec![0; hosts],
            answered: 0,
            failed: 0,
            log: Mix::new(seed),
            found: None,
            ends: [0; ENDS.len()],
            messages: MessageLedger::default(),
        }))
    }

    /// Returns whether memory limits are so tight that they are reached.
    pub(super) fn may_lack_memory(&self) -> bool {
        self.allowed.no_memory
    }

    /// Returns whether clocks run at different rates.
    pub(super) fn clocks_drift(&self) -> bool {
        self.allowed.drift
    }

    /// A host has given a session up because its datapath was silent.
    pub(super) fn silent(&mut self, host: u32) {
        if !self.allowed.silence {
            let detail = format!("n{host} gave up a session, and no fault silences the datapath");
            self.wrong(Invariant::Liveness, detail);
        }
    }

    /// Adds an event to the log.
    pub(super) fn note(&mut self, event: u64) {
        self.log.mix(event);
    }

    /// Records a violation; only the first, since later ones may be consequences.
    pub(super) fn wrong(&mut self, what: Invariant, detail: String) {
        self.found.get_or_insert((what, detail));
    }

    /// Takes the violation, if there is one.
    pub(super) fn take_found(&mut self) -> Option<(Invariant, String)> {
        self.found.take()
    }

    pub(super) fn has_found(&self) -> bool {
        self.found.is_some()
    }

    /// Calls that have not ended.
    pub(super) fn open(&self) -> u64 {
        self.open
    }

    /// Calls that were accepted.
    pub(super) fn ended(&self) -> u64 {
        self.answered + self.failed
    }

    /// A hash over all ends.
    pub(super) fn digest(&self) -> u64 {
        self.log.finish()
    }

    /// Some calls that have not ended, as text.
    pub(super) fn describe_open(&self) -> String {
        let open = self.calls.iter().enumerate().filter(|(_, c)| c.state == State::Open);
        let some: Vec<String> = open
            .take(4)
            .map(|(n, c)| {
                let Made { client, kind, request_len, response_len, .. } = c.made;
                let runs = c.runs;
                format!(
                    "#{n} of n{} {kind:?} {request_len}/{response_len} B ran {runs}x",
                    client.host
                )
            })
            .collect();
        some.join(", ")
    }

    // ---- clients ------------------------------------------------------------------------------

    /// Registers a call that is about to be made; returns its number.
    pub(super) fn make(&mut self, made: Made) -> u64 {
        self.open += 1;
        let state = State::Open;
        let run_by = Who::default();
        let call = Call { made, state, cancelled: false, runs: 0, run_by, never: false };
        self.calls.push(call);
        self.calls.len() as u64 - 1
    }

    /// Its client refused it.
    pub(super) fn refused(&mut self, number: u64) {
        if let Some(call) = self.calls.get_mut(number as usize)
            && call.state == State::Open
        {
            call.state = State::Void;
            call.never = true;
            self.open -= 1;
        }
    }

    /// The future of a call was dropped before its end: its client learns nothing more of it.
    pub(super) fn dropped(&mut self, number: u64) {
        if let Some(call) = self.calls.get_mut(number as usize)
            && call.state == State::Open
        {
            call.state = State::Void;
            self.open -= 1;
        }
    }

    /// Its client cancels it, which `was_open`.
    pub(super) fn cancelled(&mut self, number: u64, was_open: bool) {
        let Some(call) = self.calls.get_mut(number as usize) else { return };
        let open = call.state == State::Open;
        call.cancelled |= was_open;
        // The end of a call that is no longer in flight may not have reached its client yet.
        if was_open && !open {
            let detail = format!("call #{number} was cancelled, and had ended before");
            self.wrong(Invariant::Application, detail);
        }
    }

    /// A process has ended, and its calls with it.
    pub(super) fn forget_calls_of(&mut self, who: Who) {
        for call in &mut self.calls {
            if call.made.client == who && call.state == State::Open {
                call.state = State::Void;
                self.open -= 1;
            }
        }
    }

    /// A call has ended.
    pub(super) fn end(&mut self, number: u64, end: &Ending<'_>) {
        let Some(call) = self.calls.get_mut(number as usize) else {
            let detail = format!("the end of an unknown call, #{number}");
            return self.wrong(Invariant::ExactlyOneEnd, detail);
        };
        let before = std::mem::replace(&mut call.state, State::Ended);
        if before != State::Open {
            let detail = format!("call #{number} has ended twice: {before:?} before");
            return self.wrong(Invariant::ExactlyOneEnd, detail);
        }
        let (runs, run_by, cancelled, made) = (call.runs, call.run_by, call.cancelled, call.made);
        self.open -= 1;
        let index = end.result.as_ref().err().map_or(0, end_index);
        self.ends[index] += 1;
        self.log.mix(number << 8 | index as u64);
        self.log.mix(end.now_ns);
        self.check_buffer(number, &made, end);
        if let Some(deadline_ns) = made.deadline_ns {
            let stood_ns = self.paused_ns.get(made.client.host as usize).copied().unwrap_or(0);
            let limit_ns = deadline_ns.saturating_add(self.allowed.late_ns + 2 * stood_ns);
            if end.now_ns > limit_ns {
                let late_ns = end.now_ns - deadline_ns;
                let detail = format!("call #{number} ended {late_ns} ns after its deadline");
                self.wrong(Invariant::Application, detail);
            }
        }
        match &end.result {
            Ok(response) => {
                self.answered += 1;
                self.check_response(number, &made, runs, run_by, cancelled, response);
            }
            Err(error) => {
                self.failed += 1;
                self.check_error(number, &made, runs, cancelled, error);
            }
        }
    }

    fn check_buffer(&mut self, number: u64, made: &Made, end: &Ending<'_>) {
        let Some(request) = end.request else { return };
        if request.is_shared() {
            let detail = format!("call #{number}: its request came back and is still referenced");
            return self.wrong(Invariant::Ownership, detail);
        }
        let other =
            request.as_ptr() as usize != made.at || request.len() != made.request_len as usize;
        if other || first_wrong_in_request(number, request).is_some() {
            let detail = format!("call #{number}: another buffer came back than was given");
            self.wrong(Invariant::Ownership, detail);
        }
    }

    fn check_response(
        &mut self,
        number: u64,
        made: &Made,
        runs: u32,
        by: Who,
        cancelled: bool,
        got: &[u8],
    ) {
        if runs != 1 || !made.kind.is_answered() || cancelled {
            let kind = made.kind;
            let detail = format!(
                "call #{number} ({kind:?}, cancelled: {cancelled}) has a response and ran {runs} \
                 times"
            );
            return self.wrong(Invariant::ResponseMatches, detail);
        }
        let (len, want) = (got.len(), made.response_len as usize);
        let wrong = first_wrong(answer(number, by), got);
        if len != want || wrong.is_some() {
            let detail = format!(
                "call #{number}: a response of {len} bytes instead of {want}, wrong from {wrong:?}"
            );
            self.wrong(Invariant::ResponseMatches, detail);
        }
    }

    fn check_error(
        &mut self,
        number: u64,
        made: &Made,
        runs: u32,
        cancelled: bool,
        error: &CallError,
    ) {
        let executed = error.executed();
        if executed == Executed::Never
            && let Some(call) = self.calls.get_mut(number as usize)
        {
            call.never = true;
        }
        let lies = match executed {
            Executed::Never => runs != 0,
            Executed::Yes => runs != 1,
            Executed::Maybe => false,
        };
        if lies {
            let detail = format!("call #{number}: {error}, and it ran {runs} times");
            return self.wrong(Invariant::AtMostOnce, detail);
        }
        let a = self.allowed;
        let may = match error {
            CallError::NotConnected(_) => a.peers_fail || a.refusals || a.closes,
            CallError::PeerFailed(_) => a.peers_fail,
            CallError::DatapathSilent(_) => a.silence,
            CallError::Closed(_) => true,
            CallError::DeadlineExceeded(_) => made.deadline_ns.is_some(),
            CallError::Cancelled(_) => cancelled,
            CallError::NoMemory { .. }
            | CallError::Server(Status::NoMemory | Status::ResponseFailed) => a.no_memory,
            CallError::ResponseTooLarge { .. } => false,
            CallError::Server(status) => made.kind.may_get(*status),
            // An error without a rule is a finding.
            _ => false,
        };
        let full = matches!(
            error,
            CallError::NoMemory { .. }
                | CallError::Server(Status::NoMemory | Status::ResponseFailed)
        );
        if !may || (made.must_succeed && !full) {
            let (kind, host) = (made.kind, made.client.host);
            let detail =
                format!("call #{number} ({kind:?}) of n{host} ended without cause: {error}");
            let invariant =
                if made.must_succeed { Invariant::Liveness } else { Invariant::Application };
            self.wrong(invariant, detail);
        }
    }

    // ---- servers ------------------------------------------------------------------------------

    /// A handler of a kind runs with a request: returns its task, or `None` when that is unknown.
    pub(super) fn run(
        &mut self,
        number: Option<u64>,
        kind: Kind,
        by: Who,
        began_ns: u64,
        request: &[u8],
    ) -> Option<Task> {
        let known = number.and_then(|n| Some((n, self.calls.get_mut(n as usize)?)));
        let Some((number, call)) = known else {
            let host = by.host;
            let detail = format!("n{host} received an unknown request: {number:?}");
            self.wrong(Invariant::ResponseMatches, detail);
            return None;
        };
        call.runs += 1;
        call.run_by = by;
        let (runs, never, made) = (call.runs, call.never, call.made);
        self.log.mix(number << 8 | 0xff);
        let wrong = first_wrong_in_request(number, request);
        let len = request.len();
        if wrong.is_some() || made.kind != kind || len != made.request_len as usize {
            let detail =
                format!("call #{number} arrived changed: {len} bytes, wrong from {wrong:?}");
            self.wrong(Invariant::ResponseMatches, detail);
        }
        if runs > 1 {
            let detail = format!("call #{number} ({kind:?}) was executed {runs} times");
            self.wrong(Invariant::AtMostOnce, detail);
        }
        if never {
            let detail = format!("call #{number} was executed, and its client was informed: never");
            self.wrong(Invariant::AtMostOnce, detail);
        }
        if let Some(due_ns) = made.due_ns.filter(|&due_ns| began_ns > due_ns)
            && !self.allowed.drift
        {
            let late_ns = began_ns - due_ns;
            let detail = format!("call #{number} ({kind:?}) was begun {late_ns} ns too late");
            self.wrong(Invariant::Application, detail);
        }
        let response_len = made.response_len as usize;
        Some(Task { response_len, takes_ns: made.takes_ns, answer: answer(number, by) })
    }
}

/// The bytes of the response to a call, which depend on its server, too.
fn answer(number: u64, by: Who) -> u64 {
    spread(!number ^ u64::from(by.host) << 40 ^ u64::from(by.life) << 50)
}

/// Looks up a handler's request in the ledger.
pub(super) fn run(oracle: &SharedOracle, kind: Kind, by: Who, request: &[u8]) -> Option<Task> {
    let number = super::bytes::number_of(request);
    lock(oracle).run(number, kind, by, handler_began_ns(), request)
}
