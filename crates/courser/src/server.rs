//! The server whose handlers are futures that may run on any thread.
//!
//! ```text
//! courser-server-N                                 the threads of the spawner
//! dispatch: Work, Ticket, the handler's future
//!   ends here in its first poll, if its type is
//!   short (`placement`), or is not polled -------> polls the future
//!                                                  Work::reply --> mailbox of the endpoint
//! Watch::search: cancelled, expired or lost -----> the task drops the future
//! ```
//!
//! A request costs one allocation for its future, and what the spawner adds.

mod control;
mod counted;
mod driver;
mod handler;
mod placement;
mod registry;
mod running;
mod spawn;
mod stats;
#[cfg(test)]
mod tests;
mod workers;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};

use courser_proto::EndpointStats;

use crate::config::Config;
use crate::core::drain::DrainToken;
use crate::core::shares::Shares;
use crate::counts::MethodStats;
use crate::error::{BindError, ServerError};
use crate::rpc::nexus::Nexus;
use crate::rpc::shutdown::ShutdownReport;
use crate::run::worker::Work;
use crate::service::{ServiceStats, Services};
use control::{Control, Watchman};
use driver::{Driver, Setup};
use handler::{Handler, handler};
use placement::Placement;
use workers::Workers;

pub use control::ServerHandle;
pub use spawn::{HandlerFuture, Spawn};
pub use stats::ServerStats;

/// Most endpoints of a server.
const MOST_ENDPOINTS: usize = 1_024;
/// Most handlers in progress.
const MOST_IN_PROGRESS: usize = 1 << 24;
/// Slots of a session by default: calls of many tasks of a client share few sessions.
const SLOTS: u8 = 32;

/// A server whose handlers are futures. They run on threads of the server
/// ([`Server::on_workers`], the default), on tokio, or where a closure spawns them.
///
/// ```
/// use courser::{Client, Server};
/// const ECHO: u16 = 1;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut server = Server::bind("udp://127.0.0.1:0")?;
/// server.on(ECHO, |mut work| async move {
///     let request = work.take().expect("it was not taken before");
///     work.reply(request)
/// });
/// let uri = server.local_uri();
/// let serving = server.serve()?;
///
/// let client = Client::connect(&uri).wait()?;
/// assert_eq!(client.call(ECHO, client.alloc(3)?).wait()?.len(), 3);
/// # drop(serving);
/// # Ok(()) }
/// ```
///
/// # Handlers
/// A handler owns its request ([`Work`]), and answers with it. It is dropped, at its next await, when
/// its client has cancelled the call or is gone, or when the deadline of the call has passed, unless
/// it has answered before. Calls of a [`crate::Client`] that it makes while it is polled inherit its
/// deadline. Tasks that it spawns have neither.
///
/// A handler that panics fails its own request only ([`crate::Status::Panicked`]). A handler that
/// ends without an answer answers with [`crate::Status::NoReply`], one that its runtime drops with
/// [`crate::Status::Dropped`], or [`crate::Status::NotStarted`] before its first poll. When a tokio
/// runtime ends, the server shuts down.
///
/// # Limits
/// [`Server::max_in_progress`] handlers are in progress at a time. Further requests are refused with
/// [`crate::Status::WorkersBusy`], and further one-way messages are dropped and counted
/// ([`ServerHandle::stats`]). Clients and addresses have shares: one client alone may have 15/16 of the
/// handlers, and leaves the rest to others, whose share grows as its handlers end. The one-way messages
/// of several packets that handlers have are a third of the memory that is left for a client, and half
/// for an address.
pub struct Server {
    nexus: Nexus,
    endpoints: usize,
    max_in_progress: usize,
    in_place: Option<bool>,
    /// `None`: workers.
    spawner: Option<Arc<dyn Spawn>>,
    requests: Vec<(u16, Handler)>,
    messages: Vec<(u16, Handler)>,
    services: Services,
    /// A request type of a service for which another handler was set.
    taken: Option<u16>,
    control: Arc<Control>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("nexus", &self.nexus)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Listens on an address, for example `udp://0.0.0.0:31850`; see [`Nexus::bind`]. Clients are
    /// refused before [`Server::run`] or [`Server::serve`].
    ///
    /// # Errors
    /// The address cannot be read or listened on.
    pub fn bind(uri: &str) -> Result<Server, ServerError> {
        Server::bind_with(uri, Config { slots: SLOTS, ..Config::default() })
    }

    /// [`Server::bind`] with settings. [`Config::workers`] is the number of threads of
    /// [`Server::on_workers`]; [`Config::worker_queue`] is not used.
    ///
    /// # Errors
    /// The address cannot be read or listened on, or a setting is out of range.
    pub fn bind_with(uri: &str, config: Config) -> Result<Server, ServerError> {
        Server::of(Nexus::bind_with(uri, config)?)
    }

