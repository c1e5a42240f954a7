//! Each planted bug is found by a small swarm: seeded worlds with all faults of the link, cancelled
//! calls, a blackout, and a peer that vanishes at the end. The message of the failed check
//! identifies the bug.

#![allow(unreachable_pub)] // `support` is a module here, and of another program too

#[allow(unused_imports)] // this program uses a part
#[path = "protocol/support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use courser_proto::mutant::{Mutant, plant};
use courser_proto::wire::Packet;
use courser_proto::{
    Beat, CallError, Config, Control, EndpointStats, Executed, Factors, Heartbeat, Integrity,
    Recovery, ReplyError, RxDrop, SessionId, Status,
};
use support::forge::{frame, packets};
use support::{Action, DPP, Done, Forge, Link, Node, Rng, World, config, pattern};

const SEEDS: u64 = 300;
const CALLS: u16 = 40;
const MS: u64 = 1_000_000;
/// A call that ends this long after its deadline is too late.
const SLACK_NS: u64 = MS;
/// When the faults stop, and when every call must have ended.
const CALM_NS: u64 = 50 * MS;
const END_NS: u64 = CALM_NS + 500 * MS;

fn some_config(rng: &mut Rng) -> Config {
    Config {
        slots: rng.pick(&[1, 2, 8, 16]),
        credits: rng.pick(&[1, 2, 8, 32]),
        rx_queue_frames: rng.pick(&[2, 8, 64, 1024]),
        rx_queue_per_peer: rng.below(2) != 0,
        train_frames: rng.pick(&[1, 4, 64]),
        inline_max: rng.pick(&[0, 512, 2048]),
        ..config()
    }
}

fn some_link(rng: &mut Rng) -> Link {
    Link {
        loss: rng.pick(&[0, 1_000, 50_000, 200_000]),
        duplicate: rng.pick(&[0, 20_000, 200_000]),
        reorder: rng.pick(&[0, 20_000, 200_000]),
        corrupt: 0,
        flip: 0,
        latency_ns: rng.pick(&[1_000, 30_000]),
        late_ns: rng.pick(&[2_000, 200_000]),
        hold: rng.below(2) == 0,
    }
}

/// The size of a message, known to both sides.
fn size(of: u64) -> usize {
    let mut rng = Rng(of);
    match rng.below(2) {
        0 => rng.below(40) as usize,
        _ => rng.below(12 * DPP as u64) as usize,
    }
}

fn answer(id: u64) -> Vec<u8> {
    pattern(0xa000_0000 | id, size(0xbeef ^ id))
}

/// The calls of a world in the order of their ends.
struct Calls {
    world: World,
    done: Vec<Done>,
}

impl Calls {
    /// Steps until the world is in the wanted state.
    fn step_while(&mut self, wanted: impl Fn(&World, &[Done]) -> bool) {
        while wanted(&self.world, &self.done) {
            assert!(self.world.now_ns < END_NS, "calls hang: {} of {CALLS} ended", self.done.len());
            assert!(self.world.step(), "nothing is left to happen: {} ended", self.done.len());
            for node in 0..2 {
                let ended = self.world.take_done(node);
                for d in &ended {
                    let due_ns = self.world.nodes[node].deadlines.get(&(d.id as u16));
                    let late = due_ns.is_some_and(|due_ns| self.world.now_ns > due_ns + SLACK_NS);
                    assert!(!late, "call {} ended after its deadline", d.id);
                }
                self.done.extend(ended);
            }
        }
    }

    /// Runs for this long, or until none of the `made` calls is in flight: the next event may be
    /// far ahead.
    fn run_for(&mut self, ns: u64, made: u16) {
        let until_ns = self.world.now_ns + ns;
        self.step_while(|w, done| w.now_ns < until_ns && done.len() < made.into());
    }

