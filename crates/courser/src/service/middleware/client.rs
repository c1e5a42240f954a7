//! Middleware of a client.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::end::CallEnd;
use crate::channel::CallOptions;
use crate::channel::method::ServiceInfo;
use crate::counts::CallOutcome;
use crate::panics::caught;
use crate::platform::Clock;
use crate::service::access::Denied;
use crate::service::context::{Complete, Metadata, MetadataError, MetadataValue};
use crate::shape::method::MethodKind;

/// Sees the calls of a typed client: `client.with_middleware(middleware)`.
///
/// Both functions run where the call is made and polled, and must not block. Middleware is called in the
/// order in which it was added, at the end in the opposite order, and once for a call that is made several
/// times ([`crate::service::RetryPolicy`]).
///
/// ```
/// use std::time::Duration;
///
/// use courser::service::{CallEnd, ClientMiddleware, Denied, OutgoingCall, TraceParent};
///
/// /// Gives each call a trace, and a deadline.
/// struct Traced;
///
/// impl ClientMiddleware for Traced {
///     fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Denied> {
///         if call.metadata().get("traceparent").is_none() {
///             let parent = TraceParent::new([7; 16], [1; 8], true).expect("it is not 0");
///             call.add_metadata("traceparent", parent)?;
///         }
///         if call.deadline().is_none() {
///             call.set_deadline(Duration::from_secs(1));
///         }
///         Ok(())
///     }
///     fn after(&self, end: &CallEnd<'_>) {
///         println!("{}.{} took {:?}: {:?}", end.service, end.method, end.duration, end.outcome);
///     }
/// }
///
/// # #[courser::service] trait Store { async fn get(&self, key: String) -> String; }
/// # struct Texts;
/// # impl Store for Texts { async fn get(&self, key: String) -> String { key } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let store = StoreClient::connect(&uri).await?.with_middleware(Traced);
/// assert_eq!(store.get("a".to_owned()).await?, "a");
/// # Ok(()) })
/// # }
/// ```
///
/// # Cost
/// A client without middleware has none. With it a call takes its functions and some allocations.
pub trait ClientMiddleware: Send + Sync + 'static {
    /// Sees a call, a message, or the opening of a stream when its future is made, before it is sent. A
    /// panic refuses the call.
    ///
    /// # Errors
    /// The call is not made: [`CallFailure::Middleware`](crate::CallFailure::Middleware), with the text.
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Denied>;

    /// Sees the end of each unary call that `before` has let pass, once, also of those that are dropped. The
    /// ends of streams and of one-way messages are not seen.
    fn after(&self, _end: &CallEnd<'_>) {}
}

/// A call that is made, as [`ClientMiddleware::before`] sees it.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::time::Duration;
///
/// use courser::service::{ClientMiddleware, Denied, MethodKind, OutgoingCall};
///
/// /// Gives unary calls a deadline and a tenant.
/// struct Defaults;
///
/// impl ClientMiddleware for Defaults {
///     fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Denied> {
///         if call.kind() == MethodKind::Unary && call.deadline().is_none() {
///             call.set_deadline(Duration::from_secs(5));
///         }
///         call.add_metadata("tenant", "green").map_err(|e| Denied::new(e.to_string()))
///     }
/// }
///
/// let store = StoreClient::connect(&uri).await?.with_middleware(Defaults);
/// assert_eq!(store.tenant().await?, "green");
/// # Ok(()) }) }
/// ```
pub struct OutgoingCall<'a> {
    subject: Subject,
    options: &'a mut CallOptions,
    metadata: &'a mut Complete,
}

/// The method of a call.
#[derive(Clone, Copy)]
struct Subject {
    service: &'static str,
    method: &'static str,
    kind: MethodKind,
    is_idempotent: bool,
}

impl fmt::Debug for OutgoingCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingCall")
            .field("service", &self.service())
            .field("method", &self.method())
            .field("options", &self.options)
            .field("metadata", self.metadata())
            .finish()
    }
}

