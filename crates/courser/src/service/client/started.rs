//! Calls and messages from their making on: the future of one, the reason that there is none yet, or the
//! attempts of a unary call that middleware observes or that is repeated.
//!
//! Each attempt is a call of its own, with a copy of the request. The answer is decoded when the last one
//! has ended; its tag alone states whether it is an answer of the handler.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use courser_buf::{AllocError, MsgBuf};
use courser_proto::{CallError, Executed};

use crate::channel::method::{MARKED, MethodId};
use crate::channel::{Answer, CallClock, CallOptions, Channel};
use crate::counts::CallOutcome;
use crate::error::failure::CallFailure;
use crate::error::service::{EncodeError, NoError, RpcError};
use crate::service::answer;
use crate::service::binding::{Binding, ChannelMemory, Unmade};
use crate::service::codec::Decode;
use crate::service::context::{Given, current};
use crate::service::middleware::Observed;
use crate::service::retries::{Retries, RetryPlace};
use crate::service::verdict::{outcome_of, refusal};
use crate::shape::method::MethodKind;

/// [`Channel::call_method`] or [`Channel::send_method`].
pub(super) type Make<'a, C, F> = fn(&'a C, MethodId, MsgBuf, CallOptions) -> F;

pin_project_lite::pin_project! {
    /// A future, or the reason that there is none.
    #[project = StartedProjection]
    pub(super) enum Started<'a, C, F>
    where
        C: Channel,
    {
        Running { #[pin] future: F },
        // In one small variant, so that dropping a call that was made takes few instructions.
        Unready { reason: Box<Unready<'a, C>> },
    }
}

/// The reason that a call or message is not made.
pub(super) enum Unready<'a, C: Channel> {
    /// The server is asked for the service first.
    Unmade(Unmade<'a, C>),
    /// The call is observed by middleware, or repeated. It is not made here at all.
    Managed(Box<Managed<'a, C>>),
    Failed(Option<RpcError<NoError>>),
}

/// The end of a call that has no future of its own.
pub(super) enum Ended<E> {
    Failed(RpcError<E>),
    /// The answer, of a call that is observed or repeated.
    Answered(MsgBuf),
}

impl<'a, C: Channel, F> Started<'a, C, F> {
    #[inline]
    pub(super) fn new(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: Result<MsgBuf, EncodeError>,
        options: CallOptions,
        make: Make<'a, C, F>,
    ) -> Self {
        match (request, service.method(index)) {
            (Ok(request), Some(method)) if !current::passes() => {
                Started::Running { future: make(channel, method, request, options) }
            }
            (request, _) => Started::unready(channel, service, index, request, options, make),
        }
    }

    fn unready(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: Result<MsgBuf, EncodeError>,
        options: CallOptions,
        make: Make<'a, C, F>,
    ) -> Self {
        // It has metadata although it was given none.
        if current::passes() || service.has_settings() {
            return Started::inheriting(channel, service, index, request, options, make);
        }
        match (service.mismatch(index), request) {
            (Some(mismatch), _) => Started::failed(mismatch.into()),
            (None, Ok(request)) => Started::unmade(channel, service, index, request, options),
            (None, Err(e)) => Started::failed(e.into()),
        }
    }
}

impl<'a, C: Channel, F> Started<'a, C, F> {
    /// The future, once it is made.
    #[inline]
    pub(super) fn running<E>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        make: Make<'a, C, F>,
    ) -> Poll<Result<Pin<&mut F>, Box<Ended<E>>>> {
        if let StartedProjection::Unready { .. } = self.as_mut().project() {
            ready!(self.as_mut().poll_unready(cx, make))?;
        }
        match self.project() {
            StartedProjection::Running { future } => Poll::Ready(Ok(future)),
            StartedProjection::Unready { .. } => Poll::Pending, // it is running now
        }
    }

    /// Makes the call when the server has answered.
    fn poll_unready<E>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        make: Make<'a, C, F>,
    ) -> Poll<Result<(), Box<Ended<E>>>> {
        let StartedProjection::Unready { reason } = self.as_mut().project() else {
            return Poll::Ready(Ok(()));
        };
        let future = match &mut **reason {
            Unready::Unmade(call) => {
                let (method, request) = ready!(call.poll(cx)).map_err(Ended::failed)?;
                make(call.channel, method, request, call.options)
            }
            Unready::Managed(call) => {
                return Poll::Ready(Err(match ready!(call.poll(cx)) {
                    Ok(answer) => Box::new(Ended::Answered(answer)),
                    Err(error) => Ended::failed(error.widen()),
                }));
            }
            Unready::Failed(error) => {
                return match error.take() {
                    Some(error) => Poll::Ready(Err(Ended::failed(error.widen()))),
                    None => Poll::Pending, // polled after its end
                };
            }
        };
        self.set(Started::Running { future });
        Poll::Ready(Ok(()))
    }
}

impl<'a, C: Channel, F> Started<'a, C, F> {
    /// A call with metadata.
    pub(super) fn marked(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: Result<MsgBuf, EncodeError>,
        options: CallOptions,
        (given, flags): (Given, u8),
        make: Make<'a, C, F>,
    ) -> Self {
        match Prepared::new(channel, service, index, request, options, (given, flags)) {
            Ok(Prepared { call, observed, retries })
                if call.is_unary() && (observed.is_some() || retries.is_some()) =>
            {
                let managed = Managed::new(call, observed, retries);
                Started::Unready { reason: Box::new(Unready::Managed(Box::new(managed))) }
            }
            Ok(Prepared { call, observed, .. }) => {
                observed.into_iter().for_each(Observed::forget);
                Started::addressed(call, make)
            }
            Err(e) => Started::failed(e),
        }
    }

    /// A call whose request is complete.
    fn addressed(call: Addressed<'a, C>, make: Make<'a, C, F>) -> Self {
        let Addressed { channel, service, index, mut request, options } = call;
        if index & MARKED == 0 {
            return Started::plain(channel, service, index, request, options, make);
        }
        match service.address(&mut request, index) {
            Ok(Some(method)) => {
                Started::Running { future: make(channel, method, request, options) }
            }
            Ok(None) => Started::unmade(channel, service, index, request, options),
            Err(mismatch) => Started::failed(mismatch.into()),
        }
    }

    /// A call without metadata.
    fn plain(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: MsgBuf,
        options: CallOptions,
        make: Make<'a, C, F>,
    ) -> Self {
        match (service.method(index), service.mismatch(index)) {
            (Some(method), _) => {
                Started::Running { future: make(channel, method, request, options) }
            }
            (None, Some(mismatch)) => Started::failed(mismatch.into()),
            (None, None) => Started::unmade(channel, service, index, request, options),
        }
    }

    /// A call that has metadata although it was given none.
    fn inheriting(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: Result<MsgBuf, EncodeError>,
        options: CallOptions,
        make: Make<'a, C, F>,
    ) -> Self {
        let given = (Given::default(), 0);
        Started::marked(channel, service, index, request, options, given, make)
    }

    fn unmade(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: MsgBuf,
        options: CallOptions,
    ) -> Self {
        match Unmade::new(channel, service, index, request, options) {
            Ok(unmade) => Started::Unready { reason: Box::new(Unready::Unmade(unmade)) },
            Err(e) => Started::failed(e.into()),
        }
    }

    fn failed(error: RpcError<NoError>) -> Self {
        Started::Unready { reason: Box::new(Unready::Failed(Some(error))) }
    }
}

impl<E> Ended<E> {
    /// In a box, so that the usual path of a call has one word for it.
    fn failed(error: RpcError<E>) -> Box<Self> {
        Box::new(Ended::Failed(error))
    }

    /// The result of a unary call.
    #[cold]
    #[inline(never)] // it reads the answer once more
    #[allow(clippy::boxed_local)] // its callers have it in a box
    pub(super) fn read<K: Decode<T> + Decode<E>, T>(self: Box<Self>) -> Result<T, RpcError<E>> {
        match *self {
            Ended::Failed(error) => Err(error),
            Ended::Answered(answer) => answer::read::<K, T, E>(Answer::Owned(answer)),
        }
    }
}

// ---- calls with the settings of their client ------------------------------------------------------

/// A call whose request is complete.
struct Addressed<'a, C: Channel> {
    channel: &'a C,
    /// Without settings.
    service: &'a Binding,
    /// With [`MARKED`] if the request has metadata.
    index: u16,
    request: MsgBuf,
    options: CallOptions,
}

