//! The swarm's application: every process is server and client and uses all of the public API.
//! Set-up and callbacks only, as any application in virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use courser::{Context, Nexus, ReplyHandle, Request, Rpc, Work};

use super::bytes::fill;
use super::client::{Client, Lane, LanePlan, Mix, Then};
use super::kinds::Kind;
use super::messages::{MessageMix, Messages};
use super::oracle::{SharedOracle, Task, Who, run};
use crate::Rng;
use crate::host::process::SetupError;
use crate::world::spend;

/// State shared by all processes of a world, like a disk: it survives their ends.
pub(super) struct Shared {
    pub(super) oracle: SharedOracle,
    pub(super) seed: u64,
    pub(super) mix: Mix,
    pub(super) messages: MessageMix,
    pub(super) lanes: Vec<LanePlan>,
    pub(super) endpoints: usize,
    /// The first processes make no calls before, ns.
    pub(super) idle_first_ns: u64,
    /// A session was closed or has failed, and its number may be used again.
    pub(super) ended: Cell<bool>,
    /// Frames have a checksum.
    pub(super) protected: bool,
    /// Frames that links have changed arrive.
    pub(super) changes_arrive: bool,
    /// Calls left to make.
    pub(super) left: Cell<u64>,
    /// Make no more calls.
    pub(super) stopped: Cell<bool>,
    /// Connect no more sessions.
    pub(super) parted: Cell<bool>,
    /// Error of the last session that failed.
    pub(super) why_down: RefCell<String>,
    /// Additional time of handlers, by host, ns.
    pub(super) slow_ns: Vec<Cell<u64>>,
    /// The life of each host's process.
    pub(super) lives: Vec<Cell<u32>>,
    /// End of the host's pause.
    pub(super) paused_until_ns: Vec<Cell<u64>>,
    /// The clients of the running processes, by host and endpoint.
    pub(super) clients: RefCell<Vec<Vec<Rc<Client>>>>,
}

impl Shared {
    /// The process that runs on a host, or the last that ran there.
    pub(super) fn who(&self, host: u32) -> Who {
        Who { host, life: self.lives[host as usize].get() }
    }

    /// The client of an endpoint.
    pub(super) fn client(&self, host: u32, endpoint: usize) -> Option<Rc<Client>> {
        self.clients.borrow().get(host as usize)?.get(endpoint).cloned()
    }
}

/// The set-up of a process, for [`crate::World::start`].
pub(super) fn set_up(
    nexus: &Nexus,
    shared: &Rc<Shared>,
    host: u32,
) -> Result<Vec<Rpc>, SetupError> {
    let life = &shared.lives[host as usize];
    life.set(life.get() + 1);
    let who = shared.who(host);
    let mut rpcs = Vec::new();
    let mut clients = Vec::new();
    for endpoint in 0..shared.endpoints {
        let mut rpc = nexus.endpoint()?;
        let lanes = shared.lanes.iter().filter(|l| (l.host, l.endpoint) == (host, endpoint));
        let purpose = 0x5a_0000 + (u64::from(host) << 32) + (u64::from(who.life) << 8);
        let own = 0x5b_0000 + purpose + endpoint as u64;
        let client = Rc::new(Client {
            who,
            endpoint,
            shared: shared.clone(),
            lanes: RefCell::new(lanes.cloned().map(Lane::new).collect()),
            pool: RefCell::default(),
            tags: RefCell::default(),
            rng: RefCell::new(Rng::stream(shared.seed, purpose + endpoint as u64)),
            awaited_rng: RefCell::new(Rng::stream(shared.seed, own + (1 << 20))),
            answered: RefCell::default(),
            messages: Messages::new(Rng::stream(shared.seed, own)),
        });
        serve(&mut rpc, shared, &client)?;
        client.take_messages(&mut rpc);
        client.start(&mut rpc);
        rpcs.push(rpc);
        clients.push(client);
    }
    shared.clients.borrow_mut()[host as usize] = clients;
    Ok(rpcs)
}

