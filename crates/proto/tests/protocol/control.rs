//! The control stream: any bytes, in any pieces.

use courser_proto::{
    CONTROL_GREETING, CONTROL_MAX, Config, ConnectRefuseReason, ConnectRequest, ControlDecoder,
    ControlError, ControlMsg, ControlRefusal, EndpointRef, HostIdentity, Recovery, RemoteSession,
    Room,
};
use proptest::prelude::*;

use crate::support::{World, config};

fn messages() -> Vec<ControlMsg> {
    let mut w = World::pair(config());
    let request = w.dial(0, u64::MAX).request;
    let accept = w.accept(1, 0, &request).unwrap();
    let (from, to) = (EndpointRef { index: 1, id: 2 }, EndpointRef { index: u16::MAX, id: 4 });
    let reason = ConnectRefuseReason::NoCredits { queue: 1, credits: 2 };
    vec![
        ControlMsg::Connect { from, to: Some(3), request },
        ControlMsg::Accept { to, from, accept },
        ControlMsg::Refuse { to, session: 7, client_cookie: 9, reason },
        ControlMsg::Disconnect { from, to, session: RemoteSession { number: 9, first_req_num: 4 } },
        ControlMsg::EndpointGone { from },
        ControlMsg::Evicted { to, from, session: 9, server_session: 3 },
        ControlMsg::Idle { from, to, session: 3, done: vec![1, u32::MAX] },
        ControlMsg::Ping,
        ControlMsg::Pong,
    ]
}

fn stream(messages: &[ControlMsg]) -> Vec<u8> {
    let mut out = CONTROL_GREETING.to_vec();
    messages.iter().for_each(|m| out.extend_from_slice(&m.encode()));
    out
}

/// Feeds bytes in pieces; returns the messages and the result.
fn decode(bytes: &[u8], piece: usize) -> (Vec<ControlMsg>, Result<(), ControlError>) {
    let mut d = ControlDecoder::default();
    let (mut out, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let taken = d.push(&rest[..piece.min(rest.len())]);
        assert!(taken > 0, "the decoder is stuck");
        rest = &rest[taken..];
        loop {
            match d.next_msg() {
                Ok(Some(m)) => out.push(m),
                Ok(None) => break,
                Err(e) => return (out, Err(e)),
            }
        }
    }
    (out, Ok(()))
}

#[test]
fn messages_are_decoded_from_any_pieces() {
    let all = messages();
    let bytes = stream(&all);
    for piece in [1, 2, 7, 100, 100_000] {
        assert_eq!(decode(&bytes, piece), (all.clone(), Ok(())));
    }
    let mut d = ControlDecoder::default();
    for (part, seen) in [
        (0..7, (false, false)),
        (7..8, (true, false)),
        (8..23, (true, false)),
        (23..24, (true, true)),
    ] {
        d.push(&bytes[part]);
        assert_eq!(d.next_msg(), Ok(None));
        assert_eq!((d.wants_host(), d.greeted()), seen);
    }
}

#[test]
fn a_long_stream_in_one_push_loses_nothing() {
    let all: Vec<_> = std::iter::repeat_with(messages).take(50).flatten().collect();
    assert_eq!(decode(&stream(&all), usize::MAX), (all, Ok(())));
}

#[test]
fn other_protocols_and_versions_are_distinguished() {
    let ended = |bytes: &[u8]| decode(bytes, 100).1;
    assert_eq!(ended(b"GET / HTTP/1.1\r\n"), Err(ControlError::NotCourser));
    for (theirs_oldest, theirs_newest) in [(14, 15), (8, 9), (11, 10)] {
        let version = ControlError::Version { theirs_oldest, theirs_newest, ours: 13 };
        let hello = [b'C', b'R', b'S', b'R', theirs_oldest as u8, 0, theirs_newest as u8, 0];
        assert_eq!(ended(&hello), Err(version));
    }
    assert_eq!(ended(b"CRSR\0\0\x0e\0"), Ok(()), "a newer one that still speaks ours");
}

