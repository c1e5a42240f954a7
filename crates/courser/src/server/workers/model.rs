//! The threads that poll handlers in every order of threads.

use loom::thread;

use super::*;
use crate::sync::model::{Fault, LOST, check, must_fail, with};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// One thread that is awake counts as enough for any number of tasks.
    CountsOne,
    /// A notification is not counted.
    Uncounted,
}

impl Shared {
    /// [`Shared::push`], with broken rules.
    fn push_broken(&self, task: Runnable, broken: Broken) {
        if broken == Broken::Nothing {
            return self.push(task);
        }
        let mut state = self.lock();
        state.queue.push_back(task);
        self.queued.store(state.queue.len(), Ordering::Relaxed);
        let most = if broken == Broken::CountsOne { 1 } else { state.queue.len() };
        let wake = most > state.searching && state.sleeping > 0;
        if wake {
            state.sleeping -= 1;
            state.searching += 1;
            state.wakes += usize::from(broken != Broken::Uncounted);
        }
        drop(state);
        if wake {
            self.wake.notify_one();
        }
    }
}

/// Threads that wait here until all are here.
struct Meeting {
    missing: Mutex<usize>,
    all: loom::sync::Condvar,
}

impl Meeting {
    fn of(threads: usize) -> Arc<Self> {
        Arc::new(Meeting { missing: Mutex::new(threads), all: loom::sync::Condvar::new() })
    }

    fn meet(&self) {
        let mut missing = self.missing.lock().unwrap();
        *missing -= 1;
        self.all.notify_all();
        while *missing > 0 {
            missing = self.all.wait(missing).unwrap();
        }
    }
}

/// Two handlers that wait for each other, each on a thread.
fn handlers(broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let shared = Arc::new(Shared::default());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let own = shared.clone();
                // Not `Shared::work`, which would catch the panics of the model.
                thread::spawn(move || {
                    while let Some(task) = own.next() {
                        task.run();
                    }
                })
            })
            .collect();
        let meeting = Meeting::of(3);
        for _ in 0..2 {
            let (to, own) = (shared.clone(), meeting.clone());
            let schedule = move |task| to.push_broken(task, broken);
            let (runnable, task) = async_task::spawn(async move { own.meet() }, schedule);
            task.detach();
            runnable.schedule();
        }
        meeting.meet();
        shared.close();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn each_handler_gets_a_thread_and_the_threads_end() {
    check(handlers(Broken::Nothing));
}

#[test]
fn threads_with_a_broken_rule_are_found() {
    must_fail(
        module_path!(),
        "threads_with_a_broken_rule_are_found",
        LOST,
        &[
            ("too few threads", || check(handlers(Broken::CountsOne))),
            ("an uncounted notification", || check(handlers(Broken::Uncounted))),
            ("no notification", || with(Fault::NoNotify, handlers(Broken::Nothing))),
        ],
    );
}
