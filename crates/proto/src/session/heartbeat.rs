//! Whether the other side of a control connection lives: when to ask it, and when to give it up
//! (E66, F13). No clock: times are nanoseconds of whatever monotonic clock the caller reads.
//!
//! ```text
//! heard     1/4       2/4       3/4       4/4 of the timeout
//!   |--------|---------|---------|---------|
//!           Ping      Ping      Ping      Dead
//! ```
//! Anything received starts this again, so that a busy connection carries no pings at all. One side
//! of a connection leads; the other asks first after 3/8, so that of an idle pair one side asks and
//! the other answers, and their questions do not cross.

use crate::mutant::{self, Mutant};

/// Pings are this part of the timeout apart.
const PARTS: u64 = 4;

/// What to do about a connection now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    /// Nothing; poll again at this time.
    Wait(u64),
    /// Send [`ControlMsg::Ping`](super::ControlMsg::Ping), then poll again at once.
    Ping,
    /// Nothing was heard for the whole timeout. Whoever was stopped himself looks once more for
    /// bytes that wait to be received, before he believes it.
    Dead,
}

/// Failure detection of one connection; both sides have their own, and their timeouts may differ.
///
/// Promises, for a caller that polls when [`Beat::Wait`] says:
/// - never [`Beat::Dead`] while something was heard within the timeout;
/// - [`Beat::Dead`] exactly when the timeout has passed since something was heard;
/// - pings at least a quarter of the timeout apart: four at most in any timeout.
///
/// A caller that polls late was stopped itself, and may not have asked at all: the other side then
/// gets a quarter of the timeout to answer a first ping.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    timeout_ns: u64,
    /// From what was heard to the first ping.
    patience_ns: u64,
    heard_ns: u64,
    /// First and last ping since something was heard.
    asked_ns: Option<(u64, u64)>,
}

impl Heartbeat {
    /// The side that leads, of a connection over which something was heard just now. Timeouts
    /// below 4 ns are taken as 4 ns.
    pub fn new(timeout_ns: u64, now_ns: u64) -> Self {
        let timeout_ns = timeout_ns.max(PARTS);
        let patience_ns = timeout_ns.div_ceil(PARTS);
        Heartbeat { timeout_ns, patience_ns, heard_ns: now_ns, asked_ns: None }
    }

    /// The other side.
    pub fn following(timeout_ns: u64, now_ns: u64) -> Self {
        let leader = Heartbeat::new(timeout_ns, now_ns);
        Heartbeat { patience_ns: leader.timeout_ns / 8 + leader.patience_ns, ..leader }
    }