    /// Each call's statement about its execution is true, and no handler has started after its
    /// client's deadline.
    fn check(&self) {
        let [a, b] = &self.world.nodes[..] else { panic!("two nodes") };
        for (client, server) in [(a, b), (b, a)] {
            for (id, started_ns, _) in &server.started {
                let due_ns = client.deadlines.get(id).copied().unwrap_or(u64::MAX);
                assert!(*started_ns < due_ns, "call {id} was begun at {started_ns}, due {due_ns}");
            }
        }
        for d in &self.done {
            let by = |n: &Node| n.executed.get(&(d.id as u16)).copied();
            let times: u32 = self.world.nodes.iter().filter_map(by).sum();
            assert!(times <= 1, "call {} was executed {times} times", d.id);
            let known = match &d.result {
                Ok(got) => {
                    assert!(*got == answer(d.id), "call {}: a wrong response", d.id);
                    Executed::Yes
                }
                Err(CallError::DeadlineExceeded(known) | CallError::Cancelled(known)) => *known,
                Err(e) => panic!("call {} failed though the network is whole: {e}", d.id),
            };
            let so = [Executed::Maybe, if times == 1 { Executed::Yes } else { Executed::Never }];
            assert!(so.contains(&known), "call {}: {known:?}, but it ran {times} times", d.id);
        }
    }
}

/// Random bits of a session, some of whose slots reach the last request number soon.
fn near_the_wrap(rng: &mut Rng) -> u64 {
    let first = 0u32.wrapping_sub(rng.pick(&[0, 1, 16, 32]));
    u64::from(first) << 32 | rng.next() >> 32
}

/// Both sides sample round trips, which exact deadlines require.
fn warm(w: &mut World, sessions: &[(usize, SessionId)]) {
    for id in 60_000..60_003 {
        for &(node, s) in sessions {
            w.call(node, s, id, 10);
            w.finish(node, 1);
        }
    }
}

/// A packet lost in the middle of a message costs no timeout: later packets reveal the loss.
fn a_loss_is_found_early(seed: u64) {
    let mut rng = Rng(seed);
    let recovery = Recovery::Selective;
    let mut w = World::new(&[0, 1].map(|_| Config { recovery, ..config() }), seed);
    let s = w.connect(0, 1);
    warm(&mut w, &[(0, s)]);
    let (mut at, lost) = (0, rng.below(20));
    w.filter = Some(Box::new(move |from, frame| {
        let is_part = from == 0 && packets(frame).any(|p| matches!(p, Packet::Request { .. }));
        at += u64::from(is_part);
        !is_part || at != lost + 1
    }));
    w.call(0, s, 1, 60 * DPP);
    assert!(w.finish(0, 1)[0].result.is_ok());
    let stats = w.ep(0).stats();
    let timeouts = stats.rollbacks + stats.probes;
    assert_eq!((timeouts, stats.retransmitted), (0, 1), "timeouts after a single loss");
}

/// A reply to a request of an ended session is rejected, although the next session has its table
/// entry and a request of the same number.
fn a_number_that_is_used_again_is_another(seed: u64) {
    let mut rng = Rng(seed);
    let mut w = World::pair(some_config(&mut rng));
    let others = w.connect(0, 1); // keeps their peer
    let (first, calls) = (near_the_wrap(&mut rng), 1 + rng.below(20) as u16);
    let mut old = Vec::new();
    for session in 0..3 {
        let (s, accept) = w.try_connect(0, 1, first).expect("connect");
        for id in 0..calls {
            w.call(0, s, id, 10);
            w.finish(0, 1);
        }
        w.nodes[1].handler = Box::new(|_, req| Action::Defer(MS, req.to_vec()));
        w.call(0, s, calls, 10);
        w.settle_until_idle_link();
        w.nodes[1].handler = Box::new(|_, req| Action::Reply(req.to_vec()));
        for &id in &old {
            let answered = w.ep(1).reply_bytes(id, b"late");
            let gone = matches!(answered, Err(ReplyError::Gone));
            assert!(gone, "session {session}: an answer for the one before was taken");
        }
        w.settle();
        assert_eq!(w.take_done(0).len(), 1);
        old.append(&mut w.nodes[1].requests);
        w.ep(0).close(s).expect("it stood");
        w.ep(1).disconnected(accept.session, 0xe0, 7);
        w.sessions.retain(|&(_, at)| at != s);
    }
    assert_eq!(w.ep(1).live_sessions(), 1, "{others:?}");
}

