//! The mailbox and its sleeping endpoint in every order of threads.

use std::io;
use std::os::fd::BorrowedFd;

use loom::thread;

use super::*;
use crate::error::control::LostReason;
use crate::sync::Condvar;
use crate::sync::model::{Fault, LOST, News, check, must_fail, with};

/// The descriptor that an event loop sleeps on.
pub(super) struct Descriptor {
    readable: Mutex<bool>,
    raised: Condvar,
}

impl Descriptor {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Descriptor { readable: Mutex::new(false), raised: Condvar::new() })
    }

    pub(super) fn raise(&self) {
        let before = std::mem::replace(&mut *self.readable.lock().unwrap(), true);
        assert!(!before, "a needless system call");
        self.raised.notify_all();
    }

    pub(super) fn lower(&self) {
        let before = std::mem::replace(&mut *self.readable.lock().unwrap(), false);
        assert!(before, "the thread would block");
    }

    fn wait(&self) {
        let mut readable = self.readable.lock().unwrap();
        while !*readable {
            readable = self.raised.wait(readable).unwrap();
        }
    }

    #[expect(clippy::unused_self, reason = "as that of an eventfd")]
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("a model waits without system calls")
    }
}

impl Mailbox {
    pub(crate) fn modelled() -> Self {
        Mailbox::new(&Platform::System, 0).expect("descriptors")
    }

    fn wait(&self) {
        if let Wake::Fd(descriptor) = &self.shared.wake {
            descriptor.wait();
        }
    }

    /// As `Rpc::sleep`.
    pub(crate) fn sleep(&self) {
        if self.fall_asleep() {
            self.wait();
            self.wake_up();
        }
    }

    /// As `Rpc::pass`: takes mail, or else sleeps.
    pub(crate) fn pass(&self) {
        if self.has_mail() {
            self.taken();
        } else {
            self.sleep();
        }
    }

    /// The mail in the mailbox, as an endpoint takes it.
    pub(crate) fn taken(&self) -> usize {
        let mut mail = Vec::new();
        if self.has_mail() {
            self.take(&mut mail);
        }
        mail.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The endpoint checks for mail before it declares that it sleeps, and not after.
    ChecksFirst,
    /// A thread wakes the endpoint before it has set what the endpoint is to see.
    WakesFirst,
    /// An external event loop does not declare that it may sleep.
    Undeclared,
}

/// A thread sets something and wakes the endpoint if it sleeps, and another one posts `mail`.
fn sleeping(mail: usize, broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let (mailbox, news) = (Mailbox::modelled(), Arc::new(News::default()));
        let to = mailbox.clone();
        if mail > 0 {
            thread::spawn(move || {
                for control in 0..mail as u64 {
                    to.post(Mail::Lost { control, reason: LostReason::Closed });
                }
            });
        }
        tell(&mailbox, &news, broken);
        let mut taken = 0;
        loop {
            taken += mailbox.taken();
            if taken == mail && news.is_set() {
                return;
            }
            if broken != Broken::ChecksFirst {
                mailbox.sleep();
            } else if !mailbox.has_mail() {
                mailbox.fall_asleep();
                mailbox.wait();
                mailbox.wake_up();
            }
        }
    }
}

/// Another thread sets something and wakes the endpoint if it sleeps.
fn tell(mailbox: &Mailbox, news: &Arc<News>, broken: Broken) {
    let (mailbox, news) = (mailbox.clone(), news.clone());
    thread::spawn(move || {
        if broken == Broken::WakesFirst {
            mailbox.wake_sleeper();
        }
        news.set();
        if broken != Broken::WakesFirst {
            mailbox.wake_sleeper();
        }
    });
}

/// A loop of the application sleeps on the descriptor, from some time on.
fn external(broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let (mailbox, news) = (Mailbox::modelled(), Arc::new(News::default()));
        tell(&mailbox, &news, broken);
        if broken != Broken::Undeclared {
            mailbox.always_signal();
        }
        while !news.is_set() {
            mailbox.wait();
            mailbox.taken();
        }
    }
}

#[test]
fn an_endpoint_that_falls_asleep_is_woken() {
    check(sleeping(2, Broken::Nothing));
}

#[test]
fn an_external_event_loop_is_woken() {
    check(external(Broken::Nothing));
}

#[test]
fn a_mailbox_with_a_broken_rule_is_found() {
    must_fail(
        module_path!(),
        "a_mailbox_with_a_broken_rule_is_found",
        LOST,
        &[
            ("split flags", || with(Fault::SplitUpdate, sleeping(0, Broken::Nothing))),
            ("mail is looked for too early", || check(sleeping(0, Broken::ChecksFirst))),
            ("a wake-up too early", || check(sleeping(0, Broken::WakesFirst))),
            ("an event loop that is not known", || check(external(Broken::Undeclared))),
            ("no signal", || with(Fault::NoNotify, external(Broken::Nothing))),
        ],
    );
}
