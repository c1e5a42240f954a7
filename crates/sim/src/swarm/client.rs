//! The client half of the swarm's application.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::time::Duration;

use courser::{
    CallFailure, Completion, Context, MsgBuf, ReplyHandle, Rpc, SessionId, SessionState,
};

use super::bytes::{NUMBER, write_request};
use super::kinds::Kind;
use super::messages::Messages;
use super::oracle::{Ending, Made, Task, Who};
use super::workload::{Shared, answer_later};
use crate::host::hash::Mix as HashMix;
use crate::host::port::lock;
use crate::world::thread_now_ns;
use crate::{Invariant, Rng};

/// Distribution of calls.
#[derive(Clone, Debug)]
pub(super) struct Mix {
    /// Kinds, each with its weight.
    pub(super) kinds: Vec<(Kind, u32)>,
    /// Approximate data bytes of a packet.
    pub(super) packet: u64,
    /// Probability of a message of some packets, in either direction, per million.
    pub(super) some_packets_ppm: u32,
    /// Probability of a large one.
    pub(super) large_ppm: u32,
    /// Largest message.
    pub(super) large: u64,
    /// Probability of a deadline, and the longest.
    pub(super) deadline_ppm: u32,
    pub(super) deadline_ns: u64,
    /// Probability of a cancellation, and the longest time until then.
    pub(super) cancel_ppm: u32,
    pub(super) cancel_ns: u64,
    /// Probability that a completion is a tag instead of a closure.
    pub(super) tagged_ppm: u32,
    /// Longest delay of a deferred response.
    pub(super) later_ns: u64,
    /// Longest time of a slow handler.
    pub(super) slow_ns: u64,
    /// Probability of another call beside one, as a future, and the longest time until it is dropped.
    pub(super) awaited_ppm: u32,
    pub(super) patience_ns: u64,
}

impl Mix {
    fn len(&self, rng: &mut Rng) -> u64 {
        let dice = rng.below(1_000_000) as u32;
        if dice < self.large_ppm {
            // Uniform over the orders of magnitude.
            let most = self.large.max(2 * self.packet);
            let orders = u64::from((most / self.packet).ilog2());
            (self.packet << rng.between(0, orders)).min(most) - rng.below(self.packet)
        } else if dice < self.large_ppm + self.some_packets_ppm {
            rng.between(self.packet, 6 * self.packet)
        } else if dice.is_multiple_of(4) {
            // Sizes at the edge of a packet are cases of their own.
            self.packet - rng.below(4)
        } else {
            rng.below(64)
        }
    }

    fn kind(&self, rng: &mut Rng) -> Kind {
        let sum: u32 = self.kinds.iter().map(|k| k.1).sum();
        let mut dice = rng.below(u64::from(sum)) as u32;
        for &(kind, weight) in &self.kinds {
            if dice < weight {
                return kind;
            }
            dice -= weight;
        }
        Kind::Echo
    }
}

/// Arrival of a lane's calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    /// Closed loop: a number of calls at a time, each followed by the next after a pause of up to
    /// `think_ns`.
    Closed { window: u32, think_ns: u64 },
    /// Open loop: a number of calls every `every_ns`, whatever the state of the earlier ones.
    Open { burst: u32, every_ns: u64 },
    /// No calls: an unused session.
    Idle,
    /// No calls of its own: used by handlers that call.
    Nested,
}

/// A session, connected again whenever it fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LanePlan {
    pub(super) host: u32,
    pub(super) endpoint: usize,
    pub(super) to: u32,
    /// An endpoint there; `None`: chosen by its nexus.
    pub(super) to_endpoint: Option<usize>,
    pub(super) pace: Pace,
}

pub(super) struct Lane {
    pub(super) plan: LanePlan,
    pub(super) session: Option<SessionId>,
    /// Earliest time of the next connect, in the world's time, and the delay after that.
    pub(super) retry_at_ns: u64,
    pub(super) backoff_ns: u64,
}

/// The first delay before a session is connected again.
pub(super) const BACKOFF_NS: u64 = 300_000;

/// Buffers that an endpoint keeps for its next requests.
const POOL: usize = 24;

/// After this number of responses a server has an estimate of the one-way delay.
const KNOWS: u32 = 4;

/// A lane whose call was refused tries again after up to this time.
const RETRY_NS: u64 = 800_000;

impl Lane {
    pub(super) fn new(plan: LanePlan) -> Self {
        Lane { plan, session: None, retry_at_ns: 0, backoff_ns: BACKOFF_NS }
    }
}