    /// Something was received, whatever it was: two stores.
    pub fn on_heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.asked_ns = None;
    }

    /// What to do now.
    pub fn poll(&mut self, now_ns: u64) -> Beat {
        let part = self.timeout_ns.div_ceil(PARTS);
        let Some((first, last)) = self.asked_ns else {
            let due = self.heard_ns.saturating_add(self.patience_ns);
            if now_ns < due {
                return Beat::Wait(due);
            }
            self.asked_ns = Some((now_ns, now_ns));
            return Beat::Ping;
        };
        let silent = self.heard_ns.saturating_add(self.timeout_ns);
        let never = mutant::is_on(Mutant::PeerNeverDead);
        let dead = if never { u64::MAX } else { silent.max(first.saturating_add(part)) };
        if now_ns >= dead {
            return Beat::Dead;
        }
        let due = last.saturating_add(part);
        if now_ns < due {
            return Beat::Wait(due.min(dead));
        }
        self.asked_ns = Some((first, now_ns));
        Beat::Ping
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Polls as a driver does, from `now` to `end` or death; gives the pings' times and the death.
    fn run(h: &mut Heartbeat, mut now: u64, end: u64) -> (Vec<u64>, Option<u64>) {
        let mut pings = Vec::new();
        while now <= end {
            match h.poll(now) {
                Beat::Wait(at) => {
                    assert!(at > now, "a wait that is over");
                    now = at;
                }
                Beat::Ping => pings.push(now),
                Beat::Dead => return (pings, Some(now)),
            }
        }
        (pings, None)
    }

    #[test]
    fn a_silent_peer_is_asked_three_times_and_given_up() {
        let mut h = Heartbeat::new(800, 1000);
        assert_eq!(run(&mut h, 1000, 10_000), (vec![1200, 1400, 1600], Some(1800)));
        assert_eq!(h.poll(1800), Beat::Dead, "it stays dead");
        h.on_heard(1800);
        assert_eq!(h.poll(1800), Beat::Wait(2000), "unless it was heard after all");
    }

    #[test]
    fn of_an_idle_pair_one_side_asks() {
        let (mut leader, mut follower) = (Heartbeat::new(800, 0), Heartbeat::following(800, 0));
        for round in 1..1000 {
            // Answers take 50 to there and 50 back.
            let at = round * 300 - 100;
            assert_eq!(run(&mut leader, at - 200, at), (vec![at], None));
            assert_eq!(run(&mut follower, at - 150, at + 49), (vec![], None));
            follower.on_heard(at + 50);
            leader.on_heard(at + 100);
        }
        // Without its leader it asks for itself.
        let mut alone = Heartbeat::following(800, 0);
        assert_eq!(run(&mut alone, 0, 1000), (vec![300, 500, 700], Some(800)));
    }

    #[test]
    fn a_peer_that_answers_is_never_given_up() {
        let mut h = Heartbeat::new(800, 0);
        for round in 0..1000 {
            // The answer comes just before the end.
            let (pings, death) = run(&mut h, round * 799, round * 799 + 798);
            assert_eq!((pings.len(), death), (3, None));
            h.on_heard((round + 1) * 799);
        }
    }

    #[test]
    fn who_was_stopped_itself_asks_first() {
        let mut h = Heartbeat::new(800, 0);
        assert_eq!(h.poll(50_000), Beat::Ping);
        assert_eq!(h.poll(50_000), Beat::Wait(50_200));
        let mut answered = h.clone();
        answered.on_heard(50_199);
        assert_eq!(answered.poll(50_200), Beat::Wait(50_399));
        assert_eq!(h.poll(50_200), Beat::Dead);
    }

    #[test]
    fn the_ends_of_the_range_do_not_overflow() {
        for timeout in [0, 1, 2, 3, 4, 5, 7] {
            for new in [Heartbeat::new, Heartbeat::following] {
                assert_eq!(run(&mut new(timeout, 0), 0, 100).1, Some(timeout.max(4)));
            }
        }
        let mut h = Heartbeat::new(u64::MAX, u64::MAX - 5);
        assert_eq!(h.poll(u64::MAX - 5), Beat::Wait(u64::MAX));
        // A clock that steps back hides a silence at most for as long.
        let mut h = Heartbeat::new(800, 1000);
        assert_eq!(h.poll(0), Beat::Wait(1200));
    }

    proptest! {
        /// Any timeout, any times at which something is heard, polls on time and in between.
        #[test]
        fn any_schedule_keeps_the_promises(
            timeout in 4_u64..5000,
            leads: bool,
            gaps in prop::collection::vec(0_u64..6000, 1..40),
            extra in prop::collection::vec(0_u64..6000, 0..40),
        ) {
            let mut h = if leads { Heartbeat::new } else { Heartbeat::following }(timeout, 0);
            let (mut heard, mut pings) = (0, Vec::new());
            for (i, gap) in gaps.iter().enumerate() {
                let next = heard + gap;
                // Polls that nobody asked for change nothing.
                let mut early = h.clone();
                if let Some(x) = extra.get(i)
                    && let Beat::Wait(at) = early.poll(heard)
                    && heard + x < at
                {
                    prop_assert_eq!(early.poll(heard + x), Beat::Wait(at));
                    h = early;
                }
                let (asked, death) = run(&mut h, heard, next.saturating_sub(1));
                pings.extend(asked);
                if *gap > timeout {
                    prop_assert_eq!(death, Some(heard + timeout));
                } else {
                    prop_assert_eq!(death, None);
                }
                h.on_heard(next);
                heard = next;
            }
            let part = timeout.div_ceil(PARTS);
            prop_assert!(pings.windows(2).all(|w| w[1] - w[0] >= part), "{pings:?}");
        }

        /// Polls that come late never give up a peer that was not asked a quarter before.
        #[test]
        fn late_polls_ask_before_they_give_up(
            timeout in 4_u64..5000,
            delays in prop::collection::vec(0_u64..20_000, 1..20),
        ) {
            let mut h = Heartbeat::new(timeout, 0);
            let (mut now, mut first_ping) = (0_u64, None);
            for delay in delays {
                now += delay;
                loop {
                    match h.poll(now) {
                        Beat::Ping => first_ping = first_ping.or(Some(now)),
                        Beat::Wait(at) => {
                            prop_assert!(at > now && at <= now + timeout);
                            break;
                        }
                        Beat::Dead => {
                            let asked = first_ping.expect("dead without a question");
                            prop_assert!(now >= timeout);
                            prop_assert!(now - asked >= timeout.div_ceil(PARTS));
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}
