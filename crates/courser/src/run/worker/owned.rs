//! Requests for handlers that run elsewhere than on workers: each becomes a [`Work`] in the dispatch.

use std::rc::Rc;

use courser_net::Transport;
use courser_proto::RequestId;

use crate::core::context::Context;
use crate::core::handler::Handler;
use crate::core::message::Request;
use crate::core::shares::{Entrance, Place};
use crate::counts::CallOutcome;
use crate::run::endpoint::Rpc;
use crate::run::worker::own::{Refused, own, place_for_message};
use crate::run::worker::work::{Incoming, Work};
use crate::service::Observation;

/// A request or message on its way to its handler.
pub(crate) struct Arrived {
    pub(crate) work: Work,
    /// `None`: a message.
    pub(crate) id: Option<RequestId>,
    /// In the endpoint's time; `u64::MAX`: never.
    pub(crate) expires_ns: u64,
    /// Held until the handler ends.
    pub(crate) place: Place,
}

/// Describes the client of a request as all handlers need it.
pub(crate) fn client(_: &Context<'_>, work: &mut Work, place: &Place) {
    work.set_client(place.control());
}

/// Describes the client of a request for a handler with a context.
pub(crate) fn asker(cx: &Context<'_>, work: &mut Work, place: &Place) {
    let limit = cx.core.proto.max_msg_size(work.session());
    let limit = limit.map_or(usize::MAX, |most| most as usize);
    let peer = || cx.core.proto.session_peer(work.session());
    let (observation, control) = (Observation::take_current(), place.control());
    let peer = observation.as_ref().map(|observed| observed.peer().addr()).or_else(peer);
    work.set_asker((control, peer, limit), observation);
}

impl<T: Transport> Rpc<T> {
    /// Registers a handler that owns its requests, in place of an earlier one. It runs on this thread,
    /// as one of [`Rpc::on`] does. The [`Work`] may be moved to any thread or task, which answers it:
    /// this is the reply handle for other threads. [`crate::Server`] does this for handlers that are
    /// futures.
    ///
    /// Costs the copy of a request of one packet, and for an answer of another thread what
    /// [`Work`] states.
    pub fn on_owned(&mut self, req_type: u16, handler: impl Fn(Work) + 'static) {
        let origin = self.origin();
        let dispatch = move |cx: &mut Context<'_>, request: Request<'_>| {
            let Some(id) = cx.request.take() else { return };
            match own(cx, Incoming::Request(id), request, &origin) {
                Ok((mut work, _)) => {
                    work.start();
                    handler(work);
                }
                Err(refused) => refused.answer(cx, id),
            }
        };
        self.register(req_type, Box::new(dispatch));
    }

    /// [`Rpc::on_owned`] with what a server needs to know of a request. `describe` is [`client`] or
    /// [`asker`]. Requests for which there is no place are refused with
    /// [`courser_proto::Status::WorkersBusy`].
    pub(crate) fn arrivals(
        &mut self,
        entrance: Rc<Entrance>,
        describe: impl Fn(&Context<'_>, &mut Work, &Place) + 'static,
        handler: impl Fn(Arrived) + 'static,
    ) -> Handler {
        let (origin, services) = (self.origin(), self.handlers.services.clone());
        Box::new(move |cx: &mut Context<'_>, request: Request<'_>| {
            let Some(id) = cx.request.take() else { return };
            let number = request.req_type;
            // Before the copy, as refusing must be cheap under overload.
            let taken = match entrance.take(&cx.core.proto, id.session()) {
                Ok(place) => {
                    own(cx, Incoming::Request(id), request, &origin).map(|own| (own, place))
                }
                Err(full) => Err(Refused::Busy(full)),
            };
            match taken {
                Ok(((mut work, expires_ns), place)) => {
                    describe(cx, &mut work, &place);
                    handler(Arrived { work, id: Some(id), expires_ns, place });
                }
                Err(refused) => {
                    services.count_refused(number, CallOutcome::Overload);
                    refused.answer(cx, id);
                }
            }
        })
    }

    /// The same for one-way messages, which are dropped if there is no place.
    pub(crate) fn message_arrivals(
        &mut self,
        entrance: Rc<Entrance>,
        describe: impl Fn(&Context<'_>, &mut Work, &Place) + 'static,
        handler: impl Fn(Arrived) + 'static,
    ) -> Handler {
        let (origin, services) = (self.origin(), self.handlers.services.clone());
        Box::new(move |cx: &mut Context<'_>, message: Request<'_>| {
            let (incoming, number) = (Incoming::Message(message.session), message.req_type);
            let drop_message = |cx: &mut Context<'_>, refused: Refused| {
                services.count_refused(number, CallOutcome::Overload);
                refused.drop_message(cx);
            };
            let place = match place_for_message(cx, &message, &entrance) {
                Ok(place) => place,
                Err(full) => return drop_message(cx, Refused::Busy(full)),
            };
            match own(cx, incoming, message, &origin) {
                Ok((mut work, expires_ns)) => {
                    describe(cx, &mut work, &place);
                    handler(Arrived { work, id: None, expires_ns, place });
                }
                Err(refused) => drop_message(cx, refused),
            }
        })
    }
}