/// Continuation of a call.
pub(super) enum Then {
    /// The next call of this lane.
    Next(usize),
    Nothing,
    /// The response to the calling handler's request.
    Answer(ReplyHandle, Task),
}

/// The client half of an endpoint.
pub(super) struct Client {
    pub(super) who: Who,
    pub(super) endpoint: usize,
    pub(super) shared: Rc<Shared>,
    pub(super) lanes: RefCell<Vec<Lane>>,
    /// Request buffers that were returned.
    pub(super) pool: RefCell<Vec<MsgBuf>>,
    /// Calls whose completions are tags.
    pub(super) tags: RefCell<BTreeMap<u64, Then>>,
    pub(super) rng: RefCell<Rng>,
    /// Draws of calls as futures, apart from those of other calls.
    pub(super) awaited_rng: RefCell<Rng>,
    /// Responses of each session.
    pub(super) answered: RefCell<HashMap<SessionId, u32, BuildHasherDefault<HashMix>>>,
    pub(super) messages: Messages,
}

impl Client {
    /// Starts to make calls, after the initial idle time of the processes.
    pub(super) fn start(self: &Rc<Self>, rpc: &mut Rpc) {
        let first = self.who.life == 1;
        let idle = Duration::from_nanos(if first { self.shared.idle_first_ns } else { 0 });
        let client = self.clone();
        rpc.on_completion(move |cx, number, done| {
            let then = client.tags.borrow_mut().remove(&number);
            client.ended(cx, number, done, then.unwrap_or(Then::Nothing));
        });
        let lanes = self.lanes.borrow();
        for (at, lane) in lanes.iter().enumerate() {
            match lane.plan.pace {
                Pace::Idle | Pace::Nested => {}
                Pace::Closed { window, .. } => {
                    for _ in 0..window {
                        let client = self.clone();
                        let after = idle + self.up_to(RETRY_NS);
                        rpc.context().after(after, move |cx| client.next(cx, at));
                    }
                }
                Pace::Open { .. } => {
                    let client = self.clone();
                    let after = idle + self.up_to(RETRY_NS);
                    rpc.context().after(after, move |cx| client.burst(cx, at));
                }
            }
        }
    }

    fn up_to(&self, ns: u64) -> Duration {
        Duration::from_nanos(self.rng.borrow_mut().between(ns / 16, ns))
    }

    /// The next call of a closed loop.
    fn next(self: &Rc<Self>, cx: &mut Context<'_>, lane: usize) {
        if self.shared.stopped.get() {
            return;
        }
        if !self.call(cx, lane, Then::Next(lane), None) {
            let client = self.clone();
            cx.after(self.up_to(RETRY_NS), move |cx| client.next(cx, lane));
        }
    }

    /// The next calls of an open loop.
    fn burst(self: &Rc<Self>, cx: &mut Context<'_>, lane: usize) {
        let pace = self.lanes.borrow()[lane].plan.pace;
        let Pace::Open { burst, every_ns } = pace else { return };
        if self.shared.stopped.get() {
            return;
        }
        for _ in 0..burst {
            if !self.call(cx, lane, Then::Nothing, None) {
                break;
            }
        }
        let client = self.clone();
        cx.after(self.up_to(2 * every_ns), move |cx| client.burst(cx, lane));
    }

    /// One call of a lane's own; false: it was refused.
    fn call(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        lane: usize,
        then: Then,
        kind: Option<Kind>,
    ) -> bool {
        let left = self.shared.left.get();
        let Some(session) = self.lanes.borrow()[lane].session.filter(|_| left > 0) else {
            return false;
        };
        let mix = &self.shared.mix;
        let mut rng = self.rng.borrow_mut();
        let kind = kind.unwrap_or_else(|| mix.kind(&mut rng));
        let mut deadline = None;
        let mut deadline_ns = None;
        if rng.chance_ppm(mix.deadline_ppm) {
            let ns = rng.between(5_000, mix.deadline_ns);
            deadline = Some(Duration::from_nanos(ns));
            deadline_ns = Some(cx.now_ns() + ns);
        }
        drop(rng);
        let made = self.draw(kind, deadline_ns);
        let taken = self.make(cx, session, made, deadline, then);
        self.shared.left.set(left - u64::from(taken));
        self.messages_beside_call(cx, lane);
        self.await_beside_call(cx, session);
        taken
    }

    /// A call that proves that a session works; it must succeed.
    pub(super) fn prove(self: &Rc<Self>, cx: &mut Context<'_>, session: SessionId) {
        let made = Made { must_succeed: true, ..self.draw(Kind::Echo, None) };
        if !self.has_memory(cx, made.request_len as usize) {
            return;
        }
        if !self.make(cx, session, made, None, Then::Nothing) {
            let host = self.who.host;
            let detail = format!("n{host}: a call on a connected session was refused");
            lock(&self.shared.oracle).wrong(Invariant::Liveness, detail);
        }
    }

