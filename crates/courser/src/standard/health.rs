//! Health and readiness of a server and its services.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use courser_net::Transport;
use slab::Slab;

use crate::core::drain::{DrainToken, Draining};
use crate::error::register::RegisterError;
use crate::error::service::{DecodeError, EncodeError};
use crate::panics::wake_all;
use crate::rpc::Rpc;
use crate::server::Server;
use crate::service::{
    Bytes, Decode, Encode, LocalService, Payload, Registry, Service, Stream, Writer,
};

/// The name of the service.
const SERVICE: &str = HealthCheckClient::SERVICE.name;

/// Most bytes of the name of a service that clients may ask for.
const MOST_NAME: usize = 100;

/// The state of a server, or of one of its services.
///
/// Example: [`Health`](crate::health::Health).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum HealthStatus {
    /// The server has set no state for a service of this name.
    Unknown = 0,
    /// It takes requests.
    Serving = 1,
    /// It takes no requests, by its own statement, or since the server shuts down, which open streams
    /// get to know.
    NotServing = 2,
}

impl fmt::Display for HealthStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HealthStatus::Unknown => "unknown",
            HealthStatus::Serving => "serving",
            HealthStatus::NotServing => "not serving",
        })
    }
}

impl Encode<HealthStatus> for Bytes {
    fn encode(value: &HealthStatus, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        <Bytes as Encode<[u8]>>::encode(&[*value as u8], out)
    }
}

impl Decode<HealthStatus> for Bytes {
    fn decode(from: Payload<'_>) -> Result<HealthStatus, DecodeError> {
        match from.bytes() {
            [0] => Ok(HealthStatus::Unknown),
            [1] => Ok(HealthStatus::Serving),
            [2] => Ok(HealthStatus::NotServing),
            _ => Err(DecodeError::Form("a state of health that is not known")),
        }
    }
}

/// The standard service for health, which [`Server::add_health`] adds. Its client is
/// `HealthCheckClient`.
///
/// ```
/// use courser::health::{Health, HealthCheckClient, HealthStatus};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let health = Health::new();
/// let server = courser::Server::bind("udp://127.0.0.1:0")?.add_health(&health)?;
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let client = HealthCheckClient::connect(&uri).await?;
/// let mut states = client.watch("Kv".to_owned()).await?;
/// assert_eq!(states.next().await.transpose()?, Some(HealthStatus::Unknown));
/// health.set("Kv", HealthStatus::Serving);
/// assert_eq!(states.next().await.transpose()?, Some(HealthStatus::Serving));
/// # Ok(()) }) }
/// ```
#[courser_macros::service(codec = Bytes, name = "courser.Health", crate = crate)]
pub trait HealthCheck {
    /// The state of a service by its name, or with an empty name of the server. A server that shuts down
    /// answers [`HealthStatus::NotServing`] until its last handler has ended.
    async fn check(&self, service: String) -> HealthStatus;
    /// The state now, and each time that it has changed. A client that reads late gets the last state
    /// only. It ends after the last state of a server that shuts down.
    fn watch(&self, service: String) -> impl Stream<Item = HealthStatus>;
}

/// The states of a server and its services, which the application sets: for
/// [`Server::add_health`] and [`Rpc::add_health`]. Clones have the same states, and one may belong to
/// several servers.
///
/// A server is [`HealthStatus::Serving`] until another state is set, and its services are
/// [`HealthStatus::Unknown`] until one is set. Once the server shuts down, checks and streams get
/// [`HealthStatus::NotServing`] for all that are known, and all other new requests end with
/// [`crate::Status::ShuttingDown`]. A server that drains accepts no new sessions: a client that is not
/// connected, or needs another session for a stream, gets [`crate::ConnectRefuseReason::ShuttingDown`].
/// A server without requests in progress ends at once, so balancers connect and check again.
///
/// ```
/// use courser::Server;
/// use courser::health::{Health, HealthCheckClient, HealthStatus};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let health = Health::new();
/// let server = Server::bind("udp://127.0.0.1:0")?.add_health(&health)?;
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let client = HealthCheckClient::connect(&uri).await?;
/// assert_eq!(client.check(String::new()).await?, HealthStatus::Serving);
/// health.set("Kv", HealthStatus::NotServing);
/// assert_eq!(client.check("Kv".into()).await?, HealthStatus::NotServing);
/// # Ok(()) })
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    services: BTreeMap<String, HealthStatus>,
    /// The wakers of streams that wait for a change. Each stream removes its own.
    waiting: Slab<Waker>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Health").field(&self.lock().services).finish()
    }
}

impl Health {
    /// The server is serving, and no service has a state.
    pub fn new() -> Self {
        Health::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only a failed allocation panics under this lock, and it leaves the state intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state of a service, or with an empty name of the server. Streams of clients that watch it
    /// get it.
    pub fn set(&self, service: &str, status: HealthStatus) {
        let mut state = self.lock();
        state.services.insert(service.to_owned(), status);
        // Streams remove their own wakers, as another one may have the key of one that is removed here.
        let woken: Vec<_> = state.waiting.iter().map(|(_, waker)| waker.clone()).collect();
        drop(state); // a waker may run code of the application
        wake_all(woken);
    }

    /// The state that was set.
    pub fn status(&self, service: &str) -> HealthStatus {
        status_of(&self.lock(), service)
    }

    fn checked_by(&self, drain: &DrainToken) -> Checks {
        Checks { health: self.clone(), drain: drain.clone() }
    }
}

fn status_of(state: &State, service: &str) -> HealthStatus {
    let unset = if service.is_empty() { HealthStatus::Serving } else { HealthStatus::Unknown };
    state.services.get(service).copied().unwrap_or(unset)
}

fn draining(status: HealthStatus) -> HealthStatus {
    match status {
        HealthStatus::Unknown => HealthStatus::Unknown,
        _ => HealthStatus::NotServing,
    }
}

/// The service at one server.
struct Checks {
    health: Health,
    drain: DrainToken,
}

impl HealthCheck for Checks {
    async fn check(&self, service: String) -> HealthStatus {
        let status = self.health.status(&service);
        if self.drain.is_draining() { draining(status) } else { status }
    }

