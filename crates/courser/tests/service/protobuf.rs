//! Services of Protocol Buffers: several parameters, changes of them, and statuses of gRPC.

use std::time::Duration;

use courser::Executed;
use courser::grpc::{Any, Code, Status};
use courser::service::{
    Codec, Decode, DecodeError, Incoming, NoError, Payload, Prost, RpcError, Service, Shape,
    Stream, encode,
};
use courser_buf::Arena;
use futures::{TryStreamExt, stream};
use prost::Message;

use crate::codecs::Point;
use crate::world::World;

#[courser::service(codec = Prost, name = "Table")]
pub trait Table {
    async fn none(&self);
    async fn one(&self, point: Point) -> Result<Point, Status>;
    async fn two(&self, point: Point, times: u32) -> Result<Point, Status>;
    async fn scalars(&self, a: bool, b: i64, c: String, d: Vec<u8>, e: f64) -> String;
    fn list(&self, first: Point, count: u32) -> impl Stream<Item = Result<Point, Status>>;
    async fn sum(
        &self,
        start: Point,
        factor: u32,
        points: Incoming<Point>,
    ) -> Result<Point, Status>;
}

struct Impl;

impl Table for Impl {
    async fn none(&self) {}
    async fn one(&self, point: Point) -> Result<Point, Status> {
        Ok(point)
    }
    async fn two(&self, point: Point, times: u32) -> Result<Point, Status> {
        match times {
            0 => Err(Status::with_details(Code::OutOfRange, "zero", [Any::new("type/T", [1, 2])])),
            _ => Ok(Point { x: point.x * times as i32, name: point.name.repeat(times as usize) }),
        }
    }
    async fn scalars(&self, a: bool, b: i64, c: String, d: Vec<u8>, e: f64) -> String {
        format!("{a} {b} {c} {d:?} {e}")
    }
    fn list(&self, first: Point, count: u32) -> impl Stream<Item = Result<Point, Status>> {
        stream::iter((0..count as i32).map(move |i| Ok(point(first.x + i, ""))))
    }
    async fn sum(
        &self,
        start: Point,
        factor: u32,
        mut points: Incoming<Point>,
    ) -> Result<Point, Status> {
        let mut x = start.x;
        while let Some(point) = points.next().await {
            x += point.map_err(|e| Status::aborted(e.to_string()))?.x * factor as i32;
        }
        Ok(point(x, "sum"))
    }
}

fn point(x: i32, name: &str) -> Point {
    Point { x, name: name.to_owned() }
}

#[test]
fn several_messages_and_scalars_are_parameters() {
    let mut world = World::new(1);
    TableServer::new(Impl).register(&mut world).unwrap();
    let table = world.run(TableClient::new(world.session())).unwrap();
    world.run(async {
        assert_eq!(table.two(point(2, "ab"), 3).await, Ok(point(6, "ababab")));
        let scalars = table.scalars(true, -5, "c".into(), vec![1, 2], 0.5).await;
        assert_eq!(scalars.unwrap(), "true -5 c [1, 2] 0.5");
        let defaults = table.scalars(false, 0, String::new(), vec![], 0.0).await;
        assert_eq!(defaults.unwrap(), "false 0  [] 0");
        let list: Vec<_> = table.list(point(5, ""), 40).await.unwrap().try_collect().await.unwrap();
        assert!(list.len() == 40 && list[39].x == 44);
        let mut upload = table.sum(point(1, ""), 2).await.unwrap();
        for x in 0..10 {
            upload.send(&point(x, "")).await.unwrap();
        }
        assert_eq!(upload.finish().await, Ok(point(91, "sum")));

        let error = table.two(point(1, ""), 0).await.unwrap_err();
        let RpcError::Service(status) = &error else { panic!("{error}") };
        assert_eq!((status.code(), status.message()), (Code::OutOfRange, "zero"));
        assert_eq!(status.details(), [Any::new("type/T", [1, 2])]);
        assert_eq!(Status::from(error).code(), Code::OutOfRange);
    });
    world.assert_clean();
}

/// Later versions of the service.
mod later {
    use super::{Point, Status};