    /// Returns whether a request of this length can be allocated, if need be by freeing the buffers
    /// kept for others. With a limit that is reached, the buffers of calls in flight may be all
    /// there are.
    pub(super) fn has_memory(&self, cx: &Context<'_>, len: usize) -> bool {
        let has = || cx.alloc(len).is_ok();
        if has() {
            return true;
        }
        self.pool.borrow_mut().clear();
        has() || !lock(&self.shared.oracle).may_lack_memory()
    }

    /// A call made by a handler, on a session of its endpoint for that purpose.
    pub(super) fn call_another(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        deadline: Option<Duration>,
        then: Then,
    ) {
        let stands = |s: &SessionId| cx.session_state(*s) == SessionState::Connected;
        let nested = |l: &&Lane| l.plan.pace == Pace::Nested;
        let found = self.lanes.borrow().iter().find(nested).and_then(|l| l.session);
        let Some(session) = found.filter(stands) else { return answer_of(cx, then) };
        let deadline_ns = deadline.map(|left| cx.now_ns() + left.as_nanos() as u64);
        let made = self.draw(Kind::Echo, deadline_ns);
        self.make(cx, session, made, deadline, then);
    }

    /// Draws the parameters of a call.
    fn draw(&self, kind: Kind, deadline_ns: Option<u64>) -> Made {
        self.draw_from(&mut self.rng.borrow_mut(), kind, deadline_ns)
    }

    fn draw_from(&self, rng: &mut Rng, kind: Kind, deadline_ns: Option<u64>) -> Made {
        let mix = &self.shared.mix;
        let takes_ns = match kind {
            Kind::Later | Kind::Keep if rng.chance_ppm(900_000) => rng.below(mix.later_ns / 20 + 1),
            Kind::Later | Kind::Keep => rng.below(mix.later_ns + 1),
            Kind::Slow | Kind::Work => rng.below(mix.slow_ns + 1),
            _ => 0,
        };
        Made {
            client: self.who,
            kind,
            request_len: mix.len(rng).max(NUMBER as u64) as u32,
            response_len: mix.len(rng) as u32,
            deadline_ns,
            due_ns: None,
            takes_ns,
            at: 0,
            must_succeed: false,
        }
    }

    /// A buffer for a request: a returned one, or a new one.
    pub(super) fn buffer(&self, cx: &Context<'_>, len: usize) -> Option<MsgBuf> {
        if let Some(mut m) = self.pool.borrow_mut().pop()
            && m.set_len(len).is_ok()
        {
            return Some(m);
        }
        cx.alloc(len).ok()
    }

