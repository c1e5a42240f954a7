//! Each answer to each need, by each limit that decides on it.

use std::sync::Arc;

use courser_buf::{Arena, ArenaConfig, Heap, MsgBuf};

use super::*;
use crate::budget::NO_MESSAGE;
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::event::Body;

const MIB: usize = 1 << 20;
const KIB: u32 = 1 << 10;

/// An endpoint with this memory, and a client of it.
fn endpoint(cfg: Config, memory: usize) -> (Endpoint<u64>, u32) {
    let limits = ArenaConfig { limit_bytes: memory, ..ArenaConfig::default() };
    let arena = Arena::new(Arc::new(Heap::default()), limits).unwrap();
    let mut ep = Endpoint::new(cfg, arena, 1, 1_472).unwrap();
    ep.advance(1_000);
    let client = ep.admission.quotas.enter(7, 1);
    (ep, client)
}

fn with_quota(bytes: usize) -> Config {
    Config { max_held_per_peer: bytes, ..Config::default() }
}

/// Takes memory until only buffers below 64 KiB are left.
fn exhaust(ep: &Endpoint<u64>) -> Vec<MsgBuf> {
    let take = |bytes| std::iter::from_fn(move || ep.alloc(bytes).ok());
    take(MIB).chain(take(64 << 10)).collect()
}

fn owner(session: u32) -> Owner {
    Owner { session, generation: 0, slot: 0, req_num: 16, is_response: false }
}

fn handler(client: u32, data: &[u8]) -> Handler<'_> {
    Handler { client, req_type: 4, data, expires_ns: u64::MAX }
}

/// The reason of a refusal of a handler; `None`: it runs.
fn refusal(ep: &Endpoint<u64>, need: Handler<'_>) -> Option<Status> {
    match ep.admission.ask(&ep.io, need) {
        Answer::Now(_) => None,
        Answer::Wait(line) => panic!("a request of one packet waits for {line:?}"),
        Answer::Refuse(status) => Some(status),
    }
}

#[test]
fn a_handler_runs_unless_shutdown_size_quota_deadline_or_memory_forbid_it() {
    let (mut ep, client) = endpoint(Config { max_msg_size: 64, ..with_quota(100) }, 4 * MIB);
    let data = [1; 65];
    assert!(matches!(
        ep.admission.ask(&ep.io, handler(client, &data[1..])),
        Answer::Now(Body::Borrowed(body)) if body.len() == 64
    ));
    assert!(!ep.admission.quotas.needs_check);
    assert_eq!(refusal(&ep, handler(client, &data)), Some(Status::TooLarge));
    let late = Handler { expires_ns: 1_000, ..handler(client, &data[1..]) };
    assert_eq!(refusal(&ep, late), Some(Status::DeadlineExceeded));
    ep.admission.quotas.charge(client, 100);
    assert!(ep.admission.quotas.needs_check);
    assert_eq!(refusal(&ep, handler(client, &[])), Some(Status::NoMemory));
    assert_eq!(refusal(&ep, late), Some(Status::NoMemory), "the quota is before the deadline");
    ep.admission.quotas.release(client, 100);
    assert!(!ep.admission.quotas.needs_check);
    ep.shut_down_except(&[0..2, 4..5]);
    assert!(ep.admission.quotas.needs_check);
    assert_eq!(refusal(&ep, handler(client, &[])), None);
    let other = Handler { req_type: 5, ..handler(client, &data) };
    assert_eq!(refusal(&ep, other), Some(Status::ShuttingDown));
}

#[test]
fn a_handler_is_refused_while_its_clients_address_holds_three_quarters_of_the_memory() {
    let (mut ep, client) = endpoint(Config::default(), 4 * MIB);
    let neighbour = ep.admission.quotas.enter(8, 1);
    let other = ep.admission.quotas.enter(9, 2);
    ep.admission.quotas.charge(neighbour, 3 << 20);
    assert_eq!(refusal(&ep, handler(client, &[])), Some(Status::NoMemory));
    assert_eq!(refusal(&ep, handler(other, &[])), None);
    ep.admission.quotas.release(neighbour, 3 << 20);
}

#[test]
fn handlers_are_refused_without_memory_for_the_copies_that_they_get() {
    let mut cfg = Config::default();
    cfg.factors.zero_copy_rx = false;
    let (ep, client) = endpoint(cfg, 4 * MIB);
    let data = vec![0; 64 << 10];
    assert_eq!(refusal(&ep, handler(client, &data)), None);
    assert!(ep.admission.ask(&ep.io, OneWay { data: &data }).now().is_some());
    let taken = exhaust(&ep);
    assert_eq!(refusal(&ep, handler(client, &data)), Some(Status::NoMemory));
    assert!(matches!(ep.admission.ask(&ep.io, OneWay { data: &data }), Answer::Refuse(())));
    drop(taken);
}

