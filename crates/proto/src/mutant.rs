//! Planted bugs: each disables one invariant at the place that enforces it. A simulation that does
//! not find them would not find their like either.
//!
//! A normal build has none of this: without the feature `mutants` `is_on` is a constant `false`,
//! and the compiler removes the branch. The feature is for tests only; it must never be a default,
//! nor enabled by a dependency that is not a test's.

/// Makes the enumeration and its tables of one list, so that none can forget an entry.
macro_rules! mutants {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// One planted bug. A variant's documentation names the invariant that it disables, and
        /// what a checker outside the endpoint sees of it.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Mutant {
            $($(#[$doc])* $variant = $number,)*
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            /// All of them, by number.
            pub const ALL: [Mutant; [$($number),*].len()] = [$(Mutant::$variant),*];

            /// What a command line calls it; [`std::str::FromStr`] reads it, and the number too.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)*
                }
            }
        }
    };
}

mutants! {
    /// A duplicate of a request that was answered runs the handler again, once more at each
    /// (E1, E61). Seen: two executions of one request.
    AnsweredRunsAgain = 1 "answered-runs-again",
    /// A duplicate of a request that is still with its handler runs the handler beside it
    /// (E1, F5). Seen: two executions of one request.
    ExecutingRunsAgain = 2 "executing-runs-again",
    /// A credit return gives no credits back (E33, E42). Seen: credits and packets in flight do
    /// not add up to C; large messages end too late or never.
    CreditReturnIgnored = 3 "credit-return-ignored",
    /// A timeout rolls a request back and does not reclaim its credits (E59). Seen: credits and
    /// packets in flight do not add up to C after a loss; the session starves.
    CreditsLostInRollback = 4 "credits-lost-in-rollback",
    /// A late response gives a credit back that the rollback has reclaimed already (E33, E59).
    /// Seen: more credits than C, and soon more than C packets in flight.
    CreditGivenTwice = 5 "credit-given-twice",
    /// A completion does not wait until the transport has let go of the request (E24, E25).
    /// Seen: the application has a buffer that a transmit queue still reads.
    BufferReturnedEarly = 6 "buffer-returned-early",
    /// The door does not look at the cookie (F14). Seen: a frame that was meant for an earlier
    /// incarnation, or whose cookie was corrupted, is accepted.
    CookieIgnored = 7 "cookie-ignored",
    /// A client takes whatever answer comes for a slot, also a late one to the request before
    /// (E61). Seen: a response that is not its request's; two completions of one execution.
    OldAnswerTaken = 8 "old-answer-taken",
    /// A server takes request packets that came before their turn as if they were the next
    /// (E58). Seen: a handler gets a request with bytes that nobody sent.
    RequestGapTaken = 9 "request-gap-taken",
    /// A client takes response packets that came before their turn as if they were the next
    /// (E58). Seen: a response with bytes that nobody sent.
    ResponseGapTaken = 10 "response-gap-taken",
    /// A slot whose call was given up takes the next call at once (F15). Seen: when the server
    /// has not heard of the first, no call on that slot ends any more but by an error.
    NoQuarantine = 11 "no-quarantine",
    /// Server sessions outlive the failure of their client (E66, E68). Seen: sessions, and their
    /// memory, that belong to nobody.
    OrphanKept = 12 "orphan-kept",
    /// A session that fails drops the calls that wait for a slot (E27). Seen: calls that never
    /// complete.
    WaitingCallsForgotten = 13 "waiting-calls-forgotten",
    /// Requests-for-response are not repeated, nor anything else once a part of the response is
    /// there (E57, E59). Seen: after one loss a call with a large response never completes.
    RfrNotRepeated = 14 "rfr-not-repeated",
    /// A server does not send a stored response again (E61). Seen: after the loss of a response
    /// its call never completes, or ends because the datapath seems dead.
    ResponseNotResent = 15 "response-not-resent",
    /// A call forgets its deadline when it gets a slot (F15). Seen: a call that ends long after
    /// its deadline, or never.
    DeadlineIgnored = 16 "deadline-ignored",
    /// A control connection is never given up, however long its other side is silent (E66). Seen:
    /// sessions of a peer that has vanished are never freed, or not before the datapath's timeout.
    PeerNeverDead = 17 "peer-never-dead",
    /// A server sends the second packet of a response with the first, unasked (E39, E43). Seen:
    /// more packets of a server than its clients' packets allow; they arrive without a credit.
    ResponseUnasked = 18 "response-unasked",
    /// A response stays stored when its client has acknowledged it (F6). Seen: memory in use
    /// though nothing is under way.
    StoredResponseKept = 19 "stored-response-kept",
    /// A call that fails says "never executed" when the request was sent whole but not
    /// acknowledged (E27, F15). Seen: "never", and a handler that ran.
    ClaimsNeverExecuted = 20 "claims-never-executed",
    /// A timeout reclaims the credits of its session, and not those of the pool that all sessions of
    /// the peer share (E36, E59). Seen: the pool and what is in flight do not add up; in the end no
    /// session of the peer can send.
    PoolForgotten = 21 "pool-forgotten",
    /// A server takes nothing off a deadline for the time that a request was under way (F15). Seen: a
    /// handler that starts after its client has given the call up.
    AgeForgotten = 22 "age-forgotten",
    /// Request numbers are compared as if they never wrapped (E30). Seen: the first requests behind
    /// the wrap are never taken; their calls do not end.
    WrapForgotten = 23 "wrap-forgotten",
    /// Selective recovery finds no packet lost because others have overtaken it. Seen: each loss
    /// within a message costs timeouts; nothing else.
    LossFoundLate = 24 "loss-found-late",
    /// A request is found by the number of its session alone, and that number is free although
    /// handlers of the session have not answered (E68). Seen: an answer to a request of a session
    /// that has ended answers one of the next session of that number.
    GenerationIgnored = 25 "generation-ignored",
}

/// Whether a bug is planted; `false` in a build without the feature, and removed.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn is_on(_: Mutant) -> bool {
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

    /// Plants a bug in all endpoints that this thread runs from now on, or none. Other threads
    /// have their own: the simulations that a program runs side by side do not disturb each other.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.set(mutant);
    }

    /// The bug that is planted on this thread.
    pub fn planted() -> Option<Mutant> {
        PLANTED.get()
    }

    /// Whether a bug is planted on this thread.
    #[inline]
    pub(crate) fn is_on(mutant: Mutant) -> bool {
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

    /// There is no planted bug of that name or number.
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
pub(crate) use planted::is_on;
#[cfg(feature = "mutants")]
pub use planted::{UnknownMutant, plant, planted};

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_their_own() {
        for (number, m) in (1..).zip(Mutant::ALL) {
            assert_eq!(m.number(), number);
            assert_eq!((m.name().parse(), number.to_string().parse()), (Ok(m), Ok(m)));
        }
        let unknown: Result<Mutant, _> = "0".parse();
        assert_eq!(unknown.unwrap_err().to_string(), "no planted bug is called \"0\"");
    }

    #[test]
    fn a_bug_stays_on_its_thread() {
        plant(Some(Mutant::OrphanKept));
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!((planted(), is_on(Mutant::OrphanKept)), (None, false)));
        });
        assert!(is_on(Mutant::OrphanKept) && !is_on(Mutant::CookieIgnored));
        plant(None);
        assert_eq!(planted(), None);
    }
}
