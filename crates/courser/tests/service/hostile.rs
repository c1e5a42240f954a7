//! Peers that break the rules of streams.

use std::sync::atomic::Ordering;

use courser::service::{LocalRegistry, RpcError};

use crate::calls::serve;
use crate::kv::{KvClient, filled, number};
use crate::world::World;

const HELLO: u16 = 0x03F0;
const PULL: u16 = 0x03F1;
const PUSH: u16 = 0x03F2;
const ACCEPT: u16 = 0x03F3;

fn pull(stream: u32, batch: u32) -> Vec<u8> {
    [stream.to_le_bytes(), batch.to_le_bytes()].concat()
}

fn push(items: &[&[u8]], stream: u32, batch: u32, last: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for item in items {
        bytes.extend((item.len() as u32).to_le_bytes());
        bytes.extend(*item);
    }
    bytes.extend(pull(stream, batch));
    bytes.push(last);
    bytes
}

fn open(arguments: &[u8], stream: u32) -> Vec<u8> {
    [arguments, &stream.to_le_bytes()].concat()
}

/// The code of a refusal, if the call is answered at once.
fn refusal(world: &World, session: u64, method: u16, bytes: &[u8]) -> Option<(u8, u8)> {
    let answer = world.try_run(world.raw(session, method, bytes))?.unwrap();
    let (tag, rest) = answer.split_last().unwrap();
    Some((*tag, if *tag == 5 { rest[0] } else { 0 }))
}

#[test]
fn pulls_and_pushes_of_streams_that_are_not_open_are_refused_at_once() {
    let (world, _, _) = serve(1);
    for batch in [0, 1, 2, 3, u32::MAX] {
        assert_eq!(refusal(&world, 9, PULL, &pull(1, batch)), Some((5, 1)));
        assert_eq!(refusal(&world, 9, PUSH, &push(&[b"x"], 2, batch, 0)), Some((5, 1)));
    }
    assert_eq!(world.services.stats().unknown_streams, 10);
    assert_eq!((world.calls(), world.services.stats().streams), (0, 0), "nothing waits");
    world.assert_clean();
}

#[test]
fn calls_that_wait_for_streams_that_are_never_opened_are_limited() {
    let (world, kv, _) = serve(2);
    let mut waiting = Vec::new();
    for session in 100..700 {
        for stream in 0..2_u32 {
            waiting.push(world.raw(session, ACCEPT, &stream.to_le_bytes()));
        }
        world.settle();
        assert_eq!(refusal(&world, session, ACCEPT, &2_u32.to_le_bytes()), Some((5, 5)));
    }
    // The oldest ones are answered when there are more; they are still here as clients did not take
    // their answers.
    assert_eq!(world.services.stats().streams, 1_024);
    // A stream is opened meanwhile, also when its accept call is displaced and made again.
    let items = world.run(async {
        let mut numbers = kv.count(3, 3).await.unwrap();
        let mut items = 0;
        while let Some(item) = numbers.next().await {
            item.unwrap();
            items += 1;
        }
        items
    });
    assert_eq!(items, 3);
    drop(waiting);
    world.assert_clean();
}

#[test]
fn an_accept_call_is_answered_when_its_stream_is_opened_or_has_ended() {
    let (world, _, _) = serve(10);
    // Three items of a byte.
    let arguments = [3, 1];
    let mut early = world.raw(50, ACCEPT, &4_u32.to_le_bytes());
    world.settle();
    assert_eq!(refusal(&world, 50, ACCEPT, &4_u32.to_le_bytes()), Some((5, 2)), "twice");
    let opened = world.raw(50, number("count"), &open(&arguments, 4));
    assert_eq!(world.run(&mut early).unwrap()[..], [0]);
    assert_eq!(refusal(&world, 50, ACCEPT, &4_u32.to_le_bytes()), Some((0, 0)), "after it");
    drop((opened, early));
    world.settle();
    // A request that is refused.
    let mut early = world.raw(50, ACCEPT, &5_u32.to_le_bytes());
    world.settle();
    let mut refused = world.raw(50, number("count"), &open(&[], 5));
    assert_eq!(world.run(&mut refused).unwrap().last(), Some(&2));
    assert!(world.try_run(&mut early).is_none(), "its client cancels it");
    drop((refused, early));
    world.assert_clean();
}

