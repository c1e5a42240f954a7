//! One-way messages: the builder of one, and its handlers (ADR 38).

use std::fmt;
use std::time::Duration;

use courser_buf::MsgBuf;
use courser_net::Transport;
use courser_proto::{CallOptions, SessionId};

use crate::core::Core;
use crate::core::app::{App, OnThread};
use crate::core::context::Context;
use crate::core::continuations::Cont;
use crate::core::handler::Handler;
use crate::core::message::Request;
use crate::error::CallRejected;
use crate::run::endpoint::Rpc;

/// A one-way message that was not sent yet, made by [`crate::Rpc::message`] or
/// [`Context::message`]. Dropping it frees the buffer.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// use std::time::Duration;
///
/// let session = rpc.connect(&uri)?;
/// let message = rpc.alloc(32)?;
/// rpc.message(session, ECHO, message).deadline(Duration::from_secs(5)).send()?;
/// # Ok(()) }) }
/// ```
#[must_use = "the message is sent by `send`"]
pub struct MessageBuilder<'a, A: App = OnThread> {
    core: &'a mut Core<A>,
    session: SessionId,
    msg_type: u16,
    message: MsgBuf,
    deadline: Option<Duration>,
}

impl<A: App> fmt::Debug for MessageBuilder<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageBuilder")
            .field("session", &self.session)
            .field("msg_type", &self.msg_type)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl<'a, A: App> MessageBuilder<'a, A> {
    #[inline]
    pub(crate) fn new(
        core: &'a mut Core<A>,
        session: SessionId,
        msg_type: u16,
        message: MsgBuf,
    ) -> Self {
        MessageBuilder { core, session, msg_type, message, deadline: None }
    }

    /// The message is not delivered later than `after` from now: it is not sent, or the receiver
    /// drops it. Takes a duration or an `Option`; `None`, the default, is a message that is sent as
    /// long as its session lives. As exact as [`crate::CallBuilder::deadline`].
    #[inline]
    pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.deadline = after.into();
        self
    }

    /// Sends the message: see [`Context::send`].
    ///
    /// # Errors
    /// The message is refused; the error returns the buffer.
    #[inline(always)]
    pub fn send(self) -> Result<(), CallRejected> {
        let MessageBuilder { core, session, msg_type, message, deadline } = self;
        let options = match deadline {
            None => CallOptions::new(),
            Some(after) => {
                let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                CallOptions::new().with_deadline_ns(core.now_ns().saturating_add(after_ns))
            }
        };
        let sent = core.proto.send(session, msg_type, message, options, Cont::none);
        sent.map_err(|(reason, message)| core.rejected_call(session, reason, message))
    }
}

impl<A: App> Context<'_, A> {
    /// Sends a one-way message to the server of a session: its handler
    /// ([`crate::Rpc::on_message`]) runs at most once, and gives no answer.
    ///
    /// The message is sent again until the server's endpoint acknowledges it or the session ends. With
    /// a deadline ([`Context::message`]) it is not delivered later. Messages that fit a packet arrive in the order in
    /// which they were sent, except those that the network loses or reorders. Larger messages have no
    /// order, and neither have those of more than 256 bytes that are sent while the session connects.
    /// Calls and messages have no order either.
    ///
    /// Cost: three quarters of the instructions of a call, most of them at the sender. Messages share
    /// frames, and one acknowledgement serves all that arrive together.
    ///
    /// # Errors
    /// The message is refused, and the buffer returned:
    /// [`crate::RejectReason::MessagesFull`] when [`crate::Config::message_queue`] messages are not
    /// acknowledged ([`crate::Rpc::on_room`] reports room), or as for a call.
    #[inline]
    pub fn send(
        &mut self,
        session: SessionId,
        msg_type: u16,
        message: MsgBuf,
    ) -> Result<(), CallRejected> {
        self.message(session, msg_type, message).send()
    }

    /// [`Context::send`] with options.
    #[inline]
    pub fn message(
        &mut self,
        session: SessionId,
        msg_type: u16,
        message: MsgBuf,
    ) -> MessageBuilder<'_, A> {
        MessageBuilder::new(self.core, session, msg_type, message)
    }
}

impl<T: Transport> Rpc<T> {
    /// See [`Context::send`].
    ///
    /// # Errors
    /// The message is refused; the error returns the buffer.
    #[inline]
    pub fn send(
        &mut self,
        session: SessionId,
        msg_type: u16,
        message: MsgBuf,
    ) -> Result<(), CallRejected> {
        self.message(session, msg_type, message).send()
    }

    /// See [`Context::message`].
    #[inline]
    pub fn message(
        &mut self,
        session: SessionId,
        msg_type: u16,
        message: MsgBuf,
    ) -> MessageBuilder<'_> {
        MessageBuilder::new(&mut self.core, session, msg_type, message)
    }

    /// Registers the handler of a type of one-way messages, in place of an earlier one. The types of
    /// messages and of requests are apart. It runs as a handler of requests does ([`Rpc::on`]); there
    /// is nothing to answer, and a reply is ignored. Messages without a handler are counted
    /// ([`crate::HandlerStats::messages_unhandled`]) and dropped.
    ///
    /// # Panics
    /// The type is that of a method of a service of this endpoint.
    #[track_caller]
    pub fn on_message(
        &mut self,
        msg_type: u16,
        handler: impl FnMut(&mut Context<'_>, Request<'_>) + 'static,
    ) {
        self.register_message(msg_type, Box::new(handler));
    }

    #[track_caller]
    pub(crate) fn register_message(&mut self, msg_type: u16, handler: Handler) {
        let at = usize::from(msg_type);
        self.handlers.assert_free(&self.handlers.messages, msg_type);
        if self.handlers.messages.len() <= at {
            self.handlers.messages.resize_with(at + 1, || None);
        }
        let handler = self.observed(handler);
        self.handlers.messages[at] = Some(self.handlers.gated(msg_type, handler, true));
        self.accept_sessions();
    }

    /// Registers the function that is called when a session that has refused a message
    /// ([`crate::RejectReason::MessagesFull`]) has room again: when at most half of
    /// [`crate::Config::message_queue`] messages are left, or for one of several packets half of
    /// [`crate::Config::call_queue`] calls. It is called once, and again after the next
    /// refusal. Replaces an earlier one.
    pub fn on_room(&mut self, f: impl FnMut(&mut Context<'_>, SessionId) + 'static) {
        self.handlers.on_room = Some(Box::new(f));
    }

    /// One-way messages that were neither acknowledged, nor dropped because their deadline passed or
    /// their session ended.
    pub fn outstanding_messages(&self) -> u64 {
        self.core.proto.outstanding_messages()
    }
}
