//! The first call of a client: whether its server has the service in the same version.
//!
//! Request: a format number, the fingerprint (8 bytes, little endian), the name and the codec, each
//! after a byte with its length. Response: a kind, and for `OTHER` the server's fingerprint and
//! codec, for `UNKNOWN` the names of the server's services.

use courser_buf::MsgBuf;
use courser_proto::{CallError, Status};

use super::answer::{self, Refusal, tag};
use super::channel::{CallOptions, Channel, ChannelMemory};
use super::error::{DecodeError, EncodeError, NoError, RpcError};
use super::services::{HELLO, ServiceInfo, Services};
use super::writer::{self, Writer};
use crate::client::{ClientError, Greeting};
use crate::failure::CallFailure;
use crate::message::{Reply, ReplySink};

const FORMAT: u8 = 1;

const SAME: u8 = 0;
const OTHER: u8 = 1;
const UNKNOWN: u8 = 2;

/// Names in a response.
const MAX_NAMES: usize = 16;

/// A client and its server do not have the same service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The name that the client has asked for.
    pub service: String,
    /// The client's fingerprint.
    pub client_fingerprint: u64,
    /// The client's codec.
    pub client_codec: String,
    /// The server's fingerprint.
    pub server_fingerprint: u64,
    /// The server's codec.
    pub server_codec: String,
}

/// A typed client could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// Both ends have the service, in different versions.
    #[error(
        "the client has service {} with fingerprint {:016x} (codec {}), the server has {} with \
         {:016x} (codec {}); use the same definition of the service at both ends",
        .0.service, .0.client_fingerprint, .0.client_codec, .0.service, .0.server_fingerprint,
        .0.server_codec
    )]
    Mismatch(Box<Mismatch>),
    /// The server has other services only.
    #[error("the server has no service {service}, but {others}; check the address and the name")]
    NoService {
        /// The name that the client has asked for.
        service: String,
        /// Names of the server's services, up to 16, in words.
        others: String,
    },
    /// The server was not reached, or did not answer.
    #[error(transparent)]
    Call(#[from] CallFailure),
    /// The address cannot be used, or there is no connection.
    #[error(transparent)]
    Connect(#[from] ClientError),
    /// The request could not be made.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The answer is malformed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Reads pieces of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) =
            self.0.split_at_checked(len).ok_or(DecodeError::Form("a hello that ends early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.bytes(1)?[0])
    }

    fn number(&mut self) -> Result<u64, DecodeError> {
        let bytes = self.bytes(8)?.try_into().unwrap_or_default();
        Ok(u64::from_le_bytes(bytes))
    }

    fn text(&mut self) -> Result<&'a str, DecodeError> {
        let len = self.byte()?;
        let text = std::str::from_utf8(self.bytes(usize::from(len))?);
        text.map_err(|_| DecodeError::Form("a name that is no UTF-8"))
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    let text = text.get(..255).unwrap_or(text);
    debug_assert!(text.len() < 256, "the attribute limits names");
    out.push(text.len().min(255) as u8);
    out.extend(&text.as_bytes()[..text.len().min(255)]);
}

/// Asks a server for a service.
#[doc(hidden)]
pub async fn hello<C: Channel>(channel: &C, info: &ServiceInfo) -> Result<(), HelloError> {
    let mut bytes = vec![FORMAT];
    bytes.extend(info.fingerprint.to_le_bytes());
    put_text(info.name, &mut bytes);
    put_text(info.codec, &mut bytes);
    let write = |out: &mut Writer<'_>| {
        out.extend(&bytes).map_err(|_| out.reason(EncodeError::TooLarge { limit: 0 }))
    };
    let request = writer::message(&ChannelMemory(channel), write)?;
    let response = match channel.call(HELLO, request, CallOptions::default()).await {
        Err(CallFailure::Failed(CallError::Server(Status::UnknownType))) => {
            let others = "handlers without a service".to_owned();
            return Err(HelloError::NoService { service: info.name.to_owned(), others });
        }
        response => response?,
    };
    read_answer(info, response)?;
    let info = *info;
    let check = move |answer| read_answer(&info, answer).map_err(|e| e.to_string());
    channel.greet(Greeting::new(HELLO, bytes, check));
    Ok(())
}

fn read_answer(info: &ServiceInfo, response: MsgBuf) -> Result<(), HelloError> {
    let (tag, payload) = answer::split(response)?;
    if tag != tag::OK {
        return Err(match answer::refused::<NoError>(tag, &payload) {
            RpcError::Decode(e) => e.into(),
            RpcError::Encode(e) => e.into(),
            _ => DecodeError::Form("a hello that was refused").into(),
        });
    }
    let mut reader = Reader(&payload);
    match reader.byte()? {
        SAME => Ok(()),
        OTHER => Err(HelloError::Mismatch(Box::new(Mismatch {
            service: info.name.to_owned(),
            client_fingerprint: info.fingerprint,
            client_codec: info.codec.to_owned(),
            server_fingerprint: reader.number()?,
            server_codec: printable(reader.text()?),
        }))),
        UNKNOWN => {
            let count = usize::from(reader.byte()?).min(MAX_NAMES);
            let names: Result<Vec<_>, _> =
                (0..count).map(|_| reader.text().map(printable)).collect();
            let others = match names?.join(", ") {
                none if none.is_empty() => "none at all".to_owned(),
                names => names,
            };
            Err(HelloError::NoService { service: info.name.to_owned(), others })
        }
        _ => Err(DecodeError::Form("a hello of an unknown kind").into()),
    }
}

/// A text of the peer without control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The answer to a hello.
pub(super) enum HelloReply {
    Refused(Refusal),
    Bytes(Vec<u8>),
}

impl Reply for HelloReply {
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self {
            HelloReply::Refused(refusal) => answer::RefusalReply(refusal).send_to(to),
            HelloReply::Bytes(bytes) => to.bytes(&bytes),
        }
    }
}

/// Answers a hello.
pub(super) fn answer(services: &Services, request: &[u8]) -> HelloReply {
    let (fingerprint, name, codec) = match read_request(request) {
        Ok(read) => read,
        Err(e) => return HelloReply::Refused(services.undecoded(e)),
    };
    let list = services.lock();
    let mut bytes = Vec::new();
    match list.iter().find(|info| info.name == name) {
        Some(info) if info.fingerprint == fingerprint && info.codec == codec => bytes.push(SAME),
        Some(info) => {
            services.mismatch();
            bytes.push(OTHER);
            bytes.extend(info.fingerprint.to_le_bytes());
            put_text(info.codec, &mut bytes);
        }
        None => {
            services.mismatch();
            let count = list.len().min(MAX_NAMES);
            bytes.extend([UNKNOWN, count as u8]);
            list.iter().take(count).for_each(|info| put_text(info.name, &mut bytes));
        }
    }
    bytes.push(tag::OK);
    HelloReply::Bytes(bytes)
}

fn read_request(request: &[u8]) -> Result<(u64, &str, &str), DecodeError> {
    let mut reader = Reader(request);
    if reader.byte()? != FORMAT {
        return Err(DecodeError::Form("a hello of an unknown format"));
    }
    let read = (reader.number()?, reader.text()?, reader.text()?);
    match reader.0 {
        [] => Ok(read),
        left => Err(DecodeError::Trailing { left: left.len() }),
    }
}
