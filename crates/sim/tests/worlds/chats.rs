//! Streams each way on simulated endpoints: under loss, through partitions, and at the loss and the
//! shutdown of their server.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use courser::service::{Incoming, MidStreamError, RpcError, Stream};
use courser::{JoinHandle, Local, Nexus, TaskStats};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, World, WorldConfig};
use futures::{StreamExt, future, stream};

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);
const MS: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_secs(100);

type Note = (u64, Vec<u8>);

#[courser::service]
trait Chat {
    /// Repeats the notes, up to this number.
    fn echo(&self, most: u64, notes: Incoming<Note>) -> impl Stream<Item = Result<Note, String>>;
    /// Answers with the number of notes, after the last one.
    fn count(&self, notes: Incoming<Note>) -> impl Stream<Item = u64>;
}

/// With state of one thread.
#[derive(Default)]
struct Rooms {
    alive: Rc<()>,
    taken: Rc<Cell<u64>>,
}

impl LocalChat for Rooms {
    fn echo(&self, most: u64, notes: Incoming<Note>) -> impl Stream<Item = Result<Note, String>> {
        let (alive, taken) = (self.alive.clone(), self.taken.clone());
        notes.take(most as usize).map(move |note| {
            let _ = &alive;
            taken.set(taken.get() + 1);
            note.map_err(|e| e.to_string())
        })
    }
    fn count(&self, notes: Incoming<Note>) -> impl Stream<Item = u64> {
        let alive = self.alive.clone();
        stream::once(async move {
            let _alive = alive;
            notes.count().await as u64
        })
    }
}

type Client = ChatClient<courser::Session>;

fn note(n: u64) -> Note {
    (n, vec![n as u8; (n % 3_000) as usize])
}

/// A world with a client's task. The client sets the first flag, and the second one is set at its end.
struct Meeting {
    world: World,
    rooms: Rc<Rooms>,
    flag: Rc<Cell<bool>>,
    ended: Rc<Cell<bool>>,
    _task: JoinHandle<()>,
}

fn meet<F>(
    seed: u64,
    loss_ppm: u32,
    client: impl FnOnce(Client, Local, Rc<Cell<bool>>) -> F + 'static,
) -> Meeting
where
    F: Future<Output = ()> + 'static,
{
    let mut world = World::new(WorldConfig::new(seed, Topology::two_hosts())).unwrap();
    for link in 0..world.fabric().links() {
        let faults = LinkFaults { loss_ppm, duplicate_ppm: loss_ppm, ..LinkFaults::default() };
        world.set_link_faults(LinkId(link), faults);
    }
    let rooms = Rc::new(Rooms::default());
    let of_server = rooms.clone();
    let start = move |nexus: &Nexus| -> Result<_, Box<dyn std::error::Error>> {
        let mut rpc = nexus.endpoint()?;
        rpc.add_service(ChatServer::shared(of_server.clone()))?;
        Ok(rpc)
    };
    world.start(SERVER, move |nexus| start(nexus).map_err(|e| e.to_string())).unwrap();
    world.start(CLIENT, Nexus::endpoint).unwrap();
    let uri = world.uri(SERVER);
    let rpc = world.rpc(CLIENT);
    let (local, handle) = (rpc.local(), rpc.handle());
    let (flag, ended) = (Rc::<Cell<bool>>::default(), Rc::<Cell<bool>>::default());
    let (set, own, done) = (flag.clone(), local.clone(), ended.clone());
    let task = local.spawn(async move {
        let session = own.connect(&uri).await.unwrap();
        client(Client::new(session).await.unwrap(), own, set).await;
        done.set(true);
    });
    handle.wake();
    Meeting { world, rooms, flag, ended, _task: task }
}

impl Meeting {
    fn until_flag(&mut self) {
        let flag = self.flag.clone();
        assert!(self.world.run_until(LIMIT, |_| flag.get()), "the client does not come so far");
    }

    /// Runs to the end of the client's task, and checks that nothing is left.
    fn end(mut self, server_runs: bool) -> World {
        let ended = self.ended.clone();
        assert!(self.world.run_until(LIMIT, |_| ended.get()), "the client's task hangs");
        self.world.run_for(Duration::from_secs(3));
        assert_eq!(self.world.rpc(CLIENT).task_stats(), TaskStats::default());
        self.world.rpc(CLIENT).check();
        if server_runs {
            assert_eq!(self.world.rpc(SERVER).service_stats().streams, 0);
            assert_eq!(self.world.rpc(SERVER).task_stats(), TaskStats::default());
            self.world.rpc(SERVER).check();
        }
        assert_eq!(Rc::strong_count(&self.rooms.alive), 1, "a handler is alive");
        assert!(self.world.violations().is_empty(), "{:?}", self.world.violations());
        self.world
    }
}

/// Sends notes and reads their answers. `at`: a number of notes that were read, and the flag that is set then.
async fn talk(client: Client, notes: u64, at: (u64, Rc<Cell<bool>>)) {
    let (mut sender, mut receiver) = client.echo(u64::MAX).await.unwrap().split();
    let sends = async {
        for n in 0..notes {
            sender.send(&note(n)).await.unwrap();
        }
        sender.finish().await.unwrap();
    };
    let reads = async {
        for n in 0..notes {
            assert_eq!(receiver.next().await, Some(Ok(note(n))));
            if n == at.0 {
                at.1.set(true);
            }
        }
        assert_eq!(receiver.next().await, None);
    };
    future::join(sends, reads).await;
}

