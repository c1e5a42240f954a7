//! The methods of a service at the server of a connection: clients ask for their request types.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use courser_buf::{AllocError, MsgBuf};
use courser_proto::Executed;

use super::context::{Complete, Metadata, MetadataError, trailer};
use super::hello;
use super::middleware::{ClientChain, ClientMiddleware, Observed};
use super::retries::Retries;
use super::writer::{self, Memory};
use crate::channel::greeting::Greeting;
use crate::channel::method::{HELLO, MARKED, MethodId, Numbers, ServiceInfo};
use crate::channel::{CallOptions, Channel};
use crate::counts::{MethodCells, MethodStats, ServiceCells};
use crate::error::failure::CallFailure;
use crate::error::hello::HelloError;
use crate::error::method::MethodMismatch;
use crate::error::service::{EncodeError, RpcError};

/// A service of a typed client on its connection.
pub(crate) struct Binding {
    info: &'static ServiceInfo,
    /// Another version of the service is an error.
    checked: bool,
    /// The number of the service at a connection that asks for itself.
    adopted: Option<NonZeroU16>,
    /// The numbers of another connection, once they are known.
    numbers: OnceLock<Numbers>,
    /// The settings of all calls, and the binding without them. This one has no numbers, so that the usual
    /// path of a call has no test for settings.
    settings: Option<Box<Settings>>,
    /// The counters of the methods.
    counts: Option<ServiceCells>,
}

/// The settings of all calls of a client.
#[derive(Clone)]
struct Settings {
    /// The binding without them.
    of: Arc<Binding>,
    /// The metadata, or why it cannot be sent.
    metadata: Result<Metadata, MetadataError>,
    middleware: ClientChain,
    retries: Option<Retries>,
    deadline: Option<Duration>,
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("service", &self.info.name).finish_non_exhaustive()
    }
}

impl Binding {
    pub(crate) fn new(channel: &impl Channel, info: &'static ServiceInfo, checked: bool) -> Self {
        // Looked at by the task that makes the client, in place of the thread that all clients share.
        let _ = info.shapes();
        let adopted = channel.adopt(Greeting { info, checked });
        let (numbers, counts) = (OnceLock::new(), channel.counts(info));
        Binding { info, checked, adopted, numbers, settings: None, counts }
    }

    /// A binding whose calls have other settings.
    fn with(of: Arc<Binding>, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = of.settings.clone().unwrap_or_else(|| {
            let (metadata, middleware) = (Ok(Metadata::new()), ClientChain::default());
            Box::new(Settings {
                of: of.clone(),
                metadata,
                middleware,
                retries: None,
                deadline: None,
            })
        });
        change(&mut settings);
        let (info, checked, counts) = (of.info, of.checked, of.counts.clone());
        let (numbers, settings) = (OnceLock::new(), Some(settings));
        Binding { info, checked, adopted: None, numbers, settings, counts }
    }

    /// A binding whose calls have metadata, also that of an earlier one.
    pub(crate) fn with_defaults(of: Arc<Binding>, mut metadata: Metadata) -> Self {
        Binding::with(of, |settings| {
            if let Ok(earlier) = &settings.metadata {
                settings.metadata = metadata.fill_from(earlier).map(|()| metadata);
            }
        })
    }

    /// A binding whose calls are seen by middleware, also by that of an earlier one, which is outside.
    pub(crate) fn with_middleware(of: Arc<Binding>, last: Arc<dyn ClientMiddleware>) -> Self {
        Binding::with(of, |settings| settings.middleware = settings.middleware.with(last))
    }

    /// A binding whose calls are repeated.
    pub(crate) fn with_retries(of: Arc<Binding>, retries: Retries) -> Self {
        Binding::with(of, |settings| settings.retries = Some(retries))
    }

    /// A binding whose calls have this deadline, unless they have one of their own.
    pub(crate) fn with_deadline(of: Arc<Binding>, after: Option<Duration>) -> Self {
        Binding::with(of, |settings| settings.deadline = after)
    }

    /// The options of a call with the deadline of all calls, if it has none of its own.
    pub(crate) fn complete(&self, options: CallOptions) -> CallOptions {
        let of_all = self.settings.as_ref().and_then(|settings| settings.deadline);
        CallOptions { deadline: options.deadline.or(of_all), ..options }
    }

    /// Returns whether calls have settings.
    pub(crate) fn has_settings(&self) -> bool {
        self.settings.is_some()
    }

    /// The metadata of all calls, or why there is none that could be sent.
    pub(crate) fn defaults(&self) -> Option<&Result<Metadata, MetadataError>> {
        self.settings.as_ref().map(|settings| &settings.metadata)
    }

    /// The retries of all calls.
    pub(crate) fn retries(&self) -> Option<&Retries> {
        self.settings.as_ref()?.retries.as_ref()
    }

    /// Passes a call to the middleware. `None`: there is none.
    ///
    /// # Errors
    /// The middleware refuses it.
    pub(crate) fn observe(
        &self,
        index: u16,
        options: &mut CallOptions,
        metadata: &mut Complete,
    ) -> Result<Option<Observed>, CallFailure> {
        match &self.settings {
            Some(settings) if !settings.middleware.is_empty() => {
                let chain = settings.middleware.clone();
                chain.admit(self.info, index, options, metadata).map(Some).map_err(|denied| {
                    let (reason, executed) = (denied.to_string().into(), Executed::Never);
                    CallFailure::Middleware { reason, executed }
                })
            }
            _ => Ok(None),
        }
    }

