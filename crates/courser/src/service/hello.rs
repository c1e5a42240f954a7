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

use super::answer::{self, tag};
use crate::channel::greeting::Greeting;
use crate::channel::method::{MISSING, Numbers, ServiceInfo, with_features};
use crate::error::failure::CallFailure;
use crate::error::hello::{HelloError, Mismatch};
use crate::error::service::{DecodeError, NoError, RpcError};

/// Format 1 had no methods: names were hashed to request types.
const FORMAT: u8 = 2;

pub(super) const SAME: u8 = 0;
pub(super) const OTHER: u8 = 1;
pub(super) const UNKNOWN: u8 = 2;

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
        UNKNOWN => return Ok(with_features(info.methods.iter().map(|_| MISSING), 0)),
        _ => return Err(DecodeError::Form("a hello of an unknown kind").into()),
    }
    let numbers: Result<Vec<_>, _> = info.methods.iter().map(|_| reader.short()).collect();
    Ok(with_features(numbers?.into_iter(), features(&mut reader)))
}

/// The features of the server, which earlier versions do not send.
fn features(reader: &mut Reader<'_>) -> u8 {
    reader.byte().unwrap_or(0)
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
    pub(super) fingerprint: u64,
    pub(super) name: &'a str,
    pub(super) codec: &'a str,
    /// Their number and their names, which are not read yet.
    pub(super) methods: Reader<'a>,
}

pub(super) fn read_request(request: &[u8]) -> Result<Asked<'_>, DecodeError> {
    let mut reader = Reader(request);
    match reader.byte()? {
        FORMAT => {}
        1 => return Err(DecodeError::Form("a hello of an earlier version of Courser")),
        _ => return Err(DecodeError::Form("a hello of an unknown format")),
    }
    let (fingerprint, name, codec) = (reader.number()?, reader.text()?, reader.text()?);
    Ok(Asked { fingerprint, name, codec, methods: reader })
}

impl Greeting {
    pub(crate) fn request(&self) -> Vec<u8> {
        request(self.info)
    }

    pub(crate) fn read_bytes(&self, answer: &[u8]) -> Result<Numbers, HelloError> {
        read_response(self.info, self.checked, answer)
    }

    pub(crate) fn read(&self, answer: Result<MsgBuf, CallFailure>) -> Result<Numbers, HelloError> {
        read(self.info, self.checked, answer)
    }
}
