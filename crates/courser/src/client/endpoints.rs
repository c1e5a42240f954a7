//! Threads with an endpoint each, which clients share.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use super::calls::Clients;
use super::driver;
use super::endpoint::Endpoint;
use super::engine::Engine;
use super::inbox::Inbox;
use crate::config::Config;
use crate::error::BindError;
use crate::error::ClientError;
use crate::platform::Clock;
use crate::rpc::nexus::Nexus;

/// Most threads of one [`Endpoints`].
const MOST_THREADS: usize = 1_024;

/// Slots of a session of a client by default: calls of many tasks share few sessions.
const SLOTS: u8 = 32;

thread_local! {
    /// Whether this thread runs an endpoint of clients.
    static IS_ENDPOINT: Cell<bool> = const { Cell::new(false) };
}

/// Threads, each with an endpoint of its own that it drives alone, on which clients connect
/// ([`super::Client::connect_on`], [`super::ClientBuilder::endpoints`]). One thread serves any
/// number of clients; several are for programs that need more packets a second than one core
/// handles, or whose tasks must not poll for packets. Clients that are given none share one endpoint of
/// the process, which they drive themselves.
///
/// The threads end when this object and all clients on them are dropped. The drop waits for them if
/// it is the last.
///
/// Cost: a thread, a transport and message memory ([`Config::memory_limit`]) for each, and one
/// control thread.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::{Client, Config, Endpoints};
///
/// let endpoints = Endpoints::bind("udp://127.0.0.1:0", 2, Config::default())?;
/// let client = Client::connect_on(&endpoints, &uri).await?;
/// let store = StoreClient::new(client).await?;
/// assert_eq!(store.len("apple".to_owned()).await?, 5);
/// # Ok(()) }) }
/// ```
pub struct Endpoints {
    user: Option<User>,
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.user.as_ref().map_or(0, |user| user.0.threads.len());
        f.debug_struct("Endpoints").field("threads", &threads).finish_non_exhaustive()
    }
}

impl Endpoints {
    /// Starts `threads` threads (1 to 1,024) at a local address, for instance `udp://[::]:0`; see
    /// [`Nexus::bind_with`]. Clients can connect to servers of the same transport only.
    ///
    /// # Errors
    /// The address cannot be used, a setting is out of range, or the system refuses a thread.
    pub fn bind(uri: &str, threads: usize, config: Config) -> Result<Endpoints, ClientError> {
        Endpoints::of(Nexus::bind_with(uri, config)?, threads)
    }

    /// [`Endpoints::bind`] with a nexus, all endpoints of which are for clients or made elsewhere.
    ///
    /// # Errors
    /// As [`Endpoints::bind`], and [`ClientError::VirtualTime`] for a nexus of
    /// [`Nexus::bind_in`].
    pub fn of(nexus: Nexus, threads: usize) -> Result<Endpoints, ClientError> {
        Ok(Endpoints { user: Some(User::start(nexus, threads, By::Thread)?) })
    }

    pub(super) fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }
}

impl Endpoints {
    /// A single endpoint that its owner drives.
    pub(super) fn driven(endpoint: Arc<Endpoint>) -> Endpoints {
        let (stop, thread) = (Arc::default(), Mutex::new(None));
        let threads = vec![EndpointThread { endpoint, stop, thread }];
        let group = Group { threads, next: AtomicUsize::new(0), users: AtomicUsize::new(1) };
        Endpoints { user: Some(User(Arc::new(group))) }
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        let Some(user) = self.user.take() else { return };
        let group = user.0.clone();
        drop(user);
        if group.users.load(Ordering::Acquire) == 0 {
            group.join();
        }
    }
}

/// An endpoint and its thread.
pub(super) struct EndpointThread {
    pub(super) endpoint: Arc<Endpoint>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The threads that drive an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// Its thread.
    Thread,
    /// The threads of its callers, and its thread when they do not.
    Callers,
}

/// The threads behind an [`Endpoints`].
pub(super) struct Group {
    threads: Vec<EndpointThread>,
    /// The thread of the next client.
    next: AtomicUsize,
    users: AtomicUsize,
}

/// Keeps a group running.
pub(super) struct User(Arc<Group>);

impl Clone for User {
    fn clone(&self) -> Self {
        self.0.users.fetch_add(1, Ordering::Relaxed);
        User(self.0.clone())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.stop();
        }
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").finish_non_exhaustive()
    }
}

