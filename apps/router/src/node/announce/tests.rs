use proptest::prelude::*;

use ipnet::IpNet;

use super::queue::Queue;
use super::received::Received;
use super::*;
use crate::route::Exit;
use crate::routes::Routes;

const SENDER: Origin = Origin::Node(3);

/// A sender's routes and queue, what a receiver has, and calls that were given up on the way.
struct Pair {
    own: Routes,
    queue: Queue,
    routes: Routes,
    received: Received,
    late: Vec<Vec<u8>>,
    life: u64,
}

impl Pair {
    fn new() -> Pair {
        let mut queue = Queue::default();
        queue.begin();
        Pair {
            own: Routes::new(),
            queue,
            routes: Routes::new(),
            received: Received::default(),
            late: Vec::new(),
            life: 1,
        }
    }

    fn change(&mut self, prefix: u8, port: Option<u8>) {
        let prefix: IpNet = format!("10.{prefix}.0.0/16").parse().expect("a prefix");
        let change = match port {
            Some(port) => {
                let members = vec![(NextHop { node: 3, exit: Exit::Connected(port) }, 1)];
                self.own.announce(SENDER, prefix, &members).expect("room");
                Item::Announce { prefix, members }
            }
            None => {
                self.own.withdraw(SENDER, &prefix);
                Item::Withdraw { prefix }
            }
        };
        self.queue.push(&change);
    }

    fn next_call(&mut self) -> Option<Vec<u8>> {
        let head = CallHead { fingerprint: 0, life: self.life, node: 3, number: Number::default() };
        self.queue.next_call(&self.own, SENDER, &head)
    }

    fn receive(&mut self, call: &[u8]) -> Option<()> {
        let (head, mut items) = postcard::take_from_bytes::<CallHead>(call).ok()?;
        if head.life != self.life || !self.received.accept(head.life, head.number) {
            return None;
        }
        while !items.is_empty() {
            let (item, rest) = postcard::take_from_bytes::<Item>(items).expect("as it was written");
            items = rest;
            if self.received.apply(&mut self.routes, SENDER, item).is_none() {
                self.received.refuse();
                return None;
            }
        }
        Some(())
    }

    fn heartbeat(&mut self) {
        self.queue.tick();
        self.queue.heard(self.received.epoch());
        self.received.sweep(&mut self.routes, SENDER);
    }

    /// Until nothing is to be sent. Returns the calls.
    fn settle(&mut self) -> usize {
        let mut calls = 0;
        for _ in 0..2_000 {
            self.heartbeat();
            while let Some(call) = self.next_call() {
                let done = self.receive(&call).is_some();
                self.queue.done(done);
                calls += 1;
            }
        }
        calls
    }

    fn same(&self) -> bool {
        let list = |routes: &Routes| -> Vec<_> {
            routes.announced(SENDER, None).map(|r| (r.prefix, r.members.to_vec())).collect()
        };
        list(&self.own) == list(&self.routes)
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Change(u8, Option<u8>),
    /// A call arrives.
    Call,
    /// One arrives late, when it counts as failed; with `true` it arrives in time, too.
    Late(bool),
    /// Late ones arrive.
    Arrive,
    Heartbeat,
    /// The receiver takes the sender for dead.
    Death,
    /// The session ends, and there is a new one.
    Session,
    /// The sender starts again, without routes.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..40, prop::option::of(0_u8..4)).prop_map(|(p, port)| Step::Change(p, port)),
        6 => Just(Step::Call),
        2 => any::<bool>().prop_map(Step::Late),
        2 => Just(Step::Arrive),
        4 => Just(Step::Heartbeat),
        1 => Just(Step::Death),
        1 => Just(Step::Session),
        1 => Just(Step::Restart),
    ]
}

fn run(steps: &[Step]) -> Pair {
    let mut pair = Pair::new();
    for step in steps {
        match *step {
            Step::Change(prefix, port) => pair.change(prefix, port),
            Step::Heartbeat => pair.heartbeat(),
            Step::Death => pair.received.died(),
            Step::Session => pair.queue.begin(),
            Step::Restart => {
                pair.own = Routes::new();
                pair.queue = Queue::default();
                pair.queue.begin();
                pair.life += 1;
            }
            Step::Call => {
                if let Some(call) = pair.next_call() {
                    let done = pair.receive(&call).is_some();
                    pair.queue.done(done);
                }
            }
            Step::Late(arrives) => {
                if let Some(call) = pair.next_call() {
                    if arrives {
                        let _ = pair.receive(&call);
                    }
                    pair.late.push(call);
                    pair.queue.done(false);
                }
            }
            Step::Arrive => {
                for call in std::mem::take(&mut pair.late) {
                    let _ = pair.receive(&call);
                }
            }
        }
    }
    pair
}

