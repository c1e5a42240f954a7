//! The pool and its answers, from several threads, also for ThreadSanitizer (`scripts/sanitize.sh
//! tsan`). Time limits are long: they end a hanging test and measure nothing.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::time::{Duration, Instant};

use courser_buf::Arena;
use courser_proto::{RequestId, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::origin::Origin;
use super::pool::{Job, Pool, Registered};
use super::work::{Incoming, Work};
use crate::Nexus;
use crate::control::mailbox::{Answer, AnswerBody, Mailbox};
use crate::core::deadline::Deadline;
use crate::platform::{Clock, Platform};
use crate::tests::in_memory::{connect, endpoints};

const PATIENCE: Duration = Duration::from_secs(60);

/// A request number, which only the protocol can create.
fn some_id() -> RequestId {
    let nexus = Nexus::bind("mem://127.0.0.1:0").unwrap();
    let [mut server, mut client] = endpoints(&nexus);
    let (tell, told) = mpsc::channel();
    server.on(1, move |cx, _| tell.send(cx.request.unwrap()).unwrap());
    let session = connect(&mut client, &mut server, &nexus.local_uri());
    client.call(session, 1, client.alloc(0).unwrap(), |_, _| {}).unwrap();
    loop {
        let _ = (client.poll(), server.poll());
        if let Ok(id) = told.try_recv() {
            return id;
        }
    }
}

/// The part of an endpoint that workers use.
struct End {
    id: RequestId,
    mailbox: Mailbox,
    origin: Arc<Origin>,
}

impl End {
    fn new(id: RequestId) -> Self {
        let mailbox = Mailbox::new(&Platform::System, 0).unwrap();
        let origin = Arc::new(Origin::new(mailbox.clone(), Arena::heap(), Clock::System, 0));
        End { id, mailbox, origin }
    }

    fn handler(&self, run: impl Fn(Work) + Send + Sync + 'static) -> Arc<Registered> {
        Arc::new(Registered { origin: self.origin.clone(), run })
    }

    fn work(&self, number: u32, deadline: Option<Deadline>) -> Work {
        let mut request = self.origin.arena.alloc(4).unwrap();
        request.copy_from_slice(&number.to_le_bytes());
        Work::new(Incoming::Request(self.id), 7, request, deadline, self.origin.clone())
    }

    /// Returns whether the pool accepted the job.
    fn submit(&self, pool: &Pool, handler: &Arc<Registered>, number: u32) -> bool {
        let job = Job { handler: handler.clone(), work: self.work(number, None) };
        pool.submit(job).map_err(|job| job.work.drop_unanswered()).is_ok()
    }

    fn take(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        if self.mailbox.has_mail() {
            self.mailbox.take_all(&mut Vec::new(), &mut answers);
        }
        answers
    }

    /// Waits for one answer.
    fn one(&self) -> AnswerBody {
        loop {
            if let Some(answer) = self.take().pop() {
                return answer.outcome;
            }
            self.sleep();
        }
    }

    /// Sleeps as the event loop does. A lost wake-up fails at the time limit.
    fn sleep(&self) {
        if self.mailbox.fall_asleep() {
            assert!(self.readable(PATIENCE), "a wake-up was lost");
            self.mailbox.wake_up();
        }
    }

    fn readable(&self, timeout: Duration) -> bool {
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(self.mailbox.fd().unwrap(), PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).unwrap() > 0
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(*bytes.first_chunk().unwrap())
}

fn status(outcome: AnswerBody) -> Option<Status> {
    match outcome {
        AnswerBody::Status(s) => Some(s),
        AnswerBody::Response(_) => None,
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

fn echo(mut work: Work) {
    let request = work.take().unwrap();
    work.reply(request);
}

#[test]
fn no_job_and_no_answer_is_lost_between_threads_that_sleep() {
    const ENDPOINTS: u32 = 3;
    const JOBS: u32 = if cfg!(debug_assertions) { 4_000 } else { 20_000 };
    let id = some_id();
    let pool = Pool::new(&Platform::System, 3, 64);
    pool.start().unwrap();
    std::thread::scope(|scope| {
        for endpoint in 0..ENDPOINTS {
            let pool = pool.clone();
            scope.spawn(move || {
                let end = End::new(id);
                let handler = end.handler(echo);
                let mut answered = HashSet::new();
                let mut sent = 0;
                // Windows of different lengths: sometimes the workers sleep, sometimes the
                // endpoints.
                while (answered.len() as u32) < JOBS {
                    let window = 1 + sent % (8 << endpoint);
                    while sent < JOBS && sent - (answered.len() as u32) < window {
                        assert!(end.submit(&pool, &handler, sent), "the queue is not full");
                        sent += 1;
                    }
                    for answer in end.take() {
                        let AnswerBody::Response(m) = answer.outcome else { panic!("{answer:?}") };
                        assert!(answered.insert(number(&m)), "answered twice");
                    }
                    if (answered.len() as u32) < sent {
                        end.sleep();
                    }
                }
            });
        }
    });
    eventually("every handler ends", || pool.stats().finished == u64::from(ENDPOINTS * JOBS));
    let stats = pool.stats();
    assert_eq!((stats.queued, stats.running, stats.refused), (0, 0, 0));
}

#[test]
fn no_job_waits_while_a_worker_sleeps() {
    const THREADS: usize = 4;
    let end = End::new(some_id());
    let pool = Pool::new(&Platform::System, THREADS, 64);
    pool.start().unwrap();
    // Each round needs all workers at once: a worker that is not woken blocks the test.
    let barrier = Arc::new(Barrier::new(THREADS));
    let meet = barrier.clone();
    let handler = end.handler(move |work| {
        meet.wait();
        echo(work);
    });
    for round in 0..300 {
        if round % 3 == 0 {
            // Usually long enough for the workers to fall asleep. The test holds in either case.
            std::thread::sleep(Duration::from_micros(300));
        }
        for n in 0..THREADS as u32 {
            assert!(end.submit(&pool, &handler, n));
        }
        let mut answers = 0;
        while answers < THREADS {
            answers += end.take().len();
            if answers < THREADS {
                end.sleep();
            }
        }
    }
}

#[test]
fn answers_to_a_spinning_endpoint_cost_no_system_call() {
    let end = End::new(some_id());
    end.work(1, None).reply("one");
    assert!(end.mailbox.has_mail() && !end.readable(Duration::ZERO), "it was awake");
    assert!(!end.mailbox.fall_asleep(), "it checks the mailbox before it sleeps");
    end.work(2, None).reply("two");
    assert!(!end.readable(Duration::ZERO), "it is awake again");
    assert_eq!(end.take().len(), 2);

    assert!(end.mailbox.fall_asleep());
    end.work(3, None).reply("three");
    assert!(end.readable(Duration::ZERO), "it slept");
    end.mailbox.wake_up();
    assert_eq!(end.take().len(), 1);
    assert!(!end.readable(Duration::ZERO) && !end.mailbox.has_mail(), "the mailbox is empty");

    // An external event loop may sleep at any time, also on earlier answers.
    end.work(4, None).reply("four");
    end.mailbox.always_signal();
    assert!(end.readable(Duration::ZERO));
    assert_eq!(end.take().len(), 1);
    assert!(!end.readable(Duration::ZERO));
    end.work(5, None).reply("five");
    assert!(end.readable(Duration::ZERO));
}

#[test]
fn a_pass_takes_a_bounded_number_of_answers() {
    let end = End::new(some_id());
    end.mailbox.always_signal();
    (0..150).for_each(|n| end.work(n, None).reply(n.to_le_bytes()));
    let mut seen = Vec::new();
    for expected in [64, 64, 22] {
        assert!(
            end.mailbox.has_mail() && end.readable(Duration::ZERO),
            "the remaining answers are signalled"
        );
        let answers = end.take();
        assert_eq!(answers.len(), expected);
        seen.extend(answers.into_iter().map(|a| match a.outcome {
            AnswerBody::Response(m) => number(&m),
            AnswerBody::Status(s) => panic!("{s:?}"),
        }));
    }
    assert!(seen.into_iter().eq(0..150) && !end.readable(Duration::ZERO));
}

#[test]
fn an_external_event_loop_is_woken_exactly_when_answers_arrive() {
    let end = End::new(some_id());
    end.mailbox.always_signal();
    let pool = Pool::new(&Platform::System, 2, 64);
    pool.start().unwrap();
    let handler = end.handler(echo);
    let mut got = 0;
    for n in 0..2_000 {
        assert!(end.submit(&pool, &handler, n));
        while got <= n as usize {
            assert!(end.readable(PATIENCE), "a wake-up was lost");
            let taken = end.take().len();
            assert!(taken > 0, "woken without an answer");
            got += taken;
        }
        assert!(!end.readable(Duration::ZERO));
    }
}

/// A handler that blocks until the test releases it. `entered` counts the calls.
fn gate(end: &End) -> (Arc<Registered>, Sender<()>, Arc<AtomicUsize>) {
    let (open, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let entered = Arc::new(AtomicUsize::new(0));
    let count = entered.clone();
    let handler = end.handler(move |work| {
        count.fetch_add(1, Ordering::SeqCst);
        // An error means that the test has dropped the sender.
        let _ = wait.lock().unwrap().recv();
        echo(work);
    });
    (handler, open, entered)
}

#[test]
fn a_full_queue_refuses_jobs_and_is_full_reports_it() {
    let end = End::new(some_id());
    let pool = Pool::new(&Platform::System, 1, 2);
    pool.start().unwrap();
    let (handler, open, entered) = gate(&end);
    assert!(end.submit(&pool, &handler, 0));
    eventually("it runs", || entered.load(Ordering::SeqCst) == 1);
    assert!(end.submit(&pool, &handler, 1) && pool.stats().queued < 2);
    assert!(end.submit(&pool, &handler, 2) && pool.stats().queued == 2);
    assert!(!end.submit(&pool, &handler, 3));
    let stats = pool.stats();
    assert_eq!((stats.threads, stats.queued, stats.running, stats.started), (1, 2, 1, 1));
    drop(open);
    eventually("they run", || pool.stats().finished == 3);
    assert!(pool.stats().queued < 2);
}

#[test]
fn an_expired_job_is_answered_and_not_started() {
    let end = End::new(some_id());
    let pool = Pool::new(&Platform::System, 1, 8);
    pool.start().unwrap();
    let handler = end.handler(|_| panic!("the deadline has passed"));
    let now = Instant::now();
    let deadline = Some(Deadline { received: now, expires: now });
    let work = end.work(1, deadline);
    assert_eq!(work.time_left(), Some(Duration::ZERO));
    assert!(pool.submit(Job { handler, work }).is_ok());
    assert_eq!(status(end.one()), Some(Status::DeadlineExceeded));
    let stats = pool.stats();
    assert_eq!((stats.expired, stats.started, stats.panicked), (1, 0, 0));

    // A job with time left is started, and its handler can read that time.
    let handler = end.handler(|work| {
        assert!(work.time_left().is_some_and(|left| left > Duration::from_secs(60)));
        work.reject();
    });
    let work = end.work(2, Some(Deadline { received: now, expires: now + 10 * PATIENCE }));
    assert!(pool.submit(Job { handler, work }).is_ok());
    assert_eq!(status(end.one()), Some(Status::Rejected));
}

#[test]
fn a_panic_affects_neither_the_worker_nor_the_next_job() {
    /// Panics when dropped.
    struct PanicsOnDrop(AtomicBool);
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            assert!(!self.0.load(Ordering::SeqCst), "even this");
        }
    }
    let end = End::new(some_id());
    let pool = Pool::new(&Platform::System, 1, 8);
    pool.start().unwrap();
    let panics_on_drop = PanicsOnDrop(AtomicBool::new(false));
    let handler = end.handler(move |work| match number(&work) {
        0 => panic!("before the answer"),
        1 => {
            work.reply("done");
            panic!("after the answer");
        }
        _ => {
            // The worker is the last owner of the handler, so it drops the captured values.
            panics_on_drop.0.store(true, Ordering::SeqCst);
            drop(work);
        }
    });
    assert!(end.submit(&pool, &handler, 0));
    assert_eq!(status(end.one()), Some(Status::Panicked));
    assert!(end.submit(&pool, &handler, 1));
    assert_eq!(status(end.one()), None, "the answer was sent");
    // The pool counts before the endpoint.
    eventually("it panicked", || pool.stats().panicked == 2 && end.origin.panics() == 2);
    let job = Job { handler, work: end.work(2, None) };
    assert!(pool.submit(job).is_ok());
    assert_eq!(status(end.one()), Some(Status::NoReply));
    eventually("its captures panicked", || pool.stats().panicked == 3);
    assert!(end.submit(&pool, &end.handler(echo), 3));
    assert_eq!(status(end.one()), None, "the worker still runs");
}

#[test]
fn work_is_answered_once_even_if_dropped() {
    let end = End::new(some_id());
    let started = |deadline| {
        let mut work = end.work(1, deadline);
        work.start();
        work
    };
    let mut work = started(None);
    assert_eq!((work.req_type(), work.session(), work.len()), (7, end.id.session(), 4));
    assert_eq!(work.time_left(), None);
    assert!(work.take().is_some() && work.take().is_none() && work.is_empty());
    drop(work);
    assert_eq!(status(end.one()), Some(Status::NoReply));
    let now = Instant::now();
    for (expires, expected) in [(now, Status::Expired), (now + PATIENCE, Status::NoReply)] {
        drop(started(Some(Deadline { received: now, expires })));
        assert_eq!(status(end.one()), Some(expected), "a handler that is dropped late says so");
    }
    drop(end.work(1, None));
    assert_eq!(status(end.one()), Some(Status::NotStarted));
    started(None).reject();
    assert_eq!(status(end.one()), Some(Status::Rejected));
    let work = started(None);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _work = work;
        panic!("on a thread of the application");
    }));
    assert!(panicked.is_err());
    assert_eq!(status(end.one()), Some(Status::Panicked));
    assert!(end.take().is_empty(), "one answer each");
}

