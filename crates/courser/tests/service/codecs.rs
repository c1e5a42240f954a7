//! One service with each codec.

use courser::service::{
    Bytes, Codec, Decode, DecodeError, Incoming, NoError, Postcard, Prost, Rkyv, RpcError, Service,
    Shape, Stream, View,
};
use courser::{Executed, MsgBuf};
use futures::{StreamExt, TryStreamExt, stream};

use crate::world::World;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Point {
    #[prost(int32, tag = "1")]
    pub x: i32,
    #[prost(string, tag = "2")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Bad {
    #[prost(uint32, tag = "1")]
    pub code: u32,
}

#[courser::service(codec = Prost)]
pub trait Proto {
    async fn double(&self, point: Point) -> Result<Point, Bad>;
    async fn nothing(&self);
    fn points(&self, first: Point) -> impl Stream<Item = Result<Point, Bad>>;
    async fn sum(&self, points: Incoming<Point>) -> Result<Point, Bad>;
    fn moved(&self, by: Point, points: Incoming<Point>) -> impl Stream<Item = Result<Point, Bad>>;
}

struct ProtoImpl;

impl Proto for ProtoImpl {
    async fn double(&self, point: Point) -> Result<Point, Bad> {
        if point.x < 0 {
            return Err(Bad { code: 7 });
        }
        Ok(Point { x: point.x * 2, name: point.name.repeat(2) })
    }
    async fn nothing(&self) {}
    fn points(&self, first: Point) -> impl Stream<Item = Result<Point, Bad>> {
        stream::iter((0..100).map(move |i| Ok(Point { x: first.x + i, name: String::new() })))
    }
    async fn sum(&self, mut points: Incoming<Point>) -> Result<Point, Bad> {
        let mut x = 0;
        while let Some(point) = points.next().await {
            x += point.map_err(|_| Bad { code: 1 })?.x;
        }
        Ok(Point { x, name: String::new() })
    }
    fn moved(&self, by: Point, points: Incoming<Point>) -> impl Stream<Item = Result<Point, Bad>> {
        points.map(move |point| match point {
            Ok(Point { x, .. }) if x < 0 => Err(Bad { code: 9 }),
            Ok(Point { x, name }) => Ok(Point { x: x + by.x, name }),
            Err(_) => Err(Bad { code: 1 }),
        })
    }
}

#[test]
fn prost_messages_are_arguments_values_errors_and_items() {
    let mut world = World::new(1);
    ProtoServer::new(ProtoImpl).register(&mut world).unwrap();
    let proto = world.run(ProtoClient::new(world.session())).unwrap();
    let point = |x, name: &str| Point { x, name: name.into() };
    world.run(async {
        assert_eq!(proto.double(point(3, "ab")).await, Ok(point(6, "abab")));
        assert_eq!(proto.double(point(-3, "ab")).await, Err(RpcError::Service(Bad { code: 7 })));
        let long = "x".repeat(100_000);
        assert_eq!(proto.double(point(0, &long)).await, Ok(point(0, &long.repeat(2))));
        proto.nothing().await.unwrap();
        let points: Vec<_> = proto.points(point(5, "")).await.unwrap().try_collect().await.unwrap();
        assert!(points.len() == 100 && points[0].x == 5 && points[99].x == 104);
        let mut upload = proto.sum().await.unwrap();
        for x in 0..=100 {
            upload.send(&point(x, "")).await.unwrap();
        }
        assert_eq!(upload.finish().await.unwrap().x, 5050);
        let mut moved = proto.moved(point(100, "")).await.unwrap();
        moved.send(&point(1, "a")).await.unwrap();
        assert_eq!(moved.next().await, Some(Ok(point(101, "a"))));
        moved.send(&point(-1, "a")).await.unwrap();
        assert_eq!(moved.next().await, Some(Err(RpcError::Service(Bad { code: 9 }))));
        assert_eq!(moved.next().await, None);
    });
    world.assert_clean();
}

#[derive(Clone, PartialEq, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[rkyv(derive(Debug))]
pub struct Rows {
    pub id: u128,
    pub names: Vec<String>,
}

#[courser::service(codec = Rkyv)]
pub trait Zero {
    async fn total(&self, rows: View<Rows>) -> u64;
    async fn echo(&self, rows: View<Rows>) -> Result<View<Rows>, String>;
    async fn plain(&self, id: u128, rows: Rows) -> Result<Rows, String>;
    fn each(&self, rows: View<Rows>) -> impl Stream<Item = View<Rows>>;
    async fn gather(&self, rows: Incoming<View<Rows>>) -> u64;
    fn back(&self, rows: Incoming<View<Rows>>) -> impl Stream<Item = View<Rows>>;
}

struct ZeroImpl;

