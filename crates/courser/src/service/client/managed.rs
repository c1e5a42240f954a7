//! Unary calls that middleware observes, and calls that are repeated.
//!
//! Each attempt is a call of its own, with a copy of the request. The answer is decoded when the last one
//! has ended; its tag alone states whether it is an answer of the handler.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use courser_buf::{AllocError, MsgBuf};

use super::retries::Retries;
use super::{Binding, Ended, Started};
use crate::channel::method::MARKED;
use crate::channel::{CallClock, CallOptions, Channel};
use crate::error::service::{EncodeError, NoError, RpcError};
use crate::service::answer;
use crate::service::binding::ChannelMemory;
use crate::service::context::Given;
use crate::service::middleware::{CallOutcome, Observed, outcome_of};
use crate::shape::method::MethodKind;

/// A call whose request is complete.
pub(super) struct Addressed<'a, C: Channel> {
    pub(super) channel: &'a C,
    /// Without settings.
    pub(super) service: &'a Binding,
    /// With [`MARKED`] if the request has metadata.
    pub(super) index: u16,
    pub(super) request: MsgBuf,
    pub(super) options: CallOptions,
}

impl<C: Channel> Addressed<'_, C> {
    /// The place of the method.
    fn at(&self) -> usize {
        usize::from(self.index & !MARKED)
    }

    pub(super) fn is_unary(&self) -> bool {
        self.service.info().shapes()[self.at()].kind() == MethodKind::Unary
    }
}

/// A call with the settings of its client.
pub(super) struct Prepared<'a, C: Channel> {
    pub(super) call: Addressed<'a, C>,
    pub(super) observed: Option<Observed>,
    pub(super) retries: Option<&'a Retries>,
}

impl<'a, C: Channel> Prepared<'a, C> {
    /// Passes a call to the middleware, and adds the metadata to its request.
    pub(super) fn new(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: Result<MsgBuf, EncodeError>,
        mut options: CallOptions,
        (given, flags): (Given, u8),
    ) -> Result<Self, RpcError<NoError>> {
        let mut metadata = given.complete(service)?;
        let request = request?;
        let observed = service.observe(index, &mut options, &mut metadata)?;
        let (request, is_marked) = metadata.append_to(request, flags, &ChannelMemory(channel))?;
        let index = if is_marked { index | MARKED } else { index };
        let (retries, service) = (service.retries(), service.real());
        let call = Addressed { channel, service, index, request, options };
        Ok(Prepared { call, observed, retries })
    }
}

/// A call that is observed, or repeated.
pub(super) struct Managed<'a, C: Channel> {
    channel: &'a C,
    service: &'a Binding,
    index: u16,
    /// `None`: the last attempt has it.
    request: Option<MsgBuf>,
    options: CallOptions,
    is_idempotent: bool,
    observed: Option<Observed>,
    retries: Option<&'a Retries>,
    /// The clock of the connection, and the end of the call.
    time: Option<(CallClock, Option<Instant>)>,
    attempts: u32,
    stage: Stage<'a, C>,
}

enum Stage<'a, C: Channel> {
    New,
    Calling(Started<'a, C, C::OwnedCall>),
    Pausing(C::OwnedCall),
    Over,
}

/// The end of a call: an answer of the server, which may be a refusal, or an error.
type Outcome = Result<MsgBuf, RpcError<NoError>>;