impl<C: Channel> Addressed<'_, C> {
    /// The place of the method.
    fn at(&self) -> usize {
        usize::from(self.index & !MARKED)
    }

    fn is_unary(&self) -> bool {
        self.service.info().shapes()[self.at()].kind() == MethodKind::Unary
    }
}

/// A call with the settings of its client.
struct Prepared<'a, C: Channel> {
    call: Addressed<'a, C>,
    observed: Option<Observed>,
    retries: Option<&'a Retries>,
}

impl<'a, C: Channel> Prepared<'a, C> {
    /// Passes a call to the middleware, and adds the metadata to its request.
    fn new(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: Result<MsgBuf, EncodeError>,
        options: CallOptions,
        (given, flags): (Given, u8),
    ) -> Result<Self, RpcError<NoError>> {
        let mut options = service.complete(options);
        let mut metadata = given.complete(service.defaults())?;
        let request = request?;
        let observed = service.observe(index, &mut options, &mut metadata)?;
        let (request, is_marked) = match metadata.append_to(request, flags, &ChannelMemory(channel))
        {
            Ok(complete) => complete,
            Err(e) => return Err(unsent(e, observed)),
        };
        let index = if is_marked { index | MARKED } else { index };
        let (retries, service) = (service.retries(), service.real());
        let call = Addressed { channel, service, index, request, options };
        Ok(Prepared { call, observed, retries })
    }
}