/// Large messages of several clients to one server, and its large responses, over links without
/// faults: hardly anything is sent twice, nothing waits for timeouts, and the budget has what
/// arrives. Receive queues of a few frames make grants rare.
fn a_crowd_shares_a_server(seed: u64) {
    let mut rng = Rng(seed);
    let recovery = Recovery::Selective;
    let control = rng.pick(&[Control::TwoWindow, Control::Timely]);
    // Timely without its bypass paces every packet, here over 300 ns.
    let factors = Factors { pacing_bypass: control == Control::TwoWindow, ..Factors::default() };
    let rx_queue_frames = rng.pick(&[8, 64, 1024]);
    let cfg = Config { control, factors, recovery, rx_queue_frames, slots: 16, ..config() };
    let mut w = World::new(&[cfg.clone(), cfg.clone(), cfg.clone(), cfg], seed);
    w.nodes[0].handler = Box::new(|_, _| Action::ReplyMsg(pattern(1, 30 * DPP)));
    let sessions: Vec<_> = (1..4).map(|client| (client, w.connect(client, 0))).collect();
    warm(&mut w, &sessions);
    let lens: Vec<usize> = (0..45).map(|_| rng.below(200 * DPP as u64) as usize).collect();
    let begin_ns = w.now_ns;
    for (id, &len) in (0..).zip(&lens) {
        let (client, s) = sessions[usize::from(id) % 3];
        w.call(client, s, id, len);
    }
    while w.nodes[1..].iter().any(|n| n.done.len() < 15) {
        assert!(w.now_ns < begin_ns + 20 * MS, "calls wait for grants");
        assert!(w.step(), "nothing is left to happen");
    }
    for client in 1..4 {
        assert!(w.take_done(client).iter().all(|d| d.result.is_ok()));
    }
    let sum = |of: fn(&EndpointStats) -> u64| w.nodes.iter().map(|n| of(n.ep.stats())).sum::<u64>();
    let (again, duplicates) = (sum(|s| s.retransmitted), sum(|s| s.dropped(RxDrop::Duplicate)));
    if control == Control::Timely {
        assert_eq!((again, duplicates), (0, 0), "a packet that was sent twice");
    }
    // Clients that do not know yet how long grants take probe for them.
    assert!(again <= 100, "{again} packets sent again for grants");
}

/// After a loss the window is halved; it is as large as before after enough calls without a loss.
fn a_window_recovers(seed: u64) {
    let mut rng = Rng(seed);
    let (recovery, control) = (Recovery::Selective, Control::TwoWindow);
    let mut w = World::new(&[0, 1].map(|_| Config { control, recovery, ..config() }), seed);
    let s = w.connect(0, 1);
    warm(&mut w, &[(0, s)]);
    // Behind the first packets, of which the last one would be found lost by a probe.
    let (mut at, lost) = (0, 8 + rng.below(20));
    w.filter = Some(Box::new(move |from, frame| {
        let is_part = from == 0 && packets(frame).any(|p| matches!(p, Packet::Request { .. }));
        at += u64::from(is_part);
        !is_part || at != lost + 1
    }));
    w.call(0, s, 1, 40 * DPP);
    w.finish(0, 1);
    let decreased = w.ep(0).session_stats(s).expect("a session").decreases;
    assert!(decreased > 0, "a loss is no signal");
    for id in 2..30 {
        w.call(0, s, id, 60 * DPP);
        w.finish(0, 1);
    }
    let window = w.ep(0).session_stats(s).expect("a session").window;
    assert_eq!(window, None, "the window has not recovered");
}

/// Bits flip on the way, and no request, response or header is taken with another value.
fn changed_frames_are_dropped(seed: u64) {
    let mut w = World::new(&[config(), config()], seed);
    w.integrity = Integrity::Crc;
    w.nodes[1].handler = Box::new(|id, request| {
        let as_sent = *request == pattern(id.into(), request.len());
        assert!(as_sent, "a changed frame was accepted: request {id}");
        Action::Reply(pattern(id.into(), 3 * DPP))
    });
    let s = w.connect(0, 1);
    w.link.flip = 100_000;
    for id in 0..10 {
        w.call(0, s, id, 3 * DPP);
        let result = &w.finish(0, 1)[0].result;
        let as_sent = *result == Ok(pattern(id.into(), 3 * DPP));
        assert!(as_sent, "a changed frame was accepted: response {id}");
    }
}