    /// Makes a call; false: it was refused.
    fn make(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        session: SessionId,
        made: Made,
        deadline: Option<Duration>,
        then: Then,
    ) -> bool {
        let Some(mut m) = self.buffer(cx, made.request_len as usize) else {
            answer_of(cx, then);
            return false;
        };
        let Some(bytes) = m.get_mut() else {
            let detail = "a buffer of the application's is still referenced".to_owned();
            lock(&self.shared.oracle).wrong(Invariant::Ownership, detail);
            return false;
        };
        let at = bytes.as_ptr() as usize;
        let due_ns = self.due_ns(cx, session, made.deadline_ns);
        let number = lock(&self.shared.oracle).make(Made { at, due_ns, ..made });
        write_request(number, bytes);
        let kind = made.kind as u16;
        let mut rng = self.rng.borrow_mut();
        let tagged = rng.chance_ppm(self.shared.mix.tagged_ppm);
        let cancel = rng.chance_ppm(self.shared.mix.cancel_ppm) && !made.must_succeed;
        let cancel_ns = if cancel { rng.below(self.shared.mix.cancel_ns + 1) } else { 0 };
        drop(rng);
        let client = self.clone();
        let call = cx.request(session, kind, m).deadline(deadline);
        let called = if tagged {
            self.tags.borrow_mut().insert(number, then);
            call.tag(number).send()
        } else {
            call.then(move |cx, done| client.ended(cx, number, done, then))
        };
        let call = match called {
            Ok(call) => call,
            Err(rejected) => {
                lock(&self.shared.oracle).refused(number);
                self.tags.borrow_mut().remove(&number);
                self.keep(rejected.request);
                return false;
            }
        };
        if cancel {
            let oracle = self.shared.oracle.clone();
            let cancel = move |cx: &mut Context<'_>| {
                let was_open = cx.cancel(call);
                lock(&oracle).cancelled(number, was_open);
            };
            if cancel_ns.is_multiple_of(16) {
                cancel(cx);
            } else {
                cx.after(Duration::from_nanos(cancel_ns), cancel);
            }
        }
        true
    }

    /// Perhaps a call as a future, whose task drops it after a random time.
    fn await_beside_call(self: &Rc<Self>, cx: &mut Context<'_>, session: SessionId) {
        let mix = &self.shared.mix;
        let (patience, deadline) = {
            let mut rng = self.awaited_rng.borrow_mut();
            if mix.awaited_ppm == 0 || !rng.chance_ppm(mix.awaited_ppm) {
                return;
            }
            let impatient = rng.chance_ppm(500_000);
            let patience = impatient.then(|| Duration::from_nanos(rng.below(mix.patience_ns)));
            let hurried = rng.chance_ppm(mix.deadline_ppm);
            (patience, hurried.then(|| Duration::from_nanos(rng.between(5_000, mix.deadline_ns))))
        };
        let deadline_ns = deadline.map(|left| cx.now_ns() + left.as_nanos() as u64);
        let made = {
            let mut rng = self.awaited_rng.borrow_mut();
            let kind = mix.kind(&mut rng);
            self.draw_from(&mut rng, kind, deadline_ns)
        };
        let Ok(mut request) = cx.alloc(made.request_len as usize) else { return };
        let at = request.as_ptr() as usize;
        let number = lock(&self.shared.oracle).make(Made { at, ..made });
        write_request(number, &mut request);
        let (local, oracle) = (cx.local(), self.shared.oracle.clone());
        let session = local.session(session);
        let task = async move {
            let call = session.call(made.kind as u16, request).deadline(deadline);
            let end = match patience {
                Some(patience) => session.local().timeout(patience, call).await.ok(),
                None => Some(call.await),
            };
            let now_ns = session.local().now_ns();
            let mut oracle = lock(&oracle);
            match &end {
                None => oracle.dropped(number),
                Some(Ok(response)) => {
                    oracle.end(number, &Ending { now_ns, result: Ok(response), request: None });
                }
                Some(Err(CallFailure::Failed(e))) => {
                    oracle.end(number, &Ending { now_ns, result: Err(*e), request: None });
                }
                Some(Err(_)) => oracle.refused(number),
            }
        };
        drop(local.spawn(task));
    }

    /// A deadline in the world's time, after which no handler may start: on a session whose server
    /// has measured a round trip.
    pub(super) fn due_ns(
        &self,
        cx: &Context<'_>,
        on: SessionId,
        deadline_ns: Option<u64>,
    ) -> Option<u64> {
        let knows = self.answered.borrow().get(&on).is_some_and(|&n| n >= KNOWS);
        let left_ns = deadline_ns.filter(|_| knows)?.saturating_sub(cx.now_ns());
        Some(thread_now_ns()?.saturating_add(left_ns))
    }

    pub(super) fn keep(&self, m: MsgBuf) {
        let mut pool = self.pool.borrow_mut();
        if pool.len() < POOL {
            pool.push(m);
        }
    }

    /// A call has ended.
    fn ended(self: &Rc<Self>, cx: &mut Context<'_>, number: u64, done: Completion<'_>, then: Then) {
        let Completion { request, result, session } = done;
        *self.answered.borrow_mut().entry(session).or_default() += u32::from(result.is_ok());
        let end = Ending {
            now_ns: cx.now_ns(),
            result: result.as_ref().map(|r| &**r).map_err(|e| *e),
            request: Some(&request),
        };
        lock(&self.shared.oracle).end(number, &end);
        if let (Ok(response), true) = (result, number.is_multiple_of(8)) {
            // Kept beyond the continuation, as far as memory allows.
            if let Ok(m) = response.take(cx) {
                self.keep(m);
            }
        }
        self.keep(request);
        match then {
            Then::Nothing => {}
            Then::Answer(..) => answer_of(cx, then),
            Then::Next(lane) => {
                let pace = self.lanes.borrow()[lane].plan.pace;
                let Pace::Closed { think_ns, .. } = pace else { return };
                if think_ns == 0 {
                    return self.next(cx, lane);
                }
                let client = self.clone();
                cx.after(self.up_to(2 * think_ns), move |cx| client.next(cx, lane));
            }
        }
    }
}

/// Answers the request that depends on the nested call.
fn answer_of(cx: &mut Context<'_>, then: Then) {
    if let Then::Answer(handle, task) = then {
        answer_later(cx, handle, task);
    }
}
