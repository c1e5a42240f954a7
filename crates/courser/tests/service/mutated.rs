//! Mutated messages, through every codec and through a live service.
//!
//! `COURSER_MUTATIONS` sets the number of messages of each test, 100,000 otherwise.

use courser::service::{
    Bytes, Decode, DecodeError, Encode, Fields, LocalRegistry, Named, Payload, Postcard, Prost,
    Rkyv, RpcError, View, round_trip,
};
use courser_buf::{Arena, MsgBuf};
use serde::{Deserialize, Serialize};

use crate::calls::serve;
use crate::codecs::{Point, Rows};
use crate::kv::{KvClient, KvError, number};
use crate::world::World;

fn mutations() -> u64 {
    let set = std::env::var("COURSER_MUTATIONS").ok();
    set.map_or(100_000, |n| n.parse().expect("COURSER_MUTATIONS is a number"))
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let x = (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x ^ (x >> 29)) % limit.max(1) as u64) as usize
    }

    /// Changes a message in one to four places.
    fn mutate(&mut self, message: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(message.len());
            match self.below(7) {
                0 if at < message.len() => message[at] ^= 1 << self.below(8),
                1 if at < message.len() => message[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                2 => message.truncate(at),
                3 => message.insert(at, self.below(256) as u8),
                4 => {
                    let (from, len) = (self.below(message.len()), self.below(9));
                    let part: Vec<u8> = message.iter().skip(from).take(len).copied().collect();
                    message.splice(at..at, part);
                }
                5 => message.extend((0..self.below(20)).map(|i| i as u8)),
                _ if at < message.len() => drop(message.remove(at)),
                _ => {}
            }
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Shape {
    Unit,
    Text(String),
    Many { shapes: Vec<(u32, Option<String>)>, map: std::collections::BTreeMap<u8, i64> },
    Floats([f64; 3], char, Vec<Vec<u16>>),
}

fn shapes() -> Vec<Shape> {
    vec![
        Shape::Unit,
        Shape::Text("some text".into()),
        Shape::Many {
            shapes: vec![(1, None), (u32::MAX, Some("x".repeat(40)))],
            map: (0..9).map(|i| (i, -i64::from(i))).collect(),
        },
        Shape::Floats([0.5, f64::NAN, 3.0], 'x', vec![vec![1, 2], vec![], vec![700; 20]]),
    ]
}

fn encoded<K: Encode<T>, T>(value: &T) -> Vec<u8> {
    let arena = Arena::heap();
    courser::service::encode::<K, T>(value, &arena).unwrap().to_vec()
}

/// Decodes mutations of `values`, borrowed at any alignment and owned. Returns how many were
/// errors.
fn decode_mutated<K: Encode<T> + Decode<T> + Decode<U>, T, U>(values: &[T]) -> u64 {
    let (arena, mut random) = (Arena::heap(), Random(7));
    let originals: Vec<_> = values.iter().map(encoded::<K, T>).collect();
    let mut errors = 0;
    for i in 0..mutations() {
        let mut bytes = originals[random.below(originals.len())].clone();
        random.mutate(&mut bytes);
        let result: Result<U, DecodeError> = if i % 2 == 0 {
            let shift = random.below(16);
            let mut moved = vec![0; shift];
            moved.extend(&bytes);
            K::decode(Payload::borrowed(&moved[shift..], &arena))
        } else {
            let mut message = arena.alloc(bytes.len()).unwrap();
            message.copy_from_slice(&bytes);
            K::decode(Payload::owned(message))
        };
        if let Err(e) = &result {
            errors += 1;
            assert!(e.to_string().contains("; use the same version"), "{e}");
        }
        drop(result);
    }
    assert_eq!(arena.stats().in_use_buffers, 0);
    assert!(arena.stats().peak_in_use_bytes < 1 << 16);
    errors
}

#[test]
fn mutated_postcard_is_an_error_or_a_value() {
    assert!(decode_mutated::<Postcard, Shape, Shape>(&shapes()) > mutations() / 4);
}

#[test]
fn mutated_messagepack_is_an_error_or_a_value() {
    assert!(decode_mutated::<Named, Shape, Shape>(&shapes()) > mutations() / 4);
}

/// A type that contains itself in every way.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Value {
    Null,
    Units(Vec<()>),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Map(std::collections::BTreeMap<String, Value>),
    Maybe(Option<Box<Value>>),
    Two { left: Box<Value>, right: Box<Value> },
}

#[test]
fn mutated_values_of_a_recursive_type_are_an_error_or_survive_a_round_trip() {
    let leaves = || vec![Value::Null, Value::Bytes(vec![1; 9]), Value::Units(vec![])];
    let maybe = |value| Value::Maybe(Some(Box::new(value)));
    let two = Value::Two { left: Box::new(maybe(Value::Null)), right: Box::new(Value::Null) };
    let map = (0..3).map(|i| (i.to_string(), maybe(Value::List(leaves())))).collect();
    let chain = (0..60).fold(Value::Null, |inner, _| maybe(inner));
    let values = [two, Value::Map(map), Value::List(leaves()), chain];
    survive::<Postcard>(&values);
    survive::<Named>(&values[..3]);
}

fn survive<K: Encode<Value> + Decode<Value>>(values: &[Value]) {
    let originals: Vec<_> = values.iter().map(encoded::<K, Value>).collect();
    let (arena, mut random, mut errors) = (Arena::heap(), Random(3), 0);
    for _ in 0..mutations() / 2 {
        let mut bytes = originals[random.below(originals.len())].clone();
        random.mutate(&mut bytes);
        match K::decode(Payload::borrowed(&bytes, &arena)) {
            Ok(value) => assert_eq!(round_trip::<K, _>(&value), Ok(value)),
            Err(_) => errors += 1,
        }
    }
    assert!(errors > mutations() / 20);
}

#[test]
fn mutated_protobuf_is_an_error_or_a_value() {
    let points = [Point { x: -7, name: "a name".into() }, Point { x: 1, name: "n".repeat(300) }];
    assert!(decode_mutated::<Prost, Point, Point>(&points) > mutations() / 10);
    let parameters = [Fields((7, points[0].clone(), true)), Fields((0, points[1].clone(), false))];
    type Parameters = Fields<(u64, Point, bool)>;
    assert!(decode_mutated::<Prost, Parameters, Parameters>(&parameters) > mutations() / 10);
}

#[test]
fn mutated_rkyv_is_an_error_or_a_value() {
    let rows =
        |count: usize| Rows { id: 3, names: (0..count).map(|i| "abc".repeat(i * 3)).collect() };
    let values = [rows(0), rows(2), rows(9)];
    assert!(decode_mutated::<Rkyv, Rows, Rows>(&values) > mutations() / 10);
    assert!(decode_mutated::<Rkyv, Rows, View<Rows>>(&values) > mutations() / 10);
}

#[test]
fn mutated_bytes_are_an_error_or_a_value() {
    let values = ["plain".to_owned(), "\u{1f600} unicode".to_owned()];
    assert!(decode_mutated::<Bytes, String, String>(&values) > mutations() / 20);
    assert_eq!(decode_mutated::<Bytes, String, MsgBuf>(&values), 0);
}

/// Calls of every kind as bytes: method, and request.
fn requests() -> Vec<(u16, Vec<u8>)> {
    let with_stream = |bytes: Vec<u8>, stream: u32| [bytes, stream.to_le_bytes().to_vec()].concat();
    let text = |text: &str| encoded::<Postcard, _>(&text.to_owned());
    let mut all = vec![
        (number("get"), text("key")),
        (number("put"), encoded::<Postcard, _>(&("key".to_owned(), "value".to_owned()))),
        (number("len"), vec![]),
        (0x03F0, [&[2][..], &[7; 8], b"\x02Kv\x08postcard\x02\x00\x03get\x03put"].concat()),
    ];
    for stream in 0..3 {
        all.push((number("scan"), with_stream(text(""), stream)));
        all.push((number("count"), with_stream(encoded::<Postcard, _>(&(9u64, 90u32)), stream)));
        all.push((number("upload"), with_stream(text("n"), stream)));
        for batch in 0..3 {
            all.push((0x03F1, with_stream(vec![], stream)));
            all.last_mut().unwrap().1.extend(u32::to_le_bytes(batch));
            let mut push = [&[2, 0, 0, 0, 1, 9, 1, 0, 0, 0, 0][..], &stream.to_le_bytes()].concat();
            push.extend(batch.to_le_bytes());
            push.push((batch == 2) as u8);
            all.push((0x03F2, push));
        }
    }
    all
}

#[test]
fn a_live_service_survives_mutated_requests() {
    let (world, kv, store) = serve(11);
    let mut random = Random(13);
    let requests = requests();
    let mut waiting = std::collections::VecDeque::new();
    let (mut answered, mut peak) = (0_u64, 0);
    for i in 0..mutations() {
        let (method, bytes) = &requests[random.below(requests.len())];
        let mut bytes = bytes.clone();
        if random.below(3) > 0 {
            random.mutate(&mut bytes);
        }
        waiting.push_back(world.raw(1 + random.below(3) as u64, *method, &bytes));
        for _ in 0..random.below(8) {
            world.step();
        }
        // Calls end by their answer, or are cancelled after a while.
        if waiting.len() > 24 {
            let at = random.below(waiting.len());
            let mut call = waiting.remove(at).unwrap();
            if let Some(answer) = futures::FutureExt::now_or_never(&mut call) {
                answered += 1;
                assert!(matches!(answer.unwrap().last(), Some(0..=6)));
            }
        }
        peak = peak.max(world.arena.stats().in_use_bytes);
        if i % 1000 == 0 {
            store.map.lock().unwrap().retain(|key, _| key.len() < 10);
            let missing = world.run(async { kv.get("none such".into()).await });
            assert_eq!(missing, Err(RpcError::Service(KvError::Missing)));
        }
    }
    drop(waiting);
    world.assert_clean();
    let stats = world.services.stats();
    assert!(answered > mutations() / 10 && peak < 64 << 20, "{answered} {peak}");
    assert!(
        stats.decode_errors > mutations() / 100 && stats.stream_errors > mutations() / 100,
        "{stats:?}"
    );
    assert_eq!(store.live.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn a_client_survives_mutated_answers_to_its_hello() {
    // Hashes of no shape, so that the server states the shapes of all methods, with required fields.
    let mut hello = [&[3, 1][..], b"\x02Kv\x08postcard\x08\x00"].concat();
    for method in ["count", "get", "hang", "hint", "len", "put", "scan", "upload"] {
        hello.push(method.len() as u8);
        hello.extend([method.as_bytes(), &[7; 8]].concat());
    }
    let (world, _, _) = serve(3);
    let answer = world.run(world.raw(1, 0x03F0, &hello)).unwrap().to_vec();
    let (mut random, mut made, mut refused) = (Random(17), 0, 0);
    for _ in 0..mutations() / 50 {
        let mut bytes = answer.clone();
        random.mutate(&mut bytes);
        let mut world = World::new(1);
        LocalRegistry::on_request(&mut world, 0x03F0, move |_| {
            let bytes = bytes.clone();
            async move { bytes }
        });
        match world.run(KvClient::new(world.session())) {
            Ok(kv) => {
                made += 1;
                let error = world.run(async { kv.get("key".into()).await }).unwrap_err();
                let is_refused = matches!(error, RpcError::ShapeMismatch(_));
                refused += u64::from(is_refused);
                assert!(
                    is_refused || matches!(error, RpcError::UnknownMethod(_) | RpcError::Call(_))
                );
                assert!(error.to_string().chars().count() < 2_000, "{error}");
            }
            Err(error) => assert!(error.to_string().chars().count() < 2_000, "{error}"),
        }
        assert!(world.arena.stats().peak_in_use_bytes < 1 << 20);
    }
    assert!(made > mutations() / 500 && refused > mutations() / 5_000, "{made} {refused}");
}
