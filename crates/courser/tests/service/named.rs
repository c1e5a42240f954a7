//! The codec with names: types that change, what others read, and limits.

use std::collections::BTreeMap;
use std::fmt::Debug;

use courser::service::{
    Codec, Decode, DecodeError, EncodeError, Named, NoError, Payload, RpcError, Service, encode,
    round_trip,
};
use courser_buf::Arena;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::world::World;

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    encode::<Named, T>(value, &Arena::heap()).unwrap().to_vec()
}

fn decoded<T: DeserializeOwned + 'static>(bytes: &[u8]) -> Result<T, DecodeError> {
    Named::decode(Payload::borrowed(bytes, &Arena::heap()))
}

/// Reads a value of another type.
fn read_as<T: DeserializeOwned + 'static>(value: &impl Serialize) -> Result<T, String> {
    decoded(&encoded(value)).map_err(|e| e.to_string())
}

fn refused<T: DeserializeOwned + Debug + 'static>(value: &impl Serialize, why: &str) {
    let error = read_as::<T>(value).unwrap_err();
    assert!(error.contains(why), "{error}");
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
struct Row {
    id: u32,
    name: String,
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
enum Kind {
    Unit,
    One(u32),
    Two(u8, String),
    Fields { x: i64, row: Row },
}

mod later {
    use super::*;

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    pub struct Row {
        #[serde(default)]
        pub added: Vec<Option<Nested>>,
        #[serde(alias = "name")]
        pub title: String,
        pub id: u64,
        pub note: Option<String>,
    }

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    pub struct Nested {
        pub map: BTreeMap<u8, (f32, Vec<u8>)>,
    }

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    pub enum Kind {
        Fields { x: i64 },
        New(u8),
        One(u32),
        Unit,
    }
}

fn row() -> Row {
    Row { id: 7, name: "a".into() }
}

#[test]
fn fields_can_be_added_moved_renamed_and_widened() {
    let read: later::Row = read_as(&row()).unwrap();
    assert_eq!(read, later::Row { added: vec![], title: "a".into(), id: 7, note: None });
    // Old readers skip what they do not know.
    #[derive(Serialize)]
    struct Sent {
        added: Vec<Option<later::Nested>>,
        name: String,
        deep: Vec<Vec<Kind>>,
        id: u64,
        nothing: Option<Option<()>>,
    }
    let nested = later::Nested { map: [(1, (0.5, vec![1, 2]))].into() };
    let sent = Sent {
        added: vec![None, Some(nested)],
        name: "a".into(),
        deep: vec![vec![Kind::Fields { x: -300, row: row() }, Kind::Unit]],
        id: 7,
        nothing: Some(None),
    };
    assert_eq!(read_as::<Row>(&sent), Ok(row()));
    refused::<Row>(&BTreeMap::from([("id", 7)]), "missing field `name`");
    refused::<Row>(&read, "missing field `name`");
    refused::<Row>(&later::Row { id: 1 << 40, ..read }, "1099511627776 was sent for u32");
}

#[test]
fn variants_are_found_by_name() {
    assert_eq!(read_as::<Kind>(&later::Kind::One(9)), Ok(Kind::One(9)));
    assert_eq!(read_as::<Kind>(&later::Kind::Unit), Ok(Kind::Unit));
    let fields = Kind::Fields { x: -1, row: row() };
    assert_eq!(read_as::<later::Kind>(&fields), Ok(later::Kind::Fields { x: -1 }));
    refused::<Kind>(&later::Kind::New(1), "unknown variant `New`, expected one of `Unit`, `One`");
    refused::<Kind>(&"One", "a variant without content was sent for one with");
    refused::<Kind>(&BTreeMap::from([("Unit", 1)]), "with content was sent for one without");
}

#[test]
fn values_of_other_types_are_errors_and_never_wrong() {
    refused::<u8>(&300_u32, "300 was sent for u8");
    refused::<u32>(&-1_i32, "-1 was sent for u32");
    refused::<i64>(&u64::MAX, "18446744073709551615 was sent for i64");
    refused::<f32>(&0.5_f64, "an f64 was sent for f32");
    refused::<f64>(&1_u8, "an integer was sent for f64");
    refused::<String>(&vec![1_u8], "bytes was sent for a text");
    refused::<char>(&"ab", "a text was sent for char");
    refused::<(u8, u8)>(&(1, 2, 3), "invalid length 3");
    refused::<Row>(&(7, "a"), "a list was sent for a struct");
    refused::<u128>(&-1_i8, "-1 was sent for u128");
    refused::<u128>(&vec![1_u8; 15], "bytes was sent for an integer of 16 bytes");
    assert_eq!(read_as::<f64>(&0.5_f32), Ok(0.5));
    assert_eq!(read_as::<i16>(&200_u8), Ok(200));
    assert_eq!(decoded::<u8>(&[1, 2]), Err(DecodeError::Trailing { left: 1 }));
    assert!(matches!(decoded::<String>(&[0xa1, 0xff]), Err(DecodeError::Codec { .. })));
    assert!(matches!(decoded::<u32>(&[0xce, 1, 2, 3]), Err(DecodeError::Codec { .. })));
    assert!(matches!(decoded::<u32>(&[0xd4, 1, 2]), Err(DecodeError::Codec { .. })));
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
struct All {
    unsigned: (u8, u16, u32, u64, u128),
    signed: Vec<(i8, i16, i32, i64, i128)>,
    others: (bool, f32, f64, char, (), String),
    bytes: Vec<u8>,
    lists: Vec<Vec<u8>>,
    options: Vec<Option<Option<Option<u8>>>>,
    units: Vec<Option<()>>,
    kinds: BTreeMap<String, Vec<Kind>>,
    arrays: [[u16; 3]; 2],
    #[serde(skip_serializing_if = "Option::is_none", default)]
    left_out: Option<u8>,
}

fn all() -> All {
    let kinds = || {
        vec![
            Kind::Unit,
            Kind::One(70_000),
            Kind::Two(1, "x".repeat(300)),
            Kind::Fields { x: -40, row: row() },
        ]
    };
    let ends = [i64::MIN, -70_000, -200, -33, -32, -1, 0, 127, 128, 300, 70_000, i64::MAX];
    let signed = |n: i64| (n as i8, n as i16, n as i32, n, i128::from(n) * 3);
    All {
        unsigned: (u8::MAX, u16::MAX, u32::MAX, u64::MAX, u128::MAX),
        signed: ends.map(signed).into(),
        others: (true, f32::MIN, f64::MAX, '\u{1f600}', (), "text".repeat(30)),
        bytes: vec![9; 300],
        lists: vec![vec![], vec![200; 70_000], vec![1]],
        options: vec![None, Some(None), Some(Some(None)), Some(Some(Some(1)))],
        units: vec![None, Some(())],
        kinds: (0..20).map(|i| (i.to_string(), kinds())).collect(),
        arrays: [[1, 2, 3], [400, 5, 6]],
        left_out: None,
    }
}

#[test]
fn every_form_of_serde_survives_a_round_trip() {
    assert_eq!(round_trip::<Named, _>(&all()), Ok(all()));
    assert_eq!(
        round_trip::<Named, _>(&All { left_out: Some(1), ..all() }).map(|a| a.left_out),
        Ok(Some(1))
    );
    assert_eq!(round_trip::<Named, _>(&()), Ok(()));
    let bytes = vec![7_u8; 100];
    assert_eq!(encoded(&bytes)[..2], [0xc4, 100]);
    assert_eq!(round_trip::<Named, _>(&bytes), Ok(bytes));
    let value = serde_json::json!({"a": [1, -2, null, 0.5, {"b": "c"}]});
    assert_eq!(round_trip::<Named, _>(&value), Ok(value));
}

#[test]
fn the_encoding_is_messagepack() {
    let value = (row(), Kind::Two(200, "b".into()), -1, None::<u8>, Some(true));
    let expected = b"\x95\x82\xa2id\x07\xa4name\xa1a\x81\xa3Two\x92\xcc\xc8\xa1b\xff\xc0\xc3";
    assert_eq!(encoded(&value), expected);
}

#[test]
fn values_that_could_not_be_read_back_are_not_written() {
    #[derive(Serialize)]
    struct Flat {
        #[serde(flatten)]
        row: Row,
    }
    let error = encode::<Named, _>(&Flat { row: row() }, &Arena::heap()).unwrap_err();
    assert!(matches!(error, EncodeError::Codec { codec: "messagepack", .. }), "{error}");
    #[derive(Serialize)]
    struct Chain(Option<Box<Chain>>);
    let chain = |n| (0..n).fold(Chain(None), |inner, _| Chain(Some(Box::new(inner))));
    assert!(encode::<Named, _>(&chain(128), &Arena::heap()).is_ok());
    let error = encode::<Named, _>(&chain(129), &Arena::heap()).unwrap_err();
    assert_eq!(error, EncodeError::TooDeep { levels: 128 });
}

#[derive(Debug, Serialize, Deserialize)]
struct Tree {
    trees: Vec<Tree>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Maps(BTreeMap<u8, Maps>);

#[test]
fn nesting_elements_and_heap_are_bounded() {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let test = || {
            let too_deep = Err(DecodeError::TooDeep { levels: 128 });
            let tree = b"\x81\xa5trees\x91".repeat(5000);
            assert_eq!(decoded::<Tree>(&tree).map(drop), too_deep);
            assert_eq!(decoded::<Maps>(&[0x81, 1].repeat(5000)).map(drop), too_deep);
            assert_eq!(decoded::<serde_json::Value>(&[0x91; 50_000]).map(drop), too_deep);
            assert_eq!(decoded::<serde_json::Value>(&[0xc1; 50_000]).map(drop), too_deep);
            // Skipping takes no stack.
            let skipped = [b"\x82\xa1x", &[0x91; 50_000][..], b"\xc0\xa5trees\x90"].concat();
            assert!(decoded::<Tree>(&skipped).is_ok());
        };
        thread.spawn_scoped(scope, test).unwrap().join().unwrap();
    });
    for bytes in [&b"\xdd\xff\xff\xff\xff\x01"[..], b"\xdc\x00\x03\x01\x01", b"\x92\x01"] {
        assert_eq!(decoded::<Vec<u16>>(bytes), Err(DecodeError::Elements), "{bytes:?}");
    }
    assert_eq!(decoded::<BTreeMap<u8, u8>>(b"\x82\x01\x01\x02"), Err(DecodeError::Elements));
    let elements = 1 << 20;
    let list = [&b"\xdd\x00\x10\x00\x00"[..], &vec![0x90; elements]].concat();
    let limit = 64 * list.len() + (4 << 20);
    let heap = decoded::<Vec<Vec<[u64; 8]>>>(&list);
    assert!(heap.is_ok(), "24 bytes for each");
    #[derive(Debug, Deserialize)]
    struct Wide(#[allow(dead_code)] [Vec<u8>; 4], #[allow(dead_code)] [u64; 4]);
    assert_eq!(decoded::<Vec<Wide>>(&list).map(drop), Err(DecodeError::HeapLimit { limit }));
    let bytes = [&b"\xc6\x00\x10\x00\x00"[..], &vec![1; elements]].concat();
    #[derive(Debug)]
    struct Large([u64; 16]);
    impl<'de> Deserialize<'de> for Large {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            u8::deserialize(from).map(|n| Large([u64::from(n); 16]))
        }
    }
    let error = decoded::<Vec<Large>>(&bytes).map(|list| list[0].0).unwrap_err();
    assert_eq!(error, DecodeError::HeapLimit { limit });
}

#[test]
fn a_type_that_leaves_a_part_of_its_value_is_an_error() {
    #[derive(Debug)]
    struct First;
    impl<'de> Deserialize<'de> for First {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = First;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a list")
                }
                fn visit_seq<A: serde::de::SeqAccess<'de>>(
                    self,
                    mut from: A,
                ) -> Result<First, A::Error> {
                    from.next_element::<u16>().map(|_| First)
                }
            }
            from.deserialize_seq(Visitor)
        }
    }
    assert!(read_as::<First>(&vec![1_u16]).is_ok());
    refused::<(First, u16)>(&(vec![1_u16, 2], 3_u16), "left a part");
    refused::<First>(&vec![1_u8, 2], "left a part");
}

