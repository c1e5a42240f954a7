//! The same program over other transports and settings: in memory; with buffers held, frames lost,
//! duplicated, reordered and corrupted; small socket buffers; no offloads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::*;
use courser::{
    Config, Integrity, Nexus, Offload, OptionSet, Rpc, SessionId, Transport, UdpOptions,
};
use courser_net::{
    DelayedCompletion, DelayedCompletionConfig, FaultConfig, FaultPlan, FaultTransport, MemNetwork,
};

const WORK: u16 = 1;

/// Number of executions of each request.
type Ran = Rc<RefCell<BTreeMap<u64, u32>>>;

/// A request contains its number and the pattern of that; the response is the pattern of the next
/// number with another length. Some are answered at once, some later.
fn serve<T: Transport>(rpc: &mut Rpc<T>) -> Ran {
    let ran = Ran::default();
    let counts = ran.clone();
    rpc.on(WORK, move |cx, req| {
        let id = u64::from_le_bytes(*req.first_chunk().unwrap());
        *counts.borrow_mut().entry(id).or_default() += 1;
        assert!(req[8..] == *expected(id, req.len() - 8), "request {id} was changed on the way");
        let response = expected(id + 1, answer_len(id));
        if id % 3 == 0 {
            let handle = cx.defer().unwrap();
            cx.after(Duration::from_micros(id % 4 * 1500), move |cx| {
                cx.reply_to(handle, response).unwrap();
            });
        } else {
            cx.reply(response);
        }
    });
    ran
}

fn request_len(id: u64) -> usize {
    [0, 24, 1400, 5000, 24, 70_000][id as usize % 6]
}

fn answer_len(id: u64) -> usize {
    [32, 6000, 8, 40_000, 1300][id as usize % 5]
}

/// Makes `calls` numbered calls over the sessions and checks answers and buffers.
fn work<T: Transport>(
    client: &mut Rpc<T>,
    server: &mut Rpc<T>,
    sessions: &[SessionId],
    calls: u64,
) {
    let log = Log::default();
    let mut next = 0;
    let end = Instant::now() + PATIENCE;
    let mut done = 0;
    while done < calls {
        while next < calls && next < done + 40 {
            let mut request = client.alloc(8 + request_len(next)).unwrap();
            request[..8].copy_from_slice(&next.to_le_bytes());
            pattern(next, &mut request[8..]);
            let session = sessions[next as usize % sessions.len()];
            call(client, session, WORK, request, &log, next);
            next += 1;
        }
        client.poll();
        server.poll();
        for (id, ended) in log.borrow_mut().drain(..) {
            let answer = ended.result.unwrap_or_else(|e| panic!("call {id}: {e}"));
            assert!(answer == expected(id + 1, answer_len(id)), "answer {id}");
            assert!(ended.request[8..] == *expected(id, request_len(id)), "request {id} is back");
            done += 1;
        }
        assert!(Instant::now() < end, "{done} of {calls} calls ended: {:?}", client.stats());
    }
    client.check();
    server.check();
}

fn at_most_once(ran: &Ran, calls: u64) {
    let ran = ran.borrow();
    assert_eq!(ran.len() as u64, calls, "each request was handled");
    let twice: Vec<_> = ran.iter().filter(|(_, n)| **n != 1).collect();
    assert!(twice.is_empty(), "handled more than once: {twice:?}");
}

/// Runs the program over a network in memory, with the middleware of `wrap`.
fn program<T: Transport>(
    calls: u64,
    config: Config,
    mut wrap: impl FnMut(courser_net::MemTransport) -> T,
) -> (Rpc<T>, Rpc<T>) {
    let network = MemNetwork::new();
    let (nexus, mut server) = mem_endpoint(&network, config.clone(), &mut wrap);
    let (_nexus, mut client) = mem_endpoint(&network, config, &mut wrap);
    let ran = serve(&mut server);
    let sessions: Vec<_> =
        (0..3).map(|_| connect(&mut client, &mut [&mut server], &nexus.local_uri())).collect();
    work(&mut client, &mut server, &sessions, calls);
    at_most_once(&ran, calls);
    (client, server)
}

#[test]
fn calls_in_memory() {
    let (client, server) = program(2000, Config::default(), |t| t);
    assert_eq!(client.stats().responses, 2000);
    assert_eq!(server.stats().requests, 2000);
}

#[test]
fn calls_over_a_transport_that_holds_buffers_until_a_flush() {
    let hold = DelayedCompletionConfig { limit: 100_000, ..DelayedCompletionConfig::default() };
    let (client, server) = program(300, Config::default(), |t| DelayedCompletion::new(t, hold));
    assert_eq!(client.transport().violations() + server.transport().violations(), 0);
    assert!(client.stats().completions_parked > 0, "buffers were held");
}

#[test]
fn calls_over_a_transport_with_late_completions_and_a_small_ring() {
    let hold = DelayedCompletionConfig { reclaims: Some(3), limit: 16 };
    let (client, server) = program(500, Config::default(), |t| DelayedCompletion::new(t, hold));
    assert_eq!(client.transport().violations() + server.transport().violations(), 0);
    assert!(client.transport_stats().tx_full > 0, "the ring was full at times");
}