#[test]
fn a_message_is_refused_by_shutdown_and_size_and_not_by_a_quota() {
    let (mut ep, client) = endpoint(Config { max_msg_size: 64, ..with_quota(100) }, 4 * MIB);
    let admitted = |ep: &Endpoint<u64>, bytes| {
        ep.admission.ask(&ep.io, OneWay { data: &[0; 65][..bytes] }).now().is_some()
    };
    ep.admission.quotas.charge(client, 100);
    assert_eq!([64, 65].map(|bytes| admitted(&ep, bytes)), [true, false]);
    ep.shut_down_except(std::slice::from_ref(&(0..100)));
    assert!(!admitted(&ep, 64), "no type of message is exempt");
    ep.admission.quotas.release(client, 100);
}

/// The answer for a whole request.
fn whole(ep: &Endpoint<u64>, client: u32, size: u32, charged: u32) -> Answer<(), Status> {
    match ep.admission.ask(&ep.io, WholeRequest { client, size, charged }) {
        Answer::Now(buffer) => {
            assert_eq!(buffer.len(), size as usize);
            Answer::Now(())
        }
        Answer::Wait(line) => Answer::Wait(line),
        Answer::Refuse(status) => Answer::Refuse(status),
    }
}

#[test]
fn a_whole_request_waits_for_its_clients_quota_for_its_share_and_for_memory() {
    let (ep, client) = endpoint(with_quota(MIB), 64 * MIB);
    let wait = Answer::Wait(Line::Memory);
    assert_eq!(whole(&ep, client, MIB as u32, 0), Answer::Now(()));
    assert_eq!(whole(&ep, client, MIB as u32 + 1, 0), wait, "the quota");
    assert_eq!(whole(&ep, client, MIB as u32 + 1, 1), Answer::Now(()), "it is charged for a part");

    let (mut large, client) = endpoint(Config::default(), 64 * MIB);
    large.admission.quotas.promise(client, 16 << 20);
    assert_eq!(whole(&large, client, KIB, 0), wait, "its share is promised");
    large.admission.quotas.end_promise(client, 16 << 20, 0);
    assert_eq!(whole(&large, client, KIB, 0), Answer::Now(()));

    let taken = exhaust(&ep);
    assert_eq!(whole(&ep, 0, 128 * KIB, 0), wait, "no memory");
    drop(taken);
}

#[test]
fn a_whole_request_that_no_buffer_can_hold_is_refused() {
    let (ep, client) = endpoint(with_quota(2 << 30), 2 << 30);
    assert_eq!(whole(&ep, client, (1 << 30) + 1, 0), Answer::Refuse(Status::NoMemory));
}

/// The memory for the first packet of a request.
fn first<'o>(client: u32, size: u32, owner: &'o Owner) -> RequestMemory<'o> {
    RequestMemory {
        whole: WholeRequest { client, size, charged: 0 },
        req_type: 4,
        end: KIB,
        data_per_packet: KIB as u16,
        had: 0,
        at: NO_MESSAGE,
        owner,
        sender: (3, 32),
    }
}

/// The answer for a packet: it gets memory for all of its request or not, and for these bytes.
fn part(ep: &Endpoint<u64>, need: RequestMemory<'_>) -> Answer<(bool, usize), Status> {
    match ep.admission.ask(&ep.io, need) {
        Answer::Now(Room::Whole(buffer)) => Answer::Now((true, buffer.len())),
        Answer::Now(Room::Part(buffer)) => Answer::Now((false, buffer.len())),
        Answer::Wait(line) => Answer::Wait(line),
        Answer::Refuse(status) => Answer::Refuse(status),
    }
}

#[test]
fn the_first_packet_of_a_request_reserves_it_or_is_refused_by_shutdown_size_or_quota() {
    let cfg = Config { max_msg_size: 8 << 20, ..with_quota(4 * MIB) };
    let (mut ep, client) = endpoint(cfg, 64 * MIB);
    let o = owner(1);
    assert_eq!(part(&ep, first(client, 2 << 20, &o)), Answer::Now((true, 2 * MIB)));
    assert_eq!(part(&ep, first(client, 9 << 20, &o)), Answer::Refuse(Status::TooLarge));
    assert_eq!(part(&ep, first(client, 5 << 20, &o)), Answer::Refuse(Status::NoMemory));
    ep.shut_down();
    assert_eq!(part(&ep, first(client, 2 << 20, &o)), Answer::Refuse(Status::ShuttingDown));
}

