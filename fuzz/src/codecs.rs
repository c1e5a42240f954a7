//! The codecs of typed services: any bytes are a value or an error, within the documented heap, and a
//! value is read back from its own bytes. The first byte of the input chooses the codec and the type.

use std::collections::BTreeMap;

use courser::MsgBuf;
use courser::service::{
    Bytes, Decode, Encode, Named, Payload, Postcard, Prost, Rkyv, View, encode, round_trip,
};
use courser_buf::Arena;
use serde::{Deserialize, Serialize};

use crate::seeds::Seed;

/// Heap of any value that Postcard and Named read, and for each byte of its message: docs/semantics.md.
const POSTCARD: (usize, usize) = (4 << 20, 64);
/// Heap for each byte of a message that Rkyv deserializes.
const RKYV: (usize, usize) = (64 << 10, 4);
const BYTES: (usize, usize) = (64 << 10, 1);

#[derive(Debug, Serialize, Deserialize)]
struct Empty {}

#[derive(Debug, Serialize, Deserialize)]
struct Tree {
    trees: Vec<Tree>,
    named: BTreeMap<u8, Tree>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Expression {
    Not(Box<Expression>),
    Both { left: Option<Box<Expression>>, right: (u32, String) },
    Large([u64; 32]),
    Zero,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    bytes: Vec<u8>,
    nested: Vec<Vec<u8>>,
    map: BTreeMap<String, Vec<Option<i64>>>,
    scalars: (u8, i128, char, bool),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Node {
    #[prost(message, optional, boxed, tag = "1")]
    inner: Option<Box<Node>>,
    #[prost(message, repeated, tag = "2")]
    list: Vec<Node>,
    #[prost(btree_map = "string, message", tag = "3")]
    map: BTreeMap<String, Node>,
    #[prost(bytes = "vec", repeated, tag = "4")]
    bytes: Vec<Vec<u8>>,
    #[prost(sint64, repeated, tag = "5")]
    numbers: Vec<i64>,
}

#[derive(Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[rkyv(
    serialize_bounds(__S: rkyv::ser::Writer + rkyv::ser::Allocator, __S::Error: rkyv::rancor::Source),
    deserialize_bounds(__D::Error: rkyv::rancor::Source),
    bytecheck(bounds(__C: rkyv::validation::ArchiveContext, __C::Error: rkyv::rancor::Source))
)]
struct Linked {
    #[rkyv(omit_bounds)]
    next: Option<Box<Linked>>,
    #[rkyv(omit_bounds)]
    list: Vec<Linked>,
    bytes: Vec<u8>,
    texts: Vec<String>,
}

pub fn run(input: &[u8]) {
    let Some((&kind, bytes)) = input.split_first() else { return };
    match kind % 20 {
        0 => both::<Postcard, Tree>(bytes, POSTCARD),
        1 => both::<Postcard, Expression>(bytes, POSTCARD),
        2 => both::<Postcard, Record>(bytes, POSTCARD),
        3 => both::<Postcard, Vec<u8>>(bytes, POSTCARD),
        4 => both::<Postcard, (Vec<Empty>, Vec<((), [u8; 0])>)>(bytes, POSTCARD),
        5 => both::<Postcard, Vec<Expression>>(bytes, POSTCARD),
        6 => both::<Postcard, BTreeMap<u16, ()>>(bytes, POSTCARD),
        7 | 8 => both::<Prost, Node>(bytes, of_prost()),
        9 => both::<Prost, String>(bytes, of_prost()),
        10 => both::<Rkyv, Linked>(bytes, RKYV),
        11 => both::<Rkyv, Vec<Vec<u8>>>(bytes, RKYV),
        12 => once::<Rkyv, View<Linked>>(bytes, BYTES),
        13 => both::<Bytes, Vec<u8>>(bytes, BYTES),
        14 => both::<Bytes, String>(bytes, BYTES),
        16 => both::<Named, Tree>(bytes, POSTCARD),
        17 => both::<Named, Expression>(bytes, POSTCARD),
        18 => both::<Named, Record>(bytes, POSTCARD),
        19 => both::<Named, Vec<Expression>>(bytes, POSTCARD),
        _ => {
            both::<Bytes, [u8; 16]>(bytes, BYTES);
            once::<Bytes, MsgBuf>(bytes, BYTES);
        }
    }
}

