//! Forged frames of a session's other side, and the expected effect of an invalid one.

use courser_proto::wire::{
    EcnCounts, FRAME_HEADER, FrameHeader, PACKET_HEADER, Packet, parse_packet,
};
use courser_proto::{ConnectAccept, Grant, RxDrop};

use super::World;

/// Builds frames of a session between client 0 and server 1.
#[derive(Clone)]
pub struct Forge {
    pub accept: ConnectAccept,
    number: u32,
}

impl Forge {
    pub fn new(accept: ConnectAccept) -> Forge {
        Forge { accept, number: 1 << 15 }
    }

    /// A header that passes the ingress validation of node `to`.
    pub fn header(&mut self, to: usize) -> FrameHeader {
        self.number += 1;
        let a = &self.accept;
        let (peer, cookie) =
            if to == 1 { (a.peer, a.cookie) } else { (a.client_peer, a.client_cookie) };
        let data_per_packet = a.data_per_packet;
        let number = self.number;
        FrameHeader {
            data_per_packet,
            peer,
            cookie,
            number,
            held: 0,
            ecn: EcnCounts::default(),
            sent_at: Some(0),
            echo_at: None,
        }
    }

    pub fn frame(&mut self, to: usize, packets: &[Packet<'_>]) -> Vec<u8> {
        frame(&self.header(to), packets)
    }

    pub fn request(&self, req_num: u32, msg_size: u32, index: u32, data: &[u8]) -> Vec<u8> {
        self.request_of(5, req_num, (msg_size, index), data)
    }

    /// A packet of a request of this type.
    pub fn request_of(
        &self,
        req_type: u16,
        req_num: u32,
        (msg_size, index): (u32, u32),
        data: &[u8],
    ) -> Vec<u8> {
        let session = self.accept.session.number;
        let remaining_us = None;
        let packet = Packet::Request {
            session,
            req_num,
            req_type,
            msg_size,
            index,
            remaining_us,
            one_way: false,
            data,
        };
        self.clone().frame(1, &[packet])
    }

    /// A small request with this remaining time.
    pub fn request_due(&self, req_num: u32, remaining_us: u32, data: &[u8]) -> Vec<u8> {
        let (session, req_type, index) = (self.accept.session.number, 5, 0);
        let (msg_size, remaining_us) = (data.len() as u32, Some(remaining_us));
        let packet = Packet::Request {
            session,
            req_num,
            req_type,
            msg_size,
            index,
            remaining_us,
            one_way: false,
            data,
        };
        self.clone().frame(1, &[packet])
    }

    pub fn error(&self, req_num: u32, status: u16) -> Vec<u8> {
        let session = self.accept.client_session;
        self.clone().frame(0, &[Packet::ErrorResponse { session, req_num, status }])
    }

    pub fn cancel(&self, req_num: u32) -> Vec<u8> {
        let session = self.accept.session.number;
        self.clone().frame(1, &[Packet::Cancel { session, req_num }])
    }

    pub fn response(&self, req_num: u32, msg_size: u32, index: u32, data: &[u8]) -> Vec<u8> {
        let session = self.accept.client_session;
        let packet = Packet::Response { session, req_num, msg_size, index, data };
        self.clone().frame(0, &[packet])
    }

    pub fn credit_return(&self, req_num: u32, count: u32, in_progress: bool) -> Vec<u8> {
        let session = self.accept.client_session;
        let packet =
            Packet::CreditReturn { session, req_num, count, in_progress, grant: Grant::default() };
        self.clone().frame(0, &[packet])
    }

    pub fn rfr(&self, req_num: u32, first: u32, count: u32) -> Vec<u8> {
        let session = self.accept.session.number;
        self.clone().frame(1, &[Packet::Rfr { session, req_num, first, count }])
    }

    pub fn ack(&self, req_num: u32) -> Vec<u8> {
        let session = self.accept.session.number;
        self.clone().frame(1, &[Packet::Ack { session, req_num }])
    }
}

/// The packets of a frame.
pub fn packets(frame: &[u8]) -> impl Iterator<Item = Packet<'_>> {
    let parsed = FrameHeader::parse(frame).ok();
    let dpp = parsed.map_or(0, |(h, _)| h.data_per_packet);
    let mut rest = parsed.map_or(&[][..], |(_, rest)| rest);
    std::iter::from_fn(move || {
        let (packet, more) = parse_packet(rest, dpp).ok()??;
        rest = more;
        Some(packet)
    })
}

pub fn frame(header: &FrameHeader, packets: &[Packet<'_>]) -> Vec<u8> {
    let mut start = [0; FRAME_HEADER];
    header.write(&mut start);
    let mut out = start.to_vec();
    for p in packets {
        let mut h = [0; PACKET_HEADER];
        p.write_header(&mut h);
        out.extend_from_slice(&h);
        out.extend_from_slice(p.data());
    }
    out
}

/// Delivers to node `to` a frame whose only packet must be dropped for `reason`: one count, and no
/// other change. Returns the packets that it caused, which only duplicates may.
pub fn expect_drop(w: &mut World, to: usize, bytes: &[u8], reason: RxDrop) -> Vec<String> {
    let before = w.nodes[to].ep.stats().clone();
    let executed = w.nodes[to].executed.clone();
    let figures = sessions(w, to);
    let (tracing, at) = (w.tracing, w.trace.len());
    w.tracing = true;
    w.inject(1 - to, to, bytes);
    w.tracing = tracing;
    let after = w.nodes[to].ep.stats().clone();
    assert_eq!(after.dropped(reason), before.dropped(reason) + 1, "{reason:?}: {after:?}");
    assert_eq!(after.drops_total(), before.drops_total() + 1);
    assert_eq!(after.rx_packets, before.rx_packets);
    assert_eq!(w.nodes[to].executed, executed);
    assert_eq!(sessions(w, to), figures);
    let caused = w.story().split_off(at);
    w.trace.truncate(at);
    assert!(caused.is_empty() || reason == RxDrop::Duplicate, "{reason:?} caused {caused:?}");
    caused
}

/// Credits, calls in flight and calls queued of node 0's sessions.
fn sessions(w: &World, node: usize) -> Vec<(u32, u32, usize)> {
    let all = w.sessions.iter().filter(|s| s.0 == node);
    let figures = all.filter_map(|s| w.nodes[node].ep.session_stats(s.1));
    figures.map(|f| (f.credits, f.in_flight, f.queued)).collect()
}