/// Registers the handlers.
fn serve(rpc: &mut Rpc, shared: &Rc<Shared>, client: &Rc<Client>) -> Result<(), SetupError> {
    let who = client.who;
    for kind in Kind::ALL {
        let (shared, client) = (shared.clone(), client.clone());
        match kind {
            Kind::Unknown => {}
            Kind::Work => {
                let oracle = shared.oracle.clone();
                rpc.on_worker(kind as u16, move |work| work_on(&oracle, who, work))?;
            }
            _ => rpc.on(kind as u16, move |cx, req| {
                spend(Duration::from_nanos(shared.slow_ns[who.host as usize].get()));
                match run(&shared.oracle, kind, who, &req) {
                    Some(task) => handle(cx, kind, task, req, &client),
                    None => cx.reject(),
                }
            }),
        }
    }
    Ok(())
}

/// Runs a handler's task.
fn handle(cx: &mut Context<'_>, kind: Kind, task: Task, req: Request<'_>, client: &Rc<Client>) {
    let after = Duration::from_nanos(task.takes_ns);
    match kind {
        Kind::Echo => answer_now(cx, task),
        Kind::Slow => {
            spend(after);
            answer_now(cx, task);
        }
        Kind::Later => {
            let Some(handle) = cx.defer() else { return };
            cx.after(after, move |cx| answer_later(cx, handle, task));
        }
        Kind::Keep => {
            // Without memory for a copy the response has no copy.
            let kept = req.take(cx);
            let Some(handle) = cx.defer() else { return };
            cx.after(after, move |cx| {
                let Ok(mut m) = kept else { return answer_later(cx, handle, task) };
                if m.set_len(task.response_len).is_err() || m.is_shared() {
                    return answer_later(cx, handle, task);
                }
                fill(task.answer, &mut m);
                let _ = cx.reply_to(handle, m); // its client may be gone
            });
        }
        Kind::Nested => {
            let deadline = req.time_left(cx);
            let Some(handle) = cx.defer() else { return };
            client.call_another(cx, deadline, Then::Answer(handle, task));
        }
        Kind::Refuse => cx.reject(),
        Kind::Forget => drop(cx.defer()),
        // Without the panic hook: the panic is intended and needs no output.
        Kind::Panic => std::panic::resume_unwind(Box::new("a handler that panics")),
        Kind::Work | Kind::Unknown => {}
    }
}

/// Responds in one of the possible ways.
fn answer_now(cx: &mut Context<'_>, task: Task) {
    match task.answer % 3 {
        // The client receives an error if there is no memory.
        0 => drop(cx.reply_with(task.response_len, |out| fill(task.answer, out))),
        1 => cx.reply(bytes(task)),
        _ => match cx.alloc(task.response_len) {
            Ok(mut m) => {
                fill(task.answer, &mut m);
                cx.reply(m);
            }
            Err(_) => cx.reply(bytes(task)),
        },
    }
}

/// Responds to a deferred request.
pub(super) fn answer_later(cx: &mut Context<'_>, handle: ReplyHandle, task: Task) {
    if cx.is_cancelled(&handle) && task.answer.is_multiple_of(2) {
        // The client no longer waits: any response will do.
        let _ = cx.reply_to(handle, &b"too late"[..]);
        return;
    }
    // The client, or its session, may have ended.
    let _ = cx.reply_to(handle, bytes(task));
}

fn bytes(task: Task) -> Vec<u8> {
    let mut out = vec![0; task.response_len];
    fill(task.answer, &mut out);
    out
}

fn work_on(oracle: &SharedOracle, who: Who, work: Work) {
    match run(oracle, Kind::Work, who, &work) {
        Some(task) => {
            spend(Duration::from_nanos(task.takes_ns));
            work.reply(bytes(task));
        }
        None => work.reject(),
    }
}