#[test]
fn a_peer_of_version_10_gets_no_reason_that_it_does_not_know() {
    let refuse = |reason| {
        let to = EndpointRef { index: 1, id: 2 };
        ControlMsg::Refuse { to, session: 3, client_cookie: 4, reason }
    };
    let exhausted = refuse(ConnectRefuseReason::Exhausted);
    for (newest, expected) in [(10, refuse(ConnectRefuseReason::NoPath)), (11, exhausted.clone())] {
        let mut decoder = ControlDecoder::default();
        decoder.push(&[b'C', b'R', b'S', b'R', 10, 0, newest, 0]);
        assert_eq!(decoder.next_msg(), Ok(None));
        assert_eq!(decoder.encode(&exhausted), expected.encode());
    }
}

/// Position of the scheme in an encoded request: before the integrity, `small_data` and
/// `units_per_packet`, which have a byte each here.
fn scheme_at(bytes: &[u8]) -> usize {
    bytes.len() - 4
}

/// A request with the scheme of this number, as the bytes of its message.
fn requesting(scheme: u8) -> Vec<u8> {
    let mut w = World::pair(config());
    let dialed = w.dial(0, u64::MAX).request;
    let request = ConnectRequest { recovery: Recovery::Selective, room: Room::UNIFORM, ..dialed };
    let from = EndpointRef { index: 1, id: 2 };
    let mut bytes = ControlMsg::Connect { from, to: None, request }.encode();
    let at = scheme_at(&bytes);
    assert_eq!(bytes[at..], [2, 0, 0, 1], "selective, no integrity, room of full packets");
    bytes[at] = scheme;
    bytes
}

#[test]
fn the_numbers_of_the_schemes_are_those_of_the_documentation() {
    use Recovery::{GoBackN, GoBackNNack, GoBackZero, Melo, Selective};
    for (scheme, recovery) in (0..).zip([GoBackN, Melo, Selective, GoBackNNack, GoBackZero]) {
        let bytes = [&CONTROL_GREETING[..], &requesting(scheme)].concat();
        let (messages, ended) = decode(&bytes, 100);
        let [ControlMsg::Connect { request, .. }] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((request.recovery, ended), (recovery, Ok(())));
    }
    // As a build without go-back-0 does with its number.
    let unknown = [&CONTROL_GREETING[..], &requesting(5)].concat();
    assert_eq!(decode(&unknown, 100), (Vec::new(), Err(ControlError::Undecodable)));
}

#[test]
fn a_server_that_does_not_know_go_back_0_gets_a_request_for_go_back_n() {
    for (newest, scheme) in [(10, 0), (11, 0), (12, 4), (13, 4)] {
        let mut decoder = ControlDecoder::default();
        decoder.push(&[b'C', b'R', b'S', b'R', 10, 0, newest, 0]);
        assert_eq!(decoder.next_msg(), Ok(None));
        let (messages, _) = decode(&[&CONTROL_GREETING[..], &requesting(4)].concat(), 100);
        let bytes = decoder.encode(&messages[0]);
        assert_eq!(bytes, requesting(scheme), "version {newest}");
        let (messages, _) = decode(&[&CONTROL_GREETING[..], &requesting(2)].concat(), 100);
        assert_eq!(decoder.encode(&messages[0]), requesting(2), "another scheme as it is");
    }
}

/// Its answers have the numbers that it knows, whatever the server has set.
#[test]
fn a_client_that_does_not_know_go_back_0_is_answered_as_before() {
    for (set, answers) in [
        (Recovery::GoBackZero, [0, 0, 0, 0]),
        (Recovery::Selective, [0, 1, 2, 3]),
        (Recovery::GoBackN, [0, 0, 0, 0]),
    ] {
        for (scheme, answer) in (0..).zip(answers) {
            let mut w = World::new(&[config(), Config { recovery: set, ..config() }], 1);
            let bytes = [&CONTROL_GREETING[..], &requesting(scheme)].concat();
            let (messages, _) = decode(&bytes, 100);
            let [ControlMsg::Connect { request, .. }] = &messages[..] else { panic!() };
            let accept = w.accept(1, 0, request).unwrap();
            let end = EndpointRef { index: 1, id: 2 };
            let bytes = ControlMsg::Accept { to: end, from: end, accept }.encode();
            assert_eq!(bytes[scheme_at(&bytes)], answer, "{scheme} at a server with {set}");
        }
    }
}