#[test]
fn without_memory_the_reply_is_an_error_on_both_sides() {
    let end = End::new(some_id());
    let kept: Vec<_> = std::iter::from_fn(|| end.origin.arena.alloc(64 << 20).ok()).collect();
    assert!(!kept.is_empty());
    let work = end.work(1, None);
    assert!(work.alloc(64 << 20).is_err());
    assert!(work.try_reply(vec![0; 64 << 20]).is_err());
    assert_eq!(status(end.one()), Some(Status::ResponseFailed));
}

#[test]
fn queued_jobs_and_answers_are_dropped_with_their_endpoint() {
    let (end, other) = (End::new(some_id()), End::new(some_id()));
    let pool = Pool::new(&Platform::System, 1, 8);
    pool.start().unwrap();
    let (handler, open, entered) = gate(&end);
    let others = other.handler(echo);
    for n in 0..4 {
        assert!(end.submit(&pool, &handler, n));
        assert!(other.submit(&pool, &others, n));
    }
    eventually("it runs", || entered.load(Ordering::SeqCst) == 1);
    end.work(9, None).reply("in the mailbox");
    end.mailbox.close();
    pool.forget(&end.origin);
    let stats = pool.stats();
    assert_eq!((stats.abandoned, stats.queued, stats.running), (3, 4, 1));
    let arena = end.origin.arena.clone();
    assert_eq!(arena.stats().in_use_buffers, 1, "the running job has its buffer");
    drop((end, handler));
    open.send(()).unwrap();
    eventually("the others' jobs run", || pool.stats().finished == 5);
    eventually("all memory is freed", || arena.stats().in_use_buffers == 0);
    assert_eq!(other.take().len(), 4);
}

