//! Calls between their futures and the endpoint's thread in every order of threads.

use std::future::poll_fn;
use std::mem::take;
use std::sync::LazyLock;
use std::task::{Poll, Waker};

use courser_buf::{Arena, MsgBuf};
use loom::thread;

use super::*;
use crate::channel::call::{Outcome, Started, Target};
use crate::channel::opening::{Opened, Opening};
use crate::client::Limits;
use crate::client::blocking::block_on;
use crate::error::ClientError;
use crate::service::MethodId;
use crate::sync::model::{Fault, LOST, check, must_fail, with};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The thread takes what was submitted before it clears the flag.
    ClearsLate,
    /// The flag is set before the call is in the queue.
    TellsFirst,
    /// A future looks for its result, and stores its waker afterwards.
    PollsFirst,
    /// A caller that drives leaves without a look at what others have submitted.
    LeavesFirst,
}

fn call() -> Arc<Call> {
    let method = MethodId { service: None, number: 1 };
    let target = Target { link: 0, method, one_way: true, wait_for_ready: false, expires: None };
    static MEMORY: LazyLock<Arena> = LazyLock::new(Arena::heap);
    let request = MEMORY.alloc(8).expect("memory");
    Arc::new(Call::new(target, request, None))
}

/// The thread of an endpoint, until it has started `calls` calls and ended them, or has found that
/// they were dropped. `sends`: the calls are messages, which end when they start.
fn drive(inbox: &Inbox, calls: usize, sends: bool, broken: Broken) {
    let (mut submitted, mut seen) = (Submitted::default(), 0);
    while seen < calls {
        if broken == Broken::ClearsLate {
            std::mem::swap(&mut inbox.lock().submitted, &mut submitted);
            inbox.mailbox.take_submitted();
        } else {
            inbox.take(&mut submitted);
        }
        for open in submitted.opens.drain(..) {
            seen += 1;
            wake(open.opening.finish(Ok(Opened { link: 7, slots: 1 })).unwrap_or_default());
        }
        for call in take(&mut submitted.calls) {
            seen += 1;
            let started =
                call.start(|request| if sends { Ok(None) } else { Err(refused(request)) });
            match started {
                Started::Sent(waker) => wake(waker),
                Started::Refused(_) => wake(call.finish(Err(CallFailure::Stopped))),
                Started::Running | Started::Over => {}
            }
        }
        if seen < calls {
            inbox.mailbox.pass();
        }
    }
}

fn refused(request: MsgBuf) -> crate::error::CallRejected {
    crate::error::CallRejected { reason: courser_proto::RejectReason::NotClient, request }
}

fn wake(waker: Option<Waker>) {
    waker.into_iter().for_each(Waker::wake);
}

fn submit(inbox: &Inbox, call: &Arc<Call>, broken: Broken) {
    if broken == Broken::TellsFirst {
        inbox.mailbox.submitted();
        inbox.lock().submitted.calls.push(call.clone());
    } else {
        inbox.call(call).expect("the thread runs");
    }
}

fn wait(call: &Call, broken: Broken) -> Outcome {
    block_on(poll_fn(|cx| {
        if broken == Broken::PollsFirst && !call.is_done() {
            // The waker is stored too late to be found, and the result is not looked for again.
            loom::thread::yield_now();
            call.poll_late(cx.waker());
            return Poll::Pending;
        }
        call.poll(cx.waker())
    }))
}

/// Each of some threads waits for a call.
fn calls(count: usize, sends: bool, broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let inbox = Arc::new(Inbox::new(Mailbox::modelled()));
        let callers: Vec<_> = (0..count)
            .map(|_| {
                let inbox = inbox.clone();
                thread::spawn(move || {
                    let call = call();
                    submit(&inbox, &call, broken);
                    assert_eq!(wait(&call, broken).is_ok(), sends);
                })
            })
            .collect();
        drive(&inbox, count, sends, broken);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    }
}