/// A frame whose check value differs in any one bit is dropped.
fn nearly_right_frames_are_dropped(seed: u64) {
    let mut w = World::new(&[config(), config()], seed);
    w.integrity = Integrity::Crc;
    let s = w.connect(0, 1);
    w.call(0, s, 0, 100);
    let sent = w.nodes[0].transmit(w.now_ns, false, false);
    let (_, bytes) = &sent[0];
    for bit in 0..32 {
        let mut bytes = bytes.clone();
        bytes[4 + bit / 8] ^= 1 << (bit % 8);
        w.deliver_only(0, 1, &bytes);
        let accepted = w.ep(1).stats().rx_frames_accepted;
        assert_eq!(accepted, 0, "a changed frame was accepted: bit {bit} of the check value");
    }
}

/// Packets of any size in flight take no more room than the receiver has granted.
fn room_is_counted_by_size(seed: u64) {
    let mut rng = Rng(seed);
    let small_data = 100;
    let cfg = Config {
        rx_queue_frames: 16,
        rx_queue_small_frames: 256,
        small_data,
        rx_queue_per_peer: false,
        credits: 64,
        slots: 32,
        ..config()
    };
    let mut w = World::new(&[cfg.clone(), cfg], seed);
    let s = w.connect(0, 1);
    for id in 0..32 {
        w.call(0, s, id, rng.pick(&[10, 4 * DPP]));
    }
    let sent = w.nodes[0].transmit(w.now_ns, false, false);
    let units = |bytes: &[u8]| match bytes.len() {
        0..=300 => 1,
        _ => 16,
    };
    let all: u32 = sent.iter().map(|(_, bytes)| units(bytes)).sum();
    assert!(all <= 256, "{all} units in flight, and the receiver has room for 256");
}

/// Only a call that the server has refused for lack of memory is made again.
fn a_call_that_failed_has_run_once(seed: u64) {
    let mut w = World::new(&[config(), config()], seed);
    w.nodes[1].handler = Box::new(|_, _| Action::Status(Status::Rejected));
    let s = w.connect(0, 1);
    w.call(0, s, 0, 3 * DPP);
    w.run_until(w.now_ns + 10 * MS);
    let times = w.nodes[1].executed[&0];
    assert!(times == 1, "a call that failed was executed {times} times");
}

fn run(seed: u64) {
    let mut rng = Rng(seed);
    let configs = [some_config(&mut rng), some_config(&mut rng)];
    let mut world = World::new(&configs, seed);
    let link = some_link(&mut rng);
    for node in &mut world.nodes {
        let mut rng = rng.clone();
        node.handler = Box::new(move |id, req| {
            assert!(req == pattern(id.into(), req.len()), "request {id} arrived changed");
            match rng.below(4) {
                0 => Action::Defer(rng.below(3 * MS), answer(id.into())),
                1 => Action::ReplyMsg(answer(id.into())),
                _ => Action::Reply(answer(id.into())),
            }
        });
    }
    let first = near_the_wrap(&mut rng);
    let (there, accept) = world.try_connect(0, 1, first).expect("connect");
    let forge = Forge::new(accept);
    let back = world.try_connect(1, 0, near_the_wrap(&mut rng)).expect("connect").0;
    // Two of them share their peer's credits.
    let sessions = [(0, there), (1, back), (0, world.connect(0, 1))];
    warm(&mut world, &sessions);
    world.link = link;
    let mut calls = Calls { world, done: Vec::new() };
    let blackout = rng.below(u64::from(CALLS) - 4) as u16;
    for id in 0..CALLS {
        let (node, s) = rng.pick(&sessions);
        let len = size(u64::from(id) ^ 0x5555);
        let dark = (blackout..blackout + 4).contains(&id);
        calls.world.link.loss = if dark { 1_000_000 } else { link.loss };
        let call = match rng.below(3) {
            0 => calls.world.call_within(node, s, id, len, 100_000 + rng.below(2 * MS)),
            _ => calls.world.call(node, s, id, len),
        };
        let ns = if id == blackout + 3 { 3 * MS } else { rng.below(200_000) };
        calls.run_for(ns, id + 1);
        if rng.below(10) == 0 {
            calls.world.ep(node).cancel(call);
        }
    }
    calls.run_for(CALM_NS.saturating_sub(calls.world.now_ns), CALLS);
    calls.world.link = Link { hold: link.hold, ..Link::perfect() };
    calls.step_while(|_, done| done.len() < CALLS.into());
    calls.world.settle();
    calls.check();
    let Calls { mut world, done } = calls;
    drop(done); // with its buffers
    rests(&mut world);
    the_door_is_shut(&mut world, forge);
    vanish(world, &sessions, &mut rng);
    a_loss_is_found_early(seed);
    a_crowd_shares_a_server(seed);
    a_window_recovers(seed);
    a_number_that_is_used_again_is_another(seed);
    changed_frames_are_dropped(seed);
    a_call_that_failed_has_run_once(seed);
    nearly_right_frames_are_dropped(seed);
    room_is_counted_by_size(seed);
    if seed.is_multiple_of(4) {
        support::messages_arrive(seed);
    }
}

