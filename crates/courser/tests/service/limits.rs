//! Limits of what codecs read: depth, elements, heap.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::{Duration, Instant};

use courser::service::{
    Decode, DecodeError, Encode, EncodeError, Payload, Postcard, Prost, Rkyv, View, encode,
};
use courser_buf::Arena;
use serde::{Deserialize, Serialize};

fn decoded<K: Decode<T>, T>(bytes: &[u8]) -> Result<T, DecodeError> {
    K::decode(Payload::borrowed(bytes, &Arena::heap()))
}

fn encoded<K: Encode<T>, T>(value: &T) -> Result<Vec<u8>, EncodeError> {
    encode::<K, T>(value, &Arena::heap()).map(|message| message.to_vec())
}

/// Runs on a thread with the stack of the threads of servers and runtimes.
fn on_small_stack(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        thread.spawn_scoped(scope, test).unwrap().join().unwrap();
    });
}

#[derive(Default, Debug, Serialize, Deserialize)]
struct Chain(Option<Box<Chain>>);

#[derive(Debug, Serialize, Deserialize)]
struct Tree {
    trees: Vec<Tree>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Expression {
    Not(Box<Expression>),
    Both { left: Box<Expression>, right: Box<Expression> },
    Two(Box<Expression>, u8),
    Zero,
}

#[derive(Debug, Serialize, Deserialize)]
struct Named(BTreeMap<u8, Named>);

/// Has much more stack in each level than others.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Serialize, Deserialize)]
enum Wide {
    Here([[u64; 32]; 32], [[u64; 32]; 32]),
    Deeper(Box<Wide>),
}

const TOO_DEEP: DecodeError = DecodeError::TooDeep { levels: 128 };

#[test]
fn recursive_types_are_read_to_128_levels_on_any_stack() {
    on_small_stack(|| {
        let some = |n: usize| [vec![1; n], vec![0]].concat();
        assert!(decoded::<Postcard, Chain>(&some(128)).is_ok());
        for levels in [129, 20_000] {
            assert_eq!(decoded::<Postcard, Chain>(&some(levels)).unwrap_err(), TOO_DEEP);
            assert_eq!(decoded::<Postcard, Tree>(&some(levels)).unwrap_err(), TOO_DEEP);
        }
        // The list without elements is a level as well.
        assert!(decoded::<Postcard, Tree>(&some(127)).is_ok());
        let enums = |n: usize| [vec![0; n], vec![3]].concat();
        assert!(decoded::<Postcard, Expression>(&enums(128)).is_ok());
        assert_eq!(decoded::<Postcard, Expression>(&enums(20_000)).unwrap_err(), TOO_DEEP);
        for variant in [1, 2] {
            let bytes = vec![variant; 20_000];
            assert_eq!(decoded::<Postcard, Expression>(&bytes).unwrap_err(), TOO_DEEP);
        }
        assert_eq!(decoded::<Postcard, Named>(&[1; 20_000]).unwrap_err(), TOO_DEEP);
        assert_eq!(decoded::<Postcard, Wide>(&[1; 20_000]).unwrap_err(), TOO_DEEP);
    });
}

#[test]
fn what_is_too_deep_to_be_read_is_not_written() {
    let chain = |levels| (0..levels).fold(Chain(None), |inner, _| Chain(Some(Box::new(inner))));
    let not =
        |levels| (0..levels).fold(Expression::Zero, |inner, _| Expression::Not(Box::new(inner)));
    assert!(decoded::<Postcard, Chain>(&encoded::<Postcard, _>(&chain(128)).unwrap()).is_ok());
    assert!(decoded::<Postcard, Expression>(&encoded::<Postcard, _>(&not(128)).unwrap()).is_ok());
    let error = EncodeError::TooDeep { levels: 128 };
    assert_eq!(encoded::<Postcard, _>(&chain(129)).unwrap_err(), error);
    assert_eq!(encoded::<Postcard, _>(&not(129)).unwrap_err(), error);
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
struct Empty {}

fn too_many<T: Debug + Serialize + for<'a> Deserialize<'a> + 'static>(bytes: &[u8]) {
    let start = Instant::now();
    let error = decoded::<Postcard, T>(bytes).unwrap_err();
    assert_eq!(error, DecodeError::Elements, "{}", std::any::type_name::<T>());
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn lists_have_no_more_elements_than_bytes() {
    let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let megabyte = [&[0x80, 0x80, 0x40][..], &vec![0x30; 1 << 20]].concat();
    for bytes in [&most[..], &[2, 0], &megabyte] {
        too_many::<Vec<Empty>>(bytes);
        too_many::<Vec<()>>(bytes);
        too_many::<Vec<[(); 32]>>(bytes);
        too_many::<Vec<[[[[(); 32]; 32]; 32]; 4]>>(bytes);
        too_many::<BTreeSet<Empty>>(bytes);
        too_many::<BTreeMap<(), Empty>>(bytes);
        too_many::<(Vec<()>, String)>(bytes);
    }
    too_many::<Vec<Vec<()>>>(&megabyte);
    too_many::<Vec<u16>>(&most);
    too_many::<Vec<Option<u8>>>(&most);
    too_many::<BTreeMap<u8, u8>>(&most);
    // Both ends refuse them, so that no value is sent that is not received.
    for refused in [
        encoded::<Postcard, _>(&vec![(); 3]),
        encoded::<Postcard, _>(&vec![vec![Empty {}]]),
        encoded::<Postcard, _>(&BTreeMap::from([((), ())])),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("elements without bytes"), "{error}");
    }
    assert_eq!(decoded::<Postcard, Vec<Empty>>(&[0]).unwrap(), []);
    assert_eq!(decoded::<Postcard, BTreeMap<u8, ()>>(&[2, 7, 8]).unwrap().len(), 2);
}

/// Heap that decoding uses at most, and the outcome.
fn peak<T: for<'a> Deserialize<'a> + 'static>(bytes: &[u8]) -> (u64, Result<(), DecodeError>) {
    let mut outcome = Ok(());
    let heap = Arena::heap();
    let used = allocation_counter::measure(|| {
        outcome = Postcard::decode(Payload::borrowed(bytes, &heap)).map(|_: T| ());
    });
    (used.bytes_max, outcome)
}

