//! Retries of calls: which ones, how often, and how fast.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use courser_proto::{CallError, Executed, Status};

use crate::error::failure::CallFailure;
use crate::error::service::{DecodeError, NoError, RpcError};

/// Retries that a call adds to those that may be made, in thousandths: at most 10 % more load.
const EARNED: u64 = 100;
/// A retry, in thousandths.
const RETRY: u64 = 1_000;
/// Retries that may be made at first, so that a client with few calls has some, in thousandths.
const FIRST: u64 = 3 * RETRY;
/// Most retries that are saved for later, in thousandths: a burst of them is not much load.
const MOST: u64 = 10 * RETRY;

/// When the unary calls of a client are made again: `client.with_retries(RetryPolicy::default())`.
///
/// A call is repeated by its verdict ([`RpcError::executed`]):
///
/// | error | repeated |
/// | --- | --- |
/// | never executed: no connection, a server without the service, a lost server, a server that is busy, has no memory or shuts down, [`RpcError::TooMany`] | yes |
/// | may have executed: a server was lost, or ended the handler | if the method has `#[idempotent]` |
/// | an error of the application, a panic, an answer that cannot be decoded, a refusal | no |
/// | an unknown method of a service that the server has | no |
/// | the deadline of the call has passed | no |
///
/// All attempts end by the deadline of the call. A pause that would last longer is not begun: the call ends
/// with the error of its last attempt. So do calls beyond the budget: each call adds a tenth of a retry,
/// of which at most 10 are saved, and [`Retries`] begin with 3. So retries are at most 10 % of the
/// calls and 3 more, however many fail. Clones of a client share the budget. Each `with_retries` with a
/// policy begins a new one: one that is made for each request bounds nothing.
///
/// A call that is repeated ends with the error of its last attempt, unless that never ran and an earlier one
/// may have: then it ends with the error of the earlier one.
///
/// One-way messages and streams are not repeated. A session of an endpoint ([`crate::Session`]) that has
/// ended does not connect again, so calls on it are not repeated either; those of a [`crate::Client`] are.
///
/// ```
/// use std::time::Duration;
///
/// use courser::service::{Retries, RetryPolicy};
///
/// #[courser::service]
/// trait Store {
///     #[idempotent]
///     #[deadline("50 ms")]
///     async fn get(&self, key: String) -> String;
/// }
/// # struct Texts;
/// # impl Store for Texts { async fn get(&self, key: String) -> String { key } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let policy = RetryPolicy::default().attempts(4).pauses(Duration::from_millis(2), Duration::from_millis(50));
/// let retries = Retries::new(policy);
/// let store = StoreClient::connect(&uri).await?.with_retries(retries.clone());
/// assert_eq!(store.get("a".to_owned()).await?, "a");
/// assert_eq!((retries.stats().calls, retries.stats().retries), (1, 0));
/// # Ok(()) })
/// # }
/// ```
///
/// # Cost
/// A copy of the request for each attempt that may be repeated, and an allocation for the call. Clients
/// without retries have no cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    attempts: u32,
    first_pause: Duration,
    most_pause: Duration,
    longest_wait: Duration,
}

impl Default for RetryPolicy {
    /// Up to 3 attempts, pauses of 5 to 500 ms, and up to 5 s where a server asks for it.
    fn default() -> Self {
        RetryPolicy {
            attempts: 3,
            first_pause: Duration::from_millis(5),
            most_pause: Duration::from_millis(500),
            longest_wait: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// How often a call is made at most, the first time included; 0 is 1.
    #[must_use]
    pub fn attempts(mut self, most: u32) -> Self {
        self.attempts = most.max(1);
        self
    }

    /// The pause before the second attempt, and the longest one. Each is twice the one before, of which
    /// the second half is drawn at random, so that clients do not come all at once.
    #[must_use]
    pub fn pauses(mut self, first: Duration, most: Duration) -> Self {
        (self.first_pause, self.most_pause) = (first, most.max(first));
        self
    }

    /// The longest time to wait for which a server may ask ([`RpcError::TooMany`]). The client adds a pause
    /// of its own. A call whose server asks for more ends.
    #[must_use]
    pub fn longest_wait(mut self, most: Duration) -> Self {
        self.longest_wait = most;
        self
    }
}

/// The retries of one or several clients: a policy, their budget, counters. Clones share it.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{Retries, RetryPolicy};
///
/// // One budget for all clients that share it, so that they repeat a tenth of their calls together.
/// let retries = Retries::new(RetryPolicy::default());
/// let first = StoreClient::connect(&uri).await?.with_retries(retries.clone());
/// let second = StoreClient::connect(&uri).await?.with_retries(retries.clone());
/// first.len("apple".to_owned()).await?;
/// second.len("apple".to_owned()).await?;
/// assert_eq!(retries.stats().calls, 2);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct Retries(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    policy: RetryPolicy,
    /// Retries that may be made, in thousandths.
    budget: AtomicU64,
    calls: AtomicU64,
    retries: AtomicU64,
    over_budget: AtomicU64,
}

/// Counters of [`Retries`].
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{Retries, RetryPolicy, RetryStats};
///
/// let retries = Retries::new(RetryPolicy::default());
/// let store = StoreClient::connect(&uri).await?.with_retries(retries.clone());
/// store.len("apple".to_owned()).await?;
/// let RetryStats { calls, retries, .. } = retries.stats();
/// assert_eq!((calls, retries), (1, 0));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct RetryStats {
    /// Calls that were made.
    pub calls: u64,
    /// Attempts beside the first ones.
    pub retries: u64,
    /// Calls that would have been repeated, but for the budget.
    pub over_budget: u64,
}

