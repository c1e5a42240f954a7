//! Failure detection of a control connection: when to send a ping, and when to declare the other
//! side dead (E66, ADR 13). No clock: times are nanoseconds of the caller's monotonic clock.
//!
//! ```text
//! received  1/4       2/4       3/4       4/4 of the timeout
//!   |--------|---------|---------|---------|
//!           Ping      Ping      Ping      Dead
//! ```
//! Anything received restarts the timeout, so a busy connection carries no pings. One side of a
//! connection leads; the other sends its first ping after 3/8 of the timeout. So on an idle
//! connection only one side sends pings, and pings do not cross.
//!
//! Silence is measured in this side's running time: a poll that comes late shows that this side did not
//! run, and that time is not held against the other side.

use crate::mutant::{self, Mutant};

/// Interval of pings, as a fraction of the timeout.
const PARTS: u64 = 4;

/// Signs of life by other ways count for this many timeouts after something was received: a connection
/// that is broken in itself ends although the other side lives.
const SIGNS: u64 = 10;

/// Result of [`Heartbeat::poll`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    /// Nothing; poll again at this time.
    Wait(u64),
    /// Send [`ControlMsg::Ping`](super::ControlMsg::Ping), then poll again at once.
    Ping,
    /// Nothing was received for the whole timeout. A caller that was stopped itself reads the bytes
    /// that are waiting once more before it acts on this.
    Dead,
}

/// How long nothing was received from the other side ([`Heartbeat::silence`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Silence {
    /// Time since something was received, ns.
    pub total_ns: u64,
    /// The part of it in which this side did not run, as far as late polls have shown, ns.
    pub paused_ns: u64,
}

/// Failure detection of one connection. Each side has its own, and the timeouts may differ.
///
/// Guarantees, for a caller that polls at the times of [`Beat::Wait`]:
/// - never [`Beat::Dead`] while something was received within the timeout;
/// - [`Beat::Dead`] exactly when the timeout has passed since something was received;
/// - pings at least a quarter of the timeout apart: at most four in any timeout.
///
/// A caller that polls late was stopped itself, and may have sent no ping. The guarantees then hold for
/// the time without the delays of its polls, and the other side has at least a quarter of the timeout
/// to answer a first ping.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    timeout_ns: u64,
    /// Delay of the first ping.
    first_ping_ns: u64,
    received_ns: u64,
    /// Signs of life by other ways count until then.
    signs_until_ns: u64,
    /// Delays of polls since something was received.
    paused_ns: u64,
    /// When the next poll is due; `u64::MAX`: there was none yet.
    due_ns: u64,
    /// First and last ping since something was received, as times after that without the delays.
    pinged_ns: Option<(u64, u64)>,
}

impl Heartbeat {
    /// The leading side of a connection that has just received something. Timeouts below 4 ns count
    /// as 4 ns.
    pub fn new(timeout_ns: u64, now_ns: u64) -> Self {
        let timeout_ns = timeout_ns.max(PARTS);
        let first_ping_ns = timeout_ns.div_ceil(PARTS);
        Heartbeat {
            timeout_ns,
            first_ping_ns,
            received_ns: now_ns,
            signs_until_ns: now_ns.saturating_add(SIGNS.saturating_mul(timeout_ns)),
            paused_ns: 0,
            due_ns: u64::MAX,
            pinged_ns: None,
        }
    }

    /// The following side.
    pub fn following(timeout_ns: u64, now_ns: u64) -> Self {
        let leader = Heartbeat::new(timeout_ns, now_ns);
        Heartbeat { first_ping_ns: leader.timeout_ns / 8 + leader.first_ping_ns, ..leader }
    }

    /// Records that something was received. Costs four stores.
    pub fn on_received(&mut self, now_ns: u64) {
        self.received_ns = now_ns;
        self.signs_until_ns = now_ns.saturating_add(SIGNS.saturating_mul(self.timeout_ns));
        self.paused_ns = 0;
        self.pinged_ns = None;
    }

    /// Records that a sign of life of the other side had come at `at_ns` by another way. It counts for
    /// up to ten timeouts after something was received. Delays of polls that are already known still
    /// count, as some may have come after it.
    pub fn on_sign_of_life(&mut self, at_ns: u64) {
        if at_ns > self.received_ns && at_ns < self.signs_until_ns {
            self.received_ns = at_ns;
            self.pinged_ns = None;
        }
    }

    /// Returns whether a ping has found no answer for a quarter of the timeout.
    pub fn is_unanswered(&self) -> bool {
        self.pinged_ns.is_some_and(|(first, last)| first != last)
    }