/// Nothing is in flight, waiting, or stored.
fn rests(w: &mut World) {
    for (client, server) in [(0, 1), (1, 0)] {
        // Over the control connection: the acknowledgements may have been lost (ADR 6).
        while let Some(idle) = w.ep(client).poll_idle() {
            w.ep(server).on_idle(idle.remote, 0xe0 + client as u64, 7, &idle.done);
        }
    }
    for n in &w.nodes {
        assert!(n.ep.is_quiet() && n.given.is_empty(), "something is under way");
        assert_eq!(n.ep.memory().held_bytes, 0, "a message is stored");
        assert!(n.ep.stats().max_in_flight <= n.ep.config().credits, "in flight beyond C (E33)");
    }
    for (node, s) in w.sessions.clone() {
        let s = w.ep(node).session_stats(s).expect("a session");
        assert_eq!((s.credits, s.quarantined), (s.credit_limit, 0), "credits, quarantined slots");
    }
}

/// A frame with the cookie of an earlier incarnation is not accepted (ADR 14).
fn the_door_is_shut(w: &mut World, mut forge: Forge) {
    let mut header = forge.header(1);
    header.cookie ^= 1;
    let (session, before) = (forge.accept.session.number, w.ep(1).stats().rx_frames_accepted);
    w.inject(0, 1, &frame(&header, &[Packet::Ack { session, req_num: 0 }]));
    assert_eq!(w.ep(1).stats().rx_frames_accepted, before, "a stale cookie was accepted");
}

/// Nothing arrives any more; both sides detect it, and keep no state.
fn vanish(mut w: World, sessions: &[(usize, SessionId)], rng: &mut Rng) {
    w.filter = Some(Box::new(|_, _| false));
    for id in CALLS..CALLS + 12 {
        let &(node, s) = &sessions[rng.below(2) as usize];
        w.call(node, s, id, size(id.into()));
    }
    let (mut heartbeat, start_ns) = (Heartbeat::new(10 * MS, w.now_ns), w.now_ns);
    w.now_ns = loop {
        match heartbeat.poll(w.now_ns) {
            Beat::Dead => break w.now_ns,
            Beat::Wait(at_ns) => w.run_until(at_ns),
            Beat::Ping => {}
        }
        assert!(w.now_ns < start_ns + 20 * MS, "a silent peer was not given up");
    };
    for n in &mut w.nodes {
        n.ep.peer_lost(7, &mut Vec::new());
        n.collect();
        assert!(n.given.is_empty(), "a call of a lost session did not complete");
        assert_eq!(n.ep.live_sessions(), 0, "leaked sessions");
    }
    let arenas: Vec<_> = w.nodes.iter().map(|n| n.arena.clone()).collect();
    w.nodes.iter_mut().for_each(Node::flush);
    w.nodes.clear();
    assert!(arenas.iter().all(|a| a.stats().in_use_bytes == 0), "leaked buffers");
}