impl<'a, C: Channel> Managed<'a, C> {
    pub(super) fn new(
        call: Addressed<'a, C>,
        observed: Option<Observed>,
        retries: Option<&'a Retries>,
    ) -> Self {
        let is_idempotent = call.service.info().methods[call.at()].is_idempotent;
        let Addressed { channel, service, index, request, options } = call;
        let (request, time, stage) = (Some(request), None, Stage::New);
        Managed {
            channel,
            service,
            index,
            request,
            options,
            is_idempotent,
            observed,
            retries,
            time,
            attempts: 0,
            stage,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            match &mut self.stage {
                Stage::New => {
                    self.begin();
                    self.attempt();
                }
                Stage::Calling(call) => {
                    let outcome = ready!(poll_attempt(Pin::new(call), cx));
                    self.stage = Stage::Over;
                    match self.pause(&outcome).and_then(|after| self.channel.pause(after)) {
                        Some(pause) => self.stage = Stage::Pausing(pause),
                        None => return Poll::Ready(self.end(outcome)),
                    }
                }
                Stage::Pausing(pause) => {
                    let _ = ready!(Pin::new(pause).poll(cx)); // the result has no meaning
                    self.attempt();
                }
                Stage::Over => return Poll::Pending,
            }
        }
    }

    /// The call is polled for the first time.
    fn begin(&mut self) {
        let clock = self.channel.clock();
        let left = [self.options.deadline, self.channel.time_left()].into_iter().flatten().min();
        let ends = left.and_then(|left| clock.0.now().checked_add(left));
        if let Some(observed) = &mut self.observed {
            observed.begin(clock.0.clone());
        }
        if let Some(retries) = self.retries {
            retries.begin();
        }
        self.time = Some((clock, ends));
    }

    /// Time until the end of the call.
    fn left(&self) -> Option<Duration> {
        let (clock, ends) = self.time.as_ref()?;
        Some((*ends)?.saturating_duration_since(clock.0.now()))
    }

    /// Makes the call.
    fn attempt(&mut self) {
        self.attempts += 1;
        if let Some(observed) = &mut self.observed {
            observed.attempt();
        }
        let options =
            CallOptions { deadline: self.options.deadline.and(self.left()), ..self.options };
        let (channel, service, index) = (self.channel, self.service, self.index);
        let Some(request) = self.take_request() else { return };
        self.stage = Stage::Calling(match request {
            Ok(request) => {
                let call = Addressed { channel, service, index, request, options };
                Started::addressed(call, C::open_method)
            }
            Err(e) => Started::failed(EncodeError::from(e).into()),
        });
    }

    /// The request, or a copy of it if there may be another attempt.
    fn take_request(&mut self) -> Option<Result<MsgBuf, AllocError>> {
        if self.retries.is_none_or(|retries| retries.is_last(self.attempts)) {
            return self.request.take().map(Ok);
        }
        let request = self.request.as_ref()?;
        Some(self.channel.alloc(request.len()).map(|mut copy| {
            copy.copy_from_slice(request);
            copy
        }))
    }

    /// The time until the next attempt. `None`: there is none.
    fn pause(&self, outcome: &Outcome) -> Option<Duration> {
        let retries = self.retries?;
        let refusal;
        let error = match outcome {
            Ok(answer) => {
                refusal = answer::refusal(answer)?;
                &refusal
            }
            Err(error) => error,
        };
        if retries.is_last(self.attempts) || !self.channel.is_usable() {
            return None;
        }
        let random = self.channel.random();
        let pause = retries.pause(error, self.is_idempotent, self.attempts, random)?;
        let fits = self.left().is_none_or(|left| pause < left);
        (fits && retries.take()).then_some(pause)
    }

    fn end(&mut self, outcome: Outcome) -> Outcome {
        if let Some(observed) = self.observed.take() {
            observed.end(match &outcome {
                Ok(answer) => outcome_of(Ok(answer)),
                Err(error) => CallOutcome::of(error),
            });
        }
        outcome
    }
}

/// Polls an attempt.
fn poll_attempt<C: Channel>(
    call: Pin<&mut Started<'_, C, C::OwnedCall>>,
    cx: &mut Context<'_>,
) -> Poll<Outcome> {
    match ready!(call.running(cx, C::open_method)) {
        Ok(call) => call.poll(cx).map_err(RpcError::from),
        Err(Ended::Answered(answer)) => Poll::Ready(Ok(answer)),
        Err(Ended::Failed(error)) => Poll::Ready(Err(error)),
    }
}
