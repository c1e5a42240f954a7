//! A future that the event loop runs to its end.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use courser_net::Transport;

use crate::core::tasks::MAIN;
use crate::error::RunError;
use crate::rpc::Rpc;

impl<T: Transport> Rpc<T> {
    /// Runs the event loop until the future has ended, and returns its result. Tasks, handlers,
    /// continuations and timers of the endpoint run meanwhile; tasks that have not ended go on in the
    /// next call of this function or of [`Rpc::run`]. [`crate::EndpointHandle::stop`] does not end
    /// it.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut rpc = courser::Nexus::bind("udp://0.0.0.0:0")?.endpoint()?;
    /// let local = rpc.local();
    /// rpc.block_on(async move {
    ///     let session = local.connect("udp://127.0.0.1:31850").await?;
    ///     let response = session.call(1, local.alloc(32)?).await?;
    ///     println!("{} bytes", response.len());
    ///     Ok::<_, Box<dyn std::error::Error>>(())
    /// })??;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The system's poll failed, or time is virtual ([`crate::Nexus::bind_in`]), where tasks are
    /// spawned instead.
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, RunError> {
        self.may_block()?;
        let mut future = pin!(future);
        let lender = self.core.lender.clone();
        self.core.tasks.next_slot(); // makes the main one
        self.core.tasks.main_is_ready = true;
        loop {
            if std::mem::take(&mut self.core.tasks.main_is_ready) {
                match self.core.poll_in(&lender, MAIN, u64::MAX, |cx| future.as_mut().poll(cx)) {
                    Poll::Ready(result) => return Ok(result),
                    Poll::Pending => {}
                }
            }
            self.pass()?;
        }
    }
}
