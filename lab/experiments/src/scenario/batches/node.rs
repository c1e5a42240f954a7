//! The two hosts: messages and calls in batches.

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Completion, Context, MsgBuf, Nexus, Rpc, SessionId};

use super::{HOSTS, Settings, Traffic};
use crate::scenario::{ScenarioError, app};
use courser_sim::SetupError;
use courser_sim::observe::Times;
use courser_sim::thread_now_ns;
use courser_sim::{HostId, World};

/// Type of the messages.
const MESSAGE: u16 = 1;

/// Type of the calls that are answered with their bytes, the first 16 of which are stamps.
const STAMP: u16 = 2;

/// Measurements.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Times of calls that ended in the measured time.
    pub(super) one_way: Times,
    failed: app::Tally,
}

pub(super) type SharedTally = Rc<RefCell<Tally>>;

impl Tally {
    /// The measured time begins.
    pub(super) fn begin(&mut self) {
        self.one_way = Times::default();
    }

    /// Fails when a message or a call has failed.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        self.failed.check()
    }
}

/// The time of the thread that runs now, ns. All threads have one clock here.
fn now_ns() -> u64 {
    thread_now_ns().unwrap_or(0)
}

fn server(nexus: &Nexus) -> Result<Rpc, SetupError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on_message(MESSAGE, |_, _| {});
    rpc.on(STAMP, |cx, request| {
        let received_ns = now_ns();
        let _ = cx.reply_with(request.len(), |answer| {
            answer.copy_from_slice(&request);
            answer[..8].copy_from_slice(&received_ns.to_le_bytes());
            answer[8..16].copy_from_slice(&now_ns().to_le_bytes());
        });
    });
    Ok(rpc)
}

/// Starts both hosts, and connects those that send. Returns their sessions.
pub(super) fn start(
    world: &mut World,
    settings: &Settings,
) -> Result<Vec<(HostId, Vec<SessionId>)>, ScenarioError> {
    for host in HOSTS {
        world.start(host, server)?;
    }
    let connect = |&host: &HostId| {
        let uri = world.uri(HOSTS[1 - host.0 as usize]);
        let rpc = world.rpc(host);
        let sessions = (0..settings.sessions).map(|_| rpc.connect(&uri));
        let sessions = sessions.collect::<Result<_, _>>();
        let failed = |error: courser::SessionError| {
            let cause = error.to_string();
            courser_sim::WorldError::Setup { host: host.0, at_ns: 0, cause }
        };
        Ok((host, sessions.map_err(failed)?))
    };
    settings.senders().iter().map(connect).collect()
}

/// Begins to send.
pub(super) fn send(
    world: &mut World,
    settings: &Settings,
    sessions: Vec<(HostId, Vec<SessionId>)>,
    tally: &SharedTally,
) {
    for (host, sessions) in sessions {
        let (settings, tally) = (*settings, Rc::clone(tally));
        match settings.traffic {
            Traffic::Both | Traffic::One => send_messages(world, host, settings, sessions, tally),
            Traffic::Calls => call(world, host, settings, sessions, tally),
        }
        // An idle thread makes a pass for a timer, and work besides the event loop follows.
        world.rpc(host).context().after(std::time::Duration::ZERO, |_| {});
    }
}

/// A batch in each pass in which it may be in flight. The batches take the sessions in turn, so that
/// each has the credits of one.
fn send_messages(
    world: &mut World,
    host: HostId,
    settings: Settings,
    sessions: Vec<SessionId>,
    tally: SharedTally,
) {
    let mut turn = (0..sessions.len()).cycle();
    world.set_beside(host, 0, move |rpc| {
        if rpc.outstanding_messages() + u64::from(settings.batch) > settings.in_flight.into() {
            return false;
        }
        let Some(&session) = turn.next().and_then(|at| sessions.get(at)) else { return false };
        for _ in 0..settings.batch {
            if let Err(error) = send_one(rpc, session, settings.bytes as usize) {
                tally.borrow_mut().failed.failed(&error);
                return false;
            }
        }
        true
    });
}

fn send_one(rpc: &mut Rpc, session: SessionId, bytes: usize) -> Result<(), SetupError> {
    let mut message = rpc.alloc_recycled(bytes)?;
    message.fill(0xa5); // so that runs are identical to the last bit
    rpc.send(session, MESSAGE, message).map_err(|rejected| rejected.reason.to_string().into())
}

/// The calls of a host in chains of a batch: a batch follows in the pass in which the last call of the
/// one before ends.
struct Caller {
    settings: Settings,
    sessions: Vec<SessionId>,
    /// By chain: when its batch was sent, ns, and how many of its calls have not ended.
    chains: Vec<(u64, u32)>,
    /// By tag.
    requests: Vec<Option<MsgBuf>>,
    tally: SharedTally,
}

fn call(
    world: &mut World,
    host: HostId,
    settings: Settings,
    sessions: Vec<SessionId>,
    tally: SharedTally,
) {
    let chains = settings.in_flight / settings.batch;
    let rpc = world.rpc(host);
    let requests = (0..chains * settings.batch)
        .map(|_| app::message(rpc, settings.bytes as usize).ok())
        .collect();
    let chains = vec![(0, 0); chains as usize];
    let caller = Rc::new(RefCell::new(Caller { settings, sessions, chains, requests, tally }));
    let own = Rc::clone(&caller);
    rpc.on_completion(move |cx, tag, done| own.borrow_mut().ended(cx, tag, done));
    let mut begins = true;
    world.set_beside(host, 0, move |rpc| {
        let first = std::mem::take(&mut begins);
        if first {
            let mut caller = caller.borrow_mut();
            (0..caller.chains.len()).for_each(|chain| caller.issue(&mut rpc.context(), chain));
        }
        first
    });
}

impl Caller {
    fn issue(&mut self, cx: &mut Context<'_>, chain: usize) {
        let batch = self.settings.batch;
        self.chains[chain] = (now_ns(), batch);
        for tag in chain * batch as usize..(chain + 1) * batch as usize {
            let session = self.sessions[tag % self.sessions.len()];
            let Some(request) = self.requests[tag].take() else {
                self.tally.borrow_mut().failed.failed(&"no memory");
                continue;
            };
            if let Err(rejected) = cx.request(session, STAMP, request).tag(tag as u64).send() {
                self.tally.borrow_mut().failed.failed(&rejected.reason);
            }
        }
    }

    fn ended(&mut self, cx: &mut Context<'_>, tag: u64, done: Completion<'_>) {
        let tag = tag as usize;
        let chain = tag / self.settings.batch as usize;
        let mut tally = self.tally.borrow_mut();
        match &done.result {
            Ok(answer) => tally.one_way.record(one_way_ns(answer, self.chains[chain].0, now_ns())),
            Err(error) => tally.failed.failed(error),
        }
        drop(tally);
        self.requests[tag] = Some(done.request);
        self.chains[chain].1 -= 1;
        if self.chains[chain].1 == 0 {
            self.issue(cx, chain);
        }
    }
}

/// `((t4 - t1) - (t3 - t2)) / 2` [Scatter-gather §III-B].
fn one_way_ns(answer: &[u8], sent_ns: u64, ended_ns: u64) -> u64 {
    let stamp = |at: usize| {
        let bytes = answer.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let at_server_ns = stamp(8).saturating_sub(stamp(0));
    ended_ns.saturating_sub(sent_ns).saturating_sub(at_server_ns) / 2
}
