//! Receive (steps 11 and 12 of a packet's path), one file per packet kind. Each function classifies
//! a packet as past, in order, or future, and either changes its slot or returns the reason for the
//! drop. The straight line of `request` and `response` is a small RPC, that of
//! `part` a large message.

mod ack;
mod cancel;
mod content;
mod credit_return;
mod grants;
mod part;
mod request;
mod reserve;
mod response;
mod rfr;

use courser_buf::RxFrame;

use crate::driver::{Driver, deliver};
use crate::endpoint::Endpoint;
use crate::event::{Body, Completion, Event};
use crate::flow::{ClientFlow, ServerFlow};
use crate::oneway::MessageHeader;
use crate::stats::RxDrop;
use crate::wire::{
    DEADLINE_REQUEST, PLAIN_MESSAGE, PLAIN_REQUEST, PLAIN_RESPONSE, Packet, SinglePacket,
    parse_front, parse_packet, parse_part, parse_single,
};

pub(crate) use content::Content;
use content::InParts;
use request::RequestHeader;
use response::ResponseHeader;

/// The packets of a validated frame that were not handled yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packets<'f> {
    pub(crate) rest: &'f [u8],
    pub(crate) peer: u32,
    pub(crate) data_per_packet: u16,
}

/// Handles all packets of a frame.
#[inline(always)]
pub(crate) fn packets<C>(driver: &mut impl Driver<C>, packets: Packets<'_>) {
    // The rest of the frame stays in registers as long as it is not passed by reference.
    let Packets { mut rest, peer, data_per_packet } = packets;
    let limit = driver.endpoint().io.cfg.max_msg_size;
    let single_end = limit.min(data_per_packet.into()) + 1;
    while !rest.is_empty() {
        if let Some((p, behind)) = parse_single(rest, single_end) {
            let done = match p.kind {
                PLAIN_RESPONSE => response::rx_response(driver, peer, &p),
                PLAIN_REQUEST | DEADLINE_REQUEST => request::rx_request(driver, peer, &p),
                _ => false,
            };
            if done {
                rest = behind;
                continue;
            }
        }
        rest = rare_packet(driver, Packets { rest, ..packets });
    }
}

/// Handles the next packet of a frame, of any kind and in any state, and returns the bytes after
/// it.
#[inline(never)] // outlined to keep registers free on the path of small messages
fn rare_packet<'f, C>(driver: &mut impl Driver<C>, packets: Packets<'f>) -> &'f [u8] {
    let Packets { mut rest, peer, data_per_packet } = packets;
    if let Some((p, behind)) = parse_part(rest, data_per_packet, 0)
        && part::rx_part(driver.endpoint(), peer, &p, p.data)
    {
        return behind;
    }
    let limit = driver.endpoint().io.cfg.max_msg_size;
    let single_end = limit.min(data_per_packet.into()) + 1;
    // A run of one-way messages. Not in the loop of small RPCs, which would take 20 instructions more.
    while rest.first() == Some(&PLAIN_MESSAGE)
        && let Some((p, behind)) = parse_single(rest, single_end)
        && rx_next_message(driver, peer, &p)
    {
        rest = behind;
    }
    let (packet, behind) = match parse_packet(rest, data_per_packet) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return &[],
        Err(malformed) => {
            // The packets after it cannot be delimited.
            driver.endpoint().io.stats.drop(malformed.into());
            return &[];
        }
    };
    match packet {
        Packet::Request {
            session,
            req_num,
            req_type,
            msg_size,
            index,
            remaining_us,
            one_way,
            data,
        } => {
            let h = RequestHeader {
                session,
                req_num,
                req_type,
                msg_size,
                index,
                remaining_us,
                one_way,
            };
            request::rx_request_rare(driver, peer, h, data);
        }
        Packet::Message { session, number, msg_type, remaining_us, data } => {
            let h = MessageHeader { session, number, msg_type, remaining_us };
            rx_message(driver, peer, h, data);
        }
        Packet::Response { session, req_num, msg_size, index, data } => {
            let h = ResponseHeader { session, req_num, msg_size, index };
            response::rx_response_rare(driver, peer, h, data);
        }
        other => {
            let event = driver.endpoint().on_control(peer, other);
            if let Some(event) = event {
                deliver(driver, event);
            }
        }
    }
    behind
}

/// Handles the next one-way message of a session. `false`: it is another one, or to be checked;
/// nothing has changed, and it is for [`rx_message`].
#[inline(always)] // into the loop over messages, its only caller
fn rx_next_message<C>(driver: &mut impl Driver<C>, peer: u32, p: &SinglePacket<'_>) -> bool {
    let Some(session) = driver.endpoint().take_next_message(peer, p) else { return false };
    driver.on_message(session, p.req_type, Body::Borrowed(p.data), u64::MAX);
    true
}

/// Handles a one-way message of one packet.
#[inline(never)]
fn rx_message<C>(driver: &mut impl Driver<C>, peer: u32, h: MessageHeader, data: &[u8]) {
    let endpoint = driver.endpoint();
    match endpoint.rx_message(peer, h, data) {
        Ok(event) => {
            endpoint.io.stats.received(8);
            if let Some(Event::Message { session, msg_type, body, expires_ns, .. }) = event {
                driver.on_message(session, msg_type, body, expires_ns);
            }
        }
        Err(reason) => endpoint.io.stats.drop(reason),
    }
}

