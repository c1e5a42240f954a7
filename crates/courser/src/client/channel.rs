//! Typed clients on a [`Client`].

use std::future::Future;
use std::num::NonZeroU16;
use std::pin::pin;
use std::time::Duration;

use courser_buf::{AllocError, MsgBuf};

use super::blocking::block_on;
use super::endpoint::Simulated;
use super::{Client, ClientAnother, ClientCall, ClientSend};
use crate::channel::CallClock;
use crate::channel::greeting::Greeting;
use crate::channel::method::ServiceInfo;
use crate::core::deadline::inherited;
use crate::counts::ServiceCells;
use crate::platform::{Durations, random_u64};
use crate::service::{BlockingChannel, CallOptions, Channel, Dial, HelloError, MethodId};

impl Channel for Client {
    type Call<'a> = ClientCall;
    type Sent<'a> = ClientSend;
    type Another<'a> = ClientAnother;
    type OwnedCall = ClientCall;

    #[inline]
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.alloc_recycled(len)
    }

    fn limit(&self) -> usize {
        self.inner.limit()
    }

    #[inline]
    fn call(&self, req_type: u16, request: MsgBuf, options: CallOptions) -> ClientCall {
        Client::call(self, req_type, request).options(options)
    }

    fn call_owned(&self, req_type: u16, request: MsgBuf, options: CallOptions) -> ClientCall {
        Channel::call(self, req_type, request, options)
    }

    fn send(&self, msg_type: u16, message: MsgBuf, options: CallOptions) -> ClientSend {
        Client::send(self, msg_type, message).options(options)
    }

    fn adopt(&self, greeting: Greeting) -> Option<NonZeroU16> {
        self.inner.greetings.add(greeting)
    }

    #[inline]
    fn call_method(&self, method: MethodId, request: MsgBuf, options: CallOptions) -> ClientCall {
        ClientCall::new(self.clone(), method, request).options(options)
    }

    fn open_method(&self, method: MethodId, request: MsgBuf, options: CallOptions) -> ClientCall {
        Channel::call_method(self, method, request, options)
    }

    fn send_method(&self, method: MethodId, message: MsgBuf, options: CallOptions) -> ClientSend {
        ClientSend::new(self.clone(), method, message).options(options)
    }

    fn slots(&self) -> Option<u32> {
        Some(self.inner.slots)
    }

    fn clock(&self) -> CallClock {
        let simulated = self.inner.endpoint().simulated.as_ref();
        simulated.map(|of| CallClock(of.clock.clone())).unwrap_or_default()
    }

    fn random(&self) -> u64 {
        let simulated = self.inner.endpoint().simulated.as_ref();
        simulated.map_or_else(random_u64, Simulated::random)
    }

    fn time_left(&self) -> Option<Duration> {
        Some(inherited()?.saturating_duration_since(self.inner.endpoint().now()))
    }

    fn pause(&self, after: Duration) -> Option<ClientCall> {
        Some(ClientCall::pause(self.clone(), after))
    }

    fn another(&self, options: CallOptions) -> ClientAnother {
        ClientAnother::new(self.connect_for_stream(options.wait_for_ready))
    }

    const COUNTS: bool = true;

    fn counts(&self, info: &ServiceInfo) -> Option<ServiceCells> {
        self.inner.greetings.callers.of(info.name, info.names())
    }

    fn reading(&self) -> u64 {
        let counting = self.inner.endpoint().counting.as_ref();
        counting.map_or(0, Durations::read)
    }

    fn since_ns(&self, begun: u64) -> u64 {
        let counting = self.inner.endpoint().counting.as_ref();
        counting.map_or(0, |durations| durations.since_ns(begun))
    }
}

impl BlockingChannel for Client {
    fn wait<F: Future>(&self, future: F) -> F::Output {
        block_on(pin!(future))
    }
}

impl Dial for Client {
    async fn dial(uri: &str) -> Result<Self, HelloError> {
        Ok(Client::connect(uri).await?)
    }
}

/// The connection of clients that name none.
pub type DefaultChannel = Client;

/// Connects the connection of clients that name none.
#[doc(hidden)]
pub async fn dial(uri: &str) -> Result<DefaultChannel, HelloError> {
    DefaultChannel::dial(uri).await
}