#[test]
fn without_its_turn_a_request_has_memory_in_proportion_to_what_arrives() {
    let (mut ep, client) = endpoint(Config::default(), 64 * MIB);
    ep.admission.quotas.promise(client, 16 << 20);
    let o = owner(1);
    let large = first(client, 2 << 20, &o);
    assert_eq!(part(&ep, large), Answer::Now((false, 16 << 10)));
    // Without credits for a credit return that is withheld, the request has to find memory in any case.
    let few = RequestMemory { sender: (3, 1), ..large };
    assert_eq!(part(&ep, few), Answer::Now((false, 16 << 10)));
    ep.admission.quotas.grow(client, 30 << 20);
    assert_eq!(part(&ep, few), Answer::Refuse(Status::NoMemory));
    ep.admission.quotas.end_growth(client, 30 << 20);
    // A packet far ahead waits for those before it.
    let ahead = RequestMemory { end: 19 * KIB, ..large };
    assert_eq!(part(&ep, ahead), Answer::Wait(Line::Memory));
    assert_eq!(part(&ep, RequestMemory { end: 18 * KIB, ..ahead }), Answer::Now((false, 18 << 10)));
    // A small request is reserved or refused.
    assert_eq!(part(&ep, first(client, 16 * KIB, &o)), Answer::Refuse(Status::NoMemory));
    ep.admission.quotas.end_promise(client, 16 << 20, 0);
    assert_eq!(part(&ep, first(client, 16 * KIB, &o)), Answer::Now((true, 16 << 10)));
}

/// A request of a session that has begun to arrive, and waits for memory if it `waits`.
fn begin(ep: &mut Endpoint<u64>, client: u32, o: &Owner, peer: u32, waits: bool) -> u32 {
    let budget = &mut ep.admission.budget;
    let at = budget.begin(*o, peer, 2_000, (1, 4), 1_000);
    budget.reserve(at, o, Reserved::new(client, 0, 1_000));
    assert!(!waits || budget.wait_for_memory(at, o, u32::MAX));
    at
}

#[test]
fn a_request_behind_others_of_its_client_or_without_memory_gets_a_part_or_waits() {
    let (mut ep, client) = endpoint(Config::default(), 64 * MIB);
    let (o, later) = (owner(1), owner(2));
    let at = begin(&mut ep, client, &o, 3, true);
    assert_eq!(part(&ep, first(client, 2 << 20, &later)), Answer::Now((false, 16 << 10)));
    let other = ep.admission.quotas.enter(9, 2);
    assert_eq!(part(&ep, first(other, 2 << 20, &later)), Answer::Now((true, 2 << 20)));
    let next = RequestMemory { at, had: 16 * KIB, end: 17 * KIB, ..first(client, 2 << 20, &o) };
    assert_eq!(part(&ep, next), Answer::Now((false, 32 << 10)));
    let taken = exhaust(&ep);
    let larger = RequestMemory { had: 64 * KIB, ..next };
    assert_eq!(part(&ep, larger), Answer::Wait(Line::Memory), "a request that waits");
    assert_eq!(
        part(&ep, RequestMemory { at: NO_MESSAGE, ..larger }),
        Answer::Refuse(Status::NoMemory)
    );
    drop(taken);
}

#[test]
fn the_next_packets_of_a_message_wait_for_its_memory_or_for_grants() {
    let (mut ep, client) = endpoint(Config::default(), 64 * MIB);
    let (a, b, c) = (owner(1), owner(2), owner(3));
    let next =
        |ep: &Endpoint<u64>, at, owner: &Owner| ep.admission.ask(&ep.io, NextPackets { at, owner });
    let stated = |ep: &Endpoint<u64>, at, owner: &Owner| {
        let grant = ep.admission.stated_grant(&ep.io, at, owner);
        (grant.packets(), grant.unscheduled())
    };
    let limits =
        |ep: &Endpoint<u64>| (ep.admission.limits_requests(), ep.admission.limits_responses());
    let at_a = begin(&mut ep, client, &a, 3, false);
    assert_eq!((next(&ep, at_a, &a), stated(&ep, at_a, &a)), (Answer::Now(()), (None, 1)));
    assert_eq!(limits(&ep), (false, false));

    let at_b = begin(&mut ep, client, &b, 3, true);
    assert_eq!(next(&ep, at_b, &b), Answer::Wait(Line::Memory));
    assert_eq!(stated(&ep, at_b, &b), (Some(1), 4));
    assert_eq!(next(&ep, at_a, &a), Answer::Now(()), "it has its memory");
    assert_eq!(stated(&ep, at_a, &a), (Some(2_000), 4));
    assert_eq!(limits(&ep), (true, false));

    let at_c = begin(&mut ep, client, &c, 4, false);
    assert!(ep.admission.budget.is_due(), "two peers send");
    ep.admission.budget.set_in_force(true);
    assert_eq!(next(&ep, at_c, &c), Answer::Wait(Line::Grants));
    assert_eq!(next(&ep, at_b, &b), Answer::Wait(Line::Memory));
    assert_eq!(stated(&ep, at_c, &c), (Some(4), ep.admission.budget.unscheduled()));
    assert_eq!(limits(&ep), (true, true));
    assert_eq!(stated(&ep, NO_MESSAGE, &c), (None, 1));
}
