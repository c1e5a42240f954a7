//! Writers and readers that check that each write is applied once, and that reads are not stale.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use courser::Local;
use courser_kit::Failure;
use courser_raft_kv::client::{Client, ClientError};

use super::reach::failure;

/// The client of a load.
type Kv = Rc<Client<Local>>;

/// Longest time of a call: nodes are down for less.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause of a reader between calls.
const READ_PAUSE: Duration = Duration::from_millis(1);

/// Writers and readers of a load.
pub(super) struct Callers {
    pub(super) writers: usize,
    pub(super) readers: usize,
    /// Longest time of an attempt of a call. An attempt at a node that is cut off takes this time.
    pub(super) attempt: Duration,
}

/// Acknowledged writes that were lost, writes that found another value than their own last one, and
/// reads that returned an older value than the last acknowledged one of before they began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) lost: u64,
    pub(super) twice: u64,
    pub(super) stale: u64,
}

/// Shared by the writers and the readers.
#[derive(Default)]
struct State {
    acknowledged: Cell<u64>,
    reads: Cell<u64>,
    faults: Cell<Faults>,
    stopping: Cell<bool>,
    running: Cell<usize>,
    last_ns: Cell<u64>,
    longest_ns: Cell<u64>,
    error: RefCell<Option<ClientError>>,
}

impl State {
    fn fault(&self, add: impl FnOnce(&mut Faults)) {
        let mut faults = self.faults.get();
        add(&mut faults);
        self.faults.set(faults);
    }
}

/// Callers at work.
pub(super) struct Load {
    kv: Kv,
    state: Rc<State>,
    last: Vec<Rc<Cell<u64>>>,
}

fn key(writer: usize) -> Vec<u8> {
    format!("counter-{writer:08}").into_bytes()
}

fn number(value: Option<Vec<u8>>) -> u64 {
    value.and_then(|value| value.try_into().ok().map(u64::from_le_bytes)).unwrap_or(0)
}

async fn write(kv: Kv, local: Local, state: Rc<State>, writer: usize, last: Rc<Cell<u64>>) {
    while !state.stopping.get() {
        let number = last.get();
        let old = number.to_le_bytes();
        let expected = (number > 0).then_some(&old[..]);
        match kv.cas(&key(writer), expected, Some(&(number + 1).to_le_bytes())).await {
            Ok(written) if written.changed => {
                last.set(number + 1);
                state.acknowledged.set(state.acknowledged.get() + 1);
                let now_ns = local.now_ns();
                let gap_ns = now_ns.saturating_sub(state.last_ns.replace(now_ns));
                state.longest_ns.set(state.longest_ns.get().max(gap_ns));
            }
            Ok(_) => {
                state.fault(|faults| faults.twice += 1);
                break;
            }
            Err(error) => {
                *state.error.borrow_mut() = Some(error);
                break;
            }
        }
    }
    state.running.set(state.running.get() - 1);
}

async fn read(kv: Kv, local: Local, state: Rc<State>, last: Vec<Rc<Cell<u64>>>) {
    while !state.stopping.get() {
        let writer = (local.random() % last.len() as u64) as usize;
        let before = last[writer].get();
        match kv.get(&key(writer)).await {
            Ok(value) => {
                state.reads.set(state.reads.get() + 1);
                if number(value) < before {
                    state.fault(|faults| faults.stale += 1);
                }
            }
            Err(error) => {
                *state.error.borrow_mut() = Some(error);
                break;
            }
        }
        local.sleep(READ_PAUSE).await;
    }
    state.running.set(state.running.get() - 1);
}

impl Load {
    /// Starts callers. The writers share a connection, and each reader has its own.
    pub(super) fn start(local: &Local, nodes: &[String], callers: &Callers) -> Load {
        let client = || {
            let client = Client::new(local.clone(), nodes.to_vec(), PATIENCE);
            Rc::new(client.attempt(callers.attempt))
        };
        let kv = client();
        let state = Rc::<State>::default();
        state.last_ns.set(local.now_ns());
        state.running.set(callers.writers + callers.readers);
        let last: Vec<_> = (0..callers.writers).map(|_| Rc::<Cell<u64>>::default()).collect();
        for (writer, last) in last.iter().enumerate() {
            let task = write(kv.clone(), local.clone(), state.clone(), writer, last.clone());
            drop(local.spawn(task));
        }
        for _ in 0..callers.readers {
            drop(local.spawn(read(client(), local.clone(), state.clone(), last.clone())));
        }
        Load { kv, state, last }
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.state.acknowledged.get()
    }

    /// Reads that were answered.
    pub(super) fn reads(&self) -> u64 {
        self.state.reads.get()
    }

    /// Address of the leader.
    pub(super) fn leader(&self) -> Option<String> {
        self.kv.connected()
    }

    /// Begins to measure the longest time without an acknowledged write.
    pub(super) fn watch_gap(&self, now_ns: u64) {
        self.state.last_ns.set(now_ns);
        self.state.longest_ns.set(0);
    }

    pub(super) fn longest_gap(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.state.longest_ns.get()).max(self.open_gap(now_ns))
    }

    /// Time since the last acknowledged write, or since the measurement began.
    pub(super) fn open_gap(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.state.last_ns.get()))
    }

    /// The error of a caller, which ends it.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.state.error.borrow_mut().take().map_or(Ok(()), |error| Err(failure(error)))
    }

    /// Ends the callers, and reads all keys.
    pub(super) async fn stop(&self, local: &Local) -> Result<(), Failure> {
        self.state.stopping.set(true);
        while self.state.running.get() > 0 {
            local.sleep(Duration::from_millis(10)).await;
        }
        self.check()?;
        for (writer, last) in self.last.iter().enumerate() {
            let number = number(self.kv.get(&key(writer)).await.map_err(failure)?);
            self.state.fault(|faults| {
                faults.lost += last.get().saturating_sub(number);
                faults.twice += number.saturating_sub(last.get());
            });
        }
        Ok(())
    }

    /// The faults that were found.
    pub(super) fn faults(&self) -> Faults {
        self.state.faults.get()
    }
}
