//! Frames of strangers on the datapath port are counted and change nothing.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::common::*;
use courser::{Config, Nexus, Rpc, Transport};
use courser_proto::RxDrop;
use courser_proto::wire::{FRAME_HEADER, WIRE_VERSION};

const ECHO: u16 = 1;

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ (x >> 29)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|b| *b = self.next() as u8);
    }
}

/// Random bytes, or a valid frame with a few flipped bits, sometimes truncated.
fn garbage(dice: &mut Dice, real: &[u8], out: &mut Vec<u8>) {
    out.clear();
    if dice.next().is_multiple_of(3) {
        out.resize((dice.next() % 1500) as usize, 0);
        dice.fill(out);
    } else {
        out.extend_from_slice(real);
        for _ in 0..1 + dice.next() % 4 {
            let at = dice.next() as usize % out.len();
            out[at] ^= 1 << (dice.next() % 8);
        }
        if dice.next().is_multiple_of(4) {
            out.truncate(dice.next() as usize % (out.len() + 1));
        }
    }
}

/// A frame of the client to the server, except for the cookie, which strangers do not have.
fn guessed_frame(data_per_packet: u16) -> Vec<u8> {
    let mut frame = vec![WIRE_VERSION, 0];
    frame.extend(data_per_packet.to_le_bytes());
    // Peer 0 is the first one of each endpoint.
    frame.resize(FRAME_HEADER + 16 + 100, 0);
    frame
}

/// A transport that cannot drop the frames of strangers, so that all reach the endpoint.
struct Open<T>(T);

impl<T: Transport> courser_net::Middleware for Open<T> {
    type Inner = T;

    fn inner(&self) -> &T {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut T {
        &mut self.0
    }

    fn drop_strangers(&mut self, _: Option<u8>) -> bool {
        false
    }
}

#[test]
fn datagrams_of_strangers_are_counted_and_calls_continue() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint_with(Open).unwrap();
    server.on(ECHO, |cx, req| cx.reply(req));
    let mut client = Nexus::bind(LOOPBACK).unwrap().endpoint_with(Open).unwrap();
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let real = guessed_frame(client.session_stats(session).unwrap().data_per_packet);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ports = [server.port() as u16, client.port() as u16];
    let (mut dice, mut bytes) = (Dice(1), Vec::new());
    let memory = |rpc: &Rpc<_>| (rpc.memory().mapped_bytes, rpc.memory().in_use_buffers);
    let mut settled = None;
    for round in 0..1000_u64 {
        for _ in 0..100 {
            garbage(&mut dice, &real, &mut bytes);
            let port = ports[dice.next() as usize % 2];
            // If the receive buffer is full, the frame is lost.
            let _ = stranger.send_to(&bytes, ("127.0.0.1", port));
        }
        let len = [10, 3000, 100_000][round as usize % 3];
        let request = message(&client, round, len);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
        assert!(ended.result == Ok(expected(round, len)), "round {round}");
        if round == 100 {
            settled = Some((memory(&client), memory(&server)));
        }
    }
    drive_until(&mut [&mut client, &mut server], |all| !all.iter_mut().any(|rpc| rpc.poll()));
    let drops = client.stats().drops_total() + server.stats().drops_total();
    assert!(drops > 50_000, "{drops} of 100,000 were counted");
    for rpc in [&client, &server] {
        let s = rpc.stats();
        let rejected = s.rx_frames - s.rx_frames_accepted;
        assert!(rejected <= s.drops_total() && rejected > 0, "each is in a counter");
        rpc.check();
    }
    for reason in [RxDrop::Truncated, RxDrop::Version, RxDrop::UnknownPeer, RxDrop::Cookie] {
        assert!(server.stats().dropped(reason) > 0, "{reason:?} has occurred");
    }
    // A session holds at most the last response of each slot; hostile frames add nothing.
    let (client_memory, server_memory) = settled.unwrap();
    assert_eq!(memory(&client).0, client_memory.0);
    assert_eq!(memory(&server).0, server_memory.0);
    assert!(memory(&client).1 <= client_memory.1 && memory(&server).1 <= server_memory.1 + 8);
    assert_eq!(server.stats().requests, 1000);
}

/// Strangers flood the server's datapath: established clients lose no call, a new one connects, and
/// the kernel drops most of the flood.
#[test]
fn a_flood_of_strangers_is_dropped_by_the_system() {
    const FLOOD: u64 = 150_000;
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    server.on(ECHO, |cx, req| cx.reply(req));
    let mut client = client(Config::default());
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.connect(("127.0.0.1", server.port() as u16)).unwrap();
    let frame = guessed_frame(client.session_stats(session).unwrap().data_per_packet);
    let flood = std::thread::spawn(move || {
        (0..FLOOD).filter(|_| stranger.send(&frame).is_ok()).count() as u64
    });
    let mut calls = 0;
    while !flood.is_finished() || calls < 100 {
        let request = message(&client, calls, 32);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
        assert!(ended.result == Ok(expected(calls, 32)));
        calls += 1;
    }
    let sent = flood.join().unwrap();
    let begin = Instant::now();
    let mut other = crate::common::client(Config::default());
    let session = connect(&mut other, &mut [&mut server], &nexus.local_uri());
    assert!(begin.elapsed() < Duration::from_secs(2));
    let request = message(&other, calls, 32);
    let ended = call_and_wait(&mut other, &mut [&mut server], session, ECHO, request);
    assert!(ended.result == Ok(expected(calls, 32)), "from a path that was opened meanwhile");
    let stats = server.stats();
    let seen = stats.rx_frames - stats.rx_frames_accepted;
    println!("{calls} calls; {seen} of {sent} frames reached the endpoint");
    assert!(seen * 4 < sent, "{seen} of {sent} frames reached the endpoint");
}