/// A future is dropped while its call starts, and another client connects.
fn dropped() {
    let inbox = Arc::new(Inbox::new(Mailbox::modelled()));
    let own = inbox.clone();
    let caller = thread::spawn(move || {
        let call = call();
        submit(&own, &call, Broken::Nothing);
        assert!(call.poll(Waker::noop()).is_pending() || call.is_done());
        own.drop_call(&call);
    });
    let own = inbox.clone();
    let opener = thread::spawn(move || {
        let opening = Arc::new(Opening::default());
        let limits = Limits { sessions: 1, in_flight: 1, wait_for_ready: false };
        let (uri, greetings, wait_for_ready) = ("udp://a".into(), Default::default(), false);
        own.open(Open { uri, limits, greetings, wait_for_ready, opening: opening.clone() })
            .expect("the thread runs");
        let opened: Result<Opened, ClientError> = block_on(poll_fn(|cx| opening.poll(cx.waker())));
        assert_eq!(opened.ok().map(|opened| opened.link), Some(7));
    });
    drive(&inbox, 2, true, Broken::Nothing);
    caller.join().unwrap();
    opener.join().unwrap();
}

/// The thread ends while a call is submitted: the call fails, or it is among the last ones.
fn ending() {
    let inbox = Arc::new(Inbox::new(Mailbox::modelled()));
    let own = inbox.clone();
    let caller = thread::spawn(move || {
        let call = call();
        let submitted = own.call(&call);
        submitted.is_err() || wait(&call, Broken::Nothing).is_err()
    });
    let last = inbox.end(false).expect("the last calls");
    for call in last.calls {
        wake(call.finish(Err(CallFailure::Stopped)));
    }
    assert!(caller.join().unwrap(), "the call has no result");
}

/// Starts what was submitted, and ends it, until this caller has left.
fn visit(inbox: &Inbox, own: Option<&Arc<Call>>, broken: Broken) {
    let send = |call: &Call| match call.start(|_| Ok(None)) {
        Started::Sent(waker) => wake(waker),
        _ => unreachable!("it was submitted once"),
    };
    let mut submitted = Submitted::default();
    if let Some(own) = own {
        send(own);
    }
    loop {
        inbox.take(&mut submitted);
        take(&mut submitted.calls).iter().for_each(|call| send(call));
        match broken {
            Broken::LeavesFirst => return inbox.mailbox.leave_first(),
            _ if inbox.leave() => return,
            _ => {}
        }
    }
}

/// Callers without a thread of the endpoint: one drives, and takes the calls of those that find it
/// there.
fn driving(callers: usize, broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let inbox = Arc::new(Inbox::new(Mailbox::modelled()));
        let call_and_wait = move |inbox: &Inbox| {
            let call = call();
            if inbox.try_drive() {
                visit(inbox, Some(&call), broken);
            } else {
                inbox.call(&call).expect("it runs");
                while inbox.has_submitted() && inbox.try_drive() {
                    visit(inbox, None, broken);
                }
            }
            assert!(wait(&call, Broken::Nothing).is_ok());
        };
        let others: Vec<_> = (1..callers)
            .map(|_| {
                let inbox = inbox.clone();
                thread::spawn(move || call_and_wait(&inbox))
            })
            .collect();
        call_and_wait(&inbox);
        others.into_iter().for_each(|caller| caller.join().unwrap());
    }
}

#[test]
fn a_caller_that_drives_takes_the_calls_of_others_before_it_leaves() {
    check(driving(2, Broken::Nothing));
}

#[test]
fn a_call_reaches_a_sleeping_endpoint_and_its_end_the_caller() {
    check(calls(1, false, Broken::Nothing));
    check(calls(2, true, Broken::Nothing));
}

#[test]
fn a_dropped_call_and_a_connect_reach_a_sleeping_endpoint() {
    check(dropped);
}

#[test]
fn a_call_ends_with_its_endpoint() {
    check(ending);
}

#[test]
fn submissions_with_a_broken_rule_are_found() {
    must_fail(
        module_path!(),
        "submissions_with_a_broken_rule_are_found",
        LOST,
        &[
            ("split flags", || with(Fault::SplitUpdate, calls(1, true, Broken::Nothing))),
            ("a flag that is cleared too late", || check(calls(2, true, Broken::ClearsLate))),
            ("a flag that is set too early", || check(calls(1, true, Broken::TellsFirst))),
            ("a waker that is stored too late", || check(calls(1, true, Broken::PollsFirst))),
            ("a caller that leaves too early", || check(driving(2, Broken::LeavesFirst))),
        ],
    );
}
