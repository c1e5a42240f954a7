//! Workers on a simulated machine: the same queue, served by the machine instead of threads.

use std::sync::Arc;

use crate::machine::{JobQueue, VirtualJob};
use crate::run::worker::pool::Shared;

impl JobQueue for Arc<Shared> {
    fn next(&self) -> Option<VirtualJob> {
        let job = self.try_next()?;
        let shared = self.clone();
        Some(VirtualJob {
            req_type: job.work.req_type(),
            request: job.work.id(),
            endpoint: job.work.origin().endpoint,
            handler: Box::new(move || shared.run(job)),
        })
    }
}
