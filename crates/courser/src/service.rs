//! Typed services.

mod answer;
mod channel;
mod client;
mod codec;
mod error;
mod hello;
mod registry;
mod services;
mod stream;
mod writer;

pub use channel::{BlockingChannel, Channel, DefaultChannel, Dial};
pub use client::{OneWay, Sending, Unary, UnaryCall};
#[cfg(feature = "postcard")]
pub use codec::Postcard;
#[cfg(feature = "prost")]
pub use codec::Prost;
pub use codec::{Bytes, Codec, Decode, Encode, Payload};
#[cfg(feature = "rkyv")]
pub use codec::{Rkyv, View};
pub use error::{DecodeError, EncodeError, NoError, RpcError, StreamError};
pub use futures_core::Stream;
pub use hello::{HelloError, Mismatch};
pub use registry::{
    LocalRegistry, LocalService, Received, RegisterError, Registry, Service, SessionKey, to_message,
};
pub use services::{MethodInfo, ServiceInfo, ServiceStats, Services};
pub use stream::{
    Incoming, Next, OpenStream, OpenUpload, Opening, OpeningUpload, Streaming, Upload,
};
pub use writer::{Memory, WriteError, Writer, encode};

// Used by generated code.
#[doc(hidden)]
pub use self::{
    answer::{Answer, Refusal},
    channel::dial,
    client::TypedClient,
    hello::hello,
    services::{begin, begin_local},
    stream::{AllOk, StreamEnd},
};
