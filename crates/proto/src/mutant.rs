//! Planted bugs: each disables one invariant at the place that enforces it. A simulation that does
//! not find them would not find similar real bugs.
//!
//! A normal build contains none: without the feature `mutants`, `is_on` is a constant `false`, and
//! the compiler removes the branch. The feature is for tests only and must never be a default or be
//! enabled by a non-test dependency.

/// Generates the enumeration and its tables from one list.
macro_rules! mutants {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// A planted bug. Each variant names the disabled invariant, and the effect that an
        /// external checker observes.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Mutant {
            $($(#[$doc])* $variant = $number,)*
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            /// All planted bugs, by number.
            pub const ALL: [Mutant; [$($number),*].len()] = [$(Mutant::$variant),*];

            /// Its name on a command line; [`std::str::FromStr`] parses it, and also the number.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)*
                }
            }
        }
    };
}

mutants! {
    /// A duplicate of an answered request runs the handler again, each time (E1, E61). Effect: two
    /// executions of one request.
    AnsweredRunsAgain = 1 "answered-runs-again",
    /// A duplicate of a request that is with its handler runs the handler again (E1, ADR 5). Effect:
    /// two executions of one request.
    ExecutingRunsAgain = 2 "executing-runs-again",
    /// A credit return frees no credits (E33, E42). Effect: credits and packets in flight do not
    /// add up to C; large messages end late or never.
    CreditReturnIgnored = 3 "credit-return-ignored",
    /// A timeout rolls a request back without reclaiming its credits (E59). Effect: credits and
    /// packets in flight do not add up to C after a loss; the session starves.
    CreditsLostInRollback = 4 "credits-lost-in-rollback",
    /// A late response frees a credit that the rollback has already reclaimed (E33, E59). Effect:
    /// more credits than C, then more than C packets in flight.
    CreditGivenTwice = 5 "credit-given-twice",
    /// A completion does not wait until the transport has released the request (E24, E25). Effect:
    /// the application has a buffer that a transmit queue still reads.
    BufferReturnedEarly = 6 "buffer-returned-early",
    /// Ingress does not check the cookie (ADR 14). Effect: a frame for an earlier incarnation, or with
    /// a corrupted cookie, is accepted.
    CookieIgnored = 7 "cookie-ignored",
    /// A client accepts any answer for a slot, also a late one to the previous request (E61).
    /// Effect: a response of another request; two completions of one execution.
    OldAnswerTaken = 8 "old-answer-taken",
    /// A server accepts early request packets as if they were the next (E58). Effect: a handler
    /// gets a request with bytes that were never sent.
    RequestGapTaken = 9 "request-gap-taken",
    /// A client accepts early response packets as if they were the next (E58). Effect: a response
    /// with bytes that were never sent.
    ResponseGapTaken = 10 "response-gap-taken",
    /// A slot whose call was cancelled takes the next call at once (ADR 15). Effect: if the server has
    /// not received the first request, every later call on that slot ends with an error.
    NoQuarantine = 11 "no-quarantine",
    /// Server sessions survive the failure of their client (E66, E68). Effect: leaked sessions and
    /// memory.
    OrphanKept = 12 "orphan-kept",
    /// A session that fails drops the calls that wait for a slot (E27). Effect: calls that never
    /// complete.
    WaitingCallsForgotten = 13 "waiting-calls-forgotten",
    /// Requests-for-response are not repeated, nor anything else once a part of the response has
    /// arrived (E57, E59). Effect: after one loss a call with a large response never completes.
    RfrNotRepeated = 14 "rfr-not-repeated",
    /// A server does not send a stored response again (E61). Effect: after the loss of a response
    /// its call never completes, or ends because the datapath seems dead.
    ResponseNotResent = 15 "response-not-resent",
    /// A call loses its deadline when it gets a slot (ADR 15). Effect: a call that ends long after its
    /// deadline, or never.
    DeadlineIgnored = 16 "deadline-ignored",
    /// A control connection is never declared dead (E66). Effect: sessions of a vanished peer are
    /// never freed, or only after the datapath timeout.
    PeerNeverDead = 17 "peer-never-dead",
    /// A server sends the second packet of a response with the first, unrequested (E39, E43).
    /// Effect: more packets of a server than its clients' credits allow.
    ResponseUnasked = 18 "response-unasked",
    /// A response stays stored after its acknowledgement (ADR 6). Effect: memory in use without calls.
    StoredResponseKept = 19 "stored-response-kept",
    /// A failed call reports "never executed" although the whole request was sent (E27, ADR 15).
    /// Effect: "never", and a handler that ran.
    ClaimsNeverExecuted = 20 "claims-never-executed",
    /// A timeout reclaims the credits of its session, but not those of the shared pool of the peer
    /// (E36, E59). Effect: the pool and packets in flight do not add up; finally no session of the
    /// peer can send.
    PoolForgotten = 21 "pool-forgotten",
    /// A server does not subtract the transit time of a request from its deadline (ADR 15). Effect: a
    /// handler that starts after its client's deadline.
    AgeForgotten = 22 "age-forgotten",
    /// Request numbers are compared without regard to wrapping (E30). Effect: requests after the
    /// wrap are not accepted; their calls do not end.
    WrapForgotten = 23 "wrap-forgotten",
    /// Selective recovery detects no loss by reordering. Effect: each loss within a message costs
    /// timeouts; nothing else.
    LossFoundLate = 24 "loss-found-late",
    /// A request is identified without its session's generation, and the number of a session is
    /// reused while handlers of it run (E68). Effect: a reply to a request of an ended session
    /// answers one of its successor.
    GenerationIgnored = 25 "generation-ignored",
    /// A server forgets grants (ADR 35): it counts them and does not state them. Effect:
    /// calls with large messages to crowded servers do not end.
    GrantForgotten = 26 "grant-forgotten",
    /// The window of congestion control decreases and never increases. Effect: paths become slower
    /// until they have a packet in 64 round trips.
    WindowNeverRecovers = 27 "window-never-recovers",
    /// A message that has ended keeps its part of the receiver's budget. Effect: the budget in use
    /// does not match the messages that arrive.
    BudgetLeaks = 28 "budget-leaks",
    /// A packet whose departure time has not come is sent at once, and again at that time. Effect:
    /// packets that were sent twice without a loss.
    PacedTwice = 29 "paced-twice",
    /// Ingress accepts frames whose checksum differs. Effect: a request or response with bytes that
    /// were never sent.
    ChecksumIgnored = 30 "checksum-ignored",
    /// A one-way message that has arrived before is delivered again. Effect: two deliveries.
    MessageTwice = 31 "message-twice",
    /// A one-way message is delivered although its deadline has passed. Effect: a delivery after it.
    StaleMessage = 32 "stale-message",
    /// A lost one-way message is not sent again when later ones have arrived, nor after a timeout.
    /// Effect: messages that are never delivered while their session lives.
    LostMessageForgotten = 33 "lost-message-forgotten",
    /// The newest waiting one-way message of a session is sent first. Effect: messages out of order
    /// on a network that neither loses nor reorders frames.
    NewestMessageFirst = 34 "newest-message-first",
    /// A call that has ended with any error of the server is made again, as if it had been refused for
    /// lack of memory (ADR 36). Effect: two executions of one call.
    RanMadeAgain = 35 "ran-made-again",
    /// Only 16 of the 32 bits of a frame's check value are compared. Effect: one changed frame of
    /// 65,536 is accepted, and half of those that differ in one bit of the check value.
    ChecksumHalved = 36 "checksum-halved",
    /// Packets take the room of a small one whatever their size. Effect: receive queues that hold more
    /// small frames than large ones overflow.
    LargePacketsSmall = 37 "large-packets-small",
    /// Packets that were lost, or whose sender is silent, stay in the receiver's budget (ADR 35). Effect:
    /// other senders get smaller grants than they may have.
    LostPacketsGranted = 38 "lost-packets-granted",
    /// A call whose future was dropped keeps its entry when it has ended. Effect: the table of awaited
    /// calls grows with each dropped future.
    DroppedEntryKept = 39 "dropped-entry-kept",
    /// The task of a call that has ended is not woken. Effect: futures that never end.
    FutureNotWoken = 40 "future-not-woken",
    /// Messages with as many packets left are granted packets in the reverse of their order (ADR 35).
    /// Effect: senders with the same work get a small part of the others' share.
    NewestGrantedFirst = 41 "newest-granted-first",
    /// The receiver's budget follows a queue that is eight times too long (ADR 35). Effect: such a queue in
    /// front of a receiver with many senders.
    QueueEightfold = 42 "queue-eightfold",
    /// The timeout of a request that waits for a grant does not contain the time that grants take. Effect:
    /// packets are sent again although nothing was lost.
    GrantWaitIgnored = 43 "grant-wait-ignored",
}