    /// A server of a nexus, which has no endpoint yet.
    ///
    /// # Errors
    /// [`ServerError::VirtualTime`]: the nexus was made with [`Nexus::bind_in`].
    pub fn of(nexus: Nexus) -> Result<Server, ServerError> {
        if nexus.is_virtual() {
            return Err(ServerError::VirtualTime);
        }
        let services = Services::default();
        services.set_counting(nexus.config().count_methods);
        Ok(Server {
            nexus,
            endpoints: 1,
            max_in_progress: 16_384,
            in_place: None,
            spawner: None,
            requests: Vec::new(),
            messages: Vec::new(),
            taken: None,
            control: Arc::new(Control::new(services.clone())),
            services,
        })
    }

    // ---- settings: `Server::serve` checks their ranges ----------------------------------------

    /// Endpoints, each with a thread: 1 to 1,024, default 1. Sessions of clients are spread over
    /// them. More than one is for servers that need more packets a second than one core handles.
    #[must_use]
    pub fn endpoints(mut self, endpoints: usize) -> Self {
        self.endpoints = endpoints;
        self
    }

    /// Handlers that may be in progress at a time, over all endpoints: 1 to 16,777,216, default
    /// 16,384. From 8 on, those of one client or address leave some to others. Cost: about 300 bytes
    /// each, and the size of the handler's future.
    #[must_use]
    pub fn max_in_progress(mut self, handlers: usize) -> Self {
        self.max_in_progress = handlers;
        self
    }

    /// Runs handlers on [`Config::workers`] threads of the server. This is the default. A handler
    /// that blocks or computes for long delays others only when all threads do.
    #[must_use]
    pub fn on_workers(mut self) -> Self {
        self.spawner = None;
        self
    }

