//! Registers the handlers that the library itself has beside those of services.

use std::future::ready;

use super::answer::{Refusal, RefusalReply};
use super::codec::Decode;
use super::middleware::miss;
use super::registry::{LocalRegistry, Received, Registry};
use super::services::Services;
use super::welcome::{self, HelloReply};
use crate::channel::method::{ACCEPT, HELLO, PULL, PUSH, ServiceInfo};
use crate::core::message::Reply;
use crate::counts::CallOutcome;
use crate::error::register::RegisterError;
use crate::error::service::DecodeError;

/// Counts a request that cannot be decoded, and returns the answer to it.
pub(crate) fn undecoded(services: &Services, error: DecodeError) -> impl Reply {
    RefusalReply(services.undecoded(error))
}

impl Services {
    /// Decodes the arguments of a request, or counts why it cannot be.
    #[doc(hidden)]
    #[inline]
    pub fn arguments<K: Decode<A>, A>(&self, received: Received<'_>) -> Result<A, Refusal> {
        let message = received.message_cells();
        received.decode::<K, A>().map_err(|e| {
            let outcome = CallOutcome::of_decoding(&e);
            if let Some(cells) = message {
                cells.error(outcome); // its handler ends well
            }
            miss(outcome);
            self.undecoded(e)
        })
    }

    fn hello(&self, received: &Received<'_>) -> HelloReply {
        let limit = received.limit().min(received.caller().limit);
        welcome::answer(self, received.bytes(), limit)
    }
}

/// The body of [`begin`] and [`begin_local`]: a macro, since the library's handlers suit either trait, but
/// no trait has both.
macro_rules! begin_at {
    ($registry:ident, $info:ident, $is_local:literal) => {{
        let services = $registry.services().clone();
        let (first, is_first) =
            services.add($info, $is_local, &|number| $registry.is_taken(number))?;
        if is_first {
            let [hello, pull, push, accept] = [(); 4].map(|()| services.clone());
            $registry
                .on_request(HELLO, move |received: Received<'_>| ready(hello.hello(&received)));
            $registry.on_request(PULL, move |received: Received<'_>| pull.pull(received));
            $registry.on_request(PUSH, move |received: Received<'_>| push.push(received));
            $registry.on_request(ACCEPT, move |received: Received<'_>| accept.accept(received));
        }
        Ok((services, first))
    }};
}

/// Adds a service to a server, and the library's methods if it is the first one. Returns the request
/// type of its first method.
#[doc(hidden)]
pub fn begin<R: Registry>(
    registry: &mut R,
    info: &ServiceInfo,
) -> Result<(Services, u16), RegisterError> {
    begin_at!(registry, info, false)
}

/// [`begin`] on an endpoint's own thread.
#[doc(hidden)]
pub fn begin_local<R: LocalRegistry>(
    registry: &mut R,
    info: &ServiceInfo,
) -> Result<(Services, u16), RegisterError> {
    begin_at!(registry, info, true)
}