    pub mod added {
        use super::*;

        #[courser::service(codec = Prost, name = "Table")]
        pub trait Table {
            async fn none(&self, times: u32, point: Point) -> Point;
            async fn two(&self, point: Point, times: u32, name: String) -> Result<Point, Status>;
        }

        pub struct Impl;

        impl Table for Impl {
            async fn none(&self, times: u32, point: Point) -> Point {
                Point { x: point.x + times as i32, name: "none".to_owned() }
            }
            async fn two(&self, point: Point, times: u32, name: String) -> Result<Point, Status> {
                Ok(Point { x: point.x * times as i32, name: format!("{}<{name}>", point.name) })
            }
        }
    }

    pub mod changed {
        use super::*;

        #[courser::service(codec = Prost, name = "Table")]
        pub trait Table {
            async fn none(&self);
            /// It had one parameter.
            async fn one(&self, point: Point, times: u32) -> Result<Point, Status>;
            /// The second one was a `u32`.
            async fn two(&self, point: Point, times: i32) -> Result<Point, Status>;
            /// An integer may be wider, and no text may be bytes.
            async fn scalars(&self, a: bool, b: i64, c: Vec<u8>, d: Vec<u8>, e: f64) -> String;
        }
    }

    pub mod wider {
        use super::*;

        #[courser::service(codec = Prost, name = "Table")]
        pub trait Table {
            async fn two(&self, point: Point, times: u64) -> Result<Point, Status>;
        }

        pub struct Impl;

        impl Table for Impl {
            async fn two(&self, point: Point, times: u64) -> Result<Point, Status> {
                Ok(Point { x: point.x, name: times.to_string() })
            }
        }
    }
}

#[test]
fn parameters_are_added_at_the_end_in_both_orders_of_deployment() {
    use later::{added, wider};

    let mut world = World::new(1);
    added::TableServer::new(added::Impl).register(&mut world).unwrap();
    let table = world.run(TableClient::new(world.session())).unwrap();
    world.run(async {
        table.none().await.unwrap();
        assert_eq!(table.two(point(2, "a"), 3).await, Ok(point(6, "a<>")));
    });
    world.assert_clean();

    let mut world = World::new(2);
    TableServer::new(Impl).register(&mut world).unwrap();
    let table = world.run(added::TableClient::new(world.session())).unwrap();
    world.run(async {
        assert_eq!(table.none(4, point(1, "")).await, Ok(Point::default()));
        assert_eq!(table.two(point(2, "a"), 3, "lost".into()).await, Ok(point(6, "aaa")));
    });
    world.assert_clean();

    let mut world = World::new(3);
    wider::TableServer::new(wider::Impl).register(&mut world).unwrap();
    let table = world.run(TableClient::new(world.session())).unwrap();
    let two = world.run(async { table.two(point(2, "a"), u32::MAX).await });
    assert_eq!(two, Ok(point(2, "4294967295")));
    world.assert_clean();
}

