//! The call by which a client asks its server for a service: which of the client's methods the server
//! has, with which request types, and whether their values have the same shapes.
//!
//! Request: a format number, a byte of extensions (bit 0: the client reads which fields the server requires;
//! its shapes state them then), the name and the codec, each after a byte with its
//! length, the number of methods (2 bytes), and for each one in order its name, after a byte with its
//! length, and the hash of its shape (8 bytes, little endian). Response: a kind; for `HAS` a byte of
//! extensions, the server's codec, and a state for each method: for `SAME` and `OTHER` its request type
//! (2 bytes), for `OTHER` also the server's shape after its length (4 bytes; 0: it is too long); for
//! `UNKNOWN` the names of the server's services.

use std::sync::Arc;

use courser_buf::MsgBuf;
use courser_proto::{CallError, Status};

use super::answer::{self, tag};
use crate::channel::greeting::Greeting;
use crate::channel::method::{MethodInfo, Numbers, ServiceInfo};
use crate::error::failure::CallFailure;
use crate::error::hello::{HelloError, Mismatch};
use crate::error::method::{MethodMismatch, ShapeMismatch, UnknownMethod};
use crate::error::service::{DecodeError, NoError, RpcError};
use crate::shape::method::MethodShape;

/// Format 1 had no methods, format 2 one fingerprint for all of them.
const FORMAT: u8 = 3;
/// Extensions of clients. Both ends ignore bits that they do not know.
const READS_REQUIRED: u8 = 1;

/// Kinds of responses.
pub(super) const HAS: u8 = 0;
pub(super) const UNKNOWN: u8 = 2;

/// States of methods.
pub(super) const SAME: u8 = 0;
pub(super) const MISSING: u8 = 1;
pub(super) const OTHER: u8 = 2;

/// Names in a response.
pub(super) const MAX_NAMES: usize = 16;

/// Reads pieces of a message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) =
            self.0.split_at_checked(len).ok_or(DecodeError::Form("a hello that ends early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.bytes(1)?[0])
    }

    pub(super) fn number(&mut self) -> Result<u64, DecodeError> {
        let bytes = self.bytes(8)?.try_into().unwrap_or_default();
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn length(&mut self) -> Result<usize, DecodeError> {
        let bytes = self.bytes(4)?.try_into().unwrap_or_default();
        Ok(u32::from_le_bytes(bytes) as usize)
    }

    pub(super) fn short(&mut self) -> Result<u16, DecodeError> {
        let bytes = self.bytes(2)?.try_into().unwrap_or_default();
        Ok(u16::from_le_bytes(bytes))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, DecodeError> {
        let len = self.byte()?;
        let text = std::str::from_utf8(self.bytes(usize::from(len))?);
        text.map_err(|_| DecodeError::Form("a name that is no UTF-8"))
    }
}

pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    let text = text.get(..255).unwrap_or(text);
    debug_assert!(text.len() < 256, "the attribute limits names");
    out.push(text.len().min(255) as u8);
    out.extend(&text.as_bytes()[..text.len().min(255)]);
}

/// The request that asks for a service.
pub(crate) fn request(info: &ServiceInfo) -> Vec<u8> {
    let mut bytes = vec![FORMAT, READS_REQUIRED];
    put_text(info.name, &mut bytes);
    put_text(info.codec, &mut bytes);
    bytes.extend((info.methods.len() as u16).to_le_bytes());
    for (method, shape) in info.methods.iter().zip(info.shapes()) {
        put_text(method.name, &mut bytes);
        bytes.extend(shape.fingerprint().to_le_bytes());
    }
    bytes
}

/// Reads the answer of a server. `checked`: a server without the service, or with another codec of it, is
/// an error.
pub(crate) fn read(
    info: &ServiceInfo,
    checked: bool,
    answer: Result<MsgBuf, CallFailure>,
) -> Result<Numbers, HelloError> {
    match answer {
        Err(CallFailure::Failed(CallError::Server(Status::UnknownType))) => match checked {
            true => {
                let others = "handlers without a service".to_owned();
                Err(HelloError::NoService { service: info.name.to_owned(), others })
            }
            false => Ok(unknown_methods(info)),
        },
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
            RpcError::Denied(reason)
            | RpcError::Unauthenticated(reason)
            | RpcError::TooMany { reason, .. } => {
                HelloError::Denied { service: info.name.into(), reason }
            }
            _ => DecodeError::Form("a hello that was refused").into(),
        });
    }
    let mut reader = Reader(payload);
    match reader.byte()? {
        HAS => {}
        UNKNOWN if checked => {
            let others = names(&mut reader)?;
            return Err(HelloError::NoService { service: info.name.to_owned(), others });
        }
        UNKNOWN => return Ok(unknown_methods(info)),
        _ => return Err(DecodeError::Form("a hello of an unknown kind").into()),
    }
    let extensions = reader.byte()?;
    let codec = printable(reader.text()?);
    if codec != info.codec && checked {
        return Err(HelloError::Mismatch(Box::new(Mismatch {
            service: info.name.to_owned(),
            client_codec: info.codec.to_owned(),
            server_codec: codec,
        })));
    }
    let methods: Result<Vec<_>, DecodeError> =
        (0..info.methods.len()).map(|at| method(info, at, &codec, &mut reader)).collect();
    Ok(Numbers::new(methods?.into_iter(), extensions))
}

