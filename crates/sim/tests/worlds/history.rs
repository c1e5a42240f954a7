//! Histories of a register in a world, recorded by the tasks of its clients.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Local, Nexus, Rpc, Session};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::history::{KvAnswer, KvModel, KvOp, Limits, Recorder, Verdict};
use courser_sim::{HostId, LinkId, World, WorldConfig};

const PUT: u16 = 1;
const GET: u16 = 2;
const SERVER: HostId = HostId(0);
const CLIENTS: u32 = 3;
const US: Duration = Duration::from_micros(1);

type Calls = Recorder<KvOp<(), u64>, KvAnswer<u64>>;

/// A register; 0: it has no value. Reads see a value `late` after its write has been answered.
fn server(nexus: &Nexus, value: Rc<Cell<u64>>, late: Duration) -> Result<Rpc, courser::BindError> {
    let mut rpc = nexus.endpoint()?;
    let (local, put) = (rpc.local(), value.clone());
    rpc.on(PUT, move |cx, request| {
        let number = u64::from_le_bytes(*request.first_chunk().unwrap());
        let (local, put) = (local.clone(), put.clone());
        if late.is_zero() {
            put.set(number);
        } else {
            drop(local.clone().spawn(async move {
                local.sleep(late).await;
                put.set(number);
            }));
        }
        cx.reply(request)
    });
    rpc.on(GET, move |cx, _| cx.reply(value.get().to_le_bytes()));
    Ok(rpc)
}

async fn call(session: &Session, kind: u16, number: u64) -> Option<u64> {
    let mut request = session.local().alloc(8).unwrap();
    request.copy_from_slice(&number.to_le_bytes());
    let response = session.call(kind, request).deadline(15 * US).await.ok()?;
    Some(u64::from_le_bytes(*response.first_chunk().unwrap()))
}

/// Reads and writes. A call that fails has an unknown outcome.
async fn client(local: Local, uri: String, first: u64, calls: Calls) {
    let Ok(session) = local.connect(&uri).await else { return };
    for number in first..first + 60 {
        if local.random() & 1 == 0 {
            let recording = calls.begin(KvOp::Put((), number));
            if call(&session, PUT, number).await.is_some() {
                recording.end(KvAnswer::Done);
            }
        } else {
            let recording = calls.begin(KvOp::Get(()));
            if let Some(value) = call(&session, GET, 0).await {
                recording.end(KvAnswer::Value((value > 0).then_some(value)));
            }
        }
        local.sleep(US * (local.random() % 30) as u32).await;
    }
}

/// The calls of a world with losses, and its verdict.
fn run(seed: u64, late: Duration) -> (usize, usize, Verdict<()>) {
    let mut world = World::new(WorldConfig::new(seed, Topology::one_switch(1 + CLIENTS))).unwrap();
    for link in 0..world.fabric().links() {
        let faults = LinkFaults { loss_ppm: 100_000, ..LinkFaults::default() };
        world.set_link_faults(LinkId(link), faults);
    }
    let value = Rc::new(Cell::new(0));
    world.start(SERVER, move |nexus| server(nexus, value.clone(), late)).unwrap();
    let (uri, calls) = (world.uri(SERVER), Calls::default());
    for n in 1..=CLIENTS {
        world.start(HostId(n), Nexus::endpoint).unwrap();
        let local = world.rpc(HostId(n)).local();
        let first = 1 + 1_000 * u64::from(n);
        drop(local.clone().spawn(client(local, uri.clone(), first, calls.clone())));
    }
    world.run_for(Duration::from_secs(1));
    calls.with(|history| {
        let unknown = history.calls().iter().filter(|call| call.end.is_none()).count();
        (history.calls().len(), unknown, history.check(&KvModel::default(), Limits::default()))
    })
}

#[test]
fn a_register_is_linearizable_under_losses() {
    let (mut calls, mut unknown) = (0, 0);
    for seed in 0..20 {
        let (all, without_answer, verdict) = run(seed, Duration::ZERO);
        assert_eq!(verdict, Verdict::Linearizable, "seed {seed}");
        calls += all;
        unknown += without_answer;
    }
    assert!(
        calls == 20 * 60 * CLIENTS as usize && unknown > 50,
        "{calls} calls, {unknown} unknown"
    );
}

#[test]
fn a_register_that_answers_before_its_write_is_found() {
    let found = (0..20).filter(|&seed| matches!(run(seed, 20 * US).2, Verdict::Violation { .. }));
    assert!(found.count() > 15);
}