    /// Runs handlers on a tokio runtime. When it ends, the server shuts down, and ends with
    /// [`ServerError::RuntimeEnded`].
    ///
    /// Handlers that end at once are polled on the thread of their endpoint, in the context of the
    /// runtime: `tokio::spawn`, timers and sockets work there. Others become tasks when they wait. The
    /// server measures the first poll of each handler. The requests of a type begin as tasks. They move
    /// to the endpoint's thread after 16 first polls of less than 10 us that ended their handlers, and
    /// back when most of them wait or take longer. A poll of 100 us and more moves them back at once,
    /// until 32 short polls later, twice as many each time, at most 4,096. So a type that always blocks
    /// or computes is never polled on the endpoint's thread.
    ///
    /// On the endpoint's thread a handler is no task: `tokio::task::id` panics there, and start hooks and
    /// stack sizes of the runtime's threads do not apply. A panic counts as a poll of 100 us.
    ///
    /// Handlers of an endpoint run one after the other there. When those of one pass of its event loop have
    /// taken 20 us, the further requests of the pass become tasks if most first polls of their type take 2
    /// us or more, so that the threads of the runtime share them. Shorter handlers stay, as starting a task
    /// and sending its answer would cost the endpoint's thread more than it saves.
    ///
    /// As on threads of the runtime, handlers must not block: one that does in place delays the packets
    /// and handlers of its endpoint meanwhile. That ends no session in less than
    /// [`Config::datapath_timeout`]. One that blocks until another handler or a call of the same endpoint
    /// has ended never ends. Work that blocks belongs into `tokio::task::spawn_blocking`;
    /// [`Server::in_place`]`(false)` makes all handlers tasks. [`ServerStats::in_place`] counts the
    /// handlers that ended on the endpoint's thread.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn on_tokio(self, runtime: tokio::runtime::Handle) -> Self {
        self.spawn_with(spawn::OnTokio(runtime))
    }

    /// Runs handlers where `spawner` does: a closure of any runtime's spawn function, or a
    /// [`Spawn`].
    #[must_use]
    pub fn spawn_with(mut self, spawner: impl Spawn) -> Self {
        self.spawner = Some(Arc::new(spawner));
        self
    }

    /// Polls each handler first on the endpoint's thread (`true`), and passes only those to the spawner
    /// that have not ended then, or none (`false`). Polling them there saves two changes of threads, 10
    /// us and more. Cost: a handler that blocks, or computes for long before it first waits, delays all
    /// packets of its endpoint. Requests of 64 KiB and more are passed on in any case.
    ///
    /// By default the server measures that on tokio: see [`Server::on_tokio`]. On workers, where
    /// handlers may block, and with closures, it polls none on the endpoint's thread.
    #[must_use]
    pub fn in_place(mut self, in_place: bool) -> Self {
        self.in_place = Some(in_place);
        self
    }

    /// Where handlers are polled first.
    fn placement(&self, spawner: &dyn Spawn) -> Placement {
        match self.in_place {
            Some(true) => Placement::Endpoint,
            None if spawner.in_place() => Placement::Measured,
            _ => Placement::Runtime,
        }
    }

    // ---- handlers -----------------------------------------------------------------------------

    /// Registers the handler of a request type, in place of an earlier one. `f` is called where its
    /// future is polled, before the first poll.
    ///
    /// The request types of services are not free: [`Server::serve`] fails if one of them is set here.
    pub fn on<F, Fut>(&mut self, req_type: u16, f: F)
    where
        F: Fn(Work) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        if self.services.keeps(req_type, self.has(req_type)) {
            self.taken = Some(req_type);
            return;
        }
        self.requests.retain(|(known, _)| *known != req_type);
        self.requests.push((req_type, handler(f, self.services.cells(req_type))));
    }

    /// Registers the handler of a type of one-way messages, in place of an earlier one. It runs as a
    /// handler of requests does; there is nothing to answer.
    pub fn on_message<F, Fut>(&mut self, msg_type: u16, f: F)
    where
        F: Fn(Work) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let is_taken = self.messages.iter().any(|(known, _)| *known == msg_type);
        if self.services.keeps(msg_type, is_taken) {
            self.taken = Some(msg_type);
            return;
        }
        self.messages.retain(|(known, _)| *known != msg_type);
        self.messages.push((msg_type, handler(f, self.services.cells(msg_type))));
    }

    /// Returns whether a request type has a handler.
    pub fn has(&self, req_type: u16) -> bool {
        self.requests.iter().any(|(known, _)| *known == req_type)
    }

    // ---- running ------------------------------------------------------------------------------

    /// An address for clients on this machine.
    pub fn local_uri(&self) -> String {
        self.nexus.local_uri()
    }

    /// Ends the server from another thread or task.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { control: self.control.clone() }
    }

    /// A token that is set when the server begins to shut down, or stops: for services that end long
    /// calls early.
    pub fn drain_token(&self) -> DrainToken {
        self.control.drain.clone()
    }

    /// Serves until [`ServerHandle::stop`] or [`ServerHandle::shutdown`], and blocks the thread.
    /// Returns what was not finished.
    ///
    /// # Errors
    /// As of [`Server::serve`], or an event loop failed.
    pub fn run(self) -> Result<ShutdownReport, ServerError> {
        self.serve()?.wait()
    }

    /// Starts to serve. The result is a future that ends as [`Server::run`] does; dropping it stops
    /// the server.
    ///
    /// # Errors
    /// [`ServerError::Setting`]: the number of endpoints or handlers is out of its range, which the
    /// text names; nothing was started. [`Config`] is checked by [`Server::bind_with`].
    /// [`ServerError::Taken`]: see [`Server::on`]. The endpoints or threads cannot be made.
    pub fn serve(self) -> Result<Serving, ServerError> {
        let settings = [
            ("endpoints", self.endpoints, MOST_ENDPOINTS),
            ("max_in_progress", self.max_in_progress, MOST_IN_PROGRESS),
        ];
        for (name, value, most) in settings {
            if !(1..=most).contains(&value) {
                return Err(ServerError::Setting { name, value, most });
            }
        }
        if let Some(req_type) = self.taken {
            return Err(ServerError::Taken { req_type });
        }
        let spawner = match &self.spawner {
            Some(spawner) => spawner.clone(),
            None => {
                let threads = self.nexus.config().workers;
                Arc::new(Workers::start(threads).map_err(ServerError::Thread)?)
            }
        };
        let placement = self.placement(&*spawner);
        let max_streams = self.nexus.config().max_streams_per_peer;
        let places = Shares::with_streams(self.max_in_progress, max_streams);
        let setup = Setup {
            requests: self.requests,
            messages: self.messages,
            services: self.services,
            spawner: spawner.clone(),
            placement,
            places: places.clone(),
        };
        let _ = self.control.published.places.set(places.clone()); // a server runs once
        // Dropped on an error: the threads that have started end.
        let serving = Serving { control: self.control, places };
        let nexus = Arc::new(self.nexus);
        for n in 0..self.endpoints {
            start_thread(&nexus, n, setup.clone(), serving.control.clone())?;
        }
        spawner.watch(Box::pin(Watchman::new(serving.control.clone())));
        Ok(serving)
    }
}