#[courser::service(codec = Named)]
trait Rows {
    async fn swap(&self, row: Row, kind: Kind) -> Result<(Kind, Row), Kind>;
    async fn bytes(&self, bytes: Vec<u8>) -> Vec<u8>;
    async fn nothing(&self);
}

struct RowsImpl;

impl Rows for RowsImpl {
    async fn swap(&self, row: Row, kind: Kind) -> Result<(Kind, Row), Kind> {
        if row.id == 0 { Err(kind) } else { Ok((kind, row)) }
    }
    async fn bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }
    async fn nothing(&self) {}
}

#[test]
fn a_service_has_the_codec_by_its_name() {
    let mut world = World::new(1);
    RowsServer::new(RowsImpl).register(&mut world).unwrap();
    let rows = world.run(RowsClient::new(world.session())).unwrap();
    world.run(async {
        assert_eq!(rows.swap(row(), Kind::Unit).await, Ok((Kind::Unit, row())));
        let none = Row { id: 0, name: String::new() };
        assert_eq!(rows.swap(none, Kind::One(3)).await, Err(RpcError::Service(Kind::One(3))));
        assert_eq!(rows.bytes(vec![200; 5000]).await, Ok(vec![200; 5000]));
        assert_eq!(rows.nothing().await, Ok(()));
    });
    drop(rows);
    world.assert_clean();
}