/// Timeouts for a network with microsecond round trips, so that thousands of losses take seconds.
fn quick() -> Config {
    let rto = (Duration::from_micros(200), Duration::from_millis(20));
    Config { rto, datapath_timeout: Duration::from_secs(60), ..Config::default() }
}

fn faulty(plan: &FaultPlan, calls: u64) -> (u64, u64) {
    let mut seed = 7;
    let (client, server) = program(calls, quick(), |t| {
        seed += 1;
        FaultTransport::new(t, FaultConfig { seed, tx: plan.clone(), rx: FaultPlan::default() })
    });
    let drops = client.stats().drops_total() + server.stats().drops_total();
    (client.stats().retransmitted, drops)
}

#[test]
fn lost_frames_are_retransmitted() {
    for percent in [1, 5] {
        let (again, _) = faulty(&FaultPlan::loss(percent * 10_000), 400);
        assert!(again > 0);
    }
}

#[test]
fn duplicated_frames_change_nothing() {
    let plan = FaultPlan { duplicate_ppm: 50_000, ..FaultPlan::default() };
    let (_, drops) = faulty(&plan, 1000);
    assert!(drops > 0, "duplicates are counted");
}

#[test]
fn reordered_frames_arrive() {
    let plan = FaultPlan { reorder_ppm: 30_000, reorder_span: 20, ..FaultPlan::default() };
    faulty(&plan, 400);
}

#[test]
fn calls_over_all_faults_at_once() {
    let plan = FaultPlan {
        loss_ppm: 20_000,
        duplicate_ppm: 20_000,
        reorder_ppm: 20_000,
        reorder_span: 30,
        ..FaultPlan::default()
    };
    let (again, drops) = faulty(&plan, 400);
    assert!(again > 0 && drops > 0);
}

/// With a checksum of each frame, flipped bits are losses: every call is answered, and its handler
/// has run once.
#[test]
fn flipped_bits_are_losses_with_a_checksum() {
    let plan = FaultPlan { corrupt_ppm: 20_000, ..FaultPlan::default() };
    let config = Config { integrity: Some(Integrity::Crc), ..quick() };
    let mut seed = 20;
    let (client, server) = program(1000, config, |t| {
        seed += 1;
        FaultTransport::new(t, FaultConfig { seed, tx: plan.clone(), rx: FaultPlan::default() })
    });
    for rpc in [&client, &server] {
        assert!(rpc.stats().dropped(courser_proto::RxDrop::Checksum) > 0, "{:?}", rpc.stats());
    }
}

/// Two addresses of this host stand for two hosts.
#[test]
fn frames_between_hosts_have_a_checksum_unless_both_sides_decline() {
    let agreed = |bind: &str, clients: Option<Integrity>, servers: Option<Integrity>| {
        let config = |integrity| Config { integrity, ..Config::default() };
        let nexus = Nexus::bind_with(bind, config(servers)).unwrap();
        let mut server = nexus.endpoint().unwrap();
        server.on(WORK, |cx, req| cx.reply(req));
        let mut client = client(config(clients));
        let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
        client.session_stats(session).unwrap().integrity
    };
    let (here, there) = ("udp://127.0.0.1:0", "udp://127.0.0.2:0");
    let (none, crc) = (Some(Integrity::None), Some(Integrity::Crc));
    assert_eq!(agreed(here, None, None), Integrity::None);
    assert_eq!(agreed(there, None, None), Integrity::Crc);
    assert_eq!(agreed(here, crc, None), Integrity::Crc);
    assert_eq!(agreed(here, None, crc), Integrity::Crc);
    assert_eq!(agreed(there, none, None), Integrity::Crc);
    assert_eq!(agreed(there, none, none), Integrity::None);
}

/// Without a checksum, flipped bits must neither crash an endpoint nor leave a call without a result.
#[test]
fn flipped_bits_do_not_crash_an_endpoint() {
    let network = MemNetwork::new();
    let config = Config { datapath_timeout: Duration::from_millis(300), ..quick() };
    let plan = FaultPlan { corrupt_ppm: 50_000, ..FaultPlan::default() };
    let mut seed = 0;
    let mut wrap = |t| {
        seed += 1;
        FaultTransport::new(t, FaultConfig { seed, tx: plan.clone(), rx: FaultPlan::default() })
    };
    let (nexus, mut server) = mem_endpoint(&network, config.clone(), &mut wrap);
    let (_nexus, mut client) = mem_endpoint(&network, config, &mut wrap);
    server.on(WORK, |cx, req| cx.reply(req));
    let log = Log::default();
    let mut session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let mut accepted = 0;
    for id in 0..2000_u64 {
        if client.session_error(session).is_some() {
            session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
        }
        let request = message(&client, id, request_len(id));
        call(&mut client, session, WORK, request, &log, id);
        accepted += 1;
        drive_until(&mut [&mut client, &mut server], |_| log.borrow().len() + 30 > accepted);
    }
    drive_until(&mut [&mut client, &mut server], |_| log.borrow().len() == accepted);
    let log = log.borrow();
    let good = log.iter().filter(|(id, e)| e.result == Ok(expected(*id, request_len(*id)))).count();
    assert!(good > accepted / 2, "{good} of {accepted}");
    assert!(server.stats().drops_total() > 0);
    client.check();
    server.check();
}

