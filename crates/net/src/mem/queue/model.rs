//! The queue on a model of memory that tests every order in which threads can run, and every value
//! that a weakly ordered machine can return (`scripts/loom.sh`). To test the model, each rule is broken
//! once, and the model must fail.

use loom::thread;

use super::order::{FAULT, Fault};
use super::{Addr, Queue};

const FAULTS: [Fault; 4] = [Fault::Publish, Fault::Peek, Fault::Report, Fault::Taken];

const SRC: Addr = Addr { host: 7, port: 9 };

/// Sends frames of these bytes, if they find room.
fn send(queue: &Queue, bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| queue.push(SRC, |data| data.push(**byte))).count()
}

/// One sender has two frames and the other has one, for a queue of two that lends one at a time, whose
/// places are used twice.
fn senders_and_receiver() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (queue, mut receiver) = Queue::new(1, 1);
        assert_eq!(queue.places.len(), 2);
        let other = queue.clone();
        let sender = thread::spawn(move || send(&other, &[1, 2]));
        let mut got = Vec::new();
        let receive = |receiver: &mut super::Receiver, got: &mut Vec<u8>| {
            receiver.take(8, |packet| {
                assert_eq!((packet.src, packet.data.len()), (SRC, 1));
                got.push(packet.data[0]);
            });
        };
        receive(&mut receiver, &mut got);
        let own = send(&queue, &[3]);
        receive(&mut receiver, &mut got);
        let sent = own + sender.join().unwrap();
        while !receiver.is_empty() {
            receive(&mut receiver, &mut got);
        }
        assert_eq!(got.len(), sent, "{got:?}");
        let of_other: Vec<u8> = got.iter().copied().filter(|byte| *byte != 3).collect();
        assert!(of_other.is_sorted() && (1..=3).contains(&sent), "{got:?}");
    });
}

#[test]
fn frames_arrive_once_and_in_order() {
    senders_and_receiver();
}

#[test]
fn the_model_detects_every_broken_rule() {
    for fault in FAULTS {
        FAULT.set(Some(fault));
        let found = std::panic::catch_unwind(senders_and_receiver).is_err();
        FAULT.set(None);
        assert!(found, "{fault:?}");
    }
}