    fn watch(&self, mut service: String) -> impl Stream<Item = HealthStatus> {
        if service.len() > MOST_NAME {
            service.clear();
            service.push('?'); // no service has it
        }
        let draining = self.drain.draining();
        Watch {
            health: self.health.clone(),
            draining,
            drains: false,
            service,
            key: None,
            last: None,
        }
    }
}

/// The states of a service, as a stream.
struct Watch {
    health: Health,
    draining: Draining,
    drains: bool,
    service: String,
    /// The key of its waker.
    key: Option<usize>,
    last: Option<HealthStatus>,
}

impl Stream for Watch {
    type Item = HealthStatus;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<HealthStatus>> {
        let this = &mut *self;
        this.drains = this.drains || Pin::new(&mut this.draining).poll(cx).is_ready();
        let mut state = this.health.lock();
        let old = this.key.take().and_then(|key| state.waiting.try_remove(key));
        let status = status_of(&state, &this.service);
        let status = if this.drains { draining(status) } else { status };
        let changed = this.last.replace(status) != Some(status);
        let next = match changed {
            true => Poll::Ready(Some(status)),
            false if this.drains => Poll::Ready(None),
            false => {
                this.key = Some(state.waiting.insert(cx.waker().clone()));
                Poll::Pending
            }
        };
        drop(state);
        drop(old); // may run code of the application
        next
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut state = self.health.lock();
        let waker = state.waiting.try_remove(key);
        drop(state);
        drop(waker);
    }
}

impl Server {
    /// Adds the standard service for health: clients check and watch the states of [`Health`].
    ///
    /// # Errors
    /// It was added before.
    pub fn add_health(mut self, health: &Health) -> Result<Self, RegisterError> {
        let checks = health.checked_by(&self.drain_token());
        HealthCheckServer::new(checks).register(&mut self)?;
        Registry::services(&self).accept_in_drain(SERVICE);
        Ok(self)
    }
}

impl<T: Transport> Rpc<T> {
    /// [`Server::add_health`] for the services of one endpoint.
    ///
    /// # Errors
    /// It was added before.
    pub fn add_health(&mut self, health: &Health) -> Result<(), RegisterError> {
        let checks = health.checked_by(&self.drain_token());
        HealthCheckServer::local(checks).register_local(self)?;
        self.handlers.services.accept_in_drain(SERVICE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn take(&self) -> bool {
            self.0.swap(0, Ordering::Relaxed) > 0
        }
    }

    #[test]
    fn all_streams_are_woken_in_whatever_order_they_are_polled_and_dropped() {
        let health = Health::new();
        let checks = health.checked_by(&DrainToken::default());
        let woken = [(); 3].map(|()| Arc::new(Woken::default()));
        let poll = |stream: Pin<&mut dyn Stream<Item = HealthStatus>>, woken: &Arc<Woken>| {
            stream.poll_next(&mut Context::from_waker(&Waker::from(woken.clone())))
        };
        let mut watches = [(); 3].map(|()| Box::pin(HealthCheck::watch(&checks, String::new())));
        let serving = Poll::Ready(Some(HealthStatus::Serving));
        let not_serving = Poll::Ready(Some(HealthStatus::NotServing));
        for (watch, woken) in watches.iter_mut().zip(&woken) {
            assert_eq!(poll(watch.as_mut(), woken), serving);
            assert_eq!(poll(watch.as_mut(), woken), Poll::Pending);
        }
        health.set("", HealthStatus::NotServing);
        assert!(woken.iter().all(|woken| woken.take()));
        for (watch, woken) in watches.iter_mut().zip(&woken).rev() {
            assert_eq!(poll(watch.as_mut(), woken), not_serving);
            assert_eq!(poll(watch.as_mut(), woken), Poll::Pending);
        }
        health.set("", HealthStatus::Serving);
        assert!(woken.iter().all(|woken| woken.take()));
        // The last ones wait again, and the first one is dropped as it is.
        let [first, mut second, mut third] = watches;
        for (watch, woken) in [(&mut third, &woken[2]), (&mut second, &woken[1])] {
            assert_eq!(poll(watch.as_mut(), woken), serving);
            assert_eq!(poll(watch.as_mut(), woken), Poll::Pending);
        }
        drop(first);
        health.set("", HealthStatus::NotServing);
        assert!(woken[1].take() && woken[2].take() && !woken[0].take());
        drop((second, third));
        assert!(health.lock().waiting.is_empty());
        let drain = DrainToken::default();
        let checks = health.checked_by(&drain);
        health.set("", HealthStatus::Serving);
        let mut watch = Box::pin(HealthCheck::watch(&checks, String::new()));
        assert_eq!(poll(watch.as_mut(), &woken[0]), serving);
        assert_eq!(poll(watch.as_mut(), &woken[0]), Poll::Pending);
        drain.set();
        assert!(woken[0].take());
        assert_eq!(poll(watch.as_mut(), &woken[0]), not_serving);
        assert_eq!(poll(watch.as_mut(), &woken[0]), Poll::Ready(None));
    }
}
