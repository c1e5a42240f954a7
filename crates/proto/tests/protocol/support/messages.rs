//! A random world of one-way messages, and the check of what was delivered.

use courser_proto::{CallOptions, Config, Packing, Recovery, RejectReason, SessionId};

use super::{DPP, Link, Rng, World, config, pattern};

const MS: u64 = 1_000_000;
/// Messages that are sent before the connect.
const EARLY: u16 = 6;
/// When the faults stop, and when every message must have arrived.
const CALM_NS: u64 = 30 * MS;
const END_NS: u64 = CALM_NS + 300 * MS;

impl World {
    /// Sends a message; its number is its type and determines its bytes.
    pub fn send_message(
        &mut self,
        node: usize,
        s: SessionId,
        id: u16,
        len: usize,
        within_ns: Option<u64>,
    ) -> Result<(), RejectReason> {
        let now_ns = self.now_ns;
        let n = &mut self.nodes[node];
        let mut msg = n.ep.alloc(len).expect("memory");
        msg.copy_from_slice(&pattern(id.into(), len));
        let mut options = CallOptions::new();
        if let Some(within_ns) = within_ns {
            n.deadlines.insert(id, now_ns + within_ns);
            options = options.with_deadline_ns(now_ns + within_ns + n.clock_ns);
        }
        let key = 2 << 32 | u64::from(id);
        let at = (msg.as_ptr() as usize, len);
        let calls = n.ep.stats().calls;
        n.ep.send(s, id, msg, options, || key).map_err(|(reason, _)| reason)?;
        if n.ep.stats().calls > calls {
            n.given.insert(key, at);
        }
        Ok(())
    }
}

/// Some sizes: mostly small.
fn len(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0..5 => rng.below(100) as usize,
        5 | 6 => rng.below(DPP as u64 + 1) as usize,
        _ => DPP + 1 + rng.below(5 * DPP as u64) as usize,
    }
}

/// Messages between two endpoints over a link with faults: each arrives at most once, unchanged, and
/// before its deadline; those without a deadline arrive; on a link without faults in order.
pub fn messages_arrive(seed: u64) {
    let mut rng = Rng(seed);
    let perfect = rng.below(4) == 0;
    let mut some = || Config {
        credits: rng.pick(&[1, 4, 32, 600]),
        rx_queue_frames: rng.pick(&[8, 64, 1024]),
        inline_max: rng.pick(&[0, 512, 2048]),
        recovery: rng.pick(&[Recovery::Selective, Recovery::GoBackN]),
        message_queue: rng.pick(&[8, 1024]),
        packing: rng.pick(&Packing::ALL),
        ..config()
    };
    let configs = [some(), some()];
    let mut w = World::new(&configs, seed);
    w.nodes[1].clock_ns = rng.below(1 << 40);
    let d = w.dial(0, rng.next() | 0xffff_ff00);
    let (s, early) = (d.session, rng.below(2) == 0);
    let (mut sent, mut id) = (Vec::new(), 0);
    let mut send = |w: &mut World, rng: &mut Rng, count: u64, timed: bool| {
        for _ in 0..count {
            let timed = (timed && rng.below(4) == 0).then(|| rng.pick(&[20_000, 300_000, 3 * MS]));
            if w.send_message(0, s, id, len(rng), timed).is_ok() {
                sent.push((id, timed));
            }
            id += 1;
        }
    };
    if early {
        send(&mut w, &mut rng, EARLY.into(), false);
    }
    let accept = w.accept(1, 0, &d.request).expect("accept");
    w.nodes[0].ep.established(&accept, super::addr(1), courser_buf::PathId(1)).expect("connect");
    // Both sides know the round trip and the difference of their clocks.
    for id in 0..4 {
        w.call(0, s, 900 + id, 8);
        w.run_to(w.now_ns + 10_000);
    }
    if !perfect {
        w.link = Link {
            loss: rng.pick(&[0, 20_000, 200_000]),
            duplicate: rng.pick(&[0, 100_000]),
            reorder: rng.pick(&[0, 100_000]),
            late_ns: rng.pick(&[2_000, 200_000]),
            hold: rng.below(2) == 0,
            ..Link::perfect()
        };
    }
    for round in 0..40 {
        let count = rng.below(12);
        send(&mut w, &mut rng, count, true);
        if rng.below(3) == 0 {
            w.call(0, s, 1_000 + round, rng.below(3_000) as usize);
        }
        let next_ns = w.now_ns + rng.below(CALM_NS / 30);
        w.run_to(next_ns);
    }
    w.link = Link::perfect();
    w.run_until(END_NS);
    check(&mut w, &sent, perfect);
}

fn check(w: &mut World, sent: &[(u16, Option<u64>)], perfect: bool) {
    for (id, timed) in sent {
        let arrived = w.nodes[1].messages.iter().filter(|m| m.0 == *id).count();
        assert!(arrived <= 1, "message {id} was delivered {arrived} times");
        assert!(arrived == 1 || timed.is_some(), "message {id} was never delivered");
    }
    for (id, at_ns, whole) in &w.nodes[1].messages {
        assert!(whole, "message {id} arrived changed");
        let due_ns = w.nodes[0].deadlines.get(id).copied().unwrap_or(u64::MAX);
        assert!(*at_ns <= due_ns, "message {id} was delivered at {at_ns}, after {due_ns}");
    }
    if perfect {
        // Messages that were sent before the connect may have waited as large ones.
        let of_one_packet =
            |m: &&(u16, u64, bool)| m.0 >= EARLY && !w.nodes[1].large.contains(&m.0);
        let order: Vec<u16> =
            w.nodes[1].messages.iter().filter(of_one_packet).map(|m| m.0).collect();
        assert!(order.is_sorted(), "messages arrived out of order: {order:?}");
    }
    let [sender, receiver] = [0, 1].map(|node| w.nodes[node].ep.stats().clone());
    assert_eq!(w.ep(0).outstanding_messages(), 0, "messages without an acknowledgement");
    assert_eq!(receiver.messages_received, w.nodes[1].messages.len() as u64);
    let ended = receiver.messages_received + receiver.messages_expired;
    let (acked, failed) = (sender.messages_acknowledged, sender.messages_failed);
    // Large ones may end at their deadline after they were delivered.
    assert!((acked..=acked + failed).contains(&ended), "{sender:?} {receiver:?}");
    assert!(w.nodes[0].ep.is_quiet() && w.nodes[0].given.is_empty(), "something is under way");
}