#[test]
fn wrong_numbers_of_batches_are_refused_and_the_stream_goes_on() {
    let (world, _, _) = serve(3);
    // An open stream of the server that fills its batches.
    let mut arguments = vec![0xff; 9];
    arguments.extend([0x01, 100]); // u64::MAX items of 100 bytes
    let opened = world.raw(50, number("count"), &open(&arguments, 4));
    world.settle();
    assert_eq!(
        refusal(&world, 50, number("count"), &open(&arguments, 4)),
        Some((5, 3)),
        "opened twice"
    );
    assert_eq!(refusal(&world, 50, PULL, &pull(4, 2)), Some((5, 2)), "too far ahead");
    assert_eq!(refusal(&world, 50, PUSH, &push(&[b"x"], 4, 0, 0)), Some((5, 4)), "direction");
    assert_eq!(refusal(&world, 51, PULL, &pull(4, 2)), Some((5, 1)), "another session");
    for batch in 0..50 {
        assert_eq!(refusal(&world, 50, PULL, &pull(4, batch)), Some((0, 0)), "batch {batch}");
        assert_eq!(refusal(&world, 50, PULL, &pull(4, batch)), Some((5, 2)), "{batch} twice");
    }
    // Two pulls of one batch at the same time.
    let held = world.arena.stats().in_use_bytes;
    assert!(held < 4 * (81 << 10), "{held}");
    drop(opened);
    world.assert_clean();
}

#[test]
fn nothing_is_filled_before_the_first_pull() {
    let (world, _, store) = serve(9);
    // 20,000 items of 1,000 bytes.
    let arguments = [0xa0, 0x9c, 0x01, 0xe8, 0x07];
    let opened: Vec<_> =
        (0..500).map(|session| world.raw(session, number("count"), &open(&arguments, 4))).collect();
    world.settle();
    assert_eq!(store.live.load(Ordering::Relaxed), 500, "each handler has made its stream");
    assert!(store.taken.load(Ordering::Relaxed) <= 500, "and was polled once");
    let (held, requests) = (world.arena.stats().in_use_bytes, 500 * 64);
    assert!(held <= requests, "{held} bytes");
    assert_eq!(refusal(&world, 50, PULL, &pull(4, 0)), Some((0, 0)));
    drop(opened);
    world.assert_clean();
}

#[test]
fn pushes_of_wrong_numbers_are_refused_and_memory_is_bounded() {
    let (world, _, store) = serve(4);
    let opened = world.raw(60, number("upload"), &open(b"\x05stall", 5));
    world.settle();
    let big = vec![0xff; 60_000];
    let mut waiting = Vec::new();
    for _ in 0..100 {
        for batch in [0, 1, 2, 3, 77] {
            waiting.push(world.raw(60, PUSH, &push(&[&big], 5, batch, 0)));
            world.settle();
        }
    }
    // The first item is no vector of bytes, so the stream fails.
    let stats = world.services.stats();
    assert!(stats.stream_errors + stats.unknown_streams > 400, "{stats:?}");
    drop((waiting, opened));
    world.assert_clean();
    assert_eq!(store.live.load(Ordering::Relaxed), 0);

    let opened = world.raw(61, number("upload"), &open(b"\x05stall", 5));
    world.settle();
    let first = world.raw(61, PUSH, &push(&[b"\x01a", b"\x01b"], 5, 0, 0));
    world.settle();
    assert_eq!(refusal(&world, 61, PUSH, &push(&[b"\x00"], 5, 0, 0)), Some((5, 2)), "while read");
    let second = world.raw(61, PUSH, &push(&[b"\x00"], 5, 1, 1));
    world.settle();
    assert_eq!(refusal(&world, 61, PUSH, &push(&[b"\x00"], 5, 1, 1)), Some((5, 2)), "twice");
    assert_eq!(refusal(&world, 61, PULL, &pull(5, 0)), Some((5, 4)), "direction");
    drop((first, second, opened));
    world.assert_clean();
}

#[test]
fn batches_that_cannot_be_decoded_end_the_stream_with_a_typed_error() {
    let (world, _, _) = serve(5);
    for (i, items) in
        [vec![9, 0, 0, 0, 1], vec![1, 0, 0], vec![255; 8], push(&[b"\x05a"], 0, 0, 0)[..6].to_vec()]
            .into_iter()
            .enumerate()
    {
        let stream = i as u32;
        let mut opened = world.raw(70, number("upload"), &open(b"\x01n", stream));
        world.settle();
        let bytes = [items, pull(stream, 0), vec![0]].concat();
        assert_eq!(refusal(&world, 70, PUSH, &bytes), Some((2, 0)), "{i}");
        // The handler got the error, and returned one.
        let end = world.run(&mut opened).unwrap();
        assert_eq!(end.last(), Some(&1));
    }
    assert_eq!(world.services.stats().decode_errors, 4);
    world.assert_clean();
}