impl User {
    /// Another user of a group; `None`: its last one is gone, or a thread has ended.
    pub(super) fn join(group: Arc<Group>) -> Option<User> {
        if group.threads.iter().any(|thread| thread.endpoint.inbox.is_closed()) {
            return None;
        }
        let join = |users: usize| (users > 0).then_some(users + 1);
        group.users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, join).ok()?;
        Some(User(group))
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.0
    }

    pub(super) fn start(nexus: Nexus, threads: usize, by: By) -> Result<User, ClientError> {
        if !(1..=MOST_THREADS).contains(&threads) {
            let name = "the number of endpoint threads";
            return Err(ClientError::Setting { name, value: threads, most: MOST_THREADS });
        }
        if nexus.is_virtual() {
            return Err(ClientError::VirtualTime);
        }
        let mut group = Group {
            threads: Vec::with_capacity(threads),
            next: AtomicUsize::new(0),
            users: AtomicUsize::new(1),
        };
        let nexus = Arc::new(nexus);
        for n in 0..threads {
            match start_thread(&nexus, n, by) {
                Ok(thread) => group.threads.push(thread),
                Err(e) => {
                    group.stop();
                    return Err(e);
                }
            }
        }
        Ok(User(Arc::new(group)))
    }

    /// Ends the threads although they are used.
    #[cfg(test)]
    pub(super) fn stop(&self) {
        self.0.stop();
    }

    /// The number of the thread for the next client.
    pub(super) fn next_thread(&self) -> usize {
        self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.threads.len()
    }

    pub(super) fn thread(&self, number: usize) -> &EndpointThread {
        &self.0.threads[number]
    }
}

impl Group {
    /// The threads end after what was submitted.
    fn stop(&self) {
        for thread in &self.threads {
            if !thread.endpoint.inbox.was_forked() {
                thread.stop.store(true, Ordering::Release);
                thread.endpoint.kick();
            }
        }
    }

    /// Waits for the threads. Not on one of them: a task that it wakes may drop the last client.
    fn join(&self) {
        if IS_ENDPOINT.get() {
            return;
        }
        for thread in &self.threads {
            let handle = thread.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(handle) = handle
                && !thread.endpoint.inbox.was_forked()
            {
                let _ = handle.join(); // a panic was reported by its hook
            }
        }
    }
}

fn start_thread(nexus: &Arc<Nexus>, number: usize, by: By) -> Result<EndpointThread, ClientError> {
    let stop = Arc::new(AtomicBool::new(false));
    let (made, is_made) = mpsc::channel::<Result<Arc<Endpoint>, BindError>>();
    let (nexus, own_stop) = (nexus.clone(), stop.clone());
    let run = move || {
        IS_ENDPOINT.set(true);
        let limit = nexus.config().max_msg_size as usize;
        let counting = nexus.config().count_methods.then_some(Clock::System);
        let engine = match make_engine(&nexus) {
            Ok(engine) => engine,
            Err(e) => {
                let _ = made.send(Err(e)); // the starter waits for it
                return;
            }
        };
        drop(nexus);
        let poller = engine.rpc.event_loop.event_fd().map(|fd| fd.try_clone_to_owned());
        if let (By::Callers, Some(Ok(poller))) = (by, poller) {
            match Endpoint::driven_by_callers(engine, limit) {
                Ok(endpoint) => {
                    let endpoint = endpoint.counted_by(counting);
                    let _ = made.send(Ok(endpoint.clone()));
                    driver::watch(&endpoint, &poller, &own_stop);
                }
                Err(e) => drop(made.send(Err(e.into()))),
            }
            return;
        }
        let inbox = Inbox::new(engine.rpc.mailbox.clone());
        let arena = engine.rpc.core.proto.arena().clone();
        let endpoint = Endpoint::driven_elsewhere(inbox, arena, limit);
        let endpoint = endpoint.counted_by(counting);
        let _ = made.send(Ok(endpoint.clone()));
        driver::run(engine, &endpoint.inbox, &own_stop);
    };
    let thread = std::thread::Builder::new().name(format!("courser-client-{number}"));
    let thread = thread.spawn(run).map_err(ClientError::Thread)?;
    let endpoint = is_made.recv().map_err(|_| ClientError::Stopped)??;
    Ok(EndpointThread { endpoint, stop, thread: Mutex::new(Some(thread)) })
}

fn make_engine(nexus: &Nexus) -> Result<Engine, BindError> {
    let clients = Clients::new(Clock::System, nexus.config().connect_timeout);
    Ok(Engine::new(nexus.endpoint_of(clients)?))
}

/// The settings of an endpoint that is made for a client.
pub(super) fn default_config() -> Config {
    Config { slots: SLOTS, ..Config::default() }
}
