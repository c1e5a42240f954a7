//! Where the handlers of a server run.

use std::future::Future;
use std::pin::Pin;
#[cfg(feature = "tokio")]
use std::task::{Context, Waker};

/// A handler in progress: the future that a [`Spawn`] runs to its end, or drops.
pub type HandlerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the handlers of a [`crate::Server`] on threads of its own. A closure of a runtime's spawn
/// function is one: `|handler| drop(smol::spawn(handler))`.
///
/// It runs on the thread of an endpoint, and must neither block nor poll the future.
///
/// ```
/// use courser::{Client, HandlerFuture, Server, Spawn};
///
/// /// Runs each handler on a thread of its own.
/// struct Threads;
///
/// impl Spawn for Threads {
///     fn spawn(&self, handler: HandlerFuture) {
///         std::thread::spawn(|| futures::executor::block_on(handler));
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut server = Server::bind("udp://127.0.0.1:0")?.spawn_with(Threads);
/// server.on(1, |work| async move { work.reply("done") });
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// let client = Client::connect(&uri).wait()?;
/// assert_eq!(&client.call(1, client.alloc(0)?).wait()?[..], b"done");
/// # Ok(()) }
/// ```
pub trait Spawn: Send + Sync + 'static {
    /// Starts to run a handler. If the future is dropped, the request is answered with an error:
    /// [`crate::Status::NotStarted`] before its first poll, [`crate::Status::Dropped`] afterwards.
    fn spawn(&self, handler: HandlerFuture);

    /// Called once, when the server has started, with a future that ends when the server does. A
    /// runtime that may end before the server runs it as a task. If the future is dropped after its
    /// first poll, the server shuts down, and ends with [`crate::ServerError::RuntimeEnded`].
    ///
    /// By default nothing runs it, and each handler that the runtime drops fails its own call.
    fn watch(&self, server: HandlerFuture) {
        drop(server);
    }

    /// Calls `poll` in the context that handlers need, for servers that poll them in place
    /// ([`crate::Server::in_place`]).
    fn enter(&self, poll: &mut dyn FnMut()) {
        poll();
    }

    /// Returns whether the server polls short handlers in place if [`crate::Server::in_place`] does not
    /// state it: `false`, unless [`Spawn::enter`] gives handlers all that they need, and they are to
    /// return soon from each poll, as with async runtimes.
    fn in_place(&self) -> bool {
        false
    }
}

impl<F: Fn(HandlerFuture) + Send + Sync + 'static> Spawn for F {
    fn spawn(&self, handler: HandlerFuture) {
        self(handler);
    }
}

/// The tasks of a tokio runtime.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(super) struct OnTokio(pub(super) tokio::runtime::Handle);

#[cfg(feature = "tokio")]
impl Spawn for OnTokio {
    fn spawn(&self, handler: HandlerFuture) {
        drop(self.0.spawn(handler));
    }

    fn watch(&self, mut server: HandlerFuture) {
        // A runtime that has ended drops it without a poll.
        let polled = server.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if polled.is_pending() {
            drop(self.0.spawn(server));
        }
    }

    fn enter(&self, poll: &mut dyn FnMut()) {
        let _context = self.0.enter();
        poll();
    }

    fn in_place(&self) -> bool {
        true
    }
}