#[test]
fn shapes_are_compared_by_names() {
    let (old, new) = (<Named as Decode<Row>>::shape(), <Named as Decode<later::Row>>::shape());
    assert_eq!(Named::reads(&new, &old), Ok(()));
    let error = Named::reads(&old, &new).unwrap_err();
    assert_eq!(error.to_string(), "Row.id: the reader has u32, the writer u64");
    let never = <Named as Decode<NoError>>::shape();
    assert!(Named::reads(&never, &old).is_err());
}

#[test]
fn bytes_and_lists_of_newtypes_of_bytes_read_each_other() {
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Level(u8);
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    #[serde(transparent)]
    struct Outer {
        inner: Level,
    }
    assert_eq!(<Named as Decode<Vec<Level>>>::shape(), <Named as Decode<Vec<u8>>>::shape());
    let levels = || [0, 127, 128, 255].map(Level);
    let (bytes, list) = (vec![0_u8, 127, 128, 255], Vec::from(levels()));
    assert_eq!(read_as::<Vec<Level>>(&bytes).as_ref(), Ok(&list));
    assert_eq!(read_as::<Vec<u8>>(&list).as_ref(), Ok(&bytes));
    assert_eq!(read_as::<Vec<Level>>(&list).as_ref(), Ok(&list));
    assert_eq!(read_as::<(Vec<u8>,)>(&(list,)), Ok((bytes.clone(),)));
    let outer = levels().map(|inner| Outer { inner });
    assert_eq!(read_as::<Vec<Outer>>(&bytes).unwrap(), outer);
    refused::<Vec<u8>>(&vec![1_u16, 256], "256");
    refused::<Vec<u8>>(&vec!["a"], "a text");
    // A list that states more elements than bytes follow.
    assert!(decoded::<Vec<u8>>(&[0xdd, 0xff, 0xff, 0xff, 0xff, 1]).is_err());
}
