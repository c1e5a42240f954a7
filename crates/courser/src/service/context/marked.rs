//! Handlers of requests with metadata.

use std::sync::Arc;

use super::current;
use super::trailer::Arrived;
use crate::core::context::Context;

/// Runs a handler with the metadata of its request, and its task, if it becomes one, with what is passed
/// on of it.
pub(crate) fn in_metadata(
    cx: &mut Context<'_>,
    arrived: Arrived,
    run: impl FnOnce(&mut Context<'_>),
) {
    let passed = arrived.passed();
    let at = cx.core.tasks.next_slot();
    current::with(passed.clone(), || current::with_arrived(Arc::new(arrived), || run(cx)));
    if let Some(passed) = passed {
        cx.core.tasks.replace_future(at, |task| Box::pin(current::Passing::new(passed, task)));
    }
}
