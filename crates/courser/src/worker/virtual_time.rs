//! Workers on a simulated machine: the same queue, emptied by the machine instead of threads.

use std::sync::Arc;

use courser_proto::RequestId;

use crate::worker::pool::{Job, Shared};

/// The worker handlers of a nexus, in the hands of a simulated machine.
pub struct VirtualWorkers {
    shared: Arc<Shared>,
}

impl VirtualWorkers {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        VirtualWorkers { shared }
    }

    /// The next request that is to be executed now, in the order of production. Those that
    /// nobody waits for any more are answered, and passed over. `None`: none waits, or the nexus
    /// and all of its endpoints are gone.
    pub fn next(&self) -> Option<VirtualJob> {
        let job = self.shared.try_next()?;
        Some(VirtualJob { job, shared: self.shared.clone() })
    }
}

impl std::fmt::Debug for VirtualWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualWorkers").finish_non_exhaustive()
    }
}

/// A request that a virtual worker thread has begun to execute. The handler itself takes no
/// virtual time: whoever lets it take some calls [`VirtualJob::run`] when that has passed, since
/// that is when the answer is there. Dropped, it counts as a handler that gave no answer.
#[must_use = "a job that is not run is answered with an error"]
pub struct VirtualJob {
    job: Job,
    shared: Arc<Shared>,
}

impl VirtualJob {
    /// The type of the request.
    pub fn req_type(&self) -> u16 {
        self.job.work.req_type()
    }

    /// The request.
    pub fn request(&self) -> RequestId {
        self.job.work.id()
    }

    /// The number of the endpoint that it came to.
    pub fn endpoint(&self) -> u16 {
        self.job.work.home().endpoint
    }

    /// Runs the handler. Its panics are caught and counted, as those on a thread.
    pub fn run(self) {
        self.shared.run(self.job);
    }
}

impl std::fmt::Debug for VirtualJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualJob")
            .field("endpoint", &self.endpoint())
            .field("req_type", &self.req_type())
            .finish_non_exhaustive()
    }
}
