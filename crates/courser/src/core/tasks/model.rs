//! Wakers of tasks that other threads call while the endpoint sleeps, in every order of threads.

use loom::thread;

use super::*;
use crate::sync::model::{Fault, LOST, News, check, must_fail, with};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The mark of a task in the list is removed by a store.
    Stores,
    /// The mark is removed after the poll.
    UnmarksLate,
    /// The flag is set before the task is in the list.
    TellsFirst,
}

/// A waker that the endpoint does not see in time, as it was called too early.
fn wake(waker: &Arc<SlotWaker>, broken: Broken) {
    if broken != Broken::TellsFirst {
        return waker.wake_by_ref();
    }
    if !waker.queued.swap(true, Ordering::AcqRel) {
        waker.woken.any.store(true, Ordering::Release);
        waker.woken.mailbox.wake_sleeper();
        waker.woken.slots.lock().unwrap().push(waker.slot);
    }
}

/// [`Tasks::collect_woken`], with broken rules.
fn collect(tasks: &mut Tasks, broken: Broken) {
    if matches!(broken, Broken::Nothing | Broken::TellsFirst) {
        return tasks.collect_woken();
    }
    if !tasks.woken.any.swap(false, Ordering::AcqRel) {
        return;
    }
    let slots = std::mem::take(&mut *tasks.woken.slots.lock().unwrap());
    for at in slots {
        if broken == Broken::Stores {
            tasks.slots[at as usize].shared.queued.store(false, Ordering::Release);
        }
        tasks.make_ready(at);
    }
}

/// Two threads set something each, and wake the task that waits for both.
fn waking(broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let mailbox = Mailbox::modelled();
        let mut tasks = Tasks::new(mailbox.clone(), LocalQueue::default(), 1);
        let at = tasks.next_slot();
        let news: [Arc<News>; 2] = Default::default();
        for news in &news {
            let (news, waker) = (news.clone(), tasks.slots[at as usize].shared.clone());
            thread::spawn(move || {
                news.set();
                wake(&waker, broken);
            });
        }
        tasks.make_ready(at);
        // As an iteration of the event loop, and its sleep.
        loop {
            if mailbox.has_mail() {
                mailbox.taken();
                collect(&mut tasks, broken);
            }
            if let Some(at) = tasks.ready.pop_front() {
                tasks.slots[at as usize].ready = false;
                if news.iter().all(|news| news.is_set()) {
                    return;
                }
                if broken == Broken::UnmarksLate {
                    tasks.slots[at as usize].shared.queued.swap(false, Ordering::AcqRel);
                }
            } else {
                mailbox.sleep();
            }
        }
    }
}

#[test]
fn a_task_is_polled_after_each_wake_up_of_another_thread() {
    check(waking(Broken::Nothing));
}

#[test]
fn a_waker_with_a_broken_rule_is_found() {
    must_fail(
        module_path!(),
        "a_waker_with_a_broken_rule_is_found",
        LOST,
        &[
            ("split flags", || with(Fault::SplitUpdate, waking(Broken::Nothing))),
            ("a mark that is overwritten", || check(waking(Broken::Stores))),
            ("a mark that is removed too late", || check(waking(Broken::UnmarksLate))),
            ("a flag that is set too early", || check(waking(Broken::TellsFirst))),
        ],
    );
}