/// The error of a call whose request cannot be completed.
#[cold]
fn unsent(error: EncodeError, observed: Option<Observed>) -> RpcError<NoError> {
    let error = RpcError::from(error);
    if let Some(observed) = observed {
        observed.refuse(CallOutcome::of_error(&error));
    }
    error
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
    /// The outcome of an earlier attempt whose handler may have run.
    unknown: Option<Outcome>,
    stage: Stage<'a, C>,
}

enum Stage<'a, C: Channel> {
    New,
    Calling(Started<'a, C, C::OwnedCall>),
    /// Between two attempts, with the outcome of the first of them.
    Pausing(Pause<'a, C>),
    Over,
}

/// A pause, with the outcome of the attempt before it.
struct Pause<'a, C: Channel> {
    timer: C::OwnedCall,
    outcome: Outcome,
    place: RetryPlace<'a>,
}

/// The end of a call: an answer of the server, which may be a refusal, or an error.
type Outcome = Result<MsgBuf, RpcError<NoError>>;

impl<'a, C: Channel> Managed<'a, C> {
    fn new(
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
            unknown: None,
            stage,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            match &mut self.stage {
                Stage::New => {
                    self.begin();
                    self.attempt();
                }
                Stage::Calling(call) => {
                    let outcome = ready!(poll_attempt(Pin::new(call), cx));
                    self.stage = Stage::Over;
                    match self.pause(&outcome) {
                        Some((timer, place)) => {
                            self.stage = Stage::Pausing(Pause { timer, outcome, place });
                        }
                        None => return Poll::Ready(self.end(outcome)),
                    }
                }
                Stage::Pausing(pause) => {
                    let ended = ready!(Pin::new(&mut pause.timer).poll(cx));
                    if let Err(outcome) = self.resume(&ended) {
                        return Poll::Ready(self.end(outcome));
                    }
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

    /// Begins the pause until the next attempt. `None`: there is none.
    fn pause(&self, outcome: &Outcome) -> Option<(C::OwnedCall, RetryPlace<'a>)> {
        let retries = self.retries?;
        let refused;
        let error = match outcome {
            Ok(answer) => {
                refused = refusal(answer)?;
                &refused
            }
            Err(error) => error,
        };
        if retries.is_last(self.attempts) || !self.channel.is_usable() {
            return None;
        }
        let random = self.channel.random();
        let pause = retries.pause(error, self.is_idempotent, self.attempts, random)?;
        let fits = self.left().is_none_or(|left| pause < left);
        let place = fits.then(|| retries.take())??;
        Some((self.channel.pause(pause)?, place))
    }

    /// Makes the next attempt after a pause. If that has failed, the call ends with the outcome.
    fn resume(&mut self, ended: &Result<MsgBuf, CallFailure>) -> Result<(), Outcome> {
        let Stage::Pausing(pause) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Ok(());
        };
        let Pause { outcome, place, .. } = pause;
        if !matches!(ended, Err(CallFailure::Failed(CallError::DeadlineExceeded(_)))) {
            return Err(outcome);
        }
        place.fill();
        self.keep(outcome);
        self.attempt();
        Ok(())
    }

    /// Keeps the outcome of an attempt that is repeated, if its handler may have run.
    fn keep(&mut self, outcome: Outcome) {
        if executed(&outcome) == Executed::Maybe {
            self.unknown = Some(outcome);
        }
    }

    /// The outcome of all attempts, of which this is that of the last one. It does not say that no handler
    /// has run if one of an earlier attempt may have.
    fn end(&mut self, last: Outcome) -> Outcome {
        let outcome = match self.unknown.take() {
            Some(unknown) if executed(&last) == Executed::Never => unknown,
            _ => last,
        };
        if let Some(observed) = self.observed.take() {
            observed.end(match &outcome {
                Ok(answer) => outcome_of(Ok(answer)),
                Err(error) => CallOutcome::of_error(error),
            });
        }
        outcome
    }
}

/// The verdict of an attempt.
fn executed(outcome: &Outcome) -> Executed {
    match outcome {
        Ok(answer) => refusal(answer).map_or(Executed::Yes, |error| error.executed()),
        Err(error) => error.executed(),
    }
}

/// Polls an attempt.
fn poll_attempt<C: Channel>(
    call: Pin<&mut Started<'_, C, C::OwnedCall>>,
    cx: &mut Context<'_>,
) -> Poll<Outcome> {
    match ready!(call.running(cx, C::open_method)) {
        Ok(call) => call.poll(cx).map_err(RpcError::from),
        Err(ended) => Poll::Ready(match *ended {
            Ended::Answered(answer) => Ok(answer),
            Ended::Failed(error) => Err(error),
        }),
    }
}