#[test]
fn a_refusal_in_place_of_a_greeting_names_its_reason() {
    for reason in [ControlRefusal::Exhausted, ControlRefusal::Connections, ControlRefusal::Other] {
        for piece in [1, 8] {
            let ended = decode(&reason.to_bytes(), piece).1;
            assert_eq!(ended, Err(ControlError::Refused(reason)));
        }
    }
    let later = decode(b"CRSR\xff\xff\x07\x00", 8).1;
    assert_eq!(later, Err(ControlError::Refused(ControlRefusal::Other)));
}

#[test]
fn a_greeting_states_the_host_from_version_11_on() {
    let host = [7; 16];
    let ping = ControlMsg::Ping.encode();
    for newest in [11, 12, 13, 0xff] {
        let bytes = [&[b'C', b'R', b'S', b'R', 10, 0, newest, 0][..], &host, &ping].concat();
        for piece in [1, 9, 100] {
            assert_eq!(decode(&bytes, piece), (vec![ControlMsg::Ping], Ok(())));
        }
        let mut d = ControlDecoder::default();
        d.push(&bytes);
        assert_eq!(d.next_msg(), Ok(Some(ControlMsg::Ping)));
        assert_eq!(d.host(), HostIdentity(host));
    }
    let mut d = ControlDecoder::default();
    d.push(b"CRSR\x0a\0\x0a\0");
    d.push(&ping);
    assert_eq!((d.next_msg(), d.wants_host()), (Ok(Some(ControlMsg::Ping)), false));
    // Unknown hosts are not one host.
    assert!(d.greeted() && !d.host().is_same(HostIdentity::UNKNOWN));
    assert!(HostIdentity(host).is_same(HostIdentity(host)));
    assert!(!HostIdentity(host).is_same(HostIdentity([8; 16])));
}

#[test]
fn idle_messages_are_limited_to_the_maximum_of_slots() {
    let end = EndpointRef { index: 1, id: 2 };
    for (slots, ended) in [(32, Ok(())), (33, Err(ControlError::Undecodable))] {
        let msg = ControlMsg::Idle { from: end, to: end, session: 3, done: vec![7; slots] };
        assert_eq!(decode(&stream(&[msg]), 100).1, ended);
    }
}

#[test]
fn lengths_are_limited() {
    let with = |len: u32| [&CONTROL_GREETING[..], &len.to_le_bytes(), &[0xff; 2000]].concat();
    let max = CONTROL_MAX as u32;
    assert_eq!(decode(&with(max + 1), 9).1, Err(ControlError::TooLong(max + 1)));
    assert_eq!(decode(&with(u32::MAX), 9).1, Err(ControlError::TooLong(u32::MAX)));
    assert_eq!(decode(&with(max), 9).1, Err(ControlError::Undecodable));
    assert_eq!(decode(&with(0), 9).1, Err(ControlError::Undecodable));
    // A message with trailing bytes within its length.
    let mut m = messages()[4].encode();
    m.push(0);
    m[0] += 1;
    assert_eq!(decode(&[&CONTROL_GREETING[..], &m].concat(), 9).1, Err(ControlError::Undecodable));
}

#[test]
fn the_decoder_holds_at_most_one_message() {
    let mut d = ControlDecoder::default();
    assert_eq!(d.push(&[0; 1 << 20]), CONTROL_MAX + 4);
    assert_eq!((d.room(), d.push(&[0; 10])), (0, 0));
}

proptest! {
    #[test]
    fn parsing_any_bytes_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            piece in 1..1500usize, greeted: bool) {
        let bytes = if greeted { [&CONTROL_GREETING[..], &bytes].concat() } else { bytes };
        let _ = decode(&bytes, piece);
    }

    #[test]
    fn parsing_damaged_streams_is_total(at in 8..400usize, with: u8, piece in 1..64usize) {
        let mut bytes = stream(&messages());
        let at = at % bytes.len();
        bytes[at] = with;
        let _ = decode(&bytes, piece);
    }
}
