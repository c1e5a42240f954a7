//! Checks that a member runs as one process.
//!
//! A process that introduces itself as a member with another address, or as another process than before at
//! the same one, has moved or was started again, or it runs from a copy of the directory while the original
//! runs too. Then both would vote, and each would acknowledge entries that the other does not have. So it
//! waits until the known address was asked: a process of the member that answers there keeps it out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use courser::{DialError, Local, SessionError};

use crate::api::{PeerError, PeersClient, Who};

/// Longest time in which the known address may answer, and for which the outcome counts.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between attempts to reach the known address.
const PAUSE: Duration = Duration::from_millis(50);

/// A process that introduces itself as a member.
#[derive(Clone, PartialEq, Eq)]
struct Claim {
    uri: String,
    process: u64,
}

enum State {
    /// The known address is being asked.
    Running,
    /// The outcome, and the time until which it counts, ns.
    Ended { is_alone: bool, until_ns: u64 },
}

struct Check {
    claim: Claim,
    /// The known address at the end.
    known: String,
    state: State,
}

/// The checks, at most one of a member.
#[derive(Default)]
pub(super) struct Checks {
    all: RefCell<BTreeMap<u64, Check>>,
    /// The last accepted processes of members.
    processes: RefCell<BTreeMap<u64, u64>>,
}

impl Checks {
    /// Notes the process of a member at its known address.
    pub(super) fn accept(&self, id: u64, process: u64) {
        self.processes.borrow_mut().insert(id, process);
    }

    fn knows(&self, id: u64, process: u64) -> bool {
        self.processes.borrow().get(&id).is_none_or(|last| *last == process)
    }

    /// The outcome for a claim. `None`: a check has to begin.
    fn outcome(
        &self,
        id: u64,
        claim: &Claim,
        known: &str,
        now_ns: u64,
    ) -> Option<Result<(), PeerError>> {
        let mut all = self.all.borrow_mut();
        let check = all.get(&id)?;
        let is_own = check.claim == *claim;
        let State::Ended { is_alone, until_ns } = check.state else {
            return Some(Err(PeerError::Checking));
        };
        if until_ns <= now_ns || check.known != known {
            return None;
        }
        match (is_alone, is_own) {
            (true, true) => {
                all.remove(&id);
                Some(Ok(()))
            }
            // Else two processes could end each other's checks again and again.
            (true, false) => Some(Err(PeerError::Checking)),
            (false, true) => {
                let (known, other) = (known.to_owned(), claim.uri.clone());
                Some(Err(PeerError::Twice { id, known, other }))
            }
            (false, false) => None,
        }
    }
}

/// Why the known address gives no answer.
enum NoAnswer {
    /// No program listens there.
    Refused,
    /// The network, the machine or the program may be slow.
    Late,
}

/// A member that introduces itself, and the node that checks it.
pub(super) struct Request {
    pub(super) id: u64,
    /// The address and the process of the introduction.
    pub(super) uri: String,
    pub(super) process: u64,
    /// The node that checks.
    pub(super) own: Who,
}

impl Checks {
    /// Checks that a member runs once, by its known address as `known` has it at each time. The first
    /// introduction begins the check, and the sender repeats it.
    pub(super) fn examine(
        self: &Rc<Self>,
        local: &Local,
        request: Request,
        known: impl Fn() -> Option<String> + 'static,
    ) -> Result<(), PeerError> {
        let Some(present) = known() else { return Ok(()) };
        let Request { id, uri, process, own } = request;
        if present == uri && self.knows(id, process) {
            return Ok(());
        }
        let claim = Claim { uri, process };
        if let Some(outcome) = self.outcome(id, &claim, &present, local.now_ns()) {
            return outcome;
        }
        let check = Check { claim: claim.clone(), known: present, state: State::Running };
        self.all.borrow_mut().insert(id, check);
        let (checks, of_task) = (self.clone(), local.clone());
        drop(local.spawn(async move {
            let check = run(&of_task, id, claim, &own, known).await;
            checks.all.borrow_mut().insert(id, check);
        }));
        Err(PeerError::Checking)
    }
}

async fn run(
    local: &Local,
    id: u64,
    claim: Claim,
    own: &Who,
    known: impl Fn() -> Option<String>,
) -> Check {
    loop {
        let asked = known().unwrap_or_default();
        let who = answer(local, &asked).await;
        // Another address may have become known meanwhile.
        if known().unwrap_or_default() == asked {
            let is_other = who.is_some_and(|who| {
                who.id == id
                    && who.cluster == own.cluster
                    && who.identity.fits(own.identity)
                    && who.process != claim.process
            });
            let until_ns = local.now_ns().saturating_add(PATIENCE.as_nanos() as u64);
            let state = State::Ended { is_alone: !is_other, until_ns };
            return Check { claim, known: asked, state };
        }
    }
}

/// The process that answers at an address. `None`: no program listens there, or none answers in time.
async fn answer(local: &Local, uri: &str) -> Option<Who> {
    let attempts = async {
        loop {
            match ask(local, uri).await {
                Ok(who) => return Some(who),
                Err(NoAnswer::Refused) => return None,
                Err(NoAnswer::Late) => local.sleep(PAUSE).await,
            }
        }
    };
    local.timeout(PATIENCE, attempts).await.ok().flatten()
}

async fn ask(local: &Local, uri: &str) -> Result<Who, NoAnswer> {
    let session = local.connect(uri).await.map_err(|error| match error {
        SessionError::Dial(DialError::Connect { cause, .. })
            if cause.kind() == ErrorKind::ConnectionRefused =>
        {
            NoAnswer::Refused
        }
        _ => NoAnswer::Late,
    })?;
    let client = PeersClient::new(session).await.map_err(|_| NoAnswer::Late)?;
    client.who().await.map_err(|_| NoAnswer::Late)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_counts_for_one_process_and_known_address_and_a_time() {
        let claim = |process| Claim { uri: "new".to_owned(), process };
        let checks = Checks::default();
        let ended = |is_alone| {
            let state = State::Ended { is_alone, until_ns: 10 };
            let check = Check { claim: claim(1), known: "known".to_owned(), state };
            checks.all.borrow_mut().insert(3, check);
        };
        let twice = || {
            let (known, other) = ("known".to_owned(), "new".to_owned());
            Some(Err(PeerError::Twice { id: 3, known, other }))
        };
        for is_alone in [true, false] {
            ended(is_alone);
            assert_eq!(checks.outcome(2, &claim(1), "known", 9), None);
            assert_eq!(checks.outcome(3, &claim(1), "another", 9), None);
            assert_eq!(checks.outcome(3, &claim(1), "known", 10), None);
        }
        // A refused process keeps no other one out.
        assert_eq!(checks.outcome(3, &claim(2), "known", 9), None);
        assert_eq!(checks.outcome(3, &claim(1), "known", 9), twice());
        assert_eq!(checks.outcome(3, &claim(1), "known", 9), twice());
        ended(true);
        assert_eq!(checks.outcome(3, &claim(2), "known", 9), Some(Err(PeerError::Checking)));
        assert_eq!(checks.outcome(3, &claim(1), "known", 9), Some(Ok(())));
        assert_eq!(checks.outcome(3, &claim(1), "known", 9), None);
    }
}