    /// The counters of the method at a place of [`ServiceInfo::methods`], if it is counted.
    #[inline]
    pub(crate) fn cells(&self, index: u16) -> Option<&Arc<MethodCells>> {
        self.counts.as_ref()?.method(usize::from(index))
    }

    /// The counters of the methods.
    pub(crate) fn counts(&self) -> Vec<MethodStats> {
        self.counts.iter().flat_map(ServiceCells::read).collect()
    }

    /// The binding without settings.
    pub(crate) fn real(&self) -> &Binding {
        self.settings.as_ref().map_or(self, |settings| &settings.of)
    }

    /// The service.
    pub(crate) fn info(&self) -> &'static ServiceInfo {
        self.info
    }

    /// The method of a call with metadata, which is written into its request. `None`: the server was not
    /// asked yet.
    pub(crate) fn address(
        &self,
        request: &mut MsgBuf,
        index: u16,
    ) -> Result<Option<MethodId>, MethodMismatch> {
        match self.numbers.get() {
            Some(numbers) => Ok(Some(trailer::address(request, numbers, index)?.into())),
            None => Ok(self.is_adopted().then(|| self.adopted_method(index))),
        }
    }

    /// The method at a place of [`ServiceInfo::methods`]. `None`: the server was not asked yet, or does
    /// not have it as the client has it.
    #[inline]
    pub(crate) fn method(&self, index: u16) -> Option<MethodId> {
        match self.numbers.get() {
            Some(numbers) => numbers.get(index).map(MethodId::from),
            None => self.adopted.map(|_| self.adopted_method(index)),
        }
    }

    /// Why the server does not have the method at this place as the client has it. `None`: it has it, or
    /// was not asked yet.
    pub(crate) fn mismatch(&self, index: u16) -> Option<MethodMismatch> {
        self.numbers.get()?.mismatch(index)
    }

    pub(crate) fn adopted_method(&self, index: u16) -> MethodId {
        MethodId { service: self.adopted, number: index }
    }

    /// Returns whether the connection, and others of its kind, ask for the service themselves.
    pub(crate) fn is_adopted(&self) -> bool {
        self.adopted.is_some()
    }

    pub(crate) fn set(&self, numbers: Numbers) {
        if self.adopted.is_none() {
            let _ = self.numbers.set(numbers); // the same ones, if another call was faster
        }
    }

    /// Asks the server of a connection for the service.
    pub(crate) fn ask<C: Channel>(
        &self,
        channel: &C,
        options: CallOptions,
    ) -> Result<Asking<C>, EncodeError> {
        let bytes = hello::request(self.info);
        let request = writer::message(&ChannelMemory(channel), |out| {
            out.extend(&bytes).map_err(|_| out.reason(EncodeError::TooLarge { limit: 0 }))
        })?;
        let method = match self.adopted {
            Some(_) => self.adopted_method(MethodId::ASKS),
            None => HELLO.into(),
        };
        let call = channel.open_method(method, request, options);
        Ok(Asking { call, info: self.info, checked: self.checked })
    }
}

/// A server is asked for a service: a future of the request types of its methods.
pub(crate) struct Asking<C: Channel> {
    call: C::OwnedCall,
    info: &'static ServiceInfo,
    checked: bool,
}

impl<C: Channel> Future for Asking<C> {
    type Output = Result<Numbers, HelloError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.call).poll(cx));
        Poll::Ready(hello::read(self.info, self.checked, answer))
    }
}

/// The error of a call that was not made, because the server was asked in vain.
pub(crate) fn unmade<E>(error: HelloError) -> RpcError<E> {
    RpcError::Call(match error {
        HelloError::Denied { reason, .. } => return RpcError::Denied(reason),
        HelloError::Call(failure) => failure.before_the_call(),
        error => {
            let (server, reason) = ("the server of this client".into(), error.to_string().into());
            CallFailure::NotConnected { server, reason }
        }
    })
}

/// A call or message that is made when its server was asked for the service.
pub(crate) struct Unmade<'a, C: Channel> {
    pub(crate) channel: &'a C,
    pub(crate) service: &'a Binding,
    pub(crate) index: u16,
    pub(crate) options: CallOptions,
    request: Option<MsgBuf>,
    asking: Asking<C>,
}

impl<'a, C: Channel> Unmade<'a, C> {
    pub(crate) fn new(
        channel: &'a C,
        service: &'a Binding,
        index: u16,
        request: MsgBuf,
        options: CallOptions,
    ) -> Result<Self, EncodeError> {
        let asking = service.ask(channel, options)?;
        let request = Some(request);
        Ok(Unmade { channel, service, index, options, request, asking })
    }

    /// The method and the request.
    pub(crate) fn poll<E>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(MethodId, MsgBuf), RpcError<E>>> {
        let numbers = match ready!(Pin::new(&mut self.asking).poll(cx)) {
            Ok(numbers) => numbers,
            Err(e) => return Poll::Ready(Err(unmade(e))),
        };
        let Some(mut request) = self.request.take() else { return Poll::Pending }; // after its end
        let method = match self.index & MARKED {
            0 => numbers.number(self.index),
            _ => trailer::address(&mut request, &numbers, self.index),
        };
        self.service.set(numbers);
        Poll::Ready(Ok((method?.into(), request)))
    }
}

/// The memory of a connection.
pub(crate) struct ChannelMemory<'a, C>(pub(crate) &'a C);

impl<C: Channel> Memory for ChannelMemory<'_, C> {
    #[inline]
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.0.alloc(len)
    }
    fn limit(&self) -> usize {
        self.0.limit()
    }
}
