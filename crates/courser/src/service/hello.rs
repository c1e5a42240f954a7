//! The call by which a client asks its server for a service: whether the server has it in the same
//! version, and the request types that the server has assigned to its methods.
//!
//! Request: a format number, the fingerprint (8 bytes, little endian), the name and the codec, each
//! after a byte with its length, the number of methods (2 bytes), and their names in order, each after
//! a byte with its length. Response: a kind; for `OTHER` the server's fingerprint and codec; for both
//! `SAME` and `OTHER` the request type of each method (2 bytes; 0xFFFF: the server does not have it);
//! for `UNKNOWN` the names of the server's services.

use courser_buf::MsgBuf;
use courser_proto::{CallError, Status};

use super::answer::{self, Refusal, tag};
use super::binding::Numbers;
use super::services::{Assigned, MISSING, ServiceInfo, Services};
use crate::core::message::{Reply, ReplySink};
use crate::error::ClientError;
use crate::error::failure::CallFailure;
use crate::error::service::{DecodeError, EncodeError, NoError, RpcError};

/// Format 1 had no methods: names were hashed to request types.
const FORMAT: u8 = 2;

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
    /// The server does not allow this client to use the service.
    #[error(
        "the server does not allow this client to use service {service} ({reason}); use a client \
         that it allows"
    )]
    Denied {
        /// The name that the client has asked for.
        service: String,
        /// The server's text.
        reason: Box<str>,
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

    fn short(&mut self) -> Result<u16, DecodeError> {
        let bytes = self.bytes(2)?.try_into().unwrap_or_default();
        Ok(u16::from_le_bytes(bytes))
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

/// The request that asks for a service.
pub(crate) fn request(info: &ServiceInfo) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    bytes.extend(info.fingerprint.to_le_bytes());
    put_text(info.name, &mut bytes);
    put_text(info.codec, &mut bytes);
    bytes.extend((info.methods.len() as u16).to_le_bytes());
    info.methods.iter().for_each(|method| put_text(method.name, &mut bytes));
    bytes
}

/// Reads the answer of a server. `checked`: another version of the service is an error.
pub(crate) fn read(
    info: &ServiceInfo,
    checked: bool,
    answer: Result<MsgBuf, CallFailure>,
) -> Result<Numbers, HelloError> {
    match answer {
        Err(CallFailure::Failed(CallError::Server(Status::UnknownType))) if checked => {
            let others = "handlers without a service".to_owned();
            Err(HelloError::NoService { service: info.name.to_owned(), others })
        }
        answer => read_response(info, checked, &answer?),
    }
}

/// Reads the response of a server.
pub(crate) fn read_response(
    info: &ServiceInfo,
    checked: bool,
    response: &[u8],
) -> Result<Numbers, HelloError> {
    let (tag, payload) = response.split_last().ok_or(DecodeError::Form("an empty response"))?;
    if *tag != tag::OK {
        return Err(match answer::refused::<NoError>(*tag, payload) {
            RpcError::Decode(e) => e.into(),
            RpcError::Encode(e) => e.into(),
            RpcError::Denied(reason) => HelloError::Denied { service: info.name.into(), reason },
            _ => DecodeError::Form("a hello that was refused").into(),
        });
    }
    let mut reader = Reader(payload);
    match reader.byte()? {
        SAME => {}
        OTHER => {
            let (server_fingerprint, server_codec) = (reader.number()?, reader.text()?);
            if checked {
                return Err(HelloError::Mismatch(Box::new(Mismatch {
                    service: info.name.to_owned(),
                    client_fingerprint: info.fingerprint,
                    client_codec: info.codec.to_owned(),
                    server_fingerprint,
                    server_codec: printable(server_codec),
                })));
            }
        }
        UNKNOWN if checked => {
            let count = usize::from(reader.byte()?).min(MAX_NAMES);
            let names: Result<Vec<_>, _> =
                (0..count).map(|_| reader.text().map(printable)).collect();
            let others = match names?.join(", ") {
                none if none.is_empty() => "none at all".to_owned(),
                names => names,
            };
            return Err(HelloError::NoService { service: info.name.to_owned(), others });
        }
        UNKNOWN => return Ok(info.methods.iter().map(|_| MISSING).collect()),
        _ => return Err(DecodeError::Form("a hello of an unknown kind").into()),
    }
    let numbers: Result<Numbers, _> = info.methods.iter().map(|_| reader.short()).collect();
    Ok(numbers?)
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
    match read_request(request).and_then(|asked| answer_asked(services, asked)) {
        Ok(mut bytes) => {
            bytes.push(tag::OK);
            HelloReply::Bytes(bytes)
        }
        Err(e) => HelloReply::Refused(services.undecoded(e)),
    }
}

/// The service that a request asks for.
pub(super) fn service(request: &[u8]) -> Option<&str> {
    read_request(request).ok().map(|asked| asked.name)
}

fn answer_asked(services: &Services, asked: Asked<'_>) -> Result<Vec<u8>, DecodeError> {
    let list = services.lock();
    let Some(service) = list.iter().find(|service| service.info.name == asked.name) else {
        services.mismatch();
        let count = list.len().min(MAX_NAMES);
        let mut bytes = vec![UNKNOWN, count as u8];
        list.iter().take(count).for_each(|other| put_text(other.info.name, &mut bytes));
        return Ok(bytes);
    };
    let info = &service.info;
    let mut bytes = Vec::new();
    if info.fingerprint == asked.fingerprint && info.codec == asked.codec {
        bytes.push(SAME);
    } else {
        services.mismatch();
        bytes.push(OTHER);
        bytes.extend(info.fingerprint.to_le_bytes());
        put_text(info.codec, &mut bytes);
    }
    put_numbers(service, asked.methods, &mut bytes)?;
    Ok(bytes)
}

/// The request types of the methods that a client has. Both lists are in order.
fn put_numbers(
    service: &Assigned,
    mut asked: Reader<'_>,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let count = asked.short()?;
    let (own, mut at) = (service.info.methods, 0);
    for _ in 0..count {
        let name = asked.text()?;
        while own.get(at).is_some_and(|method| method.name < name) {
            at += 1;
        }
        let is_same = own.get(at).is_some_and(|method| method.name == name);
        let number = if is_same { service.number(at) } else { MISSING };
        out.extend(number.to_le_bytes());
    }
    match asked.0 {
        [] => Ok(()),
        left => Err(DecodeError::Trailing { left: left.len() }),
    }
}

/// The request of a client.
struct Asked<'a> {
    fingerprint: u64,
    name: &'a str,
    codec: &'a str,
    /// Their number and their names, which are not read yet.
    methods: Reader<'a>,
}

fn read_request(request: &[u8]) -> Result<Asked<'_>, DecodeError> {
    let mut reader = Reader(request);
    match reader.byte()? {
        FORMAT => {}
        1 => return Err(DecodeError::Form("a hello of an earlier version of Courser")),
        _ => return Err(DecodeError::Form("a hello of an unknown format")),
    }
    let (fingerprint, name, codec) = (reader.number()?, reader.text()?, reader.text()?);
    Ok(Asked { fingerprint, name, codec, methods: reader })
}
