//! A world with one server and clients, whose calls are recorded.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use courser::{CallError, CallFailure, Config, Executed, Local, Nexus, Rpc, SessionError};
use courser_ordered_index::client::{Client, ClientError};
use courser_ordered_index::index::{Index, Sum};
use courser_ordered_index::message::{GET, PUT, entry, key};
use courser_ordered_index::service::{self, Scans};
use courser_sim::fabric::Topology;
use courser_sim::history::{KvAnswer, KvOp, Recorder, Recording};
use courser_sim::{HostId, Rng, SetupError, World, WorldConfig};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SERVER: HostId = HostId(0);
pub(crate) const CLIENTS: u32 = 3;
/// Concurrent callers at each client.
const CALLERS: u64 = 2;
/// Endpoints of the server.
const ENDPOINTS: u64 = 2;
/// The keys, in order.
const KEYS: [u64; 6] = [0, 1, 7, 1 << 40, u64::MAX - 1, u64::MAX];
/// Bits of a value. Each key has a place of its own in the values, so that a sum has all of them.
const BITS: usize = 10;
/// Longest time of a call and of connecting.
const DEADLINE: Duration = Duration::from_millis(100);

/// Operations on the number of a key. A value is the number of its put, from 1 on.
pub(crate) type Op = KvOp<usize, u64>;
pub(crate) type Answer = KvAnswer<u64>;
pub(crate) type Calls = Recorder<Op, Answer>;

/// Bugs that the check has to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    None,
    /// The server applies some puts again, a little later.
    AppliesTwice,
    /// The client repeats a put whose outcome is unknown, as though nothing had been stored.
    RepeatsPut,
    /// The server reads from a copy that is a little old.
    StaleRead,
    /// The client takes a put whose outcome is unknown for one that has failed.
    UnknownIsFailed,
}

/// State that the processes of a world share.
pub(crate) struct Shared {
    bug: Bug,
    seed: u64,
    uri: String,
    /// Calls of each life of the server, whose index is empty at first. A call belongs to the life in
    /// which it began: a session ends with its server.
    pub(crate) lives: RefCell<Vec<Calls>>,
    /// The last number of a put, by key.
    puts: [Cell<u64>; KEYS.len()],
    pub(crate) scans: Cell<u64>,
    pub(crate) stop: Cell<bool>,
    pub(crate) running: Cell<u32>,
}

impl Shared {
    fn calls(&self) -> Calls {
        self.lives.borrow().last().cloned().expect("the server has started")
    }
}

/// The server and the clients run.
pub(crate) fn start(seed: u64, bug: Bug) -> (World, Rc<Shared>) {
    let mut config = WorldConfig::new(seed, Topology::one_switch(1 + CLIENTS));
    // A connection to a machine that has crashed before its greeting lasts as long as a connect may take.
    let (failure_timeout, connect_timeout) = (300 * MS, 300 * MS);
    config.nexus = Config { failure_timeout, connect_timeout, workers: 2, ..config.nexus };
    config.connect_retry_ns = 50_000_000;
    let mut world = World::new(config).unwrap();
    let shared = Rc::new(Shared {
        bug,
        seed,
        uri: world.uri(SERVER),
        lives: RefCell::default(),
        puts: Default::default(),
        scans: Cell::new(0),
        stop: Cell::new(false),
        running: Cell::new(0),
    });
    let of = shared.clone();
    world.start(SERVER, move |nexus| server(nexus, &of)).unwrap();
    for host in 1..=CLIENTS {
        let (of, mut life) = (shared.clone(), 0);
        let setup = move |nexus: &Nexus| {
            life += 1;
            client(nexus, &of, u64::from(host) << 32 | life)
        };
        world.start(HostId(host), setup).unwrap();
    }
    (world, shared)
}

