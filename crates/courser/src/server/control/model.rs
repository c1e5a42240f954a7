//! The commands to the threads of a server, and the reports of their ends, in every order of threads.

use std::future::poll_fn;

use loom::thread;

use super::*;
use crate::sync::model::{Fault, LOST, block_on, check, must_fail, with};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The threads are woken before the command is there.
    WakesFirst,
    /// A future looks for the report, and stores its waker afterwards.
    PollsFirst,
    /// The thread sleeps after it took mail, without a look at the command.
    SleepsAfterMail,
    /// The tasks that wait are taken before the thread has ended.
    EndsLate,
}

/// The thread of an endpoint, as `Driver::drive`. It ends when it is told to.
fn endpoint(control: &Arc<Control>, broken: Broken) -> thread::JoinHandle<()> {
    let (control, mailbox) = (control.clone(), Mailbox::modelled());
    control.begin(mailbox.clone());
    thread::spawn(move || {
        while control.command() == Command::Run {
            if broken == Broken::SleepsAfterMail {
                mailbox.taken();
                mailbox.sleep();
            } else {
                mailbox.pass();
            }
        }
        if broken == Broken::EndsLate {
            let waker = control.lock().waker.take();
            control.lock().threads -= 1;
            return waker.into_iter().for_each(Waker::wake);
        }
        control.end(Ok(ShutdownReport::default()));
    })
}

fn tell(control: &Control, broken: Broken) {
    if broken == Broken::WakesFirst {
        control.lock().mailboxes.iter().for_each(Mailbox::wake);
        control.command.fetch_max(Command::ShutDown as u8, Ordering::AcqRel);
    } else {
        control.set(Command::ShutDown, Duration::ZERO);
    }
}

fn report(control: &Control, broken: Broken) -> Result<ShutdownReport, ServerError> {
    block_on(poll_fn(|cx| {
        if broken == Broken::PollsFirst && control.lock().threads > 0 {
            control.lock().waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        control.poll(cx.waker())
    }))
}

/// A handle ends a server while its future waits for the report.
fn telling(broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let control = Arc::new(Control::default());
        let endpoint = endpoint(&control, broken);
        let own = control.clone();
        let handle = thread::spawn(move || tell(&own, broken));
        assert!(report(&control, broken).is_ok());
        handle.join().unwrap();
        endpoint.join().unwrap();
    }
}

/// A thread waits for the report, and a task watches the server.
fn waiting() {
    let control = Arc::new(Control::default());
    let endpoint = endpoint(&control, Broken::Nothing);
    let own = control.clone();
    let watching = thread::spawn(move || block_on(Watchman::new(own)));
    tell(&control, Broken::Nothing);
    assert!(control.wait().is_ok());
    watching.join().unwrap();
    endpoint.join().unwrap();
}

/// The runtime drops the task that watches the server.
fn the_runtime_ends() {
    let control = Arc::new(Control::default());
    let endpoint = endpoint(&control, Broken::Nothing);
    let own = control.clone();
    let runtime = thread::spawn(move || {
        let mut watching = Watchman::new(own);
        let polled = Pin::new(&mut watching).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    });
    let result = report(&control, Broken::Nothing);
    assert!(matches!(result, Err(ServerError::RuntimeEnded)));
    runtime.join().unwrap();
    endpoint.join().unwrap();
}

/// One of two endpoints fails, and the other one sleeps.
fn an_endpoint_fails() {
    let control = Arc::new(Control::default());
    let endpoint = endpoint(&control, Broken::Nothing);
    control.begin(Mailbox::modelled());
    let own = control.clone();
    let failing = thread::spawn(move || own.end(Err(ServerError::RuntimeEnded)));
    assert!(report(&control, Broken::Nothing).is_err());
    failing.join().unwrap();
    endpoint.join().unwrap();
}

#[test]
fn a_server_ends_when_it_is_told_to_and_reports_it() {
    check(telling(Broken::Nothing));
    check(waiting);
}

#[test]
fn a_server_ends_with_its_runtime_or_after_an_error() {
    check(the_runtime_ends);
    check(an_endpoint_fails);
}

#[test]
fn a_server_with_a_broken_rule_is_found() {
    must_fail(
        module_path!(),
        "a_server_with_a_broken_rule_is_found",
        LOST,
        &[
            ("a wake-up too early", || check(telling(Broken::WakesFirst))),
            ("a command that is not looked at", || check(telling(Broken::SleepsAfterMail))),
            ("a waker that is stored too late", || check(telling(Broken::PollsFirst))),
            ("a thread that ends after its report", || check(telling(Broken::EndsLate))),
            ("no notification", || with(Fault::NoNotify, waiting)),
        ],
    );
}
