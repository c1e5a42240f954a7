//! Threads that take jobs in every order of threads.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::sync::model::{Fault, LOST, check, must_fail, with};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// One thread that is awake counts as enough for any number of jobs.
    CountsOne,
    /// A notification is not counted.
    Uncounted,
}

impl HandOver<u32> {
    /// [`HandOver::push`], with broken rules.
    fn push_broken(&self, job: u32, broken: Broken) {
        if broken == Broken::Nothing {
            return self.push(None, job).expect("room");
        }
        let mut state = self.lock();
        state.queue.push(None, job);
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

/// Two jobs that wait for each other, each on a thread.
fn jobs(broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let (queue, meeting) = (Arc::new(HandOver::new(2)), Meeting::of(3));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (queue, meeting) = (queue.clone(), meeting.clone());
                thread::spawn(move || {
                    while queue.next(|| unreachable!("there are no deadlines")).is_some() {
                        meeting.meet();
                    }
                })
            })
            .collect();
        (0..2).for_each(|job| queue.push_broken(job, broken));
        meeting.meet();
        assert!(queue.close().is_empty() && queue.push(None, 2) == Err(2));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn each_job_gets_a_thread_and_the_threads_end() {
    check(jobs(Broken::Nothing));
}

#[test]
fn threads_with_a_broken_rule_are_found() {
    let test = "threads_with_a_broken_rule_are_found";
    let counts_one: (&str, fn()) = ("too few threads", || check(jobs(Broken::CountsOne)));
    // By the invariant.
    must_fail(module_path!(), test, "1 jobs, 0 searching, 1 asleep", &[counts_one]);
    must_fail(
        module_path!(),
        test,
        LOST,
        &[
            ("an uncounted notification", || check(jobs(Broken::Uncounted))),
            ("no notification", || with(Fault::NoNotify, jobs(Broken::Nothing))),
        ],
    );
}
