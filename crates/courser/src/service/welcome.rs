//! The answer of a server to a client that asks for a service: see [`super::hello`].

use super::answer::{self, Refusal, tag};
use super::hello::{Asked, MAX_NAMES, OTHER, Reader, SAME, UNKNOWN, put_text, read_request};
use super::services::{Assigned, Services};
use crate::channel::method::{MISSING, READS_METADATA};
use crate::core::message::{Reply, ReplySink};
use crate::error::service::DecodeError;

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
    put_features(services, &mut bytes);
    Ok(bytes)
}

/// The features of this server. Earlier clients ignore them.
fn put_features(services: &Services, out: &mut Vec<u8>) {
    if services.reads_metadata() {
        out.push(READS_METADATA);
    }
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