impl Zero for ZeroImpl {
    async fn total(&self, rows: View<Rows>) -> u64 {
        assert_eq!(std::ptr::from_ref(&*rows).addr() % 16, 0);
        rows.names.iter().map(|name| name.len() as u64).sum()
    }
    async fn echo(&self, rows: View<Rows>) -> Result<View<Rows>, String> {
        if rows.names.is_empty() { Err("no rows".into()) } else { Ok(rows) }
    }
    async fn plain(&self, id: u128, mut rows: Rows) -> Result<Rows, String> {
        rows.id = id;
        Ok(rows)
    }
    fn each(&self, rows: View<Rows>) -> impl Stream<Item = View<Rows>> {
        let names: Vec<_> = rows.names.iter().map(|name| name.to_string()).collect();
        stream::iter(
            names.into_iter().map(|name| View::of(&Rows { id: 1, names: vec![name] }).unwrap()),
        )
    }
    async fn gather(&self, mut rows: Incoming<View<Rows>>) -> u64 {
        let mut sum = 0;
        while let Some(Ok(rows)) = rows.next().await {
            sum += rows.id.to_native() as u64;
        }
        sum
    }
    fn back(&self, rows: Incoming<View<Rows>>) -> impl Stream<Item = View<Rows>> {
        rows.filter_map(|rows| std::future::ready(rows.ok()))
    }
}

#[test]
fn rkyv_values_are_read_in_place() {
    let mut world = World::new(1);
    ZeroServer::new(ZeroImpl).register(&mut world).unwrap();
    let zero = world.run(ZeroClient::new(world.session())).unwrap();
    world.run(async {
        for count in [0, 1, 3, 2000] {
            let names: Vec<_> = (0..count).map(|i| format!("a rather long name {i}")).collect();
            let rows = Rows { id: 1 << 100, names: names.clone() };
            let total = names.iter().map(|name| name.len() as u64).sum();
            assert_eq!(zero.total(&rows).await, Ok(total));
            match zero.echo(&rows).await {
                Ok(echo) => assert!(echo.id == 1 << 100 && echo.names.len() == count),
                Err(e) => assert!(count == 0 && e == RpcError::Service("no rows".into())),
            }
            assert_eq!(zero.plain(5, rows.clone()).await, Ok(Rows { id: 5, names }));
            let each: Vec<_> = zero.each(&rows).await.unwrap().try_collect().await.unwrap();
            assert_eq!(each.len(), count);
            assert!(each.iter().zip(&rows.names).all(|(a, b)| a.names[0] == *b.as_str()));
        }
        let mut upload = zero.gather().await.unwrap();
        for id in 0..=1000 {
            let names = vec!["x".repeat(id as usize % 77)];
            upload.send(&View::of(&Rows { id, names }).unwrap()).await.unwrap();
        }
        assert_eq!(upload.finish().await, Ok(500_500));
        let mut back = zero.back().await.unwrap();
        for id in [1, 1 << 90] {
            let rows = View::of(&Rows { id, names: vec!["name".to_owned()] }).unwrap();
            back.send(&rows).await.unwrap();
            assert_eq!(back.next().await.unwrap().unwrap().id.to_native(), id);
        }
    });
    world.assert_clean();
}

#[courser::service(codec = ::courser::service::Bytes)]
pub trait Raw {
    async fn reverse(&self, bytes: Vec<u8>) -> Result<Vec<u8>, String>;
    async fn forward(&self, message: MsgBuf) -> MsgBuf;
    async fn word(&self, word: [u8; 4]) -> [u8; 4];
    async fn text(&self, text: String);
    fn both(&self, first: Vec<u8>, items: Incoming<Vec<u8>>) -> impl Stream<Item = Vec<u8>>;
}

struct RawImpl;

impl Raw for RawImpl {
    async fn reverse(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        bytes.reverse();
        if bytes.is_empty() { Err("empty".into()) } else { Ok(bytes) }
    }
    async fn forward(&self, message: MsgBuf) -> MsgBuf {
        message
    }
    async fn word(&self, word: [u8; 4]) -> [u8; 4] {
        word
    }
    async fn text(&self, _text: String) {}
    fn both(&self, first: Vec<u8>, items: Incoming<Vec<u8>>) -> impl Stream<Item = Vec<u8>> {
        stream::iter([first]).chain(items.map(|item| item.unwrap_or_default()))
    }
}

