//! Futures in simulated datacenters, dropped at random moments: nothing is left, and no handler
//! runs twice for a call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use courser::{CallError, CallFailure, Executed, Local, Nexus, Rpc, Session, TaskStats};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, Rng, World, WorldConfig};

const AT_ONCE: u16 = 1;
const LATER: u16 = 2;
const NESTED: u16 = 3;
const MESSAGE: u16 = 4;
const CLIENTS: u32 = 3;
const US: Duration = Duration::from_micros(1);
const SERVERS: [HostId; 2] = [HostId(0), HostId(1)];

/// The numbers of the calls and messages whose handlers ran.
#[derive(Clone, Default)]
struct Executions(Rc<RefCell<BTreeSet<u64>>>);

impl Executions {
    fn note(&self, request: &[u8]) {
        let number = u64::from_le_bytes(*request.first_chunk().unwrap());
        assert!(self.0.borrow_mut().insert(number), "{number} ran twice");
    }
}

/// A server with handlers that answer at once, later, or after a call to `behind`.
fn server(nexus: &Nexus, ran: &Executions, behind: &str) -> Result<Rpc, courser::BindError> {
    let mut rpc = nexus.endpoint()?;
    let of = ran.clone();
    rpc.on_async(AT_ONCE, move |request| {
        of.note(&request);
        std::future::ready(request.to_vec())
    });
    let (of, local) = (ran.clone(), rpc.local());
    rpc.on_async(LATER, move |request| {
        of.note(&request);
        let (local, answer) = (local.clone(), request.to_vec());
        async move {
            local.sleep(US * (local.random() % 50) as u32).await;
            answer
        }
    });
    let (of, local) = (ran.clone(), rpc.local());
    let (session, behind) = (Rc::new(RefCell::new(None::<Session>)), behind.to_owned());
    rpc.on_async(NESTED, move |request| {
        of.note(&request);
        let (local, session, behind) = (local.clone(), session.clone(), behind.clone());
        let mut answer = request.to_vec();
        async move {
            // Each handler that comes before the session is there connects one.
            let known = session.borrow().clone();
            let to = match known {
                Some(session) => session,
                None => match local.connect(&behind).await {
                    Ok(new) => session.borrow_mut().insert(new).clone(),
                    Err(_) => return Vec::new(),
                },
            };
            // The bit makes it a number of another kind than the caller's.
            answer[7] |= 0x80;
            match to.call(LATER, message(&local, &answer)).await {
                Ok(response) => {
                    answer.copy_from_slice(&response);
                    answer[7] &= 0x7f;
                    answer
                }
                Err(_) => Vec::new(),
            }
        }
    });
    let of = ran.clone();
    rpc.on_message(MESSAGE, move |_, message| of.note(&message));
    Ok(rpc)
}

fn message(local: &Local, bytes: &[u8]) -> courser::MsgBuf {
    let mut m = local.alloc(bytes.len()).unwrap();
    m.copy_from_slice(bytes);
    m
}

/// How futures of calls ended.
#[derive(Default)]
struct Ends {
    answered: Cell<u64>,
    failed: Cell<u64>,
    dropped: Cell<u64>,
}

/// Makes one call or sends one message, and gives up after a random time.
async fn one(local: Local, session: Session, number: u64, mut rng: Rng, ends: Rc<Ends>) {
    let len = [8, 64, 1_400, 4_000, 40_000][rng.below(5) as usize];
    let mut body = vec![number as u8; len];
    body[..8].copy_from_slice(&number.to_le_bytes());
    let request = message(&local, &body);
    let kind = [AT_ONCE, LATER, NESTED, MESSAGE][rng.below(4) as usize];
    let patience = US * rng.below(200) as u32;
    let deadline = rng.chance_ppm(200_000).then(|| US * rng.below(300) as u32);
    let failure = if kind == MESSAGE {
        let sent = session.send(kind, request).deadline(deadline);
        local.timeout(patience, sent).await.map(Result::err)
    } else {
        let call = session.call(kind, request).deadline(deadline);
        let end = local.timeout(patience, call).await;
        end.map(|result| {
            let ok = result.inspect(|response| {
                assert!(response.is_empty() || response[..] == body[..], "another call's answer");
            });
            ok.err()
        })
    };
    let count = match failure {
        Err(_) => &ends.dropped,
        Ok(None) => &ends.answered,
        Ok(Some(e)) => {
            let at_its_end = CallError::DeadlineExceeded(Executed::Maybe);
            assert!(deadline.is_some() || e != CallFailure::Failed(at_its_end), "{e}");
            &ends.failed
        }
    };
    count.set(count.get() + 1);
}

