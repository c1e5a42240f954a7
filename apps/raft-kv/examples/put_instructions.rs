//! Writes of three nodes on one thread, for counting instructions: `scripts/raft_instructions.sh` runs
//! this under callgrind.
//!
//! Usage: `put_instructions nodes PUTS [IN_FLIGHT]`: nodes and a client at endpoints over shared memory,
//! with logs in memory, keys of 16 bytes and values of 64 bytes. Counted are [`leader_pass`],
//! [`follower_pass`] and [`client_pass`]. `put_instructions parts PUTS`: the same nodes without endpoints,
//! whose messages are passed by hand, one write after another. Counted are [`leader_raft`],
//! [`leader_codec`], [`follower_raft`] and [`follower_codec`], and beside them [`apply`], of which each
//! node has one for each write, within the `raft` of its side.
//!
//! As many writes before them are not counted: [`begin`] and [`end`] are called around the others.
//!
//! `put_instructions times PUTS`: the same parts, and prints the median time of the steps that a write
//! waits for, ns: those of the leader up to its messages to both followers, those of a follower, and those
//! of the leader from both answers, which arrive together, to the result.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use courser::{Nexus, Rpc};
use courser_raft_kv::client::Client;
use courser_raft_kv::command::{Applied, Command, Op, Ticket};
use courser_raft_kv::core::{Core, Refused, Settings};
use courser_raft_kv::log::Log;
use courser_raft_kv::node::{Node, Options};
use courser_raft_kv::planted::Planted;
use courser_raft_kv::store::Store;
use courser_raft_kv::wire;
use futures::channel::oneshot;
use raft::eraftpb::Message;

type Failure = Box<dyn std::error::Error>;

/// The follower whose part is timed.
const TIMED_FOLLOWER: u64 = 2;
/// Keys that are written in turn.
const KEYS: u64 = 1_000;
/// The node that becomes the leader, as its election timeout is the shortest.
const LEADER: u64 = 1;

fn settings(id: u64) -> Settings {
    Settings {
        // Callgrind is about 50 times slower than a CPU: heartbeats are rare in relation to writes.
        tick: Duration::from_secs(1),
        heartbeat_ticks: 10,
        silent_ticks: 11,
        election_ticks: 10 + id as usize..11 + id as usize,
        durable: false,
        ..Settings::new(id)
    }
}

/// Counting begins.
#[inline(never)]
fn begin() {
    std::hint::black_box("begin");
}

/// Counting ends.
#[inline(never)]
fn end() {
    std::hint::black_box("end");
}

#[inline(never)]
fn leader_pass(rpc: &mut Rpc) {
    // The functions must differ, or the compiler merges them.
    std::hint::black_box("leader");
    rpc.poll();
}

#[inline(never)]
fn follower_pass(rpc: &mut Rpc) {
    std::hint::black_box("follower");
    rpc.poll();
}

#[inline(never)]
fn client_pass(rpc: &mut Rpc) {
    std::hint::black_box("client");
    rpc.poll();
}

fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(n % KEYS).to_be_bytes());
    key
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["nodes", puts] => nodes(puts.parse()?, 1),
        ["nodes", puts, in_flight] => nodes(puts.parse()?, in_flight.parse()?),
        ["parts", puts] => parts(puts.parse()?, false),
        ["times", puts] => parts(puts.parse()?, true),
        _ => Err("usage: put_instructions nodes PUTS [IN_FLIGHT] | (parts | times) PUTS".into()),
    }
}

/// Endpoints with the same name on one thread, and their addresses.
fn endpoint() -> Result<(Nexus, Rpc, String), Failure> {
    let nexus = Nexus::bind("shm://127.0.0.1:0")?;
    let rpc = nexus.endpoint()?;
    let uri = nexus.local_uri();
    Ok((nexus, rpc, uri))
}