/// Eight sessions over UDP with large messages, client and server on separate threads.
fn under_load(config: Config, calls: u64) {
    let server = Server::start(config.clone(), |rpc| {
        let _ran = serve(rpc);
        rpc.on(2, |cx, req| cx.reply(req));
    });
    let mut client = client(config);
    let sessions: Vec<_> = (0..8).map(|_| client.connect(&server.uri).unwrap()).collect();
    for &session in &sessions {
        client.wait_connected(session).unwrap();
    }
    let log = Log::default();
    for id in 0..calls {
        let request = message(&client, id, 400_000 + id as usize);
        call(&mut client, sessions[id as usize % 8], 2, request, &log, id);
    }
    client.run_until(|| log.borrow().len() as u64 == calls).unwrap();
    for (id, ended) in log.borrow().iter() {
        assert!(ended.result == Ok(expected(*id, 400_000 + *id as usize)), "call {id}");
    }
    client.check();
}

#[test]
fn nexuses_of_one_process_reach_each_other_in_memory_by_address() {
    let nexuses = [(); 2].map(|()| Nexus::bind("mem://127.0.0.1:0").unwrap());
    let [mut server, mut client] = nexuses.each_ref().map(|nexus| nexus.endpoint().unwrap());
    server.on(2, |cx, request| cx.reply(request));
    let session = connect(&mut client, &mut [&mut server], &nexuses[0].local_uri());
    let log = Log::default();
    let request = message(&client, 7, 100_000);
    call(&mut client, session, 2, request, &log, 7);
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 1);
    assert_eq!(log.borrow()[0].1.result, Ok(expected(7, 100_000)));
    let refused = Nexus::bind("mem://0.0.0.0:0").unwrap_err().to_string();
    assert!(refused.contains("127.0.0.1"), "{refused}");
}

#[test]
fn calls_with_small_socket_buffers() {
    under_load(Config { socket_buffer: 212_992 / 2, ..Config::default() }, 64);
}

#[test]
fn calls_with_socket_buffers_that_lose_frames() {
    under_load(Config { socket_buffer: 16_384, ..Config::default() }, 16);
}

#[test]
fn calls_without_offloads() {
    let off = Some(Offload::Off);
    let options = UdpOptions { gso: off, gro: off, ..UdpOptions::default() };
    under_load(Config { transport: OptionSet::new().with(options), ..Config::default() }, 64);
}

#[test]
fn large_frames() {
    under_load(Config { max_frame: Some(8000), ..Config::default() }, 64);
}

#[test]
fn calls_with_one_credit_and_one_slot() {
    under_load(Config { credits: Some(1), slots: 1, ..Config::default() }, 8);
}

#[test]
fn calls_for_more_memory_than_the_server_has_end_one_after_the_other() {
    // Room for a request of 3 MiB and its response.
    let small = Config { memory_limit: 8 << 20, ..Config::default() };
    let server = Server::start(small, |rpc| rpc.on(WORK, |cx, req| cx.reply(req)));
    let mut client = client(Config::default());
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    let log = Log::default();
    for id in 0..40 {
        let request = message(&client, id, 3 << 20);
        call(&mut client, session, WORK, request, &log, id);
    }
    client.run_until(|| log.borrow().len() == 40).unwrap();
    for (id, ended) in log.borrow_mut().drain(..) {
        use courser::{CallError, Status};
        match ended.result {
            Ok(r) => assert!(r == expected(id, 3 << 20)),
            Err(e) => assert!(matches!(e, CallError::Server(Status::ResponseFailed)), "{e}"),
        }
    }
}

#[test]
fn out_of_memory_is_an_error_and_temporary() {
    let wait = Duration::from_millis(300); // at the server, each time
    let small = Config { memory_limit: 8 << 20, datapath_timeout: wait, ..Config::default() };
    let server = Server::start(small, |rpc| rpc.on(WORK, |cx, _| cx.reply([1])));
    let patience = Duration::from_millis(1_500);
    let mut client = client(Config { datapath_timeout: patience, ..Config::default() });
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    let (begin, request) = (Instant::now(), message(&client, 1, 8 << 20));
    let ended = call_and_wait(&mut client, &mut [], session, WORK, request);
    let refused = courser::CallError::Server(courser::Status::NoMemory);
    assert_eq!(ended.result, Err(refused), "8 MiB and what is in use do not fit 8 MiB");
    assert!(begin.elapsed() >= patience, "it was not made again");
    let request = message(&client, 1, 1 << 20);
    let ended = call_and_wait(&mut client, &mut [], session, WORK, request);
    assert!(ended.result.is_ok_and(|r| r == [1]), "there is room for others");
}
