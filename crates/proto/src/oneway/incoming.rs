//! The messages that a server session has received: the number of the first missing one, and a bit
//! for each of the [`WINDOW`] numbers from there on.

use super::WINDOW;
use crate::mutant::{self, Mutant};
use crate::stats::RxDrop;

const WORDS: usize = WINDOW as usize / 64;

/// See the module's documentation. Bit `n % WINDOW` belongs to number `n`.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The first number that has not arrived.
    next: u32,
    arrived: [u64; WORDS],
    /// An acknowledgement is queued.
    pub(crate) ack_queued: bool,
}

impl Incoming {
    pub(crate) fn new(first: u32) -> Self {
        Incoming { next: first, arrived: [0; WORDS], ack_queued: false }
    }

    /// Records a message.
    /// # Errors
    /// It has arrived before, or is ahead of the window.
    pub(crate) fn insert(&mut self, number: u32) -> Result<(), RxDrop> {
        let ahead = number.wrapping_sub(self.next);
        if ahead >= 1 << 31 {
            return if mutant::is_on(Mutant::MessageTwice) {
                Ok(())
            } else {
                Err(RxDrop::Duplicate)
            };
        }
        if ahead >= WINDOW {
            return Err(RxDrop::OutOfOrder);
        }
        if self.has(number) {
            return Err(RxDrop::Duplicate);
        }
        let (word, bit) = place(number);
        self.arrived[word] |= bit;
        while self.has(self.next) {
            let (word, bit) = place(self.next);
            self.arrived[word] &= !bit;
            self.next = self.next.wrapping_add(1);
        }
        Ok(())
    }

    /// Records a message if it is the first missing one and the one after it is missing too.
    #[inline(always)]
    pub(crate) fn take_next(&mut self, number: u32) -> bool {
        let taken = number == self.next && !self.has(number.wrapping_add(1));
        self.next = self.next.wrapping_add(u32::from(taken));
        taken
    }

    fn has(&self, number: u32) -> bool {
        let (word, bit) = place(number);
        self.arrived[word] & bit != 0
    }

    /// The content of an acknowledgement: the first missing number, and a bit for each of the 64
    /// after it that is set if it has arrived.
    pub(crate) fn state(&self) -> (u32, u64) {
        let first = self.next.wrapping_add(1);
        let (word, _) = place(first);
        let shift = first % 64;
        let low = self.arrived[word] >> shift;
        let later = match shift {
            0 => low,
            _ => low | self.arrived[(word + 1) % WORDS] << (64 - shift),
        };
        (self.next, later)
    }
}

fn place(number: u32) -> (usize, u64) {
    let at = number % WINDOW;
    (at as usize / 64, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_number_is_taken_once_and_the_state_names_what_has_arrived(
            first in prop_oneof![Just(u32::MAX - 70), any::<u32>()],
            steps in prop::collection::vec(0..1_100_u32, 0..600),
        ) {
            let mut incoming = Incoming::new(first);
            let (mut model, mut next) = (BTreeSet::new(), 0_u32);
            for step in steps {
                // Half of them near the first missing one.
                let at = if step % 2 == 0 { next + step % 70 } else { step };
                let want = if at < next || model.contains(&at) {
                    Err(RxDrop::Duplicate)
                } else if at >= next + WINDOW {
                    Err(RxDrop::OutOfOrder)
                } else {
                    Ok(())
                };
                // One way or the other.
                let taken = step % 3 == 0 && incoming.take_next(first.wrapping_add(at));
                prop_assert!(!taken || want.is_ok());
                if !taken {
                    prop_assert_eq!(incoming.insert(first.wrapping_add(at)), want);
                }
                if want.is_ok() {
                    model.insert(at);
                }
                while model.contains(&next) {
                    next += 1;
                }
                let later = (0..64).filter(|n| model.contains(&(next + 1 + n)));
                let later = later.fold(0, |bits, n| bits | 1_u64 << n);
                prop_assert_eq!(incoming.state(), (first.wrapping_add(next), later));
            }
        }
    }
}