/// A server with an empty index.
fn server(nexus: &Nexus, shared: &Rc<Shared>) -> Result<Vec<Rpc>, SetupError> {
    let index = Arc::new(Index::default());
    shared.lives.borrow_mut().push(Calls::default());
    let endpoint = |_| {
        let mut rpc = nexus.endpoint()?;
        service::register(&mut rpc, &index, Scans::Workers)?;
        match shared.bug {
            Bug::AppliesTwice => apply_twice(&mut rpc, &index),
            Bug::StaleRead => read_a_copy(&mut rpc, &index),
            _ => {}
        }
        Ok(rpc)
    };
    (0..ENDPOINTS).map(endpoint).collect()
}

/// Plants [`Bug::AppliesTwice`].
fn apply_twice(rpc: &mut Rpc, index: &Arc<Index>) {
    let (local, index) = (rpc.local(), index.clone());
    rpc.on(PUT, move |cx, request| {
        let (key, value) = entry(&request).unwrap();
        let replaced = index.put(key, value).unwrap();
        if cx.random().is_multiple_of(16) {
            let (index, local) = (index.clone(), local.clone());
            drop(local.clone().spawn(async move {
                local.sleep(2 * MS).await;
                index.put(key, value).unwrap();
            }));
        }
        cx.reply([u8::from(replaced)]);
    });
}

/// Plants [`Bug::StaleRead`].
fn read_a_copy(rpc: &mut Rpc, index: &Arc<Index>) {
    let (mut copy, mut until_ns, index) = (BTreeMap::new(), 0, index.clone());
    rpc.on(GET, move |cx, request| {
        if cx.now_ns() >= until_ns {
            copy = KEYS.iter().map(|key| (*key, index.get(*key))).collect();
            until_ns = cx.now_ns() + 2_000_000;
        }
        match copy[&key(&request).unwrap()] {
            Some(value) => cx.reply(value.to_le_bytes()),
            None => cx.reply([0; 0]),
        }
    });
}

/// The session of a client's callers.
type Connection = Rc<RefCell<Option<Client>>>;

fn client(nexus: &Nexus, shared: &Rc<Shared>, life: u64) -> Result<Rpc, SetupError> {
    let rpc = nexus.endpoint()?;
    let connection = Connection::default();
    for caller in 0..CALLERS {
        let rng = Rng::stream(shared.seed, life << 8 | caller);
        let caller = Caller {
            local: rpc.local(),
            shared: shared.clone(),
            connection: connection.clone(),
            rng,
            _running: Running::new(shared),
        };
        drop(rpc.local().spawn(caller.run()));
    }
    Ok(rpc)
}

/// Counts the callers that run: one may end with its process.
struct Running(Rc<Shared>);

