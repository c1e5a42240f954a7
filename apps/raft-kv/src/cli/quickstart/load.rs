//! Writers that check that each write is applied once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use courser::Local;
use courser_kit::Failure;
use courser_raft_kv::client::{Client, ClientError};

use super::Kv;
use crate::cli::reach::failure;

/// Longest time of a call: nodes are down for less.
const PATIENCE: Duration = Duration::from_secs(30);

/// Shared by the writers.
#[derive(Default)]
struct State {
    acknowledged: Cell<u64>,
    /// Writes that found another number than the last acknowledged one.
    mismatches: Cell<u64>,
    lost: Cell<u64>,
    stopping: Cell<bool>,
    running: Cell<usize>,
    last_ns: Cell<u64>,
    longest_ns: Cell<u64>,
    error: RefCell<Option<ClientError>>,
}

/// Writers at work.
pub(super) struct Load {
    kv: Kv,
    state: Rc<State>,
    last: Vec<Rc<Cell<u64>>>,
}

fn key(writer: usize) -> Vec<u8> {
    format!("counter-{writer:08}").into_bytes()
}

async fn write(kv: Kv, local: Local, state: Rc<State>, writer: usize, last: Rc<Cell<u64>>) {
    state.running.set(state.running.get() + 1);
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
                state.mismatches.set(state.mismatches.get() + 1);
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

impl Load {
    pub(super) fn start(local: &Local, nodes: Vec<String>, writers: usize) -> Load {
        let kv = Rc::new(Client::new(local.clone(), nodes, PATIENCE));
        let state = Rc::<State>::default();
        state.last_ns.set(local.now_ns());
        let last: Vec<_> = (0..writers).map(|_| Rc::<Cell<u64>>::default()).collect();
        for (writer, last) in last.iter().enumerate() {
            let task = write(kv.clone(), local.clone(), state.clone(), writer, last.clone());
            drop(local.spawn(task));
        }
        Load { kv, state, last }
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.state.acknowledged.get()
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
        let open_ns = now_ns.saturating_sub(self.state.last_ns.get());
        Duration::from_nanos(self.state.longest_ns.get().max(open_ns))
    }

    /// Ends the writers, and reads all keys.
    pub(super) async fn stop(&self, local: &Local) -> Result<(), Failure> {
        self.state.stopping.set(true);
        while self.state.running.get() > 0 {
            local.sleep(Duration::from_millis(10)).await;
        }
        if let Some(error) = self.state.error.borrow_mut().take() {
            return Err(failure(error));
        }
        for (writer, last) in self.last.iter().enumerate() {
            let value = self.kv.get(&key(writer)).await.map_err(failure)?;
            let number = value.and_then(|value| value.try_into().ok().map(u64::from_le_bytes));
            let number = number.unwrap_or(0);
            if number < last.get() {
                self.state.lost.set(self.state.lost.get() + last.get() - number);
            }
        }
        Ok(())
    }

    /// Acknowledged writes that were lost, and writes that found their own effect.
    pub(super) fn faults(&self) -> (u64, u64) {
        (self.state.lost.get(), self.state.mismatches.get())
    }
}