fn list(elements: usize, element: &[u8]) -> Vec<u8> {
    let mut bytes = encoded::<Postcard, _>(&elements).unwrap();
    (0..elements).for_each(|_| bytes.extend(element));
    bytes
}

#[allow(clippy::large_enum_variant)]
#[derive(Debug, Serialize, Deserialize)]
enum Large {
    No,
    Yes([[u64; 32]; 4]),
}

#[test]
fn heap_is_bounded_by_the_length_of_the_message() {
    const N: usize = 200_000;
    let limit = |len: usize| (4 << 20) + 64 * len;
    // Lists of lists, options and strings are within the limit.
    let bytes = list(N, &[0]);
    for (used, outcome) in [
        peak::<Vec<Vec<u8>>>(&bytes),
        peak::<Vec<String>>(&bytes),
        peak::<Vec<Option<u128>>>(&bytes),
        peak::<Vec<Vec<Vec<u32>>>>(&bytes),
    ] {
        assert_eq!(outcome, Ok(()));
        assert!(used < 3 * limit(bytes.len()) as u64, "{used}");
    }
    // 1 KiB for each byte is not, whether it is in the list or in boxes.
    let some = list(N / 2, &[1, 0]);
    for (used, outcome) in [
        peak::<Vec<Large>>(&bytes),
        peak::<BTreeMap<u8, Large>>(&some),
        peak::<Vec<Box<Large>>>(&bytes),
        peak::<Vec<Option<Box<Large>>>>(&some),
        peak::<Vec<Box<(Large, u8)>>>(&list(N / 2, &[0, 0])),
    ] {
        let most = limit(bytes.len());
        assert!(
            matches!(outcome, Err(DecodeError::HeapLimit { limit }) if limit.abs_diff(most) < 512),
            "{outcome:?}"
        );
        assert!(used < 3 * most as u64, "{used}");
    }
    assert_eq!(peak::<Vec<Large>>(&list(1000, &[0])).1, Ok(()), "1 MiB is always there");
    // Lists that state many elements, and end, in each other.
    let deep = [0xc0, 0x84, 0x3d].repeat(1 << 14);
    let (used, outcome) = peak::<Tree>(&deep);
    assert!(outcome.is_err() && used < 3 * limit(deep.len()) as u64, "{used} {outcome:?}");
}

#[derive(Clone, PartialEq, prost::Message)]
struct Nested {
    #[prost(message, optional, boxed, tag = "1")]
    inner: Option<Box<Nested>>,
    #[prost(message, repeated, tag = "2")]
    list: Vec<Nested>,
}