#[test]
fn malformed_calls_of_the_library_are_typed_errors() {
    let (world, _, _) = serve(6);
    for len in 0..8 {
        assert_eq!(refusal(&world, 1, PULL, &vec![0; len]), Some((2, 0)));
        assert_eq!(refusal(&world, 1, PUSH, &vec![0; len]), Some((2, 0)));
        if len != 4 {
            assert_eq!(refusal(&world, 1, ACCEPT, &vec![0; len]), Some((2, 0)));
        }
    }
    assert_eq!(refusal(&world, 1, PULL, &[0; 9]), Some((2, 0)));
    assert_eq!(refusal(&world, 1, PUSH, &[2; 9]), Some((2, 0)));
    assert_eq!(refusal(&world, 1, number("count"), &[0; 3]), Some((2, 0)));
    for hello in [&[][..], &[2], &[3], &[2; 9], &[3; 9], &[0xff; 300]] {
        assert_eq!(refusal(&world, 1, HELLO, hello), Some((2, 0)));
    }
    // Methods that are too few, too many, without a hash, or whose name is no text.
    let hello = |methods: &[u8]| [&[3, 0][..], b"\x02Kv\x08postcard", methods].concat();
    for methods in [
        &b"\x02\x00\x03get8 bytes."[..],
        b"\x00\x00\x03get8 bytes.",
        b"\x01\x00\x03get7 bytes",
        b"\x01\x00\x01\xff8 bytes.",
        b"\xff\xff",
    ] {
        assert_eq!(refusal(&world, 1, HELLO, &hello(methods)), Some((2, 0)), "{methods:?}");
    }
    // In another order, or twice.
    for names in [["put", "get"], ["get", "get"]] {
        let [first, second] = names.map(|name| format!("\x03{name}8 bytes."));
        let methods = format!("\x02\x00{first}{second}");
        assert_eq!(refusal(&world, 1, HELLO, &hello(methods.as_bytes())), Some((2, 0)));
    }
    // The hash of the first one differs from the server's, which does not have the second one.
    let methods = b"\x02\x00\x03put8 bytes.\x03rot8 bytes.";
    let answer = world.run(world.raw(1, HELLO, &hello(methods))).unwrap();
    let put = number("put").to_le_bytes();
    assert_eq!(answer[..14], [&[0, 0][..], b"\x08postcard\x02", &put].concat());
    assert_eq!(answer[answer.len() - 2..], [1, 0]);
    drop(answer);
    world.assert_clean();
}

/// A server that answers with any bytes.
fn false_server(open_answer: &'static [u8], pull_answer: &'static [u8]) -> World {
    let mut world = World::new(8);
    let methods = (0..8_u16).flat_map(|at| {
        let [low, high] = (0x4000 + at).to_le_bytes();
        [0, low, high]
    });
    let methods: Vec<_> = methods.collect();
    let hello = [&[0, 0][..], b"\x08postcard", &methods, &[0]].concat();
    LocalRegistry::on_request(&mut world, HELLO, move |_| {
        let hello = hello.clone();
        async move { hello }
    });
    for method in [number("count"), number("upload")] {
        LocalRegistry::on_request(&mut world, method, move |_| async move {
            if open_answer == b"never" {
                std::future::pending::<()>().await;
            }
            open_answer
        });
    }
    LocalRegistry::on_request(&mut world, ACCEPT, |_| async { &b"\x00"[..] });
    for method in [PULL, PUSH] {
        LocalRegistry::on_request(&mut world, method, move |_| async move {
            if pull_answer == b"never" {
                std::future::pending::<()>().await;
            }
            pull_answer
        });
    }
    world
}

#[test]
fn a_client_survives_servers_that_break_the_rules_of_streams() {
    let opens: [&[u8]; 12] = [
        b"never",
        b"",
        b"\x00",
        b"\x00\x00\x00\x00\x00",
        b"\x01\x00\x00\x00\x00",
        b"\xff\xff\xff\xff\x00",
        b"\x07\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x01",
        b"x\x02",
        b"\x04",
        b"\x03\x05",
        b"\x63",
    ];
    let pulls: [&[u8]; 9] = [
        b"",
        b"\x00",
        b"\x01\x00\x00\x00\x00",
        b"\xff\xff\xff\xff\x00",
        b"\x01\x00\x00\x00\x63\x00",
        b"\x04",
        b"\x02\x05",
        b"\x63",
        b"never",
    ];
    for open in opens {
        for pull in pulls {
            let world = false_server(open, pull);
            let kv = KvClient::unchecked(world.session());
            let ended = world.try_run(async {
                let Ok(mut numbers) = kv.count(1, 1).await else { return };
                let mut items = 0;
                while let Some(item) = numbers.next().await {
                    items += 1;
                    if matches!(item, Err(RpcError::Service(_))) {
                        unreachable!("the method has no errors");
                    }
                    assert!(items < 10);
                }
            });
            assert!(ended.is_some() || open == b"never" || pull == b"never", "{open:?} {pull:?}");
            let ended = world.try_run(async {
                let Ok(mut upload) = kv.upload("n".into()).await else { return };
                for _ in 0..200 {
                    if upload.send(&filled(1, 5_000)).await.is_err() {
                        break;
                    }
                }
                let _ = upload.finish().await;
            });
            assert!(ended.is_some() || open == b"never" || pull == b"never", "{open:?} {pull:?}");
            let peak = world.arena.stats().peak_in_use_bytes;
            assert!(peak < 1 << 20, "{peak}");
            world.assert_clean();
        }
    }
}