/// Some seed finds the bug, by the expected check.
fn find(bug: Mutant, want: &str) {
    plant(Some(bug));
    let fails = |seed| catch_unwind(AssertUnwindSafe(|| run(seed))).err();
    let mut others = Vec::new();
    let found = (0..SEEDS).any(|seed| {
        let Some(cause) = fails(seed) else { return false };
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|&s| s.into()));
        let text = text.unwrap_or_default();
        let found = text.contains(want);
        others.push((seed, text));
        found
    });
    plant(None);
    assert!(found, "{bug} was not found by {want:?}, but: {others:?}");
}

#[test]
fn no_check_fails_without_a_bug() {
    plant(None);
    for seed in 0..SEEDS {
        if let Err(cause) = catch_unwind(|| run(seed)) {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(cause);
        }
    }
}

/// Bugs that the simulator finds: of a budget that many senders use while some are silent, and of
/// futures, which are in the crate `courser`.
const ELSEWHERE: [Mutant; 6] = [
    Mutant::LostPacketsGranted,
    Mutant::DroppedEntryKept,
    Mutant::FutureNotWoken,
    Mutant::NewestGrantedFirst,
    Mutant::QueueEightfold,
    Mutant::GrantWaitIgnored,
];

/// One test for each bug, each on a thread of its own with its own planted bug.
macro_rules! found {
    ($($test:ident: $bug:ident by $want:literal,)*) => {
        $(#[test] fn $test() { find(Mutant::$bug, $want) })*

        #[test]
        fn every_bug_has_its_test() {
            let tested = [$(Mutant::$bug),*];
            assert!(tested.iter().chain(&ELSEWHERE).copied().eq(Mutant::ALL));
        }
    };
}

found! {
    answered_runs_again: AnsweredRunsAgain by "was executed 2 times",
    executing_runs_again: ExecutingRunsAgain by "was executed 2 times",
    credit_return_ignored: CreditReturnIgnored by "invariant 1",
    credits_lost_in_rollback: CreditsLostInRollback by "invariant 1",
    credit_given_twice: CreditGivenTwice by "invariant 1",
    buffer_returned_early: BufferReturnedEarly by "request buffer still referenced (E24)",
    cookie_ignored: CookieIgnored by "a stale cookie was accepted",
    old_answer_taken: OldAnswerTaken by "a wrong response",
    request_gap_taken: RequestGapTaken by "arrived changed",
    response_gap_taken: ResponseGapTaken by "a wrong response",
    no_quarantine: NoQuarantine by "failed though the network is whole",
    orphan_kept: OrphanKept by "leaked sessions",
    waiting_calls_forgotten: WaitingCallsForgotten by "did not complete",
    rfr_not_repeated: RfrNotRepeated by "calls hang",
    response_not_resent: ResponseNotResent by "failed though the network is whole",
    deadline_ignored: DeadlineIgnored by "ended after its deadline",
    peer_never_dead: PeerNeverDead by "a silent peer was not given up",
    response_unasked: ResponseUnasked by "more than it was asked for (E39)",
    stored_response_kept: StoredResponseKept by "Stored::None",
    claims_never_executed: ClaimsNeverExecuted by "Never, but it ran 1 times",
    pool_forgotten: PoolForgotten by ": the pool",
    age_forgotten: AgeForgotten by "was begun at",
    wrap_forgotten: WrapForgotten by "failed though the network is whole",
    loss_found_late: LossFoundLate by "timeouts after a single loss",
    generation_ignored: GenerationIgnored by "an answer for the one before was taken",
    grant_forgotten: GrantForgotten by "calls wait for grants",
    window_never_recovers: WindowNeverRecovers by "the window has not recovered",
    budget_leaks: BudgetLeaks by "messages of the budget that do not arrive",
    paced_twice: PacedTwice by "a packet that was sent twice",
    checksum_ignored: ChecksumIgnored by "a changed frame was accepted",
    message_twice: MessageTwice by "was delivered 2 times",
    stale_message: StaleMessage by ", after ",
    lost_message_forgotten: LostMessageForgotten by "was never delivered",
    newest_message_first: NewestMessageFirst by "messages arrived out of order",
    ran_made_again: RanMadeAgain by "a call that failed was executed",
    checksum_halved: ChecksumHalved by "a changed frame was accepted",
    large_packets_small: LargePacketsSmall by "units in flight",
}