#[test]
fn the_pool_closes_with_its_last_clone_without_waiting_for_handlers() {
    let end = End::new(some_id());
    let pool = Pool::new(&Platform::System, 3, 8);
    let alive: Weak<_>;
    {
        let token = Arc::new(());
        alive = Arc::downgrade(&token);
        pool.start().unwrap();
        let (open, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let entered = Arc::new(AtomicBool::new(false));
        let flag = entered.clone();
        let handler = end.handler(move |work| {
            let _token = &token;
            flag.store(true, Ordering::SeqCst);
            let _ = wait.lock().unwrap().recv();
            echo(work);
        });
        assert!(end.submit(&pool, &handler, 0));
        eventually("it runs", || entered.load(Ordering::SeqCst));
        let second = pool.clone();
        drop(pool);
        assert!(
            end.submit(&second, &end.handler(echo), 1),
            "the pool is open while a clone exists"
        );
        eventually("another worker runs it", || second.stats().finished == 1);
        // Does not block, although a handler runs.
        drop(second);
        drop(handler);
        assert!(alive.upgrade().is_some(), "the handler still runs");
        drop(open);
    }
    eventually("the handler and its worker end", || alive.upgrade().is_none());
}

#[test]
fn on_worker_without_workers_returns_an_error() {
    let error = Pool::new(&Platform::System, 0, 8).start().unwrap_err();
    assert!(error.to_string().contains("Config::workers is 0"), "{error}");
}