#[test]
fn plain_bytes_are_passed_as_they_are() {
    let mut world = World::new(1);
    RawServer::new(RawImpl).register(&mut world).unwrap();
    let raw = world.run(RawClient::new(world.session())).unwrap();
    world.run(async {
        assert_eq!(raw.reverse(vec![1, 2, 3]).await.unwrap(), [3, 2, 1]);
        assert_eq!(raw.reverse(vec![]).await, Err(RpcError::Service("empty".into())));
        let mut message = world.arena.alloc(5000).unwrap();
        message.fill(7);
        assert_eq!(&raw.forward(message).await.unwrap()[..], &[7; 5000]);
        assert_eq!(raw.word(*b"word").await.unwrap(), *b"word");
        raw.text("text".into()).await.unwrap();
        let mut both = raw.both(vec![1; 3]).await.unwrap();
        both.send(&vec![2; 3]).await.unwrap();
        let items: Vec<_> = both.finish().try_collect().await.unwrap();
        assert_eq!(items, [[1; 3], [2; 3]]);
    });
    let word = world.services.request_type("Raw", "word").unwrap();
    let answer = world.run(world.raw(1, word, b"long word")).unwrap();
    assert_eq!(answer.last(), Some(&2));
    drop(answer);
    world.assert_clean();
}

#[test]
fn other_versions_of_a_type_are_typed_errors_that_say_whether_the_handler_ran() {
    mod other {
        #[courser::service(codec = Bytes)]
        pub trait Raw {
            async fn word(&self, word: [u8; 5]) -> [u8; 4];
            async fn reverse(&self, bytes: Vec<u8>) -> Result<[u8; 9], String>;
        }
    }
    let mut world = World::new(1);
    RawServer::new(RawImpl).register(&mut world).unwrap();
    let raw = other::RawClient::unchecked(world.session());
    world.run(async {
        let error = raw.word(*b"words").await.unwrap_err();
        assert!(matches!(error, RpcError::Decode(DecodeError::Remote(_))), "{error:?}");
        assert_eq!(error.executed(), Executed::Never);
        let error = raw.reverse(vec![1]).await.unwrap_err();
        assert!(matches!(error, RpcError::Decode(DecodeError::Codec { .. })), "{error:?}");
        assert_eq!(error.executed(), Executed::Yes);
    });
    world.assert_clean();
}

fn shape<K: Decode<T>, T>() -> Shape {
    <K as Decode<T>>::shape()
}

#[test]
fn each_codec_has_shapes_of_its_types_and_a_rule_to_compare_them() {
    #[derive(serde::Deserialize)]
    struct Two {
        _a: u32,
        _b: u32,
    }
    let two = shape::<Postcard, Two>();
    assert_eq!(two.to_string(), "Two { _a: u32, _b: u32 }");
    assert_eq!(shape::<Postcard, Vec<u8>>().to_string(), "bytes");
    assert!(Postcard::reads(&two, &two).is_ok());
    assert!(Postcard::reads(&shape::<Postcard, (u32, u32)>(), &two).is_err());

    let (point, bad) = (shape::<Prost, Point>(), shape::<Prost, Bad>());
    assert_eq!(point.to_string(), "Point");
    assert!(Prost::reads(&point, &bad).is_ok());

    let rows = shape::<Rkyv, Rows>();
    assert_eq!(rows.to_string(), "Rows (32 bytes, aligned to 16)");
    assert_eq!(rows, shape::<Rkyv, View<Rows>>());
    assert!(Rkyv::reads(&rows, &shape::<Rkyv, String>()).is_err());

    assert_eq!(shape::<Bytes, MsgBuf>(), shape::<Bytes, [u8; 4]>());
    for never in [
        shape::<Postcard, NoError>(),
        shape::<Prost, NoError>(),
        shape::<Rkyv, NoError>(),
        shape::<Bytes, NoError>(),
    ] {
        assert_eq!(never, Shape::never());
    }
}

/// A text that no value fits which a trace makes up.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Code(String);

impl<'de> serde::Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let code = String::deserialize(from)?;
        let is_code = code.starts_with("code");
        is_code.then_some(Code(code)).ok_or(serde::de::Error::custom("no code"))
    }
}

#[courser::service]
pub trait Seats {
    async fn book(&self, code: Code, bytes: Vec<u8>, seats: u32) -> u32;
}

struct Booking;

impl Seats for Booking {
    async fn book(&self, _: Code, bytes: Vec<u8>, seats: u32) -> u32 {
        seats + bytes.len() as u32
    }
}

#[test]
fn parameters_behind_one_whose_type_is_not_traced_to_its_end_are_compared() {
    mod other {
        use super::Code;

        #[courser::service]
        pub trait Seats {
            async fn book(&self, code: Code, bytes: Vec<u8>, seats: i32) -> u32;
        }
    }
    let mut world = World::new(1);
    SeatsServer::new(Booking).register(&mut world).unwrap();
    let seats = world.run(SeatsClient::new(world.session())).unwrap();
    let code = || Code("code 7".to_owned());
    assert_eq!(world.run(async { seats.book(code(), vec![1], 2).await }), Ok(3));
    let other = world.run(other::SeatsClient::new(world.session())).unwrap();
    let error = world.run(async { other.book(code(), vec![1], 2).await }).unwrap_err();
    assert!(matches!(error, RpcError::ShapeMismatch(_)), "{error:?}");
    assert!(error.to_string().contains(".2: the server has u32, the client i32"), "{error}");
    world.assert_clean();
}
