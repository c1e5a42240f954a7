//! The answer of a server to a client that asks for a service: see [`super::hello`].

use super::answer::{self, Refusal, tag};
use super::hello::{Asked, HAS, MAX_NAMES, MISSING, OTHER, SAME, UNKNOWN, put_text, read_request};
use super::services::{Assigned, Services};
use crate::channel::method::READS_METADATA;
use crate::core::message::{Reply, ReplySink};
use crate::counts::CallOutcome;
use crate::error::service::DecodeError;

/// The answer to a hello.
pub(super) enum HelloReply {
    Refused(Refusal),
    Bytes(Vec<u8>),
}

impl Reply for HelloReply {
    fn outcome(&self) -> CallOutcome {
        match self {
            HelloReply::Refused(refusal) => refusal.outcome(),
            HelloReply::Bytes(_) => CallOutcome::Ok,
        }
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self {
            HelloReply::Refused(refusal) => answer::RefusalReply(refusal).send_to(to),
            HelloReply::Bytes(bytes) => to.bytes(&bytes),
        }
    }
}

/// Most bytes of the shapes in an answer. A longer shape, or one behind them, is not stated.
const MAX_SHAPES: usize = 1 << 20;

/// Answers a hello. `limit` is the largest message.
pub(super) fn answer(services: &Services, request: &[u8], limit: usize) -> HelloReply {
    match read_request(request).and_then(|asked| answer_asked(services, asked, limit)) {
        Ok(mut bytes) => {
            bytes.push(tag::OK);
            HelloReply::Bytes(bytes)
        }
        Err(e) => HelloReply::Refused(services.undecoded(e)),
    }
}

fn answer_asked(
    services: &Services,
    mut asked: Asked<'_>,
    limit: usize,
) -> Result<Vec<u8>, DecodeError> {
    let list = services.lock();
    let Some(service) = list.iter().find(|service| service.info.name == asked.name) else {
        services.mismatch();
        let count = list.len().min(MAX_NAMES);
        let mut bytes = vec![UNKNOWN, count as u8];
        list.iter().take(count).for_each(|other| put_text(other.info.name, &mut bytes));
        return Ok(bytes);
    };
    let mut bytes = vec![HAS, extensions(services)];
    put_text(service.info.codec, &mut bytes);
    let is_same = put_methods(service, &mut asked, limit, &mut bytes)?;
    if !is_same || service.info.codec != asked.codec {
        services.mismatch();
    }
    Ok(bytes)
}

/// The extensions of this server.
fn extensions(services: &Services) -> u8 {
    if services.reads_metadata() { READS_METADATA } else { 0 }
}

/// The methods that a client has. Both lists are in order. Returns whether the server has all of them,
/// in the same shapes.
fn put_methods(
    service: &Assigned,
    client: &mut Asked<'_>,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<bool, DecodeError> {
    let asked = &mut client.methods;
    let count = asked.short()?;
    let (own, shapes, mut at) = (service.info.methods, service.info.shapes(), 0);
    let (mut is_same, mut room, mut last) = (true, MAX_SHAPES.min(limit / 2), None);
    for _ in 0..count {
        let (name, hash) = (asked.text()?, asked.number()?);
        // So that the work is that of the service's own methods at most.
        if last.replace(name) >= Some(name) {
            return Err(DecodeError::Form("methods that are out of order, or doubled"));
        }
        while own.get(at).is_some_and(|method| method.name < name) {
            at += 1;
        }
        let found = own.get(at).is_some_and(|method| method.name == name);
        let same = found && shapes[at].fingerprint() == hash;
        is_same &= same;
        out.push(match (found, same) {
            (false, _) => MISSING,
            (true, true) => SAME,
            (true, false) => OTHER,
        });
        if found {
            out.extend(service.number(at).to_le_bytes());
        }
        if found && !same {
            let shape = match client.reads_required {
                true => shapes[at].to_bytes_with_required(),
                false => shapes[at].to_bytes(),
            };
            put_shape(&shape, &mut room, out);
        }
    }
    match asked.0 {
        [] => Ok(is_same),
        left => Err(DecodeError::Trailing { left: left.len() }),
    }
}

/// A shape after its length; nothing in place of one for which there is no room.
fn put_shape(shape: &[u8], room: &mut usize, out: &mut Vec<u8>) {
    let bytes = if shape.len() > *room { &[] } else { shape };
    *room -= bytes.len();
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}