/// Returns whether a bug is planted; `false` in a build without the feature, and removed.
#[cfg(not(feature = "mutants"))]
#[doc(hidden)]
#[inline]
pub const fn is_on(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
mod planted {
    use std::cell::Cell;
    use std::fmt;
    use std::str::FromStr;

    use super::Mutant;

    thread_local! {
        static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Plants a bug, or none, in all endpoints that this thread runs from now on. Other threads
    /// have their own, so that parallel simulations do not affect each other.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.set(mutant);
    }

    /// The bug that is planted on this thread.
    pub fn planted() -> Option<Mutant> {
        PLANTED.get()
    }

    /// Returns whether a bug is planted on this thread.
    #[doc(hidden)]
    #[inline]
    pub fn is_on(mutant: Mutant) -> bool {
        PLANTED.get() == Some(mutant)
    }

    impl Mutant {
        /// Its number in the list, from 1.
        pub const fn number(self) -> u8 {
            self as u8
        }
    }

    impl fmt::Display for Mutant {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.name())
        }
    }

    /// No planted bug has this name or number.
    #[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
    #[error("no planted bug is called {0:?}")]
    pub struct UnknownMutant(String);

    impl FromStr for Mutant {
        type Err = UnknownMutant;

        fn from_str(s: &str) -> Result<Self, UnknownMutant> {
            let number: Option<u8> = s.parse().ok();
            let named = |m: &Mutant| m.name() == s || Some(m.number()) == number;
            Mutant::ALL.into_iter().find(named).ok_or_else(|| UnknownMutant(s.into()))
        }
    }
}

#[cfg(feature = "mutants")]
pub use planted::{UnknownMutant, is_on, plant, planted};

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique() {
        for (number, m) in (1..).zip(Mutant::ALL) {
            assert_eq!(m.number(), number);
            assert_eq!((m.name().parse(), number.to_string().parse()), (Ok(m), Ok(m)));
        }
        let unknown: Result<Mutant, _> = "0".parse();
        assert_eq!(unknown.unwrap_err().to_string(), "no planted bug is called \"0\"");
    }

    #[test]
    fn a_planted_bug_affects_only_its_thread() {
        plant(Some(Mutant::OrphanKept));
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!((planted(), is_on(Mutant::OrphanKept)), (None, false)));
        });
        assert!(is_on(Mutant::OrphanKept) && !is_on(Mutant::CookieIgnored));
        plant(None);
        assert_eq!(planted(), None);
    }
}