#[test]
fn chats_keep_their_order_under_loss_and_are_the_same_for_the_same_seed() {
    let digest = |seed: u64| {
        let loss_ppm = [0, 10_000][seed as usize % 2];
        let meeting = meet(seed, loss_ppm, |client, _, flag| talk(client, 1_000, (0, flag)));
        meeting.end(true).digest()
    };
    let digests: Vec<_> = (0..4).map(digest).collect();
    assert_eq!(digests[3], digest(3));
    assert_ne!(digests[1], digests[3]);
}

#[test]
fn a_chat_goes_on_after_a_short_partition() {
    for seed in 0..3 {
        let mut meeting = meet(seed, 0, |client, _, flag| talk(client, 2_000, (500, flag)));
        meeting.until_flag();
        let taken = meeting.rooms.taken.get();
        meeting.world.partition(&[&[CLIENT]]);
        meeting.world.run_for(MS * 100);
        assert!(!meeting.ended.get() && meeting.rooms.taken.get() < taken + 500);
        meeting.world.heal();
        meeting.end(true);
    }
}

/// Talks until the chat fails. Both halves do, and without a message between the ends.
async fn talk_to_the_end(client: Client, flag: Rc<Cell<bool>>) {
    let (mut sender, mut receiver) = client.echo(u64::MAX).await.unwrap().split();
    let sends = async {
        for n in 0.. {
            if let Err(e) = sender.send(&note(n)).await {
                return e;
            }
        }
        unreachable!("the chat has no end")
    };
    let reads = async {
        let mut read = 0;
        loop {
            match receiver.next().await.expect("an error") {
                Ok(item) => assert_eq!(item, note(read)),
                Err(e) => return e,
            }
            read += 1;
            if read == 500 {
                flag.set(true);
            }
        }
    };
    let (sent, read) = future::join(sends, reads).await;
    assert!(matches!(read, RpcError::Call(_) | RpcError::MidStream(MidStreamError::Call(_))));
    assert!(matches!(sent, RpcError::MidStream(MidStreamError::Call(_))), "{sent:?}");
    assert_eq!(sender.finish().await, Err(MidStreamError::Closed.into()));
    assert_eq!(receiver.next().await, None);
}

#[test]
fn both_halves_fail_at_a_long_partition_and_the_handler_is_dropped() {
    for seed in 0..3 {
        let mut meeting = meet(seed, 0, |client, _, flag| talk_to_the_end(client, flag));
        meeting.until_flag();
        meeting.world.partition(&[&[CLIENT]]);
        let ended = meeting.ended.clone();
        assert!(meeting.world.run_until(LIMIT, |_| ended.get()));
        meeting.world.heal();
        meeting.world.run_for(Duration::from_secs(60));
        meeting.end(true);
    }
}

#[test]
fn both_halves_fail_when_their_server_crashes() {
    for seed in 0..3 {
        let mut meeting = meet(seed, 1_000, |client, _, flag| talk_to_the_end(client, flag));
        meeting.until_flag();
        meeting.world.crash(SERVER);
        meeting.end(false);
    }
}

#[test]
fn a_chat_without_notes_ends_soon_after_the_shutdown_begins_and_one_that_flows_goes_on() {
    for seed in 0..4 {
        let mut meeting =
            meet(seed, [0, 1_000][seed as usize % 2], |client, local, flag| async move {
                let (mut sender, mut receiver) = client.echo(u64::MAX).await.unwrap().split();
                let mut flow = client.echo(u64::MAX).await.unwrap();
                // Its items flow in one direction only.
                let mut count = client.count().await.unwrap();
                for n in 0..5 {
                    sender.send(&note(n)).await.unwrap();
                    receiver.next().await.unwrap().unwrap();
                }
                flow.send(&note(7)).await.unwrap();
                flow.next().await.unwrap().unwrap();
                flag.set(true);
                let before_ns = local.now_ns();
                let ends = async {
                    let end = receiver.next().await.unwrap().unwrap_err();
                    assert_eq!(end, MidStreamError::ShuttingDown { items: 5 }.into());
                    let took_ns = local.now_ns() - before_ns;
                    assert!(took_ns < 200_000_000, "{took_ns} ns");
                    let closed = Err(MidStreamError::Closed.into());
                    assert_eq!(sender.send(&note(5)).await, closed);
                };
                let flows = async {
                    for n in 0..1_000 {
                        flow.send(&note(n)).await.unwrap();
                        count.send(&note(n)).await.unwrap();
                        assert_eq!(flow.next().await, Some(Ok(note(n))));
                        local.sleep(MS).await;
                    }
                    assert_eq!(flow.finish().next().await, None);
                    assert_eq!(count.finish().next().await, Some(Ok(1_000)));
                };
                future::join(ends, flows).await;
            });
        meeting.until_flag();
        meeting.world.stop(SERVER, Duration::from_secs(20));
        meeting.end(false);
    }
}

#[test]
fn cancelled_chats_under_loss_leave_nothing() {
    for seed in 0..4 {
        let meeting = meet(seed, 5_000, move |client, local, _| async move {
            for round in 0..60_u64 {
                let most = [3, u64::MAX][(round % 2) as usize];
                let chat = client.echo(most).await.unwrap();
                let (mut sender, mut receiver) = chat.split();
                let sends = async {
                    for n in 0.. {
                        if sender.send(&note(n)).await.is_err() {
                            break;
                        }
                    }
                };
                let reads = async { while receiver.next().await.is_some() {} };
                let time = Duration::from_micros(round * (seed + 1) * 7);
                let _ = local.timeout(time, std::pin::pin!(future::join(sends, reads))).await;
                match round % 3 {
                    0 => drop((sender, receiver)),
                    1 => drop(sender),
                    _ => drop(receiver),
                }
            }
        });
        meeting.end(true);
    }
}