impl Running {
    fn new(shared: &Rc<Shared>) -> Running {
        shared.running.set(shared.running.get() + 1);
        Running(shared.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

/// Calls, each recorded.
struct Caller {
    local: Local,
    shared: Rc<Shared>,
    connection: Connection,
    rng: Rng,
    _running: Running,
}

impl Caller {
    async fn run(mut self) {
        while !self.shared.stop.get() {
            if let Some(client) = self.connected().await {
                self.call(&client).await;
            }
            self.local.sleep(Duration::from_micros(self.rng.between(50, 10_000))).await;
        }
    }

    async fn connected(&mut self) -> Option<Client> {
        if self.connection.borrow().is_none() {
            let uri = format!("{}/{}", self.shared.uri, self.rng.below(ENDPOINTS));
            let connecting = Client::connect(&self.local, &uri, DEADLINE);
            let client: Result<Client, SessionError> =
                self.local.timeout(DEADLINE, connecting).await.ok()?;
            *self.connection.borrow_mut() = Some(client.ok()?);
        }
        self.connection.borrow().clone()
    }

    async fn call(&mut self, client: &Client) {
        let key = self.rng.below(KEYS.len() as u64) as usize;
        let failed = match self.rng.below(10) {
            0..3 => self.get(client, key).await,
            3..6 => self.put(client, key).await,
            6..8 => self.delete(client, key).await,
            _ => self.scan(client, key).await,
        };
        use CallError::{DeadlineExceeded, Server};
        match failed {
            None
            | Some(ClientError::Call(CallFailure::Failed(DeadlineExceeded(_) | Server(_)))) => {}
            // Other failures end the session; the next call makes another one.
            Some(ClientError::Call(_)) => drop(self.connection.borrow_mut().take()),
            Some(error) => panic!("{error}"),
        }
    }

    async fn get(&self, client: &Client, key: usize) -> Option<ClientError> {
        let recording = self.shared.calls().begin(KvOp::Get(key));
        let result = client.get(KEYS[key]).await;
        let answer = |value: Option<u64>| KvAnswer::Value(value.map(|value| number_of(key, value)));
        end(recording, result.map(answer))
    }

    async fn put(&self, client: &Client, key: usize) -> Option<ClientError> {
        let puts = &self.shared.puts[key];
        puts.set(puts.get() + 1);
        let number = puts.get();
        let recording = self.shared.calls().begin(KvOp::Put(key, number));
        let put = || client.put(KEYS[key], value_of(key, number));
        let mut result = put().await;
        let is_unknown = |error: &ClientError| error.executed() == Executed::Maybe;
        if self.shared.bug == Bug::RepeatsPut && result.as_ref().is_err_and(is_unknown) {
            result = put().await;
        }
        match result {
            Err(error) if self.shared.bug == Bug::UnknownIsFailed => {
                recording.end_without_effect();
                Some(error)
            }
            result => end(recording, result.map(KvAnswer::Replaced)),
        }
    }

    async fn delete(&self, client: &Client, key: usize) -> Option<ClientError> {
        let recording = self.shared.calls().begin(KvOp::Delete(key));
        let result = client.delete(KEYS[key]).await;
        end(recording, result.map(KvAnswer::Removed))
    }

    /// A scan is a read of each key that it covers.
    async fn scan(&self, client: &Client, from: usize) -> Option<ClientError> {
        let count = 1 + self.local.random() as usize % KEYS.len();
        let calls = self.shared.calls();
        let reads: Vec<_> =
            (from..KEYS.len()).map(|key| (key, calls.begin(KvOp::Get(key)))).collect();
        match client.scan(KEYS[from], count as u32).await {
            Ok(sum) => {
                self.shared.scans.set(self.shared.scans.get() + 1);
                let values = values_of(sum, from, count);
                for (key, recording) in reads {
                    // Keys behind the last one that is counted are not covered.
                    match values[key] {
                        Some(value) => recording.end(KvAnswer::Value((value > 0).then_some(value))),
                        None => recording.end_without_effect(),
                    }
                }
                None
            }
            Err(error) => Some(error),
        }
    }
}

/// Ends a call. Without an answer its outcome is unknown, unless it was certainly not executed.
fn end(
    recording: Recording<Op, Answer>,
    result: Result<Answer, ClientError>,
) -> Option<ClientError> {
    match result {
        Ok(answer) => {
            recording.end(answer);
            None
        }
        Err(error) => {
            if error.executed() == Executed::Never {
                recording.end_without_effect();
            }
            Some(error)
        }
    }
}

fn value_of(key: usize, number: u64) -> u64 {
    assert!(number < 1 << BITS, "too many puts of a key for {BITS} bits");
    number << (BITS * key)
}

fn number_of(key: usize, value: u64) -> u64 {
    let number = value >> (BITS * key);
    assert!(number > 0 && value == value_of(key, number), "{value:#x} was never put at {key}");
    number
}

/// The numbers that a scan has counted, 0 for a key that is not there, and `None` where it did not look.
fn values_of(sum: Sum, from: usize, count: usize) -> [Option<u64>; KEYS.len()] {
    let number = |key| sum.sum >> (BITS * key) & ((1 << BITS) - 1);
    let present: Vec<_> = (0..KEYS.len()).filter(|key| number(*key) > 0).collect();
    let fits = present.len() == sum.count as usize
        && present.len() <= count
        && present.iter().all(|key| *key >= from)
        && sum.sum >> (BITS * KEYS.len()) == 0;
    assert!(fits, "{sum:?} of {count} values from key {from} on");
    let end = if present.len() < count { KEYS.len() } else { present[count - 1] + 1 };
    std::array::from_fn(|key| (from..end).contains(&key).then(|| number(key)))
}