impl OutgoingCall<'_> {
    /// The name of the service.
    pub fn service(&self) -> &'static str {
        self.subject.service
    }

    /// The name of the method.
    pub fn method(&self) -> &'static str {
        self.subject.method
    }

    /// The kind of the method.
    pub fn kind(&self) -> MethodKind {
        self.subject.kind
    }

    /// Returns whether the method has `#[idempotent]`.
    pub fn is_idempotent(&self) -> bool {
        self.subject.is_idempotent
    }

    /// The deadline of the call, from its start. `None`: it has none of its own.
    pub fn deadline(&self) -> Option<Duration> {
        self.options.deadline
    }

    /// Sets the deadline, in place of an earlier one.
    pub fn set_deadline(&mut self, after: impl Into<Option<Duration>>) {
        self.options.deadline = after.into();
    }

    /// The metadata of the call: its own, that of its client, and what it inherits of the call that it is
    /// made by.
    pub fn metadata(&self) -> &Metadata {
        self.metadata.metadata()
    }

    /// Adds a pair to the metadata, in place of an earlier one with this key.
    ///
    /// # Errors
    /// The key or the value is not allowed, or there is no room for it.
    pub fn add_metadata<'v>(
        &mut self,
        key: &str,
        value: impl Into<MetadataValue<'v>>,
    ) -> Result<(), MetadataError> {
        self.metadata.insert(key, value.into())
    }
}

/// The middleware of a client; the first one is the outermost.
#[derive(Clone, Default)]
pub(crate) struct ClientChain(Arc<[Arc<dyn ClientMiddleware>]>);

impl ClientChain {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// With another one behind those that are there.
    pub(crate) fn with(&self, last: Arc<dyn ClientMiddleware>) -> Self {
        ClientChain(self.0.iter().cloned().chain([last]).collect())
    }

    /// Passes a call of the method at this place to all, until one refuses it.
    ///
    /// # Errors
    /// It does; those before it have seen the end of a unary call.
    pub(crate) fn admit(
        self,
        info: &'static ServiceInfo,
        index: u16,
        options: &mut CallOptions,
        metadata: &mut Complete,
    ) -> Result<Observed, Denied> {
        let at = usize::from(index);
        let (method, kind) = (info.methods[at], info.shapes()[at].kind());
        let (service, is_idempotent) = (info.name, method.is_idempotent);
        let subject = Subject { service, method: method.name, kind, is_idempotent };
        let (count, outcome) = (self.0.len(), CallOutcome::Cancelled);
        let kept = Metadata::new();
        let mut observed =
            Observed { chain: self, passed: 0, subject, kept, begun: None, outcome, attempts: 0 };
        for at in 0..count {
            let mut decision = Err(Denied::new("it has panicked"));
            caught("middleware", 0, || {
                let mut call = OutgoingCall { subject, options, metadata };
                decision = observed.chain.0[at].before(&mut call);
            });
            if let Err(denied) = decision {
                observed.kept.clone_from(metadata.metadata());
                observed.refuse(CallOutcome::Denied);
                return Err(denied);
            }
            observed.passed += 1;
        }
        observed.kept.clone_from(metadata.metadata());
        Ok(observed)
    }
}

/// A call that middleware has let pass. Its end is reported at the drop.
pub(crate) struct Observed {
    chain: ClientChain,
    /// The number of middleware that have let it pass.
    passed: usize,
    subject: Subject,
    /// The metadata.
    kept: Metadata,
    begun: Option<(Clock, Instant)>,
    outcome: CallOutcome,
    attempts: u32,
}

impl Observed {
    /// The call is polled for the first time.
    pub(crate) fn begin(&mut self, clock: Clock) {
        let now = clock.now();
        self.begun = Some((clock, now));
    }

    /// The call is made, once more.
    pub(crate) fn attempt(&mut self) {
        self.attempts += 1;
    }

    /// Reports the end.
    pub(crate) fn end(mut self, outcome: CallOutcome) {
        self.outcome = outcome;
    }

    /// Reports the end of a call that is not made, if those of its kind are seen.
    pub(crate) fn refuse(self, outcome: CallOutcome) {
        match self.subject.kind {
            MethodKind::Unary => self.end(outcome),
            _ => self.forget(),
        }
    }

    /// Reports no end.
    pub(crate) fn forget(mut self) {
        self.passed = 0;
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let Subject { service, method, kind, .. } = self.subject;
        let since =
            |(clock, begun): &(Clock, Instant)| clock.now().saturating_duration_since(*begun);
        let end = CallEnd {
            service,
            method,
            kind,
            peer: None,
            metadata: &self.kept,
            outcome: self.outcome,
            duration: self.begun.as_ref().map(since).unwrap_or_default(),
            attempts: self.attempts,
        };
        for middleware in self.chain.0[..self.passed].iter().rev() {
            caught("middleware", 0, || middleware.after(&end));
        }
    }
}
