//! Settings of a client, and the future that connects it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::blocking::block_on;
use super::endpoints::{Endpoints, User, default_config};
use super::{Client, Inner, Limits, shared};
use crate::channel::greeting::Greetings;
use crate::channel::link::Open;
use crate::channel::opening::{Opened, Opening};
use crate::config::Config;
use crate::counts::Callers;
use crate::error::ClientError;
use crate::error::failure::CallFailure;

/// Most sessions of a client.
const MOST_SESSIONS: usize = 1_024;
/// Most calls of a client that are in progress.
const MOST_IN_FLIGHT: usize = 1 << 20;

/// Settings of a [`Client`], each with its cost.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// let client = courser::Client::builder().sessions(4).in_flight(64).connect(&uri).await?;
/// let store = StoreClient::new(client).await?;
/// assert_eq!(store.get("apple".to_owned()).await?, "about apple");
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the client is connected by `connect`"]
pub struct ClientBuilder {
    config: Option<Config>,
    endpoints: Option<User>,
    limits: Limits,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let limits = Limits { sessions: 32, in_flight: 1_024, wait_for_ready: false };
        ClientBuilder { config: None, endpoints: None, limits }
    }
}

impl ClientBuilder {
    /// The settings of the endpoint, which the clients of this process with the same settings share;
    /// not used with [`ClientBuilder::endpoints`].
    /// Default: [`Config::default`] with 32 [`Config::slots`].
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Uses these threads in place of the one that the clients of this process share. Clients are
    /// spread over them.
    pub fn endpoints(mut self, endpoints: &Endpoints) -> Self {
        self.endpoints = endpoints.user().cloned();
        self
    }

    /// Sessions that the client may have: 1 to 1,024, default 32. Further ones are connected while
    /// all slots are in use, so that sessions times [`Config::slots`], of the smaller side, is the
    /// number of requests that its servers execute concurrently. Cost:
    /// [`crate::Rpc::session_bytes`] each while in use, on both sides.
    pub fn sessions(mut self, sessions: usize) -> Self {
        self.limits.sessions = sessions;
        self
    }

    /// Calls that are in progress at a time: 1 to 1,048,576, default 1,024; further ones wait. More
    /// than sessions times [`Config::slots`] wait at the endpoint, at most [`Config::call_queue`] for
    /// each session.
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.limits.in_flight = calls;
        self
    }

    /// The setting of all calls and messages without one of their own:
    /// [`ClientCall::wait_for_ready`](crate::ClientCall::wait_for_ready). Default `false`. With it
    /// [`ClientBuilder::connect`] waits too: for a server that is not there yet, or refuses, for
    /// [`Config::connect_timeout`].
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.limits.wait_for_ready = waits;
        self
    }

    /// Connects. Await the result, or block with [`ClientConnect::wait`].
    pub fn connect(self, uri: &str) -> ClientConnect {
        let Limits { sessions, in_flight, wait_for_ready } = self.limits;
        let settings = [
            ("ClientBuilder::sessions", sessions, MOST_SESSIONS),
            ("ClientBuilder::in_flight", in_flight, MOST_IN_FLIGHT),
        ];
        for (name, value, most) in settings {
            if !(1..=most).contains(&value) {
                return ClientConnect::failed(ClientError::Setting { name, value, most });
            }
        }
        let user = match self.endpoints {
            Some(user) => user,
            None => match shared::user_for(uri, self.config.unwrap_or_else(default_config)) {
                Ok(user) => user,
                Err(e) => return ClientConnect::failed(e),
            },
        };
        let thread = user.next_thread();
        let counts = user.thread(thread).endpoint.counting.is_some();
        let greetings = Greetings::new(Callers::new(counts));
        ClientConnect::begin(user, thread, uri.into(), self.limits, greetings, wait_for_ready)
    }
}

/// A client that is being connected, for at most [`Config::connect_timeout`]: a future of it.
/// Dropping it ends the connect.
///
/// Polled after its end, it panics.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::Client;
///
/// // A task awaits it, and a plain thread blocks.
/// let client = Client::connect(&uri).await?;
/// let thread = std::thread::spawn(move || Client::connect(&uri).wait());
/// assert_eq!(thread.join().expect("no panic")?.uri(), client.uri());
/// # Ok(()) }) }
/// ```
#[must_use = "a client is connected when this is awaited, or waited for with `wait`"]
pub struct ClientConnect {
    state: State,
}