/// An element of a list has two bytes or more, and the size of its type; nodes of maps have room for
/// eleven.
fn of_prost() -> (usize, usize) {
    (64 << 10, 4 * size_of::<(String, Node)>())
}

/// Decodes, with the heap that a value and each of its bytes may use. It is three times that while
/// lists grow.
fn decode<K: Decode<T>, T>(bytes: &[u8], (least, per_byte): (usize, usize)) -> Option<T> {
    let (mut value, arena) = (None, Arena::heap());
    let used = allocation_counter::measure(|| {
        value = K::decode(Payload::borrowed(bytes, &arena)).ok();
    });
    let most = 3 * (least + per_byte * bytes.len()) as u64;
    assert!(used.bytes_max <= most, "{} bytes of heap, {most} at most", used.bytes_max);
    value
}

fn once<K: Decode<T> + Encode<T>, T>(bytes: &[u8], most: (usize, usize)) {
    if let Some(value) = decode::<K, T>(bytes, most) {
        let again = encode::<K, T>(&value, &Arena::heap());
        assert_eq!(again.ok().as_deref(), Some(bytes));
    }
}

fn both<K: Decode<T> + Encode<T>, T>(bytes: &[u8], most: (usize, usize)) {
    if let Some(value) = decode::<K, T>(bytes, most) {
        let again = round_trip::<K, T>(&value);
        assert!(again.is_ok(), "{:?}", again.err());
    }
}

/// Encoded values, one of each kind.
pub fn seeds() -> Vec<Seed> {
    let tree = |trees: Vec<Tree>| Tree { named: BTreeMap::new(), trees };
    let named = Tree { named: [(1, tree(vec![])), (9, tree(vec![]))].into(), trees: vec![] };
    let expression = || Expression::Both {
        left: Some(Box::new(Expression::Not(Box::new(Expression::Large([1 << 40; 32]))))),
        right: (300, "text".into()),
    };
    let record = Record {
        bytes: vec![7; 20],
        nested: vec![vec![1, 2], vec![], vec![3]],
        map: [("a".into(), vec![Some(-1), None])].into(),
        scalars: (1, -(1 << 100), 'x', true),
    };
    let leaf = Node { numbers: vec![-1, 300], bytes: vec![vec![1]], ..Node::default() };
    let node = Node {
        inner: Some(Box::new(leaf.clone())),
        list: vec![Node::default(), leaf.clone(), Node::default()],
        map: [("a".into(), leaf)].into(),
        ..Node::default()
    };
    let last = || Linked { next: None, list: vec![], bytes: vec![1, 2], texts: vec!["a".into()] };
    let linked = || Linked { next: Some(Box::new(last())), list: vec![last(), last()], ..last() };
    vec![
        seed::<Postcard, _>(0, "tree", &tree(vec![tree(vec![]), named])),
        seed::<Postcard, _>(1, "expression", &expression()),
        seed::<Postcard, _>(2, "record", &record),
        seed::<Postcard, _>(3, "bytes", &vec![9_u8; 30]),
        seed::<Postcard, _>(5, "expressions", &vec![expression(), Expression::Zero]),
        seed::<Postcard, _>(6, "units", &BTreeMap::from([(1_u16, ()), (2, ())])),
        seed::<Named, _>(16, "named_tree", &tree(vec![tree(vec![])])),
        seed::<Named, _>(17, "named_expression", &expression()),
        seed::<Named, _>(18, "named_record", &record),
        seed::<Named, _>(19, "named_expressions", &vec![expression(), Expression::Zero]),
        seed::<Prost, _>(7, "node", &node),
        seed::<Prost, _>(9, "protobuf_text", &"text".to_owned()),
        seed::<Rkyv, _>(10, "linked", &linked()),
        seed::<Rkyv, _>(11, "lists", &vec![vec![1_u8, 2], vec![], vec![3]]),
        seed::<Rkyv, _>(12, "view", &linked()),
        seed::<Bytes, _>(14, "plain_text", &"text".to_owned()),
        seed::<Bytes, _>(15, "array", &[3_u8; 16]),
    ]
}

fn seed<K: Encode<T>, T>(kind: u8, name: &str, value: &T) -> Seed {
    let bytes = encode::<K, T>(value, &Arena::heap()).expect("a value of the codec");
    ("codecs", name.to_owned(), [&[kind], &bytes[..]].concat())
}