    /// The silence of the other side.
    pub fn silence(&self, now_ns: u64) -> Silence {
        let total_ns = now_ns.saturating_sub(self.received_ns);
        Silence { total_ns, paused_ns: self.paused_ns.min(total_ns) }
    }

    /// The action that is due now.
    pub fn poll(&mut self, now_ns: u64) -> Beat {
        self.note_delay(now_ns);
        let Silence { total_ns, paused_ns } = self.silence(now_ns);
        let silent_ns = total_ns - paused_ns;
        let part = self.timeout_ns.div_ceil(PARTS);
        let Some((first, last)) = self.pinged_ns else {
            if silent_ns < self.first_ping_ns {
                return self.wait(self.first_ping_ns);
            }
            self.pinged_ns = Some((silent_ns, silent_ns));
            return Beat::Ping;
        };
        let never = mutant::is_on(Mutant::PeerNeverDead);
        let dead = if never { u64::MAX } else { self.timeout_ns.max(first.saturating_add(part)) };
        if silent_ns >= dead {
            return Beat::Dead;
        }
        let due = last.saturating_add(part);
        if silent_ns < due {
            return self.wait(due.min(dead));
        }
        self.pinged_ns = Some((first, silent_ns));
        Beat::Ping
    }

    /// A poll that comes later than it was due shows that this side did not run.
    fn note_delay(&mut self, now_ns: u64) {
        let due_ns = self.due_ns.max(self.received_ns);
        self.paused_ns = self.paused_ns.saturating_add(now_ns.saturating_sub(due_ns));
        self.due_ns = self.due_ns.max(now_ns);
    }