/// A server that runs, made by [`Server::serve`]: a future that ends when the server has ended, with
/// what was not finished. Dropping it stops the server, without waiting for its end.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use std::time::Duration;
///
/// # fn main() -> Done {
/// let server = Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
/// let serving = server.serve()?;
/// assert_eq!(serving.in_progress(), 0);
/// // From a signal handler, a test, or another task:
/// serving.handle().shutdown(Duration::from_secs(1));
/// let report = serving.wait()?;
/// assert!(report.is_clean());
/// # Ok(()) }
/// ```
#[must_use = "dropping it stops the server"]
pub struct Serving {
    control: Arc<Control>,
    places: Arc<Shares>,
}

impl Serving {
    /// Ends the server from another thread or task.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { control: self.control.clone() }
    }

    /// Handlers in progress.
    pub fn in_progress(&self) -> usize {
        self.places.held()
    }

    /// The counters of the server: see [`ServerHandle::stats`].
    pub fn stats(&self) -> ServerStats {
        self.handle().stats()
    }

    /// The counters of the protocol of each endpoint: see [`ServerHandle::endpoint_stats`].
    pub fn endpoint_stats(&self) -> Vec<EndpointStats> {
        self.handle().endpoint_stats()
    }

    /// The counters of the typed services.
    pub fn service_stats(&self) -> ServiceStats {
        self.handle().service_stats()
    }

    /// The counters of each method of the typed services.
    ///
    /// ```
    /// use courser::Server;
    /// use courser::service::CallOutcome;
    ///
    /// #[courser::service]
    /// trait Sum {
    ///     async fn add(&self, a: u64, b: u64) -> u64;
    /// }
    ///
    /// struct Adder;
    ///
    /// impl Sum for Adder {
    ///     async fn add(&self, a: u64, b: u64) -> u64 {
    ///         a.wrapping_add(b)
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = Server::bind("udp://127.0.0.1:0")?.add_service(SumServer::new(Adder))?;
    /// let (uri, serving) = (server.local_uri(), server.serve()?);
    /// # futures::executor::block_on(async {
    /// let sum = SumClient::connect(&uri).await?;
    /// assert_eq!(sum.add(1, 2).await?, 3);
    /// for methods in [serving.method_stats(), sum.method_stats()] {
    ///     let add = &methods[0];
    ///     assert_eq!((add.service, add.method), ("Sum", "add"));
    ///     assert_eq!((add.started, add.in_progress, add.ended(CallOutcome::Ok)), (1, 0, 1));
    ///     assert!(add.latency.quantile_ns(0.99) > Some(0));
    /// }
    /// # Ok(()) })
    /// # }
    /// ```
    pub fn method_stats(&self) -> Vec<MethodStats> {
        self.handle().method_stats()
    }

    /// Blocks the thread until the server has ended.
    ///
    /// # Errors
    /// An event loop failed.
    pub fn wait(self) -> Result<ShutdownReport, ServerError> {
        self.control.wait()
    }
}

impl Future for Serving {
    type Output = Result<ShutdownReport, ServerError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.control.poll(cx.waker())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.handle().stop();
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("in_progress", &self.in_progress()).finish_non_exhaustive()
    }
}

/// Reports the end of a thread, also that by a panic.
struct Ending {
    control: Arc<Control>,
    /// The number of its endpoint among those that publish counters, once it has one.
    number: Option<usize>,
    result: Result<ShutdownReport, ServerError>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.control.published.end(number);
        }
        let result = std::mem::replace(&mut self.result, Err(ServerError::Panicked));
        self.control.end(result);
    }
}

fn start_thread(
    nexus: &Arc<Nexus>,
    number: usize,
    setup: Setup,
    control: Arc<Control>,
) -> Result<(), ServerError> {
    let (made, is_made) = mpsc::channel::<Result<(), BindError>>();
    let nexus = nexus.clone();
    let run = move || {
        control::IS_ENDPOINT.set(true);
        let rpc = match nexus.endpoint() {
            Ok(rpc) => rpc,
            Err(e) => {
                let _ = made.send(Err(e)); // the starter waits for it
                return;
            }
        };
        control.begin(rpc.mailbox.clone());
        let mut ending = Ending { control, number: None, result: Err(ServerError::Panicked) };
        let driver = Driver::new(rpc, setup, &ending.control);
        ending.number = Some(driver.number());
        let _ = made.send(Ok(())); // it accepts sessions
        ending.result = driver.drive(&ending.control).map_err(ServerError::Run);
        drop(nexus); // before the end is reported, so that the address is free then
    };
    let thread = std::thread::Builder::new().name(format!("courser-server-{number}"));
    thread.spawn(run).map_err(ServerError::Thread)?;
    is_made.recv().map_err(|_| ServerError::Panicked)??;
    Ok(())
}