/// Handles a frame whose end the transport has left in memory that its sender can still write. One
/// packet of a large message is copied from there to its place in the message: its headers are
/// checked in the front of the frame, which is private memory, and no decision depends on the rest.
/// Any other frame is first copied into one piece.
#[inline(never)] // outlined to keep registers free on the path of other frames
pub(crate) fn packets_in_parts<C>(
    driver: &mut impl Driver<C>,
    packets_of: Packets<'_>,
    frame: &RxFrame<'_>,
) {
    let Packets { rest, peer, data_per_packet } = packets_of;
    let tail = frame.tail();
    if let Some((p, _)) = parse_part(rest, data_per_packet, tail.len())
        && part::rx_part(driver.endpoint(), peer, &p, InParts { front: p.data, tail })
    {
        return;
    }
    match parse_front(rest, data_per_packet, tail.len()) {
        Some(Packet::Request {
            session,
            req_num,
            req_type,
            msg_size,
            index,
            remaining_us,
            one_way,
            data,
        }) => {
            let h = RequestHeader {
                session,
                req_num,
                req_type,
                msg_size,
                index,
                remaining_us,
                one_way,
            };
            request::rx_request_rare(driver, peer, h, InParts { front: data, tail });
        }
        Some(Packet::Response { session, req_num, msg_size, index, data }) => {
            let h = ResponseHeader { session, req_num, msg_size, index };
            response::rx_response_rare(driver, peer, h, InParts { front: data, tail });
        }
        _ => {
            let mut scratch = std::mem::take(&mut driver.endpoint().io.scratch);
            let header = frame.data.len() - rest.len();
            let joined = frame.join(&mut scratch);
            packets(driver, Packets { rest: &joined.data[header..], ..packets_of });
            driver.endpoint().io.scratch = scratch;
        }
    }
}

impl<C> Endpoint<C> {
    /// Handles a packet that belongs neither to a request nor to a response.
    fn on_control(&mut self, peer: u32, packet: Packet<'_>) -> Option<Event<'static, C>> {
        let mut event = None;
        let kind = counted_as(&packet);
        let taken = match packet {
            Packet::CreditReturn { session, .. }
            | Packet::ErrorResponse { session, .. }
            | Packet::Nack { session, .. }
            | Packet::MessageAck { session, .. } => {
                let flow = self.connected_flow(peer, session);
                let taken = flow.and_then(|mut flow| flow.on_control(packet));
                taken.map(|completion| event = completion.map(Event::Completion))
            }
            Packet::Rfr { session, .. } | Packet::Ack { session, .. } => {
                let flow = self.server_flow_of(peer, session);
                flow.and_then(|mut flow| flow.on_control(packet))
            }
            Packet::Cancel { session, req_num } => {
                let flow = self.awake_server_flow(peer, session, req_num);
                flow.and_then(|mut flow| flow.rx_cancel(req_num))
            }
            Packet::Gap => {
                self.rx_gap(peer);
                Ok(())
            }
            Packet::Proof { token } => {
                self.outbox.moves.on_proof(peer, token, self.io.now_ns);
                Ok(())
            }
            _ => Err(RxDrop::Unsupported),
        };
        match taken {
            Ok(()) => self.io.stats.received(kind),
            Err(reason) => self.io.stats.drop(reason),
        }
        self.apply_effects();
        event
    }
}

impl<C> ClientFlow<'_, C> {
    fn on_control(&mut self, packet: Packet<'_>) -> Result<Option<Completion<'static, C>>, RxDrop> {
        match packet {
            Packet::CreditReturn { req_num, count, in_progress, grant, .. } => {
                self.rx_credit_return(req_num, (count, in_progress), grant)?;
            }
            Packet::ErrorResponse { req_num, status, .. } => {
                return self.rx_error_response(req_num, status);
            }
            Packet::Nack { req_num, count, high, holes, .. } => {
                self.rx_nack(req_num, (count, high, holes))?;
            }
            Packet::MessageAck { next, later, .. } => self.rx_message_ack(next, later)?,
            _ => return Err(RxDrop::Unsupported),
        }
        Ok(None)
    }
}

impl<C> ServerFlow<'_, C> {
    fn on_control(&mut self, packet: Packet<'_>) -> Result<(), RxDrop> {
        match packet {
            Packet::Rfr { req_num, first, count, .. } => self.rx_rfr(req_num, first, count),
            Packet::Ack { req_num, .. } => self.rx_ack(req_num),
            _ => Err(RxDrop::Unsupported),
        }
    }
}

/// The index of a packet's kind in the counters ([`crate::CountedKind`]).
fn counted_as(packet: &Packet<'_>) -> usize {
    match packet {
        Packet::Request { .. } => 0,
        Packet::CreditReturn { .. } => 1,
        Packet::Rfr { .. } => 2,
        Packet::Response { .. } | Packet::ErrorResponse { .. } => 3,
        Packet::Ack { .. } => 4,
        Packet::Cancel { .. } => 5,
        Packet::Nack { .. } => 6,
        Packet::Gap => 7,
        Packet::Message { .. } => 8,
        Packet::MessageAck { .. } => 9,
        Packet::Proof { .. } => 10,
    }
}
