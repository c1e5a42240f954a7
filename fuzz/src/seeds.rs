//! The seed corpus: one real example of each kind of input.

use std::cell::RefCell;
use std::rc::Rc;

use courser_proto::wire::{EcnCounts, FRAME_HEADER, Holes, Packet, parse_packet};
use courser_proto::{
    CONTROL_GREETING, ConnectAccept, ConnectRefuseReason, ConnectRequest, ControlMsg, EndpointRef,
    Integrity, Recovery, RemoteSession, Room, Schemes,
};

use crate::program::{Forged, Op, Setup, encode};
use crate::support::forge::frame;
use crate::support::{Action, DPP, Forge, World, config};

/// Target, file name, contents.
pub type Seed = (&'static str, String, Vec<u8>);

pub fn all() -> Vec<Seed> {
    [frames(), streams(), crate::codecs::seeds(), programs(), rings(), meetings(), texts()].concat()
}

// ---- frames -----------------------------------------------------------------------------------

/// Frames of real traffic, one of each combination of packet kinds, and the combinations that do
/// not occur in it.
fn frames() -> Vec<Seed> {
    let mut w = World::pair(config());
    let (s, forge) = w.connect_forge(0, 1);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let copy = seen.clone();
    w.link.loss = 50_000;
    w.nodes[1].handler = Box::new(|id, _| match id % 4 {
        0 => Action::Reply(vec![1; 10]),
        1 => Action::Reply(vec![2; 2 * DPP]),
        2 => Action::Status(courser_proto::Status::Rejected),
        _ => Action::Defer(300_000, vec![]),
    });
    w.filter = Some(Box::new(move |_, bytes| {
        copy.borrow_mut().push(bytes.to_vec());
        true
    }));
    for id in 0..60 {
        w.call(0, s, id, if id % 2 == 0 { 20 } else { DPP + 100 });
    }
    w.finish(0, 60);
    w.settle();
    let mut out: Vec<Seed> = Vec::new();
    for bytes in seen.take() {
        let name = kinds(&bytes);
        if !out.iter().any(|(_, n, _)| *n == name) {
            out.push(("frame", name, bytes));
        }
    }
    out.truncate(24);
    out.extend(rare_frames(forge));
    out
}

fn kinds(bytes: &[u8]) -> String {
    let mut name = String::new();
    let Ok((h, mut rest)) = courser_proto::wire::FrameHeader::parse(bytes) else { return name };
    while let Ok(Some((packet, r))) = parse_packet(rest, h.data_per_packet) {
        rest = r;
        name += match packet {
            Packet::Request { .. } => "q",
            Packet::CreditReturn { .. } => "c",
            Packet::Rfr { .. } => "f",
            Packet::Response { .. } => "r",
            Packet::ErrorResponse { .. } => "e",
            Packet::Message { .. } => "o",
            Packet::MessageAck { .. } => "m",
            Packet::Ack { .. } => "a",
            Packet::Cancel { .. } => "x",
            Packet::Nack { .. } => "n",
            Packet::Gap => "g",
            Packet::Proof { .. } => "p",
        };
    }
    name.truncate(6);
    name
}

fn rare_frames(mut forge: Forge) -> Vec<Seed> {
    let mut h = forge.header(1);
    let one_way =
        Packet::Message { session: 0, number: 0, msg_type: 1, remaining_us: None, data: b"abc" };
    let plain = frame(&h, &[one_way]);
    let (session, req_num, req_type, msg_size, index) = (0, 8, 1, 3, 0);
    let (remaining_us, data) = (Some(1_000), &b"abc"[..]);
    let timed = Packet::Request {
        session,
        req_num,
        req_type,
        msg_size,
        index,
        remaining_us,
        one_way: false,
        data,
    };
    let timed = frame(&h, &[timed, Packet::Cancel { session, req_num }]);
    let nack = Packet::Nack { session, req_num, count: 1, high: 3, holes: Holes::default() };
    let nack = frame(&h, &[nack, Packet::Gap]);
    h.echo_at = Some(5);
    h.ecn = EcnCounts { marked: 1, received: 9 };
    let mut header = [0; FRAME_HEADER];
    h.write(&mut header);
    let counted = [&header, &plain[FRAME_HEADER..]].concat();
    let mut padded = plain.clone();
    padded.extend_from_slice(&[0; 9]);
    let named = [
        ("one_way", plain),
        ("counts", counted),
        ("padding", padded),
        ("timed", timed),
        ("nack", nack),
    ];
    named.map(|(name, bytes)| ("frame", name.to_owned(), bytes)).to_vec()
}

// ---- control streams --------------------------------------------------------------------------

fn messages() -> Vec<(&'static str, ControlMsg)> {
    let from = EndpointRef { index: 1, id: 0x5712 };
    let to = EndpointRef { index: 0, id: 0x1234_5678_9abc_def0 };
    let request = ConnectRequest {
        endpoint_id: from.id,
        port: 4000,
        session: 0,
        peer: 0,
        cookie: 0xdead_beef,
        max_frame: 1472,
        credits: 32,
        pool: 32,
        slots: 8,
        max_msg_size: 1 << 20,
        first_req_num: 64,
        recovery: Recovery::Selective,
        integrity: Integrity::None,
        room: Room::UNIFORM,
    };
    let accept = ConnectAccept {
        endpoint_id: to.id,
        port: 4001,
        client_session: 0,
        client_cookie: 0xdead_beef,
        client_peer: 0,
        session: RemoteSession { number: 3, first_req_num: request.first_req_num },
        peer: 2,
        cookie: 7,
        data_per_packet: 1424,
        slots: 8,
        credits: 32,
        pool: 32,
        max_msg_size: 8 << 20,
        schemes: Schemes { recovery: Recovery::Melo, integrity: Integrity::None },
        room: Room { small_data: 196, units_per_packet: 16 },
    };
    let reason = ConnectRefuseReason::TooManySessions { limit: 64 };
    let session = accept.session;
    vec![
        ("connect", ControlMsg::Connect { from, to: None, request: request.clone() }),
        ("connect_to", ControlMsg::Connect { from, to: Some(0), request }),
        ("accept", ControlMsg::Accept { to, from, accept }),
        ("refuse", ControlMsg::Refuse { to, session: 0, client_cookie: 1, reason }),
        ("disconnect", ControlMsg::Disconnect { from, to, session }),
        ("idle", ControlMsg::Idle { from, to, session: 0, done: vec![0, 8, u32::MAX] }),
        ("ping", ControlMsg::Ping),
        ("pong", ControlMsg::Pong),
        ("gone", ControlMsg::EndpointGone { from }),
        ("evicted", ControlMsg::Evicted { to, from, session: 0, server_session: 0 }),
    ]
}

/// Streams for both control targets; the decoder's has a byte in front that selects how to divide
/// it.
fn streams() -> Vec<Seed> {
    let mut out = Vec::new();
    let mut all = CONTROL_GREETING.to_vec();
    let mut put = |name: &str, stream: &[u8]| {
        out.push(("control", name.to_owned(), [&[out.len() as u8], stream].concat()));
        out.push(("control_live", name.to_owned(), stream.to_vec()));
    };
    put("greeting", &CONTROL_GREETING);
    for (name, msg) in messages() {
        let bytes = msg.encode();
        put(name, &[&CONTROL_GREETING[..], &bytes].concat());
        all.extend(bytes);
    }
    put("all", &all);
    let mut long = CONTROL_GREETING.to_vec();
    long.extend((courser_proto::CONTROL_MAX as u32 + 1).to_le_bytes());
    put("too_long", &long);
    put("another_version", b"CRSR\x07\x00\x09\x00");
    put("another_protocol", b"GET / HTTP/1.1\r\n\r\n");
    // A session that is closed, and one whose peer leaves.
    let [connect, .., gone] = &messages()[..] else { return out };
    let twice = [connect.1.encode(), connect.1.encode(), gone.1.encode()].concat();
    put("two_sessions", &[&CONTROL_GREETING[..], &twice].concat());
    out
}

// ---- programs ---------------------------------------------------------------------------------

/// Life cycles of sessions from the protocol's tests, as programs.
fn programs() -> Vec<Seed> {
    let call = |what, len| Op::Call { session: 0, what, len };
    let request = Forged { kind: 0, size: 4, extra: 1, ..Forged::default() };
    let to_server = |packets: &[Forged]| Op::Frame { to: 1, packets: packets.to_vec() };
    let to_client = |packets: &[Forged]| Op::Frame { to: 0, packets: packets.to_vec() };
    let kind = |kind| Forged { kind, size: 3, index: 1, ..Forged::default() };
    let large = Forged { size: 60_000, ..request };
    let part = |index| Forged { index, ..large };
    let mut out: Vec<(&str, u8, Vec<Op>)> = vec![
        ("small", 0, vec![call(0, 20), Op::Run(10)]),
        ("all_kinds", 0, (0..8).map(|what| call(what, 2000)).chain([Op::Run(2_000)]).collect()),
        ("large", 0, vec![call(1, 60_000), call(2, 60_000), Op::Run(3_000)]),
        ("queue", 2, (0..6).map(|_| call(0, 100)).chain([Op::Run(500)]).collect()),
        ("wrap", 16, (0..40).map(|i| call(i % 4, 100)).chain([Op::Run(2_000)]).collect()),
        (
            "unanswered",
            0,
            vec![call(7, 10), Op::Run(1_000), Op::Answer { len: 5_000 }, Op::Run(500)],
        ),
        ("closed", 0, vec![call(1, 60_000), Op::Run(3), Op::Close { session: 0 }, Op::Connect]),
        ("half", 0, vec![to_server(&[large]), to_server(&[part(1), part(2)]), Op::Run(10)]),
        ("forged_request", 0, vec![to_server(&[request]), call(0, 10), Op::Run(60_000)]),
        ("server_kinds", 0, vec![to_server(&[2, 3, 4, 5, 6, 7].map(kind))]),
        ("client_kinds", 0, vec![call(7, 9000), to_client(&[2, 4, 7, 3, 6].map(kind)), Op::Run(9)]),
        ("little_memory", 1, (0..9).map(|_| call(1, 60_000)).chain([Op::Run(5_000)]).collect()),
        ("held", 8, (0..9).map(|i| call(i, 9_000)).chain([Op::Run(5_000)]).collect()),
        ("few_credits", 4, (0..9).map(|i| call(i, 9_000)).chain([Op::Run(9_000)]).collect()),
        ("bytes", 0, vec![Op::Bytes { to: 1, bytes: vec![1, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0] }]),
    ];
    let faults = Op::Faults { loss: 60, duplicate: 60, reorder: 60 };
    let busy = (0..12).map(|i| call(i, 300 * u16::from(i))).chain([Op::Run(9_000)]);
    out.push(("faults", 0, [faults].into_iter().chain(busy).collect()));
    let again = (0..20).flat_map(|back| [Op::Replay { back }, Op::Flip { back, at: 40 * 8 + 3 }]);
    out.push(("replays", 0, [call(2, 4000), Op::Run(50)].into_iter().chain(again).collect()));
    let clocks = Op::Clocks { to: 0, sent_at: u32::MAX, echo_at: 1 << 31, marked: 7 };
    out.push(("clocks", 0, vec![call(0, 10), clocks, Op::Run(200), call(0, 10), Op::Run(200)]));
    let more = [Op::Connect, Op::Connect, Op::Call { session: 2, what: 1, len: 2_000 }];
    out.push(("sessions", 0, more.into_iter().chain([Op::Run(100)]).collect()));
    let idle = |done: &[i8]| Op::Idle { session: 0, done: done.to_vec() };
    let ahead = vec![call(2, 10), Op::Run(30), idle(&[0, -7, -6, -5, -4, -3, -2, -1]), call(0, 9)];
    out.push(("idle", 0, [ahead, vec![Op::Run(9), idle(&[127]), idle(&[])]].concat()));
    out.push(("asleep", 0, vec![call(0, 10), Op::Run(4_000), call(1, 9_000), Op::Run(500)]));
    let many = (0..8).map(|slot| Forged { slot, ..large }).map(|p| to_server(&[p]));
    out.push(("peer_limit", 32, many.chain([call(1, 60_000), Op::Run(900)]).collect()));
    let seed = |(name, bits, ops): (&str, u8, Vec<Op>)| {
        ("endpoint", name.to_owned(), encode(Setup { bits }, &ops))
    };
    out.into_iter().map(seed).collect()
}

// ---- shared memory ----------------------------------------------------------------------------

/// Input of `courser_net::shm::fuzz::ring`: pushes (0, 2), receives (3), headers and words of
/// another process (6, 7).
fn rings() -> Vec<Seed> {
    let push = |len: u16| [0, (len >> 8) as u8, len as u8];
    let take = |lent| [3, lent];
    let both = |len| [&push(len)[..], &take(0), &push(len), &take(1)].concat();
    let lap: Vec<u8> = (0..40).flat_map(|n| both(n * 26)).collect();
    let full = (0..20).flat_map(|_| push(240)).chain((0..20).flat_map(|_| take(1))).collect();
    let wrong = [&push(20)[..], &[6, 1, 4, 0], &take(0), &take(0), &take(0)].concat();
    let count = [&push(20)[..], &[7, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0], &[2].repeat(20)].concat();
    [("lap", lap), ("full", full), ("wrong_length", wrong), ("wrong_count", count)]
        .map(|(name, bytes)| ("shm_ring", name.to_owned(), bytes))
        .to_vec()
}

/// Input of `courser_net::shm::fuzz::meeting`: a choice of files and words, their length, the
/// words. 128: a valid message with some bytes changed.
fn meetings() -> Vec<Seed> {
    let good = [128 + 10, 0];
    [
        ("good", good.to_vec()),
        ("trusting", [128 + 64 + 10, 0].to_vec()),
        ("twice", [good, good].concat()),
        ("no_file", [128, 0].to_vec()),
        ("two_files", [128 + 24 + 1, 0].to_vec()),
        ("another_file", [128 + 11, 0].to_vec()),
        ("another_shape", [128 + 10, 4, 12, 1, 17, 3].to_vec()),
        ("words", [8, 5, b'h', b'e', b'l', b'l', b'o'].to_vec()),
    ]
    .map(|(name, bytes)| ("shm_meeting", name.to_owned(), bytes))
    .to_vec()
}

// ---- text -------------------------------------------------------------------------------------

fn texts() -> Vec<Seed> {
    let texts = [
        "udp://db1:31850",
        "udp://db1:31850/2",
        "udp://[::1]:0",
        "udp://[fe80::1%eth0]:9",
        "mem://7:1",
        "db1:31850",
        "udp://0.0.0.0:31850?rcvbuf=8388608&gso=off",
        "udp://:1",
        "64KiB",
        "8 MiB",
        "18446744073709551615k",
        "1m 30s",
        "500us",
    ];
    // They fit, and would be too long when they are written with their scheme and each `=`.
    let long = [format!("udp://h:1?{}", "a&".repeat(507)), format!("{}:1", "x".repeat(1022))];
    texts
        .iter()
        .map(|text| (*text).to_owned())
        .chain(long)
        .enumerate()
        .map(|(n, text)| ("text", format!("{n:02}"), text.into_bytes()))
        .collect()
}