proptest! {
    #[test]
    fn routes_are_the_same_in_the_end_whatever_happens_to_calls(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut pair = run(&steps);
        pair.settle();
        prop_assert!(pair.same());
        for call in std::mem::take(&mut pair.late) {
            prop_assert!(pair.receive(&call).is_none(), "a late call is refused");
        }
        prop_assert!(pair.same());
    }
}

#[test]
fn a_receiver_that_took_the_sender_for_dead_gets_all_again() {
    let mut pair = run(&[Step::Change(1, Some(0)), Step::Call]);
    assert!(pair.same());
    pair.received.died();
    assert!(!pair.received.sweep(&mut pair.routes, SENDER));
    assert!(!pair.same());
    // The first heartbeat may have been under way when the routes were sent.
    pair.queue.heard(pair.received.epoch());
    assert!(pair.next_call().is_none());
    assert_eq!(pair.settle(), 1);
    assert!(pair.same());
    assert_eq!(pair.settle(), 0, "it knows that the receiver has them");
}

#[test]
fn a_late_call_neither_withdraws_routes_nor_brings_old_ones_back() {
    let mut pair = run(&[Step::Change(1, Some(0)), Step::Call, Step::Change(1, None)]);
    let withdraws = pair.next_call().expect("a change");
    pair.change(1, Some(2));
    pair.queue.done(false);
    pair.settle();
    assert!(pair.same());
    assert!(pair.receive(&withdraws).is_none());
    assert!(pair.same());
}

#[test]
fn a_change_during_a_beginning_is_sent_once() {
    let mut pair = Pair::new();
    for n in 0..=255_u8 {
        pair.change(n, Some(0));
    }
    let hop = [(NextHop { node: 3, exit: Exit::Connected(0) }, 1)];
    for n in 0..600_u32 {
        let prefix = format!("10.{}.{}.0/24", 100 + n / 256, n % 256).parse().expect("a prefix");
        pair.own.announce(SENDER, prefix, &hop).expect("room");
    }
    let first = pair.next_call().expect("some of the routes");
    pair.change(0, Some(1));
    pair.change(255, Some(1));
    pair.change(254, None);
    assert_eq!(pair.queue.changes_waiting(), 1, "others come with the rest of the routes");
    assert!(pair.receive(&first).is_some());
    pair.queue.done(true);
    pair.settle();
    assert!(pair.same());
}

#[test]
fn many_routes_are_withdrawn_in_pieces_after_a_beginning() {
    let mut pair = Pair::new();
    let hop = [(NextHop { node: 3, exit: Exit::Connected(0) }, 1)];
    for n in 0..5_000_u32 {
        let prefix = format!("10.{}.{}.0/24", n >> 8, n & 255).parse().expect("a prefix");
        pair.routes.announce(SENDER, prefix, &hop).expect("room");
    }
    pair.change(7, Some(0));
    let call = pair.next_call().expect("all");
    assert!(pair.receive(&call).is_some());
    assert_eq!(pair.routes.len(), 5_001, "nothing is withdrawn at once");
    assert!(pair.received.sweep(&mut pair.routes, SENDER));
    assert!(pair.routes.len() > 3_900);
    // A route that comes while others are withdrawn stays.
    pair.queue.done(true);
    pair.change(9, Some(0));
    while pair.received.sweep(&mut pair.routes, SENDER) {
        if let Some(call) = pair.next_call() {
            assert!(pair.receive(&call).is_some());
            pair.queue.done(true);
        }
    }
    assert!(pair.same());
}

#[test]
fn calls_that_are_refused_follow_each_other_more_and_more_slowly() {
    let mut pair = Pair::new();
    pair.change(1, Some(0));
    let mut calls = 0;
    for _ in 0..1_000 {
        pair.queue.tick();
        if pair.next_call().is_some() {
            pair.queue.done(false);
            calls += 1;
        }
    }
    assert!((8..20).contains(&calls), "{calls} calls in 1,000 runs of the timer");
    pair.settle();
    assert!(pair.same());
}

#[test]
fn a_call_with_prefixes_of_few_bits_has_few_of_them() {
    let mut pair = Pair::new();
    let hop = [(NextHop { node: 3, exit: Exit::Connected(0) }, 1)];
    for n in 0..64_u32 {
        pair.own
            .announce(SENDER, format!("{}.0.0.0/6", n * 4).parse().expect("one"), &hop)
            .expect("room");
    }
    let calls = std::iter::from_fn(|| {
        let call = pair.next_call();
        pair.queue.done(true);
        call
    });
    assert!(calls.count() > 32);
}