#[test]
fn nested_protobuf_is_refused_beyond_its_limit() {
    on_small_stack(|| {
        for tag in [0x0a, 0x12] {
            let mut bytes = Vec::new();
            for level in 1..=20_000_u32 {
                let len = prost::encoding::encoded_len_varint(bytes.len() as u64);
                let mut outer = Vec::with_capacity(bytes.len() + 1 + len);
                outer.push(tag);
                prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
                outer.extend(&bytes);
                bytes = outer;
                if level == 99 {
                    assert!(decoded::<Prost, Nested>(&bytes).is_ok());
                }
                if level == 200 || level == 5_000 {
                    let error = decoded::<Prost, Nested>(&bytes).unwrap_err();
                    assert!(error.to_string().contains("recursion limit"), "{error}");
                }
                if level == 5_000 {
                    break;
                }
            }
        }
    });
}

/// 128 bytes, the largest message whose lists have the limits of Postcard.
#[derive(Clone, PartialEq, prost::Message)]
struct Small {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(string, tag = "2")]
    a: String,
    #[prost(string, tag = "3")]
    b: String,
    #[prost(string, tag = "4")]
    c: String,
    #[prost(string, tag = "5")]
    d: String,
    #[prost(string, tag = "6")]
    e: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Wider {
    #[prost(message, optional, tag = "1")]
    a: Option<Small>,
    #[prost(message, optional, tag = "2")]
    b: Option<Small>,
    #[prost(message, optional, tag = "3")]
    c: Option<Small>,
    #[prost(message, optional, tag = "4")]
    d: Option<Small>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Boxed {
    #[prost(message, optional, boxed, tag = "1")]
    inner: Option<Box<Wider>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Lists {
    #[prost(message, repeated, tag = "1")]
    small: Vec<Small>,
    #[prost(message, repeated, tag = "2")]
    wider: Vec<Wider>,
    #[prost(message, repeated, tag = "3")]
    boxed: Vec<Boxed>,
}

/// Heap for each byte of a list with that number of empty messages.
fn heap_of_protobuf(tag: u8, elements: usize) -> usize {
    let bytes = [tag << 3 | 2, 0].repeat(elements);
    let heap = Arena::heap();
    let used = allocation_counter::measure(|| {
        let lists = <Prost as Decode<Lists>>::decode(Payload::borrowed(&bytes, &heap)).unwrap();
        assert_eq!(lists.small.len() + lists.wider.len() + lists.boxed.len(), elements);
    });
    used.bytes_max as usize / bytes.len()
}

#[test]
fn lists_of_protobuf_take_the_sizes_of_their_types_for_each_two_bytes() {
    const N: usize = 40_000;
    assert_eq!(size_of::<Small>(), 128);
    let (small, wider, boxed) = (1, 2, 3);
    // Within the limit of Postcard, which is three times as much while a list grows.
    let used = heap_of_protobuf(small, N);
    assert!((64..=3 * 64).contains(&used), "{used}");
    assert!(heap_of_protobuf(boxed, N) <= 3 * 8);
    // The limit of what is bounded: larger types take more, in proportion to their size.
    let (used, size) = (heap_of_protobuf(wider, N), size_of::<Wider>());
    assert!(size > 512 - 8 && (size / 2..=3 * size / 2).contains(&used), "{used} {size}");
}

#[derive(Default, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[rkyv(
    serialize_bounds(__S: rkyv::ser::Writer, __S::Error: rkyv::rancor::Source),
    deserialize_bounds(__D::Error: rkyv::rancor::Source),
    bytecheck(bounds(__C: rkyv::validation::ArchiveContext, __C::Error: rkyv::rancor::Source))
)]
struct Linked {
    #[rkyv(omit_bounds)]
    next: Option<Box<Linked>>,
}

#[test]
fn nested_rkyv_is_refused_beyond_its_limit() {
    let linked = |levels| {
        (0..levels).fold(Linked::default(), |inner, _| Linked { next: Some(Box::new(inner)) })
    };
    let bytes = |levels| encoded::<Rkyv, _>(&linked(levels)).unwrap();
    let (shallow, deep) = (bytes(126), bytes(2_000));
    on_small_stack(|| {
        let heap = Arena::heap();
        let view = |bytes: &[u8]| {
            <Rkyv as Decode<View<Linked>>>::decode(Payload::borrowed(bytes, &heap)).map(drop)
        };
        assert_eq!(view(&shallow), Ok(()));
        assert!(decoded::<Rkyv, Linked>(&shallow).is_ok());
        assert!(view(&deep).is_err() && decoded::<Rkyv, Linked>(&deep).is_err());
    });
}