/// A client that begins `count` futures, some at a time.
async fn client(local: Local, uris: [String; 2], first: u64, count: u64, ends: Rc<Ends>) {
    let mut sessions = Vec::new();
    for uri in &uris {
        // Lost packets delay a connect.
        sessions.push(local.connect(uri).await.unwrap());
    }
    for number in first..first + count {
        let rng = Rng::new(local.random());
        let session = sessions[(number % 2) as usize].clone();
        drop(local.spawn(one(local.clone(), session, number, rng, ends.clone())));
        if number % 16 == 0 {
            local.sleep(US * (local.random() % 100) as u32).await;
        }
    }
    // Tasks have clones.
}

/// One world. Returns how many futures were answered, failed, dropped.
fn drops(seed: u64, count: u64) -> (u64, u64, u64, u64) {
    let hosts = 2 + CLIENTS;
    let mut world = World::new(WorldConfig::new(seed, Topology::one_switch(hosts))).unwrap();
    let loss_ppm = [0, 1_000, 20_000][(seed % 3) as usize];
    for link in 0..world.fabric().links() {
        let faults = LinkFaults { loss_ppm, duplicate_ppm: loss_ppm, ..LinkFaults::default() };
        world.set_link_faults(LinkId(link), faults);
    }
    let ran = Executions::default();
    for (at, host) in SERVERS.into_iter().enumerate() {
        let (ran, behind) = (ran.clone(), world.uri(SERVERS[1 - at]));
        world.start(host, move |nexus| server(nexus, &ran, &behind)).unwrap();
    }
    let ends = Rc::new(Ends::default());
    for n in 0..CLIENTS {
        let uris = SERVERS.map(|host| world.uri(host));
        world.start(HostId(2 + n), Nexus::endpoint).unwrap();
        let local = world.rpc(HostId(2 + n)).local();
        let first = u64::from(n) * count;
        drop(local.clone().spawn(client(local, uris, first, count, ends.clone())));
        world.rpc(HostId(2 + n)).handle().wake();
    }
    let all = u64::from(CLIENTS) * count;
    let ended = |ends: &Ends| ends.answered.get() + ends.failed.get() + ends.dropped.get();
    let done = world.run_until(Duration::from_secs(60), |_| ended(&ends) == all);
    assert!(done, "seed {seed}: {} of {all} futures ended", ended(&ends));
    // Servers end what was cancelled, sessions close.
    world.run_for(Duration::from_secs(3));
    for host in world.hosts() {
        let rpc = world.rpc(host);
        rpc.check();
        assert_eq!(rpc.task_stats(), TaskStats::default(), "seed {seed}, {host:?}");
        assert_eq!((rpc.outstanding_calls(), rpc.outstanding_messages()), (0, 0), "seed {seed}");
        let in_use = rpc.memory().in_use_buffers;
        assert!(in_use <= 200, "seed {seed}, {host:?}: {in_use} message buffers are in use");
    }
    assert!(world.violations().is_empty(), "seed {seed}: {:?}", world.violations());
    (ends.answered.get(), ends.failed.get(), ends.dropped.get(), world.digest())
}

#[test]
fn futures_dropped_at_random_moments_leave_nothing_and_run_nothing_twice() {
    let mut total = (0, 0, 0);
    for seed in 0..12 {
        let (answered, failed, dropped, _) = drops(seed, 1_000);
        total = (total.0 + answered, total.1 + failed, total.2 + dropped);
    }
    assert!(total.0 > 9_000 && total.1 > 500 && total.2 > 9_000, "{total:?}");
}

#[test]
#[ignore = "takes minutes; COURSER_DROPPED=1000000 sets how many futures are to be dropped"]
fn a_million_futures_are_dropped() {
    let wanted = std::env::var("COURSER_DROPPED").map_or(1_000_000, |n| n.parse().unwrap());
    let (mut dropped, mut seed) = (0, 1_000);
    while dropped < wanted {
        dropped += drops(seed, 20_000).2;
        seed += 1;
    }
    println!("{dropped} futures dropped in {} worlds", seed - 1_000);
}

#[test]
fn worlds_with_futures_are_the_same_for_the_same_seed() {
    let first = drops(5, 200);
    assert_eq!(first, drops(5, 200));
    assert_ne!(first.3, drops(6, 200).3);
}