fn refused<T: std::fmt::Debug, E: std::fmt::Debug>(outcome: Result<T, RpcError<E>>) -> String {
    match outcome {
        Err(RpcError::ShapeMismatch(e)) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_parameter_and_other_scalars_are_refused() {
    let mut world = World::new(1);
    TableServer::new(Impl).register(&mut world).unwrap();
    let table = world.run(later::changed::TableClient::new(world.session())).unwrap();
    world.run(async {
        table.none().await.unwrap();
        let one = refused(table.one(point(1, ""), 2).await);
        assert!(one.contains("the server has Point, the client (Point, u32)"), "{one}");
        let two = refused(table.two(point(1, ""), -2).await);
        assert!(two.contains(".1: the server has u32, the client i32"), "{two}");
        let scalars = refused(table.scalars(true, 1, vec![255], vec![], 0.0).await);
        assert!(scalars.contains(".2: the server has String, the client bytes"), "{scalars}");
    });
    world.assert_clean();
}

#[courser::service(codec = Prost, name = "Reverse")]
pub trait Reverse {
    async fn of(&self, a: u32, b: String) -> String;
}

#[test]
fn fields_of_parameters_have_the_rules_of_protocol_buffers() {
    /// Two parameters as a message of prost's derive.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Both {
        #[prost(message, optional, tag = "1")]
        point: Option<Point>,
        #[prost(message, optional, tag = "2")]
        name: Option<String>,
    }
    type Parameters = courser::service::Fields<(Point, String)>;
    let heap = Arena::heap();
    let read = |bytes: &[u8]| {
        <Prost as Decode<Parameters>>::decode(Payload::borrowed(bytes, &heap)).map(|f| f.0)
    };
    let both = Both { point: Some(point(7, "p")), name: Some("n".to_owned()) };
    let bytes = both.encode_to_vec();
    let parameters = courser::service::Fields((point(7, "p"), "n".to_owned()));
    assert_eq!(encode::<Prost, _>(&parameters, &heap).unwrap()[..], bytes);
    assert_eq!(read(&bytes), Ok((point(7, "p"), "n".to_owned())));

    // Absent, and in another order.
    assert_eq!(read(&[]), Ok((Point::default(), String::new())));
    let name = Both { point: None, ..both.clone() }.encode_to_vec();
    let start = Both { name: None, ..both.clone() }.encode_to_vec();
    assert_eq!(read(&[&name[..], &start].concat()), Ok((point(7, "p"), "n".to_owned())));
    // The last one wins in each field of a message.
    let second = Both { point: Some(point(8, "")), name: None }.encode_to_vec();
    assert_eq!(read(&[&bytes[..], &second].concat()), Ok((point(8, "p"), "n".to_owned())));
    // A field 3, a number.
    assert_eq!(read(&[&bytes[..], &[0x18, 5]].concat()), Ok((point(7, "p"), "n".to_owned())));

    let fails = |bytes: &[u8]| match read(bytes) {
        Err(DecodeError::Codec { detail, .. }) => detail.into_owned(),
        other => panic!("{other:?}"),
    };
    let other_kind = fails(&[0x08, 5]);
    assert!(other_kind.contains("parameters.1: invalid wire type"), "{other_kind}");
    assert!(fails(&bytes[..bytes.len() - 1]).contains("buffer underflow"));
    assert!(fails(&[0x12, 0xff, 0xff, 0xff, 0x7f]).contains("buffer underflow"));
    let text = fails(&[0x12, 3, 0x0a, 1, 0xff]);
    assert!(text.contains("invalid string value"), "{text}");
}

#[test]
fn shapes_of_scalars_are_compared_and_names_of_messages_are_not() {
    let shape = |method: fn() -> Shape| method();
    let number = shape(<Prost as Decode<u32>>::shape);
    let wide = shape(<Prost as Decode<u64>>::shape);
    let (single, double) =
        (shape(<Prost as Decode<f32>>::shape), shape(<Prost as Decode<f64>>::shape));
    let (message, nothing) =
        (shape(<Prost as Decode<Point>>::shape), shape(<Prost as Decode<()>>::shape));
    assert!(Prost::reads(&wide, &number).is_ok() && Prost::reads(&number, &wide).is_err());
    assert!(Prost::reads(&double, &single).is_err(), "their encodings have other lengths");
    assert!(Prost::reads(&message, &number).is_err() && Prost::reads(&number, &message).is_err());
    assert!(Prost::reads(&message, &nothing).is_ok() && Prost::reads(&nothing, &message).is_ok());
    // Nothing would be read as 0.
    assert!(Prost::reads(&number, &nothing).is_err() && Prost::reads(&nothing, &number).is_ok());
    assert!(Prost::reads(&message, &Shape::never()).is_err());
    assert!(Prost::reads(&nothing, &Shape::never()).is_err());
}

/// A method whose error is nothing, and a status in a later version.
mod reasons {
    pub mod without {
        #[courser::service(codec = Prost, name = "Reasons")]
        pub trait Reasons {
            async fn fail(&self) -> Result<u32, ()>;
        }
    }
    pub mod with {
        use courser::grpc::Status;

        #[courser::service(codec = Prost, name = "Reasons")]
        pub trait Reasons {
            async fn fail(&self) -> Result<u32, Status>;
        }
    }
}

struct Fails;

impl reasons::without::Reasons for Fails {
    async fn fail(&self) -> Result<u32, ()> {
        Err(())
    }
}

#[test]
fn an_error_that_is_nothing_is_not_read_as_a_status() {
    let mut world = World::new(1);
    reasons::without::ReasonsServer::new(Fails).register(&mut world).unwrap();
    let client = world.run(reasons::with::ReasonsClient::new(world.session())).unwrap();
    let error = world.run(async { client.fail().await }).unwrap_err();
    assert!(matches!(error, RpcError::ShapeMismatch(_)), "{error}");
    world.assert_clean();
}

#[test]
fn errors_of_calls_are_statuses() {
    let mut world = World::new(1);
    later::wider::TableServer::new(later::wider::Impl).register(&mut world).unwrap();
    let table = world.run(TableClient::new(world.session())).unwrap();
    let error = world.run(async { table.one(point(1, "")).await }).unwrap_err();
    assert_eq!(error.executed(), Executed::Never);
    let status = Status::from(error);
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.to_string().starts_with("Operation is not implemented or not supported: "));
    let error = world.run(ReverseClient::new(world.session())).unwrap_err();
    assert_eq!(Status::from(error).code(), Code::Unimplemented);
    world.assert_clean();
}