fn nodes(puts: u64, in_flight: u64) -> Result<(), Failure> {
    let mut endpoints = (1..=3).map(|_| endpoint()).collect::<Result<Vec<_>, _>>()?;
    let uris: Vec<String> = endpoints.iter().map(|(_, _, uri)| uri.clone()).collect();
    let members: BTreeMap<u64, String> = (1..).zip(uris.clone()).collect();
    let mut all = Vec::new();
    for (id, (_, rpc, uri)) in (1..).zip(&mut endpoints) {
        let options = Options {
            cluster: "count".to_owned(),
            uri: uri.clone(),
            members: members.clone(),
            join: false,
            new: true,
            settings: settings(id),
            max_snapshot: 1 << 30,
            report: Rc::new(|_| ()),
        };
        all.push(Node::start(rpc, options, None)?);
    }
    let (_nexus, mut client, _) = endpoint()?;
    let local = client.local();
    let kv = Client::new(local.clone(), uris, Duration::from_secs(600));
    let kv = Rc::new(kv.attempt(Duration::from_secs(60)));
    let (ended, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let next = Rc::new(Cell::new(0));
    for _ in 0..in_flight {
        let (kv, ended, failed, next) = (kv.clone(), ended.clone(), failed.clone(), next.clone());
        drop(local.spawn(async move {
            while !failed.get() {
                let n = next.replace(next.get() + 1);
                failed.set(kv.put(&key(n), &[n as u8; 64]).await.is_err());
                ended.set(ended.get() + 1);
            }
        }));
    }
    let mut counted = None;
    while ended.get() < 2 * puts {
        if failed.get() {
            return Err("a write failed".into());
        }
        client_pass(&mut client);
        for (id, (_, rpc, _)) in (1..).zip(&mut endpoints) {
            if id == LEADER { leader_pass(rpc) } else { follower_pass(rpc) }
        }
        if ended.get() >= puts && counted.is_none() {
            counted = Some(ended.get());
            begin();
        }
    }
    end();
    if !all[0].core().is_leader() {
        return Err("another node leads; give it more time".into());
    }
    println!("{} writes", ended.get() - counted.unwrap_or(0));
    Ok(())
}

fn founded(id: u64) -> Result<Core, Failure> {
    let members = (1..=3).map(|id| (id, format!("n{id}"))).collect();
    let store = Store::founded(&members);
    let log = Log::new(store.applied(), store.membership().clone());
    let image = store.image();
    Ok(Core::new(settings(id), log, store, Some(image), 0)?)
}

#[inline(never)]
fn leader_raft<R>(core: &mut Core, f: impl FnOnce(&mut Core) -> R) -> (R, Vec<Message>) {
    std::hint::black_box("leader");
    let result = f(core);
    core.process();
    (result, core.take_messages())
}

#[inline(never)]
fn follower_raft<R>(core: &mut Core, f: impl FnOnce(&mut Core) -> R) -> (R, Vec<Message>) {
    std::hint::black_box("follower");
    let result = f(core);
    core.process();
    (result, core.take_messages())
}

#[inline(never)]
fn leader_codec<R>(f: impl FnOnce() -> R) -> R {
    std::hint::black_box("leader");
    f()
}

#[inline(never)]
fn follower_codec<R>(f: impl FnOnce() -> R) -> R {
    std::hint::black_box("follower");
    f()
}

/// The entry of a write becomes a command, and is applied.
#[inline(never)]
fn apply(store: &mut Store, at: (u64, u64), entry: &[u8]) -> Applied {
    store.apply(at, Command::decode(entry), Planted::default())
}

/// Nodes without endpoints.
struct Parts {
    cores: Vec<Core>,
    now_ns: u64,
    times: Option<Times>,
}

/// Times of the steps that a write waits for.
#[derive(Default)]
struct Times {
    /// Times of this write, ns: its proposal with the messages to both followers, a follower's part, and
    /// the result from both answers. The second element is the time without the codec.
    steps: [(u64, u64); 3],
    /// Times of all writes.
    all: [Vec<(u64, u64)>; 3],
    /// Answers of followers to this write that have arrived; more, once both are handled.
    answers: u32,
}

impl Times {
    fn end_write(&mut self) {
        for (all, step) in self.all.iter_mut().zip(std::mem::take(&mut self.steps)) {
            all.push(step);
        }
        self.answers = 0;
    }

    fn print(&mut self) {
        for (all, name) in self.all.iter_mut().zip(["proposal", "follower", "result"]) {
            let middle = all.len() / 2;
            let (in_all, _) = *all.select_nth_unstable_by_key(middle, |(ns, _)| *ns).1;
            let (_, core) = *all.select_nth_unstable_by_key(middle, |(_, ns)| *ns).1;
            println!("{name}: {in_all} ns, of which {core} ns without the codec");
        }
    }
}

impl Parts {
    /// A part of a write at a node took the time since `start`. The write does not wait for the other
    /// follower, nor for anything after both answers, which arrive together.
    fn took(&mut self, start: Instant, at: u64, is_codec: bool) {
        let Some(times) = self.times.as_mut().filter(|times| times.answers <= 2) else { return };
        let step = match at {
            LEADER if times.answers > 0 => 2,
            LEADER => 0,
            TIMED_FOLLOWER => 1,
            _ => return,
        };
        let ns = start.elapsed().as_nanos() as u64;
        times.steps[step].0 += ns;
        times.steps[step].1 += if is_codec { 0 } else { ns };
    }

    fn core(&mut self, id: u64) -> Result<&mut Core, Failure> {
        Ok(self.cores.get_mut(id as usize - 1).ok_or("a message for no node")?)
    }

    /// Passes messages, as bytes, until there are none.
    fn pass(&mut self, mut messages: Vec<Message>) -> Result<(), Failure> {
        while !messages.is_empty() {
            let mut next = Vec::new();
            for message in messages {
                let encode = || {
                    let mut batch = Vec::new();
                    wire::push(&mut batch, &message).then_some(batch)
                };
                let is_leaders = message.from == LEADER;
                let start = Instant::now();
                let batch = if is_leaders { leader_codec(encode) } else { follower_codec(encode) };
                let batch = batch.ok_or("a message of too many bytes")?;
                self.took(start, message.from, true);
                let (to, now_ns) = (message.to, self.now_ns);
                if to == LEADER {
                    self.times.iter_mut().for_each(|times| times.answers += 1);
                }
                let start = Instant::now();
                let decode = || wire::decode(&batch);
                let decoded =
                    if to == LEADER { leader_codec(decode) } else { follower_codec(decode) };
                self.took(start, to, true);
                let start = Instant::now();
                let decoded = decoded.map_err(|malformed| format!("{malformed:?}"))?;
                let core = self.core(to)?;
                let receive = |core: &mut Core| {
                    core.set_now(now_ns);
                    decoded.into_iter().for_each(|message| core.receive(message));
                };
                let ((), out) = if to == LEADER {
                    leader_raft(core, receive)
                } else {
                    follower_raft(core, receive)
                };
                self.took(start, to, false);
                next.extend(out);
            }
            let both = self.times.iter_mut().filter(|times| times.answers == 2);
            both.for_each(|times| times.answers += 1);
            messages = next;
        }
        Ok(())
    }

    /// Proposes something at the leader, and returns its result.
    fn propose(
        &mut self,
        propose: impl FnOnce(&mut Core, oneshot::Sender<Result<Applied, Refused>>),
    ) -> Result<Applied, Failure> {
        let (sender, mut result) = oneshot::channel();
        let start = Instant::now();
        let ((), messages) = leader_raft(self.core(LEADER)?, |core| propose(core, sender));
        self.took(start, LEADER, false);
        self.pass(messages)?;
        match result.try_recv()? {
            Some(Ok(applied)) => Ok(applied),
            other => Err(format!("no result: {other:?}").into()),
        }
    }
}

fn parts(puts: u64, is_timed: bool) -> Result<(), Failure> {
    let cores = (1..=3).map(founded).collect::<Result<_, _>>()?;
    let mut parts = Parts { cores, now_ns: 0, times: None };
    while !parts.cores[0].is_leader() {
        parts.now_ns += 1_000_000_000;
        for id in 1..=3 {
            let now_ns = parts.now_ns;
            let core = parts.core(id)?;
            core.set_now(now_ns);
            core.tick();
            core.process();
            let messages = core.take_messages();
            parts.pass(messages)?;
        }
    }
    let opened = parts.propose(|core, sender| core.open(sender))?;
    let Applied::Opened(session) = opened else { return Err("no session".into()) };
    let mut store = parts.cores[0].store().clone();
    for n in 0..2 * puts {
        if n == puts {
            begin();
            parts.times = is_timed.then(Times::default);
        }
        let ticket = Ticket { session, seq: n + 1, first: n + 1 };
        let op = Op::Put { key: key(n).to_vec().into(), value: vec![n as u8; 64].into() };
        let command = Command::Write { now_ms: 0, ticket, op: op.clone() }.encode();
        parts.propose(|core, sender| core.write(ticket, op, sender))?;
        apply(&mut store, parts.cores[0].store().applied(), &command);
        parts.times.iter_mut().for_each(Times::end_write);
    }
    end();
    parts.times.iter_mut().for_each(Times::print);
    println!("{puts} writes");
    Ok(())
}