enum State {
    Failed(ClientError),
    Connecting(Connecting),
    Over,
}

struct Connecting {
    opening: Arc<Opening>,
    user: User,
    thread: usize,
    uri: Arc<str>,
    limits: Limits,
    greetings: Greetings,
}

impl ClientConnect {
    fn failed(error: ClientError) -> Self {
        ClientConnect { state: State::Failed(error) }
    }

    pub(super) fn begin(
        user: User,
        thread: usize,
        uri: Arc<str>,
        limits: Limits,
        greetings: Greetings,
        wait_for_ready: bool,
    ) -> Self {
        let opening = Arc::new(Opening::default());
        let open = Open {
            uri: uri.clone(),
            limits,
            greetings: greetings.clone(),
            wait_for_ready,
            opening: opening.clone(),
        };
        match user.thread(thread).endpoint.open(open) {
            Ok(()) => {
                let connecting = Connecting { opening, user, thread, uri, limits, greetings };
                ClientConnect { state: State::Connecting(connecting) }
            }
            Err(CallFailure::Forked) => ClientConnect::failed(ClientError::Forked),
            Err(_) => ClientConnect::failed(ClientError::Stopped),
        }
    }

    /// Blocks the thread until the client is connected.
    ///
    /// # Errors
    /// The server cannot be reached or refuses, or the endpoint cannot be made.
    pub fn wait(self) -> Result<Client, ClientError> {
        block_on(self)
    }

    /// The address of the server; empty if there is no endpoint to connect on.
    fn uri(&self) -> Arc<str> {
        match &self.state {
            State::Connecting(connecting) => connecting.uri.clone(),
            State::Failed(_) | State::Over => "".into(),
        }
    }
}

impl Future for ClientConnect {
    type Output = Result<Client, ClientError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let opened = match &self.state {
            State::Connecting(connecting) => match connecting.opening.poll(cx.waker()) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(opened) => Some(opened),
            },
            State::Failed(_) => None,
            State::Over => panic!("a connect was polled after its end"),
        };
        Poll::Ready(match (std::mem::replace(&mut self.state, State::Over), opened) {
            (State::Connecting(connecting), Some(opened)) => {
                opened.map(|Opened { link, slots }| {
                    let Connecting { user, thread, uri, limits, greetings, .. } = connecting;
                    let inner = Inner { link, slots, thread, uri, limits, greetings, user };
                    Client { inner: Arc::new(inner) }
                })
            }
            (State::Failed(error), _) => Err(error),
            _ => Err(ClientError::Stopped),
        })
    }
}

impl Drop for ClientConnect {
    fn drop(&mut self) {
        let State::Connecting(connecting) = &self.state else { return };
        let endpoint = &connecting.user.thread(connecting.thread).endpoint;
        if !endpoint.inbox.was_forked()
            && let Some(link) = connecting.opening.abandon()
        {
            endpoint.close(link);
        }
    }
}

impl fmt::Debug for ClientConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConnect").field("server", &self.uri()).finish_non_exhaustive()
    }
}

/// [`ClientConnect`] with the error of a call, for [`crate::service::Channel`].
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::Client;
/// use courser::service::{CallOptions, Channel};
///
/// let client = Client::connect(&uri).await?;
/// let another: Client = Channel::another(&client, CallOptions::default()).await?;
/// assert_eq!(another.uri(), client.uri());
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "a client is connected when this is awaited"]
pub struct ClientAnother {
    connect: ClientConnect,
    server: Arc<str>,
}

impl ClientAnother {
    pub(super) fn new(connect: ClientConnect) -> Self {
        let server = connect.uri();
        ClientAnother { connect, server }
    }
}

impl Future for ClientAnother {
    type Output = Result<Client, CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let connected = Pin::new(&mut self.connect).poll(cx);
        connected.map(|result| {
            result.map_err(|error| match error {
                ClientError::Forked => CallFailure::Forked,
                ClientError::Stopped => CallFailure::Stopped,
                error => CallFailure::NotConnected {
                    server: self.server.clone(),
                    reason: error.to_string().into(),
                },
            })
        })
    }
}