#[test]
fn a_status_is_a_google_rpc_status() {
    /// `google/rpc/status.proto`, by prost's derive.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Theirs {
        #[prost(int32, tag = "1")]
        code: i32,
        #[prost(string, tag = "2")]
        message: String,
        #[prost(message, repeated, tag = "3")]
        details: Vec<TheirAny>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct TheirAny {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
    }
    let theirs = Theirs {
        code: 5,
        message: "no key".to_owned(),
        details: vec![
            TheirAny { type_url: "t/A".to_owned(), value: vec![] },
            TheirAny { type_url: String::new(), value: vec![1] },
        ],
    };
    let details = [Any::new("t/A", []), Any::new("", [1])];
    let ours = Status::with_details(Code::NotFound, "no key", details);
    let bytes = theirs.encode_to_vec();
    assert_eq!(ours.encode_to_vec(), bytes);
    assert_eq!(ours.encoded_len(), bytes.len());
    assert_eq!(Status::decode(&bytes[..]), Ok(ours));
    assert!(Status::default().encode_to_vec().is_empty());

    // A code of a later version is kept.
    let later = Theirs { code: 99, ..Theirs::default() }.encode_to_vec();
    let status = Status::decode(&later[..]).unwrap();
    assert_eq!(status.code(), Code::Unknown);
    let refused = RpcError::<NoError>::Unauthenticated("no token".into());
    assert_eq!(Status::from(refused).code(), Code::Unauthenticated);
    let after = Duration::from_secs(1);
    let refused = RpcError::<NoError>::TooMany { reason: "busy".into(), retry_after: after };
    assert_eq!(Status::from(refused).code(), Code::ResourceExhausted);
    assert_eq!(status.encode_to_vec(), later);
    for number in -1..20 {
        let known = (0..=16).contains(&number);
        assert_eq!(i32::from(Code::from(number)), if known { number } else { 2 });
    }
}

#[test]
fn details_are_messages_of_the_type_that_they_state() {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Delay {
        #[prost(uint32, tag = "1")]
        seconds: u32,
    }
    impl prost::Name for Delay {
        const NAME: &'static str = "Delay";
        const PACKAGE: &'static str = "test";
        fn type_url() -> String {
            "type.googleapis.com/test.Delay".to_owned()
        }
    }
    let any = Any::from_msg(&Delay { seconds: 3 });
    assert_eq!(any.type_url, "type.googleapis.com/test.Delay");
    assert_eq!(any.to_msg::<Delay>(), Ok(Delay { seconds: 3 }));
    let other = Any::new("type.googleapis.com/test.Other", any.value.clone());
    assert!(other.to_msg::<Delay>().unwrap_err().to_string().contains("another type"));
    assert!(Any::new(any.type_url, [0xff]).to_msg::<Delay>().is_err());
}