impl From<RetryPolicy> for Retries {
    fn from(policy: RetryPolicy) -> Self {
        Retries::new(policy)
    }
}

impl Retries {
    /// With a budget of its own.
    pub fn new(policy: RetryPolicy) -> Self {
        let [calls, retries, over_budget] = [(); 3].map(|()| AtomicU64::new(0));
        let budget = AtomicU64::new(FIRST);
        Retries(Arc::new(Shared { policy, budget, calls, retries, over_budget }))
    }

    /// The counters.
    pub fn stats(&self) -> RetryStats {
        let Shared { calls, retries, over_budget, .. } = &*self.0;
        let [calls, retries, over_budget] =
            [calls, retries, over_budget].map(|counter| counter.load(Ordering::Relaxed));
        RetryStats { calls, retries, over_budget }
    }

    /// A call begins.
    pub(crate) fn begin(&self) {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.earn(EARNED);
    }

    /// Returns whether there is none after this number of attempts.
    pub(crate) fn is_last(&self, attempts: u32) -> bool {
        attempts >= self.0.policy.attempts
    }

    /// Takes a retry from the budget. `None`: it has none.
    pub(crate) fn take(&self) -> Option<RetryPlace<'_>> {
        let less = |budget: u64| budget.checked_sub(RETRY);
        let taken = self.0.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if taken.is_err() {
            self.0.over_budget.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(RetryPlace { of: self, is_made: false })
    }

    fn earn(&self, more: u64) {
        let more = |budget: u64| Some((budget + more).min(MOST));
        let _ = self.0.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// The pause after an attempt with this error. `None`: it is not repeated.
    pub(crate) fn pause(
        &self,
        error: &RpcError<NoError>,
        is_idempotent: bool,
        attempts: u32,
        random: u64,
    ) -> Option<Duration> {
        let policy = &self.0.policy;
        let is_safe = match error.executed() {
            Executed::Never => true,
            Executed::Maybe => is_idempotent,
            Executed::Yes => false,
        };
        if !is_safe || !may_pass(error) {
            return None;
        }
        let doubled = policy.first_pause.saturating_mul(1 << (attempts - 1).min(20));
        let whole_ns = u64::try_from(doubled.min(policy.most_pause).as_nanos()).unwrap_or(u64::MAX);
        let half_ns = whole_ns / 2;
        let pause = Duration::from_nanos(half_ns + random % (half_ns + 1));
        match error {
            RpcError::TooMany { retry_after, .. } if *retry_after > policy.longest_wait => None,
            RpcError::TooMany { retry_after, .. } => Some(*retry_after + pause),
            _ => Some(pause),
        }
    }
}

/// A retry that was taken from the budget. The drop of one that is not made gives it back.
#[must_use]
pub(crate) struct RetryPlace<'a> {
    of: &'a Retries,
    is_made: bool,
}

impl RetryPlace<'_> {
    /// The retry is made.
    pub(crate) fn fill(mut self) {
        self.is_made = true;
        self.of.0.retries.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for RetryPlace<'_> {
    fn drop(&mut self) {
        if !self.is_made {
            self.of.earn(RETRY);
        }
    }
}

/// Returns whether the cause of an error may be gone at the next attempt.
fn may_pass(error: &RpcError<NoError>) -> bool {
    match error {
        RpcError::TooMany { .. } | RpcError::Decode(DecodeError::RemoteFull(_)) => true,
        RpcError::Call(failure) => match failure {
            CallFailure::NotConnected { .. } | CallFailure::Lost { .. } => true,
            CallFailure::Failed(error) => match error {
                CallError::PeerFailed(_)
                | CallError::DatapathSilent(_)
                | CallError::NotConnected(_) => true,
                CallError::Server(status) => matches!(
                    status,
                    Status::WorkersBusy
                        | Status::NoMemory
                        | Status::ShuttingDown
                        | Status::NotStarted
                        | Status::Dropped
                        | Status::GraceEnded
                ),
                _ => false,
            },
            _ => false,
        },
        _ => false,
    }
}
