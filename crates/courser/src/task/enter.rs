//! The endpoint of functions that have no parameter for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use courser_buf::Shown;

use super::local::Local;

thread_local! {
    /// The endpoint of the innermost future that is polled.
    static ENTERED: Shown<Local> = const { Shown::new() };
}

pin_project_lite::pin_project! {
    /// A future in which [`Local::current`] is its endpoint, made by [`Local::enter`].
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run_local(async |local, uri| {
    /// use courser::Local;
    ///
    /// # let _ = uri;
    /// let entered = local.enter(async { Local::current().is_some() });
    /// assert!(entered.await);
    /// # Ok(()) }) }
    /// ```
    #[must_use = "the future runs when it is awaited"]
    pub struct Entered<F> {
        local: Local,
        #[pin]
        future: F,
    }
}

impl Local {
    /// A future in which [`Local::current`] is this endpoint.
    ///
    /// For libraries whose functions have no parameter for an endpoint, such as an implementation of
    /// another library's runtime. Tasks that the future spawns are futures of their own: the function
    /// that spawns them has to enter the endpoint again.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use courser::Local;
    /// async fn pause() {
    ///     let local = Local::current().expect("a future that has entered an endpoint");
    ///     local.sleep(Duration::from_millis(1)).await;
    /// }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut rpc = courser::Nexus::bind("udp://0.0.0.0:0")?.endpoint()?;
    /// let local = rpc.local();
    /// rpc.block_on(local.enter(pause()))?;
    /// # Ok(()) }
    /// ```
    pub fn enter<F: Future>(&self, future: F) -> Entered<F> {
        Entered { local: self.clone(), future }
    }

    /// The endpoint of the innermost future of [`Local::enter`] that is polled. `None`: no such future
    /// is being polled. A future that drives another endpoint by `poll` or `block_on` is being polled
    /// meanwhile: the other endpoint's handlers and tasks see the endpoint that the future has entered,
    /// unless they have entered their own. So does a future's destructor see the one of the poll in
    /// which it is dropped.
    #[must_use]
    pub fn current() -> Option<Local> {
        ENTERED.with(|entered| entered.with(Local::clone))
    }
}

impl<F: Future> Future for Entered<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        ENTERED.with(|entered| entered.show(this.local, || this.future.poll(cx)))
    }
}

impl<F> fmt::Debug for Entered<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").field("local", &self.local).finish_non_exhaustive()
    }
}