    /// Waits until the silence is this long.
    fn wait(&mut self, silent_ns: u64) -> Beat {
        let since_ns = self.received_ns.saturating_add(self.paused_ns);
        self.due_ns = since_ns.saturating_add(silent_ns);
        Beat::Wait(self.due_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Polls like a driver from `now` to `end` or death; returns the times of pings and of death.
    fn run(h: &mut Heartbeat, mut now: u64, end: u64) -> (Vec<u64>, Option<u64>) {
        let mut pings = Vec::new();
        while now <= end {
            match h.poll(now) {
                Beat::Wait(at) => {
                    assert!(at > now, "the wait is already over");
                    now = at;
                }
                Beat::Ping => pings.push(now),
                Beat::Dead => return (pings, Some(now)),
            }
        }
        (pings, None)
    }

    #[test]
    fn a_silent_peer_gets_three_pings_and_is_declared_dead() {
        let mut h = Heartbeat::new(800, 1000);
        assert_eq!(run(&mut h, 1000, 10_000), (vec![1200, 1400, 1600], Some(1800)));
        assert_eq!(h.poll(1800), Beat::Dead, "it stays dead");
        h.on_received(1800);
        assert_eq!(h.poll(1800), Beat::Wait(2000), "unless something was received");
    }

    #[test]
    fn on_an_idle_connection_one_side_sends_pings() {
        let (mut leader, mut follower) = (Heartbeat::new(800, 0), Heartbeat::following(800, 0));
        for round in 1..1000 {
            // Each way takes 50.
            let at = round * 300 - 100;
            assert_eq!(run(&mut leader, at - 200, at), (vec![at], None));
            assert_eq!(run(&mut follower, at - 150, at + 49), (vec![], None));
            follower.on_received(at + 50);
            leader.on_received(at + 100);
        }
        // Without its leader it sends pings itself.
        let mut alone = Heartbeat::following(800, 0);
        assert_eq!(run(&mut alone, 0, 1000), (vec![300, 500, 700], Some(800)));
    }

    #[test]
    fn a_peer_that_answers_is_never_declared_dead() {
        let mut h = Heartbeat::new(800, 0);
        for round in 0..1000 {
            // The answer arrives just before the end.
            let (pings, death) = run(&mut h, round * 799, round * 799 + 798);
            assert_eq!((pings.len(), death), (3, None));
            h.on_received((round + 1) * 799);
        }
    }

    #[test]
    fn a_side_that_was_stopped_sends_a_ping_first() {
        let mut h = Heartbeat::new(800, 0);
        assert_eq!(h.poll(50_000), Beat::Ping);
        assert_eq!(h.poll(50_000), Beat::Wait(50_200));
        let mut answered = h.clone();
        answered.on_received(50_199);
        assert_eq!(answered.poll(50_200), Beat::Wait(50_399));
        assert_eq!(h.poll(50_200), Beat::Dead);
    }

    /// The time in which a side did not run is not held against the other: it has all of its time to
    /// answer, from when this side runs again.
    #[test]
    fn a_side_that_did_not_run_gives_the_other_that_time() {
        for stop in [0, 100, 199, 200, 350, 799] {
            let mut h = Heartbeat::new(800, 0);
            let (mut now, mut due) = (0, 0);
            let mut pings = 0;
            let death = loop {
                match h.poll(now) {
                    Beat::Wait(at) => due = at,
                    Beat::Ping => pings += 1,
                    Beat::Dead => break now,
                }
                // It does not run from `stop` on for 50,000.
                now = if now <= stop && due > stop { stop + 50_000 } else { due.max(now) };
            };
            let late = death - 800;
            assert!((49_000..=50_000).contains(&late), "stopped at {stop}: {late}");
            assert_eq!(pings, 3, "stopped at {stop}");
            let silence = h.silence(death);
            assert_eq!((silence.total_ns, silence.paused_ns), (death, late));
        }
    }

    #[test]
    fn a_sign_of_life_by_another_way_counts_from_its_time() {
        let mut h = Heartbeat::new(800, 0);
        assert_eq!(run(&mut h, 0, 650).1, None);
        assert!(h.is_unanswered());
        h.on_sign_of_life(500);
        assert!(!h.is_unanswered());
        assert_eq!(run(&mut h, 700, 2_000), (vec![700, 900, 1_100], Some(1_300)));
        h.on_sign_of_life(400); // older than what is known
        assert_eq!(h.poll(1_300), Beat::Dead);
        // They do not keep a connection that is broken in itself.
        let mut h = Heartbeat::new(800, 0);
        let death = (0_u64..).find(|&now| {
            h.on_sign_of_life(now);
            while h.poll(now) == Beat::Ping {}
            h.poll(now) == Beat::Dead
        });
        assert_eq!(death, Some(8_000 + 799));
        // One from before a pause of this side leaves it that time.
        let mut h = Heartbeat::new(800, 0);
        assert_eq!(h.poll(0), Beat::Wait(200));
        assert_eq!(h.poll(5_000), Beat::Ping);
        h.on_sign_of_life(100);
        assert_eq!(run(&mut h, 5_000, 10_000).1, Some(5_700));
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
        // After a backward step of the clock, a silence is detected at most that much later.
        let mut h = Heartbeat::new(800, 1000);
        assert_eq!(h.poll(0), Beat::Wait(1200));
    }

    proptest! {
        /// Any timeout, any receive times, polls on time and in between.
        #[test]
        fn any_schedule_keeps_the_guarantees(
            timeout in 4_u64..5000,
            leads: bool,
            gaps in prop::collection::vec(0_u64..6000, 1..40),
            extra in prop::collection::vec(0_u64..6000, 0..40),
        ) {
            let mut h = if leads { Heartbeat::new } else { Heartbeat::following }(timeout, 0);
            let (mut heard, mut pings) = (0, Vec::new());
            for (i, gap) in gaps.iter().enumerate() {
                let next = heard + gap;
                // Additional polls change nothing.
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
                h.on_received(next);
                heard = next;
            }
            let part = timeout.div_ceil(PARTS);
            prop_assert!(pings.windows(2).all(|w| w[1] - w[0] >= part), "{pings:?}");
        }

        /// With polls that are late by any time, a peer is declared dead exactly when this side has run
        /// for the timeout since something was received.
        #[test]
        fn late_polls_count_the_time_in_which_this_side_ran(
            timeout in 4_u64..5000,
            leads: bool,
            delays in prop::collection::vec(prop_oneof![Just(0), 0_u64..20_000], 1..60),
            received_after in prop::collection::vec(0_u64..6000, 1..20),
        ) {
            let mut h = if leads { Heartbeat::new } else { Heartbeat::following }(timeout, 0);
            let (mut now, mut paused, mut since) = (0_u64, 0_u64, 0_u64);
            let (mut delays, mut gaps) = (delays.into_iter(), received_after.into_iter());
            let mut gap = gaps.next();
            let death = loop {
                match h.poll(now) {
                    Beat::Ping => {}
                    Beat::Wait(at) => {
                        prop_assert!(at > now);
                        if let Some(g) = gap && since + g > now && since + g <= at {
                            since += g;
                            (now, paused, gap) = (since, 0, gaps.next());
                            h.on_received(now);
                            continue;
                        }
                        let delay = delays.next().unwrap_or(0);
                        (now, paused) = (at + delay, paused + delay);
                    }
                    Beat::Dead => break now,
                }
            };
            prop_assert_eq!(death - since - paused, timeout);
        }

        /// Late polls never declare a peer dead that got no ping a quarter of the timeout before.
        #[test]
        fn late_polls_send_a_ping_before_declaring_death(
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
                            let asked = first_ping.expect("declared dead without a ping");
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
