//! A watch channel that wakes its receivers in the order in which they began to wait.
//!
//! tokio's spreads its receivers over eight lists, with random numbers that no program can seed
//! (`BigNotify` in `tokio::sync::watch`), so that it wakes several receivers in another order in each
//! run.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use openraft::async_runtime::watch::{self, RecvError, SendError, WatchReceiver, WatchSender};
use tokio::sync::Notify;

/// The channels of one thread.
pub struct Watch;

struct Shared<T> {
    value: RefCell<T>,
    /// Counts the changes.
    version: Cell<u64>,
    senders: Cell<usize>,
    receivers: Cell<usize>,
    /// Wakes in the order of the waits.
    changed: Notify,
}

impl<T> Shared<T> {
    fn set_changed(&self) {
        self.version.set(self.version.get() + 1);
        self.changed.notify_waiters();
    }
}

/// The side that changes the value.
pub struct Sender<T>(Rc<Shared<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.senders.set(self.0.senders.get() - 1);
        if self.0.senders.get() == 0 {
            self.0.changed.notify_waiters();
        }
    }
}

/// The side that waits for changes.
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    /// The version that it has seen.
    seen: u64,
}

impl<T> Receiver<T> {
    fn new(shared: &Rc<Shared<T>>, seen: u64) -> Self {
        shared.receivers.set(shared.receivers.get() + 1);
        Receiver { shared: shared.clone(), seen }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Receiver::new(&self.shared, self.seen)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.set(self.shared.receivers.get() - 1);
    }
}

impl watch::Watch for Watch {
    type Sender<T> = Sender<T>;
    type Receiver<T> = Receiver<T>;
    type Ref<'a, T: 'a> = Ref<'a, T>;

    fn channel<T>(init: T) -> (Sender<T>, Receiver<T>) {
        let shared = Rc::new(Shared {
            value: RefCell::new(init),
            version: Cell::new(0),
            senders: Cell::new(1),
            receivers: Cell::new(0),
            changed: Notify::new(),
        });
        let receiver = Receiver::new(&shared, 0);
        (Sender(shared), receiver)
    }
}

impl<T> WatchSender<Watch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.get() == 0 {
            return Err(SendError(value));
        }
        drop(self.0.value.replace(value));
        self.0.set_changed();
        Ok(())
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        let modified = modify(&mut self.0.value.borrow_mut());
        if modified {
            self.0.set_changed();
        }
        modified
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.0.value.borrow()
    }

    fn subscribe(&self) -> Receiver<T> {
        Receiver::new(&self.0, self.0.version.get())
    }
}

impl<T> WatchReceiver<Watch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            // Before the check, so that a change after it wakes this future.
            let changed = self.shared.changed.notified();
            let version = self.shared.version.get();
            if self.seen != version {
                self.seen = version;
                return Ok(());
            }
            if self.shared.senders.get() == 0 {
                return Err(RecvError(()));
            }
            changed.await;
        }
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.shared.value.borrow()
    }

    fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.seen = self.shared.version.get();
        self.shared.value.borrow()
    }
}