/// The names of a server's services, in words.
fn names(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let count = usize::from(reader.byte()?).min(MAX_NAMES);
    let names: Result<Vec<_>, _> = (0..count).map(|_| reader.text().map(printable)).collect();
    Ok(match names?.join(", ") {
        none if none.is_empty() => "none at all".to_owned(),
        names => names,
    })
}

/// A method as the server has it: its request type, or why it cannot be called.
fn method(
    info: &ServiceInfo,
    at: usize,
    codec: &str,
    reader: &mut Reader<'_>,
) -> Result<Result<u16, MethodMismatch>, DecodeError> {
    let (method, own) = (&info.methods[at], &info.shapes()[at]);
    let state = reader.byte()?;
    if state == MISSING {
        return Ok(Err(unknown(info, method)));
    }
    let number = reader.short()?;
    let differs = |difference: String, client: String, server: String| {
        let (service, method) = (info.name.to_owned(), method.name.to_owned());
        let mismatch = ShapeMismatch { service, method, difference, client, server };
        Ok(Err(MethodMismatch::Shape(Arc::new(mismatch))))
    };
    let of_codec = |shape: &str, codec: &str| format!("{shape} by {codec}");
    let shape = match state {
        SAME => Ok(own.clone()),
        OTHER => {
            let len = reader.length()?;
            stated(reader.bytes(len)?)
        }
        _ => return Err(DecodeError::Form("a method of an unknown state")),
    };
    let shape = match shape {
        Ok(shape) => shape,
        Err(why) => return differs(why.to_owned(), own.to_string(), "another one".to_owned()),
    };
    if codec != info.codec {
        let client = of_codec(&own.to_string(), info.codec);
        return differs("the codecs".to_owned(), client, of_codec(&shape.to_string(), codec));
    }
    match info.compare(own, &shape) {
        Ok(()) => Ok(Ok(number)),
        Err(difference) => {
            differs(printable(&difference), own.to_string(), printable(&shape.to_string()))
        }
    }
}

/// The shape that a server states, or why it cannot be compared: one that is not read may be of a later
/// version, and says nothing about the other methods.
fn stated(bytes: &[u8]) -> Result<MethodShape, &'static str> {
    match bytes {
        [] => Err("the server's shape is too long to be compared"),
        bytes => MethodShape::from_bytes(bytes)
            .map_err(|_| "the server's shape is none that this version of Courser reads"),
    }
}

/// The methods of a service that the server does not have.
fn unknown_methods(info: &ServiceInfo) -> Numbers {
    Numbers::new(info.methods.iter().map(|method| Err(unknown(info, method))), 0)
}

fn unknown(info: &ServiceInfo, method: &MethodInfo) -> MethodMismatch {
    let (service, method) = (info.name.to_owned(), method.name.to_owned());
    MethodMismatch::Unknown(Arc::new(UnknownMethod { service, method }))
}

/// A text of the peer without control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The service that a request asks for.
pub(super) fn service(request: &[u8]) -> Option<&str> {
    read_request(request).ok().map(|asked| asked.name)
}

/// The request of a client.
pub(super) struct Asked<'a> {
    pub(super) name: &'a str,
    pub(super) codec: &'a str,
    /// The client reads which fields are required.
    pub(super) reads_required: bool,
    /// Their number, and their names and hashes, which are not read yet.
    pub(super) methods: Reader<'a>,
}

pub(super) fn read_request(request: &[u8]) -> Result<Asked<'_>, DecodeError> {
    let mut reader = Reader(request);
    match reader.byte()? {
        FORMAT => {}
        1 | 2 => return Err(DecodeError::Form("a hello of an earlier version of Courser")),
        _ => return Err(DecodeError::Form("a hello of an unknown format")),
    }
    let reads_required = reader.byte()? & READS_REQUIRED != 0;
    let (name, codec) = (reader.text()?, reader.text()?);
    Ok(Asked { name, codec, reads_required, methods: reader })
}

impl Greeting {
    pub(crate) fn request(&self) -> Vec<u8> {
        request(self.info)
    }

    pub(crate) fn read_bytes(&self, answer: &[u8]) -> Result<Numbers, HelloError> {
        read_response(self.info, self.checked, answer)
    }

    /// Reads the answer of the server of another session than the first. A service that it does not have,
    /// or has with another codec, is no error of the session: its methods cannot be called.
    pub(crate) fn read(&self, answer: Result<MsgBuf, CallFailure>) -> Result<Numbers, HelloError> {
        read(self.info, false, answer)
    }
}
